//! Every algorithm of every collective for 1 to 17 ranks, compared with the definition of the collective.

use crate::interpret::{Cost, RankMemory, run};
use std::ops::Range;
use transom_collective::{
    Algorithm, Call, Grid, Hosts, Layout, Plan, Shape, all_gather_v, all_to_all_sections, all_to_all_v, gather_v,
    neighbours, reduce_scatter_v, scatter_v,
};

/// An element: its rank and index, or the expression of folds that produced it.
type Element = String;

fn element(rank: usize, index: usize) -> Element {
    format!("{rank}.{index}")
}

fn elements(rank: usize, indices: Range<usize>) -> Vec<Element> {
    indices.map(|index| element(rank, index)).collect()
}

/// Folds in the order in which the operands stand, which determines the bits of a floating-point result.
fn fold(left: &Element, right: &Element) -> Element {
    assert!(!left.is_empty() && !right.is_empty(), "garbage is folded: {left} {right}");
    format!("({left} {right})")
}

/// The fold of an operation that commutes: the order of the operands is lost.
fn fold_commuting(left: &Element, right: &Element) -> Element {
    if left <= right { fold(left, right) } else { fold(right, left) }
}

/// The folded elements, from left to right.
fn folded(element: &Element) -> Vec<String> {
    element.split(['(', ')', ' ']).filter(|part| !part.is_empty()).map(String::from).collect()
}

/// The element at that index of each rank in `ranks`.
fn of(ranks: Range<usize>, index: usize) -> Vec<String> {
    ranks.map(|rank| element(rank, index)).collect()
}

fn sorted(mut parts: Vec<String>) -> Vec<String> {
    parts.sort();
    parts
}

struct Case<'h> {
    algorithm: Algorithm,
    call: Call,
    ranks: usize,
    len: usize,
    hosts: Option<&'h Hosts>,
}

impl Case<'_> {
    /// Bytes per element. With 4096 bytes few elements reach the lengths at which leaders change their algorithm.
    fn element(&self) -> usize {
        if self.hosts.is_some() && self.call != Call::AllToAll { 4096 } else { 8 }
    }

    fn plans(&self) -> Vec<Plan> {
        let (ranks, len, hosts) = (self.ranks, self.len, self.hosts);
        let shape = |rank| Shape { rank, ranks, len, element: self.element(), hosts };
        (0..self.ranks).map(|rank| self.algorithm.plan(self.call, shape(rank))).collect()
    }

    fn run(&self, random: &mut fastrand::Rng) -> (Vec<RankMemory<Element>>, Cost) {
        let (n, len) = (self.ranks, self.len);
        let none = |count: usize| vec![String::new(); count];
        let memory = |rank: usize| match self.call {
            Call::Barrier => RankMemory::new(none(0), none(0)),
            Call::Broadcast { root } if rank != root => RankMemory::new(none(0), none(len)),
            Call::Broadcast { .. } | Call::Reduce { .. } | Call::AllReduce { .. } | Call::Scan { .. } => {
                RankMemory::new(none(0), elements(rank, 0..len))
            }
            Call::ReduceScatter => RankMemory::new(elements(rank, 0..n * len), none(len)),
            Call::Gather { root } => {
                RankMemory::new(elements(rank, 0..len), none(if rank == root { n * len } else { 0 }))
            }
            Call::Scatter { root } => {
                RankMemory::new(if rank == root { elements(rank, 0..n * len) } else { none(0) }, none(len))
            }
            Call::AllGather => RankMemory::new(elements(rank, 0..len), none(n * len)),
            Call::AllToAll => RankMemory::new(elements(rank, 0..n * len), none(n * len)),
        };
        let mut all: Vec<_> = (0..n).map(memory).collect();
        let commutes = matches!(self.call, Call::AllReduce { commutes: true } | Call::Reduce { commutes: true, .. });
        let fold = if commutes { fold_commuting } else { fold };
        let cost = run(&self.plans(), &mut all, &String::new(), fold, random);
        (all, cost)
    }

    fn check(&self, all: &[RankMemory<Element>]) {
        let (n, len) = (self.ranks, self.len);
        for (rank, memory) in all.iter().enumerate() {
            let data = &memory.data;
            let parts = |index: usize| folded(&data[index]);
            match self.call {
                Call::Barrier => {}
                Call::Broadcast { root } => assert_eq!(*data, elements(root, 0..len)),
                Call::Reduce { root, .. } if rank != root => assert_eq!(*data, elements(rank, 0..len)),
                Call::Reduce { commutes, .. } | Call::AllReduce { commutes } => {
                    for index in 0..len {
                        let (got, all) = (parts(index), of(0..n, index));
                        if commutes { assert_eq!(sorted(got), sorted(all)) } else { assert_eq!(got, all) }
                    }
                }
                Call::ReduceScatter => {
                    (0..len).for_each(|index| assert_eq!(parts(index), of(0..n, rank * len + index)));
                }
                Call::Scan { exclusive: false } => {
                    (0..len).for_each(|index| assert_eq!(parts(index), of(0..rank + 1, index)));
                }
                Call::Scan { exclusive: true } if rank == 0 => assert_eq!(*data, elements(0, 0..len)),
                Call::Scan { exclusive: true } => {
                    (0..len).for_each(|index| assert_eq!(parts(index), of(0..rank, index)));
                }
                Call::Gather { root } if rank != root => assert!(data.is_empty()),
                Call::Gather { .. } | Call::AllGather => {
                    let want: Vec<_> = (0..n).flat_map(|from| elements(from, 0..len)).collect();
                    assert_eq!(*data, want);
                }
                Call::Scatter { root } => assert_eq!(*data, elements(root, rank * len..(rank + 1) * len)),
                Call::AllToAll => {
                    let want: Vec<_> = (0..n).flat_map(|from| elements(from, rank * len..(rank + 1) * len)).collect();
                    assert_eq!(*data, want);
                }
            }
        }
        if let Call::AllReduce { .. } = self.call {
            assert!(all.iter().all(|memory| memory.data == all[0].data), "all ranks have the same bits");
        }
    }
}

fn calls(ranks: usize) -> Vec<Call> {
    let mut calls = vec![
        Call::Barrier,
        Call::AllReduce { commutes: false },
        Call::AllReduce { commutes: true },
        Call::ReduceScatter,
        Call::Scan { exclusive: false },
        Call::Scan { exclusive: true },
        Call::AllGather,
        Call::AllToAll,
    ];
    for root in 0..ranks {
        calls.extend([
            Call::Broadcast { root },
            Call::Reduce { root, commutes: false },
            Call::Reduce { root, commutes: true },
            Call::Gather { root },
            Call::Scatter { root },
        ]);
    }
    calls
}

#[test]
fn every_plan_computes_its_collective() {
    let mut random = fastrand::Rng::with_seed(1);
    let mut done = std::collections::BTreeSet::new();
    for ranks in 1..=17 {
        for call in calls(ranks) {
            for algorithm in Algorithm::all() {
                for len in [0, 1, 2, ranks - 1, 3 * ranks + 1] {
                    if !algorithm.can(call, Shape { rank: 0, ranks, len, element: 8, hosts: None }) {
                        continue;
                    }
                    let case = Case { algorithm, call, ranks, len, hosts: None };
                    let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                        let (all, _) = case.run(&mut random);
                        case.check(&all);
                    }));
                    assert!(checked.is_ok(), "{algorithm:?} of {call:?}, {ranks} ranks, {len} elements");
                    done.insert((call.name(), algorithm.name()));
                }
            }
        }
    }
    assert_eq!(done.len(), 21, "{done:?}");
}

/// Algorithms that can be named between leaders.
const BETWEEN: [&str; 8] = [
    "leaders:binomial",
    "leaders:bruck",
    "leaders:direct",
    "leaders:dissemination",
    "leaders:pairwise",
    "leaders:rabenseifner",
    "leaders:recursive_doubling",
    "leaders:ring",
];

/// Hosts of random ranks, of cyclic ranks, and of consecutive ranks.
#[test]
fn every_plan_of_leaders_computes_its_collective() {
    let mut random = fastrand::Rng::with_seed(4);
    let named = |name: &str| Algorithm::named(name).unwrap();
    let mut done = std::collections::BTreeSet::new();
    for ranks in 1..=17 {
        for _ in 0..6 {
            let hosts = Hosts::of(&match random.usize(0..3) {
                0 => (0..ranks).map(|_| random.usize(0..4)).collect::<Vec<_>>(),
                1 => (0..ranks).map(|rank| rank % 3).collect(),
                _ => (0..ranks).map(|rank| rank / 4).collect(),
            });
            let len = [0, 1, 2, 7, 40][random.usize(0..5)];
            let by = BETWEEN[random.usize(0..BETWEEN.len())];
            for (call, leaders) in
                calls(ranks).into_iter().flat_map(|call| [(call, named("leaders")), (call, named(by))])
            {
                let case = Case { algorithm: leaders, call, ranks, len, hosts: Some(&hosts) };
                let shape = Shape { rank: 0, ranks, len, element: 8, hosts: Some(&hosts) };
                if leaders.can(call, shape) {
                    done.insert(call.name());
                    let (all, _) = case.run(&mut random);
                    case.check(&all);
                }
            }
        }
    }
    let calls = [
        "all_gather",
        "all_reduce",
        "all_to_all",
        "barrier",
        "broadcast",
        "gather",
        "reduce",
        "reduce_scatter",
        "scan",
        "scatter",
    ];
    assert_eq!(done.into_iter().collect::<Vec<_>>(), calls);
}

/// Messages and elements that all ranks together send to other hosts equal those of one rank per host.
#[test]
fn traffic_between_leaders_matches_formulas() {
    let commutes = true;
    // Formulas for h hosts, k ranks per host, and m elements.
    type Between = fn(usize, usize, usize) -> (usize, usize);
    let rows: [(Call, usize, Between); 11] = [
        (Call::Broadcast { root: 5 }, 1, |h, _, m| (h - 1, (h - 1) * m)),
        (Call::Reduce { root: 5, commutes }, 1, |h, _, m| (h - 1, (h - 1) * m)),
        // Recursive doubling.
        (Call::AllReduce { commutes: false }, 1, |h, _, m| (h * log(h), h * log(h) * m)),
        // Reduce-scatter and all-gather of shares, pairwise.
        (Call::AllReduce { commutes }, 4096, |h, _, m| (2 * h * (h - 1), 2 * (h - 1) * m)),
        (Call::Gather { root: 5 }, 1, |h, k, m| (h - 1, (h - 1) * k * m)),
        (Call::Scatter { root: 5 }, 1, |h, k, m| (h - 1, (h - 1) * k * m)),
        (Call::AllGather, 1, |h, k, m| (h * (h - 1), h * (h - 1) * k * m)),
        (Call::AllGather, 100, |h, k, m| (h * (h - 1), h * (h - 1) * k * m)),
        (Call::ReduceScatter, 10, |h, k, m| (h * (h - 1), h * (h - 1) * k * m)),
        // One message for all blocks from one host to another.
        (Call::AllToAll, 100, |h, k, m| (h * (h - 1), h * (h - 1) * k * k * m)),
        (Call::Scan { exclusive: false }, 10, |h, _, m| (h * log(h), h * log(h) * m)),
    ];
    // An algorithm that the name chooses precedes the table if it supports the call.
    let long = 1 << 20;
    let said: [(&str, Call, usize, Between); 4] = [
        ("leaders:recursive_doubling", Call::AllReduce { commutes }, 4096, |h, _, m| (h * log(h), h * log(h) * m)),
        ("leaders:binomial", Call::Broadcast { root: 5 }, long, |h, _, m| (h - 1, (h - 1) * m)),
        ("leaders:binomial", Call::AllReduce { commutes }, 4096, |h, _, m| (2 * h * (h - 1), 2 * (h - 1) * m)),
        ("leaders:ring", Call::AllGather, 1, |h, k, m| (h * (h - 1), h * (h - 1) * k * m)),
    ];
    for (name, call, len, formula) in
        rows.map(|(call, len, formula)| ("leaders", call, len, formula)).into_iter().chain(said)
    {
        for (h, k) in [(2, 32), (4, 8), (8, 3)] {
            let ranks = h * k;
            let hosts = Hosts::of(&(0..ranks).map(|rank| rank / k).collect::<Vec<_>>());
            let (mut messages, mut elements) = (0, 0);
            for rank in 0..ranks {
                let shape = Shape { rank, ranks, len, element: 8, hosts: Some(&hosts) };
                let plan = Algorithm::named(name).unwrap().plan(call, shape);
                let sends = plan.rounds.iter().flat_map(|round| &round.sends);
                for (to, span) in sends.filter(|(to, _)| to / k != rank / k) {
                    (messages, elements) = (messages + 1, elements + span.len);
                    assert!(*to % k == 0 || *to == 5, "only leaders send between hosts");
                }
            }
            assert_eq!(
                (messages, elements),
                formula(h, k, len),
                "{name}: {call:?} of {len} elements, {h} hosts of {k}"
            );
        }
    }
}

fn log(ranks: usize) -> usize {
    ranks.next_power_of_two().ilog2() as usize
}

/// An algorithm, a call, and its cost as a function of ranks and elements.
type Row = (&'static str, Call, fn(usize, usize) -> Cost);

/// Upper bounds: messages and elements of the rank that sends most, and messages on the critical path. Textbook
/// formulas for `len` elements (or blocks of `len`) and a power of two of ranks.
#[test]
fn plan_costs_stay_within_textbook_formulas() {
    let mut random = fastrand::Rng::with_seed(2);
    let commutes = true;
    let rows: [Row; 14] = [
        ("dissemination", Call::Barrier, |n, _| Cost { messages: log(n), elements: 0, steps: log(n) }),
        ("binomial", Call::Broadcast { root: 0 }, |n, m| Cost {
            messages: log(n),
            elements: m * log(n),
            steps: log(n),
        }),
        ("binomial", Call::Reduce { root: 0, commutes }, |n, m| Cost { messages: 1, elements: m, steps: log(n) }),
        ("binomial", Call::Gather { root: 0 }, |n, m| Cost { messages: 1, elements: m * n / 2, steps: log(n) }),
        ("binomial", Call::Scatter { root: 0 }, |n, m| Cost { messages: log(n), elements: m * (n - 1), steps: log(n) }),
        ("recursive_doubling", Call::AllReduce { commutes }, |n, m| Cost {
            messages: log(n),
            elements: m * log(n),
            steps: log(n),
        }),
        ("recursive_doubling", Call::Scan { exclusive: true }, |n, m| Cost {
            messages: log(n),
            elements: m * log(n),
            steps: log(n),
        }),
        ("rabenseifner", Call::AllReduce { commutes }, |n, m| Cost {
            messages: 2 * log(n),
            elements: 2 * (m - m / n),
            steps: 2 * log(n),
        }),
        ("ring", Call::AllReduce { commutes }, |n, m| Cost {
            messages: 2 * (n - 1),
            elements: 2 * (m - m / n),
            steps: 2 * (n - 1),
        }),
        ("ring", Call::AllGather, |n, m| Cost { messages: n - 1, elements: m * (n - 1), steps: n - 1 }),
        ("bruck", Call::AllGather, |n, m| Cost { messages: log(n), elements: m * (n - 1), steps: log(n) }),
        ("bruck", Call::AllToAll, |n, m| Cost { messages: log(n), elements: m * n / 2 * log(n), steps: log(n) }),
        ("pairwise", Call::AllToAll, |n, m| Cost {
            messages: n - 1,
            elements: m * (n - 1),
            steps: (n - 1).div_ceil(8),
        }),
        ("pairwise", Call::AllReduce { commutes: false }, |n, m| Cost {
            messages: 2 * (n - 1),
            elements: 2 * (m - m / n),
            steps: 2 * (n - 1).div_ceil(8),
        }),
    ];
    for (name, call, formula) in rows {
        for ranks in [2, 4, 16, 64, 256, 1024] {
            // Plans of blocks have as many elements as pairs of ranks.
            let many = matches!(name, "pairwise" | "bruck") || (name, call.name()) == ("ring", "all_gather");
            if ranks > if many { 64 } else { 1024 } {
                continue;
            }
            let len = if many { 64 } else { 1024 };
            let algorithm = Algorithm::named(name).unwrap();
            let shape = |rank| Shape { rank, ranks, len, element: 1, hosts: None };
            let plans: Vec<_> = (0..ranks).map(|rank| algorithm.plan(call, shape(rank))).collect();
            let (given, data) = match call {
                Call::AllToAll => (ranks * len, ranks * len),
                Call::AllGather => (len, ranks * len),
                Call::Gather { .. } => (len, ranks * len),
                Call::Scatter { .. } => (ranks * len, len),
                _ => (0, len),
            };
            let mut memory: Vec<_> = plans.iter().map(|_| RankMemory::new(vec![(); given], vec![(); data])).collect();
            let cost = run(&plans, &mut memory, &(), |(), ()| (), &mut random);
            assert_eq!(cost, formula(ranks, len), "{name} of {call:?}, {ranks} ranks, {len} elements");
        }
    }
}

#[test]
fn blocks_of_different_lengths_are_exchanged() {
    let mut random = fastrand::Rng::with_seed(3);
    for ranks in 1..=11 {
        let counts: Vec<usize> = (0..ranks).map(|_| random.usize(0..4)).collect();
        let total: usize = counts.iter().sum();
        let starts: Vec<usize> = (0..ranks).map(|rank| counts[..rank].iter().sum()).collect();
        let all: Vec<_> = (0..ranks).flat_map(|rank| elements(rank, 0..counts[rank])).collect();
        let none = |count: usize| vec![String::new(); count];
        let mut carry = |plans: Vec<Plan>, mut memory: Vec<RankMemory<Element>>| {
            run(&plans, &mut memory, &String::new(), fold, &mut random);
            memory
        };

        let plans = (0..ranks).map(|rank| all_gather_v(rank, &counts)).collect();
        let memory = (0..ranks).map(|rank| RankMemory::new(elements(rank, 0..counts[rank]), none(total))).collect();
        assert!(carry(plans, memory).iter().all(|memory| memory.data == all));

        let root = ranks / 2;
        let plans = (0..ranks).map(|rank| gather_v(rank, root, &counts)).collect();
        let room = |rank| none(if rank == root { total } else { 0 });
        let memory = (0..ranks).map(|rank| RankMemory::new(elements(rank, 0..counts[rank]), room(rank))).collect();
        assert_eq!(carry(plans, memory)[root].data, all);

        let plans = (0..ranks).map(|rank| scatter_v(rank, root, &counts)).collect();
        let given = |rank| if rank == root { elements(root, 0..total) } else { none(0) };
        let memory = (0..ranks).map(|rank| RankMemory::new(given(rank), none(counts[rank]))).collect();
        for (rank, memory) in carry(plans, memory).iter().enumerate() {
            assert_eq!(memory.data, elements(root, starts[rank]..starts[rank] + counts[rank]));
        }

        let plans = (0..ranks).map(|rank| reduce_scatter_v(rank, &counts)).collect();
        let memory = (0..ranks).map(|rank| RankMemory::new(elements(rank, 0..total), none(counts[rank]))).collect();
        for (rank, memory) in carry(plans, memory).iter().enumerate() {
            for (index, element) in memory.data.iter().enumerate() {
                assert_eq!(folded(element), of(0..ranks, starts[rank] + index));
            }
        }

        // Each rank sends to each higher rank as many elements as their numbers differ.
        let count = |from: usize, to: usize| to.saturating_sub(from);
        let to_each = |rank: usize| (0..ranks).map(|to| count(rank, to)).collect::<Vec<_>>();
        let of_each = |rank: usize| (0..ranks).map(|from| count(from, rank)).collect::<Vec<_>>();
        let plans = (0..ranks).map(|rank| all_to_all_v(rank, &to_each(rank), &of_each(rank))).collect();
        let memory = |rank: usize| {
            let given = (0..ranks).flat_map(|to| (0..count(rank, to)).map(move |k| format!("{rank}>{to}.{k}")));
            RankMemory::new(given.collect(), none(of_each(rank).iter().sum()))
        };
        for (rank, memory) in carry(plans, (0..ranks).map(memory).collect()).iter().enumerate() {
            let want = (0..ranks).flat_map(|from| (0..count(from, rank)).map(move |k| format!("{from}>{rank}.{k}")));
            assert_eq!(memory.data, want.collect::<Vec<_>>());
        }
    }
}

/// Blocks of three elements. Some are listed backwards, hence scattered: at the sender, at the receiver, or at both.
#[test]
fn sections_arrive_scattered_or_contiguous() {
    const LEN: usize = 3;
    for ranks in [1, 2, 3, 8, 9, 17] {
        let all = ranks * LEN;
        for (given_apart, got_apart) in [(1, 1), (1, 2), (2, 1), (2, 3), (3, 2), (1, 100), (100, 1), (100, 100)] {
            // Positions in reverse order.
            let places = |rank: usize| (LEN * rank..LEN * (rank + 1)).rev().collect::<Vec<_>>();
            let is_apart = |me: usize, rank: usize, every: usize| (me + rank).is_multiple_of(every);
            let lies = |me: usize, every: usize| {
                let lie = |rank| match is_apart(me, rank, every) {
                    true => Layout::Apart(LEN),
                    false => Layout::Together(LEN * rank..LEN * (rank + 1)),
                };
                (0..ranks).map(lie).collect::<Vec<_>>()
            };
            let plan = |rank| all_to_all_sections(rank, (all, &lies(rank, given_apart)), (all, &lies(rank, got_apart)));
            let plans: Vec<_> = (0..ranks).map(plan).collect();
            let memory = |rank: usize| {
                let given = (0..all).map(|k| format!("{rank}>{}.{}", k / LEN, k % LEN)).collect();
                let mut memory = RankMemory::new(given, vec![String::new(); all]);
                for (side, every) in [given_apart, got_apart].into_iter().enumerate() {
                    let apart = (0..ranks).filter(|of| is_apart(rank, *of, every));
                    memory.sections[side] = apart.map(|of| (of, places(of))).collect();
                }
                memory
            };
            let (mut memory, mut random) = ((0..ranks).map(memory).collect::<Vec<_>>(), fastrand::Rng::with_seed(7));
            let garbage = "garbage".to_string();
            run(&plans, &mut memory, &garbage, |_, _| unreachable!("an all-to-all does not fold"), &mut random);
            for (rank, memory) in memory.iter().enumerate() {
                for (k, element) in memory.data.iter().enumerate() {
                    let (from, nth) = (k / LEN, k % LEN);
                    let turned = is_apart(from, rank, given_apart) != is_apart(rank, from, got_apart);
                    let nth = if turned { LEN - 1 - nth } else { nth };
                    assert_eq!(*element, format!("{from}>{rank}.{nth}"), "{ranks} ranks, {given_apart}, {got_apart}");
                }
            }
        }
    }
}

/// Each rank labels its blocks by direction: one step along a dimension, in grid coordinates.
fn neighbours_exchange<const D: usize>(shape: [usize; D], around: [bool; D]) {
    let grid = Grid::new(shape, around).unwrap();
    let (ranks, len, mut random) = (grid.ranks(), 2, fastrand::Rng::with_seed(9));
    let name = |rank: usize, d: usize, side: usize, k: usize| format!("{rank}:{d}{}{k}", ["-", "+"][side]);
    let slots = || (0..D).flat_map(|d| [(d, 0), (d, 1)]);
    let given = |rank: usize| slots().flat_map(|(d, side)| (0..len).map(move |k| name(rank, d, side, k))).collect();
    let mut all: Vec<_> =
        (0..ranks).map(|rank| RankMemory::new(given(rank), vec!["none".into(); 2 * D * len])).collect();
    let plans: Vec<_> = (0..ranks).map(|rank| neighbours(rank, &grid, len)).collect();
    run(&plans, &mut all, &String::new(), fold, &mut random);
    for (rank, memory) in all.iter().enumerate() {
        let at = grid.coordinates(rank).unwrap();
        let want: Vec<String> = slots()
            .flat_map(|(d, side)| {
                // Signed arithmetic, as an independent model.
                let (here, length) = (at[d] as isize, shape[d] as isize);
                let there = here + [-1, 1][side];
                let inside = (0..length).contains(&there) || around[d];
                let mut from = at;
                from[d] = there.rem_euclid(length) as usize;
                let from = from.iter().zip(shape).fold(0, |rank, (at, len)| rank * len + at);
                (0..len).map(move |k| if inside { name(from, d, 1 - side, k) } else { "none".into() })
            })
            .collect();
        assert_eq!(memory.data, want, "rank {rank} of {grid:?}");
    }
}

#[test]
fn grid_neighbours_exchange_their_blocks() {
    for length in 1..=5 {
        for around in [false, true] {
            neighbours_exchange([length], [around]);
            for (other, too) in [(1, true), (2, true), (2, false), (3, true), (4, false)] {
                neighbours_exchange([length, other], [around, too]);
            }
            neighbours_exchange([2, length, 2], [true, around, true]);
            neighbours_exchange([1, length, 3], [true, around, false]);
        }
    }
}

#[test]
fn grid_coordinates_are_a_bijection_of_ranks() {
    assert_eq!(
        (Grid::new([0, 3], [false; 2]), Grid::new([usize::MAX, 2], [true; 2]), Grid::<2>::of(0, [true; 2])),
        (None, None, None)
    );
    for ranks in 1..200 {
        let grid = Grid::<3>::of(ranks, [false; 3]).unwrap();
        let [a, b, c] = grid.shape();
        assert!(a * b * c == ranks && a >= b && b >= c, "{grid:?}");
        for rank in 0..ranks {
            assert_eq!(grid.rank(grid.coordinates(rank).unwrap()), Some(rank));
        }
        assert_eq!((grid.coordinates(ranks), grid.neighbours(ranks)), (None, [[None; 2]; 3]));
    }
    assert_eq!(Grid::of(36, [true; 2]).unwrap().shape(), [6, 6]);
    assert_eq!(Grid::of(64, [true; 3]).unwrap().shape(), [4, 4, 4]);
    assert_eq!(Grid::new([2, 3], [false; 2]).unwrap().rank([1, 3]), None);
}
