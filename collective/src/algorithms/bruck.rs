//! Bruck (1997): ceil(log2 n) rounds that each carry several blocks in one message. A block may travel several times,
//! so the algorithm suits short blocks.

use crate::plan::{Call, Plan, Shape, Span};

pub(super) fn plan(call: Call, shape: Shape<'_>) -> Option<Plan> {
    match call {
        Call::AllGather => Some(all_gather(shape)),
        Call::AllToAll => Some(all_to_all(shape)),
        _ => None,
    }
}

/// Each rank collects blocks starting with its own, in cyclic order.
fn all_gather(Shape { rank, ranks, len, .. }: Shape<'_>) -> Plan {
    let mut plan = Plan::with_scratch(ranks * len);
    plan.round(|round| round.copy(Span::given(0..len), Span::scratch(0..len)));
    for step in (0..).map(|k| 1 << k).take_while(|step| *step < ranks) {
        let blocks = step.min(ranks - step);
        plan.round(|round| {
            round.receive((rank + step) % ranks, Span::scratch(step * len..(step + blocks) * len));
            round.send((rank + ranks - step) % ranks, Span::scratch(0..blocks * len));
        });
    }
    let first = (ranks - rank) * len;
    plan.round(|round| {
        round.copy(Span::scratch(0..first), Span::data(rank * len..rank * len + first));
        round.copy(Span::scratch(first..ranks * len), Span::data(0..rank * len));
    });
    plan
}

/// The block for the rank at distance `d` moves in the rounds of the set bits of `d`.
fn all_to_all(Shape { rank, ranks, len, .. }: Shape<'_>) -> Plan {
    let most = ranks.div_ceil(2);
    // Spans of the blocks by distance, of the blocks packed for a round's send, and of the blocks received in a round.
    let at = |distance: usize| Span::scratch(distance * len..(distance + 1) * len);
    let packed = |nth: usize| Span::scratch((ranks + nth) * len..(ranks + nth + 1) * len);
    let came = |nth: usize| Span::scratch((ranks + most + nth) * len..(ranks + most + nth + 1) * len);
    let mut plan = Plan::with_scratch((ranks + 2 * most) * len);
    let steps: Vec<usize> = (0..).map(|k| 1 << k).take_while(|step| *step < ranks).collect();
    let travel = |step: usize| (0..ranks).filter(move |distance| distance & step != 0);
    plan.round(|round| {
        for distance in 0..ranks {
            let to = (rank + distance) % ranks;
            round.copy(Span::given(to * len..(to + 1) * len), at(distance));
        }
        if let Some(first) = steps.first() {
            travel(*first).enumerate().for_each(|(nth, distance)| round.copy(at(distance), packed(nth)));
        }
    });
    for (nth_step, step) in steps.iter().enumerate() {
        let blocks = travel(*step).count();
        plan.round(|round| {
            let together = |first: Span| Span { len: blocks * len, ..first };
            round.receive((rank + ranks - step) % ranks, together(came(0)));
            round.send((rank + step) % ranks, together(packed(0)));
            travel(*step).enumerate().for_each(|(nth, distance)| round.copy(came(nth), at(distance)));
            if let Some(next) = steps.get(nth_step + 1) {
                travel(*next).enumerate().for_each(|(nth, distance)| round.copy(at(distance), packed(nth)));
            }
        });
    }
    plan.round(|round| {
        for distance in 0..ranks {
            let from = (rank + ranks - distance) % ranks;
            round.copy(at(distance), Span::data(from * len..(from + 1) * len));
        }
    });
    plan
}
