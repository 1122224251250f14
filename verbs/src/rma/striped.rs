//! A put or get that is divided: a stripe by each of several rails, each to its own place.
//!
//! Who waits for it, or for what must not overtake it, posts what is not posted, and sees to it that it ends. A stripe whose
//! connection broke goes by the first rail: nothing that comes after has overtaken it, so to do it again does no harm, once neither end of
//! the broken connection does anything of it any more.

use super::failure::{Halt, UNSERVED};
use super::far::Far;
use super::member::{Member, Way};
use super::operations::{RailLane, retry};
use crate::lane::{Signal, Stop};
use crate::memory::Lent;
use crate::sys::Registered;
use crate::wr::{Failure, Piece, Place, Verb, Why};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;
use transom_channel::striping::{Part, Timed};
use transom_launch::lock;
use transom_windows::FabricError;

/// Bytes of one request of a stripe: that something of it is complete is to be seen soon.
const PIECE: usize = 256 << 10;

/// One that is under way, or has ended.
pub(super) struct Striped {
    way: Way,
    verb: Verb,
    state: Mutex<State>,
}

struct State {
    /// Not ended.
    stripes: Vec<Stripe>,
    /// None if one of them went another way than it was meant to.
    timed: Option<Timed>,
    /// Once all of it has ended, or it was given up.
    outcome: Option<Result<(), Failure>>,
    /// Of whoever walked away.
    memory: Option<Lent>,
}

struct Stripe {
    way: Way,
    bytes: usize,
    /// Bytes that are posted, and the numbers of the first request and the last.
    posted: usize,
    numbers: (u64, u64),
    ends: Ends,
    /// The same by the first rail; and since when it is to go there.
    again: Ends,
    turns: Option<Instant>,
    /// By the rail's adapter, for this.
    _registered: Option<Arc<Registered>>,
}

/// Where a stripe begins, here and there.
#[derive(Clone, Copy)]
struct Ends {
    here: Piece,
    there: Place,
}

/// A stripe's own memory here: by its rail, and by the first.
pub(super) struct Here {
    pub registered: Option<Arc<Registered>>,
    pub first: Piece,
}

impl Ends {
    /// Posts the piece that begins there; its number.
    ///
    /// # Safety
    /// The memory must stay registered until the request is complete, or cancelled, or the lane has ended.
    unsafe fn post(&self, lane: &RailLane, verb: Verb, from: usize, bytes: usize) -> Result<u64, Stop> {
        let here = Piece { address: self.here.address + from as u64, bytes: bytes as u32, key: self.here.key };
        let there = Place { address: self.there.address + from as u64, key: self.there.key };
        // SAFETY: by the caller's word.
        unsafe { lane.post(verb, there, here, Signal::Always, None) }.map_err(|(stop, _)| stop)
    }
}

impl Stripe {
    /// Posts what there is room for.
    fn post(&mut self, lane: &RailLane, verb: Verb) -> Result<(), Stop> {
        while self.posted < self.bytes {
            let bytes = (self.bytes - self.posted).min(PIECE);
            // SAFETY: whoever began this keeps the memory, and this the registration, until it has ended.
            let number = unsafe { self.ends.post(lane, verb, self.posted, bytes) }?;
            self.numbers = (if self.posted == 0 { number } else { self.numbers.0 }, number);
            self.posted += bytes;
        }
        Ok(())
    }

    /// Begins again by the first rail, if the adapters of its own do nothing of it any more. Whether it does.
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
    /// Of these parts of a place; `here` tells the memory of each. What the first rail has is registered by whoever calls.
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
        let state = Mutex::new(State { stripes, timed, outcome: None, memory: None });
        Arc::new(Striped { way: far.way, verb, state })
    }

    /// Posts it, in order with what was before.
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
            let State { stripes, timed, .. } = &mut *state;
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

    /// Whether all of it has ended.
    pub fn is_done(self: &Arc<Self>, member: &Member) -> Result<bool, FabricError> {
        member.progress();
        self.go_on(member).map_err(|halt| member.why(self.way, halt))
    }

    /// Waits until it has.
    pub fn finish(self: &Arc<Self>, member: &Member) -> Result<(), FabricError> {
        let done = member.until(self.way, |_| Ok(self.go_on(member)?.then_some(())));
        if done.is_err() {
            self.give_up(member);
        }
        done
    }

    /// Has the adapters do nothing of it any more: what is under way ends with its lanes.
    pub fn give_up(self: &Arc<Self>, member: &Member) {
        let failed = member.core().endpoints.lane(self.way.peer).and_then(|lane| lane.failure());
        let mut state = self.state();
        for stripe in state.stripes.drain(..).filter(|stripe| stripe.posted > 0) {
            member.lane(stripe.way).give_up(Failure::known(Why::Gone));
        }
        let failure = failed.unwrap_or(Failure::known(Why::Gone));
        self.end(member, state, Err(failure));
    }

    /// Keeps memory that it needs until it has ended, for somebody who walked away.
    pub fn keep(self: &Arc<Self>, memory: Lent) {
        let mut state = self.state();
        if state.outcome.is_none() {
            state.memory = Some(memory);
        }
    }

    /// Posts what can be, and looks what has ended; whether all of it has.
    fn go_on(self: &Arc<Self>, member: &Member) -> Result<bool, Halt> {
        let mut state = self.state();
        if let Some(outcome) = state.outcome {
            return outcome.map(|()| true).map_err(Halt::Failed);
        }
        let now = member.paths.as_ref().map_or(0, |paths| paths.now());
        let State { stripes, timed, .. } = &mut *state;
        let mut failed = None;
        stripes.retain_mut(|stripe| match self.step(member, stripe) {
            Ok(Step::Ended) => {
                timed.iter_mut().for_each(|timed| _ = timed.done(stripe.way.rail, now));
                false
            }
            Ok(Step::UnderWay) => true,
            Ok(Step::Turned) => {
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
                    // No rail has brought the peer's answer.
                    let late = stripe.turns.get_or_insert_with(Instant::now).elapsed() > UNSERVED;
                    return if late { Err(Halt::Failed(Failure::known(Why::Silence))) } else { Ok(Step::UnderWay) };
                }
                tracing::info!(peer = stripe.way.peer, bytes = stripe.bytes, "a stripe goes by the first rail instead");
                return Ok(Step::Turned);
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

    fn end(self: &Arc<Self>, member: &Member, mut state: MutexGuard<'_, State>, outcome: Result<(), Failure>) {
        state.outcome.get_or_insert(outcome);
        let (memory, timed) = (state.memory.take(), state.timed.take());
        drop(state);
        drop(memory);
        if let Some(paths) = &member.paths {
            paths.ended(self, timed);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

/// What became of a stripe.
enum Step {
    Ended,
    UnderWay,
    /// It goes another way now.
    Turned,
}
