//! Layouts: the place of each element and the runs of every patch, compared with a distribution element by element.
//! Needs no ranks.

use crate::patches;
use patches::{all, any_distribution, any_patch, any_shape};
use std::ops::Range;
use std::time::Duration;
use transom::Distribution;
use transom::array::{Layout, LayoutError, Run};

/// An element's index, its owner, and its offset there.
type Place<const D: usize> = ([usize; D], usize, usize);

/// Owner and place of each element, without formulas: the tiles are given to their owners in row-major order, and each
/// owner appends the elements row by row. Also returns the number of elements of each owner.
fn deal<const D: usize>(tiles: [Vec<Range<usize>>; D], grid: [usize; D]) -> (Vec<Place<D>>, Vec<usize>) {
    let mut parts = vec![0; grid.iter().product()];
    let mut places = Vec::new();
    for tile in all::<D>(std::array::from_fn(|d| 0..tiles[d].len())) {
        let owner = (0..D).fold(0, |rank, d| rank * grid[d] + tile[d] % grid[d]);
        for index in all(std::array::from_fn(|d| tiles[d][tile[d]].clone())) {
            places.push((index, owner, parts[owner]));
            parts[owner] += 1;
        }
    }
    places.sort();
    (places, parts)
}

/// The tiles along one dimension.
fn tiles<const D: usize>(d: usize, len: usize, distribution: Distribution<D>, ranks: usize) -> Vec<Range<usize>> {
    let block = match distribution {
        Distribution::Block => len.div_ceil(ranks).max(1),
        Distribution::Cyclic => 1,
        Distribution::BlockCyclic(block) => block[d],
        // Each rank has as many elements as if these were dealt one by one.
        _ => {
            let mut end = 0;
            let lengths = (0..ranks).map(|rank| (0..len).filter(|i| i % ranks == rank).count());
            let ranges = lengths.map(|length| {
                end += length;
                end - length..end
            });
            return ranges.filter(|range| !range.is_empty()).collect();
        }
    };
    (0..len).step_by(block).map(|start| start..len.min(start + block)).collect()
}

fn layouts_of<const D: usize>(seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..if cfg!(miri) { 5 } else { 400 } {
        let (shape, distribution) = (any_shape(&mut random), any_distribution(&mut random));
        let grid: [usize; D] = std::array::from_fn(|_| random.usize(1..5));
        let layout = Layout::on_grid(shape, distribution, grid).unwrap();
        let what = format!("{shape:?} by {distribution:?} on {grid:?}");
        let (places, parts) = deal(std::array::from_fn(|d| tiles(d, shape[d], distribution, grid[d])), grid);
        assert_eq!((layout.shape(), layout.len(), layout.grid()), (shape, places.len(), grid), "{what}");
        for &(index, owner, offset) in &places {
            assert_eq!(layout.locate(index), Some((owner, offset)), "{index:?} of {what}");
        }
        for d in 0..D {
            let mut outside = [0; D];
            outside[d] = shape[d];
            assert_eq!(layout.locate(outside), None, "{what}");
            outside[d] = usize::MAX;
            assert_eq!((layout.locate(outside), layout.tile(outside)), (None, None), "{what}");
        }
        for (rank, &part) in parts.iter().enumerate() {
            assert_eq!(layout.part_len(rank), part, "rank {rank} of {what}");
            // The tiles of a rank, one after another, are its part.
            let mut end = 0;
            for tile in layout.tiles_of(rank) {
                assert_eq!((tile.owner, tile.offset, tile.is_empty()), (rank, end, false), "{what}");
                assert_eq!(layout.tile(tile.index), Some(tile.clone()));
                for index in all(tile.ranges.clone()) {
                    assert_eq!(layout.locate(index), Some((rank, end)), "{what}");
                    end += 1;
                }
                assert_eq!(end - tile.offset, tile.len());
            }
            assert_eq!(end, part, "{what}");
        }
        assert_eq!((layout.part_len(parts.len()), layout.tiles_of(parts.len()).count()), (0, 0));
        for _ in 0..10 {
            let patch = any_patch(&mut random, shape);
            let runs = model_runs(&places, &patch);
            let told: Vec<Run> = layout.runs(patch.clone()).expect("the patch should be inside the array").collect();
            let mut owners: Vec<usize> = told.iter().map(|run| run.owner).collect();
            owners.dedup();
            for (n, run) in told.iter().enumerate() {
                assert_eq!(
                    layout.runs(patch.clone()).expect("the patch should be inside the array").nth(n),
                    Some(*run),
                    "run {n} of {patch:?} of {what}"
                );
            }
            assert_eq!(layout.runs(patch.clone()).expect("the patch should be inside the array").nth(told.len()), None);
            let mut told: Vec<_> = told.iter().map(|&Run { owner, offset, len, .. }| (owner, offset, len)).collect();
            // One owner's runs follow each other, and ascend.
            assert!(
                told.is_sorted_by(|a, b| a.0 != b.0 || a.1 < b.1),
                "runs of an owner do not ascend: {told:?}, {patch:?} of {what}"
            );
            told.sort();
            assert_eq!(told, runs, "{patch:?} of {what}");
            owners.sort();
            assert!(owners.is_sorted_by(|a, b| a < b), "runs of an owner are apart: {patch:?} of {what}");
            assert!(D > 1 || runs.len() <= parts.len(), "more than one run per owner in one dimension");
        }
    }
}

/// The runs of a patch, sorted, found by a look at each of its elements.
fn model_runs<const D: usize>(places: &[Place<D>], patch: &[Range<usize>; D]) -> Vec<(usize, usize, usize)> {
    let inside = |index: &[usize; D]| (0..D).all(|d| patch[d].contains(&index[d]));
    let mut elements: Vec<(usize, usize)> =
        places.iter().filter(|(index, ..)| inside(index)).map(|&(_, owner, offset)| (owner, offset)).collect();
    elements.sort();
    let mut runs: Vec<(usize, usize, usize)> = Vec::new();
    for (owner, offset) in elements {
        match runs.last_mut() {
            Some((same, start, len)) if *same == owner && *start + *len == offset => *len += 1,
            _ => runs.push((owner, offset, 1)),
        }
    }
    runs
}

/// The result of a closure. Fails if the closure takes longer than 10 s; milliseconds suffice.
fn soon<R: Send + 'static>(what: &str, call: impl FnOnce() -> R + Send + 'static) -> R {
    let (answer, wait) = std::sync::mpsc::channel();
    std::thread::spawn(move || answer.send(call()));
    wait.recv_timeout(Duration::from_secs(10)).unwrap_or_else(|error| panic!("{what}: {error}"))
}

/// A run: its owner, its offset there, its length.
type Told = (usize, usize, usize);

/// The first runs of a patch, and one far from them.
fn first_and<const D: usize>(
    distribution: Distribution<D>,
    shape: [usize; D],
    grid: [usize; D],
    patch: [Range<usize>; D],
    far: usize,
) -> (Vec<Told>, Option<Told>) {
    let plain = |run: Run| (run.owner, run.offset, run.len);
    soon("runs", move || {
        let layout = Layout::on_grid(shape, distribution, grid).unwrap();
        let runs = || layout.runs(patch.clone()).expect("the patch should be inside the array").map(plain);
        (runs().take(3).collect(), runs().nth(far))
    })
}

#[test]
#[allow(clippy::single_range_in_vec_init, reason = "a patch in one dimension")]
fn runs_of_huge_layouts_are_computed_quickly() {
    const HUGE: usize = 1 << 47;
    // Cyclic, on 4 ranks: a quarter for each; without the first element and the last four.
    let told = first_and(Distribution::Cyclic, [HUGE], [4], [0..HUGE], 3);
    assert_eq!(told, (vec![(0, 0, 1 << 45), (1, 0, 1 << 45), (2, 0, 1 << 45)], Some((3, 0, 1 << 45))));
    let told = first_and(Distribution::Cyclic, [HUGE], [4], [1..HUGE - 4], 4);
    let quarter = (1 << 45) - 1;
    assert_eq!(told, (vec![(1, 0, quarter), (2, 0, quarter), (3, 0, quarter)], None));
    // 2^40 blocks of 128 on 1024 ranks: 2^30 blocks for each. The patch begins in the middle of rank 0's second block.
    let told = first_and(Distribution::BlockCyclic([128]), [HUGE], [1024], [(1 << 17) + 60..HUGE], 1023);
    let all_but_one = (1 << 37) - 128;
    let first = [(0, 188, all_but_one - 60), (1, 128, all_but_one), (2, 128, all_but_one)];
    assert_eq!(told, (first.to_vec(), Some((1023, 128, all_but_one))));
    // A plane, cyclic in both dimensions on 2 x 4 ranks: a rank has 2^22 rows of 2^22. The whole has one run per rank.
    // Without a column, each row of the ranks that own the column is one run. A column has one element per row.
    let (shape, grid, rows) = ([1 << 23, 1 << 24], [2, 4], 1 << 22);
    let told = first_and(Distribution::Cyclic, shape, grid, [0..1 << 23, 0..1 << 24], 7);
    assert_eq!(told, (vec![(0, 0, 1 << 44), (1, 0, 1 << 44), (2, 0, 1 << 44)], Some((7, 0, 1 << 44))));
    let told = first_and(Distribution::Cyclic, shape, grid, [0..1 << 23, 1..1 << 24], 3 + (1 << 20));
    assert_eq!(told.0, [(1, 0, 1 << 44), (2, 0, 1 << 44), (3, 0, 1 << 44)]);
    assert_eq!(told.1, Some((0, (1 << 42) + 1, rows - 1)));
    let told = first_and(Distribution::Cyclic, shape, grid, [0..1 << 23, 9..10], rows + (1 << 20));
    assert_eq!(told, (vec![(1, 2, 1), (1, rows + 2, 1), (1, 2 * rows + 2, 1)], Some((5, (1 << 42) + 2, 1))));
    // 2^28 x 32 x 32 tiles of 8 x 8 x 8, without the first row of the first. So a run for each of the first 1024 tiles,
    // the last of which goes on to the end.
    let (shape, tiles) = ([1 << 31, 1 << 8, 1 << 8], Distribution::BlockCyclic([8; 3]));
    let told = first_and(tiles, shape, [1, 1, 1], [1..1 << 31, 0..1 << 8, 0..1 << 8], 1023);
    let last = 1023 * 512 + 64;
    assert_eq!(told, (vec![(0, 64, 448), (0, 576, 448), (0, 1088, 448)], Some((0, last, HUGE - last))));
}

#[test]
fn layouts_match_elementwise_distribution() {
    layouts_of::<1>(1);
    layouts_of::<2>(2);
    layouts_of::<3>(3);
}

#[test]
fn grids_are_nearly_square() {
    for (ranks, line, plane, cube) in [
        (1, [1], [1, 1], [1, 1, 1]),
        (2, [2], [1, 2], [1, 1, 2]),
        (6, [6], [2, 3], [1, 2, 3]),
        (7, [7], [1, 7], [1, 1, 7]),
        (12, [12], [3, 4], [2, 2, 3]),
        (64, [64], [8, 8], [4, 4, 4]),
    ] {
        assert_eq!(Layout::new([9], Distribution::Block, ranks).unwrap().grid(), line);
        assert_eq!(Layout::new([9; 2], Distribution::Block, ranks).unwrap().grid(), plane);
        assert_eq!(Layout::new([9; 3], Distribution::Block, ranks).unwrap().grid(), cube);
    }
}

#[test]
fn invalid_layouts_are_refused() {
    let new = |shape, distribution, ranks| Layout::<2>::new(shape, distribution, ranks).map(|layout| layout.len());
    let tiles = Distribution::BlockCyclic;
    assert!(matches!(new([4, 4], tiles([0, 2]), 2), Err(LayoutError::Block { block }) if block == [0, 2]));
    assert!(matches!(new([4, 4], Distribution::Block, 0), Err(LayoutError::Grid { .. })));
    for shape in [[usize::MAX, 2], [1 << 32, 1 << 32], [usize::MAX, 0], [1, 1 << 48]] {
        assert!(
            matches!(new(shape, Distribution::Cyclic, 2), Err(LayoutError::Size { shape: named }) if named == shape)
        );
    }
    // Blocks may be longer than the array.
    assert_eq!(new([4, 4], tiles([usize::MAX, usize::MAX]), 3), Ok(16));
    assert!(Layout::on_grid([4, 4], Distribution::Block, [usize::MAX, 3]).is_err());
    assert!(Layout::on_grid([4, 4], Distribution::Block, [0, 3]).is_err());
    // More ranks than a job can have.
    const MOST: usize = transom::locks::LockWord::<16>::MAX_RANKS;
    for ranks in [MOST + 1, usize::MAX] {
        let refused = |error: LayoutError| {
            assert!(error.to_string().contains(&format!("at most {MOST}")), "{error}");
            matches!(error, LayoutError::Grid { ranks: None, .. })
        };
        assert!(refused(Layout::on_grid([10], Distribution::Block, [ranks]).unwrap_err()));
        assert!(refused(Layout::on_grid([10, 10], Distribution::Cyclic, [1, ranks]).unwrap_err()));
        assert!(refused(new([10, 10], Distribution::Block, ranks).unwrap_err()));
    }
    let most = Layout::on_grid([10], Distribution::Block, [MOST]).unwrap();
    assert_eq!(most.runs(5..6).unwrap().map(|run| (run.owner, run.offset, run.len)).collect::<Vec<_>>(), [(5, 0, 1)]);
    assert_eq!((most.tiles_of(5).count(), most.tiles_of(MOST - 1).count()), (1, 0));
    let layout = Layout::new([4, 4], Distribution::Block, 4).unwrap();
    #[allow(clippy::reversed_empty_ranges, reason = "the call must refuse the range")]
    for outside in [[0..5, 0..1], [3..2, 0..0], [0..0, 5..5], [0..1, 0..usize::MAX]] {
        assert!(layout.runs(outside).is_none());
    }
}

/// The array has no elements, although its other sides are as long as possible.
#[test]
fn empty_array_has_a_layout_and_patches() {
    for distribution in [Distribution::Block, Distribution::Cyclic] {
        let layout = Layout::new([0, 1 << 47, 1 << 47], distribution, 1).unwrap();
        assert_eq!(layout.len(), 0);
        assert_eq!(layout.runs([0..0, 0..1 << 47, 0..1 << 47]).map(|runs| runs.count()), Some(0));
    }
}
