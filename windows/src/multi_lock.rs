//! Locks of several targets at once, taken in rank order, so that such calls never deadlock with each other.

use crate::core::Core;
use crate::epoch::{LockAllEpoch, WindowLock};
use crate::local::Local;
use crate::target::Target;
use crate::{Error, Fabric, Mode, Window};
use bytemuck::Pod;
use std::marker::PhantomData;
use std::time::{Duration, Instant};
use transom_locks::Rank;

/// An access epoch on several targets, each locked exclusively or shared. Dropping it unlocks them.
///
/// # Examples
/// See [`Window::lock_ranks`].
#[must_use = "an epoch that is dropped at once unlocks at once"]
pub struct LockRanksEpoch<'w, T: Pod, F: Fabric> {
    pub(crate) core: &'w Core<F>,
    lock: &'w mut WindowLock<F>,
    /// Held locks in rank order; empty once they are unlocked.
    held: Vec<(Rank, Mode)>,
    element: PhantomData<fn() -> T>,
}

impl<T: Pod, F: Fabric> Window<T, F> {
    /// Opens an access epoch on several targets, each locked in its mode. The locks are taken one after the other in
    /// rank order, whatever the order of `targets`. Ranks that take several locks this way, and ranks that [lock
    /// all](Self::lock_all), therefore cannot deadlock with each other. The cost is that of a
    /// [`lock_exclusive`](Self::lock_exclusive) or [`lock_shared`](Self::lock_shared) per target, and the allocation of
    /// a list. A target that is named several times is locked once, exclusively if any of its entries says so.
    ///
    /// # Errors
    /// The errors of `lock_exclusive` and `lock_shared`. No lock is held then.
    ///
    /// # Examples
    /// ```
    /// # let fabric = transom_shm_loopback::Loopback::alone()?;
    /// # let mut window = transom_windows::Window::<u64, _>::allocate(&fabric, 0, 64)?;
    /// use transom_windows::Mode;
    /// let (from, to) = (0, 0); // two accounts, at whatever ranks
    /// let epoch = window.lock_ranks(&[(from, Mode::Exclusive), (to, Mode::Exclusive)])?;
    /// let balance = epoch.target(from)?.get_one(0)?;
    /// epoch.target(to)?.put_one(1, balance)?;
    /// epoch.unlock()?;
    /// # Ok::<(), transom_windows::Error>(())
    /// ```
    pub fn lock_ranks(&mut self, targets: &[(Rank, Mode)]) -> Result<LockRanksEpoch<'_, T, F>, Error> {
        let held = self.in_order(targets)?;
        self.take_each(held.iter().copied(), None)?;
        Ok(LockRanksEpoch { core: &self.core, lock: &mut self.lock, held, element: PhantomData })
    }

    /// [`lock_ranks`](Self::lock_ranks) with a time limit: returns `None`, with none of the locks held, if not all
    /// locks are granted within `limit`. Each lock is requested as by [`try_lock_for`](Self::try_lock_for), which
    /// describes what happens to a request at the deadline.
    ///
    /// # Errors
    /// The errors of `lock_ranks`. The death of a rank is an error even before the deadline.
    ///
    /// # Examples
    /// ```
    /// # let fabric = transom_shm_loopback::Loopback::alone()?;
    /// # let mut window = transom_windows::Window::<u64, _>::allocate(&fabric, 0, 64)?;
    /// use std::time::Duration;
    /// use transom_windows::Mode;
    /// match window.try_lock_ranks_for(&[(0, Mode::Exclusive)], Duration::from_millis(100))? {
    ///     Some(epoch) => epoch.target(0)?.put(0, &[1])?,
    ///     None => println!("not in a tenth of a second"),
    /// }
    /// # assert_eq!(window.local().get(0)?, 1);
    /// # Ok::<(), transom_windows::Error>(())
    /// ```
    pub fn try_lock_ranks_for(
        &mut self,
        targets: &[(Rank, Mode)],
        limit: Duration,
    ) -> Result<Option<LockRanksEpoch<'_, T, F>>, Error> {
        let held = self.in_order(targets)?;
        let taken = self.take_each(held.iter().copied(), Instant::now().checked_add(limit))?;
        Ok(taken.then(|| LockRanksEpoch { core: &self.core, lock: &mut self.lock, held, element: PhantomData }))
    }

    /// [`lock_all`](Self::lock_all) with a time limit: returns `None`, with none of the locks held, if not all locks
    /// are granted within `limit`. The locks are requested one after the other in rank order, each as by
    /// [`try_lock_for`](Self::try_lock_for). Over a network this costs one round trip per rank.
    ///
    /// # Errors
    /// The errors of `lock_all`. The death of a rank is an error even before the deadline.
    ///
    /// # Examples
    /// ```
    /// # let fabric = transom_shm_loopback::Loopback::alone()?;
    /// # let mut window = transom_windows::Window::<u64, _>::allocate(&fabric, 0, 64)?;
    /// use std::time::Duration;
    /// match window.try_lock_all_for(Duration::from_millis(100))? {
    ///     Some(epoch) => epoch.target(0)?.put(0, &[1])?,
    ///     None => println!("not in a tenth of a second"),
    /// }
    /// # assert_eq!(window.local().get(0)?, 1);
    /// # Ok::<(), transom_windows::Error>(())
    /// ```
    pub fn try_lock_all_for(&mut self, limit: Duration) -> Result<Option<LockAllEpoch<'_, T, F>>, Error> {
        let all = (0..self.core.data.remotes.len()).map(|rank| (rank, Mode::Shared));
        let taken = self.take_each(all, Instant::now().checked_add(limit))?;
        Ok(taken.then(|| LockAllEpoch::new(&self.core, Some(&mut self.lock))))
    }

    /// The targets in rank order, each once. Checks that they exist.
    fn in_order(&self, targets: &[(Rank, Mode)]) -> Result<Vec<(Rank, Mode)>, Error> {
        let mut wanted = targets.to_vec();
        wanted.sort_unstable_by_key(|(rank, mode)| (*rank, *mode == Mode::Shared));
        wanted.dedup_by_key(|(rank, _)| *rank);
        wanted.iter().try_for_each(|(rank, _)| Target::<T, F>::new(&self.core, *rank).map(drop))?;
        Ok(wanted)
    }

    /// Takes the locks one after the other until a deadline; returns whether it holds all of them. If not, it holds
    /// none.
    fn take_each(
        &mut self,
        wanted: impl Iterator<Item = (Rank, Mode)> + Clone,
        deadline: Option<Instant>,
    ) -> Result<bool, Error> {
        let Window { core, lock, .. } = self;
        core.checks.synchronised(&core.data.counters);
        for (before, (rank, mode)) in wanted.clone().enumerate() {
            let acquired = match deadline.map(|deadline| deadline.saturating_duration_since(Instant::now())) {
                None => lock.acquire_mut(rank, mode).map(Some),
                Some(left) => lock.acquire_for_mut(rank, mode, left),
            };
            let outcome = match acquired {
                Ok(Some(_)) => {
                    core.data.counters.locks.bump();
                    continue;
                }
                Ok(None) => core.not_had(rank).map(|()| false),
                Err(source) => Err(core.lock_error_at(rank, source)),
            };
            return wanted.take(before).fold(outcome, |outcome, (rank, _)| {
                let released = lock.release_mut(rank).map_err(|source| core.lock_error_at(rank, source));
                outcome.and_then(|has| released.map(|()| has))
            });
        }
        Ok(true)
    }
}

impl<T: Pod, F: Fabric> LockRanksEpoch<'_, T, F> {
    /// One of the locked targets.
    ///
    /// # Errors
    /// [`Error::NotStarted`] if `rank` is not among them; [`Error::NoSuchRank`].
    pub fn target(&self, rank: Rank) -> Result<Target<'_, T, F>, Error> {
        // Several `Target`s of one rank may be in use in different threads, so none is exclusive, whatever the lock's
        // mode.
        let target = Target::new(self.core, rank)?;
        match self.is_locked(rank) {
            true => Ok(target),
            false => Err(Error::NotStarted { window: self.core.id, rank }),
        }
    }

    /// Returns whether the epoch has locked `rank`.
    pub(crate) fn is_locked(&self, rank: Rank) -> bool {
        self.held.binary_search_by_key(&rank, |(rank, _)| *rank).is_ok()
    }

    /// The locked ranks, in order.
    pub(crate) fn locked(&self) -> impl Iterator<Item = Rank> {
        self.held.iter().map(|(rank, _)| *rank)
    }

    /// Returns once this rank's earlier operations are visible at every locked target.
    ///
    /// # Errors
    /// [`Error::Fabric`].
    pub fn flush(&self) -> Result<(), Error> {
        self.locked().try_for_each(|rank| self.core.flush(rank))
    }

    /// This rank's own part.
    pub fn local(&self) -> Local<'_, T, F> {
        Local::new(self.core)
    }

    /// Ends the epoch: its puts are visible to the next holders of the locks.
    ///
    /// # Errors
    /// The errors of [`LockEpoch::unlock`](crate::LockEpoch::unlock). Returns the first; every lock that can be is
    /// unlocked.
    pub fn unlock(mut self) -> Result<(), Error> {
        self.release()
    }

    fn release(&mut self) -> Result<(), Error> {
        self.core.checks.synchronised(&self.core.data.counters);
        let mut outcome = Ok(());
        // Puts to all targets are ordered before any lock is released, so the next holder of one lock sees no partial
        // update.
        let held = std::mem::take(&mut self.held);
        for (rank, _) in &held {
            outcome = outcome.and(self.core.order(*rank));
        }
        for (rank, _) in held {
            let released = self.lock.release_mut(rank);
            outcome = outcome.and(released.map_err(|source| self.core.lock_error_at(rank, source)));
        }
        outcome
    }
}

impl<T: Pod, F: Fabric> Drop for LockRanksEpoch<'_, T, F> {
    fn drop(&mut self) {
        if !self.held.is_empty()
            && let Err(error) = self.release()
        {
            crate::dropped::failed("an epoch was dropped, and its unlock failed", &error);
        }
    }
}
