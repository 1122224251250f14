//! Simulated jobs, and times measured in them.

use transom_channel::delivery::{Delivery, Settings};
use transom_channel::sim::{Adapter, Conditions, Sim, SimMemory, SimWire, skeletons};
use transom_channel::wire::{Rail, RailKind};
use transom_channel::{Changes, Config, Id, Rank, RecvTarget, Select, Wire};

pub type Wires = Delivery<SimWire>;

/// Parses a configuration, which was checked before.
pub fn config(text: &str) -> Config {
    text.parse::<Changes>().expect("checked when it was parsed").of(Config::default())
}

/// A job of two ranks with one rail per entry of `slower`, whose bandwidth is that of the first rail of SC 2004 divided
/// by the entry.
pub fn by_rails(slower: &[u64], text: &str) -> Sim {
    by_adapters(slower, text, 1, Adapter::default())
}

/// The same for two hosts of `host` ranks each, which share adapters with these costs.
pub fn by_adapters(slower: &[u64], text: &str, host: Rank, adapter: Adapter) -> Sim {
    let of_kind = |kind| Rail { kind, ..Conditions::default().rails[0] };
    let rail = |slower: &u64| Rail { bandwidth: (884 / slower) as u32, ..of_kind(RailKind::Connection) };
    let memory = (host > 1).then(|| of_kind(RailKind::Memory));
    let conditions = Conditions {
        rails: slower.iter().map(rail).chain(memory).collect(),
        host: if host > 1 { host } else { 0 },
        adapter,
        slower: slower.to_vec(),
        latency: 5000..5001,
        picoseconds: 1131,
        pause: 500..501,
        torn: false,
        ..Conditions::default()
    };
    Sim::new(3, 2 * host, conditions, &config(text)).expect("a job")
}

/// A job of ranks on separate hosts.
pub fn on_cluster(
    seed: u64,
    ranks: Rank,
    text: &str,
    change: impl FnOnce(&mut Conditions, &mut Settings),
) -> Sim<Wires> {
    let config = config(text);
    let mut conditions = alone(&config);
    let mut settings = Settings { checksum: config.checksum, ..Settings::default() };
    change(&mut conditions, &mut settings);
    let over = |wire| Delivery::new(wire, settings);
    Sim::over(seed, conditions, vec![config; ranks as usize], over).expect("a job")
}

/// A job of ranks on separate hosts whose network loses nothing and needs no acknowledgements.
pub fn unacknowledged(ranks: Rank, text: &str, adapter: Adapter) -> Sim {
    let config = config(text);
    Sim::new(1, ranks, Conditions { faults: None, adapter, ..alone(&config) }, &config).expect("a job")
}

fn alone(config: &Config) -> Conditions {
    let mut conditions = skeletons::conditions(config.paths);
    conditions.rails.retain(|rail| rail.kind != RailKind::Memory);
    Conditions { host: 0, ..conditions }
}

fn begin<W: Wire<Memory = SimMemory>>(sim: &mut Sim<W>, from: Rank, to: Rank, length: usize) -> Id {
    let select = Select { context: 0, source: Some(from), tag: None };
    let id = sim.engine(to).receive(select, RecvTarget::Into(SimMemory::zero(length), length));
    sim.engine(from).send(to, 0, 0, SimMemory::zero(length), length, false);
    [from, to].into_iter().for_each(|rank| sim.wake(rank, 0));
    id
}

/// Simulates until all these receives have completed, and returns the elapsed nanoseconds.
fn until<W: Wire<Memory = SimMemory>>(sim: &mut Sim<W>, mut receives: Vec<(Rank, Id)>) -> u64 {
    let (began, mut left) = (sim.now(), receives.len());
    receives.sort_unstable();
    while left > 0 {
        let rank = sim.step().expect("something is under way");
        while let Some(done) = sim.engine(rank).completed() {
            done.result.expect("no rank dies");
            left -= usize::from(receives.binary_search(&(rank, done.id)).is_ok());
        }
    }
    sim.now() - began
}

/// Nanoseconds of successive messages in both directions, one way: of the first, and of half the last round trip.
pub fn one_way<W: Wire<Memory = SimMemory>>(sim: &mut Sim<W>, length: usize) -> [f64; 2] {
    let mut times = [0.0; 2];
    for turn in 0..24 {
        let [there, back] = round_trip(sim, 1, length);
        if turn == 0 {
            times[0] = there as f64;
        }
        times[1] = (there + back) as f64 / 2.0;
    }
    times
}

/// Nanoseconds of a message of rank 0 to another rank, and of its answer.
fn round_trip<W: Wire<Memory = SimMemory>>(sim: &mut Sim<W>, peer: Rank, length: usize) -> [u64; 2] {
    let there = begin(sim, 0, peer, length);
    let there = until(sim, vec![(peer, there)]);
    let back = begin(sim, peer, 0, length);
    [there, until(sim, vec![(0, back)])]
}

/// Mean nanoseconds of a message one way, while rank 0 exchanges messages with each other rank in turn, three times.
pub fn in_turn<W: Wire<Memory = SimMemory>>(sim: &mut Sim<W>, ranks: Rank, length: usize) -> f64 {
    const TIMES: u32 = 3;
    let peers = (0..TIMES).flat_map(|_| 1..ranks);
    let all: u64 = peers.map(|peer| round_trip(sim, peer, length).iter().sum::<u64>()).sum();
    all as f64 / f64::from(2 * TIMES * (ranks - 1))
}

/// Nanoseconds of `count` concurrent messages per pair, after a warm-up round.
pub fn together<W: Wire<Memory = SimMemory>>(
    sim: &mut Sim<W>,
    pairs: &[(Rank, Rank)],
    length: usize,
    count: usize,
) -> u64 {
    let mut round = |count| {
        let all = pairs.iter().flat_map(|pair| std::iter::repeat_n(*pair, count));
        let receives = all.map(|(from, to)| (to, begin(sim, from, to, length))).collect();
        until(sim, receives)
    };
    round(count.min(32));
    round(count)
}

/// A millisecond of virtual time, and the change that is applied to the job then.
pub type Happens<'a, W> = (f64, &'a dyn Fn(&mut Sim<W>));

/// MB/s in each interval of `each` ms, with 8 messages of 128 KiB in flight, and with the changes of `happens` applied
/// in between.
pub fn over_time<W: Wire<Memory = SimMemory>>(
    sim: &mut Sim<W>,
    each: f64,
    all: f64,
    happens: &[Happens<W>],
) -> Vec<f64> {
    const LENGTH: usize = 128 << 10;
    let mut came = vec![0.0; (all / each) as usize];
    let mut happens = happens.iter().peekable();
    for _ in 0..8 {
        begin(sim, 0, 1, LENGTH);
    }
    while let Some(rank) = sim.step() {
        let now = sim.now() as f64 / 1e6;
        if let Some((_, what)) = happens.next_if(|(at, _)| now >= *at) {
            what(sim);
        }
        let Some(now) = came.get_mut((now / each) as usize) else { break };
        while let Some(done) = sim.engine(rank).completed() {
            if done.result.expect("no rank dies").peer == 0 && rank == 1 {
                *now += LENGTH as f64 / each / 1e3;
                begin(sim, 0, 1, LENGTH);
            }
        }
    }
    came
}

/// Nanoseconds until each other rank has sent `count` messages to rank 0, which makes no call for the first `computes`
/// ns. All pairs have communicated before.
pub fn burst(sim: &mut Sim<Wires>, ranks: Rank, length: usize, count: usize, computes: u64) -> u64 {
    let pairs: Vec<(Rank, Rank)> = (1..ranks).flat_map(|other| [(other, 0), (0, other)]).collect();
    together(sim, &pairs, 64, 1);
    let began = sim.now();
    sim.stop(0, true);
    let all = (1..ranks).flat_map(|from| std::iter::repeat_n(from, count));
    let receives: Vec<_> = all.map(|from| (0, begin(sim, from, 0, length))).collect();
    while sim.now() < began + computes {
        // A stopped rank takes turns and does nothing in them.
        sim.wake(0, 1000);
        let rank = sim.step().expect("a turn was asked for");
        while rank > 0 && sim.engine(rank).completed().is_some() {}
    }
    sim.stop(0, false);
    until(sim, receives);
    sim.now() - began
}
