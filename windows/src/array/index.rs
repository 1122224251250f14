//! The forms in which a call names an element, or a patch of elements.

use super::layout::Layout;
use super::pointer::GlobalPtr;
use crate::Error;
use std::ops::Range;

/// The index of an element of an array of `T` in `D` dimensions: `[usize; D]`, in one dimension also a plain `usize`,
/// or a [`GlobalPtr`].
///
/// # Examples
/// ```
/// # use transom::{Distribution, GlobalArray};
/// let world = transom::init()?;
/// let mut plate: GlobalArray<f32, 2> = world.array([4, 6], Distribution::Block)?;
/// let mut line: GlobalArray<f32> = world.array([9], Distribution::Block)?;
/// plate.lock_all()?.put_one([3, 5], 0.5)?;
/// line.lock_all()?.put_one(8, 0.5)?;
/// # Ok::<(), transom::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not name an element of a global array of `{T}` in {D} dimension(s)",
    label = "not an index of this array",
    note = "pass `[usize; {D}]`, in one dimension also a plain `usize`, or a `GlobalPtr<{T}>`"
)]
pub trait Index<T, const D: usize>: sealed::Index<T, D> {}

/// The ranges of a patch of an array: one per dimension, `[Range<usize>; D]`; in one dimension also a plain
/// `Range<usize>`. The caller's buffer holds the patch row by row.
///
/// # Examples
/// ```
/// # use transom::{Distribution, GlobalArray};
/// let world = transom::init()?;
/// let mut plate: GlobalArray<f32, 2> = world.array([4, 6], Distribution::Block)?;
/// let mut line: GlobalArray<f32> = world.array([9], Distribution::Block)?;
/// plate.lock_all()?.put([2..4, 0..3], &[0.5; 6])?;
/// line.lock_all()?.put(2..4, &[0.5; 2])?;
/// # Ok::<(), transom::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not name a patch of a global array in {D} dimension(s)",
    label = "not the ranges of a patch of this array",
    note = "pass a range `a..b` of `usize` for each dimension, as `[Range<usize>; {D}]`; in one dimension also a plain `a..b`",
    note = "`..`, `a..` and `a..=b` are not accepted: `layout().shape()` has the length of each dimension"
)]
pub trait Ranges<const D: usize>: sealed::Ranges<D> {}

impl<T> Index<T, 1> for usize {}
impl<T, const D: usize> Index<T, D> for [usize; D] {}
impl<T, const D: usize> Index<T, D> for GlobalPtr<T> {}
impl Ranges<1> for Range<usize> {}
impl<const D: usize> Ranges<D> for [Range<usize>; D] {}

mod sealed {
    use super::{Error, Layout, Range};

    pub trait Index<T, const D: usize> {
        /// The element's index, which may be outside the array.
        fn index(self, array: u32, layout: &Layout<D>) -> Result<[usize; D], Error>;
    }

    pub trait Ranges<const D: usize> {
        fn ranges(self) -> [Range<usize>; D];
    }
}

impl<T> sealed::Index<T, 1> for usize {
    #[inline]
    fn index(self, _: u32, _: &Layout<1>) -> Result<[usize; 1], Error> {
        Ok([self])
    }
}

impl<T, const D: usize> sealed::Index<T, D> for [usize; D] {
    #[inline]
    fn index(self, _: u32, _: &Layout<D>) -> Result<[usize; D], Error> {
        Ok(self)
    }
}

impl<T, const D: usize> sealed::Index<T, D> for GlobalPtr<T> {
    fn index(self, array: u32, layout: &Layout<D>) -> Result<[usize; D], Error> {
        self.follow(array, layout)
    }
}

impl sealed::Ranges<1> for Range<usize> {
    #[inline]
    fn ranges(self) -> [Range<usize>; 1] {
        [self]
    }
}

impl<const D: usize> sealed::Ranges<D> for [Range<usize>; D] {
    #[inline]
    fn ranges(self) -> [Range<usize>; D] {
        self
    }
}
