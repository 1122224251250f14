//! The mutex on which threads of one rank queue, and what tells threads apart: the standard library's, or loom's where
//! loom runs the code.

#[cfg(feature = "loom")]
pub(crate) use loom::{
    sync::{Condvar, Mutex, MutexGuard},
    thread::ThreadId,
};
#[cfg(not(feature = "loom"))]
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};

/// Tells apart threads that run at the same time: where a variable of the thread lies. (The standard library's number
/// costs two atomics.)
#[cfg(not(feature = "loom"))]
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct ThreadId(usize);

#[cfg(not(feature = "loom"))]
#[inline]
pub(crate) fn this_thread() -> ThreadId {
    thread_local!(static HERE: u8 = const { 0 });
    HERE.with(|here| ThreadId(std::ptr::from_ref(here).addr()))
}

#[cfg(feature = "loom")]
pub(crate) fn this_thread() -> ThreadId {
    loom::thread::current().id()
}
