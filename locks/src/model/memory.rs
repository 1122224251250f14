//! The words of a simulated network, and the notifications and additions in flight to them.

use crate::{At, Rank, Wake};
use std::collections::{BTreeMap, VecDeque};

/// All words of all ranks. Stores only nonzero words, so that states stay small.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct SimWords(Vec<(u64, u64)>, Halves);

/// The atomics that have read their word and not yet written it, with the rank, the word and the value read.
type Halves = Vec<(Rank, u64, u64)>;

impl SimWords {
    pub fn get(&self, at: At) -> u64 {
        self.place(at).map_or(0, |place| self.0[place].1)
    }

    /// Stores `value`; returns the previous value.
    pub fn set(&mut self, at: At, value: u64) -> u64 {
        match (self.place(at), value) {
            (Ok(place), 0) => self.0.remove(place).1,
            (Ok(place), value) => std::mem::replace(&mut self.0[place].1, value),
            (Err(_), 0) => 0,
            (Err(place), value) => {
                self.0.insert(place, (key(at), value));
                0
            }
        }
    }

    /// Begins an atomic of `rank`, which reads the word.
    pub fn begin_half(&mut self, rank: Rank, at: At) {
        self.1.push((rank, key(at), self.get(at)));
        self.1.sort_unstable();
    }

    /// Ends the atomic that `rank` has begun, if any; returns the value that it read.
    pub fn end_half(&mut self, rank: Rank) -> Option<u64> {
        let half = self.1.iter().position(|half| half.0 == rank)?;
        Some(self.1.remove(half).2)
    }

    /// The rank whose atomic on this word has begun.
    pub fn half_at(&self, at: At) -> Option<Rank> {
        self.1.iter().find(|half| half.1 == key(at)).map(|half| half.0)
    }

    pub fn nonzero(&self) -> impl Iterator<Item = (At, u64)> {
        self.0.iter().map(|&(key, value)| (At { rank: (key >> 32) as Rank, word: (key & 0xffff_ffff) as usize }, value))
    }

    fn place(&self, at: At) -> Result<usize, usize> {
        self.0.binary_search_by_key(&key(at), |&(key, _)| key)
    }
}

fn key(at: At) -> u64 {
    (at.rank as u64) << 32 | at.word as u64
}

/// A message in flight.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Message {
    Notify {
        at: At,
        value: u64,
        wake: Wake,
    },
    /// An addition, with the phase and record entry in which its sender keeps the result.
    Add {
        at: At,
        delta: u64,
        wake: Wake,
        phase: usize,
        entry: usize,
    },
}

/// One FIFO channel per source and destination; empty channels are not stored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Channels(BTreeMap<(Rank, Rank), VecDeque<Message>>);

impl Channels {
    pub fn send(&mut self, from: Rank, to: Rank, message: Message) {
        self.0.entry((from, to)).or_default().push_back(message);
    }

    pub fn receive(&mut self, from: Rank, to: Rank) -> Option<Message> {
        let channel = self.0.get_mut(&(from, to))?;
        let message = channel.pop_front();
        if channel.is_empty() {
            self.0.remove(&(from, to));
        }
        message
    }

    pub fn is_empty(&self, from: Rank, to: Rank) -> bool {
        !self.0.contains_key(&(from, to))
    }

    pub fn busy(&self) -> impl Iterator<Item = (Rank, Rank)> {
        self.0.keys().copied()
    }
}
