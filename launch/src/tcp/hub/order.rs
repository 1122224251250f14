//! Communication between the hub's thread and other threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Instant;
use transom_locks::Rank;

/// An order to the hub's thread.
pub(super) enum Order {
    /// The rank's process has ended; true if it exited successfully.
    Ended(Rank, bool),
    /// Ranks that have not joined by this time count as dead.
    AllBy(Instant),
    /// The hub ends once all ranks have left or died.
    StopAfterAll,
    /// The hub ends now.
    Stop,
}

/// The first rank of the job that died, readable by all threads: one more than its number; 0 if none has.
#[derive(Clone, Default)]
pub(super) struct FirstDeath(Arc<AtomicUsize>);

impl FirstDeath {
    pub fn set(&self, rank: Rank) {
        let _ = self.0.compare_exchange(0, rank + 1, SeqCst, SeqCst);
    }

    pub fn get(&self) -> Option<Rank> {
        self.0.load(SeqCst).checked_sub(1)
    }
}
