//! The effect of a step of a simulated network.

use super::call::Call;
use super::fifo_oracle::Verb;
use super::sim::Step;
use crate::{At, Rank};

/// The action of a rank in a step.
///
/// # Examples
/// ```
/// use transom_locks::model::{Action, Verb};
/// use transom_locks::At;
/// let at = At { rank: 1, word: 0 };
/// assert_eq!(Action::Verb(Verb::Add { at, delta: 1 }).at(), Action::Wait(at).at());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Executed a verb.
    Verb(Verb),
    /// Ended a wait for this word, or read it.
    Wait(At),
}

impl Action {
    /// The word concerned.
    pub fn at(self) -> At {
        match self {
            Action::Verb(verb) => verb.at(),
            Action::Wait(at) => at,
        }
    }
}

/// A step and its effect.
///
/// # Examples
/// ```
/// use transom_locks::model::{sim, Action, Search, Sim, Verb};
/// use transom_locks::{At, Network, Wake};
/// let at = At { rank: 0, word: 0 };
/// let net = Sim::new(1, 1, sim::once(move |_, network| network.add(at, 5, Wake::Home).map(drop)));
/// net.explore_with(&Search::default(), (), |_, step| {
///     assert_eq!(step.event.action, Some(Action::Verb(Verb::Add { at, delta: 5 })));
///     assert_eq!((step.event.found, step.event.left, step.event.returned), (0, 5, true));
///     Ok(())
/// })
/// .unwrap();
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Event {
    /// The step.
    pub step: Step,
    /// The rank that executed the verb; for a delivery, the sender.
    pub rank: Rank,
    /// The phase of that rank before the step.
    pub phase: usize,
    /// The call on a lock that this phase makes, if any.
    pub call: Option<Call>,
    /// The action executed or delivered; `None` if the step failed before.
    pub action: Option<Action>,
    /// The value of the word before.
    pub found: u64,
    /// The value of the word after.
    pub left: u64,
    /// True if the verb was sent and has not taken effect: a later step delivers it.
    pub in_flight: bool,
    /// True if the step was the first of the two of an atomic ([`Deliver::is_torn`](super::Deliver::is_torn)).
    pub is_half: bool,
    /// True if the phase ended with this step.
    pub returned: bool,
    /// The ranks whose waits this step ended, one bit each. Ranks from 128 on are left out.
    pub woken: u128,
}

impl Event {
    pub(super) fn of(step: Step) -> Self {
        let rank = match step {
            Step::Rank(rank) | Step::Deliver { from: rank, .. } => rank,
        };
        let (phase, call, action, found, left, woken) = (0, None, None, 0, 0, 0);
        Event { step, rank, phase, call, action, found, left, in_flight: false, is_half: false, returned: false, woken }
    }

    pub(super) fn acted(&mut self, acted: Option<(Action, Option<(u64, u64)>)>) {
        let Some((action, effect)) = acted else { return };
        self.action = Some(action);
        self.in_flight = effect.is_none();
        (self.found, self.left) = effect.unwrap_or_default();
    }
}
