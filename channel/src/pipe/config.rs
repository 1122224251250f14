//! Configuration, faults and counters of a pipe.

use super::packet::HEADER;
use super::{MOST, RING};
use crate::ring::{MARK, RingConfig};

/// Method of moving bytes; each step improves on the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Step {
    /// Data, head pointer and tail pointer are written one by one.
    Basic,
    /// Pointers ride on chunks of data.
    Piggyback,
    /// A chunk is written while the next is copied.
    Pipeline,
    /// Large buffers are read by the receiver, without a copy.
    #[default]
    Read,
    /// Large buffers are written by the sender, without a copy.
    Write,
}

/// Configuration that both ends must share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Config {
    /// Method of moving bytes.
    pub step: Step,
    /// Bytes of a chunk, a multiple of 8.
    pub chunk: u32,
    /// Number of chunks in a ring.
    pub chunks: u32,
    /// Shortest buffer owned by the pipe that is moved without a copy, in bytes.
    pub zero_copy_from: u32,
}

impl Default for Config {
    fn default() -> Config {
        Config { step: Step::Read, chunk: 16 << 10, chunks: 16, zero_copy_from: 32 << 10 }
    }
}

impl Config {
    pub(super) fn shape(&self) -> RingConfig {
        RingConfig { slots: self.chunks, bytes: self.chunk }
    }

    /// Memory of each end in bytes.
    pub fn memory(&self) -> usize {
        RING + self.shape().size()
    }

    /// Most data in a chunk, in bytes.
    pub fn payload(&self) -> usize {
        self.chunk as usize - MARK - HEADER
    }

    pub(crate) fn is_sound(&self) -> bool {
        self.shape().is_sound() && self.shape().size() <= MOST
    }
}

/// Reason why a pipe cannot be opened or used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The sizes are out of range.
    #[error(
        "{chunks} chunks of {chunk} bytes; expected 2 to 1024 chunks of 64 to 65536 bytes, divisible by 8, and 1 MiB \
         in all at most"
    )]
    Sizes {
        /// Bytes of a chunk.
        chunk: u32,
        /// Number of chunks.
        chunks: u32,
    },
    /// The ends were opened with different configurations.
    #[error("it opened its end with {theirs:?}, this rank with {mine:?}: both ends must have the same configuration")]
    Differs {
        /// Configuration of the peer's end.
        theirs: Config,
        /// Configuration of this end.
        mine: Config,
    },
    /// The rail offers no method to detect a complete write.
    #[error(
        "the rail has no means to detect a complete write: no ordered writes, no atomic words and no immediate values"
    )]
    NoMarker,
    /// Allocation failed for the memory of this end.
    #[error("cannot allocate {0} bytes that a peer can write to")]
    NoMemory(usize),
    /// This rank cannot reach the memory of the peer's end.
    #[error("this rank cannot access the memory of its end")]
    Unreachable,
    /// 256 pipes to one peer are open.
    #[error("256 pipes to it are open, the maximum: close one first")]
    TooMany,
    /// The peer has closed its end, and gets no more bytes.
    #[error("it has closed its end")]
    Closed,
    /// The program has ended the stream of this end.
    #[error("the stream of this end has ended: no more bytes can be put")]
    Ended,
    /// The peer could not open its end.
    #[error("it could not open its end")]
    Refused,
    /// The program has closed this end.
    #[error("this end is closed")]
    Shut,
}

/// Counters of one end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Count {
    /// Writes posted, of data, pointers and control.
    pub writes: u64,
    /// Writes of pointers and control alone.
    pub alone: u64,
    /// Bytes put that were copied.
    pub copied: u64,
    /// Bytes put that the peer has read.
    pub read: u64,
    /// Bytes put that were written without a copy.
    pub written: u64,
    /// Bytes got.
    pub got: u64,
    /// Buffers of this end that were copied although they were long enough to move in place.
    pub downgrades: u64,
}
