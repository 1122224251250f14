//! Windows: memory that every rank of a job exposes, and the calls that lock it. active.rs has active synchronisation.

use crate::core::Core;
use crate::epoch::{LockAllEpoch, LockEpoch, Position, WindowLock};
use crate::local::Local;
use crate::signals::Signals;
use crate::target::Target;
use crate::user_memory::UserBuffer;
use crate::{Assert, Counters, Error, Fabric, FabricError};
use bytemuck::Pod;
use std::marker::PhantomData;
use std::time::Duration;
use transom_locks::{Barrier, Mode, Pscw, QueuePosition, Rank};

/// Memory of `T` elements at every rank, accessible to all ranks. Puts, gets and atomics need an epoch, which a call on
/// `&mut self` opens. An operation outside an epoch, or two epochs at once on one handle, therefore do not compile.
///
/// Element types are plain data ([`bytemuck::Pod`]: any bit pattern is a value), since other ranks may write at any
/// time. Safe calls therefore return no reference into the memory ([`Local::as_slice`] is unsafe); a rank reads and
/// writes its own part by copies, see [`local`](Self::local).
///
/// A window takes, at each rank, its elements and `64 (ranks + 1) + 64 ceil(log2 ranks) + 16 ranks + 8` bytes of lock,
/// barrier, post/start and free words.
///
/// # Examples
/// ```
/// // In `transom`: `let mut window = world.allocate::<u64>(64)?;`
/// # let fabric = transom_shm_loopback::Loopback::alone()?;
/// # let mut window = transom_windows::Window::<u64, _>::allocate(&fabric, 0, 64)?;
/// let epoch = window.lock_exclusive(0)?; // exclusive access to rank 0's part
/// let value = epoch.get_one(4)?;
/// epoch.put(4, &[value + 1])?;
/// epoch.unlock()?;
/// assert_eq!(window.local().get(4)?, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Window<T, F: Fabric> {
    pub(crate) core: Core<F>,
    pub(crate) lock: WindowLock<F>,
    pub(crate) barrier: Barrier,
    pub(crate) pscw: Pscw,
    /// User memory, if it holds the elements.
    pub(crate) user: Option<UserBuffer<T>>,
    pub(crate) element: PhantomData<fn() -> T>,
}

impl<T, F: Fabric> Drop for Window<T, F> {
    /// A leaked epoch keeps its lock, or its targets waiting, and no call could end it after this.
    fn drop(&mut self) {
        self.core.forget_attached();
        let completed = self.pscw.targets().is_none() || self.pscw.complete(&self.core.data).is_ok();
        self.core.data.fail_unless_settled(&mut self.lock);
        self.core.gates.drop_all(&self.core.data);
        if !self.lock.release_held_mut() || !completed {
            self.core.data.leave_unended();
        }
    }
}

impl<T: Pod, F: Fabric> Window<T, F> {
    /// The number of the window, in the order of creation by the job; errors name it.
    pub fn id(&self) -> u32 {
        self.core.id
    }

    /// This rank.
    pub fn rank(&self) -> Rank {
        self.lock.rank()
    }

    /// The number of ranks that share the window.
    pub fn ranks(&self) -> usize {
        self.core.data.remotes.len()
    }

    /// This rank's own part. Needs no epoch; puts of other ranks are seen once a synchronisation orders them.
    pub fn local(&self) -> Local<'_, T, F> {
        Local::new(&self.core)
    }

    /// This rank's own signal words. Needs no epoch.
    pub fn signals(&self) -> Signals<'_, F> {
        Signals { core: &self.core }
    }

    /// The operations of this rank on the window so far.
    pub fn counters(&self) -> Counters {
        self.core.data.counters.read()
    }

    /// Orders this rank's loads and stores of shared memory before and after this call. It is for programs that
    /// announce data by means of their own. No remote operation; epochs, fences and signals do not need it.
    ///
    /// # Examples
    /// ```
    /// # let fabric = transom_shm_loopback::Loopback::alone()?;
    /// # let mut window = transom_windows::Window::<u64, _>::allocate(&fabric, 0, 64)?;
    /// window.local().set(0, 1)?;
    /// window.sync();
    /// // ... send a message: the data is there
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn sync(&self) {
        self.local().sync();
    }

    /// Opens an access epoch with exclusive access to `target`. Waits, without remote operations, for earlier requests.
    /// Costs 1 compare-and-swap if the lock is free (2 if readers of other ranks used the lock since this rank last
    /// did), and 1 to unlock.
    ///
    /// # Errors
    /// [`Error::NoSuchRank`]; [`Error::Lock`] if an earlier epoch on the target was leaked, or if a rank died.
    #[inline(always)]
    pub fn lock_exclusive(&mut self, target: Rank) -> Result<LockEpoch<'_, T, F>, Error> {
        self.lock(target, Mode::Exclusive)
    }

    /// Opens an access epoch with shared access to `target`. Costs 1 fetch-and-add if no exclusive request is in the
    /// way, and 1 to unlock. The mode only describes the lock: all operations are allowed, and atomics need no more.
    ///
    /// # Errors
    /// The errors of [`lock_exclusive`](Self::lock_exclusive).
    ///
    /// # Examples
    /// ```
    /// # let fabric = transom_shm_loopback::Loopback::alone()?;
    /// # let mut window = transom_windows::Window::<u64, _>::allocate(&fabric, 0, 64)?;
    /// let epoch = window.lock_shared(0)?;
    /// assert_eq!(epoch.get_one(0)?, 0);
    /// epoch.unlock()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline(always)]
    pub fn lock_shared(&mut self, target: Rank) -> Result<LockEpoch<'_, T, F>, Error> {
        self.lock(target, Mode::Shared)
    }

    #[inline(always)]
    fn lock(&mut self, rank: Rank, mode: Mode) -> Result<LockEpoch<'_, T, F>, Error> {
        let target = Target::locked(&self.core, rank, mode)?;
        self.core.checks.synchronised(&self.core.data.counters);
        let Some(mut lock) = self.lock.one_mut(rank) else { return Err(self.core.no_such_rank(rank)) };
        let begun = lock.begin(mode);
        let position = match begun.is_done() {
            true => Position::FIRST,
            false => after_waiting(&self.core, rank, mode, lock.finish(begun))?,
        };
        self.core.data.counters.locks.bump();
        Ok(LockEpoch::new(target, Some(lock), position))
    }

    /// Opens an access epoch on `target` if that needs no waiting. Returns `None` if another request holds the lock or
    /// is queued in the way of this one. The attempt takes no place in the queue, so a rank that only repeats it may
    /// starve. Costs 1 compare-and-swap, or 2 if the first guess is stale.
    ///
    /// # Errors
    /// The errors of [`lock_exclusive`](Self::lock_exclusive).
    ///
    /// # Examples
    /// ```
    /// # let fabric = transom_shm_loopback::Loopback::alone()?;
    /// # let mut window = transom_windows::Window::<u64, _>::allocate(&fabric, 0, 64)?;
    /// use transom_windows::Mode;
    /// if let Some(epoch) = window.try_lock(0, Mode::Exclusive)? {
    ///     epoch.put(0, &[1])?;
    /// } else {
    ///     // Another rank holds the lock. The window is free again here; a `match` would still borrow it (E0499).
    ///     let epoch = window.lock_exclusive(0)?;
    ///     epoch.put(0, &[1])?;
    /// }
    /// # assert_eq!(window.local().get(0)?, 1);
    /// # Ok::<(), transom_windows::Error>(())
    /// ```
    pub fn try_lock(&mut self, target: Rank, mode: Mode) -> Result<Option<LockEpoch<'_, T, F>>, Error> {
        let opened = Target::locked(&self.core, target, mode)?;
        self.core.checks.synchronised(&self.core.data.counters);
        match self.lock.try_acquire_mut(target, mode) {
            Ok(false) => self.core.not_had(target).map(|()| None),
            Ok(true) => {
                self.core.data.counters.locks.bump();
                Ok(Some(LockEpoch::new(opened, self.lock.one_mut(target), Position::FIRST)))
            }
            Err(source) => Err(self.core.lock_error_at(target, source)),
        }
    }

    /// Opens an access epoch on `target` with a time limit: returns `None` if the lock is not granted within `limit`.
    /// The request queues as [`lock_exclusive`](Self::lock_exclusive) and [`lock_shared`](Self::lock_shared) do, and
    /// costs the same if it succeeds.
    ///
    /// At the deadline an exclusive request leaves the queue, by a few operations of this rank (`docs/cost.md`), and
    /// requests behind it move up. A shared request stays in the queue, and the rank that reaches it passes over it.
    /// The next shared request of this rank takes over its place, if its turn has not passed. An exclusive request,
    /// `lock_all`, or the end of the window waits until the turn has passed, and so for the holder, which must not wait
    /// for this rank. No other rank waits for either. A `limit` of 0 is [`try_lock`](Self::try_lock).
    ///
    /// # Errors
    /// The errors of `lock_exclusive`. The death of a rank is an error even before the deadline.
    ///
    /// # Examples
    /// ```
    /// # let fabric = transom_shm_loopback::Loopback::alone()?;
    /// # let mut window = transom_windows::Window::<u64, _>::allocate(&fabric, 0, 64)?;
    /// use std::time::Duration;
    /// use transom_windows::Mode;
    /// match window.try_lock_for(0, Mode::Exclusive, Duration::from_millis(100))? {
    ///     Some(epoch) => epoch.put(0, &[1])?,
    ///     None => println!("not in a tenth of a second"),
    /// }
    /// # assert_eq!(window.local().get(0)?, 1);
    /// # Ok::<(), transom_windows::Error>(())
    /// ```
    pub fn try_lock_for(
        &mut self,
        target: Rank,
        mode: Mode,
        limit: Duration,
    ) -> Result<Option<LockEpoch<'_, T, F>>, Error> {
        let opened = Target::locked(&self.core, target, mode)?;
        self.core.checks.synchronised(&self.core.data.counters);
        match self.lock.acquire_for_mut(target, mode, limit) {
            Ok(Some(ahead)) => {
                self.core.data.counters.locks.bump();
                if ahead != QueuePosition::default() {
                    waited(self.core.id, target, mode, ahead.exclusive, ahead.readers);
                }
                Ok(Some(LockEpoch::new(opened, self.lock.one_mut(target), Position::of(ahead))))
            }
            Ok(None) => self.core.not_had(target).map(|()| None),
            Err(source) => Err(self.core.lock_error_at(target, source)),
        }
    }

    /// [`lock_exclusive`](Self::lock_exclusive) or [`lock_shared`](Self::lock_shared) with assertions.
    /// [`Assert::NOCHECK`] takes no lock, and costs only a flush at the end.
    ///
    /// # Errors
    /// The errors of those calls; [`Error::Assertion`].
    ///
    /// # Examples
    /// ```
    /// # let fabric = transom_shm_loopback::Loopback::alone()?;
    /// # let mut window = transom_windows::Window::<u64, _>::allocate(&fabric, 0, 64)?;
    /// use transom_windows::{Assert, Mode};
    /// let epoch = window.lock_with(0, Mode::Exclusive, Assert::NOCHECK)?; // no other rank locks it now
    /// epoch.put(0, &[1])?;
    /// epoch.unlock()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn lock_with(&mut self, target: Rank, mode: Mode, asserted: Assert) -> Result<LockEpoch<'_, T, F>, Error> {
        self.core.allowed("lock", asserted, Assert::LOCK)?;
        if asserted.is_empty() {
            return self.lock(target, mode);
        }
        if cfg!(debug_assertions) {
            let id = self.core.id;
            let rank = self.core.data.fabric.rank();
            let epoch = self.lock(target, mode)?;
            return match epoch.ahead() == QueuePosition::default() {
                true => Ok(epoch),
                false => epoch.unlock().and(Err(nocheck(id, rank, "lock"))),
            };
        }
        self.core.checks.synchronised(&self.core.data.counters);
        let opened = Target::new(&self.core, target)?;
        Ok(LockEpoch::new(opened, None, Position::FIRST))
    }

    /// Opens an access epoch with shared access to all ranks, with all requests in flight at once: 1 fetch-and-add per
    /// rank, and 1 to unlock.
    ///
    /// # Errors
    /// The errors of [`lock_exclusive`](Self::lock_exclusive).
    ///
    /// # Examples
    /// ```
    /// # let fabric = transom_shm_loopback::Loopback::alone()?;
    /// # let mut window = transom_windows::Window::<u64, _>::allocate(&fabric, 0, 64)?;
    /// let epoch = window.lock_all()?;
    /// epoch.target(0)?.put(0, &[1])?;
    /// epoch.flush_all()?;
    /// epoch.unlock()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline(always)]
    pub fn lock_all(&mut self) -> Result<LockAllEpoch<'_, T, F>, Error> {
        match self.acquire_all() {
            Ok(_) => Ok(LockAllEpoch::new(&self.core, Some(&mut self.lock))),
            Err(error) => Err(error),
        }
    }

    /// Takes the locks of all ranks; returns whether an exclusive request was in the way.
    #[inline(always)]
    fn acquire_all(&mut self) -> Result<bool, Error> {
        self.core.checks.synchronised(&self.core.data.counters);
        match self.lock.acquire_all_mut() {
            Ok(waited) => {
                self.core.data.counters.locks.add(self.core.data.remotes.len() as u64);
                Ok(waited)
            }
            Err(source) => Err(self.core.lock_error(source)),
        }
    }

    /// [`lock_all`](Self::lock_all) with assertions, like [`lock_with`](Self::lock_with).
    ///
    /// # Errors
    /// The errors of those calls.
    ///
    /// # Examples
    /// ```
    /// # let fabric = transom_shm_loopback::Loopback::alone()?;
    /// # let mut window = transom_windows::Window::<u64, _>::allocate(&fabric, 0, 64)?;
    /// use transom_windows::Assert;
    /// let epoch = window.lock_all_with(Assert::NOCHECK)?; // no rank ever locks exclusively
    /// epoch.target(0)?.put(0, &[1])?;
    /// epoch.unlock()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn lock_all_with(&mut self, asserted: Assert) -> Result<LockAllEpoch<'_, T, F>, Error> {
        self.core.allowed("lock_all", asserted, Assert::LOCK)?;
        if asserted.is_empty() {
            return self.lock_all();
        }
        if cfg!(debug_assertions) {
            let waited = self.acquire_all()?;
            let (id, rank) = (self.core.id, self.core.data.fabric.rank());
            let epoch = LockAllEpoch::new(&self.core, Some(&mut self.lock));
            return if waited { epoch.unlock().and(Err(nocheck(id, rank, "lock_all"))) } else { Ok(epoch) };
        }
        self.core.checks.synchronised(&self.core.data.counters);
        Ok(LockAllEpoch::new(&self.core, None))
    }
}

/// The position of a request that was not granted at once, or its error.
#[cold]
#[inline(never)]
fn after_waiting<F: Fabric>(
    core: &Core<F>,
    rank: Rank,
    mode: Mode,
    acquired: Result<QueuePosition, transom_locks::Error<FabricError>>,
) -> Result<Position, Error> {
    let ahead = acquired.map_err(|source| core.lock_error_at(rank, source))?;
    if ahead != QueuePosition::default() {
        waited(core.id, rank, mode, ahead.exclusive, ahead.readers);
    }
    Ok(Position::of(ahead))
}

#[cold]
fn waited(window: u32, target: Rank, mode: Mode, behind: Option<Rank>, readers: u64) {
    tracing::trace!(window, target, ?mode, ?behind, readers, "lock granted after waiting");
}

#[cold]
fn nocheck(window: u32, rank: Rank, call: &'static str) -> Error {
    let why = "another rank holds the lock, or requests it";
    Error::Assertion { window, rank, call, asserted: Assert::NOCHECK, why }
}
