//! Costs of a simulated adapter and processor. Each changes virtual time by its formula. The network has a latency of 1 us and
//! 1 ns per byte, and a rank notices an arrival after 100 ns.

use transom_channel::sim::{Adapter, Conditions, Sim, SimMemory};
use transom_channel::wire::{Rail, RailKind};
use transom_channel::{Changes, Config, Id, Rank, RecvTarget, Select};

/// A job on hosts of `host` ranks.
fn job(text: &str, ranks: Rank, host: Rank, adapter: Adapter) -> Sim {
    let config = text.parse::<Changes>().unwrap().of(Config::default());
    let rail = Rail { longest: 16 << 10, ..Conditions::default().rails[0] };
    let rails = [RailKind::Connection, RailKind::Connection, RailKind::Memory];
    let conditions = Conditions {
        rails: rails.map(|kind| Rail { kind, ..rail }).to_vec(),
        latency: 1000..1001,
        picoseconds: 1000,
        pause: 99..100,
        torn: false,
        host,
        adapter,
        ..Conditions::default()
    };
    Sim::new(1, ranks, conditions, &config).unwrap()
}

/// Sends messages of `length` bytes at once, and returns the time of the arrival of each.
fn times(sim: &mut Sim, pairs: &[(Rank, Rank)], length: usize) -> Vec<u64> {
    let began = sim.now();
    let begin = |&(from, to): &(Rank, Rank)| {
        let select = Select { context: 0, source: Some(from), tag: None };
        let id = sim.engine(to).receive(select, RecvTarget::Into(SimMemory::zero(length), length));
        sim.engine(from).send(to, 0, 0, SimMemory::zero(length), length, false);
        [from, to].into_iter().for_each(|rank| sim.wake(rank, 0));
        (to, id)
    };
    let receives: Vec<(Rank, Id)> = pairs.iter().map(begin).collect();
    let mut times = vec![0; pairs.len()];
    while let Some(rank) = sim.step() {
        while let Some(done) = sim.engine(rank).completed() {
            if let Some(at) = receives.iter().position(|receive| *receive == (rank, done.id)) {
                times[at] = sim.now() - began;
            }
        }
    }
    times
}

/// The same once the ranks are connected.
fn settled(sim: &mut Sim, pairs: &[(Rank, Rank)], length: usize) -> Vec<u64> {
    (0..3).for_each(|_| drop(times(sim, pairs, length)));
    times(sim, pairs, length)
}

const QUEUE: &str = "rings=0,offer=no";
const RINGS: &str = "rings=8,ring_after=1";
/// Time of 1,000 bytes one way: with a header of 32, the latency and the pause.
const NONE: u64 = 1032 + 1000 + 99;

fn one(text: &str, adapter: Adapter) -> u64 {
    settled(&mut job(text, 2, 1, adapter), &[(0, 1)], 1000)[0]
}

#[test]
fn costless_adapter_leaves_lane_time_alone() {
    assert_eq!(one(QUEUE, Adapter::default()), NONE);
    // A miss is impossible where all queue pairs are held.
    assert_eq!(one(QUEUE, Adapter { miss: 5000, ..Adapter::default() }), NONE);
}

#[test]
fn rail_latency_delays_its_own_rail_only() {
    let far = || Adapter { latency: vec![0, 3000], ..Adapter::default() };
    assert_eq!(one(QUEUE, far()), NONE);
    // Rank 1 is bound to the second rail.
    let bound = |adapter| settled(&mut job("rings=0,spread=binding", 2, 1, adapter), &[(1, 0)], 1000)[0];
    assert_eq!([bound(Adapter::default()), bound(far())], [NONE, NONE + 3000]);
}

#[test]
fn bus_is_shared_by_ranks_and_directions_of_a_host() {
    let bus = |picoseconds| Adapter { bus: picoseconds, ..Adapter::default() };
    let of = |pairs: &[(Rank, Rank)], picoseconds| settled(&mut job(QUEUE, 4, 2, bus(picoseconds)), pairs, 1000);
    // The slower of bus and lane counts: 1,032 bytes of 1 or 3 ns.
    assert_eq!(of(&[(0, 2)], 1000), [NONE]);
    assert_eq!(of(&[(0, 2)], 3000), [NONE + 2064]);
    // Two ranks of a host, and two directions, are one after the other.
    assert_eq!(of(&[(0, 2), (1, 3)], 3000), [NONE + 2064, NONE + 2064 + 3096]);
    assert_eq!(of(&[(0, 2), (3, 1)], 3000), [NONE + 2064, NONE + 2064 + 3096]);
    // Each rail has its own adapter, and shared memory has none.
    let apart = settled(&mut job("rings=0,spread=binding", 4, 2, bus(3000)), &[(0, 2), (1, 3)], 1000);
    assert_eq!(apart, [NONE + 2064; 2]);
    assert_eq!(of(&[(0, 1)], 3000), of(&[(0, 1)], 0));
}

/// The first connection posts all its messages before the second one posts any.
#[test]
fn connections_take_turns_on_the_bus() {
    let bus = Adapter { bus: 3000, ..Adapter::default() };
    let pairs = [(0, 2), (0, 2), (0, 2), (3, 1), (3, 1)];
    let turns = [0, 2, 4, 1, 3].map(|turn| NONE + 2064 + turn * 3096);
    assert_eq!(settled(&mut job(QUEUE, 4, 2, bus), &pairs, 1000), turns);
}

#[test]
fn queue_pair_beyond_the_cache_costs_a_miss() {
    let adapter = Adapter { queue_pairs: 2, miss: 5000, ..Adapter::default() };
    let of = |pairs: &[(Rank, Rank)]| {
        let mut sim = job(QUEUE, 4, 1, adapter.clone());
        // One message after the other, so that no request waits for another's miss.
        let mut round = || pairs.iter().map(|pair| times(&mut sim, &[*pair], 1000)[0]).collect::<Vec<_>>();
        (0..3).for_each(|_| drop(round()));
        round()
    };
    assert_eq!(of(&[(0, 1), (0, 2)]), [NONE; 2]);
    // Each of three is replaced before its turn comes again. The peers have one each.
    assert_eq!(of(&[(0, 1), (0, 2), (0, 3)]), [NONE + 5000; 3]);
    // The least recently used one is replaced, not the oldest.
    let miss = NONE + 5000;
    assert_eq!(of(&[(0, 1), (0, 2), (0, 1), (0, 3)]), [NONE, miss, NONE, miss]);
}

/// Time of a message of rank 0 and of the answer, which rank 1 sends once it has the message.
fn answered(text: &str, adapter: Adapter) -> u64 {
    let mut sim = job(text, 2, 1, adapter);
    let mut took = 0;
    for _ in 0..5 {
        let began = sim.now();
        let ids = [0, 1].map(|rank| {
            let select = Select { context: 0, source: Some(1 - rank), tag: None };
            sim.engine(rank).receive(select, RecvTarget::Into(SimMemory::zero(1000), 1000))
        });
        sim.engine(0).send(1, 0, 0, SimMemory::zero(1000), 1000, false);
        [0, 1].into_iter().for_each(|rank| sim.wake(rank, 0));
        while let Some(rank) = sim.step() {
            while let Some(done) = sim.engine(rank).completed() {
                match rank {
                    1 if done.id == ids[1] => _ = sim.engine(1).send(0, 0, 0, SimMemory::zero(1000), 1000, false),
                    0 if done.id == ids[0] => took = sim.now() - began,
                    _ => {}
                }
            }
        }
    }
    took
}

#[test]
fn processor_pays_for_posts_completions_and_rings() {
    assert_eq!(one(QUEUE, Adapter { post: 700, ..Adapter::default() }), NONE + 700);
    // Two messages at once: the second is posted after the first.
    let two = |adapter| settled(&mut job(QUEUE, 3, 1, adapter), &[(0, 1), (0, 2)], 1000);
    assert_eq!(two(Adapter { post: 700, ..Adapter::default() }), [NONE + 700, NONE + 1400]);
    // An answer is posted once the processor has handled the message.
    let completion = || Adapter { completion: 900, ..Adapter::default() };
    assert_eq!(answered(QUEUE, Adapter::default()), 2 * NONE);
    assert_eq!(answered(QUEUE, completion()), 2 * NONE + 900);
    // A message in a ring is no completion, but costs a look at each ring. Its mark is 8 bytes more.
    assert_eq!(answered(RINGS, completion()), 2 * (NONE + 8));
    assert_eq!(answered(RINGS, Adapter { look: 50, ..Adapter::default() }), 2 * (NONE + 8) + 50);
}
