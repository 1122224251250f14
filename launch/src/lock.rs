//! Locks of mutexes whose data are whole whenever they are free.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex whose data are whole whenever it is free, also after a panic of the thread that held it.
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
