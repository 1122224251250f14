//! All-to-all of blocks that are described by sections of memory.

use super::call_desc::{Described, Of, PlanSource};
use super::reduction::Fold;
use super::signature::{Kind, Signature};
use crate::messages::Error;
use crate::world::World;
use bytemuck::Pod;
use std::marker::PhantomData;
use std::sync::Arc;
use transom_collective::{Layout, Order, Rank, all_to_all_sections};
use transom_windows::{Element, Section};

impl World {
    /// Collective: an [`all_to_all`](Self::all_to_all) of blocks that are sections of memory.
    ///
    /// Rank `i` sends the elements of `data` in section `given[j]` to rank `j`, which receives them in its section
    /// `taken[i]` of `into`. All other elements of `into` are unchanged.
    ///
    /// A contiguous block is sent from its place and received into its place. Other blocks are packed and unpacked in
    /// scratch memory, of which the rank retains up to 32 MiB for later collectives. Sections of `into` should not
    /// overlap each other: the final content of shared elements is unspecified.
    ///
    /// # Errors
    /// Same as [`broadcast`](Self::broadcast); [`Error::Misuse`] if there is not one section per rank, a section is out
    /// of bounds, or a section of `into` overlaps itself; [`Error::Mismatch`] if a section has a different number of
    /// elements than that of the other rank.
    ///
    /// # Examples
    /// The transpose of a matrix that is distributed by rows:
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
    pub fn all_to_all_sections<T: Element>(
        &self,
        data: &[T],
        given: &[Section<'_>],
        into: &mut [T],
        taken: &[Section<'_>],
    ) -> Result<(), Error> {
        self.call(self.of_all_to_all_sections::<T>(data.len(), given, into.len(), taken)?, data, into)
    }

    /// Describes the call for `data` elements that this rank passes and room for `into` elements.
    pub(super) fn of_all_to_all_sections<'a, T: Pod>(
        &self,
        data: usize,
        given: &'a [Section<'a>],
        into: usize,
        taken: &'a [Section<'a>],
    ) -> Of<Sections<&'a [Section<'a>], T>> {
        self.check_elements::<T>()?;
        let (rank, ranks) = (self.rank(), self.size());
        for (argument, sections) in [("given", given), ("taken", taken)] {
            let many = sections.len();
            if many != ranks {
                return self.refuse(format!(
                    "all_to_all_sections: `{argument}` has {many} sections, expected {ranks}, one for each rank"
                ));
            }
        }
        let outside = |argument: &str, of: Rank, buffer: &str, len: usize| {
            self.refuse(format!(
                "all_to_all_sections: `{argument}[{of}]` is outside of `{buffer}`, which has {len} elements"
            ))
        };
        if let Some(to) = given.iter().position(|section| !section.is_within(data)) {
            return outside("given", to, "data", data);
        }
        if let Some(from) = taken.iter().position(|section| !section.can_be_written(into)) {
            return match taken[from].is_within(into) {
                true => self.refuse(format!("all_to_all_sections: blocks of `taken[{from}]` overlap each other")),
                false => outside("taken", from, "into", into),
            };
        }
        let (mine, room) = (given[rank].len(), taken[rank].len());
        if mine != room {
            return self.refuse(format!(
                "all_to_all_sections: `given[{rank}]`, the block of this rank itself, has {mine} elements, but \
                 `taken[{rank}]` has {room}"
            ));
        }
        let mut lens = given.iter().chain(taken).map(Section::len);
        if lens.try_fold(0_usize, usize::checked_add).is_none() {
            return self.refuse("all_to_all_sections: the sections have more elements than there can be".into());
        }
        let (to_each, mut of_each) = (lies(given), lies(taken));
        if share_elements(&of_each) {
            of_each = taken.iter().map(|section| Layout::Apart(section.len())).collect();
        }
        let plan = all_to_all_sections(rank, (data, &to_each), (into, &of_each));
        let fold = Sections { given, taken, element: PhantomData };
        Ok(Described {
            signature: Signature::of::<T>(Kind::AllToAllSections, 0),
            what: PlanSource::Planned(plan),
            fold,
        })
    }
}

/// Packs and unpacks the blocks of a call.
pub(super) struct Sections<S, T> {
    given: S,
    taken: S,
    element: PhantomData<fn(T) -> T>,
}

/// The sections of all ranks.
pub(super) trait OfRanks: Send + Sync {
    fn section(&self, rank: Rank) -> Section<'_>;
}

impl OfRanks for &[Section<'_>] {
    fn section(&self, rank: Rank) -> Section<'_> {
        self[rank]
    }
}

/// A section with an owned copy of its index list, empty if it has none.
pub(super) struct Owned {
    without_list: Section<'static>,
    list: Box<[usize]>,
}

impl OfRanks for Arc<[Owned]> {
    fn section(&self, rank: Rank) -> Section<'_> {
        self[rank].without_list.with_list(&self[rank].list)
    }
}

impl<T> Described<Sections<&[Section<'_>], T>> {
    /// Copies the index lists, for a call that outlives the caller's borrow.
    pub fn owned(self) -> Described<Sections<Arc<[Owned]>, T>> {
        let Described { signature, what, fold: Sections { given, taken, element } } = self;
        let owned = |sections: &[Section<'_>]| {
            let owned =
                |section: &Section<'_>| Owned { without_list: section.with_list(&[]), list: section.list().into() };
            sections.iter().map(owned).collect()
        };
        Described { signature, what, fold: Sections { given: owned(given), taken: owned(taken), element } }
    }
}

impl<S: Clone, T> Clone for Sections<S, T> {
    fn clone(&self) -> Self {
        Sections { given: self.given.clone(), taken: self.taken.clone(), element: PhantomData }
    }
}

impl<S: OfRanks, T: Pod> Fold for Sections<S, T> {
    fn fold(&self, _: &mut [u8], _: &[u8], _: Order) {
        unreachable!("sections are not folded");
    }

    fn pack(&self, to: Rank, given: &[u8], packed: &mut [u8]) {
        let (given, packed) = (bytemuck::cast_slice::<_, T>(given), bytemuck::cast_slice_mut(packed));
        self.given.section(to).gather(given, packed);
    }

    fn unpack(&self, from: Rank, packed: &[u8], into: &mut [u8]) {
        let (packed, into) = (bytemuck::cast_slice::<_, T>(packed), bytemuck::cast_slice_mut(into));
        self.taken.section(from).scatter(packed, into);
    }
}

fn lies(sections: &[Section<'_>]) -> Vec<Layout> {
    let lie = |section: &Section<'_>| section.range().map_or_else(|| Layout::Apart(section.len()), Layout::Together);
    sections.iter().map(lie).collect()
}

/// True if two contiguous blocks share an element. Such blocks cannot both be received in place.
fn share_elements(lies: &[Layout]) -> bool {
    let together = || {
        lies.iter().filter_map(|lie| match lie {
            Layout::Together(range) if !range.is_empty() => Some((range.start, range.end)),
            _ => None,
        })
    };
    // Fast path: blocks are usually sorted in rank order.
    let mut end = 0;
    if together().all(|block| std::mem::replace(&mut end, block.1) <= block.0) {
        return false;
    }
    let mut together: Vec<_> = together().collect();
    together.sort_unstable();
    together.windows(2).any(|pair| pair[1].0 < pair[0].1)
}
