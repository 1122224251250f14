//! A peer sends anything: it is cut off, with an error that names it, and nothing else happens.

use transom_channel::packet::{Body, Envelope, LONGEST, Mover, Packet, Values};
use transom_channel::sim::{Conditions, Memory, Sim};
use transom_channel::wire::{Key, Lane, RAILS, Rank, Request, Wire};
use transom_channel::{Config, Error, Id, Lost, Room, Select};

/// Posts bytes as rank 0, which speaks for itself, to rank 1.
fn inject(sim: &mut Sim, bytes: &[u8]) {
    let lane = Lane { peer: 1, rail: 0 };
    let _ = sim.engine(0).wire().post(lane, Request::Send { head: bytes, body: None });
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
            let request = Request::Put { to, at, head: &[], body: None, mark: Some(mark), immediate: None };
            let _ = sim.engine(0).wire().post(lane, request);
        }
        finish(sim, bystanders);
    }
}
