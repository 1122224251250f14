//! A lane on a failover queue, which replaces its own rail's queue while that rail is cut.
//!
//! All atomics on a word must be performed by one adapter: the one of the word's rank on its first rail. A failover
//! queue therefore posts no atomics. Once all earlier requests are complete, the peer is [asked](WorkQueue::ask) to
//! perform the atomic on its own adapter. Later requests are held back until the peer has answered. The request number
//! makes the atomic idempotent, so that it is neither lost nor repeated across connections. An empty write then takes
//! its place in the order.
//!
//! A request on memory without a key on the other rail is held back until the lane has a queue on its own rail again.
//!
//! A queue that cannot [fence](WorkQueue::fences) requests does not get a request that must wait for earlier answers:
//! such a request is posted after those answers. If such a queue takes over another queue's requests, the fenced ones
//! and all later requests are held back in the same way.

use super::*;

/// The reason for stopping at this request number.
enum Stopped {
    Held(u64),
    Refused(u64),
}

impl<Q: WorkQueue, L> Lane<Q, L> {
    /// Posts as many held-back requests as possible.
    #[cold]
    pub fn go_on(&self) {
        self.take_back(&mut self.sending());
    }

    pub(super) fn go_on_with(&self, sending: &mut Sending<Q, L>) {
        let Sending { queue, unfinished, held, asked, .. } = sending;
        let (Some(from), Some(queue)) = (*held, queue.as_ref().filter(|_| !self.is_broken())) else { return };
        let by_queue = queue.fences();
        let stopped = unfinished.each(from, by_queue, |number, kept, fenced| {
            if fenced && !by_queue {
                return Err(Stopped::Held(number));
            }
            if *asked == Some(number) {
                return Err(Stopped::Held(number));
            }
            match queue.course(kept.verb, kept.to) {
                Course::Waits => return Err(Stopped::Held(number)),
                Course::Asked => {
                    if self.completed() + 1 == number {
                        *asked = Some(number);
                        queue.ask(number, kept.verb, kept.to);
                    }
                    return Err(Stopped::Held(number));
                }
                // Messages wait for their own rail, unless they are returned to the engine.
                Course::Posted if kept.movable && queue.is_failover() => return Err(Stopped::Held(number)),
                Course::Posted => {}
            }
            self.signalled.store(number, Release);
            // SAFETY: the memory that the request names is lent until the request is complete, or kept by the waiting
            // caller.
            unsafe { self.hand_over(queue, number, kept, true, fenced) }.map_err(|stop| {
                tracing::warn!(lane = self.number, number, ?stop, "a request cannot be posted to the next connection");
                Stopped::Refused(number)
            })
        });
        let held = match stopped {
            Ok(()) => None,
            Err(Stopped::Held(number)) => Some(number),
            Err(Stopped::Refused(number)) => {
                self.break_off(self.why_broken());
                Some(number)
            }
        };
        if held.is_some() {
            // Held-back requests are posted signalled.
            self.signalled.store(self.posted(), Release);
        }
        self.hold(sending, held);
    }

    pub(super) fn hold(&self, sending: &mut Sending<Q, L>, from: Option<u64>) {
        sending.held = from;
        self.holds.store(from.is_some(), Release);
    }

    /// Handles the peer's answer to an atomic: the word's previous value, or `None` if refused.
    pub fn answered(&self, number: u64, found: Option<u64>) {
        let mut sending = self.sending();
        if sending.asked != Some(number) || self.failure().is_some() {
            return;
        }
        let Some(found) = found else {
            drop(sending);
            self.give_up(Failure::known(crate::wr::Why::Refused));
            return;
        };
        sending.asked = None;
        if let Some(at) = sending.unfinished.piece(number) {
            let word: *mut u8 = std::ptr::with_exposed_provenance_mut(at.address as usize);
            // SAFETY: this is the result's destination, which is lent or kept by the waiting caller until the request
            // is complete.
            unsafe { std::ptr::copy_nonoverlapping(found.to_ne_bytes().as_ptr(), word, 8) };
        }
        sending.unfinished.cancel(number..=number, |_| true);
        self.take_back(&mut sending);
    }

    /// The atomic that the peer was asked to perform and has not answered.
    pub fn asked(&self) -> Option<u64> {
        self.sending().asked
    }

    /// Returns whether any request is held back.
    #[inline]
    pub fn holds(&self) -> bool {
        self.holds.load(Acquire)
    }

    /// Sets whether the lane must stay on its own rail, because messages of this lane depend on that.
    pub fn stay(&self, stays: bool) {
        self.stays.store(stays, Release);
    }

    pub fn stays(&self) -> bool {
        self.stays.load(Acquire)
    }

    /// Returns whether the queue belongs to another rail. Messages do not use it then.
    #[inline]
    pub fn is_failover(&self) -> bool {
        self.failover.load(Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{Queue, START, Thing, UNNAMED, completion};
    use crate::wr::Why;

    type Tested = Lane<Queue, Thing>;

    const TO: RemoteAddress = RemoteAddress { address: 4096, key: 9 };
    const PIECE: Piece = Piece { address: 64, bytes: 100, key: 7 };

    fn failover(number: u32) -> Queue {
        let mut queue = Queue::new(number, 16);
        queue.failover = true;
        queue
    }

    fn unfencing(number: u32) -> Queue {
        let mut queue = Queue::new(number, 16);
        queue.fences = false;
        queue
    }

    fn post(lane: &Tested, verb: Verb, to: RemoteAddress) -> u64 {
        // SAFETY: the fake queue accesses no memory.
        unsafe { lane.post(verb, to, PIECE, Signal::NowAndThen, None) }.unwrap()
    }

    /// Posts an atomic whose result goes to `word`.
    fn add(lane: &Tested, word: &mut u64) -> u64 {
        let piece = Piece { address: (&raw mut *word).expose_provenance() as u64, bytes: 8, key: 7 };
        // SAFETY: as above; the word outlives the lane's use of it.
        unsafe { lane.post(Verb::Add(1), TO, piece, Signal::Always, None) }.unwrap()
    }

    /// Number, length and fence of each posted request. All must be signalled.
    fn took(queue: &Queue) -> Vec<(u32, u32, bool)> {
        let took = queue.take();
        assert!(
            took.iter().all(|request| request.signalled),
            "the completion of earlier requests must be signalled before the peer is asked"
        );
        took.iter().map(|request| (request.token.request(), request.piece.bytes, request.fenced)).collect()
    }

    fn done(lane: &Tested, request: u64) {
        lane.complete(&completion(3, lane.queue_pair(), request, Ok(())));
    }

    fn resumes(lane: &Tested, queue: &Queue, generation: u32, next: u32) {
        let received = Received { generation: generation - 1, next };
        assert!(lane.resume(queue.clone(), Start { generation, psn: 100 * generation, mtu: 1024 }, received));
    }

    #[test]
    fn atomic_is_forwarded_in_order_on_a_failover_queue() {
        let queue = failover(77);
        let (lane, mut word): (Tested, u64) = (Lane::new(3, queue.clone(), START), 0);
        post(&lane, Verb::Write, TO);
        add(&lane, &mut word);
        post(&lane, Verb::Read, TO);
        lane.post_inline(Verb::Write, TO, b"four").unwrap();
        assert_eq!(
            (took(&queue), queue.asked.lock().unwrap().len()),
            (vec![(1, 100, false)], 0),
            "not before the write is complete"
        );
        assert!(lane.holds() && !lane.is_idle());
        done(&lane, 1);
        (0..3).for_each(|_| lane.ask().unwrap());
        assert_eq!((took(&queue), queue.asked.lock().unwrap().clone()), (vec![], vec![2]), "once");
        lane.answered(1, Some(5)); // an answer to another request, which is late
        assert_eq!((lane.asked(), word), (Some(2), 0));
        lane.answered(2, Some(41));
        assert_eq!((word, lane.asked(), lane.holds()), (41, None, false));
        assert_eq!(took(&queue), [(2, 0, false), (3, 100, false), (4, 4, true)], "an empty write in its place");
        lane.answered(2, Some(99)); // a duplicate answer
        assert_eq!((word, took(&queue)), (41, vec![]));
        assert_eq!(lane.is_complete(2), Ok(false));
        done(&lane, 4);
        assert!(lane.is_idle() && !lane.is_lost(2));
        let counts = lane.counts();
        assert_eq!((counts.writes, counts.reads, counts.fetch_and_adds), (2, 1, 1));
    }

    #[test]
    fn forwarded_atomic_is_not_posted_by_the_next_queue() {
        let first = Queue::new(76, 16);
        let (lane, mut word): (Tested, u64) = (Lane::new(3, first.clone(), START), 0);
        post(&lane, Verb::Write, TO);
        add(&lane, &mut word);
        post(&lane, Verb::Write, TO);
        assert_eq!(first.take().len(), 3);
        lane.retire(drop);
        // The write has arrived, the atomic has not.
        let second = failover(77);
        resumes(&lane, &second, 2, (START.psn + 1) % (1 << 24));
        assert_eq!(took(&second), [(1, 0, false)]);
        done(&lane, 1);
        lane.ask().unwrap();
        assert_eq!(*second.asked.lock().unwrap(), [2]);
        // The peer may have performed the atomic before the lane returns.
        lane.retire(drop);
        let third = Queue::new(78, 16);
        resumes(&lane, &third, 3, 201);
        assert_eq!((took(&third), lane.asked()), (vec![], Some(2)), "posting it would perform it twice");
        post(&lane, Verb::Write, TO);
        lane.answered(2, Some(6));
        assert_eq!((word, took(&third)), (6, vec![(2, 0, false), (3, 100, false), (4, 100, false)]));
        done(&lane, 4);
        post(&lane, Verb::Add(1), TO);
        assert_eq!(third.take()[0].verb, Verb::Add(1), "atomics are posted again");
    }

    #[test]
    fn request_without_a_key_holds_back_later_requests() {
        let queue = failover(77);
        let lane: Tested = Lane::new(3, queue.clone(), START);
        for key in [9, UNNAMED, 9] {
            post(&lane, Verb::Write, RemoteAddress { key, ..TO });
        }
        // SAFETY: as above.
        let message = unsafe { lane.post_message(Verb::Send, TO, PIECE, Signal::Always, None) };
        assert!(matches!(message, Err((Stop::Broken, None))), "messages do not use failover queues");
        assert_eq!(took(&queue), [(1, 100, false)]);
        done(&lane, 1);
        lane.ask().unwrap();
        assert_eq!((took(&queue), lane.is_failover()), (vec![], true));
        lane.retire(drop);
        let own = Queue::new(78, 16);
        resumes(&lane, &own, 2, (START.psn + 1) % (1 << 24));
        assert_eq!((took(&own), lane.is_failover()), (vec![(2, 100, false), (3, 100, false)], false));
    }

    #[test]
    fn lane_waits_where_its_queue_cannot_fence() {
        use Verb::{Add, Read, Write};
        let queue = unfencing(77);
        for (first, second, waits) in [
            (Write, Add(1), true),
            (Write, Write, false),
            (Write, Read, false),
            (Read, Write, true),
            (Read, Add(1), true),
            (Read, Read, false),
            (Add(1), Write, true),
            (Add(1), Read, true),
            (Add(1), Add(1), false),
        ] {
            let lane: Tested = Lane::new(3, queue.clone(), START);
            post(&lane, first, TO);
            // SAFETY: as above.
            let again = || unsafe { lane.post(second, TO, PIECE, Signal::NowAndThen, None) };
            let before = again();
            assert_eq!(matches!(before, Err((Stop::Full, None))), waits, "{second:?} behind {first:?}");
            done(&lane, 2 - u64::from(waits));
            assert_eq!(again().unwrap(), 3 - u64::from(waits), "after the earlier request is complete");
            assert!(queue.take().iter().all(|request| !request.fenced));
        }
    }

    #[test]
    fn unfencing_queue_takes_over_one_request_at_a_time() {
        let first = Queue::new(76, 16);
        let lane: Tested = Lane::new(3, first.clone(), START);
        for verb in [Verb::Write, Verb::Add(1), Verb::Write, Verb::Add(2)] {
            post(&lane, verb, TO);
        }
        lane.retire(drop);
        let next = unfencing(77);
        resumes(&lane, &next, 2, START.psn);
        let numbers = || took(&next).iter().map(|(number, ..)| *number).collect::<Vec<_>>();
        for number in 1..=4 {
            assert_eq!((numbers(), lane.holds()), (vec![number], number < 4));
            done(&lane, number.into());
            lane.go_on();
        }
        assert!(lane.is_idle());
    }

    #[test]
    fn refused_atomic_ends_the_lane() {
        let (lane, mut word): (Tested, u64) = (Lane::new(3, failover(77), START), 0);
        add(&lane, &mut word);
        post(&lane, Verb::Write, TO);
        assert_eq!(lane.asked(), Some(1));
        lane.answered(1, None);
        assert_eq!(lane.is_complete(1).unwrap_err().why, Why::Refused);
        assert!(!lane.holds() && lane.asked().is_none());
        lane.answered(1, Some(8));
        assert_eq!(word, 0);
    }

    /// A lane waits for the adapter's own failure report if the result of an atomic would otherwise be lost.
    #[test]
    fn atomic_with_a_waiting_caller_is_not_dropped() {
        let queue = Queue::new(77, 16);
        let (lane, mut word): (Tested, u64) = (Lane::new(3, queue.clone(), START), 0);
        assert!(!lane.has_atomic());
        add(&lane, &mut word);
        assert!(lane.has_atomic());
        lane.spare(1);
        assert!(!lane.has_atomic(), "the result can be recovered");
        add(&lane, &mut word);
        assert!(lane.has_atomic());
        lane.lend(2, Thing("two", queue.events.clone()));
        assert!(!lane.has_atomic(), "no caller waits");
        add(&lane, &mut word);
        assert!(lane.has_atomic());
        lane.retire(drop);
        resumes(&lane, &failover(78), 2, START.psn);
        assert!(!lane.has_atomic(), "forwarded atomics are not lost");
    }
}
