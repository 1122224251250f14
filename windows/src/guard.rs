//! Guards of a value behind a lock: each has a copy of the value.
//!
//! A guard that is leaked is harmless to memory, for it owns its copy. The lock stays taken: the next call of its
//! thread says so, everybody else waits, until the handle is dropped; of an array of locks, all that were made with it.

use crate::value::{HeldLock, Value, ValueLock};
use crate::{Error, Fabric, ValueName};
use bytemuck::Pod;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::thread::panicking;

/// The value, for this thread alone: derefs to a copy, which is written back at the unlock if it was borrowed mutably.
/// Unlocks when dropped; if that is because of a panic, the value is poisoned ([`Error::Poisoned`]).
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
/// // In `transom`: `let lock = world.mutex(0, [3, 1, 2])?;`
/// use transom_windows::{Error, GlobalMutex};
/// # let fabric = transom_shm_loopback::Loopback::alone().expect("one rank");
/// let lock = GlobalMutex::new(&fabric, 0, 0, [3, 1, 2])?;
/// let mut guard = lock.lock()?;
/// guard.sort();
/// guard.unlock()?;
/// assert_eq!(*lock.lock()?, [1, 2, 3]);
/// # Ok::<(), Error>(())
/// ```
#[must_use = "a guard that is dropped at once unlocks at once"]
pub struct WriteGuard<'l, T: Pod, F: Fabric> {
    lock: &'l ValueLock<T, F>,
    held: HeldLock<'l, F>,
    value: Value<T>,
    changed: bool,
    /// The thread panicked before it had the lock, so a panic is not what ends the guard.
    unwinding: bool,
}

impl<'l, T: Pod, F: Fabric> WriteGuard<'l, T, F> {
    /// The guard of a lock that is held, with the value read into it; an error if the value is poisoned, unless `poisoned_too`.
    #[inline(always)]
    pub(crate) fn read(lock: &'l ValueLock<T, F>, held: HeldLock<'l, F>, poisoned_too: bool) -> Result<Self, Error> {
        let value = Value::zeroed();
        let mut guard = Ok(WriteGuard { lock, held, value, changed: false, unwinding: panicking() });
        if let Ok(made) = &mut guard {
            match lock.read(&mut made.value) {
                Ok(poisoned) if !poisoned || poisoned_too => {}
                read => return Err(lock.refused(&mut made.held, read.err())),
            }
        }
        guard
    }

    /// Writes the value back, if it was borrowed mutably, and unlocks: whoever locks next has it.
    ///
    /// # Errors
    /// [`Error::Value`] if the value could not be written, and the lock is released all the same; or if a rank died that the unlock
    /// had to tell or hear from.
    #[inline(always)]
    pub fn unlock(mut self) -> Result<(), Error> {
        self.finish()
    }

    #[inline(always)]
    fn finish(&mut self) -> Result<(), Error> {
        let poisoned = panicking() && !self.unwinding;
        if poisoned {
            warn(&self.lock.name());
        }
        let stored = self.lock.store(self.changed.then_some(&self.value), poisoned);
        let released = self.lock.release(&mut self.held);
        stored.and(released)
    }

    #[inline(never)]
    fn end(&mut self) {
        told(self.finish());
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
    #[inline]
    fn drop(&mut self) {
        if self.held.is_held() {
            self.end();
        }
    }
}

/// The value, together with readers of other ranks: derefs to a copy. Unlocks when dropped. It cannot be sent to
/// another thread, as a [`WriteGuard`].
///
/// # Examples
/// ```
/// // In `transom`: `let lock = world.rw_lock(0, [3, 1, 2])?;`
/// use transom_windows::{Error, GlobalRwLock};
/// # let fabric = transom_shm_loopback::Loopback::alone().expect("one rank");
/// let lock = GlobalRwLock::new(&fabric, 0, 0, [3, 1, 2])?;
/// let guard = lock.read()?;
/// assert_eq!(guard.iter().max(), Some(&3));
/// guard.unlock()?;
/// # Ok::<(), Error>(())
/// ```
#[must_use = "a guard that is dropped at once unlocks at once"]
pub struct ReadGuard<'l, T: Pod, F: Fabric> {
    lock: &'l ValueLock<T, F>,
    held: HeldLock<'l, F>,
    value: Value<T>,
}

impl<'l, T: Pod, F: Fabric> ReadGuard<'l, T, F> {
    /// As [`WriteGuard::read`].
    #[inline(always)]
    pub(crate) fn read(lock: &'l ValueLock<T, F>, held: HeldLock<'l, F>, poisoned_too: bool) -> Result<Self, Error> {
        let mut guard = Ok(ReadGuard { lock, held, value: Value::zeroed() });
        if let Ok(made) = &mut guard {
            match lock.read(&mut made.value) {
                Ok(poisoned) if !poisoned || poisoned_too => {}
                read => return Err(lock.refused(&mut made.held, read.err())),
            }
        }
        guard
    }

    /// Unlocks.
    ///
    /// # Errors
    /// [`Error::Value`] if a rank died that the unlock had to notify, or to wait for.
    #[inline]
    pub fn unlock(mut self) -> Result<(), Error> {
        self.lock.release(&mut self.held)
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
        if self.held.is_held() {
            told(self.lock.release(&mut self.held));
        }
    }
}

#[cold]
fn warn(value: &ValueName) {
    tracing::warn!(%value, "a panic poisons it");
}

fn told(unlocked: Result<(), Error>) {
    if let Err(error) = unlocked {
        crate::dropped::failed("the guard of a value was dropped, and its unlock failed", &error);
    }
}
