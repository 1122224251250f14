//! The runs of a patch, which determine the cost of its transfer.

use super::index::Ranges;
use super::layout::Layout;
use super::odometer::Odometer;
use super::patch::Patch;
use super::share::Share;
use std::ops::Range;
use transom_locks::Rank;

/// Adjacent elements in their owner's part of the window.
///
/// # Examples
/// ```
/// use transom::array::{Distribution, Layout};
/// let layout = Layout::new([12], Distribution::Cyclic, 3)?;
/// let run = layout.runs(3..8).expect("inside").nth(1).expect("three owners"); // 4 and 7
/// assert_eq!((run.owner, run.offset, run.len), (1, 1, 2));
/// # Ok::<(), transom::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Run {
    /// The owner.
    pub owner: Rank,
    /// The first element's position in the owner's part.
    pub offset: usize,
    /// The number of elements.
    pub len: usize,
}

impl<const D: usize> Layout<D> {
    /// The runs of adjacent elements that make up a patch, owner by owner, in ascending order for each owner. A put or
    /// get of the patch costs 1 remote operation per run. `None` if the patch is not inside the layout.
    ///
    /// The iterator finds a run on demand, in a time independent of the run's length; `nth` skips runs of one length at
    /// equal distances in one step.
    ///
    /// # Examples
    /// ```
    /// use transom::array::{Distribution, Layout};
    /// let cyclic = Layout::new([1000], Distribution::Cyclic, 4)?;
    /// assert_eq!(cyclic.runs(10..500).expect("inside").count(), 4); // in one dimension: one for each owner
    /// let tiles = Layout::new([64, 64], Distribution::BlockCyclic([16, 16]), 4)?;
    /// assert_eq!(tiles.runs([16..32, 0..16]).expect("inside").count(), 1); // a tile
    /// assert_eq!(tiles.runs([16..32, 0..15]).expect("inside").count(), 16); // not whole rows: one per row
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn runs(&self, ranges: impl Ranges<D>) -> Option<impl Iterator<Item = Run>> {
        let patch = Patch::new(self, &ranges.ranges())?;
        Some(Runs { firsts: patch.firsts(), patch, next: None, owner: None })
    }
}

struct Runs<'l, const D: usize> {
    patch: Patch<'l, D>,
    /// The next runs.
    next: Option<Series>,
    /// Later runs of the same owner.
    owner: Option<ShareRuns<D>>,
    /// The first tiles of the remaining owners.
    firsts: Odometer<D>,
}

impl<const D: usize> Iterator for Runs<'_, D> {
    type Item = Run;

    fn next(&mut self) -> Option<Run> {
        self.nth(0)
    }

    fn nth(&mut self, mut n: usize) -> Option<Run> {
        loop {
            let Some(runs) = &mut self.owner else {
                self.owner = Some(ShareRuns::new(self.patch.share(self.firsts.next()?)));
                continue;
            };
            let Some(series) = self.next.take().or_else(|| runs.next()) else {
                self.owner = None;
                continue;
            };
            if let Some(found) = series.skip(n) {
                self.next = found.skip(1);
                return Some(Run { owner: runs.share.owner, offset: found.offset, len: found.len });
            }
            n -= series.count;
        }
    }
}

/// Runs of one owner, of one length and at equal distances.
#[derive(Clone, Copy)]
struct Series {
    /// The first run's position in the owner's part.
    offset: usize,
    /// Elements per run.
    len: usize,
    /// The number of runs, and their distance.
    count: usize,
    step: usize,
}

impl Series {
    /// All but the first `runs` runs; `None` if none remain.
    fn skip(self, runs: usize) -> Option<Self> {
        let count = self.count.checked_sub(runs).filter(|&left| left > 0)?;
        Some(Series { offset: self.offset + runs * self.step, count, ..self })
    }

    /// The end of the last run.
    fn end(&self) -> usize {
        self.offset + (self.count - 1) * self.step + self.len
    }
}

/// All runs of a share, in ascending order. No two of them are adjacent.
struct ShareRuns<const D: usize> {
    share: Share<D>,
    /// The first dimension after which the patch has all of the owner's elements. Whole tiles are therefore adjacent
    /// exactly if their numbers are equal in the dimensions before it.
    row: usize,
    /// The beginning of the next series.
    next: Option<Begin<D>>,
    /// A series that was found but not returned yet.
    held: Option<Series>,
}

/// The beginning of a series: a tile that the patch contains entirely, or otherwise this element of it.
#[derive(Clone, Copy)]
struct Begin<const D: usize> {
    tile: [usize; D],
    element: [usize; D],
}

impl<const D: usize> Iterator for ShareRuns<D> {
    type Item = Series;

    fn next(&mut self) -> Option<Series> {
        let mut series = self.held.take().or_else(|| self.advance())?;
        // Joins at most three series: one that ends a tile, one of whole tiles, and one that begins a tile. A series
        // that both begins and ends a tile is the whole tile, and adjacent whole tiles are one series already.
        while let (this, Some(next)) = (self.next, self.advance()) {
            if next.offset != series.end() {
                self.held = Some(next);
                break;
            }
            if series.count > 1 {
                // The last run joins the next series, and is returned after the others.
                (self.held, self.next) = (series.skip(series.count - 1), this);
                series.count -= 1;
                break;
            }
            series.len += next.len;
            self.held = next.skip(1);
            if self.held.is_some() {
                break;
            }
        }
        Some(series)
    }
}

impl<const D: usize> ShareRuns<D> {
    fn new(share: Share<D>) -> Self {
        let row = (0..D).rev().find(|&d| !share.cuts[d].is_all()).unwrap_or(0);
        let mut runs = ShareRuns { row, next: None, held: None, share };
        runs.next = runs.begin(Some(runs.share.first()));
        runs
    }

    /// The next series. Its first run may adjoin the series before, and its last the series after.
    fn advance(&mut self) -> Option<Series> {
        let begin = self.next?;
        let is_whole = begin.tile.iter().zip(&self.share.cuts).all(|(tile, cut)| cut.whole.contains(tile));
        let (series, next) = if is_whole { self.of_tiles(begin) } else { self.in_tile(begin) };
        self.next = next;
        Some(series)
    }

    /// A run of adjacent whole tiles, together with equal runs that follow along the dimension before `row`; and the
    /// beginning of the next series.
    fn of_tiles(&self, Begin { tile, .. }: Begin<D>) -> (Series, Option<Begin<D>>) {
        let (cuts, row) = (&self.share.cuts, self.row);
        let mut last = tile;
        (row..D).for_each(|d| last[d] = cuts[d].whole.end - 1);
        let (mut offset, mut len, mut step) = (0, 1, 0);
        for (d, cut) in cuts.iter().enumerate() {
            offset = offset * cut.part + len * tile[d] * cut.block;
            step = if d + 1 == row { len * cut.block } else { step * cut.part };
            len *= cut.part.min((last[d] + 1) * cut.block) - tile[d] * cut.block;
        }
        let mut count = 1;
        // The distances are equal if the patch has no part of a tile in between, and if the tiles are equally long.
        if row > 0 && cuts[row].whole == cuts[row].tiles && cuts[row - 1].full.contains(&tile[row - 1]) {
            count = cuts[row - 1].full.end - tile[row - 1];
            last[row - 1] += count - 1;
        }
        (Series { offset, len, count, step }, self.begin(self.share.next(last, D)))
    }

    /// The runs of a tile that the patch contains in part, and the beginning of the next series.
    fn in_tile(&self, Begin { tile, mut element }: Begin<D>) -> (Series, Option<Begin<D>>) {
        let cuts = &self.share.cuts;
        let common: [Range<usize>; D] = std::array::from_fn(|d| cuts[d].common(tile[d]));
        // The last dimension along which the patch lacks part of the tile. Elements are adjacent along this one and
        // those after.
        let broken = (0..D).rev().find(|&d| common[d].len() < cuts[d].length(tile[d])).unwrap_or(0);
        let (mut offset, mut before) = (0, 1);
        for (d, cut) in cuts.iter().enumerate() {
            offset = offset * cut.part + before * tile[d] * cut.block;
            before *= cut.length(tile[d]);
        }
        let (mut size, mut len, mut step) = (1, 1, 0);
        for (d, cut) in cuts.iter().enumerate().rev() {
            offset += element[d] * size;
            if d >= broken {
                len *= common[d].len();
            }
            if d + 1 == broken {
                step = size;
            }
            size *= cut.length(tile[d]);
        }
        let along = broken.saturating_sub(1);
        let series = Series { offset, len, count: if broken > 0 { common[along].len() } else { 1 }, step };
        for d in (0..along).rev() {
            element[d] += 1;
            if element[d] < common[d].end {
                return (series, Some(Begin { tile, element }));
            }
            element[d] = common[d].start;
        }
        (series, self.begin(self.share.next(tile, D)))
    }

    /// The beginning of the first series of a tile.
    fn begin(&self, tile: Option<[usize; D]>) -> Option<Begin<D>> {
        let tile = tile?;
        Some(Begin { tile, element: std::array::from_fn(|d| self.share.cuts[d].common(tile[d]).start) })
    }
}
