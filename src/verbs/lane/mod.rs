//! A lane: one reliable queue pair to a peer, and the account of what was posted to it and what is complete.
//!
//! Requests of a lane complete in order. So each has a number, the completion of one tells that of all before it, and most
//! need not be signalled. What lends memory to the adapter is remembered with the number behind which it is free.
//!
//! Its lock is held to post and to take back what was lent. What is complete is told without it: a thread that posts to
//! one lane does not keep the teller from the others.

use super::counts::WorkRequests;
use super::wr::{Completion, Failure, Kind, Piece, Place, Request, Token, Verb, WorkQueue};
use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// One lane to a peer, through a queue `Q`, which may have something of type `L` while requests need it.
pub(super) struct Lane<Q, L> {
    /// Its number at this rank, in tokens.
    number: u32,
    queue_pair: u32,
    depth: u64,
    inline: u32,
    /// Requests with numbers up to this are complete.
    completed: AtomicU64,
    /// The number of the last that was posted. Changed under the lock.
    posted: AtomicU64,
    failure: OnceLock<Failure>,
    sending: Mutex<Sending<Q, L>>,
}

struct Sending<Q, L> {
    /// None once it has failed and what was lent is taken back.
    queue: Option<Q>,
    /// The last that was posted signalled.
    signalled: u64,
    /// The last read and the last atomic: their answers come later than they take effect.
    reads: u64,
    atomics: u64,
    /// By number.
    lent: VecDeque<(u64, L)>,
    counts: WorkRequests,
}

/// How a request is posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Signal {
    /// Its own completion is told.
    Always,
    /// When it is worth it.
    NowAndThen,
}

/// Why a request was not posted.
#[derive(Debug)]
pub(super) enum Stop {
    /// There is no room now; what makes room is under way.
    Full,
    /// The lane has failed.
    Failed(Failure),
    /// The system refused.
    System(io::Error),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Stop::System(error)
    }
}

/// Lent at once to one lane: so one that is slow leaves something to the others.
const MOST_LENT: usize = 32;
/// Completions further ahead than this are not of requests that are under way.
const AHEAD: u32 = 1 << 20;

impl<Q: WorkQueue, L> Lane<Q, L> {
    pub fn new(number: u32, queue: Q) -> Self {
        Lane {
            number,
            queue_pair: queue.number(),
            depth: queue.depth().into(),
            inline: queue.inline(),
            completed: AtomicU64::new(0),
            posted: AtomicU64::new(0),
            failure: OnceLock::new(),
            sending: Mutex::new(Sending {
                queue: Some(queue),
                signalled: 0,
                reads: 0,
                atomics: 0,
                lent: VecDeque::new(),
                counts: WorkRequests::default(),
            }),
        }
    }

    /// By which completions and events name its queue.
    pub fn queue_pair(&self) -> u32 {
        self.queue_pair
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

    pub fn failure(&self) -> Option<Failure> {
        self.failure.get().copied()
    }

    /// Whether nothing is under way.
    pub fn is_idle(&self) -> bool {
        self.completed() >= self.posted() || self.failure().is_some()
    }

    /// Whether that request is complete.
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

    /// What was posted so far.
    pub fn counts(&self) -> WorkRequests {
        self.sending().counts
    }

    /// Posts a request; returns its number. What it lends is the adapter's until it is complete, or comes back with the
    /// error.
    ///
    /// # Safety
    /// The piece must stay registered until the request is complete or the lane has [ended](Self::reclaim): it is of what
    /// is lent, or the caller sees to it.
    pub unsafe fn post(
        &self,
        verb: Verb,
        to: Place,
        piece: Piece,
        signal: Signal,
        lent: Option<L>,
    ) -> Result<u64, (Stop, Option<L>)> {
        // SAFETY: by the caller's word.
        unsafe { self.post_with(verb, to, piece, signal, lent, false) }
    }

    /// Posts a write that takes its bytes along.
    ///
    /// # Errors
    /// As [`post`](Self::post).
    pub fn post_inline(&self, to: Place, bytes: &[u8]) -> Result<u64, Stop> {
        assert!(bytes.len() <= self.inline(), "as many as a request can take along");
        let (verb, piece) = (Verb::Write, Piece::inline(bytes));
        // SAFETY: the adapter's driver reads them before this returns.
        let posted = unsafe { self.post_with(verb, to, piece, Signal::NowAndThen, None, true) };
        posted.map_err(|(stop, _)| stop)
    }

    /// As [`post`](Self::post).
    unsafe fn post_with(
        &self,
        verb: Verb,
        to: Place,
        piece: Piece,
        signal: Signal,
        lent: Option<L>,
        inline: bool,
    ) -> Result<u64, (Stop, Option<L>)> {
        let mut sending = self.sending();
        self.take_back(&mut sending);
        let (posted, completed) = (self.posted.load(Relaxed), self.completed.load(Relaxed));
        // One is kept for `ask`.
        let full = posted - completed + 1 >= self.depth || lent.is_some() && sending.lent.len() >= MOST_LENT;
        if full && sending.queue.is_some() {
            let stop = self.ask_with(&mut sending).err().unwrap_or(Stop::Full);
            return Err((stop, lent));
        }
        // Where none is under way, somebody may soon wait for this one, and need not ask for another then.
        let signalled = signal == Signal::Always
            || sending.signalled <= completed
            || posted - sending.signalled >= (self.depth / 4).max(1);
        // SAFETY: by the caller's word.
        match unsafe { self.post_into(&mut sending, verb, to, piece, signalled, inline) } {
            Ok(number) => {
                lent.into_iter().for_each(|lent| sending.lent.push_back((number, lent)));
                Ok(number)
            }
            Err(stop) => Err((stop, lent)),
        }
    }

    /// As [`post`](Self::post), whether or not there is room.
    unsafe fn post_into(
        &self,
        sending: &mut Sending<Q, L>,
        verb: Verb,
        to: Place,
        piece: Piece,
        signalled: bool,
        inline: bool,
    ) -> Result<u64, Stop> {
        if let Some(failure) = self.failure() {
            return Err(Stop::Failed(failure));
        }
        let queue = sending.queue.as_ref().expect("until it fails");
        let (number, completed) = (self.posted.load(Relaxed) + 1, self.completed.load(Relaxed));
        let kind = verb.kind();
        // What is fetched must not be what a later request puts there, and the other way about.
        let fenced =
            sending.reads > completed && kind != Kind::Read || sending.atomics > completed && kind != Kind::Atomic;
        let token = Token::new(self.number, number);
        // SAFETY: by the caller's word.
        unsafe { queue.post(&Request { token, verb, to, piece, signalled, fenced, inline }) }?;
        self.posted.store(number, Release);
        sending.counts.count(verb, piece.bytes);
        match kind {
            Kind::Read => sending.reads = number,
            Kind::Atomic => sending.atomics = number,
            Kind::Write => {}
        }
        if signalled {
            sending.signalled = number;
        }
        Ok(number)
    }

    /// Sees to it that the completion of all that was posted will be told.
    pub fn ask(&self) -> Result<(), Stop> {
        self.ask_with(&mut self.sending())
    }

    fn ask_with(&self, sending: &mut Sending<Q, L>) -> Result<(), Stop> {
        let posted = self.posted.load(Relaxed);
        if sending.signalled == posted || self.completed.load(Relaxed) >= posted || sending.queue.is_none() {
            return Ok(());
        }
        // A write of nothing, behind the others.
        let to = Place { address: 0, key: 0 };
        // SAFETY: it names no memory.
        unsafe { self.post_into(sending, Verb::Write, to, Piece::NOTHING, true, false) }.map(drop)
    }

    /// Whether it may have more lent now; what makes room is under way if not.
    pub fn may_lend(&self) -> Result<bool, Stop> {
        let mut sending = self.sending();
        self.take_back(&mut sending);
        let may = sending.lent.len() < MOST_LENT;
        if !may {
            self.ask_with(&mut sending)?;
        }
        Ok(may)
    }

    /// Lends something until that request is complete, for somebody who walked away.
    pub fn lend(&self, number: u64, what: L) {
        let mut sending = self.sending();
        if sending.queue.is_none() || self.completed.load(Acquire) >= number {
            return;
        }
        // Mostly at the end: numbers grow.
        let at = sending.lent.iter().rposition(|(before, _)| *before <= number).map_or(0, |before| before + 1);
        sending.lent.insert(at, (number, what));
        self.take_back(&mut sending);
    }

    /// Takes back what was lent for requests that are complete; all of it if the lane has failed, whose queue ends then.
    pub fn reclaim(&self) {
        self.take_back(&mut self.sending());
    }

    fn take_back(&self, sending: &mut Sending<Q, L>) {
        if self.failure().is_some() {
            // With the queue goes whatever the adapter might still have done with memory of ours.
            sending.queue = None;
            sending.lent.clear();
        }
        let completed = self.completed.load(Acquire);
        while sending.lent.front().is_some_and(|(number, _)| *number <= completed) {
            sending.lent.pop_front();
        }
    }

    /// Ends a lane that nothing more will come of; whether it had not failed before.
    pub fn give_up(&self, failure: Failure) -> bool {
        let is_new = self.failure.set(failure).is_ok();
        self.reclaim();
        is_new
    }

    fn sending(&self) -> MutexGuard<'_, Sending<Q, L>> {
        self.sending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<Q, L> Lane<Q, L> {
    /// Takes note of a completion, of those of its queue in their order.
    pub fn complete(&self, completion: &Completion) {
        if completion.queue_pair != self.queue_pair || self.failure.get().is_some() {
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
            tracing::warn!(token = ?completion.token, ?failure, "a request failed; the lane is gone");
            let _ = self.failure.set(failure);
        }
    }
}

#[cfg(test)]
mod tests;
