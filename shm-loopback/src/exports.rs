//! Buffers of this process that other ranks of it may read, if ranks are threads; or the rank itself.

use std::sync::{Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use transom_channel::{Id, Slab};

/// A buffer: where it is, until it is withdrawn, and how many read there now.
struct Export {
    place: Option<(usize, usize)>,
    readers: usize,
}

static EXPORTS: LazyLock<Mutex<Slab<Export>>> = LazyLock::new(Mutex::default);
/// The last reader of a buffer that is withdrawn has ended.
static READ: Condvar = Condvar::new();

fn all() -> MutexGuard<'static, Slab<Export>> {
    EXPORTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lets others read `length` bytes at an address, by the number given, until it is [withdrawn](withdraw).
pub(crate) fn export(address: usize, length: usize) -> u64 {
    all().insert(Export { place: Some((address, length)), readers: 0 }).to_wire()
}

/// When this returns nobody reads there any more.
pub(crate) fn withdraw(number: u64) {
    let Some(id) = Id::from_wire(number) else { return };
    let mut exports = all();
    // From here on nobody begins to.
    exports.get_mut(id).into_iter().for_each(|export| export.place = None);
    while exports.get(id).is_some_and(|export| export.readers > 0) {
        exports = READ.wait(exports).unwrap_or_else(PoisonError::into_inner);
    }
    exports.remove(id);
}

/// Somebody reads there.
struct Reading(Id);

impl Drop for Reading {
    fn drop(&mut self) {
        if let Some(export) = all().get_mut(self.0) {
            export.readers -= 1;
            if export.readers == 0 && export.place.is_none() {
                READ.notify_all();
            }
        }
    }
}

/// The address of `length` bytes from `at` on, which stay until the reading is over. None if there are none.
fn enter(number: u64, at: usize, length: usize) -> Option<(Reading, usize)> {
    let id = Id::from_wire(number)?;
    let mut exports = all();
    let export = exports.get_mut(id)?;
    let (address, all) = export.place?;
    if at > all || length > all - at {
        return None;
    }
    export.readers += 1;
    Some((Reading(id), address + at))
}

/// Calls `act` with the address of `length` bytes from `at` on, which stay meanwhile. None if there are none.
pub(crate) fn with<R>(number: u64, at: usize, length: usize, act: impl FnOnce(usize) -> R) -> Option<R> {
    let (_reading, address) = enter(number, at, length)?;
    Some(act(address))
}
