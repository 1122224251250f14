//! Failover: requests of a cut rail, until both ends know which of them took effect.

use super::transfers::Transfer;
use crate::error::PeerFailure;
use crate::packet::Body;
use crate::wire::RAILS;
use std::collections::VecDeque;

/// A request that was posted to a rail, or waited for it.
pub enum Item<M> {
    /// The bytes of a packet; `went` if it was sent through the queue of the rail.
    Packet { memory: M, length: usize, went: bool },
    /// A write or read that was posted.
    Posted(Transfer),
    /// A write or read that waited for the rail.
    Unposted(Transfer),
    /// An answer that waited for the rail.
    Reply(Body),
}

/// State of a rail.
struct RailFailure<M> {
    /// Requests of this end, until it knows which of them took effect.
    items: Vec<Item<M>>,
    /// Number of cuts at this end, and at the peer as far as this end knows.
    epoch: u32,
    heard: u32,
    /// True while the peer, or this end, has to report the packets that arrived.
    asks: bool,
    owes: bool,
    /// Last answer to the peer: number of its cut, and number of packets that had arrived.
    answer: (u32, u32),
    /// True if the peer must be notified of the fields above.
    notify: bool,
    /// True if the rail passes requests again.
    passes: bool,
}

/// Requests of one peer's cut rails.
pub struct Failover<M> {
    rails: [RailFailure<M>; RAILS],
    /// Requests to post again, in order, and the rail that each is to take.
    again: VecDeque<(usize, Item<M>)>,
    /// Requests that no rail can take.
    stuck: Vec<Item<M>>,
    /// Number of a ring of the peer that was given up without its LEAVE.
    closed: Option<u16>,
}

impl<M> Default for Failover<M> {
    fn default() -> Self {
        let cut = |_| RailFailure {
            items: Vec::new(),
            epoch: 0,
            heard: 0,
            asks: false,
            owes: false,
            answer: (0, 0),
            notify: false,
            passes: false,
        };
        let (again, stuck) = Default::default();
        Failover { rails: std::array::from_fn(cut), again, stuck, closed: None }
    }
}

impl<M> Failover<M> {
    /// Records that a rail was cut at this end, with these requests. The peer has to report which of them
    /// took effect.
    pub fn cut(&mut self, rail: usize, items: Vec<Item<M>>) {
        let again = super::split_off(&mut self.again, |(on, _)| *on == rail);
        let cut = &mut self.rails[rail];
        cut.passes = false;
        // If the rail is cut again before it was used again, only a ring has been written to since.
        cut.items.extend(items);
        cut.items.extend(again.into_iter().map(|(_, item)| match item {
            Item::Packet { memory, length, .. } => Item::Packet { memory, length, went: false },
            other => other,
        }));
        if !cut.asks {
            cut.epoch += 1;
            (cut.asks, cut.notify) = (true, true);
        }
    }

    /// Notifies the peer of all cuts again: a notice may be lost.
    pub fn notify_again(&mut self) {
        self.rails.iter_mut().for_each(|cut| cut.notify |= cut.epoch > 0);
    }

    /// Records that a ring was given up with its rail.
    pub fn close_ring(&mut self, ring: u16) {
        self.closed = Some(ring);
    }

    /// Returns true, once, if the ring of this number was given up with its rail.
    pub fn take_closed(&mut self, ring: u16) -> bool {
        self.closed.take_if(|closed| *closed == ring).is_some()
    }

    /// Handles the peer's notice that a rail was cut there. Returns true if this end must cut it too.
    pub fn peer_cut(&mut self, rail: usize, epoch: u32) -> bool {
        let cut = &mut self.rails[rail];
        let is_new = epoch > cut.heard;
        if is_new {
            (cut.heard, cut.owes) = (epoch, true);
        }
        is_new && !cut.asks
    }

    /// Returns true if this end has to report the packets that arrived on a rail.
    pub fn owes(&self, rail: usize) -> bool {
        self.rails[rail].owes
    }

    /// Answers for all rails; `came` returns the number of packets that had arrived on one, and resets it.
    pub fn answer(&mut self, mut came: impl FnMut(usize) -> u32) {
        for (rail, cut) in self.rails.iter_mut().enumerate().filter(|(_, cut)| cut.owes) {
            (cut.owes, cut.notify, cut.answer) = (false, true, (cut.heard, came(rail)));
        }
    }

    /// Returns true if the peer's answer is for the last cut of a rail.
    pub fn is_answer(&self, rail: usize, epoch: u32) -> bool {
        self.rails[rail].asks && self.rails[rail].epoch == epoch
    }

    /// Applies the peer's answer: of `went` packets sent on a rail, `came` had arrived. A rail is in order,
    /// so all requests before the last of these took effect. Returns the packets and writes that did, and the
    /// requests to post again.
    pub fn settle(&mut self, rail: usize, went: u32, came: u32) -> Result<[Vec<Item<M>>; 2], PeerFailure> {
        let cut = &mut self.rails[rail];
        cut.asks = false;
        let items = std::mem::take(&mut cut.items);
        let by_queue = |item: &Item<M>| matches!(item, Item::Packet { went: true, .. });
        let sent = items.iter().filter(|item| by_queue(item)).count() as u32;
        let received = came.wrapping_sub(went.wrapping_sub(sent));
        if received > sent {
            return Err(PeerFailure::Broken("it reported more packets than were sent"));
        }
        let mut left = received;
        let took_effect = |item: &Item<M>| {
            let before = left > 0;
            left -= u32::from(before && by_queue(item));
            before && matches!(item, Item::Packet { .. } | Item::Posted(Transfer { writes: true, .. }))
        };
        let (done, again) = items.into_iter().partition(took_effect);
        Ok([done, again])
    }

    /// Records that the wire has connected a rail.
    pub fn passes(&mut self, rail: usize) {
        self.rails[rail].passes = true;
    }

    /// Returns true if a notice may take this rail, although other requests may not yet.
    pub fn is_passing(&self, rail: usize) -> bool {
        self.rails[rail].passes
    }

    /// Returns true if a rail can be used again: it is connected, and both ends have reported the packets
    /// that arrived.
    pub fn is_settled(&self, rail: usize) -> bool {
        let cut = &self.rails[rail];
        cut.passes && !cut.asks && !cut.owes
    }

    /// Returns the requests that found no rail.
    pub fn take_stuck(&mut self) -> Vec<Item<M>> {
        std::mem::take(&mut self.stuck)
    }

    /// Queues requests, each with its rail if there is one.
    pub fn queue(&mut self, items: Vec<(Option<usize>, Item<M>)>) {
        for (rail, item) in items {
            match rail {
                Some(rail) => self.again.push_back((rail, item)),
                None => self.stuck.push(item),
            }
        }
    }

    /// The next notice to the peer, and the rail that it is about.
    pub fn notice(&self) -> Option<(usize, Body)> {
        let rail = self.rails.iter().position(|cut| cut.notify)?;
        let RailFailure { epoch, answer: (heard, came), .. } = self.rails[rail];
        Some((rail, Body::Cut { rail: rail as u8, epoch, heard, came }))
    }

    /// Records that the notice about this rail was posted.
    pub fn notified(&mut self, rail: usize) {
        self.rails[rail].notify = false;
    }

    /// Takes the next request to post again.
    pub fn next(&mut self) -> Option<(usize, Item<M>)> {
        self.again.pop_front()
    }

    /// Puts back a request that the wire has refused.
    pub fn put_back(&mut self, rail: usize, item: Item<M>) {
        self.again.push_front((rail, item));
    }

    /// Returns true if a notice or request can be posted.
    pub fn has_work(&self) -> bool {
        !self.again.is_empty() || self.rails.iter().any(|cut| cut.notify)
    }

    /// Returns true if an action is pending, here or at the peer.
    pub fn is_needed(&self) -> bool {
        self.has_work() || !self.stuck.is_empty() || self.rails.iter().any(|cut| cut.asks || cut.owes)
    }

    /// State for reports.
    pub fn describe(&self) -> String {
        let rail = |cut: &RailFailure<M>| {
            let RailFailure { items, epoch, heard, asks, owes, passes, notify, .. } = cut;
            format!("{} items, {epoch}/{heard}, asks {asks}, owes {owes}, up {passes}, notify {notify}", items.len())
        };
        let rails: Vec<String> = self.rails.iter().map(rail).collect();
        format!("{rails:?}, again, stuck {:?}", (self.again.len(), self.stuck.len()))
    }

    /// Memory of all packets.
    pub fn end(self) -> impl Iterator<Item = M> {
        let again = self.again.into_iter().map(|(_, item)| item);
        let items = self.rails.into_iter().flat_map(|cut| cut.items).chain(again).chain(self.stuck);
        items.filter_map(|item| if let Item::Packet { memory, .. } = item { Some(memory) } else { None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packets(numbers: [u32; 3]) -> Vec<Item<u32>> {
        numbers.into_iter().map(|memory| Item::Packet { memory, length: 8, went: memory != 0 }).collect()
    }

    fn numbers(items: Vec<Item<u32>>) -> Vec<u32> {
        let number =
            |item| if let Item::Packet { memory, .. } = item { memory } else { panic!("expected packet items only") };
        items.into_iter().map(number).collect()
    }

    #[test]
    fn requests_up_to_last_arrival_are_completed() {
        // Ten packets were sent through the queue; the last two of them are 1 and 2. Packet 0 was sent
        // through a ring.
        let settle = |came| {
            let mut failover = Failover::default();
            failover.cut(1, packets([1, 0, 2]));
            failover.settle(1, 10, came).map(|[done, again]| (numbers(done), numbers(again)))
        };
        assert_eq!(settle(8), Ok((vec![], vec![1, 0, 2])));
        assert_eq!(settle(9), Ok((vec![1], vec![0, 2])));
        assert_eq!(settle(10), Ok((vec![1, 0, 2], vec![])));
        assert!(settle(7).is_err() && settle(11).is_err());
    }

    #[test]
    fn rail_is_reused_once_both_ends_have_answered() {
        let mut failover = Failover::<u32>::default();
        failover.cut(0, Vec::new());
        assert_eq!(failover.notice(), Some((0, Body::Cut { rail: 0, epoch: 1, heard: 0, came: 0 })));
        failover.notified(0);
        // The peer has cut it too: this end has done so.
        assert!(!failover.peer_cut(0, 1) && failover.owes(0));
        failover.passes(0);
        failover.answer(|_| 5);
        assert_eq!(failover.notice(), Some((0, Body::Cut { rail: 0, epoch: 1, heard: 1, came: 5 })));
        assert!(!failover.is_settled(0) && !failover.is_answer(0, 0) && failover.is_answer(0, 1));
        assert!(failover.settle(0, 0, 0).is_ok() && failover.is_settled(0));
    }

    #[test]
    fn repeated_cut_of_the_peer_is_ignored() {
        let mut failover = Failover::<u32>::default();
        assert_eq!([failover.peer_cut(2, 1), failover.peer_cut(2, 1)], [true, false]);
        failover.cut(2, Vec::new());
        assert!(!failover.peer_cut(2, 2));
    }

    #[test]
    fn requests_of_a_second_cut_wait_with_the_first() {
        let mut failover = Failover::default();
        failover.cut(0, packets([1, 2, 3]));
        failover.queue(vec![
            (Some(1), Item::Packet { memory: 4, length: 8, went: true }),
            (None, Item::Reply(Body::Control)),
        ]);
        failover.cut(1, Vec::new());
        assert!(failover.next().is_none() && failover.is_needed());
        // Packet 4 was not sent through a queue of rail 1, so no answer may count it.
        assert!(failover.settle(1, 0, 1).is_err());
        assert_eq!(failover.take_stuck().len(), 1);
        assert_eq!(failover.end().collect::<Vec<_>>(), [1, 2, 3]);
    }
}
