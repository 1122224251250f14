//! What is counted of a network.

use std::ops::AddAssign;

/// Requests, and their bytes with all headers.
///
/// ```
/// use transom_channel::sim::Volume;
/// let mut all = Volume { requests: 1, bytes: 100 };
/// all += Volume { requests: 2, bytes: 16 };
/// assert_eq!(all, Volume { requests: 3, bytes: 116 });
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Volume {
    /// How many.
    pub requests: u64,
    /// Of them all.
    pub bytes: u64,
}

impl AddAssign for Volume {
    fn add_assign(&mut self, more: Volume) {
        self.requests += more.requests;
        self.bytes += more.bytes;
    }
}

/// What was posted on a rail.
///
/// ```
/// use transom_channel::sim::{Traffic, Volume};
/// let traffic = Traffic { sends: Volume { requests: 2, bytes: 200 }, ..Traffic::default() };
/// assert_eq!(traffic.all(), traffic.sends);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Traffic {
    /// By queues, whose receiver has a slot for each.
    pub sends: Volume,
    /// Into rings.
    pub puts: Volume,
    /// Written, read or sent into their place.
    pub moves: Volume,
}

impl Traffic {
    /// All of it together.
    pub fn all(&self) -> Volume {
        let mut all = self.sends;
        all += self.puts;
        all += self.moves;
        all
    }
}

impl AddAssign for Traffic {
    fn add_assign(&mut self, more: Traffic) {
        self.sends += more.sends;
        self.puts += more.puts;
        self.moves += more.moves;
    }
}

/// What became of sends to a rank, which has so many slots for them.
///
/// ```
/// assert_eq!(transom_channel::sim::Arrivals::default().lost, 0);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Arrivals {
    /// The most slots that were taken at once.
    pub most: usize,
    /// Datagrams that found none.
    pub lost: u64,
    /// How often one by a connection found none, and was tried again 2 us later.
    pub waits: u64,
}
