//! Cost of messages: packets, and packets that carry only credits, counted.

use transom_channel::sim::{Conditions, Sim, SimMemory};
use transom_channel::wire::{Data, Part, Rail, RailKind};
use transom_channel::{Config, Counters, Rank, RecvTarget, Select};

fn sum(sim: &mut Sim, of: impl Fn(&Counters) -> u64) -> u64 {
    (0..2).map(|rank| of(&sim.engine(rank).counters())).sum()
}

fn from(source: Rank) -> Select {
    Select { context: 0, source: Some(source), tag: None }
}

/// Sends a message of 8 bytes to and fro, `rounds` times.
fn ping_pong(sim: &mut Sim, rounds: u64) {
    let ball = SimMemory::pattern(1, 8);
    let mut left = 2 * rounds;
    sim.engine(1).receive(from(0), RecvTarget::Into(SimMemory::zero(8), 8));
    let first = sim.engine(0).send(1, 0, 0, SimMemory::pattern(1, 8), 8, false);
    sim.engine(0).receive(from(1), RecvTarget::Into(SimMemory::zero(8), 8));
    sim.wake(0, 0);
    while let Some(rank) = sim.step() {
        while let Some(done) = sim.engine(rank).completed() {
            assert!(done.result.is_ok());
            let memory = done.memory.unwrap();
            if (rank, done.id) == (0, first) {
                continue;
            }
            assert_eq!(memory.whose(8), Some(1));
            left -= 1;
            if left == 0 {
                break;
            }
            sim.engine(rank).receive(from(1 - rank), RecvTarget::Into(memory, 8));
            let part = Data::Of(Part { memory: &ball, at: 0, length: 8 });
            assert!(sim.engine(rank).try_send(1 - rank, 0, 0, part), "try_send refused a short message");
            sim.wake(rank, 0);
        }
        if left == 0 {
            break;
        }
    }
}

#[test]
fn ping_pong_sends_one_packet_per_message() {
    let mut sim = Sim::new(1, 2, Conditions::default(), &Config::default()).unwrap();
    let rounds = 1000;
    ping_pong(&mut sim, rounds);
    assert_eq!(sum(&mut sim, |counters| counters.rendezvous), 0);
    assert_eq!(sum(&mut sim, |counters| counters.eager), 2 * rounds);
    let packets = sum(&mut sim, |counters| counters.ring_packets + counters.queue_packets);
    // A JOIN in each direction, and the first grant of each side.
    assert!(packets <= 2 * rounds + 2 + 4, "{packets} packets");
    assert!(sum(&mut sim, |counters| counters.queue_packets) <= 2 * 20, "after the first few all go by the rings");
    assert!(sum(&mut sim, |counters| counters.controls) <= 4);
    assert_eq!(sum(&mut sim, |counters| counters.unexpected), 0);
}

#[test]
fn one_way_stream_returns_credit_per_half_ring() {
    let mut sim = Sim::new(1, 2, Conditions::default(), &Config::default()).unwrap();
    let messages = 3200;
    for _ in 0..messages {
        sim.engine(1).receive(from(0), RecvTarget::Into(SimMemory::zero(8), 8));
    }
    for _ in 0..messages {
        sim.engine(0).send(1, 0, 0, SimMemory::pattern(1, 8), 8, false);
    }
    sim.wake(0, 0);
    while sim.step().is_some() {}
    assert_eq!(sim.engine(0).counters().eager, messages);
    assert_eq!(sim.engine(0).counters().controls, 0);
    let controls = sim.engine(1).counters().controls;
    // At most one for each half of 32 slots, of a window of 64 and of a grant, and one at the end.
    assert!((10..=messages / 16 + 2).contains(&controls), "{controls}");
    sim.engine(0).at_rest().unwrap();
}

/// On one host no packet is sent for credits. A sender whose messages do not fit reads them when it is woken.
#[test]
fn same_host_credits_are_published_without_packets() {
    let rails = Conditions::default().rails.into_iter().map(|rail| Rail { kind: RailKind::Memory, ..rail }).collect();
    let conditions = Conditions { rails, host: 2, ..Conditions::default() };
    let mut sim = Sim::new(1, 2, conditions, &Config::default()).unwrap();
    let messages = 3200;
    for _ in 0..messages {
        sim.engine(1).receive(from(0), RecvTarget::Into(SimMemory::zero(8), 8));
        sim.engine(0).send(1, 0, 0, SimMemory::pattern(1, 8), 8, false);
    }
    sim.wake(0, 0);
    while sim.step().is_some() {}
    let of = sim.engine(1).counters();
    // Before the first message arrives in the ring, the receiver does not know whether the sender reaches it.
    assert!(of.controls <= 2, "{of:?}");
    assert!((10..=messages / 16 + 2).contains(&of.published), "{}", of.published);
    assert_eq!(of.ring_packets + of.queue_packets, 1 + of.controls, "expected one JOIN besides control packets");
    sim.engine(0).at_rest().unwrap();
}

/// In a ping-pong, messages carry the values; the words beside the ring must be current all the same.
#[test]
fn published_credits_stay_current_in_ping_pong() {
    let rails = Conditions::default().rails.into_iter().map(|rail| Rail { kind: RailKind::Memory, ..rail }).collect();
    let conditions = Conditions { rails, host: 2, ..Conditions::default() };
    let config = Config { window: 16, ..Config::default() };
    let mut sim = Sim::new(1, 2, conditions, &config).unwrap();
    let rounds = 400;
    ping_pong(&mut sim, rounds);
    let published = sim.engine(0).counters().published;
    assert!((rounds / 8 - 5..=rounds / 8).contains(&published), "{published}");
}

#[test]
fn long_message_sends_only_its_control_packets() {
    let length = 1 << 20;
    // Offered and late: RTS, ACK and the read. Otherwise RTS, CTS, FIN and the write. Refused: RTS, CTS and
    // the pieces.
    let of = |conditions: Conditions, config: Config, late: bool| {
        let mut sim = Sim::new(1, 2, conditions, &Config { rings: 0, ..config }).unwrap();
        let post = |sim: &mut Sim| {
            sim.engine(1).receive(from(0), RecvTarget::Into(SimMemory::zero(length), length));
            sim.wake(1, 0);
        };
        if !late {
            post(&mut sim);
        }
        sim.engine(0).send(1, 0, 0, SimMemory::pattern(1, length), length, false);
        sim.wake(0, 0);
        while sim.step().is_some() {}
        if late {
            post(&mut sim);
            while sim.step().is_some() {}
        }
        assert_eq!(sim.engine(1).completed().unwrap().memory.unwrap().whose(length), Some(1));
        let packets = sum(&mut sim, |counters| counters.queue_packets - counters.controls);
        (
            packets,
            sim.engine(0).counters().written_bytes,
            sim.engine(1).counters().read_bytes,
            sim.engine(0).counters().copied_bytes,
        )
    };
    let with = |config, late| of(Conditions::default(), config, late);
    let bytes = length as u64;
    assert_eq!(with(Config::default(), true), (2, 0, bytes, 0));
    assert_eq!(with(Config::default(), false), (3, bytes, 0, 0));
    assert_eq!(with(Config { offer: false, ..Config::default() }, true), (3, bytes, 0, 0));
    let pieces = bytes.div_ceil((16 << 10) - transom_channel::packet::DATA as u64);
    assert_eq!(with(Config { zero_copy_from: u64::MAX, ..Config::default() }, true), (2 + pieces, 0, 0, bytes));
    // The offering sender is blocked and may send faster: packets are tried first.
    let rails = vec![Rail { write: false, ..Conditions::default().rails[0] }];
    let waits = || Conditions { sent_faster: 1000, rails: rails.clone(), ..Conditions::default() };
    assert_eq!(of(waits(), Config::default(), true), (2 + pieces, 0, 0, bytes));
    assert_eq!(of(waits(), Config::default(), false), (2 + pieces, 0, 0, bytes));
    assert_eq!(of(waits(), Config { read_waiting: true, ..Config::default() }, true), (2, 0, bytes, 0));
}

#[test]
fn sender_copies_only_in_trials_if_reads_are_faster() {
    let rails = vec![Rail { write: false, ..Conditions::default().rails[0] }];
    let conditions =
        Conditions { sent_faster: 1000, rails, latency: 999..1000, pause: 50..51, ..Conditions::default() };
    let mut sim = Sim::new(1, 2, conditions, &Config::default()).unwrap();
    let length = 100_000;
    let sent: Vec<usize> = (1..=1030)
        .filter(|_| {
            let before = sim.engine(0).counters().copied_bytes;
            sim.engine(0).send(1, 0, 0, SimMemory::pattern(1, length), length, false);
            sim.engine(1).receive(from(0), RecvTarget::Into(SimMemory::zero(length), length));
            (0..2).for_each(|rank| sim.wake(rank, 0));
            while sim.step().is_some() {}
            let came = sim.engine(1).completed().unwrap().memory.unwrap();
            assert_eq!(came.whose(length), Some(1));
            sim.engine(0).counters().copied_bytes > before
        })
        .collect();
    // A read is faster than packets here.
    let tried: Vec<usize> = (1..=4).chain(513..=768).collect();
    assert_eq!(sent, tried);
}
