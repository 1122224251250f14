//! A lane's account, against a queue that pretends.

use super::*;
use crate::verbs::fake::{Events, Queue, Thing, completion};
use crate::verbs::wr::Why;

const TO: Place = Place { address: 4096, key: 9 };
const PIECE: Piece = Piece { address: 64, bytes: 100, key: 7 };

type Tested = Lane<Queue, Thing>;

fn lane(depth: u32) -> (Tested, Queue) {
    let queue = Queue::new(77, depth);
    (Lane::new(3, queue.clone()), queue)
}

fn post(lane: &Tested, verb: Verb) -> Result<u64, Stop> {
    // SAFETY: the queue only pretends.
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
fn most_requests_are_not_signalled_and_a_full_lane_asks() {
    let (lane, queue) = lane(8);
    for number in 1..=6 {
        assert_eq!(post(&lane, Verb::Write).unwrap(), number);
    }
    let signalled = |queue: &Queue| queue.take().iter().map(|request| request.signalled).collect::<Vec<_>>();
    // The first, and after that one when a quarter of the depth is behind the last.
    assert_eq!(signalled(&queue), [true, false, false, true, false, false]);
    assert_eq!(post(&lane, Verb::Write).unwrap(), 7);
    assert!(matches!(post(&lane, Verb::Write), Err(Stop::Full)), "one is kept to ask with");
    assert_eq!(signalled(&queue), [true], "which will be told: no marker is needed");
    done(&lane, 4);
    assert_eq!(lane.completed(), 4, "those before it too");
    for number in 8..=11 {
        assert_eq!(post(&lane, Verb::Write).unwrap(), number);
    }
    assert!(matches!(post(&lane, Verb::Write), Err(Stop::Full)));
    let last = *queue.take().last().unwrap();
    assert_eq!((last.token, last.piece, last.signalled), (Token::new(3, 12), Piece::NOTHING, true), "a marker");
    assert_eq!(lane.counts().markers, 1);
    // Asked already.
    lane.ask().unwrap();
    assert!(matches!(post(&lane, Verb::Write), Err(Stop::Full)));
    assert!(queue.take().is_empty());
    done(&lane, 12);
    assert!(lane.is_idle());
    lane.ask().unwrap();
    assert!(queue.take().is_empty(), "nothing is under way");
}

#[test]
fn what_is_lent_is_free_when_its_request_is_complete() {
    let (lane, queue) = lane(8);
    let events = queue.events.clone();
    lend(&lane, "one", &events).unwrap();
    post(&lane, Verb::Write).unwrap();
    lend(&lane, "three", &events).unwrap();
    // Somebody walked away from what the first brings.
    lane.lend(2, Thing("two", events.clone()));
    lane.reclaim();
    assert!(events.lock().unwrap().is_empty());
    done(&lane, 2);
    lane.reclaim();
    assert_eq!(*events.lock().unwrap(), ["one", "two"]);
    done(&lane, 3);
    post(&lane, Verb::Write).unwrap();
    assert_eq!(*events.lock().unwrap(), ["one", "two", "three"], "a post takes back too");
    lane.lend(3, Thing("late", events.clone()));
    assert_eq!(events.lock().unwrap().last(), Some(&"late"), "free at once");
}

#[test]
fn one_lane_does_not_have_all_that_is_lent() {
    let (lane, queue) = lane(1000);
    let events = queue.events.clone();
    for _ in 0..MOST_LENT {
        assert!(lane.may_lend().unwrap());
        lend(&lane, "lent", &events).unwrap();
    }
    assert!(!lane.may_lend().unwrap());
    let (stop, back) = lend(&lane, "too much", &events).unwrap_err();
    assert!(matches!(stop, Stop::Full) && back.is_some(), "it comes back");
    post(&lane, Verb::Write).unwrap(); // what lends nothing may go
    done(&lane, 1);
    assert!(lane.may_lend().unwrap());
}

#[test]
fn a_request_waits_for_answers_that_it_could_change() {
    use Kind::{Atomic, Read, Write};
    let verb = |kind| match kind {
        Write => Verb::Write,
        Read => Verb::Read,
        Atomic => Verb::Add(1),
    };
    // What is under way, what is posted, and whether that must wait.
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
fn what_had_completed_has_and_what_is_behind_a_failure_fails() {
    let (lane, queue) = lane(16);
    let events = queue.events.clone();
    for name in ["1", "2", "3", "4"] {
        lend(&lane, name, &events).unwrap();
    }
    // The second fails: the first, not told, is complete. The adapter says of those behind that they were not done.
    lane.complete(&completion(3, 77, 2, Err(failure(Why::Silence))));
    lane.complete(&completion(3, 77, 3, Err(failure(Why::Ended))));
    lane.complete(&completion(3, 77, 4, Ok(())));
    assert_eq!(lane.is_complete(1), Ok(true));
    assert_eq!([2, 3, 4].map(|number| lane.is_complete(number)), [Err(failure(Why::Silence)); 3]);
    assert!(lane.is_idle());
    assert!(events.lock().unwrap().is_empty(), "the adapter may still write there");
    assert!(matches!(post(&lane, Verb::Write), Err(Stop::Failed(failure)) if failure.why == Why::Silence));
    assert_eq!(*events.lock().unwrap(), ["queue gone", "1", "2", "3", "4"], "in this order");
    lane.lend(4, Thing("late", events.clone()));
    assert_eq!(events.lock().unwrap().last(), Some(&"late"));
    lane.ask().unwrap();
}

#[test]
fn a_lane_that_is_given_up_ends_at_once() {
    let (lane, queue) = lane(16);
    lend(&lane, "lent", &queue.events).unwrap();
    lane.give_up(Failure::known(Why::Gone));
    assert_eq!(*queue.events.lock().unwrap(), ["queue gone", "lent"]);
    assert_eq!(lane.is_complete(1).unwrap_err().why, Why::Gone);
}

#[test]
fn completions_that_are_not_its_own_change_nothing() {
    let (lane, _queue) = lane(16);
    post(&lane, Verb::Write).unwrap();
    lane.complete(&completion(3, 76, 1, Ok(()))); // of a queue that is gone
    assert_eq!(lane.completed(), 0);
    done(&lane, 1);
    done(&lane, 1); // once more
    done(&lane, u64::from(u32::MAX)); // of long ago
    assert_eq!(lane.completed(), 1);
}

#[test]
fn numbers_go_on_beyond_their_low_half() {
    let (lane, _queue) = lane(16);
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
fn small_bytes_travel_in_the_request() {
    let (lane, queue) = lane(8);
    lane.post_inline(TO, &[1; 16]).unwrap();
    let request = queue.take()[0];
    assert!(request.inline && request.piece.bytes == 16 && request.to == TO);
}
