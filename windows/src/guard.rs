//! Guards of a value behind a lock. Each holds a copy of the value.
//!
//! Leaking a guard does not endanger memory, since it owns its copy. The lock stays held until the handle is dropped
//! (for an array of locks, until all of them are): the next call of its thread reports that, and all others wait.

use crate::value::{HeldLock, Value, ValueLock};
use crate::{Error, Fabric, ValueName};
use bytemuck::Pod;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::AtomicU64;
use std::thread::panicking;

/// Exclusive access to the value: derefs to a copy, which is written back at the unlock if it was borrowed mutably.
/// Dropping it unlocks; a drop by a panic poisons the value ([`Error::Poisoned`]).
///
/// A guard cannot be sent to another thread, since the lock identifies its holder by thread:
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
    /// `None` once it is released.
    held: Option<HeldLock<'l, F>>,
    /// [`ValueLock::words`], for the write-back.
    words: Option<&'l [AtomicU64]>,
    value: Value<T>,
    changed: bool,
    /// The thread was unwinding before it had the lock, so that panic does not poison the value.
    unwinding: bool,
}

impl<'l, T: Pod, F: Fabric> WriteGuard<'l, T, F> {
    /// Reads the value into a guard for a held lock. A poisoned value is an error, unless `poisoned_too`.
    #[inline(always)]
    pub(crate) fn read(lock: &'l ValueLock<T, F>, held: HeldLock<'l, F>, poisoned_too: bool) -> Result<Self, Error> {
        let words = lock.words();
        match lock.read(words) {
            Ok(value) if !value.is_marked() || poisoned_too => {
                Ok(WriteGuard { lock, held: Some(held), words, value, changed: false, unwinding: panicking() })
            }
            read => Err(lock.refused(held, read.err())),
        }
    }

    /// Writes the value back, if it was borrowed mutably, and unlocks: the next holder sees it.
    ///
    /// # Errors
    /// [`Error::Value`] if the value could not be written (the lock is released regardless), or if a rank died that the
    /// unlock had to notify or wait for.
    #[inline(always)]
    pub fn unlock(self) -> Result<(), Error> {
        // Takes out every field that would need a drop.
        let mut guard = ManuallyDrop::new(self);
        let (held, value) = (guard.held.take(), guard.value.take());
        match held {
            Some(held) => finish(guard.lock, held, guard.words, guard.changed.then_some(value), guard.unwinding),
            None => Ok(()),
        }
    }
}

/// Writes the value back, if it has `changed`, and unlocks. A panic poisons it, unless `unwinding` says that it began
/// before the lock was taken.
#[inline(always)]
fn finish<T: Pod, F: Fabric>(
    lock: &ValueLock<T, F>,
    held: HeldLock<'_, F>,
    words: Option<&[AtomicU64]>,
    changed: Option<Value<T>>,
    unwinding: bool,
) -> Result<(), Error> {
    let poisoned = panicking() && !unwinding;
    if poisoned {
        warn(&lock.name());
    }
    match lock.store(words, changed, poisoned) {
        Ok(()) => lock.release(held),
        Err(unwritten) => lock.release_unwritten(held, unwritten),
    }
}

/// The drop of a guard, with its arguments by value: a drop by address would keep every guard in memory.
#[inline(never)]
fn dropped<T: Pod, F: Fabric>(
    lock: &ValueLock<T, F>,
    held: HeldLock<'_, F>,
    words: Option<&[AtomicU64]>,
    changed: Option<Value<T>>,
    unwinding: bool,
) {
    told(finish(lock, held, words, changed, unwinding));
}

impl<T: Pod, F: Fabric> Deref for WriteGuard<'_, T, F> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: Pod, F: Fabric> DerefMut for WriteGuard<'_, T, F> {
    #[inline(always)]
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
    #[inline(always)]
    fn drop(&mut self) {
        if let Some(held) = self.held.take() {
            let value = self.changed.then(|| self.value.take());
            dropped(self.lock, held, self.words, value, self.unwinding);
        }
    }
}

/// Shared access to the value, together with readers of other ranks: derefs to a copy. Dropping it unlocks. Like a
/// [`WriteGuard`] it cannot be sent to another thread.
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
    /// `None` once it is released.
    held: Option<HeldLock<'l, F>>,
    value: Value<T>,
}

impl<'l, T: Pod, F: Fabric> ReadGuard<'l, T, F> {
    /// Reads the value, like [`WriteGuard::read`].
    #[inline(always)]
    pub(crate) fn read(lock: &'l ValueLock<T, F>, held: HeldLock<'l, F>, poisoned_too: bool) -> Result<Self, Error> {
        match lock.read(lock.words()) {
            Ok(value) if !value.is_marked() || poisoned_too => Ok(ReadGuard { lock, held: Some(held), value }),
            read => Err(lock.refused(held, read.err())),
        }
    }

    /// Unlocks.
    ///
    /// # Errors
    /// [`Error::Value`] if a rank died that the unlock had to notify, or to wait for.
    #[inline(always)]
    pub fn unlock(self) -> Result<(), Error> {
        let mut guard = ManuallyDrop::new(self);
        drop(guard.value.take());
        match guard.held.take() {
            Some(held) => guard.lock.release(held),
            None => Ok(()),
        }
    }
}

impl<T: Pod, F: Fabric> Deref for ReadGuard<'_, T, F> {
    type Target = T;

    #[inline(always)]
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
    #[inline(always)]
    fn drop(&mut self) {
        if let Some(held) = self.held.take() {
            read_dropped(self.lock, held);
        }
    }
}

#[inline(never)]
fn read_dropped<T: Pod, F: Fabric>(lock: &ValueLock<T, F>, held: HeldLock<'_, F>) {
    told(lock.release(held));
}

#[cold]
fn warn(value: &ValueName) {
    tracing::warn!(%value, "a panic poisons the value");
}

fn told(unlocked: Result<(), Error>) {
    if let Err(error) = unlocked {
        crate::dropped::failed("the guard of a value was dropped, and its unlock failed", &error);
    }
}
