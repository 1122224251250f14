//! One sequence per peer over all paths. What comes early is held, within bounds; what is old is dropped.

use std::collections::VecDeque;

/// Whether a value that wraps is at or past another: less than half of all values ahead.
#[inline]
pub(crate) fn reached(value: u32, other: u32) -> bool {
    value.wrapping_sub(other) < 1 << 31
}

/// The most packets that may come early, of whatever peer: no window is longer. So ranks need not have the same.
pub const FARTHEST: u32 = 1024;

/// The sender's side: at most `window` packets are not acknowledged.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Outgoing {
    next: u32,
    acked: u32,
    window: u32,
}

impl Outgoing {
    /// Nothing has been sent.
    #[inline]
    pub fn new(window: u32) -> Outgoing {
        Outgoing { next: 0, acked: 0, window }
    }

    /// How many packets may be sent.
    #[inline]
    pub fn room(&self) -> u32 {
        self.window - self.flying()
    }

    /// Whether the peer has acknowledged a packet.
    #[inline]
    pub fn is_heard(&self) -> bool {
        self.acked != 0
    }

    /// How many are not acknowledged.
    #[inline]
    pub fn flying(&self) -> u32 {
        self.next.wrapping_sub(self.acked)
    }

    /// What the next packet carries.
    #[inline]
    pub fn sequence(&self) -> u32 {
        self.next
    }

    /// That packet is sent.
    #[inline]
    pub fn sent(&mut self) {
        debug_assert!(self.room() > 0);
        self.next = self.next.wrapping_add(1);
    }

    /// All before `ack` have been received. Late values change nothing; `Err` if that many were not sent.
    #[inline]
    pub fn acked(&mut self, ack: u32) -> Result<(), Beyond> {
        if reached(ack, self.acked) {
            if !reached(self.next, ack) {
                return Err(Beyond);
            }
            self.acked = ack;
        }
        Ok(())
    }
}

/// A peer acknowledges, or gives back, what it was never sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Beyond;

/// Where a packet stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// It is the next.
    Now,
    /// Others come before it.
    Early,
    /// It came before.
    Old,
    /// Its sender sent more than the window.
    TooFar,
}

/// The receiver's side.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Incoming<P> {
    expected: u32,
    window: u32,
    /// Place i waits for `expected + 1 + i`.
    held: VecDeque<Option<P>>,
}

impl<P> Incoming<P> {
    /// Nothing has come.
    #[inline]
    pub fn new(window: u32) -> Incoming<P> {
        Incoming { expected: 0, window, held: VecDeque::new() }
    }

    /// The next packet's number; all before have been received.
    #[inline]
    pub fn expected(&self) -> u32 {
        self.expected
    }

    /// Where a packet stands.
    #[inline]
    pub fn place(&self, sequence: u32) -> Place {
        let ahead = sequence.wrapping_sub(self.expected);
        if ahead == 0 {
            Place::Now
        } else if ahead >= 1 << 31 || self.held.get(ahead as usize - 1).is_some_and(Option::is_some) {
            Place::Old
        } else if ahead < self.window {
            Place::Early
        } else {
            Place::TooFar
        }
    }

    /// Holds a packet that is early.
    #[inline]
    pub fn hold(&mut self, sequence: u32, packet: P) {
        debug_assert_eq!(self.place(sequence), Place::Early);
        let at = sequence.wrapping_sub(self.expected) as usize - 1;
        if self.held.len() <= at {
            self.held.resize_with(at + 1, || None);
        }
        self.held[at] = Some(packet);
    }

    /// The next packet was handled; gives the one after it, if that is held.
    #[inline]
    pub fn advance(&mut self) -> Option<P> {
        self.expected = self.expected.wrapping_add(1);
        self.held.pop_front().flatten()
    }

    /// As [`advance`](Self::advance), if none [is held](Self::is_holding).
    #[inline]
    pub fn pass(&mut self) {
        debug_assert!(!self.is_holding());
        self.expected = self.expected.wrapping_add(1);
    }

    /// Whether any packet is held.
    #[inline]
    pub fn is_holding(&self) -> bool {
        !self.held.is_empty()
    }

    /// How many packets are held.
    #[inline]
    pub fn held(&self) -> usize {
        self.held.iter().flatten().count()
    }

    /// Gives up what is held.
    #[inline]
    pub fn drain(&mut self) -> impl Iterator<Item = P> {
        std::mem::take(&mut self.held).into_iter().flatten()
    }
}
