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

    /// Returns whether an atomic has begun and not ended.
    pub fn has_halves(&self) -> bool {
        !self.1.is_empty()
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

/// Source, destination and queue.
pub(super) type Channel = (Rank, Rank, usize);

/// FIFO channels; empty ones are not stored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Channels(BTreeMap<Channel, VecDeque<Message>>);

impl Channels {
    pub fn send(&mut self, channel: Channel, message: Message) {
        self.0.entry(channel).or_default().push_back(message);
    }

    pub fn receive(&mut self, channel: Channel) -> Option<Message> {
        let messages = self.0.get_mut(&channel)?;
        let message = messages.pop_front();
        if messages.is_empty() {
            self.0.remove(&channel);
        }
        message
    }

    pub fn is_empty(&self, from: Rank, to: Rank, queue: usize) -> bool {
        !self.0.contains_key(&(from, to, queue))
    }

    /// The oldest message of each channel.
    pub fn heads(&self) -> impl Iterator<Item = (Channel, &Message)> {
        self.0.iter().filter_map(|(&channel, messages)| Some((channel, messages.front()?)))
    }

    /// Returns whether no message is in flight.
    pub fn are_empty(&self) -> bool {
        self.0.is_empty()
    }
}
