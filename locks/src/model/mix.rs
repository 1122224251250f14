//! Mixes of requests on the passive locks, the barrier and access groups, for both model networks.

#[cfg(feature = "loom")]
mod in_loom;
mod text;

use super::call::{Call, Handles};
use super::names;
use super::program::Program;
use super::replay::{Replay, Suspended};
use super::sim::Sim;
use super::state::SimState;
use crate::lock_word::Tickets;
use crate::{At, Error, Field, LockLayout, LockWord, Rank};

/// A mix of calls on the passive locks of all ranks, their barrier and their access groups: one row per rank, checked by
/// a [`FifoOracle`](super::FifoOracle). At the end the locks must be idle and their nodes empty. `C` is the width of the
/// reader counts.
///
/// [`sim`](Self::sim) runs the mix on a simulated network, where verbs are sequentially consistent. With the feature
/// `loom`, `loom` runs it on loom threads, under the C11 memory model.
///
/// # Examples
/// A writer among readers, under every schedule:
/// ```
/// use transom_locks::model::{Call, Mix};
/// use transom_locks::Mode::{Exclusive, Shared};
///
/// let rows = [Call::both(0, Shared), Call::both(0, Exclusive), Call::both(0, Shared)];
/// let states = <Mix>::new(rows).sim().explore(10_000).unwrap();
/// assert!(states > 300, "{states}");
/// ```
#[derive(Clone, Debug)]
pub struct Mix<const C: u32 = 16> {
    rows: Vec<Vec<Call>>,
    /// The ranks that repeat their rows.
    endless: Vec<bool>,
}

impl<const C: u32> Mix<C> {
    /// Creates a mix from one row of calls per rank.
    pub fn new<R: Into<Vec<Call>>>(rows: impl IntoIterator<Item = R>) -> Self {
        let rows: Vec<_> = rows.into_iter().map(Into::into).collect();
        Mix { endless: vec![false; rows.len()], rows }
    }

    /// The same mix with rows that each rank repeats for ever. Use narrow counts, which wrap soon, and
    /// [`Search::starvation`](super::Search::starvation): a violation is then also a call that never returns although
    /// the schedule is fair. Repeat calls on locks only: the counts of barriers and epochs grow for ever, and so does the
    /// number of states. In loom each row runs once.
    ///
    /// # Examples
    /// Readers that come and go for ever do not starve a writer.
    /// ```
    /// use transom_locks::model::{Call, Mix, Search};
    /// use transom_locks::Mode::{Exclusive, Shared};
    /// let net = Mix::<3>::new([Call::both(0, Exclusive), Call::both(0, Shared)]).endless().sim();
    /// let search = Search { starvation: true, ..Search::default() };
    /// net.explore_with(&search, (), |_, _| Ok(())).unwrap();
    /// ```
    pub fn endless(mut self) -> Self {
        self.endless.fill(true);
        self
    }

    /// Returns whether any rank repeats its row for ever.
    pub fn is_endless(&self) -> bool {
        self.endless.contains(&true)
    }

    /// Returns whether the mix has calls on locks only.
    pub fn is_on_locks(&self) -> bool {
        self.rows.iter().flatten().all(|call| call.is_on_locks())
    }

    /// The number of ranks.
    pub fn ranks(&self) -> usize {
        self.rows.len()
    }

    /// Creates a simulated network that runs the mix.
    ///
    /// # Panics
    /// If a mix with narrow counts has more ranks than its tickets, of 3 bits, can tell apart.
    pub fn sim(self) -> Sim<Self> {
        Self::check_ranks(self.rows.len()).unwrap_or_else(|wrong| panic!("{wrong}"));
        let ranks = self.rows.len();
        Sim::new(ranks, Handles::<C>::words(ranks), self)
    }

    /// Tells that a mix has more ranks than its tickets can tell apart.
    fn check_ranks(ranks: usize) -> Result<(), String> {
        match Tickets::<C>::LAST as usize {
            most if ranks <= most => Ok(()),
            most => Err(format!(
                "a mix has {ranks} ranks, but counts of {C} bits come with tickets for at most {most}; use wide counts"
            )),
        }
    }

    /// Checks the nonzero words after all calls have returned and every lock was released. The words of the barrier and
    /// of access groups hold counts that only grow.
    fn check_end(&self, nonzero: impl IntoIterator<Item = (At, u64)>) -> Result<(), String> {
        let ranks = self.rows.len();
        let layout = LockLayout::new(0, ranks);
        nonzero.into_iter().try_for_each(|(at, value)| match layout.field(at) {
            Some((_, Field::Word)) if LockWord::<C>(value).is_idle() => Ok(()),
            Some((_, Field::Link)) => Ok(()),
            Some((_, Field::Tickets)) if Tickets::<C>(value).next() == Tickets::<C>(value).turn() => Ok(()),
            Some((target, field)) => {
                Err(format!("at the end {field:?} at rank {}, lock of rank {target}: {value:#x}", at.rank))
            }
            None if at.word >= LockLayout::words(ranks) => Ok(()),
            None => Err(format!("{at:?} is no word of a lock, and holds {value:#x}")),
        })
    }
}

impl<const C: u32> Program for Mix<C> {
    type Local = Handles<C>;

    fn start(&self, _: Rank) -> Self::Local {
        Handles::new(self.rows.len(), 0)
    }

    fn phases(&self, rank: Rank) -> usize {
        self.rows[rank].len()
    }

    fn phase(
        &self,
        rank: Rank,
        phase: usize,
        handles: &mut Self::Local,
        network: &Replay,
    ) -> Result<(), Error<Suspended>> {
        self.rows[rank][phase].run(handles, network)
    }

    fn locks(&self) -> Option<LockLayout> {
        Some(LockLayout::new(0, self.rows.len()))
    }

    fn call(&self, rank: Rank, phase: usize) -> Option<Call> {
        self.rows[rank].get(phase).copied()
    }

    fn name(&self, at: At) -> String {
        names::name_in_mix(self.rows.len(), at)
    }

    fn show(&self, at: At, value: u64) -> String {
        names::value::<C>(Program::locks(self), at, value)
    }

    /// The last rank before this one with the same row. Rank 0 differs from all others where the lock is its own, and
    /// with several locks, a barrier or epochs no two ranks are interchangeable.
    fn alike(&self, rank: Rank) -> Option<Rank> {
        let one_lock = self.rows.iter().flatten().all(|call| call.target() == Some(0));
        let is_alike = |other: Rank| self.rows[other] == self.rows[rank] && self.endless[other] == self.endless[rank];
        (1..rank).rev().find(|&other| one_lock && is_alike(other))
    }

    fn repeats(&self, rank: Rank) -> bool {
        self.endless[rank]
    }

    fn check(&self, state: &SimState<Self::Local>) -> Result<(), String> {
        if state.is_done() { self.check_end(state.nonzero()) } else { Ok(()) }
    }
}
