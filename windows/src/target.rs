//! Every operation on a target's memory. An epoch lends a [`Target`]; nothing else can reach one.

use crate::core::Core;
use crate::updates::Gate;
use crate::{Attached, Error, Fabric, FabricError, Mode};
use bytemuck::Pod;
use std::cell::Cell;
use std::marker::PhantomData;
use transom_locks::Rank;

/// The right to access one rank's part of a window, as long as the epoch that lends it is open. Offsets and lengths
/// are in elements from the beginning of the target's part, and are checked against its size.
///
/// It may move to another thread, but threads do not share one: each asks the epoch for its own; an epoch of a lock gives
/// them by [`LockEpoch::for_threads`](crate::LockEpoch::for_threads).
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
    /// Where the elements begin.
    pub(crate) base: usize,
    pub(crate) len: usize,
    /// Whether nobody else accumulates at the target meanwhile: no other rank, since the epoch locks it exclusively, nor
    /// another thread, since this is not to be shared by threads. No longer once there is another target of the same, for a thread to have.
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

    /// As [`new`](Self::new), where the epoch locks it.
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

    /// How many elements the target exposes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the target exposes nothing.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Writes `source` from element `offset` on; visible there after a [`flush`](Self::flush) or the epoch's end.
    /// `source` may be used again at once. 1 write; between hosts 1 for each 32 KiB that is copied before it goes, or for each MiB
    /// that is not, and then it returns when the elements have arrived (`docs/COST.md`).
    ///
    /// # Errors
    /// [`Error::OutOfBounds`], [`Error::Fabric`].
    #[inline]
    pub fn put(&self, offset: usize, source: &[T]) -> Result<(), Error> {
        self.core.data.counters.puts.bump();
        let at = self.place(offset, source.len())?;
        match self.core.data.fabric.put(self.remote, at, bytemuck::cast_slice(source)) {
            Ok(()) => Ok(()),
            Err(error) => Err(self.error(error, offset, source.len())),
        }
    }

    /// [`put`](Self::put), then adds `add` to a signal word of the target: whoever sees the signal there sees the data.
    /// The target waits by [`Signals::wait_until`](crate::Signals::wait_until). 1 write, 1 fetch-and-add.
    ///
    /// # Errors
    /// As [`put`](Self::put), and [`Error::NoSuchSignal`]; nothing was put then.
    ///
    /// # Examples
    /// See [`Signals`](crate::Signals).
    #[inline]
    pub fn put_signal(&self, offset: usize, source: &[T], signal: usize, add: u64) -> Result<(), Error> {
        self.core.signal_offset(self.rank, signal)?;
        self.put(offset, source)?;
        self.signal(signal, add)
    }

    /// Reads elements from `offset` on; they are there when it returns. 1 read; between hosts as many as a [`put`](Self::put) has
    /// writes.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`], [`Error::Fabric`].
    #[inline]
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
    /// As [`get`](Self::get).
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

    /// The target's memory that it attached as `memory`, instead of the part that it exposes always. 1 read.
    ///
    /// # Errors
    /// [`Error::Detached`] if the owner no longer exposes it; [`Error::NotHere`] if it is another window's or rank's;
    /// [`Error::Fabric`].
    ///
    /// # Examples
    /// See [`Window::attach`](crate::Window::attach).
    pub fn attached<'a>(&'a self, memory: &'a Attached<F>) -> Result<Target<'a, T, F>, Error> {
        memory.check(self.core, self.rank)?;
        // There may be several of it, of which each may be in another thread.
        let (len, exclusive) = (self.core.attached_len::<T>(memory.address.len()), Cell::new(false));
        Ok(Target { remote: &memory.remote, base: 0, len, exclusive, ..*self })
    }

    /// Returns when the buffers of this rank's earlier operations may be used again. That is so as soon as a call
    /// returns, so there is nothing to wait for: the call is here for programs that come from MPI.
    ///
    /// # Errors
    /// None today.
    ///
    /// # Examples
    /// ```
    /// # let fabric = transom_shm_loopback::Loopback::alone()?;
    /// # let mut window = transom_windows::Window::<u64, _>::allocate(&fabric, 0, 64)?;
    /// let mut buffer = [1, 2, 3];
    /// let epoch = window.lock_shared(0)?;
    /// epoch.put(0, &buffer)?;
    /// epoch.flush_local()?;
    /// buffer[0] = 9; // what was put stays 1
    /// assert_eq!(epoch.get_one(0)?, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline(always)]
    pub fn flush_local(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Returns when this rank's earlier operations at the target are visible there.
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

    /// The first byte of elements, if the target exposes them all. A region has more bytes than its elements take, so
    /// the fabric's own check does not do.
    #[inline(always)]
    pub(crate) fn place(&self, offset: usize, len: usize) -> Result<usize, Error> {
        match inside::<T>(offset, len, self.len) {
            Some(at) => Ok(self.base + at),
            None => Err(self.outside(offset, len)),
        }
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn error(&self, error: FabricError, offset: usize, len: usize) -> Error {
        match error {
            FabricError::OutOfBounds { .. } => self.outside(offset, len),
            source => Error::Fabric { window: self.core.id, rank: self.rank, source },
        }
    }

    #[cold]
    #[inline(never)]
    fn outside(&self, offset: usize, len: usize) -> Error {
        Error::OutOfBounds { window: self.core.id, rank: self.rank, offset, len, size: self.len }
    }
}

/// The first byte of `len` elements from `offset` on, if they are among the `size` of a part.
#[inline(always)]
pub(crate) fn inside<T>(offset: usize, len: usize, size: usize) -> Option<usize> {
    // Where they are inside, the multiplication is below the part's size in bytes.
    if offset <= size && len <= size - offset { Some(offset * size_of::<T>()) } else { None }
}
