//! Binomial trees: ceil(log2 n) rounds. Places are ranks rotated so that the root is place 0. The subtree of place p
//! has the places from p to p + b, exclusive, where b is the lowest set bit of p.

use super::{turned, turned_back};
use crate::hosts::Rank;
use crate::plan::{Call, Order, Plan, Shape, Span};

pub(super) fn plan(call: Call, shape: Shape<'_>) -> Option<Plan> {
    match call {
        Call::Broadcast { root } => Some(broadcast(shape, root)),
        Call::Reduce { root, commutes } => Some(reduce(shape, root, commutes)),
        Call::Gather { root } => Some(gather(shape, root)),
        Call::Scatter { root } => Some(scatter(shape, root)),
        _ => None,
    }
}

/// Largest size of a place's subtree, in places; of the root's, n rounded up to a power of two.
fn reach(place: usize, ranks: usize) -> usize {
    match place {
        0 => ranks.next_power_of_two(),
        place => 1 << place.trailing_zeros(),
    }
}

/// The child places of a place, largest subtree first, each with the size of its subtree.
fn children(place: usize, ranks: usize) -> impl DoubleEndedIterator<Item = (usize, usize)> {
    let bits = reach(place, ranks).trailing_zeros();
    let child = move |bit: u32| (place + (1 << bit), (1 << bit).min(ranks.saturating_sub(place + (1 << bit))));
    (0..bits).rev().map(child).filter(|(_, places)| *places > 0)
}

/// The parent of a place; `None` for the root.
fn parent(place: usize) -> Option<usize> {
    (place > 0).then(|| place & (place - 1))
}

fn broadcast(Shape { rank, ranks, len, .. }: Shape<'_>, root: Rank) -> Plan {
    let mut plan = Plan::default();
    let place = turned(rank, root, ranks);
    let at = |place| turned_back(place, root, ranks);
    plan.round(|round| {
        if let Some(parent) = parent(place) {
            round.receive(at(parent), Span::data(0..len));
        }
    });
    plan.round(|round| children(place, ranks).for_each(|(child, _)| round.send(at(child), Span::data(0..len))));
    plan
}

/// With an operation that does not commute, rank 0 computes the result and sends it to the root.
fn reduce(Shape { rank, ranks, len, .. }: Shape<'_>, root: Rank, commutes: bool) -> Plan {
    let top = if commutes { root } else { 0 };
    let place = turned(rank, top, ranks);
    let at = |place| turned_back(place, top, ranks);
    let children: Vec<_> = children(place, ranks).rev().map(|(child, _)| child).collect();
    // A rank that is not the root must keep its data, so it folds into scratch memory.
    let mut plan = Plan::with_scratch(2 * len);
    let came = Span::scratch(0..len);
    let (result, copied) = match (rank == root && rank == top, children.is_empty()) {
        (false, false) => (Span::scratch(len..2 * len), true),
        _ => (Span::data(0..len), false),
    };
    if copied {
        plan.round(|round| round.copy(Span::data(0..len), result));
    }
    for child in children {
        plan.round(|round| {
            round.receive(at(child), came);
            round.fold(result, came, Order::After);
        });
    }
    plan.round(|round| {
        if let Some(parent) = parent(place) {
            round.send(at(parent), result);
        }
    });
    if top != root {
        plan.round(|round| match rank {
            0 => round.send(root, result),
            rank if rank == root => round.receive(0, Span::data(0..len)),
            _ => {}
        });
    }
    plan
}

fn gather(Shape { rank, ranks, len, .. }: Shape<'_>, root: Rank) -> Plan {
    let place = turned(rank, root, ranks);
    let at = |place| turned_back(place, root, ranks);
    let places = reach(place, ranks).min(ranks - place);
    // Root 0 receives blocks in rank order; any other root must rotate them.
    let direct = rank == root && root == 0;
    let mut plan = Plan::with_scratch(if direct || places == 1 { 0 } else { places * len });
    let blocks = |range: std::ops::Range<usize>| {
        let range = range.start * len..range.end * len;
        if direct { Span::data(range) } else { Span::scratch(range) }
    };
    let single = places == 1 && rank != root;
    plan.round(|round| {
        for (child, of_child) in children(place, ranks) {
            round.receive(at(child), blocks(child - place..child - place + of_child));
        }
        if !(single || rank == root && ranks == 1) {
            round.copy(Span::given(0..len), blocks(0..1));
        }
    });
    if rank != root {
        let parent = at(parent(place).expect("not the root"));
        plan.round(|round| round.send(parent, if single { Span::given(0..len) } else { blocks(0..places) }));
    } else if ranks == 1 {
        plan.round(|round| round.copy(Span::given(0..len), Span::data(0..len)));
    } else if !direct {
        plan.round(|round| {
            turn_back(len, root, ranks).for_each(|(turned, data)| round.copy(Span::scratch(turned), Span::data(data)))
        });
    }
    plan
}

/// The two contiguous pieces of a rotation: each range of blocks by place, with the range of the same blocks by rank.
fn turn_back(
    len: usize,
    root: Rank,
    ranks: usize,
) -> impl Iterator<Item = (std::ops::Range<usize>, std::ops::Range<usize>)> {
    let (first, rest) = ((ranks - root) * len, root * len);
    [(0..first, rest..rest + first), (first..first + rest, 0..rest)].into_iter()
}

fn scatter(Shape { rank, ranks, len, .. }: Shape<'_>, root: Rank) -> Plan {
    let place = turned(rank, root, ranks);
    let at = |place| turned_back(place, root, ranks);
    let places = reach(place, ranks).min(ranks - place);
    let direct = rank == root && root == 0;
    let single = places == 1 && rank != root;
    let mut plan = Plan::with_scratch(if direct || single || ranks == 1 { 0 } else { places * len });
    let blocks = |range: std::ops::Range<usize>| {
        let range = range.start * len..range.end * len;
        if direct || ranks == 1 { Span::given(range) } else { Span::scratch(range) }
    };
    plan.round(|round| match parent(place) {
        Some(parent) => round.receive(at(parent), if single { Span::data(0..len) } else { blocks(0..places) }),
        None if !direct && ranks > 1 => {
            turn_back(len, root, ranks)
                .for_each(|(turned, given)| round.copy(Span::given(given), Span::scratch(turned)));
        }
        None => {}
    });
    plan.round(|round| {
        for (child, of_child) in children(place, ranks) {
            round.send(at(child), blocks(child - place..child - place + of_child));
        }
        if !single {
            round.copy(blocks(0..1), Span::data(0..len));
        }
    });
    plan
}
