//! What a lock around a value gives: a guard with a copy of the value, or the reason why not.
//!
//! A guard that is leaked is harmless to memory, for it owns its copy. The lock stays taken: the next call of its
//! thread says so, everybody else waits, until the handle is dropped.

use crate::{Error, Fabric, GlobalRwLock};
use bytemuck::Pod;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::MutexGuard;
use std::thread::panicking;
use transom_locks::Rank;

/// What [`GlobalMutex::lock`](crate::GlobalMutex::lock), [`GlobalRwLock::write`] and [`GlobalRwLock::read`] return.
pub type LockResult<G> = Result<G, LockError<G>>;

/// Why a lock gave no guard, or one to be careful with. `?` makes an [`Error`] of it, and lets go of the guard.
///
/// # Examples
/// ```
/// use transom_windows::{Error, GlobalMutex, LockError};
/// # let fabric = transom_shm_loopback::Loopback::alone().expect("one rank");
/// let pair = GlobalMutex::new(&fabric, 0, 0, [1, 1])?;
/// std::thread::scope(|scope| {
///     let change_half = || -> Result<(), Error> {
///         let mut guard = pair.lock()?;
///         guard[0] = 2;
///         panic!("before the other half")
///     };
///     assert!(scope.spawn(change_half).join().is_err());
/// });
/// assert!(matches!(pair.lock(), Err(LockError::Poisoned { .. })));
/// let mut guard = pair.lock().or_else(LockError::into_inner)?; // all the same
/// guard[1] = guard[0];
/// pair.clear_poison()?;
/// guard.unlock()?;
/// assert_eq!(*pair.lock()?, [2, 2]);
/// # Ok::<(), Error>(())
/// ```
#[non_exhaustive]
pub enum LockError<G> {
    /// A holder panicked while it had the lock to itself: what the value is part of may be half changed. The lock is
    /// held, by this guard. (If the panic ends the rank, those that wait just then may get the error of its death.)
    Poisoned {
        /// The guard, of the value as that holder left it.
        guard: G,
        /// The number of the lock.
        window: u32,
        /// The owner.
        rank: Rank,
    },
    /// The lock is not held.
    Failed(Error),
}

impl<G> LockError<G> {
    /// The guard, poisoned or not.
    ///
    /// # Errors
    /// What there was, if there is none.
    ///
    /// # Examples
    /// See [`LockError`].
    pub fn into_inner(self) -> Result<G, Error> {
        match self {
            LockError::Poisoned { guard, .. } => Ok(guard),
            LockError::Failed(error) => Err(error),
        }
    }
}

impl<G> From<LockError<G>> for Error {
    fn from(error: LockError<G>) -> Self {
        match error {
            LockError::Poisoned { window, rank, .. } => Error::Poisoned { window, rank },
            LockError::Failed(error) => error,
        }
    }
}

impl<G> fmt::Debug for LockError<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LockError::Poisoned { window, rank, .. } => {
                f.debug_struct("Poisoned").field("window", window).field("rank", rank).finish_non_exhaustive()
            }
            LockError::Failed(error) => f.debug_tuple("Failed").field(error).finish(),
        }
    }
}

impl<G> fmt::Display for LockError<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            LockError::Poisoned { window, rank, .. } => Error::Poisoned { window, rank }.fmt(f),
            LockError::Failed(ref error) => error.fmt(f),
        }
    }
}

impl<G> std::error::Error for LockError<G> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            LockError::Poisoned { .. } => None,
            // Shown as itself, so its own source is the next in the chain.
            LockError::Failed(error) => error.source(),
        }
    }
}

/// The value, for this thread alone: derefs to a copy, which is written back at the unlock if it was borrowed mutably.
/// Unlocks when dropped; if that is because of a panic, the value is poisoned.
///
/// It cannot be sent to another thread, for the lock knows who holds it by the thread:
/// ```compile_fail,E0277
/// fn send<F: transom_windows::Fabric>(lock: &transom_windows::GlobalMutex<u64, F>) {
///     let guard = lock.lock().unwrap();
///     std::thread::scope(|scope| { scope.spawn(move || drop(guard)); });
/// }
/// ```
///
/// # Examples
/// ```
/// use transom_windows::{Error, GlobalMutex};
/// # let fabric = transom_shm_loopback::Loopback::alone().expect("one rank");
/// let lock = GlobalMutex::new(&fabric, 0, 0, [3, 1, 2])?;
/// let mut guard = lock.lock()?;
/// guard.sort();
/// guard.unlock()?;
/// assert_eq!(*lock.lock()?, [1, 2, 3]);
/// # Ok::<(), Error>(())
/// ```
pub struct WriteGuard<'l, T: Pod, F: Fabric> {
    value: T,
    changed: bool,
    /// The thread panicked before it had the lock, so a panic is not what ends the guard.
    unwinding: bool,
    held: Held<'l, T, F>,
}

impl<'l, T: Pod, F: Fabric> WriteGuard<'l, T, F> {
    #[inline]
    pub(crate) fn new(lock: &'l GlobalRwLock<T, F>, value: T) -> Self {
        WriteGuard { value, changed: false, unwinding: panicking(), held: Held::new(lock) }
    }

    /// Writes the value back, if it was borrowed mutably, and unlocks: whoever locks next has it.
    ///
    /// # Errors
    /// [`Error::Fabric`] if the value could not be written; the lock is let go all the same. [`Error::Lock`] if a rank
    /// died that the unlock had to tell or hear from.
    #[inline]
    pub fn unlock(mut self) -> Result<(), Error> {
        self.finish()
    }

    fn finish(&mut self) -> Result<(), Error> {
        let Some(lock) = self.held.take() else { return Ok(()) };
        let poisoned = panicking() && !self.unwinding;
        if poisoned {
            tracing::warn!(window = lock.id(), owner = lock.owner(), "a panic poisons a value");
        }
        let stored = lock.store(self.changed.then_some(&self.value), poisoned);
        let released = lock.release();
        stored.and(released)
    }
}

impl<T: Pod, F: Fabric> Deref for WriteGuard<'_, T, F> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: Pod, F: Fabric> DerefMut for WriteGuard<'_, T, F> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        self.changed = true;
        &mut self.value
    }
}

impl<T: Pod + fmt::Debug, F: Fabric> fmt::Debug for WriteGuard<'_, T, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)
    }
}

impl<T: Pod, F: Fabric> Drop for WriteGuard<'_, T, F> {
    fn drop(&mut self) {
        log(self.finish());
    }
}

/// The value, together with readers of other ranks: derefs to a copy. Unlocks when dropped. It cannot be sent to
/// another thread, as a [`WriteGuard`].
///
/// # Examples
/// ```
/// use transom_windows::{Error, GlobalRwLock};
/// # let fabric = transom_shm_loopback::Loopback::alone().expect("one rank");
/// let lock = GlobalRwLock::new(&fabric, 0, 0, [3, 1, 2])?;
/// let guard = lock.read()?;
/// assert_eq!(guard.iter().max(), Some(&3));
/// guard.unlock()?;
/// # Ok::<(), Error>(())
/// ```
pub struct ReadGuard<'l, T: Pod, F: Fabric> {
    value: T,
    held: Held<'l, T, F>,
}

impl<'l, T: Pod, F: Fabric> ReadGuard<'l, T, F> {
    #[inline]
    pub(crate) fn new(lock: &'l GlobalRwLock<T, F>, value: T) -> Self {
        ReadGuard { value, held: Held::new(lock) }
    }

    /// Unlocks.
    ///
    /// # Errors
    /// [`Error::Lock`] if a rank died that the unlock had to tell or hear from.
    #[inline]
    pub fn unlock(mut self) -> Result<(), Error> {
        self.finish()
    }

    fn finish(&mut self) -> Result<(), Error> {
        self.held.take().map_or(Ok(()), GlobalRwLock::release)
    }
}

impl<T: Pod, F: Fabric> Deref for ReadGuard<'_, T, F> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: Pod + fmt::Debug, F: Fabric> fmt::Debug for ReadGuard<'_, T, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)
    }
}

impl<T: Pod, F: Fabric> Drop for ReadGuard<'_, T, F> {
    fn drop(&mut self) {
        log(self.finish());
    }
}

/// The lock that a guard holds, taken from it once: by `unlock`, or when it is dropped.
struct Held<'l, T, F: Fabric> {
    lock: Option<&'l GlobalRwLock<T, F>>,
    /// As the guards of `std`: not to be sent. The lock's queue knows a holder by its thread, so that one that asks
    /// again is told, and does not wait for itself.
    thread: PhantomData<MutexGuard<'static, ()>>,
}

impl<'l, T, F: Fabric> Held<'l, T, F> {
    #[inline]
    fn new(lock: &'l GlobalRwLock<T, F>) -> Self {
        Held { lock: Some(lock), thread: PhantomData }
    }

    #[inline]
    fn take(&mut self) -> Option<&'l GlobalRwLock<T, F>> {
        self.lock.take()
    }
}

fn log(unlocked: Result<(), Error>) {
    if let Err(error) = unlocked {
        tracing::error!(%error, "the guard of a value was dropped, and its unlock failed");
    }
}
