//! Connections to the peers of most traffic: the state machine in every state that two sides can reach, and
//! engines under caps.

use std::collections::{BTreeSet, VecDeque};
use transom_channel::connection::{Act, Connection, Here, Say};
use transom_channel::delivery::{Delivery, Settings};
use transom_channel::sim::{Conditions, Faults, Sim, SimMemory, SimWire};
use transom_channel::wire::{Data, Part, Rail, RailKind};
use transom_channel::{Config, Rank, RecvTarget, Select};

/// Two sides, the messages of each that the other has not received, in order, and the calls that they may
/// still make.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Pair {
    sides: [Side; 2],
    said: [VecDeque<u8>; 2],
    starts: u8,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Side {
    /// Number of the state; [`Connection`] has no order.
    phase: u8,
    /// `uses`: this side uses the lanes. `room`: it has reserved room for them.
    uses: bool,
    room: bool,
}

const PHASES: [Connection; 5] =
    [Connection::None, Connection::Asked, Connection::Held, Connection::Leaving, Connection::Left];

fn number(phase: Connection) -> u8 {
    PHASES.iter().position(|one| *one == phase).unwrap() as u8
}

fn say(pair: &mut Pair, side: usize, say: Option<Say>) {
    pair.said[side].extend(say.map(|say| Say::ALL.iter().position(|one| *one == say).unwrap() as u8));
}

/// All states that may follow.
fn next(pair: &Pair) -> Vec<Pair> {
    let mut all = Vec::new();
    for side in 0..2 {
        if pair.starts > 0 {
            for leaves in [false, true] {
                let mut new = pair.clone();
                let mut phase = PHASES[usize::from(new.sides[side].phase)];
                let said = if leaves { phase.leave() } else { phase.ask() };
                if said.is_some() {
                    new.starts -= 1;
                    new.sides[side] = Side { phase: number(phase), uses: false, room: true };
                    say(&mut new, side, said);
                    all.push(new);
                }
            }
        }
        let Some(heard) = pair.said[1 - side].front() else { continue };
        for (has_room, is_quiet) in [(false, false), (false, true), (true, false), (true, true)] {
            let mut new = pair.clone();
            new.said[1 - side].pop_front();
            let mut phase = PHASES[usize::from(new.sides[side].phase)];
            let here = Here { has_room, is_quiet, yields: side == 0 };
            let then = phase
                .told(Say::ALL[usize::from(*heard)], here)
                .expect("a connection message arrived in an unexpected state");
            let own = &mut new.sides[side];
            own.phase = number(phase);
            match then.act {
                Some(Act::Connect) => (own.uses, own.room) = (true, true),
                Some(Act::Resume) => own.uses = true,
                Some(Act::Stop) => own.uses = false,
                Some(Act::Forget) => own.room = false,
                Some(Act::Disconnect) => {
                    assert!(!own.uses);
                    own.room = false;
                    assert!(
                        !new.sides[1 - side].uses,
                        "disconnected while the peer still uses the connection: {pair:?}"
                    );
                }
                None => {}
            }
            assert_eq!(
                new.sides[side].room,
                phase != Connection::None,
                "reserved room differs from the connection's state"
            );
            say(&mut new, side, then.say);
            all.push(new);
        }
    }
    all
}

#[test]
fn connection_states_of_both_sides_converge() {
    let first = Pair { sides: Default::default(), said: Default::default(), starts: 6 };
    let (mut seen, mut waiting) = (BTreeSet::from([first.clone()]), vec![first]);
    let mut ends = BTreeSet::new();
    while let Some(pair) = waiting.pop() {
        if pair.said.iter().all(VecDeque::is_empty) {
            let phases = pair.sides.clone().map(|side| side.phase);
            assert!(phases == [0, 0] || phases == [2, 2], "{pair:?}");
            assert!(pair.sides.iter().all(|side| side.uses == (side.phase == 2)), "{pair:?}");
            ends.insert(phases);
        }
        waiting.extend(next(&pair).into_iter().filter(|pair| seen.insert(pair.clone())));
    }
    assert_eq!(ends.len(), 2);
    assert!(seen.len() > 100, "{}", seen.len());
}

#[test]
fn unexpected_connection_messages_are_refused() {
    let here = Here { has_room: true, is_quiet: true, yields: true };
    let fits: Vec<(Connection, Vec<Say>)> = vec![
        (Connection::None, vec![Say::Ask]),
        (Connection::Asked, vec![Say::Ask, Say::Accept, Say::Refuse]),
        (Connection::Held, vec![Say::Leave]),
        (Connection::Leaving, vec![Say::Leave, Say::Left, Say::Stay]),
        (Connection::Left, vec![Say::Gone]),
    ];
    for (phase, says) in fits {
        for say in Say::ALL {
            let mut after = phase;
            let told = after.told(say, here);
            assert_eq!(told.is_ok(), says.contains(&say), "{phase:?} {say:?}");
            assert!(told.is_ok() || after == phase);
        }
    }
}

type Wires = Delivery<SimWire>;

fn job(ranks: Rank, host: Rank, lost: u32, config: &Config) -> Sim<Wires> {
    job_of(5, ranks, host, lost, config)
}

fn job_of(seed: u64, ranks: Rank, host: Rank, lost: u32, config: &Config) -> Sim<Wires> {
    let rail = Conditions::default().rails[0];
    let datagrams = Rail { kind: RailKind::Datagram, longest: 2048 + 96, read: false, write: false, ..rail };
    let memory = Rail { kind: RailKind::Memory, ..rail };
    let faults = Some(Faults { lost, doubled: 0, late: 0, delay: 0..1, flipped: 0 });
    let conditions = Conditions { rails: vec![rail, datagrams, memory], host, faults, ..Conditions::default() };
    let configs = vec![config.clone(); ranks as usize];
    Sim::over(seed, conditions, configs, |wire| Delivery::new(wire, Settings::default())).unwrap()
}

fn aptus(text: &str) -> Config {
    text.parse::<transom_channel::Changes>().unwrap().of(Config::default())
}

/// Sends `messages` messages one after the other for each pair; all arrive whole.
fn exchange(sim: &mut Sim<Wires>, pairs: &[(Rank, Rank)], messages: u64, length: usize) {
    for number in 0..messages {
        for (from, to) in pairs {
            sim.engine(*to).receive(Select { context: 0, source: Some(*from), tag: None }, RecvTarget::Allocate);
            sim.engine(*from).send(*to, 0, 0, SimMemory::pattern(number, length), length, false);
            sim.wake(*from, 0);
            sim.wake(*to, 0);
        }
        while let Some(rank) = sim.step() {
            while let Some(done) = sim.engine(rank).completed() {
                assert!(done.result.is_ok());
                assert_eq!(done.memory.unwrap().whose(length), Some(number));
            }
        }
    }
}

fn all_to_all(ranks: Rank) -> Vec<(Rank, Rank)> {
    (1..ranks).flat_map(|by| (0..ranks).map(move |rank| (rank, (rank + by) % ranks))).collect()
}

#[test]
fn connections_and_rings_stay_within_limits() {
    let mut sim = job(12, 0, 10, &aptus("aptus,connections=3,rings=2,connect_after=4,ring_after=8"));
    exchange(&mut sim, &all_to_all(12), 30, 100);
    let mut total = 0;
    for rank in 0..12 {
        let channels = sim.engine(rank).channels();
        assert_eq!((channels.near, channels.datagrams), (0, 11));
        assert!(channels.connections <= 3 && channels.rings <= 2, "{channels:?}");
        total += channels.connections;
        sim.engine(rank).at_rest().unwrap();
    }
    // A rank may find all others full, or have asked other peers.
    assert!(total >= 12 * 3 - 8, "{total}");
    let refusals: u64 = (0..12).map(|rank| sim.engine(rank).counters().refusals).sum();
    assert!(refusals > 0);
}

#[test]
fn peers_below_threshold_get_no_connection() {
    let mut sim = job(4, 0, 0, &aptus("aptus"));
    exchange(&mut sim, &all_to_all(4), 15, 100);
    for rank in 0..4 {
        let engine = sim.engine(rank);
        assert_eq!((engine.channels().connections, engine.channels().rings, engine.ring_bytes()), (0, 0, 0));
    }
    exchange(&mut sim, &all_to_all(4), 1, 100);
    assert!((0..4).all(|rank| sim.engine(rank).channels().connections == 3));
}

/// A message counts towards a connection only if the rules would send it there.
#[test]
fn datagram_messages_earn_no_connection() {
    // Without rings the slides send up to 2,008 bytes as datagrams even to a peer with a connection.
    let connections = |length, messages| {
        let mut sim = job(2, 0, 0, &aptus("aptus,rings=0"));
        exchange(&mut sim, &[(0, 1)], messages, length);
        sim.engine(0).channels().connections
    };
    assert_eq!([connections(2008, 40), connections(2009, 15), connections(2009, 16)], [0, 0, 1]);
    // Long ones move by a connection, though their announcements are datagrams.
    assert_eq!([connections(100_000, 15), connections(100_000, 16)], [0, 1]);
    // With rings the short ones would be there.
    let mut sim = job(2, 0, 0, &aptus("aptus"));
    exchange(&mut sim, &[(0, 1)], 16, 2008);
    assert_eq!(sim.engine(0).channels().connections, 1);
}

/// An idle connection makes room for a peer with traffic.
#[test]
fn idle_connection_is_replaced_by_busy_peer() {
    let mut sim = job(4, 0, 10, &aptus("aptus,connections=1,connect_after=4,rings=1,ring_after=8"));
    exchange(&mut sim, &[(0, 1), (1, 0)], 20, 100);
    assert_eq!((sim.engine(0).channels().connections, sim.engine(0).channels().rings), (1, 1));
    let bytes = |sim: &mut Sim<Wires>| sim.engine(0).counters().written_bytes;
    // Written in place, so that a request is in flight on the connection when it is to be given up.
    exchange(&mut sim, &[(0, 1)], 1, 300_000);
    assert_eq!(bytes(&mut sim), 300_000);
    exchange(&mut sim, &[(0, 2), (2, 0)], 300, 100);
    let counters = sim.engine(0).counters();
    assert!(counters.disconnects > 0 && counters.leaves > 0, "{counters:?}");
    assert_eq!(sim.engine(0).channels().connections, 1);
    assert_eq!((sim.engine(1).channels().connections, sim.engine(2).channels().connections), (0, 1));
    exchange(&mut sim, &[(0, 1)], 1, 300_000);
    assert_eq!(bytes(&mut sim), 300_000, "written in place without a connection");
    exchange(&mut sim, &[(0, 2)], 1, 300_000);
    assert_eq!(bytes(&mut sim), 600_000);
    (0..4).for_each(|rank| sim.engine(rank).at_rest().unwrap());
}

/// The peer has not received the notice yet that the connection is given up: data written there would be
/// lost.
#[test]
fn ring_offered_during_disconnect_is_not_written() {
    let (mut leaving, memory) = (0, SimMemory::pattern(1, 100));
    for seed in 0..50 {
        let mut sim = job_of(seed, 3, 0, 0, &aptus("aptus,connections=1,connect_after=4,rings=1,ring_after=9"));
        exchange(&mut sim, &[(0, 1), (1, 0)], 8, 100);
        exchange(&mut sim, &[(0, 2)], 3, 100);
        // Rank 1 offers a ring after the ninth message. Rank 2 has enough traffic to replace rank 1.
        for to in std::iter::once(1).chain([2; 60]) {
            sim.engine(0).send(to, 1, 0, SimMemory::pattern(1, 100), 100, false);
        }
        (0..3).for_each(|rank| sim.wake(rank, 0));
        let mut sent = 0;
        while sim.step().is_some() {
            let is_leaving = sim.engine(0).at_rest().is_err_and(|why| why.contains("Leaving"));
            let part = Data::Of(Part { memory: &memory, at: 0, length: 100 });
            if is_leaving && sent < 40 && sim.engine(0).try_send(1, 2, sent, part) {
                sent += 1;
                sim.wake(0, 100);
            }
        }
        leaving += sent;
        for tag in 0..sent {
            let id =
                sim.engine(1).receive(Select { context: 2, source: Some(0), tag: Some(tag) }, RecvTarget::Allocate);
            sim.wake(1, 0);
            while sim.step().is_some() {}
            assert!(sim.engine(1).take(id).is_some(), "seed {seed}: message {tag} of {sent} was lost");
        }
        sim.engine(0).at_rest().unwrap();
    }
    assert!(leaving > 0);
}

/// Short messages in a ring are counted late, and count as others do.
#[test]
fn busy_ring_keeps_its_connection() {
    let mut sim = job(3, 0, 0, &aptus("aptus,connections=1,connect_after=4,rings=1,ring_after=4"));
    exchange(&mut sim, &[(0, 1), (1, 0)], 12, 100);
    let memory = SimMemory::pattern(1, 100);
    let before = sim.engine(0).counters().ring_packets;
    for _ in 0..100 {
        for _ in 0..4 {
            sim.engine(1).receive(Select { context: 0, source: Some(0), tag: None }, RecvTarget::Allocate);
            assert!(sim.engine(0).try_send(1, 0, 0, Data::Of(Part { memory: &memory, at: 0, length: 100 })));
            sim.wake(1, 0);
            while sim.step().is_some() {}
            assert!(sim.engine(1).completed().unwrap().result.is_ok());
        }
        exchange(&mut sim, &[(0, 2)], 1, 100);
    }
    assert_eq!((sim.engine(0).counters().ring_packets - before, sim.engine(0).counters().disconnects), (400, 0));
}

#[test]
fn same_host_peers_need_no_connections() {
    let mut sim = job(4, 2, 0, &aptus("aptus"));
    exchange(&mut sim, &all_to_all(4), 60, 100);
    for rank in 0..4 {
        let channels = sim.engine(rank).channels();
        assert_eq!((channels.near, channels.datagrams, channels.connections, channels.rings), (1, 2, 2, 2));
        assert_eq!(channels.near_rings, 1);
    }
}

/// Ranks on one host use the rings and eager limits configured for them.
#[test]
fn same_host_peers_use_their_own_config() {
    let rail = Conditions::default().rails[0];
    let memory = Rail { kind: RailKind::Memory, write: false, ..rail };
    let near = Some(Config { rings: 2, ring_after: 4, eager: 10_000, ..Config::default() });
    let conditions = Conditions { rails: vec![rail, memory], host: 2, near, ..Conditions::default() };
    let far = Config { rings: 0, eager: 100, ..Config::default() };
    let mut sim = Sim::over(5, conditions, vec![far; 4], |wire| Delivery::new(wire, Settings::default())).unwrap();
    exchange(&mut sim, &all_to_all(4), 20, 150);
    for rank in 0..4 {
        let engine = sim.engine(rank);
        let (channels, counters) = (engine.channels(), engine.counters());
        assert_eq!((channels.near, channels.connections, channels.rings, channels.near_rings), (1, 2, 0, 1));
        // Messages to the two ranks of the other host use rendezvous. Of the others, the first few are sent
        // before the ring exists.
        assert_eq!((counters.eager, counters.rendezvous), (20, 40));
        assert!((10..=20).contains(&counters.ring_packets), "{counters:?}");
        engine.at_rest().unwrap();
    }
}

/// A connection is kept while memory that a message offers may be read through it.
#[test]
fn offered_memory_keeps_its_connection() {
    let mut sim = job(4, 0, 10, &aptus("aptus,connections=1,connect_after=4,rings=1,ring_after=9999,offer=yes"));
    exchange(&mut sim, &[(0, 1), (1, 0)], 20, 100);
    sim.engine(1).send(0, 7, 0, SimMemory::pattern(9, 300_000), 300_000, false);
    sim.wake(1, 0);
    while sim.step().is_some() {}
    exchange(&mut sim, &[(0, 2), (2, 0)], 300, 100);
    assert_eq!(sim.engine(0).counters().disconnects, 0);
    sim.engine(0).receive(Select { context: 7, source: Some(1), tag: None }, RecvTarget::Allocate);
    sim.wake(0, 0);
    while sim.step().is_some() {}
    assert_eq!(sim.engine(0).completed().unwrap().memory.unwrap().whose(300_000), Some(9));
    assert!(sim.engine(1).completed().unwrap().result.is_ok());
    assert_eq!(sim.engine(0).counters().read_bytes, 300_000);
    exchange(&mut sim, &[(0, 2), (2, 0)], 300, 100);
    assert_eq!(sim.engine(0).counters().disconnects, 1);
    assert_eq!((0..3).map(|rank| sim.engine(rank).channels().connections).collect::<Vec<_>>(), [1, 0, 1]);
}

/// A pipe opens a connection of its own, which packets do not use as an agreed one.
#[test]
fn pipe_opens_its_own_connection() {
    let mut sim = job(2, 0, 0, &aptus("aptus,connections=0"));
    let config = Config::default().pipe;
    let (a, first) = sim.engine(0).pipe_open(1, config).unwrap();
    let (b, second) = sim.engine(1).pipe_open(0, config).unwrap();
    sim.engine(0).pipe_join(a, &second.encode()).unwrap();
    sim.engine(1).pipe_join(b, &first.encode()).unwrap();
    assert!(sim.engine(0).pipe_opens(a) && sim.engine(1).pipe_opens(b));
    assert_eq!(sim.engine(0).pipe_put(a, &[7; 100]), Ok(100));
    (0..2).for_each(|rank| sim.wake(rank, 0));
    while sim.step().is_some() {}
    let mut into = [0; 200];
    assert_eq!(sim.engine(1).pipe_get(b, &mut into), Ok(Some(100)));
    assert_eq!(into[..100], [7; 100]);
    exchange(&mut sim, &[(0, 1), (1, 0)], 20, 5000);
    for rank in 0..2 {
        let counters = sim.engine(rank).counters();
        assert!(counters.datagram_packets > 0);
        assert_eq!(counters.queue_packets, counters.datagram_packets);
    }
}

/// With `count_windows`, connections of windows count: none is made beyond the cap, and none is given up that
/// would remain.
#[test]
fn count_windows_limits_all_connections() {
    let job = |count: &str| {
        let mut sim =
            job(4, 0, 10, &aptus(&format!("aptus,connections=2,connect_after=4,rings=1,ring_after=9999{count}")));
        sim.connect_windows(0, 1);
        sim.connect_windows(0, 2);
        sim
    };
    let connections = |sim: &mut Sim<Wires>| [0, 1, 2, 3].map(|rank| sim.engine(rank).channels().connections);
    let mut sim = job("");
    exchange(&mut sim, &[(0, 3), (3, 0)], 20, 100);
    assert_eq!(connections(&mut sim), [1, 0, 0, 1]);
    let mut sim = job(",count_windows=yes");
    exchange(&mut sim, &[(0, 3), (3, 0)], 20, 100);
    assert_eq!(connections(&mut sim), [0; 4]);
    assert!(
        sim.engine(0).counters().refusals == 0 && sim.engine(3).counters().refusals > 0,
        "rank 3 has room, and asks"
    );
    // Messages use a connection that windows have made.
    exchange(&mut sim, &[(0, 1), (1, 0)], 20, 100);
    assert_eq!(connections(&mut sim), [1, 1, 0, 0]);
    exchange(&mut sim, &[(0, 2), (1, 3), (2, 3)], 20, 100);
    assert_eq!(connections(&mut sim), [2, 2, 2, 2]);
    // Both places are taken by connections that would remain if they were given up.
    sim.connect_windows(0, 3);
    exchange(&mut sim, &[(0, 3)], 300, 100);
    assert_eq!((connections(&mut sim), sim.engine(0).counters().disconnects), ([2, 2, 2, 2], 0));
    (0..4).for_each(|rank| sim.engine(rank).at_rest().unwrap());
}
