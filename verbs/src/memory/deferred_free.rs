//! Memory that this rank no longer needs, while peers may still access it. What ranks made together is kept by
//! [`DeferredFree`](transom_network::DeferredFree). On other memory, each rank that uses it counts itself on a word of
//! the owner.

use super::Slot;
use crate::sys::Registered;
use std::sync::{Arc, Mutex};
use transom_launch::lock;
use transom_shm_loopback::View;

/// Memory that this rank no longer needs. Fields are dropped in this order.
pub(crate) struct Deferred {
    pub _registrations: Vec<Arc<Registered>>,
    pub _memory: View,
    /// Word on which peers that use the memory count themselves.
    pub reached: Option<Slot>,
}

/// Detached memory that peers may still access.
#[derive(Default)]
pub(crate) struct Detached(Mutex<Vec<Deferred>>);

impl Detached {
    /// Keeps detached memory until no peer counts itself on it.
    pub fn add(&self, memory: Deferred) {
        lock(&self.0).push(memory);
        self.sweep();
    }

    /// Releases detached memory without users. A peer that finds memory detached after counting itself does not access
    /// it.
    pub fn sweep(&self) {
        let reached = |memory: &mut Deferred| memory.reached.as_ref().is_some_and(|count| count.count() > 0);
        let gone: Vec<_> = lock(&self.0).extract_if(.., |memory| !reached(memory)).collect();
        drop(gone); // outside the lock
    }
}
