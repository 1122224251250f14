//! The two halves of a ring: slots in the receiver's memory, each written by one `Put` of the sender, in order. The sender
//! writes a slot again only after the receiver has said that it is free.
//!
//! A message stands at the *end* of its slot, and behind it the mark: its length and a stamp that no earlier message in
//! the slot has had. So the receiver looks at one fixed place, never writes, and the slots need no clearing. (The two flags of
//! ICS 4.2, one before the message and one behind it, want the slots of both ends to be equal, and the receiver to clear the first.)
//!
//! Both go through the slots in a circle. The sender of a ring that [turns](Sender::turning) goes back to the first slot before it has
//! come to the last, if all that it had sent before is free: who sends a short message now and then uses few cache lines, again and
//! again. The mark of the message before says so. The slot of that message may not be free when others come to it, so both leave it out
//! until the ring turns next: all slots but one may be in use.

use crate::sequence::Beyond;
use crate::wire::{Key, Rail};

/// Bytes of the mark.
pub const MARK: usize = 8;

/// Of the mark: the next message comes in the first slot.
const TURN: u64 = 1 << 63;

/// Bytes of a cache line, of which a message behind which a ring turns takes one. Longer ones, whose lines a processor still has when they
/// are written again, come later than by lines that it has not.
const LINE: usize = 64;

/// Slots of a ring that is worth turning, at least; and how many of them its sender uses at least.
const TURNS: u32 = 32;
const LAP: u32 = 8;

/// How the receiver can tell that a message is there whole, by what the rail promises.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Marker {
    /// One put, whose mark is seen last.
    Last,
    /// A put of the message, then one of the mark.
    Second,
    /// One put with an immediate value; the mark is looked at after that value has come.
    Immediate,
}

impl Marker {
    /// The cheapest that the rail allows; without one there is no ring.
    #[inline]
    pub fn of(rail: &Rail) -> Option<Marker> {
        [Marker::Last, Marker::Immediate, Marker::Second].into_iter().find(|marker| marker.is_kept_by(rail))
    }

    /// Whether the rail promises what it takes: without that a message could be seen torn.
    #[inline]
    pub fn is_kept_by(self, rail: &Rail) -> bool {
        match self {
            Marker::Last => rail.mark_last,
            Marker::Second => rail.whole_word || rail.mark_last,
            Marker::Immediate => rail.immediate,
        }
    }
}

/// How large a ring is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Slots.
    pub slots: u32,
    /// Bytes of each, divisible by 8.
    pub bytes: u32,
}

impl Shape {
    /// What a peer may ask for.
    #[inline]
    pub fn is_sound(self) -> bool {
        (2..=1024).contains(&self.slots) && (64..=65_536).contains(&self.bytes) && self.bytes.is_multiple_of(8)
    }

    /// Bytes of memory.
    #[inline]
    pub fn size(self) -> usize {
        self.slots as usize * self.bytes as usize
    }

    /// The longest message of a slot, in bytes.
    #[inline]
    pub fn longest(self) -> usize {
        self.bytes as usize - MARK
    }

    /// After how many slots a ring of messages [turns](Sender::turning), of which so many may be under way: not one that needs all its
    /// slots for them.
    pub fn lap(self, window: u32) -> u32 {
        if self.slots < TURNS || self.slots <= window { self.slots } else { LAP }
    }

    /// Where the mark of the first slot after which it turns stands, if it turns after so many.
    fn turns_from(self, lap: u32) -> usize {
        if lap < self.slots { (lap as usize - 1) * self.bytes as usize + self.longest() } else { usize::MAX }
    }
}

/// Which slot is next, and its stamp. Both halves go through the same.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Cursor {
    /// Where its mark stands.
    mark_at: usize,
    stamp: u32,
    /// The mark of the slot before the last turn, which is left out; 0 before the first.
    left_out: usize,
    /// The mark of the first slot after which it may turn.
    turns_from: usize,
}

impl Cursor {
    /// Never stamped 0, which is what fresh memory holds.
    fn first(shape: Shape) -> Cursor {
        Cursor { mark_at: shape.longest(), stamp: 1, left_out: 0, turns_from: usize::MAX }
    }

    /// Where the mark after it stands, unless it turns.
    #[inline(always)]
    fn mark_after(&self, shape: Shape) -> usize {
        let bytes = shape.bytes as usize;
        let next = self.mark_at + bytes;
        let next = if next == self.left_out { next + bytes } else { next };
        if next < shape.size() { next } else { shape.longest() }
    }

    #[inline(always)]
    fn advance(&mut self, shape: Shape, turn: bool) {
        if turn {
            self.left_out = self.mark_at;
            self.mark_at = shape.longest();
        } else {
            self.mark_at = self.mark_after(shape);
        }
        self.stamp = self.stamp.checked_add(1).unwrap_or(1);
    }
}

/// The sender's half.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Sender {
    /// Which ring of this peer.
    pub ring: u16,
    /// How large.
    pub shape: Shape,
    /// Where.
    pub key: Key,
    next: Cursor,
    /// Slots that may be in use.
    most: u32,
    sent: u32,
    freed: u32,
}

/// Where a message goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spot {
    /// Where its first byte goes.
    pub at: usize,
    /// Where the mark goes, right behind its last byte.
    pub mark_at: usize,
    /// The mark.
    pub mark: u64,
}

impl Sender {
    /// A fresh ring.
    #[inline]
    pub fn new(ring: u16, shape: Shape, key: Key) -> Sender {
        Sender { ring, shape, key, next: Cursor::first(shape), most: shape.slots, sent: 0, freed: 0 }
    }

    /// It turns after so many slots, at least two, as its receiver [does](Receiver::turning).
    pub fn turning(mut self, lap: u32) -> Sender {
        debug_assert!(lap >= 2, "the slot before the turn would be that after it");
        self.next.turns_from = self.shape.turns_from(lap);
        self.most = self.shape.slots - u32::from(lap < self.shape.slots);
        self
    }

    /// Where a message of this length goes; none if it is too long, or no slot is free. Then it goes by another path.
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

    /// Whether a message of this length is the last before it goes back, if it is sent next.
    #[inline(always)]
    fn turns(&self, length: usize) -> bool {
        length <= LINE - MARK && self.next.mark_at >= self.next.turns_from && self.flying() == 0
    }

    /// Where the next mark goes.
    #[inline(always)]
    pub fn next_mark(&self) -> usize {
        self.next.mark_at
    }

    /// Where the mark after the next goes.
    #[inline(always)]
    pub fn mark_after_next(&self) -> usize {
        self.next.mark_after(self.shape)
    }

    /// The message of the last claim was posted.
    #[inline]
    pub fn sent(&mut self, spot: Spot) {
        self.next.advance(self.shape, spot.mark & TURN != 0);
        self.sent = self.sent.wrapping_add(1);
    }

    /// Slots that hold what the receiver has not freed, as far as is known.
    #[inline]
    pub fn flying(&self) -> u32 {
        self.sent.wrapping_sub(self.freed)
    }

    /// The receiver has freed so many since the ring was made. Late values change nothing.
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

/// The receiver's half.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Receiver {
    /// Which ring of this peer.
    pub ring: u16,
    /// How large.
    pub shape: Shape,
    next: Cursor,
    /// The sender goes back after the message that was looked at last.
    turn: bool,
    seen: u32,
    /// Messages that an immediate value has told of; `None` where the marker needs none.
    told: Option<u32>,
}

/// What stands in a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// Nothing new.
    Empty,
    /// A message, whole.
    Message {
        /// Where it begins.
        at: usize,
        /// Its length in bytes.
        length: usize,
    },
    /// A mark that no sender writes.
    Broken,
}

impl Receiver {
    /// A fresh ring, its memory all 0.
    #[inline]
    pub fn new(ring: u16, shape: Shape, marker: Marker) -> Receiver {
        let told = (marker == Marker::Immediate).then_some(0);
        Receiver { ring, shape, next: Cursor::first(shape), turn: false, seen: 0, told }
    }

    /// Its sender turns after so many slots.
    pub fn turning(mut self, lap: u32) -> Receiver {
        self.next.turns_from = self.shape.turns_from(lap);
        self
    }

    /// Whether anything has come by it.
    #[inline]
    pub fn is_used(&self) -> bool {
        self.seen != 0 || self.next.stamp != 1
    }

    /// Where the mark after the next comes.
    #[inline(always)]
    pub fn mark_after_next(&self) -> usize {
        self.next.mark_after(self.shape)
    }

    /// Where to look for the next mark; nowhere before an immediate value has told of it.
    #[inline]
    pub fn place(&self) -> Option<usize> {
        (self.told != Some(self.seen)).then_some(self.next.mark_at)
    }

    /// An immediate value came; `Err` if more have come than there are slots.
    #[inline]
    pub fn told(&mut self) -> Result<(), Beyond> {
        let told = self.told.as_mut().ok_or(Beyond)?;
        if told.wrapping_sub(self.seen) >= self.shape.slots {
            return Err(Beyond);
        }
        *told = told.wrapping_add(1);
        Ok(())
    }

    /// What the mark there says.
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

    /// The message that was looked at last was taken out, and its slot is free. Gives the value to tell.
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

    /// After 2^32 messages, in rings whose slots do not divide that.
    #[test]
    fn counters_wrap() {
        for slots in [2, 3, 5] {
            let shape = Shape { slots, bytes: 64 };
            let mut sender = Sender::new(1, shape, Key { address: 0, key: 0 });
            let mut receiver = Receiver::new(1, shape, Marker::Last);
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
                assert_eq!(filled, (0..slots as usize).collect::<Vec<_>>(), "each slot once");
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
