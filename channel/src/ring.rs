//! The two halves of a ring: slots in the receiver's memory, each written by one `Put` of the sender, in
//! order. The sender writes a slot again only after the receiver has reported it free.
//!
//! A message stands at the *end* of its slot. Behind it stands the mark (completion flag): the message
//! length, and a stamp that no earlier message in the slot has had. So the receiver polls one fixed place and
//! never writes, and slots need no clearing. (The two flags of ICS 4.2, before and behind the message, need
//! slots that are equal at both ends, and a receiver that clears the first flag.)
//!
//! Both halves go through the slots in a circle. A ring that [turns](Sender::turning) returns to the first
//! slot early, if all earlier messages are freed. So a sender of occasional short messages keeps to a few
//! cache lines. The mark of the last message before the turn announces it. That message's slot may still be
//! in use when later messages reach it. So both halves skip it until the next turn, and all slots but one may
//! be in use.

use crate::sequence::Beyond;
use crate::wire::{Key, Rail};

/// Size of the mark in bytes.
pub const MARK: usize = 8;

/// Bit of the mark that announces a turn: the next message is in the first slot.
const TURN: u64 = 1 << 63;

/// Bytes of a cache line. Only a message that fits in one line with its mark may end a lap. Lines that the
/// receiving processor still caches are slower to rewrite than lines it does not, so longer messages gain
/// nothing from a turn.
const LINE: usize = 64;

/// `TURNS`: fewest slots of a ring that turns. `LAP`: fewest slots that its sender uses before a turn.
const TURNS: u32 = 32;
const LAP: u32 = 8;

/// Method by which the receiver detects a complete message, given the guarantees of the rail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompletionFlag {
    /// One put, whose mark becomes visible last.
    Last,
    /// One put of the message, then one of the mark.
    Second,
    /// One put with an immediate value; the receiver reads the mark after that value has arrived.
    Immediate,
}

impl CompletionFlag {
    /// The cheapest marker that the rail supports; `None` if it supports no ring.
    #[inline]
    pub fn of(rail: &Rail) -> Option<CompletionFlag> {
        [CompletionFlag::Last, CompletionFlag::Immediate, CompletionFlag::Second]
            .into_iter()
            .find(|marker| marker.is_kept_by(rail))
    }

    /// Returns true if the rail gives the guarantee that this marker needs. Without it the receiver could see torn
    /// messages.
    #[inline]
    pub fn is_kept_by(self, rail: &Rail) -> bool {
        match self {
            CompletionFlag::Last => rail.mark_last,
            CompletionFlag::Second => rail.whole_word,
            CompletionFlag::Immediate => rail.immediate,
        }
    }
}

/// Size of a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RingConfig {
    /// Number of slots.
    pub slots: u32,
    /// Bytes of each slot, a multiple of 8.
    pub bytes: u32,
}

impl RingConfig {
    /// Returns true if the size is within the limits that a peer may ask for.
    #[inline]
    pub fn is_sound(self) -> bool {
        (2..=1024).contains(&self.slots) && (64..=65_536).contains(&self.bytes) && self.bytes.is_multiple_of(8)
    }

    /// Bytes of memory of the ring.
    #[inline]
    pub fn size(self) -> usize {
        self.slots as usize * self.bytes as usize
    }

    /// Longest message in one slot, in bytes.
    #[inline]
    pub fn longest(self) -> usize {
        self.bytes as usize - MARK
    }

    /// Number of slots after which the ring [turns](Sender::turning), if up to `window` messages may be in
    /// flight. A ring that needs all its slots for them does not turn.
    pub fn lap(self, window: u32) -> u32 {
        if self.slots < TURNS || self.slots <= window { self.slots } else { LAP }
    }

    /// Offset of the mark of the first slot after which a ring with this lap may turn.
    fn turns_from(self, lap: u32) -> usize {
        if lap < self.slots { (lap as usize - 1) * self.bytes as usize + self.longest() } else { usize::MAX }
    }
}

/// Next slot and its stamp. Both halves advance identically.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Cursor {
    /// Offset of the next slot's mark.
    mark_at: usize,
    stamp: u32,
    /// Offset of the mark of the slot that is skipped since the last turn; 0 before the first turn.
    left_out: usize,
    /// Offset of the mark of the first slot after which the ring may turn.
    turns_from: usize,
}

impl Cursor {
    /// The first slot. Stamps are never 0, the value of fresh memory.
    fn first(shape: RingConfig) -> Cursor {
        Cursor { mark_at: shape.longest(), stamp: 1, left_out: 0, turns_from: usize::MAX }
    }

    /// Offset of the following mark, unless the ring turns.
    #[inline(always)]
    fn mark_after(&self, shape: RingConfig) -> usize {
        let bytes = shape.bytes as usize;
        let next = self.mark_at + bytes;
        let next = if next == self.left_out { next + bytes } else { next };
        if next < shape.size() { next } else { shape.longest() }
    }

    #[inline(always)]
    fn advance(&mut self, shape: RingConfig, turn: bool) {
        if turn {
            self.left_out = self.mark_at;
            self.mark_at = shape.longest();
        } else {
            self.mark_at = self.mark_after(shape);
        }
        self.stamp = self.stamp.checked_add(1).unwrap_or(1);
    }
}

/// The sender's half of a ring.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Sender {
    /// Number of the ring at its peer.
    pub ring: u16,
    /// Size of the ring.
    pub shape: RingConfig,
    /// Key of the ring's memory.
    pub key: Key,
    next: Cursor,
    /// Most slots that may be in use.
    most: u32,
    sent: u32,
    freed: u32,
}

/// Place of a message in the ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spot {
    /// Offset of the first byte.
    pub at: usize,
    /// Offset of the mark, right behind the last byte.
    pub mark_at: usize,
    /// Value of the mark.
    pub mark: u64,
}

impl Sender {
    /// The sender's half of a new ring.
    #[inline]
    pub fn new(ring: u16, shape: RingConfig, key: Key) -> Sender {
        Sender { ring, shape, key, next: Cursor::first(shape), most: shape.slots, sent: 0, freed: 0 }
    }

    /// Makes the ring turn after `lap` slots, at least two. Its receiver must use [the same
    /// lap](Receiver::turning).
    pub fn turning(mut self, lap: u32) -> Sender {
        debug_assert!(lap >= 2, "the slot before the turn would be that after it");
        self.next.turns_from = self.shape.turns_from(lap);
        self.most = self.shape.slots - u32::from(lap < self.shape.slots);
        self
    }

    /// Place of the next message, of `length` bytes; `None` if it is too long or no slot is free. It then
    /// takes another path.
    #[inline]
    pub fn claim(&self, length: usize) -> Option<Spot> {
        if self.flying() == self.most || length > self.shape.longest() {
            return None;
        }
        let mark_at = self.next.mark_at;
        let mark = (length as u64) << 32 | u64::from(self.next.stamp);
        let mark = if self.turns(length) { mark | TURN } else { mark };
        Some(Spot { at: mark_at - length, mark_at, mark })
    }

    /// Returns true if the ring turns after the next message, of `length` bytes.
    #[inline(always)]
    fn turns(&self, length: usize) -> bool {
        length <= LINE - MARK && self.next.mark_at >= self.next.turns_from && self.flying() == 0
    }

    /// Offset of the next mark.
    #[inline(always)]
    pub fn next_mark(&self) -> usize {
        self.next.mark_at
    }

    /// Offset of the mark after the next one.
    #[inline(always)]
    pub fn mark_after_next(&self) -> usize {
        self.next.mark_after(self.shape)
    }

    /// Records that the message of the last claim was posted.
    #[inline]
    pub fn sent(&mut self, spot: Spot) {
        self.next.advance(self.shape, spot.mark & TURN != 0);
        self.sent = self.sent.wrapping_add(1);
    }

    /// Number of messages sent, modulo 2^32.
    #[inline]
    pub fn total(&self) -> u32 {
        self.sent
    }

    /// Number of slots in use, as far as the sender knows.
    #[inline]
    pub fn flying(&self) -> u32 {
        self.sent.wrapping_sub(self.freed)
    }

    /// Applies the receiver's total of freed slots since the ring was made. Late values change nothing.
    #[inline]
    pub fn freed(&mut self, freed: u32) -> Result<(), Beyond> {
        let more = freed.wrapping_sub(self.freed);
        if more < 1 << 31 {
            if more > self.flying() {
                return Err(Beyond);
            }
            self.freed = freed;
        }
        Ok(())
    }
}

/// The receiver's half of a ring.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Receiver {
    /// Number of the ring at its peer.
    pub ring: u16,
    /// Size of the ring.
    pub shape: RingConfig,
    next: Cursor,
    /// True if the sender turns after the message that was looked at last.
    turn: bool,
    seen: u32,
    /// Number of immediate values received; `None` where the marker needs none.
    told: Option<u32>,
}

/// Content of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// No new message.
    Empty,
    /// A complete message.
    Message {
        /// Offset of the first byte.
        at: usize,
        /// Length in bytes.
        length: usize,
    },
    /// Invalid mark: no correct sender writes it.
    Broken,
}

impl Receiver {
    /// The receiver's half of a new ring. The ring's memory must be all 0.
    #[inline]
    pub fn new(ring: u16, shape: RingConfig, marker: CompletionFlag) -> Receiver {
        let told = (marker == CompletionFlag::Immediate).then_some(0);
        Receiver { ring, shape, next: Cursor::first(shape), turn: false, seen: 0, told }
    }

    /// Makes the ring turn after `lap` slots, as its sender does.
    pub fn turning(mut self, lap: u32) -> Receiver {
        self.next.turns_from = self.shape.turns_from(lap);
        self
    }

    /// Returns true if any message has arrived in the ring.
    #[inline]
    pub fn is_used(&self) -> bool {
        self.seen != 0 || self.next.stamp != 1
    }

    /// Offset of the mark after the next one.
    #[inline(always)]
    pub fn mark_after_next(&self) -> usize {
        self.next.mark_after(self.shape)
    }

    /// Offset of the next mark to read; `None` while its immediate value is missing.
    #[inline]
    pub fn place(&self) -> Option<usize> {
        (self.told != Some(self.seen)).then_some(self.next.mark_at)
    }

    /// Records an immediate value; `Err` if more values arrived than the ring has slots.
    #[inline]
    pub fn told(&mut self) -> Result<(), Beyond> {
        let told = self.told.as_mut().ok_or(Beyond)?;
        if told.wrapping_sub(self.seen) >= self.shape.slots {
            return Err(Beyond);
        }
        *told = told.wrapping_add(1);
        Ok(())
    }

    /// Interprets the mark read at [`place`](Self::place).
    #[inline]
    pub fn look(&mut self, mark: u64) -> Look {
        if mark as u32 != self.next.stamp {
            return if self.told.is_some() { Look::Broken } else { Look::Empty };
        }
        self.turn = mark & TURN != 0;
        match ((mark & !TURN) >> 32) as usize {
            _ if self.turn && self.next.mark_at < self.next.turns_from => Look::Broken,
            length if length <= self.shape.longest() => Look::Message { at: self.next.mark_at - length, length },
            _ => Look::Broken,
        }
    }

    /// Frees the slot of the message that was looked at last. Returns the total of freed slots to report to
    /// the sender.
    #[inline(always)]
    pub fn free(&mut self) -> u32 {
        self.next.advance(self.shape, self.turn);
        self.seen = self.seen.wrapping_add(1);
        self.seen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counters wrap after 2^32 messages, also in rings whose number of slots does not divide 2^32.
    #[test]
    fn ring_counters_wrap_without_losing_slots() {
        for slots in [2, 3, 5] {
            let shape = RingConfig { slots, bytes: 64 };
            let mut sender = Sender::new(1, shape, Key { address: 0, key: 0 });
            let mut receiver = Receiver::new(1, shape, CompletionFlag::Last);
            let near = Cursor { mark_at: 64 + shape.longest(), stamp: u32::MAX - 3, ..Cursor::first(shape) };
            (sender.sent, sender.freed, sender.next) = (u32::MAX - 2, u32::MAX - 2, near.clone());
            (receiver.seen, receiver.next) = (u32::MAX - 2, near);
            let mut memory = [0; 5];
            for _ in 0..20 {
                let mut filled = Vec::new();
                while let Some(spot) = sender.claim(8) {
                    filled.push(spot.mark_at / 64);
                    memory[spot.mark_at / 64] = spot.mark;
                    sender.sent(spot);
                }
                filled.sort();
                assert_eq!(filled, (0..slots as usize).collect::<Vec<_>>(), "a slot was claimed twice or not at all");
                for _ in 0..slots {
                    let slot = receiver.place().unwrap() / 64;
                    assert_eq!(receiver.look(memory[slot]), Look::Message { at: slot * 64 + 48, length: 8 });
                    sender.freed(receiver.free()).unwrap();
                }
                assert_eq!(receiver.look(memory[receiver.place().unwrap() / 64]), Look::Empty);
            }
        }
    }
}
