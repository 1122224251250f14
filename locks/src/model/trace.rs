//! A schedule as people read it: what each step did, to which word, and what it left there.

mod dot;
mod svg;

use super::event::{Action, Event};
use super::fifo_oracle::Verb;
use super::names;
use super::program::Program;
use super::replay::Blocked;
use super::sim::{Failure, Sim, Step};
use super::state::SimState;
use crate::{At, LockLayout, Mode, Rank};
use std::collections::{BTreeSet, HashMap};
use std::fmt;

/// The steps of a schedule, and the violation at its end. `Display` prints them in columns; [`svg`](Self::svg) draws
/// them.
///
/// # Examples
/// Two ranks increment a word by a read and a put, and one increment is lost:
/// ```
/// use transom_locks::model::{sim, Program, Replay, Sim, SimState, Suspended};
/// use transom_locks::{At, Error, Network, Rank, Wake};
///
/// const SUM: At = At { rank: 0, word: 0 };
/// struct Sums;
/// impl Program for Sums {
///     type Local = ();
///     fn start(&self, _: Rank) {}
///     fn phases(&self, _: Rank) -> usize { 1 }
///     fn phase(&self, _: Rank, _: usize, _: &mut (), network: &Replay) -> Result<(), Error<Suspended>> {
///         let sum = network.add(SUM, 0, Wake::Nobody)?;
///         Ok(network.notify(SUM, sum + 1, Wake::Home)?)
///     }
///     fn check(&self, state: &SimState<()>) -> Result<(), String> {
///         if state.is_done() && state.word(SUM) != 2 { Err("an increment is lost".into()) } else { Ok(()) }
///     }
/// }
/// let net = Sim::new(2, 1, Sums);
/// let failure = net.explore(100).unwrap_err().violation().unwrap();
/// let printed = failure.to_string();
/// assert!(printed.contains("3     0  phase 0  put   word 0 of rank 0  0 -> 1"), "{printed}");
/// assert!(failure.trace.svg().starts_with("<svg"));
/// // A test repeats the schedule by its string.
/// assert_eq!(failure.schedule(), "0 1 0 1");
/// assert_eq!(net.replay("0 1 0 1").unwrap_err().what, "an increment is lost");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    ranks: usize,
    lines: Vec<Line>,
    what: String,
    /// Ranks that wait at the end, for which word, and the step that changed it last.
    waiting: Vec<(Rank, String)>,
    /// The first line of the cycle that repeats for ever.
    cycle: Option<usize>,
}

/// A step of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Line {
    event: Event,
    /// The call or the phase in which the rank is.
    call: String,
    verb: String,
    /// The word by name.
    word: String,
    /// The values of the word before and after, in words.
    effect: String,
    /// Consequences of the step: ranks woken, the call returned, a wait begun.
    then: String,
    /// The activity of each rank after the step.
    doing: Vec<Doing>,
    /// The mode in which each rank holds a lock after the step.
    held: Vec<Option<Mode>>,
}

/// The activity of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    /// The rank is between calls, or has ended.
    Idle,
    /// The rank is in a call.
    Calls,
    /// The rank waits for a word.
    Waits,
}

/// The most lines that `Display` prints: the last ones.
const PRINTED: usize = 60;

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let omitted = self.lines.len().saturating_sub(PRINTED);
        let lines = &self.lines[omitted..];
        let width = |of: fn(&Line) -> &String, least: &str| {
            lines.iter().map(|line| of(line).chars().count()).max().unwrap_or(0).max(least.len())
        };
        let [call, verb] = [width(|line| &line.call, "call"), width(|line| &line.verb, "verb")];
        let [word, effect] = [width(|line| &line.word, "word"), width(|line| &line.effect, "found -> left")];
        let titles = ("call", "verb", "word", "found -> left");
        if !lines.is_empty() {
            writeln!(f, "step  rank  {:call$}  {:verb$}  {:word$}  {}", titles.0, titles.1, titles.2, titles.3)?;
        }
        if omitted > 0 {
            writeln!(f, "({omitted} steps before)")?;
        }
        for (nth, line) in lines.iter().enumerate() {
            if self.cycle == Some(omitted + nth) {
                writeln!(f, "      from here on it repeats for ever:")?;
            }
            let Line { event, call: in_call, verb: what, word: at, effect: values, then, .. } = line;
            let row = format!(
                "{:>4}  {:>4}  {in_call:call$}  {what:verb$}  {at:word$}  {values:effect$}  {then}",
                omitted + nth + 1,
                event.rank
            );
            writeln!(f, "{}", row.trim_end())?;
        }
        for (rank, word) in &self.waiting {
            writeln!(f, "      {rank:>4}  waits for {word}")?;
        }
        write!(f, "      {}", self.what)
    }
}

impl Trace {
    /// The trace of a violation before the first step.
    pub(super) fn of(what: &str) -> Self {
        // A deadlock's description lists the waits, as the trace does.
        let what = if what.starts_with("deadlock:") { "deadlock" } else { what };
        Trace { what: what.into(), ..Trace::default() }
    }

    /// Marks the line with which a cycle begins. What is awaited at its end is so at its start.
    pub(super) fn mark_cycle(&mut self, first: usize) {
        self.cycle = Some(first);
    }

    /// Leaves the lock out of the names of words if all words belong to one.
    fn name_one_lock(&mut self, layout: LockLayout) {
        let actions = self.lines.iter().filter_map(|line| line.event.action);
        let targets: BTreeSet<Rank> = actions.filter_map(|action| Some(layout.field(action.at())?.0)).collect();
        let (Some(&target), 1) = (targets.first(), targets.len()) else { return };
        let texts = self.lines.iter_mut().flat_map(|line| [&mut line.word, &mut line.then]);
        for text in texts.chain(self.waiting.iter_mut().map(|(_, word)| word)) {
            *text = text.replace(&names::at_lock(target), "");
        }
    }
}

impl<P: Program> Sim<P> {
    /// Runs the schedule that a [`Failure`] prints, such as `"0x2 1 0>1"`: rank 0 takes two steps, rank 1 takes one,
    /// and the oldest message from rank 0 to rank 1 is delivered (`0>1/2` in queue 2). After a `*` the steps are a cycle
    /// that repeats for ever. The schedule may end early.
    ///
    /// # Errors
    /// The violation that the schedule leads to, the starvation by its cycle, or a step that is not possible.
    ///
    /// # Examples
    /// ```
    /// use transom_locks::model::{Call, Mix};
    /// use transom_locks::{At, Mode::Exclusive};
    /// let net = <Mix>::new([Call::both(0, Exclusive); 2]).sim();
    /// // Rank 0 takes the lock and releases it; rank 1 has taken it.
    /// assert_eq!(net.replay("0x3 1").unwrap().oracle().unwrap().holders(0), (1, Some(Exclusive)));
    /// assert!(net.replay("0 2").unwrap_err().what.contains("step 2"));
    /// ```
    pub fn replay(&self, schedule: &str) -> Result<SimState<P::Local>, Failure> {
        let mut state = self.start()?;
        let (mut taken, mut cycle) = (Vec::new(), None);
        for word in schedule.split_whitespace() {
            if word == "*" {
                cycle = Some((taken.len(), state.clone()));
                continue;
            }
            let Some((step, times)) = parse(word) else {
                return Err(self.failure(format!("{word:?} is no step; write 0, 0x3 or 0>1"), None, taken));
            };
            for _ in 0..times {
                if !self.steps(&state).any(|possible| possible == step) {
                    let what = format!("step {}, {}, is not possible", taken.len() + 1, print(step));
                    return Err(self.failure(what, None, taken));
                }
                taken.push(step);
                if let Err(what) = self.apply(&mut state, step, &mut Event::of(step)) {
                    return Err(self.failure(what, None, taken));
                }
            }
        }
        if let Some((first, start)) = cycle
            && self.starved(&start, &taken[first..]).is_some()
        {
            return Err(self.lasso(&taken[..first], &taken[first..]));
        }
        Ok(state)
    }

    /// The trace of a schedule that ends with the violation `what`.
    pub(super) fn trace(&self, steps: &[Step], what: &str) -> Trace {
        let mut trace = Trace::of(what);
        let (mut state, _) = self.begin();
        trace.ranks = state.ranks.len();
        let mut changed: HashMap<At, usize> = HashMap::new();
        for &step in steps {
            let mut event = Event::of(step);
            // The last step fails.
            let _ = self.apply(&mut state, step, &mut event);
            let mut line = self.line(&state, event);
            if let (Some(action), false) = (event.action, event.in_flight) {
                let is_read = !matches!(action, Action::Verb(Verb::Cas { .. } | Verb::Notify { .. }));
                match changed.get(&action.at()) {
                    Some(by) if is_read && event.found == event.left => line.effect += &format!(", left by step {by}"),
                    _ => {}
                }
                if event.found != event.left {
                    changed.insert(action.at(), trace.lines.len() + 1);
                }
            }
            trace.lines.push(line);
        }
        for (rank, me) in state.ranks.iter().enumerate() {
            if let (Some(word), Some(Blocked::Word(at))) = (self.awaited(&state, rank), me.blocked) {
                let since = changed.get(&at).map_or("which no step changed".into(), |by| format!("left by step {by}"));
                trace.waiting.push((rank, format!("{word}, {since}")));
            }
        }
        if let Some(layout) = self.program().locks() {
            trace.name_one_lock(layout);
        }
        trace
    }

    fn line(&self, state: &SimState<P::Local>, event: Event) -> Line {
        let program = self.program();
        let call = event.call.map_or_else(|| format!("phase {}", event.phase), |call| call.to_string());
        let (delivered, in_flight) = (matches!(event.step, Step::Deliver { .. }), event.in_flight);
        let (verb, word, effect) = match event.action {
            None => ("-".into(), String::new(), String::new()),
            Some(action) => {
                let value = |value| program.show(action.at(), value);
                let verb = match action {
                    Action::Wait(_) => "read".into(),
                    Action::Verb(Verb::Cas { expected, .. }) if expected != event.found => "cas FAILS".into(),
                    Action::Verb(Verb::Cas { .. }) => "cas".into(),
                    Action::Verb(Verb::Add { delta: 0, .. }) => "read".into(),
                    Action::Verb(Verb::Add { .. }) => "add".to_string(),
                    Action::Verb(Verb::Notify { .. }) => "put".into(),
                };
                let when = match (delivered, in_flight, event.is_half) {
                    (true, ..) => " arrives",
                    (_, true, true) => " begins",
                    (_, true, _) => " sent",
                    _ => "",
                };
                let effect = match action {
                    Action::Verb(Verb::Notify { value: sent, .. }) if in_flight => value(sent),
                    _ if in_flight => String::new(),
                    Action::Verb(Verb::Cas { expected, .. }) if expected != event.found => {
                        format!("{}; expected {}", value(event.found), value(expected))
                    }
                    _ if event.found == event.left => value(event.found),
                    _ => format!("{} -> {}", value(event.found), value(event.left)),
                };
                (verb + when, program.name(action.at()), effect)
            }
        };
        let mut then = Vec::new();
        let woken: Vec<_> = (0..128).filter(|rank| event.woken >> rank & 1 == 1).map(|rank| rank.to_string()).collect();
        if !woken.is_empty() {
            then.push(format!("wakes {}", woken.join(", ")));
        }
        if event.returned {
            then.push("returns".into());
        }
        if let Some(word) = self.awaited(state, event.rank).filter(|_| !delivered) {
            then.push(format!("waits for {word}"));
        }
        let doing = (0..state.ranks.len()).map(|rank| self.doing(state, rank)).collect();
        let held = (0..state.ranks.len()).map(|rank| state.oracle()?.held_by(rank)).collect();
        Line { event, call, verb, word, effect, then: then.join("; "), doing, held }
    }

    /// The word for which a rank waits, and its content.
    pub(super) fn awaited(&self, state: &SimState<P::Local>, rank: Rank) -> Option<String> {
        let Some(Blocked::Word(at)) = state.ranks[rank].blocked else { return None };
        Some(format!("{} ({})", self.program().name(at), self.program().show(at, state.word(at))))
    }

    fn doing(&self, state: &SimState<P::Local>, rank: Rank) -> Doing {
        let me = &state.ranks[rank];
        match me.blocked {
            _ if me.done => Doing::Idle,
            Some(Blocked::Word(_)) => Doing::Waits,
            _ if me.record.is_empty() => Doing::Idle,
            _ => Doing::Calls,
        }
    }
}

/// The steps as a string for [`Sim::replay`].
pub(super) fn schedule(steps: &[Step]) -> String {
    let same = steps.chunk_by(|one, other| one == other);
    let words: Vec<_> = same
        .map(|steps| match steps.len() {
            1 => print(steps[0]),
            times => format!("{}x{times}", print(steps[0])),
        })
        .collect();
    words.join(" ")
}

fn print(step: Step) -> String {
    match step {
        Step::Rank(rank) => rank.to_string(),
        Step::Deliver { from, to, queue: 0 } => format!("{from}>{to}"),
        Step::Deliver { from, to, queue } => format!("{from}>{to}/{queue}"),
    }
}

fn parse(word: &str) -> Option<(Step, usize)> {
    let (step, times) = match word.split_once('x') {
        Some((step, times)) => (step, times.parse().ok()?),
        None => (word, 1),
    };
    let step = match step.split_once('>') {
        Some((from, to)) => {
            let (to, queue) = to.split_once('/').unwrap_or((to, "0"));
            Step::Deliver { from: from.parse().ok()?, to: to.parse().ok()?, queue: queue.parse().ok()? }
        }
        None => Step::Rank(step.parse().ok()?),
    };
    Some((step, times))
}
