//! The elements of an array that an epoch can access.

use crate::core::Core;
use crate::target::inside;
use crate::{Error, Fabric, FabricError, FenceEpoch, Local, LockAllEpoch, LockEpoch, LockRanksEpoch, Target};
use bytemuck::Pod;
use sealed::Inside;
use transom_locks::Rank;

/// The means of an [`Access`](super::Access): an epoch of the array's window, or this rank's own part.
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
/// assert_eq!((sum(&array.local())?, sum(&array.lock_all()?)?), (3, 3)); // this rank owns all elements
/// # Ok::<(), transom::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "a global array's elements cannot be reached through `{Self}`",
    label = "neither an epoch nor this rank's own part",
    note = "an `Access` comes from `lock_exclusive`, `lock_shared`, `lock_ranks`, `lock_all`, `fence` or `local` of a `GlobalArray`"
)]
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
/// # Ok::<(), transom::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no atomic operations",
    label = "not an epoch",
    note = "open an epoch by `lock_exclusive`, `lock_shared`, `lock_ranks`, `lock_all` or `fence` of the `GlobalArray`"
)]
pub trait Remote: Reach + sealed::Remote {}

impl<T: Pod, F: Fabric> Reach for Part<'_, T, F> {}
impl<T: Pod, F: Fabric> Reach for LockEpoch<'_, T, F> {}
impl<T: Pod, F: Fabric> Reach for LockRanksEpoch<'_, T, F> {}
impl<T: Pod, F: Fabric> Reach for LockAllEpoch<'_, T, F> {}
impl<T: Pod, F: Fabric> Reach for FenceEpoch<'_, T, F> {}
impl<T: Pod, F: Fabric> Remote for LockEpoch<'_, T, F> {}
impl<T: Pod, F: Fabric> Remote for LockRanksEpoch<'_, T, F> {}
impl<T: Pod, F: Fabric> Remote for LockAllEpoch<'_, T, F> {}
impl<T: Pod, F: Fabric> Remote for FenceEpoch<'_, T, F> {}

/// This rank's own part of an array.
///
/// # Examples
/// See [`GlobalArray::local`](super::GlobalArray::local), which returns it.
pub struct Part<'w, T: Pod, F: Fabric> {
    pub(super) rank: Rank,
    pub(super) local: Local<'w, T, F>,
}

/// The token by which this module alone calls the methods of the sealed traits. A bound on a trait makes its methods
/// callable, wherever it is sealed.
pub(super) const INSIDE: Inside = Inside(());

pub(super) mod sealed {
    use super::*;

    #[derive(Clone, Copy)]
    pub struct Inside(pub(super) ());

    /// Copies are separate from the operation counts: where memory is shared, an operation that counts once may be many
    /// copies. No method is named like an operation of a target, or the compiler would suggest it to a caller who
    /// forgot the target.
    pub trait Reach {
        type Element: Pod;

        /// Returns whether the elements of `owner` can be accessed.
        fn reaches(&self, owner: Rank) -> bool;

        /// The ranks whose elements can be accessed, for the error that names them.
        fn reached(&self) -> Vec<Rank>;

        /// True if copies of the owner's elements are loads and stores of this processor rather than remote operations.
        fn is_shared(&self, owner: Rank) -> bool;
        fn count_reads(&self, operations: usize);
        fn count_writes(&self, operations: usize);

        /// Copies from the part of a rank that can be accessed.
        fn copy_from(&self, _: Inside, owner: Rank, offset: usize, into: &mut [Self::Element]) -> Result<(), Error>;
        fn copy_to(&self, _: Inside, owner: Rank, offset: usize, source: &[Self::Element]) -> Result<(), Error>;
    }

    pub trait Remote: Reach {
        type Fabric: Fabric;

        /// The target of a rank that can be accessed.
        fn target(&self, _: Inside, owner: Rank) -> Result<Target<'_, Self::Element, Self::Fabric>, Error>;

        /// Calls `call` with the target of a rank that can be accessed.
        fn with_target<R>(
            &self,
            _: Inside,
            owner: Rank,
            call: impl FnOnce(&Target<'_, Self::Element, Self::Fabric>) -> Result<R, Error>,
        ) -> Result<R, Error>;
    }
}

impl<T: Pod, F: Fabric> sealed::Reach for Part<'_, T, F> {
    type Element = T;

    #[inline(always)]
    fn reaches(&self, owner: Rank) -> bool {
        owner == self.rank
    }

    fn reached(&self) -> Vec<Rank> {
        vec![self.rank]
    }

    #[inline(always)]
    fn is_shared(&self, _: Rank) -> bool {
        true
    }

    fn count_reads(&self, _: usize) {}

    fn count_writes(&self, _: usize) {}

    #[inline(always)]
    fn copy_from(&self, _: Inside, _: Rank, offset: usize, into: &mut [T]) -> Result<(), Error> {
        self.local.read_into(offset, into)
    }

    #[inline(always)]
    fn copy_to(&self, _: Inside, _: Rank, offset: usize, source: &[T]) -> Result<(), Error> {
        self.local.write(offset, source)
    }
}

/// For each epoch: whether it accesses a rank, the ranks that it accesses, and its call with a target.
macro_rules! epochs {
    ($($epoch:ident, $reaches:expr, $reached:expr, |$this:ident, $owner:pat_param, $call:ident| $called:expr;)*) => {$(
        impl<T: Pod, F: Fabric> sealed::Reach for $epoch<'_, T, F> {
            type Element = T;

            #[inline(always)]
            fn reaches(&self, owner: Rank) -> bool {
                let reaches: fn(&Self, Rank) -> bool = $reaches;
                reaches(self, owner)
            }

            fn reached(&self) -> Vec<Rank> {
                let reached: fn(&Self) -> Vec<Rank> = $reached;
                reached(self)
            }

            #[inline(always)]
            fn is_shared(&self, owner: Rank) -> bool {
                let data = &self.core.data;
                data.part(owner).is_some_and(|(remote, _)| data.fabric.is_shared(remote))
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
            fn copy_from(&self, _: Inside, owner: Rank, offset: usize, into: &mut [T]) -> Result<(), Error> {
                let (len, (remote, at)) = (into.len(), place::<T, F>(self.core, owner, offset, into.len())?);
                match self.core.data.fabric.get(remote, at, bytemuck::cast_slice_mut(into)) {
                    Ok(()) => Ok(()),
                    Err(error) => Err(failed::<T, F>(self.core, owner, error, offset, len)),
                }
            }

            #[inline(always)]
            fn copy_to(&self, _: Inside, owner: Rank, offset: usize, source: &[T]) -> Result<(), Error> {
                let (remote, at) = place::<T, F>(self.core, owner, offset, source.len())?;
                match self.core.data.fabric.put(remote, at, bytemuck::cast_slice(source)) {
                    Ok(()) => Ok(()),
                    Err(error) => Err(failed::<T, F>(self.core, owner, error, offset, source.len())),
                }
            }
        }

        impl<T: Pod, F: Fabric> sealed::Remote for $epoch<'_, T, F> {
            type Fabric = F;

            fn target(&self, _: Inside, owner: Rank) -> Result<Target<'_, T, F>, Error> {
                Target::new(self.core, owner)
            }

            #[inline(always)]
            fn with_target<R>(
                &self,
                _: Inside,
                $owner: Rank,
                $call: impl FnOnce(&Target<'_, T, F>) -> Result<R, Error>,
            ) -> Result<R, Error> {
                let $this = self;
                $called
            }
        }
    )*};
}

epochs! {
    LockEpoch, |epoch, owner| epoch.rank() == owner, |epoch| vec![epoch.rank()], |epoch, _, call| call(epoch);
    LockRanksEpoch, |epoch, owner| epoch.is_locked(owner), |epoch| epoch.locked().collect(),
        |epoch, owner, call| call(&sealed::Remote::target(epoch, INSIDE, owner)?);
    LockAllEpoch, |_, _| true, |epoch| (0..epoch.ranks()).collect(),
        |epoch, owner, call| call(&sealed::Remote::target(epoch, INSIDE, owner)?);
    FenceEpoch, |_, _| true, |epoch| (0..epoch.core.data.remotes.len()).collect(),
        |epoch, owner, call| call(&sealed::Remote::target(epoch, INSIDE, owner)?);
}

/// The memory of a rank and the offset of elements there, if the rank has them. Makes no [`Target`], which would be
/// written to the stack for the sake of its errors.
#[inline(always)]
fn place<T, F: Fabric>(core: &Core<F>, rank: Rank, offset: usize, len: usize) -> Result<(&F::Remote, usize), Error>
where
    T: Pod,
{
    let data = &core.data;
    if let (Some((remote, base)), Some(size)) = (data.part(rank), data.sizes.get(rank))
        && let Some(at) = inside::<T>(offset, len, size.bytes / size_of::<T>())
    {
        return Ok((remote, base + at));
    }
    Err(failed::<T, F>(core, rank, FabricError::OutOfBounds { offset, len, size: 0 }, offset, len))
}

/// The error that a target would return.
#[cold]
#[inline(never)]
fn failed<T: Pod, F: Fabric>(core: &Core<F>, rank: Rank, error: FabricError, offset: usize, len: usize) -> Error {
    match Target::<T, F>::new(core, rank) {
        Ok(target) => target.error(error, offset, len),
        Err(no_such_rank) => no_such_rank,
    }
}
