//! Transfer of patches between the caller's buffer and their owners' parts.
//!
//! Elements of a run that are not adjacent in the caller's buffer go through a library buffer. In memory that this
//! processor does not reach, each run is one remote operation, so the buffer is as long as the run. Where memory is
//! shared, more copies are not more remote operations. There the buffer holds pieces of a run that stay in the L1
//! cache, or long strips are copied one by one without it.

use super::combs::Comb;
use super::patch::Patch;
use super::reach::{INSIDE, Reach};
use super::share::Share;
use crate::Error;
use bytemuck::Pod;
use transom_locks::Rank;

/// In shared memory, this many bytes of the caller's buffer are copied for all owners before the next are. They
/// stay in the L1 cache until the last owner's elements are copied, together with as many bytes of the window.
const LAP: usize = 16 << 10;

/// Reads a patch whose owners can all be accessed; `into` is as long as the patch.
#[inline]
pub(super) fn get<T, E, const D: usize>(patch: &Patch<'_, D>, through: &E, into: &mut [T]) -> Result<(), Error>
where
    T: Pod,
    E: Reach<Element = T>,
{
    let mut scratch = Vec::new();
    try_shares(patch, through, |share, begin| {
        let into = &mut into[begin..];
        if !through.is_shared(share.owner) {
            return share.try_runs(|run, combs| {
                through.count_reads(1);
                if let [Comb { first, strip, count: 1, .. }] = combs {
                    return through.copy_from(INSIDE, share.owner, run.start, &mut into[first.buffer..][..*strip]);
                }
                let copy = first_of(&mut scratch, run.len());
                through.copy_from(INSIDE, share.owner, run.start, copy)?;
                combs.iter().for_each(|comb| comb.scatter(&copy[comb.first.part - run.start..], into));
                Ok(())
            });
        }
        let mut end = None;
        share.try_combs(|comb| {
            // The first lap has elements of every run.
            if begin == 0 {
                through.count_reads(comb.runs_after(end.replace(comb.end())));
            }
            let strips = comb.strips_at_once(size_of::<T>());
            if strips == 1 {
                let mut places = comb.strips();
                return places.try_for_each(|at| {
                    through.copy_from(INSIDE, share.owner, at.part, &mut into[at.buffer..][..comb.strip])
                });
            }
            comb.try_pieces(strips, |piece| {
                let copy = first_of(&mut scratch, piece.len());
                through.copy_from(INSIDE, share.owner, piece.first.part, copy)?;
                piece.scatter(copy, into);
                Ok(())
            })
        })
    })
}

/// Writes a patch whose owners can all be accessed; `source` is as long as the patch.
#[inline]
pub(super) fn put<T, E, const D: usize>(patch: &Patch<'_, D>, through: &E, source: &[T]) -> Result<(), Error>
where
    T: Pod,
    E: Reach<Element = T>,
{
    let mut scratch = Vec::new();
    try_shares(patch, through, |share, begin| {
        let source = &source[begin..];
        if !through.is_shared(share.owner) {
            return try_runs_of(share, source, &mut scratch, |offset, elements| {
                through.count_writes(1);
                through.copy_to(INSIDE, share.owner, offset, elements)
            });
        }
        let mut end = None;
        share.try_combs(|comb| {
            if begin == 0 {
                through.count_writes(comb.runs_after(end.replace(comb.end())));
            }
            let strips = comb.strips_at_once(size_of::<T>());
            if strips == 1 {
                let mut places = comb.strips();
                return places.try_for_each(|at| {
                    through.copy_to(INSIDE, share.owner, at.part, &source[at.buffer..][..comb.strip])
                });
            }
            comb.try_pieces(strips, |piece| {
                let copy = first_of(&mut scratch, piece.len());
                piece.gather(source, copy);
                through.copy_to(INSIDE, share.owner, piece.first.part, copy)
            })
        })
    })
}

/// Calls `each` for every run, with the owner, the run's beginning in the owner's part, and its elements from `source`,
/// until a call fails.
pub(super) fn try_runs<T: Pod, const D: usize>(
    patch: &Patch<'_, D>,
    source: &[T],
    each: impl Fn(Rank, usize, &[T]) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut scratch = Vec::new();
    let mut shares = patch.shares();
    shares.try_for_each(|share| {
        try_runs_of(&share, source, &mut scratch, |offset, elements| each(share.owner, offset, elements))
    })
}

fn try_runs_of<T: Pod, const D: usize>(
    share: &Share<D>,
    source: &[T],
    scratch: &mut Vec<T>,
    each: impl Fn(usize, &[T]) -> Result<(), Error>,
) -> Result<(), Error> {
    share.try_runs(|run, combs| {
        if let [Comb { first, strip, count: 1, .. }] = combs {
            return each(run.start, &source[first.buffer..][..*strip]);
        }
        let copy = first_of(scratch, run.len());
        combs.iter().for_each(|comb| comb.gather(source, &mut copy[comb.first.part - run.start..]));
        each(run.start, copy)
    })
}

/// [`try_runs`] with results: those of each run go to the places of its elements in `into`.
pub(super) fn try_runs_into<T: Pod, const D: usize>(
    patch: &Patch<'_, D>,
    source: &[T],
    into: &mut [T],
    each: impl Fn(Rank, usize, &[T], &mut [T]) -> Result<(), Error>,
) -> Result<(), Error> {
    let (mut operands, mut results) = (Vec::new(), Vec::new());
    patch.shares().try_for_each(|share| {
        share.try_runs(|run, combs| {
            let operands = first_of(&mut operands, run.len());
            let results = first_of(&mut results, run.len());
            combs.iter().for_each(|comb| comb.gather(source, &mut operands[comb.first.part - run.start..]));
            each(share.owner, run.start, operands, results)?;
            combs.iter().for_each(|comb| comb.scatter(&results[comb.first.part - run.start..], into));
            Ok(())
        })
    })
}

/// Calls `each` with each owner's share of a patch, or of one lap of it after another, and with the beginning of that
/// patch or lap in the buffer, until a call fails.
#[inline]
fn try_shares<T, E, const D: usize>(
    patch: &Patch<'_, D>,
    through: &E,
    mut each: impl FnMut(&Share<D>, usize) -> Result<(), Error>,
) -> Result<(), Error>
where
    T: Pod,
    E: Reach<Element = T>,
{
    let lap = LAP / size_of::<T>().max(1);
    if D > 1 || patch.len() <= lap || !patch.owners().all(|owner| through.is_shared(owner)) {
        return patch.shares().try_for_each(|share| each(&share, 0));
    }
    patch.laps(lap).try_for_each(|(begin, lap)| lap.shares().try_for_each(|share| each(&share, begin)))
}

/// The first `len` elements of a vector, which grows if needed.
fn first_of<T: Pod>(vector: &mut Vec<T>, len: usize) -> &mut [T] {
    if vector.len() < len {
        vector.resize(len, T::zeroed());
    }
    &mut vector[..len]
}

#[cfg(test)]
mod tests {
    use super::super::layout::{Distribution, Layout};
    use super::super::reach::sealed;
    use super::*;
    use std::cell::{Cell, RefCell};
    use std::ops::Range;

    /// The parts of all ranks, in memory that this processor reaches or does not reach, with the numbers of counted
    /// operations and of copies.
    struct Parts {
        parts: RefCell<Vec<Vec<u32>>>,
        is_shared: bool,
        counted: Cell<usize>,
        copies: Cell<usize>,
    }

    impl Reach for Parts {}

    impl sealed::Reach for Parts {
        type Element = u32;

        fn reaches(&self, _: Rank) -> bool {
            true
        }

        fn reached(&self) -> Vec<Rank> {
            (0..self.parts.borrow().len()).collect()
        }

        fn is_shared(&self, _: Rank) -> bool {
            self.is_shared
        }

        fn count_reads(&self, operations: usize) {
            self.counted.set(self.counted.get() + operations);
        }

        fn count_writes(&self, operations: usize) {
            self.counted.set(self.counted.get() + operations);
        }

        fn copy_from(&self, _: sealed::Inside, owner: Rank, offset: usize, into: &mut [u32]) -> Result<(), Error> {
            self.copies.set(self.copies.get() + 1);
            into.copy_from_slice(&self.parts.borrow()[owner][offset..][..into.len()]);
            Ok(())
        }

        fn copy_to(&self, _: sealed::Inside, owner: Rank, offset: usize, source: &[u32]) -> Result<(), Error> {
            self.copies.set(self.copies.get() + 1);
            self.parts.borrow_mut()[owner][offset..][..source.len()].copy_from_slice(source);
            Ok(())
        }
    }

    /// Puts and gets a patch of an array in which every element is its row-major number, and checks each element.
    fn check<const D: usize>(layout: &Layout<D>, ranges: [Range<usize>; D], is_shared: bool) {
        let what = format!("{ranges:?} of {:?} in {:?} on {:?}", layout.shape(), layout.block(), layout.grid());
        let index = |number: usize| layout.numbered(number).expect("the number is that of an element");
        let is_inside = |number: &usize| (0..D).all(|d| ranges[d].contains(&index(*number)[d]));
        let numbers: Vec<usize> = (0..layout.len()).filter(is_inside).collect();
        let parts = || (0..layout.ranks()).map(|rank| vec![0; layout.part_len(rank)]).collect::<Vec<_>>();
        let through = Parts { parts: RefCell::new(parts()), is_shared, counted: Cell::new(0), copies: Cell::new(0) };
        let patch = Patch::new(layout, &ranges).expect("inside");
        let runs = layout.runs(ranges.clone()).expect("inside").count();

        let source: Vec<u32> = numbers.iter().map(|&number| number as u32 + 1).collect();
        put(&patch, &through, &source).expect("every part of the patch is reachable");
        let mut expected = parts();
        for &number in &numbers {
            let (owner, offset) = layout.locate(index(number)).expect("inside");
            expected[owner][offset] = number as u32 + 1;
        }
        assert_eq!(*through.parts.borrow(), expected, "{what}");
        assert_eq!(through.counted.replace(0), runs, "{what}");
        // One copy is one operation where memory is remote.
        assert!(is_shared || through.copies.replace(0) == runs, "{what}");

        let mut got = vec![0; source.len()];
        get(&patch, &through, &mut got).expect("every part of the patch is reachable");
        assert_eq!(got, source, "{what}");

        // The same in a buffer that is longer along each dimension; elements beside the patch are unchanged.
        let sides: [usize; D] = std::array::from_fn(|d| ranges[d].len() + 1 + d % 2);
        let (wider, needed) = patch.clone().within(sides).expect("the buffer contains the patch");
        let place = |number: usize| (0..D).fold(0, |at, d| at * sides[d] + index(number)[d] - ranges[d].start);
        let mut expected_there = vec![7; needed];
        for &number in &numbers {
            expected_there[place(number)] = number as u32 + 1;
        }
        let mut there = vec![7; needed];
        through.counted.set(0);
        through.copies.set(0);
        get(&wider, &through, &mut there).expect("every part of the patch is reachable");
        assert_eq!(there, expected_there, "{what} within {sides:?}");
        let written = through.parts.replace(parts());
        put(&wider, &through, &there).expect("every part of the patch is reachable");
        assert_eq!(*through.parts.borrow(), written, "{what} within {sides:?}");
        assert_eq!(through.counted.replace(runs), 2 * runs, "{what} within {sides:?}");
        assert!(is_shared || through.copies.replace(runs) == 2 * runs, "{what} within {sides:?}");
        assert_eq!(through.counted.get(), runs, "{what}");
        assert!(is_shared || through.copies.get() == runs, "{what}");
    }

    fn check_all<const D: usize>(most: usize, blocks: usize, sides: usize) {
        let numbers = |from: usize, to: usize| -> Vec<[usize; D]> {
            let count = (to + 1 - from).pow(D as u32);
            let digit = |n: usize, d: usize| from + n / (to + 1 - from).pow(d as u32) % (to + 1 - from);
            (0..count).map(|n| std::array::from_fn(|d| digit(n, d))).collect()
        };
        let cyclic = numbers(1, blocks).into_iter().map(Distribution::BlockCyclic);
        for distribution in cyclic.chain([Distribution::Balanced]) {
            for grid in numbers(1, sides) {
                let layout = Layout::on_grid([most; D], distribution, grid).expect("a layout");
                for start in numbers(0, most) {
                    for end in numbers(0, most).into_iter().filter(|end| (0..D).all(|d| start[d] <= end[d])) {
                        for is_shared in [true, false] {
                            check(&layout, std::array::from_fn(|d| start[d]..end[d]), is_shared);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn every_small_patch_arrives_by_one_operation_per_run() {
        check_all::<1>(if cfg!(miri) { 5 } else { 30 }, 4, 3);
        check_all::<2>(if cfg!(miri) { 3 } else { 5 }, 3, 2);
        check_all::<3>(if cfg!(miri) { 1 } else { 3 }, 2, if cfg!(miri) { 1 } else { 2 });
    }
}
