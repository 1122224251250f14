//! Visits every state of a simulated network, breadth first. Keeps a fingerprint of each state, and whole states only
//! while their steps are still to be taken.

use super::event::Event;
use super::fingerprint::{Fingerprints, fingerprint};
use super::program::Program;
use super::sim::{Failure, Sim, Step};
use super::starvation::Graph;
use super::state::SimState;
use crate::Rank;
use std::collections::VecDeque;
use std::fmt;
use std::hash::Hash;

/// The bounds of an exploration, and what it reports on the way. The [`Default`] has no bounds.
///
/// # Examples
/// ```
/// use transom_locks::model::{Call, Mix, Search};
/// use transom_locks::Mode::Exclusive;
/// let writers = <Mix>::new([Call::both(0, Exclusive); 3]).sim();
/// let reduced = writers.explore_with(&Search::default(), (), |_, _| Ok(())).unwrap();
/// let search = Search { symmetry: false, ..Search::default() };
/// let whole = writers.explore_with(&search, (), |_, _| Ok(())).unwrap();
/// assert!(reduced.states < whole.states); // ranks 1 and 2 make the same calls
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Search {
    /// The most states to visit. The explorer stops at 134,217,727 states in any case.
    pub max_states: usize,
    /// The most bytes to use, as far as the explorer can estimate them.
    pub max_bytes: usize,
    /// True if schedules that differ only in the names of [alike](Program::alike) ranks count as one. Turn it off for a
    /// monitor that tells such ranks apart.
    pub symmetry: bool,
    /// True if schedules are counted, which takes 8 bytes for each step.
    pub count_schedules: bool,
    /// True if the search also finds starvation: a cycle that can repeat for ever while a rank never returns from its
    /// phase, although each rank and each message that always can take its step takes it (weak fairness). It takes 16
    /// bytes for each state and 8 for each step, and concerns the first 64 ranks.
    pub starvation: bool,
    /// Called after every 100,000 states.
    pub progress: Option<fn(&Explored)>,
}

impl Default for Search {
    fn default() -> Self {
        let (max_states, max_bytes, count_schedules) = (usize::MAX, usize::MAX, false);
        Search { max_states, max_bytes, symmetry: true, count_schedules, starvation: false, progress: None }
    }
}

/// The extent of an exploration.
///
/// # Examples
/// ```
/// use transom_locks::model::{sim, Search, Sim};
/// use transom_locks::{At, Network, Wake};
/// let word = At { rank: 0, word: 0 };
/// let net = Sim::new(2, 1, sim::once(move |_, network| network.add(word, 1, Wake::Home).map(drop)));
/// let explored = net.explore_with(&Search::default(), (), |_, _| Ok(())).unwrap();
/// assert_eq!((explored.states, explored.steps, explored.depth), (4, 4, 2));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Explored {
    /// The states visited.
    pub states: usize,
    /// The steps taken from them.
    pub steps: usize,
    /// The length of the longest of the shortest schedules to each state.
    pub depth: usize,
    /// The states whose steps are still to be taken; 0 if every state was visited.
    pub pending: usize,
    /// The most bytes used at one time, estimated.
    pub bytes: usize,
    /// The schedules from the start to an end, if they were counted and none is endless.
    pub schedules: Option<u128>,
}

impl fmt::Display for Explored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Explored { states, steps, depth, pending, bytes, schedules: _ } = self;
        write!(f, "{states} states, {steps} steps, depth {depth}, ")?;
        write!(f, "{pending} states pending, {:.0} MiB", *bytes as f64 / (1 << 20) as f64)
    }
}

/// The reason why an exploration did not visit every state.
///
/// # Examples
/// ```
/// use transom_locks::model::{Call, Mix, Stopped};
/// use transom_locks::Mode::Exclusive;
/// let net = <Mix>::new([Call::both(0, Exclusive); 2]).sim();
/// // No violation: the bound was too low.
/// let stopped = net.explore(5).unwrap_err();
/// assert!(matches!(stopped, Stopped::Bound(explored) if explored.states == 6), "{stopped}");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// A violation, with a shortest schedule that leads to one.
    Violation(Box<Failure>),
    /// A bound of the [`Search`] was exceeded. The states visited so far have no violation.
    Bound(Explored),
}

impl Stopped {
    /// The violation, if there is one.
    ///
    /// # Examples
    /// ```
    /// use transom_locks::model::{sim, Sim};
    /// use transom_locks::{Awaited, Network};
    /// let net = Sim::new(1, 1, sim::once(|_, network| network.wait(0, Awaited::Anyone, |word| word > 0).map(drop)));
    /// assert!(net.explore(10).unwrap_err().violation().unwrap().what.starts_with("deadlock"));
    /// ```
    pub fn violation(self) -> Option<Failure> {
        match self {
            Stopped::Violation(failure) => Some(*failure),
            Stopped::Bound(_) => None,
        }
    }
}

impl From<Failure> for Stopped {
    fn from(failure: Failure) -> Self {
        Stopped::Violation(Box::new(failure))
    }
}

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stopped::Violation(failure) => failure.fmt(f),
            Stopped::Bound(explored) if explored.states > Paths::MOST => {
                write!(f, "stopped at the explorer's own bound of {} states, ", Paths::MOST)?;
                write!(f, "without a violation so far; use fewer ranks or requests, or run_pct: {explored}")
            }
            Stopped::Bound(explored) => write!(f, "stopped at a bound, without a violation so far: {explored}"),
        }
    }
}

impl std::error::Error for Stopped {}

/// A step as a monitor sees it ([`Sim::explore_with`]).
///
/// # Examples
/// ```
/// use transom_locks::model::{sim, Search, Sim};
/// use transom_locks::{At, Network, Wake};
/// let word = At { rank: 0, word: 0 };
/// let net = Sim::new(2, 1, sim::once(move |_, network| network.add(word, 1, Wake::Home).map(drop)));
/// let grows = |_: &mut (), step: &sim::Taken<'_, ()>| match step.after.word(word) > step.before.word(word) {
///     true => Ok(()),
///     false => Err(format!("rank {} did not count", step.event.rank)),
/// };
/// net.explore_with(&Search::default(), (), grows).unwrap();
/// ```
#[derive(Debug)]
pub struct Taken<'a, L> {
    /// The verb that the step executed, and its effect.
    pub event: &'a Event,
    /// The state before the step.
    pub before: &'a SimState<L>,
    /// The state after the step.
    pub after: &'a SimState<L>,
}

impl<P: Program> Sim<P> {
    /// Visits every state that any schedule reaches, and returns their number. Schedules that differ only in the names
    /// of [alike](Program::alike) ranks count as one.
    ///
    /// # Errors
    /// The first violation, with a shortest schedule; or [`Stopped::Bound`] if there are more than `most` states.
    pub fn explore(&self, most: usize) -> Result<usize, Stopped> {
        let search = Search { max_states: most, ..Search::default() };
        Ok(self.explore_with(&search, (), |(), _| Ok(()))?.states)
    }

    /// Visits every state that any schedule reaches, breadth first, with a `monitor` of steps. The monitor checks each
    /// step, and may change its memory `M`, which is `start` at first and part of each state. It serves for properties
    /// of schedules: what a rank may do only after another.
    ///
    /// The explorer keeps about 40 bytes for each visited state: its fingerprint of 128 bits, and the step that led to it. It
    /// keeps whole states only while their steps are still to be taken. Two different states have the same fingerprint
    /// with a probability of 1 to 10^24 for 10^7 states; the explorer would then miss one.
    ///
    /// # Errors
    /// The first violation, with a shortest schedule, or [`Stopped::Bound`] if a bound of the search was exceeded. A
    /// search for starvation reports it after the last state.
    ///
    /// # Examples
    /// The most times that a writer is overtaken from its first verb to its place in the queue:
    /// ```
    /// use transom_locks::model::{Action, Call, Mix, Search, Verb};
    /// use transom_locks::{At, Mode::{Exclusive, Shared}};
    ///
    /// let word = At { rank: 0, word: 0 };
    /// let net = <Mix>::new([Call::both(0, Exclusive), Call::both(0, Shared), Call::both(0, Shared)]).sim();
    /// let mut most = 0;
    /// net.explore_with(&Search::default(), None, |overtaken: &mut Option<u32>, step| {
    ///     match (step.event.rank, step.event.action) {
    ///         (0, Some(Action::Verb(Verb::Cas { at, expected, .. }))) if at == word && overtaken.is_none() => {
    ///             *overtaken = (step.event.found != expected).then_some(0); // else it has its place at once
    ///         }
    ///         (1.., Some(Action::Verb(Verb::Add { at, .. }))) if at == word && step.event.call == Some(Call::Acquire(0, Shared)) => {
    ///             *overtaken = overtaken.map(|times| times + 1);
    ///         }
    ///         _ => {}
    ///     }
    ///     most = most.max(overtaken.unwrap_or(0));
    ///     Ok(())
    /// })
    /// .unwrap();
    /// // The first reader made the writer's guess stale, the second one overtook it.
    /// assert_eq!(most, 1);
    /// ```
    pub fn explore_with<M: Clone + Hash>(
        &self,
        search: &Search,
        start: M,
        mut monitor: impl FnMut(&mut M, &Taken<'_, P::Local>) -> Result<(), String>,
    ) -> Result<Explored, Stopped> {
        let first = self.start()?;
        let after: Vec<Option<Rank>> =
            (0..first.ranks.len()).map(|rank| self.program().alike(rank).filter(|_| search.symmetry)).collect();
        let mut seen = Fingerprints::default();
        let mut paths = Paths::default();
        let (print, size) = fingerprint(&(&first, &start));
        seen.insert(print, 0);
        let mut queue = VecDeque::from([(paths.add(0, Step::Rank(0)), first, start)]);
        let mut explored = Explored { states: 1, pending: 1, ..Explored::default() };
        let (mut todo, mut edges, mut last_of_level) = (Vec::new(), Vec::new(), 0);
        let mut graph = search.starvation.then(Graph::default);
        let whole = size + size_of::<(SimState<P::Local>, M)>();
        while let Some((number, state, memory)) = queue.pop_front() {
            todo.clear();
            if let Some(graph) = &mut graph {
                graph.add_state(&state);
            }
            todo.extend(self.steps(&state).filter(|step| match *step {
                Step::Rank(rank) => after[rank].is_none_or(|first| state.ranks[first].begun),
                Step::Deliver { .. } => true,
            }));
            for &step in &todo {
                explored.steps += 1;
                let (mut next, mut memory, mut event) = (state.clone(), memory.clone(), Event::of(step));
                let taken = self.apply(&mut next, step, &mut event);
                if let Err(what) =
                    taken.and_then(|()| monitor(&mut memory, &Taken { event: &event, before: &state, after: &next }))
                {
                    let mut steps = paths.to(number);
                    steps.push(step);
                    return Err(self.failure(what, None, steps).into());
                }
                let (print, _) = fingerprint(&(&next, &memory));
                let (found, is_new) = seen.insert(print, paths.last() + 1);
                if search.count_schedules {
                    edges.push((number, found));
                }
                if let Some(graph) = &mut graph {
                    graph.add_step(found, step, event.returned);
                }
                if !is_new {
                    continue;
                }
                queue.push_back((paths.add(number, step), next, memory));
                explored.states += 1;
                explored.pending = queue.len();
                explored.bytes = explored.bytes.max(
                    seen.bytes()
                        + paths.bytes()
                        + edges.capacity() * 8
                        + queue.len() * whole
                        + graph.as_ref().map_or(0, Graph::bytes),
                );
                if explored.states > search.max_states.min(Paths::MOST) || explored.bytes > search.max_bytes {
                    return Err(Stopped::Bound(explored));
                }
                if let (0, Some(progress)) = (explored.states % 100_000, search.progress) {
                    progress(&explored);
                }
            }
            if number == last_of_level && !queue.is_empty() {
                explored.depth += 1;
                last_of_level = paths.last();
            }
        }
        explored.pending = 0;
        if let Some((state, cycle)) = graph.and_then(|graph| graph.starvation(after.len())) {
            return Err(self.lasso(&paths.to(state), &cycle).into());
        }
        explored.schedules = search.count_schedules.then(|| schedules(explored.states, edges)).flatten();
        Ok(explored)
    }
}

/// The number of paths from state 0 to the states without a step; `None` if a schedule returns to a state.
fn schedules(states: usize, mut edges: Vec<(u32, u32)>) -> Option<u128> {
    edges.sort_unstable();
    let (mut before, mut paths) = (vec![0u32; states], vec![0u128; states]);
    edges.iter().for_each(|&(_, to)| before[to as usize] += 1);
    paths[0] = 1;
    let (mut ready, mut ends, mut visited) = (vec![0u32], 0u128, 0);
    while let Some(state) = ready.pop() {
        visited += 1;
        let first = edges.partition_point(|&(from, _)| from < state);
        let steps = edges[first..].iter().take_while(|&&(from, _)| from == state);
        let mut is_end = true;
        for &(_, to) in steps {
            is_end = false;
            let to = to as usize;
            paths[to] = paths[to].saturating_add(paths[state as usize]);
            before[to] -= 1;
            if before[to] == 0 {
                ready.push(to as u32);
            }
        }
        ends = ends.saturating_add(if is_end { paths[state as usize] } else { 0 });
    }
    (visited == states).then_some(ends)
}

/// The number of a state, with the kind of a step and its queue above; and the ranks of the step.
pub(super) type Packed = (u32, u16, u16);

pub(super) fn pack(number: u32, step: Step) -> Packed {
    match step {
        Step::Rank(rank) => (number, rank as u16, 0),
        Step::Deliver { from, to, queue } => (number | 1 << 31 | (queue as u32) << 27, from as u16, to as u16),
    }
}

pub(super) fn unpack((number, from, to): Packed) -> (u32, Step) {
    let (from, to, queue) = (from.into(), to.into(), (number >> 27 & 15) as usize);
    let step = if number >> 31 == 0 { Step::Rank(from) } else { Step::Deliver { from, to, queue } };
    (number & Paths::MOST as u32, step)
}

/// The step that first led to each state, and the state from which it was taken.
#[derive(Default)]
struct Paths(Vec<Packed>);

impl Paths {
    /// The most states: the number of a state has 27 bits.
    const MOST: usize = (1 << 27) - 1;

    /// Adds a state that `step` reaches from the state `from`; returns its number.
    fn add(&mut self, from: u32, step: Step) -> u32 {
        self.0.push(pack(from, step));
        self.last()
    }

    fn last(&self) -> u32 {
        self.0.len() as u32 - 1
    }

    /// The steps from the start to the state `number`.
    fn to(&self, mut number: u32) -> Vec<Step> {
        let mut steps = Vec::new();
        while number != 0 {
            let (before, step) = unpack(self.0[number as usize]);
            steps.push(step);
            number = before;
        }
        steps.reverse();
        steps
    }

    fn bytes(&self) -> usize {
        self.0.capacity() * size_of::<Packed>()
    }
}
