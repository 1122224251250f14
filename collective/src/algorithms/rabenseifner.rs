//! Rabenseifner (2004): recursive halving leaves each rank with the fold of one share, and recursive doubling
//! distributes the shares. 2 log2 n rounds, and 2 (n - 1) / n of the elements sent by each rank; two more rounds with
//! all elements if the number of ranks is not a power of two. Distant ranks exchange halves first, so the operation
//! must commute.

use super::doubling::{Speakers, order};
use crate::plan::{Call, Plan, Shape, Span, block};

pub(super) fn plan(call: Call, Shape { rank, ranks, len, .. }: Shape<'_>) -> Option<Plan> {
    let Call::AllReduce { commutes: true } = call else { return None };
    let speakers = Speakers::of(ranks);
    let all = Span::data(0..len);
    let mut plan = Plan::with_scratch(len);
    speakers.fold_partner(&mut plan, rank, all, Span::scratch(0..len));
    if let Some(number) = speakers.number(rank) {
        let elements = |shares: std::ops::Range<usize>| {
            block(len, speakers.speak, shares.start).start..block(len, speakers.speak, shares.end - 1).end
        };
        let bits = speakers.speak.ilog2();
        // The elements of the aligned group of `bit` shares that contains share `of`.
        let half = |of: usize, bit: usize| elements(of & !(bit - 1)..(of & !(bit - 1)) + bit);
        for bit in (0..bits).rev().map(|k| 1 << k) {
            let other = number ^ bit;
            plan.round(|round| {
                let kept = half(number, bit);
                round.receive(speakers.rank(other), Span::scratch(kept.clone()));
                round.send(speakers.rank(other), Span::data(half(other, bit)));
                round.fold(Span::data(kept.clone()), Span::scratch(kept), order(rank, speakers.rank(other)));
            });
        }
        for bit in (0..bits).map(|k| 1 << k) {
            let other = number ^ bit;
            plan.round(|round| {
                round.receive(speakers.rank(other), Span::data(half(other, bit)));
                round.send(speakers.rank(other), Span::data(half(number, bit)));
            });
        }
    }
    speakers.send_result(&mut plan, rank, all);
    Some(plan)
}
