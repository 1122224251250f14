//! A peer sends anything: it is cut off, with an error that names it, and nothing else happens.

use transom_channel::packet::{Body, Envelope, LONGEST, Mover, Packet, Values};
use transom_channel::sim::{Conditions, Memory, Sim};
use transom_channel::wire::{Data, Key, Lane, RAILS, Rank, Request, Wire};
use transom_channel::{Config, Error, Id, Lost, Room, Select};

/// Posts bytes as rank 0, which speaks for itself, to rank 1.
fn inject(sim: &mut Sim, bytes: &[u8]) {
    let lane = Lane { peer: 1, rail: 0 };
    let _ = sim.engine(0).wire().post(lane, Request::Send { head: bytes, body: Data::None });
}

/// Ranks 0, 1 and 2 with traffic of all kinds under way.
fn job(seed: u64) -> (Sim, usize) {
    let config = Config { ring_after: 1, zero_copy_from: 20_000, ..Config::default() };
    let mut sim = Sim::new(seed, 3, Conditions::default(), &config).unwrap();
    let mut bystanders = 0;
    for (tag, length) in (0..).zip([0, 100, 5000, 12_000, 100_000]) {
        for (a, b) in [(0, 1), (1, 0), (1, 2), (2, 1)] {
            sim.engine(a).send(b, 0, tag, Memory::pattern(1, length), length, tag == 1);
            sim.engine(b).receive(Select { context: 0, source: Some(a), tag: Some(tag) }, Room::Allocate);
            bystanders += usize::from(a + b == 3);
        }
    }
    (0..3).for_each(|rank| sim.wake(rank, 0));
    (sim, bystanders)
}

/// Runs to the end; says how rank 1 lost rank 0.
fn finish(mut sim: Sim, bystanders: usize) -> Option<Lost> {
    let (mut good, mut lost) = (0, None);
    let mut check = |sim: &mut Sim, rank: Rank| {
        while let Some(done) = sim.engine(rank).completed() {
            match done.result {
                Ok(status) if rank == 1 && status.peer == 2 => good += 1,
                Ok(_) => {}
                Err(Error::Lost { rank: who, lost: how }) => {
                    assert!((rank, who) == (1, 0) || (rank, who) == (0, 1), "rank {rank} lost {who}");
                    if rank == 1 {
                        lost = Some(how);
                    }
                }
                // What was injected may be a message, and a wrong one.
                Err(Error::NoMemory { .. } | Error::Truncated { .. }) => assert_eq!(rank, 1),
                Err(other) => panic!("rank {rank}: {other}"),
            }
        }
    };
    let mut steps = 0;
    while let Some(rank) = sim.step() {
        check(&mut sim, rank);
        steps += 1;
        assert!(steps < 1_000_000, "it does not come to an end");
    }
    (0..3).for_each(|rank| check(&mut sim, rank));
    assert_eq!(good, bystanders, "the traffic of others");
    lost
}

fn random_body(rng: &mut fastrand::Rng) -> Body {
    let mut id = || Id::from_wire(rng.u64(1..4) << 32 | rng.u64(..12)).unwrap();
    let (sender, receiver) = (id(), id());
    let length = *rng.choice(&[0, 1, 100, 12_000, 100_000, 1 << 61]).unwrap();
    let envelope = Envelope { context: 0, tag: rng.u32(..6), length };
    let mut keys = [None; RAILS];
    keys[0] = rng.bool().then_some(Key { address: 0, key: rng.u64(..20) });
    match rng.u32(..11) {
        0 => Body::Eager { envelope: Envelope { length: 0, ..envelope }, sync: rng.bool().then_some(sender) },
        1 => Body::Rts { envelope, sender, keys },
        2 => Body::Cts { sender, receiver, mover: if rng.bool() { Mover::Copy } else { Mover::Write }, length, keys },
        3 => Body::Nak { receiver },
        4 => Body::Data { receiver, offset: length, length: 0 },
        5 => Body::Fin { receiver, lanes: rng.u8(1..=4) },
        6 => Body::Ack { sender },
        7 => {
            let (slots, bytes) = (rng.u32(..2000), rng.u32(..70_000));
            Body::Join { ring: rng.u16(..3), slots, bytes, key: Key { address: 0, key: rng.u64(..20) } }
        }
        8 => Body::Leave { ring: rng.u16(..3) },
        9 => Body::Left { ring: rng.u16(..3) },
        _ => Body::Control { mask: rng.u64(..) },
    }
}

#[test]
fn any_packet() {
    let mut seen = std::collections::BTreeMap::new();
    for seed in 0..3000 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let (mut sim, bystanders) = job(seed);
        (0..rng.usize(..120)).for_each(|_| _ = sim.step());
        for _ in 0..rng.usize(1..4) {
            let values =
                Values { ack: rng.u32(..8), granted: rng.u32(..1000), freed: rng.u32(..4), ring: rng.u16(..3) };
            let body = random_body(&mut rng);
            let source = rng.u32(..20) / 19;
            let mut bytes = [0; LONGEST];
            let packet = Packet { source, sequence: rng.u32(..40), values, body };
            let mut length = packet.encode(&mut bytes);
            if rng.u8(..4) == 0 {
                bytes[rng.usize(..length)] = rng.u8(..);
            }
            if rng.u8(..8) == 0 {
                length = rng.usize(..length);
            }
            inject(&mut sim, &bytes[..length]);
        }
        *seen.entry(format!("{:?}", finish(sim, bystanders)).chars().take(60).collect::<String>()).or_insert(0) += 1;
    }
    println!("{seen:#?}");
    assert!(seen.len() > 8, "few ways to be cut off: {seen:#?}");
}

/// What rank 1 says of rank 0 once this packet of it has come, to a receive that waits for it.
fn after(sim: &mut Sim, packet: &Packet) -> Option<Lost> {
    let id = sim.engine(1).receive(Select { context: 0, source: Some(0), tag: Some(77) }, Room::Allocate);
    while sim.engine(1).completed().is_some() {}
    let mut bytes = [0; LONGEST];
    let length = packet.encode(&mut bytes);
    inject(sim, &bytes[..length]);
    while sim.step().is_some() {}
    let mut done = std::iter::from_fn(|| sim.engine(1).completed());
    match done.find(|done| done.id == id)?.result {
        Err(Error::Lost { rank: 0, lost }) => Some(lost),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_credit_of_another_ring_is_passed_over() {
    for (ring, lost) in [(7, None), (1, Some(Lost::Broken("it acknowledged or used more than it had")))] {
        let (mut sim, _) = job(1);
        while sim.step().is_some() {}
        let values = Values { freed: 1000, ring, ..Values::default() };
        let packet = Packet { source: 0, sequence: 0, values, body: Body::Control { mask: 0 } };
        assert_eq!(after(&mut sim, &packet), lost);
    }
}

#[test]
fn each_rule_is_named() {
    let (length, key) = (100_000, Key { address: 0, key: 0 });
    let receiver = Id::from_wire(1 << 32).unwrap();
    let cts = move |sender, mover, length| Body::Cts { sender, receiver, mover, length, keys: [None; RAILS] };
    let join = move |slots, bytes| Body::Join { ring: 1, slots, bytes, key };
    let long = Envelope { context: 0, tag: 5, length: 1000 };
    type Row = (&'static str, u32, Box<dyn Fn(Id) -> Body>);
    let rows: Vec<Row> = vec![
        ("it asks for more than the message has", 0, Box::new(move |id| cts(id, Mover::Copy, length + 1))),
        ("it asks for more than the message has", 0, Box::new(move |id| cts(id, Mover::Write, (1 << 62) - 1))),
        ("a packet for no request of it", 0, Box::new(move |_| cts(Id::from_wire(99 << 32).unwrap(), Mover::Copy, 1))),
        ("a packet for no request of it", 0, Box::new(|id| Body::Fin { receiver: id, lanes: 1 })),
        ("a packet for no request of it", 0, Box::new(|id| Body::Data { receiver: id, offset: 0, length: 0 })),
        ("a packet for no request of it", 0, Box::new(|id| Body::Nak { receiver: id })),
        ("it offered a ring that cannot be", 0, Box::new(move |_| join(5, 3))),
        ("it offered a ring that cannot be", 0, Box::new(move |_| join(0, 2048))),
        ("it offered a ring that cannot be", 0, Box::new(move |_| join(u32::MAX, u32::MAX))),
        ("it took back a ring that it has not given", 0, Box::new(|_| Body::Leave { ring: 0 })),
        ("it left a ring that it does not have", 0, Box::new(|_| Body::Left { ring: 0 })),
        ("it sent more than the window", 1024, Box::new(|id| Body::Ack { sender: id })),
    ];
    for (rule, sequence, body) in rows {
        let mut sim = Sim::new(1, 2, Conditions::default(), &Config::default()).unwrap();
        // Announced, and not received.
        let id = sim.engine(1).send(0, 0, 5, Memory::pattern(1, length as usize), length as usize, false);
        sim.wake(1, 0);
        while sim.step().is_some() {}
        let packet = Packet { source: 0, sequence, values: Values::default(), body: body(id) };
        assert_eq!(after(&mut sim, &packet), Some(Lost::Broken(rule)), "{:?}", packet.body);
    }
    let (mut sim, _) = job(1);
    let packet = Packet { source: 1, sequence: 0, values: Values::default(), body: Body::Leave { ring: 0 } };
    assert_eq!(after(&mut sim, &packet), Some(Lost::Broken("it sent in the name of another rank")));
    // More messages than granted: 256 bytes are four headers, and a receive that waits is worth one more.
    let mut sim = Sim::new(1, 2, Conditions::default(), &Config { budget: 0, spill: 64, ..Config::default() }).unwrap();
    sim.engine(1).send(0, 0, 5, Memory::zero(0), 0, false);
    sim.wake(1, 0);
    while sim.step().is_some() {}
    // Its own engine would find the acknowledgements of what it has not sent wrong.
    sim.stop(0, true);
    let body = Body::Rts { envelope: long, sender: receiver, keys: [None; RAILS] };
    for sequence in 0..4 {
        let mut bytes = [0; LONGEST];
        let packet = Packet { source: 0, sequence, values: Values::default(), body: body.clone() };
        let length = packet.encode(&mut bytes);
        inject(&mut sim, &bytes[..length]);
    }
    while sim.step().is_some() {}
    assert_eq!(sim.engine(1).kept(), 256);
    let packet = |sequence| Packet { source: 0, sequence, values: Values::default(), body: body.clone() };
    assert_eq!(after(&mut sim, &packet(4)), None);
    assert_eq!(after(&mut sim, &packet(5)), Some(Lost::Broken("it acknowledged or used more than it had")));
}

#[test]
fn what_a_ring_holds() {
    // Rank 0 writes what it likes into its ring at rank 1.
    for seed in 0..500 {
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
