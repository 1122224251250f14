//! Messages over datagrams that are lost, duplicated, late and corrupted, against the model of
//! [`random`](../random.rs). Also goodput, peers that stop, and rails that fail. `SEED=n` reruns one seed,
//! `SEEDS=n` runs n of them.

use crate::model::changed::{Change, Changed};
use crate::model::{Job, Setup, counts_of_seeds, rounds};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use transom_channel::delivery::{Acknowledgement, Delivery, Header, Kind, Settings};
use transom_channel::sim::{Conditions, Faults, Sim, SimMemory, SimWire};
use transom_channel::striping::Spread;
use transom_channel::wire::{Busy, Data, Event, Lane, Rail, RailKind, Request, WireMemory};
use transom_channel::{Config, Error, Id, PeerFailure, Rank, RecvTarget, Select, Wire};

pub type Wires = Delivery<SimWire>;

pub const NONE: Faults = Faults { lost: 0, doubled: 0, late: 0, delay: 0..1, flipped: 0 };

fn run(seed: u64) -> Result<Job<Wires>, String> {
    let mut rng = fastrand::Rng::with_seed(seed ^ 0xda7a);
    let mut setup = Setup::random(&mut rng);
    // Short programs, so that many seeds can run.
    setup.actions = setup.actions.min(30);
    let checksum = rng.bool();
    setup.conditions.faults = Some(Faults {
        lost: *rng.choice(&[0, 10, 50, 100]).unwrap(),
        doubled: *rng.choice(&[0, 10, 200]).unwrap(),
        late: *rng.choice(&[0, 10, 300]).unwrap(),
        delay: 1..*rng.choice(&[1000, 100_000, 30_000_000]).unwrap(),
        flipped: if checksum { *rng.choice(&[0, 20]).unwrap() } else { 0 },
    });
    setup.conditions.rails.iter_mut().for_each(|rail| rail.kind = RailKind::Datagram);
    match rng.u8(..4) {
        // Datagrams alone; or rings as well, which need lossless lanes.
        0 => {
            for rail in &mut setup.conditions.rails {
                rail.read = false;
            }
            setup.configs.iter_mut().for_each(|config| config.rings = 0);
        }
        1 => {}
        // Or connections to some peers, and memory shared by ranks of a host.
        _ => {
            let rail = setup.conditions.rails[0];
            let mut rails = vec![Rail { kind: RailKind::Connection, ..rail }; rng.usize(1..=2)];
            rails.push(Rail { read: false, ..rail });
            if rng.bool() {
                setup.conditions.host = rng.u32(1..4);
                rails.push(Rail { kind: RailKind::Memory, ..rail });
            }
            setup.conditions.rails = rails;
        }
    }
    let settings = Settings {
        every: rng.u32(1..20),
        delay: rng.u64(1000..300_000),
        room: *rng.choice(&[1, 100, 10_000]).unwrap(),
        checksum,
        ..Settings::default()
    };
    if std::env::var("SEED").is_ok() {
        println!("{} ranks, {} actions each, {settings:#?} {:#?}", setup.ranks, setup.actions, setup.conditions);
    }
    Job::new(seed, setup, |wire| Delivery::new(wire, settings)).run()
}

#[test]
fn every_message_arrives_once_whole_and_in_order() {
    let (seeds, counts) = counts_of_seeds(1000, run);
    if seeds >= 1000 {
        for name in [
            "resends",
            "old",
            "acknowledgements",
            "spoiled",
            "held",
            "ring_packets",
            "read_bytes",
            "written_bytes",
            "connects",
            "disconnects",
            "refusals",
            "datagram_bytes",
            "datagram_windows",
            "datagram_windows_peak",
            "datagram_repairs",
        ] {
            assert!(counts[name] > 0, "{name} never happened");
        }
    }
}

#[test]
fn same_seed_gives_the_same_run() {
    for seed in 0..20 {
        let twice = [run(seed), run(seed)].map(|job| {
            let mut job = job.unwrap();
            let counters: Vec<_> = (0..job.setup.ranks).map(|rank| job.sim.engine(rank).counters()).collect();
            (job.sim.now(), counters)
        });
        assert_eq!(twice[0], twice[1]);
    }
}

pub fn config() -> Config {
    Config { rings: 0, zero_copy_from: u64::MAX, eager: 4096, ..Config::default() }
}

/// Datagrams of 4 KiB, at 1 GB/s and a round trip of 20 us.
pub fn conditions(faults: Faults) -> Conditions {
    let rail = Rail {
        kind: RailKind::Datagram,
        longest: 4096 + 96,
        mark_last: true,
        whole_word: true,
        immediate: true,
        write: false,
        read: false,
        bandwidth: 0,
    };
    let (faults, latency) = (Some(faults), 10_000..10_001);
    Conditions { rails: vec![rail], latency, picoseconds: 1000, faults, ..Conditions::default() }
}

fn job(seed: u64, ranks: Rank, conditions: Conditions) -> Sim<Wires> {
    Sim::over(seed, conditions, vec![config(); ranks as usize], |wire| Delivery::new(wire, Settings::default()))
        .unwrap()
}

const ANY: Select = Select { context: 0, source: None, tag: None };

/// Ordered receives of a rank; checks afterwards that each has the message of its number.
pub struct Receives(Vec<Id>);

impl Receives {
    pub fn post<W: Wire<Memory = SimMemory>>(sim: &mut Sim<W>, rank: Rank, many: u64) -> Receives {
        Receives((0..many).map(|_| sim.engine(rank).receive(ANY, RecvTarget::Allocate)).collect())
    }

    pub fn check<W: Wire<Memory = SimMemory>>(self, sim: &mut Sim<W>, rank: Rank, length: usize) {
        let done = std::iter::from_fn(|| sim.engine(rank).completed());
        let mut came: BTreeMap<Id, SimMemory> = done.map(|done| (done.id, done.memory.unwrap())).collect();
        for (number, id) in (0..).zip(self.0) {
            assert_eq!(came.remove(&id).expect("a receive did not complete").whose(length), Some(number));
        }
    }
}

/// Virtual time of `messages` messages from one rank to another, in ns, and the number of resends.
fn time(seed: u64, messages: u64, length: usize, faults: Faults) -> (u64, u64) {
    let mut sim = job(seed, 2, conditions(faults));
    for number in 0..messages {
        sim.engine(0).send(1, 0, 0, SimMemory::pattern(number, length), length, false);
        sim.engine(1).receive(ANY, RecvTarget::Allocate);
    }
    sim.wake(0, 0);
    sim.wake(1, 0);
    let mut came = 0;
    while let Some(rank) = sim.step() {
        while let Some(done) = sim.engine(rank).completed() {
            if rank == 1 {
                assert!(done.memory.unwrap().whose(length).is_some());
                came += 1;
                if came == messages {
                    return (sim.now(), sim.engine(0).counters().resends);
                }
            }
        }
    }
    panic!("{came} of {messages} messages arrived");
}

#[test]
fn one_percent_loss_keeps_half_the_goodput() {
    for length in [100, 4000, 1 << 20] {
        let messages = if length > 4096 { 16 } else { 4000 };
        let (mut clean, mut lossy) = (0, 0);
        for seed in 0..5 {
            let (took, resends) = time(seed, messages, length, NONE);
            assert_eq!(resends, 0, "resends without loss");
            clean += took;
            let (took, resends) = time(seed, messages, length, Faults { lost: 10, ..NONE });
            assert!(resends > 0);
            lossy += took;
        }
        println!("{messages} messages of {length} bytes: {clean} ns without loss, {lossy} ns with 1 % loss");
        assert!(lossy < 2 * clean, "{length} bytes: {clean} ns without loss, {lossy} ns with 1 % loss");
    }
}

#[test]
fn rank_stopped_for_30_s_loses_no_messages() {
    const STOPPED: u64 = 30_000_000_000;
    for seed in 0..20 {
        // Fewer slots than the other ranks send datagrams before they learn of their share.
        let mut sim = job(seed, 4, Conditions { slots: 20, ..conditions(Faults { lost: 50, ..NONE }) });
        let mut left = 0;
        for number in 0..40 {
            for (from, to) in [(0, 3), (1, 3), (2, 3), (3, 0), (0, 1)] {
                let length = if number % 8 == 0 { 50_000 } else { 1000 };
                sim.engine(from).send(to, 0, 0, SimMemory::pattern(number, length), length, false);
                sim.engine(to).receive(Select { source: Some(from), ..ANY }, RecvTarget::Allocate);
                left += 1;
            }
        }
        (0..4).for_each(|rank| sim.wake(rank, 0));
        let (mut steps, mut stopped) = (0, None);
        let mut ended = 0;
        while let Some(rank) = sim.step() {
            steps += 1;
            if steps == 40 + 10 * seed {
                sim.stop(3, true);
                stopped = Some(sim.now());
            }
            if stopped.is_some_and(|since| sim.now() >= since + STOPPED) {
                sim.stop(3, false);
                stopped = None;
            }
            while let Some(done) = sim.engine(rank).completed() {
                let length = done.result.unwrap().length as usize;
                // A completed send returns its own memory.
                assert!(done.memory.unwrap().whose(length).is_some());
                ended += 1;
            }
        }
        let rest: Vec<_> = (0..4).map(|rank| sim.engine(rank).at_rest()).collect();
        assert!(rest.iter().all(Result::is_ok), "seed {seed}: {rest:?}");
        assert_eq!(ended, 2 * left, "seed {seed}");
        assert!(sim.now() > STOPPED && sim.now() < 2 * STOPPED, "{}", sim.now());
        let resends: u64 = (0..3).map(|rank| sim.engine(rank).counters().resends).sum();
        assert!(resends < 1000, "seed {seed}: it is not sent at all the while, {resends}");
    }
}

#[test]
fn silent_rank_is_reported_unreachable() {
    let mut sim = job(1, 3, conditions(NONE));
    sim.stop(2, true);
    let open = sim.engine(0).send(2, 0, 0, SimMemory::pattern(1, 9000), 9000, false);
    let other = sim.engine(0).send(1, 0, 0, SimMemory::pattern(2, 9000), 9000, false);
    sim.engine(1).receive(ANY, RecvTarget::Allocate);
    sim.wake(0, 0);
    sim.wake(1, 0);
    let mut ended = BTreeMap::new();
    while let Some(rank) = sim.step() {
        while let Some(done) = sim.engine(rank).completed() {
            if rank == 0 {
                ended.insert(done.id, (sim.now(), done.result.map(drop)));
            }
        }
    }
    assert!(ended[&other].1.is_ok() && ended[&other].0 < 1_000_000, "{ended:?}");
    assert_eq!(ended[&open].1, Err(Error::PeerFailure { rank: 2, lost: PeerFailure::Unreachable }));
    let seconds = ended[&open].0 / 1_000_000_000;
    assert!((120..122).contains(&seconds), "after {seconds} s");
}

#[test]
fn unreceived_messages_stop_the_sender_by_credit() {
    // Messages without receives: as many as credit allows are acknowledged, and no more are sent. No sender
    // takes that for a dead peer.
    let mut sim = job(3, 2, conditions(Faults { lost: 20, ..NONE }));
    let budget = u64::from(sim.engine(1).config().budget);
    for number in 0..5000 {
        sim.engine(0).send(1, 0, 0, SimMemory::pattern(number, 4000), 4000, false);
    }
    sim.wake(0, 0);
    sim.wake(1, 0);
    while sim.step().is_some() {}
    assert!(sim.engine(0).wire().due().is_none(), "a sent packet is unacknowledged");
    let kept = sim.engine(1).kept();
    assert!(kept > budget / 8 && kept <= budget, "{kept}");
    let waiting = sim.engine(0).under_way();
    assert!(waiting > 3000, "{waiting}");
    // The receiver continues a thousand seconds later.
    sim.wake(1, 1_000_000_000_000);
    while sim.step().is_some() {}
    let receives = Receives::post(&mut sim, 1, 5000);
    sim.wake(1, 0);
    while sim.step().is_some() {}
    receives.check(&mut sim, 1, 4000);
}

#[test]
fn incast_senders_share_the_receivers_slots() {
    // A peer learns its share from the first acknowledgement.
    let ranks = 33;
    let mut resends = Vec::new();
    for room in [64, u64::MAX] {
        let conditions = Conditions { slots: 64, pause: 20_000..100_000, picoseconds: 100, ..conditions(NONE) };
        let settings = Settings { room, ..Settings::default() };
        let over = |wire| Delivery::new(wire, settings);
        let mut sim = Sim::over(5, conditions, vec![config(); ranks], over).unwrap();
        for from in 1..ranks as Rank {
            for number in 0..60 {
                sim.engine(from).send(0, 0, 0, SimMemory::pattern(number, 3000), 3000, false);
                sim.engine(0).receive(Select { source: Some(from), ..ANY }, RecvTarget::Allocate);
            }
        }
        (0..ranks as Rank).for_each(|rank| sim.wake(rank, 0));
        while sim.step().is_some() {}
        for _ in 0..60 * (ranks - 1) {
            assert!(sim.engine(0).completed().expect("a receive did not complete").result.is_ok());
        }
        resends.push((1..ranks as Rank).map(|rank| sim.engine(rank).counters().resends).sum::<u64>());
    }
    println!("resends: {resends:?}");
    assert!(2 * resends[0] < resends[1], "{resends:?}");
}

/// A rail that delivers nothing from a given time on. It accepts all datagrams, or `refuses` them.
struct Mute {
    rail: usize,
    from: u64,
    refuses: bool,
    lost: Rc<RefCell<u64>>,
}

impl Change for Mute {
    fn post(&mut self, wire: &mut SimWire, lane: Lane, request: Request<'_, SimMemory>) -> Result<(), Busy> {
        if lane.rail == self.rail && wire.now() >= self.from {
            *self.lost.borrow_mut() += 1;
            return if self.refuses { Err(Busy) } else { Ok(()) };
        }
        wire.post(lane, request)
    }
}

#[test]
fn rail_that_loses_all_packets_is_avoided() {
    let lost = Rc::new(RefCell::new(0));
    let mut conditions = conditions(NONE);
    conditions.rails = vec![conditions.rails[0]; 3];
    let config = || Config { spread: Spread::RoundRobin, ..config() };
    let over = |wire| {
        let change = Mute { rail: 1, from: 200_000, refuses: false, lost: lost.clone() };
        Delivery::new(Changed { wire, change }, Settings::default())
    };
    let mut sim = Sim::over(7, conditions, vec![config(); 2], over).unwrap();
    for number in 0..500 {
        sim.engine(0).send(1, 0, 0, SimMemory::pattern(number, 4000), 4000, false);
    }
    let receives = Receives::post(&mut sim, 1, 500);
    sim.wake(0, 0);
    sim.wake(1, 0);
    while sim.step().is_some() {}
    receives.check(&mut sim, 1, 4000);
    let (lost, resends) = (*lost.borrow(), sim.engine(0).counters().resends);
    // If the loss were not detected, a third of all datagrams, more than 160, would be lost.
    assert!((8..100).contains(&lost) && resends >= 8, "{lost} packets lost, {resends} resent");
}

/// Number of sends by each of three rails from rank 0 to rank 1 and back, for messages with this spread, and of sends by
/// the first rail that are lost if it is mute.
fn sends_by_rail(spread: Spread, messages: u64, is_mute: bool) -> ([[u64; 3]; 2], u64) {
    let lost = Rc::new(RefCell::new(0));
    let mut conditions = conditions(NONE);
    conditions.rails = vec![conditions.rails[0]; 3];
    let over = |wire| {
        let from = if is_mute { 0 } else { u64::MAX };
        let change = Mute { rail: 0, from, refuses: false, lost: lost.clone() };
        Delivery::new(Changed { wire, change }, Settings::default())
    };
    let configs = vec![Config { spread, ..config() }; 2];
    let mut sim = Sim::over(7, conditions, configs, over).unwrap();
    for number in 0..messages {
        sim.engine(0).send(1, 0, 0, SimMemory::pattern(number, 4000), 4000, false);
    }
    let receives = Receives::post(&mut sim, 1, messages);
    sim.wake(0, 0);
    sim.wake(1, 0);
    while sim.step().is_some() {}
    receives.check(&mut sim, 1, 4000);
    let lost = *lost.borrow();
    ([0, 1].map(|rank| [0, 1, 2].map(|rail| sim.traffic(rank)[rail].sends.requests)), lost)
}

/// More messages are sent than may be in flight. Acknowledgements take the rail of the last packet.
#[test]
fn packets_keep_to_the_rails_of_their_spread() {
    let ([there, back], _) = sends_by_rail(Spread::First, 500, false);
    assert_eq!(([there[1], there[2]], [back[1], back[2]]), ([0; 2], [0; 2]), "{there:?}, {back:?}");
    assert!(there[0] >= 500 && back[0] > 0, "{there:?}, {back:?}");
    let ([there, _], _) = sends_by_rail(Spread::Window(2), 500, false);
    assert!(there.iter().all(|sends| (150..200).contains(sends)), "{there:?}");
}

/// Messages in pairs by the first rail. Rank 1 sends acknowledgements only, and those by the first rail are lost.
#[test]
fn acknowledgements_avoid_a_rail_that_is_dead_one_way() {
    let lost = Rc::new(RefCell::new(0));
    let mut conditions = conditions(NONE);
    conditions.rails = vec![conditions.rails[0]; 2];
    let configs = vec![Config { spread: Spread::First, credit_delay: 1 << 40, ..config() }; 2];
    let ranks = Cell::new(0);
    let over = |wire| {
        let from = if ranks.replace(ranks.get() + 1) == 0 { u64::MAX } else { 0 };
        let change = Mute { rail: 0, from, refuses: false, lost: lost.clone() };
        Delivery::new(Changed { wire, change }, Settings::default())
    };
    let mut sim = Sim::over(7, conditions, configs, over).unwrap();
    let mut receives = Vec::new();
    let due = |sim: &mut Sim<Delivery<Changed<Mute>>>| sim.engine(0).wire().due().is_some();
    for round in 0..100 {
        for number in [2 * round, 2 * round + 1] {
            sim.engine(0).send(1, 0, 0, SimMemory::pattern(number, 8), 8, false);
            receives.push(sim.engine(1).receive(ANY, RecvTarget::Allocate));
        }
        sim.wake(0, 0);
        // Until both are acknowledged; the first two need lanes.
        while sim.step().is_some() && (round == 0 || due(&mut sim)) {}
    }
    Receives(receives).check(&mut sim, 1, 8);
    let (resends, lost) = (sim.engine(0).counters().resends, *lost.borrow());
    println!("{resends} resends, {lost} acknowledgements lost, {} ns", sim.now());
    // A rail is tried again after 8 ms.
    assert!((1..30).contains(&resends) && lost > 0, "{resends} resends, {lost} lost");
}

#[test]
fn resent_packets_take_a_rail_outside_their_spread() {
    let ([there, _], lost) = sends_by_rail(Spread::First, 1, true);
    // A message and its credits. If they were resent by the first rail, 8 losses would have to show that it is mute.
    assert!(there[0] == 0 && (1..8).contains(&lost), "{there:?}, {lost} lost");
}

/// A packet that was sent by the rail with the longest datagrams may be resent by any other.
#[test]
fn packets_fit_the_shortest_datagrams() {
    let mut conditions = conditions(Faults { lost: 100, ..NONE });
    conditions.rails = vec![conditions.rails[0], Rail { longest: 2048, ..conditions.rails[0] }];
    let config = Config { spread: Spread::RoundRobin, ..config() };
    let over = |wire| Delivery::new(wire, Settings::default());
    let mut sim = Sim::over(7, conditions, vec![config; 2], over).unwrap();
    for number in 0..100 {
        sim.engine(0).send(1, 0, 0, SimMemory::pattern(number, 4000), 4000, false);
    }
    let receives = Receives::post(&mut sim, 1, 100);
    sim.wake(0, 0);
    sim.wake(1, 0);
    while sim.step().is_some() {}
    receives.check(&mut sim, 1, 4000);
    assert!(sim.engine(0).counters().resends > 5);
}

/// An adapter that never reports that its sends are complete accepts no more once its queue is full.
#[test]
fn rail_that_refuses_for_good_loses_the_peer() {
    let settings = Settings { give_up: 10_000_000, ..Settings::default() };
    let over = |wire| {
        let change = Mute { rail: 0, from: 50_000_000, refuses: true, lost: Rc::default() };
        Delivery::new(Changed { wire, change }, settings)
    };
    let mut sim = Sim::over(7, conditions(NONE), vec![config(); 2], over).unwrap();
    let ping = |sim: &mut Sim<Delivery<Changed<Mute>>>| {
        sim.engine(1).receive(Select { context: 0, source: Some(0), tag: None }, RecvTarget::Allocate);
        sim.engine(0).send(1, 0, 0, SimMemory::zero(8), 8, true);
        (0..2).for_each(|rank| sim.wake(rank, 0));
        while sim.step().is_some() && sim.now() < 1_000_000_000 {}
        sim.engine(0).completed().expect("the send ends").result
    };
    assert!(ping(&mut sim).is_ok());
    assert!(sim.now() < 50_000_000);
    sim.wake(0, 50_000_000);
    sim.step();
    let began = sim.now();
    let lost = ping(&mut sim).unwrap_err();
    assert_eq!(lost, Error::PeerFailure { rank: 1, lost: PeerFailure::Unreachable });
    let took = sim.now() - began;
    assert!((10_000_000..12_000_000).contains(&took), "{took} ns");
}

#[test]
fn duplicated_datagrams_are_delivered_once() {
    let mut sim = job(2, 2, conditions(Faults { doubled: 1000, lost: 200, ..NONE }));
    // The engines are stopped: only this test polls the wires.
    (0..2).for_each(|rank| sim.stop(rank, true));
    let lane = |peer| Lane { peer, rail: 0 };
    sim.engine(0).wire().connect(lane(1));
    let (mut came, mut posted) = (Vec::new(), 0_u8);
    for _ in 0..2000 {
        (0..2).for_each(|rank| sim.wake(rank, 1000));
        sim.step();
        while let Some(event) = sim.engine(1).wire().poll() {
            if let Event::Arrived { slot, at, length, .. } = event {
                let mut byte = [0];
                slot.read(at, &mut byte);
                came.push((byte[0], length));
                sim.engine(1).wire().give(slot);
            }
        }
        while sim.engine(0).wire().poll().is_some() {}
        let request = Request::Send { head: &[posted], body: Data::None };
        if posted < 200 && sim.engine(0).wire().post(lane(1), request).is_ok() {
            posted += 1;
        }
    }
    came.sort();
    assert_eq!(came, (0..200).map(|number| (number, 1)).collect::<Vec<_>>());
    let counts = [0, 1].map(|rank| sim.engine(rank).counters());
    assert!(counts[0].resends > 0 && counts[1].old > 0, "{counts:?}");
    assert!((0..2).all(|rank| sim.engine(rank).wire().due().is_none()), "a wire has packets due at the end");
}

#[test]
fn arbitrary_datagrams_affect_only_their_sender() {
    let (mut cut_off, mut spoiled) = (0, 0);
    for seed in 0..rounds(300) {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut sim = job(seed, 3, conditions(Faults { lost: 20, ..NONE }));
        let mut open = BTreeMap::new();
        for (a, b) in [(0, 1), (1, 0), (1, 2), (2, 1)] {
            for length in [0, 3000, 30_000] {
                let id = sim.engine(a).send(b, 0, 0, SimMemory::pattern(5, length), length, false);
                open.insert((a, id), b);
                let id = sim.engine(b).receive(Select { source: Some(a), ..ANY }, RecvTarget::Allocate);
                open.insert((b, id), a);
            }
        }
        (0..3).for_each(|rank| sim.wake(rank, 0));
        let mut steps = 0;
        while let Some(rank) = sim.step() {
            steps += 1;
            if steps < 400 && rng.bool() {
                let near = |rng: &mut fastrand::Rng| if rng.bool() { rng.u64(..70) } else { rng.u64(..) };
                let kind = Kind::Packet { number: near(&mut rng), sending: near(&mut rng), is_note: rng.u8(..4) == 0 };
                let (before, newest, permitted) = (near(&mut rng), near(&mut rng), rng.u16(..));
                let mask = near(&mut rng) & near(&mut rng);
                let told = Acknowledgement { before, mask, newest, permitted };
                let told = if rng.bool() { told } else { Acknowledgement::default() };
                let kind = if rng.bool() { kind } else { Kind::Alone };
                let mut head = Header { kind, told }.encode(rng.bool().then_some(0)).to_vec();
                (0..rng.usize(..80)).for_each(|_| head.push(rng.u8(..13)));
                if rng.u8(..4) == 0 {
                    head.truncate(rng.usize(1..head.len()));
                }
                let request = Request::Send { head: &head, body: Data::None };
                let _ = sim.engine(0).wire().wire_mut().post(Lane { peer: 1, rail: 0 }, request);
            }
            while let Some(done) = sim.engine(rank).completed() {
                let peer = open.remove(&(rank, done.id)).expect("a request completed twice");
                if rank + peer == 3 {
                    let length = done.result.expect("an operation between ranks 1 and 2 failed").length as usize;
                    assert!(length == 0 || done.memory.unwrap().whose(length) == Some(5), "seed {seed}");
                } else {
                    cut_off += u32::from(rank == 1 && done.result.is_err());
                }
            }
        }
        open.retain(|(rank, _), peer| rank + *peer == 3);
        assert!(open.is_empty(), "seed {seed}: {open:?}");
        spoiled += sim.engine(1).counters().spoiled;
    }
    assert!(
        cut_off > 100 && spoiled > 1000,
        "{cut_off} requests failed, {spoiled} invalid datagrams; expected more of each"
    );
}

#[test]
fn who_dies_or_is_cut_off_keeps_nobody() {
    for (kill, why) in [(true, PeerFailure::Died), (false, PeerFailure::Unreachable)] {
        let mut sim = job(4, 3, conditions(Faults { lost: 100, ..NONE }));
        for peer in [1, 2] {
            sim.engine(0).send(peer, 0, 0, SimMemory::pattern(1, 1 << 20), 1 << 20, false);
            sim.engine(peer).receive(ANY, RecvTarget::Allocate);
        }
        (0..3).for_each(|rank| sim.wake(rank, 0));
        (0..60).for_each(|_| _ = sim.step());
        if kill {
            sim.kill(1);
        } else {
            sim.engine(1).wire().abort_peer(0);
            sim.stop(1, true);
        }
        while sim.step().is_some() {}
        let results: Vec<_> = std::iter::from_fn(|| sim.engine(0).completed()).map(|done| done.result).collect();
        assert!(results.contains(&Err(Error::PeerFailure { rank: 1, lost: why })), "{results:?}");
        assert!(results.iter().any(Result::is_ok), "{results:?}");
        assert!(sim.engine(0).wire().due().is_none());
    }
}
