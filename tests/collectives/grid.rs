//! Neighbours on a grid, and blocks in sections of memory.

use crate::ranks;
use ranks::on;
use transom::Section;
use transom::collective::Grid;
use transom::messages::Error;

/// What a rank gives along a dimension, to one side.
fn number(rank: usize, d: usize, side: usize, k: usize) -> u64 {
    (((rank * 10 + d) * 10 + side) * 100_000 + k) as u64
}

const NOTHING: u64 = u64::MAX;

/// By signed arithmetic on coordinates.
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
        // Started, with another under way beside it.
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
        assert!(got == want, "{len} elements on {grid:?}, lent");
    }
}

#[test]
fn neighbours_get_each_others_blocks() {
    on(&[1, 2, 3, 4, 6, 8, 12], "neighbours_get_each_others_blocks", |world| {
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
fn a_matrix_is_transposed_by_sections() {
    on(&ranks::SIZES, "a_matrix_is_transposed_by_sections", |world| {
        let (rank, size) = (world.rank(), world.size());
        let rows_of = |rank: usize| 1 + rank % 3 * 2;
        let first = |rank: usize| (0..rank).map(rows_of).sum::<usize>();
        let (n, mine) = (first(size), rows_of(rank));
        let matrix: Vec<u32> = (0..mine * n).map(|i| ((first(rank) + i / n) * 1000 + i % n) as u32).collect();
        // The columns of each rank, row after row; they come as columns of this rank's rows.
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

#[test]
fn what_cannot_be_is_refused() {
    on(&[1, 2], "what_cannot_be_is_refused", |world| {
        let (one, two) = (Section::Contiguous { offset: 0, len: 1 }, Section::Contiguous { offset: 1, len: 2 });
        let twice = Section::Indexed { offsets: &[0, 0], block: 1 };
        let sections = |data: &[u8], given: &[Section<'_>], into: &mut [u8], taken: &[Section<'_>]| {
            let team = world.split(Some(world.rank() as u64), 0).unwrap().unwrap();
            let error = team.all_to_all_sections(data, given, into, taken).unwrap_err();
            assert!(matches!(error, Error::Misuse { .. }), "{error}");
            assert!(into.iter().all(|byte| *byte == 9), "nothing is written");
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
