//! A lane: one reliable connection to a peer, and the account of what was posted to it and what is complete.
//!
//! Requests of a lane complete in order. So each has a number, the completion of one tells that of all before it, and most
//! need not be signalled. What lends memory to the adapter is remembered with the number behind which it is free.
//!
//! Its lock is held to post, to take back what was lent, and to end a queue. What is complete is told without it: a thread
//! that posts to one lane does not keep the teller from the others.
//!
//! A lane outlives its queue: where that breaks and the peer lives, the next one takes over what is [unfinished](Unfinished),
//! under the same numbers, so that who waits for a request does not see that there was another queue. That may be a queue of another
//! rail, by which not every request can be posted: see [`held`].

mod held;
mod moving;
mod post;
mod remake;
mod unfinished;

pub(super) use moving::{Bytes, Returned};
pub(super) use post::{Signal, Stop};
pub(super) use unfinished::Start;
#[cfg(test)]
pub(super) use unfinished::{Kept, Unfinished as Account};

use super::counts::WorkRequests;
use super::wr::{Completion, Course, Failure, Piece, Place, Received, Request, Token, Verb, WorkQueue};
use std::collections::VecDeque;
use std::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use std::sync::{Mutex, MutexGuard, OnceLock};
use transom_launch::lock;
use unfinished::Unfinished;

/// One lane to a peer, through a queue `Q`, which may have something of type `L` while requests need it.
pub(super) struct Lane<Q, L> {
    /// Its number at this rank, in tokens.
    number: u32,
    /// By which completions name its queue, or the last that it had. Changed when nothing is told of the one before any more.
    queue_pair: AtomicU32,
    depth: u64,
    inline: u32,
    /// Requests with numbers up to this are complete.
    completed: AtomicU64,
    /// The number of the last that was posted. Changed under the lock.
    posted: AtomicU64,
    /// The number of the last that was posted signalled. Changed under the lock, after `posted`.
    signalled: AtomicU64,
    /// One of the states below; left for `WORKS` only under the lock.
    state: AtomicU8,
    /// Why it has ended, for good.
    failure: OnceLock<Failure>,
    /// Why its queue broke.
    broke: Mutex<Option<Failure>>,
    /// Atomics that were executed and whose results are lost, as long as somebody may ask.
    lost: AtomicU32,
    /// Whether messages have something to [take back](Lane::take_returned).
    cut: AtomicBool,
    /// Whether its queue is of another rail, or was when it had one last.
    elsewhere: AtomicBool,
    /// Whether it is to have queues of its own rail only.
    stays: AtomicBool,
    /// Whether something is [held](held). Changed under the lock.
    holds: AtomicBool,
    sending: Mutex<Sending<Q, L>>,
}

/// Requests are posted and complete.
const WORKS: u8 = 0;
/// The queue is to be replaced, or there is none; what has completed is still told.
const RETIRED: u8 = 1;
/// As before, and a request has failed: what is told behind it says only that it was not done.
const BROKEN: u8 = 2;
/// There will be no other queue.
const ENDED: u8 = 3;

struct Sending<Q, L> {
    /// None while there is none that works, or never again.
    queue: Option<Q>,
    unfinished: Unfinished,
    /// The first request that was not handed to the queue, nor is any behind it.
    held: Option<u64>,
    /// The atomic that the peer was asked to do.
    asked: Option<u64>,
    /// By number.
    lent: VecDeque<(u64, L)>,
    /// The numbers of `lost` atomics.
    lost: Vec<u64>,
    /// Whether messages that were posted are returned where a queue ends; and what was.
    returns: bool,
    returned: Option<Returned<L>>,
    /// The far end has no queues of generations up to this any more; and the one up to which somebody waits for that.
    far_end_gone: u32,
    far_end_to_go: Option<u32>,
    /// How often in a row the queue was replaced, and what had completed at the first time.
    fruitless: (u32, u64),
    /// How often somebody [looked](Lane::waits) and found no queue.
    waits: u32,
    counts: WorkRequests,
}

impl<Q: WorkQueue, L> Lane<Q, L> {
    pub fn new(number: u32, queue: Q, start: Start) -> Self {
        let unfinished = Unfinished::new(start, queue.depth() as usize, queue.inline() as usize);
        let elsewhere = queue.is_elsewhere();
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
            elsewhere: AtomicBool::new(elsewhere),
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

    /// By which completions and events name its queue.
    pub fn queue_pair(&self) -> u32 {
        self.queue_pair.load(Acquire)
    }

    /// Whether it works by that queue, of its own rail's device: by another's, or that of one that has gone, the number means nothing.
    pub fn has_own(&self, queue_pair: u32) -> bool {
        self.queue_pair() == queue_pair && !self.elsewhere.load(Acquire) && self.state.load(Acquire) == WORKS
    }

    /// Bytes that a request can take along.
    pub fn inline(&self) -> usize {
        self.inline as usize
    }

    /// The number of the last request.
    pub fn posted(&self) -> u64 {
        self.posted.load(Acquire)
    }

    /// Requests with numbers up to this are complete.
    pub fn completed(&self) -> u64 {
        self.completed.load(Acquire)
    }

    /// Why nothing will be complete any more.
    pub fn failure(&self) -> Option<Failure> {
        self.failure.get().copied()
    }

    /// Whether it has a queue.
    pub fn has_queue(&self) -> bool {
        self.sending().queue.is_some()
    }

    /// Whether nothing is under way.
    pub fn is_idle(&self) -> bool {
        self.completed() >= self.posted() || self.failure().is_some()
    }

    /// Whether that request is complete. Where the connection is made anew that takes longer.
    ///
    /// # Errors
    /// If it will never be.
    pub fn is_complete(&self, number: u64) -> Result<bool, Failure> {
        // In this order: what has completed has, whatever failed behind it.
        let failure = self.failure();
        match (self.completed() >= number, failure) {
            (true, _) => Ok(true),
            (false, None) => Ok(false),
            (false, Some(failure)) => Err(failure),
        }
    }

    /// What was posted so far, each request once.
    pub fn counts(&self) -> WorkRequests {
        self.sending().counts
    }

    /// Lends something until that request is complete, for somebody who walked away.
    pub fn lend(&self, number: u64, what: L) {
        self.is_lost(number);
        let mut sending = self.sending();
        if self.failure().is_some() {
            // Not before the queue has gone, which may still be there.
            self.take_back(&mut sending);
            return;
        }
        if self.completed() >= number {
            return;
        }
        // Mostly at the end: numbers grow.
        let at = sending.lent.iter().rposition(|(before, _)| *before <= number).map_or(0, |before| before + 1);
        sending.lent.insert(at, (number, what));
        self.take_back(&mut sending);
    }

    /// Takes back what was lent for requests that are complete; all of it if the lane has ended, whose queue goes then.
    pub fn reclaim(&self) {
        self.take_back(&mut self.sending());
    }

    fn take_back(&self, sending: &mut Sending<Q, L>) {
        if self.failure().is_some() {
            // With the queue goes whatever the adapter might still have done with memory of ours.
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

    /// Ends a lane that nothing more will come of; whether it had not ended before.
    pub fn give_up(&self, failure: Failure) -> bool {
        self.give_up_queue(failure, |_| {})
    }

    /// As [`give_up`](Self::give_up); `goes` is told of the queue that goes with it.
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
    /// Takes note of a completion, of those of its queue in their order.
    pub fn complete(&self, completion: &Completion) {
        let state = self.state.load(Acquire);
        if completion.queue_pair != self.queue_pair.load(Acquire) || state == BROKEN || state == ENDED {
            // Of a queue that is gone; and those behind the first that failed only say that they were not done.
            return;
        }
        let before = self.completed.load(Relaxed);
        // The low half of its number, which is not before the last that completed.
        let ahead = completion.token.request().wrapping_sub(before as u32);
        let done = match (ahead, completion.result) {
            (AHEAD.., _) | (0, Ok(())) => return,
            (_, Ok(())) => ahead,
            // All before it are complete.
            (_, Err(_)) => ahead.saturating_sub(1),
        };
        self.completed.store(before + u64::from(done), Release);
        if let Err(failure) = completion.result {
            tracing::debug!(token = ?completion.token, ?failure, "a request failed");
            self.breaks(failure, BROKEN);
        }
    }

    /// Its queue is of no use any more: the lane is to have another, or ends. No completion told that, so those that come are of
    /// requests that had completed before, and of the first that failed.
    pub fn break_off(&self, failure: Failure) {
        self.breaks(failure, RETIRED);
    }

    /// `state`: `RETIRED` or `BROKEN`.
    fn breaks(&self, failure: Failure, state: u8) {
        if !failure.why.may_be_mended() {
            self.end(failure);
            return;
        }
        lock(&self.broke).get_or_insert(failure);
        // Never back to a state before: each of them is more than the last.
        if self.state.fetch_max(state, Release) < state {
            tracing::info!(lane = self.number, ?failure, "a connection broke; it is to be made anew");
        }
    }

    fn end(&self, failure: Failure) -> bool {
        let is_new = self.failure.set(failure).is_ok();
        self.state.store(ENDED, Release);
        if is_new {
            tracing::warn!(lane = self.number, ?failure, "a connection is gone");
        }
        is_new
    }

    /// Whether it waits for a queue.
    #[inline]
    pub fn is_broken(&self) -> bool {
        matches!(self.state.load(Acquire), RETIRED | BROKEN)
    }
}

/// Lent at once to one lane: so one that is slow leaves something to the others.
const MOST_LENT: usize = 32;
/// Completions further ahead than this are not of requests that are under way.
const AHEAD: u32 = 1 << 20;

#[cfg(test)]
mod tests;
