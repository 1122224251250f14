//! The lock of one rank: all that a handle keeps of it, and its steps for the only thread that uses the handle.

use crate::all_locks::LockState;
use crate::at_once::{AtOnce, LockWords};
use crate::threads::ThreadQueue;
use crate::{Error, LockLayout, Mode, Network, PassiveLock, QueuePosition, Rank, TargetLock};

/// The lock of one rank, for the only thread that uses the handle: see [`PassiveLock::one_mut`]. It does not release the
/// lock when it is dropped; a lock that is held then is still this rank's.
///
/// # Examples
#[cfg_attr(not(feature = "loom"), doc = "```")]
#[cfg_attr(feature = "loom", doc = "```no_run")]
/// use transom_locks::model::{sim, Sim};
/// use transom_locks::{LockLayout, Mode, PassiveLock};
///
/// let net = Sim::new(2, LockLayout::words(2), sim::once(|_, network| {
///     let mut locks = <PassiveLock<_>>::new(network, 0)?;
///     let mut lock = locks.one_mut(1).expect("rank 1 is there");
///     let begun = lock.begin(Mode::Exclusive);
///     if !begun.is_done() {
///         lock.finish(begun)?;
///     }
///     lock.release()
/// }));
/// net.run_random(7).unwrap();
/// ```
pub struct OneLock<'l, N: Network, const C: u32 = 16> {
    pub(crate) lock: &'l PassiveLock<N, C>,
    pub(crate) record: &'l LockRecord<N, C>,
    pub(crate) target: Rank,
}

impl<N: Network, const C: u32> OneLock<'_, N, C> {
    /// [`PassiveLock::acquire_mut`].
    ///
    /// # Errors
    /// The errors of [`PassiveLock::acquire`].
    #[inline(always)]
    pub fn acquire(&mut self, mode: Mode) -> Result<QueuePosition, Error<N::Error>> {
        let begun = self.begin(mode);
        if begun.is_done() { Ok(QueuePosition::default()) } else { self.finish(begun) }
    }

    /// The first step of [`acquire`](Self::acquire). It is the whole call if no other rank uses the lock, and the network
    /// [finds](Network::find) words. Otherwise [`finish`](Self::finish) must follow. A request that has changed the lock
    /// and is not finished leaves the lock broken for this rank,
    /// and other ranks may wait for it without end.
    #[inline(always)]
    pub fn begin(&mut self, mode: Mode) -> Begun {
        Begun(mode, self.record.at_once(&self.lock.network, mode, self.lock.alone))
    }

    /// The other steps of [`acquire`](Self::acquire), after [`begin`](Self::begin).
    ///
    /// # Errors
    /// The errors of [`PassiveLock::acquire`].
    #[inline(always)]
    pub fn finish(&mut self, begun: Begun) -> Result<QueuePosition, Error<N::Error>> {
        let Begun(mode, once) = begun;
        again(self.record.acquire_after(&self.lock.network, self.lock.layout, self.target, mode, once))
    }

    /// [`PassiveLock::release_mut`].
    ///
    /// # Errors
    /// The errors of [`TargetLock::release`].
    #[inline(always)]
    pub fn release(&mut self) -> Result<(), Error<N::Error>> {
        match self.record.release_at_once(&self.lock.network, self.lock.alone) {
            AtOnce::Done => Ok(()),
            once => again(self.record.release_after(&self.lock.network, self.lock.layout, self.target, once)),
        }
    }
}

/// A request that [`OneLock::begin`] began.
///
/// # Examples
/// See [`OneLock`].
#[must_use = "a request that is not done must be finished"]
pub struct Begun(Mode, AtOnce);

impl Begun {
    /// Returns whether this rank holds the lock already.
    #[inline(always)]
    pub fn is_done(&self) -> bool {
        self.1 == AtOnce::Done
    }
}

/// All that a rank keeps of the lock of one target. What a lock needs that no other rank uses is in the first cache line.
#[repr(C, align(64))]
pub(crate) struct LockRecord<N: Network, const C: u32> {
    pub words: Option<LockWords<N>>,
    pub queue: ThreadQueue<C>,
}

/// Steps of the thread that has its turn at the lock.
impl<N: Network, const C: u32> LockRecord<N, C> {
    /// Takes the lock, if no other rank uses it.
    #[inline(always)]
    pub fn at_once(&self, network: &N, mode: Mode, alone: u64) -> AtOnce {
        let Some(words) = &self.words else { return AtOnce::Unfit };
        // These verbs neither fail nor panic: the queue need not hold a broken lock meanwhile.
        let mut lock = self.queue.get();
        let once = match mode {
            Mode::Exclusive => lock.exclusive_at_once(network, words, alone),
            Mode::Shared => lock.shared_at_once(network, words),
        };
        if once != AtOnce::Unfit {
            self.queue.put(lock);
        }
        once
    }

    /// Goes on with a request after [`at_once`](Self::at_once).
    #[cold]
    #[inline(never)]
    pub fn acquire_after(
        &self,
        network: &N,
        layout: LockLayout,
        target: Rank,
        mode: Mode,
        once: AtOnce,
    ) -> Result<QueuePosition, Error<N::Error>> {
        let mut lock = self.queue.take();
        let acquired = match mode {
            Mode::Exclusive => lock.exclusive_from(network, layout, target, once),
            Mode::Shared => lock.shared_from(network, layout, target, once),
        };
        self.queue.put(lock);
        acquired
    }

    /// Releases the lock, if no other rank has requested it.
    #[inline(always)]
    pub fn release_at_once(&self, network: &N, alone: u64) -> AtOnce {
        let Some(words) = &self.words else { return AtOnce::Unfit };
        let mut lock = self.queue.get();
        let once = lock.release_at_once(network, words, alone);
        if once == AtOnce::Done {
            self.queue.put(lock);
        }
        once
    }

    /// Leaves the open group, if no exclusive request awaits that.
    #[inline(always)]
    pub fn depart_at_once(&self, network: &N) -> AtOnce {
        let Some(words) = &self.words else { return AtOnce::Unfit };
        let mut lock = self.queue.get();
        let once = lock.depart_at_once(network, words);
        if once == AtOnce::Done {
            self.queue.put(lock);
        }
        once
    }

    /// Goes on with a release after [`release_at_once`](Self::release_at_once).
    #[cold]
    #[inline(never)]
    pub fn release_after(
        &self,
        network: &N,
        layout: LockLayout,
        target: Rank,
        once: AtOnce,
    ) -> Result<(), Error<N::Error>> {
        let mut lock = self.queue.take();
        let released = lock.release_from(network, layout, target, once);
        self.queue.put(lock);
        released
    }
}

impl<N: Network, const C: u32> LockState<C> for LockRecord<N, C> {
    #[inline(always)]
    fn get(&self) -> TargetLock<C> {
        self.queue.get()
    }

    #[inline(always)]
    fn take(&mut self) -> TargetLock<C> {
        self.queue.take()
    }

    #[inline(always)]
    fn put(&mut self, lock: TargetLock<C>) {
        self.queue.put(lock);
    }

    #[inline(always)]
    fn end_leaked_turn(&mut self) {
        self.queue.end_leaked_turn();
    }
}

/// A result that a call returned in memory, as a new value, so that the path around that call needs no memory for it.
#[expect(clippy::needless_match, reason = "a new value, as said above")]
#[inline(always)]
pub(crate) fn again<T, E>(result: Result<T, E>) -> Result<T, E> {
    match result {
        Ok(value) => Ok(value),
        Err(error) => Err(error),
    }
}
