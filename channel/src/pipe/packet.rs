//! Headers of chunks, and control messages. All bytes from the peer are validated.

use super::CONTROL;
use crate::error::PeerFailure;
use crate::ring::{Look, Receiver};
use crate::wire::{Key, WireMemory};

/// Header bytes before the data of a chunk.
pub(super) const HEADER: usize = 8;
/// Length of control, and of the longest chunk without data, in bytes.
pub(super) const LONGEST: usize = 32;

/// Type of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Chunk {
    /// Data follows.
    Data,
    /// `length` bytes may be read by this key.
    Offer { length: u64, key: Key },
    /// `length` bytes wait to be written.
    Announce { length: u64 },
    /// `length` bytes have been written into the peer's buffer.
    Fin { length: u64 },
}

/// A message outside the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Control {
    /// The offered bytes were read.
    Ack,
    /// The offered or announced bytes must be copied, from byte `done` on.
    Refuse { done: u64 },
    /// The first `length` of the announced bytes may be written here.
    Clear { length: u64, key: Key },
    /// The stream ends after `total` bytes.
    End { total: u64 },
    /// The sender gets no more, and accesses no memory of its peer.
    Shut,
    /// The sender posts nothing more.
    Close,
}

fn words(words: [u64; 4]) -> [u8; LONGEST] {
    let mut bytes = [0; LONGEST];
    for (place, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
        *place = word.to_le_bytes();
    }
    bytes
}

fn word(bytes: &[u8], at: usize) -> u64 {
    bytes.as_chunks::<8>().0.get(at).map_or(0, |word| u64::from_le_bytes(*word))
}

impl Chunk {
    /// Encodes the header, which carries `freed`; also returns its length in bytes.
    pub fn encode(self, freed: u32) -> ([u8; LONGEST], usize) {
        let (kind, length, key, bytes) = match self {
            Chunk::Data => (1, 0, Key { address: 0, key: 0 }, HEADER),
            Chunk::Offer { length, key } => (2, length, key, LONGEST),
            Chunk::Announce { length } => (3, length, Key { address: 0, key: 0 }, 16),
            Chunk::Fin { length } => (4, length, Key { address: 0, key: 0 }, 16),
        };
        (words([u64::from(freed) << 32 | kind, length, key.address, key.key]), bytes)
    }

    /// Parses the head of a chunk of `total` bytes. Also returns the `freed` that it carries.
    pub fn decode(head: &[u8], total: usize) -> Result<(Chunk, u32), PeerFailure> {
        let (kind, length) = (word(head, 0) as u32, word(head, 1));
        let key = Key { address: word(head, 2), key: word(head, 3) };
        let (chunk, fits) = match kind {
            1 => (Chunk::Data, total > HEADER),
            2 => (Chunk::Offer { length, key }, total == LONGEST && length > 0),
            3 => (Chunk::Announce { length }, total == 16 && length > 0),
            4 => (Chunk::Fin { length }, total == 16 && length > 0),
            _ => (Chunk::Data, false),
        };
        if !fits {
            return Err(PeerFailure::Broken("its pipe has a malformed chunk"));
        }
        Ok((chunk, (word(head, 0) >> 32) as u32))
    }
}

impl Control {
    /// Returns true if the message answers a put of the peer.
    pub fn is_answer(self) -> bool {
        !matches!(self, Control::End { .. } | Control::Shut | Control::Close)
    }

    pub fn encode(self) -> [u8; LONGEST] {
        words(match self {
            Control::Ack => [1, 0, 0, 0],
            Control::Refuse { done } => [2, done, 0, 0],
            Control::Clear { length, key } => [3, length, key.address, key.key],
            Control::End { total } => [4, total, 0, 0],
            Control::Close => [5, 0, 0, 0],
            Control::Shut => [6, 0, 0, 0],
        })
    }

    fn decode(bytes: &[u8; LONGEST]) -> Option<Control> {
        let (value, key) = (word(bytes, 1), Key { address: word(bytes, 2), key: word(bytes, 3) });
        match word(bytes, 0) {
            1 => Some(Control::Ack),
            2 => Some(Control::Refuse { done: value }),
            3 => Some(Control::Clear { length: value, key }),
            4 => Some(Control::End { total: value }),
            5 => Some(Control::Close),
            6 => Some(Control::Shut),
            _ => None,
        }
    }
}

/// The next control message received.
pub(super) fn next_control(memory: &impl WireMemory, ring: &mut Receiver) -> Result<Option<Control>, PeerFailure> {
    let Some(place) = ring.place() else { return Ok(None) };
    let broken = PeerFailure::Broken("its pipe has a malformed control message");
    let (at, length) = match ring.look(memory.word(CONTROL + place)) {
        Look::Empty => return Ok(None),
        Look::Broken => return Err(broken),
        Look::Message { at, length } => (at, length),
    };
    let mut bytes = [0; LONGEST];
    if length != LONGEST {
        return Err(broken);
    }
    memory.read(CONTROL + at, &mut bytes);
    ring.free();
    Control::decode(&bytes).map(Some).ok_or(broken)
}
