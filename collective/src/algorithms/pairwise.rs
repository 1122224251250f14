//! Pairs: in step k each rank sends to the one k behind it and receives from the one k before it; several steps at once, and a bounded
//! number of messages under way. Folds are in the order of ranks.

use super::direct::blocks;
use crate::hosts::Rank;
use crate::plan::{Call, Order, Plan, Shape, Span, block};

/// Steps of one round.
const TOGETHER: usize = 8;

pub(super) fn plan(call: Call, shape: Shape<'_>) -> Option<Plan> {
    let Shape { rank, ranks, len, .. } = shape;
    let counts = || vec![len; ranks];
    match call {
        Call::AllToAll => Some(all_to_all_v(rank, &counts(), &counts())),
        Call::ReduceScatter => Some(reduce_scatter_v(rank, &counts())),
        Call::Reduce { root, .. } => Some(reduce(shape, root)),
        Call::AllReduce { .. } => Some(all_reduce(shape)),
        _ => None,
    }
}

/// The steps, some at a time: to whom, from whom.
fn steps(rank: Rank, ranks: usize) -> impl Iterator<Item = impl Iterator<Item = (Rank, Rank)>> {
    (1..ranks).step_by(TOGETHER).map(move |first| {
        (first..ranks.min(first + TOGETHER)).map(move |step| ((rank + step) % ranks, (rank + ranks - step) % ranks))
    })
}

/// An all-to-all of blocks of different lengths: how many elements this rank sends to each, and gets of each.
///
/// # Examples
/// ```
/// use transom_collective::all_to_all_v;
/// let plan = all_to_all_v(0, &[0, 3], &[0, 0]); // three elements to the other, nothing from it
/// assert_eq!((plan.rounds[0].sends[0].1.len, plan.rounds[0].receives[0].1.len), (3, 0)); // an empty message says so
/// ```
pub fn all_to_all_v(rank: Rank, to_each: &[usize], of_each: &[usize]) -> Plan {
    let (given, got) = (blocks(to_each), blocks(of_each));
    let mut plan = Plan::default();
    plan.round(|round| round.copy(Span::given(given[rank].clone()), Span::data(got[rank].clone())));
    for together in steps(rank, to_each.len()) {
        plan.round(|round| {
            for (to, from) in together {
                round.receive_any(from, Span::data(got[from].clone()));
                round.send_any(to, Span::given(given[to].clone()));
            }
        });
    }
    plan
}

/// A reduce-scatter of blocks of different lengths, which all know.
///
/// # Examples
/// ```
/// use transom_collective::reduce_scatter_v;
/// assert_eq!(reduce_scatter_v(1, &[4, 2, 1]).scratch, 6); // two elements of each
/// ```
pub fn reduce_scatter_v(rank: Rank, counts: &[usize]) -> Plan {
    let given = blocks(counts);
    let mut plan = Plan::default();
    fold_shares(&mut plan, rank, counts.len(), Span::data(0..counts[rank]), |of| Span::given(given[of].clone()));
    plan
}

/// Each rank sends every other its share, and folds its own of all into `result`.
fn fold_shares(plan: &mut Plan, rank: Rank, ranks: usize, result: Span, share: impl Fn(Rank) -> Span) {
    let len = result.len;
    let came = |from: Rank| Span::scratch(from * len..(from + 1) * len);
    plan.scratch = ranks * len;
    for together in steps(rank, ranks) {
        plan.round(|round| {
            for (to, from) in together {
                round.receive_any(from, came(from));
                round.send_any(to, share(to));
            }
        });
    }
    plan.round(|round| {
        // The result may lie where the rank's own is.
        round.copy(share(rank), came(rank));
        round.copy(came(0), result);
        (1..ranks).for_each(|from| round.fold(result, came(from), Order::After));
    });
}

/// Shares of the elements, folded by one rank each and told to all. 2 (n - 1) messages and 2 (n - 1) / n of the elements
/// sent by each rank.
fn all_reduce(Shape { rank, ranks, len, .. }: Shape<'_>) -> Plan {
    let share = |of: Rank| Span::data(block(len, ranks, of));
    let mut plan = Plan::default();
    fold_shares(&mut plan, rank, ranks, share(rank), share);
    for together in steps(rank, ranks) {
        plan.round(|round| {
            for (to, from) in together {
                round.receive(from, share(from));
                round.send(to, share(rank));
            }
        });
    }
    plan
}

/// Shares of the elements, folded by one rank each, to the root.
fn reduce(Shape { rank, ranks, len, .. }: Shape<'_>, root: Rank) -> Plan {
    let share = |of: Rank| Span::data(block(len, ranks, of));
    let mut plan = Plan::default();
    let mine = share(rank);
    // The root's data becomes the result; of others it is left as it was.
    let folded = if rank == root { mine } else { Span::scratch(ranks * mine.len..(ranks + 1) * mine.len) };
    fold_shares(&mut plan, rank, ranks, folded, share);
    plan.scratch = (ranks + 1) * mine.len;
    plan.round(|round| match rank == root {
        true => (0..ranks).filter(|from| *from != root).for_each(|from| round.receive(from, share(from))),
        false => round.send(root, folded),
    });
    plan
}
