//! A lane's next queue, where one broke whose peer lives.

use super::*;
use crate::wr::Why;
use std::ops::RangeInclusive;
use transom_launch::lock;

/// So many queues in a row by which nothing was done are enough.
const FRUITLESS: u32 = 8;

impl<Q: WorkQueue, L> Lane<Q, L> {
    /// Takes the queue away and ends it by `end`, while nothing can be posted or is taken back; none if there is none. Once
    /// it has returned the adapter does nothing more for this queue, and what has completed of it has been told.
    pub fn retire<R>(&self, end: impl FnOnce(Q) -> R) -> Option<R> {
        let mut sending = self.sending();
        let _ = self.state.compare_exchange(WORKS, RETIRED, Release, Relaxed);
        let ended = sending.queue.take().map(end);
        self.take_back(&mut sending);
        if ended.is_some() {
            self.return_messages(&mut sending);
        }
        ended
    }

    /// Goes on by another queue, whose far end has `received` so much of what was posted to the last: what was not done is
    /// posted again, and so are reads. Whether it does; the lane has ended if not.
    pub fn resume(&self, queue: Q, start: Start, received: Received) -> bool {
        let mut sending = self.sending();
        self.take_back(&mut sending);
        if self.failure().is_some() {
            return false;
        }
        let completed = self.completed();
        let sending = &mut *sending;
        sending.fruitless = match sending.fruitless {
            _ if sending.unfinished.is_empty() => (0, completed),
            (times, before) if before == completed => (times + 1, before),
            _ => (0, completed),
        };
        let why = self.why_broken();
        let fits = self.fits(&queue);
        *lock(&self.broke) = None;
        let mut lost = Vec::new();
        let begun = sending.unfinished.begin(start, received, |number| lost.push(number));
        if sending.fruitless.0 >= FRUITLESS || !fits || begun.is_err() {
            tracing::warn!(lane = self.number, ?begun, fits, fruitless = sending.fruitless.0, "no other connection");
            self.end(why);
            self.take_back(sending);
            return false;
        }
        // What nobody waits for need not be told.
        lost.retain(|number| !sending.lent.iter().any(|(of, _)| of == number));
        sending.lost.extend(lost);
        self.lost.store(sending.lost.len() as u32, Release);
        self.queue_pair.store(queue.number(), Release);
        for state in [RETIRED, BROKEN] {
            let _ = self.state.compare_exchange(state, WORKS, Release, Relaxed);
        }
        self.elsewhere.store(queue.is_elsewhere(), Release);
        sending.queue = Some(queue);
        sending.far_end_to_go = None;
        sending.waits = 0;
        let from = (!sending.unfinished.is_empty()).then_some(completed + 1);
        self.hold(sending, from);
        self.go_on_with(sending);
        true
    }

    /// Whether a queue takes as much as the lane.
    pub fn fits(&self, queue: &Q) -> bool {
        u64::from(queue.depth()) >= self.depth && queue.inline() >= self.inline
    }

    /// Has requests of these numbers that name such memory not sent, nor sent again, and no memory touched by them any more, here or at the
    /// far end. Whether that is so: not while the lane has a queue, nor before the far end's has gone, which is asked for from now on.
    pub fn cancel(&self, numbers: RangeInclusive<u64>, meant: impl Fn(Piece) -> bool) -> bool {
        let mut sending = self.sending();
        self.take_back(&mut sending);
        if sending.queue.is_some() {
            return false;
        }
        let generation = sending.unfinished.generation();
        if sending.far_end_gone < generation {
            sending.far_end_to_go = Some(generation);
            return false;
        }
        sending.unfinished.cancel(numbers, meant);
        true
    }

    /// The generation of the last queue, if the far end is to be asked to end its own of that.
    pub fn far_end_to_go(&self) -> Option<u32> {
        self.sending().far_end_to_go
    }

    /// The far end has no queue of generations up to this any more, nor will have.
    pub fn far_end_has_gone(&self, generation: u32) {
        let mut sending = self.sending();
        sending.far_end_gone = sending.far_end_gone.max(generation);
        sending.far_end_to_go.take_if(|to_go| *to_go <= generation);
    }

    /// Whether something that was posted is still to be done.
    pub fn is_needed(&self) -> bool {
        self.sending().unfinished.is_anything()
    }

    /// How often it has been found without a queue that works since there was one: this is once more.
    pub fn waits(&self) -> u32 {
        let mut sending = self.sending();
        sending.waits += 1;
        sending.waits
    }

    /// Why it ends if there is no other queue: whatever its own said, the peer is not reached.
    pub fn why_broken(&self) -> Failure {
        let why = *lock(&self.broke);
        Failure { why: Why::Silence, ..why.unwrap_or(Failure::known(Why::Silence)) }
    }

    /// Whether that request, which is complete, is an atomic whose result is lost. Tells it once.
    #[inline]
    pub fn is_lost(&self, number: u64) -> bool {
        if self.lost.load(Acquire) == 0 {
            return false;
        }
        let mut sending = self.sending();
        let before = sending.lost.len();
        sending.lost.retain(|of| *of != number);
        self.lost.store(sending.lost.len() as u32, Release);
        sending.lost.len() < before
    }
}
