//! A patch of elements, and who has some of them.

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
    /// The tiles that have elements of it, in each dimension; none in any dimension if it is empty in one.
    tiles: [Range<usize>; D],
    /// From an element to the next along each dimension, in the buffer, which has the patch row by row.
    widths: [usize; D],
}

impl<'l, const D: usize> Patch<'l, D> {
    /// None if a range ends before it begins, or beyond the array.
    pub fn new(layout: &'l Layout<D>, ranges: &[Range<usize>; D]) -> Option<Self> {
        if ranges.iter().zip(layout.shape()).any(|(range, len)| range.start > range.end || range.end > len) {
            return None;
        }
        let empty = ranges.iter().any(Range::is_empty);
        let tiles = std::array::from_fn(|d| {
            let tile = |index| layout.dims()[d].block.divide(index).0;
            if empty { 0..0 } else { tile(ranges[d].start)..tile(ranges[d].end - 1) + 1 }
        });
        let mut widths = [1; D];
        for d in (1..D).rev() {
            widths[d - 1] = widths[d] * ranges[d].len();
        }
        Some(Patch { layout, ranges: ranges.clone(), tiles, widths })
    }

    /// How many elements it has.
    pub fn len(&self) -> usize {
        self.ranges.iter().map(Range::len).product()
    }

    /// The first tile of each owner, in row-major order.
    pub fn owners(&self) -> Odometer<D> {
        let grid = self.layout.grid();
        let to = std::array::from_fn(|d| self.tiles[d].end.min(self.tiles[d].start + grid[d]));
        Odometer::new(self.tiles.clone().map(|tiles| tiles.start), [1; D], to)
    }

    /// An owner that is not the given rank, if there is one.
    pub fn other_owner(&self, than: Rank) -> Option<Rank> {
        self.owners().filter_map(|tile| Some(self.layout.placement(tile)?.owner)).find(|&owner| owner != than)
    }

    /// What the owner of a tile has, which is its first in the patch.
    pub fn share(&self, first: [usize; D]) -> Share<D> {
        let end = std::array::from_fn(|d| self.tiles[d].end);
        Share::new(self.layout.dims(), &self.ranges, &self.widths, first, end)
    }

    /// What each owner has.
    pub fn shares(&self) -> impl Iterator<Item = Share<D>> {
        self.owners().map(|first| self.share(first))
    }

    /// Itself in patches of about `len` elements, and where each begins in the buffer; if it has two dimensions or more, in
    /// one. The first has elements of every owner.
    pub fn laps(&self, len: usize) -> impl Iterator<Item = (usize, Self)> {
        let (dim, Range { start, end }) = (&self.layout.dims()[0], self.ranges[0].clone());
        // Every owner has elements of so many that follow each other, wherever they begin.
        let round = dim.block.get() * dim.ranks.get();
        let step = if D == 1 { round.saturating_mul((len / round).max(1)) } else { usize::MAX };
        (start..end.max(start + 1)).step_by(step).filter_map(move |from| {
            let mut ranges = self.ranges.clone();
            ranges[0] = from..end.min(from.saturating_add(step));
            Some((from - start, Patch::new(self.layout, &ranges)?))
        })
    }
}
