//! What is kept of a peer to whom a rail was cut.

use super::peer::Move;
use crate::packet::Body;
use crate::wire::RAILS;
use std::collections::VecDeque;

/// What is kept of a peer once a rail to it was cut.
pub(super) struct Failover<M> {
    pub(super) lanes: [Cut<M>; RAILS],
    /// To be posted on a lane, in this order.
    pub(super) again: VecDeque<(usize, Item<M>)>,
    /// For which there is no rail now.
    pub(super) stuck: Vec<Item<M>>,
    /// A ring of the peer's that was left without having been asked for.
    pub(super) closed: Option<u16>,
}

/// A lane that was cut.
pub(super) struct Cut<M> {
    /// What this end had posted, until it is known what of it has come.
    pub(super) items: Vec<Item<M>>,
    /// How often it was cut, at this end, and at the other as far as this end knows.
    pub(super) epoch: u32,
    pub(super) heard: u32,
    /// The other is to say what has come; this end is to.
    pub(super) asks: bool,
    pub(super) owes: bool,
    /// What the other was told last of what had come: at which time that it was cut, and how much.
    pub(super) answer: (u32, u32),
    /// The peer is to be told of all this.
    pub(super) tell: bool,
    /// It passes again.
    pub(super) up: bool,
}

pub(super) enum Item<M> {
    /// The bytes of a packet, and whether they went by the queue of the lane.
    Packet {
        memory: M,
        length: usize,
        went: bool,
    },
    /// A write or read that was posted.
    Move(Move),
    /// What waited to be posted by that lane alone.
    Reply(Body),
    Unposted(Move),
}

impl<M> Default for Failover<M> {
    fn default() -> Self {
        let cut = |_| Cut {
            items: Vec::new(),
            epoch: 0,
            heard: 0,
            answer: (0, 0),
            asks: false,
            owes: false,
            tell: false,
            up: false,
        };
        let (again, stuck) = Default::default();
        Failover { lanes: std::array::from_fn(cut), again, stuck, closed: None }
    }
}

impl<M> Failover<M> {
    /// Whether something can be posted.
    pub fn has_work(&self) -> bool {
        !self.again.is_empty() || self.lanes.iter().any(|lane| lane.tell)
    }

    /// Whether something is still to be done, here or at the peer.
    pub fn is_needed(&self) -> bool {
        self.has_work() || !self.stuck.is_empty() || self.lanes.iter().any(|lane| lane.asks || lane.owes)
    }

    /// How far it is, for people.
    pub fn describe(&self) -> String {
        let lane = |lane: &Cut<M>| {
            let Cut { items, epoch, heard, asks, owes, up, tell, .. } = lane;
            format!("{} items, {epoch}/{heard}, asks {asks}, owes {owes}, up {up}, tell {tell}", items.len())
        };
        let lanes: Vec<String> = self.lanes.iter().map(lane).collect();
        let lengths = (self.again.len(), self.stuck.len());
        format!("{lanes:?}, again, stuck {lengths:?}")
    }

    /// The memory that it has.
    pub fn drain(self) -> impl Iterator<Item = M> {
        let again = self.again.into_iter().map(|(_, item)| item);
        let items = self.lanes.into_iter().flat_map(|lane| lane.items).chain(again).chain(self.stuck);
        items.filter_map(|item| if let Item::Packet { memory, .. } = item { Some(memory) } else { None })
    }
}

/// Takes those out for which this holds; all keep their order.
pub(super) fn split_off<T>(of: &mut VecDeque<T>, out: impl Fn(&T) -> bool) -> Vec<T> {
    let (taken, kept): (Vec<T>, Vec<T>) = std::mem::take(of).into_iter().partition(out);
    *of = VecDeque::from(kept);
    taken
}
