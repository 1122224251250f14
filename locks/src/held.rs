//! The lock of one rank, as a thread holds it.

use crate::primitive::model_has_failed;
use crate::threads::Turn;
use crate::{Error, Network, PassiveLock, Rank};
use std::fmt;

/// The lock of one rank, held by this thread: [`PassiveLock::acquire`]. Released when dropped; an error is lost then.
///
/// It has the mutex on which the threads of this rank queue for that lock, so it cannot be sent to another. One that is
/// leaked keeps the lock until the handle is dropped: this thread is told, others wait.
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
    pub(crate) turn: Turn<'l, C>,
    pub(crate) lock: &'l PassiveLock<N, C>,
    pub(crate) target: Rank,
}

impl<N: Network, const C: u32> Held<'_, N, C> {
    /// The rank whose lock it is.
    pub fn target(&self) -> Rank {
        self.target
    }

    /// Releases the lock.
    ///
    /// # Errors
    /// As [`TargetLock::release`](crate::TargetLock::release).
    #[inline(always)]
    pub fn release(mut self) -> Result<(), Error<N::Error>> {
        self.release_mut()
    }

    /// As [`release`](Self::release), where moving this would take longer. Other threads of this rank wait until it is dropped.
    ///
    /// # Errors
    /// As `release`, and [`Error::NotLocked`] after it.
    #[inline(always)]
    pub fn release_mut(&mut self) -> Result<(), Error<N::Error>> {
        self.turn.release(&self.lock.network, self.lock.layout, self.target)
    }

    /// Whether it has not been released.
    #[inline(always)]
    pub fn is_held(&self) -> bool {
        self.turn.is_held()
    }
}

impl<N: Network, const C: u32> Held<'_, N, C> {
    #[cold]
    #[inline(never)]
    fn give_up(&mut self) {
        let _ = self.release_mut();
    }
}

impl<N: Network, const C: u32> Drop for Held<'_, N, C> {
    #[inline]
    fn drop(&mut self) {
        if self.is_held() && !model_has_failed() {
            self.give_up();
        }
    }
}

impl<N: Network, const C: u32> fmt::Debug for Held<'_, N, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held").field("target", &self.target).finish_non_exhaustive()
    }
}
