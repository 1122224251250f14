//! The share of one owner in a patch.

use super::layout::Dim;
use std::ops::Range;
use transom_locks::Rank;

/// The elements of a patch that one owner has. The owner's tiles are numbered from 0 on in each dimension, without the
/// tiles of other owners. Its part holds them in the order of these numbers, the last changing fastest.
pub(super) struct Share<const D: usize> {
    pub owner: Rank,
    pub cuts: [Cut; D],
}

/// A [`Share`] along one dimension. Lengths are in elements.
pub(super) struct Cut {
    /// The elements of the patch, of all owners.
    range: Range<usize>,
    /// Distance in the caller's buffer of two consecutive elements along this dimension.
    pub width: usize,
    /// The number of the owner's elements, in tiles of length `block`; the last may be shorter.
    pub part: usize,
    pub block: usize,
    /// The array index at which the owner's tile 0 begins, and the distance to each next tile.
    start: usize,
    distance: usize,
    /// The tiles that have elements of the patch.
    pub tiles: Range<usize>,
    /// The tiles that are entirely within the patch.
    pub whole: Range<usize>,
    /// The `whole` tiles of length `block`.
    pub full: Range<usize>,
}

impl<const D: usize> Share<D> {
    /// `first` is the owner's first of the patch's tiles, in the layout's numbers; `end` follows the patch's last tile.
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

    /// The next tile, counting in the dimensions before `end`.
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
    /// `numbers` are the layout's numbers of the owner's first tile and of the tile after the patch's last. Also
    /// returns the owner's position in the grid along this dimension.
    fn new(dim: &Dim, numbers: Range<usize>, range: Range<usize>, width: usize) -> (Self, usize) {
        let (mut block, ranks) = (dim.block.get(), dim.ranks.get());
        let (first, at) = dim.ranks.divide(numbers.start);
        let last = first + dim.ranks.divide(numbers.end - 1 - numbers.start).0;
        let (part, mut start, distance) = (dim.part(at), at * block, ranks * block);
        if dim.is_balanced() {
            // The owner has one tile, whose length may differ from that of others.
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

    /// The number of elements of a tile.
    pub fn length(&self, tile: usize) -> usize {
        self.block.min(self.part - tile * self.block)
    }

    /// The elements of a tile that are in the patch, counted from the tile's first.
    pub fn common(&self, tile: usize) -> Range<usize> {
        let start = self.start + tile * self.distance;
        self.range.start.saturating_sub(start)..self.length(tile).min(self.range.end - start)
    }

    /// This dimension's contribution to an element's offset in the buffer.
    pub fn place(&self, tile: usize, element: usize) -> usize {
        (self.start + tile * self.distance + element - self.range.start) * self.width
    }

    /// Distance of two consecutive tiles in the buffer.
    pub fn step(&self) -> usize {
        self.distance * self.width
    }

    /// The number of the patch's elements, of all owners.
    pub fn range_len(&self) -> usize {
        self.range.len()
    }

    /// True if the patch has all of the owner's elements.
    pub fn is_all(&self) -> bool {
        self.whole.start == 0 && self.whole.end * self.block >= self.part
    }
}
