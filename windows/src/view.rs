//! Views: the same memory as elements of another type. One window of bytes can have counters, matrices and flags.

use crate::local::Local;
use crate::target::Target;
use crate::{Error, Fabric};
use bytemuck::Pod;
use std::cell::Cell;
use std::marker::PhantomData;

impl<T: Pod, F: Fabric> Target<'_, T, F> {
    /// The target's memory from byte `offset` on, as elements of type `U`: with every operation that these have. Offsets and
    /// lengths are in elements of `U` from there on; bytes at the end that are not a whole element are not in it. No remote
    /// operation.
    ///
    /// What is one word of 8 bytes stays one: accumulates to elements of whatever views are atomic towards each other.
    ///
    /// # Errors
    /// [`Error::View`] if the memory ends before `offset`, if that is no multiple of the alignment of `U` (of a view of a view,
    /// counted from where the memory begins), or if `U` has no size.
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
                // It may be in another thread, beside this one and other views.
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
    /// As [`Target::view`].
    ///
    /// # Errors
    /// As `Target::view`.
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

/// How many elements of type `U` there are from byte `offset` on of `len` elements of type `T`, which begin at byte `base` of memory
/// that is aligned for all.
fn view_of<T, U>(base: usize, len: usize, offset: usize) -> Result<usize, &'static str> {
    let rest = (len * size_of::<T>()).checked_sub(offset).ok_or("the memory ends before")?;
    if !(base + offset).is_multiple_of(align_of::<U>()) {
        return Err("it is no multiple of the elements' alignment");
    }
    rest.checked_div(size_of::<U>()).ok_or("the elements have no size")
}
