//! The short path: a message in a ring is received without a request, and overtakes no other message.

use transom_channel::sim::{Conditions, Sim, SimMemory};
use transom_channel::wire::{Data, Part, Rail, RailKind, WireMemory};
use transom_channel::{Config, Error, Rank, RecvInfo, RecvTarget, Select, Short};

fn of(tag: Option<u32>) -> Select {
    Select { context: 0, source: Some(0), tag }
}

/// Sends from rank 0 to rank 1 on the short path.
fn send(sim: &mut Sim, tag: u32, number: u64) -> bool {
    let part = Part { memory: &SimMemory::pattern(number, 8), at: 0, length: 8 };
    sim.engine(0).try_send(1, 0, tag, Data::Of(part))
}

/// Content of message `number`.
fn bytes(number: u64) -> [u8; 8] {
    let mut bytes = [0; 8];
    SimMemory::pattern(number, 8).read(0, &mut bytes);
    bytes
}

/// Runs until nothing happens; rank 1 makes progress only if `turns_of_1`.
fn settle(sim: &mut Sim, turns_of_1: bool) {
    sim.stop(1, !turns_of_1);
    (0..2).for_each(|rank| sim.wake(rank, 0));
    while sim.step().is_some() {}
}

/// A job in which rank 0 has a ring at rank 1.
fn with_a_ring() -> Sim {
    with_a_ring_of(&Config::default())
}

fn with_a_ring_of(config: &Config) -> Sim {
    let mut sim = Sim::new(3, 2, Conditions::default(), config).unwrap();
    for number in 0..20 {
        sim.engine(0).send(1, 0, 0, SimMemory::pattern(number, 8), 8, false);
        sim.engine(1).receive(of(None), RecvTarget::Allocate);
        settle(&mut sim, true);
    }
    (0..2).for_each(|rank: Rank| while sim.engine(rank).completed().is_some() {});
    sim
}

fn short(sim: &mut Sim, tag: Option<u32>) -> (Short, Option<u64>) {
    let mut into = [0; 8];
    let short = sim.engine(1).try_receive(0, 0, tag, &mut into[..], 1);
    (short, (0..2000).find(|number| bytes(*number) == into))
}

#[test]
fn short_receives_keep_order_and_return_credits() {
    let mut sim = with_a_ring();
    let mut sent = 0;
    for number in 0..1000 {
        while sent < number + 5 && send(&mut sim, 7, sent) {
            sent += 1;
        }
        settle(&mut sim, false);
        match short(&mut sim, Some(7)) {
            (short @ Short::Done(_), whose) => {
                assert_eq!((short, whose), (Short::Done(RecvInfo::new(7, 8)), Some(number)));
            }
            // A progress call is due.
            (Short::Long, _) => {
                sim.engine(1).progress();
                let id = sim.engine(1).receive(of(Some(7)), RecvTarget::Allocate);
                let done = sim.engine(1).completed().expect("it is there");
                assert_eq!((done.id, done.memory.unwrap().whose(8)), (id, Some(number)));
            }
            (Short::Nothing, _) => panic!("message {number} was not found in the ring"),
        }
    }
    let by_queue = sim.engine(0).counters().queue_packets;
    assert!(by_queue < 60, "{by_queue} went past the ring");
    settle(&mut sim, true);
    while sim.engine(1).try_probe(of(Some(7))).unwrap().is_some() {}
    settle(&mut sim, true);
    (0..2).for_each(|rank| sim.engine(rank).at_rest().unwrap());
}

#[test]
fn short_receive_overtakes_no_earlier_message() {
    let mut sim = with_a_ring();
    assert_eq!(short(&mut sim, None).0, Short::Nothing);
    // A receive that was posted earlier.
    let posted = sim.engine(1).receive(Select { source: None, ..of(None) }, RecvTarget::Allocate);
    assert!(send(&mut sim, 7, 1) && send(&mut sim, 7, 2));
    settle(&mut sim, false);
    assert_eq!(short(&mut sim, Some(7)).0, Short::Long, "the short receive took a message of an earlier receive");
    settle(&mut sim, true);
    let done = sim.engine(1).completed().unwrap();
    assert_eq!((done.id, done.memory.unwrap().whose(8)), (posted, Some(1)));
    // A message that arrived earlier, beside one in the ring.
    assert!(send(&mut sim, 7, 3));
    settle(&mut sim, false);
    assert_eq!(short(&mut sim, Some(7)).0, Short::Long, "the second message came before");
    assert_eq!(short(&mut sim, Some(8)).0, Short::Long, "another tag lies there");
    sim.engine(1).receive(of(Some(7)), RecvTarget::Allocate);
    assert_eq!(sim.engine(1).completed().unwrap().memory.unwrap().whose(8), Some(2));
    assert!(matches!(short(&mut sim, Some(7)), (Short::Done(_), Some(3))));
    // The message is too long for its room.
    assert!(send(&mut sim, 7, 4));
    settle(&mut sim, false);
    let mut into = [0; 3];
    assert_eq!(sim.engine(1).try_receive(0, 0, Some(7), &mut into[..], 1), Short::Done(RecvInfo::new(7, 8)));
    assert_eq!(into, bytes(4)[..3], "its beginning is kept");
}

/// A ring with more slots than packets in flight. It turns between messages sent in a row and messages sent
/// alone.
#[test]
fn turning_ring_loses_no_message() {
    let mut config = Config { window: 20, ..Config::default() };
    config.ring.slots = 32;
    let mut sim = with_a_ring_of(&config);
    let mut number = 0;
    for row in [1; 50].into_iter().chain((0..100).map(|round| 1 + round * 7 % 9)) {
        (0..row).for_each(|ahead| assert!(send(&mut sim, 7, number + ahead)));
        settle(&mut sim, false);
        for _ in 0..row {
            assert_eq!(short(&mut sim, Some(7)), (Short::Done(RecvInfo::new(7, 8)), Some(number)));
            number += 1;
        }
        // An answer carries the credits.
        sim.engine(1).send(0, 0, 0, SimMemory::pattern(0, 8), 8, false);
        sim.engine(0).receive(Select { source: Some(1), ..of(None) }, RecvTarget::Allocate);
        settle(&mut sim, true);
        (0..2).for_each(|rank: Rank| while sim.engine(rank).completed().is_some() {});
    }
    assert_eq!(sim.engine(0).counters().fallbacks, 0);
}

/// Sources are served in turn. Messages that arrived by other paths, and posted receives, come first.
#[test]
fn any_source_receive_serves_sources_in_turn() {
    let mut sim = Sim::new(3, 4, Conditions::default(), &Config::default()).unwrap();
    let send = |sim: &mut Sim, from: Rank, tag, number| {
        let part = Part { memory: &SimMemory::pattern(number, 8), at: 0, length: 8 };
        assert!(sim.engine(from).try_send(1, 0, tag, Data::Of(part)));
    };
    let settle = |sim: &mut Sim, turns_of_1: bool| {
        sim.stop(1, !turns_of_1);
        (0..4).for_each(|rank| sim.wake(rank, 0));
        while sim.step().is_some() {}
    };
    let any = |tag| Select { context: 0, source: None, tag };
    let none_yet = sim.engine(1).try_receive_any(0, None, &mut [][..]);
    assert_eq!(none_yet, (0, Short::Long), "expected Long without a ring");
    for number in 0..20 {
        for from in [0, 2, 3] {
            sim.engine(from).send(1, 0, 0, SimMemory::pattern(number, 8), 8, false);
            sim.engine(1).receive(any(None), RecvTarget::Allocate);
        }
        settle(&mut sim, true);
    }
    while sim.engine(1).completed().is_some() {}
    let mut into = [0; 8];
    let mut receive = |sim: &mut Sim, tag| (sim.engine(1).try_receive_any(0, tag, &mut into[..]), into);
    assert_eq!(receive(&mut sim, None).0, (0, Short::Nothing));
    for number in 0..3 {
        (0..3).for_each(|_| send(&mut sim, 3, 7, 100 + number));
        send(&mut sim, 0, 7, 200 + number);
        send(&mut sim, 2, 7, 300 + number);
        settle(&mut sim, false);
        let mut came: Vec<_> = (0..5)
            .map(|at| match receive(&mut sim, Some(7)) {
                ((rank, Short::Done(taken)), into) => {
                    assert_eq!(taken, RecvInfo::new(7, 8));
                    assert_eq!(into, bytes([200, 0, 300, 100][rank as usize] + number));
                    rank
                }
                other => panic!("message {at} of round {number}: {other:?}"),
            })
            .collect();
        assert_eq!(came[3..], [3, 3], "a source was served twice before the others");
        came.sort_unstable();
        assert_eq!(came, [0, 2, 3, 3, 3]);
        assert_eq!(receive(&mut sim, None).0, (0, Short::Nothing));
    }
    // A message that waits to be matched comes first. Another tag, and a message for a posted receive, need a
    // progress call.
    send(&mut sim, 2, 8, 1);
    settle(&mut sim, true);
    send(&mut sim, 3, 8, 2);
    settle(&mut sim, false);
    assert_eq!(receive(&mut sim, Some(8)).0.1, Short::Long);
    let id = sim.engine(1).receive(any(Some(8)), RecvTarget::Allocate);
    let done = sim.engine(1).completed().expect("it had come");
    assert_eq!((done.id, done.memory.unwrap().whose(8)), (id, Some(1)));
    assert_eq!(receive(&mut sim, Some(9)).0, (3, Short::Long));
    let posted = sim.engine(1).receive(any(Some(8)), RecvTarget::Allocate);
    assert_eq!(receive(&mut sim, Some(8)).0.1, Short::Long);
    settle(&mut sim, true);
    let done = sim.engine(1).completed().expect("the receive posted earlier did not complete");
    assert_eq!((done.id, done.memory.unwrap().whose(8)), (posted, Some(2)));
    (0..4).for_each(|rank| while sim.engine(rank).completed().is_some() {});
    settle(&mut sim, true);
    (0..4).for_each(|rank| sim.engine(rank).at_rest().unwrap());
}

/// A send that finds its ring full handles arrivals. Waiters for these must be notified, since no progress
/// call will find them.
#[test]
fn message_received_during_send_is_reported() {
    let mut sim = with_a_ring();
    sim.engine(1).send(0, 0, 9, SimMemory::pattern(5, 8), 8, false);
    sim.stop(0, true);
    sim.wake(1, 0);
    while sim.step().is_some() {}
    let from_1 = Select { context: 0, source: Some(1), tag: Some(9) };
    let mut sent = 0;
    while sim.engine(0).peek(from_1).unwrap().is_none() {
        assert!(!sim.engine(0).take_news(), "take_news reported a message after {sent} sends, but none had arrived");
        assert!(send(&mut sim, 7, sent), "try_send found no path beside the full ring");
        sent += 1;
    }
    assert!(sent > 1 && sim.engine(0).take_news() && !sim.engine(0).take_news());
}

#[test]
fn posted_receives_take_earlier_ring_messages() {
    let mut sim = with_a_ring();
    let posted = [Some(7), None].map(|tag| sim.engine(1).receive(of(tag), RecvTarget::Into(SimMemory::zero(8), 8)));
    assert!((10..13).all(|number| send(&mut sim, 7, number)));
    settle(&mut sim, false);
    assert_eq!(short(&mut sim, Some(7)), (Short::Done(RecvInfo::new(7, 8)), Some(12)));
    for (id, number) in posted.into_iter().zip([10, 11]) {
        let done = sim.engine(1).completed().expect("the receive posted earlier did not complete");
        assert_eq!((done.id, done.memory.unwrap().whose(8)), (id, Some(number)));
    }
    settle(&mut sim, true);
    (0..2).for_each(|rank| sim.engine(rank).at_rest().unwrap());
}

/// Memory made for the length of the message: on the short path, by a progress call, and for rendezvous.
#[test]
fn receive_callback_makes_its_own_memory() {
    let mut sim = with_a_ring();
    let make =
        |sim: &mut Sim| sim.engine(1).receive(of(Some(7)), RecvTarget::Make(|length| Some(SimMemory::zero(length))));
    let posted = make(&mut sim);
    assert!(send(&mut sim, 7, 10) && send(&mut sim, 7, 11));
    settle(&mut sim, false);
    assert_eq!(short(&mut sim, Some(7)), (Short::Done(RecvInfo::new(7, 8)), Some(11)));
    let done = sim.engine(1).completed().expect("it lay before that");
    assert_eq!((done.id, done.memory.unwrap().whose(8)), (posted, Some(10)));
    for (number, length) in [(12, 8), (13, 0), (14, 100_000)] {
        let posted = make(&mut sim);
        sim.engine(0).send(1, 0, 7, SimMemory::pattern(number, length), length, false);
        settle(&mut sim, true);
        let done = sim.engine(1).completed().expect("the receive did not complete");
        assert_eq!((done.id, done.result.unwrap().length), (posted, length as u64));
        assert!(length == 0 || done.memory.unwrap().whose(length) == Some(number), "message {number}");
    }
    // The callback has no memory: the engine allocates some.
    let posted = sim.engine(1).receive(of(Some(7)), RecvTarget::Make(|_| None));
    assert!(send(&mut sim, 7, 15) && send(&mut sim, 7, 16));
    settle(&mut sim, false);
    assert_eq!(short(&mut sim, Some(7)), (Short::Done(RecvInfo::new(7, 8)), Some(16)));
    let done = sim.engine(1).completed().expect("it has met its message");
    assert_eq!((done.id, done.memory.unwrap().whose(8)), (posted, Some(15)));
    (0..2).for_each(|rank| while sim.engine(rank).completed().is_some() {});
    settle(&mut sim, true);
    (0..2).for_each(|rank| sim.engine(rank).at_rest().unwrap());
}

/// Two ranks on one host, with rings to each other. Long messages are read.
fn of_one_host(config: &Config) -> Sim {
    let rail = Rail { kind: RailKind::Memory, write: false, ..Conditions::default().rails[0] };
    let mut sim = Sim::new(5, 2, Conditions { rails: vec![rail], host: 2, ..Conditions::default() }, config).unwrap();
    for number in 0..40 {
        let (from, to) = (number % 2, 1 - number % 2);
        sim.engine(to).receive(Select { source: Some(from), ..of(None) }, RecvTarget::Allocate);
        sim.engine(from).send(to, 0, 0, SimMemory::pattern(1, 8), 8, false);
        settle(&mut sim, true);
    }
    (0..2).for_each(|rank: Rank| while sim.engine(rank).completed().is_some() {});
    sim
}

const LONG: usize = 100_000;

/// An RTS and an acknowledgement, both through rings, and one read: even if the receiver makes no progress
/// call.
#[test]
fn rendezvous_to_a_posted_receive_is_read_at_once() {
    let mut sim = of_one_host(&Config::default());
    let mut at_once = 0;
    for number in 0..100 {
        let before = [0, 1].map(|rank| sim.engine(rank).counters());
        let received = sim.engine(1).receive(of(Some(7)), RecvTarget::Into(SimMemory::zero(LONG + 8), LONG + 8));
        let sent = sim.engine(0).send(1, 0, 7, SimMemory::pattern(number, LONG), LONG, false);
        settle(&mut sim, false);
        assert_eq!(sim.engine(1).receive_posted(0, 1), Some(true), "receive_posted found no message in the ring");
        match sim.engine(1).completed() {
            Some(done) => {
                at_once += 1;
                assert_eq!((done.id, done.memory.unwrap().whose(LONG)), (received, Some(number)));
                // The acknowledgement carries the freed slots and credit.
                sim.stop(1, true);
                sim.wake(0, 0);
                while sim.step().is_some() {}
                assert_eq!(sim.engine(0).completed().expect("the send did not complete").id, sent);
                settle(&mut sim, true);
            }
            // The sender still has to take part.
            None => {
                assert!(sim.engine(0).completed().is_none(), "the send completed before its data were read");
                settle(&mut sim, true);
                let done = sim.engine(1).completed().expect("the receive did not complete");
                assert_eq!((done.id, done.memory.unwrap().whose(LONG)), (received, Some(number)));
                assert_eq!(sim.engine(0).completed().expect("the send did not complete").id, sent);
            }
        }
        for (rank, before) in (0..2).zip(before) {
            let after = sim.engine(rank).counters();
            let packets = after.ring_packets - before.ring_packets + after.queue_packets - before.queue_packets;
            assert_eq!(packets - (after.controls - before.controls), 1, "rank {rank}");
            assert_eq!(after.read_bytes - before.read_bytes, u64::from(rank) * LONG as u64);
        }
    }
    assert!((20..80).contains(&at_once), "{at_once}");
    (0..2).for_each(|rank| sim.engine(rank).at_rest().unwrap());
}

/// Messages that arrived earlier and are unreceived come first, and so do messages for receives posted
/// earlier.
#[test]
fn rendezvous_overtakes_no_earlier_message() {
    let mut sim = of_one_host(&Config::default());
    let into = || RecvTarget::Into(SimMemory::zero(LONG), LONG);
    let first = sim.engine(1).receive(of(None), into());
    let second = sim.engine(1).receive(of(Some(8)), into());
    for (number, tag) in [(1, 8), (2, 7), (3, 8)] {
        sim.engine(0).send(1, 0, tag, SimMemory::pattern(number, LONG), LONG, false);
    }
    settle(&mut sim, false);
    assert_eq!(sim.engine(1).receive_posted(0, 1), Some(true), "the first receive did not match the first message");
    assert_eq!(sim.engine(1).receive_posted(0, 1), Some(false), "a message without a receive was matched");
    settle(&mut sim, true);
    let third = sim.engine(1).receive(of(Some(7)), into());
    settle(&mut sim, true);
    let came: Vec<_> = std::iter::from_fn(|| sim.engine(1).completed())
        .map(|done| (done.id, done.memory.unwrap().whose(LONG)))
        .collect();
    let expected = [(first, Some(1)), (second, Some(3)), (third, Some(2))];
    assert!(expected.iter().all(|one| came.contains(one)) && came.len() == 3, "{came:?}");
}

/// A message that bypassed the full ring through the queue was sent before the RTS in the ring.
#[test]
fn rendezvous_does_not_overtake_queued_messages() {
    let mut config = Config::default();
    config.ring.slots = 8;
    let mut sim = of_one_host(&config);
    let queued = sim.engine(0).counters().queue_packets;
    let mut sent = 0;
    while sim.engine(0).counters().queue_packets == queued {
        sim.engine(0).send(1, 0, 7, SimMemory::pattern(sent, 8), 8, false);
        settle(&mut sim, false);
        sent += 1;
    }
    // All but that one are received, and the next packet reports it.
    for number in 0..sent - 1 {
        assert_eq!(short(&mut sim, Some(7)), (Short::Done(RecvInfo::new(7, 8)), Some(number)));
    }
    assert!(sim.engine(1).try_send(0, 0, 9, Data::None));
    settle(&mut sim, false);
    let ring = sim.engine(0).counters().ring_packets;
    sim.engine(0).send(1, 0, 7, SimMemory::pattern(1000, LONG), LONG, false);
    assert_eq!(sim.engine(0).counters().ring_packets, ring + 1, "it is announced in the ring");
    settle(&mut sim, false);
    let posted =
        [8, LONG].map(|room| sim.engine(1).receive(of(Some(7)), RecvTarget::Into(SimMemory::zero(room), room)));
    assert_eq!(sim.engine(1).receive_posted(0, 1), Some(false), "another message is due");
    settle(&mut sim, true);
    for (id, room, number) in [(posted[0], 8, sent - 1), (posted[1], LONG, 1000)] {
        let done = sim.engine(1).completed().expect("a receive did not complete");
        assert_eq!((done.id, done.memory.unwrap().whose(room)), (id, Some(number)));
    }
    while sim.engine(0).completed().is_some() {}
    sim.engine(0).receive(Select { source: Some(1), ..of(Some(9)) }, RecvTarget::Allocate);
    settle(&mut sim, true);
    while sim.engine(0).completed().is_some() {}
    (0..2).for_each(|rank| sim.engine(rank).at_rest().unwrap());
}

/// Messages that are not read at once use the other paths: pieces after a CTS, whole messages, and messages
/// longer than their room.
#[test]
fn rendezvous_not_read_at_once_still_arrives() {
    let whole = Config::default();
    let copied = Config { zero_copy_from: u64::MAX, ..Config::default() };
    let hidden = Config { offer: false, ..Config::default() };
    for (config, room) in [(&whole, 10), (&copied, LONG), (&hidden, LONG)] {
        let mut sim = of_one_host(config);
        sim.engine(1).receive(of(Some(7)), RecvTarget::Into(SimMemory::zero(room), room));
        sim.engine(0).send(1, 0, 7, SimMemory::pattern(4, LONG), LONG, false);
        settle(&mut sim, true);
        let done = sim.engine(1).completed().expect("the receive did not complete");
        assert_eq!(done.memory.unwrap().whose(room), Some(4));
        let truncated = matches!(done.result, Err(Error::Truncated { room: 10, .. }));
        assert_eq!(truncated, room < LONG, "{:?}", done.result);
        sim.engine(0).completed().expect("the send did not complete").result.unwrap();
    }
}
