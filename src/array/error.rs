//! Errors of arrays: which array, and which elements of what.

use super::LayoutError;
use crate::{Error, Rank};
use std::ops::Range;

/// Why a call on an array failed.
///
/// # Examples
/// ```
/// use transom::{ArrayError, Distribution};
/// let world = transom::init()?;
/// let mut plate = world.array::<f64, 2>([8, 8], Distribution::Block)?;
/// let error = plate.lock_all()?.put([6..10, 3..4], &[0.0; 4]).unwrap_err();
/// assert_eq!(error.to_string(), "array 0: elements [6..10, 3..4] are not inside its shape [8, 8]");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, thiserror::Error)]
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
    #[error("array {array}: elements of rank {owner}, where only those of rank {reached} can be reached")]
    NotReached {
        /// The array.
        array: u32,
        /// Whose elements were named.
        owner: Rank,
        /// Whose can be reached: the rank that is locked, or this rank.
        reached: Rank,
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
    /// Ranks that asked for different arrays.
    #[error(
        "rank {rank} asks for an array of another layout: all ranks must pass the same shape, distribution and grid"
    )]
    Mismatch {
        /// The first rank whose layout is not that of this rank.
        rank: Rank,
    },
    /// There is no such layout.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The array's window failed.
    #[error(transparent)]
    Window(#[from] Error),
}

impl ArrayError {
    /// The rank whose death, leaving or giving up made the call fail, if that is why; see [`Error::lost_rank`].
    ///
    /// # Examples
    /// ```
    /// use transom::{ArrayError, Error, FabricError};
    /// let source = FabricError::PeerDied { rank: 3 };
    /// let error = ArrayError::from(Error::Fabric { window: 0, rank: 1, source });
    /// assert_eq!(error.lost_rank(), Some(3));
    /// ```
    pub fn lost_rank(&self) -> Option<Rank> {
        match self {
            ArrayError::Window(error) => error.lost_rank(),
            _ => None,
        }
    }
}
