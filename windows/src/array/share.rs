//! The elements of a patch that one owner has.

use super::layout::Dim;
use std::ops::Range;
use transom_locks::Rank;

/// The elements of a patch that one owner has. Tiles are numbered here as the owner has them: in each dimension from 0 on,
/// without those of others. In the owner's part they follow each other in the order of their numbers, the last dimension
/// changing fastest.
pub(super) struct Share<const D: usize> {
    pub owner: Rank,
    pub cuts: [Cut; D],
}

/// The same along one dimension.
pub(super) struct Cut {
    /// The patch's elements, whoever has them.
    range: Range<usize>,
    /// From an element to the next along this dimension, in the caller's buffer.
    pub width: usize,
    /// The owner's elements, in tiles of `block`; the last tile may be shorter.
    pub part: usize,
    pub block: usize,
    /// Where tile 0 begins in the array, and from the first element of a tile to that of the next.
    start: usize,
    distance: usize,
    /// The tiles that have elements of the patch.
    pub tiles: Range<usize>,
    /// Those whose elements the patch has all; and those of them that are not shorter than `block`.
    pub whole: Range<usize>,
    pub full: Range<usize>,
}

impl<const D: usize> Share<D> {
    /// `first` is the owner's first tile with elements of the patch, as the layout numbers it, and `end` is beyond the last
    /// that anybody has; `widths` are those of the cuts.
    pub fn new(
        dims: &[Dim; D],
        ranges: &[Range<usize>; D],
        widths: &[usize; D],
        first: [usize; D],
        end: [usize; D],
    ) -> Self {
        let mut owner = 0;
        let cuts = std::array::from_fn(|d| {
            let (cut, at) = Cut::new(&dims[d], first[d]..end[d], ranges[d].clone(), widths[d]);
            owner = owner * dims[d].ranks.get() + at;
            cut
        });
        Share { owner, cuts }
    }

    /// The first tile.
    pub fn first(&self) -> [usize; D] {
        std::array::from_fn(|d| self.cuts[d].tiles.start)
    }

    /// The tile that follows, in the dimensions before `end`.
    pub fn next(&self, mut tile: [usize; D], end: usize) -> Option<[usize; D]> {
        for d in (0..end).rev() {
            tile[d] += 1;
            if tile[d] < self.cuts[d].tiles.end {
                return Some(tile);
            }
            tile[d] = self.cuts[d].tiles.start;
        }
        None
    }
}

impl Cut {
    /// For tiles that the layout numbers so; and where the owner stands among the ranks along this dimension.
    fn new(dim: &Dim, numbers: Range<usize>, range: Range<usize>, width: usize) -> (Self, usize) {
        let (block, ranks) = (dim.block.get(), dim.ranks.get());
        let (first, at) = dim.ranks.divide(numbers.start);
        let last = first + dim.ranks.divide(numbers.end - 1 - numbers.start).0;
        let (part, start, distance) = (dim.part(at), at * block, ranks * block);
        let tiles = first..last + 1;
        let mut cut =
            Cut { range, width, part, block, start, distance, whole: tiles.clone(), full: tiles.clone(), tiles };
        // Only the first tile can begin before the patch, and only the last can end beyond it.
        let length = cut.length(last);
        cut.whole.start += usize::from(cut.common(first).start > 0);
        cut.whole.end -= usize::from(cut.common(last).end < length);
        cut.full.start = cut.whole.start;
        cut.full.end = if length < block { last } else { cut.whole.end };
        (cut, at)
    }

    /// How many elements a tile has.
    pub fn length(&self, tile: usize) -> usize {
        self.block.min(self.part - tile * self.block)
    }

    /// The elements of a tile that the patch has, counted from the tile's first.
    pub fn common(&self, tile: usize) -> Range<usize> {
        let start = self.start + tile * self.distance;
        self.range.start.saturating_sub(start)..self.length(tile).min(self.range.end - start)
    }

    /// Where an element of a tile is in the buffer.
    pub fn place(&self, tile: usize, element: usize) -> usize {
        (self.start + tile * self.distance + element - self.range.start) * self.width
    }

    /// How far the same element of the next tile is in the buffer.
    pub fn step(&self) -> usize {
        self.distance * self.width
    }

    /// How many elements the patch has, whoever has them.
    pub fn range_len(&self) -> usize {
        self.range.len()
    }

    /// Whether the patch has all that the owner has.
    pub fn is_all(&self) -> bool {
        self.whole.start == 0 && self.whole.end * self.block >= self.part
    }
}
