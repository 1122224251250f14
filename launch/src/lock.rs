//! Locking of mutexes whose data are consistent whenever they are free.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex even if a thread panicked while it held the lock.
///
/// For mutexes whose data are consistent whenever the lock is free, so that poisoning carries no information.
///
/// # Examples
/// ```
/// let count = std::sync::Mutex::new(1);
/// *transom_launch::lock(&count) += 1;
/// assert_eq!(*transom_launch::lock(&count), 2);
/// ```
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
