//! Memory of a rank, whatever the number of ranks: allocations of its channel, counted, against the formula
//! of the README. The simulator describes bytes rather than storing them, so slots and rings are counted by
//! their sizes.

use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use std::alloc::System;
use transom_channel::delivery::{Delivery, Settings};
use transom_channel::sim::{Conditions, Faults, Sim, SimMemory, SimWire};
use transom_channel::wire::{Rail, RailKind};
use transom_channel::{Changes, Config, Rank, RecvTarget, Select};

#[global_allocator]
static COUNTED: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const RANKS: Rank = 1024;
const MIB: usize = 1 << 20;
/// Datagram buffers: as many as a rank of the provider `verbs` has, for an MTU of 2,048.
const DATAGRAM: usize = 2048 + 64;
const RECEIVES: usize = 1024;
const SENDS: usize = 4 * 64;
/// The first of the buffers that connections share.
const SHARED: usize = 16 * 8384;

type Wires = Delivery<SimWire>;

fn job(ranks: Rank, name: &str) -> Sim<Wires> {
    let rail = Conditions::default().rails[0];
    let datagrams = Rail { kind: RailKind::Datagram, longest: 2048, read: false, write: false, ..rail };
    let rails = if name == "ud" { vec![datagrams] } else { vec![rail, datagrams] };
    let faults = Some(Faults { lost: 0, doubled: 0, late: 0, delay: 0..1, flipped: 0 });
    let conditions = Conditions { rails, faults, slots: RECEIVES, ..Conditions::default() };
    let config = name.parse::<Changes>().unwrap().of(Config::default());
    Sim::over(1, conditions, vec![config; ranks as usize], |wire| Delivery::new(wire, Settings::default())).unwrap()
}

fn bytes(region: &Region<'_, System>) -> usize {
    let change = region.change();
    change.bytes_allocated - change.bytes_deallocated
}

/// Each pair exchanges `messages` messages of 8 bytes in both directions, all received.
fn exchange(sim: &mut Sim<Wires>, pairs: impl Iterator<Item = (Rank, Rank)> + Clone, messages: u32) {
    for _ in 0..messages {
        for (from, to) in pairs.clone().flat_map(|(a, b)| [(a, b), (b, a)]) {
            sim.engine(to).receive(Select { context: 0, source: Some(from), tag: None }, RecvTarget::Allocate);
            sim.engine(from).send(to, 0, 0, SimMemory::pattern(1, 8), 8, false);
            sim.wake(from, 0);
        }
        while let Some(rank) = sim.step() {
            while let Some(done) = sim.engine(rank).completed() {
                assert!(done.result.is_ok());
            }
        }
    }
}

/// One test, since all threads share the allocator.
#[test]
fn rank_memory_does_not_grow_with_the_job() {
    for name in ["ud", "aptus"] {
        let pool = RECEIVES * DATAGRAM + SENDS * 2048 + if name == "ud" { 0 } else { SHARED };
        let mut before = Vec::new();
        for ranks in [64, RANKS] {
            let region = Region::new(COUNTED);
            let sim = job(ranks, name);
            before.push(bytes(&region) / ranks as usize);
            drop(sim);
        }
        println!("{name}: before the first message {before:?} bytes beside {pool} of buffers");
        // Includes the simulated network's state of a rank.
        assert!(before[1] <= before[0] + 64 && before[1] < 16 << 10, "{before:?}");
        assert!(before[1] + pool <= 4 * MIB, "{before:?} + {pool}");

        // A rank that communicates with all others: memory for each peer at both ends.
        let mut sim = job(RANKS, name);
        let region = Region::new(COUNTED);
        exchange(&mut sim, (1..RANKS).map(|other| (0, other)), 3);
        let record = bytes(&region) / (2 * (RANKS as usize - 1));
        let whole = before[1] + record * (RANKS as usize - 1) + sim.engine(0).ring_bytes() + pool;
        println!("{name}: {record} bytes for each peer; rank 0 with {} peers has {whole}", RANKS - 1);
        assert!(record < 4096, "{record}");
        assert!(whole < 88 * MIB / 10, "{whole} bytes, expected less than the paper's 8.8 MiB");
        assert_eq!(sim.engine(0).channels().datagrams, RANKS as usize - 1);

        // Ranks with much traffic: rings and connections stay within their caps, however many peers ask.
        exchange(&mut sim, (1..=100).map(|other| (0, other)), 60);
        exchange(&mut sim, (1..RANKS - 100).map(|rank| (rank, rank + 1 + rank % 97)), 60);
        let (mut connections, mut rings) = (0, 0);
        for rank in 0..RANKS {
            let channels = sim.engine(rank).channels();
            (connections, rings) = (connections.max(channels.connections), rings.max(channels.rings));
            assert!(sim.engine(rank).ring_bytes() <= 8 * 32 * 2048);
        }
        println!("{name}: at most {connections} connections, {rings} rings");
        assert_eq!((connections, rings), if name == "ud" { (0, 0) } else { (16, 8) });
    }
}
