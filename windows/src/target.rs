//! The operations on a target's memory. Only an epoch lends a [`Target`].

use crate::core::Core;
use crate::updates::Gate;
use crate::{Attached, Error, Fabric, FabricError, Mode};
use bytemuck::Pod;
use std::cell::Cell;
use std::marker::PhantomData;
use transom_locks::Rank;

/// Access to one rank's part of a window, for as long as the epoch that lends it is open. Offsets and lengths are in
/// elements from the beginning of the target's part, and are checked against its size.
///
/// A target may move to another thread, but threads do not share one: each gets its own from the epoch. A lock's epoch
/// gives them by [`LockEpoch::for_threads`](crate::LockEpoch::for_threads).
///
/// # Examples
/// ```
/// // In `transom`: `let mut window = world.allocate::<u64>(64)?;`
/// # let fabric = transom_shm_loopback::Loopback::alone()?;
/// # let mut window = transom_windows::Window::<u64, _>::allocate(&fabric, 0, 64)?;
/// let epoch = window.lock_exclusive(0)?; // an epoch on one target is its Target
/// epoch.put(3, &[7, 8])?;
/// let mut two = [0; 2];
/// epoch.get(3, &mut two)?;
/// assert_eq!(two, [7, 8]);
/// assert!(epoch.put(1 << 20, &[1]).is_err());
/// epoch.unlock()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Target<'e, T, F: Fabric> {
    pub(crate) core: &'e Core<F>,
    pub(crate) remote: &'e F::Remote,
    pub(crate) rank: Rank,
    pub(crate) gate: &'e Gate,
    /// Offset of the elements, in bytes.
    pub(crate) base: usize,
    pub(crate) len: usize,
    /// True if no other rank or thread accumulates at the target: the epoch locks it exclusively, and threads do not
    /// share this `Target`. Reset once another `Target` of the same rank exists, which another thread may use.
    pub(crate) exclusive: Cell<bool>,
    pub(crate) element: PhantomData<fn() -> T>,
}

impl<'e, T: Pod, F: Fabric> Target<'e, T, F> {
    #[inline]
    pub(crate) fn new(core: &'e Core<F>, rank: Rank) -> Result<Self, Error> {
        match (core.data.part(rank), core.gates.get(rank)) {
            (Some((remote, base)), Some(gate)) => Ok(Target {
                core,
                remote,
                rank,
                gate,
                base,
                len: gate.bytes / size_of::<T>(),
                exclusive: Cell::new(false),
                element: PhantomData,
            }),
            _ => Err(core.no_such_rank(rank)),
        }
    }

    /// A target that the epoch locks in this mode.
    #[inline(always)]
    pub(crate) fn locked(core: &'e Core<F>, rank: Rank, mode: Mode) -> Result<Self, Error> {
        let target = Self::new(core, rank)?;
        target.exclusive.set(mode == Mode::Exclusive && target.gate.atomics);
        Ok(target)
    }

    /// The target's rank.
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// The number of elements in the target's part.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if the target's part is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Writes `source` from element `offset` on; visible there after a [`flush`](Self::flush) or the epoch's end.
    /// `source` may be reused on return. Costs 1 write. Between hosts it costs 1 per 32 KiB copied, or 1 per MiB sent
    /// without a copy, which returns once the elements have arrived (`docs/cost.md`).
    ///
    /// # Errors
    /// [`Error::OutOfBounds`], [`Error::Fabric`].
    #[inline(always)]
    pub fn put(&self, offset: usize, source: &[T]) -> Result<(), Error> {
        self.core.data.counters.puts.bump();
        let at = self.place(offset, source.len())?;
        match self.core.data.fabric.put(self.remote, at, bytemuck::cast_slice(source)) {
            Ok(()) => Ok(()),
            Err(error) => Err(self.error(error, offset, source.len())),
        }
    }

    /// [`put`](Self::put), then an addition of `add` to a signal word of the target: a rank that sees the signal there
    /// sees the data. The target waits by [`Signals::wait_until`](crate::Signals::wait_until). 1 write, 1
    /// fetch-and-add.
    ///
    /// # Errors
    /// The errors of [`put`](Self::put), and [`Error::NoSuchSignal`], after which nothing was put.
    ///
    /// # Examples
    /// See [`Signals`](crate::Signals).
    #[inline]
    pub fn put_signal(&self, offset: usize, source: &[T], signal: usize, add: u64) -> Result<(), Error> {
        self.core.signal_offset(self.rank, signal)?;
        self.put(offset, source)?;
        self.signal(signal, add)
    }

    /// Reads elements from `offset` on, which have arrived on return. 1 read; between hosts as many as a
    /// [`put`](Self::put) has writes.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`], [`Error::Fabric`].
    #[inline(always)]
    pub fn get(&self, offset: usize, into: &mut [T]) -> Result<(), Error> {
        let len = into.len();
        self.core.data.counters.gets.bump();
        let at = self.place(offset, len)?;
        match self.core.data.fabric.get(self.remote, at, bytemuck::cast_slice_mut(into)) {
            Ok(()) => Ok(()),
            Err(error) => Err(self.error(error, offset, len)),
        }
    }

    /// Reads one element. 1 read.
    ///
    /// # Errors
    /// The errors of [`get`](Self::get).
    ///
    /// # Examples
    /// ```
    /// # let fabric = transom_shm_loopback::Loopback::alone()?;
    /// # let mut window = transom_windows::Window::<u64, _>::allocate(&fabric, 0, 64)?;
    /// assert_eq!(window.lock_shared(0)?.get_one(0)?, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn get_one(&self, offset: usize) -> Result<T, Error> {
        let mut one = [T::zeroed()];
        self.get(offset, &mut one)?;
        Ok(one[0])
    }

    /// The target's memory that it attached as `memory`, instead of its permanent part. 1 read.
    ///
    /// # Errors
    /// [`Error::Detached`] if the owner has detached it; [`Error::NotHere`] if it belongs to another window or rank;
    /// [`Error::Fabric`].
    ///
    /// # Examples
    /// See [`Window::attach`](crate::Window::attach).
    pub fn attached<'a>(&'a self, memory: &'a Attached<F>) -> Result<Target<'a, T, F>, Error> {
        memory.check(self.core, self.rank)?;
        // Several such targets may be in use in different threads.
        let (len, exclusive) = (self.core.attached_len::<T>(memory.address.len()), Cell::new(false));
        Ok(Target { remote: &memory.remote, base: 0, len, exclusive, ..*self })
    }

    /// Returns once the buffers of this rank's earlier operations may be reused. They may be on return of each call, so
    /// this never waits; it exists for programs that come from MPI.
    ///
    /// # Errors
    /// Currently none.
    ///
    /// # Examples
    /// ```
    /// # let fabric = transom_shm_loopback::Loopback::alone()?;
    /// # let mut window = transom_windows::Window::<u64, _>::allocate(&fabric, 0, 64)?;
    /// let mut buffer = [1, 2, 3];
    /// let epoch = window.lock_shared(0)?;
    /// epoch.put(0, &buffer)?;
    /// epoch.flush_local()?;
    /// buffer[0] = 9; // the element stays 1
    /// assert_eq!(epoch.get_one(0)?, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline(always)]
    pub fn flush_local(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Returns once this rank's earlier operations at the target are visible there.
    ///
    /// # Errors
    /// [`Error::Fabric`].
    #[inline]
    pub fn flush(&self) -> Result<(), Error> {
        self.core.data.counters.flushes.bump();
        match self.core.data.fabric.flush(self.remote) {
            Ok(()) => Ok(()),
            Err(error) => Err(self.error(error, 0, 0)),
        }
    }

    /// Offset of the first byte of elements, if the target has them all. The fabric's own check does not suffice, since
    /// a region has more bytes than its elements.
    #[inline(always)]
    pub(crate) fn place(&self, offset: usize, len: usize) -> Result<usize, Error> {
        match inside::<T>(offset, len, self.len) {
            Some(at) => Ok(self.base + at),
            None => Err(self.outside(offset, len)),
        }
    }

    #[inline(always)]
    pub(crate) fn error(&self, error: FabricError, offset: usize, len: usize) -> Error {
        failed(self.core, self.rank, error, [offset, len, self.len])
    }

    #[inline(always)]
    fn outside(&self, offset: usize, len: usize) -> Error {
        outside(self.core, self.rank, [offset, len, self.len])
    }
}

// The errors of a target, from its values: a call by reference would keep every `Target` in memory.

#[cold]
#[inline(never)]
fn failed<F: Fabric>(core: &Core<F>, rank: Rank, error: FabricError, place: [usize; 3]) -> Error {
    match error {
        FabricError::OutOfBounds { .. } => outside(core, rank, place),
        source => core.fabric_error(rank, source),
    }
}

/// `place` is the offset and the number of the elements, and the number of the target's.
#[cold]
#[inline(never)]
fn outside<F: Fabric>(core: &Core<F>, rank: Rank, [offset, len, size]: [usize; 3]) -> Error {
    Error::OutOfBounds { window: core.id, rank, offset, len, size }
}

/// Offset of the first byte of `len` elements from `offset` on, if they are among the `size` of a part.
#[inline(always)]
pub(crate) fn inside<T>(offset: usize, len: usize, size: usize) -> Option<usize> {
    // For elements inside, the product is below the part's size in bytes.
    if offset <= size && len <= size - offset { Some(offset * size_of::<T>()) } else { None }
}
