//! A network whose whole state is plain data. Every schedule of a protocol's verbs, or a random one, can be run on the
//! code that ships.

use super::event::{Action, Event};
use super::fifo_oracle::{FifoOracle, Verb};
use super::memory::{Channels, Message, SimWords};
use super::program::Program;
use super::replay::{Blocked, Run, Shape};
use super::state::{RankState, State};
use super::trace::{Trace, schedule};
use crate::{At, Rank, Wake};
use std::cell::RefCell;
use std::fmt;
use std::mem::take;

pub use super::explore::Taken;
pub use super::program::{Once, once};
pub use super::replay::{Delivery, Replay, Suspended};

/// A simulated network of ranks that each run a [`Program`]. Each verb is one atomic step, and other ranks may take
/// steps between any two.
///
/// A phase of a program runs on a [`Replay`], which feeds it the results of its verbs so far and stops it after one
/// more. A rank is therefore plain data rather than a thread, and so is the whole [`State`]. [`step`](Self::step)
/// computes a next state, [`explore`](Self::explore) visits all states, and [`run_random`](Self::run_random) runs one
/// schedule.
///
/// # Examples
/// Three ranks add to a word; the result is 3 under every schedule.
/// ```
/// use transom_locks::model::{sim, Sim};
/// use transom_locks::{At, Network, Wake};
///
/// let word = At { rank: 0, word: 0 };
/// let net = Sim::new(3, 1, sim::once(move |_, network| network.add(word, 1, Wake::Home).map(drop)));
/// assert_eq!(net.run_random(42).unwrap().word(word), 3);
/// assert_eq!(net.explore(100).unwrap(), 8); // states: who has added and who has not
/// ```
#[derive(Debug)]
pub struct Sim<P> {
    program: P,
    shape: Shape,
}

/// One step of a simulated network.
///
/// # Examples
/// ```
/// use transom_locks::model::{sim, Sim, Step};
/// use transom_locks::{At, Network, Wake};
/// let net = Sim::new(1, 1, sim::once(|rank, network| network.notify(At { rank, word: 0 }, 5, Wake::Home)));
/// let state = net.start().unwrap();
/// assert_eq!(net.steps(&state).collect::<Vec<_>>(), [Step::Rank(0)]);
/// assert!(net.step(&state, Step::Rank(0)).unwrap().is_done());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// This rank executes its next verb.
    Rank(Rank),
    /// The oldest message from one rank to another is delivered.
    Deliver {
        /// The sender.
        from: Rank,
        /// The destination.
        to: Rank,
    },
}

/// A violation, and the schedule that led to it. `Display` prints each step, and how to repeat them.
///
/// # Examples
/// ```
/// use transom_locks::model::{sim, Sim};
/// use transom_locks::{Awaited, Network};
/// let net = Sim::new(2, 1, sim::once(|_, network| network.wait(0, Awaited::Anyone, |word| word > 0).map(drop)));
/// let failure = net.run_random(9).unwrap_err();
/// assert!(failure.to_string().starts_with("deadlock: rank 0 waits on its word 0, which holds 0x0;"), "{failure}");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// A description.
    pub what: String,
    /// The seed, if a random schedule found it.
    pub seed: Option<u64>,
    /// The steps from the start to the violation.
    pub steps: Vec<Step>,
    /// The effect of each step.
    pub trace: Box<Trace>,
}

impl Failure {
    /// The steps as a string, which [`Sim::replay`] runs again.
    pub fn schedule(&self) -> String {
        schedule(&self.steps)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (after {} steps", self.what, self.steps.len())?;
        match self.seed {
            Some(seed) => writeln!(f, "; seed {seed})")?,
            None => writeln!(f, ")")?,
        }
        writeln!(f, "{}", self.trace)?;
        match self.seed {
            Some(seed) => write!(f, "run_random({seed}) repeats it"),
            None => write!(f, "replay({:?}) repeats it", self.schedule()),
        }
    }
}

impl std::error::Error for Failure {}

impl<P: Program> Sim<P> {
    /// Creates a network of `ranks` ranks with `words` words each, all 0. Notifications take effect immediately.
    pub fn new(ranks: usize, words: usize, program: P) -> Self {
        Sim { program, shape: Shape { ranks, words, delivery: Delivery::Immediate } }
    }

    /// The same network with another delivery of notifications.
    pub fn with_delivery(mut self, delivery: Delivery) -> Self {
        self.shape.delivery = delivery;
        self
    }

    /// The delivery of notifications.
    pub fn delivery(&self) -> Delivery {
        self.shape.delivery
    }

    /// The program that the ranks run.
    pub fn program(&self) -> &P {
        &self.program
    }

    /// The state before the first step.
    ///
    /// # Errors
    /// A violation before the first step.
    pub fn start(&self) -> Result<State<P::Local>, Failure> {
        let rank = |rank| RankState {
            phase: 0,
            local: self.program.start(rank),
            record: Vec::new(),
            begun: false,
            blocked: None,
            done: false,
        };
        let mut state = State {
            memory: SimWords::default(),
            channels: Channels::default(),
            oracle: self.program.locks().map(|layout| FifoOracle::new(layout, self.shape.ranks)),
            ranks: (0..self.shape.ranks).map(rank).collect(),
        };
        self.program.before(&mut |at, value| {
            state.memory.set(at, value);
        });
        let begun = (0..self.shape.ranks).try_for_each(|rank| self.run(&mut state, rank, false, None).map(drop));
        begun.and_then(|()| self.check(&state)).map_err(|what| Failure {
            trace: Box::new(Trace::of(&what)),
            what,
            seed: None,
            steps: Vec::new(),
        })?;
        Ok(state)
    }

    /// The steps that are possible in `state`.
    pub fn steps<'a>(&self, state: &'a State<P::Local>) -> impl Iterator<Item = Step> + use<'a, P> {
        let ready =
            |(rank, state): (Rank, &RankState<_>)| (!state.done && state.blocked.is_none()).then_some(Step::Rank(rank));
        let deliveries = state.channels.busy().map(|(from, to)| Step::Deliver { from, to });
        state.ranks.iter().enumerate().filter_map(ready).chain(deliveries)
    }

    /// The state after `step`.
    ///
    /// # Errors
    /// A description of a phase's error, of a violation found by the oracle or by the program's check, or of a
    /// deadlock.
    pub fn step(&self, state: &State<P::Local>, step: Step) -> Result<State<P::Local>, String> {
        let mut next = state.clone();
        self.apply(&mut next, step, &mut Event::of(step))?;
        Ok(next)
    }

    /// Runs one random schedule to its end. The same `seed` gives the same schedule.
    ///
    /// # Errors
    /// The first failure, with the seed.
    pub fn run_random(&self, seed: u64) -> Result<State<P::Local>, Failure> {
        let mut state = self.start()?;
        let mut random = Random(seed);
        let mut taken = Vec::new();
        let mut steps = Vec::new();
        while !state.is_done() {
            steps.clear();
            steps.extend(self.steps(&state));
            let step = steps[random.below(steps.len())];
            taken.push(step);
            if let Err(what) = self.apply(&mut state, step, &mut Event::of(step)) {
                return Err(self.failure(what, Some(seed), taken));
            }
        }
        Ok(state)
    }

    /// Takes a step, and writes what it did into `event`, also if it fails.
    pub(super) fn apply(&self, state: &mut State<P::Local>, step: Step, event: &mut Event) -> Result<(), String> {
        let touched = match step {
            Step::Rank(rank) => self.run(state, rank, true, Some(event))?,
            Step::Deliver { from, to } => self.deliver(state, from, to, event)?,
        };
        // An atomic that has begun blocks others on its word until it has ended.
        let torn = self.shape.delivery == Delivery::Torn;
        for rank in 0..state.ranks.len() {
            let blocked = state.ranks[rank].blocked;
            if torn && !matches!(blocked, Some(Blocked::Word(_))) {
                self.run(state, rank, false, None)?;
            }
            if touched.is_some_and(|at| blocked == Some(Blocked::Word(at))) {
                self.run(state, rank, false, None)?;
                let is_awake = state.ranks[rank].blocked.is_none();
                event.woken |= u128::from(is_awake).checked_shl(rank as u32).unwrap_or(0);
            }
        }
        self.check(state)
    }

    pub(super) fn failure(&self, what: String, seed: Option<u64>, steps: Vec<Step>) -> Failure {
        let trace = Box::new(self.trace(&steps, &what));
        Failure { what, seed, steps, trace }
    }

    fn deliver(
        &self,
        state: &mut State<P::Local>,
        from: Rank,
        to: Rank,
        event: &mut Event,
    ) -> Result<Option<At>, String> {
        event.phase = state.ranks[from].phase;
        event.call = self.program.call(from, event.phase);
        let Some(message) = state.channels.receive(from, to) else {
            return Err(format!("nothing is in flight from rank {from} to rank {to}"));
        };
        let touched = match message {
            Message::Notify { at, value, wake } => {
                (event.found, event.left) = (state.memory.set(at, value), value);
                event.action = Some(Action::Verb(Verb::Notify { at, value }));
                if let Some(oracle) = &mut state.oracle {
                    oracle.touched(at);
                }
                (wake == Wake::Home).then_some(at)
            }
            Message::Add { at, delta, wake, phase, entry } => {
                let mut run = Run { memory: take(&mut state.memory), oracle: state.oracle.take(), ..Run::default() };
                let found = run.execute(from, Verb::Add { at, delta }, wake);
                (state.memory, state.oracle) = (run.memory, run.oracle);
                let touched = run.touched;
                event.acted(run.acted);
                run.fault.map_or(Ok(()), Err)?;
                let sender = &mut state.ranks[from];
                if sender.phase == phase {
                    sender.record[entry] = Some(found);
                }
                touched
            }
        };
        if matches!(state.ranks[from].blocked, Some(Blocked::Entry(_) | Blocked::Channel(_))) {
            self.run(state, from, false, None)?;
        }
        Ok(touched)
    }

    /// Runs the phase of `rank` for one more verb, or only to find out why it is blocked. Phases that end without a
    /// further verb are completed in passing. Returns the word that the verb changed, and writes what it did into
    /// `event`.
    fn run(
        &self,
        state: &mut State<P::Local>,
        rank: Rank,
        mut may_step: bool,
        mut event: Option<&mut Event>,
    ) -> Result<Option<At>, String> {
        let mut touched = None;
        state.ranks[rank].begun |= may_step;
        loop {
            let me = &mut state.ranks[rank];
            if me.phase == self.program.phases(rank) {
                me.done = true;
                return Ok(touched);
            }
            let phase = me.phase;
            let mut local = me.local.clone();
            let run = Run {
                memory: take(&mut state.memory),
                channels: take(&mut state.channels),
                oracle: state.oracle.take(),
                record: take(&mut me.record),
                phase,
                call: self.program.call(rank, phase),
                may_step: take(&mut may_step),
                ..Run::default()
            };
            let network = Replay { rank, shape: self.shape, run: RefCell::new(run) };
            let outcome = self.program.phase(rank, phase, &mut local, &network);
            let run = network.run.into_inner();
            (state.memory, state.channels, state.oracle) = (run.memory, run.channels, run.oracle);
            touched = touched.or(run.touched);
            let mut event = event.take();
            if let Some(event) = &mut event {
                (event.phase, event.call) = (phase, self.program.call(rank, phase));
                event.acted(run.acted);
            }
            if let Some(fault) = run.fault {
                return Err(fault);
            }
            if let (Some(Blocked::Word(at)), Some(call)) = (run.blocked, run.call) {
                call.may_wait(rank, at)?;
            }
            let me = &mut state.ranks[rank];
            me.blocked = run.blocked;
            // The phase stopped at a verb that is not executed yet. Its outcome is ignored: it may have gone on after
            // the error.
            if run.ended {
                me.record = run.record;
                return Ok(touched);
            }
            outcome.map_err(|error| format!("phase {phase} of rank {rank}: {error}"))?;
            me.phase += 1;
            me.local = local;
            if let Some(event) = event {
                event.returned = true;
            }
            if let Some(oracle) = &mut state.oracle {
                oracle.returned(rank)?;
            }
        }
    }

    fn check(&self, state: &State<P::Local>) -> Result<(), String> {
        self.program.check(state)?;
        if state.is_done() || self.steps(state).next().is_some() {
            return Ok(());
        }
        let mut what = String::from("deadlock:");
        for (rank, blocked) in state.ranks.iter().enumerate().filter(|(_, rank)| !rank.done) {
            let Some(Blocked::Word(at)) = blocked.blocked else { continue };
            let whose = if at.rank == rank { "its".into() } else { format!("rank {}'s", at.rank) };
            what += &format!(" rank {rank} waits on {whose} word {}", at.word);
            if let Some((target, field)) = self.program.locks().and_then(|layout| layout.field(at)) {
                what += &format!(" ({field:?}, lock of rank {target})");
            }
            what += &format!(", which holds {:#x};", state.word(at));
        }
        Err(what)
    }
}

/// SplitMix64 (Steele, Lea and Flood, 2014): simple, and the same on every platform.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ mixed >> 31) % n as u64) as usize
    }
}
