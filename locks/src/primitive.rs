//! What threads of one rank queue with, and what tells threads apart: the standard library's, or where loom runs the code what loom
//! can look into.

#[cfg(not(feature = "loom"))]
pub(crate) use std::{
    sync::atomic::{AtomicUsize, fence},
    sync::{Mutex, Mutex as TryMutex, MutexGuard, MutexGuard as TryGuard},
    thread::{Thread, current, park_timeout as park},
};

#[cfg(feature = "loom")]
pub(crate) use loom_threads::*;

/// Loom knows no time: a thread there sleeps until it is woken.
#[cfg(feature = "loom")]
mod loom_threads {
    use loom::sync::atomic::{AtomicBool, Ordering};
    pub use loom::sync::atomic::{AtomicUsize, fence};
    pub use loom::sync::{Mutex, MutexGuard};
    pub use loom::thread::{Thread, current};
    use std::ops::{Deref, DerefMut};
    use std::sync::TryLockError;
    use std::time::Duration;

    pub fn park(_: Duration) {
        loom::thread::park();
    }

    /// A mutex that is only tried: loom's own never is found taken. As weak as the standard library promises.
    pub struct TryMutex<T> {
        taken: AtomicBool,
        value: std::sync::Mutex<T>,
    }

    impl<T> TryMutex<T> {
        pub fn new(value: T) -> Self {
            TryMutex { taken: AtomicBool::new(false), value: std::sync::Mutex::new(value) }
        }

        pub fn try_lock(&self) -> Result<TryGuard<'_, T>, TryLockError<TryGuard<'_, T>>> {
            match self.taken.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => {
                    let value = self.value.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                    Ok(TryGuard { taken: &self.taken, value: Some(value) })
                }
                Err(_) => Err(TryLockError::WouldBlock),
            }
        }

        pub fn get_mut(&mut self) -> std::sync::LockResult<&mut T> {
            self.value.get_mut()
        }
    }

    pub struct TryGuard<'m, T> {
        taken: &'m AtomicBool,
        value: Option<std::sync::MutexGuard<'m, T>>,
    }

    impl<T> Deref for TryGuard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            self.value.as_ref().expect("until it is dropped")
        }
    }

    impl<T> DerefMut for TryGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.value.as_mut().expect("until it is dropped")
        }
    }

    impl<T> Drop for TryGuard<'_, T> {
        fn drop(&mut self) {
            self.value = None;
            if !super::model_has_failed() {
                self.taken.store(false, Ordering::Release);
            }
        }
    }
}

/// A number of this thread, never 0, that no other has while this one runs: where a variable of the thread lies. (The
/// standard library's number costs two atomics.)
#[cfg(not(feature = "loom"))]
#[inline]
pub(crate) fn this_thread() -> usize {
    thread_local!(static HERE: u8 = const { 0 });
    HERE.with(|here| std::ptr::from_ref(here).addr())
}

/// Loom's threads share one stack and its variables, and loom shows no number of theirs, but hashes it.
#[cfg(feature = "loom")]
pub(crate) fn this_thread() -> usize {
    use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
    BuildHasherDefault::<DefaultHasher>::default().hash_one(loom::thread::current().id()) as usize | 1
}

/// Whether a model of loom has failed and is being taken down: it executes no verb any more.
pub(crate) fn model_has_failed() -> bool {
    cfg!(feature = "loom") && std::thread::panicking()
}
