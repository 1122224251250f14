//! What the peer has written to the ring: chunks, each noted once and given back when it was got; or bytes between pointers.

use super::packet::{Chunk, HEADER, LONGEST};
use super::post::extend;
use super::{Config, RING, Step};
use crate::error::Lost;
use crate::ring::{Look, Marker, Receiver};
use crate::sequence::Beyond;
use crate::wire::Wire;
use std::collections::VecDeque;

pub(super) enum Arrivals {
    /// Pointers count the bytes since the beginning.
    Bytes { size: u64, head: u64, tail: u64, told: u64 },
    /// `ring` stands behind what was noted, which is more than what was `freed`.
    Chunks { ring: Receiver, came: VecDeque<Came>, freed: u64, told: u64 },
}

/// A chunk that has come, and was not got yet.
#[derive(Debug, Clone, Copy)]
pub(super) struct Came {
    pub chunk: Chunk,
    /// Where its data is in this end's memory.
    pub at: usize,
    /// How much of it is left.
    pub length: usize,
}

impl Arrivals {
    pub fn new(config: &Config, marker: Marker) -> Arrivals {
        let shape = config.shape();
        match config.step {
            Step::Basic => Arrivals::Bytes { size: shape.size() as u64, head: 0, tail: 0, told: 0 },
            _ => Arrivals::Chunks { ring: Receiver::new(0, shape, marker), came: VecDeque::new(), freed: 0, told: 0 },
        }
    }

    /// Notes the next chunk, if one has come; says what rides on it: how many chunks of this end's were freed. Those that
    /// wait to be got are noted too, or two ends that both put could wait for a tail that neither looks at.
    pub fn look<W: Wire>(&mut self, wire: &W, memory: &W::Memory) -> Result<Option<u32>, Lost> {
        let Arrivals::Chunks { ring, came, .. } = self else { return Ok(None) };
        // A slot that was not given back holds no new chunk, whatever stands there.
        let Some(place) = ring.place().filter(|_| came.len() < ring.shape.slots as usize) else { return Ok(None) };
        let (at, length) = match ring.look(wire.word(memory, RING + place)) {
            Look::Empty => return Ok(None),
            Look::Broken => return Err(Lost::Broken("a mark in its pipe that it cannot have written")),
            Look::Message { at, length } => (RING + at, length),
        };
        let mut head = [0; LONGEST];
        let head = &mut head[..length.min(LONGEST)];
        wire.read(memory, at, head);
        let (chunk, freed) = Chunk::decode(head, length)?;
        ring.free();
        came.push_back(Came { chunk, at: at + HEADER, length: length - HEADER });
        Ok(Some(freed))
    }

    /// An immediate value has told of a chunk.
    pub fn told(&mut self) -> Result<(), Beyond> {
        match self {
            Arrivals::Chunks { ring, .. } => ring.told(),
            Arrivals::Bytes { .. } => Err(Beyond),
        }
    }

    /// The peer has told its head pointer, or the low bits of it. Whether that is new.
    pub fn head(&mut self, value: u64, low: bool) -> Result<bool, Lost> {
        let Arrivals::Bytes { size, head, tail, .. } = self else { return Ok(false) };
        let value = if low { extend(*head, value) } else { value };
        if value < *head || value - *tail > *size {
            return Err(Lost::Broken("a head pointer in its pipe that it cannot have"));
        }
        Ok(std::mem::replace(head, value) != value)
    }

    /// What is next to be got.
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

    /// So many bytes of the front were got.
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

    /// The front is done with.
    pub fn pop(&mut self) {
        if let Arrivals::Chunks { came, freed, .. } = self
            && came.pop_front().is_some()
        {
            *freed += 1;
        }
    }

    /// The tail, as it rides on a chunk.
    pub fn tail(&self) -> u32 {
        match self {
            Arrivals::Chunks { freed, .. } => *freed as u32,
            Arrivals::Bytes { .. } => 0,
        }
    }

    /// The tail was told by a chunk.
    pub fn rode(&mut self) {
        if let Arrivals::Chunks { .. } = self {
            self.tell();
        }
    }

    /// The tail, if it is to be told by a write of its own: each time, or once the peer may be short of half of its chunks.
    pub fn due(&self) -> Option<u64> {
        match self {
            Arrivals::Bytes { tail, told, .. } => (tail != told).then_some(*tail),
            Arrivals::Chunks { ring, freed, told, .. } => {
                (*freed - *told >= u64::from(ring.shape.slots / 2)).then_some(*freed)
            }
        }
    }

    /// The tail was told.
    pub fn tell(&mut self) {
        match self {
            Arrivals::Bytes { tail, told, .. } => *told = *tail,
            Arrivals::Chunks { freed, told, .. } => *told = *freed,
        }
    }
}
