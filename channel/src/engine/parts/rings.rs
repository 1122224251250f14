//! Rings: the ring given by a peer, the ring given to it, and the order in which rings are polled.

use super::Each;
use crate::error::PeerFailure;
use crate::polling::PollingSet;
use crate::ring::{Receiver, RingConfig, Sender};
use crate::sequence::Beyond;
use crate::wire::{Key, Rank};

/// A ring of this rank that a peer writes to.
pub struct RingIn<M> {
    pub half: Receiver,
    pub memory: M,
    pub key: Key,
}

/// The mark of a message, refused by the wire. It must be posted before any other request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    pub to: Key,
    pub at: usize,
    pub value: u64,
}

/// Rings between this rank and one peer.
pub struct Rings<M> {
    /// The ring that this rank writes to.
    pub out: Option<Sender>,
    /// The ring that the peer writes to, unless its packets are being handled.
    pub incoming: Option<RingIn<M>>,
    /// Number of the incoming ring while its packets are handled, until the peer leaves it.
    polled: Option<u16>,
    refused: bool,
    /// Number of the last ring that the peer was asked to leave.
    leaves: Option<u16>,
    mark: Option<Mark>,
    /// Number of messages sent by `out` that [`take_sent`](Self::take_sent) has returned.
    taken: u32,
}

impl<M> Default for Rings<M> {
    fn default() -> Self {
        Rings { out: None, incoming: None, polled: None, refused: false, leaves: None, mark: None, taken: 0 }
    }
}

impl<M> Rings<M> {
    /// Records a ring that the peer has given. `window` is the most packets in flight to it.
    pub fn joined(&mut self, ring: u16, shape: RingConfig, key: Key, window: u32) -> Result<(), PeerFailure> {
        if !shape.is_sound() || self.out.is_some() {
            return Err(PeerFailure::Broken("it offered an invalid or second ring"));
        }
        self.out = Some(Sender::new(ring, shape, key).turning(shape.lap(window)));
        self.taken = 0;
        Ok(())
    }

    /// Number of messages put into the peer's ring since the last call.
    pub fn take_sent(&mut self) -> u32 {
        let sent = self.out.as_ref().map_or(self.taken, Sender::total);
        sent.wrapping_sub(std::mem::replace(&mut self.taken, sent))
    }

    /// Gives up the ring of this number. Returns false if there is none.
    pub fn leave(&mut self, ring: u16) -> bool {
        self.out.take_if(|out| out.ring == ring).is_some()
    }

    /// Handles the cut of the rail of rings. Returns the number of the ring that is given up with it.
    pub fn cut(&mut self) -> Option<u16> {
        self.mark = None;
        self.out.take().map(|out| out.ring)
    }

    /// Applies the peer's count of freed slots. A count for another ring changes nothing.
    #[inline(always)]
    pub fn freed(&mut self, ring: u16, freed: u32) -> Result<(), Beyond> {
        match self.out.as_mut().filter(|out| out.ring == ring) {
            Some(out) => out.freed(freed),
            None => Ok(()),
        }
    }

    pub fn mark(&self) -> Option<Mark> {
        self.mark
    }

    pub fn set_mark(&mut self, mark: Option<Mark>) {
        self.mark = mark;
    }

    /// Records the ring given to the peer.
    pub fn give(&mut self, ring: RingIn<M>) {
        self.incoming = Some(ring);
    }

    /// Records that allocation failed for a ring.
    pub fn refuse(&mut self) {
        self.refused = true;
    }

    pub fn is_refused(&self) -> bool {
        self.refused
    }

    /// Returns true if the peer has a ring.
    pub fn has_given(&self) -> bool {
        self.incoming.is_some() || self.polled.is_some()
    }

    /// Returns true if the peer was asked to leave the ring that it has.
    pub fn is_leaving(&self) -> bool {
        self.incoming.as_ref().is_some_and(|ring| self.leaves == Some(ring.half.ring))
    }

    /// Returns true, once, if the peer must be asked to leave the ring of this number.
    pub fn ask_to_leave(&mut self, ring: u16) -> bool {
        self.leaves.replace(ring) != Some(ring)
    }

    /// Takes the incoming ring while its packets are handled.
    pub fn begin_poll(&mut self) -> Option<RingIn<M>> {
        let ring = self.incoming.take()?;
        self.polled = Some(ring.half.ring);
        Some(ring)
    }

    /// Puts the incoming ring back. Returns it if the peer has left it in the meantime.
    pub fn end_poll(&mut self, ring: RingIn<M>) -> Option<RingIn<M>> {
        match self.polled.take() {
            Some(_) => {
                self.incoming = Some(ring);
                None
            }
            None => Some(ring),
        }
    }

    /// Handles the peer's notice that it has left the ring of this number. Returns the ring, unless its
    /// packets are being handled.
    pub fn left(&mut self, ring: u16) -> Result<Option<RingIn<M>>, PeerFailure> {
        let left = self.incoming.take_if(|incoming| incoming.half.ring == ring);
        match left.is_some() || self.polled.take_if(|polled| *polled == ring).is_some() {
            true => Ok(left),
            false => Err(PeerFailure::Broken("it left a ring that it does not have")),
        }
    }

    /// Takes the incoming ring of a lost peer.
    pub fn end(self) -> Option<RingIn<M>> {
        self.incoming
    }
}

/// Polled rings, those of ranks on the same host apart from the others, and short receives not counted there
/// yet.
pub struct Polling {
    pub sets: Each<PollingSet>,
    /// Ranks in polling order: a list that is reused.
    order: Vec<Rank>,
    /// Short receives since the last progress call, the number that the set has counted, and the source of
    /// the others.
    in_a_row: u32,
    counted: u32,
    row_of: Rank,
}

impl Polling {
    pub fn new(sets: Each<PollingSet>) -> Polling {
        Polling { sets, order: Vec::new(), in_a_row: 0, counted: 0, row_of: Rank::MAX }
    }

    /// Returns true if no ring is polled.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.sets.both().iter().all(PollingSet::is_empty)
    }

    /// Numbers of rings: for peers on other hosts, and for peers on the same host.
    pub fn rings(&self) -> [usize; 2] {
        self.sets.both().each_ref().map(PollingSet::len)
    }

    /// Takes the ranks in the order in which their rings are polled. The caller must [give
    /// back](Self::give_back) the list.
    #[inline]
    pub fn take_order(&mut self) -> Vec<Rank> {
        let mut order = std::mem::take(&mut self.order);
        order.clear();
        let sets = self.sets.both().iter().filter(|set| !set.is_empty());
        sets.for_each(|set| set.turn_into(&mut order));
        order
    }

    /// Like [`take_order`](Self::take_order), but begins behind the source of the last short receive.
    #[inline]
    pub fn take_order_behind_last(&mut self) -> Vec<Rank> {
        let mut order = self.take_order();
        let behind = order.iter().position(|rank| *rank == self.row_of).map_or(0, |last| last + 1);
        order.rotate_left(behind);
        order
    }

    #[inline]
    pub fn give_back(&mut self, order: Vec<Rank>) {
        self.order = order;
    }

    /// Number of short receives since the last progress call.
    #[inline(always)]
    pub fn in_a_row(&self) -> u32 {
        self.in_a_row
    }

    /// Source of the last short receive.
    #[inline(always)]
    pub fn row_of(&self) -> Rank {
        self.row_of
    }

    /// Records a message received on the short path.
    #[inline(always)]
    pub fn passed(&mut self) {
        self.in_a_row += 1;
    }

    /// Counts further short receives for this source.
    pub fn begin_row(&mut self, rank: Rank) {
        self.row_of = rank;
    }

    /// Counts the short receives that were not counted yet, if their source still has a ring.
    #[inline]
    pub fn count_row(&mut self, near: Option<bool>) {
        let counted = std::mem::replace(&mut self.counted, self.in_a_row);
        if let Some(near) = near {
            let change = self.sets[near].packets(self.row_of, self.in_a_row - counted);
            debug_assert_eq!(change, None, "a peer with a ring gets none");
        }
    }

    /// Starts a progress call: short receives are counted from zero.
    #[inline]
    pub fn begin_turn(&mut self) {
        (self.in_a_row, self.counted) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::polling::{Change, Order};
    use crate::ring::CompletionFlag;

    const SHAPE: RingConfig = RingConfig { slots: 4, bytes: 128 };
    const KEY: Key = Key { address: 1, key: 2 };

    fn given() -> Rings<()> {
        let mut rings = Rings::default();
        rings.give(RingIn { half: Receiver::new(1, SHAPE, CompletionFlag::Last), memory: (), key: KEY });
        rings
    }

    #[test]
    fn second_ring_is_refused_until_the_first_is_left() {
        let mut rings = Rings::<()>::default();
        assert_eq!(rings.joined(1, SHAPE, KEY, 8), Ok(()));
        assert!(rings.joined(2, SHAPE, KEY, 8).is_err());
        assert_eq!([rings.leave(2), rings.leave(1), rings.leave(1)], [false, true, false]);
        assert_eq!(rings.joined(2, SHAPE, KEY, 8), Ok(()));
        assert!(Rings::<()>::default().joined(1, RingConfig { slots: 0, bytes: 128 }, KEY, 8).is_err());
    }

    #[test]
    fn credit_of_another_ring_changes_nothing() {
        let mut rings = Rings::<()>::default();
        rings.joined(2, SHAPE, KEY, 8).unwrap();
        let spot = rings.out.as_ref().and_then(|out| out.claim(8)).unwrap();
        rings.out.as_mut().unwrap().sent(spot);
        assert_eq!((rings.freed(1, 3), rings.out.as_ref().map(Sender::flying)), (Ok(()), Some(1)));
        assert_eq!((rings.freed(2, 3), rings.out.as_ref().map(Sender::flying)), (Err(Beyond), Some(1)));
        assert_eq!((rings.freed(2, 1), rings.out.as_ref().map(Sender::flying)), (Ok(()), Some(0)));
    }

    #[test]
    fn ring_left_while_polled_is_returned_after_poll() {
        let mut rings = given();
        let polled = rings.begin_poll().unwrap();
        assert!(rings.has_given() && rings.incoming.is_none());
        assert!(rings.left(1).is_ok_and(|ring| ring.is_none()));
        assert!(!rings.has_given());
        assert!(rings.end_poll(polled).is_some());
        assert!(rings.left(1).is_err());
    }

    #[test]
    fn polled_ring_is_put_back_and_left_once() {
        let mut rings = given();
        let polled = rings.begin_poll().unwrap();
        assert!(rings.end_poll(polled).is_none());
        assert!(rings.left(2).is_err());
        assert!(rings.left(1).is_ok_and(|ring| ring.is_some()));
        assert!(rings.left(1).is_err());
    }

    #[test]
    fn peer_is_asked_once_to_leave_a_ring() {
        let mut rings = given();
        assert!(!rings.is_leaving());
        assert_eq!([rings.ask_to_leave(1), rings.ask_to_leave(1)], [true, false]);
        assert!(rings.is_leaving() && rings.ask_to_leave(2));
    }

    #[test]
    fn cut_rail_takes_ring_and_mark_along() {
        let mut rings = Rings::<()>::default();
        rings.joined(3, SHAPE, KEY, 8).unwrap();
        rings.set_mark(Some(Mark { to: KEY, at: 8, value: 9 }));
        assert_eq!((rings.cut(), rings.cut(), rings.mark()), (Some(3), None, None));
    }

    #[test]
    fn packets_of_short_receives_are_counted_once() {
        let set = || PollingSet::new(2, 1, Order::Sequential);
        let mut polling = Polling::new(Each::of(|_| set()));
        (1..3).for_each(|rank| assert_eq!(polling.sets[true].packet(rank), Some(Change::Join(rank))));
        polling.begin_row(1);
        (0..5).for_each(|_| polling.passed());
        polling.count_row(Some(true));
        polling.count_row(Some(true));
        assert_eq!(polling.take_order_behind_last(), [2, 1]);
        polling.begin_turn();
        assert_eq!((polling.in_a_row(), polling.rings()), (0, [0, 2]));
        // Rank 1 has 6 packets and rank 2 has 1: rank 3 takes the ring of rank 2.
        assert_eq!((0..4).find_map(|_| polling.sets[true].packet(3)), Some(Change::Leave(2)));
    }
}
