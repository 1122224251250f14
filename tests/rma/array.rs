//! Global arrays: every range and tile against a sequential model, at the predicted cost; pointers, atomics, misuse.

use crate::patches;
use crate::ranks;
use patches::{all, any_distribution, any_patch, any_shape};
use std::ops::Range;
use transom::array::{ArrayError, Layout, LayoutError, Run};
use transom::{Distribution, Error, GlobalArray, GlobalPtr, Op, World};

/// One rank after another writes a random patch; after each, all read another, through each kind of epoch.
fn patches<const D: usize>(world: &World, random: &mut fastrand::Rng) {
    let (shape, distribution): ([usize; D], _) = (any_shape(random), any_distribution(random));
    let mut array: GlobalArray<u32, D> = world.array(shape, distribution).unwrap();
    let layout = *array.layout();
    let mut model = vec![0u32; layout.len()];
    let place = |index: [usize; D]| (0..D).fold(0, |place, d| place * shape[d] + index[d]);
    for round in 0..5 * world.size() {
        let patch = any_patch(random, shape);
        let values: Vec<u32> = all(patch.clone()).iter().map(|_| random.u32(..)).collect();
        let writer = round % world.size();
        let what = format!("{patch:?} of {layout:?}");
        let runs = layout.runs(patch.clone()).expect("the patch should be inside the array").count() as u64;
        let (sum, fetched) = (random.bool(), random.bool());
        if writer == world.rank() {
            let before = array.window().counters();
            let epoch = array.lock_all().unwrap();
            if sum && fetched {
                let mut before = vec![7; values.len()];
                epoch.get_accumulate(patch.clone(), Op::Sum, &values, &mut before).unwrap();
                let expected: Vec<u32> = all(patch.clone()).into_iter().map(|index| model[place(index)]).collect();
                assert_eq!(before, expected, "{what}");
            } else if sum {
                epoch.accumulate(patch.clone(), Op::Sum, &values).unwrap();
            } else {
                epoch.put(patch.clone(), &values).unwrap();
            }
            epoch.unlock().unwrap();
            let count = array.window().counters() - before;
            assert_eq!((count.puts, count.accumulates), if sum { (0, runs) } else { (runs, 0) }, "{what}");
        }
        for (index, value) in all(patch).into_iter().zip(&values) {
            let element = &mut model[place(index)];
            *element = if sum { element.wrapping_add(*value) } else { *value };
        }

        let epoch = array.fence().unwrap();
        let patch = any_patch(random, shape);
        let what = format!("{patch:?} of {layout:?}");
        let expected: Vec<u32> = all(patch.clone()).into_iter().map(|index| model[place(index)]).collect();
        let mut got = vec![0; expected.len()];
        epoch.get(patch.clone(), &mut got).unwrap();
        assert_eq!(got, expected, "{what}");
        let before = array.window().counters();
        got.fill(0);
        array.lock_all().unwrap().get(patch.clone(), &mut got).unwrap();
        assert_eq!(got, expected, "{what}");
        let count = array.window().counters() - before;
        let runs: Vec<Run> = layout.runs(patch.clone()).expect("the patch should be inside the array").collect();
        assert_eq!((count.gets, count.puts, count.atomics), (runs.len() as u64, 0, 0), "{what}");

        // A lock of one owner, and the local part, reach the owner's elements, and refuse others before a byte moves.
        let owners: Vec<usize> = runs.iter().map(|run| run.owner).collect();
        let owner = owners.first().copied().unwrap_or(0);
        let stranger = owners.iter().copied().find(|&other| other != owner);
        for locked in [true, false] {
            let me = array.window().rank();
            let mut got = vec![7; expected.len()];
            let (reached, outcome) = match locked {
                true => (owner, array.lock_shared(owner).unwrap().get(patch.clone(), &mut got)),
                false => (me, array.local().get(patch.clone(), &mut got)),
            };
            match outcome {
                Ok(()) => assert!(got == expected && owners.iter().all(|&owner| owner == reached), "{what}"),
                Err(Error::Array(ArrayError::NotReached { owner: other, reached: to, .. })) => {
                    assert!(to == [reached] && other != reached && owners.contains(&other), "{what}");
                    assert!(!locked || stranger.is_some(), "{what}");
                    assert!(got.iter().all(|&untouched| untouched == 7));
                }
                Err(error) => panic!("{error}"),
            }
        }

        // The parts of all ranks together are the model, tile by tile.
        let me = world.rank();
        for tile in layout.tiles_of(me) {
            let mut got = vec![0; tile.len()];
            array.local().get_tile(tile.index, &mut got).unwrap();
            let expected: Vec<u32> = all(tile.ranges.clone()).into_iter().map(|index| model[place(index)]).collect();
            assert_eq!(got, expected, "{tile:?} of {layout:?}");
            got.fill(0);
            array.local().get(tile.ranges.clone(), &mut got).unwrap();
            assert_eq!(got, expected, "{tile:?} of {layout:?}");
        }
        assert_eq!(array.window().local().len(), layout.part_len(me), "part has padding");
        array.fence().unwrap();
    }
}

#[test]
fn patches_agree_with_a_sequential_array() {
    ranks::on_all_sizes("patches_agree_with_a_sequential_array", |world| {
        for seed in 0..if cfg!(miri) { 1 } else { 6 } {
            let random = &mut fastrand::Rng::with_seed(seed); // the same at every rank
            patches::<1>(&world, random);
            patches::<2>(&world, random);
            patches::<3>(&world, random);
        }
    });
}

/// Rank 0 puts a long patch, the last rank gets another, and all check each element. The patch is longer than one
/// transfer. Its elements of type `T` are made of index and salt.
fn long_patches<T: bytemuck::Pod + PartialEq + std::fmt::Debug>(world: &World, make: impl Fn(usize, usize) -> T) {
    let random = &mut fastrand::Rng::with_seed(size_of::<T>() as u64); // the same at every rank
    let (me, n) = (world.rank(), world.size());
    let len = if cfg!(miri) { 100 } else { 60_000 / size_of::<T>() + 1_000 };
    for block in [1, 3, 5, 64, 1000, len.div_ceil(n)] {
        let mut array: GlobalArray<T> = world.array([len], Distribution::BlockCyclic([block])).unwrap();
        let owner = |i: usize| i / block % n;
        let elements = |patch: Range<usize>, salt| -> Vec<T> { patch.map(|i| make(i, salt)).collect() };
        for tile in array.layout().tiles_of(me) {
            array.local().put_tile(tile.index, &elements(tile.ranges[0].clone(), 0)).unwrap();
        }
        array.fence().unwrap();
        let (start, end) = (random.usize(0..len / 8), len - random.usize(0..len / 8));
        let before = array.window().counters();
        if me == 0 {
            array.lock_all().unwrap().put(start..end, &elements(start..end, 1)).unwrap();
        }
        let owners = |patch: Range<usize>| patch.map(owner).collect::<std::collections::BTreeSet<_>>().len() as u64;
        let puts = (array.window().counters() - before).puts;
        assert_eq!(puts, if me == 0 { owners(start..end) } else { 0 }, "blocks of {block}");
        let expected = |i: usize| make(i, usize::from((start..end).contains(&i)));
        let epoch = array.fence().unwrap();
        let some = random.usize(0..start + 1)..random.usize(end - 1..len);
        if me == n - 1 {
            for patch in [0..len, some] {
                let mut got = elements(patch.clone(), 2);
                epoch.get(patch.clone(), &mut got).unwrap();
                let wrong = patch.clone().zip(&got).find(|&(i, got)| *got != expected(i));
                assert_eq!(wrong, None, "{patch:?} in blocks of {block}");
            }
        }
        for tile in epoch.layout().tiles_of(me) {
            let mut mine = elements(tile.ranges[0].clone(), 2);
            epoch.local().get_tile(tile.index, &mut mine).unwrap();
            assert!(tile.ranges[0].clone().zip(mine).all(|(i, mine)| mine == expected(i)), "blocks of {block}");
        }
        let before = array.window().counters();
        array.lock_all().unwrap().get(start..end, &mut elements(start..end, 2)).unwrap();
        assert_eq!((array.window().counters() - before).gets, owners(start..end), "blocks of {block}");
        array.fence().unwrap();
    }
}

#[test]
fn long_patches_of_any_element_type_arrive() {
    ranks::on_all_sizes("long_patches_of_any_element_type_arrive", |world| {
        long_patches(&world, |i, salt| (i * 7 + salt) as u8);
        long_patches(&world, |i, salt| (i * 7 + salt) as u64);
        long_patches(&world, |i, salt| [i as u32, salt as u32, (i * 7) as u32]);
        long_patches(&world, |i, salt| [(i * 7 + salt) as u8; 100]);
    });
}

#[test]
fn long_array_accumulates_match_elementwise_ones() {
    ranks::on_all_sizes("long_array_accumulates_match_elementwise_ones", |world| {
        let (me, n) = (world.rank(), world.size());
        let len = if cfg!(miri) { 50 } else { 5000 };
        for distribution in [Distribution::Cyclic, Distribution::BlockCyclic([3])] {
            let mut array: GlobalArray<i32> = world.array([len], distribution).unwrap();
            array.fence().unwrap();
            let operands: Vec<i32> = (0..len).map(|i| (i * (me + 1)) as i32).collect();
            let (start, end) = (me, len - 2 * me);
            let before = array.window().counters();
            array.lock_all().unwrap().accumulate(start..end, Op::Sum, &operands[start..end]).unwrap();
            assert_eq!((array.window().counters() - before).accumulates, n as u64);
            let epoch = array.fence().unwrap();
            for i in (me..len).step_by(n) {
                let sum: usize =
                    (0..n).filter(|&rank| (rank..len - 2 * rank).contains(&i)).map(|rank| i * (rank + 1)).sum();
                assert_eq!(epoch.get_one(i).unwrap(), sum as i32, "element {i}");
            }
            array.fence().unwrap();
        }
    });
}

#[test]
fn element_or_tile_access_is_one_operation() {
    ranks::on_all_sizes("element_or_tile_access_is_one_operation", |world| {
        let (me, n) = (world.rank(), world.size());
        let mut array: GlobalArray<i64, 2> = world.array([10, 7], Distribution::BlockCyclic([4, 3])).unwrap();
        array.fence().unwrap();
        let before = array.window().counters();
        let epoch = array.lock_all().unwrap();
        for index in all([0..10, 0..7]) {
            assert_eq!(epoch.fetch_and_op(index, Op::Max, 0).unwrap(), 0);
        }
        epoch.unlock().unwrap();
        let count = array.window().counters() - before;
        assert_eq!((count.atomics, count.locks, count.gets), (70, n as u64, 0));

        array.fence().unwrap();
        let epoch = array.lock_all().unwrap();
        for index in all([0..10, 0..7]) {
            epoch.fetch_and_op(index, Op::Sum, 1 + me as i64).unwrap();
        }
        epoch.unlock().unwrap();
        array.fence().unwrap();
        // The rank that finds the sum takes it, once.
        let sum = (n * (n + 1) / 2) as i64;
        let epoch = array.lock_all().unwrap();
        for index in all([0..10, 0..7]) {
            let found = epoch.compare_and_swap(index, sum, -1).unwrap();
            assert!(found == sum || found == -1, "compare_and_swap found {found}, expected {sum} or -1");
        }
        epoch.flush().unwrap();
        epoch.unlock().unwrap();
        array.fence().unwrap();

        let before = array.window().counters();
        for tile in all(array.layout().tiles().map(|tiles| 0..tiles)) {
            let tile = array.layout().tile(tile).expect("the tile should exist");
            let mut got = vec![0; tile.len()];
            let epoch = array.lock_exclusive(tile.owner).unwrap();
            epoch.get_tile(tile.index, &mut got).unwrap();
            assert!(got.iter().all(|&element| element == -1));
            epoch.put_tile(tile.index, &got).unwrap();
            epoch.flush().unwrap();
            epoch.unlock().unwrap();
        }
        let count = array.window().counters() - before;
        assert_eq!((count.gets, count.puts, count.locks, count.flushes), (9, 9, 9, 9));

        array.fence().unwrap();
        let before = array.window().counters();
        for tile in array.layout().tiles_of(me) {
            let corner = [tile.ranges[0].start, tile.ranges[1].start];
            array.local().put_one(corner, 5).unwrap();
            assert_eq!(array.local().get_one(corner).unwrap(), 5);
        }
        assert_eq!(array.window().counters(), before, "access to the rank's own part was counted");
        array.fence().unwrap();
    });
}

#[test]
fn empty_and_tiny_arrays_work() {
    ranks::on_all_sizes("empty_and_tiny_arrays_work", |world| {
        let (me, n) = (world.rank(), world.size());
        let mut none: GlobalArray<u8> = world.array([0], Distribution::Block).unwrap();
        assert!(none.layout().is_empty() && none.window().local().is_empty());
        let epoch = none.fence().unwrap();
        epoch.put(0..0, &[]).unwrap();
        epoch.get(0..0, &mut []).unwrap();
        assert!(matches!(epoch.get_one(0), Err(Error::Array(ArrayError::Outside { array: 0, .. }))));
        assert!(matches!(epoch.get_tile([0], &mut []), Err(Error::Array(ArrayError::NoSuchTile { .. }))));
        assert!(epoch.local().put(0..1, &[1]).is_err());

        let mut flat: GlobalArray<u8, 2> = world.array([5, 0], Distribution::BlockCyclic([2, 2])).unwrap();
        flat.fence().unwrap().put([1..4, 0..0], &[]).unwrap();

        let mut one: GlobalArray<u64> = world.array([1], Distribution::Cyclic).unwrap();
        assert_eq!(one.layout().part_len(me), usize::from(me == 0));
        one.lock_all().unwrap().fetch_and_op(0, Op::Sum, 1).unwrap();
        assert_eq!(one.fence().unwrap().get_one(0).unwrap(), n as u64);
        one.fence().unwrap();
    });
}

#[test]
fn invalid_array_access_is_refused_without_effect() {
    ranks::on_all_sizes("invalid_array_access_is_refused_without_effect", |world| {
        let n = world.size();
        let mut array: GlobalArray<u64, 2> = world.array([6, 8], Distribution::BlockCyclic([2, 4])).unwrap();
        let mut line: GlobalArray<f32> = world.array([4], Distribution::Block).unwrap();
        let epoch = array.fence().unwrap();
        for index in [[6, 0], [0, 8], [usize::MAX, usize::MAX]] {
            assert!(
                matches!(epoch.put_one(index, 1), Err(Error::Array(ArrayError::Outside { array: 0, shape, .. })) if shape == [6, 8])
            );
            assert!(matches!(epoch.fetch_and_op(index, Op::Sum, 1), Err(Error::Array(ArrayError::Outside { .. }))));
            assert!(matches!(epoch.ptr(index), Err(Error::Array(ArrayError::Outside { .. }))));
        }
        for outside in [[0..7, 0..1], [0..1, 0..9], [7..7, 0..0], [usize::MAX - 1..usize::MAX, 0..1]] {
            let error = epoch.put(outside.clone(), &[1; 7]).unwrap_err();
            assert!(
                matches!(&error, Error::Array(ArrayError::Outside { ranges, .. }) if *ranges == outside),
                "{error}"
            );
        }
        #[allow(clippy::reversed_empty_ranges, reason = "the call must refuse the range")]
        let reversed = epoch.get([3..2, 0..1], &mut []);
        assert!(matches!(reversed, Err(Error::Array(ArrayError::Outside { .. }))), "{reversed:?}");
        for len in [0, 5, 7] {
            let short = epoch.put([1..3, 2..5], &vec![1; len]);
            assert!(
                matches!(short, Err(Error::Array(ArrayError::BufferLength { array: 0, needed: 6, buffer })) if buffer == len)
            );
            let mut short = vec![1; len];
            assert!(matches!(
                epoch.get_tile([0, 0], &mut short),
                Err(Error::Array(ArrayError::BufferLength { needed: 8, .. }))
            ));
            assert!(epoch.accumulate([1..3, 2..5], Op::Sum, &short).is_err());
        }
        assert!(
            matches!(epoch.put_tile([3, 0], &[1; 8]), Err(Error::Array(ArrayError::NoSuchTile { tiles, .. })) if tiles == [3, 2])
        );
        assert!(matches!(line.lock_all().unwrap().fetch_and_op(2, Op::And, 1.0), Err(Error::Operation { .. })));
        assert!(matches!(array.lock_shared(n).map(drop), Err(Error::NoSuchRank { .. })));

        // A lock at the wrong rank, and not the caller's own.
        let (owner, _) = array.layout().locate([3, 5]).expect("the element should be inside the array");
        for wrong in (0..n).filter(|&rank| rank != owner) {
            let epoch = array.lock_exclusive(wrong).unwrap();
            let refused = [
                epoch.put_one([3, 5], 1),
                epoch.fetch_and_op([3, 5], Op::Sum, 1).map(drop),
                epoch.compare_and_swap([3, 5], 0, 1).map(drop),
                epoch.put([0..6, 0..8], &[1; 48]),
                epoch.put_tile([1, 1], &[1; 8]),
                epoch.accumulate([3..4, 5..6], Op::Sum, &[1]),
            ];
            for error in refused.map(Result::unwrap_err) {
                assert!(
                    matches!(error, Error::Array(ArrayError::NotReached { array: 0, owner, ref reached }) if *reached == [wrong] && owner != wrong),
                    "{error}"
                );
            }
        }
        let mut all = [1; 48];
        array.fence().unwrap().get([0..6, 0..8], &mut all).unwrap();
        assert_eq!(all, [0; 48]);
        array.fence().unwrap();
    });
}

#[test]
fn mismatched_arrays_are_refused_at_all_ranks() {
    ranks::on(&[2, 3, 4, 8], "mismatched_arrays_are_refused_at_all_ranks", |world| {
        let (me, n) = (world.rank(), world.size());
        let last = me == n - 1;
        let told = world.array::<u64, 1>([if last { 7 } else { 8 }], Distribution::Block).map(drop);
        assert!(
            matches!(told, Err(Error::Array(ArrayError::Mismatch { rank })) if rank == if last { 0 } else { n - 1 }),
            "{told:?}"
        );
        let told = world.array::<u64, 1>([8], Distribution::BlockCyclic([usize::from(!last)])).map(drop);
        match told {
            Err(Error::Layout(LayoutError::Block { .. })) if last => {}
            Err(Error::Array(ArrayError::Mismatch { rank })) if !last && rank == n - 1 => {}
            other => panic!("{other:?}"),
        }
        let layout = Layout::new([8], Distribution::Block, n + 1).unwrap();
        let told = world.array_on::<u64, 1>(layout).map(drop);
        let Err(Error::Layout(error @ LayoutError::Grid { .. })) = told else { panic!("{told:?}") };
        assert!(error.to_string().contains(&format!("the product must be {n}")), "{error}");
        // Each call counts, at all ranks alike, also a refused one.
        let mut array = world.array::<u64, 1>([8], Distribution::Block).unwrap();
        assert_eq!(array.window().id(), 3);
        array.fence().unwrap();
    });
}

#[test]
fn team_array_spans_the_team_alone() {
    ranks::on_all_sizes("team_array_spans_the_team_alone", |world| {
        let (me, n) = (world.rank(), world.size());
        let team = world.split(Some(me as u64 % 2), 0).unwrap().expect("a colour was named");
        let mut array: GlobalArray<u64> = team.array([20], Distribution::Cyclic).unwrap();
        assert_eq!(array.layout().ranks(), team.size());
        for tile in array.layout().tiles_of(team.rank()) {
            array.local().put_tile(tile.index, &[me as u64]).unwrap();
        }
        let epoch = array.fence().unwrap();
        let mut all = [0; 20];
        epoch.get(0..20, &mut all).unwrap();
        let members: Vec<usize> = (0..n).filter(|rank| rank % 2 == me % 2).collect();
        assert!((0..20).all(|i| all[i] == members[i % members.len()] as u64), "{all:?}");
        array.fence().unwrap();
    });
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Node {
    value: u64,
    next: GlobalPtr<Node>,
}

// SAFETY: two words without padding, of which each may have any value.
unsafe impl bytemuck::Zeroable for Node {}
// SAFETY: as above.
unsafe impl bytemuck::Pod for Node {}

#[test]
fn concurrent_pushes_to_a_linked_list_lose_nothing() {
    ranks::on_all_sizes("concurrent_pushes_to_a_linked_list_lose_nothing", |world| {
        const EACH: usize = 20;
        let (me, n) = (world.rank(), world.size());
        let mut nodes: GlobalArray<Node, 2> = world.array([n, EACH], Distribution::Cyclic).unwrap();
        let mut head: GlobalArray<u64> = world.array([1], Distribution::Block).unwrap();
        let (list, top) = (nodes.lock_all().unwrap(), head.lock_all().unwrap());
        for i in 0..EACH {
            let node = list.ptr([me, i]).unwrap();
            assert_eq!(list.index_of(node).unwrap(), [me, i]);
            let mut next = top.get_one(0).unwrap();
            loop {
                let value = (me * EACH + i) as u64;
                list.put_one(node, Node { value, next: GlobalPtr::from_bits(next) }).unwrap();
                list.flush().unwrap();
                match top.compare_and_swap(0, next, node.to_bits()).unwrap() {
                    found if found == next => break,
                    found => next = found,
                }
            }
        }
        world.barrier().unwrap();
        let mut values = Vec::new();
        let mut at = GlobalPtr::from_bits(top.get_one(0).unwrap());
        while !at.is_null() {
            let node = list.get_one(at).unwrap();
            values.push(node.value);
            at = node.next;
        }
        values.sort();
        assert!(values.iter().copied().eq(0..(n * EACH) as u64), "{values:?}");
        world.barrier().unwrap();
    });
}

#[test]
fn forged_global_pointers_are_refused() {
    ranks::on_all_sizes("forged_global_pointers_are_refused", |world| {
        let mut array: GlobalArray<u32, 2> = world.array([3, 5], Distribution::Cyclic).unwrap();
        let other: GlobalArray<u32> = world.array([3], Distribution::Cyclic).unwrap();
        let foreign = other.ptr(2).unwrap();
        let epoch = array.fence().unwrap();
        for index in all([0..3, 0..5]) {
            let pointer = epoch.ptr(index).unwrap();
            assert_eq!(epoch.index_of(pointer).unwrap(), index);
            assert_eq!(GlobalPtr::from_bits(pointer.to_bits()), pointer);
        }
        let last = epoch.ptr([2, 4]).unwrap();
        let beyond = [last.to_bits() + 1, last.to_bits() | 0xffff_ffff_ffff, u64::MAX, 1 << 48, 1 << 63];
        let bad = beyond.map(GlobalPtr::from_bits).into_iter().chain([GlobalPtr::NULL, GlobalPtr::default(), foreign]);
        for pointer in bad {
            let refused = [
                epoch.get_one(pointer).map(drop),
                epoch.put_one(pointer, 1),
                epoch.fetch_and_op(pointer, Op::Sum, 1).map(drop),
                epoch.index_of(pointer).map(drop),
            ];
            for error in refused.map(Result::unwrap_err) {
                let Error::Array(ArrayError::Pointer { array: 0, pointer: bits, why }) = error else {
                    panic!("{error}")
                };
                assert_eq!(bits, pointer.to_bits());
                assert_eq!(why == "it is null", pointer.is_null(), "{why}");
            }
        }
        assert_eq!(
            format!("{:?} {:?}", GlobalPtr::<u32>::NULL, last),
            "GlobalPtr(null) GlobalPtr(array 0, element 14)"
        );
        // They are elements like others.
        let mut pointers: GlobalArray<GlobalPtr<u32>> = world.array([1], Distribution::Block).unwrap();
        assert!(pointers.fence().unwrap().get_one(0).unwrap().is_null());
        pointers.fence().unwrap();
        if world.rank() == 0 {
            pointers.local().put_one(0, last).unwrap();
        }
        assert_eq!(pointers.fence().unwrap().get_one(0).unwrap(), last);
        pointers.fence().unwrap();
    });
}
