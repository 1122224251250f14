//! State of a job's or team's collectives at one rank: a block of registered memory. It has a place per step, into
//! which one peer writes, and a word that counts the collectives that this rank has completed.
//!
//! Places and bytes exist twice, for collectives of even and odd numbers. A rank that writes in collective `i` has
//! completed `i - 1`, so all ranks have begun `i - 1`, and hence completed `i - 2`, whose places and bytes are free.

use crate::VerbsError;
use crate::connect::{Service, Twin};
use crate::memory::{Buffer, Keys};
use crate::sys::Access;
use crate::wr::RemoteAddress;
use std::collections::HashMap;
use std::sync::Mutex;
use transom_channel::wire::RAILS;
use transom_locks::Rank;
use transom_windows::FabricError;

/// Largest number of steps; more ranks would exceed a lock word.
const STEPS: usize = 16;
/// Layout of a place: a word (twice the collective's number, plus the flag), an address, a length, and a key per rail.
const PLACE: usize = 24 + RAILS * size_of::<u32>();
/// Offset of the word that counts completed collectives.
pub(super) const DONE: usize = 2 * STEPS * PLACE;
pub(super) const BLOCK: usize = DONE + 8;
/// State of a job's or team's collectives.
pub(super) struct Mail {
    pub block: Buffer,
    /// Location of each rank's block.
    pub blocks: Box<[RemoteAddress]>,
    /// Keys of the blocks on the further rails, if there are several rails.
    pub further: Box<[Box<[u32]>]>,
    /// Serialises collective calls of several threads.
    pub turn: Mutex<Turn>,
}

pub(super) struct Turn {
    /// Number of collectives begun.
    pub number: u64,
    /// Registered buffers with bytes for peers, for even and odd collectives; the last one is in use.
    pub bytes: [Vec<Buffer>; 2],
    /// Key translations of the blocks to which this rank writes.
    pub twins: HashMap<Rank, Twin>,
}

/// A block that is not yet published to the peers.
pub(super) struct Block(Buffer);

impl Block {
    pub fn new(service: &Service) -> Result<Self, VerbsError> {
        let block = Buffer::new(&service.core.rail.domain, BLOCK, Access::All)?;
        Ok(Block(block.also(service.further_domains(), Access::Bytes)))
    }

    /// Encodes the block's location for the peers.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.0.keys().to_bytes(&[])
    }

    /// Completes the state, given the blocks of all ranks.
    pub fn with<'b>(self, all: impl Iterator<Item = &'b [u8]>) -> Result<Mail, FabricError> {
        let read = |(rank, bytes)| {
            let keys = Keys::from_bytes(bytes).and_then(|(keys, _)| Some((keys.place(0)?, keys)));
            let keys = keys.filter(|(place, _)| place.address.checked_add(BLOCK as u64).is_some());
            keys.ok_or_else(|| FabricError::BadKey {
                rank,
                why: "it does not name a block of collectives".into(),
                source: None,
            })
        };
        let several = !self.0.keys().further().is_empty();
        let (mut blocks, mut further) = (Vec::new(), Vec::new());
        for told in all.enumerate() {
            let (place, keys) = read(told)?;
            blocks.push(place);
            if several {
                further.push(keys.further().into());
            }
        }
        let (bytes, twins) = Default::default();
        let (blocks, further) = (blocks.into(), further.into());
        Ok(Mail { block: self.0, blocks, further, turn: Mutex::new(Turn { number: 0, bytes, twins }) })
    }
}

impl Mail {
    /// Bytes of memory per rank of the job or team.
    pub const EACH: usize = size_of::<RemoteAddress>();

    /// Offset of a step's place in the collective of that number.
    pub fn place(number: u64, step: usize) -> usize {
        (number as usize % 2 * STEPS + step) * PLACE
    }
}
