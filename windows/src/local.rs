//! Parts of a window that a rank's own processor reaches: its own, and those of ranks that share memory with it.

use crate::core::Core;
use crate::target::inside;
use crate::{Address, Error, Fabric, FabricError};
use bytemuck::Pod;
use std::marker::PhantomData;
use std::sync::atomic::{Ordering::SeqCst, fence};
use transom_locks::Rank;

/// A rank's own part of a window, or that of a rank which shares memory. Calls copy in and out, since other ranks may
/// write at any time. Elements that ranks change by atomics at the same time need atomics here too, in an epoch on this
/// rank.
///
/// # Examples
/// ```
/// // In `transom`: `let mut window = world.allocate::<u64>(64)?;`
/// # let fabric = transom_shm_loopback::Loopback::alone()?;
/// # let mut window = transom_windows::Window::<u64, _>::allocate(&fabric, 0, 64)?;
/// let local = window.local();
/// local.write(2, &[1, 2, 3])?;
/// assert_eq!(local.read(0, 6)?, [0, 0, 1, 2, 3, 0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Local<'w, T, F: Fabric> {
    pub(crate) core: &'w Core<F>,
    memory: PartMemory<'w, F>,
    /// The rank whose part it is.
    pub(crate) rank: Rank,
    /// Offset of the elements, in bytes.
    pub(crate) base: usize,
    len: usize,
    element: PhantomData<fn() -> T>,
}

/// Memory that this rank's processor reaches: its own region, or a shared one of another rank.
enum PartMemory<'w, F: Fabric> {
    Own(&'w F::Region),
    Shared(&'w F::Remote),
}

impl<F: Fabric> Clone for PartMemory<'_, F> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<F: Fabric> Copy for PartMemory<'_, F> {}

impl<'w, T: Pod, F: Fabric> Local<'w, T, F> {
    #[inline(always)]
    pub(crate) fn new(core: &'w Core<F>) -> Self {
        let (rank, (region, base)) = (core.data.fabric.rank(), core.data.own_part());
        let len = core.data.sizes[rank].bytes / size_of::<T>();
        Local { core, memory: PartMemory::Own(region), rank, base, len, element: PhantomData }
    }

    /// [`Window::sync`](crate::Window::sync) within an epoch: orders this rank's loads and stores before and after it.
    /// Call it between two reads of memory that other ranks put to, and between this rank's stores and its notification
    /// of them. No remote operation.
    ///
    /// # Examples
    /// ```
    /// # let fabric = transom_shm_loopback::Loopback::alone()?;
    /// # let mut window = transom_windows::Window::<u64, _>::allocate(&fabric, 0, 64)?;
    /// let epoch = window.lock_all()?;
    /// epoch.target(0)?.put(0, &[1])?;
    /// while epoch.local().get(0)? == 0 {
    ///     epoch.local().sync(); // in a larger job another rank would put it
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    /// // In `transom`: `let mut window = world.allocate_shared::<u64>(8)?;`
    pub fn sync(&self) {
        fence(SeqCst);
        self.core.checks.synchronised(&self.core.data.counters);
    }

    /// The part of another rank that shares memory with this one, accessed by this rank's own loads and stores, without
    /// an epoch and without remote operations. On a window made by [`allocate_shared`](crate::Flavor::Shared) every
    /// rank's part can be accessed.
    ///
    /// Stores become visible to other ranks, and theirs to loads here, where a synchronisation orders the two: a fence,
    /// a lock's epoch, or [`sync`](crate::Window::sync) on both sides of a signal or message of the program's own.
    ///
    /// # Errors
    /// [`Error::NotShared`] if this rank's processor does not reach that memory; [`Error::NoSuchRank`].
    ///
    /// # Examples
    /// ```
    /// # let fabric = transom_shm_loopback::Loopback::alone()?;
    /// use transom_windows::{Flavor, Window};
    /// let mut window = Window::<u64, _>::new(&fabric, 0, Flavor::Shared { len: 8 }, 0)?;
    /// window.local().of(0)?.set(3, 4)?; // could be any rank's
    /// window.fence()?;
    /// assert_eq!(window.local().get(3)?, 4);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn of(&self, rank: Rank) -> Result<Local<'w, T, F>, Error> {
        let core = self.core;
        if rank == core.data.fabric.rank() {
            return Ok(Local::new(core));
        }
        let (remote, base) = core.data.part(rank).ok_or_else(|| core.no_such_rank(rank))?;
        if !core.data.fabric.is_shared(remote) {
            return Err(Error::NotShared { window: core.id, rank });
        }
        let len = core.data.sizes[rank].bytes / size_of::<T>();
        Ok(Local { core, memory: PartMemory::Shared(remote), rank, base, len, element: PhantomData })
    }

    /// Memory that this rank attached.
    ///
    /// # Errors
    /// [`Error::Detached`] if it was detached, [`Error::NotHere`] if another rank attached it.
    ///
    /// # Examples
    /// See [`Window::attach`](crate::Window::attach).
    pub fn attached(&self, address: &Address) -> Result<Local<'w, T, F>, Error> {
        let region = self.core.attached_here(address)?;
        let len = self.core.attached_len::<T>(address.len());
        Ok(Local { memory: PartMemory::Own(region), base: 0, len, ..Self::new(self.core) })
    }

    /// A view of `len` elements of `U`, from byte `offset` of these on.
    pub(crate) fn as_elements<U>(&self, offset: usize, len: usize) -> Local<'w, U, F> {
        let Local { core, rank, .. } = *self;
        Local { core, memory: self.memory, rank, base: self.base + offset, len, element: PhantomData }
    }

    /// The number of elements in the part.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if the part has no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Reads one element.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`], as for all calls below.
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

    /// Copies `len` elements from `offset` on.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`].
    pub fn read(&self, offset: usize, len: usize) -> Result<Vec<T>, Error> {
        self.place(offset, len)?;
        let mut copy = vec![T::zeroed(); len];
        self.read_into(offset, &mut copy)?;
        Ok(copy)
    }

    /// Copies elements from `offset` on into a buffer.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`].
    #[inline]
    pub fn read_into(&self, offset: usize, into: &mut [T]) -> Result<(), Error> {
        let (fabric, at) = (&self.core.data.fabric, self.place(offset, into.len())?);
        let bytes = bytemuck::cast_slice_mut(into);
        let read = match self.memory {
            PartMemory::Own(region) => fabric.load(region, at, bytes),
            PartMemory::Shared(remote) => fabric.get(remote, at, bytes),
        };
        read.map_err(|source| self.error(source))
    }

    /// Writes elements from `offset` on.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`].
    #[inline]
    pub fn write(&self, offset: usize, source: &[T]) -> Result<(), Error> {
        if self.rank == self.core.data.fabric.rank() {
            self.core.checks.stored();
        }
        let (fabric, at) = (&self.core.data.fabric, self.place(offset, source.len())?);
        let bytes = bytemuck::cast_slice(source);
        let written = match self.memory {
            PartMemory::Own(region) => fabric.store(region, at, bytes),
            PartMemory::Shared(remote) => fabric.put(remote, at, bytes),
        };
        written.map_err(|source| self.error(source))
    }

    /// The elements in place, without a copy, for as long as the window or epoch is borrowed: no fence can come in
    /// between.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`]; [`Error::NotShared`] if this processor does not reach the elements.
    ///
    /// # Safety
    /// While the slice lives, no rank writes these elements, by any call or by another view of them. No rank
    /// accumulates to other elements in the same aligned 8 bytes, which an accumulate may write as a whole. A
    /// synchronisation orders earlier writes before this call, as for [`of`](Self::of).
    ///
    /// # Examples
    /// See [`as_mut_slice`](Self::as_mut_slice).
    #[inline]
    pub unsafe fn as_slice(&self, offset: usize, len: usize) -> Result<&'w [T], Error> {
        let start = self.in_place(offset, len)?;
        // SAFETY: `len` aligned elements lie there, as long as the window lives, and any bytes are valid elements. No
        // rank writes them: caller's contract.
        Ok(unsafe { std::slice::from_raw_parts(start, len) })
    }

    /// [`as_slice`](Self::as_slice) with write access, for programs that compute in the window's own memory. Other
    /// ranks see these writes as they see those by [`write`](Self::write).
    ///
    /// # Errors
    /// The errors of [`as_slice`](Self::as_slice).
    ///
    /// # Safety
    /// While the slice lives, no rank reads or writes these elements otherwise, by any call or by another view of them.
    /// No rank accumulates to other elements in the same aligned 8 bytes. A synchronisation orders earlier reads and
    /// writes before this call.
    ///
    /// # Examples
    /// ```
    /// # let fabric = transom_shm_loopback::Loopback::alone()?;
    /// # let mut window = transom_windows::Window::<f64, _>::allocate(&fabric, 0, 64)?;
    /// window.local().write(8, &[1.0, 2.0, 3.0, 4.0])?;
    /// window.fence()?;
    /// // SAFETY: until the next fence each rank accesses only its own part.
    /// for x in unsafe { window.local().as_mut_slice(8, 4) }? {
    ///     *x *= 2.0;
    /// }
    /// window.fence()?;
    /// // SAFETY: until the next fence no rank writes.
    /// assert_eq!(unsafe { window.local().of(0)?.as_slice(8, 4) }?, [2.0, 4.0, 6.0, 8.0]); // could be any rank's
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub unsafe fn as_mut_slice(&self, offset: usize, len: usize) -> Result<&'w mut [T], Error> {
        if self.rank == self.core.data.fabric.rank() {
            self.core.checks.stored();
        }
        let start = self.in_place(offset, len)?;
        // SAFETY: as above, and no rank reads the elements either.
        Ok(unsafe { std::slice::from_raw_parts_mut(start, len) })
    }

    /// The address of the elements, valid as long as the window lives.
    #[inline(always)]
    fn in_place(&self, offset: usize, len: usize) -> Result<*mut T, Error> {
        let (fabric, at) = (&self.core.data.fabric, self.place(offset, len)?);
        let size = len * size_of::<T>(); // no overflow: the part has so many bytes
        let bytes = match self.memory {
            PartMemory::Own(region) => fabric.own_bytes(region, at, size),
            PartMemory::Shared(remote) => fabric.bytes(remote, at, size),
        };
        // A provider is safe code, so its result is checked.
        let bytes = bytes.filter(|bytes| bytes.len() == size);
        let start = bytes.map(|bytes| bytes.as_ptr().cast_mut().cast::<T>()).filter(|start| start.is_aligned());
        start.ok_or(Error::NotShared { window: self.core.id, rank: self.rank })
    }

    /// Offset of the first byte of the elements, if the part has them all.
    #[inline(always)]
    fn place(&self, offset: usize, len: usize) -> Result<usize, Error> {
        inside::<T>(offset, len, self.len).map(|at| self.base + at).ok_or_else(|| {
            let (window, rank, size) = (self.core.id, self.rank, self.len);
            Error::OutOfBounds { window, rank, offset, len, size }
        })
    }

    #[cold]
    fn error(&self, source: FabricError) -> Error {
        Error::Fabric { window: self.core.id, rank: self.rank, source }
    }
}
