//! The owner and the position of each element: pure arithmetic, with no memory behind it.

use super::divisor::Divisor;
use super::odometer::Odometer;
use crate::array_error::{LayoutError, MOST, MOST_RANKS};
use std::ops::Range;
use transom_locks::Rank;

/// The distribution of an array's elements over the ranks. Each dimension is cut into blocks of one length, of which
/// the last may be shorter. The blocks are dealt round-robin to the ranks of the [grid](Layout::grid) along that
/// dimension.
///
/// # Examples
/// ```
/// use transom::array::{Distribution, Layout};
/// let owners = |distribution| -> Result<Vec<usize>, transom::Error> {
///     let layout = Layout::new([8], distribution, 3)?;
///     Ok((0..8).map(|i| layout.locate([i]).expect("inside").0).collect())
/// };
/// assert_eq!(owners(Distribution::Block)?, [0, 0, 0, 1, 1, 1, 2, 2]);
/// assert_eq!(owners(Distribution::Balanced)?, [0, 0, 0, 1, 1, 1, 2, 2]);
/// assert_eq!(owners(Distribution::Cyclic)?, [0, 1, 2, 0, 1, 2, 0, 1]);
/// assert_eq!(owners(Distribution::BlockCyclic([2]))?, [0, 0, 1, 1, 2, 2, 0, 0]);
/// # Ok::<(), transom::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Distribution<const D: usize> {
    /// One block per rank, of the smallest sufficient length; the last ranks may have fewer elements, or none.
    Block,
    /// One block per rank, with lengths that differ by at most 1, longer ones first. 4 elements on 3 ranks are dealt as
    /// 2, 1 and 1, where [`Block`](Self::Block) deals 2, 2 and 0.
    Balanced,
    /// Blocks of one element.
    Cyclic,
    /// Blocks of these lengths: in two dimensions, tiles of this many rows and columns.
    BlockCyclic([usize; D]),
}

/// The positions of the elements of an array of `D` dimensions. One block of each dimension together form a **tile**,
/// which one rank owns; in one dimension a tile is a block. An owner's part of the window consists of its tiles in the
/// order of their indices, each stored row by row, without padding. In one dimension, elements of a range with the same
/// owner are therefore adjacent in its part, whatever the distribution.
///
/// # Examples
/// ```
/// use transom::array::{Distribution, Layout};
/// let layout = Layout::new([6, 10], Distribution::BlockCyclic([2, 4]), 6)?; // 3 x 3 tiles
/// assert_eq!(layout.grid(), [2, 3]);
/// let tile = layout.tile([1, 2]).expect("there is one");
/// assert_eq!((tile.owner, tile.ranges.clone(), tile.len()), (5, [2..4, 8..10], 4));
/// assert_eq!(layout.locate([3, 9]), Some((5, 3))); // the last of its four
/// # Ok::<(), transom::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Layout<const D: usize> {
    dims: [Dim; D],
    len: usize,
    /// True if all tiles are equal, all ranks have the same number, and all divisors are exact.
    is_even: bool,
}

/// A tile of a [`Layout`].
///
/// # Examples
/// ```
/// use transom::array::{Distribution, Layout};
/// let layout = Layout::new([10], Distribution::Block, 3)?;
/// let last = layout.tiles_of(2).next().expect("rank 2 has one");
/// assert_eq!((last.index, last.ranges.clone(), last.offset, last.len()), ([2], [8..10], 0, 2));
/// # Ok::<(), transom::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Tile<const D: usize> {
    /// The tile's index in each dimension.
    pub index: [usize; D],
    /// The tile's elements in each dimension.
    pub ranges: [Range<usize>; D],
    /// The owner.
    pub owner: Rank,
    /// The tile's first position in the owner's part.
    pub offset: usize,
}

impl<const D: usize> Tile<D> {
    /// The number of elements.
    pub fn len(&self) -> usize {
        self.ranges.iter().map(Range::len).product()
    }

    /// True if the tile has no elements; no tile of a layout is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<const D: usize> Layout<D> {
    /// Creates a layout on a grid of ranks as near to a square, cube and so on as the number of ranks allows, with
    /// longer sides last: 6 ranks form 2 x 3.
    ///
    /// # Errors
    /// [`LayoutError::Size`], [`LayoutError::Block`]; [`LayoutError::Grid`] for no ranks, or more than a job can have.
    pub fn new(shape: [usize; D], distribution: Distribution<D>, ranks: usize) -> Result<Self, LayoutError> {
        Self::on_grid(shape, distribution, nearly_square(ranks))
    }

    /// Creates a layout on the given grid of ranks, which are numbered row by row. `[ranks, 1]` deals whole rows.
    ///
    /// # Errors
    /// The errors of [`new`](Self::new).
    ///
    /// # Examples
    /// ```
    /// use transom::array::{Distribution, Layout};
    /// let rows = Layout::on_grid([100, 8], Distribution::Block, [4, 1])?;
    /// assert_eq!(rows.tile([3, 0]).expect("the last").ranges, [75..100, 0..8]);
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn on_grid(shape: [usize; D], distribution: Distribution<D>, grid: [usize; D]) -> Result<Self, LayoutError> {
        const { assert!(D > 0, "an array has at least one dimension") };
        let too_large = || LayoutError::Size { shape: shape.to_vec() };
        let len = shape.iter().try_fold(1usize, |len, &more| len.checked_mul(more)).ok_or_else(too_large)?;
        if shape.iter().chain([&len]).any(|&len| len >= MOST) {
            return Err(too_large());
        }
        let ranks = grid.iter().try_fold(1usize, |ranks, &more| ranks.checked_mul(more));
        if !ranks.is_some_and(|ranks| (1..=MOST_RANKS).contains(&ranks)) {
            return Err(LayoutError::Grid { grid: grid.to_vec(), ranks: None });
        }
        let block = match distribution {
            Distribution::Block | Distribution::Balanced => std::array::from_fn(|d| shape[d].div_ceil(grid[d]).max(1)),
            Distribution::Cyclic => [1; D],
            Distribution::BlockCyclic(block) => block,
        };
        if block.contains(&0) {
            return Err(LayoutError::Block { block: block.to_vec() });
        }
        let balanced = distribution == Distribution::Balanced;
        let mut dims: [Dim; D] = std::array::from_fn(|d| match balanced {
            true => Dim::balanced(shape[d], grid[d]),
            false => Dim::new(shape[d], block[d], grid[d]),
        });
        let is_even = dims.iter().all(Dim::is_even);
        if is_even {
            for d in 0..D {
                let (before, after) = (&dims[..=d], &dims[d + 1..]);
                let factors = before.iter().map(|dim| dim.block.get()).chain(after.iter().map(|dim| dim.part(0)));
                // The product for an empty array may overflow; it is not used.
                dims[d].weight = factors.fold(1, usize::wrapping_mul);
            }
        }
        Ok(Layout { dims, len, is_even })
    }

    /// The length of each dimension.
    pub fn shape(&self) -> [usize; D] {
        self.dims.map(|dim| dim.len)
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if the array has no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The number of ranks along each dimension.
    pub fn grid(&self) -> [usize; D] {
        self.dims.map(|dim| dim.ranks.get())
    }

    /// The number of ranks.
    pub fn ranks(&self) -> usize {
        self.dims.iter().map(|dim| dim.ranks.get()).product()
    }

    /// The position of a rank in the grid; `None` if there is no such rank.
    ///
    /// # Examples
    /// ```
    /// use transom::array::{Distribution, Layout};
    /// let layout = Layout::on_grid([8, 8], Distribution::Cyclic, [2, 3])?;
    /// assert_eq!((layout.coordinates(4), layout.coordinates(6)), (Some([1, 1]), None));
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn coordinates(&self, rank: Rank) -> Option<[usize; D]> {
        (rank < self.ranks()).then(|| unfold(rank, self.grid()))
    }

    /// The elements of a rank that has at most one block, as with [`Distribution::Block`] and
    /// [`Balanced`](Distribution::Balanced). Along a dimension in which the rank has nothing, the range is empty and
    /// stands where its elements would be. `None` if there is no such rank, or if a rank has several tiles.
    ///
    /// # Examples
    /// ```
    /// use transom::array::{Distribution, Layout};
    /// let blocks = Layout::on_grid([4, 8], Distribution::Block, [3, 1])?; // 2, 2 and 0 rows
    /// assert_eq!((blocks.own(1), blocks.own(2)), (Some([2..4, 0..8]), Some([4..4, 0..8])));
    /// assert_eq!(Layout::new([4], Distribution::Cyclic, 2)?.own(0), None);
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn own(&self, rank: Rank) -> Option<[Range<usize>; D]> {
        if self.dims.iter().any(|dim| dim.tiles > dim.ranks.get()) {
            return None;
        }
        let at = self.coordinates(rank)?;
        Some(std::array::from_fn(|d| {
            let dim = &self.dims[d];
            if at[d] < dim.tiles { dim.tile(at[d]) } else { dim.len..dim.len }
        }))
    }

    /// The lengths of the longest tile.
    pub fn block(&self) -> [usize; D] {
        self.dims.map(|dim| dim.block.get())
    }

    /// The number of tiles along each dimension.
    pub fn tiles(&self) -> [usize; D] {
        self.dims.map(|dim| dim.tiles)
    }

    /// The tile with this index; `None` if there is none.
    #[inline]
    pub fn tile(&self, index: [usize; D]) -> Option<Tile<D>> {
        let Placement { owner, offset, .. } = self.placement(index)?;
        Some(Tile { index, ranges: std::array::from_fn(|d| self.dims[d].tile(index[d])), owner, offset })
    }

    /// The tiles of a rank, in the order of its part; empty if there is no such rank.
    ///
    /// # Examples
    /// ```
    /// use transom::array::{Distribution, Layout};
    /// let layout = Layout::new([9], Distribution::BlockCyclic([2]), 2)?;
    /// let mine: Vec<_> = layout.tiles_of(0).flat_map(|tile| tile.ranges).collect();
    /// assert_eq!(mine, [0..2, 4..6, 8..9]);
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn tiles_of(&self, rank: Rank) -> impl Iterator<Item = Tile<D>> + Clone + use<D> {
        let layout = *self;
        let tiles = self.coordinates(rank).map(|first| Odometer::new(first, layout.grid(), layout.tiles()));
        tiles.into_iter().flatten().filter_map(move |index| layout.tile(index))
    }

    /// The number of elements of a rank; 0 if there is no such rank.
    pub fn part_len(&self, rank: Rank) -> usize {
        self.coordinates(rank).map_or(0, |at| (0..D).map(|d| self.dims[d].part(at[d])).product())
    }

    /// The owner of an element, and the element's position in the owner's part; `None` if it is outside.
    #[inline(always)]
    pub fn locate(&self, index: [usize; D]) -> Option<(Rank, usize)> {
        if self.is_even { self.locate_evenly(index) } else { self.locate_in_any(index) }
    }

    #[inline(always)]
    fn locate_evenly(&self, index: [usize; D]) -> Option<(Rank, usize)> {
        let (mut owner, mut tiles, mut in_tile) = (0, 0, 0);
        for (dim, index) in self.dims.iter().zip(index) {
            if index >= dim.len {
                return None;
            }
            let (number, along) = dim.block.divide_at_once(index);
            let (nth, at) = dim.ranks.divide_at_once(number);
            owner = owner * dim.ranks.get() + at;
            tiles += nth * dim.weight;
            in_tile = in_tile * dim.block.get() + along;
        }
        Some((owner, tiles + in_tile))
    }

    #[inline]
    fn locate_in_any(&self, index: [usize; D]) -> Option<(Rank, usize)> {
        let (mut tile, mut in_tile) = (Placement::NONE, 0);
        for (dim, index) in self.dims.iter().zip(index) {
            if index >= dim.len {
                return None;
            }
            let (number, along) = dim.find(index);
            in_tile = in_tile * tile.add(dim, number) + along;
        }
        Some((tile.owner, tile.offset + in_tile))
    }

    /// The row-major number of an element, independent of its owner.
    pub(super) fn number(&self, index: [usize; D]) -> usize {
        self.dims.iter().zip(index).fold(0, |number, (dim, index)| number * dim.len + index)
    }

    /// The index of the element with this row-major number; `None` if it is beyond the end.
    pub(super) fn numbered(&self, number: usize) -> Option<[usize; D]> {
        (number < self.len).then(|| unfold(number, self.shape()))
    }

    /// The placement of a tile; `None` if there is none.
    #[inline(always)]
    pub(super) fn placement(&self, index: [usize; D]) -> Option<Placement> {
        let mut tile = Placement::NONE;
        for (dim, number) in self.dims.iter().zip(index) {
            if number >= dim.tiles {
                return None;
            }
            tile.add(dim, number);
        }
        Some(tile)
    }

    /// The number of the first shorter tile along each dimension, which distinguishes balanced layouts from others.
    pub(super) fn first_short(&self) -> [usize; D] {
        self.dims.map(|dim| dim.short)
    }

    pub(super) fn dims(&self) -> &[Dim; D] {
        &self.dims
    }
}

/// The placement of a tile, computed one dimension at a time.
pub(super) struct Placement {
    pub owner: Rank,
    /// Elements of the owner's part before the tile.
    pub offset: usize,
    /// Elements of the tile.
    pub len: usize,
}

impl Placement {
    /// The placement in no dimension.
    const NONE: Self = Placement { owner: 0, offset: 0, len: 1 };

    /// Adds a dimension, in which the tile has this number; returns the tile's length along it.
    #[inline(always)]
    fn add(&mut self, dim: &Dim, number: usize) -> usize {
        let ((nth, at), length) = (dim.ranks.divide(number), dim.length(number));
        self.owner = self.owner * dim.ranks.get() + at;
        // Tiles before this one in an earlier dimension have all of the owner's elements along this one. The `nth`
        // tiles before it in this dimension are as long as this tile in the earlier dimensions.
        self.offset = self.offset * dim.part(at) + self.len * nth * dim.block.get();
        self.len *= length;
        length
    }
}

/// One dimension of a layout. Its numbers are below 2^49, so that a sum of a few of them does not overflow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Dim {
    len: usize,
    /// At most `len`, but 1 if that is 0.
    pub block: Divisor,
    pub ranks: Divisor,
    tiles: usize,
    /// The position, along this dimension, of the rank with the last tile.
    last: usize,
    /// Elements along this dimension of a rank before `last`; of `last`, whose last tile may be shorter; and of a rank
    /// after it, which has one tile fewer.
    parts: [usize; 3],
    /// For even layouts: the elements of an owner between two of its consecutive tiles along this dimension.
    weight: usize,
    /// Number of the first tile that is one element shorter than `block`. Beyond all tiles unless the dimension is
    /// balanced.
    short: usize,
}

impl Dim {
    fn new(len: usize, block: usize, ranks: usize) -> Self {
        let block = block.min(len.max(1));
        let tiles = len.div_ceil(block);
        let (each, more) = (tiles / ranks, tiles % ranks);
        let last = if more > 0 { more - 1 } else { ranks - 1 };
        let most = tiles.div_ceil(ranks) * block;
        let parts = [most, most - (tiles * block - len), each * block];
        Dim {
            len,
            block: Divisor::new(block, len),
            ranks: Divisor::new(ranks, tiles),
            tiles,
            last,
            parts,
            weight: 0,
            short: usize::MAX,
        }
    }

    /// One tile per rank; the first tiles are one element longer if the division leaves a remainder.
    fn balanced(len: usize, ranks: usize) -> Self {
        let (block, longer) = (len.div_ceil(ranks), len % ranks);
        if longer == 0 || block == 1 {
            return Self::new(len, block.max(1), ranks);
        }
        let (last, parts) = (longer, [block, block - 1, block - 1]);
        let block = Divisor::new(block, len);
        let ranks_of = Divisor::new(ranks, ranks);
        Dim { len, block, ranks: ranks_of, tiles: ranks, last, parts, weight: 0, short: longer }
    }

    /// The number of the tile that has an element, and the element's position in the tile.
    #[inline(always)]
    pub fn find(&self, index: usize) -> (usize, usize) {
        let (number, along) = self.block.divide(index);
        if number >= self.short { self.find_short(index) } else { (number, along) }
    }

    #[cold]
    fn find_short(&self, index: usize) -> (usize, usize) {
        let (from, length) = (self.short * self.block.get(), self.block.get() - 1);
        (self.short + (index - from) / length, (index - from) % length)
    }

    /// True if all tiles have the same length along this dimension, all ranks have the same number, and the divisors
    /// are exact.
    fn is_even(&self) -> bool {
        let whole = self.len == self.tiles * self.block.get() && self.tiles.is_multiple_of(self.ranks.get());
        whole && self.block.is_exact() && self.ranks.is_exact()
    }

    /// The elements of a tile.
    #[inline]
    pub fn tile(&self, number: usize) -> Range<usize> {
        let start = number * self.block.get() - number.saturating_sub(self.short);
        start..start + self.length(number)
    }

    /// True if tile lengths differ by 1, and each rank has one tile.
    pub fn is_balanced(&self) -> bool {
        self.short != usize::MAX
    }

    /// The number of elements of a tile along this dimension.
    #[inline(always)]
    fn length(&self, number: usize) -> usize {
        if number >= self.short {
            return self.block.get() - 1;
        }
        self.block.get().min(self.len - number * self.block.get())
    }

    /// The number of elements of a rank along this dimension.
    #[inline(always)]
    pub fn part(&self, at: usize) -> usize {
        self.parts[usize::from(at >= self.last) + usize::from(at > self.last)]
    }
}

/// The index with this row-major number, in dimensions of these lengths.
fn unfold<const D: usize>(mut number: usize, lengths: [usize; D]) -> [usize; D] {
    let mut index = [0; D];
    for (index, length) in index.iter_mut().zip(lengths).rev() {
        (*index, number) = (number % length, number / length);
    }
    index
}

/// Factors of `ranks` that are as equal as possible, the larger ones last.
fn nearly_square<const D: usize>(ranks: usize) -> [usize; D] {
    let mut rest = ranks;
    std::array::from_fn(|d| {
        let left = (D - d) as u32;
        let fits = |&side: &usize| rest.is_multiple_of(side) && side.checked_pow(left).is_some_and(|all| all <= rest);
        let side = match left {
            1 => rest,
            // This many ranks will be refused, and the search would take long.
            _ if ranks > MOST_RANKS => 1,
            _ => (1..=rest.isqrt()).rev().find(fits).unwrap_or(1),
        };
        rest /= side.max(1);
        side
    })
}
