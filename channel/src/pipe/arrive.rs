//! Data that the peer has written to the ring: chunks, each recorded once and freed after it was got; or
//! bytes between pointers.

use super::packet::{Chunk, HEADER, LONGEST};
use super::post::extend;
use super::{Config, RING, Step};
use crate::error::PeerFailure;
use crate::ring::{CompletionFlag, Look, Receiver};
use crate::sequence::Beyond;
use crate::wire::WireMemory;
use std::collections::VecDeque;

pub(super) enum Arrivals {
    /// Pointers count bytes since the start of the stream.
    Bytes { size: u64, head: u64, tail: u64, told: u64 },
    /// `ring` is past the recorded chunks; `freed` counts those of them that were freed.
    Chunks { ring: Receiver, came: VecDeque<Came>, freed: u64, told: u64 },
}

/// A chunk that has arrived, and was not got completely.
#[derive(Debug, Clone, Copy)]
pub(super) struct Came {
    pub chunk: Chunk,
    /// Offset of its remaining data in this end's memory.
    pub at: usize,
    /// Remaining data in bytes.
    pub length: usize,
}

impl Arrivals {
    pub fn new(config: &Config, marker: CompletionFlag) -> Arrivals {
        let shape = config.shape();
        match config.step {
            Step::Basic => Arrivals::Bytes { size: shape.size() as u64, head: 0, tail: 0, told: 0 },
            _ => Arrivals::Chunks { ring: Receiver::new(0, shape, marker), came: VecDeque::new(), freed: 0, told: 0 },
        }
    }

    /// Records the next chunk, if one has arrived. Returns the number of this end's chunks that it reports
    /// freed. Chunks that wait to be got are recorded too: otherwise two ends that only put would both wait
    /// for a tail that neither reads.
    pub fn look(&mut self, memory: &impl WireMemory) -> Result<Option<u32>, PeerFailure> {
        let Arrivals::Chunks { ring, came, .. } = self else { return Ok(None) };
        // A slot that was not freed holds no new chunk, whatever its mark.
        let Some(place) = ring.place().filter(|_| came.len() < ring.shape.slots as usize) else { return Ok(None) };
        let (at, length) = match ring.look(memory.word(RING + place)) {
            Look::Empty => return Ok(None),
            Look::Broken => return Err(PeerFailure::Broken("a mark in its pipe is invalid")),
            Look::Message { at, length } => (RING + at, length),
        };
        let mut head = [0; LONGEST];
        let head = &mut head[..length.min(LONGEST)];
        memory.read(at, head);
        let (chunk, freed) = Chunk::decode(head, length)?;
        ring.free();
        came.push_back(Came { chunk, at: at + HEADER, length: length - HEADER });
        Ok(Some(freed))
    }

    /// Records an immediate value that announces a chunk.
    pub fn told(&mut self) -> Result<(), Beyond> {
        match self {
            Arrivals::Chunks { ring, .. } => ring.told(),
            Arrivals::Bytes { .. } => Err(Beyond),
        }
    }

    /// Applies the peer's head pointer, or its low bits. Returns whether it is new.
    pub fn head(&mut self, value: u64, low: bool) -> Result<bool, PeerFailure> {
        let Arrivals::Bytes { size, head, tail, .. } = self else { return Ok(false) };
        let value = if low { extend(*head, value) } else { value };
        if value < *head || value - *tail > *size {
            return Err(PeerFailure::Broken("a head pointer of its pipe is out of range"));
        }
        Ok(std::mem::replace(head, value) != value)
    }

    /// The next chunk or bytes to get.
    pub fn front(&self) -> Option<Came> {
        match self {
            Arrivals::Chunks { came, .. } => came.front().copied(),
            Arrivals::Bytes { size, head, tail, .. } => {
                let at = *tail % *size;
                let length = (*head - *tail).min(*size - at) as usize;
                (length > 0).then_some(Came { chunk: Chunk::Data, at: RING + at as usize, length })
            }
        }
    }

    /// Records that `bytes` of the front were got.
    pub fn got(&mut self, bytes: usize) {
        match self {
            Arrivals::Bytes { tail, .. } => *tail += bytes as u64,
            Arrivals::Chunks { came, .. } => {
                let Some(front) = came.front_mut() else { return };
                (front.at, front.length) = (front.at + bytes, front.length - bytes);
                if front.length == 0 {
                    self.pop();
                }
            }
        }
    }

    /// Removes the front.
    pub fn pop(&mut self) {
        if let Arrivals::Chunks { came, freed, .. } = self
            && came.pop_front().is_some()
        {
            *freed += 1;
        }
    }

    /// The tail, as carried by a chunk.
    pub fn tail(&self) -> u32 {
        match self {
            Arrivals::Chunks { freed, .. } => *freed as u32,
            Arrivals::Bytes { .. } => 0,
        }
    }

    /// Records that a chunk carried the tail.
    pub fn rode(&mut self) {
        if let Arrivals::Chunks { .. } = self {
            self.tell();
        }
    }

    /// The tail, if a write of its own must report it: at each change (bytes), or once the peer may lack half
    /// of its chunks.
    pub fn due(&self) -> Option<u64> {
        match self {
            Arrivals::Bytes { tail, told, .. } => (tail != told).then_some(*tail),
            Arrivals::Chunks { ring, freed, told, .. } => {
                (*freed - *told >= u64::from(ring.shape.slots / 2)).then_some(*freed)
            }
        }
    }

    /// Records that the tail was reported.
    pub fn tell(&mut self) {
        match self {
            Arrivals::Bytes { tail, told, .. } => *told = *tail,
            Arrivals::Chunks { freed, told, .. } => *told = *freed,
        }
    }
}
