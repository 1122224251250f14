//! Mixes of requests on the passive locks, for both model networks.

use super::fifo_oracle::Call;
use super::program::Program;
use super::replay::{Replay, Suspended};
use super::sim::Sim;
use super::state::State;
use crate::all_locks::AllLocks;
use crate::lock_word::Tickets;
use crate::{At, Error, Field, LockLayout, LockWord, Mode, Network, Rank, TargetLock};
use std::time::Instant;
#[cfg(feature = "loom")]
use {
    super::loom::{Net, RankNetwork, Setup, Wrong, explore},
    ::loom::{cell::UnsafeCell, thread},
    std::{rc::Rc, sync::Arc},
};

/// A mix of requests on passive locks: one row of calls per rank, checked by a [`FifoOracle`](super::FifoOracle). At
/// the end the locks must be idle and their nodes empty. `C` is the width of the reader counts.
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
}

impl<const C: u32> Mix<C> {
    /// Creates a mix from one row of calls per rank.
    pub fn new<R: Into<Vec<Call>>>(rows: impl IntoIterator<Item = R>) -> Self {
        Mix { rows: rows.into_iter().map(Into::into).collect() }
    }

    /// Creates a simulated network that runs the mix.
    pub fn sim(self) -> Sim<Self> {
        let ranks = self.rows.len();
        Sim::new(ranks, LockLayout::words(ranks), self)
    }

    /// Checks the nonzero words after all calls have returned and every lock was released.
    fn check_end(&self, nonzero: impl IntoIterator<Item = (At, u64)>) -> Result<(), String> {
        let layout = LockLayout::new(0, self.rows.len());
        nonzero.into_iter().try_for_each(|(at, value)| match layout.field(at) {
            Some((_, Field::Word)) if LockWord::<C>(value).is_idle() => Ok(()),
            Some((_, Field::Link)) => Ok(()),
            Some((_, Field::Tickets)) if Tickets(value).next() == Tickets(value).turn() => Ok(()),
            Some((target, field)) => {
                Err(format!("at the end {field:?} at rank {}, lock of rank {target}: {value:#x}", at.rank))
            }
            None => Err(format!("{at:?} is no word of a lock, and holds {value:#x}")),
        })
    }
}

#[cfg(feature = "loom")]
impl<const C: u32> Mix<C> {
    /// Runs the mix on one loom thread per rank: every schedule, or those with at most `preemptions` preemptions.
    /// Returns the number of schedules.
    ///
    /// Each lock protects a data cell, which exclusive holders write and shared holders read, so loom detects a holder
    /// that could miss an earlier holder's write. [The page of `model::loom`](super::loom) shows how to use it.
    ///
    /// # Panics
    /// In the first schedule in which loom or the oracle finds a violation.
    ///
    /// # Examples
    /// ```
    /// use transom_locks::model::{Call, Mix};
    /// use transom_locks::Mode::{Exclusive, Shared};
    ///
    /// let two = <Mix>::new([Call::both(0, Shared), Call::both(0, Exclusive)]);
    /// assert!(two.loom(None) > 10); // every schedule
    /// let three = <Mix>::new([Call::both(0, Shared), Call::both(0, Exclusive), Call::both(0, Exclusive)]);
    /// assert!(three.loom(Some(2)) > 100); // those with two preemptions at most
    /// ```
    pub fn loom(&self, preemptions: Option<usize>) -> usize {
        self.loom_with(Setup { preemptions, ..Setup::default() }, |network| network)
    }

    /// [`loom`](Self::loom) with another setup, in which each rank uses the result of `network` as its network. It
    /// serves to see that the check fails where the verbs order less, or a step is left out.
    ///
    /// # Panics
    /// The same as [`loom`](Self::loom).
    ///
    /// # Examples
    /// If a notify orders nothing, a rank may enter without seeing the writes of the holder before it.
    /// ```
    /// use std::sync::atomic::Ordering::Relaxed;
    /// use transom_locks::model::loom::{Orderings, Setup, Waiting};
    /// use transom_locks::model::{Call, Mix};
    /// use transom_locks::Mode::Exclusive;
    ///
    /// let mix = <Mix>::new([Call::both(0, Exclusive), Call::both(0, Exclusive)]);
    /// let orderings = Orderings { notify: Relaxed, ..Orderings::default() };
    /// let setup = Setup { waiting: Waiting::Spins, orderings, ..Setup::default() };
    /// assert!(std::panic::catch_unwind(|| mix.loom_with(setup, |network| network)).is_err());
    /// ```
    pub fn loom_with<N>(&self, setup: Setup, network: impl Fn(RankNetwork) -> N + Send + Sync + 'static) -> usize
    where
        N: Network<Error = Wrong> + 'static,
    {
        let mix = Arc::new(self.clone());
        let network = Arc::new(network);
        explore(setup.preemptions, move || {
            let ranks = mix.rows.len();
            let net = Net::for_locks(ranks, &mix.targets(), setup.waiting, setup.orderings);
            let data: Rc<Vec<UnsafeCell<()>>> = Rc::new((0..ranks).map(|_| UnsafeCell::new(())).collect());
            let run = |rank: Rank| {
                let net = if setup.watches { net.rank(rank).watching() } else { net.rank(rank) };
                let (mix, data, network) = (mix.clone(), data.clone(), network.clone());
                move || mix.run_row(net.clone(), network(net), &data)
            };
            let others: Vec<_> = (1..ranks).map(|rank| thread::spawn(run(rank))).collect();
            if ranks > 0 {
                run(0)();
            }
            others.into_iter().for_each(|other| other.join().expect("loom stops at the first panic"));
            if setup.check_end
                && let Err(wrong) = mix.check_end(net.nonzero())
            {
                panic!("{wrong}");
            }
        })
    }

    /// The targets of the locks that the mix uses.
    fn targets(&self) -> Vec<Rank> {
        let uses = |target: Rank, call: &Call| match *call {
            Call::Acquire(other, _) | Call::TryAcquire(other, _) | Call::AcquireUntil(other, _) => other == target,
            Call::Release(other) | Call::ReleaseHeld(other) | Call::Settle(other) => other == target,
            Call::AcquireAll | Call::ReleaseAll => true,
        };
        (0..self.rows.len()).filter(|&target| self.rows.iter().flatten().any(|call| uses(target, call))).collect()
    }

    /// Runs the row of one rank: `rank` reports to the oracle, `network` executes the lock's verbs.
    fn run_row<N: Network<Error = Wrong>>(&self, rank: RankNetwork, network: N, data: &[UnsafeCell<()>]) {
        let mut locks = vec![TargetLock::<C>::new(); data.len()];
        for &call in &self.rows[rank.rank()] {
            let mut made = || -> Result<(), Error<Wrong>> {
                rank.begins(call)?;
                call.run(&mut locks, &network, 0)?;
                Ok(rank.returned()?)
            };
            if let Err(wrong) = made() {
                panic!("rank {}, {call:?}: {wrong}", rank.rank());
            }
            match call {
                Call::Acquire(target, mode) | Call::TryAcquire(target, mode) | Call::AcquireUntil(target, mode)
                    if locks[target].is_held() =>
                {
                    match mode {
                        Mode::Exclusive => data[target].with_mut(drop),
                        Mode::Shared => data[target].with(drop),
                    }
                }
                Call::AcquireAll => data.iter().for_each(|data| data.with(drop)),
                _ => {}
            }
        }
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
        if state.is_done() { self.check_end(state.nonzero()) } else { Ok(()) }
    }
}

impl Call {
    /// Makes the call on the locks of one rank, whose words begin at `base`.
    ///
    /// # Errors
    /// The errors of the corresponding calls of [`PassiveLock`](crate::PassiveLock).
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
            Call::TryAcquire(target, mode) => {
                let lock = locks.get_mut(target).ok_or(no_such(target))?;
                match mode {
                    Mode::Exclusive => lock.try_exclusive(network, layout, target)?,
                    Mode::Shared => lock.try_shared(network, layout, target)?,
                };
            }
            Call::AcquireUntil(target, mode) => {
                let lock = locks.get_mut(target).ok_or(no_such(target))?;
                // A deadline that has passed at each reading of the clock, so that a rank does the same in each run of
                // its row.
                let passed = Instant::now();
                match mode {
                    Mode::Exclusive => lock.exclusive_until(network, layout, target, passed)?,
                    Mode::Shared => lock.shared_until(network, layout, target, passed)?,
                };
            }
            Call::Settle(target) => locks.get_mut(target).ok_or(no_such(target))?.settle(network, layout, target)?,
            Call::Release(target) | Call::ReleaseHeld(target) => {
                let lock = locks.get_mut(target).ok_or(no_such(target))?;
                if lock.is_held() || self == Call::Release(target) {
                    lock.release(network, layout, target)?;
                }
            }
            Call::AcquireAll | Call::ReleaseAll => {
                let in_flight = &mut (0..ranks).map(|_| None).collect::<Vec<_>>();
                let mut all = AllLocks { network, layout, locks, in_flight };
                match self {
                    Call::AcquireAll => drop(all.acquire()?),
                    _ => all.release()?,
                }
            }
        }
        Ok(())
    }
}
