//! Plans on the simulator of messages: the engines that ship, in random conditions, and for a thousand ranks. Each message of a
//! plan is one of the channel, and nothing else is sent.

use std::collections::HashMap;
use transom_channel::sim::{Conditions, Memory, Sim};
use transom_channel::{Config, Id, Room, Select};
use transom_collective::{Algorithm, Call, Hosts, Local, Order, Place, Plan, Shape, Span};

/// One rank's part: its plan, and its memory as numbers.
struct Part {
    plan: Plan,
    memory: HashMap<Place, Vec<u64>>,
    round: usize,
    posted: bool,
    /// What is received, and where to; nothing of what is sent.
    pending: HashMap<Id, Option<Span>>,
}

impl Part {
    fn read(&self, span: Span) -> &[u64] {
        &self.memory[&span.place][span.start..span.start + span.len]
    }

    fn write(&mut self, span: Span, numbers: &[u64]) {
        self.memory.get_mut(&span.place).unwrap()[span.start..span.start + span.len].copy_from_slice(numbers);
    }

    /// Goes as far as messages allow. Whether anything was done.
    fn turn(&mut self, sim: &mut Sim, rank: u32) -> bool {
        let mut moved = false;
        while let Some(completion) = sim.engine(rank).completed() {
            completion.result.expect("nobody dies");
            if let Some(into) = self.pending.remove(&completion.id).expect("it was posted") {
                let mut bytes = vec![0; into.len * 8];
                completion.memory.expect("it was given some").read(0, &mut bytes);
                let numbers: Vec<u64> = bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
                self.write(into, &numbers);
            }
        }
        while self.round < self.plan.rounds.len() {
            let round = self.plan.rounds[self.round].clone();
            if !self.posted {
                for (from, into) in round.receives {
                    let select = Select { context: 2, source: Some(from as u32), tag: Some(7) };
                    let room = Room::Into(Memory::zero(into.len * 8), into.len * 8);
                    self.pending.insert(sim.engine(rank).receive(select, room), Some(into));
                }
                for (to, span) in round.sends {
                    let bytes: Vec<u8> = self.read(span).iter().flat_map(|number| number.to_le_bytes()).collect();
                    let id = sim.engine(rank).send(to as u32, 2, 7, Memory::bytes(&bytes), bytes.len(), false);
                    self.pending.insert(id, None);
                }
                (self.posted, moved) = (true, true);
            }
            if !self.pending.is_empty() {
                break;
            }
            for local in round.then {
                let (into, with, fold): (_, _, Option<Order>) = match local {
                    Local::Copy { from, to } => (to, from, None),
                    Local::Fold { into, with, order } => (into, with, Some(order)),
                };
                let operands = self.read(with).to_vec();
                let mut elements = self.read(into).to_vec();
                for (element, operand) in elements.iter_mut().zip(operands) {
                    *element = if fold.is_some() { element.wrapping_add(operand) } else { operand };
                }
                self.write(into, &elements);
            }
            (self.round, self.posted) = (self.round + 1, false);
        }
        moved
    }
}

/// Runs a collective to its end; the results, the virtual time, and how many messages went from host to host.
fn run(
    seed: u64,
    conditions: Conditions,
    algorithm: Algorithm,
    call: Call,
    (ranks, hosts): (usize, Option<&Hosts>),
    len: usize,
) -> (Vec<Vec<u64>>, u64, usize) {
    let mut sim = Sim::new(seed, ranks as u32, conditions, &Config::default()).unwrap();
    let (given, data) = match call {
        Call::AllGather => (len, ranks * len),
        Call::AllToAll => (ranks * len, ranks * len),
        _ => (0, len),
    };
    let part = |rank: usize| {
        let plan = algorithm.plan(call, Shape { rank, ranks, len, element: 8, hosts });
        let numbers = |many: usize| (0..many).map(|index| number(rank, index)).collect::<Vec<_>>();
        let scratch = vec![u64::MAX; plan.scratch];
        let memory = [(Place::Given, numbers(given)), (Place::Data, numbers(data)), (Place::Scratch, scratch)];
        Part { plan, memory: memory.into(), round: 0, posted: false, pending: HashMap::new() }
    };
    let mut parts: Vec<_> = (0..ranks).map(part).collect();
    let sends: Vec<_> = (0..ranks)
        .flat_map(|from| {
            parts[from].plan.rounds.iter().flat_map(move |round| round.sends.iter().map(move |(to, _)| (from, *to)))
        })
        .collect();
    let apart = |(from, to): &&(usize, usize)| hosts.is_some_and(|hosts| hosts.host(*from) != hosts.host(*to));
    let between = sends.iter().filter(apart).count();
    for (rank, part) in parts.iter_mut().enumerate() {
        part.turn(&mut sim, rank as u32);
        sim.wake(rank as u32, 0);
    }
    while let Some(rank) = sim.step() {
        if parts[rank as usize].turn(&mut sim, rank) {
            sim.wake(rank, 0);
        }
    }
    assert!(parts.iter().all(|part| part.round == part.plan.rounds.len()), "some wait for ever");
    let messages: u64 =
        (0..ranks as u32).map(|rank| sim.engine(rank).meter()).map(|meter| meter.eager + meter.rendezvous).sum();
    assert_eq!(messages, sends.len() as u64, "each message of the plans is one of the channel");
    let now = sim.now();
    (parts.into_iter().map(|mut part| part.memory.remove(&Place::Data).unwrap()).collect(), now, between)
}

fn number(rank: usize, index: usize) -> u64 {
    (rank * 1_000_003 + index) as u64
}

fn check(call: Call, ranks: usize, len: usize, results: &[Vec<u64>]) {
    for (rank, got) in results.iter().enumerate() {
        let want: Vec<u64> = match call {
            Call::Broadcast { root } => (0..len).map(|index| number(root, index)).collect(),
            Call::AllReduce { .. } => (0..len).map(|index| (0..ranks).map(|rank| number(rank, index)).sum()).collect(),
            Call::Scan { .. } => (0..len).map(|index| (0..=rank).map(|rank| number(rank, index)).sum()).collect(),
            Call::AllGather => (0..ranks).flat_map(|rank| (0..len).map(move |index| number(rank, index))).collect(),
            Call::AllToAll => {
                (0..ranks).flat_map(|from| (0..len).map(move |index| number(from, rank * len + index))).collect()
            }
            _ => got.clone(),
        };
        assert!(*got == want, "rank {rank} of {ranks}, {call:?}");
    }
}

const CALLS: [Call; 6] = [
    Call::Barrier,
    Call::Broadcast { root: 1 },
    Call::AllReduce { commutes: true },
    Call::Scan { exclusive: false },
    Call::AllGather,
    Call::AllToAll,
];

#[test]
fn plans_run_on_the_engines_that_ship() {
    for seed in 0..300 {
        let mut random = fastrand::Rng::with_seed(seed);
        let (ranks, call) = (random.usize(2..20), CALLS[random.usize(0..CALLS.len())]);
        let len = [0, 1, 5, 300, 3000][random.usize(0..5)];
        let hosts = Hosts::of(&(0..ranks).map(|_| random.usize(0..4)).collect::<Vec<_>>());
        let shape = Shape { rank: 0, ranks, len, element: 8, hosts: Some(&hosts) };
        let able: Vec<_> = Algorithm::all().filter(|algorithm| algorithm.can(call, shape)).collect();
        let algorithm = able[random.usize(0..able.len())];
        let conditions =
            Conditions { busy: random.u32(0..200), unregistered: random.u32(0..200), ..Conditions::default() };
        let (results, ..) = run(seed, conditions, algorithm, call, (ranks, Some(&hosts)), len);
        check(call, ranks, len, &results);
    }
}

#[test]
fn a_thousand_ranks() {
    let ranks = 1024;
    let hosts = Hosts::of(&(0..ranks).map(|rank| rank / 32).collect::<Vec<_>>());
    // Between 32 hosts, of leaders: as of 32 ranks.
    let all = [
        ("dissemination", Call::Barrier, 0),
        ("binomial", Call::Broadcast { root: 1 }, 100),
        ("recursive_doubling", Call::AllReduce { commutes: true }, 1),
        ("rabenseifner", Call::AllReduce { commutes: true }, 2048),
        ("recursive_doubling", Call::Scan { exclusive: false }, 1),
        ("bruck", Call::AllGather, 1),
        ("leaders", Call::Broadcast { root: 1 }, 100),
        ("leaders", Call::AllReduce { commutes: true }, 1),
        ("leaders", Call::AllReduce { commutes: true }, 4096),
        ("leaders", Call::AllGather, 1),
    ];
    let between = [31, 32 * 5, 2 * 32 * 5, 32 * 5];
    for (nth, (name, call, len)) in all.into_iter().enumerate() {
        let (results, now, messages) =
            run(1, Conditions::default(), Algorithm::named(name).unwrap(), call, (ranks, Some(&hosts)), len);
        check(call, ranks, len, &results);
        if name == "leaders" {
            assert_eq!(messages, between[nth + between.len() - all.len()], "{call:?} of {len}");
        }
        // A message takes 0.5 to 2 us, its bytes not counted, and there are 10 or 20 steps; of ranks that go one after the other
        // there would be a thousand.
        assert!(now < 200_000, "{name} of {call:?} took {now} ns of virtual time");
    }
}
