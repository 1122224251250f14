//! Neighbours on a grid, and blocks in sections of memory, in each form of the calls.

use crate::ranks;
use ranks::on;
use transom::Section;
use transom::collective::Grid;
use transom::messages::Error;

/// The value that a rank sends along a dimension, to one side.
fn number(rank: usize, d: usize, side: usize, k: usize) -> u64 {
    (((rank * 10 + d) * 10 + side) * 100_000 + k) as u64
}

const NOTHING: u64 = u64::MAX;

/// Expected values, by signed arithmetic on coordinates.
fn expected<const D: usize>(rank: usize, shape: [usize; D], around: [bool; D], len: usize) -> Vec<u64> {
    let mut at = [0; D];
    let mut left = rank;
    for d in (0..D).rev() {
        (left, at[d]) = (left / shape[d], (left % shape[d]) as isize);
    }
    let slot = |d: usize, side: usize| {
        let mut there = at;
        there[d] += [-1, 1][side];
        let inside = around[d] || (0..shape[d] as isize).contains(&there[d]);
        there[d] = there[d].rem_euclid(shape[d] as isize);
        let from = (0..D).fold(0, |rank, d| rank * shape[d] + there[d] as usize);
        (0..len).map(move |k| if inside { number(from, d, 1 - side, k) } else { NOTHING })
    };
    (0..D).flat_map(|d| slot(d, 0).chain(slot(d, 1)).collect::<Vec<_>>()).collect()
}

fn exchange<const D: usize>(world: &transom::World, shape: [usize; D], around: [bool; D]) {
    let (rank, grid) = (world.rank(), Grid::new(shape, around).unwrap());
    for len in [0, 1, 3, 5000] {
        let give = |d, side| (0..len).map(move |k| number(rank, d, side, k));
        let given: Vec<u64> = (0..D).flat_map(|d| give(d, 0).chain(give(d, 1))).collect();
        let want = expected(rank, shape, around, len);
        let mut got = vec![NOTHING; 2 * D * len];
        world.neighbours(&grid, &given, &mut got).unwrap();
        assert!(got == want, "{len} elements on {grid:?}");
        // A started call, with another in flight beside it.
        let (first, second) = (world.ineighbours(&grid, given.clone()), world.ineighbours(&grid, given.clone()));
        let nothing_is_zero = |got: Vec<u64>| got.iter().zip(&want).all(|(got, want)| got == want || *want == NOTHING);
        assert!(nothing_is_zero(second.wait().unwrap()) && nothing_is_zero(first.wait().unwrap()));
        got.fill(NOTHING);
        world
            .scope(|scope| -> Result<(), Error> {
                let coming = scope.ineighbours(&grid, &given, &mut got);
                coming.wait()?;
                Ok(())
            })
            .unwrap();
        assert!(got == want, "{len} elements on {grid:?}, in a scope");
    }
}

#[test]
fn grid_neighbours_exchange_their_blocks() {
    on(&[1, 2, 3, 4, 6, 8, 12], "grid_neighbours_exchange_their_blocks", |world| {
        let size = world.size();
        for around in [false, true] {
            exchange(&world, [size], [around]);
            exchange(&world, Grid::<2>::of(size, [false; 2]).unwrap().shape(), [around, !around]);
            exchange(&world, Grid::<3>::of(size, [false; 3]).unwrap().shape(), [around, true, around]);
        }
        exchange(&world, [1, size], [true, true]);
    });
}

/// The transpose of a matrix of which each rank has some rows, of unequal numbers.
#[test]
fn uneven_matrix_is_transposed_by_sections() {
    on(&ranks::SIZES, "uneven_matrix_is_transposed_by_sections", |world| {
        let (rank, size) = (world.rank(), world.size());
        let rows_of = |rank: usize| 1 + rank % 3 * 2;
        let first = |rank: usize| (0..rank).map(rows_of).sum::<usize>();
        let (n, mine) = (first(size), rows_of(rank));
        let matrix: Vec<u32> = (0..mine * n).map(|i| ((first(rank) + i / n) * 1000 + i % n) as u32).collect();
        // The columns of each rank, row after row; they arrive as columns of this rank's rows.
        let given: Vec<_> = (0..size)
            .map(|to| Section::Tile { offset: first(to), rows: mine, columns: rows_of(to), row_length: n })
            .collect();
        let offsets: Vec<Vec<usize>> = (0..size)
            .map(|of| (0..rows_of(of) * mine).map(|i| i % mine * n + first(of) + i / mine).collect())
            .collect();
        let taken: Vec<_> = offsets.iter().map(|offsets| Section::Indexed { offsets, block: 1 }).collect();
        let mut transposed = vec![0; mine * n];
        for _ in 0..3 {
            transposed.fill(0);
            world.all_to_all_sections(&matrix, &given, &mut transposed, &taken).unwrap();
            let want: Vec<u32> = (0..mine * n).map(|i| (i % n * 1000 + first(rank) + i / n) as u32).collect();
            assert_eq!(transposed, want);
        }
    });
}

/// Sections that one rank has for each other rank, and the indices of their elements, one by one, as the expected
/// meaning.
struct Sides {
    offsets: Vec<Vec<usize>>,
    blocks: Vec<(usize, usize, usize)>,
}

impl Sides {
    /// `blocks` are the kind of each section, and the length and the number of its blocks. No two sections share an
    /// element.
    fn new(blocks: Vec<(usize, usize, usize)>) -> Sides {
        let starts = |rank: usize| SPACE * rank;
        // Listed from the last block to the first.
        let listed = |(rank, &(_, block, count)): (usize, &(usize, usize, usize))| {
            (0..count).rev().map(|i| starts(rank) + i * (block + 1)).collect()
        };
        Sides { offsets: blocks.iter().enumerate().map(listed).collect(), blocks }
    }

    fn sections(&self) -> Vec<Section<'_>> {
        let section = |(rank, &(kind, block, count)): (usize, &(usize, usize, usize))| match kind % 4 {
            0 => Section::Contiguous { offset: SPACE * rank, len: block * count },
            1 => Section::Strided { offset: SPACE * rank, count, block, stride: block + 1 },
            2 => Section::Tile { offset: SPACE * rank, rows: count, columns: block, row_length: block + 2 },
            _ => Section::Indexed { offsets: &self.offsets[rank], block },
        };
        self.blocks.iter().enumerate().map(section).collect()
    }

    fn elements(&self, rank: usize) -> Vec<usize> {
        let (kind, block, count) = self.blocks[rank];
        let start = |i: usize| match kind % 4 {
            0 => i * block,
            1 => i * (block + 1),
            2 => i * (block + 2),
            _ => (count - 1 - i) * (block + 1),
        };
        (0..count).flat_map(|i| (0..block).map(move |k| SPACE * rank + start(i) + k)).collect()
    }
}

/// Elements from one section to the next.
const SPACE: usize = 400;

/// Sections of each kind, of blocks of 1 to 7 elements and of none, in each form of the call: blocking, started, in a
/// scope, persistent.
#[test]
fn sections_in_every_call_form_move_their_elements() {
    on(&ranks::SIZES, "sections_in_every_call_form_move_their_elements", |world| {
        let (me, size) = (world.rank(), world.size());
        for round in 0..ranks::rounds(24) {
            // Elements that `from` sends to `to`.
            let len = |from: usize, to: usize| [0, 2, 12, 84, 60][(from * 3 + to + round) % 5];
            let cut = |seed: usize, len: usize| {
                let block = [1, 2, 3, 4, 6, 12][(seed * 5 + round) % 6];
                let block = if len.is_multiple_of(block) { block } else { 1 };
                (seed + round, block, len / block)
            };
            let given = Sides::new((0..size).map(|to| cut(me + 2 * to, len(me, to))).collect());
            let taken = Sides::new((0..size).map(|from| cut(3 * me + from + 1, len(from, me))).collect());
            let number = |rank: usize, index: usize| (rank * 1_000_000 + round * 10_000 + index) as u32;
            let data: Vec<u32> = (0..SPACE * size).map(|index| number(me, index)).collect();
            let mut want = vec![u32::MAX; SPACE * size];
            for from in 0..size {
                let theirs = Sides::new((0..size).map(|to| cut(from + 2 * to, len(from, to))).collect());
                let places = taken.elements(from);
                assert_eq!(places.len(), len(from, me));
                places.iter().zip(theirs.elements(me)).for_each(|(at, index)| want[*at] = number(from, index));
            }
            let mut into = vec![u32::MAX; SPACE * size];
            world.all_to_all_sections(&data, &given.sections(), &mut into, &taken.sections()).unwrap();
            assert!(into == want, "blocking call, round {round}");

            let fresh = || vec![u32::MAX; SPACE * size];
            let start = || world.iall_to_all_sections(data.clone(), &given.sections(), fresh(), &taken.sections());
            let (first, second) = (start(), start());
            assert!(second.wait().unwrap() == want && first.wait().unwrap() == want, "started call, round {round}");
            drop(start());

            let mut into = fresh();
            world
                .scope(|scope| {
                    drop(scope.iall_to_all_sections(&data, &given.sections(), &mut into, &taken.sections()));
                    Ok::<_, Error>(())
                })
                .unwrap();
            assert!(into == want, "scoped call, round {round}");

            let made =
                world.all_to_all_sections_init(vec![0; data.len()], &given.sections(), fresh(), &taken.sections());
            let mut made = made.unwrap();
            for step in 0..3 {
                made.buffer().unwrap().iter_mut().zip(&data).for_each(|(element, number)| *element = number + step);
                made.start().unwrap().wait().unwrap();
                let moved = |number: &u32| if *number == u32::MAX { u32::MAX } else { number + step };
                assert!(
                    made.result().unwrap().iter().copied().eq(want.iter().map(moved)),
                    "persistent call, round {round}"
                );
            }
        }
    });
}

/// Sections that share elements: one of the blocks stays there, complete.
#[test]
fn overlapping_sections_keep_one_whole_block() {
    on(&[1, 2, 3], "overlapping_sections_keep_one_whole_block", |world| {
        const LEN: usize = 30_000;
        let given = vec![Section::Contiguous { offset: 0, len: LEN }; world.size()];
        let data = vec![world.rank() as u32; LEN];
        for _ in 0..3 {
            let mut into = vec![u32::MAX; LEN];
            world.all_to_all_sections(&data, &given, &mut into, &given).unwrap();
            assert!(into[0] < world.size() as u32 && into.iter().all(|rank| *rank == into[0]));
        }
    });
}

#[test]
fn invalid_sections_and_grids_are_refused() {
    on(&[1, 2], "invalid_sections_and_grids_are_refused", |world| {
        let (one, two) = (Section::Contiguous { offset: 0, len: 1 }, Section::Contiguous { offset: 1, len: 2 });
        let twice = Section::Indexed { offsets: &[0, 0], block: 1 };
        let sections = |data: &[u8], given: &[Section<'_>], into: &mut [u8], taken: &[Section<'_>]| {
            let team = world.split(Some(world.rank() as u64), 0).unwrap().unwrap();
            let error = team.all_to_all_sections(data, given, into, taken).unwrap_err();
            assert!(matches!(error, Error::Misuse { .. }), "{error}");
            assert!(into.iter().all(|byte| *byte == 9), "refused call wrote to the buffer");
            let team = world.split(Some(world.rank() as u64), 0).unwrap().unwrap();
            let failed = team.iall_to_all_sections(data.to_vec(), given, into.to_vec(), taken).wait().unwrap_err();
            assert!(matches!(failed.error, Error::Misuse { .. }), "{failed}");
            assert_eq!(failed.buffer.as_deref(), Some(&*into), "failed request did not return its buffer");
            let team = world.split(Some(world.rank() as u64), 0).unwrap().unwrap();
            let refused = team.all_to_all_sections_init(data.to_vec(), given, into.to_vec(), taken);
            assert!(matches!(refused, Err(Error::Misuse { .. })));
        };
        sections(&[1], &[], &mut [9], &[one]);
        sections(&[1], &[one], &mut [9], &[one, one]);
        sections(&[1, 2], &[two], &mut [9; 3], &[two]);
        sections(&[1, 2, 3], &[two], &mut [9; 2], &[two]);
        sections(&[1, 2, 3], &[two], &mut [9; 3], &[twice]);
        sections(&[1, 2, 3], &[two], &mut [9; 3], &[one]);
        for (ranks, data, room) in [(2, 2, 2), (1, 3, 2), (1, 2, 3), (1, 3, 3)] {
            let team = world.split(Some(world.rank() as u64), 0).unwrap().unwrap();
            let grid = Grid::new([ranks], [true]).unwrap();
            let error = team.neighbours(&grid, &vec![1; data], &mut vec![2; room]).unwrap_err();
            assert!(matches!(error, Error::Misuse { .. }), "{error}");
        }
    });
}
