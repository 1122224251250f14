//! Recursive doubling: in round k each rank exchanges its whole partial result with the rank that differs in bit k.
//! ceil(log2 n) rounds, and two more if the number of ranks is not a power of two: then each even rank of the first few
//! is represented by the odd rank after it. Folds follow the order of ranks, so operations need not commute, and all
//! ranks compute the same bits.

use crate::hosts::Rank;
use crate::plan::{Call, Order, Plan, Shape, Span};

pub(super) fn plan(call: Call, shape: Shape<'_>) -> Option<Plan> {
    match call {
        Call::AllReduce { .. } => Some(all_reduce(shape)),
        Call::Scan { exclusive } => Some(scan(shape, exclusive)),
        _ => None,
    }
}

/// Reduces the ranks to a power of two: the speakers. Each other rank is represented by its neighbour.
#[derive(Clone, Copy)]
pub(super) struct Speakers {
    /// Number of speakers, a power of two.
    pub speak: usize,
    /// Number of pairs, of the lowest ranks, that share a speaker.
    pairs: usize,
}

impl Speakers {
    pub fn of(ranks: usize) -> Speakers {
        let speak = 1 << ranks.ilog2();
        Speakers { speak, pairs: ranks - speak }
    }

    /// The rank's index among the speakers, if it is one.
    pub fn number(&self, rank: Rank) -> Option<usize> {
        match rank < 2 * self.pairs {
            true => (rank % 2 == 1).then_some(rank / 2),
            false => Some(rank - self.pairs),
        }
    }

    /// The speaker with that index.
    pub fn rank(&self, number: usize) -> Rank {
        if number < self.pairs { 2 * number + 1 } else { number + self.pairs }
    }

    /// The other rank of the pair, if the rank is in a pair.
    pub fn partner(&self, rank: Rank) -> Option<Rank> {
        (rank < 2 * self.pairs).then_some(rank ^ 1)
    }

    /// Adds the round in which a speaker folds in its partner's data. The partner is idle until
    /// [`send_result`](Self::send_result).
    pub fn fold_partner(&self, plan: &mut Plan, rank: Rank, all: Span, came: Span) {
        let Some(partner) = self.partner(rank) else { return };
        plan.round(|round| match self.number(rank) {
            None => round.send(partner, all),
            Some(_) => {
                round.receive(partner, came);
                round.fold(all, came, Order::Before);
            }
        });
    }

    /// Adds the round in which a speaker sends the result to its partner.
    pub fn send_result(&self, plan: &mut Plan, rank: Rank, all: Span) {
        let Some(partner) = self.partner(rank) else { return };
        plan.round(|round| match self.number(rank) {
            None => round.receive(partner, all),
            Some(_) => round.send(partner, all),
        });
    }
}

/// The operand order of a fold at `rank` with data received from `from`.
pub(super) fn order(rank: Rank, from: Rank) -> Order {
    if from > rank { Order::After } else { Order::Before }
}

fn all_reduce(Shape { rank, ranks, len, .. }: Shape<'_>) -> Plan {
    let speakers = Speakers::of(ranks);
    let (all, came) = (Span::data(0..len), Span::scratch(0..len));
    let mut plan = Plan::with_scratch(len);
    speakers.fold_partner(&mut plan, rank, all, came);
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
    speakers.send_result(&mut plan, rank, all);
    plan
}

/// Each rank keeps two folds: of all ranks whose data it has received, and, as its result, of those among them that
/// precede it.
fn scan(Shape { rank, ranks, len, .. }: Shape<'_>, exclusive: bool) -> Plan {
    let (result, all, came) = (Span::data(0..len), Span::scratch(0..len), Span::scratch(len..2 * len));
    let mut plan = Plan::with_scratch(2 * len);
    plan.round(|round| round.copy(result, all));
    // The first data received become the result of an exclusive scan.
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
