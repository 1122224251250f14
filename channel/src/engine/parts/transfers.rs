//! Transfers: writes and reads of a rendezvous, their rails, and their measured times.

use crate::packet::{Body, Keys};
use crate::slab::Id;
use crate::striping::{Part, Rails, TOTAL, Timed, UNDER_WAY, Weights};
use crate::tuner::ProtocolTuner;
use crate::wire::RAILS;
use std::collections::VecDeque;

/// A write or read of one stripe.
#[derive(Debug, Clone, PartialEq)]
pub struct Transfer {
    pub id: Id,
    pub rail: usize,
    pub offset: u64,
    pub length: u64,
    /// Keys of the peer's memory, one for each rail that it is registered with.
    pub keys: Keys,
    /// Rails that may take the stripe, if any free rail may.
    pub any: Rails,
    /// True for a write, false for a read.
    pub writes: bool,
    /// FIN of a write, until it is posted.
    pub fin: Option<Body>,
}

/// A message cut into stripes.
pub struct Plan<P> {
    parts: P,
    /// Number of stripes.
    pub lanes: u8,
    /// Rails that take stripes as they become free; empty if each stripe has its own rail.
    any: Rails,
}

impl<P: Iterator<Item = Part> + Clone> Plan<P> {
    /// Times of the stripes, if there are several.
    pub fn timed(&self) -> Option<Box<Timed>> {
        (self.lanes > 1).then(|| Box::new(Timed::new(self.parts.clone())))
    }
}

/// Former place of a transfer that was taken out of the queue.
pub struct Next {
    /// Place in the queue.
    at: usize,
    /// Rail that the transfer was planned for.
    pub planned: usize,
}

/// Transfers between this rank and one peer.
pub struct Transfers {
    /// Weights by which long messages are divided among rails.
    pub weights: Weights,
    /// Measured rates of long messages, once there was a choice of protocol.
    pub tuner: Option<Box<ProtocolTuner>>,
    queue: VecDeque<Transfer>,
    /// Posted stripes in flight, by rail, if rails take stripes as they become free.
    in_flight: [u8; RAILS],
    /// Posted transfers by token, if a rail may fail, or a FIN waits for their end.
    posted: Vec<(u64, Transfer)>,
}

impl Transfers {
    pub fn new(weights: Weights) -> Transfers {
        Transfers { weights, tuner: None, queue: VecDeque::new(), in_flight: [0; RAILS], posted: Vec::new() }
    }

    #[inline]
    pub fn has_queued(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Number of transfers that wait.
    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Returns true if a posted write is kept by its token.
    #[inline]
    pub fn is_writing(&self) -> bool {
        self.posted.iter().any(|(_, posted)| posted.writes)
    }

    /// Divides a message among rails, into stripes of `least` bytes on average.
    pub fn plan(&self, length: u64, rails: Rails, least: u64) -> Plan<impl Iterator<Item = Part> + Clone + use<>> {
        let parts = self.weights.pieces(length, rails, least);
        let used = |(lanes, rails): (u8, Rails), part: Part| (lanes + 1, rails.and(part.rail));
        let (lanes, rails) = match rails.len() {
            1 => (1, rails),
            _ => parts.clone().fold((0, Rails::default()), used),
        };
        Plan { parts, lanes, any: if self.weights.pulls() && lanes > 1 { rails } else { Rails::default() } }
    }

    /// Queues the stripes of a message: writes that each have this FIN, or reads if there is none.
    pub fn queue(&mut self, plan: Plan<impl Iterator<Item = Part>>, id: Id, keys: Keys, fin: Option<Body>) {
        let (any, writes) = (plan.any, fin.is_some());
        self.queue.extend(plan.parts.map(|Part { rail, at: offset, length }| Transfer {
            id,
            rail,
            offset,
            length,
            keys,
            any,
            writes,
            fin: fin.clone(),
        }));
    }

    /// Queues a transfer again.
    pub fn push(&mut self, transfer: Transfer) {
        self.queue.push_back(transfer);
    }

    /// Takes the next transfer for the rail that is to take it. If rails take stripes as they become free, a
    /// rail with few in flight takes its own stripe, or else the last stripe of a rail that would end it
    /// later.
    pub fn next(&mut self, up: &[bool; RAILS]) -> Option<(Transfer, Next)> {
        let (at, rail) = self.choose(up)?;
        let mut transfer = self.queue.remove(at)?;
        let planned = std::mem::replace(&mut transfer.rail, rail);
        Some((transfer, Next { at, planned }))
    }

    fn choose(&self, up: &[bool; RAILS]) -> Option<(usize, usize)> {
        let front = self.queue.front()?;
        if front.any.is_empty() {
            return Some((0, front.rail));
        }
        let pieces = || self.queue.iter().take_while(|next| next.id == front.id);
        let of = |rail: usize| pieces().filter(|next| next.rail == rail).count();
        let may = |rail: &usize| front.any.has(*rail) && up[*rail] && self.in_flight[*rail] < UNDER_WAY;
        let mut free: Vec<usize> = (0..RAILS).filter(may).collect();
        free.sort_by_key(|rail| self.in_flight[*rail]);
        let own = |rail: &usize| Some((pieces().position(|next| next.rail == *rail)?, *rail));
        free.iter().find_map(own).or_else(|| {
            let (rail, from) = (*free.first()?, (0..RAILS).max_by_key(|rail| of(*rail))?);
            let in_flight = |rail: usize| usize::from(self.in_flight[rail]);
            // Time in which a rail completes `pieces` pieces, by its weight.
            let ends =
                |rail: usize, pieces: usize| pieces as u64 * u64::from(TOTAL) / u64::from(self.weights.now()[rail]);
            let takes = ends(rail, in_flight(rail) + 1) < ends(from, in_flight(from) + of(from));
            let last = pieces().enumerate().filter(|(_, next)| next.rail == from).last()?;
            takes.then_some((last.0, rail))
        })
    }

    /// Puts back a transfer that the wire has refused.
    pub fn put_back(&mut self, next: Next, mut transfer: Transfer) {
        transfer.rail = next.planned;
        self.queue.insert(next.at, transfer);
    }

    /// Records that a transfer was posted; it is kept by its token if `keep` is set.
    pub fn posted(&mut self, token: u64, transfer: Transfer, keep: bool) {
        if !transfer.any.is_empty() {
            self.in_flight[transfer.rail] = self.in_flight[transfer.rail].saturating_add(1);
        }
        if keep {
            self.posted.push((token, transfer));
        }
    }

    /// Records that a transfer has ended. Returns true if its rail may take another.
    pub fn freed(&mut self, rail: usize) -> bool {
        self.in_flight[rail] = self.in_flight[rail].saturating_sub(1);
        self.weights.pulls()
    }

    /// Removes and returns a transfer that has ended: the first of this token.
    pub fn ended(&mut self, token: u64) -> Option<Transfer> {
        let at = self.posted.iter().position(|(posted, _)| *posted == token)?;
        Some(self.posted.remove(at).1)
    }

    /// Removes and returns a posted transfer whose rail was cut: the last of this token, since earlier ones
    /// may be done.
    pub fn recall(&mut self, token: u64) -> Option<Transfer> {
        let at = self.posted.iter().rposition(|(posted, _)| *posted == token)?;
        Some(self.posted.remove(at).1)
    }

    /// Returns the transfers that waited for a rail that was cut.
    pub fn cut(&mut self, rail: usize) -> Vec<Transfer> {
        self.in_flight[rail] = 0;
        super::split_off(&mut self.queue, |next| next.rail == rail)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::striping::Stripe;

    const UP: [bool; RAILS] = [true, true, false, false];

    fn transfers(policy: Stripe) -> Transfers {
        Transfers::new(Weights::new(policy, 0, [1, 1].into_iter()))
    }

    fn id() -> Id {
        Id::from_wire(1 << 32).unwrap()
    }

    fn fin(lanes: u8) -> Body {
        Body::Fin { receiver: id(), lanes }
    }

    fn rails() -> Rails {
        [0, 1].into_iter().collect()
    }

    #[test]
    fn stripes_cover_the_message_each_with_its_fin() {
        let mut transfers = transfers(Stripe::Even);
        let plan = transfers.plan(1 << 20, rails(), 4096);
        assert_eq!((plan.lanes, plan.timed().is_some()), (2, true));
        transfers.queue(plan, id(), Keys::default(), Some(fin(2)));
        let mut all = Vec::new();
        while let Some((transfer, _)) = transfers.next(&UP) {
            all.push(transfer);
        }
        assert_eq!(all.iter().map(|next| (next.rail, next.length)).collect::<Vec<_>>(), [(0, 1 << 19), (1, 1 << 19)]);
        assert!(all.iter().all(|next| next.writes && next.fin == Some(fin(2))));
    }

    #[test]
    fn refused_transfer_keeps_its_place_and_rail() {
        let mut transfers = transfers(Stripe::Even);
        let plan = transfers.plan(1 << 20, rails(), 4096);
        transfers.queue(plan, id(), Keys::default(), None);
        let (transfer, next) = transfers.next(&UP).unwrap();
        transfers.put_back(next, transfer.clone());
        assert_eq!((transfers.queued(), transfers.next(&UP).map(|(next, _)| next)), (2, Some(transfer)));
    }

    #[test]
    fn idle_rail_takes_pieces_of_a_busy_rail() {
        let mut transfers = transfers(Stripe::Pull);
        let plan = transfers.plan(1 << 20, rails(), 4096);
        transfers.queue(plan, id(), Keys::default(), None);
        let mut taken = [0; 2];
        // Rail 1 ends each piece at once, rail 0 none.
        while let Some((transfer, next)) = transfers.next(&UP) {
            let rail = transfer.rail;
            taken[rail] += 1;
            assert!(rail == next.planned || rail == 1);
            transfers.posted(taken[rail], transfer, false);
            if rail == 1 {
                assert!(transfers.freed(1));
            }
        }
        assert_eq!((taken[0], transfers.queued()), (u64::from(UNDER_WAY), 0));
    }

    #[test]
    fn cut_rail_returns_its_queued_transfers() {
        let mut transfers = transfers(Stripe::Even);
        let plan = transfers.plan(1 << 20, rails(), 4096);
        transfers.queue(plan, id(), Keys::default(), None);
        assert_eq!(transfers.cut(0).iter().map(|next| next.rail).collect::<Vec<_>>(), [0]);
        assert_eq!(transfers.queued(), 1);
    }

    #[test]
    fn token_ends_oldest_transfer_recalls_newest() {
        let mut transfers = transfers(Stripe::Even);
        let plan = transfers.plan(1 << 20, rails(), 4096);
        transfers.queue(plan, id(), Keys::default(), Some(fin(2)));
        (0..2).for_each(|_| {
            let (transfer, _) = transfers.next(&UP).unwrap();
            transfers.posted(7, transfer, true);
        });
        assert!(transfers.is_writing());
        assert_eq!(
            [transfers.recall(7), transfers.ended(7)].map(|next| next.map(|next| next.rail)),
            [Some(1), Some(0)]
        );
        assert_eq!(transfers.ended(7), None);
    }
}
