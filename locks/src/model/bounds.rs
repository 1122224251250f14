//! The bounds of each kind of call over every schedule: how long it takes to a place in the queue, how often it is
//! overtaken before, and how many operations it costs.

use super::call::Call;
use super::event::Action;
use super::explore::{Explored, Search, Stopped};
use super::fifo_oracle::Verb;
use super::program::Program;
use super::sim::{Sim, Step};
use std::fmt;

/// The bounds of the calls of one kind, over every schedule that was explored.
///
/// # Examples
/// ```
/// use transom_locks::model::{Call, Mix, Search};
/// use transom_locks::Mode::Exclusive;
/// let net = <Mix>::new([Call::both(0, Exclusive); 2]).sim();
/// let (_, bounds) = net.bounds(&Search::default()).unwrap();
/// let acquire = bounds.iter().find(|bound| bound.call == "acquire 0 exclusive").unwrap();
/// // The first guess is stale where the other rank holds the lock, and the second where it has released it since. The
/// // other rank makes one request only, so it cannot overtake.
/// assert_eq!((acquire.until_placed, acquire.overtaken), (Some(3), 0));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bound {
    /// The kind of call, as a trace names it.
    pub call: String,
    /// The most verbs until the request has its place in the queue, waits included; `None` for calls that take none.
    pub until_placed: Option<u32>,
    /// The most places at the same lock that requests of other ranks took between the first verb of this request and its own place.
    pub overtaken: u32,
    /// The most operations on the network: compare-and-swaps, additions, and puts to other ranks.
    pub operations: u32,
}

/// Prints the columns of a table row in Markdown.
impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Bound { call, until_placed, overtaken, operations } = self;
        match until_placed {
            Some(verbs) => write!(f, "| {call} | {verbs} | {overtaken} | {operations} |"),
            None => write!(f, "| {call} | | | {operations} |"),
        }
    }
}

/// The progress of one rank's call.
#[derive(Clone, Copy, Default, Hash)]
struct Progress {
    verbs: u32,
    operations: u32,
    overtaken: u32,
    placed: bool,
}

impl<P: Program> Sim<P> {
    /// Visits every state, and returns the bounds of each kind of call on locks. The counts of places taken by others
    /// are part of the states, so that there are more of these than in [`explore`](Self::explore). No request is
    /// overtaken after its place by one in conflict: the oracle checks each grant.
    ///
    /// # Errors
    /// The errors of [`explore_with`](Self::explore_with).
    pub fn bounds(&self, search: &Search) -> Result<(Explored, Vec<Bound>), Stopped> {
        let ranks = self.start()?.ranks.len();
        let mut bounds: Vec<(Call, Bound)> = Vec::new();
        let start = vec![Progress::default(); ranks];
        let explored = self.explore_with(search, start, |calls: &mut Vec<Progress>, step| {
            let Some(call) = step.event.call else { return Ok(()) };
            let rank = step.event.rank;
            let place = |state: &super::state::SimState<P::Local>| {
                Some(state.oracle()?.place_of(rank, call.target()?).is_some())
            };
            if let (Some(action), Step::Rank(_), false) = (step.event.action, step.event.step, step.event.is_half) {
                calls[rank].verbs += 1;
                let is_operation = match action {
                    Action::Wait(_) => false,
                    Action::Verb(Verb::Notify { at, .. }) => at.rank != rank,
                    Action::Verb(_) => true,
                };
                calls[rank].operations += u32::from(is_operation);
            }
            let mut bound = Bound { operations: calls[rank].operations, ..Bound::default() };
            if asks(call) && place(step.before) == Some(false) && place(step.after) == Some(true) {
                calls[rank].placed = true;
                (bound.until_placed, bound.overtaken) = (Some(calls[rank].verbs), calls[rank].overtaken);
                for (other, progress) in calls.iter_mut().enumerate() {
                    let waits = other != rank && progress.verbs > 0 && !progress.placed;
                    let rivals = |of: Call| asks(of) && of.target() == call.target();
                    progress.overtaken += u32::from(waits && step.after.call(self, other).is_some_and(rivals));
                }
            }
            let nth = bounds.iter().position(|(known, _)| *known == call).unwrap_or_else(|| {
                bounds.push((call, Bound { call: call.to_string(), ..Bound::default() }));
                bounds.len() - 1
            });
            bounds[nth].1.raise(&bound);
            if step.event.returned {
                calls[rank] = Progress::default();
            }
            Ok(())
        })?;
        bounds.sort_by(|(_, one), (_, other)| one.call.cmp(&other.call));
        Ok((explored, bounds.into_iter().map(|(_, bound)| bound).collect()))
    }
}

impl Bound {
    fn raise(&mut self, other: &Bound) {
        self.until_placed = self.until_placed.max(other.until_placed);
        self.overtaken = self.overtaken.max(other.overtaken);
        self.operations = self.operations.max(other.operations);
    }
}

/// Returns whether the call makes a request.
fn asks(call: Call) -> bool {
    matches!(call, Call::Acquire(..) | Call::AcquireUntil(..) | Call::TryAcquire(..))
}
