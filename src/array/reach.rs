//! What an epoch lets an array reach.

use crate::provider::Provider;
use crate::windows::{FenceEpoch, Local, LockAllEpoch, LockEpoch, Target};
use crate::{Error, Rank};
use bytemuck::Pod;

/// What an [`Access`](super::Access) goes through: an epoch of the array's window, or this rank's own part.
///
/// # Examples
/// ```
/// use transom::Distribution;
/// use transom::array::{Access, ArrayError, Reach};
///
/// fn sum(array: &Access<'_, impl Reach<Element = u64>, 1>) -> Result<u64, ArrayError> {
///     let mut all = vec![0; array.layout().len()];
///     array.get(0..all.len(), &mut all)?;
///     Ok(all.iter().sum())
/// }
///
/// let world = transom::init()?;
/// let mut array = world.array([10], Distribution::Cyclic)?;
/// array.local().put(3..5, &[1, 2])?;
/// assert_eq!((sum(&array.local())?, sum(&array.lock_all()?)?), (3, 3)); // this rank has all of it
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Reach: sealed::Reach {}

/// A [`Reach`] with remote operations: an epoch.
///
/// # Examples
/// ```
/// use transom::array::{Access, ArrayError, Remote};
/// use transom::{Distribution, Op};
///
/// fn count(array: &Access<'_, impl Remote<Element = u64>, 1>, bin: usize) -> Result<u64, ArrayError> {
///     array.fetch_and_op(bin, Op::Sum, 1)
/// }
///
/// let world = transom::init()?;
/// let mut bins = world.array([10], Distribution::Block)?;
/// assert_eq!(count(&bins.fence()?, 7)?, 0);
/// assert_eq!(count(&bins.lock_shared(0)?, 7)?, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Remote: Reach + sealed::Remote {}

impl<E: sealed::Reach> Reach for E {}
impl<E: sealed::Remote> Remote for E {}

pub(super) mod sealed {
    use super::*;

    pub trait Reach {
        type Element: Pod;

        /// The only rank that can be reached, if it is one.
        fn only(&self) -> Option<Rank>;
        fn get(&self, owner: Rank, offset: usize, into: &mut [Self::Element]) -> Result<(), Error>;
        fn put(&self, owner: Rank, offset: usize, source: &[Self::Element]) -> Result<(), Error>;
    }

    pub trait Remote: Reach {
        /// Lends a rank that can be reached.
        fn at<R>(
            &self,
            owner: Rank,
            call: impl FnOnce(&Target<'_, Self::Element, Provider>) -> Result<R, Error>,
        ) -> Result<R, Error>;
    }
}

/// This rank's own part of an array.
///
/// # Examples
/// See [`GlobalArray::local`](super::GlobalArray::local), which lends it.
pub struct Part<'w, T: Pod> {
    pub(super) rank: Rank,
    pub(super) local: Local<'w, T, Provider>,
}

impl<T: Pod> sealed::Reach for Part<'_, T> {
    type Element = T;

    #[inline]
    fn only(&self) -> Option<Rank> {
        Some(self.rank)
    }

    #[inline]
    fn get(&self, _: Rank, offset: usize, into: &mut [T]) -> Result<(), Error> {
        self.local.read_into(offset, into)
    }

    #[inline]
    fn put(&self, _: Rank, offset: usize, source: &[T]) -> Result<(), Error> {
        self.local.write(offset, source)
    }
}

macro_rules! epochs {
    ($($epoch:ident reaches only $only:expr;)*) => {$(
        impl<T: Pod> sealed::Reach for $epoch<'_, T, Provider> {
            type Element = T;

            #[inline]
            fn only(&self) -> Option<Rank> {
                let only: fn(&Self) -> Option<Rank> = $only;
                only(self)
            }

            #[inline]
            fn get(&self, owner: Rank, offset: usize, into: &mut [T]) -> Result<(), Error> {
                sealed::Remote::at(self, owner, |target| target.get(offset, into))
            }

            #[inline]
            fn put(&self, owner: Rank, offset: usize, source: &[T]) -> Result<(), Error> {
                sealed::Remote::at(self, owner, |target| target.put(offset, source))
            }
        }
    )*};
}

epochs! {
    LockEpoch reaches only |epoch| Some(epoch.rank());
    LockAllEpoch reaches only |_| None;
    FenceEpoch reaches only |_| None;
}

impl<T: Pod> sealed::Remote for LockEpoch<'_, T, Provider> {
    #[inline]
    fn at<R>(&self, _: Rank, call: impl FnOnce(&Target<'_, T, Provider>) -> Result<R, Error>) -> Result<R, Error> {
        call(self)
    }
}

impl<T: Pod> sealed::Remote for LockAllEpoch<'_, T, Provider> {
    #[inline]
    fn at<R>(&self, owner: Rank, call: impl FnOnce(&Target<'_, T, Provider>) -> Result<R, Error>) -> Result<R, Error> {
        call(&self.target(owner)?)
    }
}

impl<T: Pod> sealed::Remote for FenceEpoch<'_, T, Provider> {
    #[inline]
    fn at<R>(&self, owner: Rank, call: impl FnOnce(&Target<'_, T, Provider>) -> Result<R, Error>) -> Result<R, Error> {
        call(&self.target(owner)?)
    }
}
