//! Epochs. An open epoch lends the targets that it opened. Each borrows its window, so an operation outside an epoch
//! does not compile. Leaking an epoch does not endanger memory, since nothing pending borrows from it. Its lock stays
//! held, or its access epoch open, until the window is dropped; the next call on the window reports that.

use crate::core::Core;
use crate::local::Local;
use crate::segment::Segment;
use crate::signals::Signals;
use crate::target::Target;
use crate::{Assert, Error, Fabric};
use bytemuck::Pod;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::Arc;
use transom_locks::{OneLock, PassiveLock, Pscw, QueuePosition, Rank};

/// A locked target: derefs to the [`Target`] that it opened. Dropping it unlocks.
///
/// # Examples
/// ```
/// // In `transom`: `let mut window = world.allocate::<u64>(64)?;`
/// # let fabric = transom_shm_loopback::Loopback::alone()?;
/// # let mut window = transom_windows::Window::<u64, _>::allocate(&fabric, 0, 64)?;
/// let epoch = window.lock_exclusive(0)?;
/// epoch.put(0, &[1])?;
/// epoch.unlock()?; // or drop it; an error would then only be reported on stderr
/// assert_eq!(window.lock_exclusive(0)?.get_one(0)?, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "an epoch that is dropped at once unlocks at once"]
pub struct LockEpoch<'w, T: Pod, F: Fabric> {
    target: Target<'w, T, F>,
    /// `None` if the program asserted that no lock is needed.
    lock: Option<TargetLock<'w, F>>,
    position: Position,
}

/// The lock of one target.
pub(crate) type TargetLock<'w, F> = OneLock<'w, Arc<Segment<F>>>;

/// The locks of a window.
pub(crate) type WindowLock<F> = PassiveLock<Arc<Segment<F>>>;

/// An [`QueuePosition`] in one word, so that an epoch stays in registers: the readers in the lower half, and the rank plus 1 of
/// the exclusive request in the upper half.
#[derive(Clone, Copy)]
pub(crate) struct Position(u64);

impl Position {
    pub const FIRST: Self = Position(0);

    /// A lock has fewer than 2^15 ranks, so both halves have room.
    pub fn of(ahead: QueuePosition) -> Self {
        Position(ahead.exclusive.map_or(0, |rank| rank as u64 + 1) << 32 | ahead.readers)
    }

    fn get(self) -> QueuePosition {
        let rank = (self.0 >> 32) as Rank;
        QueuePosition { exclusive: rank.checked_sub(1), readers: self.0 & u64::from(u32::MAX) }
    }
}

impl<'w, T: Pod, F: Fabric> LockEpoch<'w, T, F> {
    #[inline(always)]
    pub(crate) fn new(target: Target<'w, T, F>, lock: Option<TargetLock<'w, F>>, position: Position) -> Self {
        LockEpoch { target, lock, position }
    }

    /// The queue position of this epoch's lock request.
    pub fn ahead(&self) -> QueuePosition {
        self.position.get()
    }

    /// This rank's own part.
    pub fn local(&self) -> Local<'_, T, F> {
        Local::new(self.target.core)
    }

    /// This rank's own signal words.
    pub fn signals(&self) -> Signals<'_, F> {
        Signals { core: self.target.core }
    }

    /// Targets for threads of this rank that work concurrently in the epoch.
    ///
    /// # Examples
    /// ```
    /// # let fabric = transom_shm_loopback::Loopback::alone()?;
    /// # let mut window = transom_windows::Window::<u64, _>::allocate(&fabric, 0, 64)?;
    /// use transom_windows::Op;
    /// let mut epoch = window.lock_exclusive(0)?;
    /// let all = epoch.for_threads();
    /// std::thread::scope(|scope| {
    ///     let threads = [(); 3].map(|()| scope.spawn(|| all.target().accumulate(0, Op::Sum, &[1, 2])));
    ///     threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
    /// })?;
    /// assert_eq!(epoch.get_one(1)?, 6);
    /// # epoch.unlock()?;
    /// # Ok::<(), transom_windows::Error>(())
    /// ```
    pub fn for_threads(&mut self) -> ThreadTargets<'_, T, F> {
        ThreadTargets { core: self.target.core, rank: self.target.rank(), element: PhantomData }
    }

    /// Ends the epoch: its puts are visible to the next holder of the target's lock.
    ///
    /// # Errors
    /// [`Error::Lock`] if a rank died that the unlock had to notify, or to wait for; [`Error::Fabric`].
    #[inline(always)]
    pub fn unlock(self) -> Result<(), Error> {
        // No field needs a drop.
        let mut epoch = ManuallyDrop::new(self);
        let (core, rank) = (epoch.target.core, epoch.target.rank);
        release(core, epoch.lock.take(), rank)
    }
}

/// Orders the epoch's puts, then unlocks: the next holder sees them. The lock is released even if a put failed.
#[inline(always)]
fn release<F: Fabric>(core: &Core<F>, lock: Option<TargetLock<'_, F>>, rank: Rank) -> Result<(), Error> {
    let orders = core.ends_epoch();
    // Without a lock no verb follows that would order the puts, so they are flushed.
    let Some(mut lock) = lock else { return core.flush(rank) };
    if orders {
        return order_and_release(core, lock, rank).map_or(Ok(()), |error| Err(*error));
    }
    match lock.release() {
        Ok(()) => Ok(()),
        Err(source) => Err(core.lock_error_at(rank, source)),
    }
}

/// The end of an epoch whose puts the provider has to order. The error is boxed, so that the path without orders does not
/// keep its result in memory.
#[cold]
#[inline(never)]
fn order_and_release<F: Fabric>(core: &Core<F>, mut lock: TargetLock<'_, F>, rank: Rank) -> Option<Box<Error>> {
    let ordered = core.order(rank);
    let released = lock.release().map_err(|source| core.lock_error_at(rank, source));
    ordered.and(released).err().map(Box::new)
}

/// The drop of an epoch, with its arguments by value: a drop by address would keep every epoch in memory.
#[inline(never)]
fn dropped<F: Fabric>(core: &Core<F>, lock: Option<TargetLock<'_, F>>, rank: Rank) {
    report(release(core, lock, rank));
}

fn report(released: Result<(), Error>) {
    if let Err(error) = released {
        crate::dropped::failed("an epoch was dropped, and its unlock failed", &error);
    }
}

impl<T: Pod, F: Fabric> Drop for LockEpoch<'_, T, F> {
    #[inline(always)]
    fn drop(&mut self) {
        dropped(self.target.core, self.lock.take(), self.target.rank);
    }
}

impl<'w, T: Pod, F: Fabric> Deref for LockEpoch<'w, T, F> {
    type Target = Target<'w, T, F>;

    #[inline(always)]
    fn deref(&self) -> &Self::Target {
        &self.target
    }
}

/// A target for each thread: see [`LockEpoch::for_threads`]. The epoch itself cannot be used meanwhile, so its compound
/// operations do not mix with those of other threads.
///
/// # Examples
/// See [`LockEpoch::for_threads`].
pub struct ThreadTargets<'e, T, F: Fabric> {
    core: &'e Core<F>,
    rank: Rank,
    element: PhantomData<fn() -> T>,
}

impl<T: Pod, F: Fabric> ThreadTargets<'_, T, F> {
    /// The target, for the calling thread. Its accumulates are atomic with respect to those of the other threads.
    pub fn target(&self) -> Target<'_, T, F> {
        Target::new(self.core, self.rank).expect("the locked rank exists")
    }
}

/// All targets, locked in shared mode. Dropping it unlocks.
///
/// # Examples
/// ```
/// // In `transom`: `let mut window = world.allocate::<u64>(64)?;`
/// # let fabric = transom_shm_loopback::Loopback::alone()?;
/// # let mut window = transom_windows::Window::<u64, _>::allocate(&fabric, 0, 64)?;
/// use transom_windows::Op;
/// let epoch = window.lock_all()?;
/// for rank in 0..epoch.ranks() {
///     epoch.target(rank)?.fetch_and_op(0, Op::Sum, 1)?;
/// }
/// epoch.unlock()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "an epoch that is dropped at once unlocks at once"]
pub struct LockAllEpoch<'w, T: Pod, F: Fabric> {
    pub(crate) core: &'w Core<F>,
    /// `None` if the program asserted that no lock is needed.
    lock: Option<&'w mut WindowLock<F>>,
    element: PhantomData<fn() -> T>,
}

impl<'w, T: Pod, F: Fabric> LockAllEpoch<'w, T, F> {
    #[inline(always)]
    pub(crate) fn new(core: &'w Core<F>, lock: Option<&'w mut WindowLock<F>>) -> Self {
        LockAllEpoch { core, lock, element: PhantomData }
    }

    /// The number of ranks.
    pub fn ranks(&self) -> usize {
        self.core.data.remotes.len()
    }

    /// One of the targets.
    ///
    /// # Errors
    /// [`Error::NoSuchRank`].
    #[inline]
    pub fn target(&self, rank: Rank) -> Result<Target<'_, T, F>, Error> {
        Target::new(self.core, rank)
    }

    /// This rank's own part.
    pub fn local(&self) -> Local<'_, T, F> {
        Local::new(self.core)
    }

    /// This rank's own signal words.
    pub fn signals(&self) -> Signals<'_, F> {
        Signals { core: self.core }
    }

    /// Returns once this rank's earlier operations are visible at every target.
    ///
    /// # Errors
    /// [`Error::Fabric`].
    pub fn flush_all(&self) -> Result<(), Error> {
        self.core.flush_all()
    }

    /// [`flush_local`](Target::flush_local) for all targets.
    ///
    /// # Errors
    /// Currently none.
    #[inline(always)]
    pub fn flush_local_all(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Ends the epoch.
    ///
    /// # Errors
    /// The errors of [`LockEpoch::unlock`].
    #[inline(always)]
    pub fn unlock(self) -> Result<(), Error> {
        let mut epoch = ManuallyDrop::new(self); // as in `LockEpoch`
        release_all(epoch.core, epoch.lock.take())
    }
}

/// [`release`] of all targets.
#[inline(always)]
fn release_all<F: Fabric>(core: &Core<F>, lock: Option<&mut WindowLock<F>>) -> Result<(), Error> {
    let orders = core.ends_epoch();
    let Some(lock) = lock else { return core.flush_all() };
    let failed = match orders {
        true => order_and_release_all(core, lock),
        false => lock.release_all_mut().err().map(|source| Box::new(core.lock_error(source))),
    };
    failed.map_or(Ok(()), |error| Err(*error))
}

/// [`order_and_release`] of all targets.
#[cold]
#[inline(never)]
fn order_and_release_all<F: Fabric>(core: &Core<F>, lock: &mut WindowLock<F>) -> Option<Box<Error>> {
    let ordered = core.order_all();
    let released = lock.release_all_mut().map_err(|source| core.lock_error(source));
    ordered.and(released).err().map(Box::new)
}

/// The drop of an epoch on all targets: see [`dropped`].
#[inline(never)]
fn dropped_all<F: Fabric>(core: &Core<F>, lock: Option<&mut WindowLock<F>>) {
    report(release_all(core, lock));
}

impl<T: Pod, F: Fabric> Drop for LockAllEpoch<'_, T, F> {
    #[inline(always)]
    fn drop(&mut self) {
        dropped_all(self.core, self.lock.take());
    }
}

/// An access epoch to the targets named in `start`. Dropping it completes it.
///
/// # Examples
/// ```
/// // In `transom`: `let mut window = world.allocate::<u64>(64)?;`
/// # let fabric = transom_shm_loopback::Loopback::alone()?;
/// # let mut window = transom_windows::Window::<u64, _>::allocate(&fabric, 0, 64)?;
/// window.post(&[0])?;
/// let epoch = window.start(&[0])?;
/// epoch.target(0)?.put(0, &[1])?;
/// assert!(epoch.target(1).is_err());
/// epoch.complete()?;
/// window.wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "an epoch that is dropped at once completes at once"]
pub struct AccessEpoch<'w, T: Pod, F: Fabric> {
    core: &'w Core<F>,
    pscw: &'w mut Pscw,
    element: PhantomData<fn() -> T>,
}

impl<'w, T: Pod, F: Fabric> AccessEpoch<'w, T, F> {
    pub(crate) fn new(core: &'w Core<F>, pscw: &'w mut Pscw) -> Self {
        AccessEpoch { core, pscw, element: PhantomData }
    }

    /// One of the targets that `start` named.
    ///
    /// # Errors
    /// [`Error::NotStarted`] if it did not name the rank; [`Error::NoSuchRank`].
    #[inline]
    pub fn target(&self, rank: Rank) -> Result<Target<'_, T, F>, Error> {
        if self.pscw.is_target(rank) {
            return Target::new(self.core, rank);
        }
        Target::<T, F>::new(self.core, rank).and(Err(Error::NotStarted { window: self.core.id, rank }))
    }

    /// This rank's own part.
    pub fn local(&self) -> Local<'_, T, F> {
        Local::new(self.core)
    }

    /// This rank's own signal words.
    pub fn signals(&self) -> Signals<'_, F> {
        Signals { core: self.core }
    }

    /// Ends the epoch: notifies each target, after all that was put there. Does not wait. 1 notification per target.
    ///
    /// # Errors
    /// [`Error::Sync`], [`Error::Fabric`].
    pub fn complete(mut self) -> Result<(), Error> {
        self.finish()
    }

    fn finish(&mut self) -> Result<(), Error> {
        // Each target is notified by a verb, which takes effect after all that was put there.
        let _ = self.core.gates.epoch_ends(&self.core.data);
        let completed = self.pscw.complete(&self.core.data);
        self.core.checks.synchronised(&self.core.data.counters);
        completed.map_err(|source| self.core.sync_error("complete", source))
    }
}

impl<T: Pod, F: Fabric> Drop for AccessEpoch<'_, T, F> {
    fn drop(&mut self) {
        if self.pscw.targets().is_some()
            && let Err(error) = self.finish()
        {
            crate::dropped::failed("an access epoch was dropped, and its completion failed", &error);
        }
    }
}

/// The epoch between two fences: lends every target until the next call on the window.
///
/// # Examples
/// ```
/// // In `transom`: `let mut window = world.allocate::<u64>(64)?;`
/// # let fabric = transom_shm_loopback::Loopback::alone()?;
/// # let mut window = transom_windows::Window::<u64, _>::allocate(&fabric, 0, 64)?;
/// let epoch = window.fence()?;
/// epoch.target(0)?.put(1, &[2])?;
/// window.fence()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct FenceEpoch<'w, T, F: Fabric> {
    pub(crate) core: &'w Core<F>,
    pub(crate) asserted: Assert,
    pub(crate) element: PhantomData<fn() -> T>,
}

impl<'w, T: Pod, F: Fabric> FenceEpoch<'w, T, F> {
    /// One of the targets.
    ///
    /// # Errors
    /// [`Error::NoSuchRank`]; [`Error::Assertion`], in debug builds, if the fence had [`Assert::NOSUCCEED`].
    #[inline]
    pub fn target(&self, rank: Rank) -> Result<Target<'_, T, F>, Error> {
        if cfg!(debug_assertions) && self.asserted.contains(Assert::NOSUCCEED) {
            return Err(self.core.wrong("fence", Assert::NOSUCCEED, "an operation follows"));
        }
        Target::new(self.core, rank)
    }

    /// This rank's own part.
    pub fn local(&self) -> Local<'_, T, F> {
        Local::new(self.core)
    }

    /// This rank's own signal words.
    pub fn signals(&self) -> Signals<'_, F> {
        Signals { core: self.core }
    }
}
