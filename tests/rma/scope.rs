//! Gets and puts in flight on slices that the program lends, until a scope ends.

use crate::ranks;
use std::panic::{AssertUnwindSafe, catch_unwind};
use transom::array::ArrayError;
use transom::{Distribution, Error, GlobalArray, Window, World, scope};

/// Short, middle and long lengths, which use different protocols over a network.
const LENGTHS: [usize; 5] = [0, 1, 100, 20_000, 200_000];

fn filled(world: &World) -> Window<u64> {
    let window: Window<u64> = world.allocate(LENGTHS[4]).unwrap();
    let mine: Vec<u64> = (0..LENGTHS[4]).map(|i| (1_000_000 * world.rank() + i) as u64).collect();
    window.local().write(0, &mine).unwrap();
    window
}

#[test]
fn scope_gets_are_complete_at_its_end() {
    ranks::on_all_sizes("scope_gets_are_complete_at_its_end", |world: World| {
        let n = world.size();
        let mut window = filled(&world);
        window.fence().unwrap();
        let epoch = window.lock_all().unwrap();
        let targets: Vec<_> = (0..n).map(|rank| epoch.target(rank).unwrap()).collect();
        let mut got: Vec<Vec<u64>> = (0..n * LENGTHS.len()).map(|i| vec![7; LENGTHS[i % LENGTHS.len()]]).collect();
        let place = |i: usize| (i / LENGTHS.len(), LENGTHS[4] - LENGTHS[i % LENGTHS.len()]);
        let right = |i: usize, got: &[u64]| {
            let (rank, first) = place(i);
            got.iter().enumerate().all(|(at, got)| *got == (1_000_000 * rank + first + at) as u64)
        };
        let waited: usize = scope(|scope| {
            let mut waited = 0;
            for (i, into) in got.iter_mut().enumerate() {
                let (rank, first) = place(i);
                let mut coming = scope.get(&targets[rank], first, into)?;
                // Some are waited for one by one.
                if i % 3 == 0 {
                    while !coming.test() {}
                    assert!(right(i, coming.wait()?), "get {i} wrong when waited for");
                    waited += 1;
                }
            }
            Ok::<usize, Error>(waited)
        })
        .unwrap();
        assert_eq!(waited, got.len().div_ceil(3));
        assert!(got.iter().enumerate().all(|(i, got)| got.len() == LENGTHS[i % LENGTHS.len()] && right(i, got)));
        epoch.unlock().unwrap();
        window.fence().unwrap();
    });
}

#[test]
fn scope_put_sources_are_reusable_after_it() {
    ranks::on_all_sizes("scope_put_sources_are_reusable_after_it", |world: World| {
        let (me, n) = (world.rank(), world.size());
        let mut window: Window<u64> = world.allocate(LENGTHS.iter().sum::<usize>()).unwrap();
        let epoch = window.fence().unwrap();
        let next = epoch.target((me + 1) % n).unwrap();
        let mut sources: Vec<Vec<u64>> =
            LENGTHS.iter().map(|&len| (0..len).map(|i| (i + me) as u64).collect()).collect();
        scope(|scope| {
            let mut first = 0;
            for source in &sources {
                scope.put(&next, first, source)?;
                first += source.len();
            }
            Ok::<(), Error>(())
        })
        .unwrap();
        sources.iter_mut().for_each(|source| source.fill(u64::MAX)); // no rank reads it any more
        window.fence().unwrap();
        let before = (me + n - 1) % n;
        let got = window.local().read(0, LENGTHS.iter().sum()).unwrap();
        let expected: Vec<u64> = LENGTHS.iter().flat_map(|&len| (0..len).map(|i| (i + before) as u64)).collect();
        assert!(got == expected);
        window.fence().unwrap();
    });
}

/// All operations that the body started are complete when the scope ends, however the body ends.
#[test]
fn scope_completes_operations_however_it_ends() {
    ranks::on_all_sizes("scope_completes_operations_however_it_ends", |world: World| {
        let (me, n) = (world.rank(), world.size());
        let mut window = filled(&world);
        window.fence().unwrap();
        let epoch = window.lock_all().unwrap();
        let next = epoch.target((me + 1) % n).unwrap();
        let first = (1_000_000 * ((me + 1) % n)) as u64;
        for len in LENGTHS {
            let mut into = vec![7; len];
            let get = |into: &mut Vec<u64>, end: fn() -> Result<(), Error>| {
                scope(|scope| {
                    drop(scope.get(&next, 0, into)?);
                    end()
                })
            };
            let there = |into: &[u64]| into.iter().enumerate().all(|(i, one)| *one == first + i as u64);
            let failed = get(&mut into, || Err(Error::NoSuchRank { window: 0, rank: 99, size: 1 }));
            assert!(
                matches!(failed, Err(Error::NoSuchRank { rank: 99, .. })),
                "scope returned another error than its body"
            );
            assert!(there(&into), "get incomplete after an error, {len} elements");
            into.fill(7);
            assert!(catch_unwind(AssertUnwindSafe(|| get(&mut into, || panic!("on purpose")))).is_err());
            assert!(there(&into), "get incomplete after a panic, {len} elements");
            into.fill(7);
        }
        // Offsets outside the window are refused at once, and the other operations go on.
        let (mut good, mut bad) = ([0; 2], [7; 2]);
        scope(|scope| {
            drop(scope.get(&next, 0, &mut good)?);
            assert!(matches!(scope.get(&next, LENGTHS[4] - 1, &mut bad), Err(Error::OutOfBounds { len: 2, .. })));
            assert!(matches!(scope.put(&next, usize::MAX, &[1]), Err(Error::OutOfBounds { .. })));
            Ok::<(), Error>(())
        })
        .unwrap();
        assert_eq!((good, bad), ([first, first + 1], [7; 2]));
        epoch.unlock().unwrap();
        window.fence().unwrap();
    });
}

const SHAPE: [usize; 2] = [17, 23];
/// An element, a row, a column, all rows of some columns, parts of many tiles, nothing.
const PATCHES: [[[usize; 2]; 2]; 6] = [
    [[16, 17], [22, 23]],
    [[4, 5], [0, 23]],
    [[0, 17], [9, 10]],
    [[0, 17], [5, 11]],
    [[2, 15], [1, 22]],
    [[3, 3], [0, 4]],
];

fn planes(world: &World) -> [GlobalArray<u64, 2>; 3] {
    [Distribution::Block, Distribution::Cyclic, Distribution::BlockCyclic([3, 4])]
        .map(|cut| world.array(SHAPE, cut).unwrap())
}

/// The elements of a patch, row by row.
fn elements([rows, columns]: [[usize; 2]; 2]) -> impl Iterator<Item = [usize; 2]> {
    (rows[0]..rows[1]).flat_map(move |row| (columns[0]..columns[1]).map(move |column| [row, column]))
}

#[test]
fn scope_patches_are_complete_when_waited_for() {
    ranks::on_all_sizes("scope_patches_are_complete_when_waited_for", |world: World| {
        for mut plane in planes(&world) {
            plane.local().fill_with(|[row, column]| (100 * row + column) as u64).unwrap();
            plane.fence().unwrap();
            let before = plane.window().counters().gets;
            let runs = |patch: [[usize; 2]; 2]| {
                plane.layout().runs(patch.map(|[start, end]| start..end)).unwrap().count() as u64
            };
            let runs: u64 = PATCHES.into_iter().map(runs).sum();
            let access = plane.lock_all().unwrap();
            let mut got = PATCHES.map(|patch| vec![u64::MAX; elements(patch).count()]);
            scope(|scope| {
                for (i, (patch, into)) in PATCHES.into_iter().zip(&mut got).enumerate() {
                    let mut coming = scope.get_patch(&access, patch.map(|[start, end]| start..end), into)?;
                    if i % 2 == 0 {
                        while !coming.test() {}
                        let right = elements(patch).map(|[row, column]| (100 * row + column) as u64);
                        assert!(coming.wait()?.iter().copied().eq(right), "{patch:?} wrong when waited for");
                    }
                }
                Ok::<(), Error>(())
            })
            .unwrap();
            for (patch, got) in PATCHES.into_iter().zip(&got) {
                let right = elements(patch).map(|[row, column]| (100 * row + column) as u64);
                assert!(got.iter().copied().eq(right), "{patch:?}: {got:?}");
            }
            access.unlock().unwrap();
            assert_eq!(plane.window().counters().gets - before, runs);
            plane.fence().unwrap();
        }
    });
}

#[test]
fn scope_puts_patches_from_borrowed_memory() {
    ranks::on_all_sizes("scope_puts_patches_from_borrowed_memory", |world: World| {
        for mut plane in planes(&world) {
            // Each rank has some rows, and puts them in two patches.
            let rows = world.share(SHAPE[0]);
            let rows = [rows.start, rows.end];
            let patches = [[rows, [0, 10]], [rows, [10, SHAPE[1]]]];
            let value = |[row, column]: [usize; 2]| (1000 * row + column) as u64;
            let mut sources = patches.map(|patch| elements(patch).map(value).collect::<Vec<_>>());
            let access = plane.fence().unwrap();
            scope(|scope| {
                patches.into_iter().zip(&sources).try_for_each(|(patch, source)| {
                    scope.put_patch(&access, patch.map(|[start, end]| start..end), source)
                })
            })
            .unwrap();
            sources.iter_mut().for_each(|source| source.fill(u64::MAX)); // no rank reads it any more
            let access = plane.fence().unwrap();
            let mut all = vec![0; SHAPE[0] * SHAPE[1]];
            access.get([0..SHAPE[0], 0..SHAPE[1]], &mut all).unwrap();
            assert!(all.iter().copied().eq(elements([[0, SHAPE[0]], [0, SHAPE[1]]]).map(value)));
            plane.fence().unwrap();
        }
    });
}

/// A strip of one dimension, whose elements are scattered in the buffer; and refused calls.
#[test]
fn scope_patches_of_a_line_arrive_or_are_refused() {
    ranks::on_all_sizes("scope_patches_of_a_line_arrive_or_are_refused", |world: World| {
        let mut line: GlobalArray<u8> = world.array([1000], Distribution::Cyclic).unwrap();
        line.local().fill_with(|[i]| i as u8).unwrap();
        line.fence().unwrap();
        let access = line.lock_all().unwrap();
        let (mut some, mut short, mut outside) = ([0; 700], [7; 3], [7; 2]);
        scope(|scope| {
            let some = scope.get_patch(&access, 150..850, &mut some)?;
            let length = scope.get_patch(&access, 0..2, &mut short).map(drop);
            assert!(
                matches!(length, Err(Error::Array(ArrayError::BufferLength { needed: 2, buffer: 3, .. }))),
                "{length:?}"
            );
            let range = scope.get_patch(&access, 999..1001, &mut outside).map(drop);
            assert!(matches!(range, Err(Error::Array(ArrayError::Outside { .. }))), "{range:?}");
            let put = scope.put_patch(&access, 0..3, &[1; 2]);
            assert!(matches!(put, Err(Error::Array(ArrayError::BufferLength { needed: 3, buffer: 2, .. }))), "{put:?}");
            assert!(some.wait()?.iter().copied().eq((150..850).map(|i| i as u8)));
            Ok::<(), Error>(())
        })
        .unwrap();
        assert_eq!((short, outside), ([7; 3], [7; 2]));
        access.unlock().unwrap();
        line.fence().unwrap();
    });
}
