//! Errors of arrays and their layouts: the array, and the elements concerned.

use std::ops::Range;
use transom_locks::Rank;

/// An array has fewer elements than this, so that a [`GlobalPtr`](crate::GlobalPtr) fits one word.
pub(crate) const MOST: usize = (1 << 48) - 1;
/// The most ranks of a job.
pub(crate) const MOST_RANKS: usize = transom_locks::LockWord::<16>::MAX_RANKS;

/// The reason why a call on an array failed before it reached the array's window.
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
        /// The number of the array's window, in the order of creation.
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
        /// The number of tiles along each dimension.
        tiles: Vec<usize>,
    },
    /// Elements of a rank that the epoch does not reach, or, for the local part, elements that are not local.
    #[error(
        "array {array}: cannot access elements of rank {owner} here: only those of ranks {reached:?} can be accessed"
    )]
    NotReached {
        /// The array.
        array: u32,
        /// The owner of the named elements.
        owner: Rank,
        /// The ranks whose elements can be reached: the locked ranks, or this rank.
        reached: Vec<Rank>,
    },
    /// A buffer of the wrong length.
    #[error("array {array}: the buffer has {buffer} elements, expected {needed}")]
    BufferLength {
        /// The array.
        array: u32,
        /// The length required, in elements.
        needed: usize,
        /// The buffer's length, in elements.
        buffer: usize,
    },
    /// A patch that does not fit the array of which the caller's buffer is a part.
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
    /// A value that is not a pointer to an element of the array.
    #[error("array {array}: {pointer:#x} is not a pointer to an element: {why}")]
    Pointer {
        /// The array.
        array: u32,
        /// The pointer's word.
        pointer: u64,
        /// The defect.
        why: &'static str,
    },
    /// An array whose ranks have several tiles each, where one block per rank is needed.
    #[error("array {array}: its ranks have several tiles each; distribute it by Distribution::Block or Balanced")]
    SeveralTiles {
        /// The array.
        array: u32,
    },
    /// A halo that this array cannot have.
    #[error("array {array}: no halo: {why}")]
    Halo {
        /// The array.
        array: u32,
        /// The reason.
        why: &'static str,
    },
    /// Ranks that requested different arrays.
    #[error(
        "rank {rank} requests an array of another layout; all ranks must pass the same shape, distribution and grid"
    )]
    Mismatch {
        /// The first rank whose layout differs from this rank's.
        rank: Rank,
    },
}

/// The reason why a layout is impossible.
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
    /// Too many elements.
    #[error("an array of shape {shape:?} is too large: an array has less than {MOST} elements")]
    Size {
        /// The shape asked for.
        shape: Vec<usize>,
    },
    /// Empty blocks.
    #[error("blocks of {block:?} elements: each length must be 1 or more")]
    Block {
        /// The lengths asked for.
        block: Vec<usize>,
    },
    /// A grid without ranks, or one whose size differs from the number of ranks.
    #[error("a grid of {grid:?} ranks: {}", match ranks {
        Some(ranks) => format!("the product must be {ranks}, the number of ranks"),
        None => format!("each number must be 1 or more, and the product at most {MOST_RANKS}, the most ranks of a job"),
    })]
    Grid {
        /// The grid asked for.
        grid: Vec<usize>,
        /// The number of ranks, where it is known.
        ranks: Option<usize>,
    },
}
