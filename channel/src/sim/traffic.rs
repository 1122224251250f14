//! Counters of a simulated network.

use std::ops::AddAssign;

/// Number of requests, and their bytes with all headers.
///
/// ```
/// use transom_channel::sim::Volume;
/// let mut all = Volume { requests: 1, bytes: 100 };
/// all += Volume { requests: 2, bytes: 16 };
/// assert_eq!(all, Volume { requests: 3, bytes: 116 });
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Volume {
    /// Number of requests.
    pub requests: u64,
    /// Total bytes.
    pub bytes: u64,
}

impl AddAssign for Volume {
    #[inline]
    fn add_assign(&mut self, more: Volume) {
        self.requests += more.requests;
        self.bytes += more.bytes;
    }
}

/// Requests posted on a rail, by kind.
///
/// ```
/// use transom_channel::sim::{Traffic, Volume};
/// let traffic = Traffic { sends: Volume { requests: 2, bytes: 200 }, ..Traffic::default() };
/// assert_eq!(traffic.all(), traffic.sends);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Traffic {
    /// Sends through queues, each into a slot of its receiver.
    pub sends: Volume,
    /// Puts into rings.
    pub puts: Volume,
    /// Writes, reads and datagrams into place.
    pub moves: Volume,
}

impl Traffic {
    /// Sum of all kinds.
    #[inline]
    pub fn all(&self) -> Volume {
        let mut all = self.sends;
        all += self.puts;
        all += self.moves;
        all
    }
}

impl AddAssign for Traffic {
    #[inline]
    fn add_assign(&mut self, more: Traffic) {
        self.sends += more.sends;
        self.puts += more.puts;
        self.moves += more.moves;
    }
}

/// Statistics of sends that arrived at a rank, which has a limited number of slots.
///
/// ```
/// assert_eq!(transom_channel::sim::Arrivals::default().lost, 0);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Arrivals {
    /// Most slots in use at once.
    pub most: usize,
    /// Datagrams lost for lack of a slot.
    pub lost: u64,
    /// Number of times that a send on a connection found no slot; it was retried 2 us later.
    pub waits: u64,
}
