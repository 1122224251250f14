//! Offers that the ends of a pipe exchange by message before they join.

use super::{Config, Step};
use crate::wire::Key;

/// Length of an offer in bytes.
pub const OFFER: usize = 36;
/// Sent instead of an offer by a rank that could not open its end.
pub const NO_OFFER: [u8; OFFER] = [0; OFFER];

/// Address and configuration of one end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offer {
    /// Configuration of the end.
    pub config: Config,
    /// Number of the pipe at the offering rank, among its pipes to the same peer.
    pub number: u8,
    /// Key of the end's memory, on rail 0.
    pub key: Key,
}

const STEPS: [Step; 5] = [Step::Basic, Step::Piggyback, Step::Pipeline, Step::Read, Step::Write];

impl Offer {
    /// Encodes the offer as a message.
    pub fn encode(&self) -> [u8; OFFER] {
        let Offer { config, number, key } = self;
        let step = STEPS.iter().position(|step| *step == config.step).expect("the table lists all protocols") as u8;
        let mut bytes = [0; OFFER];
        bytes[..4].copy_from_slice(&[step, *number, 0, 0]);
        bytes[4..8].copy_from_slice(&config.chunk.to_le_bytes());
        bytes[8..12].copy_from_slice(&config.chunks.to_le_bytes());
        bytes[12..16].copy_from_slice(&config.zero_copy_from.to_le_bytes());
        bytes[16..24].copy_from_slice(&key.address.to_le_bytes());
        bytes[24..32].copy_from_slice(&key.key.to_le_bytes());
        bytes[32..].copy_from_slice(b"pipe");
        bytes
    }

    /// Parses an offer received from a peer; `None` if it is malformed.
    pub fn decode(bytes: &[u8]) -> Option<Offer> {
        let bytes: &[u8; OFFER] = bytes.try_into().ok()?;
        let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        let u64_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let step = *STEPS.get(usize::from(bytes[0]))?;
        let config = Config { step, chunk: u32_at(4), chunks: u32_at(8), zero_copy_from: u32_at(12) };
        let is_one = bytes[2..4] == [0, 0] && &bytes[32..] == b"pipe" && config.is_sound();
        is_one.then(|| Offer { config, number: bytes[1], key: Key { address: u64_at(16), key: u64_at(24) } })
    }
}
