//! Synchronisation primitives of a rank's threads: the standard library's, or loom's where loom runs the code.

#[cfg(not(feature = "loom"))]
pub(crate) use std::{
    sync::atomic::{AtomicU64, AtomicUsize, fence},
    sync::{Mutex, MutexGuard},
    thread::{Thread, current, park_timeout as park},
};

#[cfg(feature = "loom")]
pub(crate) use loom_threads::*;

/// Loom has no clock: a parked thread there sleeps until it is unparked.
#[cfg(feature = "loom")]
mod loom_threads {
    pub use loom::sync::atomic::{AtomicU64, AtomicUsize, fence};
    pub use loom::sync::{Mutex, MutexGuard};
    pub use loom::thread::{Thread, current};
    use std::time::Duration;

    pub fn park(_: Duration) {
        loom::thread::park();
    }
}

/// A number of the calling thread: never 0, and unlike that of any other running thread. It is the address of a
/// thread-local variable, since the standard library's thread id costs two atomics.
#[cfg(not(feature = "loom"))]
#[inline]
pub(crate) fn this_thread() -> usize {
    thread_local!(static HERE: u8 = const { 0 });
    HERE.with(|here| std::ptr::from_ref(here).addr())
}

/// Loom runs its threads on one stack with shared thread-locals. It does not expose a thread's number, so the number is
/// a hash of the thread's id.
#[cfg(feature = "loom")]
pub(crate) fn this_thread() -> usize {
    use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
    BuildHasherDefault::<DefaultHasher>::default().hash_one(loom::thread::current().id()) as usize | 1
}

/// Returns whether a loom model has failed and is being torn down; the network must not execute verbs then.
pub(crate) fn model_has_failed() -> bool {
    cfg!(feature = "loom") && std::thread::panicking()
}
