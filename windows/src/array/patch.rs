//! Patches of elements, and the owners of their elements.

use super::layout::Layout;
use super::odometer::Odometer;
use super::share::Share;
use std::ops::Range;
use transom_locks::Rank;

/// A range of elements in each dimension, inside a layout.
#[derive(Clone)]
pub(super) struct Patch<'l, const D: usize> {
    layout: &'l Layout<D>,
    ranges: [Range<usize>; D],
    /// Per dimension: the numbers of the layout's tiles that have elements of the patch. Empty in every dimension if
    /// the patch is empty.
    tiles: [Range<usize>; D],
    /// Per dimension: the distance of consecutive elements in the caller's buffer, which holds the patch row by row.
    widths: [usize; D],
}

impl<'l, const D: usize> Patch<'l, D> {
    /// Creates a patch; `None` if a range ends before it begins, or after the end of the array.
    pub fn new(layout: &'l Layout<D>, ranges: &[Range<usize>; D]) -> Option<Self> {
        if ranges.iter().zip(layout.shape()).any(|(range, len)| range.start > range.end || range.end > len) {
            return None;
        }
        let empty = ranges.iter().any(Range::is_empty);
        let tiles = std::array::from_fn(|d| {
            let tile = |index| layout.dims()[d].find(index).0;
            if empty { 0..0 } else { tile(ranges[d].start)..tile(ranges[d].end - 1) + 1 }
        });
        let mut widths = [1; D];
        for d in (1..D).rev() {
            // The product of an empty patch may overflow; it is not used.
            widths[d - 1] = usize::wrapping_mul(widths[d], ranges[d].len());
        }
        Some(Patch { layout, ranges: ranges.clone(), tiles, widths })
    }

    /// The same patch in a buffer with dimensions `lengths`, row by row, and the number of elements that the buffer
    /// must have. `None` if the patch is longer along a dimension, or on overflow.
    pub fn within(mut self, lengths: [usize; D]) -> Option<(Self, usize)> {
        let mut last = 0usize;
        for d in (0..D).rev() {
            let len = self.ranges[d].len();
            if len > lengths[d] {
                return None;
            }
            if d < D - 1 {
                self.widths[d] = self.widths[d + 1].checked_mul(lengths[d + 1])?;
            }
            last = last.checked_add(len.saturating_sub(1).checked_mul(self.widths[d])?)?;
        }
        let needed = if self.len() == 0 { 0 } else { last.checked_add(1)? };
        Some((self, needed))
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.ranges.iter().map(Range::len).fold(1, usize::wrapping_mul)
    }

    /// The first tile of each owner, in row-major order.
    pub fn firsts(&self) -> Odometer<D> {
        let grid = self.layout.grid();
        let to = std::array::from_fn(|d| self.tiles[d].end.min(self.tiles[d].start + grid[d]));
        Odometer::new(self.tiles.clone().map(|tiles| tiles.start), [1; D], to)
    }

    /// The ranks that own elements of the patch.
    pub fn owners(&self) -> impl Iterator<Item = Rank> {
        self.firsts().filter_map(|first| Some(self.layout.placement(first)?.owner))
    }

    /// Each owner's share of the patch.
    pub fn shares(&self) -> impl Iterator<Item = Share<D>> {
        self.firsts().map(|first| self.share(first))
    }

    /// The share of the owner of `first`, one of the tiles of [`firsts`](Self::firsts).
    pub fn share(&self, first: [usize; D]) -> Share<D> {
        let end = std::array::from_fn(|d| self.tiles[d].end);
        Share::new(self.layout.dims(), &self.ranges, &self.widths, first, end)
    }

    /// The patch in pieces of about `len` along the first dimension, each with its beginning in the patch. In one
    /// dimension the first piece has elements of every owner.
    pub fn laps(&self, len: usize) -> impl Iterator<Item = (usize, Self)> {
        let (dim, Range { start, end }) = (&self.layout.dims()[0], self.ranges[0].clone());
        // Each rank owns, of a full round of consecutive indices, one block, or two parts of blocks, within the array.
        let round = dim.block.get() * dim.ranks.get();
        let step = round.saturating_mul((len / round).max(1));
        (start..end).step_by(step).filter_map(move |from| {
            let mut ranges = self.ranges.clone();
            ranges[0] = from..end.min(from.saturating_add(step));
            Some((from - start, Patch::new(self.layout, &ranges)?))
        })
    }
}
