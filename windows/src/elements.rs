//! Operations on one element, with the names of processor atomics.

use crate::target::Target;
use crate::{Atomic, Error, Fabric, Op};
use bytemuck::Pod;

impl<T: Pod, F: Fabric> Target<'_, T, F> {
    /// [`put`](Self::put) of one element. 1 write.
    ///
    /// # Errors
    /// The errors of `put`.
    ///
    /// # Examples
    /// ```
    /// # let fabric = transom_shm_loopback::Loopback::alone()?;
    /// # let mut window = transom_windows::Window::<u32, _>::allocate(&fabric, 0, 64)?;
    /// let epoch = window.lock_exclusive(0)?;
    /// epoch.put_one(3, 5)?;
    /// assert_eq!(epoch.get_one(3)?, 5);
    /// # Ok::<(), transom_windows::Error>(())
    /// ```
    #[inline]
    pub fn put_one(&self, offset: usize, element: T) -> Result<(), Error> {
        self.put(offset, &[element])
    }

    /// Reads the element atomically: [`fetch_and_op`](Self::fetch_and_op) with [`Op::NoOp`]. 1 read of its word.
    ///
    /// # Errors
    /// The errors of `fetch_and_op`.
    ///
    /// # Examples
    /// ```
    /// # let fabric = transom_shm_loopback::Loopback::alone()?;
    /// # let mut window = transom_windows::Window::<i64, _>::allocate(&fabric, 0, 64)?;
    /// let epoch = window.lock_shared(0)?; // other ranks may do the same concurrently
    /// epoch.store(0, 5)?;
    /// assert_eq!(epoch.fetch_add(0, 2)?, 5);
    /// assert_eq!(epoch.swap(0, -1)?, 7);
    /// assert_eq!(epoch.load(0)?, -1);
    /// # Ok::<(), transom_windows::Error>(())
    /// ```
    #[inline]
    pub fn load(&self, offset: usize) -> Result<T, Error>
    where
        T: Atomic,
    {
        self.fetch_and_op(offset, Op::NoOp, T::zeroed())
    }

    /// Replaces the element atomically: [`accumulate`](Self::accumulate) with [`Op::Replace`].
    ///
    /// # Errors
    /// The errors of `accumulate`.
    ///
    /// # Examples
    /// See [`load`](Self::load).
    #[inline]
    pub fn store(&self, offset: usize, element: T) -> Result<(), Error>
    where
        T: Atomic,
    {
        self.accumulate(offset, Op::Replace, &[element])
    }

    /// Replaces the element atomically, and returns its previous value: [`fetch_and_op`](Self::fetch_and_op) with
    /// [`Op::Replace`].
    ///
    /// # Errors
    /// The errors of `fetch_and_op`.
    ///
    /// # Examples
    /// See [`load`](Self::load).
    #[inline]
    pub fn swap(&self, offset: usize, element: T) -> Result<T, Error>
    where
        T: Atomic,
    {
        self.fetch_and_op(offset, Op::Replace, element)
    }

    /// Adds to the element atomically, and returns its previous value: [`fetch_and_op`](Self::fetch_and_op) with
    /// [`Op::Sum`]. 1 fetch-and-add for integers of 8 bytes.
    ///
    /// # Errors
    /// The errors of `fetch_and_op`.
    ///
    /// # Examples
    /// See [`load`](Self::load).
    #[inline]
    pub fn fetch_add(&self, offset: usize, operand: T) -> Result<T, Error>
    where
        T: Atomic,
    {
        self.fetch_and_op(offset, Op::Sum, operand)
    }
}
