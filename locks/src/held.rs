//! The lock of one rank, as held by a thread.

use crate::at_once::AtOnce;
use crate::one_lock::LockRecord;
use crate::primitive::model_has_failed;
use crate::threads::Turn;
use crate::{Error, Network, PassiveLock, Rank};
use std::fmt;
use std::marker::PhantomData;
use std::sync::MutexGuard;

/// The lock of one rank, held by the calling thread: see [`PassiveLock::acquire`]. Dropping it releases the lock and
/// discards any error.
///
/// A `Held` is also the thread's turn among the threads of its rank, so it cannot be sent to another thread. A leaked
/// `Held` keeps the lock until the handle is dropped: a further request of this thread fails, and other threads wait.
///
/// # Examples
#[cfg_attr(not(feature = "loom"), doc = "```")]
#[cfg_attr(feature = "loom", doc = "```no_run")]
/// use transom_locks::model::{sim, Sim};
/// use transom_locks::{LockLayout, Mode, PassiveLock};
///
/// let net = Sim::new(2, LockLayout::words(2), sim::once(|_, network| {
///     let lock = <PassiveLock<_>>::new(network, 0)?;
///     let (held, _ahead) = lock.acquire(1, Mode::Exclusive)?;
///     assert_eq!(held.target(), 1);
///     held.release()
/// }));
/// net.run_random(7).unwrap();
/// ```
#[must_use = "a lock that is dropped at once is released at once"]
pub struct Held<'l, N: Network, const C: u32 = 16> {
    lock: &'l PassiveLock<N, C>,
    record: &'l LockRecord<N, C>,
    target: Rank,
    /// Keeps the value in its thread.
    _thread: PhantomData<MutexGuard<'l, ()>>,
}

impl<'l, N: Network, const C: u32> Held<'l, N, C> {
    /// The lock of `target`, acquired by the thread that has `turn`.
    #[inline(always)]
    pub(crate) fn new(
        turn: Turn<'l, C>,
        lock: &'l PassiveLock<N, C>,
        record: &'l LockRecord<N, C>,
        target: Rank,
    ) -> Self {
        turn.keep();
        Held { lock, record, target, _thread: PhantomData }
    }

    /// The rank whose lock it is.
    pub fn target(&self) -> Rank {
        self.target
    }

    /// Releases the lock.
    ///
    /// # Errors
    /// The errors of [`TargetLock::release`](crate::TargetLock::release).
    #[inline(always)]
    pub fn release(self) -> Result<(), Error<N::Error>> {
        let released = Self::end(self.lock, self.record, self.target);
        std::mem::forget(self);
        released
    }

    /// Releases the lock and ends the turn, whether the release fails or not. If the network panics, the drop does
    /// both.
    #[inline(always)]
    fn end(lock: &PassiveLock<N, C>, record: &LockRecord<N, C>, target: Rank) -> Result<(), Error<N::Error>> {
        match record.release_at_once(&lock.network, lock.alone) {
            AtOnce::Done => {
                record.queue.end_turn();
                Ok(())
            }
            once => Self::end_after(lock, record, target, once),
        }
    }

    #[cold]
    #[inline(never)]
    fn end_after(
        lock: &PassiveLock<N, C>,
        record: &LockRecord<N, C>,
        target: Rank,
        once: AtOnce,
    ) -> Result<(), Error<N::Error>> {
        let released = record.release_after(&lock.network, lock.layout, target, once);
        record.queue.end_turn();
        released
    }

    /// The drop, with its arguments by value: a drop by address would keep every `Held` in memory.
    #[cold]
    #[inline(never)]
    fn dropped(lock: &PassiveLock<N, C>, record: &LockRecord<N, C>, target: Rank) {
        let _ = Self::end(lock, record, target);
    }
}

impl<N: Network, const C: u32> Drop for Held<'_, N, C> {
    #[inline(always)]
    fn drop(&mut self) {
        if !model_has_failed() {
            Self::dropped(self.lock, self.record, self.target);
        }
    }
}

impl<N: Network, const C: u32> fmt::Debug for Held<'_, N, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held").field("target", &self.target).finish_non_exhaustive()
    }
}
