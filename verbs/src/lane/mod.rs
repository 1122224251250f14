//! A lane: one reliable connection to a peer, with an account of posted and completed requests.
//!
//! Requests of a lane complete in order and are numbered. The completion of one implies that of all before it, so most
//! requests are unsignalled. Memory lent to the adapter is recorded with the request number whose completion frees it.
//!
//! The lane's lock is held to post, to free lent memory, and to end a queue. Completions are recorded without the lock,
//! so a thread that posts to one lane does not block progress on the others.
//!
//! A lane outlives its queue. If the queue breaks while the peer lives, the next queue takes over the
//! [unfinished](Unfinished) requests under the same numbers, so that waiting callers see no difference. The next queue
//! may belong to another rail, on which not every request can be posted: see [`held`].

mod dormant;
mod held;
mod moving;
mod post;
mod reconnect;
mod unfinished;

pub(super) use moving::{Bytes, Returned};
pub(super) use post::{Signal, Stop};
pub(super) use unfinished::Start;
#[cfg(test)]
pub(super) use unfinished::{RequestRecord, Unfinished as Account};

use super::counts::WorkRequests;
use super::wr::{Completion, Course, Failure, Piece, Received, RemoteAddress, Request, Token, Verb, WorkQueue};
use std::collections::VecDeque;
use std::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};
use std::sync::{Mutex, MutexGuard, OnceLock};
use transom_launch::lock;
use unfinished::Unfinished;

/// A lane to a peer through a queue `Q`. Requests in flight may hold lent objects of type `L`.
pub(super) struct Lane<Q, L> {
    /// Number of the lane at this rank, as in tokens.
    number: u32,
    /// Queue pair number in completions of the current queue, or of the last one. Changed when no completion of the
    /// previous queue can follow.
    queue_pair: AtomicU32,
    depth: u64,
    inline: u32,
    /// Number of the last completed request.
    completed: AtomicU64,
    /// Number of the last posted request. Changed under the lock.
    posted: AtomicU64,
    /// Number of the last signalled request. Changed under the lock, after `posted`.
    signalled: AtomicU64,
    /// One of the states below. Changes to `WORKS` and `DORMANT` only under the lock.
    state: AtomicU8,
    /// The permanent failure that ended the lane.
    failure: OnceLock<Failure>,
    /// The reason why its queue broke.
    broke: Mutex<Option<Failure>>,
    /// Number of executed atomics whose results are lost and may still be asked for.
    lost: AtomicU32,
    /// Messages have requests to [take back](Lane::take_returned).
    cut: AtomicBool,
    /// The current queue, or the last one, belongs to another rail.
    failover: AtomicBool,
    /// The lane must stay on its own rail.
    stays: AtomicBool,
    /// Requests are [held back](held). Changed under the lock.
    holds: AtomicBool,
    sending: Mutex<Sending<Q, L>>,
}

/// Requests are posted and complete.
const WORKS: u8 = 0;
/// The queue was given up because the lane was idle, or will be; nothing is posted.
const DORMANT: u8 = 1;
/// There is no queue, or it is about to be replaced. Its completions still count.
const RETIRED: u8 = 2;
/// Like RETIRED, and a request has failed: later completions only say that their requests were not executed.
const BROKEN: u8 = 3;
/// There will be no further queue.
const ENDED: u8 = 4;

struct Sending<Q, L> {
    /// `None` while there is no working queue, and after the lane has ended.
    queue: Option<Q>,
    unfinished: Unfinished,
    /// First request not posted to the queue; all later ones are held back too.
    held: Option<u64>,
    /// The atomic that the peer was asked to perform.
    asked: Option<u64>,
    /// Lent objects by request number.
    lent: VecDeque<(u64, L)>,
    /// Request numbers of the atomics counted in `Lane::lost`.
    lost: Vec<u64>,
    /// Messages are returned when a queue ends if `returns` is set; `returned` holds them.
    returns: bool,
    returned: Option<Returned<L>>,
    /// The far end has retired its queues up to this generation; and the generation whose retirement is awaited.
    far_end_gone: u32,
    far_end_to_go: Option<u32>,
    /// Number of successive queues without progress, and the completed requests at the first of them.
    fruitless: (u32, u64),
    /// Number of [checks](Lane::waits) that found no queue.
    waits: u32,
    counts: WorkRequests,
}

impl<Q: WorkQueue, L> Lane<Q, L> {
    pub fn new(number: u32, queue: Q, start: Start) -> Self {
        let unfinished = Unfinished::new(start, queue.depth() as usize, queue.inline() as usize);
        let failover = queue.is_failover();
        Lane {
            number,
            queue_pair: AtomicU32::new(queue.number()),
            depth: queue.depth().into(),
            inline: queue.inline(),
            completed: AtomicU64::new(0),
            posted: AtomicU64::new(0),
            signalled: AtomicU64::new(0),
            state: AtomicU8::new(WORKS),
            failure: OnceLock::new(),
            broke: Mutex::default(),
            lost: AtomicU32::new(0),
            cut: AtomicBool::new(false),
            failover: AtomicBool::new(failover),
            stays: AtomicBool::new(false),
            holds: AtomicBool::new(false),
            sending: Mutex::new(Sending {
                queue: Some(queue),
                unfinished,
                held: None,
                asked: None,
                lent: VecDeque::new(),
                lost: Vec::new(),
                returns: false,
                returned: None,
                far_end_gone: 0,
                far_end_to_go: None,
                fruitless: (0, 0),
                waits: 0,
                counts: WorkRequests::default(),
            }),
        }
    }

    /// Queue pair number in completions and events.
    pub fn queue_pair(&self) -> u32 {
        self.queue_pair.load(Acquire)
    }

    /// Returns whether the lane works on that queue pair of its own rail's device. The number of another rail's queue
    /// pair, or of a destroyed one, may belong to another lane.
    pub fn has_own(&self, queue_pair: u32) -> bool {
        self.queue_pair() == queue_pair && !self.failover.load(Acquire) && self.state.load(Acquire) == WORKS
    }

    /// Largest inline payload, in bytes.
    pub fn inline(&self) -> usize {
        self.inline as usize
    }

    /// Number of the last posted request.
    pub fn posted(&self) -> u64 {
        self.posted.load(Acquire)
    }

    /// Number of the last completed request.
    pub fn completed(&self) -> u64 {
        self.completed.load(Acquire)
    }

    /// The failure because of which no further request will complete.
    pub fn failure(&self) -> Option<Failure> {
        self.failure.get().copied()
    }

    /// Returns whether the lane has a queue.
    pub fn has_queue(&self) -> bool {
        self.sending().queue.is_some()
    }

    /// Returns whether no request is in flight.
    pub fn is_idle(&self) -> bool {
        self.completed() >= self.posted() || self.failure().is_some()
    }

    /// Returns whether a request is complete. While the connection is being restored, completion takes longer.
    ///
    /// # Errors
    /// The lane's failure, if the request will never complete.
    pub fn is_complete(&self, number: u64) -> Result<bool, Failure> {
        // Read the failure first: a request that completed earlier counts as complete despite it.
        let failure = self.failure();
        match (self.completed() >= number, failure) {
            (true, _) => Ok(true),
            (false, None) => Ok(false),
            (false, Some(failure)) => Err(failure),
        }
    }

    /// Requests posted so far, each counted once.
    pub fn counts(&self) -> WorkRequests {
        self.sending().counts
    }

    /// Lends an object until the request is complete, for a caller that stopped waiting.
    pub fn lend(&self, number: u64, what: L) {
        self.is_lost(number);
        let mut sending = self.sending();
        if self.failure().is_some() {
            // The queue may still exist, and must be destroyed before the object.
            self.take_back(&mut sending);
            return;
        }
        if self.completed() >= number {
            return;
        }
        // Usually at the end, because numbers grow.
        let at = sending.lent.iter().rposition(|(before, _)| *before <= number).map_or(0, |before| before + 1);
        sending.lent.insert(at, (number, what));
        self.take_back(&mut sending);
    }

    /// Frees objects whose requests are complete. If the lane has ended, destroys its queue and frees all objects.
    pub fn reclaim(&self) {
        self.take_back(&mut self.sending());
    }

    fn take_back(&self, sending: &mut Sending<Q, L>) {
        if self.failure().is_some() {
            // Destroying the queue ends all accesses of the adapter to this rank's memory.
            sending.queue = None;
            self.return_messages(sending);
            sending.unfinished.clear();
            sending.lent.clear();
            sending.asked = None;
            self.hold(sending, None);
        }
        let completed = self.completed();
        sending.unfinished.complete(completed);
        if let Some(queue) = &sending.queue {
            queue.completed(completed);
        }
        if sending.held.is_some() {
            self.go_on_with(sending);
        }
        while sending.lent.front().is_some_and(|(number, _)| *number <= completed) {
            sending.lent.pop_front();
        }
    }

    /// Ends the lane; returns whether it had not ended before.
    pub fn give_up(&self, failure: Failure) -> bool {
        self.give_up_queue(failure, |_| {})
    }

    /// Like [`give_up`](Self::give_up); calls `goes` with the queue before it is destroyed.
    pub fn give_up_queue(&self, failure: Failure, goes: impl FnOnce(&Q)) -> bool {
        let is_new = self.end(failure);
        let mut sending = self.sending();
        if let Some(queue) = &sending.queue {
            goes(queue);
        }
        sending.far_end_to_go = None;
        self.take_back(&mut sending);
        is_new
    }

    fn sending(&self) -> MutexGuard<'_, Sending<Q, L>> {
        lock(&self.sending)
    }
}

impl<Q, L> Lane<Q, L> {
    /// Records a completion. Completions of one queue must be passed in order.
    pub fn complete(&self, completion: &Completion) {
        let state = self.state.load(Acquire);
        if completion.queue_pair != self.queue_pair.load(Acquire) || state == BROKEN || state == ENDED {
            // Completions of an earlier queue, and those after the first failure, carry no information.
            return;
        }
        let before = self.completed.load(Relaxed);
        // Distance, in the low 32 bits of the number, from the last completed request.
        let ahead = completion.token.request().wrapping_sub(before as u32);
        let done = match (ahead, completion.result) {
            (AHEAD.., _) | (0, Ok(())) => return,
            (_, Ok(())) => ahead,
            // All requests before the failed one are complete.
            (_, Err(_)) => ahead.saturating_sub(1),
        };
        self.completed.store(before + u64::from(done), Release);
        if let Err(failure) = completion.result {
            tracing::debug!(token = ?completion.token, ?failure, "a request failed");
            self.breaks(failure, BROKEN);
        }
    }

    /// Reports that the queue is unusable, without a failed completion. The lane gets another queue, or ends.
    /// Completions that still arrive belong to requests that completed before, and to the first failed one.
    pub fn break_off(&self, failure: Failure) {
        self.breaks(failure, RETIRED);
    }

    /// `state` is `RETIRED` or `BROKEN`.
    fn breaks(&self, failure: Failure, state: u8) {
        if !failure.why.may_be_mended() {
            self.end(failure);
            return;
        }
        lock(&self.broke).get_or_insert(failure);
        // The state never decreases here: each value includes the previous ones.
        if self.state.fetch_max(state, Release) < state {
            tracing::info!(lane = self.number, ?failure, "a connection broke; it will be restored");
        }
    }

    fn end(&self, failure: Failure) -> bool {
        let is_new = self.failure.set(failure).is_ok();
        self.state.store(ENDED, Release);
        if is_new {
            tracing::warn!(lane = self.number, ?failure, "a connection failed permanently");
        }
        is_new
    }

    /// Returns whether the lane waits for a queue.
    #[inline]
    pub fn is_broken(&self) -> bool {
        matches!(self.state.load(Acquire), DORMANT | RETIRED | BROKEN)
    }
}

/// Most objects lent to one lane, so that a slow lane leaves some to the others.
const MOST_LENT: usize = 32;
/// A larger distance belongs to no request in flight.
const AHEAD: u32 = 1 << 20;

#[cfg(test)]
mod tests;
