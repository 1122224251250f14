//! The runs that a patch consists of, which tell what a transfer of it costs.

use super::index::Ranges;
use super::layout::Layout;
use super::odometer::Odometer;
use super::patch::Patch;
use super::share::Share;
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
/// # Ok::<(), transom::Error>(())
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

impl<const D: usize> Layout<D> {
    /// The runs of adjoining elements of which a patch consists, owner by owner, each owner's in ascending order: what a
    /// put or get of the patch costs in remote operations, 1 for each. None if the patch is not inside.
    ///
    /// A run is found when the iterator is asked for it, in a time that does not depend on the run's length; `nth` passes over
    /// runs of one length at equal distances at once.
    ///
    /// # Examples
    /// ```
    /// use transom::array::{Distribution, Layout};
    /// let cyclic = Layout::new([1000], Distribution::Cyclic, 4)?;
    /// assert_eq!(cyclic.runs(10..500).expect("inside").count(), 4); // in one dimension: one for each owner
    /// let tiles = Layout::new([64, 64], Distribution::BlockCyclic([16, 16]), 4)?;
    /// assert_eq!(tiles.runs([16..32, 0..16]).expect("inside").count(), 1); // a tile
    /// assert_eq!(tiles.runs([16..32, 0..15]).expect("inside").count(), 16); // less than its rows: one for each row
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
    /// The runs of the same owner that follow these.
    owner: Option<ShareRuns<D>>,
    /// The first tiles of the owners that follow.
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

/// Runs of one length at equal distances, of one owner.
#[derive(Clone, Copy)]
struct Series {
    /// Where the first run begins in the owner's part.
    offset: usize,
    /// How many elements a run has.
    len: usize,
    /// How many runs there are, and how far they are apart.
    count: usize,
    step: usize,
}

impl Series {
    /// All but so many of the first runs; none if there are no more.
    fn skip(self, runs: usize) -> Option<Self> {
        let count = self.count.checked_sub(runs).filter(|&left| left > 0)?;
        Some(Series { offset: self.offset + runs * self.step, count, ..self })
    }

    /// Where the last run ends.
    fn end(&self) -> usize {
        self.offset + (self.count - 1) * self.step + self.len
    }
}

/// All runs of a share, in ascending order. No two of them adjoin.
struct ShareRuns<const D: usize> {
    share: Share<D>,
    /// The first dimension after which the patch has all that the owner has. So whole tiles adjoin if their numbers in the
    /// dimensions before it are the same, and else do not.
    row: usize,
    /// Where the next series begins.
    next: Option<Begin<D>>,
    /// A series that was found and not yet returned.
    held: Option<Series>,
}

/// Where a series begins: at a tile of which the patch has all elements, or else at this element of it.
#[derive(Clone, Copy)]
struct Begin<const D: usize> {
    tile: [usize; D],
    element: [usize; D],
}

impl<const D: usize> Iterator for ShareRuns<D> {
    type Item = Series;

    fn next(&mut self) -> Option<Series> {
        let mut series = self.held.take().or_else(|| self.advance())?;
        // This joins three series at most, which end a tile, are whole tiles, and begin a tile: elements of a tile that do both
        // are the whole tile, and whole tiles that adjoin are one series already.
        while let (this, Some(next)) = (self.next, self.advance()) {
            if next.offset != series.end() {
                self.held = Some(next);
                break;
            }
            if series.count > 1 {
                // Its last run is one with the next, and is returned after the others.
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

    /// The next series, of which the first run may adjoin the series before, and the last the one after.
    fn advance(&mut self) -> Option<Series> {
        let begin = self.next?;
        let is_whole = begin.tile.iter().zip(&self.share.cuts).all(|(tile, cut)| cut.whole.contains(tile));
        let (series, next) = if is_whole { self.of_tiles(begin) } else { self.in_tile(begin) };
        self.next = next;
        Some(series)
    }

    /// A run of whole tiles that adjoin; and those that follow along the dimension before `row`, if they are alike. And where
    /// the next series begins.
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
        // They are at equal distances if the patch has no part of a tile between them, and if the tiles are equally long.
        if row > 0 && cuts[row].whole == cuts[row].tiles && cuts[row - 1].full.contains(&tile[row - 1]) {
            count = cuts[row - 1].full.end - tile[row - 1];
            last[row - 1] += count - 1;
        }
        (Series { offset, len, count, step }, self.begin(self.share.next(last, D)))
    }

    /// Runs of a tile of which the patch has not all. And where the next series begins.
    fn in_tile(&self, Begin { tile, mut element }: Begin<D>) -> (Series, Option<Begin<D>>) {
        let cuts = &self.share.cuts;
        let common: [Range<usize>; D] = std::array::from_fn(|d| cuts[d].common(tile[d]));
        // The last dimension along which the patch has not all of the tile. Elements adjoin along this one and those after.
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

    /// Where the first series of a tile begins.
    fn begin(&self, tile: Option<[usize; D]>) -> Option<Begin<D>> {
        let tile = tile?;
        Some(Begin { tile, element: std::array::from_fn(|d| self.share.cuts[d].common(tile[d]).start) })
    }
}
