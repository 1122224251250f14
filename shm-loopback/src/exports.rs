//! Buffers that other ranks in this process may read: ranks that are threads, or the rank itself.

use std::sync::{Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use transom_channel::{Id, Slab};

/// A buffer: its address and length until it is withdrawn, and the number of current readers.
struct Export {
    place: Option<(usize, usize)>,
    readers: usize,
}

static EXPORTS: LazyLock<Mutex<Slab<Export>>> = LazyLock::new(Mutex::default);
/// Signalled when the last reader of a withdrawn buffer has finished.
static READ: Condvar = Condvar::new();

fn all() -> MutexGuard<'static, Slab<Export>> {
    EXPORTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lets other ranks read `length` bytes at an address, under the returned number, until they are [withdrawn](withdraw).
pub(crate) fn export(address: usize, length: usize) -> u64 {
    all().insert(Export { place: Some((address, length)), readers: 0 }).to_wire()
}

/// Withdraws a buffer. On return no rank reads it any more.
pub(crate) fn withdraw(number: u64) {
    let Some(id) = Id::from_wire(number) else { return };
    let mut exports = all();
    // From here on no new reader enters.
    exports.get_mut(id).into_iter().for_each(|export| export.place = None);
    while exports.get(id).is_some_and(|export| export.readers > 0) {
        exports = READ.wait(exports).unwrap_or_else(PoisonError::into_inner);
    }
    exports.remove(id);
}

/// A reader of a buffer; dropping it ends the read.
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

/// Enters a buffer as a reader, and returns the address of `length` bytes from `at` on. They stay valid until the
/// reader is dropped. `None` if there are no such bytes.
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

/// Calls `act` with the address of `length` bytes from `at` on, which stay valid meanwhile. `None` if there are no such
/// bytes.
pub(crate) fn with<R>(number: u64, at: usize, length: usize, act: impl FnOnce(usize) -> R) -> Option<R> {
    let (_reading, address) = enter(number, at, length)?;
    Some(act(address))
}
