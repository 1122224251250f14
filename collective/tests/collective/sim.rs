//! Plans on the channel simulator with the production engines: random conditions, and a thousand ranks. Each message of
//! a plan is one channel message, and no other message is sent.

use crate::simulated::{Part, check};
use transom_channel::Config;
use transom_channel::sim::{Conditions, Sim};
use transom_collective::{Algorithm, Call, Hosts, Shape};

/// The cost of a collective, as counted by the engines.
#[derive(Debug, PartialEq, Eq)]
struct Took {
    messages: usize,
    bytes: usize,
    /// Messages between different hosts.
    between: usize,
    /// Virtual time in nanoseconds.
    ns: u64,
}

/// Runs a collective to its end and checks its result against its definition.
fn run(
    seed: u64,
    conditions: Conditions,
    algorithm: Algorithm,
    call: Call,
    (ranks, hosts): (usize, Option<&Hosts>),
    len: usize,
) -> Took {
    let mut sim = Sim::new(seed, ranks as u32, conditions, &Config::default()).unwrap();
    let part = |rank: usize| Part::new(algorithm, call, Shape { rank, ranks, len, element: 8, hosts });
    let mut parts: Vec<_> = (0..ranks).map(part).collect();
    let sends: Vec<_> = (0..ranks)
        .flat_map(|from| {
            parts[from].plan().rounds.iter().flat_map(move |round| round.sends.iter().map(move |(to, _)| (from, *to)))
        })
        .collect();
    let apart = |(from, to): &&(usize, usize)| hosts.is_some_and(|hosts| hosts.host(*from) != hosts.host(*to));
    let between = sends.iter().filter(apart).count();
    for (rank, part) in parts.iter_mut().enumerate() {
        part.progress(&mut sim);
        sim.wake(rank as u32, 0);
    }
    while let Some(rank) = sim.step() {
        if parts[rank as usize].progress(&mut sim) {
            sim.wake(rank, 0);
        }
    }
    assert!(parts.iter().all(Part::is_done), "a rank waits for ever");
    let counters = (0..ranks as u32).map(|rank| sim.engine(rank).counters());
    let messages: u64 = counters.map(|counters| counters.eager + counters.rendezvous).sum();
    let (messages, bytes) = (messages as usize, parts.iter().map(|part| part.received).sum());
    assert_eq!(messages, sends.len(), "each message of a plan is one channel message");
    for (rank, part) in parts.iter().enumerate() {
        check(call, ranks, len, rank, part.data());
    }
    Took { messages, bytes, between, ns: sim.now() }
}

const CALLS: [Call; 11] = [
    Call::Barrier,
    Call::Broadcast { root: 1 },
    Call::Reduce { root: 1, commutes: true },
    Call::AllReduce { commutes: true },
    Call::ReduceScatter,
    Call::Scan { exclusive: false },
    Call::Scan { exclusive: true },
    Call::Gather { root: 1 },
    Call::Scatter { root: 1 },
    Call::AllGather,
    Call::AllToAll,
];

#[test]
fn plans_run_on_the_production_engines() {
    for seed in 0..500 {
        let mut random = fastrand::Rng::with_seed(seed);
        let (ranks, call) = (random.usize(2..20), CALLS[random.usize(0..CALLS.len())]);
        let len = [0, 1, 5, 300, 3000][random.usize(0..5)];
        let hosts = Hosts::of(&(0..ranks).map(|_| random.usize(0..4)).collect::<Vec<_>>());
        let shape = Shape { rank: 0, ranks, len, element: 8, hosts: Some(&hosts) };
        let able: Vec<_> = Algorithm::all().filter(|algorithm| algorithm.can(call, shape)).collect();
        let algorithm = able[random.usize(0..able.len())];
        let conditions =
            Conditions { busy: random.u32(0..200), unregistered: random.u32(0..200), ..Conditions::default() };
        run(seed, conditions, algorithm, call, (ranks, Some(&hosts)), len);
    }
}

const RANKS: usize = 1024;
const HOSTS: usize = 32;

fn run_thousand(name: &str, call: Call, len: usize) -> Took {
    let hosts = Hosts::of(&(0..RANKS).map(|rank| rank / (RANKS / HOSTS)).collect::<Vec<_>>());
    let took = run(1, Conditions::default(), Algorithm::named(name).unwrap(), call, (RANKS, Some(&hosts)), len);
    // A message takes 0.5 to 2 us, plus time for its bytes, and the critical path has 10 or 20 steps. Sequential ranks
    // would take a thousand steps.
    assert!(took.ns < 200_000, "{name} of {call:?} took {} ns of virtual time", took.ns);
    took
}

/// Messages and elements of all ranks together, by the textbook formulas for a power of two of ranks.
#[test]
fn traffic_of_1024_ranks_matches_formulas() {
    let commutes = true;
    type Formula = fn(usize, usize, usize) -> (usize, usize);
    // Formulas by ranks, their logarithm, and the elements of a rank or block.
    let rows: [(&str, Call, usize, Formula); 10] = [
        ("dissemination", Call::Barrier, 0, |n, log, _| (n * log, 0)),
        ("binomial", Call::Broadcast { root: 1 }, 100, |n, _, m| (n - 1, (n - 1) * m)),
        ("binomial", Call::Reduce { root: 1, commutes }, 100, |n, _, m| (n - 1, (n - 1) * m)),
        // A block crosses as many edges as its rank has ones in binary.
        ("binomial", Call::Gather { root: 1 }, 3, |n, log, m| (n - 1, n / 2 * log * m)),
        ("binomial", Call::Scatter { root: 1 }, 3, |n, log, m| (n - 1, n / 2 * log * m)),
        ("direct", Call::Gather { root: 1 }, 3, |n, _, m| (n - 1, (n - 1) * m)),
        ("recursive_doubling", Call::AllReduce { commutes }, 1, |n, log, m| (n * log, n * log * m)),
        ("rabenseifner", Call::AllReduce { commutes }, 2048, |n, log, m| (2 * n * log, 2 * (n - 1) * m)),
        ("recursive_doubling", Call::Scan { exclusive: false }, 1, |n, log, m| (n * log, n * log * m)),
        ("bruck", Call::AllGather, 1, |n, log, m| (n * log, n * (n - 1) * m)),
    ];
    for (name, call, len, formula) in rows {
        let took = run_thousand(name, call, len);
        let (messages, elements) = formula(RANKS, 10, len);
        assert_eq!((took.messages, took.bytes), (messages, 8 * elements), "{name} of {call:?}");
    }
}

/// Between 32 hosts the messages equal those of 32 ranks.
#[test]
fn leaders_send_as_few_messages_as_one_rank_per_host() {
    let commutes = true;
    let (h, log) = (HOSTS, 5);
    let rows = [
        (Call::Broadcast { root: 1 }, 100, h - 1),
        (Call::Reduce { root: 1, commutes }, 100, h - 1),
        (Call::AllReduce { commutes }, 1, h * log),
        (Call::AllReduce { commutes }, 4096, 2 * h * log),
        (Call::ReduceScatter, 1, h * (h - 1)),
        (Call::Scan { exclusive: false }, 1, h * log),
        (Call::Gather { root: 1 }, 1, h - 1),
        (Call::Scatter { root: 1 }, 1, h - 1),
        (Call::AllGather, 1, h * log),
        (Call::AllToAll, 1, h * (h - 1)),
    ];
    for (call, len, between) in rows {
        assert_eq!(run_thousand("leaders", call, len).between, between, "{call:?} of {len}");
    }
}
