//! Single elements of global arrays: a rank's own elements by index, and atomics named like those of Rust.

use crate::patches;
use crate::ranks;
use patches::{all, any_distribution, any_shape};
use ranks::on;
use transom::array::ArrayError;
use transom::{Error, GlobalArray, Op, World};

/// The value of the element at an index.
fn value<const D: usize>(index: [usize; D]) -> u64 {
    index.iter().fold(1, |value, i| value * 1000 + *i as u64)
}

/// Each rank writes its own elements, and all ranks together have written the whole array.
fn filled<const D: usize>(world: &World, shape: [usize; D], random: &mut fastrand::Rng) {
    let mut array: GlobalArray<u64, D> = world.array(shape, any_distribution(random)).unwrap();
    let layout = *array.layout();
    let mut asked = 0;
    array
        .local()
        .fill_with(|index| {
            asked += 1;
            value(index)
        })
        .unwrap();
    assert_eq!(asked, layout.part_len(world.rank()), "{layout:?}");
    let mut own = Vec::new();
    array.local().for_each(|index, element| own.push((index, element))).unwrap();
    assert!(own.iter().all(|(index, element)| *element == value(*index)), "{layout:?}");
    assert!(own.iter().map(|(index, _)| *index).eq(layout.indices_of(world.rank())), "{layout:?}");
    for (place, (index, _)) in own.iter().enumerate() {
        assert_eq!(layout.locate(*index), Some((world.rank(), place)), "{index:?} of {layout:?}");
    }
    let patch = shape.map(|len| 0..len);
    let mut whole = vec![0; layout.len()];
    array.fence().unwrap().get(patch.clone(), &mut whole).unwrap();
    assert!(all(patch).into_iter().map(value).eq(whole), "{layout:?}");
}

#[test]
fn owned_elements_are_written_and_read() {
    on(&ranks::SIZES, "owned_elements_are_written_and_read", |world| {
        let mut random = fastrand::Rng::with_seed(3);
        for _ in 0..ranks::rounds(20) {
            filled::<1>(&world, any_shape(&mut random), &mut random);
            filled::<2>(&world, any_shape(&mut random), &mut random);
            filled::<3>(&world, any_shape(&mut random), &mut random);
        }
        // More elements than one transfer copies.
        filled(&world, [5000], &mut random);
        filled(&world, [70, 81], &mut random);
        assert_eq!(
            world.array::<u64, 1>([10], transom::Distribution::Block).unwrap().layout().indices_of(99).count(),
            0
        );
    });
}

#[test]
fn concurrent_element_atomics_lose_nothing() {
    on(&ranks::SIZES, "concurrent_element_atomics_lose_nothing", |world| {
        let mut table: GlobalArray<i64, 2> = world.array([3, 5], transom::Distribution::Cyclic).unwrap();
        let (rank, size) = (world.rank() as i64, world.size() as i64);
        let epoch = table.lock_all().unwrap();
        let mut seen: Vec<i64> = (0..10).map(|_| epoch.fetch_add([1, 3], 2).unwrap()).collect();
        assert!(seen.is_sorted() && seen.iter().all(|seen| seen % 2 == 0 && *seen < 20 * size), "{seen:?}");
        seen.dedup();
        assert_eq!(seen.len(), 10, "fetch_add returned one count twice");
        // A token that each rank takes once, and replaces by its own for the next rank.
        let left = epoch.swap([2, 4], rank + 1).unwrap();
        assert!((0..=size).contains(&left) && left != rank + 1);
        let mut before = [7; 2];
        epoch.get_accumulate([0..1, 1..3], Op::Max, &[rank, 100 + rank], &mut before).unwrap();
        assert!(before[0] < size && (before[1] == 0 || before[1] >= 100), "{before:?}");
        epoch.unlock().unwrap();
        let epoch = table.fence().unwrap();
        assert_eq!(epoch.load([1, 3]).unwrap(), 20 * size);
        assert_eq!((epoch.load([0, 1]).unwrap(), epoch.load([0, 2]).unwrap()), (size - 1, 99 + size));
        let epoch = table.fence().unwrap();
        if rank == 0 {
            epoch.store([0, 0], -9).unwrap();
        }
        assert_eq!(table.fence().unwrap().load([0, 0]).unwrap(), -9);
    });
}

#[test]
fn invalid_offsets_and_lengths_are_refused() {
    on(&[1, 2], "invalid_offsets_and_lengths_are_refused", |world| {
        let mut table: GlobalArray<u32> = world.array([10], transom::Distribution::Block).unwrap();
        let epoch = table.lock_all().unwrap();
        let outside = |error: Error| matches!(error, Error::Array(ArrayError::Outside { .. }));
        assert!(outside(epoch.load(10).unwrap_err()) && outside(epoch.store(10, 1).unwrap_err()));
        assert!(outside(epoch.swap(10, 1).unwrap_err()) && outside(epoch.fetch_add(10, 1).unwrap_err()));
        let mut short = [7; 2];
        let error = epoch.get_accumulate(3..6, Op::Sum, &[1, 2, 3], &mut short).unwrap_err();
        let told = matches!(error, Error::Array(ArrayError::BufferLength { needed: 3, buffer: 2, .. }));
        assert!(told && short == [7; 2], "{error}");
        let mut three = [7; 3];
        let error = epoch.get_accumulate(3..6, Op::Sum, &[1, 2], &mut three).unwrap_err();
        assert!(matches!(error, Error::Array(ArrayError::BufferLength { needed: 3, buffer: 2, .. })), "{error}");
        epoch.unlock().unwrap();
        let mut all = [9; 10];
        table.fence().unwrap().get(0..10, &mut all).unwrap();
        assert_eq!(all, [0; 10], "refused call changed elements");
    });
}

/// The elements are 8 MiB together, more than a thread's stack.
#[test]
fn large_elements_are_visited_without_stack_overflow() {
    const BYTES: usize = 16 << 10;
    on(&[1, 2], "large_elements_are_visited_without_stack_overflow", |world| {
        let elements: GlobalArray<[u8; BYTES]> = world.array([600], transom::Distribution::Block).unwrap();
        elements.local().fill_with(|[i]| [i as u8; BYTES]).unwrap();
        let mut seen = 0;
        let each = |[i]: [usize; 1], element: [u8; BYTES]| {
            assert_eq!((element[0], element[BYTES - 1]), (i as u8, i as u8));
            seen += 1;
        };
        elements.local().for_each(each).unwrap();
        assert_eq!(seen, 600 / world.size());
    });
}
