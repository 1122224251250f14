//! Rings: each rank sends only to the next rank, in n - 1 rounds of one share each (Patarasuk, Yuan 2009). Optimal in
//! bytes and worst in latency. Partial folds travel around the ring, so the operation must commute.

use super::{turned, turned_back};
use crate::hosts::Rank;
use crate::plan::{Call, Order, Plan, Shape, Span, block};
use std::ops::Range;

pub(super) fn plan(call: Call, shape: Shape<'_>) -> Option<Plan> {
    let Shape { rank, ranks, len, .. } = shape;
    match call {
        Call::Broadcast { root } => Some(broadcast(shape, root)),
        Call::AllReduce { commutes: true } => {
            let share = |of: Rank| block(len, ranks, of);
            let mut plan = Plan::with_scratch(len.div_ceil(ranks));
            for step in 1..ranks {
                let (give, take) = ((rank + ranks - step + 1) % ranks, (rank + ranks - step) % ranks);
                plan.round(|round| {
                    let came = Span::scratch(0..share(take).len());
                    round.receive((rank + ranks - 1) % ranks, came);
                    round.send((rank + 1) % ranks, Span::data(share(give)));
                    round.fold(Span::data(share(take)), came, Order::Before);
                });
            }
            // This rank now holds the result of the next rank's share.
            around(&mut plan, ranks, rank, rank + 1, share);
            Some(plan)
        }
        Call::AllGather => {
            let mut plan = Plan::default();
            plan.round(|round| round.copy(Span::given(0..len), Span::data(rank * len..(rank + 1) * len)));
            around(&mut plan, ranks, rank, rank, |of| of * len..(of + 1) * len);
            Some(plan)
        }
        _ => None,
    }
}

/// Distributes parts around the ring. This rank starts with part `first`, and forwards the part received last until all
/// ranks have all parts.
fn around(plan: &mut Plan, ranks: usize, rank: Rank, first: usize, part: impl Fn(usize) -> Range<usize>) {
    for step in 0..ranks.saturating_sub(1) {
        let (give, take) = ((first + ranks - step) % ranks, (first + ranks - step - 1) % ranks);
        plan.round(|round| {
            round.receive((rank + ranks - 1) % ranks, Span::data(part(take)));
            round.send((rank + 1) % ranks, Span::data(part(give)));
        });
    }
}

/// Scatters shares by a binomial tree, then distributes them around the ring (van de Geijn).
fn broadcast(Shape { rank, ranks, len, .. }: Shape<'_>, root: Rank) -> Plan {
    let place = turned(rank, root, ranks);
    let at = |place| turned_back(place, root, ranks);
    let shares =
        |places: Range<usize>| Span::data(block(len, ranks, places.start).start..block(len, ranks, places.end - 1).end);
    let mut plan = Plan::default();
    let top = if place == 0 { ranks.next_power_of_two() } else { 1 << place.trailing_zeros() };
    plan.round(|round| {
        if place > 0 {
            round.receive(at(place & (place - 1)), shares(place..ranks.min(place + top)));
        }
    });
    plan.round(|round| {
        for bit in (0..top.ilog2()).rev().map(|k| 1 << k).filter(|bit| place + bit < ranks) {
            round.send(at(place + bit), shares(place + bit..ranks.min(place + 2 * bit)));
        }
    });
    // The next place is the next rank, because both wrap around.
    around(&mut plan, ranks, rank, place, |of| block(len, ranks, of));
    plan
}
