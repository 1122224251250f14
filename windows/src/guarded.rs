//! One value behind a lock, as threads know it from `std::sync`, between ranks: whoever locks has a copy of the value,
//! and what it made of it is written back at the unlock.

use crate::guard::{ReadGuard, WriteGuard};
use crate::value::{Kind, ValueLock, Which};
use crate::{Counters, Error, Fabric};
use bytemuck::Pod;
use std::fmt;
use std::time::Duration;
use transom_locks::{Mode, Rank};

/// One value in the memory of one rank, for one holder at a time: `std::sync::Mutex` between ranks. A
/// [`GlobalRwLock`] that nobody reads; all that is said there holds here.
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
/// guard.unlock()?; // or drop it; an error would then only be told on stderr
/// # Ok::<(), Error>(())
/// ```
pub struct GlobalMutex<T, F: Fabric>(GlobalRwLock<T, F>);

/// One value in the memory of one rank, its home, for one writer or any ranks that read: `std::sync::RwLock` between
/// ranks, granted in the order asked for. The home rank has no part in what others do, and may sleep.
///
/// The value is plain data ([`bytemuck::Pod`]), best of some kilobytes at most: a guard copies all of it. Larger
/// things belong in a [`Window`](crate::Window).
///
/// Threads of one rank may share a handle; they take turns in the order in which they ask, also those that read. A thread that asks for a lock it
/// holds gets [`Error::Value`], and does not hang.
///
/// **Poison.** A holder that panics while it could write poisons the value: it may be half changed. From then on
/// [`write`](Self::write) and [`read`](Self::read) return [`Error::Poisoned`] and leave the lock released, until
/// [`clear_poison`](Self::clear_poison); [`write_ignoring_poison`](Self::write_ignoring_poison) and
/// [`read_ignoring_poison`](Self::read_ignoring_poison) give the value all the same. (If the panic ends the rank, those
/// that wait just then may get the error of its death.)
///
/// When the process of a holder dies, the lock is lost: whoever waits for it gets an error that names that rank, and so
/// does every later call of theirs.
///
/// It costs each rank `64 (ranks + 1)` bytes of lock words, and the home rank the value and one byte, rounded up to 64; many
/// that are [made together](Self::many) cost less. For the costs of
/// calls in remote operations see [`write`](Self::write) and [`read`](Self::read).
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
    /// Collective; as [`GlobalRwLock::new`].
    ///
    /// # Errors
    /// As [`GlobalRwLock::new`].
    pub fn new(fabric: &F, id: u32, home: Rank, value: T) -> Result<Self, Error> {
        GlobalRwLock::made(fabric, id, Kind::Mutex, home, value).map(GlobalMutex)
    }

    /// Collective: an array of them in one piece of memory; as [`GlobalRwLock::many`].
    ///
    /// # Errors
    /// As `GlobalRwLock::many`.
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
        let made = ValueLock::make(fabric, id, Kind::Mutex, Which::Dealt(len), value)?;
        Ok(made.into_iter().map(|value| GlobalMutex(GlobalRwLock(value))).collect())
    }

    /// Takes the lock and a copy of the value. As [`GlobalRwLock::write`], which has the cost.
    ///
    /// # Errors
    /// As [`GlobalRwLock::write`].
    #[inline(always)]
    pub fn lock(&self) -> Result<WriteGuard<'_, T, F>, Error> {
        self.0.write()
    }

    /// [`lock`](Self::lock), if that needs no waiting: [`GlobalRwLock::try_write`].
    ///
    /// # Errors
    /// As `lock`.
    ///
    /// # Examples
    /// ```
    /// // In `transom`: `let next = world.mutex(0, 10u64)?;`
    /// # let fabric = transom_shm_loopback::Loopback::alone().expect("one rank");
    /// let next = transom_windows::GlobalMutex::new(&fabric, 0, 0, 10u64)?;
    /// match next.try_lock()? {
    ///     Some(mut next) => *next += 1,
    ///     None => println!("somebody else is at it"),
    /// }
    /// # assert_eq!(*next.lock()?, 11);
    /// # Ok::<(), transom_windows::Error>(())
    /// ```
    pub fn try_lock(&self) -> Result<Option<WriteGuard<'_, T, F>>, Error> {
        self.0.try_write()
    }

    /// [`lock`](Self::lock), unless it takes longer than `limit`: [`GlobalRwLock::try_write_for`].
    ///
    /// # Errors
    /// As `lock`.
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

    /// As [`lock`](Self::lock), whether the value is poisoned or not.
    ///
    /// # Errors
    /// As [`GlobalRwLock::write_ignoring_poison`].
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
    /// guard[1] = guard[0]; // mended
    /// pair.clear_poison()?;
    /// guard.unlock()?;
    /// assert_eq!(*pair.lock()?, [2, 2]);
    /// # Ok::<(), Error>(())
    /// ```
    pub fn lock_ignoring_poison(&self) -> Result<WriteGuard<'_, T, F>, Error> {
        self.0.write_ignoring_poison()
    }

    /// As [`GlobalRwLock::is_poisoned`].
    ///
    /// # Errors
    /// [`Error::Value`].
    pub fn is_poisoned(&self) -> Result<bool, Error> {
        self.0.is_poisoned()
    }

    /// As [`GlobalRwLock::clear_poison`].
    ///
    /// # Errors
    /// [`Error::Value`].
    pub fn clear_poison(&self) -> Result<(), Error> {
        self.0.clear_poison()
    }

    /// Its number, which counts with the windows. Errors name one of an array by its index there, and the array by the number of its
    /// first.
    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// The rank in whose memory the value is.
    pub fn home(&self) -> Rank {
        self.0.home()
    }

    /// What this rank did on it so far.
    pub fn counters(&self) -> Counters {
        self.0.counters()
    }
}

impl<T: Pod, F: Fabric> GlobalRwLock<T, F> {
    /// Collective: a value in the memory of `home`, which all ranks name alike. Every rank passes a value, and the
    /// home rank's is what it begins with. `id` names it in errors.
    ///
    /// # Errors
    /// [`Error::Value`] if there is no such rank, or for more ranks than a lock can have; [`Error::Size`] if `T` has no size;
    /// [`Error::Mismatch`] if ranks name different homes; [`Error::Collective`] if there is no memory, here or elsewhere. If one rank
    /// fails, all do.
    pub fn new(fabric: &F, id: u32, home: Rank, value: T) -> Result<Self, Error> {
        Self::made(fabric, id, Kind::RwLock, home, value)
    }

    fn made(fabric: &F, id: u32, kind: Kind, home: Rank, value: T) -> Result<Self, Error> {
        let mut made = ValueLock::make(fabric, id, kind, Which::One(home), |_| value)?;
        Ok(GlobalRwLock(made.remove(0)))
    }

    /// Collective: as many values as `len` says, in one piece of memory, for little more than one takes; the value of number
    /// `i` is in the memory of the rank `i % ranks`, which asks `value(i)` what it begins with. Errors name the array
    /// by `id`, and each value by its index.
    ///
    /// Each rank pays 64 bytes for each value, and for each of its own 64 more and the value and one byte, rounded up to 64.
    /// [`counters`](Self::counters) are those of all.
    ///
    /// # Errors
    /// As [`new`](Self::new); [`Error::Mismatch`] also if ranks name different lengths.
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
        let made = ValueLock::make(fabric, id, Kind::RwLock, Which::Dealt(len), value)?;
        Ok(made.into_iter().map(GlobalRwLock).collect())
    }

    /// Takes the lock for this thread alone, and a copy of the value; waits, without remote operations, behind those
    /// that asked before. Free: 1 compare-and-swap (2 if other ranks read since this rank last wrote) and 1 read; to
    /// unlock 1 write, if the guard was borrowed mutably, and 1 compare-and-swap.
    ///
    /// # Errors
    /// [`Error::Poisoned`]; [`Error::Value`] if this thread holds the lock, or leaked a guard, or a rank died that is
    /// needed. The lock is then not held.
    #[inline(always)]
    pub fn write(&self) -> Result<WriteGuard<'_, T, F>, Error> {
        WriteGuard::read(&self.0, self.0.acquire(Mode::Exclusive)?, false)
    }

    /// Takes the lock together with readers of other ranks, and a copy of the value. Free: 1 fetch-and-add and 1 read;
    /// to unlock 1 fetch-and-add.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    #[inline(always)]
    pub fn read(&self) -> Result<ReadGuard<'_, T, F>, Error> {
        ReadGuard::read(&self.0, self.0.acquire(Mode::Shared)?, false)
    }

    /// [`write`](Self::write), if that needs no waiting; none if somebody has the lock, or waits for it, another thread of this
    /// rank too. It takes no place in the queue.
    ///
    /// # Errors
    /// As `write`.
    ///
    /// # Examples
    /// ```
    /// // In `transom`: `let limits = world.rw_lock(0, 5u64)?;`
    /// # let fabric = transom_shm_loopback::Loopback::alone().expect("one rank");
    /// let limits = transom_windows::GlobalRwLock::new(&fabric, 0, 0, 5u64)?;
    /// if let Some(mut limits) = limits.try_write()? {
    ///     *limits += 1;
    /// }
    /// assert_eq!(*limits.try_read()?.expect("nobody writes"), 6);
    /// # Ok::<(), transom_windows::Error>(())
    /// ```
    pub fn try_write(&self) -> Result<Option<WriteGuard<'_, T, F>>, Error> {
        let Some(held) = self.0.try_acquire(Mode::Exclusive)? else { return Ok(None) };
        WriteGuard::read(&self.0, held, false).map(Some)
    }

    /// [`read`](Self::read), if that needs no waiting; else as [`try_write`](Self::try_write).
    ///
    /// # Errors
    /// As `read`.
    ///
    /// # Examples
    /// See `try_write`.
    pub fn try_read(&self) -> Result<Option<ReadGuard<'_, T, F>>, Error> {
        let Some(held) = self.0.try_acquire(Mode::Shared)? else { return Ok(None) };
        ReadGuard::read(&self.0, held, false).map(Some)
    }

    /// [`write`](Self::write), unless the lock is not this thread's within `limit`: then none. It takes its place in the queue, and
    /// at the deadline leaves it, as [`Window::try_lock_for`](crate::Window::try_lock_for) does, which says more; so do
    /// threads of one rank, in the order in which they ask.
    ///
    /// # Errors
    /// As `write`.
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
    /// assert_eq!(*limits.try_read_for(soon)?.expect("nobody writes"), 6);
    /// # Ok::<(), transom_windows::Error>(())
    /// ```
    pub fn try_write_for(&self, limit: Duration) -> Result<Option<WriteGuard<'_, T, F>>, Error> {
        let Some(held) = self.0.acquire_for(Mode::Exclusive, limit)? else { return Ok(None) };
        WriteGuard::read(&self.0, held, false).map(Some)
    }

    /// [`read`](Self::read) within `limit`; else as [`try_write_for`](Self::try_write_for), but that a request whose time is up stays
    /// in the queue and is passed over there.
    ///
    /// # Errors
    /// As `read`.
    ///
    /// # Examples
    /// See `try_write_for`.
    pub fn try_read_for(&self, limit: Duration) -> Result<Option<ReadGuard<'_, T, F>>, Error> {
        let Some(held) = self.0.acquire_for(Mode::Shared, limit)? else { return Ok(None) };
        ReadGuard::read(&self.0, held, false).map(Some)
    }

    /// As [`write`](Self::write), whether the value is poisoned or not.
    ///
    /// # Errors
    /// [`Error::Value`].
    ///
    /// # Examples
    /// See [`GlobalMutex::lock_ignoring_poison`].
    pub fn write_ignoring_poison(&self) -> Result<WriteGuard<'_, T, F>, Error> {
        WriteGuard::read(&self.0, self.0.acquire(Mode::Exclusive)?, true)
    }

    /// As [`read`](Self::read), whether the value is poisoned or not.
    ///
    /// # Errors
    /// [`Error::Value`].
    ///
    /// # Examples
    /// See [`GlobalMutex::lock_ignoring_poison`].
    pub fn read_ignoring_poison(&self) -> Result<ReadGuard<'_, T, F>, Error> {
        ReadGuard::read(&self.0, self.0.acquire(Mode::Shared)?, true)
    }

    /// Whether a holder panicked, and nobody has said since that the value is good. 1 read; takes no lock, so it may
    /// be otherwise right after.
    ///
    /// # Errors
    /// [`Error::Value`].
    pub fn is_poisoned(&self) -> Result<bool, Error> {
        let mut mark = [0];
        self.0.get(size_of::<T>(), &mut mark)?;
        Ok(mark != [0])
    }

    /// Says that the value is good. Takes no lock: best called by who holds the guard, having mended the value, which
    /// others see with it. 1 write and 1 flush.
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

    /// Its number, which counts with the windows. Errors name one of an array by its index there, and the array by the number of its
    /// first.
    pub fn id(&self) -> u32 {
        self.0.id
    }

    /// The rank in whose memory the value is.
    pub fn home(&self) -> Rank {
        self.0.home
    }

    /// What this rank did on it so far.
    pub fn counters(&self) -> Counters {
        self.0.data().counters.read()
    }
}

impl<T, F: Fabric> fmt::Debug for GlobalRwLock<T, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the value: that would take the lock.
        f.debug_struct("GlobalRwLock").field("id", &self.0.id).field("home", &self.0.home).finish_non_exhaustive()
    }
}

impl<T, F: Fabric> fmt::Debug for GlobalMutex<T, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("GlobalMutex").field(&self.0).finish()
    }
}
