//! Errors of arrays and their layouts: which array, and which elements of what.

use std::ops::Range;
use transom_locks::Rank;

/// An array has less elements than this, so that a [`GlobalPtr`](crate::GlobalPtr) can be one word.
pub(crate) const MOST: usize = (1 << 48) - 1;
/// A job has at most so many ranks.
pub(crate) const MOST_RANKS: usize = transom_locks::LockWord::<16>::MAX_RANKS;

/// Why a call on an array failed before it reached the array's window.
///
/// # Examples
/// ```
/// use transom::Distribution;
/// let world = transom::init()?;
/// let mut plate = world.array::<f64, 2>([8, 8], Distribution::Block)?;
/// let error = plate.lock_all()?.put([6..10, 3..4], &[0.0; 4]).unwrap_err();
/// assert_eq!(error.to_string(), "array 0: elements [6..10, 3..4] are not inside its shape [8, 8]");
/// # Ok::<(), transom::Error>(())
/// ```
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ArrayError {
    /// Elements that the array does not have.
    #[error("array {array}: elements {ranges:?} are not inside its shape {shape:?}")]
    Outside {
        /// The number of the array's window, in the order in which the job made them.
        array: u32,
        /// The elements named, in each dimension.
        ranges: Vec<Range<usize>>,
        /// The length of each dimension.
        shape: Vec<usize>,
    },
    /// A tile that the array does not have.
    #[error("array {array}: there is no tile {tile:?}; it has {tiles:?}")]
    NoSuchTile {
        /// The array.
        array: u32,
        /// The tile named.
        tile: Vec<usize>,
        /// How many there are along each dimension.
        tiles: Vec<usize>,
    },
    /// Elements of a rank that the epoch does not reach; or that are not here, for the local part.
    #[error("array {array}: elements of rank {owner}, where only those of ranks {reached:?} can be reached")]
    NotReached {
        /// The array.
        array: u32,
        /// Whose elements were named.
        owner: Rank,
        /// The ranks whose elements can be reached: those that are locked, or this rank.
        reached: Vec<Rank>,
    },
    /// A buffer that is not as long as what it is for.
    #[error("array {array}: a buffer of {buffer} elements, where {needed} are needed")]
    BufferLength {
        /// The array.
        array: u32,
        /// How many elements it must have.
        needed: usize,
        /// How many it has.
        buffer: usize,
    },
    /// A patch that does not fit in the array that the caller's buffer is part of.
    #[error(
        "array {array}: elements {ranges:?} do not fit in a buffer of {buffer} elements with dimensions {lengths:?}; \
         each dimension must be as long as the patch, and the buffer must reach the patch's last element"
    )]
    Within {
        /// The array.
        array: u32,
        /// The patch, in each dimension.
        ranges: Vec<Range<usize>>,
        /// The length of each dimension of the caller's array.
        lengths: Vec<usize>,
        /// Elements of the buffer.
        buffer: usize,
    },
    /// A pointer that is no pointer to an element of the array.
    #[error("array {array}: {pointer:#x} is no pointer to an element: {why}")]
    Pointer {
        /// The array.
        array: u32,
        /// The pointer's word.
        pointer: u64,
        /// What is wrong with it.
        why: &'static str,
    },
    /// An array whose ranks have several tiles each, where one block is needed.
    #[error("array {array}: its ranks have several tiles each; distribute it by Distribution::Block or Balanced")]
    SeveralTiles {
        /// The array.
        array: u32,
    },
    /// No halo of this array.
    #[error("array {array}: no halo: {why}")]
    Halo {
        /// The array.
        array: u32,
        /// What is wrong.
        why: &'static str,
    },
    /// Ranks that asked for different arrays.
    #[error(
        "rank {rank} asks for an array of another layout: all ranks must pass the same shape, distribution and grid"
    )]
    Mismatch {
        /// The first rank whose layout is not that of this rank.
        rank: Rank,
    },
}

/// Why there is no such layout.
///
/// # Examples
/// ```
/// use transom::array::{Distribution, Layout};
/// let error = Layout::new([8, 8], Distribution::BlockCyclic([4, 0]), 2).unwrap_err();
/// assert_eq!(error.to_string(), "blocks of [4, 0] elements: each length must be 1 or more");
/// ```
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// More elements than can be counted.
    #[error("an array of shape {shape:?} is too large: an array has less than {MOST} elements")]
    Size {
        /// The shape asked for.
        shape: Vec<usize>,
    },
    /// Blocks without elements.
    #[error("blocks of {block:?} elements: each length must be 1 or more")]
    Block {
        /// The lengths asked for.
        block: Vec<usize>,
    },
    /// A grid that no ranks make, or that is not made of the ranks that there are.
    #[error("a grid of {grid:?} ranks: {}", match ranks {
        Some(ranks) => format!("the product must be {ranks}, the number of ranks"),
        None => format!("each number must be 1 or more, and the product at most {MOST_RANKS}, the most ranks of a job"),
    })]
    Grid {
        /// The grid asked for.
        grid: Vec<usize>,
        /// How many ranks there are, where that is known.
        ranks: Option<usize>,
    },
}
