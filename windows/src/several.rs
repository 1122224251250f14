//! Locks of several targets at once, taken in the order of their ranks, so that those who do so never wait in a circle.

use crate::core::Core;
use crate::epoch::LockAllEpoch;
use crate::local::Local;
use crate::segment::Segment;
use crate::target::Target;
use crate::{Error, Fabric, Mode, Window};
use bytemuck::Pod;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::{Duration, Instant};
use transom_locks::{PassiveLock, Rank};

/// Several targets locked, each exclusively or shared; unlocks them when dropped.
///
/// # Examples
/// See [`Window::lock_ranks`].
#[must_use = "an epoch that is dropped at once unlocks at once"]
pub struct LockRanksEpoch<'w, T: Pod, F: Fabric> {
    pub(crate) core: &'w Core<F>,
    lock: &'w mut PassiveLock<Arc<Segment<F>>>,
    /// In the order of their ranks; none once they are unlocked.
    held: Vec<(Rank, Mode)>,
    element: PhantomData<fn() -> T>,
}

impl<T: Pod, F: Fabric> Window<T, F> {
    /// Opens an access epoch on several targets, each locked as said. Whatever the order in which they are named, the locks
    /// are taken in that of their ranks, one after the other, so ranks that take several so, and those that
    /// [lock all](Self::lock_all), cannot come to wait for each other in a circle. As much as as many
    /// [`lock_exclusive`](Self::lock_exclusive) or [`lock_shared`](Self::lock_shared), and the allocation of a list. A target that is
    /// named several times is locked once, exclusively if it is so named once.
    ///
    /// # Errors
    /// As those. Then none is locked.
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

    /// As [`lock_ranks`](Self::lock_ranks), unless the locks are not all this rank's within `limit`: then none, and none of them is
    /// held. Each is asked for as by [`try_lock_for`](Self::try_lock_for), which says what becomes of a request at the deadline.
    ///
    /// # Errors
    /// As `lock_ranks`: that a rank has died is an error, however much time is left.
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

    /// As [`lock_all`](Self::lock_all), unless the locks are not all this rank's within `limit`: then none, and none of them is
    /// held. They are asked for one after the other, in the order of their ranks, each as by
    /// [`try_lock_for`](Self::try_lock_for); so over a network it takes as many round trips as there are ranks.
    ///
    /// # Errors
    /// As `lock_all`: that a rank has died is an error, however much time is left.
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
        Ok(taken.then(|| LockAllEpoch::new(&self.core, &mut self.lock, true)))
    }

    /// These targets, which exist, in the order of their ranks, each once.
    fn in_order(&self, targets: &[(Rank, Mode)]) -> Result<Vec<(Rank, Mode)>, Error> {
        let mut wanted = targets.to_vec();
        wanted.sort_unstable_by_key(|(rank, mode)| (*rank, *mode == Mode::Shared));
        wanted.dedup_by_key(|(rank, _)| *rank);
        wanted.iter().try_for_each(|(rank, _)| Target::<T, F>::new(&self.core, *rank).map(drop))?;
        Ok(wanted)
    }

    /// Takes these locks, one after the other, until a deadline; whether it has them then. If not, it has none of them.
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
    /// One of the targets that are locked.
    ///
    /// # Errors
    /// [`Error::NotStarted`] if it is not among them; [`Error::NoSuchRank`].
    pub fn target(&self, rank: Rank) -> Result<Target<'_, T, F>, Error> {
        // There may be several of it, of which each may be in another thread: none is alone there, however it is locked.
        let target = Target::new(self.core, rank)?;
        match self.is_locked(rank) {
            true => Ok(target),
            false => Err(Error::NotStarted { window: self.core.id, rank }),
        }
    }

    /// Whether the epoch has locked `rank`.
    pub(crate) fn is_locked(&self, rank: Rank) -> bool {
        self.held.binary_search_by_key(&rank, |(rank, _)| *rank).is_ok()
    }

    /// The ranks that the epoch has locked, in order.
    pub(crate) fn locked(&self) -> impl Iterator<Item = Rank> {
        self.held.iter().map(|(rank, _)| *rank)
    }

    /// Returns when this rank's earlier operations are visible at every target that is locked.
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

    /// Ends the epoch: what it put is visible to whoever locks the targets next.
    ///
    /// # Errors
    /// As [`LockEpoch::unlock`](crate::LockEpoch::unlock): the first; all that can be are unlocked.
    pub fn unlock(mut self) -> Result<(), Error> {
        self.release()
    }

    fn release(&mut self) -> Result<(), Error> {
        self.core.checks.synchronised(&self.core.data.counters);
        let mut outcome = Ok(());
        // What was put at one is not seen before what was put at another, whichever is locked next.
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
