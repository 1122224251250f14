//! The receiver's half: what has come, and what is to be told of it.

use super::{Acknowledgement, FLYING, Settings};

/// What has come of one peer.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Incoming {
    /// All before have come.
    expected: u64,
    /// Bit i: `expected + 1 + i` has come.
    mask: u64,
    newest: u64,
    /// Packets that came since the last acknowledgement, the time of the first, and whether the peer is to know at once.
    untold: u32,
    since: u64,
    urgent: bool,
}

/// What a packet that has come is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Come {
    /// It came for the first time.
    New,
    /// It came before, and its sender does not know.
    Again,
    /// Its sender sent more than may fly; it counts as lost.
    TooFar,
}

impl Incoming {
    /// A packet has come, by this sending.
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
        // Where order is broken the sender has something to find out; most of all that it sent in vain.
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

    /// What a datagram that goes now says; `permitted` is how many may be under way.
    pub fn acknowledgement(&self, permitted: u16) -> Acknowledgement {
        Acknowledgement { before: self.expected, mask: self.mask, newest: self.newest, permitted }
    }

    /// The number of the next packet and the newest sending: those of what comes cannot be far from them.
    pub fn near(&self) -> [u64; 2] {
        [self.expected, self.newest]
    }

    /// Whether so much is untold that the peer may have to wait.
    pub fn is_full(&self, settings: &Settings) -> bool {
        self.untold >= settings.every
    }

    /// A datagram with it has gone.
    pub fn told(&mut self) {
        (self.untold, self.urgent) = (0, false);
    }

    /// When an acknowledgement is to go alone, if nothing goes before; 0 if at once.
    pub fn due(&self, settings: &Settings) -> Option<u64> {
        match self.untold {
            0 => None,
            untold if self.urgent || untold >= settings.every => Some(0),
            _ => Some(self.since + settings.delay),
        }
    }
}
