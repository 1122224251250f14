//! Connections: rails to one peer, and the peers that have connections where all peers have datagrams.

use crate::connection::Connection;
use crate::polling::{Change, Order, PollingSet};
use crate::wire::{RAILS, Rank};

/// Rails to one peer.
#[derive(Default)]
pub struct Lanes {
    /// Rails that packets and data may use.
    up: [bool; RAILS],
    /// Rails that the wire was asked to connect, and those that it has connected.
    asked: [bool; RAILS],
    wired: [bool; RAILS],
    /// State of the connections, where there are datagrams too. Elsewhere connections are made at the first
    /// contact, and kept.
    pub connection: Connection,
    /// Index, in the row of rails, of the next packet sent through a queue.
    turn: usize,
    /// Number of packets sent to the peer as datagrams.
    datagrams: u64,
    /// Number of packets sent and received through the queue of each rail since it came up.
    went: [u32; RAILS],
    came: [u32; RAILS],
}

impl Lanes {
    #[inline]
    pub fn up(&self) -> &[bool; RAILS] {
        &self.up
    }

    #[inline(always)]
    pub fn is_up(&self, rail: usize) -> bool {
        self.up[rail]
    }

    /// Returns true if any rail is up.
    #[inline]
    pub fn is_any_up(&self) -> bool {
        self.up.contains(&true)
    }

    #[inline]
    pub fn set_up(&mut self, rail: usize, up: bool) {
        self.up[rail] = up;
    }

    /// Records that the rail was requested. Returns true the first time.
    #[inline]
    pub fn ask(&mut self, rail: usize) -> bool {
        !std::mem::replace(&mut self.asked[rail], true)
    }

    pub fn set_wired(&mut self, rail: usize) {
        self.wired[rail] = true;
    }

    /// Opens or closes these rails, as far as the wire has connected them.
    pub fn use_rails(&mut self, rails: impl Iterator<Item = usize>, may: bool) {
        rails.for_each(|rail| self.up[rail] = may && self.wired[rail]);
    }

    /// Gives up a connection. Returns true if the wire was asked for it.
    pub fn disconnect(&mut self, rail: usize) -> bool {
        let asked = std::mem::take(&mut self.asked[rail]);
        if asked {
            (self.wired[rail], self.up[rail]) = (false, false);
        }
        asked
    }

    #[inline]
    pub fn turn(&self) -> usize {
        self.turn
    }

    /// Records a packet sent through the queue of the rail before index `turn` of its row.
    #[inline]
    pub fn set_turn(&mut self, turn: usize) {
        self.turn = turn;
    }

    /// Records a packet posted to the queue of a rail.
    #[inline]
    pub fn sent(&mut self, rail: usize, is_datagram: bool) {
        self.went[rail] = self.went[rail].wrapping_add(1);
        self.datagrams += u64::from(is_datagram);
    }

    /// Records a packet received through the queue of a rail.
    #[inline]
    pub fn arrived(&mut self, rail: usize) {
        self.came[rail] = self.came[rail].wrapping_add(1);
    }

    /// Returns the number of packets sent through the queue of a rail, and resets it.
    pub fn take_went(&mut self, rail: usize) -> u32 {
        std::mem::take(&mut self.went[rail])
    }

    /// Returns the number of packets received through the queue of a rail, and resets it.
    pub fn take_came(&mut self, rail: usize) -> u32 {
        std::mem::take(&mut self.came[rail])
    }

    /// Returns true if a packet was sent to the peer as a datagram.
    pub fn has_datagrams(&self) -> bool {
        self.datagrams > 0
    }
}

/// Peers that have connections, within a cap.
pub struct Connections {
    pub set: PollingSet,
    /// True if connections of windows count towards the cap.
    counts_windows: bool,
    cap: usize,
}

impl Connections {
    /// At most `cap` peers; a peer enters with its `after`th message.
    pub fn new(cap: usize, after: u32, order: Order, counts_windows: bool) -> Connections {
        Connections { set: PollingSet::new(cap, after, order), counts_windows, cap }
    }

    /// Counts messages to a peer. Returns the peer to connect, or the peer whose connections are to
    /// be given up unless it is busy; then it [stays](PollingSet::stay). `besides` counts the connections
    /// that windows have with peers other than this one.
    pub fn spoke(&mut self, rank: Rank, count: u32, besides: impl Fn(Rank) -> usize) -> Option<Change> {
        let change = self.set.packets(rank, count)?;
        match change {
            Change::Join(peer) if self.is_one_too_many(self.set.len(), || besides(peer)) => {
                self.set.left(peer);
                None
            }
            // A window may keep the connection, so giving it up makes no room.
            Change::Leave(peer) if self.counts_windows && besides(peer) > 0 => {
                self.set.left(rank);
                self.set.stay(peer);
                None
            }
            change => Some(change),
        }
    }

    /// Returns true if one more peer may have connections.
    pub fn has_room(&self, besides: impl FnOnce() -> usize) -> bool {
        self.set.has_room() && !self.is_one_too_many(self.set.len() + 1, besides)
    }

    fn is_one_too_many(&self, members: usize, besides: impl FnOnce() -> usize) -> bool {
        self.counts_windows && members + besides() > self.cap
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rail_is_used_once_wired_and_allowed() {
        let mut lanes = Lanes::default();
        assert_eq!([lanes.ask(1), lanes.ask(1)], [true, false]);
        lanes.use_rails(0..2, true);
        assert!(!lanes.is_any_up());
        lanes.set_wired(1);
        lanes.use_rails(0..2, true);
        assert_eq!(lanes.up(), &[false, true, false, false]);
        assert_eq!([lanes.disconnect(0), lanes.disconnect(1)], [false, true]);
        assert!(!lanes.is_any_up() && lanes.ask(1));
    }

    #[test]
    fn rail_packet_counts_restart_once_taken() {
        let mut lanes = Lanes::default();
        lanes.sent(0, false);
        lanes.sent(2, true);
        lanes.sent(2, true);
        lanes.arrived(2);
        assert!(lanes.has_datagrams());
        assert_eq!([lanes.take_went(2), lanes.take_went(2), lanes.take_went(0)], [2, 0, 1]);
        assert_eq!([lanes.take_came(2), lanes.take_came(2)], [1, 0]);
    }

    #[test]
    fn window_connections_count_against_the_limit() {
        let mut with = Connections::new(2, 1, Order::default(), true);
        assert_eq!(with.spoke(5, 1, |_| 2), None);
        assert!(!with.has_room(|| 2) && with.has_room(|| 1));
        assert_eq!(with.spoke(5, 1, |_| 1), Some(Change::Join(5)));
        assert!(!with.has_room(|| 1) && with.has_room(|| 0));
        let mut without = Connections::new(2, 1, Order::default(), false);
        assert_eq!(without.spoke(5, 1, |_| 2), Some(Change::Join(5)));
    }

    #[test]
    fn busy_peer_is_asked_to_leave_again() {
        let mut connections = Connections::new(1, 1, Order::default(), false);
        assert_eq!(connections.spoke(1, 1, |_| 0), Some(Change::Join(1)));
        let leaves = |connections: &mut Connections| (0..9).find_map(|_| connections.spoke(2, 1, |_| 0));
        assert_eq!(leaves(&mut connections), Some(Change::Leave(1)));
        assert_eq!(leaves(&mut connections), None);
        connections.set.stay(1);
        assert_eq!(leaves(&mut connections), Some(Change::Leave(1)));
    }
}
