//! What can be chosen, what cannot be, and what is counted.

use super::packet::HEADER;
use super::{MOST, RING};
use crate::ring::{MARK, Shape};

/// How bytes move; each is an improvement on the one before.
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

/// What both ends agree on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Config {
    /// How bytes move.
    pub step: Step,
    /// Bytes of a chunk, divisible by 8.
    pub chunk: u32,
    /// Chunks of a ring.
    pub chunks: u32,
    /// Bytes from which on a buffer that the pipe owns is not copied.
    pub zero_copy_from: u32,
}

impl Default for Config {
    fn default() -> Config {
        Config { step: Step::Read, chunk: 16 << 10, chunks: 16, zero_copy_from: 32 << 10 }
    }
}

impl Config {
    pub(super) fn shape(&self) -> Shape {
        Shape { slots: self.chunks, bytes: self.chunk }
    }

    /// Bytes of memory that each end has.
    pub fn memory(&self) -> usize {
        RING + self.shape().size()
    }

    /// The most data of a chunk, in bytes.
    pub fn payload(&self) -> usize {
        self.chunk as usize - MARK - HEADER
    }

    pub(crate) fn is_sound(&self) -> bool {
        self.shape().is_sound() && self.shape().size() <= MOST
    }
}

/// Why a pipe cannot be, or be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The sizes cannot be.
    #[error(
        "a pipe has 2 to 1024 chunks of 64 to 65536 bytes, divisible by 8, and 1 MiB at most; not {chunks} of {chunk}"
    )]
    Sizes {
        /// Bytes of a chunk.
        chunk: u32,
        /// How many.
        chunks: u32,
    },
    /// The ends were opened in different ways.
    #[error("it opened its end as {theirs:?}, and this rank as {mine:?}: both must be alike")]
    Differs {
        /// How the peer has opened it.
        theirs: Config,
        /// How this rank has.
        mine: Config,
    },
    /// The rail shows in no way that a write is there.
    #[error("the rail neither shows the end of a write last, nor a word whole, nor takes immediate values")]
    NoMarker,
    /// There is no memory for this end.
    #[error("there is no memory of {0} bytes that a peer can write to")]
    NoMemory(usize),
    /// The peer's memory cannot be reached.
    #[error("the memory of its end cannot be reached from here")]
    Unreachable,
    /// 256 pipes to one peer are open.
    #[error("256 pipes to it are open: close some")]
    TooMany,
    /// The peer has closed its end: nobody will get what is put.
    #[error("it has closed its end")]
    Closed,
    /// The program has said that it puts no more.
    #[error("this end was ended: nothing more can be put")]
    Ended,
    /// The peer cannot use this end.
    #[error("it could not open its end")]
    Refused,
    /// The program has closed this end.
    #[error("this end is closed")]
    Shut,
}

/// What was counted at one end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Count {
    /// Writes posted, of data, pointers and control.
    pub writes: u64,
    /// Of these, pointers and control alone.
    pub alone: u64,
    /// Bytes put that were copied.
    pub copied: u64,
    /// Bytes put that the peer has read.
    pub read: u64,
    /// Bytes put that were written without a copy.
    pub written: u64,
    /// Bytes got.
    pub got: u64,
    /// Buffers of this end that were copied though they were long enough not to be.
    pub downgrades: u64,
}
