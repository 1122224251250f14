//! Windows: memory that every rank of a job exposes, and the calls that open epochs on it.

use crate::epoch::{FenceEpoch, LockAllEpoch, LockEpoch};
use crate::segment::Segment;
use crate::target::{Target, byte_offset};
use crate::{Counters, Error, Fabric, FabricError};
use bytemuck::Pod;
use std::marker::PhantomData;
use transom_locks::{Ahead, Barrier, Mode, PassiveLock, Places, Rank};

/// Memory of `T` elements at every rank, reached by all. Puts, gets and atomics need an epoch, which a call on `&mut`
/// self opens; so an operation outside an epoch, or two epochs at once on one handle, do not compile.
///
/// Element types are plain data ([`bytemuck::Pod`]: any bit pattern is a value): other ranks may write at any time,
/// so no reference into the memory is ever lent; one's own part is read and written by copies, see
/// [`local`](Self::local).
///
/// A window costs each rank its elements and `64 (ranks + 1) + 64 ceil(log2 ranks)` bytes of lock and barrier words.
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
    lock: PassiveLock<Segment<F>>,
    barrier: Barrier,
}

/// What operations need of a window; epochs share it while they hold the rest.
pub(crate) struct Core<T, F: Fabric> {
    pub id: u32,
    pub data: Segment<F>,
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
        let rank = fabric.rank();
        let fabric_error = |source| Error::Fabric { window: id, rank, source };
        let size = match size_of::<T>() {
            0 => Err("its elements have no size"),
            _ if align_of::<T>() > 64 => Err("its elements are aligned to more than a cache line"),
            size => len.checked_mul(size).filter(|&bytes| bytes <= isize::MAX as usize).ok_or("too many bytes"),
        };
        // A rank that cannot take part says so in the collective: the others must not wait for it.
        let ranks = fabric.size();
        let words = Places::words(ranks) + Barrier::words(ranks);
        let segment = Segment::allocate(fabric, words * 8).map_err(fabric_error)?;
        let data = match size {
            Ok(bytes) => Segment::allocate(fabric, bytes).map_err(fabric_error)?,
            Err(why) => {
                let _ = fabric.all_gather(&[]);
                return Err(Error::Size { len, element: size_of::<T>(), why });
            }
        };
        let lock = PassiveLock::new(segment, 0).map_err(|source| Error::Lock { window: id, rank, source })?;
        tracing::debug!(window = id, rank, len, element = size_of::<T>(), "window allocated");
        Ok(Window {
            core: Core { id, data, element: PhantomData },
            lock,
            barrier: Barrier::new(ranks, Places::words(ranks)),
        })
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

    /// What this rank did on the window so far.
    pub fn counters(&self) -> Counters {
        self.core.data.tally.read() + self.lock.words().tally.read()
    }

    /// Opens an access epoch that has `target` to itself; waits, without remote operations, behind those that asked
    /// before. Free: 1 compare-and-swap (2 if readers of other ranks used the lock since this rank last did), and 1 to
    /// unlock.
    ///
    /// # Errors
    /// [`Error::NoSuchRank`]; [`Error::Lock`] if an earlier epoch on the target was leaked, or if a rank died.
    #[inline]
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
    #[inline]
    pub fn lock_shared(&mut self, target: Rank) -> Result<LockEpoch<'_, T, F>, Error> {
        self.lock(target, Mode::Shared)
    }

    #[inline]
    fn lock(&mut self, rank: Rank, mode: Mode) -> Result<LockEpoch<'_, T, F>, Error> {
        let target = Target::new(&self.core, rank)?;
        match self.lock.acquire_mut(rank, mode) {
            Ok(ahead) => {
                self.core.data.tally.locks.bump();
                if ahead != Ahead::default() {
                    waited(self.core.id, rank, mode, ahead);
                }
                Ok(LockEpoch::new(target, &mut self.lock, ahead))
            }
            Err(source) => Err(Error::Lock { window: self.core.id, rank, source }),
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
        let (window, rank, ranks) = (self.core.id, self.rank(), self.ranks());
        self.lock.acquire_all_mut().map_err(|source| Error::Lock { window, rank, source })?;
        self.core.data.tally.locks.add(ranks as u64);
        Ok(LockAllEpoch::new(&self.core, &mut self.lock))
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
        for rank in 0..self.ranks() {
            Target::new(&self.core, rank)?.order()?;
        }
        let window = self.core.id;
        self.barrier.wait(self.lock.words()).map_err(|source| Error::Sync { window, call: "fence", source })?;
        self.core.data.tally.fences.bump();
        Ok(FenceEpoch { core: &self.core })
    }
}

#[cold]
fn waited(window: u32, target: Rank, mode: Mode, ahead: Ahead) {
    tracing::trace!(window, target, ?mode, behind = ?ahead.exclusive, readers = ahead.readers, "lock granted after waiting");
}

impl<T, F: Fabric> Core<T, F> {
    #[cold]
    pub fn no_such_rank(&self, rank: Rank) -> Error {
        Error::NoSuchRank { window: self.id, rank, size: self.data.remotes.len() }
    }
}

/// A rank's own part of a window: copies in and out, since other ranks may write at any time.
///
/// # Examples
/// ```
/// # let fabric = transom_shm_loopback::Loopback::alone()?;
/// # let mut window = transom_windows::Window::<u64, _>::allocate(&fabric, 0, 64)?;
/// let local = window.local();
/// local.write(2, &[1, 2, 3])?;
/// assert_eq!(local.read(0, 6)?, [0, 0, 1, 2, 3, 0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Local<'w, T, F: Fabric> {
    pub(crate) core: &'w Core<T, F>,
}

impl<T: Pod, F: Fabric> Local<'_, T, F> {
    /// How many elements this rank exposes.
    pub fn len(&self) -> usize {
        self.core.data.sizes[self.rank()] / size_of::<T>()
    }

    /// Whether this rank exposes nothing.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// One element.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`]. So for the following.
    #[inline]
    pub fn get(&self, offset: usize) -> Result<T, Error> {
        let mut one = [T::zeroed()];
        self.read_into(offset, &mut one)?;
        Ok(one[0])
    }

    /// Sets one element.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`].
    #[inline]
    pub fn set(&self, offset: usize, value: T) -> Result<(), Error> {
        self.write(offset, &[value])
    }

    /// A copy of `len` elements from `offset` on.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`].
    pub fn read(&self, offset: usize, len: usize) -> Result<Vec<T>, Error> {
        if offset.checked_add(len).is_none_or(|end| end > self.len()) {
            return Err(self.error(FabricError::OutOfBounds { offset, len, size: 0 }, offset, len));
        }
        let mut copy = vec![T::zeroed(); len];
        self.read_into(offset, &mut copy)?;
        Ok(copy)
    }

    /// Copies elements from `offset` on.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`].
    #[inline]
    pub fn read_into(&self, offset: usize, into: &mut [T]) -> Result<(), Error> {
        let (data, len) = (&self.core.data, into.len());
        match data.fabric.load(&data.region, byte_offset::<T>(offset), bytemuck::cast_slice_mut(into)) {
            Ok(()) => Ok(()),
            Err(error) => Err(self.error(error, offset, len)),
        }
    }

    /// Writes elements from `offset` on.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`].
    #[inline]
    pub fn write(&self, offset: usize, source: &[T]) -> Result<(), Error> {
        let data = &self.core.data;
        match data.fabric.store(&data.region, byte_offset::<T>(offset), bytemuck::cast_slice(source)) {
            Ok(()) => Ok(()),
            Err(error) => Err(self.error(error, offset, source.len())),
        }
    }

    fn rank(&self) -> Rank {
        self.core.data.fabric.rank()
    }

    #[cold]
    fn error(&self, error: FabricError, offset: usize, len: usize) -> Error {
        let (window, rank) = (self.core.id, self.rank());
        match error {
            FabricError::OutOfBounds { .. } => Error::OutOfBounds { window, rank, offset, len, size: self.len() },
            source => Error::Fabric { window, rank, source },
        }
    }
}
