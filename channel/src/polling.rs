//! Which rings are polled: none at the start; the first who speak enter, up to a cap; then who speaks most replaces who
//! speaks least. A hint stands for the first packets.

use crate::wire::Rank;

/// In which order the rings of the set are looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// From the first to the last, always.
    Sequential,
    /// From behind the one that had a message last.
    #[default]
    Circular,
    /// From the one that had a message last to the one that had none for the longest time.
    RecentFirst,
}

/// What the machine asks for.
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

/// The polling set of a rank. A member that leaves is polled until it has left, and counts to the cap until then: so many
/// rings is what the memory holds.
#[derive(Debug, Clone)]
pub struct PollingSet {
    members: Vec<Member>,
    /// Packets of those outside, since the last time that all were halved.
    outside: std::collections::HashMap<Rank, u32>,
    order: Order,
    cap: usize,
    after: u32,
    next: usize,
    packets: u32,
}

/// Counts are halved after so many packets for each member and candidate, so that use long ago is forgotten.
const HALVE: u32 = 64;

impl PollingSet {
    /// An empty set for at most `cap` rings; a peer enters with its `after`th packet.
    pub fn new(cap: usize, after: u32, order: Order) -> PollingSet {
        let outside = Default::default();
        PollingSet { members: Vec::new(), outside, order, cap, after: after.max(1), next: 0, packets: 0 }
    }

    /// A packet came from a peer, by its ring if it is a member; says what is to change.
    pub fn packet(&mut self, peer: Rank) -> Option<Change> {
        self.packets(peer, 1)
    }

    /// As [`packet`](Self::packet), of so many.
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
        // One at a time leaves, and only for one who speaks twice as much: two of the same use do not take turns.
        if self.members.iter().any(|member| member.leaving) {
            return None;
        }
        let least = self.members.iter_mut().min_by_key(|member| member.hits)?;
        (least.hits < hits / 2).then(|| {
            least.leaving = true;
            Change::Leave(least.peer)
        })
    }

    /// Somebody who knows says that this peer will speak: with its first packet it is as who has spoken enough to enter. Where there is
    /// no room it must speak twice as much as others like everyone, and it is forgotten like everyone if it does not.
    pub fn hint(&mut self, peer: Rank) {
        if self.cap > 0 && !self.members.iter().any(|member| member.peer == peer) {
            let hits = self.outside.entry(peer).or_default();
            *hits = (*hits).max(self.after - 1);
        }
    }

    /// Whether one more can enter.
    pub fn has_room(&self) -> bool {
        self.members.len() < self.cap
    }

    /// The peer enters, though it has not spoken so much: it was asked, or asks itself.
    pub fn admit(&mut self, peer: Rank) {
        debug_assert!(self.has_room());
        let hits = self.outside.remove(&peer).unwrap_or(0);
        self.members.push(Member { peer, hits, leaving: false });
    }

    /// The peer that was to leave does not.
    pub fn stay(&mut self, peer: Rank) {
        self.members.iter_mut().filter(|member| member.peer == peer).for_each(|member| member.leaving = false);
    }

    /// The peer has left, has no ring, or is dead.
    pub fn left(&mut self, peer: Rank) {
        self.members.retain(|member| member.peer != peer);
        self.outside.remove(&peer);
    }

    /// Who is polled, in order, each once.
    pub fn turn(&self) -> impl Iterator<Item = Rank> + use<> {
        let mut peers = Vec::new();
        self.turn_into(&mut peers);
        peers.into_iter()
    }

    /// As [`turn`](Self::turn), behind what the list has.
    pub fn turn_into(&self, peers: &mut Vec<Rank>) {
        let circular = self.order == Order::Circular && !self.members.is_empty();
        let from = if circular { self.next % self.members.len() } else { 0 };
        let (later, first) = self.members.split_at(from);
        [first, later].into_iter().for_each(|members| peers.extend(members.iter().map(|member| member.peer)));
    }

    /// How many rings there are.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }
}
