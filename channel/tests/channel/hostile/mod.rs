//! A peer that sends arbitrary bytes is cut off with an error that names it, and has no other effect.

mod body;
use crate::model::rounds;
use body::{finish, inject, job};
use proptest::prelude::*;
use proptest::test_runner::{Config as Runs, TestRunner};
use std::cell::RefCell;
use std::collections::BTreeSet;
use transom_channel::connection::Say;
use transom_channel::packet::{Body, Envelope, LONGEST, Packet, Values};
use transom_channel::rendezvous::Mover;
use transom_channel::sim::{Conditions, Sim, SimMemory};
use transom_channel::wire::{Data, Key, Lane, RAILS, Rail, RailKind, Request, Wire};
use transom_channel::{Config, Error, Id, PeerFailure, RecvTarget, Select};

#[test]
fn arbitrary_peer_bytes_affect_only_that_peer() {
    let seen = RefCell::new(BTreeSet::new());
    let mut runner =
        TestRunner::new(Runs { cases: rounds(10_000) as u32, failure_persistence: None, ..Runs::default() });
    let ran = runner.run(&prop::collection::vec(any::<u8>(), 0..150), |data| {
        let lost = format!("{:?}", body::any_bytes(&data));
        seen.borrow_mut().insert(lost.replace(|c: char| c.is_ascii_digit(), ""));
        Ok(())
    });
    ran.unwrap();
    let seen = seen.into_inner();
    assert!(seen.len() > 12, "expected more than 12 reasons to disconnect, found: {seen:#?}");
}

/// Delivers this packet of rank 0, and returns the error with which rank 1's receive from it ends.
fn after(sim: &mut Sim, packet: &Packet) -> Option<PeerFailure> {
    let id = sim.engine(1).receive(Select { context: 0, source: Some(0), tag: Some(77) }, RecvTarget::Allocate);
    while sim.engine(1).completed().is_some() {}
    let mut bytes = [0; LONGEST + 100];
    let length = packet.encode((&mut bytes[..LONGEST]).try_into().unwrap()) + packet.body.data() as usize;
    inject(sim, &bytes[..length]);
    while sim.step().is_some() {}
    let mut done = std::iter::from_fn(|| sim.engine(1).completed());
    match done.find(|done| done.id == id)?.result {
        Err(Error::PeerFailure { rank: 0, lost }) => Some(lost),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_credit_of_another_ring_is_passed_over() {
    for (ring, lost) in [(7, None), (1, Some(PeerFailure::Broken("it acknowledged or freed more than was sent")))] {
        let (mut sim, _) = job(1);
        while sim.step().is_some() {}
        let values = Values { freed: 1000, ring, ..Values::default() };
        let packet = Packet { source: 0, sequence: 0, values, body: Body::Control };
        assert_eq!(after(&mut sim, &packet), lost);
    }
}

#[test]
fn protocol_violation_names_the_broken_rule() {
    let (length, key) = (100_000, Key { address: 0, key: 0 });
    let receiver = Id::from_wire(1 << 32).unwrap();
    let cts = move |sender, mover, length| Body::Cts { sender, receiver, mover, length, keys: [None; RAILS] };
    let join = move |slots, bytes| Body::Join { ring: 1, slots, bytes, key };
    let long = Envelope { context: 0, tag: 5, length: 1000 };
    let piece = move |at| Body::Piece { envelope: Envelope { length: 300, ..long }, sync: None, at, length: 100 };
    type Row = (&'static str, u32, Box<dyn Fn(Id) -> Body>);
    let rows: Vec<Row> = vec![
        ("it requested more bytes than the message has", 0, Box::new(move |id| cts(id, Mover::Copy, length + 1))),
        ("it requested more bytes than the message has", 0, Box::new(move |id| cts(id, Mover::Write, (1 << 62) - 1))),
        (
            "it named a request that is not its own",
            0,
            Box::new(move |_| cts(Id::from_wire(99 << 32).unwrap(), Mover::Copy, 1)),
        ),
        ("it named a request that is not its own", 0, Box::new(|id| Body::Fin { receiver: id, lanes: 1 })),
        ("it named a request that is not its own", 0, Box::new(|id| Body::Data { receiver: id, offset: 0, length: 0 })),
        ("it named a request that is not its own", 0, Box::new(|id| Body::Nak { receiver: id })),
        ("it offered an invalid or second ring", 0, Box::new(move |_| join(5, 3))),
        ("it offered an invalid or second ring", 0, Box::new(move |_| join(0, 2048))),
        ("it offered an invalid or second ring", 0, Box::new(move |_| join(u32::MAX, u32::MAX))),
        ("it withdrew a ring that it had not given", 0, Box::new(|_| Body::Leave { ring: 0 })),
        ("it left a ring that it does not have", 0, Box::new(|_| Body::Left { ring: 0 })),
        ("it sent a connection message where connections are fixed", 0, Box::new(|_| Body::Link { say: Say::Ask })),
        ("a piece is not the next of its message", 0, Box::new(move |_| piece(1))),
        ("it sent more than the window", 1024, Box::new(|id| Body::Ack { sender: id })),
    ];
    for (rule, sequence, body) in rows {
        let mut sim = Sim::new(1, 2, Conditions::default(), &Config::default()).unwrap();
        // Announced by RTS, and not received.
        let id = sim.engine(1).send(0, 0, 5, SimMemory::pattern(1, length as usize), length as usize, false);
        sim.wake(1, 0);
        while sim.step().is_some() {}
        let packet = Packet { source: 0, sequence, values: Values::default(), body: body(id) };
        assert_eq!(after(&mut sim, &packet), Some(PeerFailure::Broken(rule)), "{:?}", packet.body);
    }
    // A second first piece of a message does not continue the first message.
    for second in [0, 50, 101] {
        let (mut sim, _) = job(1);
        sim.stop(0, true);
        while sim.step().is_some() {}
        let packet = |sequence, at| Packet { source: 0, sequence, values: Values::default(), body: piece(at) };
        assert_eq!(after(&mut sim, &packet(0, 0)), None);
        assert_eq!(
            after(&mut sim, &packet(1, second)),
            Some(PeerFailure::Broken("a piece is not the next of its message"))
        );
        assert_eq!(sim.engine(1).kept(), 0, "what had come of it");
    }
    let (mut sim, _) = job(1);
    let packet = Packet { source: 1, sequence: 0, values: Values::default(), body: Body::Leave { ring: 0 } };
    assert_eq!(after(&mut sim, &packet), Some(PeerFailure::Broken("it sent in the name of another rank")));
    // More envelopes than 256 bytes of credit and 64 of overdraft allow.
    let config = Config { budget: 0, overdraft: 64, ..Config::default() };
    let mut sim = Sim::new(1, 2, Conditions::default(), &config).unwrap();
    sim.engine(1).send(0, 0, 5, SimMemory::zero(0), 0, false);
    sim.wake(1, 0);
    while sim.step().is_some() {}
    // Stop rank 0: its own engine would reject acknowledgements of packets it has not sent.
    sim.stop(0, true);
    let body = Body::Rts { envelope: long, sender: receiver, keys: [None; RAILS] };
    let packet = |sequence| Packet { source: 0, sequence, values: Values::default(), body: body.clone() };
    for sequence in 0..5 {
        assert_eq!(after(&mut sim, &packet(sequence)), None);
    }
    assert_eq!(sim.engine(1).kept(), 320);
    assert_eq!(after(&mut sim, &packet(5)), Some(PeerFailure::Broken("it acknowledged or freed more than was sent")));
    // Data of more than a short message, on overdraft.
    let mut sim = Sim::new(1, 2, Conditions::default(), &Config { budget: 0, ..Config::default() }).unwrap();
    sim.engine(1).send(0, 0, 5, SimMemory::zero(0), 0, false);
    sim.wake(1, 0);
    while sim.step().is_some() {}
    sim.stop(0, true);
    let body = Body::Eager { envelope: Envelope { length: 250, ..long }, sync: None };
    let packet = Packet { source: 0, sequence: 0, values: Values::default(), body };
    let mut head = [0; LONGEST];
    let length = packet.encode(&mut head);
    inject(&mut sim, &[&head[..length], &[0; 250]].concat());
    while sim.step().is_some() {}
    let lost: Vec<_> = sim.engine(1).lost().map(|(_, lost)| lost.clone()).collect();
    assert_eq!(lost, [PeerFailure::Broken("it acknowledged or freed more than was sent")]);
}

#[test]
fn arbitrary_ring_contents_harm_no_bystander() {
    // Rank 0 writes arbitrary bytes into its ring at rank 1.
    for seed in 0..rounds(500) {
        let mut rng = fastrand::Rng::with_seed(seed);
        let (mut sim, bystanders) = job(seed);
        (0..rng.usize(20..150)).for_each(|_| _ = sim.step());
        let lane = Lane { peer: 1, rail: 0 };
        for _ in 0..20 {
            let at = rng.usize(..32) * 2048 + 2040;
            let mark = rng.u64(..5000) << 32 | rng.u64(1..40);
            let to = Key { address: 0, key: rng.u64(1..10) };
            let request = Request::Put { to, at, head: &[], body: Data::None, mark: Some(mark), immediate: None };
            let _ = sim.engine(0).wire().post(lane, request);
        }
        finish(sim, bystanders);
    }
}

/// Repeated with an open pipe, whose peer is then lost while the ring is read.
#[test]
fn rail_cut_sent_through_a_ring_is_refused() {
    for pipe in [true, false] {
        let mut conditions = Conditions::default();
        conditions.rails.push(conditions.rails[0]);
        let mut sim = Sim::new(1, 2, conditions, &Config { ring_after: 1, ..Config::default() }).unwrap();
        for _ in 0..4 {
            sim.engine(0).send(1, 0, 5, SimMemory::zero(8), 8, false);
            sim.wake(0, 0);
            while sim.step().is_some() {}
        }
        let written = sim.engine(0).counters().ring_packets;
        assert!((1..32).contains(&written));
        let to = |key| Key { address: 0, key };
        let is_ring = |key: &Key| sim.engine(1).wire().memory_of(0, *key, 32 * 2048, true).is_some();
        let to = (1..20).map(to).find(is_ring).expect("rank 1 has one ring");
        if pipe {
            sim.engine(1).pipe_open(0, transom_channel::pipe::Config::default()).unwrap();
        }
        let body = Body::Cut { rail: 0, epoch: 1, heard: 0, came: 0 };
        let mut head = [0; LONGEST];
        let length = Packet { source: 0, sequence: 0, values: Values::default(), body }.encode(&mut head);
        let at = written as usize * 2048 + 2040 - length;
        let mark = Some((length as u64) << 32 | (written + 1));
        let request = Request::Put { to, at, head: &head[..length], body: Data::None, mark, immediate: None };
        sim.engine(0).wire().post(Lane { peer: 1, rail: 0 }, request).unwrap();
        let id = sim.engine(1).receive(Select { context: 0, source: Some(0), tag: Some(77) }, RecvTarget::Allocate);
        sim.wake(1, 0);
        while sim.step().is_some() {}
        let lost = PeerFailure::Broken("it reported a cut rail through a ring");
        let lost = Err(Error::PeerFailure { rank: 0, lost });
        assert_eq!(sim.engine(1).completed().map(|done| (done.id, done.result)), Some((id, lost)));
    }
}

/// Unacknowledged answers are kept, so the state machine waits for an answer before it sends the next
/// message.
#[test]
fn request_before_the_last_answer_disconnects() {
    let join = Body::Join { ring: 1, slots: 32, bytes: 2048, key: Key { address: 0, key: 0 } };
    let link = |say| Body::Link { say };
    for (connections, first, again) in [
        (1, vec![], vec![join, Body::Leave { ring: 1 }]),
        (0, vec![], vec![link(Say::Ask)]),
        // Rank 1 has to stay: a pipe is open.
        (1, vec![link(Say::Ask)], vec![link(Say::Leave)]),
    ] {
        let mut conditions = Conditions { slots: 10_000, ..Conditions::default() };
        let datagrams = Rail { kind: RailKind::Datagram, read: false, write: false, ..conditions.rails[0] };
        conditions.rails.push(datagrams);
        let mut sim = Sim::new(1, 2, conditions, &Config { connections, ..Config::default() }).unwrap();
        sim.engine(1).send(0, 0, 5, SimMemory::zero(0), 0, false);
        if !first.is_empty() {
            sim.engine(1).pipe_open(0, transom_channel::pipe::Config::default()).unwrap();
        }
        sim.wake(1, 0);
        while sim.step().is_some() {}
        sim.stop(0, true);
        let lost = (0..).zip(first.iter().chain(again.iter().cycle())).take(300).find_map(|(sequence, body)| {
            let packet = Packet { source: 0, sequence, values: Values::default(), body: body.clone() };
            after(&mut sim, &packet)
        });
        assert_eq!(lost, Some(PeerFailure::Broken("it sent the next request before an answer")), "{again:?}");
    }
}

/// A peer that repeats an impossible request to write gets one refusal.
#[test]
fn impossible_write_request_is_refused_once() {
    let mut sim = Sim::new(1, 2, Conditions::default(), &Config::default()).unwrap();
    let sender = sim.engine(1).send(0, 0, 5, SimMemory::zero(100_000), 100_000, false);
    sim.wake(1, 0);
    while sim.step().is_some() {}
    sim.stop(0, true);
    let receiver = Id::from_wire(1 << 32).unwrap();
    let body = Body::Cts { sender, receiver, mover: Mover::Write, length: 100_000, keys: [None; RAILS] };
    let packet = |sequence| Packet { source: 0, sequence, values: Values::default(), body: body.clone() };
    assert_eq!(after(&mut sim, &packet(0)), None);
    let unfit = PeerFailure::Broken("a packet does not fit the state of its rendezvous");
    assert_eq!(after(&mut sim, &packet(1)), Some(unfit));
}

/// Bytes with which the job once did not end.
#[test]
fn fuzzed_bytes_cause_no_endless_loop() {
    let bytes = [
        92, 68, 10, 2, 40, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 6, 124, 2, 0, 0, 21, 0, 0, 252, 0, 0, 18, 0, 0, 0, 0, 0, 0, 0,
        0, 0, 0, 0, 11, 0, 96, 42, 0, 0, 44, 0, 0, 0, 0, 31, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 13, 0, 0, 0, 0, 0,
        0, 0,
    ];
    body::any_bytes(&bytes);
}

/// Bytes by which rank 0 claims to have dropped the team of a synchronous send.
#[test]
fn peers_claim_of_a_dropped_team_ends_the_send() {
    body::any_bytes(&[0, 0, 122, 3, 40, 0, 0, 0, 0, 3, 29, 0, 0, 0, 0, 134, 58, 0, 40, 0, 0, 0]);
}
