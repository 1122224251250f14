//! What is not from each to each: neighbours on a grid, and blocks that lie scattered in memory.

use super::described::{Described, What, total};
use super::reduction::Nothing;
use super::signature::{Kind, Signature};
use crate::messages::Error;
use crate::world::World;
use bytemuck::Pod;
use transom_collective::{Grid, all_to_all_v};
use transom_windows::Section;

const NO_MEMORY: &str = "there is no memory for the packed sections of all_to_all_sections";

impl World {
    /// Collective: blocks for the neighbours of a rank on a grid, and as many from them, side by side: of who is before and
    /// after in the first dimension, then in the second, and so on. Where nobody is, at an edge, the block is neither read nor
    /// written. One message to each neighbour.
    ///
    /// # Errors
    /// As [`broadcast`](Self::broadcast); [`Error::Misuse`] if there are not 2 blocks for each dimension, or not as many
    /// ranks on the grid.
    ///
    /// # Examples
    /// Ghost rows of a grid of which each rank has some rows:
    /// ```
    /// use transom::collective::Grid;
    /// transom::threads(3, |world| -> Result<(), transom::Error> {
    ///     let grid = Grid::of(world.size(), [false]).expect("there are ranks");
    ///     let (first, last) = (10 * world.rank(), 10 * world.rank() + 9); // its first and last row
    ///     let mut ghosts = [usize::MAX; 2];
    ///     world.neighbours(&grid, &[first, last], &mut ghosts)?;
    ///     assert_eq!(ghosts, [[usize::MAX, 10], [9, 20], [19, usize::MAX]][world.rank()]);
    ///     Ok(())
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn neighbours<T: Pod, const D: usize>(&self, grid: &Grid<D>, data: &[T], into: &mut [T]) -> Result<(), Error> {
        self.call(self.of_neighbours::<T, D>(grid, data.len(), into.len())?, data, into)
    }

    /// [`all_to_all`](Self::all_to_all) of blocks that lie in sections of memory: the section for each rank in `data`, and that
    /// of each in `into`. What goes is packed, and what comes unpacked, in memory of up to 32 MiB that the world keeps for its next
    /// call. Sections of `into` should not overlap each other: which of two blocks stays is not defined.
    ///
    /// # Errors
    /// As [`broadcast`](Self::broadcast); [`Error::Misuse`] if there is not a section for each rank, one is outside, or has
    /// blocks in `into` that overlap; [`Error::Mismatch`] if a section has not as many elements as the other rank's.
    ///
    /// # Examples
    /// The transpose of a matrix, of which each rank has some rows:
    /// ```
    /// use transom::Section;
    /// transom::threads(2, |world| -> Result<(), transom::Error> {
    ///     let rows = [[0, 1, 2, 3], [10, 11, 12, 13]][world.rank()]; // one row of 4, of 2; to become two rows of 2, of 4
    ///     let mut columns = [0; 4];
    ///     let given: Vec<_> = (0..2).map(|rank| Section::Contiguous { offset: 2 * rank, len: 2 }).collect();
    ///     let taken: Vec<_> = (0..2).map(|rank| Section::Strided { offset: rank, count: 2, block: 1, stride: 2 }).collect();
    ///     world.all_to_all_sections(&rows, &given, &mut columns, &taken)?;
    ///     assert_eq!(columns, [[0, 10, 1, 11], [2, 12, 3, 13]][world.rank()]);
    ///     Ok(())
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn all_to_all_sections<T: Pod>(
        &self,
        data: &[T],
        given: &[Section<'_>],
        into: &mut [T],
        taken: &[Section<'_>],
    ) -> Result<(), Error> {
        self.check_elements::<T>()?;
        let ranks = self.size();
        if (given.len(), taken.len()) != (ranks, ranks) {
            let (given, taken) = (given.len(), taken.len());
            return self
                .refuse(format!("all_to_all_sections among {ranks} ranks was given {given} and {taken} sections"));
        }
        // What cannot be read or written is found out before anything goes.
        let fits = |section: &Section<'_>| section.is_within(into.len()) && !section.overlaps();
        if !(given.iter().all(|section| section.is_within(data.len())) && taken.iter().all(fits)) {
            let (elements, room) = (data.len(), into.len());
            return self.refuse(format!(
                "sections of all_to_all_sections are outside of {elements} elements, or of room for {room}, or overlap \
                 themselves there"
            ));
        }
        let lengths = |sections: &[Section<'_>]| sections.iter().map(Section::len).collect::<Vec<_>>();
        let (to_each, of_each) = (lengths(given), lengths(taken));
        if to_each[self.rank()] != of_each[self.rank()] {
            let (mine, room) = (to_each[self.rank()], of_each[self.rank()]);
            return self.refuse(format!(
                "all_to_all_sections was given {mine} elements for this rank itself, and room for {room}"
            ));
        }
        let (Some(gone), Some(come)) = (total(&to_each), total(&of_each)) else { return self.refuse(NO_MEMORY.into()) };
        let signature = Signature::of::<T>(Kind::AllToAllSections, 0);
        let what = What::Planned(all_to_all_v(self.rank(), &to_each, &of_each));
        let called = self.collectives().scratch.with([gone, come], |packed: &mut [T], came: &mut [T]| {
            let mut rest = &mut *packed;
            for section in given {
                let (block, after) = rest.split_at_mut(section.len());
                rest = after;
                section.pack_into(data, block).expect("the section is within the data");
            }
            self.call(Described { signature, what, fold: Nothing }, packed, came)?;
            let mut rest = &*came;
            for section in taken {
                let (block, after) = rest.split_at(section.len());
                rest = after;
                section.unpack(block, into).expect("the section is within the room, and does not overlap");
            }
            Ok(())
        });
        called.unwrap_or_else(|| self.refuse(NO_MEMORY.into()))
    }
}
