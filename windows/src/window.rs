//! Windows: memory that every rank of a job exposes, and the calls that open epochs on it.

use crate::epoch::{AccessEpoch, FenceEpoch, LockAllEpoch, LockEpoch};
use crate::local::Local;
use crate::segment::{Segment, SegmentError, Size};
use crate::signals::Signals;
use crate::target::Target;
use crate::{Counters, Error, Fabric, FabricError};
use bytemuck::Pod;
use std::marker::PhantomData;
use std::sync::Arc;
use transom_locks::{Ahead, Awaited, Barrier, Mode, PassiveLock, Places, Pscw, Rank};

/// Memory of `T` elements at every rank, reached by all. Puts, gets and atomics need an epoch, which a call on `&mut`
/// self opens; so an operation outside an epoch, or two epochs at once on one handle, do not compile.
///
/// Element types are plain data ([`bytemuck::Pod`]: any bit pattern is a value): other ranks may write at any time,
/// so no reference into the memory is ever lent; one's own part is read and written by copies, see
/// [`local`](Self::local).
///
/// A window costs each rank its elements and `64 (ranks + 1) + 64 ceil(log2 ranks) + 16 ranks` bytes of lock, barrier
/// and post/start words.
///
/// # Examples
/// ```
/// # let fabric = transom_shm_loopback::Loopback::alone()?;
/// # let mut window = transom_windows::Window::<u64, _>::allocate(&fabric, 0, 64)?;
/// let epoch = window.lock_exclusive(0)?; // rank 0's part is mine alone
/// let value = epoch.get_one(4)?;
/// epoch.put(4, &[value + 1])?;
/// epoch.unlock()?;
/// assert_eq!(window.local().get(4)?, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Window<T, F: Fabric> {
    core: Core<T, F>,
    lock: PassiveLock<Arc<Segment<F>>>,
    barrier: Barrier,
    pscw: Pscw,
    /// Tests of an exposure epoch that were in vain so far.
    asked: u32,
}

impl<T, F: Fabric> Drop for Window<T, F> {
    /// An epoch that was leaked keeps its lock, which nobody could release after this.
    fn drop(&mut self) {
        if !self.lock.release_held_mut() {
            self.core.data.fabric.fail();
        }
    }
}

/// What operations need of a window; epochs share it while they hold the rest.
pub(crate) struct Core<T, F: Fabric> {
    pub id: u32,
    pub data: Arc<Segment<F>>,
    element: PhantomData<fn() -> T>,
}

impl<T: Pod, F: Fabric> Window<T, F> {
    /// Collective: a window that exposes `len` zeroed elements at this rank; `len` may differ from rank to rank. `id`
    /// names it in errors.
    ///
    /// # Errors
    /// [`Error::Size`] if `T` has no size or the bytes cannot be counted; [`Error::Lock`] for more ranks than a lock
    /// can have; [`Error::Fabric`] if there is no memory, here or elsewhere.
    pub fn allocate(fabric: &F, id: u32, len: usize) -> Result<Self, Error> {
        Self::allocate_with_signals(fabric, id, len, 0)
    }

    /// [`allocate`](Self::allocate), and `signals` signal words at this rank, for
    /// [`put_signal`](crate::Target::put_signal): 8 bytes more for each.
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate).
    ///
    /// # Examples
    /// ```
    /// # let fabric = transom_shm_loopback::Loopback::alone()?;
    /// let mut window = transom_windows::Window::<f64, _>::allocate_with_signals(&fabric, 0, 64, 2)?;
    /// window.lock_all()?.target(0)?.put_signal(3, &[1.5], 1, 1)?; // data, then the news of it
    /// assert_eq!(window.signals().wait_until(1, |news| news == 1)?, 1);
    /// assert_eq!(window.local().get(3)?, 1.5);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn allocate_with_signals(fabric: &F, id: u32, len: usize, signals: usize) -> Result<Self, Error> {
        let (rank, ranks) = (fabric.rank(), fabric.size());
        let bytes = match size_of::<T>() {
            0 => Err("its elements have no size"),
            _ if align_of::<T>() > 64 => Err("its elements are aligned to more than a cache line"),
            size => len.checked_mul(size).ok_or("too many bytes"),
        };
        let failed = |source| match source {
            SegmentError::Size(why) => Error::Size { window: id, len, element: size_of::<T>(), why },
            SegmentError::Fabric(source) => Error::Fabric { window: id, rank, source },
        };
        // Ranks must make the same window, of the same elements.
        let what = [u64::from(id), size_of::<T>() as u64];
        let words = Places::words(ranks) + Barrier::words(ranks) + Pscw::words(ranks);
        let size = bytes.map(|bytes| Size { bytes, signals });
        let data = Arc::new(Segment::allocate(fabric, what, words, size).map_err(failed)?);
        let lock = PassiveLock::new(data.clone(), 0).map_err(|source| Error::Lock { window: id, rank, source })?;
        tracing::debug!(window = id, rank, len, element = size_of::<T>(), signals, "window allocated");
        let barrier = Barrier::new(ranks, Places::words(ranks));
        let pscw = Pscw::new(ranks, Places::words(ranks) + Barrier::words(ranks));
        Ok(Window { core: Core { id, data, element: PhantomData }, lock, barrier, pscw, asked: 0 })
    }

    /// The number of the window, in the order in which the job made them; errors name it.
    pub fn id(&self) -> u32 {
        self.core.id
    }

    /// This rank.
    pub fn rank(&self) -> Rank {
        self.lock.rank()
    }

    /// How many ranks share the window.
    pub fn ranks(&self) -> usize {
        self.core.data.remotes.len()
    }

    /// This rank's own part. No epoch is needed; what others put is seen once a synchronisation orders it.
    pub fn local(&self) -> Local<'_, T, F> {
        Local { core: &self.core }
    }

    /// This rank's own signal words. No epoch is needed.
    pub fn signals(&self) -> Signals<'_, T, F> {
        Signals { core: &self.core }
    }

    /// What this rank did on the window so far.
    pub fn counters(&self) -> Counters {
        self.core.data.tally.read()
    }

    /// Opens an access epoch that has `target` to itself; waits, without remote operations, behind those that asked
    /// before. Free: 1 compare-and-swap (2 if readers of other ranks used the lock since this rank last did), and 1 to
    /// unlock.
    ///
    /// # Errors
    /// [`Error::NoSuchRank`]; [`Error::Lock`] if an earlier epoch on the target was leaked, or if a rank died.
    #[inline(always)]
    pub fn lock_exclusive(&mut self, target: Rank) -> Result<LockEpoch<'_, T, F>, Error> {
        self.lock(target, Mode::Exclusive)
    }

    /// Opens an access epoch that shares `target` with other readers. Free: 1 fetch-and-add, and 1 to unlock. Shared
    /// says how it is locked, not what may be done: atomics need no more.
    ///
    /// # Errors
    /// As [`lock_exclusive`](Self::lock_exclusive).
    ///
    /// # Examples
    /// ```
    /// # let fabric = transom_shm_loopback::Loopback::alone()?;
    /// # let mut window = transom_windows::Window::<u64, _>::allocate(&fabric, 0, 64)?;
    /// let epoch = window.lock_shared(0)?;
    /// assert_eq!(epoch.get_one(0)?, 0);
    /// epoch.unlock()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline(always)]
    pub fn lock_shared(&mut self, target: Rank) -> Result<LockEpoch<'_, T, F>, Error> {
        self.lock(target, Mode::Shared)
    }

    #[inline(always)]
    fn lock(&mut self, rank: Rank, mode: Mode) -> Result<LockEpoch<'_, T, F>, Error> {
        let target = Target::new(&self.core, rank)?;
        match self.lock.acquire_mut(rank, mode) {
            Ok(ahead) => {
                self.core.data.tally.locks.bump();
                if ahead != Ahead::default() {
                    waited(self.core.id, rank, mode, ahead);
                }
                Ok(LockEpoch::new(&self.core, target, &mut self.lock, ahead))
            }
            Err(source) => Err(self.core.lock_error_at(rank, source)),
        }
    }

    /// Opens an access epoch on all ranks, shared, with all requests in flight at once: 1 fetch-and-add for each
    /// rank, and 1 to unlock.
    ///
    /// # Errors
    /// As [`lock_exclusive`](Self::lock_exclusive).
    ///
    /// # Examples
    /// ```
    /// # let fabric = transom_shm_loopback::Loopback::alone()?;
    /// # let mut window = transom_windows::Window::<u64, _>::allocate(&fabric, 0, 64)?;
    /// let epoch = window.lock_all()?;
    /// epoch.target(0)?.put(0, &[1])?;
    /// epoch.flush_all()?;
    /// epoch.unlock()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn lock_all(&mut self) -> Result<LockAllEpoch<'_, T, F>, Error> {
        self.lock.acquire_all_mut().map_err(|source| self.core.lock_error(source))?;
        self.core.data.tally.locks.add(self.core.data.remotes.len() as u64);
        Ok(LockAllEpoch::new(&self.core, &mut self.lock))
    }

    /// Opens an exposure epoch: the ranks of `origins` may access this rank's part in the access epochs that their
    /// [`start`](Self::start) opens. Does not wait. 1 post for each origin.
    ///
    /// # Errors
    /// [`Error::Sync`] if an exposure epoch is open, or `origins` names a rank twice or one that does not exist.
    ///
    /// # Examples
    /// ```
    /// # let fabric = transom_shm_loopback::Loopback::alone()?;
    /// # let mut window = transom_windows::Window::<u64, _>::allocate(&fabric, 0, 64)?;
    /// window.post(&[0])?; // this rank is its own neighbour here
    /// let epoch = window.start(&[0])?;
    /// epoch.target(0)?.put(5, &[6])?;
    /// epoch.complete()?;
    /// window.wait()?; // all origins have completed
    /// assert_eq!(window.local().get(5)?, 6);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn post(&mut self, origins: &[Rank]) -> Result<(), Error> {
        let posted = self.pscw.post(&self.core.data, origins);
        posted.map_err(|source| self.core.sync_error("post", source))
    }

    /// Opens an access epoch to `targets`, once each of them has posted to this rank. No remote operation.
    ///
    /// # Errors
    /// [`Error::Sync`] as [`post`](Self::post), or if a target died or left.
    ///
    /// # Examples
    /// See [`post`](Self::post).
    pub fn start(&mut self, targets: &[Rank]) -> Result<AccessEpoch<'_, T, F>, Error> {
        let started = self.pscw.start(&self.core.data, targets);
        started.map_err(|source| self.core.sync_error("start", source))?;
        Ok(AccessEpoch::new(&self.core, &mut self.pscw))
    }

    /// Ends the exposure epoch, once every origin has completed: what they put is here. No remote operation.
    ///
    /// # Errors
    /// [`Error::Sync`] if none is open, or an origin died or left.
    ///
    /// # Examples
    /// See [`post`](Self::post).
    pub fn wait(&mut self) -> Result<(), Error> {
        self.pscw.wait(&self.core.data).map_err(|source| self.core.sync_error("wait", source))
    }

    /// As [`wait`](Self::wait) if every origin has completed; otherwise false, and the epoch stays open.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    ///
    /// # Examples
    /// ```
    /// # let fabric = transom_shm_loopback::Loopback::alone()?;
    /// # let mut window = transom_windows::Window::<u64, _>::allocate(&fabric, 0, 64)?;
    /// window.post(&[0])?;
    /// assert!(!window.test()?);
    /// window.start(&[0])?.complete()?;
    /// assert!(window.test()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn test(&mut self) -> Result<bool, Error> {
        let mut tested = self.pscw.test(&self.core.data);
        if let Ok(false) = tested {
            // Asking whether the origins live costs system calls: now and then is enough.
            self.asked = self.asked.wrapping_add(1);
            let origins = self.pscw.origins().unwrap_or_default();
            let mut vain = origins.iter().map(|&rank| self.core.data.fabric.vain(Awaited::Rank(rank)));
            if self.asked.is_multiple_of(256)
                && let Some(Err(lost)) = vain.find(Result::is_err)
            {
                // It may have completed just before.
                tested = self.pscw.test(&self.core.data).and_then(|all| if all { Ok(true) } else { Err(lost.into()) });
            }
        }
        tested.map_err(|source| self.core.sync_error("test", source))
    }

    /// Collective: ends the epoch of the last fence, if any, and opens the next: what any rank put before is visible
    /// everywhere after. ceil(log2 ranks) posts.
    ///
    /// # Errors
    /// [`Error::Sync`] if a rank died or left, for it can no longer call.
    ///
    /// # Examples
    /// ```
    /// # let fabric = transom_shm_loopback::Loopback::alone()?;
    /// # let mut window = transom_windows::Window::<u64, _>::allocate(&fabric, 0, 64)?;
    /// let epoch = window.fence()?;
    /// epoch.target(0)?.put(0, &[5])?;
    /// window.fence()?; // ends that epoch, everywhere
    /// assert_eq!(window.local().get(0)?, 5);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn fence(&mut self) -> Result<FenceEpoch<'_, T, F>, Error> {
        self.core.order_all()?;
        self.barrier.wait(&self.core.data).map_err(|source| self.core.sync_error("fence", source))?;
        self.core.data.tally.fences.bump();
        Ok(FenceEpoch { core: &self.core })
    }
}

#[cold]
fn waited(window: u32, target: Rank, mode: Mode, ahead: Ahead) {
    tracing::trace!(window, target, ?mode, behind = ?ahead.exclusive, readers = ahead.readers, "lock granted after waiting");
}

impl<T, F: Fabric> Core<T, F> {
    /// What this rank put at another will be seen before any later verb of it.
    #[inline(always)]
    pub fn order(&self, rank: Rank) -> Result<(), Error> {
        match self.data.fabric.order(&self.data.remotes[rank]) {
            Ok(()) => Ok(()),
            Err(source) => Err(Error::Fabric { window: self.id, rank, source }),
        }
    }

    /// What this rank put anywhere will be seen before any later verb of it.
    pub fn order_all(&self) -> Result<(), Error> {
        let ordered = self.data.fabric.order_all(&self.data.remotes);
        ordered.map_err(|source| Error::Fabric { window: self.id, rank: self.data.fabric.rank(), source })
    }

    #[cold]
    pub fn lock_error_at(&self, rank: Rank, source: transom_locks::Error<FabricError>) -> Error {
        Error::Lock { window: self.id, rank, source: self.data.cause(source) }
    }

    /// Of a call on all locks: the one that it failed at, as far as the error tells.
    #[cold]
    pub fn lock_error(&self, source: transom_locks::Error<FabricError>) -> Error {
        use transom_locks::Error::{AlreadyLocked, Broken, Corrupt, NotLocked};
        let rank = match source {
            AlreadyLocked { target } | NotLocked { target } | Broken { target } | Corrupt { target, .. } => target,
            _ => self.data.fabric.rank(),
        };
        self.lock_error_at(rank, source)
    }

    #[cold]
    pub fn sync_error(&self, call: &'static str, source: transom_locks::Error<FabricError>) -> Error {
        Error::Sync { window: self.id, call, source: self.data.cause(source) }
    }

    #[cold]
    pub fn no_such_rank(&self, rank: Rank) -> Error {
        Error::NoSuchRank { window: self.id, rank, size: self.data.remotes.len() }
    }
}
