//! Direct exchange: all messages in one round, one message per pair of ranks. It suits few ranks, and blocks of
//! different lengths.

use crate::hosts::Rank;
use crate::plan::{Call, Plan, Shape, Span};
use std::ops::Range;

pub(super) fn plan(call: Call, Shape { rank, ranks, len, .. }: Shape<'_>) -> Option<Plan> {
    let counts = || vec![len; ranks];
    match call {
        Call::Broadcast { root } => {
            let mut plan = Plan::default();
            plan.round(|round| match rank == root {
                true => others(rank, ranks).for_each(|to| round.send(to, Span::data(0..len))),
                false => round.receive(root, Span::data(0..len)),
            });
            Some(plan)
        }
        Call::Gather { root } => Some(gather_v(rank, root, &counts())),
        Call::Scatter { root } => Some(scatter_v(rank, root, &counts())),
        Call::AllGather => Some(all_gather_v(rank, &counts())),
        _ => None,
    }
}

/// The other ranks, starting with the next one, so that not all ranks send to the same rank first.
pub(super) fn others(rank: Rank, ranks: usize) -> impl Iterator<Item = Rank> {
    (1..ranks).map(move |step| (rank + step) % ranks)
}

/// The ranges of contiguous blocks with `counts` elements each.
pub(super) fn blocks(counts: &[usize]) -> Vec<Range<usize>> {
    let mut end = 0;
    let next = |&count| {
        end += count;
        end - count..end
    };
    counts.iter().map(next).collect()
}

/// Plans a gather of blocks of different lengths. The root must know all lengths; every other rank only its own.
///
/// # Examples
/// ```
/// use transom_collective::gather_v;
/// assert_eq!(gather_v(2, 0, &[1, 0, 5]).rounds[0].sends[0].1.len, 5);
/// ```
pub fn gather_v(rank: Rank, root: Rank, counts: &[usize]) -> Plan {
    let blocks = blocks(counts);
    let mut plan = Plan::default();
    plan.round(|round| match rank == root {
        true => {
            others(rank, counts.len()).for_each(|from| round.receive_any(from, Span::data(blocks[from].clone())));
            round.copy(Span::given(0..counts[rank]), Span::data(blocks[rank].clone()));
        }
        false => round.send_any(root, Span::given(0..counts[rank])),
    });
    plan
}

/// Plans a scatter of blocks of different lengths. The root must know all lengths; every other rank only its own.
///
/// # Examples
/// ```
/// use transom_collective::scatter_v;
/// assert_eq!(scatter_v(0, 0, &[1, 0, 5]).rounds[0].sends[0].1.len, 0); // an empty message to the second rank
/// ```
pub fn scatter_v(rank: Rank, root: Rank, counts: &[usize]) -> Plan {
    let blocks = blocks(counts);
    let mut plan = Plan::default();
    plan.round(|round| match rank == root {
        true => {
            others(rank, counts.len()).for_each(|to| round.send_any(to, Span::given(blocks[to].clone())));
            round.copy(Span::given(blocks[rank].clone()), Span::data(0..counts[rank]));
        }
        false => round.receive_any(root, Span::data(0..counts[rank])),
    });
    plan
}

/// Plans an all-gather of blocks of different lengths, which all ranks know.
///
/// # Examples
/// ```
/// use transom_collective::all_gather_v;
/// assert_eq!(all_gather_v(0, &[1, 0, 5]).rounds[0].receives[0].1.len, 0); // an empty message from the second rank
/// ```
pub fn all_gather_v(rank: Rank, counts: &[usize]) -> Plan {
    let blocks = blocks(counts);
    let mut plan = Plan::default();
    plan.round(|round| {
        for other in others(rank, counts.len()) {
            round.receive_any(other, Span::data(blocks[other].clone()));
            round.send_any(other, Span::given(0..counts[rank]));
        }
        round.copy(Span::given(0..counts[rank]), Span::data(blocks[rank].clone()));
    });
    plan
}
