//! Buffers of this process that other ranks of it may read, if ranks are threads; or the rank itself.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, LazyLock, Mutex, RwLock};

/// A buffer, until it is withdrawn.
type Export = Arc<RwLock<Option<(usize, usize)>>>;

static EXPORTS: LazyLock<Mutex<HashMap<u64, Export>>> = LazyLock::new(Mutex::default);
static NUMBERS: AtomicU64 = AtomicU64::new(1);

fn all() -> std::sync::MutexGuard<'static, HashMap<u64, Export>> {
    EXPORTS.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Lets others read `length` bytes at an address, by the number given, until it is [withdrawn](withdraw).
pub(crate) fn export(address: usize, length: usize) -> u64 {
    let number = NUMBERS.fetch_add(1, Relaxed);
    all().insert(number, Arc::new(RwLock::new(Some((address, length)))));
    number
}

/// When this returns nobody reads there any more.
pub(crate) fn withdraw(number: u64) {
    let export = all().remove(&number);
    if let Some(export) = export {
        // Waits for those who are reading.
        *export.write().unwrap_or_else(|poisoned| poisoned.into_inner()) = None;
    }
}

/// Calls `act` with the address of `length` bytes from `at` on, which stay meanwhile. None if there are none.
pub(crate) fn with<R>(number: u64, at: usize, length: usize, act: impl FnOnce(usize) -> R) -> Option<R> {
    let export = all().get(&number).cloned()?;
    let held = export.read().unwrap_or_else(|poisoned| poisoned.into_inner());
    match *held {
        Some((address, all)) if at <= all && length <= all - at => Some(act(address + at)),
        _ => None,
    }
}
