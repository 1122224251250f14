//! What an epoch lets an array reach.

use crate::{Error, Fabric, FenceEpoch, Local, LockAllEpoch, LockEpoch, Target};
use bytemuck::Pod;
use transom_locks::Rank;

/// What an [`Access`](super::Access) goes through: an epoch of the array's window, or this rank's own part.
///
/// # Examples
/// ```
/// use transom::Distribution;
/// use transom::array::{Access, Reach};
///
/// fn sum(array: &Access<'_, impl Reach<Element = u64>, 1>) -> Result<u64, transom::Error> {
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
/// use transom::array::{Access, Remote};
/// use transom::{Distribution, Op};
///
/// fn count(array: &Access<'_, impl Remote<Element = u64>, 1>, bin: usize) -> Result<u64, transom::Error> {
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

    // None of these is named as an operation of a target, or the compiler would suggest it to who forgot the target.
    pub trait Reach {
        type Element: Pod;

        /// The only rank that can be reached, if it is one.
        fn only(&self) -> Option<Rank>;
        fn get_at(&self, owner: Rank, offset: usize, into: &mut [Self::Element]) -> Result<(), Error>;
        fn put_at(&self, owner: Rank, offset: usize, source: &[Self::Element]) -> Result<(), Error>;
    }

    pub trait Remote: Reach {
        type Fabric: Fabric;

        /// Lends a rank that can be reached.
        fn with_target<R>(
            &self,
            owner: Rank,
            call: impl FnOnce(&Target<'_, Self::Element, Self::Fabric>) -> Result<R, Error>,
        ) -> Result<R, Error>;
    }
}

/// This rank's own part of an array.
///
/// # Examples
/// See [`GlobalArray::local`](super::GlobalArray::local), which lends it.
pub struct Part<'w, T: Pod, F: Fabric> {
    pub(super) rank: Rank,
    pub(super) local: Local<'w, T, F>,
}

impl<T: Pod, F: Fabric> sealed::Reach for Part<'_, T, F> {
    type Element = T;

    #[inline]
    fn only(&self) -> Option<Rank> {
        Some(self.rank)
    }

    #[inline]
    fn get_at(&self, _: Rank, offset: usize, into: &mut [T]) -> Result<(), Error> {
        self.local.read_into(offset, into)
    }

    #[inline]
    fn put_at(&self, _: Rank, offset: usize, source: &[T]) -> Result<(), Error> {
        self.local.write(offset, source)
    }
}

macro_rules! epochs {
    ($($epoch:ident reaches only $only:expr;)*) => {$(
        impl<T: Pod, F: Fabric> sealed::Reach for $epoch<'_, T, F> {
            type Element = T;

            #[inline]
            fn only(&self) -> Option<Rank> {
                let only: fn(&Self) -> Option<Rank> = $only;
                only(self)
            }

            #[inline]
            fn get_at(&self, owner: Rank, offset: usize, into: &mut [T]) -> Result<(), Error> {
                sealed::Remote::with_target(self, owner, |target| target.get(offset, into))
            }

            #[inline]
            fn put_at(&self, owner: Rank, offset: usize, source: &[T]) -> Result<(), Error> {
                sealed::Remote::with_target(self, owner, |target| target.put(offset, source))
            }
        }
    )*};
}

epochs! {
    LockEpoch reaches only |epoch| Some(epoch.rank());
    LockAllEpoch reaches only |_| None;
    FenceEpoch reaches only |_| None;
}

impl<T: Pod, F: Fabric> sealed::Remote for LockEpoch<'_, T, F> {
    type Fabric = F;

    #[inline]
    fn with_target<R>(&self, _: Rank, call: impl FnOnce(&Target<'_, T, F>) -> Result<R, Error>) -> Result<R, Error> {
        call(self)
    }
}

impl<T: Pod, F: Fabric> sealed::Remote for LockAllEpoch<'_, T, F> {
    type Fabric = F;

    #[inline]
    fn with_target<R>(
        &self,
        owner: Rank,
        call: impl FnOnce(&Target<'_, T, F>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        call(&self.target(owner)?)
    }
}

impl<T: Pod, F: Fabric> sealed::Remote for FenceEpoch<'_, T, F> {
    type Fabric = F;

    #[inline]
    fn with_target<R>(
        &self,
        owner: Rank,
        call: impl FnOnce(&Target<'_, T, F>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        call(&self.target(owner)?)
    }
}
