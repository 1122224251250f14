//! The mutex on which threads of one rank queue, and what tells threads apart: the standard library's, or loom's where
//! loom runs the code.

#[cfg(feature = "loom")]
pub(crate) use loom::sync::{Condvar, Mutex, MutexGuard};
#[cfg(not(any(test, feature = "loom")))]
pub(crate) use std::sync::Condvar;
#[cfg(not(feature = "loom"))]
pub(crate) use std::sync::{Mutex, MutexGuard};
#[cfg(all(test, not(feature = "loom")))]
pub(crate) use told::Condvar;

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

/// The standard library's, but it counts how often it was told: each time is a system call, whether anybody waits or
/// not.
#[cfg(all(test, not(feature = "loom")))]
mod told {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    use std::sync::{LockResult, MutexGuard};

    #[derive(Default)]
    pub struct Condvar {
        condvar: std::sync::Condvar,
        pub told: AtomicUsize,
    }

    impl Condvar {
        pub fn new() -> Self {
            Self::default()
        }

        pub fn wait<'m, T>(&self, guard: MutexGuard<'m, T>) -> LockResult<MutexGuard<'m, T>> {
            self.condvar.wait(guard)
        }

        pub fn notify_one(&self) {
            self.told.fetch_add(1, Relaxed);
            self.condvar.notify_one();
        }
    }
}
