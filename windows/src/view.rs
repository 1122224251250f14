//! Views of the same memory as elements of another type. One window of bytes can hold counters, matrices and flags.

use crate::local::Local;
use crate::target::Target;
use crate::{Error, Fabric};
use bytemuck::Pod;
use std::cell::Cell;
use std::marker::PhantomData;

impl<T: Pod, F: Fabric> Target<'_, T, F> {
    /// The target's memory from byte `offset` on, as elements of type `U` with all their operations. Offsets and
    /// lengths in the view are in elements of `U`. Trailing bytes that are not a whole element are not part of it. No
    /// remote operation.
    ///
    /// An aligned word of 8 bytes remains one word: accumulates through different views are atomic with respect to each
    /// other.
    ///
    /// # Errors
    /// [`Error::View`] if the memory ends before `offset`, if `offset` is no multiple of the alignment of `U`, or if
    /// `U` has no size. For a view of a view, the alignment counts from the beginning of the memory.
    ///
    /// # Examples
    /// ```
    /// # let fabric = transom_shm_loopback::Loopback::alone()?;
    /// # let mut window = transom_windows::Window::<u8, _>::allocate(&fabric, 0, 1000)?;
    /// use transom_windows::Op;
    /// let epoch = window.lock_shared(0)?; // 8 bytes of a counter, then a row of floats
    /// let (count, row) = (epoch.view::<u64>(0)?, epoch.view::<f32>(8)?);
    /// row.put(3, &[1.5, 2.5])?;
    /// assert_eq!(count.fetch_and_op(0, Op::Sum, 2)?, 0);
    /// assert_eq!((row.len(), row.get_one(4)?), (248, 2.5));
    /// assert!(epoch.view::<u64>(12).is_err()); // not aligned
    /// epoch.unlock()?;
    /// assert_eq!(window.local().view::<u64>(0)?.get(0)?, 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn view<U: Pod>(&self, offset: usize) -> Result<Target<'_, U, F>, Error> {
        match view_of::<T, U>(self.base, self.len(), offset) {
            Ok(len) => {
                // The view may be used in another thread, beside this target and other views.
                self.exclusive.set(false);
                Ok(Target {
                    core: self.core,
                    remote: self.remote,
                    rank: self.rank,
                    gate: self.gate,
                    base: self.base + offset,
                    len,
                    exclusive: Cell::new(false),
                    element: PhantomData,
                })
            }
            Err(why) => Err(Error::View { window: self.core.id, rank: self.rank, offset, why }),
        }
    }
}

impl<'w, T: Pod, F: Fabric> Local<'w, T, F> {
    /// [`Target::view`] of this rank's part.
    ///
    /// # Errors
    /// The errors of [`Target::view`].
    ///
    /// # Examples
    /// See `Target::view`.
    pub fn view<U: Pod>(&self, offset: usize) -> Result<Local<'w, U, F>, Error> {
        match view_of::<T, U>(self.base, self.len(), offset) {
            Ok(len) => Ok(self.as_elements(offset, len)),
            Err(why) => Err(Error::View { window: self.core.id, rank: self.rank, offset, why }),
        }
    }
}

/// The number of elements of type `U` from byte `offset` on, within `len` elements of type `T` that begin at byte
/// `base` of memory with sufficient alignment for all types.
fn view_of<T, U>(base: usize, len: usize, offset: usize) -> Result<usize, &'static str> {
    let rest = (len * size_of::<T>()).checked_sub(offset).ok_or("the memory ends before")?;
    if !(base + offset).is_multiple_of(align_of::<U>()) {
        return Err("it is not a multiple of the elements' alignment");
    }
    rest.checked_div(size_of::<U>()).ok_or("the elements have no size")
}
