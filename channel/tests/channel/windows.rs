//! Writes by datagrams, each piece into place: pieces that are lost, duplicated or reordered, missing
//! windows, peers that die, and hostile peers.

use crate::model::changed::{Change, Changed};
use crate::model::rounds;
use std::cell::Cell;
use std::collections::{HashSet, VecDeque};
use std::rc::Rc;
use transom_channel::delivery::{Delivery, Header, Kind, Settings};
use transom_channel::sim::{Conditions, Faults, Sim, SimMemory, SimWire};
use transom_channel::striping::Stripe;
use transom_channel::wire::{Busy, Data, Event, Key, Lane, Rail, RailKind, Request};
use transom_channel::{Config, Counters, Error, Id, PeerFailure, Rank, RecvTarget, Select, Wire};

type Job = Sim<Delivery<SimWire>>;

const NONE: Faults = Faults { lost: 0, doubled: 0, late: 0, delay: 0..1, flipped: 0 };
/// Bytes of a piece: a datagram without headers of 32 and 16 bytes, in whole cache lines.
const PIECE: usize = 4096;
const MIB: usize = 1 << 20;

fn conditions(faults: Faults) -> Conditions {
    let rail = Rail {
        kind: RailKind::Datagram,
        longest: PIECE + 48 + 63,
        mark_last: true,
        whole_word: true,
        immediate: true,
        write: true,
        read: false,
        bandwidth: 0,
    };
    Conditions {
        rails: vec![rail],
        latency: 10_000..10_001,
        faults: Some(faults),
        depth: 1000,
        ..Conditions::default()
    }
}

fn job(conditions: Conditions, settings: Settings) -> Job {
    let config = Config { rings: 0, ..Config::default() };
    Sim::over(1, conditions, vec![config; 3], |wire| Delivery::new(wire, settings)).unwrap()
}

const ANY: Select = Select { context: 0, source: None, tag: None };

/// Sends messages of these lengths from rank 0 to rank 1, all at once, and compares the data received.
/// Returns the counters of both ranks.
fn send<W: Wire<Memory = SimMemory>>(sim: &mut Sim<W>, lengths: &[usize]) -> [Counters; 2] {
    send_in_time(sim, lengths).0
}

/// Like [`send`]; also returns the time of the last completion.
fn send_in_time<W: Wire<Memory = SimMemory>>(sim: &mut Sim<W>, lengths: &[usize]) -> ([Counters; 2], u64) {
    for (number, length) in (0..).zip(lengths) {
        sim.engine(0).send(1, 0, number, SimMemory::pattern(number.into(), *length), *length, false);
        let into = RecvTarget::Into(SimMemory::zero(*length), *length);
        sim.engine(1).receive(Select { tag: Some(number), ..ANY }, into);
    }
    (0..2).for_each(|rank| sim.wake(rank, 0));
    let (mut sent, mut came, mut last) = (0, 0, 0);
    while sim.step().is_some() {
        while let Some(done) = sim.engine(0).completed() {
            assert!(done.result.is_ok());
            // The memory belongs to the program again.
            done.memory.unwrap().spoil();
            sent += 1;
        }
        while let Some(done) = sim.engine(1).completed() {
            let status = done.result.unwrap();
            let whose = done.memory.unwrap().whose(status.length as usize);
            assert_eq!(whose, Some(status.tag.into()), "{status:?}");
            came += 1;
            last = sim.now();
        }
    }
    assert_eq!((sent, came), (lengths.len(), lengths.len()));
    for rank in 0..2 {
        assert_eq!((sim.windows(rank), sim.registrations(rank)), (0, 0), "rank {rank}");
        assert!(sim.engine(rank).wire().due().is_none(), "rank {rank} has packets due at the end");
    }
    ([0, 1].map(|rank| sim.engine(rank).counters()), last)
}

#[test]
fn each_piece_is_written_once_in_place() {
    // Three lengths: four windows of 64 pieces, a window of 64 and one of a piece and a byte, and one short window.
    for (length, windows, packets) in [(MIB, 4, 0), (65 * PIECE + 1, 2, 1), (33 * PIECE - 1, 1, 1)] {
        let mut sim = job(conditions(NONE), Settings::default());
        let [sender, receiver] = send(&mut sim, &[length]);
        assert_eq!((sender.written_bytes, sender.copied_bytes, sender.rendezvous), (length as u64, 0, 1));
        assert_eq!((receiver.datagram_windows, receiver.datagram_repairs), (windows, packets), "{length} bytes");
        let [posts, ..] = sim.posts(0);
        let pieces = (length / PIECE) as u64;
        // RTS, the request, the report that each window was sent, FIN, the last piece, and acknowledgements
        // of answers.
        let rest = posts - pieces;
        assert!((3 + windows + packets..=3 + windows + packets + 9).contains(&rest), "{rest} beside {pieces}");
        assert_eq!(sender.resends + receiver.resends, 0);
    }
}

#[test]
fn reordered_and_duplicate_pieces_are_put_in_order() {
    let mut windows = 0;
    for delay in [1_000, 30_000, 1_000_000] {
        let mut sim = job(conditions(Faults { late: 300, doubled: 100, delay: 1..delay, ..NONE }), Settings::default());
        let [_, receiver] = send(&mut sim, &[MIB, 100_001, 700_000]);
        windows += receiver.datagram_windows;
    }
    // A window closed before its last piece arrived is followed by another for that piece. A window that
    // received a duplicate has no receive for the last piece.
    assert!(windows > 3 * (4 + 1 + 3), "{windows}");
}

#[test]
fn lost_pieces_are_granted_again_then_copied() {
    let mut sim = job(conditions(Faults { lost: 50, ..NONE }), Settings::default());
    let [sender, receiver] = send(&mut sim, &[MIB; 20]);
    let pieces = (20 * MIB / PIECE) as u64;
    // One of 20 pieces is lost, and one of 400 twice.
    assert!((1..pieces / 100).contains(&receiver.datagram_repairs), "{receiver:?}");
    assert!((100..=160).contains(&receiver.datagram_windows), "expected 80 windows, most of them twice: {receiver:?}");
    let [posts, ..] = sim.posts(0);
    assert!(posts < pieces * 5 / 4, "{posts} posts for {pieces} pieces");
    assert_eq!((sender.written_bytes, sender.copied_bytes), (20 * MIB as u64, 0));
}

#[test]
fn one_percent_loss_keeps_half_the_goodput() {
    let time = |lost, checksum| {
        // At 1 GB/s and a round trip of 20 us.
        let conditions = Conditions { picoseconds: 1000, ..conditions(Faults { lost, ..NONE }) };
        let settings = Settings { checksum, ..Settings::default() };
        send_in_time(&mut job(conditions, settings), &[MIB; 32]).1
    };
    let [none, some, copied, some_copied] = [(0, false), (10, false), (0, true), (10, true)].map(|(a, b)| time(a, b));
    println!("in place: {none} ns, {some} ns with 1 % loss; copied: {copied} and {some_copied}");
    assert!(none < 35_000_000, "{none} ns, expected little more than 33.6 ms for the bytes");
    assert!(some < 2 * none && none < copied);
}

#[test]
fn scarce_windows_are_shared_none_means_copying() {
    let none = Conditions { windows: 0, ..conditions(NONE) };
    let [_, receiver] = send(&mut job(none, Settings::default()), &[MIB, 40_000]);
    assert_eq!((receiver.datagram_windows, receiver.datagram_repairs), (0, 256 + 10));
    let one = Conditions { windows: 1, ..conditions(Faults { lost: 20, ..NONE }) };
    let [_, receiver] = send(&mut job(one, Settings::default()), &[300_000; 30]);
    // Two windows each, of 64 and of 9 pieces and a short one.
    assert!((60..=120).contains(&receiver.datagram_windows), "{receiver:?}");
    assert!((30..60).contains(&receiver.datagram_repairs), "{receiver:?}");
}

/// A peer that has requested many writes is stopped while it holds their windows: messages of another peer
/// still arrive.
#[test]
fn stopped_peer_does_not_hold_all_windows() {
    let mut sim = job(Conditions { windows: 16, ..conditions(NONE) }, Settings::default());
    for number in 0..8 {
        sim.engine(0).send(1, 0, number, SimMemory::pattern(number.into(), MIB), MIB, false);
    }
    (0..8).for_each(|_| {
        _ = sim.engine(1).receive(Select { source: Some(0), ..ANY }, RecvTarget::Into(SimMemory::zero(MIB), MIB))
    });
    (0..2).for_each(|rank| sim.wake(rank, 0));
    while sim.windows(1) < 4 {
        sim.step().expect("the simulation stopped before windows were requested");
    }
    // Lets the peer get all windows that it may have.
    (0..40).take_while(|_| sim.windows(1) < 16 && sim.step().is_some()).for_each(drop);
    sim.stop(0, true);
    sim.engine(2).send(1, 0, 50, SimMemory::pattern(50, MIB), MIB, false);
    sim.engine(1).receive(Select { source: Some(2), ..ANY }, RecvTarget::Into(SimMemory::zero(MIB), MIB));
    (1..3).for_each(|rank| sim.wake(rank, sim.now()));
    let done = loop {
        sim.step().expect("the message of the running rank did not arrive");
        if let Some(done) = sim.engine(1).completed().filter(|done| done.result.as_ref().is_ok_and(|of| of.peer == 2)) {
            break done;
        }
        assert!(sim.now() < 10_000_000_000, "a MiB took more than ten seconds");
    };
    assert_eq!(done.memory.unwrap().whose(MIB), Some(50));
    assert_eq!(sim.engine(1).counters().datagram_repairs, 0, "by windows of its own");
}

#[test]
fn writes_beyond_the_in_flight_limit_arrive() {
    let lost = Faults { lost: 10, ..NONE };
    let [sender, _] = send(&mut job(conditions(lost), Settings::default()), &[50_000; 300]);
    assert_eq!((sender.written_bytes, sender.copied_bytes), (300 * 50_000, 0));
}

#[test]
fn checksums_disable_zero_copy_windows() {
    let settings = Settings { checksum: true, ..Settings::default() };
    let [sender, receiver] = send(&mut job(conditions(NONE), settings), &[MIB]);
    assert_eq!((sender.copied_bytes, sender.written_bytes, receiver.datagram_windows), (MIB as u64, 0, 0));
}

#[test]
fn dead_peer_releases_its_windows() {
    let mut while_open = 0;
    for steps in (1..200).step_by(7) {
        let mut sim = job(conditions(Faults { lost: 50, ..NONE }), Settings::default());
        let mut open: Vec<(Rank, Id)> = Vec::new();
        for (from, to) in [(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)] {
            open.push((from, sim.engine(from).send(to, 0, 0, SimMemory::pattern(3, MIB), MIB, false)));
            open.push((to, sim.engine(to).receive(Select { source: Some(from), ..ANY }, RecvTarget::Allocate)));
        }
        (0..3).for_each(|rank| sim.wake(rank, 0));
        (0..steps).for_each(|_| _ = sim.step());
        while_open += sim.windows(0);
        sim.kill(1);
        while sim.step().is_some() {}
        for rank in [0, 2] {
            while let Some(done) = sim.engine(rank).completed() {
                open.retain(|of| *of != (rank, done.id));
                match done.result {
                    Ok(status) if status.peer == 2 - rank => {}
                    Ok(status) => assert_eq!(status.peer, 1),
                    Err(error) => assert_eq!(error, Error::PeerFailure { rank: 1, lost: PeerFailure::Died }),
                }
                // No peer writes to this memory any more.
                done.memory.inspect(SimMemory::spoil);
            }
            assert_eq!((sim.windows(rank), sim.registrations(rank)), (0, 0), "rank {rank}, after {steps} steps");
        }
        open.retain(|(rank, _)| *rank != 1);
        assert_eq!(open, [], "after {steps} steps");
    }
    assert!(while_open > 20, "expected more than 20 windows open at the deaths, found {while_open}");
}

/// The second rail ends at a given time, with all requests posted there.
struct Ending {
    peer: Rank,
    at: u64,
    ended: bool,
    posted: HashSet<u64>,
}

impl Change for Ending {
    fn post(&mut self, wire: &mut SimWire, lane: Lane, request: Request<'_, SimMemory>) -> Result<(), Busy> {
        if let (1, Request::Piece { token: Some(token), .. }) = (lane.rail, &request) {
            self.posted.insert(*token);
        }
        if self.ended && lane.rail == 1 { Err(Busy) } else { wire.post(lane, request) }
    }

    fn poll(&mut self, wire: &mut SimWire) -> Option<Event<SimMemory>> {
        if !self.ended && wire.now() >= self.at {
            self.ended = true;
            return Some(Event::Cut(Lane { peer: self.peer, rail: 1 }));
        }
        let event = wire.poll()?;
        let lost = match &event {
            Event::Done(token, _) => self.posted.contains(token),
            Event::Up(lane) => lane.rail == 1,
            _ => false,
        };
        Some(if self.ended && lost { Event::Worked } else { event })
    }
}

#[test]
fn pieces_of_a_failed_rail_are_resent_on_others() {
    let mut repaired = 0;
    for at in (40_000..400_000).step_by(20_000) {
        let mut conditions = conditions(NONE);
        conditions.rails = vec![conditions.rails[0]; 2];
        let config = Config { rings: 0, stripe: Stripe::Even, ..Config::default() };
        let peers = Cell::new(2);
        let over = |wire| {
            peers.set(peers.get() - 1);
            let change = Ending { peer: peers.get(), at, ended: false, posted: HashSet::new() };
            Delivery::new(Changed { wire, change }, Settings::default())
        };
        let mut sim = Sim::over(1, conditions, vec![config; 2], over).unwrap();
        let [sender, receiver] = send(&mut sim, &[MIB, MIB]);
        assert_eq!((sender.written_bytes, sender.copied_bytes), (2 * MIB as u64, 0));
        repaired += receiver.datagram_repairs;
    }
    assert!(repaired > 64, "{repaired}");
}

/// The second rail accepts no pieces until a given time.
struct Full {
    until: u64,
}

impl Change for Full {
    fn post(&mut self, wire: &mut SimWire, lane: Lane, request: Request<'_, SimMemory>) -> Result<(), Busy> {
        let is_full = lane.rail == 1 && wire.now() < self.until && matches!(request, Request::Piece { .. });
        if is_full { Err(Busy) } else { wire.post(lane, request) }
    }
}

/// Its packets pass, so that their acknowledgements prove nothing about pieces.
#[test]
fn rail_that_refuses_pieces_for_good_loses_the_peer() {
    let mut conditions = conditions(NONE);
    conditions.rails = vec![conditions.rails[0]; 2];
    let config = Config { rings: 0, stripe: Stripe::Even, ..Config::default() };
    let settings = Settings { give_up: 10_000_000, ..Settings::default() };
    let over = |wire| Delivery::new(Changed { wire, change: Full { until: u64::MAX } }, settings);
    let mut sim = Sim::over(1, conditions, vec![config; 2], over).unwrap();
    sim.engine(0).send(1, 0, 0, SimMemory::pattern(3, MIB), MIB, false);
    sim.engine(1).receive(ANY, RecvTarget::Allocate);
    (0..2).for_each(|rank| sim.wake(rank, 0));
    let sent = loop {
        assert!(sim.step().is_some() && sim.now() < 1_000_000_000, "the send does not end");
        if let Some(sent) = sim.engine(0).completed() {
            break sent;
        }
    };
    assert_eq!(sent.result.unwrap_err(), Error::PeerFailure { rank: 1, lost: PeerFailure::Unreachable });
    assert!((10_000_000..12_000_000).contains(&sim.now()), "{} ns", sim.now());
}

#[test]
fn rail_that_accepts_no_pieces_holds_up_no_other() {
    const UNTIL: u64 = 20_000_000;
    let mut conditions = conditions(NONE);
    conditions.rails = vec![conditions.rails[0]; 2];
    let config = Config { rings: 0, stripe: Stripe::Even, ..Config::default() };
    let over = |wire| Delivery::new(Changed { wire, change: Full { until: UNTIL } }, Settings::default());
    let mut sim = Sim::over(1, conditions, vec![config; 2], over).unwrap();
    for number in 0..4 {
        sim.engine(0).send(1, 0, number, SimMemory::pattern(number.into(), MIB), MIB, false);
        sim.engine(1).receive(Select { tag: Some(number), ..ANY }, RecvTarget::Into(SimMemory::zero(MIB), MIB));
    }
    (0..2).for_each(|rank| sim.wake(rank, 0));
    while sim.now() < UNTIL / 2 {
        sim.step().expect("the simulation stopped before the rail accepted pieces");
    }
    // Half of each message.
    let pieces = sim.traffic(0)[0].moves.requests;
    assert_eq!((pieces, sim.traffic(0)[1].moves.requests), (4 * (MIB / PIECE / 2) as u64, 0));
    while sim.step().is_some() {}
    for _ in 0..4 {
        let done = sim.engine(1).completed().expect("a message did not arrive");
        assert_eq!(done.memory.unwrap().whose(MIB), Some(done.result.unwrap().tag.into()));
    }
}

/// The second rail accepts a piece each 9 ms.
struct Slow {
    next: u64,
}

impl Change for Slow {
    fn post(&mut self, wire: &mut SimWire, lane: Lane, request: Request<'_, SimMemory>) -> Result<(), Busy> {
        if lane.rail == 1 && matches!(request, Request::Piece { .. }) {
            if wire.now() < self.next {
                return Err(Busy);
            }
            self.next = wire.now() + 9_000_000;
        }
        wire.post(lane, request)
    }
}

#[test]
fn rail_that_takes_pieces_slowly_loses_no_peer() {
    let mut conditions = conditions(NONE);
    conditions.rails = vec![conditions.rails[0]; 2];
    let config = Config { rings: 0, stripe: Stripe::Even, ..Config::default() };
    let settings = Settings { give_up: 10_000_000, ..Settings::default() };
    let over = |wire| Delivery::new(Changed { wire, change: Slow { next: 0 } }, settings);
    let mut sim = Sim::over(1, conditions, vec![config; 2], over).unwrap();
    let ([sender, _], took) = send_in_time(&mut sim, &[MIB]);
    assert_eq!(sender.written_bytes, MIB as u64);
    // Half of the pieces.
    assert!(took > (MIB / PIECE / 2 - 1) as u64 * 9_000_000, "{took} ns");
}

/// The second rail loses all pieces until a given time. Their sends are complete nevertheless.
#[derive(Default)]
struct Silent {
    until: u64,
    /// Events to be polled next.
    told: VecDeque<Event<SimMemory>>,
    lost: Rc<Cell<u64>>,
}

impl Change for Silent {
    fn post(&mut self, wire: &mut SimWire, lane: Lane, request: Request<'_, SimMemory>) -> Result<(), Busy> {
        match request {
            Request::Piece { token, .. } if lane.rail == 1 && wire.now() < self.until => {
                self.lost.set(self.lost.get() + 1);
                self.told.extend(token.map(|token| Event::Done(token, wire.now())));
                Ok(())
            }
            request => wire.post(lane, request),
        }
    }

    fn poll(&mut self, wire: &mut SimWire) -> Option<Event<SimMemory>> {
        self.told.pop_front().or_else(|| wire.poll())
    }
}

type SilentJob = Sim<Delivery<Changed<Silent>>>;

/// Two rails, of which the second loses all pieces until a given time, and the number of these pieces.
fn silent(stripe: Stripe, until: u64) -> (SilentJob, Rc<Cell<u64>>) {
    let lost: Rc<Cell<u64>> = Rc::default();
    let mut conditions = conditions(NONE);
    conditions.rails = vec![conditions.rails[0]; 2];
    let config = Config { rings: 0, stripe, stripe_from: 16 << 10, ..Config::default() };
    let over = |wire| {
        let change = Silent { until, lost: lost.clone(), ..Silent::default() };
        Delivery::new(Changed { wire, change }, Settings::default())
    };
    (Sim::over(1, conditions, vec![config; 2], over).unwrap(), lost)
}

/// The adapter of a rank reports an event of a rail.
fn happen(sim: &mut SilentJob, rank: Rank, rail: usize, event: fn(Lane) -> Event<SimMemory>) {
    let event = event(Lane { peer: 1 - rank, rail });
    sim.engine(rank).wire().wire_mut().change.told.push_back(event);
    sim.wake(rank, 0);
    while sim.step().is_some() {}
}

/// Rank 1 has no other rail left to answer by, and had a rail cut before.
#[test]
fn silent_rail_is_used_once_it_is_the_last() {
    let (mut sim, lost) = silent(Stripe::Even, u64::MAX);
    send(&mut sim, &[MIB]);
    (0..2).for_each(|rank| happen(&mut sim, rank, 1, Event::Cut));
    (0..2).for_each(|rank| happen(&mut sim, rank, 1, Event::Up));
    send(&mut sim, &[MIB]);
    assert!(lost.get() >= 2 * 64 && sim.now() < 1_000_000_000, "{} lost", lost.get());
    (0..2).for_each(|rank| happen(&mut sim, rank, 0, Event::Cut));
    sim.engine(1).send(0, 0, 7, SimMemory::pattern(7, 100), 100, false);
    sim.engine(0).receive(ANY, RecvTarget::Allocate);
    (0..2).for_each(|rank| sim.wake(rank, 0));
    while sim.step().is_some() {}
    let done = sim.engine(0).completed().expect("the message did not arrive");
    assert_eq!(done.memory.unwrap().whose(100), Some(7));
}

/// Each message has fewer than 8 pieces on each rail.
#[test]
fn rail_that_loses_all_short_groups_is_avoided() {
    let (mut sim, lost) = silent(Stripe::Even, u64::MAX);
    for _ in 0..40 {
        send(&mut sim, &[50_000]);
    }
    assert!(sim.now() < 1_000_000_000, "{} ns", sim.now());
    assert!((8..32).contains(&lost.get()), "{} pieces lost", lost.get());
}

/// The port of the sender's rail goes down amid its writes and comes back, which the receiver does not see.
#[test]
fn rail_is_used_again_at_once_after_its_sender_lost_it() {
    let (mut sim, _) = silent(Stripe::Even, 0);
    for _ in 0..4 {
        sim.engine(0).send(1, 0, 0, SimMemory::pattern(1, MIB), MIB, false);
        sim.engine(1).receive(ANY, RecvTarget::Into(SimMemory::zero(MIB), MIB));
    }
    (0..2).for_each(|rank| sim.wake(rank, 0));
    while sim.traffic(0)[1].moves.requests < 64 {
        sim.step().expect("the simulation stopped before pieces were posted");
    }
    happen(&mut sim, 0, 1, Event::Cut);
    (0..2).for_each(|rank| assert_eq!(std::iter::from_fn(|| sim.engine(rank).completed()).count(), 4));
    assert!(sim.engine(1).counters().datagram_repairs >= 128);
    happen(&mut sim, 0, 1, Event::Up);
    let before = sim.traffic(0)[1].moves.requests;
    send(&mut sim, &[MIB]);
    assert_eq!(sim.traffic(0)[1].moves.requests - before, 128);
}

/// A rail that brings no pieces is left out of later messages, and tried again after 1 s and 2 s more.
#[test]
fn rail_that_loses_all_pieces_is_avoided_until_it_returns() {
    const SECOND: u64 = 1_000_000_000;
    for stripe in [Stripe::Even, Stripe::Pull] {
        let (mut sim, lost) = silent(stripe, 34 * SECOND / 10);
        let (mut messages, mut copied) = (0, 0);
        while sim.now() < 34 * SECOND / 10 {
            let [sender, receiver] = send(&mut sim, &[MIB; 4]);
            messages += 4;
            assert_eq!((sender.written_bytes, sender.copied_bytes), (messages * MIB as u64, 0));
            copied = receiver.datagram_repairs;
            // Later messages find the rail silent, until it is tried again.
            for rank in 0..2 {
                sim.wake(rank, SECOND / 10);
            }
            while sim.step().is_some() {}
        }
        // In 3.4 s it is tried at most 3 times, with up to 2 windows of each of 4 messages.
        println!("{stripe:?}: {messages} messages, {} pieces lost, {copied} copied", lost.get());
        assert!(messages > 80 && lost.get() <= 3 * 4 * 2 * 64, "{messages} messages, {} pieces lost", lost.get());
        // Half of each of these messages is copied.
        assert!(copied <= 3 * 4 * 128, "{copied} pieces copied: messages are planned on a silent rail");
        let before = sim.traffic(0)[1].moves.requests;
        for _ in 0..40 {
            send(&mut sim, &[MIB; 4]);
            (0..2).for_each(|rank| sim.wake(rank, SECOND / 10));
            while sim.step().is_some() {}
        }
        let pieces = sim.traffic(0)[1].moves.requests - before;
        assert!(pieces > 256, "the rail moved {pieces} pieces after its return");
    }
}

/// Rank 0 sends random messages about writes beside its own traffic. They affect at most its peers'
/// operations with it.
#[test]
fn arbitrary_notes_affect_only_their_sender() {
    let mut spoiled = 0;
    for seed in 0..rounds(200) {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut sim = job(conditions(Faults { lost: 20, ..NONE }), Settings::default());
        let mut open: Vec<(Rank, Id)> = Vec::new();
        for (from, to) in [(0, 1), (1, 0), (1, 2), (2, 1)] {
            for length in [40_000, 300_000] {
                let send = sim.engine(from).send(to, 0, 0, SimMemory::pattern(5, length), length, false);
                let receive = sim.engine(to).receive(Select { source: Some(from), ..ANY }, RecvTarget::Allocate);
                if from + to == 3 {
                    open.extend([(from, send), (to, receive)]);
                }
            }
        }
        (0..3).for_each(|rank| sim.wake(rank, 0));
        // After the packets that rank 0 sends itself, while the other two are about to write to each other.
        let mut number = 10;
        while let Some(rank) = sim.step() {
            if number < 60 && rank == 0 {
                number += 1;
                let told = transom_channel::delivery::Acknowledgement::default();
                let kind = Kind::Packet { number, sending: number, is_note: true };
                let mut bytes = Header { kind, told }.encode(None).to_vec();
                bytes.extend(note(&mut rng));
                let lane = Lane { peer: 1, rail: 0 };
                let _ = sim.engine(0).wire().wire_mut().post(lane, Request::Send { head: &bytes, body: Data::None });
            }
            while let Some(done) = sim.engine(rank).completed() {
                if let Some(at) = open.iter().position(|of| *of == (rank, done.id)) {
                    open.swap_remove(at);
                    let length = done.result.unwrap().length as usize;
                    assert_eq!(done.memory.unwrap().whose(length), Some(5), "seed {seed}");
                }
            }
        }
        assert_eq!(open, [], "seed {seed}");
        spoiled += sim.engine(1).counters().spoiled;
    }
    assert!(spoiled > 1000, "{spoiled}");
}

/// Rank 0 reports completion while the adapter of rank 1 still sends the data.
#[test]
fn send_buffer_is_kept_while_adapter_reads_it() {
    let mut sim = job(conditions(NONE), Settings::default());
    let id = sim.engine(1).send(0, 0, 0, SimMemory::pattern(5, MIB), MIB, false);
    sim.engine(0).receive(ANY, RecvTarget::Allocate);
    (0..2).for_each(|rank| sim.wake(rank, 0));
    // Two windows of pieces, which take 50 us to send.
    while sim.posts(1)[0] < 64 {
        sim.step().expect("the simulation stopped before pieces were posted");
    }
    sim.stop(0, true);
    let until = sim.now() + 20_000;
    let kind = Kind::Packet { number: 40, sending: 40, is_note: true };
    let mut bytes = Header { kind, told: Default::default() }.encode(None).to_vec();
    bytes.extend([5, 0, 0, 0, 0, 0, 0, 0]);
    let lane = Lane { peer: 1, rail: 0 };
    sim.engine(0).wire().wire_mut().post(lane, Request::Send { head: &bytes, body: Data::None }).unwrap();
    while sim.now() < until {
        sim.step().expect("the simulation stopped with pieces in flight");
    }
    assert_eq!((sim.engine(1).is_under_way(id), sim.engine(1).counters().spoiled), (true, 1));
}

/// Rank 0 repeatedly requests empty writes and acknowledges no answer: a bounded number of answers is kept
/// for it.
#[test]
fn answers_to_an_unacknowledging_peer_are_bounded() {
    let mut sim = job(conditions(NONE), Settings::default());
    sim.stop(0, true);
    let (from, to) = (Lane { peer: 0, rail: 0 }, Lane { peer: 1, rail: 0 });
    sim.engine(0).wire().wire_mut().connect(to);
    let Key { address, key } = sim.engine(1).wire().register(&SimMemory::zero(PIECE), from).unwrap();
    for number in 0..6000 {
        let kind = Kind::Packet { number, sending: number + 1, is_note: true };
        let mut bytes = Header { kind, told: Default::default() }.encode(None).to_vec();
        bytes.extend([1, 0, 0, 0]);
        bytes.extend((number as u32).to_le_bytes());
        bytes.extend([address, key, 0, 0].iter().flat_map(|word: &u64| word.to_le_bytes()));
        (0..20).for_each(|_| _ = sim.step());
        sim.engine(0).wire().wire_mut().post(to, Request::Send { head: &bytes, body: Data::None }).unwrap();
    }
    (0..1000).for_each(|_| _ = sim.step());
    let spoiled = sim.engine(1).counters().spoiled;
    assert!((1000..3000).contains(&spoiled), "{spoiled} of 6000");
}

/// A message between the two ends, with numbers that are likely to be valid.
fn note(rng: &mut fastrand::Rng) -> Vec<u8> {
    let kind = rng.u8(1..6);
    let transfer = *rng.choice(&[0, 1, 2, u32::MAX]).unwrap();
    let (halves, words): (Vec<u32>, Vec<u64>) = match kind {
        1 => (vec![], vec![0, rng.u64(1..6), *rng.choice(&[0, 100, u64::MAX]).unwrap(), 1 << rng.u32(..63)]),
        2 => {
            let piece = *rng.choice(&[0, 1, 4096, u32::MAX]).unwrap();
            (vec![rng.u32(..4), piece], vec![rng.u64(..) & rng.u64(..), 0, rng.u64(..9)])
        }
        3 => (vec![rng.u32(..3)], vec![]),
        4 => (vec![rng.u32(..3), 0], vec![]),
        _ => (vec![], vec![]),
    };
    let small = if kind == 4 { rng.u8(..66) } else { rng.u8(..3) };
    let mut bytes = vec![kind, small, 0, 0];
    bytes.extend(transfer.to_le_bytes());
    bytes.extend(halves.iter().flat_map(|half| half.to_le_bytes()));
    bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    if kind == 4 {
        bytes.extend(vec![1; *rng.choice(&[0, 1, 100, 4000, 4096]).unwrap()]);
    }
    bytes
}
