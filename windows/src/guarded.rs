//! One value behind a lock, like `std::sync`'s but between ranks: a holder gets a copy of the value, and its changes
//! are written back at the unlock.

use crate::guard::{ReadGuard, WriteGuard};
use crate::value::{Kind, ValueLock, ValueSet};
use crate::{Counters, Error, Fabric};
use bytemuck::Pod;
use std::fmt;
use std::time::Duration;
use transom_locks::{Mode, Rank};

/// One value in the memory of one rank, for one holder at a time: `std::sync::Mutex` between ranks. It is a
/// [`GlobalRwLock`] without readers; everything said there applies.
///
/// # Examples
/// ```
/// // In `transom`: `let balance = world.mutex(0, 100i64)?;`
/// use transom_windows::{Error, GlobalMutex};
/// # let fabric = transom_shm_loopback::Loopback::alone().expect("one rank");
/// let balance = GlobalMutex::new(&fabric, 0, 0, 100i64)?; // number 0, in the memory of rank 0
/// *balance.lock()? -= 30;
/// let guard = balance.lock()?;
/// assert_eq!(*guard, 70);
/// guard.unlock()?; // or drop it; an error would then only be reported on stderr
/// # Ok::<(), Error>(())
/// ```
pub struct GlobalMutex<T, F: Fabric>(GlobalRwLock<T, F>);

/// One value in the memory of one rank, its home, for one writer or any number of reading ranks: `std::sync::RwLock`
/// between ranks, granted in FIFO order. The home rank takes no part in the calls of others, and may sleep.
///
/// The value is plain data ([`bytemuck::Pod`]), preferably of at most a few kilobytes, since a guard copies all of it.
/// Larger data belongs in a [`Window`](crate::Window).
///
/// Threads of one rank may share a handle; they take turns in the order in which they call, readers included. A thread
/// that requests a lock it holds gets [`Error::Value`] instead of hanging.
///
/// **Poison.** A holder that panics while it could write poisons the value, which may be half changed. From then on
/// [`write`](Self::write) and [`read`](Self::read) return [`Error::Poisoned`] and leave the lock released, until
/// [`clear_poison`](Self::clear_poison). [`write_ignoring_poison`](Self::write_ignoring_poison) and
/// [`read_ignoring_poison`](Self::read_ignoring_poison) return the value regardless. (If the panic ends the rank, ranks
/// that wait at that moment may get the error of its death.)
///
/// The death of a holder's process loses the lock: ranks that wait for it get an error that names the dead rank, as do
/// all their later calls.
///
/// A lock costs each rank `64 (ranks + 1)` bytes of lock words, and the home rank the value and one byte, rounded up to
/// 64. Locks that are [made together](Self::many) cost less. [`write`](Self::write) and [`read`](Self::read) have the
/// costs of calls in remote operations.
///
/// # Examples
/// ```
/// // In `transom`: `let limits = world.rw_lock(0, [0.0, 1.0])?;`
/// use transom_windows::{Error, GlobalRwLock};
/// # let fabric = transom_shm_loopback::Loopback::alone().expect("one rank");
/// let limits = GlobalRwLock::new(&fabric, 0, 0, [0.0, 1.0])?;
/// limits.write()?[1] = 2.5;
/// assert_eq!(limits.read()?.iter().sum::<f64>(), 2.5);
/// # Ok::<(), Error>(())
/// ```
pub struct GlobalRwLock<T, F: Fabric>(ValueLock<T, F>);

impl<T: Pod, F: Fabric> GlobalMutex<T, F> {
    /// Collective: creates one mutex; see [`GlobalRwLock::new`].
    ///
    /// # Errors
    /// The errors of [`GlobalRwLock::new`].
    pub fn new(fabric: &F, id: u32, home: Rank, value: T) -> Result<Self, Error> {
        GlobalRwLock::made(fabric, id, Kind::Mutex, home, value).map(GlobalMutex)
    }

    /// Collective: creates an array of mutexes in one piece of memory; see [`GlobalRwLock::many`].
    ///
    /// # Errors
    /// The errors of `GlobalRwLock::many`.
    ///
    /// # Examples
    /// ```
    /// // In `transom`: `let cells = world.mutexes(1000, |_| [0.0; 3])?;`
    /// # let fabric = transom_shm_loopback::Loopback::alone().expect("one rank");
    /// let cells = transom_windows::GlobalMutex::many(&fabric, 0, 1000, |_| [0.0; 3])?;
    /// cells[17].lock()?[2] += 0.5;
    /// assert_eq!(*cells[17].lock()?, [0.0, 0.0, 0.5]);
    /// # Ok::<(), transom_windows::Error>(())
    /// ```
    pub fn many(fabric: &F, id: u32, len: usize, value: impl FnMut(usize) -> T) -> Result<Vec<Self>, Error> {
        let made = ValueLock::make(fabric, id, Kind::Mutex, ValueSet::RoundRobin(len), value)?;
        Ok(made.into_iter().map(|value| GlobalMutex(GlobalRwLock(value))).collect())
    }

    /// Takes the lock and a copy of the value; see [`GlobalRwLock::write`], also for the cost.
    ///
    /// # Errors
    /// The errors of [`GlobalRwLock::write`].
    #[inline(always)]
    pub fn lock(&self) -> Result<WriteGuard<'_, T, F>, Error> {
        self.0.write()
    }

    /// [`lock`](Self::lock) if that needs no waiting: see [`GlobalRwLock::try_write`].
    ///
    /// # Errors
    /// The errors of `lock`.
    ///
    /// # Examples
    /// ```
    /// // In `transom`: `let next = world.mutex(0, 10u64)?;`
    /// # let fabric = transom_shm_loopback::Loopback::alone().expect("one rank");
    /// let next = transom_windows::GlobalMutex::new(&fabric, 0, 0, 10u64)?;
    /// match next.try_lock()? {
    ///     Some(mut next) => *next += 1,
    ///     None => println!("another rank or thread holds it"),
    /// }
    /// # assert_eq!(*next.lock()?, 11);
    /// # Ok::<(), transom_windows::Error>(())
    /// ```
    pub fn try_lock(&self) -> Result<Option<WriteGuard<'_, T, F>>, Error> {
        self.0.try_write()
    }

    /// [`lock`](Self::lock) with a time limit: see [`GlobalRwLock::try_write_for`].
    ///
    /// # Errors
    /// The errors of `lock`.
    ///
    /// # Examples
    /// ```
    /// // In `transom`: `let next = world.mutex(0, 10u64)?;`
    /// # let fabric = transom_shm_loopback::Loopback::alone().expect("one rank");
    /// use std::time::Duration;
    /// let next = transom_windows::GlobalMutex::new(&fabric, 0, 0, 10u64)?;
    /// match next.try_lock_for(Duration::from_millis(100))? {
    ///     Some(mut next) => *next += 1,
    ///     None => println!("not in a tenth of a second"),
    /// }
    /// # assert_eq!(*next.lock()?, 11);
    /// # Ok::<(), transom_windows::Error>(())
    /// ```
    pub fn try_lock_for(&self, limit: Duration) -> Result<Option<WriteGuard<'_, T, F>>, Error> {
        self.0.try_write_for(limit)
    }

    /// [`lock`](Self::lock) of a value that may be poisoned.
    ///
    /// # Errors
    /// The errors of [`GlobalRwLock::write_ignoring_poison`].
    ///
    /// # Examples
    /// ```
    /// // In `transom`: `let pair = world.mutex(0, [1, 1])?;`
    /// use transom_windows::{Error, GlobalMutex};
    /// # let fabric = transom_shm_loopback::Loopback::alone().expect("one rank");
    /// let pair = GlobalMutex::new(&fabric, 0, 0, [1, 1])?;
    /// std::thread::scope(|scope| {
    ///     let change_half = || -> Result<(), Error> {
    ///         pair.lock()?[0] = 2;
    ///         let _guard = pair.lock()?;
    ///         panic!("before the other half")
    ///     };
    ///     assert!(scope.spawn(change_half).join().is_err());
    /// });
    /// assert!(matches!(pair.lock(), Err(Error::Poisoned { .. })));
    /// let mut guard = pair.lock_ignoring_poison()?;
    /// guard[1] = guard[0]; // repaired
    /// pair.clear_poison()?;
    /// guard.unlock()?;
    /// assert_eq!(*pair.lock()?, [2, 2]);
    /// # Ok::<(), Error>(())
    /// ```
    pub fn lock_ignoring_poison(&self) -> Result<WriteGuard<'_, T, F>, Error> {
        self.0.write_ignoring_poison()
    }

    /// See [`GlobalRwLock::is_poisoned`].
    ///
    /// # Errors
    /// [`Error::Value`].
    pub fn is_poisoned(&self) -> Result<bool, Error> {
        self.0.is_poisoned()
    }

    /// See [`GlobalRwLock::clear_poison`].
    ///
    /// # Errors
    /// [`Error::Value`].
    pub fn clear_poison(&self) -> Result<(), Error> {
        self.0.clear_poison()
    }

    /// The mutex's number, counted together with the windows. Errors name a member of an array by its index, and the
    /// array by the number of its first member.
    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// The rank whose memory holds the value.
    pub fn home(&self) -> Rank {
        self.0.home()
    }

    /// The operations of this rank on the mutex so far.
    pub fn counters(&self) -> Counters {
        self.0.counters()
    }
}

impl<T: Pod, F: Fabric> GlobalRwLock<T, F> {
    /// Collective: creates a value in the memory of `home`, which all ranks must pass alike. Every rank passes a value,
    /// and the home rank's is the initial one. `id` names the lock in errors.
    ///
    /// # Errors
    /// [`Error::Value`] if there is no such rank, or for more ranks than a lock supports; [`Error::Size`] if `T` has no
    /// size; [`Error::Mismatch`] if ranks pass different homes; [`Error::Collective`] if no memory is available, here
    /// or at another rank. If one rank fails, all do.
    pub fn new(fabric: &F, id: u32, home: Rank, value: T) -> Result<Self, Error> {
        Self::made(fabric, id, Kind::RwLock, home, value)
    }

    fn made(fabric: &F, id: u32, kind: Kind, home: Rank, value: T) -> Result<Self, Error> {
        let mut made = ValueLock::make(fabric, id, kind, ValueSet::Single(home), |_| value)?;
        Ok(GlobalRwLock(made.remove(0)))
    }

    /// Collective: creates `len` values in one piece of memory, for little more than the cost of one. The value of
    /// index `i` is in the memory of rank `i % ranks`, which calls `value(i)` for its initial contents. Errors name the
    /// array by `id`, and each value by its index.
    ///
    /// Each rank pays 64 bytes per value, and for each of its own values 64 more and the value and one byte, rounded up
    /// to 64. [`counters`](Self::counters) count for the whole array.
    ///
    /// # Errors
    /// The errors of [`new`](Self::new); [`Error::Mismatch`] also if ranks pass different lengths.
    ///
    /// # Examples
    /// ```
    /// // In `transom`: `let squares = world.rw_locks(1000, |i| (i * i) as u64)?;`
    /// use transom_windows::GlobalRwLock;
    /// # let fabric = transom_shm_loopback::Loopback::alone().expect("one rank");
    /// let squares = GlobalRwLock::many(&fabric, 0, 1000, |i| (i * i) as u64)?;
    /// *squares[30].write()? += 1;
    /// assert_eq!((*squares[30].read()?, *squares[31].read()?), (901, 961));
    /// # Ok::<(), transom_windows::Error>(())
    /// ```
    pub fn many(fabric: &F, id: u32, len: usize, value: impl FnMut(usize) -> T) -> Result<Vec<Self>, Error> {
        let made = ValueLock::make(fabric, id, Kind::RwLock, ValueSet::RoundRobin(len), value)?;
        Ok(made.into_iter().map(GlobalRwLock).collect())
    }

    /// Takes the lock for this thread alone, with a copy of the value. Waits, without remote operations, for earlier
    /// requests. If the lock is free, it costs 1 compare-and-swap (2 if other ranks read since this rank last wrote)
    /// and 1 read. The unlock costs 1 write, if the guard was borrowed mutably, and 1 compare-and-swap.
    ///
    /// # Errors
    /// [`Error::Poisoned`]; [`Error::Value`] if this thread holds the lock, or leaked a guard, or if a rank died that
    /// is needed. The lock is not held then.
    #[inline(always)]
    pub fn write(&self) -> Result<WriteGuard<'_, T, F>, Error> {
        WriteGuard::read(&self.0, self.0.acquire(Mode::Exclusive)?, false)
    }

    /// Takes the lock together with readers of other ranks, with a copy of the value. If no writer is in the way, it
    /// costs 1 fetch-and-add and 1 read, and the unlock 1 fetch-and-add.
    ///
    /// # Errors
    /// The errors of [`write`](Self::write).
    #[inline(always)]
    pub fn read(&self) -> Result<ReadGuard<'_, T, F>, Error> {
        ReadGuard::read(&self.0, self.0.acquire(Mode::Shared)?, false)
    }

    /// [`write`](Self::write) if that needs no waiting. Returns `None` if another rank, or another thread of this rank,
    /// holds the lock or waits for it. Takes no place in the queue.
    ///
    /// # Errors
    /// The errors of `write`.
    ///
    /// # Examples
    /// ```
    /// // In `transom`: `let limits = world.rw_lock(0, 5u64)?;`
    /// # let fabric = transom_shm_loopback::Loopback::alone().expect("one rank");
    /// let limits = transom_windows::GlobalRwLock::new(&fabric, 0, 0, 5u64)?;
    /// if let Some(mut limits) = limits.try_write()? {
    ///     *limits += 1;
    /// }
    /// assert_eq!(*limits.try_read()?.expect("no writer"), 6);
    /// # Ok::<(), transom_windows::Error>(())
    /// ```
    pub fn try_write(&self) -> Result<Option<WriteGuard<'_, T, F>>, Error> {
        let Some(held) = self.0.try_acquire(Mode::Exclusive)? else { return Ok(None) };
        WriteGuard::read(&self.0, held, false).map(Some)
    }

    /// [`read`](Self::read) if that needs no waiting; otherwise like [`try_write`](Self::try_write).
    ///
    /// # Errors
    /// The errors of `read`.
    ///
    /// # Examples
    /// See `try_write`.
    pub fn try_read(&self) -> Result<Option<ReadGuard<'_, T, F>>, Error> {
        let Some(held) = self.0.try_acquire(Mode::Shared)? else { return Ok(None) };
        ReadGuard::read(&self.0, held, false).map(Some)
    }

    /// [`write`](Self::write) with a time limit: returns `None` if the lock is not granted within `limit`. The request
    /// queues, and leaves the queue at the deadline, as [`Window::try_lock_for`](crate::Window::try_lock_for)
    /// describes. Threads of one rank queue in the same way, in the order in which they call.
    ///
    /// # Errors
    /// The errors of `write`.
    ///
    /// # Examples
    /// ```
    /// // In `transom`: `let limits = world.rw_lock(0, 5u64)?;`
    /// # let fabric = transom_shm_loopback::Loopback::alone().expect("one rank");
    /// use std::time::Duration;
    /// let limits = transom_windows::GlobalRwLock::new(&fabric, 0, 0, 5u64)?;
    /// let soon = Duration::from_millis(100);
    /// if let Some(mut limits) = limits.try_write_for(soon)? {
    ///     *limits += 1;
    /// }
    /// assert_eq!(*limits.try_read_for(soon)?.expect("no writer"), 6);
    /// # Ok::<(), transom_windows::Error>(())
    /// ```
    pub fn try_write_for(&self, limit: Duration) -> Result<Option<WriteGuard<'_, T, F>>, Error> {
        let Some(held) = self.0.acquire_for(Mode::Exclusive, limit)? else { return Ok(None) };
        WriteGuard::read(&self.0, held, false).map(Some)
    }

    /// [`read`](Self::read) with a time limit, like [`try_write_for`](Self::try_write_for), except that at the deadline
    /// the request stays in the queue and is passed over there.
    ///
    /// # Errors
    /// The errors of `read`.
    ///
    /// # Examples
    /// See `try_write_for`.
    pub fn try_read_for(&self, limit: Duration) -> Result<Option<ReadGuard<'_, T, F>>, Error> {
        let Some(held) = self.0.acquire_for(Mode::Shared, limit)? else { return Ok(None) };
        ReadGuard::read(&self.0, held, false).map(Some)
    }

    /// [`write`](Self::write) of a value that may be poisoned.
    ///
    /// # Errors
    /// [`Error::Value`].
    ///
    /// # Examples
    /// See [`GlobalMutex::lock_ignoring_poison`].
    pub fn write_ignoring_poison(&self) -> Result<WriteGuard<'_, T, F>, Error> {
        WriteGuard::read(&self.0, self.0.acquire(Mode::Exclusive)?, true)
    }

    /// [`read`](Self::read) of a value that may be poisoned.
    ///
    /// # Errors
    /// [`Error::Value`].
    ///
    /// # Examples
    /// See [`GlobalMutex::lock_ignoring_poison`].
    pub fn read_ignoring_poison(&self) -> Result<ReadGuard<'_, T, F>, Error> {
        ReadGuard::read(&self.0, self.0.acquire(Mode::Shared)?, true)
    }

    /// Returns whether a holder panicked, and [`clear_poison`](Self::clear_poison) was not called since. 1 read. Takes
    /// no lock, so the answer may change right away.
    ///
    /// # Errors
    /// [`Error::Value`].
    pub fn is_poisoned(&self) -> Result<bool, Error> {
        let mut mark = [0];
        self.0.get(size_of::<T>(), &mut mark)?;
        Ok(mark != [0])
    }

    /// Declares the value good. Takes no lock. Best called by the holder of a guard that has repaired the value; others
    /// then see both together. 1 write and 1 flush.
    ///
    /// # Errors
    /// [`Error::Value`].
    ///
    /// # Examples
    /// See [`GlobalMutex::lock_ignoring_poison`].
    pub fn clear_poison(&self) -> Result<(), Error> {
        self.0.put(size_of::<T>(), &[0])?;
        self.0.data().counters.flushes.bump();
        self.0.data().fabric.flush(self.0.remote()).map_err(|source| self.0.error(source))
    }

    /// The lock's number, counted together with the windows. Errors name a member of an array by its index, and the
    /// array by the number of its first member.
    pub fn id(&self) -> u32 {
        self.0.id
    }

    /// The rank whose memory holds the value.
    pub fn home(&self) -> Rank {
        self.0.home
    }

    /// The operations of this rank on the lock so far.
    pub fn counters(&self) -> Counters {
        self.0.data().counters.read()
    }
}

impl<T, F: Fabric> fmt::Debug for GlobalRwLock<T, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The value is left out: reading it would take the lock.
        f.debug_struct("GlobalRwLock").field("id", &self.0.id).field("home", &self.0.home).finish_non_exhaustive()
    }
}

impl<T, F: Fabric> fmt::Debug for GlobalMutex<T, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("GlobalMutex").field(&self.0).finish()
    }
}
