//! The positions of a share's elements in the owner's part and in the caller's buffer, and copies between the two.

use super::odometer::Odometer;
use super::share::Share;
use std::ops::Range;

/// The position of an element in the owner's part and in the caller's buffer, or the distance of two elements there. In
/// elements.
#[derive(Clone, Copy)]
pub(super) struct PartAndBuffer {
    pub part: usize,
    pub buffer: usize,
}

/// Strips of one length at equal distances. The elements of a strip are adjacent both in the part and in the buffer.
#[derive(Clone, Copy)]
pub(super) struct Comb {
    pub first: PartAndBuffer,
    /// Elements per strip.
    pub strip: usize,
    /// The number of strips, and their distance.
    pub count: usize,
    pub step: PartAndBuffer,
}

/// Short strips are copied through a library buffer, this many bytes at a time, so that they stay in the L1 cache.
const PIECE: usize = 8 << 10;
/// Strips of at least this many bytes are copied one by one: cheaper than copying them twice.
const LONG_STRIP: usize = 64;
/// At most this many strips are copied one by one too.
const FEW_STRIPS: usize = 8;

impl<const D: usize> Share<D> {
    /// Calls `each` with all elements, in the order of the owner's part, until a call fails.
    #[inline]
    pub fn try_combs<E>(&self, mut each: impl FnMut(Comb) -> Result<(), E>) -> Result<(), E> {
        // The last dimension with several tiles: these are consecutive in the part.
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

    /// Calls `each` with the elements of `count` equal tiles that are consecutive along a dimension, from `tile` on.
    #[inline]
    fn try_tiles<E>(
        &self,
        tile: &[usize; D],
        along: usize,
        count: usize,
        each: &mut impl FnMut(Comb) -> Result<(), E>,
    ) -> Result<(), E> {
        let common: [Range<usize>; D] = std::array::from_fn(|d| self.cuts[d].common(tile[d]));
        // Same as in `Layout`: tiles before this one in this dimension are as long as this tile in the dimensions
        // before, and have all of the owner's elements in those after.
        let mut first = PartAndBuffer { part: 0, buffer: 0 };
        let (mut lengths, mut before) = ([0; D], 1);
        let mut step = 0;
        for (d, cut) in self.cuts.iter().enumerate() {
            first.part = first.part * cut.part + before * tile[d] * cut.block;
            first.buffer += cut.place(tile[d], common[d].start);
            step = if d == along { before * cut.block } else { step * cut.part };
            lengths[d] = cut.length(tile[d]);
            before *= lengths[d];
        }
        let step = PartAndBuffer { part: step, buffer: self.cuts[along].step() };
        // A strip is one row of elements, or several if neither the tile nor the patch has elements beside them.
        let (mut strip, mut row, mut adjoin) = (1, 0, true);
        let (mut sizes, mut size) = ([0; D], 1);
        for (d, cut) in self.cuts.iter().enumerate().rev() {
            let len = common[d].len();
            first.part += common[d].start * size;
            if adjoin {
                (row, strip) = (d, strip * len);
                let packed = d == 0 || self.cuts[d - 1].width == cut.width * len;
                adjoin = len == lengths[d] && len == cut.range_len() && packed;
            }
            (sizes[d], size) = (size, size * lengths[d]);
        }
        let Some(rows) = (0..row).rev().find(|&d| common[d].len() > 1) else {
            return each(Comb { first, strip, count, step }); // a strip of each tile
        };
        let of_rows = PartAndBuffer { part: sizes[rows], buffer: self.cuts[rows].width };
        let others = std::array::from_fn(|d| if d < rows { common[d].len() } else { 1 });
        for number in 0..count {
            for at in Odometer::new([0; D], [1; D], others) {
                let mut first = first.plus(step.times(number));
                for (d, cut) in self.cuts.iter().enumerate() {
                    first = first.plus(PartAndBuffer { part: sizes[d], buffer: cut.width }.times(at[d]));
                }
                each(Comb { first, strip, count: common[rows].len(), step: of_rows })?;
            }
        }
        Ok(())
    }

    /// Calls `each` with every run and the combs that it consists of, until a call fails. The elements of each of these
    /// combs are adjacent in the part.
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
    /// The number of elements.
    pub fn len(&self) -> usize {
        self.strip * self.count
    }

    /// True if all elements are adjacent in the part.
    fn is_packed(&self) -> bool {
        self.count == 1 || self.step.part == self.strip
    }

    /// True if this is a single strip, and `next` is a single strip that adjoins it in the part and in the buffer.
    fn is_followed_by(&self, next: &Comb) -> bool {
        let end = self.first.plus(PartAndBuffer { part: self.strip, buffer: self.strip });
        self.count == 1 && next.count == 1 && (end.part, end.buffer) == (next.first.part, next.first.buffer)
    }

    /// The number of runs that begin in this comb, if the elements before it end at element `end` of the part.
    pub fn runs_after(&self, end: Option<usize>) -> usize {
        let runs = if self.is_packed() { 1 } else { self.count };
        runs - usize::from(end == Some(self.first.part))
    }

    /// The end of the last strip in the part.
    pub fn end(&self) -> usize {
        self.first.part + (self.count - 1) * self.step.part + self.strip
    }

    /// Calls `each` with pieces of at most `strips` strips, until a call fails.
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

    /// Calls `each` with groups of strips that are adjacent in the part, until a call fails.
    fn try_segments<E>(&self, each: impl FnMut(Comb) -> Result<(), E>) -> Result<(), E> {
        self.try_pieces(if self.is_packed() { self.count } else { 1 }, each)
    }

    /// The number of strips that are best copied at once, with elements of `size` bytes. 1 needs no library buffer. If
    /// it is more, the strips are adjacent in the part.
    #[inline]
    pub fn strips_at_once(&self, size: usize) -> usize {
        let bytes = size * self.strip;
        let is_one_by_one = bytes >= LONG_STRIP || self.count <= FEW_STRIPS || !self.is_packed();
        if is_one_by_one { 1 } else { PIECE / bytes.max(1) }
    }

    /// The position of each strip.
    #[inline]
    pub fn strips(&self) -> impl Iterator<Item = PartAndBuffer> + use<> {
        let Comb { first, count, step, .. } = *self;
        (0..count).map(move |number| first.plus(step.times(number)))
    }

    /// Copies the elements to their places in the buffer. `segment` holds the part from this comb's first element on.
    #[inline]
    pub fn scatter<T: Copy>(&self, segment: &[T], buffer: &mut [T]) {
        copy(segment, self.step.part, &mut buffer[self.first.buffer..], self.step.buffer, self.strip, self.count);
    }

    /// Copies the elements from their places in the buffer to `segment`, which holds the part from this comb's first
    /// element on.
    #[inline]
    pub fn gather<T: Copy>(&self, buffer: &[T], segment: &mut [T]) {
        copy(&buffer[self.first.buffer..], self.step.buffer, segment, self.step.part, self.strip, self.count);
    }
}

impl PartAndBuffer {
    #[inline]
    fn plus(self, other: PartAndBuffer) -> PartAndBuffer {
        PartAndBuffer { part: self.part + other.part, buffer: self.buffer + other.buffer }
    }

    #[inline]
    fn times(self, count: usize) -> PartAndBuffer {
        PartAndBuffer { part: self.part * count, buffer: self.buffer * count }
    }
}

/// Copies `count` strips, at least one. Strips of a few elements are copied without a memcpy call each.
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

/// Calls `copy` with slices that begin at the strips. The loop over chunks is twice as fast as one over indices, which
/// are bounds-checked.
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
