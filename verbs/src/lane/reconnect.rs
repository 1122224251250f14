//! Replacing a lane's queue after it broke while the peer lives.

use super::*;
use crate::wr::Why;
use std::ops::RangeInclusive;
use transom_launch::lock;

/// Successive queues without progress after which the lane fails.
const FRUITLESS: u32 = 8;

impl<Q: WorkQueue, L> Lane<Q, L> {
    /// Takes the queue and ends it by `end`, while requests can neither be posted nor freed; `None` if there is no
    /// queue.
    ///
    /// Afterwards the adapter does nothing more for this queue, and its completions have been recorded.
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

    /// Continues on another queue, whose far end has `received` the last queue's requests up to a position.
    ///
    /// Requests that were not executed are posted again, and so are reads. Returns false if the lane has ended.
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
            tracing::warn!(
                lane = self.number,
                ?begun,
                fits,
                fruitless = sending.fruitless.0,
                "cannot continue on another connection"
            );
            self.end(why);
            self.take_back(sending);
            return false;
        }
        // A lost result without a waiting caller need not be reported.
        lost.retain(|number| !sending.lent.iter().any(|(of, _)| of == number));
        sending.lost.extend(lost);
        self.lost.store(sending.lost.len() as u32, Release);
        self.queue_pair.store(queue.number(), Release);
        for state in [DORMANT, RETIRED, BROKEN] {
            let _ = self.state.compare_exchange(state, WORKS, Release, Relaxed);
        }
        self.failover.store(queue.is_failover(), Release);
        sending.queue = Some(queue);
        sending.far_end_to_go = None;
        sending.waits = 0;
        let from = (!sending.unfinished.is_empty()).then_some(completed + 1);
        self.hold(sending, from);
        self.go_on_with(sending);
        true
    }

    /// Returns whether a queue has at least the lane's capacity.
    pub fn fits(&self, queue: &Q) -> bool {
        u64::from(queue.depth()) >= self.depth && queue.inline() >= self.inline
    }

    /// Cancels the requests in `numbers` whose memory `meant` selects: they are not posted again, and the adapters of
    /// both ends no longer access that memory.
    ///
    /// Returns false while the lane has a queue, and until the far end has retired its own, which is requested from now
    /// on.
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

    /// Generation of the last queue, if the far end must be asked to retire its own.
    pub fn far_end_to_go(&self) -> Option<u32> {
        self.sending().far_end_to_go
    }

    /// Records that the far end has retired its queues up to this generation.
    pub fn far_end_has_gone(&self, generation: u32) {
        let mut sending = self.sending();
        sending.far_end_gone = sending.far_end_gone.max(generation);
        sending.far_end_to_go.take_if(|to_go| *to_go <= generation);
    }

    /// Returns whether any posted request must still be executed.
    pub fn is_needed(&self) -> bool {
        self.sending().unfinished.is_anything()
    }

    /// Counts a check that found the lane without a working queue; returns the number since the last queue.
    pub fn waits(&self) -> u32 {
        let mut sending = self.sending();
        sending.waits += 1;
        sending.waits
    }

    /// The lane's failure if there is no other queue: the peer is unreachable, whatever its own queue reported.
    pub fn why_broken(&self) -> Failure {
        let why = *lock(&self.broke);
        Failure { why: Why::Silence, ..why.unwrap_or(Failure::known(Why::Silence)) }
    }

    /// Returns whether a completed request is an atomic whose result is lost. Reports each loss once.
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
