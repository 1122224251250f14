//! A patch of elements, taken apart: into the strips that adjoin both in memory and in the caller's buffer, and those
//! joined to runs that adjoin at their owner.

use super::layout::{Layout, Tile, in_rows};
use std::iter::Peekable;
use std::ops::Range;
use transom_locks::Rank;

/// Elements that adjoin in their owner's part of the window.
///
/// # Examples
/// ```
/// use transom::array::{Distribution, Layout};
/// let layout = Layout::new([12], Distribution::Cyclic, 3)?;
/// let run = layout.runs(3..8).expect("inside").nth(1).expect("three owners"); // 4 and 7
/// assert_eq!((run.owner, run.offset, run.len), (1, 1, 2));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Run {
    /// Whose they are.
    pub owner: Rank,
    /// Where they begin in the owner's part.
    pub offset: usize,
    /// How many they are.
    pub len: usize,
}

/// Elements that adjoin both at their owner and in the caller's buffer.
#[derive(Clone, Copy)]
pub(super) struct Strip {
    run: Run,
    /// Where they begin in the buffer.
    pub at: usize,
}

impl Strip {
    pub fn len(&self) -> usize {
        self.run.len
    }
}

/// Where the elements of a run are in the caller's buffer.
pub(super) enum Spread<S> {
    /// Side by side, from here on.
    Together(usize),
    /// Strip by strip.
    Apart(S),
}

/// A range of elements in each dimension, inside a layout.
pub(super) struct Patch<'l, const D: usize> {
    layout: &'l Layout<D>,
    ranges: [Range<usize>; D],
    /// The tiles that it touches.
    first: [usize; D],
    end: [usize; D],
}

impl<'l, const D: usize> Patch<'l, D> {
    pub fn new(layout: &'l Layout<D>, ranges: [Range<usize>; D]) -> Self {
        let (block, empty) = (layout.block(), ranges.iter().any(Range::is_empty));
        let first = std::array::from_fn(|d| ranges[d].start / block[d]);
        let end = std::array::from_fn(|d| if empty { first[d] } else { (ranges[d].end - 1) / block[d] + 1 });
        Patch { layout, ranges, first, end }
    }

    /// The first tile of each owner.
    fn owners(&self) -> Odometer<D> {
        let grid = self.layout.grid();
        Odometer::new(
            self.first,
            [1; D],
            std::array::from_fn(|d| self.end[d].min(self.first[d].saturating_add(grid[d]))),
        )
    }

    /// An owner that is not the given rank, if there is one.
    pub fn other_owner(&self, than: Rank) -> Option<Rank> {
        self.owners().filter_map(|tile| Some(self.layout.spot(tile)?.owner)).find(|&owner| owner != than)
    }

    /// The only strip, where it takes no search to see that there is but one.
    pub fn one_run(&self) -> Option<Run> {
        if (0..D).any(|d| self.end[d] - self.first[d] != 1) {
            return None;
        }
        let (tile, all) = (self.layout.tile(self.first)?, self.ranges.iter().map(Range::len).product::<usize>());
        let Rows { from, len, .. } = Rows::new(&tile, &self.ranges);
        (len == all).then(|| Run { owner: tile.owner, offset: tile.offset + in_rows(from, &tile.ranges), len })
    }

    /// The strips, owner by owner in the order in which the owner has them.
    fn into_strips(self) -> impl Iterator<Item = Strip> + Clone + use<'l, D> {
        let (layout, ranges, end) = (self.layout, self.ranges.clone(), self.end);
        let tiles = self.owners().flat_map(move |first| Odometer::new(first, layout.grid(), end));
        tiles.filter_map(|index| layout.tile(index)).flat_map(move |tile| {
            let (ranges, Rows { from, step, to, len }) = (ranges.clone(), Rows::new(&tile, &ranges));
            Odometer::new(from, step, to).map(move |row| {
                let offset = tile.offset + in_rows(row, &tile.ranges);
                Strip { run: Run { owner: tile.owner, offset, len }, at: in_rows(row, &ranges) }
            })
        })
    }

    /// The runs, and where in the buffer their elements are.
    pub fn into_runs(self) -> impl Iterator<Item = (Run, Spread<impl Iterator<Item = Strip>>)> + use<'l, D> {
        let mut strips = self.into_strips().peekable();
        std::iter::from_fn(move || next_run(&mut strips))
    }
}

/// The elements that a patch and a tile have in common, by the first of each strip.
struct Rows<const D: usize> {
    from: [usize; D],
    step: [usize; D],
    to: [usize; D],
    /// Of a strip.
    len: usize,
}

impl<const D: usize> Rows<D> {
    fn new(tile: &Tile<D>, patch: &[Range<usize>; D]) -> Self {
        let from: [_; D] = std::array::from_fn(|d| patch[d].start.max(tile.ranges[d].start));
        let to: [_; D] = std::array::from_fn(|d| patch[d].end.min(tile.ranges[d].end));
        // A row at a time; and all rows at once where both the tile and the patch are as wide as they.
        let (mut step, mut len) = ([1; D], 1);
        for d in (0..D).rev() {
            step[d] = to[d] - from[d];
            len *= step[d];
            if step[d] < tile.ranges[d].len() || step[d] < patch[d].len() {
                break;
            }
        }
        Rows { from, step, to, len }
    }
}

/// Takes strips as long as they adjoin.
fn next_run<S>(strips: &mut Peekable<S>) -> Option<(Run, Spread<impl Iterator<Item = Strip> + use<S>>)>
where
    S: Iterator<Item = Strip> + Clone,
{
    let from = strips.clone();
    let first = strips.next()?;
    let (mut run, mut count, mut together) = (first.run, 1, true);
    while let Some(strip) =
        strips.next_if(|next| next.run.owner == run.owner && next.run.offset == run.offset + run.len)
    {
        together &= strip.at == first.at + run.len;
        run.len += strip.run.len;
        count += 1;
    }
    Some((run, if together { Spread::Together(first.at) } else { Spread::Apart(from.take(count)) }))
}

/// All combinations of numbers of several ranges, the last changing fastest, each by a step of its own.
#[derive(Clone)]
pub(super) struct Odometer<const D: usize> {
    next: Option<[usize; D]>,
    from: [usize; D],
    step: [usize; D],
    to: [usize; D],
}

impl<const D: usize> Odometer<D> {
    pub fn new(from: [usize; D], step: [usize; D], to: [usize; D]) -> Self {
        Odometer { next: (0..D).all(|d| from[d] < to[d]).then_some(from), from, step, to }
    }
}

impl<const D: usize> Iterator for Odometer<D> {
    type Item = [usize; D];

    fn next(&mut self) -> Option<[usize; D]> {
        let now = self.next?;
        let mut then = now;
        self.next = (0..D).rev().find_map(|d| {
            then[d] = then[d].saturating_add(self.step[d]);
            if then[d] < self.to[d] {
                return Some(then);
            }
            then[d] = self.from[d];
            None
        });
        Some(now)
    }
}
