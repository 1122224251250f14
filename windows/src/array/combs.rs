//! How the elements of a share lie in the owner's part and in the caller's buffer, and their copies.

use super::odometer::Odometer;
use super::share::Share;
use std::ops::Range;

/// Where an element is, in the owner's part of the array and in the caller's buffer; or how far two elements are apart.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub part: usize,
    pub buffer: usize,
}

/// Strips of one length at equal distances. The elements of a strip adjoin both in the part and in the buffer.
#[derive(Clone, Copy)]
pub(super) struct Comb {
    pub first: Place,
    /// Elements of a strip.
    pub strip: usize,
    /// How many strips, and how far they are apart.
    pub count: usize,
    pub step: Place,
}

/// Bytes of a comb that are copied at once, through a buffer of the library's that stays in the cache.
const PIECE: usize = 8 << 10;
/// Strips of so many bytes are not worth that, nor are so few.
const LONG_STRIP: usize = 64;
const FEW_STRIPS: usize = 8;

impl<const D: usize> Share<D> {
    /// Calls `each` with all elements, in the order in which the owner has them, until one call fails.
    #[inline]
    pub fn try_combs<E>(&self, mut each: impl FnMut(Comb) -> Result<(), E>) -> Result<(), E> {
        // In the dimensions after this one there is one tile each. So tiles that differ only in this one follow each other.
        let along = (1..D).rev().find(|&d| self.cuts[d].tiles.len() > 1).unwrap_or(0);
        let (end, full) = (self.cuts[along].tiles.end, self.cuts[along].full.clone());
        let mut next = Some(self.first());
        while let Some(mut tile) = next {
            next = self.next(tile, along);
            while tile[along] < end {
                let alike = if full.contains(&tile[along]) { full.end - tile[along] } else { 1 };
                self.try_tiles(&tile, along, alike, &mut each)?;
                tile[along] += alike;
            }
        }
        Ok(())
    }

    /// The same of a tile and those that follow it along a dimension: `count` tiles that are alike.
    #[inline]
    fn try_tiles<E>(
        &self,
        tile: &[usize; D],
        along: usize,
        count: usize,
        each: &mut impl FnMut(Comb) -> Result<(), E>,
    ) -> Result<(), E> {
        let common: [Range<usize>; D] = std::array::from_fn(|d| self.cuts[d].common(tile[d]));
        // Before the tile the part has, for each dimension, tiles with smaller numbers there: they are as long as this
        // tile in the dimensions before, and as the part in those that follow.
        let mut first = Place { part: 0, buffer: 0 };
        let (mut lengths, mut before) = ([0; D], 1);
        let mut step = 0;
        for (d, cut) in self.cuts.iter().enumerate() {
            first.part = first.part * cut.part + before * tile[d] * cut.block;
            first.buffer += cut.place(tile[d], common[d].start);
            step = if d == along { before * cut.block } else { step * cut.part };
            lengths[d] = cut.length(tile[d]);
            before *= lengths[d];
        }
        let step = Place { part: step, buffer: self.cuts[along].step() };
        // A strip is a row of elements; or several rows, where neither the tile nor the patch has others beside them.
        let (mut strip, mut row, mut adjoin) = (1, 0, true);
        let (mut sizes, mut size) = ([0; D], 1);
        for (d, cut) in self.cuts.iter().enumerate().rev() {
            let len = common[d].len();
            first.part += common[d].start * size;
            if adjoin {
                (row, strip) = (d, strip * len);
                adjoin = len == lengths[d] && len == cut.range_len();
            }
            (sizes[d], size) = (size, size * lengths[d]);
        }
        let Some(rows) = (0..row).rev().find(|&d| common[d].len() > 1) else {
            return each(Comb { first, strip, count, step });
        };
        let of_rows = Place { part: sizes[rows], buffer: self.cuts[rows].width };
        let others = std::array::from_fn(|d| if d < rows { common[d].len() } else { 1 });
        for number in 0..count {
            for at in Odometer::new([0; D], [1; D], others) {
                let mut first = first.plus(step.times(number));
                for (d, cut) in self.cuts.iter().enumerate() {
                    first = first.plus(Place { part: sizes[d], buffer: cut.width }.times(at[d]));
                }
                each(Comb { first, strip, count: common[rows].len(), step: of_rows })?;
            }
        }
        Ok(())
    }

    /// Calls `each` with all runs and the combs that each consists of, whose elements adjoin, until one call fails.
    pub fn try_runs<E>(&self, mut each: impl FnMut(Range<usize>, &[Comb]) -> Result<(), E>) -> Result<(), E> {
        let (mut run, mut combs) = (0..0, Vec::<Comb>::new());
        self.try_combs(|comb| {
            comb.try_segments(|segment| {
                if segment.first.part != run.end && !combs.is_empty() {
                    each(run.clone(), &combs)?;
                    combs.clear();
                }
                if combs.is_empty() {
                    run = segment.first.part..segment.first.part;
                }
                run.end += segment.len();
                match combs.last_mut() {
                    Some(last) if last.is_followed_by(&segment) => last.strip += segment.strip,
                    _ => combs.push(segment),
                }
                Ok(())
            })
        })?;
        if combs.is_empty() { Ok(()) } else { each(run, &combs) }
    }
}

impl Comb {
    /// How many elements there are.
    pub fn len(&self) -> usize {
        self.strip * self.count
    }

    /// Whether all elements adjoin in the part.
    fn is_packed(&self) -> bool {
        self.count == 1 || self.step.part == self.strip
    }

    /// Whether both are single strips that are one together.
    fn is_followed_by(&self, next: &Comb) -> bool {
        let end = self.first.plus(Place { part: self.strip, buffer: self.strip });
        self.count == 1 && next.count == 1 && (end.part, end.buffer) == (next.first.part, next.first.buffer)
    }

    /// How many runs begin with it, if the elements before it end at `end` of the part.
    pub fn runs_after(&self, end: Option<usize>) -> usize {
        let runs = if self.is_packed() { 1 } else { self.count };
        runs - usize::from(end == Some(self.first.part))
    }

    /// Where its last strip ends in the part.
    pub fn end(&self) -> usize {
        self.first.part + (self.count - 1) * self.step.part + self.strip
    }

    /// Calls `each` with itself in combs of at most `strips` strips, until one call fails.
    #[inline]
    pub fn try_pieces<E>(&self, strips: usize, mut each: impl FnMut(Comb) -> Result<(), E>) -> Result<(), E> {
        let mut rest = *self;
        while rest.count > strips {
            each(Comb { count: strips, ..rest })?;
            rest.first = rest.first.plus(rest.step.times(strips));
            rest.count -= strips;
        }
        each(rest)
    }

    /// The same with combs whose elements adjoin in the part.
    fn try_segments<E>(&self, each: impl FnMut(Comb) -> Result<(), E>) -> Result<(), E> {
        self.try_pieces(if self.is_packed() { self.count } else { 1 }, each)
    }

    /// How many strips of elements of `size` bytes to copy at once: as many as a buffer that stays in the cache has, if they
    /// adjoin in the part and are short; or 1, which needs no buffer.
    #[inline]
    pub fn strips_at_once(&self, size: usize) -> usize {
        let bytes = size * self.strip;
        let at_once = self.count > FEW_STRIPS && bytes < LONG_STRIP && self.is_packed();
        if at_once { PIECE / bytes.max(1) } else { 1 }
    }

    /// Where each strip begins.
    #[inline]
    pub fn strips(&self) -> impl Iterator<Item = Place> + use<> {
        let Comb { first, count, step, .. } = *self;
        (0..count).map(move |number| first.plus(step.times(number)))
    }

    /// Copies the elements from `segment`, which has those of the part from the comb's first on.
    #[inline]
    pub fn scatter<T: Copy>(&self, segment: &[T], buffer: &mut [T]) {
        copy(segment, self.step.part, &mut buffer[self.first.buffer..], self.step.buffer, self.strip, self.count);
    }

    /// Copies the elements to `segment`, which has those of the part from the comb's first on.
    #[inline]
    pub fn gather<T: Copy>(&self, buffer: &[T], segment: &mut [T]) {
        copy(&buffer[self.first.buffer..], self.step.buffer, segment, self.step.part, self.strip, self.count);
    }
}

impl Place {
    #[inline]
    fn plus(self, other: Place) -> Place {
        Place { part: self.part + other.part, buffer: self.buffer + other.buffer }
    }

    #[inline]
    fn times(self, count: usize) -> Place {
        Place { part: self.part * count, buffer: self.buffer * count }
    }
}

/// Copies `count` strips. Short ones are copied without a call of memcpy for each.
fn copy<T: Copy>(from: &[T], from_step: usize, to: &mut [T], to_step: usize, strip: usize, count: usize) {
    let (from, to) = ((from, from_step), (to, to_step));
    match strip {
        1 => each_strip(from, to, count, |from, to| to[0] = from[0]),
        2 => each_strip(from, to, count, |from, to| to[..2].copy_from_slice(&from[..2])),
        3 => each_strip(from, to, count, |from, to| to[..3].copy_from_slice(&from[..3])),
        4 => each_strip(from, to, count, |from, to| to[..4].copy_from_slice(&from[..4])),
        _ => each_strip(from, to, count, |from, to| to[..strip].copy_from_slice(&from[..strip])),
    }
}

/// Calls `copy` with slices that begin with the strips. Iterators of chunks make twice as fast a loop of it as indices do.
#[inline(always)]
fn each_strip<T>(
    (from, from_step): (&[T], usize),
    (to, to_step): (&mut [T], usize),
    count: usize,
    copy: impl Fn(&[T], &mut [T]),
) {
    let last = count - 1;
    copy(&from[last * from_step..], &mut to[last * to_step..]);
    if last > 0 {
        let (from, to) = (&from[..last * from_step], &mut to[..last * to_step]);
        from.chunks_exact(from_step).zip(to.chunks_exact_mut(to_step)).for_each(|(from, to)| copy(from, to));
    }
}
