//! The passive lock for programs: one lock at each rank, shared or exclusive, granted in FIFO order.

use crate::all_locks::{AllLocks, InFlight};
use crate::at_once::{AtOnce, LockWords, alone};
use crate::one_lock::{LockRecord, OneLock, again};
use crate::primitive::model_has_failed;
use crate::threads::ThreadQueue;
use crate::{Error, Held, LockLayout, LockWord, Network, QueuePosition, Rank, TargetLock};
use std::time::{Duration, Instant};

/// The mode of a request for a lock.
///
/// # Examples
/// ```
/// assert_ne!(transom_locks::Mode::Shared, transom_locks::Mode::Exclusive);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Held together with other readers.
    Shared,
    /// Held by one rank alone.
    Exclusive,
}

/// One rank's handle on the locks of all ranks. There is one shared/exclusive lock at each rank. It is truly passive
/// (its home rank may sleep), and granted first come, first served, in the order of the atomics on its word.
///
/// Threads of one rank may share a handle through [`acquire`](Self::acquire). For one target they first queue at the
/// handle, in the order in which they call. A thread keeps its turn until it has released the lock. The `_mut` calls
/// need `&mut` access and bypass that queue.
///
/// Dropping a handle releases every lock that it holds, however acquired, and waits for shared requests that were given
/// up. A call that fails midway may leave a lock [`Broken`](Error::Broken); other ranks may then wait for this rank
/// until the network ends their waits.
///
/// `C` is the width of the word's reader counts; change it only in checks where counts must wrap.
///
/// After Li et al., "Efficient and Truly Passive MPI-3 RMA Using InfiniBand Atomics", EuroMPI 2013. README.md beside
/// the code has the steps and the cost of each call.
///
/// # Examples
#[cfg_attr(not(feature = "loom"), doc = "```")]
#[cfg_attr(feature = "loom", doc = "```no_run")] // Loom's mutex works inside loom's models only.
/// use transom_locks::model::{sim, Sim};
/// use transom_locks::{Error, LockLayout, Mode, PassiveLock};
///
/// let net = Sim::new(3, LockLayout::words(3), sim::once(|_, network| {
///     let lock = <PassiveLock<_>>::new(network, 0)?;
///     let (held, ahead) = lock.acquire(2, Mode::Exclusive)?; // the lock of rank 2
///     assert_ne!(ahead.exclusive, Some(lock.rank()));
///     assert_eq!(lock.acquire(2, Mode::Shared).err(), Some(Error::AlreadyLocked { target: 2 }));
///     held.release()
/// }));
/// net.run_random(7).unwrap();
/// ```
pub struct PassiveLock<N: Network, const C: u32 = 16> {
    pub(crate) layout: LockLayout,
    /// One per target. Dropped before the network, in whose memory the words lie.
    locks: Box<[LockRecord<N, C>]>,
    in_flight: Box<[InFlight<N>]>,
    /// See [`alone`].
    pub(crate) alone: u64,
    pub(crate) network: N,
}

/// The lock, and the queue position of its request.
type HeldAfter<'l, N, const C: u32> = (Held<'l, N, C>, QueuePosition);

impl<N: Network, const C: u32> PassiveLock<N, C> {
    /// Creates a handle on locks whose words begin at `base` (the beginning of a cache line) in each rank's memory and
    /// are initially 0. Every rank of `network` creates one with the same `base`; the call communicates nothing.
    ///
    /// # Errors
    /// [`Error::TooManyRanks`] if the lock word cannot name and count all ranks.
    pub fn new(network: N, base: usize) -> Result<Self, Error<N::Error>> {
        let (ranks, most) = (network.ranks(), LockWord::<C>::MAX_RANKS);
        if ranks > most {
            return Err(Error::TooManyRanks { ranks, most });
        }
        let layout = LockLayout::new(base, ranks);
        let record =
            |target| LockRecord { words: LockWords::find(&network, layout, target), queue: ThreadQueue::new() };
        let locks = (0..ranks).map(record).collect();
        let in_flight = (0..ranks).map(|_| None).collect();
        Ok(PassiveLock { layout, locks, in_flight, alone: alone(network.rank()), network })
    }

    /// The rank of this handle.
    pub fn rank(&self) -> Rank {
        self.network.rank()
    }

    /// Takes the lock of `target`, and returns it with the queue position of the request. If another thread of this
    /// rank holds the lock, the call waits for that thread first.
    ///
    /// # Errors
    /// The errors of [`TargetLock::exclusive`], and [`Error::NoSuchRank`]. [`Error::AlreadyLocked`] only if this thread
    /// holds the lock or a `_mut` call has taken it.
    #[inline(always)]
    pub fn acquire(&self, target: Rank, mode: Mode) -> Result<HeldAfter<'_, N, C>, Error<N::Error>> {
        let record = self.record(target)?;
        let turn = match record.queue.turn() {
            Some(turn) => turn,
            None => return Err(Error::AlreadyLocked { target }),
        };
        let ahead = match record.at_once(&self.network, mode, self.alone) {
            AtOnce::Done => QueuePosition::default(),
            once => record.acquire_after(&self.network, self.layout, target, mode, once)?,
        };
        Ok((Held::new(turn, self, record, target), ahead))
    }

    /// Takes the lock of `target` if that needs no waiting. Returns `None` if another rank holds it or is queued in the
    /// way of this request, or if another thread of this rank holds or requests it. The attempt takes no place in the
    /// queue, so a rank that only repeats it may starve.
    ///
    /// # Errors
    /// The errors of [`acquire`](Self::acquire).
    ///
    /// # Examples
    #[cfg_attr(not(feature = "loom"), doc = "```")]
    #[cfg_attr(feature = "loom", doc = "```no_run")]
    /// use transom_locks::model::{sim, Sim};
    /// use transom_locks::{LockLayout, Mode::{Exclusive, Shared}, PassiveLock};
    ///
    /// let net = Sim::new(1, LockLayout::words(1), sim::once(|_, network| {
    ///     let lock = <PassiveLock<_>>::new(network, 0)?;
    ///     let held = lock.try_acquire(0, Shared)?.expect("it is free"); // of another rank it might not be
    ///     held.release()?;
    ///     lock.try_acquire(0, Exclusive)?.expect("it is free again").release()
    /// }));
    /// net.run_random(7).unwrap();
    /// ```
    pub fn try_acquire(&self, target: Rank, mode: Mode) -> Result<Option<Held<'_, N, C>>, Error<N::Error>> {
        let record = self.record(target)?;
        if record.queue.is_mine() {
            return Err(Error::AlreadyLocked { target });
        }
        let Some(turn) = record.queue.turn_at_once() else { return Ok(None) };
        let mut lock = turn.queue.take();
        let acquired = Self::try_mode(&mut lock, &self.network, self.layout, target, mode);
        turn.queue.put(lock);
        Ok(acquired?.then(|| Held::new(turn, self, record, target)))
    }

    /// [`acquire`](Self::acquire) with a time limit: returns `None` if the lock is not this thread's within `limit`.
    /// The request queues as `acquire` does. At the deadline an exclusive request leaves the queue. A shared one stays
    /// there: the rank that reaches it passes over it, or this rank's next shared request takes over its place
    /// ([`TargetLock::shared_until`]). Either delays other ranks only by verbs of this rank. The call may return after
    /// the deadline, by verbs of this rank and of ranks that request at the same time. A `limit` of 0 is
    /// [`try_acquire`](Self::try_acquire), and one beyond the clock's range is `acquire`.
    ///
    /// # Errors
    /// The errors of `acquire`.
    ///
    /// # Examples
    #[cfg_attr(not(feature = "loom"), doc = "```")]
    #[cfg_attr(feature = "loom", doc = "```no_run")]
    /// use std::time::Duration;
    /// use transom_locks::model::{sim, Sim};
    /// use transom_locks::{LockLayout, Mode, PassiveLock};
    ///
    /// let net = Sim::new(1, LockLayout::words(1), sim::once(|_, network| {
    ///     let lock = <PassiveLock<_>>::new(network, 0)?;
    ///     let held = lock.acquire_for(0, Mode::Exclusive, Duration::from_millis(1))?;
    ///     held.expect("nobody else wants it").0.release()
    /// }));
    /// net.run_random(7).unwrap();
    /// ```
    pub fn acquire_for(
        &self,
        target: Rank,
        mode: Mode,
        limit: Duration,
    ) -> Result<Option<HeldAfter<'_, N, C>>, Error<N::Error>> {
        let Some(deadline) = deadline(limit) else { return self.acquire(target, mode).map(Some) };
        if limit.is_zero() {
            return Ok(self.try_acquire(target, mode)?.map(|held| (held, QueuePosition::default())));
        }
        let record = self.record(target)?;
        if record.queue.is_mine() {
            return Err(Error::AlreadyLocked { target });
        }
        let Some(turn) = record.queue.turn_by(deadline) else { return Ok(None) };
        let mut lock = turn.queue.take();
        let ahead = Self::until(&mut lock, &self.network, self.layout, target, mode, deadline);
        turn.queue.put(lock);
        Ok(ahead?.map(|ahead| (Held::new(turn, self, record, target), ahead)))
    }

    /// [`acquire`](Self::acquire) by the only thread that uses the handle, as `&mut` proves: no thread queue, only the
    /// protocol's own atomics.
    ///
    /// # Errors
    /// The errors of [`acquire`](Self::acquire).
    #[inline(always)]
    pub fn acquire_mut(&mut self, target: Rank, mode: Mode) -> Result<QueuePosition, Error<N::Error>> {
        match self.one_mut(target) {
            Some(mut lock) => lock.acquire(mode),
            None => Err(self.no_such_rank(target)),
        }
    }

    /// The lock of `target`, for a caller that has its steps in line; `None` if there is no such rank. This handle is
    /// borrowed as long as the caller keeps it.
    ///
    /// # Examples
    /// See [`OneLock`].
    #[inline(always)]
    pub fn one_mut(&mut self, target: Rank) -> Option<OneLock<'_, N, C>> {
        let lock = &*self;
        lock.locks.get(target).map(|record| OneLock { lock, record, target })
    }

    #[cold]
    fn no_such_rank(&self, rank: Rank) -> Error<N::Error> {
        Error::NoSuchRank { rank, ranks: self.locks.len() }
    }

    /// [`try_acquire`](Self::try_acquire) by the only thread that uses the handle.
    ///
    /// # Errors
    /// The errors of [`acquire`](Self::acquire).
    pub fn try_acquire_mut(&mut self, target: Rank, mode: Mode) -> Result<bool, Error<N::Error>> {
        let record = self.record(target)?;
        let mut lock = record.queue.take();
        let acquired = Self::try_mode(&mut lock, &self.network, self.layout, target, mode);
        record.queue.put(lock);
        acquired
    }

    /// [`acquire_for`](Self::acquire_for) by the only thread that uses the handle.
    ///
    /// # Errors
    /// The errors of [`acquire`](Self::acquire).
    pub fn acquire_for_mut(
        &mut self,
        target: Rank,
        mode: Mode,
        limit: Duration,
    ) -> Result<Option<QueuePosition>, Error<N::Error>> {
        let Some(deadline) = deadline(limit) else { return self.acquire_mut(target, mode).map(Some) };
        if limit.is_zero() {
            return Ok(self.try_acquire_mut(target, mode)?.then(QueuePosition::default));
        }
        let record = self.record(target)?;
        let mut lock = record.queue.take();
        let acquired = Self::until(&mut lock, &self.network, self.layout, target, mode, deadline);
        record.queue.put(lock);
        acquired
    }

    fn until(
        lock: &mut TargetLock<C>,
        network: &N,
        layout: LockLayout,
        target: Rank,
        mode: Mode,
        deadline: Instant,
    ) -> Result<Option<QueuePosition>, Error<N::Error>> {
        match mode {
            Mode::Exclusive => lock.exclusive_until(network, layout, target, deadline),
            Mode::Shared => lock.shared_until(network, layout, target, deadline),
        }
    }

    fn try_mode(
        lock: &mut TargetLock<C>,
        network: &N,
        layout: LockLayout,
        target: Rank,
        mode: Mode,
    ) -> Result<bool, Error<N::Error>> {
        match mode {
            Mode::Exclusive => lock.try_exclusive(network, layout, target),
            Mode::Shared => lock.try_shared(network, layout, target),
        }
    }

    /// Releases the lock of `target`, which this handle holds, by the only thread that uses the handle.
    ///
    /// # Errors
    /// The errors of [`TargetLock::release`], and [`Error::NoSuchRank`].
    #[inline(always)]
    pub fn release_mut(&mut self, target: Rank) -> Result<(), Error<N::Error>> {
        match self.locks.get_mut(target) {
            Some(record) => record.queue.end_leaked_turn(),
            None => return Err(self.no_such_rank(target)),
        }
        match self.one_mut(target) {
            Some(mut lock) => lock.release(),
            None => Err(self.no_such_rank(target)),
        }
    }

    /// Takes the locks of all ranks in shared mode, all requests in flight at once; returns whether it waited. Costs
    /// one round trip if no exclusive request holds or waits for any of the locks.
    ///
    /// If requests must wait, this rank never waits for a lock while it holds, or is queued for, one of a higher
    /// rank: it releases those and requests them again later. Such calls therefore cannot deadlock with each other, nor
    /// with programs that take several locks in rank order.
    ///
    /// # Errors
    /// The errors of [`acquire`](Self::acquire). A lock that is held or broken at the start leaves all others
    /// untouched. A call that fails later completes each request that it has made, and then releases every lock that it
    /// holds, so none of its requests stays in a queue. There are two exceptions. A lock at which a verb failed that
    /// may have taken effect is broken. Locks below a broken one at which this rank waited are broken too, since a wait
    /// for them might never end.
    #[inline(always)]
    pub fn acquire_all_mut(&mut self) -> Result<bool, Error<N::Error>> {
        // Checked before the first request: a lock that is not free leaves all others untouched.
        if self.locks.iter().any(|record| !record.queue.is_free()) {
            return again(self.acquire_all_from(0, AtOnce::Unfit));
        }
        for (target, record) in self.locks.iter().enumerate() {
            match record.at_once(&self.network, Mode::Shared, self.alone) {
                AtOnce::Done => {}
                once => return again(self.acquire_all_from(target, once)),
            }
        }
        Ok(false)
    }

    /// Goes on with the request of all locks at `target`, after its attempt at once.
    #[cold]
    #[inline(never)]
    fn acquire_all_from(&mut self, target: Rank, once: AtOnce) -> Result<bool, Error<N::Error>> {
        self.all().acquire_from_once(target, once)
    }

    /// Returns whether none of this rank's requests that were given up at a deadline is still queued. If one is,
    /// [`release_held_mut`](Self::release_held_mut) and the drop of this handle wait for the requests before it. Local.
    ///
    /// # Examples
    #[cfg_attr(not(feature = "loom"), doc = "```")]
    #[cfg_attr(feature = "loom", doc = "```no_run")]
    /// use transom_locks::{LockLayout, Mode, PassiveLock, model::sim::{self, Sim}};
    /// let net = Sim::new(1, LockLayout::words(1), sim::once(|_, network| {
    ///     let mut lock = PassiveLock::<_, 16>::new(network, 0)?;
    ///     assert!(lock.is_settled_mut()); // nothing was given up
    ///     lock.acquire_mut(0, Mode::Shared)?;
    ///     lock.release_mut(0)
    /// }));
    /// net.run_random(1).unwrap();
    /// ```
    pub fn is_settled_mut(&mut self) -> bool {
        self.all().is_settled()
    }

    /// Releases every lock that this rank holds; returns whether no lock is broken afterwards. Call it before a handle
    /// is abandoned: no other rank may wait for a lock that can no longer be released.
    pub fn release_held_mut(&mut self) -> bool {
        self.all().release_held()
    }

    /// Releases the locks of all ranks, with all requests in flight at once.
    ///
    /// # Errors
    /// The errors of [`release_mut`](Self::release_mut). A lock that is not held leaves all others untouched. If
    /// several releases fail the first error is returned; the rest is released all the same.
    #[inline(always)]
    pub fn release_all_mut(&mut self) -> Result<(), Error<N::Error>> {
        // Checked before the first release, as above.
        if self.locks.iter().any(|record| !record.queue.is_open()) {
            return again(self.release_all_from(0, AtOnce::Unfit));
        }
        for (target, record) in self.locks.iter().enumerate() {
            match record.depart_at_once(&self.network) {
                AtOnce::Done => {}
                once => return again(self.release_all_from(target, once)),
            }
        }
        Ok(())
    }

    /// Goes on with the release of all locks at `target`, after its release at once.
    #[cold]
    #[inline(never)]
    fn release_all_from(&mut self, target: Rank, once: AtOnce) -> Result<(), Error<N::Error>> {
        self.all().release_from_once(target, once)
    }

    #[inline(always)]
    fn record(&self, target: Rank) -> Result<&LockRecord<N, C>, Error<N::Error>> {
        Error::check_rank(target, self.locks.len())?;
        Ok(&self.locks[target])
    }

    #[inline(always)]
    fn all(&mut self) -> AllLocks<'_, N, LockRecord<N, C>, C> {
        let PassiveLock { network, layout, locks, in_flight, .. } = self;
        AllLocks { network, layout: *layout, locks, in_flight }
    }
}

/// The time `limit` from now; `None` beyond the clock's range.
fn deadline(limit: Duration) -> Option<Instant> {
    Instant::now().checked_add(limit)
}

impl<N: Network, const C: u32> Drop for PassiveLock<N, C> {
    fn drop(&mut self) {
        if !model_has_failed() {
            self.release_held_mut();
        }
    }
}
