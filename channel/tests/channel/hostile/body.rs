//! Actions of a hostile peer, chosen by bytes. A test runs them with random bytes, `channel/fuzz` with those
//! of a fuzzer.

use transom_channel::connection::Say;
use transom_channel::packet::{Body, Envelope, LONGEST, Packet, Values};
use transom_channel::rendezvous::Mover;
use transom_channel::sim::{Conditions, Sim, SimMemory};
use transom_channel::wire::{Data, Key, Lane, RAILS, Rail, RailKind, Rank, Request, Wire};
use transom_channel::{Config, Error, Id, PeerFailure, RecvTarget, Select};

/// Applies the actions chosen by `data` to rank 1, in the name of rank 0, amid traffic of all kinds. Returns
/// how rank 1 lost rank 0, if it did.
///
/// # Panics
/// If an engine panics, if the job does not end, or if any other rank is affected.
pub fn any_bytes(data: &[u8]) -> Option<PeerFailure> {
    let mut choices = Choices(data);
    let (mut sim, bystanders) = job(choices.below(1 << 16));
    for _ in 0..16 {
        (0..choices.below(120)).for_each(|_| _ = sim.step());
        match choices.below(8) {
            0 => write_to_a_ring(&mut sim, &mut choices),
            1 => inject(&mut sim, choices.bytes()),
            2 => leave_beside_a_ring(&mut sim, &mut choices),
            _ => any_packet(&mut sim, &mut choices),
        }
        if choices.0.is_empty() {
            break;
        }
    }
    finish(sim, bystanders)
}

/// Numbers chosen by the bytes; 0 once they are used up.
struct Choices<'d>(&'d [u8]);

impl<'d> Choices<'d> {
    fn below(&mut self, end: u64) -> u64 {
        let bytes = (u64::BITS - (end - 1).leading_zeros()).div_ceil(8) as usize;
        let (now, rest) = self.0.split_at(bytes.min(self.0.len()));
        self.0 = rest;
        now.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)) % end
    }

    fn below_u32(&mut self, end: u32) -> u32 {
        self.below(end.into()) as u32
    }

    fn yes(&mut self) -> bool {
        self.below(2) == 1
    }

    /// Up to the length of a packet.
    fn bytes(&mut self) -> &'d [u8] {
        let length = self.below(400) as usize;
        let (now, rest) = self.0.split_at(length.min(self.0.len()));
        self.0 = rest;
        now
    }
}

/// A packet that is mostly well formed; some have one byte changed, or their end cut off.
fn any_packet(sim: &mut Sim, choices: &mut Choices<'_>) {
    let values = Values {
        ack: choices.below_u32(8),
        granted: choices.below_u32(1000),
        freed: choices.below_u32(4),
        ring: choices.below(3) as u16,
    };
    let body = any_body(choices);
    let (source, sequence) = (choices.below_u32(20) / 19, choices.below_u32(40));
    let mut bytes = vec![0; LONGEST];
    let data = if let Body::Piece { length, .. } = body { length as usize } else { 0 };
    let header = (&mut bytes[..]).try_into().expect("the buffer has the length of the longest packet");
    let mut length = data + Packet { source, sequence, values, body }.encode(header);
    bytes.resize(bytes.len() + data, 0);
    if choices.below(4) == 3 {
        bytes[choices.below(length as u64) as usize] = choices.below(256) as u8;
    }
    if choices.below(8) == 7 {
        length = choices.below(length as u64) as usize;
    }
    inject(sim, &bytes[..length]);
}

fn any_body(choices: &mut Choices<'_>) -> Body {
    let mut id = || Id::from_wire((1 + choices.below(3)) << 32 | choices.below(12)).expect("the id is not 0");
    let (sender, receiver) = (id(), id());
    let length = [0, 1, 100, 12_000, 100_000, 1 << 61][choices.below(6) as usize];
    let envelope = Envelope { context: 0, tag: choices.below_u32(6), length };
    let mut keys = [None; RAILS];
    keys[0] = choices.yes().then(|| Key { address: 0, key: choices.below(20) });
    match choices.below(15) {
        0 => Body::Eager { envelope: Envelope { length: 0, ..envelope }, sync: choices.yes().then_some(sender) },
        1 => Body::Rts { envelope, sender, keys },
        2 => {
            Body::Cts { sender, receiver, mover: if choices.yes() { Mover::Copy } else { Mover::Write }, length, keys }
        }
        3 => Body::Nak { receiver },
        4 => Body::Data { receiver, offset: length, length: 0 },
        5 => Body::Fin { receiver, lanes: 1 + choices.below(4) as u8 },
        6 => Body::Ack { sender },
        13 => Body::Discarded { sender },
        7 => {
            let (slots, bytes) = (choices.below_u32(2000), choices.below_u32(70_000));
            let key = Key { address: 0, key: choices.below(20) };
            Body::Join { ring: choices.below(3) as u16, slots, bytes, key }
        }
        8 => Body::Leave { ring: choices.below(3) as u16 },
        9 => Body::Left { ring: choices.below(3) as u16 },
        10 => Body::Link { say: Say::ALL[choices.below(Say::ALL.len() as u64) as usize] },
        11 => {
            let (at, sync) = ([0, 100, 300][choices.below(3) as usize], choices.yes().then_some(sender));
            Body::Piece { envelope, sync, at, length: 1 + choices.below_u32(200) }
        }
        12 => {
            let number = |choices: &mut Choices<'_>| choices.below_u32(4);
            let (epoch, heard, came) = (number(choices), number(choices), number(choices));
            Body::Cut { rail: choices.below(4) as u8, epoch, heard, came }
        }
        _ => Body::Control,
    }
}

/// Writes a mark into a slot of a ring that rank 1 may have given.
fn write_to_a_ring(sim: &mut Sim, choices: &mut Choices<'_>) {
    let at = choices.below(32) as usize * 2048 + 2040;
    let mark = choices.below(5000) << 32 | (1 + choices.below(39));
    let to = Key { address: 0, key: 1 + choices.below(9) };
    let request = Request::Put { to, at, head: &[], body: Data::None, mark: Some(mark), immediate: None };
    let _ = sim.engine(0).wire().post(Lane { peer: 1, rail: 0 }, request);
}

/// Publishes values beside a ring that rank 0 may have given.
fn leave_beside_a_ring(sim: &mut Sim, choices: &mut Choices<'_>) {
    let wire = sim.engine(0).wire();
    let key = Key { address: 0, key: 1 + choices.below(9) };
    let mut value = || [0, 1, 40, 1 << 31, u64::MAX][choices.below(5) as usize] & u64::from(u32::MAX);
    let words = [value() | value() << 32, value()];
    if let Some(memory) = wire.memory_of(0, key, 0, true) {
        wire.publish(1, &memory, words);
    }
}

/// Posts bytes from rank 0 to rank 1, below rank 0's engine.
pub fn inject(sim: &mut Sim, bytes: &[u8]) {
    // Uses datagrams if there are any: connections may be missing.
    let wire = sim.engine(0).wire();
    let rails = wire.rails(wire.is_near(1));
    let rail = rails.iter().position(|rail| rail.kind == RailKind::Datagram).unwrap_or(0);
    let lane = Lane { peer: 1, rail };
    let _ = wire.post(lane, Request::Send { head: bytes, body: Data::None });
}

/// Ranks 0, 1 and 2 with traffic of all kinds in flight. A third of the seeds have datagrams with some
/// connections, a third have two rails, and a sixth run on one host.
pub fn job(seed: u64) -> (Sim, usize) {
    let config =
        Config { ring_after: 1, zero_copy_from: 20_000, connections: 1, connect_after: 1, ..Config::default() };
    let mut conditions = Conditions::default();
    let first = conditions.rails[0];
    match seed % 3 {
        0 => conditions.rails.push(Rail { kind: RailKind::Datagram, read: false, write: false, ..first }),
        // Rank 0 may claim that one of them is cut.
        1 => conditions.rails.push(first),
        // One host: rank 0 publishes arbitrary values beside its ring.
        _ if seed.is_multiple_of(2) => {
            (conditions.rails[0].kind, conditions.host) = (RailKind::Memory, 3);
            // Without writes, the receiver reads rendezvous messages at once.
            conditions.rails[0].write = seed.is_multiple_of(4);
        }
        _ => {}
    }
    let mut sim = Sim::new(seed, 3, conditions, &config).unwrap();
    let mut bystanders = 0;
    for (tag, length) in (0..).zip([0, 100, 5000, 12_000, 100_000]) {
        for (a, b) in [(0, 1), (1, 0), (1, 2), (2, 1)] {
            sim.engine(a).send(b, 0, tag, SimMemory::pattern(1, length), length, tag == 1);
            sim.engine(b).receive(Select { context: 0, source: Some(a), tag: Some(tag) }, RecvTarget::Allocate);
            bystanders += usize::from(a + b == 3);
        }
    }
    (0..3).for_each(|rank| sim.wake(rank, 0));
    (sim, bystanders)
}

/// Runs to the end. Returns how rank 1 lost rank 0, if it did.
pub fn finish(mut sim: Sim, bystanders: usize) -> Option<PeerFailure> {
    let (mut good, mut lost) = (0, None);
    let mut check = |sim: &mut Sim, rank: Rank| {
        while let Some(done) = sim.engine(rank).completed() {
            match done.result {
                Ok(status) if rank == 1 && status.peer == 2 => good += 1,
                Ok(_) => {}
                Err(Error::PeerFailure { rank: who, lost: how }) => {
                    assert!((rank, who) == (1, 0) || (rank, who) == (0, 1), "rank {rank} lost {who}");
                    if rank == 1 {
                        lost = Some(how);
                    }
                }
                // Injected bytes may be a message of the wrong length.
                Err(Error::NoMemory { .. } | Error::Truncated { .. }) => assert_eq!(rank, 1),
                // A synchronous send ends so if its receiver claims to have dropped the team.
                Err(Error::Discarded { rank: who }) => assert_eq!((rank, who), (1, 0)),
                Err(other) => panic!("rank {rank}: {other}"),
            }
        }
    };
    let mut steps = 0;
    while let Some(rank) = sim.step() {
        check(&mut sim, rank);
        steps += 1;
        assert!(steps < 1_000_000, "not finished after 1,000,000 steps");
    }
    (0..3).for_each(|rank| check(&mut sim, rank));
    assert_eq!(good, bystanders, "the traffic between ranks 1 and 2 is incomplete");
    lost
}
