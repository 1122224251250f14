//! The elements of a patch that one owner has.

use super::layout::Dim;
use std::ops::Range;
use transom_locks::Rank;

/// The elements of a patch that one owner has. The owner's tiles are numbered from 0 on in each dimension, without the tiles
/// of others; its part has them in the order of their numbers, of which the last changes fastest.
pub(super) struct Share<const D: usize> {
    pub owner: Rank,
    pub cuts: [Cut; D],
}

/// A [`Share`] along one dimension. Lengths are in elements.
pub(super) struct Cut {
    /// The elements of the patch, whoever owns them.
    range: Range<usize>,
    /// How far two elements that follow each other along this dimension are apart in the caller's buffer.
    pub width: usize,
    /// How many elements the owner has, in tiles of length `block`, of which the last may be shorter.
    pub part: usize,
    pub block: usize,
    /// The index in the array at which the owner's tile 0 begins, and how much farther on each next tile does.
    start: usize,
    distance: usize,
    /// The tiles that have elements of the patch.
    pub tiles: Range<usize>,
    /// The tiles of which the patch has all elements.
    pub whole: Range<usize>,
    /// The tiles of these that are as long as `block`.
    pub full: Range<usize>,
}

impl<const D: usize> Share<D> {
    /// Of the tiles of the patch as the layout numbers them, `first` is the owner's first, and `end` follows the last of all;
    /// `widths` are those of the cuts.
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
    /// From the layout's numbers of the owner's first tile and of the one after the last of all. Returns also where in the
    /// grid the owner stands along this dimension.
    fn new(dim: &Dim, numbers: Range<usize>, range: Range<usize>, width: usize) -> (Self, usize) {
        let (mut block, ranks) = (dim.block.get(), dim.ranks.get());
        let (first, at) = dim.ranks.divide(numbers.start);
        let last = first + dim.ranks.divide(numbers.end - 1 - numbers.start).0;
        let (part, mut start, distance) = (dim.part(at), at * block, ranks * block);
        if dim.is_balanced() {
            // The owner has one tile, of a length of its own.
            (block, start) = (part, dim.tile(at).start);
        }
        let tiles = first..last + 1;
        let mut cut =
            Cut { range, width, part, block, start, distance, whole: tiles.clone(), full: tiles.clone(), tiles };
        // Only the first tile may begin before the patch, and only the last may end after it, or be shorter.
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

    /// The elements of a tile that the patch has; 0 is the tile's first.
    pub fn common(&self, tile: usize) -> Range<usize> {
        let start = self.start + tile * self.distance;
        self.range.start.saturating_sub(start)..self.length(tile).min(self.range.end - start)
    }

    /// How far an element of a tile is from the buffer's beginning, as far as this dimension tells.
    pub fn place(&self, tile: usize, element: usize) -> usize {
        (self.start + tile * self.distance + element - self.range.start) * self.width
    }

    /// How far two tiles that follow each other are apart in the buffer.
    pub fn step(&self) -> usize {
        self.distance * self.width
    }

    /// How many elements the patch has, whoever owns them.
    pub fn range_len(&self) -> usize {
        self.range.len()
    }

    /// Whether the patch has all that the owner has.
    pub fn is_all(&self) -> bool {
        self.whole.start == 0 && self.whole.end * self.block >= self.part
    }
}
