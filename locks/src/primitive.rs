//! The mutex on which threads of one rank queue: the standard library's, or loom's where loom runs the code.

#[cfg(feature = "loom")]
pub(crate) use loom::{
    sync::{Condvar, Mutex, MutexGuard},
    thread::{ThreadId, current},
};
#[cfg(not(feature = "loom"))]
pub(crate) use std::{
    sync::{Condvar, Mutex, MutexGuard},
    thread::{ThreadId, current},
};
