//! A put or get divided into stripes, one for each of several rails, each with its own part of the memory.
//!
//! The waiting caller, or an operation that must not overtake it, posts the remaining requests and ensures completion.
//! A stripe whose connection broke is repeated on the first rail, once neither end of the broken connection executes
//! its requests any more. That is safe because no later operation has overtaken it.

use super::failure::{Halt, UNSERVED};
use super::far::Far;
use super::member::{Member, Way};
use super::operations::{RailLane, retry};
use crate::lane::{Signal, Stop};
use crate::memory::Lent;
use crate::sys::Registered;
use crate::wr::{Failure, Piece, RemoteAddress, Verb, Why};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;
use transom_channel::striping::{Part, Timed};
use transom_launch::lock;
use transom_windows::FabricError;

/// Bytes per request of a stripe; small, so that progress is visible soon.
const PIECE: usize = 256 << 10;

/// A divided operation, in flight or ended.
pub(super) struct Striped {
    way: Way,
    verb: Verb,
    state: Mutex<StripedState>,
}

struct StripedState {
    /// Stripes that have not ended.
    stripes: Vec<Stripe>,
    /// Times of the stripes; `None` if a stripe changed its rail.
    timed: Option<Timed>,
    /// Set once all stripes have ended, or the operation was given up.
    outcome: Option<Result<(), Failure>>,
    /// Memory left by a caller that stopped waiting.
    memory: Option<Lent>,
}

struct Stripe {
    way: Way,
    bytes: usize,
    /// Bytes posted, and the numbers of the first and the last request.
    posted: usize,
    numbers: (u64, u64),
    ends: Ends,
    /// The ends on the first rail; and the time since which the stripe waits to move there.
    again: Ends,
    turns: Option<Instant>,
    /// Registration with the rail's adapter for this stripe.
    _registered: Option<Arc<Registered>>,
}

/// Start of a stripe in local and remote memory.
#[derive(Clone, Copy)]
struct Ends {
    here: Piece,
    there: RemoteAddress,
}

/// Local memory of a stripe: the registration with its rail, and the piece for the first rail.
pub(super) struct Here {
    pub registered: Option<Arc<Registered>>,
    pub first: Piece,
}

impl Ends {
    /// Posts the piece that begins at offset `from`; returns its number.
    ///
    /// # Safety
    /// The memory must stay registered until the request is complete or cancelled, or the lane has ended.
    unsafe fn post(&self, lane: &RailLane, verb: Verb, from: usize, bytes: usize) -> Result<u64, Stop> {
        let here = Piece { address: self.here.address + from as u64, bytes: bytes as u32, key: self.here.key };
        let there = RemoteAddress { address: self.there.address + from as u64, key: self.there.key };
        // SAFETY: caller's contract.
        unsafe { lane.post(verb, there, here, Signal::Always, None) }.map_err(|(stop, _)| stop)
    }
}

impl Stripe {
    /// Posts as many requests as the lane accepts.
    fn post(&mut self, lane: &RailLane, verb: Verb) -> Result<(), Stop> {
        while self.posted < self.bytes {
            let bytes = (self.bytes - self.posted).min(PIECE);
            // SAFETY: the initiator keeps the memory, and the stripe its registration, until the stripe has ended.
            let number = unsafe { self.ends.post(lane, verb, self.posted, bytes) }?;
            self.numbers = (if self.posted == 0 { number } else { self.numbers.0 }, number);
            self.posted += bytes;
        }
        Ok(())
    }

    /// Restarts the stripe on the first rail, if the adapters of its own rail no longer execute its requests; returns
    /// whether they do not.
    fn turn_to_the_first(&mut self, lane: Option<&RailLane>) -> bool {
        let (start, bytes, key) = (self.ends.here.address, self.bytes as u64, self.ends.here.key);
        let mine = |piece: Piece| piece.key == key && piece.address.wrapping_sub(start) < bytes;
        let done = self.posted == 0 || lane.is_none_or(|lane| lane.cancel(self.numbers.0..=self.numbers.1, mine));
        if done {
            *self = Stripe {
                way: self.way.by(0),
                bytes: self.bytes,
                posted: 0,
                numbers: (0, 0),
                ends: self.again,
                again: self.again,
                turns: None,
                _registered: None,
            };
        }
        done
    }
}

impl Striped {
    /// Makes a stripe of each part; `here` returns its local memory. The caller has registered the memory with the
    /// first rail.
    pub fn new(far: Far<'_>, verb: Verb, parts: &[Part], here: impl Fn(&Part) -> Here) -> Arc<Self> {
        let mut timed = Some(Timed::new(parts.iter().copied()));
        let stripe = |part: &Part| {
            let Here { registered, first } = here(part);
            let (at, bytes) = (part.at as usize, part.length as usize);
            let again = Ends { here: first, there: far.at(0, at) };
            let by = |registered: &Arc<Registered>| Ends {
                here: registered.piece((first.address - registered.address) as usize, bytes),
                there: far.at(part.rail, at),
            };
            let ends = registered.as_ref().map(by);
            if part.rail > 0 && ends.is_none() {
                timed = None;
            }
            let way = far.way.by(if ends.is_some() { part.rail } else { 0 });
            let ends = ends.unwrap_or(again);
            let (posted, numbers) = Default::default();
            Stripe { way, bytes, posted, numbers, ends, again, turns: None, _registered: registered }
        };
        let stripes = parts.iter().map(stripe).collect();
        let state = Mutex::new(StripedState { stripes, timed, outcome: None, memory: None });
        Arc::new(Striped { way: far.way, verb, state })
    }

    /// Posts the operation, ordered after earlier ones.
    pub fn start(self: &Arc<Self>, member: &Member) -> Result<(), FabricError> {
        let started = member.begin_striped(self, self.way, self.verb).and_then(|()| self.post(member));
        if started.is_err() {
            self.give_up(member);
        }
        started
    }

    fn post(self: &Arc<Self>, member: &Member) -> Result<(), FabricError> {
        if let Some(paths) = &member.paths {
            let mut state = self.state();
            let now = paths.now();
            let StripedState { stripes, timed, .. } = &mut *state;
            for stripe in stripes {
                paths.count(stripe.way.rail, stripe.bytes);
                timed.iter_mut().for_each(|timed| timed.posted(stripe.way.rail, now));
            }
        }
        member.until(self.way, |_| {
            self.go_on(member)?;
            Ok(self.state().stripes.iter().all(|stripe| stripe.posted == stripe.bytes).then_some(()))
        })
    }

    pub fn peer(&self) -> usize {
        self.way.peer
    }

    pub fn reads(&self) -> bool {
        self.verb == Verb::Read
    }

    /// Returns whether all stripes have ended.
    pub fn is_done(self: &Arc<Self>, member: &Member) -> Result<bool, FabricError> {
        member.progress();
        self.go_on(member).map_err(|halt| member.why(self.way, halt))
    }

    /// Waits until all stripes have ended.
    pub fn finish(self: &Arc<Self>, member: &Member) -> Result<(), FabricError> {
        let done = member.until(self.way, |_| Ok(self.go_on(member)?.then_some(())));
        if done.is_err() {
            self.give_up(member);
        }
        done
    }

    /// Gives up the operation: the lanes of posted stripes are ended, so that the adapters execute nothing more of it.
    pub fn give_up(self: &Arc<Self>, member: &Member) {
        let failed = member.core().endpoints.lane(self.way.peer).and_then(|lane| lane.failure());
        let mut state = self.state();
        for stripe in state.stripes.drain(..).filter(|stripe| stripe.posted > 0) {
            member.lane(stripe.way).give_up(Failure::known(Why::Gone));
        }
        let failure = failed.unwrap_or(Failure::known(Why::Gone));
        self.end(member, state, Err(failure));
    }

    /// Keeps memory until the operation has ended, for a caller that stopped waiting.
    pub fn keep(self: &Arc<Self>, memory: Lent) {
        let mut state = self.state();
        if state.outcome.is_none() {
            state.memory = Some(memory);
        }
    }

    /// Posts as much as possible and checks for completion; returns whether all stripes have ended.
    fn go_on(self: &Arc<Self>, member: &Member) -> Result<bool, Halt> {
        let mut state = self.state();
        if let Some(outcome) = state.outcome {
            return outcome.map(|()| true).map_err(Halt::Failed);
        }
        let now = member.paths.as_ref().map_or(0, |paths| paths.now());
        let StripedState { stripes, timed, .. } = &mut *state;
        let mut failed = None;
        stripes.retain_mut(|stripe| match self.step(member, stripe) {
            Ok(Step::Ended) => {
                timed.iter_mut().for_each(|timed| _ = timed.done(stripe.way.rail, now));
                false
            }
            Ok(Step::UnderWay) => true,
            Ok(Step::Progressed) => {
                *timed = None;
                true
            }
            Err(halt) => {
                failed.get_or_insert(halt);
                true
            }
        });
        match failed {
            Some(halt) => return Err(halt),
            None if !stripes.is_empty() => return Ok(false),
            None => {}
        }
        self.end(member, state, Ok(()));
        Ok(true)
    }

    fn step(&self, member: &Member, stripe: &mut Stripe) -> Result<Step, Halt> {
        let lane = member.core_of(stripe.way).endpoints.lane(stripe.way.peer);
        if stripe.way.rail > 0 {
            let broken = lane.is_none_or(|lane| lane.is_broken() || lane.failure().is_some());
            let complete = |lane: &RailLane| lane.completed() >= stripe.numbers.1;
            let complete = stripe.posted == stripe.bytes && lane.is_some_and(complete);
            if complete {
                return Ok(Step::Ended);
            }
            if broken || lane.is_some_and(|lane| matches!(stripe.post(lane, self.verb), Err(Stop::System(_)))) {
                if let Some(failure) = member.lane(stripe.way.by(0)).failure() {
                    return Err(Halt::Failed(failure));
                }
                member.core_of(stripe.way).want(stripe.way.peer);
                if !stripe.turn_to_the_first(lane) {
                    // No rail has received the peer's confirmation.
                    let late = stripe.turns.get_or_insert_with(Instant::now).elapsed() > UNSERVED;
                    return if late { Err(Halt::Failed(Failure::known(Why::Silence))) } else { Ok(Step::UnderWay) };
                }
                tracing::info!(peer = stripe.way.peer, bytes = stripe.bytes, "moving a stripe to the first rail");
                return Ok(Step::Progressed);
            }
            stripe.turns = None;
            return Ok(Step::UnderWay);
        }
        let lane = member.lane(stripe.way);
        let posted = retry(stripe.post(lane, self.verb))?.is_some();
        match posted && lane.is_complete(stripe.numbers.1).map_err(Halt::Failed)? {
            true => Ok(Step::Ended),
            false => Ok(Step::UnderWay),
        }
    }

    fn end(self: &Arc<Self>, member: &Member, mut state: MutexGuard<'_, StripedState>, outcome: Result<(), Failure>) {
        state.outcome.get_or_insert(outcome);
        let (memory, timed) = (state.memory.take(), state.timed.take());
        drop(state);
        drop(memory);
        if let Some(paths) = &member.paths {
            paths.ended(self, timed);
        }
    }

    fn state(&self) -> MutexGuard<'_, StripedState> {
        lock(&self.state)
    }
}

/// The state of a stripe after a step.
enum Step {
    Ended,
    UnderWay,
    /// The stripe restarted on the first rail.
    Progressed,
}
