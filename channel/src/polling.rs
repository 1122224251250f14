//! The set of rings that a rank polls. It is empty at the start. The first peers that send enough packets
//! enter, up to a cap. Afterwards the peer with the most packets replaces the one with the fewest. A hint
//! counts as a peer's first packets.

use crate::wire::Rank;

/// Order in which the rings of the set are polled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// Always from the first to the last.
    Sequential,
    /// From the ring behind the one that last had a message.
    #[default]
    Circular,
    /// From the ring that had a message last to the ring that has been empty for the longest time.
    RecentFirst,
}

/// A change to the rings that the set requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Offer a ring to this peer.
    Join(Rank),
    /// Ask this peer to leave its ring.
    Leave(Rank),
}

#[derive(Debug, Clone)]
struct Member {
    peer: Rank,
    hits: u32,
    leaving: bool,
}

/// The polling set of a rank. A member that leaves is polled until it has left, and counts towards the cap
/// until then, since its ring still takes memory.
#[derive(Debug, Clone)]
pub struct PollingSet {
    members: Vec<Member>,
    /// Packets of each peer outside the set; halved like the members' counts.
    outside: std::collections::HashMap<Rank, u32>,
    order: Order,
    cap: usize,
    after: u32,
    next: usize,
    packets: u32,
}

/// Packets for each member and candidate after which all counts are halved, so that old use is forgotten.
pub(crate) const HALVE: u32 = 64;

impl PollingSet {
    /// An empty set for at most `cap` rings; a peer enters with its `after`th packet.
    pub fn new(cap: usize, after: u32, order: Order) -> PollingSet {
        let outside = Default::default();
        PollingSet { members: Vec::new(), outside, order, cap, after: after.max(1), next: 0, packets: 0 }
    }

    /// Records a packet from a peer, through its ring if it is a member. Returns the change that this
    /// requires.
    pub fn packet(&mut self, peer: Rank) -> Option<Change> {
        self.packets(peer, 1)
    }

    /// Like [`packet`](Self::packet), for `count` packets.
    pub fn packets(&mut self, peer: Rank, count: u32) -> Option<Change> {
        if self.cap == 0 || count == 0 {
            return None;
        }
        self.packets += count;
        if self.packets >= HALVE * (self.members.len() + self.outside.len()).max(1) as u32 {
            self.packets = 0;
            self.members.iter_mut().for_each(|member| member.hits /= 2);
            self.outside.retain(|_, hits| {
                *hits /= 2;
                *hits > 0
            });
        }
        if let Some(at) = self.members.iter().position(|member| member.peer == peer) {
            self.members[at].hits += count;
            match self.order {
                Order::Sequential => {}
                Order::Circular => self.next = at + 1,
                Order::RecentFirst => self.members[..=at].rotate_right(1),
            }
            return None;
        }
        let hits = self.outside.entry(peer).or_default();
        *hits += count;
        let hits = *hits;
        if hits < self.after {
            return None;
        }
        if self.members.len() < self.cap {
            self.outside.remove(&peer);
            self.members.push(Member { peer, hits, leaving: false });
            return Some(Change::Join(peer));
        }
        // One member at a time leaves, and only for a peer with more than twice its packets: peers of equal
        // use must not replace each other in turn.
        if self.members.iter().any(|member| member.leaving) {
            return None;
        }
        let least = self.members.iter_mut().min_by_key(|member| member.hits)?;
        (least.hits < hits / 2).then(|| {
            least.leaving = true;
            Change::Leave(least.peer)
        })
    }

    /// Announces that this peer will send. Its first packet makes it a candidate to enter. If the set is
    /// full, the usual rules apply: the peer needs more than twice a member's packets, and is forgotten if it
    /// stays silent.
    pub fn hint(&mut self, peer: Rank) {
        if self.cap > 0 && !self.members.iter().any(|member| member.peer == peer) {
            let hits = self.outside.entry(peer).or_default();
            *hits = (*hits).max(self.after - 1);
        }
    }

    /// Returns true if the set has room for one more peer.
    pub fn has_room(&self) -> bool {
        self.members.len() < self.cap
    }

    /// Adds a peer regardless of its packets: it was asked, or asks itself. Requires room.
    pub fn admit(&mut self, peer: Rank) {
        debug_assert!(self.has_room());
        let hits = self.outside.remove(&peer).unwrap_or(0);
        self.members.push(Member { peer, hits, leaving: false });
    }

    /// Cancels the leave of a peer.
    pub fn stay(&mut self, peer: Rank) {
        self.members.iter_mut().filter(|member| member.peer == peer).for_each(|member| member.leaving = false);
    }

    /// Removes a peer that has left, has no ring or is dead.
    pub fn left(&mut self, peer: Rank) {
        self.members.retain(|member| member.peer != peer);
        self.outside.remove(&peer);
    }

    /// The peers to poll, in order, each once.
    pub fn turn(&self) -> impl Iterator<Item = Rank> + use<> {
        let mut peers = Vec::new();
        self.turn_into(&mut peers);
        peers.into_iter()
    }

    /// Appends the peers of [`turn`](Self::turn) to a list.
    pub fn turn_into(&self, peers: &mut Vec<Rank>) {
        let circular = self.order == Order::Circular && !self.members.is_empty();
        let from = if circular { self.next % self.members.len() } else { 0 };
        let (later, first) = self.members.split_at(from);
        [first, later].into_iter().for_each(|members| peers.extend(members.iter().map(|member| member.peer)));
    }

    /// Number of rings in the set.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Returns true if the set is empty.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }
}
