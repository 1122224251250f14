//! What a rank remembers of itself in debug builds, to check what its program asserts.

use crate::counters::{Count, CounterCells};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard};

/// What this rank did when it last synchronised, kept in debug builds only.
#[derive(Default)]
pub(crate) struct Checks {
    /// Writes to its own part: so far, and when it last synchronised.
    pub stores: Count,
    pub stores_then: AtomicU64,
    pub operations_then: AtomicU64,
    /// What its part was when it said that nobody will put there, and how often it had itself written to it.
    noput: Mutex<Option<Promise>>,
}

pub(crate) struct Promise {
    pub hash: u64,
    pub stores: u64,
}

impl Checks {
    #[inline(always)]
    pub fn stored(&self) {
        if cfg!(debug_assertions) {
            self.stores.bump();
        }
    }

    pub fn promised(&self) -> MutexGuard<'_, Option<Promise>> {
        self.noput.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    #[inline(always)]
    pub fn synchronised(&self, counters: &CounterCells) {
        if cfg!(debug_assertions) {
            self.stores_then.store(self.stores.get(), Relaxed);
            self.operations_then.store(operations(counters), Relaxed);
        }
    }
}

/// How often this rank has operated on the window.
pub(crate) fn operations(counters: &CounterCells) -> u64 {
    let done = counters.read();
    done.puts + done.gets + done.atomics + done.accumulates + done.signals
}
