//! Tests of a lane's account with a fake queue.

use super::*;
use crate::fake::{Events, Queue, START, Thing, completion};
use crate::wr::{Kind, Why};

const TO: RemoteAddress = RemoteAddress { address: 4096, key: 9 };
const PIECE: Piece = Piece { address: 64, bytes: 100, key: 7 };

type Tested = Lane<Queue, Thing>;

fn lane(depth: u32) -> (Tested, Queue) {
    let queue = Queue::new(77, depth);
    (Lane::new(3, queue.clone(), START), queue)
}

fn post(lane: &Tested, verb: Verb) -> Result<u64, Stop> {
    // SAFETY: the fake queue accesses no memory.
    unsafe { lane.post(verb, TO, PIECE, Signal::NowAndThen, None) }.map_err(|(stop, _)| stop)
}

fn lend(lane: &Tested, name: &'static str, events: &Events) -> Result<u64, (Stop, Option<Thing>)> {
    // SAFETY: as above.
    unsafe { lane.post(Verb::Write, TO, PIECE, Signal::Always, Some(Thing(name, events.clone()))) }
}

fn done(lane: &Tested, request: u64) {
    lane.complete(&completion(3, 77, request, Ok(())));
}

fn failure(why: Why) -> Failure {
    Failure { why, status: 12, vendor: 1 }
}

#[test]
fn one_in_many_messages_is_signalled() {
    let (lane, queue) = lane(16);
    let mut signalled = Vec::new();
    for number in 1..=12 {
        // SAFETY: the fake queue accesses no memory.
        unsafe { lane.post_message(Verb::Send, TO, PIECE, Signal::Seldom, None) }.unwrap();
        if queue.take()[0].signalled {
            signalled.push(number);
            done(&lane, number);
        }
    }
    assert_eq!(signalled, [5, 10], "a quarter of the depth after the last, even if the lane is idle");
    assert_eq!((lane.counts().sends, lane.counts().signalled), (12, 2));
    assert!(!lane.is_idle());
    lane.ask().unwrap();
    assert!(queue.take()[0].signalled);
    done(&lane, 13);
    assert!(lane.is_idle());
}

#[test]
fn full_lane_posts_a_signalled_marker() {
    let (lane, queue) = lane(8);
    for number in 1..=6 {
        assert_eq!(post(&lane, Verb::Write).unwrap(), number);
    }
    let signalled = |queue: &Queue| queue.take().iter().map(|request| request.signalled).collect::<Vec<_>>();
    // The first request, and then one per quarter of the depth.
    assert_eq!(signalled(&queue), [true, false, false, true, false, false]);
    assert_eq!(post(&lane, Verb::Write).unwrap(), 7);
    assert!(matches!(post(&lane, Verb::Write), Err(Stop::Full)), "one entry is reserved for the marker");
    assert_eq!(signalled(&queue), [true], "the last request is signalled: no marker is needed");
    done(&lane, 4);
    assert_eq!(lane.completed(), 4, "earlier requests too");
    for number in 8..=11 {
        assert_eq!(post(&lane, Verb::Write).unwrap(), number);
    }
    assert!(matches!(post(&lane, Verb::Write), Err(Stop::Full)));
    let last = *queue.take().last().unwrap();
    assert_eq!((last.token, last.piece, last.signalled), (Token::new(3, 12), Piece::NOTHING, true), "a marker");
    assert_eq!(lane.counts().markers, 1);
    // A completion was requested already.
    lane.ask().unwrap();
    assert!(matches!(post(&lane, Verb::Write), Err(Stop::Full)));
    assert!(queue.take().is_empty());
    done(&lane, 12);
    assert!(lane.is_idle());
    lane.ask().unwrap();
    assert!(queue.take().is_empty(), "no request is in flight");
}

#[test]
fn lent_object_is_freed_when_its_request_completes() {
    let (lane, queue) = lane(8);
    let events = queue.events.clone();
    lend(&lane, "one", &events).unwrap();
    post(&lane, Verb::Write).unwrap();
    lend(&lane, "three", &events).unwrap();
    // A caller stopped waiting for the first request's result.
    lane.lend(2, Thing("two", events.clone()));
    lane.reclaim();
    assert!(events.lock().unwrap().is_empty());
    done(&lane, 2);
    lane.reclaim();
    assert_eq!(*events.lock().unwrap(), ["one", "two"]);
    done(&lane, 3);
    post(&lane, Verb::Write).unwrap();
    assert_eq!(*events.lock().unwrap(), ["one", "two", "three"], "a post frees objects too");
    lane.lend(3, Thing("late", events.clone()));
    assert_eq!(events.lock().unwrap().last(), Some(&"late"), "freed at once");
}

#[test]
fn objects_lent_to_one_lane_are_limited() {
    let (lane, queue) = lane(1000);
    let events = queue.events.clone();
    for _ in 0..MOST_LENT {
        assert!(lane.may_lend().unwrap());
        lend(&lane, "lent", &events).unwrap();
    }
    assert!(!lane.may_lend().unwrap());
    let (stop, back) = lend(&lane, "too much", &events).unwrap_err();
    assert!(matches!(stop, Stop::Full) && back.is_some(), "the object is returned");
    post(&lane, Verb::Write).unwrap(); // a request without a lent object is accepted
    done(&lane, 1);
    assert!(lane.may_lend().unwrap());
}

#[test]
fn request_waits_for_unanswered_reads_and_atomics() {
    use Kind::{Atomic, Read, Write};
    let verb = |kind| match kind {
        Write => Verb::Write,
        Read => Verb::Read,
        Atomic => Verb::Add(1),
    };
    // Request in flight, request posted, and whether the latter is fenced.
    for (first, second, fenced) in [
        (Write, Write, false),
        (Write, Read, false),
        (Write, Atomic, false),
        (Read, Read, false),
        (Read, Write, true),
        (Read, Atomic, true),
        (Atomic, Atomic, false),
        (Atomic, Write, true),
        (Atomic, Read, true),
    ] {
        let (lane, queue) = lane(8);
        post(&lane, verb(first)).unwrap();
        post(&lane, verb(second)).unwrap();
        assert_eq!(queue.take()[1].fenced, fenced, "{second:?} after {first:?}");
        done(&lane, 2);
        post(&lane, verb(second)).unwrap();
        assert!(!queue.take()[0].fenced, "{second:?} after {first:?} that is complete");
    }
}

#[test]
fn requests_before_failure_complete_later_ones_fail() {
    let (lane, queue) = lane(16);
    let events = queue.events.clone();
    for name in ["1", "2", "3", "4"] {
        lend(&lane, name, &events).unwrap();
    }
    // The second request fails: the first, unsignalled, is complete. The adapter flushes the later ones.
    lane.complete(&completion(3, 77, 2, Err(failure(Why::Refused))));
    lane.complete(&completion(3, 77, 3, Err(failure(Why::Ended))));
    lane.complete(&completion(3, 77, 4, Ok(())));
    assert_eq!(lane.is_complete(1), Ok(true));
    assert_eq!([2, 3, 4].map(|number| lane.is_complete(number)), [Err(failure(Why::Refused)); 3]);
    assert!(lane.is_idle());
    assert!(events.lock().unwrap().is_empty(), "the adapter may still write there");
    assert!(matches!(post(&lane, Verb::Write), Err(Stop::Failed(failure)) if failure.why == Why::Refused));
    assert_eq!(
        *events.lock().unwrap(),
        ["queue gone", "1", "2", "3", "4"],
        "the queue first, then the objects in order"
    );
    lane.lend(4, Thing("late", events.clone()));
    assert_eq!(events.lock().unwrap().last(), Some(&"late"));
    lane.ask().unwrap();
}

#[test]
fn given_up_lane_ends_at_once() {
    let (lane, queue) = lane(16);
    lend(&lane, "lent", &queue.events).unwrap();
    lane.give_up(Failure::known(Why::Gone));
    assert_eq!(*queue.events.lock().unwrap(), ["queue gone", "lent"]);
    assert_eq!(lane.is_complete(1).unwrap_err().why, Why::Gone);
}

/// Another thread detects the failure and has not destroyed the queue yet.
#[test]
fn object_lent_to_an_ended_lane_outlives_its_queue() {
    let (lane, queue) = lane(8);
    post(&lane, Verb::Read).unwrap();
    lane.complete(&completion(3, 77, 1, Err(failure(Why::Refused))));
    assert!(lane.failure().is_some() && queue.events.lock().unwrap().is_empty());
    lane.lend(1, Thing("lent", queue.events.clone()));
    assert_eq!(*queue.events.lock().unwrap(), ["queue gone", "lent"]);
}

/// The number of a destroyed queue pair, or of another rail's, may belong to another lane.
#[test]
fn only_the_present_own_queue_is_recognised() {
    let (lane, _queue) = lane(8);
    let goes = |lane: &Tested| {
        let mut number = None;
        lane.give_up_queue(failure(Why::Gone), |queue| number = Some(queue.number));
        number
    };
    assert!(lane.has_own(77) && !lane.has_own(78));
    lane.retire(drop);
    assert!(!lane.has_own(77));
    let mut next = Queue::new(101, 8);
    next.failover = true;
    assert!(lane.resume(next, Start { generation: 2, ..START }, received(0)));
    assert_eq!((lane.queue_pair(), lane.has_own(101)), (101, false));
    assert_eq!((goes(&lane), goes(&lane)), (Some(101), None), "once");
}

#[test]
fn foreign_completions_change_nothing() {
    let (lane, _queue) = lane(16);
    post(&lane, Verb::Write).unwrap();
    lane.complete(&completion(3, 76, 1, Ok(()))); // a queue that is gone
    assert_eq!(lane.completed(), 0);
    done(&lane, 1);
    done(&lane, 1); // a duplicate
    done(&lane, u64::from(u32::MAX)); // a number of long ago
    assert_eq!(lane.completed(), 1);
}

#[test]
fn request_numbers_exceed_32_bits() {
    // A state after many requests without packets in flight.
    let lane: Tested = Lane::new(3, Queue::new(77, 16), Start { psn: 0, ..START });
    let before = u64::from(u32::MAX) - 1;
    lane.posted.store(before, Relaxed);
    lane.completed.store(before, Relaxed);
    for _ in 0..4 {
        post(&lane, Verb::Write).unwrap();
    }
    done(&lane, before + 3);
    assert_eq!(lane.completed(), before + 3);
    assert_eq!([before + 3, before + 4].map(|number| lane.is_complete(number)), [Ok(true), Ok(false)]);
}

#[test]
fn small_payload_is_posted_inline() {
    let (lane, queue) = lane(8);
    lane.post_inline(Verb::Write, TO, &[1; 16]).unwrap();
    let request = queue.take()[0];
    assert!(request.inline && request.piece.bytes == 16 && request.to == TO);
}

/// The lane's next connection, whose far end has received the given position.
fn again(lane: &Tested, generation: u32, received: Received) -> Queue {
    let queue = Queue::new(100 + generation, 16);
    assert!(lane.resume(queue.clone(), Start { generation, psn: 5000, mtu: 1024 }, received));
    queue
}

/// Received position of the first connection after `packets` packets.
fn received(packets: u32) -> Received {
    Received { generation: 1, next: (START.psn + packets) % (1 << 24) }
}

fn breaks(lane: &Tested, request: u64) {
    lane.complete(&completion(3, lane.queue_pair(), request, Err(failure(Why::Silence))));
    assert!(lane.is_broken() && lane.failure().is_none());
}

#[test]
fn unexecuted_requests_and_reads_are_posted_again() {
    let (lane, queue) = lane(16);
    let long = Piece { bytes: 3000, ..PIECE }; // 3 packets
    // SAFETY: the fake queue accesses no memory.
    let write = || unsafe { lane.post(Verb::Write, TO, long, Signal::NowAndThen, None) }.unwrap();
    write();
    write();
    lane.post_inline(Verb::Write, TO, b"three").unwrap();
    post(&lane, Verb::Read).unwrap();
    write();
    post(&lane, Verb::Add(7)).unwrap();
    lane.post_inline(Verb::Write, TO, b"seven").unwrap();
    queue.take();
    done(&lane, 1);
    breaks(&lane, 2);
    assert!(matches!(post(&lane, Verb::Write), Err(Stop::Broken)), "not while the connection is broken");
    assert_eq!(lane.is_complete(2), Ok(false), "the caller keeps waiting");
    assert!(lane.retire(drop).is_some());
    // Executed: the first four requests, and two packets of the fifth.
    let posted = again(&lane, 2, received(3 + 3 + 1 + 1 + 2)).take();
    let short = |request: &Request| (request.token.request(), request.verb, request.piece.bytes, request.fenced);
    assert_eq!(
        posted.iter().map(short).collect::<Vec<_>>(),
        [
            (2, Verb::Write, 0, false),
            (3, Verb::Write, 0, false),
            (4, Verb::Read, 100, false),
            (5, Verb::Write, 3000, true),
            (6, Verb::Add(7), 100, true),
            (7, Verb::Write, 5, true),
        ]
    );
    // SAFETY: the lane keeps the bytes.
    let bytes = |at: usize| unsafe { std::slice::from_raw_parts(posted[at].piece.address as *const u8, 5) };
    assert_eq!(bytes(5), b"seven");
    assert!(posted.iter().all(|request| request.signalled) && lane.counts().writes == 5, "each counts once");
    // Late completions of the first queue are ignored.
    lane.complete(&completion(3, 77, 7, Ok(())));
    lane.complete(&completion(3, 77, 3, Err(failure(Why::Ended))));
    assert_eq!((lane.completed(), lane.is_broken()), (1, false));
    lane.complete(&completion(3, 102, 7, Ok(())));
    assert!(lane.is_idle() && !lane.is_lost(6), "it had not been executed before");
    assert_eq!(post(&lane, Verb::Write).unwrap(), 8);
}

/// A cancelled request keeps only its number, and the packet numbers that it had on the wire.
#[test]
fn cancelled_requests_are_not_posted_again() {
    let (lane, queue) = lane(16);
    let [long, other] = [3000, 2000].map(|bytes| Piece { bytes, key: bytes, ..PIECE }); // 3 and 2 packets
    for piece in [long, other, long, long] {
        // SAFETY: the fake queue accesses no memory.
        unsafe { lane.post(Verb::Write, TO, piece, Signal::NowAndThen, None) }.unwrap();
    }
    queue.take();
    let meant = |piece: Piece| piece.key == 3000;
    assert!(!lane.cancel(1..=3, meant), "the adapter has the requests");
    done(&lane, 1);
    breaks(&lane, 2);
    assert!(!lane.cancel(1..=3, meant), "the adapter may still have them");
    assert_eq!(lane.far_end_to_go(), None, "not while this end has its queue");
    assert!(lane.retire(drop).is_some());
    assert_eq!(lane.far_end_to_go(), None, "no caller waits for the far end");
    assert!(!lane.cancel(1..=3, meant), "the far end may still execute them");
    assert_eq!(lane.far_end_to_go(), Some(1));
    lane.far_end_has_gone(0);
    assert!(!lane.cancel(1..=3, meant), "only an earlier generation is retired");
    lane.far_end_has_gone(1);
    assert_eq!(lane.far_end_to_go(), None);
    assert!(lane.cancel(1..=3, meant) && lane.is_needed());
    assert!(lane.cancel(2..=2, |_| true) && lane.is_needed());
    // All of the second request has arrived, and the first packet of the third.
    let posted = again(&lane, 2, received(3 + 2 + 1)).take();
    let short = |request: &Request| (request.token.request(), request.piece.bytes, request.to.address);
    assert_eq!(
        posted.iter().map(short).collect::<Vec<_>>(),
        [(2, 0, 0), (3, 0, 0), (4, 3000, TO.address)],
        "executed, cancelled, and not selected"
    );
    lane.complete(&completion(3, 102, 4, Ok(())));
    assert!(lane.is_idle());
}

#[test]
fn received_position_counts_for_its_connection_only() {
    let (lane, queue) = lane(16);
    for _ in 0..4 {
        post(&lane, Verb::Write).unwrap();
    }
    done(&lane, 1);
    queue.take();
    let numbers = |queue: &Queue| queue.take().iter().map(|request| request.piece.bytes).collect::<Vec<_>>();
    breaks(&lane, 2);
    lane.retire(drop);
    // PSNs wrap around: the first one is the last but one.
    assert_eq!(received(2).next, 0);
    let second = again(&lane, 2, received(2));
    assert_eq!(numbers(&second), [0, 100, 100]);
    lane.complete(&completion(3, 102, 2, Ok(())));
    breaks(&lane, 3);
    lane.retire(drop);
    // Nothing arrived on the second connection, so the position on the first says nothing more. One packet arrived, and
    // it is complete.
    let third = again(&lane, 3, Received { generation: 2, next: 5001 });
    assert_eq!(numbers(&third), [100, 100]);
    breaks(&lane, 3);
    lane.retire(drop);
    let fourth = again(&lane, 4, Received { generation: 2, next: 5001 });
    assert_eq!(numbers(&fourth), [100, 100], "nothing arrived on the third");
    for received in [
        Received { generation: 5, next: 0 },    // a connection that never existed
        Received { generation: 4, next: 5003 }, // more than was sent
        Received { generation: 4, next: 4999 },
    ] {
        let (other, _) = self::lane(16);
        other.retire(drop);
        assert!(other.resume(Queue::new(1, 16), Start { generation: 4, ..START }, Received::default()));
        post(&other, Verb::Write).unwrap();
        other.retire(drop);
        let next = Received { next: (received.next + (1 << 24) - 5000 + START.psn) % (1 << 24), ..received };
        assert!(!other.resume(Queue::new(2, 16), Start { generation: 5, ..START }, next), "{received:?}");
        assert!(other.failure().is_some());
    }
}

#[test]
fn lost_atomic_result_is_reported_once_not_repeated() {
    let (lane, queue) = lane(16);
    let events = queue.events.clone();
    for _ in 0..4 {
        post(&lane, Verb::Add(1)).unwrap();
    }
    breaks(&lane, 1);
    // No caller waits for the second any more.
    lane.lend(2, Thing("two", events.clone()));
    lane.retire(drop);
    let second = again(&lane, 2, received(3));
    let verbs = |queue: &Queue| queue.take().iter().map(|request| request.verb).collect::<Vec<_>>();
    assert_eq!(verbs(&second), [Verb::Write, Verb::Write, Verb::Write, Verb::Add(1)]);
    assert!(!lane.is_lost(2) && !lane.is_lost(4));
    assert!(lane.is_lost(1) && !lane.is_lost(1));
    // The third is abandoned now. The connection breaks again among the empty writes.
    lane.lend(3, Thing("three", events.clone()));
    breaks(&lane, 2);
    lane.retire(drop);
    assert_eq!(verbs(&again(&lane, 3, Received { generation: 2, next: 5002 })).len(), 3);
    assert_eq!(*events.lock().unwrap(), ["queue gone"]);
    lane.complete(&completion(3, 103, 4, Ok(())));
    lane.reclaim();
    assert_eq!(*events.lock().unwrap(), ["queue gone", "two", "three"]);
    assert!((1..=4).all(|number| lane.is_complete(number) == Ok(true) && !lane.is_lost(number)));
}

#[test]
fn lent_objects_live_until_reposted_ones_complete() {
    let (lane, queue) = lane(16);
    let events = queue.events.clone();
    ["1", "2"].into_iter().for_each(|name| _ = lend(&lane, name, &events).unwrap());
    breaks(&lane, 1);
    lane.reclaim();
    lane.retire(drop);
    assert_eq!(*events.lock().unwrap(), ["queue gone"]);
    lane.lend(2, Thing("left", events.clone()));
    let second = again(&lane, 2, Received::default());
    assert_eq!(second.take().len(), 2);
    lane.complete(&completion(3, 102, 1, Ok(())));
    lane.reclaim();
    assert_eq!(*events.lock().unwrap(), ["queue gone", "1"]);
    // The lane ends for good while it has no queue.
    breaks(&lane, 2);
    lane.retire(drop);
    lane.give_up(Failure::known(Why::Gone));
    assert_eq!(*events.lock().unwrap(), ["queue gone", "1", "2", "left"]);
    assert!(!lane.resume(Queue::new(9, 16), START, Received::default()));
    assert!(matches!(post(&lane, Verb::Write), Err(Stop::Failed(failure)) if failure.why == Why::Gone));
}

#[test]
fn lane_fails_after_many_queues_without_progress() {
    let (lane, _queue) = lane(16);
    for generation in 2..40 {
        lane.retire(drop);
        again(&lane, generation, Received::default());
    }
    post(&lane, Verb::Write).unwrap();
    let resume = |generation, received| {
        breaks(&lane, lane.completed() + 1);
        lane.retire(drop);
        lane.resume(Queue::new(generation, 16), Start { generation, ..START }, received)
    };
    let times = (40..100).take_while(|&generation| resume(generation, Received::default())).count();
    assert_eq!(times, 7, "and one queue before them");
    assert_eq!(lane.failure().unwrap().why, Why::Silence);
}

#[test]
fn completions_of_a_retired_queue_count() {
    let (lane, _queue) = lane(16);
    for _ in 0..3 {
        post(&lane, Verb::Write).unwrap();
    }
    lane.retire(|queue| {
        drop(queue);
        done(&lane, 1);
        lane.complete(&completion(3, 77, 2, Err(failure(Why::Ended))));
        done(&lane, 3); // after a failure: without information
    });
    assert_eq!(lane.completed(), 1);
    assert_eq!(again(&lane, 2, received(1)).take().len(), 2);
}

/// The device reports the failure of a queue pair before its last completions were polled.
#[test]
fn completions_before_a_reported_break_count() {
    let (lane, _queue) = lane(16);
    for _ in 0..3 {
        post(&lane, Verb::Add(1)).unwrap();
    }
    lane.break_off(failure(Why::Ended));
    assert!(lane.is_broken() && matches!(post(&lane, Verb::Write), Err(Stop::Broken)));
    done(&lane, 1);
    lane.retire(|queue| {
        done(&lane, 2);
        lane.complete(&completion(3, 77, 3, Err(failure(Why::Ended))));
        done(&lane, 3); // after a failure: without information
        drop(queue);
    });
    assert_eq!(lane.completed(), 2);
    // All three were executed; only the result of the last is lost.
    again(&lane, 2, received(3));
    assert_eq!([1, 2, 3].map(|number| lane.is_lost(number)), [false, false, true]);
}

/// The packets in flight are limited even if the queue accepts more requests, because packet numbers have 24 bits.
#[test]
fn packets_in_flight_are_limited_by_packet_numbers() {
    for mtu in [256, 4096] {
        let start = Start { mtu, ..START };
        let queue = Queue::new(77, 1 << 15);
        let lane: Tested = Lane::new(3, queue.clone(), start);
        let long = Piece { bytes: 1 << 20, ..PIECE };
        // SAFETY: the fake queue accesses no memory.
        let write = || unsafe { lane.post(Verb::Write, TO, long, Signal::NowAndThen, None) };
        let posted = std::iter::from_fn(|| write().ok()).last().unwrap();
        assert_eq!(posted, 2048, "2 GiB");
        assert!(matches!(write(), Err((Stop::Full, None))));
        assert!(queue.take().last().unwrap().signalled, "the request that frees entries is signalled");
        done(&lane, 2);
        assert_eq!(write().unwrap(), 2050, "after the marker");
        assert!(matches!(write(), Err((Stop::Full, None))), "the marker uses a packet number too");
        // A queue with the shortest packets has at most as many packets in flight.
        queue.take();
        breaks(&lane, 3);
        lane.retire(drop);
        let next = Queue::new(78, 1 << 15);
        let received = Received { generation: 1, next: (START.psn + ((1 << 20) / mtu) * 4) % (1 << 24) };
        assert!(lane.resume(next.clone(), Start { generation: 2, psn: 9, mtu: 256 }, received));
        let bytes: Vec<_> = next.take().iter().map(|request| request.piece.bytes).collect();
        assert_eq!((bytes.len(), &bytes[..3]), (2049, &[0, 0, 1 << 20][..]), "the third and the fourth had arrived");
        breaks(&lane, 3);
        lane.retire(drop);
        let last = Queue::new(79, 1 << 15);
        let received = Received { generation: 2, next: 9 + 2 + 4096 };
        assert!(lane.resume(last.clone(), Start { generation: 3, psn: 9, mtu: 256 }, received));
        let bytes: Vec<_> = last.take().iter().map(|request| request.piece.bytes).collect();
        assert_eq!(&bytes[..4], [0, 0, 0, 1 << 20], "the fifth too");
    }
}

/// A received message is not sent again, and any other keeps its slot until it is.
#[test]
fn messages_are_sent_again_unless_received() {
    let (lane, queue) = lane(16);
    let events = queue.events.clone();
    let send = |name, bytes, verb| {
        let piece = Piece { bytes, ..PIECE };
        // SAFETY: the fake queue accesses no memory.
        let posted = unsafe { lane.post(verb, TO, piece, Signal::NowAndThen, Some(Thing(name, events.clone()))) };
        posted.map_err(|(stop, _)| stop).unwrap()
    };
    send("one", 3000, Verb::Send); // 3 packets
    send("two", 100, Verb::WriteAndTell(7));
    send("three", 3000, Verb::Send);
    lane.post_inline(Verb::Send, TO, b"four").unwrap();
    queue.take();
    breaks(&lane, 1);
    lane.retire(drop);
    // Two packets of the third arrived: its receive buffer is lost, and the message goes to another.
    let posted = again(&lane, 2, received(3 + 1 + 2));
    let posted = posted.take();
    let short = |request: &Request| (request.token.request(), request.verb, request.piece.bytes);
    assert_eq!(
        posted.iter().map(short).collect::<Vec<_>>(),
        [(1, Verb::Write, 0), (2, Verb::Write, 0), (3, Verb::Send, 3000), (4, Verb::Send, 4)]
    );
    lane.complete(&completion(3, 102, 2, Ok(())));
    lane.reclaim();
    assert_eq!(*events.lock().unwrap(), ["queue gone", "one", "two"], "the third is still lent");
    lane.complete(&completion(3, 102, 4, Ok(())));
    lane.reclaim();
    assert_eq!(*events.lock().unwrap(), ["queue gone", "one", "two", "three"]);
    let counts = lane.counts();
    assert_eq!((counts.sends, counts.told_writes, counts.writes), (3, 1, 0), "each counts once");
}
