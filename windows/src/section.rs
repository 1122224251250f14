//! Sections: many pieces of a target's part, moved by one call.

mod blocks;

use crate::{Atomic, Error, Fabric, Op, Target};
use blocks::{Blocks, Starts};
use bytemuck::Pod;
use std::ops::Range;

/// The elements of a target's part that a [`put_section`](Target::put_section) or [`get_section`](Target::get_section)
/// moves: blocks of one length. The caller's buffer holds them packed, block after block in the order of the section.
/// All numbers are in elements. A section without elements moves nothing, wherever it lies. All variants but `Indexed`,
/// which borrows its list, are `Section<'static>`, so a function that makes one may return it.
///
/// A put refuses overlapping blocks ([`Error::SectionOverlap`]), because a fabric may complete puts in any order. A get
/// may read an element repeatedly.
///
/// # Examples
/// ```
/// // In `transom`: `let mut window = world.allocate::<u64>(64)?;`
/// # let fabric = transom_shm_loopback::Loopback::alone()?;
/// # let mut window = transom_windows::Window::<u64, _>::allocate(&fabric, 0, 64)?;
/// use transom_windows::Section;
/// let epoch = window.lock_exclusive(0)?; // a matrix of 8 rows and 8 columns
/// let tile = Section::Tile { offset: 8 + 2, rows: 2, columns: 3, row_length: 8 }; // from row 1, column 2 on
/// epoch.put_section(&tile, &[1, 2, 3, 4, 5, 6])?;
/// let mut column = [9; 4];
/// epoch.get_section(&Section::Strided { offset: 3, count: 4, block: 1, stride: 8 }, &mut column)?;
/// assert_eq!(column, [0, 2, 5, 0]);
/// epoch.unlock()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Section<'a> {
    /// Adjacent elements, as in a plain put or get.
    Contiguous {
        /// The first element.
        offset: usize,
        /// The number of elements.
        len: usize,
    },
    /// Blocks at equal distances: a column of a matrix, one field of many records.
    Strided {
        /// The first element.
        offset: usize,
        /// The number of blocks.
        count: usize,
        /// Elements per block.
        block: usize,
        /// The distance from the first element of a block to that of the next.
        stride: usize,
    },
    /// A rectangle of an array that is stored row after row. The call does not know where the array's rows begin: a
    /// tile that crosses the end of a row goes on in the next.
    Tile {
        /// The tile's first element, counted from the beginning of the target's part: `row * row_length + column` if
        /// the array begins there.
        offset: usize,
        /// Rows of the tile.
        rows: usize,
        /// Columns of the tile.
        columns: usize,
        /// Elements in a row of the array.
        row_length: usize,
    },
    /// Blocks anywhere, in any order: gather and scatter.
    Indexed {
        /// The first element of each block.
        offsets: &'a [usize],
        /// Elements per block.
        block: usize,
    },
}

impl<'a> Section<'a> {
    /// The number of elements, and so the length of the caller's buffer. `usize::MAX`, which no buffer has, on
    /// overflow.
    ///
    /// # Examples
    /// ```
    /// use transom_windows::Section;
    /// assert_eq!(Section::Indexed { offsets: &[7, 0, 3], block: 2 }.len(), 6);
    /// assert_eq!(Section::Tile { offset: 5, rows: usize::MAX, columns: 2, row_length: 0 }.len(), usize::MAX);
    /// ```
    pub fn len(&self) -> usize {
        let Blocks { count, block, .. } = self.blocks();
        count.saturating_mul(block)
    }

    /// Returns whether it has no elements.
    ///
    /// # Examples
    /// ```
    /// use transom_windows::Section;
    /// assert!(Section::Strided { offset: 0, count: 9, block: 0, stride: 4 }.is_empty());
    /// ```
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// True if the whole section is within the first `elements` elements.
    ///
    /// # Examples
    /// ```
    /// use transom_windows::Section;
    /// let tile = Section::Tile { offset: 2, rows: 2, columns: 3, row_length: 5 };
    /// assert_eq!((tile.is_within(10), tile.is_within(9)), (true, false));
    /// ```
    pub fn is_within(&self, elements: usize) -> bool {
        let blocks = self.blocks();
        match blocks.starts {
            Starts::Listed(offsets) if !blocks.is_empty() => {
                let last = elements.checked_sub(blocks.block);
                last.is_some_and(|last| offsets.iter().all(|offset| *offset <= last))
            }
            _ => blocks.outside(elements).is_none(),
        }
    }

    /// True if the section can write to a slice of `elements` elements: it [is within](Self::is_within) the slice, and
    /// no two blocks [overlap](Self::overlaps).
    #[doc(hidden)]
    pub fn can_be_written(&self, elements: usize) -> bool {
        let blocks = self.blocks();
        match blocks.starts {
            Starts::Listed(offsets) if !blocks.is_empty() => {
                // The last block of an ascending list is the farthest.
                let last = elements.checked_sub(blocks.block);
                if blocks.are_ascending(offsets) {
                    return last.zip(offsets.last()).is_some_and(|(last, offset)| *offset <= last);
                }
                self.is_within(elements) && blocks.are_apart(offsets, 0, elements)
            }
            _ => self.is_within(elements) && !self.overlaps(),
        }
    }

    /// True if an element is in two of its blocks. The section must be [within](Self::is_within) the existing elements.
    ///
    /// # Examples
    /// ```
    /// use transom_windows::Section;
    /// assert!(Section::Indexed { offsets: &[9, 8], block: 2 }.overlaps());
    /// ```
    pub fn overlaps(&self) -> bool {
        self.blocks().overlap().is_some()
    }

    /// Packs the section of a slice; `None` if any element is outside.
    ///
    /// # Examples
    /// ```
    /// use transom_windows::Section;
    /// let column = Section::Strided { offset: 1, count: 3, block: 1, stride: 2 };
    /// assert_eq!(column.pack(&[0, 1, 2, 3, 4, 5]), Some(vec![1, 3, 5]));
    /// assert_eq!(column.pack(&[0, 1, 2, 3, 4]), None);
    /// ```
    pub fn pack<T: Copy>(&self, from: &[T]) -> Option<Vec<T>> {
        let blocks = self.blocks();
        if !self.is_within(from.len()) {
            return None;
        }
        let mut packed = Vec::with_capacity(self.len());
        let run = |offset: usize, len: usize| {
            packed.extend_from_slice(&from[offset..offset + len]);
            Ok(())
        };
        blocks.each_run(run).ok().map(|()| packed)
    }

    /// [`pack`](Self::pack) into the caller's buffer. Returns `None`, and writes nothing, if part of the section is
    /// outside or `into` has another length.
    ///
    /// # Examples
    /// ```
    /// use transom_windows::Section;
    /// let column = Section::Strided { offset: 1, count: 3, block: 1, stride: 2 };
    /// let mut packed = [0; 3];
    /// assert_eq!(column.pack_into(&[0, 1, 2, 3, 4, 5], &mut packed), Some(()));
    /// assert_eq!(packed, [1, 3, 5]);
    /// assert_eq!(column.pack_into(&[0, 1, 2, 3, 4, 5], &mut packed[..2]), None);
    /// ```
    pub fn pack_into<T: Copy>(&self, from: &[T], into: &mut [T]) -> Option<()> {
        let fits = into.len() == self.len() && self.is_within(from.len());
        fits.then(|| self.gather(from, into))
    }

    /// Writes packed elements to the section of a slice. Returns `None`, and writes nothing, if part of the section is
    /// outside, blocks overlap, or `packed` has another length.
    ///
    /// # Examples
    /// ```
    /// use transom_windows::Section;
    /// let mut matrix = [0; 6];
    /// Section::Strided { offset: 1, count: 3, block: 1, stride: 2 }.unpack(&[1, 3, 5], &mut matrix).unwrap();
    /// assert_eq!(matrix, [0, 1, 0, 3, 0, 5]);
    /// ```
    pub fn unpack<T: Copy>(&self, packed: &[T], into: &mut [T]) -> Option<()> {
        let fits = packed.len() == self.len() && self.can_be_written(into.len());
        fits.then(|| self.scatter(packed, into))
    }

    /// The section as a range, if its elements are adjacent and a look at each block is not needed to tell.
    #[doc(hidden)]
    pub fn range(&self) -> Option<Range<usize>> {
        let blocks = self.blocks();
        match blocks {
            _ if blocks.is_empty() => Some(0..0),
            Blocks { count: 1, block, .. } => Some(blocks.start(0)..blocks.start(0) + block),
            _ => None,
        }
    }

    /// The list of [`Section::Indexed`]; empty for other variants.
    #[doc(hidden)]
    pub fn list(&self) -> &'a [usize] {
        match self {
            Section::Indexed { offsets, .. } => offsets,
            _ => &[],
        }
    }

    /// The same section with another list; other variants are unchanged.
    #[doc(hidden)]
    pub fn with_list<'b>(&self, offsets: &'b [usize]) -> Section<'b> {
        match *self {
            Section::Contiguous { offset, len } => Section::Contiguous { offset, len },
            Section::Strided { offset, count, block, stride } => Section::Strided { offset, count, block, stride },
            Section::Tile { offset, rows, columns, row_length } => Section::Tile { offset, rows, columns, row_length },
            Section::Indexed { block, .. } => Section::Indexed { offsets, block },
        }
    }

    /// Packs a section that the caller has checked.
    ///
    /// # Panics
    /// If some of the section is outside.
    #[doc(hidden)]
    pub fn gather<T: Copy>(&self, from: &[T], into: &mut [T]) {
        let blocks = self.blocks();
        match blocks.block {
            1 => blocks.gather::<1, T>(from, into),
            2 => blocks.gather::<2, T>(from, into),
            3 => blocks.gather::<3, T>(from, into),
            4 => blocks.gather::<4, T>(from, into),
            _ => {
                let mut rest = into;
                let _ = blocks.each_run(|offset, len| {
                    let (run, after) = std::mem::take(&mut rest).split_at_mut(len);
                    rest = after;
                    run.copy_from_slice(&from[offset..offset + len]);
                    Ok(())
                });
            }
        }
    }

    /// Unpacks a section that the caller has checked.
    ///
    /// # Panics
    /// If some of the section is outside.
    #[doc(hidden)]
    pub fn scatter<T: Copy>(&self, packed: &[T], into: &mut [T]) {
        let blocks = self.blocks();
        match blocks.block {
            1 => blocks.scatter::<1, T>(packed, into),
            2 => blocks.scatter::<2, T>(packed, into),
            3 => blocks.scatter::<3, T>(packed, into),
            4 => blocks.scatter::<4, T>(packed, into),
            _ => {
                let mut rest = packed;
                let _ = blocks.each_run(|offset, len| {
                    let (run, after) = rest.split_at(len);
                    rest = after;
                    into[offset..offset + len].copy_from_slice(run);
                    Ok(())
                });
            }
        }
    }
}

impl<T: Pod, F: Fabric> Target<'_, T, F> {
    /// [`put`](Self::put) of every block of a section, from the packed `source`. The whole section is checked before
    /// the first byte moves. Costs 1 write per run of adjacent blocks. Blocks listed ([`Section::Indexed`]) out of
    /// ascending order cost memory for the check too: a bit for each element from the first to the last, or a sorted
    /// copy of the list.
    ///
    /// # Errors
    /// [`Error::BufferLength`], [`Error::OutOfBounds`], [`Error::SectionOverlap`]: no element was put.
    /// [`Error::Fabric`]: some blocks may have been put.
    ///
    /// # Examples
    /// ```
    /// # let fabric = transom_shm_loopback::Loopback::alone()?;
    /// # let mut window = transom_windows::Window::<u64, _>::allocate(&fabric, 0, 64)?;
    /// use transom_windows::{Error, Section};
    /// let epoch = window.lock_exclusive(0)?;
    /// epoch.put_section(&Section::Indexed { offsets: &[9, 2], block: 2 }, &[1, 2, 3, 4])?;
    /// let twice = epoch.put_section(&Section::Indexed { offsets: &[9, 8], block: 2 }, &[1, 2, 3, 4]);
    /// assert!(matches!(twice, Err(Error::SectionOverlap { offset: 9, .. })));
    /// epoch.unlock()?;
    /// assert_eq!(window.local().read(2, 9)?, [3, 4, 0, 0, 0, 0, 0, 1, 2]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn put_section(&self, section: &Section<'_>, source: &[T]) -> Result<(), Error> {
        let blocks = section.blocks();
        self.check(section, &blocks, source.len())?;
        if let Some(offset) = blocks.overlap() {
            return Err(Error::SectionOverlap { window: self.core.id, rank: self.rank(), offset });
        }
        let mut rest = source;
        blocks.each_run(|offset, len| {
            let (run, after) = rest.split_at(len); // the runs add up to the section's length
            rest = after;
            self.put(offset, run)
        })
    }

    /// [`get`](Self::get) of every block of a section, packed into `into`. The whole section is checked before the
    /// first byte moves. Costs 1 read per run of adjacent blocks.
    ///
    /// # Errors
    /// [`Error::BufferLength`], [`Error::OutOfBounds`]: `into` is unchanged. [`Error::Fabric`]: parts of it may have
    /// changed.
    ///
    /// # Examples
    /// ```
    /// # let fabric = transom_shm_loopback::Loopback::alone()?;
    /// # let mut window = transom_windows::Window::<u64, _>::allocate(&fabric, 0, 64)?;
    /// use transom_windows::{Error, Section};
    /// window.local().write(0, &[0, 10, 20, 30])?;
    /// let epoch = window.lock_shared(0)?;
    /// let pairs = Section::Strided { offset: 0, count: 3, block: 2, stride: 1 }; // a get may overlap
    /// let mut got = [0; 6];
    /// epoch.get_section(&pairs, &mut got)?;
    /// assert_eq!(got, [0, 10, 10, 20, 20, 30]);
    /// let short = epoch.get_section(&pairs, &mut got[..5]);
    /// assert!(matches!(short, Err(Error::BufferLength { needed: 6, buffer: 5, .. })));
    /// epoch.unlock()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn get_section(&self, section: &Section<'_>, into: &mut [T]) -> Result<(), Error> {
        let blocks = section.blocks();
        self.check(section, &blocks, into.len())?;
        let mut rest = into;
        blocks.each_run(|offset, len| {
            let (run, after) = std::mem::take(&mut rest).split_at_mut(len);
            rest = after;
            self.get(offset, run)
        })
    }

    /// [`accumulate`](Self::accumulate) to every block of a section, with packed `operands`. Blocks may overlap. The
    /// whole section is checked first. Costs as much as `accumulate` for each run of adjacent blocks. Single words cost
    /// less where memory is shared, since the next address is known while one word is changed.
    ///
    /// # Errors
    /// [`Error::BufferLength`], [`Error::OutOfBounds`], [`Error::Operation`]: no element was changed.
    /// [`Error::Fabric`]: some elements may have been changed.
    ///
    /// # Examples
    /// ```
    /// # let fabric = transom_shm_loopback::Loopback::alone()?;
    /// # let mut window = transom_windows::Window::<u64, _>::allocate(&fabric, 0, 64)?;
    /// use transom_windows::{Op, Section};
    /// let epoch = window.lock_shared(0)?;
    /// let bins = Section::Indexed { offsets: &[7, 0, 7], block: 1 };
    /// epoch.accumulate_section(&bins, Op::Sum, &[1, 10, 100])?;
    /// let mut before = [0; 3];
    /// epoch.get_accumulate_section(&bins, Op::Max, &[50, 50, 500], &mut before)?;
    /// assert_eq!((before, epoch.get_one(7)?), ([101, 10, 101], 500));
    /// # Ok::<(), transom_windows::Error>(())
    /// ```
    pub fn accumulate_section(&self, section: &Section<'_>, op: Op, operands: &[T]) -> Result<(), Error>
    where
        T: Atomic,
    {
        let blocks = section.blocks();
        self.check(section, &blocks, operands.len())?;
        if let Blocks { block: 1, starts: Starts::Listed(offsets), .. } = blocks
            && self.accumulate_each(offsets, op, operands)?
        {
            return Ok(());
        }
        let mut rest = operands;
        blocks.each_run(|offset, len| {
            let (run, after) = rest.split_at(len);
            rest = after;
            self.accumulate(offset, op, run)
        })
    }

    /// [`accumulate_section`](Self::accumulate_section) that also writes each element's previous value to `results`,
    /// packed.
    ///
    /// # Errors
    /// The errors of `accumulate_section`.
    ///
    /// # Examples
    /// See `accumulate_section`.
    pub fn get_accumulate_section(
        &self,
        section: &Section<'_>,
        op: Op,
        operands: &[T],
        results: &mut [T],
    ) -> Result<(), Error>
    where
        T: Atomic,
    {
        let blocks = section.blocks();
        self.check(section, &blocks, operands.len())?;
        self.check(section, &blocks, results.len())?;
        let (mut rest, mut into) = (operands, results);
        blocks.each_run(|offset, len| {
            let ((run, after), (here, behind)) = (rest.split_at(len), std::mem::take(&mut into).split_at_mut(len));
            (rest, into) = (after, behind);
            self.get_accumulate(offset, op, run, here)
        })
    }

    /// Checks that the buffer is as long as the section, and that the section is inside the target's part.
    fn check(&self, section: &Section<'_>, blocks: &Blocks<'_>, buffer: usize) -> Result<(), Error> {
        let (window, rank, size) = (self.core.id, self.rank(), self.len());
        if section.len() != buffer {
            return Err(Error::BufferLength { window, rank, needed: section.len(), buffer });
        }
        match blocks.outside(size) {
            Some((offset, len)) => Err(Error::OutOfBounds { window, rank, offset, len, size }),
            None => Ok(()),
        }
    }
}
