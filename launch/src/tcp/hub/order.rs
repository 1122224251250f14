//! What the thread of the hub and others tell each other.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Instant;
use transom_locks::Rank;

/// What the hub's thread is told.
pub(super) enum Order {
    /// The rank's process has ended; well or not.
    Ended(Rank, bool),
    /// A rank that has not joined by then has died.
    AllBy(Instant),
    /// The hub ends when no rank needs it any more.
    StopAfterAll,
    /// The hub ends now.
    Stop,
}

/// The first rank of the job that died, for other threads than the hub's: one more than its number; 0 for none.
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
