//! A network whose whole state is plain data. Every schedule of a protocol's verbs, or a random one, can be run on the
//! code that ships.

use super::delivery::Deliver;
use super::event::{Action, Event};
use super::fifo_oracle::{FifoOracle, Verb};
use super::memory::{Channel, Channels, Message, SimWords};
use super::program::Program;
use super::replay::{Blocked, Run, Shape};
use super::state::{RankState, SimState};
use super::trace::{Trace, schedule};
use crate::{At, Rank, Wake};
use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::mem::take;
use std::sync::Arc;

pub use super::delivery::Delivery;
pub use super::explore::Taken;
pub use super::program::{Once, once};
pub use super::replay::{Replay, Suspended};

/// A simulated network of ranks that each run a [`Program`]. Each verb is one atomic step, and other ranks may take
/// steps between any two.
///
/// A phase of a program runs on a [`Replay`], which feeds it the results of its verbs so far and stops it after one
/// more. A rank is therefore plain data rather than a thread, and so is the whole [`SimState`]. [`step`](Self::step)
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
    /// The ranks that begin before another which is alike.
    first: Vec<bool>,
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
    /// The oldest message from one rank to another in one queue is delivered.
    Deliver {
        /// The sender.
        from: Rank,
        /// The destination.
        to: Rank,
        /// The queue in which it travels ([`Deliver::queue`]).
        queue: usize,
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
/// assert!(failure.to_string().starts_with("deadlock: rank 0 waits for word 0 of rank 0 (0);"), "{failure}");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// A description.
    pub what: String,
    /// The seed, if a random schedule found it.
    pub seed: Option<u64>,
    /// The steps from the start to the violation.
    pub steps: Vec<Step>,
    /// The number of steps before the cycle that repeats for ever; `None` if the violation is no starvation.
    pub cycle: Option<usize>,
    /// The effect of each step.
    pub trace: Box<Trace>,
}

impl Failure {
    /// The steps as a string, which [`Sim::replay`] runs again. A star marks the start of a cycle.
    pub fn schedule(&self) -> String {
        match self.cycle.map(|first| self.steps.split_at(first)) {
            Some((before, cycle)) => format!("{} * {}", schedule(before), schedule(cycle)).trim_start().into(),
            None => schedule(&self.steps),
        }
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
        let mut first = vec![false; ranks];
        (0..ranks).filter_map(|rank| program.alike(rank)).for_each(|rank| first[rank] = true);
        Sim { program, first, shape: Shape { ranks, words, delivery: Arc::new(Delivery::Immediate) } }
    }

    /// The same network with another delivery of verbs: a [`Delivery`], or one of your own.
    pub fn with_delivery(mut self, delivery: impl Deliver + Send + Sync + 'static) -> Self {
        self.shape.delivery = Arc::new(delivery);
        self
    }

    /// The program that the ranks run.
    pub fn program(&self) -> &P {
        &self.program
    }

    /// The state before the first step.
    ///
    /// # Errors
    /// A violation before the first step.
    pub fn start(&self) -> Result<SimState<P::Local>, Failure> {
        let (state, begun) = self.begin();
        match begun {
            Ok(()) => Ok(state),
            Err(what) => Err(self.failure(what, None, Vec::new())),
        }
    }

    /// The state before the first step, and a violation there.
    pub(super) fn begin(&self) -> (SimState<P::Local>, Result<(), String>) {
        let rank = |rank| RankState {
            phase: 0,
            local: self.program.start(rank),
            record: Vec::new(),
            begun: false,
            blocked: None,
            done: false,
        };
        let mut state = SimState {
            memory: SimWords::default(),
            channels: Channels::default(),
            oracle: self.program.locks().map(|layout| FifoOracle::new(layout, self.shape.ranks)),
            ranks: (0..self.shape.ranks).map(rank).collect(),
        };
        self.program.before(&mut |at, value| {
            state.memory.set(at, value);
        });
        let begun = (0..self.shape.ranks).try_for_each(|rank| self.run(&mut state, rank, false, None).map(drop));
        let checked = begun.and_then(|()| self.check(&state));
        (state, checked)
    }

    /// The steps that are possible in `state`.
    pub fn steps<'a>(&self, state: &'a SimState<P::Local>) -> impl Iterator<Item = Step> + use<'a, P> {
        let ready =
            |(rank, state): (Rank, &RankState<_>)| (!state.done && state.blocked.is_none()).then_some(Step::Rank(rank));
        // An addition waits for an atomic of another rank that has begun on its word.
        let free = |message: &Message| match *message {
            Message::Add { at, .. } => state.memory.half_at(at).is_none(),
            Message::Notify { .. } => true,
        };
        let heads = state.channels.heads().filter(move |(_, message)| free(message));
        let deliveries = heads.map(|((from, to, queue), _)| Step::Deliver { from, to, queue });
        state.ranks.iter().enumerate().filter_map(ready).chain(deliveries)
    }

    /// The state after `step`.
    ///
    /// # Errors
    /// A description of a phase's error, of a violation found by the oracle or by the program's check, or of a
    /// deadlock.
    pub fn step(&self, state: &SimState<P::Local>, step: Step) -> Result<SimState<P::Local>, String> {
        let mut next = state.clone();
        self.apply(&mut next, step, &mut Event::of(step))?;
        Ok(next)
    }

    /// Runs one random schedule to its end. The same `seed` gives the same schedule.
    ///
    /// # Errors
    /// The first failure, with the seed.
    pub fn run_random(&self, seed: u64) -> Result<SimState<P::Local>, Failure> {
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

    /// Runs one schedule by random priorities (probabilistic concurrency testing: Burckhardt, Kothari, Musuvathi and
    /// Nagarakatte, ASPLOS 2010): of the ranks and messages that can take a step, the one with the highest priority does.
    /// At `depth - 1` random steps of the first `length` the one that is about to step becomes the lowest. The run finds a
    /// fault that needs `depth` orderings with a probability of at least 1 to `n length^(depth - 1)`, where `n` is the
    /// number of ranks and channels. Uniform choice ([`run_random`](Self::run_random)) rarely lets a rank fall far behind.
    ///
    /// # Errors
    /// The first violation, with its schedule.
    ///
    /// # Examples
    /// Rank 1 must be later than 40 steps of rank 0. Uniform choice misses that; one of two priorities has it.
    /// ```
    /// use transom_locks::model::{sim, Sim};
    /// use transom_locks::{At, Error, Network, Wake};
    /// let word = At { rank: 0, word: 0 };
    /// let net = Sim::new(2, 1, sim::once(move |rank, network| {
    ///     let steps = if rank == 0 { 40 } else { 1 };
    ///     let mut found = 0;
    ///     for _ in 0..steps {
    ///         found = network.add(word, 1, Wake::Nobody)?;
    ///     }
    ///     if rank == 1 && found == 40 { Err(Error::Epoch("late")) } else { Ok(()) }
    /// }));
    /// assert!((0..100).all(|seed| net.run_random(seed).is_ok()));
    /// assert!((0..100).filter(|&seed| net.run_pct(seed, 1, 50).is_err()).count() > 30);
    /// ```
    pub fn run_pct(&self, seed: u64, depth: usize, length: usize) -> Result<SimState<P::Local>, Failure> {
        let (mut state, mut random) = (self.start()?, Random(seed));
        // Places of change first, so that they depend on no later choice.
        let changes: Vec<usize> = (1..depth).map(|_| random.below(length.max(1))).collect();
        let (mut priorities, mut taken) = (HashMap::new(), Vec::new());
        while !state.is_done() {
            let steps: Vec<Step> = self.steps(&state).collect();
            for &step in &steps {
                // All initial priorities are above those of changes.
                priorities.entry(step).or_insert_with(|| depth + random.below(usize::MAX / 2));
            }
            let highest = |priorities: &HashMap<Step, usize>| steps.iter().copied().max_by_key(|step| priorities[step]);
            for change in (0..changes.len()).filter(|&change| changes[change] == taken.len()) {
                if let Some(step) = highest(&priorities) {
                    priorities.insert(step, change);
                }
            }
            let Some(step) = highest(&priorities) else { break };
            taken.push(step);
            if let Err(what) = self.apply(&mut state, step, &mut Event::of(step)) {
                return Err(self.failure(what, None, taken));
            }
        }
        Ok(state)
    }

    /// Takes a step, and writes what it did into `event`, also if it fails.
    pub(super) fn apply(&self, state: &mut SimState<P::Local>, step: Step, event: &mut Event) -> Result<(), String> {
        let had_halves = state.memory.has_halves();
        let touched = match step {
            Step::Rank(rank) => {
                // A phase that retries may return in its next run, which writes no event.
                let ran = self.run(state, rank, true, Some(&mut *event))?;
                event.returned |= ran.returned;
                ran.touched
            }
            Step::Deliver { from, to, queue } => self.deliver(state, (from, to, queue), event)?,
        };
        // An atomic that has begun blocks others on its word until it has ended.
        let torn = had_halves || state.memory.has_halves();
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
        self.program.reduce(state);
        self.check(state)
    }

    pub(super) fn failure(&self, what: String, seed: Option<u64>, steps: Vec<Step>) -> Failure {
        let trace = Box::new(self.trace(&steps, &what));
        Failure { what, seed, steps, cycle: None, trace }
    }

    /// The starvation by `cycle`, which begins after the steps `before`.
    pub(super) fn lasso(&self, before: &[Step], cycle: &[Step]) -> Failure {
        let mut state = self.start().ok();
        for &step in before {
            state = state.and_then(|state| self.step(&state, step).ok());
        }
        let what = state.and_then(|state| self.starved(&state, cycle)).unwrap_or_else(|| "starvation".into());
        let mut failure = self.failure(what, None, [before, cycle].concat());
        failure.cycle = Some(before.len());
        failure.trace.mark_cycle(before.len());
        failure
    }

    fn deliver(
        &self,
        state: &mut SimState<P::Local>,
        channel: Channel,
        event: &mut Event,
    ) -> Result<Option<At>, String> {
        let (from, to, _) = channel;
        event.phase = state.ranks[from].phase;
        event.call = self.program.call(from, event.phase);
        let Some(message) = state.channels.receive(channel) else {
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
        if matches!(state.ranks[from].blocked, Some(Blocked::Entry(_) | Blocked::Channel(..))) {
            event.returned = self.run(state, from, false, None)?.returned;
        }
        Ok(touched)
    }

    /// Runs the phase of `rank` for one more verb, or only to find out why it is blocked. Phases that end without a
    /// further verb are completed in passing. Writes what the verb did into `event`.
    fn run(
        &self,
        state: &mut SimState<P::Local>,
        rank: Rank,
        mut may_step: bool,
        mut event: Option<&mut Event>,
    ) -> Result<Ran, String> {
        let (mut ran, mut rounds, mut retries) = (Ran::default(), 0, 0);
        state.ranks[rank].begun |= may_step && self.first[rank];
        loop {
            let me = &mut state.ranks[rank];
            if me.phase == self.program.phases(rank) {
                if !self.program.repeats(rank) {
                    me.done = true;
                    return Ok(ran);
                }
                (me.phase, rounds) = (0, rounds + 1);
            }
            if rounds > 1 || retries > 1 {
                let what = if rounds > 1 { "repeats its phases" } else { "retries" };
                return Err(format!("rank {rank} {what} for ever without a verb"));
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
            let network = Replay { rank, shape: self.shape.clone(), run: RefCell::new(run) };
            let outcome = self.program.phase(rank, phase, &mut local, &network);
            let run = network.run.into_inner();
            (state.memory, state.channels, state.oracle) = (run.memory, run.channels, run.oracle);
            ran.touched = ran.touched.or(run.touched);
            let mut event = event.take();
            if let Some(event) = &mut event {
                (event.phase, event.call) = (phase, self.program.call(rank, phase));
                event.acted(run.acted);
                event.is_half = run.is_half;
            }
            if let Some(fault) = run.fault {
                return Err(fault);
            }
            if let (Some(Blocked::Word(at)), Some(call)) = (run.blocked, run.call) {
                call.may_wait(rank, at)?;
            }
            let me = &mut state.ranks[rank];
            me.blocked = run.blocked;
            if run.retried {
                (me.local, retries) = (local, retries + 1);
                continue;
            }
            // The phase stopped at a verb that is not executed yet. Its outcome is ignored: it may have gone on after
            // the error.
            if run.ended {
                me.record = run.record;
                return Ok(ran);
            }
            outcome.map_err(|error| format!("phase {phase} of rank {rank}: {error}"))?;
            me.phase += 1;
            me.local = local;
            ran.returned = true;
            if let Some(event) = event {
                event.returned = true;
            }
            if let Some(oracle) = &mut state.oracle {
                oracle.returned(rank)?;
            }
        }
    }

    fn check(&self, state: &SimState<P::Local>) -> Result<(), String> {
        self.program.check(state)?;
        if state.is_done() || self.steps(state).next().is_some() {
            return Ok(());
        }
        let mut what = String::from("deadlock:");
        for (rank, word) in (0..state.ranks.len()).filter_map(|rank| Some((rank, self.awaited(state, rank)?))) {
            what += &format!(" rank {rank} waits for {word};");
        }
        Err(what)
    }
}

/// The effect of a run of a phase.
#[derive(Default)]
struct Ran {
    /// The word that the verb changed, if the verb wakes.
    touched: Option<At>,
    /// A phase ended.
    returned: bool,
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
