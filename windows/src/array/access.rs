//! The operations on an array's elements.

use super::index::{Index, Ranges};
use super::layout::{Layout, Placement};
use super::patch::Patch;
use super::pointer::GlobalPtr;
use super::reach::{INSIDE, Part, Reach};
use super::transfer;
use crate::array_error::ArrayError;
use crate::{Error, Fabric, FenceEpoch, LockAllEpoch, LockEpoch, LockRanksEpoch, Window};
use bytemuck::Pod;
use std::ops::Range;
use transom_locks::Rank;

/// Access to elements of an array, for as long as its epoch is open; or only to this rank's own, by
/// [`local`](super::GlobalArray::local), without remote operations. Indices are those of the whole array. Each call
/// checks its indices against the array's shape, and that their owners can be accessed ([`ArrayError::NotReached`]),
/// before a byte moves.
///
/// A patch (see [`Ranges`]) costs 1 remote operation per run of elements that are adjacent in an owner's part;
/// [`Layout::runs`] lists the runs in advance:
///
/// | | |
/// |---|---|
/// | an element, a tile | 1 |
/// | a range in one dimension | 1 for each owner |
/// | tiles beside each other | 1 for each owner and row of tiles, or less |
/// | a part of a tile with all of its columns | 1 |
/// | another part of a tile | 1 for each row |
///
/// Elements of a run that are not adjacent in the caller's buffer go through a library buffer. It has at most 8 KiB
/// where memory is shared; elsewhere, and for accumulates, it is as long as the run. All other elements are copied
/// once.
///
/// # Examples
/// ```
/// use transom::{Distribution, GlobalArray, Op};
/// let world = transom::init()?;
/// let mut array: GlobalArray<u64, 2> = world.array([8, 8], Distribution::BlockCyclic([4, 4]))?;
/// let access = array.lock_all()?;
/// access.put([2..4, 1..4], &[1, 2, 3, 4, 5, 6])?; // two rows of three
/// access.fetch_and_op([3, 3], Op::Sum, 10)?;
/// assert_eq!(access.get_one([3, 3])?, 16);
/// access.unlock()?;
/// # Ok::<(), transom::Error>(())
/// ```
pub struct Access<'a, E, const D: usize> {
    pub(super) info: ArrayInfo<'a, D>,
    pub(super) through: E,
}

/// The constants of an array.
#[derive(Clone, Copy)]
pub(super) struct ArrayInfo<'a, const D: usize> {
    pub array: u32,
    pub rank: Rank,
    pub layout: &'a Layout<D>,
}

impl<'a, T: Pod, E: Reach<Element = T>, const D: usize> Access<'a, E, D> {
    /// The owner and position of each element.
    pub fn layout(&self) -> &'a Layout<D> {
        self.info.layout
    }

    /// A pointer to an element; no remote operation.
    ///
    /// # Errors
    /// [`ArrayError::Outside`].
    ///
    /// # Examples
    /// See [`GlobalPtr`].
    pub fn ptr(&self, index: impl Index<T, D>) -> Result<GlobalPtr<T>, Error> {
        self.info.ptr(index)
    }

    /// The index of the element at a pointer; no remote operation.
    ///
    /// # Errors
    /// [`ArrayError::Pointer`].
    pub fn index_of(&self, pointer: GlobalPtr<T>) -> Result<[usize; D], Error> {
        pointer.follow(self.info.array, self.info.layout)
    }

    /// Reads an element. 1 get.
    ///
    /// # Errors
    /// [`ArrayError::Outside`], [`ArrayError::Pointer`], [`ArrayError::NotReached`]; [`Error::Fabric`],
    /// [`Error::Lock`].
    #[inline(always)]
    pub fn get_one(&self, index: impl Index<T, D>) -> Result<T, Error> {
        let (owner, offset) = self.place(index)?;
        let mut one = T::zeroed();
        self.through.count_reads(1);
        self.through.copy_from(INSIDE, owner, offset, std::slice::from_mut(&mut one))?;
        Ok(one)
    }

    /// Writes an element. 1 put.
    ///
    /// # Errors
    /// The errors of [`get_one`](Self::get_one).
    #[inline(always)]
    pub fn put_one(&self, index: impl Index<T, D>, value: T) -> Result<(), Error> {
        let (owner, offset) = self.place(index)?;
        self.through.count_writes(1);
        self.through.copy_to(INSIDE, owner, offset, &[value])
    }

    /// Reads a patch. 1 get per run.
    ///
    /// # Errors
    /// [`ArrayError::Outside`], [`ArrayError::BufferLength`], [`ArrayError::NotReached`]: `into` is unchanged.
    /// [`Error::Fabric`], [`Error::Lock`]: parts of it may have changed.
    ///
    /// # Examples
    /// ```
    /// # use transom::{Distribution, GlobalArray};
    /// transom::threads(3, |world| -> Result<(), transom::Error> {
    ///     let mut squares: GlobalArray<u64> = world.array([100], Distribution::Cyclic)?;
    ///     for i in (world.rank()..100).step_by(world.size()) {
    ///         squares.local().put_one(i, (i * i) as u64)?;
    ///     }
    ///     squares.fence()?;
    ///     let mut some = [0; 20];
    ///     squares.lock_all()?.get(40..60, &mut some)?;
    ///     assert_eq!(some[3], 43 * 43);
    ///     assert_eq!(squares.window().counters().gets, 3); // an owner's elements are adjacent there
    ///     Ok(())
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn get(&self, ranges: impl Ranges<D>, into: &mut [T]) -> Result<(), Error> {
        transfer::get(&self.patch(ranges.ranges(), into.len())?, &self.through, into)
    }

    /// Writes a patch. 1 put per run. `source` may be reused when this returns.
    ///
    /// # Errors
    /// [`ArrayError::Outside`], [`ArrayError::BufferLength`], [`ArrayError::NotReached`]: no element was put.
    /// [`Error::Fabric`], [`Error::Lock`]: some elements may have been put.
    pub fn put(&self, ranges: impl Ranges<D>, source: &[T]) -> Result<(), Error> {
        transfer::put(&self.patch(ranges.ranges(), source.len())?, &self.through, source)
    }

    /// Reads a patch into part of a larger array of the caller, of which `into` begins at the patch's first element.
    /// That array has rows of `lengths[D - 1]` elements, and length `lengths[d]` along each other dimension. In two
    /// dimensions `lengths[1]` is the leading dimension of BLAS and Global Arrays (`ld`). Elements beside the patch are
    /// unchanged. 1 get per run.
    ///
    /// # Errors
    /// The errors of [`get`](Self::get); [`ArrayError::Within`] if the patch does not fit such an array, or `into` is
    /// too short.
    ///
    /// # Examples
    /// ```
    /// use transom::Distribution;
    /// let world = transom::init()?;
    /// let mut array = world.array::<u64, 2>([8, 8], Distribution::Block)?;
    /// array.local().put([2..4, 1..3], &[1, 2, 3, 4])?;
    /// let mut matrix = [0; 3 * 5]; // 3 rows of 5
    /// let at = 1 * 5 + 2; // row 1, column 2
    /// array.lock_all()?.get_within([2..4, 1..3], &mut matrix[at..], [2, 5])?;
    /// assert_eq!(matrix, [0, 0, 0, 0, 0, /**/ 0, 0, 1, 2, 0, /**/ 0, 0, 3, 4, 0]);
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn get_within(&self, ranges: impl Ranges<D>, into: &mut [T], lengths: [usize; D]) -> Result<(), Error> {
        transfer::get(&self.patch_within(ranges.ranges(), into.len(), lengths)?, &self.through, into)
    }

    /// Writes a patch from part of a larger array of the caller, like [`get_within`](Self::get_within). 1 put per run.
    ///
    /// # Errors
    /// The errors of [`put`](Self::put), and [`ArrayError::Within`].
    ///
    /// # Examples
    /// ```
    /// use transom::Distribution;
    /// let world = transom::init()?;
    /// let mut array = world.array::<u64, 2>([8, 8], Distribution::Block)?;
    /// let matrix: Vec<u64> = (0..15).collect(); // 3 rows of 5
    /// let epoch = array.lock_all()?;
    /// epoch.put_within([0..2, 0..2], &matrix[1 * 5 + 2..], [2, 5])?; // from row 1, column 2
    /// assert_eq!((epoch.get_one([0, 1])?, epoch.get_one([1, 0])?), (8, 12));
    /// # drop(epoch);
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn put_within(&self, ranges: impl Ranges<D>, source: &[T], lengths: [usize; D]) -> Result<(), Error> {
        transfer::put(&self.patch_within(ranges.ranges(), source.len(), lengths)?, &self.through, source)
    }

    fn patch_within(
        &self,
        ranges: [Range<usize>; D],
        buffer: usize,
        lengths: [usize; D],
    ) -> Result<Patch<'a, D>, Error> {
        let len = ranges.iter().map(Range::len).fold(1, usize::wrapping_mul);
        let patch = self.patch(ranges.clone(), len)?;
        match patch.within(lengths) {
            Some((patch, needed)) if needed <= buffer => Ok(patch),
            _ => {
                let (array, ranges, lengths) = (self.info.array, ranges.to_vec(), lengths.to_vec());
                Err(ArrayError::Within { array, ranges, lengths, buffer }.into())
            }
        }
    }

    /// Reads a tile, row by row. 1 get, with less arithmetic than [`get`](Self::get) of the same elements.
    ///
    /// # Errors
    /// [`ArrayError::NoSuchTile`], [`ArrayError::BufferLength`], [`ArrayError::NotReached`]; [`Error::Fabric`],
    /// [`Error::Lock`].
    ///
    /// # Examples
    /// ```
    /// # use transom::{Distribution, GlobalArray};
    /// let world = transom::init()?;
    /// let mut array: GlobalArray<u64, 2> = world.array([5, 8], Distribution::BlockCyclic([4, 4]))?;
    /// let access = array.lock_all()?;
    /// access.put_tile([1, 1], &[5; 4])?; // the corner at the bottom right: one row of four columns
    /// assert_eq!(access.get_one([4, 7])?, 5);
    /// access.unlock()?;
    /// # Ok::<(), transom::Error>(())
    /// ```
    #[inline]
    pub fn get_tile(&self, index: [usize; D], into: &mut [T]) -> Result<(), Error> {
        let tile = self.tile(index, into.len())?;
        self.through.count_reads(1);
        self.through.copy_from(INSIDE, tile.owner, tile.offset, into)
    }

    /// Writes a tile, row by row. 1 put.
    ///
    /// # Errors
    /// The errors of [`get_tile`](Self::get_tile).
    #[inline]
    pub fn put_tile(&self, index: [usize; D], source: &[T]) -> Result<(), Error> {
        let tile = self.tile(index, source.len())?;
        self.through.count_writes(1);
        self.through.copy_to(INSIDE, tile.owner, tile.offset, source)
    }

    /// The owner and position of an element, if it can be accessed.
    #[inline(always)]
    pub(super) fn place(&self, index: impl Index<T, D>) -> Result<(Rank, usize), Error> {
        let (owner, offset) = self.info.locate(index)?;
        if self.through.reaches(owner) { Ok((owner, offset)) } else { Err(self.not_reached(owner)) }
    }

    /// The placement of a tile, if it has the buffer's length and can be accessed.
    #[inline(always)]
    fn tile(&self, index: [usize; D], buffer: usize) -> Result<Placement, Error> {
        match self.info.layout.placement(index) {
            Some(tile) if tile.len == buffer && self.through.reaches(tile.owner) => Ok(tile),
            _ => Err(self.no_tile(index, buffer)),
        }
    }

    #[cold]
    #[inline(never)]
    fn no_tile(&self, tile: [usize; D], buffer: usize) -> Error {
        let ArrayInfo { array, layout, .. } = self.info;
        match layout.placement(tile) {
            None => ArrayError::NoSuchTile { array, tile: tile.to_vec(), tiles: layout.tiles().to_vec() }.into(),
            Some(Placement { len: needed, .. }) if needed != buffer => {
                ArrayError::BufferLength { array, needed, buffer }.into()
            }
            Some(Placement { owner, .. }) => self.not_reached(owner),
        }
    }

    /// A patch, if it has the buffer's length and can be accessed entirely.
    pub(super) fn patch(&self, ranges: [Range<usize>; D], buffer: usize) -> Result<Patch<'a, D>, Error> {
        let Some(patch) = Patch::new(self.info.layout, &ranges) else { return Err(self.info.outside(ranges)) };
        if buffer != patch.len() {
            return Err(ArrayError::BufferLength { array: self.info.array, needed: patch.len(), buffer }.into());
        }
        let other = patch.owners().find(|&owner| !self.through.reaches(owner));
        match other {
            Some(other) => Err(self.not_reached(other)),
            None => Ok(patch),
        }
    }

    #[cold]
    #[inline(never)]
    fn not_reached(&self, owner: Rank) -> Error {
        ArrayError::NotReached { array: self.info.array, owner, reached: self.through.reached() }.into()
    }
}

impl<E, const D: usize> Access<'_, E, D> {
    /// The epoch of the array's window behind this access, for operations that only windows have. [`Layout`] gives
    /// ranks and offsets.
    pub fn epoch(&self) -> &E {
        &self.through
    }
}

impl<T: Pod, F: Fabric, const D: usize> Access<'_, LockEpoch<'_, T, F>, D> {
    /// Returns once this rank's earlier operations are visible at the owner.
    ///
    /// # Errors
    /// [`Error::Fabric`], [`Error::Lock`].
    pub fn flush(&self) -> Result<(), Error> {
        self.through.flush()
    }

    /// Ends the epoch; dropping it does too.
    ///
    /// # Errors
    /// [`Error::Fabric`]; [`Error::Lock`] if a rank died that this rank had to notify or wait for.
    #[inline]
    pub fn unlock(self) -> Result<(), Error> {
        self.through.unlock()
    }
}

impl<T: Pod, F: Fabric, const D: usize> Access<'_, LockRanksEpoch<'_, T, F>, D> {
    /// Returns once this rank's earlier operations are visible at every locked owner.
    ///
    /// # Errors
    /// [`Error::Fabric`], [`Error::Lock`].
    pub fn flush(&self) -> Result<(), Error> {
        self.through.flush()
    }

    /// Ends the epoch; dropping it does too.
    ///
    /// # Errors
    /// The errors of [`LockRanksEpoch::unlock`].
    pub fn unlock(self) -> Result<(), Error> {
        self.through.unlock()
    }
}

impl<T: Pod, F: Fabric, const D: usize> Access<'_, LockAllEpoch<'_, T, F>, D> {
    /// Returns once this rank's earlier operations are visible at every owner.
    ///
    /// # Errors
    /// [`Error::Fabric`], [`Error::Lock`].
    pub fn flush(&self) -> Result<(), Error> {
        self.through.flush_all()
    }

    /// This rank's own elements.
    pub fn local(&self) -> Access<'_, Part<'_, T, F>, D> {
        Access { info: self.info, through: Part { rank: self.info.rank, local: self.through.local() } }
    }

    /// Ends the epoch; dropping it does too.
    ///
    /// # Errors
    /// [`Error::Fabric`]; [`Error::Lock`] if a rank died that this rank had to notify or wait for.
    pub fn unlock(self) -> Result<(), Error> {
        self.through.unlock()
    }
}

impl<T: Pod, F: Fabric, const D: usize> Access<'_, FenceEpoch<'_, T, F>, D> {
    /// This rank's own elements.
    pub fn local(&self) -> Access<'_, Part<'_, T, F>, D> {
        Access { info: self.info, through: Part { rank: self.info.rank, local: self.through.local() } }
    }
}

impl<'a, const D: usize> ArrayInfo<'a, D> {
    #[inline]
    pub fn of<T: Pod, F: Fabric>(layout: &'a Layout<D>, window: &Window<T, F>) -> Self {
        ArrayInfo { array: window.id(), rank: window.rank(), layout }
    }

    pub fn ptr<T>(&self, index: impl Index<T, D>) -> Result<GlobalPtr<T>, Error> {
        let index = index.index(self.array, self.layout)?;
        match self.layout.locate(index) {
            Some(_) => Ok(GlobalPtr::to(self.array, self.layout, index)),
            None => Err(self.no_element(index)),
        }
    }

    #[inline(always)]
    fn locate<T>(&self, index: impl Index<T, D>) -> Result<(Rank, usize), Error> {
        let index = index.index(self.array, self.layout)?;
        match self.layout.locate(index) {
            Some(place) => Ok(place),
            None => Err(self.no_element(std::array::from_fn(|d| index[d]))),
        }
    }

    #[cold]
    #[inline(never)]
    fn no_element(&self, index: [usize; D]) -> Error {
        self.outside(index.map(|i| i..i.saturating_add(1)))
    }

    #[cold]
    fn outside(&self, ranges: [Range<usize>; D]) -> Error {
        ArrayError::Outside { array: self.array, ranges: ranges.to_vec(), shape: self.layout.shape().to_vec() }.into()
    }
}
