//! What an epoch lets an array reach.

use crate::target::inside;
use crate::window::Core;
use crate::{Error, Fabric, FabricError, FenceEpoch, Local, LockAllEpoch, LockEpoch, Target};
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

pub(super) mod sealed {
    use super::*;

    // None of these is named like an operation of a target, or the compiler would suggest it to who forgot the target.
    pub trait Reach {
        type Element: Pod;
        type Way<'a>: Way<Element = Self::Element>
        where
            Self: 'a;

        /// The only rank that can be reached, if it is one.
        fn only(&self) -> Option<Rank>;

        /// Lends the elements of a rank that can be reached.
        fn way_to(&self, owner: Rank) -> Self::Way<'_>;
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

    /// Copies to and from the elements of one rank, apart from what is counted of them: where memory is shared, an
    /// operation that counts once may be many copies.
    pub trait Way {
        type Element: Pod;

        /// Whether copies are loads and stores of this processor, and no remote operations.
        fn is_shared(&self) -> bool;
        fn count_reads(&self, operations: usize);
        fn count_writes(&self, operations: usize);
        fn copy_from(&self, offset: usize, into: &mut [Self::Element]) -> Result<(), Error>;
        fn copy_to(&self, offset: usize, source: &[Self::Element]) -> Result<(), Error>;
    }
}

impl<W: sealed::Way> sealed::Way for &W {
    type Element = W::Element;

    #[inline(always)]
    fn is_shared(&self) -> bool {
        W::is_shared(self)
    }

    #[inline(always)]
    fn count_reads(&self, operations: usize) {
        W::count_reads(self, operations);
    }

    #[inline(always)]
    fn count_writes(&self, operations: usize) {
        W::count_writes(self, operations);
    }

    #[inline(always)]
    fn copy_from(&self, offset: usize, into: &mut [W::Element]) -> Result<(), Error> {
        W::copy_from(self, offset, into)
    }

    #[inline(always)]
    fn copy_to(&self, offset: usize, source: &[W::Element]) -> Result<(), Error> {
        W::copy_to(self, offset, source)
    }
}

impl<T: Pod, F: Fabric> sealed::Way for Target<'_, T, F> {
    type Element = T;

    #[inline(always)]
    fn is_shared(&self) -> bool {
        self.core.data.fabric.is_shared(self.remote)
    }

    #[inline(always)]
    fn count_reads(&self, operations: usize) {
        self.core.data.counters.gets.add(operations as u64);
    }

    #[inline(always)]
    fn count_writes(&self, operations: usize) {
        self.core.data.counters.puts.add(operations as u64);
    }

    #[inline(always)]
    fn copy_from(&self, offset: usize, into: &mut [T]) -> Result<(), Error> {
        let (len, at) = (into.len(), self.place(offset, into.len())?);
        match self.core.data.fabric.get(self.remote, at, bytemuck::cast_slice_mut(into)) {
            Ok(()) => Ok(()),
            Err(error) => Err(self.error(error, offset, len)),
        }
    }

    #[inline(always)]
    fn copy_to(&self, offset: usize, source: &[T]) -> Result<(), Error> {
        let at = self.place(offset, source.len())?;
        match self.core.data.fabric.put(self.remote, at, bytemuck::cast_slice(source)) {
            Ok(()) => Ok(()),
            Err(error) => Err(self.error(error, offset, source.len())),
        }
    }
}

/// A rank, found again for each copy: what a copy needs of it is in registers then, and no target in memory.
pub struct AtRank<'e, T, F: Fabric> {
    core: &'e Core<T, F>,
    rank: Rank,
}

impl<T: Pod, F: Fabric> sealed::Way for AtRank<'_, T, F> {
    type Element = T;

    #[inline(always)]
    fn is_shared(&self) -> bool {
        self.core.data.part(self.rank).is_some_and(|(remote, _)| self.core.data.fabric.is_shared(remote))
    }

    #[inline(always)]
    fn count_reads(&self, operations: usize) {
        self.core.data.counters.gets.add(operations as u64);
    }

    #[inline(always)]
    fn count_writes(&self, operations: usize) {
        self.core.data.counters.puts.add(operations as u64);
    }

    #[inline(always)]
    fn copy_from(&self, offset: usize, into: &mut [T]) -> Result<(), Error> {
        let (len, (remote, at)) = (into.len(), self.place(offset, into.len())?);
        match self.core.data.fabric.get(remote, at, bytemuck::cast_slice_mut(into)) {
            Ok(()) => Ok(()),
            Err(error) => Err(failed(self.core, self.rank, error, offset, len)),
        }
    }

    #[inline(always)]
    fn copy_to(&self, offset: usize, source: &[T]) -> Result<(), Error> {
        let (remote, at) = self.place(offset, source.len())?;
        match self.core.data.fabric.put(remote, at, bytemuck::cast_slice(source)) {
            Ok(()) => Ok(()),
            Err(error) => Err(failed(self.core, self.rank, error, offset, source.len())),
        }
    }
}

impl<'e, T: Pod, F: Fabric> AtRank<'e, T, F> {
    #[inline(always)]
    fn place(&self, offset: usize, len: usize) -> Result<(&'e F::Remote, usize), Error> {
        let data = &self.core.data;
        if let (Some((remote, base)), Some(size)) = (data.remotes.get(self.rank).map(|r| (r,data.base)), data.sizes.get(self.rank))
            && let Some(at) = inside::<T>(offset, len, size.bytes / size_of::<T>())
        {
            return Ok((remote, base + at));
        }
        let outside = FabricError::OutOfBounds { offset, len, size: 0 };
        Err(failed(self.core, self.rank, outside, offset, len))
    }
}

/// What the target would have said.
#[cold]
#[inline(never)]
fn failed<T: Pod, F: Fabric>(core: &Core<T, F>, rank: Rank, error: FabricError, offset: usize, len: usize) -> Error {
    match Target::new(core, rank) {
        Ok(target) => target.error(error, offset, len),
        Err(no_such_rank) => no_such_rank,
    }
}

/// This rank's own part is reached without operations, so nothing is counted.
impl<T: Pod, F: Fabric> sealed::Way for Local<'_, T, F> {
    type Element = T;

    #[inline(always)]
    fn is_shared(&self) -> bool {
        true
    }

    #[inline(always)]
    fn count_reads(&self, _: usize) {}

    #[inline(always)]
    fn count_writes(&self, _: usize) {}

    #[inline(always)]
    fn copy_from(&self, offset: usize, into: &mut [T]) -> Result<(), Error> {
        self.read_into(offset, into)
    }

    #[inline(always)]
    fn copy_to(&self, offset: usize, source: &[T]) -> Result<(), Error> {
        self.write(offset, source)
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

impl<T: Pod, F: Fabric> Reach for Part<'_, T, F> {}

impl<'w, T: Pod, F: Fabric> sealed::Reach for Part<'w, T, F> {
    type Element = T;
    type Way<'a>
        = &'a Local<'w, T, F>
    where
        Self: 'a;

    #[inline(always)]
    fn only(&self) -> Option<Rank> {
        Some(self.rank)
    }

    #[inline(always)]
    fn way_to(&self, _: Rank) -> &Local<'w, T, F> {
        &self.local
    }
}

impl<T: Pod, F: Fabric> Reach for LockEpoch<'_, T, F> {}
impl<T: Pod, F: Fabric> Remote for LockEpoch<'_, T, F> {}

impl<'w, T: Pod, F: Fabric> sealed::Reach for LockEpoch<'w, T, F> {
    type Element = T;
    type Way<'a>
        = &'a Target<'w, T, F>
    where
        Self: 'a;

    #[inline(always)]
    fn only(&self) -> Option<Rank> {
        Some(self.rank())
    }

    #[inline(always)]
    fn way_to(&self, _: Rank) -> &Target<'w, T, F> {
        self
    }
}

impl<T: Pod, F: Fabric> sealed::Remote for LockEpoch<'_, T, F> {
    type Fabric = F;

    #[inline(always)]
    fn with_target<R>(&self, _: Rank, call: impl FnOnce(&Target<'_, T, F>) -> Result<R, Error>) -> Result<R, Error> {
        call(self)
    }
}

/// Epochs that open all targets.
macro_rules! on_all_ranks {
    ($($epoch:ident),*) => {$(
        impl<T: Pod, F: Fabric> Reach for $epoch<'_, T, F> {}
        impl<T: Pod, F: Fabric> Remote for $epoch<'_, T, F> {}

        impl<T: Pod, F: Fabric> sealed::Reach for $epoch<'_, T, F> {
            type Element = T;
            type Way<'a> = AtRank<'a, T, F> where Self: 'a;

            #[inline(always)]
            fn only(&self) -> Option<Rank> {
                None
            }

            #[inline(always)]
            fn way_to(&self, rank: Rank) -> AtRank<'_, T, F> {
                AtRank { core: self.core, rank }
            }
        }

        impl<T: Pod, F: Fabric> sealed::Remote for $epoch<'_, T, F> {
            type Fabric = F;

            #[inline(always)]
            fn with_target<R>(
                &self,
                owner: Rank,
                call: impl FnOnce(&Target<'_, T, F>) -> Result<R, Error>,
            ) -> Result<R, Error> {
                call(&self.target(owner)?)
            }
        }
    )*};
}

on_all_ranks!(LockAllEpoch, FenceEpoch);
