//! An interpreter of the plans of all ranks, which also counts their cost.

use std::collections::{HashMap, VecDeque};
use transom_collective::{Local, Order, Plan, PlanBuffer, Rank, Span};

/// The memories of one rank.
#[derive(Clone, Debug)]
pub struct RankMemory<E> {
    pub given: Vec<E>,
    pub data: Vec<E>,
    scratch: Vec<E>,
    /// Positions of the elements of each scattered block: in the input and in the result.
    pub sections: [HashMap<Rank, Vec<usize>>; 2],
}

impl<E: Clone> RankMemory<E> {
    pub fn new(given: Vec<E>, data: Vec<E>) -> Self {
        RankMemory { given, data, scratch: Vec::new(), sections: Default::default() }
    }

    fn at(&mut self, place: PlanBuffer) -> &mut Vec<E> {
        match place {
            PlanBuffer::Given => &mut self.given,
            PlanBuffer::Data => &mut self.data,
            PlanBuffer::Scratch => &mut self.scratch,
        }
    }

    fn read(&mut self, span: Span) -> Vec<E> {
        self.at(span.place)[span.start..span.start + span.len].to_vec()
    }

    fn write(&mut self, span: Span, elements: Vec<E>) {
        assert!(span.place != PlanBuffer::Given, "the input is only read: {span:?}");
        assert_eq!(elements.len(), span.len, "the message has the expected length");
        self.at(span.place)[span.start..span.start + span.len].clone_from_slice(&elements);
    }
}

/// The cost of the busiest rank, and the length of the critical path.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Messages of the rank that sent most.
    pub messages: usize,
    /// Elements of the rank that sent most.
    pub elements: usize,
    /// Messages on the critical path.
    pub steps: usize,
}

/// A message's elements, and the number of messages on the longest path up to it.
type Message<E> = (Vec<E>, usize);

fn overlap(a: &Span, b: &Span) -> bool {
    a.place == b.place && a.start < b.start + b.len && b.start < a.start + a.len
}

/// Executes the plans in a random order that messages allow. `garbage` is the initial value of scratch and receive
/// memory.
pub fn run<E: Clone>(
    plans: &[Plan],
    memory: &mut [RankMemory<E>],
    garbage: &E,
    mut fold: impl FnMut(&E, &E) -> E,
    random: &mut fastrand::Rng,
) -> Cost {
    let ranks = plans.len();
    let mut under_way: HashMap<(Rank, Rank), VecDeque<Message<E>>> = HashMap::new();
    // Per rank: its round, whether its sends of the round are out, and the length of its longest path.
    let mut at = vec![(0, false, 0_usize); ranks];
    let mut sent = vec![(0, 0); ranks];
    for (memory, plan) in memory.iter_mut().zip(plans) {
        memory.scratch = vec![garbage.clone(); plan.scratch];
    }
    let mut turns: Vec<Rank> = (0..ranks).collect();
    loop {
        random.shuffle(&mut turns);
        let mut moved = false;
        for &rank in &turns {
            let (round, out, steps) = at[rank];
            let Some(doing) = plans[rank].rounds.get(round) else { continue };
            let memory = &mut memory[rank];
            if !out {
                for (nth, (from, into)) in doing.receives.iter().enumerate() {
                    assert!(*from < ranks && *from != rank, "rank {rank} receives of {from} of {ranks}");
                    let others = doing.receives[..nth].iter().chain(&doing.sends);
                    others.for_each(|(_, other)| assert!(!overlap(into, other), "{into:?} and {other:?} at once"));
                }
                for (to, span) in &doing.sends {
                    assert!(*to < ranks && *to != rank, "rank {rank} sends to {to} of {ranks}");
                    under_way.entry((rank, *to)).or_default().push_back((memory.read(*span), steps + 1));
                    sent[rank].0 += 1;
                    sent[rank].1 += span.len;
                }
                for (_, into) in &doing.receives {
                    memory.write(*into, vec![garbage.clone(); into.len]);
                }
                at[rank].1 = true;
                moved = true;
            }
            let mut needed: HashMap<Rank, usize> = HashMap::new();
            doing.receives.iter().for_each(|(from, _)| *needed.entry(*from).or_default() += 1);
            let there = |(from, needed): (&Rank, &usize)| {
                under_way.get(&(*from, rank)).is_some_and(|messages| messages.len() >= *needed)
            };
            if !needed.iter().all(there) {
                continue;
            }
            for (from, into) in &doing.receives {
                let (elements, steps) = under_way.get_mut(&(*from, rank)).unwrap().pop_front().unwrap();
                at[rank].2 = at[rank].2.max(steps);
                memory.write(*into, elements);
            }
            for local in &doing.then {
                match *local {
                    Local::Copy { from, to } => {
                        let elements = memory.read(from);
                        memory.write(to, elements);
                    }
                    Local::Fold { into, with, order } => {
                        assert!(!overlap(&into, &with), "{local:?}");
                        let (left, right) = (memory.read(into), memory.read(with));
                        let folded = left.iter().zip(&right).map(|(into, with)| match order {
                            Order::After => fold(into, with),
                            Order::Before => fold(with, into),
                        });
                        let folded = folded.collect();
                        memory.write(into, folded);
                    }
                    Local::Pack { block, from, to } => {
                        assert!(!overlap(&from, &to), "{local:?}");
                        let all = memory.read(from);
                        let packed = memory.sections[0][&block].iter().map(|at| all[*at].clone()).collect();
                        memory.write(to, packed);
                    }
                    Local::Unpack { block, from, to } => {
                        assert!(!overlap(&from, &to), "{local:?}");
                        let (packed, mut all) = (memory.read(from), memory.read(to));
                        let places = &memory.sections[1][&block];
                        assert_eq!(places.len(), packed.len());
                        places.iter().zip(packed).for_each(|(at, element)| all[*at] = element);
                        memory.write(to, all);
                    }
                }
            }
            at[rank].0 += 1;
            at[rank].1 = false;
            moved = true;
        }
        if !moved {
            break;
        }
    }
    for (rank, (round, ..)) in at.iter().enumerate() {
        assert_eq!(*round, plans[rank].rounds.len(), "rank {rank} waits for ever");
    }
    assert!(under_way.values().all(VecDeque::is_empty), "a message has no receiver");
    Cost {
        messages: sent.iter().map(|sent| sent.0).max().unwrap_or(0),
        elements: sent.iter().map(|sent| sent.1).max().unwrap_or(0),
        steps: at.iter().map(|at| at.2).max().unwrap_or(0),
    }
}
