//! Recursive doubling: in round k each rank exchanges all it has with the one whose number differs in bit k. ceil(log2 n) rounds, and two
//! where the number of ranks is no power of two: then of the first ranks each even one lets the odd one behind it speak for both.
//! Folds are in the order of ranks, so operations need not commute, and all ranks have the same bits.

use crate::hosts::Rank;
use crate::plan::{Call, Order, Plan, Shape, Span};

pub(super) fn plan(call: Call, shape: Shape<'_>) -> Option<Plan> {
    match call {
        Call::AllReduce { .. } => Some(all_reduce(shape)),
        Call::Scan { exclusive } => Some(scan(shape, exclusive)),
        _ => None,
    }
}

/// Ranks of a power of two, and those whose neighbours speak for them.
#[derive(Clone, Copy)]
pub(super) struct Speakers {
    /// How many speak.
    pub speak: usize,
    /// So many pairs of the first ranks have one speaker.
    pairs: usize,
}

impl Speakers {
    pub fn of(ranks: usize) -> Speakers {
        let speak = 1 << ranks.ilog2();
        Speakers { speak, pairs: ranks - speak }
    }

    /// The rank's number among those that speak, if it does.
    pub fn number(&self, rank: Rank) -> Option<usize> {
        match rank < 2 * self.pairs {
            true => (rank % 2 == 1).then_some(rank / 2),
            false => Some(rank - self.pairs),
        }
    }

    /// Who has that number.
    pub fn rank(&self, number: usize) -> Rank {
        if number < self.pairs { 2 * number + 1 } else { number + self.pairs }
    }

    /// The other of the rank's pair, if it is in one.
    pub fn partner(&self, rank: Rank) -> Option<Rank> {
        (rank < 2 * self.pairs).then_some(rank ^ 1)
    }

    /// Who speaks folds in what the other has; the other has nothing to do until [`tell`](Self::tell).
    pub fn hear(&self, plan: &mut Plan, rank: Rank, all: Span, came: Span) {
        let Some(partner) = self.partner(rank) else { return };
        plan.round(|round| match self.number(rank) {
            None => round.send(partner, all),
            Some(_) => {
                round.receive(partner, came);
                round.fold(all, came, Order::Before);
            }
        });
    }

    /// Who speaks tells the other of the result.
    pub fn tell(&self, plan: &mut Plan, rank: Rank, all: Span) {
        let Some(partner) = self.partner(rank) else { return };
        plan.round(|round| match self.number(rank) {
            None => round.receive(partner, all),
            Some(_) => round.send(partner, all),
        });
    }
}

/// Where what came of `from` belongs in a fold at `rank`.
pub(super) fn order(rank: Rank, from: Rank) -> Order {
    if from > rank { Order::After } else { Order::Before }
}

fn all_reduce(Shape { rank, ranks, len, .. }: Shape<'_>) -> Plan {
    let speakers = Speakers::of(ranks);
    let (all, came) = (Span::data(0..len), Span::scratch(0..len));
    let mut plan = Plan::with_scratch(len);
    speakers.hear(&mut plan, rank, all, came);
    if let Some(number) = speakers.number(rank) {
        for bit in (0..speakers.speak.ilog2()).map(|k| 1 << k) {
            let other = speakers.rank(number ^ bit);
            plan.round(|round| {
                round.receive(other, came);
                round.send(other, all);
                round.fold(all, came, order(rank, other));
            });
        }
    }
    speakers.tell(&mut plan, rank, all);
    plan
}

/// Each rank keeps the fold of the ranks that it has heard of, and, as its result, of those of them that are before it.
fn scan(Shape { rank, ranks, len, .. }: Shape<'_>, exclusive: bool) -> Plan {
    let (result, all, came) = (Span::data(0..len), Span::scratch(0..len), Span::scratch(len..2 * len));
    let mut plan = Plan::with_scratch(2 * len);
    plan.round(|round| round.copy(result, all));
    // The first that is heard of is the result of an exclusive one.
    let mut heard = !exclusive;
    for bit in (0..).map(|k| 1 << k).take_while(|bit| *bit < ranks) {
        let other = rank ^ bit;
        if other >= ranks {
            continue;
        }
        plan.round(|round| {
            round.receive(other, came);
            round.send(other, all);
            if other < rank {
                match heard {
                    true => round.fold(result, came, Order::Before),
                    false => round.copy(came, result),
                }
                heard = true;
            }
            round.fold(all, came, order(rank, other));
        });
    }
    plan
}
