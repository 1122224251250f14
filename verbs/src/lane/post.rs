//! Posting requests to a lane.

use super::unfinished::RequestRecord;
use super::*;
use std::io;

/// Signalling policy of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signal {
    /// The request is signalled.
    Always,
    /// One request in many is signalled, and any request posted while no signalled one is in flight. A caller that soon
    /// waits need not request a completion.
    NowAndThen,
    /// One request in many is signalled.
    Seldom,
}

/// The reason why a request was not posted.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The queue is full; completions that free it are in flight.
    Full,
    /// The connection is being restored.
    Broken,
    /// The connection was or is being restored, and returned messages must be [taken](Lane::take_returned) first.
    Cut,
    /// The lane has ended.
    Failed(Failure),
    /// The system refused the request.
    System(io::Error),
}

impl<Q: WorkQueue, L> Lane<Q, L> {
    /// Posts a request; returns its number. A lent object belongs to the adapter until the request is complete; on
    /// error it is returned.
    ///
    /// # Safety
    /// The piece must stay registered until the request is complete or the lane has [ended](Self::reclaim). Either it
    /// is part of the lent object, or the caller keeps it.
    pub unsafe fn post(
        &self,
        verb: Verb,
        to: RemoteAddress,
        piece: Piece,
        signal: Signal,
        lent: Option<L>,
    ) -> Result<u64, (Stop, Option<L>)> {
        // SAFETY: caller's contract.
        unsafe { self.post_with(RequestRecord::new(verb, to, piece, false), &[], signal, lent) }
    }

    /// Posts a write or a message with an inline payload.
    ///
    /// # Errors
    /// The errors of [`post`](Self::post), without a returned object.
    pub fn post_inline(&self, verb: Verb, to: RemoteAddress, bytes: &[u8]) -> Result<u64, Stop> {
        assert!(bytes.len() <= self.inline(), "the bytes fit into a request");
        let kept = RequestRecord::new(verb, to, Piece::inline(bytes), true);
        // SAFETY: the adapter's driver copies the bytes before this returns.
        let posted = unsafe { self.post_with(kept, bytes, Signal::NowAndThen, None) };
        posted.map_err(|(stop, _)| stop)
    }

    /// Like [`post`](Self::post).
    pub(super) unsafe fn post_with(
        &self,
        kept: RequestRecord,
        bytes: &[u8],
        signal: Signal,
        lent: Option<L>,
    ) -> Result<u64, (Stop, Option<L>)> {
        let mut sending = self.sending();
        self.take_back(&mut sending);
        if kept.movable && sending.returned.is_some() {
            return Err((Stop::Cut, lent));
        }
        if kept.movable && self.is_failover() {
            // Messages use their own rails for failover.
            return Err((Stop::Broken, lent));
        }
        let (posted, completed) = (self.posted.load(Relaxed), self.completed.load(Relaxed));
        let kind = kept.verb.kind();
        let waits = |queue: &Q| !queue.fences() && sending.unfinished.fences(kind, completed, false);
        // One entry is reserved for `ask`.
        let full = posted - completed + 1 >= self.depth
            || lent.is_some() && sending.lent.len() >= MOST_LENT
            || !sending.unfinished.has_numbers_for(&kept)
            || sending.queue.as_ref().is_some_and(waits);
        if full && sending.queue.is_some() {
            let stop = self.ask_with(&mut sending).err().unwrap_or(Stop::Full);
            return Err((stop, lent));
        }
        let last = self.signalled.load(Relaxed);
        let signalled = match signal {
            Signal::Always => true,
            _ if posted - last >= (self.depth / 4).max(1) => true,
            Signal::NowAndThen => last <= completed,
            Signal::Seldom => false,
        };
        // SAFETY: caller's contract.
        match unsafe { self.post_into(&mut sending, kept, bytes, signalled) } {
            Ok(number) => {
                lent.into_iter().for_each(|lent| sending.lent.push_back((number, lent)));
                Ok(number)
            }
            Err(stop) => Err((stop, lent)),
        }
    }

    /// Like [`post`](Self::post), without checking for free entries.
    unsafe fn post_into(
        &self,
        sending: &mut Sending<Q, L>,
        kept: RequestRecord,
        bytes: &[u8],
        signalled: bool,
    ) -> Result<u64, Stop> {
        if let Some(failure) = self.failure() {
            return Err(Stop::Failed(failure));
        }
        let Some(queue) = sending.queue.as_ref().filter(|_| !self.is_broken()) else { return Err(Stop::Broken) };
        let (number, completed) = (self.posted.load(Relaxed) + 1, self.completed.load(Relaxed));
        if sending.held.is_some() || queue.is_failover() {
            sending.unfinished.push(number, kept, bytes);
            self.posted.store(number, Release);
            self.signalled.store(number, Release);
            sending.counts.count(kept.verb, kept.piece.bytes);
            sending.counts.signalled += 1;
            let from = sending.held.unwrap_or(number);
            self.hold(sending, Some(from));
            self.go_on_with(sending);
            return Ok(number);
        }
        let fenced = queue.fences() && sending.unfinished.fences(kept.verb.kind(), completed, true);
        // SAFETY: caller's contract.
        unsafe { self.hand_over(queue, number, kept, signalled, fenced) }?;
        sending.unfinished.push(number, kept, bytes);
        self.posted.store(number, Release);
        sending.counts.count(kept.verb, kept.piece.bytes);
        if signalled {
            sending.counts.signalled += 1;
            self.signalled.store(number, Release);
        }
        Ok(number)
    }

    /// Like [`post`](Self::post).
    pub(super) unsafe fn hand_over(
        &self,
        queue: &Q,
        number: u64,
        kept: RequestRecord,
        signalled: bool,
        fenced: bool,
    ) -> Result<(), Stop> {
        let RequestRecord { verb, to, piece, inline, .. } = kept;
        let token = Token::new(self.number, number);
        // SAFETY: caller's contract.
        let posted = unsafe { queue.post(&Request { token, verb, to, piece, signalled, fenced, inline }) };
        // The queue may have failed before its failure was reported.
        posted.map_err(|error| if self.is_broken() { Stop::Broken } else { Stop::System(error) })
    }

    /// Ensures that a completion will be reported for all requests posted so far.
    #[inline]
    pub fn ask(&self) -> Result<(), Stop> {
        // A waiting caller asks at each check, so usually a signalled request is in flight already.
        if self.signalled.load(Acquire) >= self.posted() {
            if self.holds() {
                self.go_on();
            }
            return Ok(());
        }
        self.ask_with(&mut self.sending())
    }

    pub(super) fn ask_with(&self, sending: &mut Sending<Q, L>) -> Result<(), Stop> {
        let posted = self.posted.load(Relaxed);
        if self.signalled.load(Relaxed) == posted || self.completed.load(Relaxed) >= posted || sending.queue.is_none() {
            return Ok(());
        }
        // SAFETY: an empty write, which lends the adapter no bytes. It follows the other requests.
        unsafe { self.post_into(sending, RequestRecord::MARKER, &[], true) }.map(drop)
    }

    /// Returns whether the lane accepts another lent object now. If not, completions that free some are in flight.
    pub fn may_lend(&self) -> Result<bool, Stop> {
        let mut sending = self.sending();
        self.take_back(&mut sending);
        let may = sending.lent.len() < MOST_LENT;
        if !may {
            self.ask_with(&mut sending)?;
        }
        Ok(may)
    }
}
