//! Barriers of which one side costs nothing: many threads in a hurry order what they do for a few that have time.
//!
//! Of two threads each of which stores a word, has its barrier, and loads the other's word, one at least sees what the other has
//! stored: the one calls [`light`], the other [`heavy`], which has every processor that runs a registered process do a full barrier
//! (membarrier(2)). Where the kernel has no such call (Linux before 4.16) nobody is registered, and both do their own.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed, Ordering::SeqCst, compiler_fence, fence};

/// Whether [`heavy`] barriers, of any process, reach the threads of this one.
static REGISTERED: AtomicBool = AtomicBool::new(false);

/// Registers this process: its light barriers cost nothing from now on.
pub(crate) fn register() {
    static ONCE: OnceLock<()> = OnceLock::new();
    ONCE.get_or_init(|| {
        #[cfg(not(miri))]
        if rustix::thread::membarrier(rustix::thread::MembarrierCommand::RegisterGlobalExpedited).is_ok() {
            REGISTERED.store(true, SeqCst);
        }
    });
}

/// The barrier of those in a hurry.
#[inline(always)]
pub(crate) fn light() {
    match REGISTERED.load(Relaxed) {
        true => compiler_fence(SeqCst),
        false => fence(SeqCst),
    }
}

/// The barrier of those who have time: some microseconds. Whether the light ones of this process's threads were met: not if the kernel
/// refuses what it has allowed before, as by a filter of system calls that the program has set since.
#[must_use]
pub(crate) fn heavy() -> bool {
    fence(SeqCst);
    #[cfg(not(miri))]
    let done = rustix::thread::membarrier(rustix::thread::MembarrierCommand::GlobalExpedited).is_ok();
    #[cfg(miri)]
    let done = false;
    done || !REGISTERED.load(Relaxed)
}
