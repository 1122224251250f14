//! Floods: a rank's buffers are bounded, no message is lost, and other ranks proceed.

use std::collections::{HashMap, HashSet};
use transom_channel::sim::{Conditions, Sim, SimMemory};
use transom_channel::{Config, Error, Id, Rank, RecvTarget, Select};

const TAG: u32 = 3;

fn any(tag: Option<u32>) -> Select {
    Select { context: 0, source: None, tag }
}

struct Flood {
    sim: Sim,
    kept: Vec<u64>,
    /// Numbers of the messages that each receiver got, in the order in which its receives were posted.
    came: Vec<Vec<u64>>,
    receives: HashMap<(Rank, Id), usize>,
    sent: usize,
    sends: HashSet<(Rank, Id)>,
}

impl Flood {
    fn new(ranks: Rank, config: &Config) -> Flood {
        let conditions = Conditions { slots: 16, ..Conditions::default() };
        let sim = Sim::new(1, ranks, conditions, config).unwrap();
        Flood {
            sim,
            kept: vec![0; ranks as usize],
            came: vec![Vec::new(); ranks as usize],
            sent: 0,
            sends: HashSet::new(),
            receives: HashMap::new(),
        }
    }

    fn send(&mut self, from: Rank, to: Rank, tag: u32, number: u64, length: usize) {
        let id = self.sim.engine(from).send(to, 0, tag, SimMemory::pattern(number, length), length, false);
        self.sends.insert((from, id));
        self.sim.wake(from, 0);
    }

    fn receive(&mut self, at: Rank, select: Select) {
        self.receive_into(at, select, RecvTarget::Allocate);
    }

    fn receive_into(&mut self, at: Rank, select: Select, room: RecvTarget<SimMemory>) {
        let id = self.sim.engine(at).receive(select, room);
        self.receives.insert((at, id), self.came[at as usize].len());
        self.came[at as usize].push(u64::MAX);
        self.sim.wake(at, 0);
    }

    /// Runs until nothing happens any more.
    fn run(&mut self) {
        let mut steps = 0;
        while let Some(rank) = self.sim.step() {
            steps += 1;
            assert!(steps < 20_000_000, "the ranks are not at rest");
            let engine = self.sim.engine(rank);
            self.kept[rank as usize] = self.kept[rank as usize].max(engine.kept());
            while let Some(done) = engine.completed() {
                let (status, memory) = (done.result.unwrap(), done.memory.unwrap());
                if self.sends.remove(&(rank, done.id)) {
                    self.sent += 1;
                } else {
                    let nth = self.receives.remove(&(rank, done.id)).unwrap();
                    self.came[rank as usize][nth] = memory.whose(status.length as usize).unwrap();
                }
            }
        }
    }
}

/// Several receives wait for messages behind a flood: the credit that admits the first envelope must admit
/// the others too.
#[test]
fn receives_posted_behind_a_flood_complete() {
    for source in [Some(0), None] {
        let mut flood = Flood::new(2, &Config { budget: 0, ..Config::default() });
        for number in 0..20 {
            flood.send(0, 1, TAG, number, 100);
        }
        flood.run();
        for _ in 0..3 {
            flood.receive(1, Select { context: 0, source, tag: Some(TAG + 1) });
        }
        for number in 20..23 {
            flood.send(0, 1, TAG + 1, number, 100_000);
        }
        flood.run();
        assert_eq!(flood.came[1], [20, 21, 22]);
    }
}

/// Receives into buffers, through a ring, with envelopes of other messages in between.
#[test]
fn buffer_receives_behind_a_flood_complete() {
    let mut flood = Flood::new(2, &Config { budget: 0, ring_after: 1, ..Config::default() });
    let select = |tag| Select { context: 0, source: Some(0), tag: Some(tag) };
    for number in 0..100 {
        flood.receive_into(1, select(TAG), RecvTarget::Into(SimMemory::zero(16), 16));
        flood.send(0, 1, TAG, number, 16);
        flood.run();
    }
    // Uses up all credit.
    for number in 100..104 {
        flood.send(0, 1, TAG + 1, number, 0);
    }
    flood.run();
    assert_eq!(flood.kept[1], 256);
    for _ in 0..100 {
        flood.receive_into(1, select(TAG), RecvTarget::Into(SimMemory::zero(16), 16));
    }
    for number in 104..204 {
        flood.send(0, 1, TAG, number, 16);
    }
    flood.run();
    assert!(flood.came[1].iter().copied().eq((0..100).chain(104..204)), "{:?}", flood.came[1]);
    assert!(flood.sim.engine(0).counters().ring_packets >= 150, "{:?}", flood.sim.engine(0).counters());
}

/// Peers that sent first and are silent now do not hold all of the budget.
#[test]
fn late_peers_still_get_credit() {
    let mut flood = Flood::new(20, &Config::default());
    for number in 1..20 {
        // The first message makes the peer known; it has a share afterwards.
        for length in [16, 4000] {
            flood.send(number, 0, TAG, number.into(), length);
            flood.run();
        }
        let counters = flood.sim.engine(number).counters();
        assert_eq!((counters.eager, counters.rendezvous), (2, 0), "the peer that comes as number {number}");
    }
}

#[test]
fn flood_without_receives_stays_within_budget() {
    for (config, most) in [
        (Config::default(), 256 + (4 << 20) / 8),
        (Config { budget: 0, ..Config::default() }, 256),
        (Config { eager: 0, ..Config::default() }, 256 + (4 << 20) / 8),
        (Config { rings: 0, budget: 10_000, ..Config::default() }, 256 + 1250),
    ] {
        let mut flood = Flood::new(2, &config);
        for number in 0..5000 {
            flood.send(0, 1, TAG, number, 1000);
        }
        flood.run();
        // All envelopes, and the data that credit allowed.
        let data = flood.kept[1] - 5000 * 64;
        assert!(data <= most, "{data} of {most}");
        let eager = flood.sim.engine(0).counters().eager;
        assert_eq!(data, 1000 * eager);
        assert!(
            config.eager == 0 || eager + 1 >= most / 1064,
            "{eager} eager messages, expected the grant of {most} bytes to be used"
        );
        assert_eq!(flood.sim.engine(1).under_way(), 0);
        for _ in 0..5000 {
            flood.receive(1, any(Some(TAG)));
        }
        flood.run();
        assert!(flood.came[1] == (0..5000).collect::<Vec<_>>(), "messages arrived out of order");
        assert_eq!(flood.sent, 5000);
        flood.sim.engine(0).at_rest().unwrap();
        flood.sim.engine(1).at_rest().unwrap();
    }
}

#[test]
fn flood_to_a_stopped_receiver_arrives_later() {
    let mut flood = Flood::new(4, &Config::default());
    flood.sim.stop(1, true);
    for number in 0..2000 {
        flood.send(0, 1, TAG, number, 3000);
        // Traffic between other ranks proceeds.
        flood.send(2, 3, TAG, number, 3000);
        flood.receive(3, any(None));
    }
    flood.run();
    assert!(flood.came[3] == (0..2000).collect::<Vec<_>>(), "messages arrived out of order");
    assert_eq!(flood.kept[1], 0);
    flood.sim.stop(1, false);
    for _ in 0..2000 {
        flood.receive(1, any(None));
    }
    flood.run();
    assert!(flood.came[1] == (0..2000).collect::<Vec<_>>(), "messages arrived out of order");
    assert_eq!(flood.sent, 4000);
}

/// Short messages need no credit: they are sent with their data, and their sends complete although nothing is
/// received.
#[test]
fn short_messages_are_sent_eagerly_on_overdraft() {
    for (length, announced) in [(8, 0), (64, 0), (65, 5000 - 1), (160, 5000 - 1)] {
        let mut flood = Flood::new(2, &Config { budget: 0, ..Config::default() });
        for number in 0..5000 {
            flood.send(0, 1, TAG, number, length);
        }
        flood.run();
        let counters = flood.sim.engine(0).counters();
        assert_eq!(counters.eager + counters.rendezvous, 5000);
        assert!(counters.rendezvous.abs_diff(announced) < 4, "{length} B: {} announced", counters.rendezvous);
        assert_eq!(flood.sent as u64, counters.eager, "{length} B: a message that has gone with its data is sent");
        assert!(counters.overdrawn >= 4990, "{length} B: {}", counters.overdrawn);
        (0..5000).for_each(|_| flood.receive(1, any(Some(TAG))));
        flood.run();
        assert!(flood.came[1] == (0..5000).collect::<Vec<_>>(), "{length} B: messages arrived out of order");
        assert_eq!((flood.sent, flood.sim.engine(1).kept()), (5000, 0));
        (0..2).for_each(|rank| flood.sim.engine(rank).at_rest().unwrap());
    }
}

/// A send beyond the overdraft fails and names the receiver. The next send succeeds once a message was
/// received.
#[test]
fn send_beyond_the_overdraft_fails() {
    for length in [8, 1000] {
        let mut sim =
            Sim::new(1, 2, Conditions::default(), &Config { budget: 0, overdraft: 1024, ..Config::default() }).unwrap();
        let settle = |sim: &mut Sim| {
            (0..2).for_each(|rank| sim.wake(rank, 0));
            while sim.step().is_some() {}
        };
        let send = |sim: &mut Sim| {
            let id = sim.engine(0).send(1, 0, TAG, SimMemory::pattern(1, length), length, false);
            settle(sim);
            let ended = std::iter::from_fn(|| sim.engine(0).completed()).find(|done| done.id == id);
            ended.map(|done| done.result.map(|_| ()))
        };
        let full = Some(Err(Error::Overdrawn { rank: 1, overdraft: 1024 }));
        let went = (0..100).take_while(|_| send(&mut sim) != full).count();
        // 1280 bytes of credit and overdraft: envelopes of 64 bytes, and 8 bytes of data.
        assert_eq!(went, if length == 8 { 17 } else { 20 });
        assert_eq!(send(&mut sim), full);
        sim.engine(1).receive(any(Some(TAG)), RecvTarget::Allocate);
        settle(&mut sim);
        assert_ne!(send(&mut sim), full);
        assert_eq!(send(&mut sim), full);
    }
}

#[test]
fn flood_of_64_senders_stays_within_budget() {
    let config = Config { budget: 20_000, ..Config::default() };
    let mut flood = Flood::new(65, &config);
    for number in 0..100 {
        for from in 1..65 {
            flood.send(from, 0, TAG, u64::from(from) * 1000 + number, 500);
        }
    }
    flood.run();
    assert!(flood.kept[0] <= 20_000 + 64 * 256 + 6400 * 64, "{}", flood.kept[0]);
    assert!(flood.sim.engine(0).ring_bytes() <= 8 * 32 * 2048);
    for _ in 0..6400 {
        flood.receive(0, any(None));
    }
    flood.run();
    for from in 1..65 {
        let of: Vec<u64> = flood.came[0].iter().copied().filter(|number| number / 1000 == from).collect();
        assert!(of == (from * 1000..from * 1000 + 100).collect::<Vec<_>>(), "messages arrived out of order");
    }
    assert_eq!((flood.came[0].len(), flood.sent), (6400, 6400));
    (0..65).for_each(|rank| flood.sim.engine(rank).at_rest().unwrap());
}

#[test]
fn receive_matches_message_behind_a_flood() {
    let config = Config { budget: 0, ..Config::default() };
    for select in [Select { context: 0, source: Some(0), tag: Some(9) }, any(Some(9))] {
        for first in [true, false] {
            let mut flood = Flood::new(2, &config);
            if first {
                flood.receive(1, select);
            }
            for number in 0..10_000 {
                flood.send(0, 1, TAG, number, 700);
            }
            flood.send(0, 1, 9, 77_777, 700);
            flood.run();
            if !first {
                assert!(flood.kept[1] >= 10_001 * 64, "an envelope did not arrive before its receive");
                flood.receive(1, select);
                flood.run();
            }
            assert_eq!(flood.came[1], [77_777]);
            // Envelopes alone, without data beyond the floor.
            assert!(flood.kept[1] <= 10_001 * 64 + 256, "{}", flood.kept[1]);
        }
    }
}

/// Repeated probes wait as a receive does.
#[test]
fn probe_finds_message_behind_a_flood() {
    let config = Config { budget: 0, ..Config::default() };
    for select in [Select { context: 0, source: Some(0), tag: Some(9) }, any(Some(9))] {
        for peeks in [true, false] {
            let mut flood = Flood::new(2, &config);
            for number in 0..1000 {
                flood.send(0, 1, TAG, number, 700);
            }
            flood.send(0, 1, 9, 77_777, 700);
            let mut looks = 0..2000;
            loop {
                assert!(looks.next().is_some(), "the probe found no message in 2000 tries");
                flood.run();
                let engine = flood.sim.engine(1);
                let found = if peeks {
                    engine.peek(select).unwrap().is_some()
                } else {
                    engine.try_probe(select).unwrap().is_some()
                };
                flood.sim.wake(1, 0);
                if found {
                    break;
                }
            }
        }
    }
}

#[test]
fn synchronous_send_completes_after_its_receive() {
    for length in [0, 100, 100_000] {
        let mut sim = Sim::new(2, 2, Conditions::default(), &Config::default()).unwrap();
        let id = sim.engine(0).send(1, 0, TAG, SimMemory::pattern(1, length), length, true);
        sim.wake(0, 0);
        while sim.step().is_some() {}
        assert!(sim.engine(0).completed().is_none());
        assert_eq!(sim.engine(1).peek(any(None)).unwrap().unwrap().length, length as u64);
        sim.engine(1).receive(any(None), RecvTarget::Into(SimMemory::zero(length), length));
        sim.wake(1, 0);
        while sim.step().is_some() {}
        assert_eq!(sim.engine(0).completed().unwrap().id, id);
        assert!(sim.engine(1).completed().unwrap().result.is_ok());
    }
}

#[test]
fn flood_among_1024_ranks_stays_within_budget() {
    let ranks = 1024;
    let mut flood = Flood::new(ranks, &Config::default());
    // Neighbours at growing distances, as in CG or an allreduce; odd ranks receive, even ranks send.
    for from in (0..ranks).step_by(2) {
        for distance in [1u32, 3, 9, 27, 81, 243, 729] {
            for number in 0..20 {
                flood.send(from, (from + distance) % ranks, TAG, number, 200);
                flood.receive((from + distance) % ranks, any(None));
            }
        }
    }
    flood.run();
    assert_eq!(flood.sent, 512 * 7 * 20);
    for rank in 0..ranks {
        let engine = flood.sim.engine(rank);
        engine.at_rest().unwrap();
        assert!(engine.ring_bytes() <= 8 * 32 * 2048);
        assert!(flood.kept[rank as usize] <= (4 << 20) + 7 * 256 + 20 * 7 * 64);
    }
}
