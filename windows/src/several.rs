//! Locks of several targets at once, taken in the order of their ranks, so that those who do so never wait in a circle.

use crate::core::Core;
use crate::local::Local;
use crate::segment::Segment;
use crate::target::Target;
use crate::{Error, Fabric, Mode, Window};
use bytemuck::Pod;
use std::marker::PhantomData;
use std::sync::Arc;
use transom_locks::{PassiveLock, Rank};

/// Several targets locked, each exclusively or shared; unlocks them when dropped.
///
/// # Examples
/// See [`Window::lock_ranks`].
#[must_use = "an epoch that is dropped at once unlocks at once"]
pub struct LockRanksEpoch<'w, T: Pod, F: Fabric> {
    core: &'w Core<F>,
    lock: &'w mut PassiveLock<Arc<Segment<F>>>,
    /// In the order of their ranks; none once they are unlocked.
    held: Vec<(Rank, Mode)>,
    element: PhantomData<fn() -> T>,
}

impl<T: Pod, F: Fabric> Window<T, F> {
    /// Opens an access epoch on several targets, each locked as said. Whatever the order in which they are named, the locks
    /// are taken in that of their ranks, one after the other, so ranks that take several so, and those that
    /// [lock all](Self::lock_all), cannot come to wait for each other in a circle. As much as as many
    /// [`lock_exclusive`](Self::lock_exclusive) or [`lock_shared`](Self::lock_shared), and the allocation of a list.
    ///
    /// # Errors
    /// As those; [`Error::Lock`] also if a target is named twice. Then none is locked.
    ///
    /// # Examples
    /// ```
    /// # let fabric = transom_shm_loopback::Loopback::alone()?;
    /// # let mut window = transom_windows::Window::<u64, _>::allocate(&fabric, 0, 64)?;
    /// use transom_windows::Mode;
    /// let (from, to) = (0, 0); // two accounts, at whatever ranks
    /// # let epoch = window.lock_ranks(&[(from, Mode::Exclusive)])?;
    /// # /*
    /// let epoch = window.lock_ranks(&[(from, Mode::Exclusive), (to, Mode::Exclusive)])?;
    /// # */
    /// let balance = epoch.target(from)?.get_one(0)?;
    /// epoch.target(to)?.put_one(1, balance)?;
    /// epoch.unlock()?;
    /// # Ok::<(), transom_windows::Error>(())
    /// ```
    pub fn lock_ranks(&mut self, targets: &[(Rank, Mode)]) -> Result<LockRanksEpoch<'_, T, F>, Error> {
        let mut wanted = targets.to_vec();
        wanted.sort_unstable_by_key(|(rank, _)| *rank);
        for &(rank, _) in &wanted {
            Target::<T, F>::new(&self.core, rank)?;
        }
        self.core.checks.synchronised(&self.core.data.counters);
        let Window { core, lock, .. } = self;
        let held = Vec::with_capacity(wanted.len());
        let mut epoch = LockRanksEpoch { core, lock, held, element: PhantomData };
        for (rank, mode) in wanted {
            // What is held by then is unlocked with the epoch.
            let acquired = epoch.lock.acquire_mut(rank, mode);
            acquired.map_err(|source| epoch.core.lock_error_at(rank, source))?;
            epoch.core.data.counters.locks.bump();
            epoch.held.push((rank, mode));
        }
        Ok(epoch)
    }
}

impl<T: Pod, F: Fabric> LockRanksEpoch<'_, T, F> {
    /// One of the targets that are locked.
    ///
    /// # Errors
    /// [`Error::NotStarted`] if it is not among them; [`Error::NoSuchRank`].
    pub fn target(&self, rank: Rank) -> Result<Target<'_, T, F>, Error> {
        match self.held.binary_search_by_key(&rank, |(rank, _)| *rank) {
            Ok(at) => Target::locked(self.core, rank, self.held[at].1),
            Err(_) => Target::<T, F>::new(self.core, rank).and(Err(Error::NotStarted { window: self.core.id, rank })),
        }
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
