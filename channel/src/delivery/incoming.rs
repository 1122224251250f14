//! The receiver's half: the packets received, and the acknowledgement due for them.

use super::{Acknowledgement, FLYING, Settings};

/// Packets received from one peer.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Incoming {
    /// All packets before this one were received.
    expected: u64,
    /// Bit i: packet `expected + 1 + i` was received.
    mask: u64,
    newest: u64,
    /// Packets received since the last acknowledgement, the time of the first in ns, and whether the
    /// acknowledgement is urgent.
    untold: u32,
    since: u64,
    urgent: bool,
}

/// Classification of a received packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Come {
    /// Received for the first time.
    New,
    /// A duplicate: its sender lacks the acknowledgement.
    Again,
    /// Beyond the window; treated as lost.
    TooFar,
}

impl Incoming {
    /// Records a packet received by the transmission `sending`.
    pub fn came(&mut self, number: u64, sending: u64, now: u64) -> Come {
        let ahead = number.wrapping_sub(self.expected);
        let again = number < self.expected || (1..=FLYING).contains(&ahead) && self.mask >> (ahead - 1) & 1 == 1;
        if !again && ahead > FLYING {
            return Come::TooFar;
        }
        self.newest = self.newest.max(sending);
        if self.untold == 0 {
            self.since = now;
        }
        self.untold += 1;
        // Report gaps and duplicates at once: the sender must learn of losses, and of unnecessary resends.
        self.urgent |= ahead > 0 || self.mask != 0;
        if again {
            return Come::Again;
        }
        if ahead > 0 {
            self.mask |= 1 << (ahead - 1);
            return Come::New;
        }
        let row = self.mask.trailing_ones();
        self.expected += 1 + u64::from(row);
        self.mask = self.mask.checked_shr(row + 1).unwrap_or(0);
        Come::New
    }

    /// Acknowledgement for a datagram sent now; `permitted` is the number of packets that may be in flight.
    pub fn acknowledgement(&self, permitted: u16) -> Acknowledgement {
        Acknowledgement { before: self.expected, mask: self.mask, newest: self.newest, permitted }
    }

    /// Sequence number of the next packet, and number of the newest transmission. The numbers in a received
    /// datagram are close to them.
    pub fn near(&self) -> [u64; 2] {
        [self.expected, self.newest]
    }

    /// Returns true if enough packets are unacknowledged that the peer may stall.
    pub fn is_full(&self, settings: &Settings) -> bool {
        self.untold >= settings.every
    }

    /// Records that a datagram with the acknowledgement was sent.
    pub fn told(&mut self) {
        (self.untold, self.urgent) = (0, false);
    }

    /// Time at which an acknowledgement must go alone unless a datagram carries it earlier; 0 if at once.
    pub fn due(&self, settings: &Settings) -> Option<u64> {
        match self.untold {
            0 => None,
            untold if self.urgent || untold >= settings.every => Some(0),
            _ => Some(self.since + settings.delay),
        }
    }
}
