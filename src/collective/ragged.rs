//! Blocks of different lengths, one per rank, stored contiguously.

use std::ops::Index;
use transom_collective::Rank;

/// Contiguous blocks of elements, one per rank, of different lengths.
///
/// # Examples
/// ```
/// use transom::collective::Ragged;
/// let blocks = Ragged::from(vec![vec![1, 2], vec![], vec![3]]);
/// assert_eq!((&blocks[0], &blocks[1], &blocks[2]), (&[1, 2][..], &[][..], &[3][..]));
/// assert_eq!(blocks.counts().collect::<Vec<_>>(), [2, 0, 1]);
/// assert_eq!(blocks.into_elements(), [1, 2, 3]);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ragged<T> {
    elements: Vec<T>,
    /// End of each block, as an index into `elements`.
    ends: Vec<usize>,
}

impl<T> Ragged<T> {
    /// Creates blocks of lengths `counts` from contiguous elements.
    ///
    /// # Panics
    /// If the lengths do not add up to the number of elements.
    ///
    /// # Examples
    /// ```
    /// let blocks = transom::collective::Ragged::new(vec!['a', 'b', 'c'], &[1, 2]);
    /// assert_eq!(blocks[1], ['b', 'c']);
    /// ```
    #[track_caller]
    pub fn new(elements: Vec<T>, counts: &[usize]) -> Self {
        let mut end = 0_usize;
        let mut ends = Vec::with_capacity(counts.len());
        for count in counts {
            end = end.saturating_add(*count);
            ends.push(end);
        }
        let there = elements.len();
        assert!(end == there, "Ragged::new: `counts` add up to {end} elements, but the buffer has {there}");
        Ragged { elements, ends }
    }

    /// Lengths of the blocks, in rank order.
    pub fn counts(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.ends.len()).map(|rank| self[rank].len())
    }

    /// The blocks, in rank order.
    pub fn iter(&self) -> impl Iterator<Item = &[T]> + '_ {
        (0..self.ends.len()).map(|rank| &self[rank])
    }

    /// All elements, contiguous in rank order.
    pub fn elements(&self) -> &[T] {
        &self.elements
    }

    /// Returns all elements, contiguous in rank order.
    pub fn into_elements(self) -> Vec<T> {
        self.elements
    }

    /// Returns all elements and the block length of each rank.
    pub(super) fn into_parts(self) -> (Vec<T>, Vec<usize>) {
        let counts = self.counts().collect();
        (self.elements, counts)
    }
}

impl<T> Index<Rank> for Ragged<T> {
    type Output = [T];

    fn index(&self, rank: Rank) -> &[T] {
        let start = rank.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.elements[start..self.ends[rank]]
    }
}

impl<T> From<Vec<Vec<T>>> for Ragged<T> {
    fn from(blocks: Vec<Vec<T>>) -> Self {
        let counts: Vec<usize> = blocks.iter().map(Vec::len).collect();
        Ragged::new(blocks.into_iter().flatten().collect(), &counts)
    }
}
