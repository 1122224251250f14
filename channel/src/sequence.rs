//! One sequence per peer over all paths. Early packets are held, within bounds; old packets are dropped.

use std::collections::VecDeque;

/// Returns true if a wrapping value is at or past another: less than half the range ahead.
#[inline]
pub(crate) fn reached(value: u32, other: u32) -> bool {
    value.wrapping_sub(other) < 1 << 31
}

/// Most early packets held for any peer. No window is longer, so ranks may use different windows.
pub const FARTHEST: u32 = 1024;

/// The sender's side: at most `window` packets are unacknowledged.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Outgoing {
    next: u32,
    acked: u32,
    window: u32,
}

impl Outgoing {
    /// State before the first packet.
    #[inline]
    pub fn new(window: u32) -> Outgoing {
        Outgoing { next: 0, acked: 0, window }
    }

    /// Number of packets that may be sent now.
    #[inline]
    pub fn room(&self) -> u32 {
        self.window - self.flying()
    }

    /// Returns true if the peer has acknowledged a packet.
    #[inline]
    pub fn is_heard(&self) -> bool {
        self.acked != 0
    }

    /// Number of unacknowledged packets.
    #[inline]
    pub fn flying(&self) -> u32 {
        self.next.wrapping_sub(self.acked)
    }

    /// Sequence number of the next packet.
    #[inline]
    pub fn sequence(&self) -> u32 {
        self.next
    }

    /// Records that the next packet was sent.
    #[inline]
    pub fn sent(&mut self) {
        debug_assert!(self.room() > 0);
        self.next = self.next.wrapping_add(1);
    }

    /// Applies an acknowledgement of all packets before `ack`. Late values change nothing; `Err` if fewer
    /// packets were sent.
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

/// The peer acknowledged, or freed, more than was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Beyond;

/// Position of a packet in the sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// The packet is the next one.
    Now,
    /// Packets before it are missing.
    Early,
    /// The packet was received before.
    Old,
    /// The packet is beyond the window: its sender broke the protocol.
    TooFar,
}

/// The receiver's side: packets beyond the expected one are held.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Incoming<P> {
    expected: u32,
    window: u32,
    /// `held[i]` is packet `expected + 1 + i`, if it has arrived.
    held: VecDeque<Option<P>>,
}

impl<P> Incoming<P> {
    /// State before the first packet.
    #[inline]
    pub fn new(window: u32) -> Incoming<P> {
        Incoming { expected: 0, window, held: VecDeque::new() }
    }

    /// Sequence number of the next packet; all before it have been received.
    #[inline]
    pub fn expected(&self) -> u32 {
        self.expected
    }

    /// Position of a packet in the sequence.
    #[inline]
    pub fn place(&self, sequence: u32) -> Arrival {
        let ahead = sequence.wrapping_sub(self.expected);
        if ahead == 0 {
            Arrival::Now
        } else if ahead >= 1 << 31 || self.held.get(ahead as usize - 1).is_some_and(Option::is_some) {
            Arrival::Old
        } else if ahead < self.window {
            Arrival::Early
        } else {
            Arrival::TooFar
        }
    }

    /// Holds an early packet.
    #[inline]
    pub fn hold(&mut self, sequence: u32, packet: P) {
        debug_assert_eq!(self.place(sequence), Arrival::Early);
        let at = sequence.wrapping_sub(self.expected) as usize - 1;
        if self.held.len() <= at {
            self.held.resize_with(at + 1, || None);
        }
        self.held[at] = Some(packet);
    }

    /// Records that the next packet was handled. Returns the packet after it, if held.
    #[inline]
    pub fn advance(&mut self) -> Option<P> {
        self.expected = self.expected.wrapping_add(1);
        self.held.pop_front().flatten()
    }

    /// Like [`advance`](Self::advance), while no packet [is held](Self::is_holding).
    #[inline]
    pub fn pass(&mut self) {
        debug_assert!(!self.is_holding());
        self.expected = self.expected.wrapping_add(1);
    }

    /// Returns true if any packet is held.
    #[inline]
    pub fn is_holding(&self) -> bool {
        !self.held.is_empty()
    }

    /// Number of held packets.
    #[inline]
    pub fn held(&self) -> usize {
        self.held.iter().flatten().count()
    }

    /// Drops the held packets and returns them.
    #[inline]
    pub fn drain(&mut self) -> impl Iterator<Item = P> {
        std::mem::take(&mut self.held).into_iter().flatten()
    }
}
