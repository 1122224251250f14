//! Pairwise exchange: in step k each rank sends to the rank k after it and receives from the rank k before it. Several
//! steps form a round, which bounds the messages in flight. Folds follow the order of ranks.

use super::direct::blocks;
use crate::hosts::Rank;
use crate::plan::{Call, Order, Plan, Round, Shape, Span, block};
use std::ops::Range;

/// Steps per round.
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

/// The steps by round, each with its destination and source.
fn steps(rank: Rank, ranks: usize) -> impl Iterator<Item = impl Iterator<Item = (Rank, Rank)>> {
    (1..ranks).step_by(TOGETHER).map(move |first| {
        (first..ranks.min(first + TOGETHER)).map(move |step| ((rank + step) % ranks, (rank + ranks - step) % ranks))
    })
}

/// Plans an all-to-all of blocks of different lengths: elements sent to each rank, and received from each rank.
///
/// # Examples
/// ```
/// use transom_collective::all_to_all_v;
/// let plan = all_to_all_v(0, &[0, 3], &[0, 0]); // three elements to the other rank, none from it
/// // An empty message is sent too.
/// assert_eq!((plan.rounds[0].sends[0].1.len, plan.rounds[0].receives[0].1.len), (3, 0));
/// ```
pub fn all_to_all_v(rank: Rank, to_each: &[usize], of_each: &[usize]) -> Plan {
    let (given, got) = (blocks(to_each), blocks(of_each));
    let mut plan = Plan::default();
    plan.round(|round| round.copy(Span::given(given[rank].clone()), Span::data(got[rank].clone())));
    let given = |to: Rank| Span::given(given[to].clone());
    let got = |from: Rank| Span::data(got[from].clone());
    exchange(&mut plan, rank, to_each.len(), given, got, |_, _| {});
    plan
}

/// The layout of a block's elements in the program's memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Layout {
    /// Contiguous, at these elements.
    Together(Range<usize>),
    /// Scattered, with this number of elements.
    Apart(usize),
}

/// Plans an all-to-all of which some blocks are scattered.
///
/// The arguments give the layout of this rank's block for each rank among the `given` elements, and of each rank's
/// block among the `got` elements. Scattered blocks are packed and unpacked in scratch memory; contiguous blocks are
/// sent and received in place. Received blocks must not overlap.
///
/// # Examples
/// ```
/// use transom_collective::{Layout, Local, all_to_all_sections};
/// let together = [Layout::Together(0..2), Layout::Together(2..4)];
/// let apart = [Layout::Apart(2), Layout::Apart(2)];
/// let plan = all_to_all_sections(0, (4, &together), (9, &apart));
/// assert_eq!(plan.scratch, 2); // the other rank's block; its own is unpacked in place
/// assert!(matches!(plan.rounds[0].then[..], [Local::Unpack { block: 0, .. }]));
/// assert!(matches!(plan.rounds[1].then[..], [Local::Unpack { block: 1, .. }]));
/// ```
pub fn all_to_all_sections(
    rank: Rank,
    (given, to_each): (usize, &[Layout]),
    (got, of_each): (usize, &[Layout]),
) -> Plan {
    let (ranks, mut scratch) = (to_each.len(), 0);
    let mut packed = |len: usize| {
        scratch += len;
        Span::scratch(scratch - len..scratch)
    };
    let sent = |to: Rank| match (&to_each[to], &of_each[rank]) {
        (Layout::Together(range), _) => Span::given(range.clone()),
        // This rank's own block is packed directly into its destination.
        (Layout::Apart(_), Layout::Together(range)) if to == rank => Span::data(range.clone()),
        (Layout::Apart(len), _) => packed(*len),
    };
    let sent: Vec<Span> = (0..ranks).map(sent).collect();
    let came = |from: Rank| match &of_each[from] {
        Layout::Together(range) => Span::data(range.clone()),
        Layout::Apart(_) if from == rank => sent[rank],
        Layout::Apart(len) => packed(*len),
    };
    let came: Vec<Span> = (0..ranks).map(came).collect();
    let unpack = |round: &mut Round, from: Rank| {
        if let Layout::Apart(_) = of_each[from] {
            round.unpack(from, came[from], Span::data(0..got));
        }
    };
    let mut plan = Plan::with_scratch(scratch);
    plan.round(|round| {
        for (to, lie) in to_each.iter().enumerate() {
            if let Layout::Apart(_) = lie {
                round.pack(to, Span::given(0..given), sent[to]);
            }
        }
        if let (Layout::Together(_), Layout::Together(_)) = (&to_each[rank], &of_each[rank]) {
            round.copy(sent[rank], came[rank]);
        }
        unpack(round, rank);
    });
    exchange(&mut plan, rank, ranks, |to| sent[to], |from| came[from], unpack);
    plan
}

/// Adds the exchange of blocks with every other rank. `then` adds the local steps for a block received in the round.
fn exchange(
    plan: &mut Plan,
    rank: Rank,
    ranks: usize,
    given: impl Fn(Rank) -> Span,
    got: impl Fn(Rank) -> Span,
    then: impl Fn(&mut Round, Rank),
) {
    for together in steps(rank, ranks) {
        plan.round(|round| {
            for (to, from) in together {
                round.receive_any(from, got(from));
                round.send_any(to, given(to));
                then(round, from);
            }
        });
    }
}

/// Plans a reduce-scatter of blocks of different lengths, which all ranks know.
///
/// # Examples
/// ```
/// use transom_collective::reduce_scatter_v;
/// assert_eq!(reduce_scatter_v(1, &[4, 2, 1]).scratch, 6); // two elements of each rank
/// ```
pub fn reduce_scatter_v(rank: Rank, counts: &[usize]) -> Plan {
    let given = blocks(counts);
    let mut plan = Plan::default();
    fold_shares(&mut plan, rank, counts.len(), Span::data(0..counts[rank]), |of| Span::given(given[of].clone()));
    plan
}

/// Each rank sends every other rank its share, and folds all contributions to its own share into `result`.
fn fold_shares(plan: &mut Plan, rank: Rank, ranks: usize, result: Span, share: impl Fn(Rank) -> Span) {
    let len = result.len;
    let came = |from: Rank| Span::scratch(from * len..(from + 1) * len);
    plan.scratch = ranks * len;
    exchange(plan, rank, ranks, &share, came, |_, _| {});
    plan.round(|round| {
        // The result may overlap the rank's own share.
        round.copy(share(rank), came(rank));
        round.copy(came(0), result);
        (1..ranks).for_each(|from| round.fold(result, came(from), Order::After));
    });
}

/// Each rank folds one share of the elements and sends it to all others: 2 (n - 1) messages and 2 (n - 1) / n of the
/// elements sent by each rank.
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

/// Each rank folds one share of the elements and sends it to the root.
fn reduce(Shape { rank, ranks, len, .. }: Shape<'_>, root: Rank) -> Plan {
    let share = |of: Rank| Span::data(block(len, ranks, of));
    let mut plan = Plan::default();
    let mine = share(rank);
    // The root's data become the result; other ranks must keep theirs.
    let folded = if rank == root { mine } else { Span::scratch(ranks * mine.len..(ranks + 1) * mine.len) };
    fold_shares(&mut plan, rank, ranks, folded, share);
    plan.scratch = (ranks + 1) * mine.len;
    plan.round(|round| match rank == root {
        true => (0..ranks).filter(|from| *from != root).for_each(|from| round.receive(from, share(from))),
        false => round.send(root, folded),
    });
    plan
}
