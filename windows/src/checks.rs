//! Records of this rank's own actions, kept in debug builds to check what its program asserts.

use crate::counters::{Count, CounterCells};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard};

/// This rank's actions around its last synchronisation. Kept in debug builds only.
#[derive(Default)]
pub(crate) struct Checks {
    /// Writes to this rank's own part: so far, and up to its last synchronisation.
    pub stores: Count,
    pub stores_then: AtomicU64,
    pub operations_then: AtomicU64,
    /// The state of this rank's part when the program asserted NOPUT, and the number of its own writes then.
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

/// The number of operations of this rank on the window.
pub(crate) fn operations(counters: &CounterCells) -> u64 {
    let done = counters.read();
    done.puts + done.gets + done.atomics + done.accumulates + done.signals
}
