//! The passive locks under a mix of requests, on whichever model network.

use super::book::Call;
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

/// A mix of requests on passive locks: for each rank a row of calls, which an order [`Book`](super::Book) checks; at
/// the end the locks must be idle and their nodes empty. `C` is the width of the reader counts.
///
/// [`sim`](Self::sim) runs it on a simulated network, where verbs are sequentially consistent; with the feature `loom`,
/// `loom` runs it on loom threads, under the C11 memory model.
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

    /// A simulated network that runs it.
    pub fn sim(self) -> Sim<Self> {
        let ranks = self.rows.len();
        Sim::new(ranks, LockLayout::words(ranks), self)
    }

    /// When all calls have returned and everything was released: what words other than 0 may hold.
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
    /// Runs it on loom threads, one for each rank: every schedule, or those with at most so many preemptions. Returns
    /// how many schedules there were.
    ///
    /// Under each lock lies a cell of data, which who holds the lock exclusively writes and who holds it shared reads:
    /// so loom sees if one of them could miss what another did before it. [The page of `model::loom`](super::loom) says
    /// how to use it.
    ///
    /// # Panics
    /// As loom does, when it finds a schedule in which something is wrong: the panic says what.
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

    /// As [`loom`](Self::loom), in another setup, and each rank on what `network` makes of its network: to see that the
    /// check fails where the verbs order less, or a step is left out.
    ///
    /// # Panics
    /// As [`loom`](Self::loom).
    ///
    /// # Examples
    /// If a notify orders nothing, a rank may enter and not see what the one before it did.
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

    /// The locks that are used.
    fn targets(&self) -> Vec<Rank> {
        let uses = |target: Rank, call: &Call| match *call {
            Call::Acquire(other, _) | Call::TryAcquire(other, _) | Call::AcquireUntil(other, _) => other == target,
            Call::Release(other) | Call::ReleaseHeld(other) | Call::Settle(other) => other == target,
            Call::AcquireAll | Call::ReleaseAll => true,
        };
        (0..self.rows.len()).filter(|&target| self.rows.iter().flatten().any(|call| uses(target, call))).collect()
    }

    /// The row of one rank, with `rank` for the order book and `network` for the lock.
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
    /// Makes the call by the locks of one rank, on locks whose words begin at `base`.
    ///
    /// # Errors
    /// As the calls of [`PassiveLock`](crate::PassiveLock) that it stands for.
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
                // It has passed whenever it is looked at: what a rank does is the same in each run of its row.
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
                let under_way = &mut (0..ranks).map(|_| None).collect::<Vec<_>>();
                let mut all = AllLocks { network, layout, locks, under_way };
                match self {
                    Call::AcquireAll => drop(all.acquire()?),
                    _ => all.release()?,
                }
            }
        }
        Ok(())
    }
}
