//! The programs that the ranks of a simulated network run.

use super::call::Call;
use super::names;
use super::replay::{Replay, Suspended};
use super::state::SimState;
use crate::{At, Error, LockLayout, Rank};
use std::fmt::Debug;
use std::hash::Hash;
use std::marker::PhantomData;

/// A program for the ranks of a simulated network: each rank runs a row of phases, and keeps `Local` from one phase to
/// the next.
///
/// The simulator runs a phase many times from its beginning. A phase must therefore do the same whenever its verbs
/// return the same, and change nothing but `local`.
///
/// # Examples
/// Taking turns, checked for every schedule: at most one rank is in its second phase.
/// ```
/// use transom_locks::model::{sim, Program, Replay, Sim, SimState, Suspended};
/// use transom_locks::{At, Awaited, Error, Rank, Network, Wake};
///
/// struct Turns;
/// impl Program for Turns {
///     type Local = ();
///     fn start(&self, _: Rank) {}
///     fn phases(&self, _: Rank) -> usize { 2 }
///     fn phase(&self, rank: Rank, phase: usize, _: &mut (), network: &Replay) -> Result<(), Error<Suspended>> {
///         match phase {
///             0 if rank > 0 => network.wait(0, Awaited::Rank(rank - 1), |turn| turn == 1).map(drop)?,
///             1 if rank + 1 < network.ranks() => network.notify(At { rank: rank + 1, word: 0 }, 1, Wake::Home)?,
///             _ => {}
///         }
///         Ok(())
///     }
///     fn check(&self, state: &SimState<()>) -> Result<(), String> {
///         let inside = (0..3).filter(|&rank| state.phase(rank) == 1).count();
///         if inside > 1 { Err("two ranks have the turn".into()) } else { Ok(()) }
///     }
/// }
/// assert_eq!(Sim::new(3, 1, Turns).explore(100).unwrap(), 5);
/// ```
pub trait Program {
    /// A rank's state between phases, such as its locks.
    type Local: Clone + Debug + Eq + Hash;

    /// The initial state of `rank`.
    fn start(&self, rank: Rank) -> Self::Local;

    /// The number of phases of `rank`.
    fn phases(&self, rank: Rank) -> usize;

    /// Runs one phase of `rank`.
    ///
    /// # Errors
    /// The errors of verbs, which the simulator expects; any other error fails the check.
    fn phase(
        &self,
        rank: Rank,
        phase: usize,
        local: &mut Self::Local,
        network: &Replay,
    ) -> Result<(), Error<Suspended>>;

    /// The layout of the locks that a [`FifoOracle`](super::FifoOracle) checks, if any.
    fn locks(&self) -> Option<LockLayout> {
        None
    }

    /// The call on a lock that a phase makes, for the oracle.
    fn call(&self, _rank: Rank, _phase: usize) -> Option<Call> {
        None
    }

    /// A rank before `rank` that could swap names with it: they run the same phases, and no other rank tells them
    /// apart. An exploration then lets that rank begin first. `None` if there is none; the default.
    fn alike(&self, _rank: Rank) -> Option<Rank> {
        None
    }

    /// Returns whether `rank` begins again with its first phase after its last one, for ever. No by default.
    fn repeats(&self, _rank: Rank) -> bool {
        false
    }

    /// Replaces a state, after each step, by one from which every schedule goes on alike. A program that runs for ever
    /// serves itself of it to keep counters small ([`SimState::set`]); no rank may be waiting for a word that it changes.
    fn reduce(&self, _state: &mut SimState<Self::Local>) {}

    /// Writes initial memory contents by `write`; all other words are 0.
    fn before(&self, _write: &mut dyn FnMut(At, u64)) {}

    /// The name of a word in a trace. Words of locks have names; others have numbers.
    fn name(&self, at: At) -> String {
        names::name(self.locks(), at)
    }

    /// The content of a word in a trace.
    fn show(&self, at: At, value: u64) -> String {
        names::value::<16>(self.locks(), at, value)
    }

    /// Checks an invariant of every state.
    ///
    /// # Errors
    /// A description of the violation.
    fn check(&self, _state: &SimState<Self::Local>) -> Result<(), String> {
        Ok(())
    }
}

/// A program of one phase, the same for every rank; made by [`once`].
///
/// # Examples
/// ```
/// use transom_locks::model::{sim, Sim, Suspended};
/// let nothing = sim::once(|_, _| Ok::<(), Suspended>(()));
/// Sim::new(4, 0, nothing).run_random(1).unwrap();
/// ```
#[derive(Debug)]
pub struct Once<F, E> {
    phase: F,
    error: PhantomData<fn() -> E>,
}

/// Creates a program of one phase, the same for every rank.
///
/// # Examples
/// ```
/// use transom_locks::model::{sim, Sim};
/// use transom_locks::Barrier;
/// let net = Sim::new(4, Barrier::words(4), sim::once(|_, network| Barrier::new(4, 0).wait(network)));
/// net.run_random(1).unwrap();
/// ```
pub fn once<F, E>(phase: F) -> Once<F, E>
where
    F: Fn(Rank, &Replay) -> Result<(), E>,
    E: Into<Error<Suspended>>,
{
    Once { phase, error: PhantomData }
}

impl<F, E> Program for Once<F, E>
where
    F: Fn(Rank, &Replay) -> Result<(), E>,
    E: Into<Error<Suspended>>,
{
    type Local = ();

    fn start(&self, _: Rank) {}

    fn phases(&self, _: Rank) -> usize {
        1
    }

    fn phase(&self, rank: Rank, _: usize, _: &mut (), network: &Replay) -> Result<(), Error<Suspended>> {
        (self.phase)(rank, network).map_err(Into::into)
    }
}
