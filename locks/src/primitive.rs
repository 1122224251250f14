//! What threads of one rank queue with, and what tells threads apart: the standard library's, or where loom runs the code what loom
//! can look into.

#[cfg(not(feature = "loom"))]
pub(crate) use std::{
    sync::atomic::{AtomicU64, AtomicUsize, fence},
    sync::{Mutex, MutexGuard},
    thread::{Thread, current, park_timeout as park},
};

#[cfg(feature = "loom")]
pub(crate) use loom_threads::*;

/// Loom knows no time: a thread there sleeps until it is woken.
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
