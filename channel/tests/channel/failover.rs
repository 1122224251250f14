//! Rails are cut at random under random traffic, and some are restored. By the model no message is lost or
//! duplicated. `SEED=n` reruns one seed, `SEEDS=n` runs n of them.

use crate::model::{Job, Setup, counts_of_seeds};
use transom_channel::delivery::{Delivery, Settings};
use transom_channel::sim::{Conditions, Faults, Sim, SimMemory, SimWire};
use transom_channel::striping::{Spread, Stripe};
use transom_channel::wire::{Data, Part, RAILS, Rail, RailKind};
use transom_channel::{Config, PeerFailure, RecvTarget, Select, Wire};

/// The state of each rail, and the times of changes.
struct Cuts {
    rng: fastrand::Rng,
    cut: Vec<bool>,
    next: u64,
    left: u32,
    pause: u64,
    /// Rails that are cut at the end stay cut.
    stays: bool,
}

impl Cuts {
    fn happen<W: Wire<Memory = SimMemory>>(&mut self, job: &mut Job<W>, step: Option<u64>) -> bool {
        let Some(step) = step else {
            let late = self.left > 0 && self.cut.contains(&true);
            self.left = 0;
            self.restore(job);
            return late;
        };
        if self.left == 0 || step < self.next {
            return false;
        }
        self.left -= 1;
        self.next = step + self.rng.u64(1..self.pause);
        let rail = self.rng.usize(..self.cut.len());
        let others = self.cut.iter().filter(|cut| !**cut).count();
        // At least one rail stays up.
        if self.cut[rail] || others > 1 {
            self.cut[rail] = !self.cut[rail];
            job.sim.cut(rail, self.cut[rail]);
        }
        if self.left == 0 {
            self.restore(job);
        }
        false
    }

    fn restore<W: Wire<Memory = SimMemory>>(&mut self, job: &mut Job<W>) {
        if self.stays {
            return;
        }
        for rail in 0..self.cut.len() {
            if std::mem::take(&mut self.cut[rail]) {
                job.sim.cut(rail, false);
            }
        }
    }
}

/// Kind of traffic under the cuts.
#[derive(Clone, Copy, PartialEq)]
enum Traffic {
    Any,
    /// Messages in pieces under many cuts, by wires that are often busy and with registrations that often
    /// fail.
    Pieces,
}

fn run(seed: u64, traffic: Traffic) -> Result<Job, String> {
    let (setup, mut cuts) = made(seed, traffic);
    let job = Job::new(seed, setup, |wire| wire);
    job.run_with(|job, step| cuts.happen(job, step))
}

/// The same over datagrams alone, some of which are lost.
fn run_by_datagrams(seed: u64) -> Result<Job<Delivery<SimWire>>, String> {
    let (mut setup, mut cuts) = made(seed, Traffic::Any);
    let conditions = &mut setup.conditions;
    conditions.faults = Some(Faults { lost: 10, doubled: 10, late: 10, delay: 1..10_000, flipped: 0 });
    for rail in conditions.rails.iter_mut().filter(|rail| rail.kind == RailKind::Connection) {
        (rail.kind, rail.read) = (RailKind::Datagram, false);
    }
    // A ring needs a connection.
    setup.configs.iter_mut().for_each(|config| config.rings = 0);
    let job = Job::new(seed, setup, |wire| Delivery::new(wire, Settings::default()));
    job.run_with(|job, step| cuts.happen(job, step))
}

/// Ranks, rails and cuts for a seed.
fn made(seed: u64, traffic: Traffic) -> (Setup, Cuts) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut setup = Setup::random(&mut rng);
    setup.ranks = setup.ranks.min(6);
    setup.configs.truncate(setup.ranks as usize);
    let mut rails = setup.conditions.rails.clone();
    while rails.len() < 2 || (rails.len() < 4 && rng.bool()) {
        rails.push(*rng.choice(&rails).unwrap());
    }
    // All rails have equal capabilities: the path is chosen once by them.
    for rail in &mut rails {
        (rail.write, rail.read) = (setup.conditions.rails[0].write, setup.conditions.rails[0].read);
    }
    setup.conditions.rails = rails;
    setup.actions = rng.usize(10..80);
    if traffic == Traffic::Pieces {
        setup.actions = 150;
        let conditions = &mut setup.conditions;
        (conditions.unregistered, conditions.busy, conditions.depth) = (300, 700, 64);
        for config in &mut setup.configs {
            (config.eager, config.zero_copy_from, config.rules) = (64, 64, None);
            (config.stripe, config.stripe_from) = (Stripe::Pull, 64);
        }
    }
    // A message that could not be registered on another rail waits for its own.
    let stays = setup.conditions.unregistered == 0 && rng.bool();
    let cuts = if traffic == Traffic::Pieces { rng.u32(40..120) } else { rng.u32(1..12) };
    let pause = *rng.choice(&[10, 100, 1000]).unwrap();
    let cut = vec![false; setup.conditions.rails.len()];
    if cut.len() < RAILS && rng.u8(..3) == 0 {
        // Ranks of a host do not use these rails.
        let memory = Rail { kind: RailKind::Memory, ..setup.conditions.rails[0] };
        setup.conditions.rails.push(memory);
        setup.conditions.host = rng.u32(2..4);
    }
    let cuts = Cuts { cut, next: rng.u64(1..300), left: cuts, pause, stays, rng };
    if std::env::var("SEED").is_ok() {
        println!("{} ranks, {} actions each, {:#?} {:#?}", setup.ranks, setup.actions, setup.conditions, setup.configs);
    }
    (setup, cuts)
}

#[test]
fn messages_arrive_once_whichever_rails_are_cut() {
    let (seeds, counts) = counts_of_seeds(1000, |seed| run(seed, Traffic::Any));
    assert!(seeds < 1000 || counts["rerouted"] > 1000 && counts["old"] > 50 && counts["leaves"] > 100);
}

#[test]
fn datagrams_use_the_remaining_rails() {
    let (seeds, counts) = counts_of_seeds(1000, run_by_datagrams);
    assert!(seeds < 1000 || counts["resends"] > 1000 && counts["datagram_windows"] > 100, "{counts:?}");
}

/// Requests that move to another rail keep their order: no FIN precedes its write.
#[test]
fn rerouted_message_is_whole_at_its_last_fin() {
    let (seeds, counts) = counts_of_seeds(1000, |seed| run(seed, Traffic::Pieces));
    assert!(seeds < 1000 || counts["rerouted"] > 10_000 && counts["rendezvous"] > 1000);
}

/// Number of messages of 1 MiB received in each of `all` milliseconds, with 8 in flight. The rail is cut and
/// restored at the given times.
fn each_millisecond(stripe: Stripe, rail: usize, cut: u64, restored: u64, all: u64) -> Vec<u64> {
    let config = Config { stripe, spread: Spread::RoundRobin, ..Config::default() };
    let one = Conditions::default().rails[0];
    let conditions = Conditions { rails: vec![one; 2], latency: 1000..1001, pause: 50..51, ..Conditions::default() };
    let mut sim = Sim::new(3, 2, conditions, &config).unwrap();
    let mut came = vec![0; all as usize];
    let begin = |sim: &mut Sim, number: u64| {
        let select = Select { context: 0, source: Some(0), tag: Some(number as u32) };
        sim.engine(1).receive(select, RecvTarget::Into(SimMemory::zero(1 << 20), 1 << 20));
        sim.engine(0).send(1, 0, number as u32, SimMemory::pattern(number, 1 << 20), 1 << 20, false);
        [0, 1].into_iter().for_each(|rank| sim.wake(rank, 0));
    };
    (0..8).for_each(|number| begin(&mut sim, number));
    let (mut next, mut is_cut) = (8, false);
    while sim.step().is_some() && sim.now() < all * 1_000_000 {
        let now = sim.now() / 1_000_000;
        if is_cut != (cut..restored).contains(&now) {
            is_cut = !is_cut;
            sim.cut(rail, is_cut);
        }
        while let Some(done) = sim.engine(1).completed() {
            let tag = done.result.unwrap().tag;
            assert_eq!(done.memory.unwrap().whose(1 << 20), Some(tag.into()));
            came[now as usize] += 1;
            begin(&mut sim, next);
            next += 1;
        }
        while sim.engine(0).completed().is_some() {}
    }
    came
}

/// At 10 GB/s each rail moves 9.5 MiB in a millisecond.
#[test]
fn cut_rail_costs_its_share_until_it_returns() {
    for (stripe, rail) in [(Stripe::Adaptive, 0), (Stripe::Adaptive, 1), (Stripe::Pull, 0), (Stripe::Pull, 1)] {
        let came = each_millisecond(stripe, rail, 20, 40, 60);
        println!("{stripe:?}, rail {rail} is cut from 20 to 40 ms; MiB in each: {came:?}");
        let least = |from: usize, to: usize| *came[from..to].iter().min().unwrap();
        assert!(least(2, 20) >= 17, "expected the bandwidth of both rails");
        // The cut is reported within 0.1 ms.
        let two = came[21..40].windows(2).map(|two| two[0] + two[1]).min();
        assert!(two >= Some(16), "expected the full bandwidth of the remaining rail 1 ms after the cut");
        assert!(least(41, 60) >= 17, "expected the bandwidth of both rails after the cut");
    }
}

/// Two ranks always send more short messages, by the first rail, than a third rank handles in one progress
/// call. A fourth rank sends it long messages in part by the second rail. After that rail is cut its messages
/// continue.
#[test]
fn saturated_rank_answers_a_rail_cut() {
    let config = Config { spread: Spread::First, rings: 0, batch: 4, ..Config::default() };
    let one = Conditions::default().rails[0];
    let conditions = Conditions { rails: vec![one; 2], pause: 1000..1001, slots: 4096, ..Conditions::default() };
    let mut sim = Sim::new(5, 4, conditions, &config).unwrap();
    let begin = |sim: &mut Sim, from: u32| {
        let length = if from == 1 { 1 << 20 } else { 64 };
        sim.engine(0).receive(Select { context: 0, source: Some(from), tag: None }, RecvTarget::Allocate);
        sim.engine(from).send(0, 0, 0, SimMemory::pattern(from.into(), length), length, false);
        sim.wake(from, 0);
    };
    (0..8).for_each(|_| begin(&mut sim, 1));
    (0..256).for_each(|_| [2, 3].into_iter().for_each(|from| begin(&mut sim, from)));
    let (mut came, mut short, mut is_cut) = ([0; 8], 0, false);
    while sim.step().is_some() && sim.now() < 8_000_000 {
        if !is_cut && sim.now() > 2_000_000 {
            sim.cut(1, true);
            is_cut = true;
        }
        while let Some(done) = sim.engine(0).completed() {
            let from = done.result.unwrap().peer;
            came[(sim.now() / 1_000_000) as usize] += u32::from(from == 1);
            short += u32::from(from > 1);
            begin(&mut sim, from);
        }
        (1..4).for_each(|rank| while sim.engine(rank).completed().is_some() {});
    }
    println!("messages of 1 MiB in each millisecond: {came:?}; {short} short ones");
    assert!(short > 8 * 1000, "short messages did not arrive all the time");
    assert!(came[4..].iter().all(|came| *came > 0));
}

/// Packets in the ring of a cut rail move to a queue, which accepts shorter packets.
#[test]
fn ring_packets_fit_the_queue_of_another_rail() {
    let rail = Rail { longest: 1000, ..Conditions::default().rails[0] };
    let conditions = Conditions { rails: vec![rail, Rail { longest: 800, ..rail }], ..Conditions::default() };
    let mut sim = Sim::new(1, 2, conditions, &Config { ring_after: 1, ..Config::default() }).unwrap();
    let send = |sim: &mut Sim, number: u64, length, tries| {
        let memory = SimMemory::pattern(number, length);
        let data = Data::Of(Part { memory: &memory, at: 0, length });
        if !(tries && sim.engine(0).try_send(1, 0, 0, data)) {
            sim.engine(0).send(1, 0, 0, memory, length, number.is_multiple_of(3));
        }
        sim.wake(0, 0);
    };
    let mut received = 0..;
    let mut receive = |sim: &mut Sim, length| {
        sim.engine(1).receive(Select { context: 0, source: Some(0), tag: None }, RecvTarget::Allocate);
        sim.wake(1, 0);
        while sim.step().is_some() {}
        let done = sim.engine(1).completed().expect("the receive did not complete");
        assert_eq!(done.result.unwrap().length, length as u64);
        assert_eq!(done.memory.unwrap().whose(length), received.next());
    };
    for number in 0..4 {
        send(&mut sim, number, 8, false);
        receive(&mut sim, 8);
    }
    let lengths = [1500, 900, 780, 1200, 750, 2000];
    for (number, length) in (4..).zip(lengths) {
        send(&mut sim, number, length, number % 2 == 0);
    }
    sim.cut(0, true);
    lengths.into_iter().for_each(|length| receive(&mut sim, length));
    let counters = sim.engine(0).counters();
    assert!(counters.rerouted > 0 && counters.ring_packets > 3, "{counters:?}");
}

/// A peer that no datagram rail reaches is lost, whether or not packets to it were in flight.
#[test]
fn peer_without_working_rails_is_lost() {
    for is_under_way in [true, false] {
        let rail = Rail {
            kind: RailKind::Datagram,
            longest: 2048,
            read: false,
            write: false,
            ..Conditions::default().rails[0]
        };
        let faults = Some(Faults { lost: 0, doubled: 0, late: 0, delay: 1..2, flipped: 0 });
        let conditions = Conditions { rails: vec![rail; 2], faults, ..Conditions::default() };
        let config = Config { rings: 0, spread: Spread::RoundRobin, ..Config::default() };
        let settings = Settings { give_up: 1_000_000_000, ..Settings::default() };
        let mut sim = Sim::over(7, conditions, vec![config; 2], |wire| Delivery::new(wire, settings)).unwrap();
        let send = |sim: &mut Sim<Delivery<SimWire>>| {
            sim.engine(0).send(1, 0, 0, SimMemory::zero(8), 8, false);
            sim.wake(0, 0);
        };
        send(&mut sim);
        while sim.step().is_some() {}
        assert!(sim.engine(0).completed().unwrap().result.is_ok());
        if is_under_way {
            send(&mut sim);
        }
        (0..2).for_each(|rail| sim.cut(rail, true));
        let (cut, mut steps) = (sim.now(), 0);
        while steps < 1000 && sim.step().is_some() {
            steps += 1;
        }
        let after = (sim.now() - cut) / 1_000_000;
        assert_eq!(
            sim.engine(0).lost().map(|(rank, lost)| (rank, lost.clone())).collect::<Vec<_>>(),
            [(1, PeerFailure::Unreachable)]
        );
        assert!((1000..1200).contains(&after) && steps < 1000, "reported lost after {after} ms and {steps} steps");
    }
}
