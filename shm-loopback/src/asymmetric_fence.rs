//! An asymmetric fence: many threads on a fast path are ordered against a few that have time, and only the latter pay.
//!
//! Two threads each store a word, execute their fence, and load the other's word: at least one of them sees the other's
//! store. One calls [`light`], the other [`heavy`], which makes every processor that runs a registered process execute
//! a full fence (membarrier(2)). Where the kernel lacks that call (Linux before 4.16), no process is registered, and
//! both sides execute a fence themselves.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed, Ordering::SeqCst, compiler_fence, fence};

/// True if [`heavy`] fences of any process reach the threads of this one.
static REGISTERED: AtomicBool = AtomicBool::new(false);

/// Registers this process: its light fences cost nothing from now on.
pub(crate) fn register() {
    static ONCE: OnceLock<()> = OnceLock::new();
    ONCE.get_or_init(|| {
        #[cfg(not(miri))]
        if rustix::thread::membarrier(rustix::thread::MembarrierCommand::RegisterGlobalExpedited).is_ok() {
            REGISTERED.store(true, SeqCst);
        }
    });
}

/// The fence of the fast path.
#[inline(always)]
pub(crate) fn light() {
    match REGISTERED.load(Relaxed) {
        true => compiler_fence(SeqCst),
        false => fence(SeqCst),
    }
}

/// The fence of the slow path; takes some microseconds. Returns whether it reached the light fences of this process's
/// threads. It fails if the kernel refuses a call that it allowed before, for example by a system-call filter that the
/// program has installed since.
#[must_use]
pub(crate) fn heavy() -> bool {
    fence(SeqCst);
    #[cfg(not(miri))]
    let done = rustix::thread::membarrier(rustix::thread::MembarrierCommand::GlobalExpedited).is_ok();
    #[cfg(miri)]
    let done = false;
    done || !REGISTERED.load(Relaxed)
}
