//! Ghost cells of arrays.

use crate::ranks;
use transom::array::{ArrayError, Halo, Layout};
use transom::{Distribution, Error, GlobalArray, World};

/// The value of the element at an index, in a round.
fn element<const D: usize>(index: [usize; D], round: usize) -> u64 {
    index.iter().fold(round as u64 + 1, |number, &i| number * 1000 + i as u64 + 1)
}

const OUTSIDE: u64 = 7;

/// The index of a cell in the array; `None` if the cell is outside.
fn index_of<const D: usize>(
    halo: &Halo<u64, D>,
    mut cell: usize,
    width: [usize; D],
    shape: [usize; D],
) -> Option<[usize; D]> {
    let (own, cells) = (halo.own(), halo.shape());
    let mut index = [0; D];
    for d in (0..D).rev() {
        index[d] = (own[d].start + cell % cells[d]).checked_sub(width[d])?;
        if index[d] >= shape[d] {
            return None;
        }
        cell /= cells[d];
    }
    Some(index)
}

fn checked<const D: usize>(world: &World, layout: Layout<D>, width: [usize; D]) {
    let mut array: GlobalArray<u64, D> = world.array_on(layout).unwrap();
    for tile in layout.tiles_of(world.rank()) {
        array.local().put_tile(tile.index, &vec![5; tile.len()]).unwrap();
    }
    let mut halo = array.halo(width).unwrap();
    let len = halo.cells().len();
    let places: Vec<_> = (0..len).map(|cell| index_of(&halo, cell, width, layout.shape())).collect();
    let (own, ranks) = (halo.own(), 0..world.size());
    let mine = |index: &[usize; D]| (0..D).all(|d| own[d].contains(&index[d]));
    let fives = (0..len).filter(|&cell| halo.cells()[cell] == 5).count();
    assert_eq!(fives, layout.part_len(world.rank()), "new halo differs from the array");
    for (cell, place) in places.iter().enumerate() {
        if place.is_none() {
            halo.cells_mut()[cell] = OUTSIDE;
        }
    }
    for round in 0..ranks::rounds(30) {
        for (cell, place) in places.iter().enumerate() {
            if let Some(index) = place.filter(mine) {
                halo.cells_mut()[cell] = element(index, round);
            }
        }
        halo.exchange(&mut array).unwrap();
        for (cell, place) in places.iter().enumerate() {
            let expected = place.map_or(OUTSIDE, |index| element(index, round));
            assert_eq!(
                halo.cells()[cell],
                expected,
                "{place:?} of {:?}, width {width:?}, round {round}",
                layout.shape()
            );
        }
    }
    halo.cells_mut().iter_mut().for_each(|cell| *cell += 1);
    halo.store(&array).unwrap();
    let epoch = array.fence().unwrap();
    let last = ranks::rounds(30) - 1;
    for number in 0..layout.len() {
        let mut rest = number;
        let mut index = [0; D];
        for d in (0..D).rev() {
            (index[d], rest) = (rest % layout.shape()[d], rest / layout.shape()[d]);
        }
        assert_eq!(epoch.get_one(index).unwrap(), element(index, last) + 1);
    }
    assert_eq!(ranks.map(|rank| layout.part_len(rank)).sum::<usize>(), layout.len());
    array.fence().unwrap();
}

#[test]
fn ghost_cells_equal_their_owners_elements() {
    ranks::on_all_sizes("ghost_cells_equal_their_owners_elements", |world: World| {
        let n = world.size();
        let line = |len| Layout::new([len], Distribution::Block, n).unwrap();
        checked(&world, line(17), [1]);
        checked(&world, line(17), [0]);
        checked(&world, line(9), [4]); // wider than a neighbour's part
        checked(&world, line(3), [2]); // fewer elements than ranks
        let plane = |shape| Layout::new(shape, Distribution::Block, n).unwrap();
        checked(&world, plane([7, 9]), [1, 2]);
        checked(&world, Layout::on_grid([9, 5], Distribution::Block, [n, 1]).unwrap(), [1, 0]);
        checked(&world, Layout::new([5, 4, 6], Distribution::Block, n).unwrap(), [1, 1, 1]);
        for distribution in [Distribution::Block, Distribution::Balanced] {
            // Some ranks own nothing on grids of 3 and 8 rows, or have blocks of different lengths.
            checked(&world, Layout::on_grid([4, 4], distribution, [n, 1]).unwrap(), [1, 1]);
            checked(&world, Layout::on_grid([3, 4], distribution, [1, n]).unwrap(), [2, 3]);
            checked(&world, Layout::on_grid([11, 2], distribution, [n, 1]).unwrap(), [2, 0]);
        }
    });
}

#[test]
fn invalid_halo_is_refused() {
    ranks::on_all_sizes("invalid_halo_is_refused", |world: World| {
        let cyclic = world.array::<u64, 1>([2 * world.size()], Distribution::Cyclic).unwrap();
        assert!(matches!(cyclic.halo([1]), Err(Error::Array(ArrayError::SeveralTiles { array: 0 }))));
        let mut array = world.array::<u64, 2>([8, 8], Distribution::Block).unwrap();
        assert!(matches!(array.halo([usize::MAX, 1]), Err(Error::Array(ArrayError::Halo { array: 1, .. }))));
        let other = world.array::<u64, 2>([8, 8], Distribution::Block).unwrap();
        let mut halo = other.halo([1, 1]).unwrap();
        assert!(matches!(halo.exchange(&mut array), Err(Error::Array(ArrayError::Halo { array: 1, .. }))));
        assert!(matches!(halo.store(&array), Err(Error::Array(ArrayError::Halo { .. }))));
        halo.store(&other).unwrap();
        // Teams number their objects anew, and these are in another order here.
        let team = world.split(Some(0), (world.size() - world.rank()) as u64).unwrap().expect("a colour was named");
        let (mut one, mut two) =
            (team.array([8], Distribution::Block).unwrap(), world.array([8], Distribution::Block).unwrap());
        while one.window().id() < two.window().id() {
            one = team.array::<u64, 1>([8], Distribution::Block).unwrap();
        }
        let (mut of_one, mut of_two) = (one.halo([1]).unwrap(), two.halo([1]).unwrap());
        assert!(matches!(of_two.exchange(&mut one), Err(Error::Array(ArrayError::Halo { .. }))));
        assert!(matches!(of_one.exchange(&mut two), Err(Error::Array(ArrayError::Halo { .. }))));
        of_one.exchange(&mut one).unwrap();
        of_two.exchange(&mut two).unwrap();
        world.barrier().unwrap();
    });
}

/// Elements of the array that an exchange writes in the rank's own part, its gets, and its fences.
fn exchange_cost<const D: usize>(world: &World, layout: Layout<D>, width: [usize; D]) -> (usize, u64, u64) {
    let mut array: GlobalArray<u64, D> = world.array_on(layout).unwrap();
    let mut halo = array.halo(width).unwrap();
    halo.cells_mut().fill(1);
    let before = array.window().counters();
    halo.exchange(&mut array).unwrap();
    let cost = array.window().counters() - before;
    let mut written = 0;
    array.local().for_each(|_, element| written += element as usize).unwrap();
    (written, cost.gets, cost.fences)
}

#[test]
fn sides_without_neighbours_cost_nothing() {
    ranks::on_all_sizes("sides_without_neighbours_cost_nothing", |world: World| {
        let (me, n) = (world.rank(), world.size());
        // 4 rows of 6 for each rank.
        let rows = Layout::on_grid([4 * n, 6], Distribution::Block, [n, 1]).unwrap();
        let neighbours = usize::from(me > 0) + usize::from(me + 1 < n);
        // Along the rows the grid has one rank: ghost cells there are outside the array.
        assert_eq!(exchange_cost(&world, rows, [1, 1]), (6 * neighbours, neighbours as u64, 2));
        assert_eq!(exchange_cost(&world, rows, [1, 0]), (6 * neighbours, neighbours as u64, 2));
        assert_eq!(exchange_cost(&world, rows, [0, 1]), (0, 0, 2));
    });
}
