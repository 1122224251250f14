//! A rank's own part of a window.

use crate::target::inside;
use crate::window::Core;
use crate::{Error, Fabric, FabricError};
use bytemuck::Pod;
use transom_locks::Rank;

/// A rank's own part of a window: copies in and out, since other ranks may write at any time. Elements that ranks change
/// by atomics at the same moment are not for these calls: use atomics on them, in an epoch on one's own rank.
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
        self.core.data.sizes[self.rank()].bytes / size_of::<T>()
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
        self.place(offset, len)?;
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
        let (data, at) = (&self.core.data, self.place(offset, into.len())?);
        data.fabric.load(&data.region, at, bytemuck::cast_slice_mut(into)).map_err(|source| self.error(source))
    }

    /// Writes elements from `offset` on.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`].
    #[inline]
    pub fn write(&self, offset: usize, source: &[T]) -> Result<(), Error> {
        let (data, at) = (&self.core.data, self.place(offset, source.len())?);
        data.fabric.store(&data.region, at, bytemuck::cast_slice(source)).map_err(|source| self.error(source))
    }

    fn rank(&self) -> Rank {
        self.core.data.fabric.rank()
    }

    /// The first byte of elements, if this rank exposes them all.
    #[inline(always)]
    fn place(&self, offset: usize, len: usize) -> Result<usize, Error> {
        inside::<T>(offset, len, self.len()).map(|at| self.core.data.base + at).ok_or_else(|| {
            let (window, rank, size) = (self.core.id, self.rank(), self.len());
            Error::OutOfBounds { window, rank, offset, len, size }
        })
    }

    #[cold]
    fn error(&self, source: FabricError) -> Error {
        Error::Fabric { window: self.core.id, rank: self.rank(), source }
    }
}
