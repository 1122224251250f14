//! The blocks of a section: their bounds, overlaps, and runs of contiguous elements.

use super::Section;
use crate::Error;

/// Bits of a word that marks elements.
const WORD: usize = u64::BITS as usize;

/// Listed blocks that are compared before the result is tested.
const AT_ONCE: usize = 256;

/// The common form of all sections.
pub(super) struct Blocks<'a> {
    pub(super) count: usize,
    pub(super) block: usize,
    pub(super) starts: Starts<'a>,
}

/// The positions of the blocks.
pub(super) enum Starts<'a> {
    Every { offset: usize, stride: usize },
    Listed(&'a [usize]),
}

impl<'a> Section<'a> {
    pub(super) fn blocks(&self) -> Blocks<'a> {
        let (offset, count, block, stride) = match *self {
            Section::Contiguous { offset, len } => (offset, 1, len, 0),
            Section::Strided { offset, count, block, stride } => (offset, count, block, stride),
            Section::Tile { offset, rows, columns, row_length } => (offset, rows, columns, row_length),
            Section::Indexed { offsets, block } => {
                return Blocks { count: offsets.len(), block, starts: Starts::Listed(offsets) };
            }
        };
        // Adjacent blocks count as one. On saturation it is longer than any buffer, and refused for that.
        let (count, block) = if stride == block { (1, count.saturating_mul(block)) } else { (count, block) };
        Blocks { count, block, starts: Starts::Every { offset, stride } }
    }
}

impl Blocks<'_> {
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0 || self.block == 0
    }

    /// The first element of block `i`. Cannot overflow once all blocks are known to be inside a part.
    pub(super) fn start(&self, i: usize) -> usize {
        match self.starts {
            Starts::Every { offset, stride } => offset + i * stride,
            Starts::Listed(offsets) => offsets[i],
        }
    }

    /// A range of elements that is not within the `size` elements of a part, if there is any: the whole stretch of
    /// evenly spaced blocks, or a listed block.
    pub(super) fn outside(&self, size: usize) -> Option<(usize, usize)> {
        let beyond = |&(offset, len): &(usize, usize)| offset > size || len > size - offset;
        match self.starts {
            _ if self.is_empty() => None,
            Starts::Every { offset, stride } => {
                // On saturation it is longer than any part.
                let stretch = stride.saturating_mul(self.count - 1).saturating_add(self.block);
                Some((offset, stretch)).filter(beyond)
            }
            Starts::Listed(offsets) => offsets.iter().map(|&offset| (offset, self.block)).find(beyond),
        }
    }

    /// An element that is in two blocks, if there is one.
    pub(super) fn overlap(&self) -> Option<usize> {
        match self.starts {
            _ if self.is_empty() => None,
            Starts::Every { offset, stride } => {
                // On saturation it is outside any part.
                (self.count > 1 && stride < self.block).then(|| offset.saturating_add(stride))
            }
            Starts::Listed(offsets) => {
                if self.are_ascending(offsets) {
                    return None;
                }
                let (first, last) = (offsets.iter().min()?, offsets.iter().max()?);
                let elements = (last - first).saturating_add(self.block);
                if self.are_apart(offsets, *first, elements) { None } else { self.first_overlap(offsets) }
            }
        }
    }

    /// True if each listed block begins at or after the end of the previous one.
    pub(super) fn are_ascending(&self, offsets: &[usize]) -> bool {
        // Compares without a branch per block, a batch at a time; the first unordered batch ends the search.
        let ascend = |pair: &[usize]| (pair[0] <= pair[1]) & (pair[1].wrapping_sub(pair[0]) >= self.block);
        (0..offsets.len()).step_by(AT_ONCE).all(|start| {
            let some = &offsets[start..offsets.len().min(start + AT_ONCE + 1)];
            some.windows(2).fold(true, |all, pair| all & ascend(pair))
        })
    }

    /// True if no element is in two of the listed blocks, which must be within `elements` elements from `first` on.
    /// Marks a bit for each element, or sorts a copy of the list if it covers few of them.
    pub(super) fn are_apart(&self, offsets: &[usize], first: usize, elements: usize) -> bool {
        let words = elements.div_ceil(WORD);
        if words > offsets.len() {
            return self.first_overlap(offsets).is_none();
        }
        let mut marked = vec![0_u64; words];
        let mut twice = 0;
        let mut mark = |at: usize, marks: u64| {
            let word = &mut marked[at / WORD];
            twice |= *word & marks;
            *word |= marks;
        };
        if self.block == 1 {
            offsets.iter().for_each(|offset| mark(offset - first, 1 << ((offset - first) % WORD)));
            return twice == 0;
        }
        for offset in offsets {
            let (mut at, end) = (offset - first, offset - first + self.block);
            while at < end {
                let bit = at % WORD;
                let len = (WORD - bit).min(end - at);
                mark(at, (u64::MAX >> (WORD - len)) << bit);
                at += len;
            }
        }
        twice == 0
    }

    /// An element that is in two listed blocks, if there is one.
    pub(super) fn first_overlap(&self, offsets: &[usize]) -> Option<usize> {
        let mut ascending = offsets.to_vec();
        ascending.sort_unstable();
        ascending.windows(2).find(|pair| pair[1] - pair[0] < self.block).map(|pair| pair[1])
    }

    /// Packs blocks of `N` elements.
    pub(super) fn gather<const N: usize, T: Copy>(&self, from: &[T], into: &mut [T]) {
        let (into, _) = into.as_chunks_mut::<N>();
        match self.starts {
            Starts::Every { offset, stride } => {
                for (i, to) in into.iter_mut().enumerate().take(self.count) {
                    to.copy_from_slice(&from[offset + i * stride..][..N]);
                }
            }
            Starts::Listed(offsets) => {
                into.iter_mut().zip(offsets).for_each(|(to, &at)| to.copy_from_slice(&from[at..][..N]));
            }
        }
    }

    /// Unpacks blocks of `N` elements.
    pub(super) fn scatter<const N: usize, T: Copy>(&self, packed: &[T], into: &mut [T]) {
        let (packed, _) = packed.as_chunks::<N>();
        match self.starts {
            Starts::Every { offset, stride } => {
                for (i, run) in packed.iter().enumerate().take(self.count) {
                    into[offset + i * stride..][..N].copy_from_slice(run);
                }
            }
            Starts::Listed(offsets) => {
                packed.iter().zip(offsets).for_each(|(run, &at)| into[at..][..N].copy_from_slice(run));
            }
        }
    }

    /// Calls `each` with the first element and the length of every run of adjacent blocks. The blocks must be inside a
    /// part.
    pub(super) fn each_run(&self, mut each: impl FnMut(usize, usize) -> Result<(), Error>) -> Result<(), Error> {
        if self.is_empty() {
            return Ok(());
        }
        let (mut from, mut end) = (self.start(0), self.start(0) + self.block);
        for i in 1..self.count {
            let start = self.start(i);
            if start != end {
                each(from, end - from)?;
                from = start;
            }
            end = start + self.block;
        }
        each(from, end - from)
    }
}
