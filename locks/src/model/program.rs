//! What the ranks of a simulated network run.

use super::book::Call;
use super::replay::{Replay, Suspended};
use super::sim::{Sim, State};
use crate::target_lock::Field;
use crate::{At, Error, LockLayout, LockWord, Mode, Network, PassiveLock, Rank, TargetLock};
use std::fmt::Debug;
use std::hash::Hash;
use std::marker::PhantomData;

/// What the ranks do: each a row of phases, and what it keeps from one phase to the next.
///
/// A phase is run many times from its beginning; so it must do the same whenever its verbs return the same, and
/// change nothing but `local`.
///
/// # Examples
/// Taking turns, checked for every schedule: at most one rank is in its second phase.
/// ```
/// use transom_locks::model::{sim, Program, Replay, Sim, State, Suspended};
/// use transom_locks::{At, Awaited, Error, Rank, Network};
///
/// struct Turns;
/// impl Program for Turns {
///     type Local = ();
///     fn start(&self, _: Rank) {}
///     fn phases(&self, _: Rank) -> usize { 2 }
///     fn phase(&self, rank: Rank, phase: usize, _: &mut (), network: &Replay) -> Result<(), Error<Suspended>> {
///         match phase {
///             0 if rank > 0 => network.wait(0, Awaited::Rank(rank - 1), |turn| turn == 1).map(drop)?,
///             1 if rank + 1 < network.ranks() => network.notify(At { rank: rank + 1, word: 0 }, 1)?,
///             _ => {}
///         }
///         Ok(())
///     }
///     fn check(&self, state: &State<()>) -> Result<(), String> {
///         let inside = (0..3).filter(|&rank| state.phase(rank) == 1).count();
///         if inside > 1 { Err("two ranks have the turn".into()) } else { Ok(()) }
///     }
/// }
/// assert_eq!(Sim::new(3, 1, Turns).explore(100).unwrap(), 5);
/// ```
pub trait Program {
    /// What a rank keeps between phases; the locks of its locks, for example.
    type Local: Clone + Debug + Eq + Hash;

    /// What `rank` begins with.
    fn start(&self, rank: Rank) -> Self::Local;

    /// How many phases `rank` has.
    fn phases(&self, rank: Rank) -> usize;

    /// Runs one of them.
    ///
    /// # Errors
    /// Whatever the words return, which the network expects; any other error is a failure of the check.
    fn phase(
        &self,
        rank: Rank,
        phase: usize,
        local: &mut Self::Local,
        network: &Replay,
    ) -> Result<(), Error<Suspended>>;

    /// Where the locks are that an order [`Book`](super::Book) is to be kept of.
    fn locks(&self) -> Option<LockLayout> {
        None
    }

    /// The call on a lock that a phase is, for the order book.
    fn call(&self, _rank: Rank, _phase: usize) -> Option<Call> {
        None
    }

    /// Writes what memory holds before the first step, by `write`; all words are 0 otherwise.
    fn before(&self, _write: &mut dyn FnMut(At, u64)) {}

    /// What must be true of every state.
    ///
    /// # Errors
    /// What is wrong, in words.
    fn check(&self, _state: &State<Self::Local>) -> Result<(), String> {
        Ok(())
    }
}

/// The same phase, and no more, for every rank; [`once`] makes it.
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

/// A program of one phase, the same for every rank.
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

/// A mix of requests on passive locks: for each rank a row of calls. Kept honest by an order [`Book`](super::Book);
/// at the end the locks must be idle and their nodes empty. `C` is the width of the reader counts.
///
/// # Examples
/// A writer among readers, for every schedule:
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
}

impl<const C: u32> Mix<C> {
    /// One row of calls for each rank.
    pub fn new<R: Into<Vec<Call>>>(rows: impl IntoIterator<Item = R>) -> Self {
        Mix { rows: rows.into_iter().map(Into::into).collect() }
    }

    /// A network that runs it.
    pub fn sim(self) -> Sim<Self> {
        let ranks = self.rows.len();
        Sim::new(ranks, LockLayout::words(ranks), self)
    }
}

impl<const C: u32> Program for Mix<C> {
    type Local = Vec<TargetLock<C>>;

    fn start(&self, _: Rank) -> Self::Local {
        vec![TargetLock::new(); self.rows.len()]
    }

    fn phases(&self, rank: Rank) -> usize {
        self.rows[rank].len()
    }

    fn phase(
        &self,
        rank: Rank,
        phase: usize,
        locks: &mut Self::Local,
        network: &Replay,
    ) -> Result<(), Error<Suspended>> {
        self.rows[rank][phase].run(locks, network, 0)
    }

    fn locks(&self) -> Option<LockLayout> {
        Some(LockLayout::new(0, self.rows.len()))
    }

    fn call(&self, rank: Rank, phase: usize) -> Option<Call> {
        self.rows[rank].get(phase).copied()
    }

    fn check(&self, state: &State<Self::Local>) -> Result<(), String> {
        if !state.is_done() {
            return Ok(());
        }
        let layout = LockLayout::new(0, self.rows.len());
        for (at, value) in state.nonzero() {
            match layout.field(at) {
                Some((_, Field::Word)) if LockWord::<C>(value).is_idle() => {}
                Some((_, Field::Link)) => {}
                Some((target, field)) => {
                    return Err(format!("at the end {field:?} at rank {}, lock of rank {target}: {value:#x}", at.rank));
                }
                None => return Err(format!("{at:?} is no word of a lock, and holds {value:#x}")),
            }
        }
        Ok(())
    }
}

impl Call {
    /// Makes the call by the locks of one rank, on locks whose words begin at `base`.
    ///
    /// # Errors
    /// As the calls of [`PassiveLock`] that it stands for.
    pub fn run<N: Network, const C: u32>(
        self,
        locks: &mut [TargetLock<C>],
        network: &N,
        base: usize,
    ) -> Result<(), Error<N::Error>> {
        let layout = LockLayout::new(base, network.ranks());
        let ranks = locks.len();
        let no_such = |rank| Error::NoSuchRank { rank, ranks };
        match self {
            Call::Acquire(target, mode) => {
                let lock = locks.get_mut(target).ok_or(no_such(target))?;
                match mode {
                    Mode::Exclusive => lock.exclusive(network, layout, target)?,
                    Mode::Shared => lock.shared(network, layout, target)?,
                };
            }
            Call::Release(target) => {
                locks.get_mut(target).ok_or(no_such(target))?.release(network, layout, target)?;
            }
            Call::AcquireAll | Call::ReleaseAll => {
                let mut lock = PassiveLock::with_locks(network, base, locks.iter().copied());
                let outcome = match self {
                    Call::AcquireAll => lock.acquire_all_mut().map(drop),
                    _ => lock.release_all_mut(),
                };
                locks.iter_mut().zip(lock.take_locks()).for_each(|(kept, lock)| *kept = lock);
                outcome?;
            }
        }
        Ok(())
    }
}
