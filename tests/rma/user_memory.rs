//! Windows on user memory (`World::create`): the memory is returned, takes accumulates, and outlives operations of
//! other ranks.

use crate::ranks;
use transom::{Atomic, Distribution, Error, FabricError, Op, World};

#[test]
fn user_memory_is_returned_with_remote_writes() {
    ranks::on_all_sizes("user_memory_is_returned_with_remote_writes", |world| {
        let (me, n) = (world.rank(), world.size());
        for len in [0, 1, n, 5000] {
            let mine: Vec<u64> = vec![me as u64; if me == 0 { len } else { n }];
            let (start, capacity) = (mine.as_ptr(), mine.capacity());
            let mut window = world.create(mine).unwrap();
            let epoch = window.lock_all().unwrap();
            let at_zero = epoch.target(0).unwrap();
            if me < at_zero.len() {
                at_zero.put(me, &[100 + me as u64]).unwrap();
            }
            epoch.unlock().unwrap();
            window.fence().unwrap();
            if me == 0 && len > 0 {
                window.local().set(0, 7).unwrap(); // its own stores too
            }
            let back = window.free().unwrap();
            assert_eq!((back.as_ptr(), back.capacity()), (start, capacity), "returned vector is a copy");
            let expected = |at: usize| match (me, at) {
                (0, 0) => 7,
                (0, at) if at < n => 100 + at as u64,
                _ => me as u64,
            };
            assert!(back.iter().enumerate().all(|(at, &element)| element == expected(at)), "{back:?}");
        }
    });
}

#[test]
fn user_memory_of_any_alignment_works() {
    ranks::on(&[1, 2, 3], "user_memory_of_any_alignment_works", |world| {
        fn check<T: bytemuck::Pod + PartialEq + std::fmt::Debug>(world: &World, len: usize, make: fn(usize) -> T) {
            let (me, n) = (world.rank(), world.size());
            let next = (me + 1) % n;
            let mut window = world.create(vec![make(0); len]).unwrap();
            let all: Vec<T> = (0..len).map(make).collect();
            for (offset, some) in [(0, len), (1, len - 1), (len - 1, 1), (len / 2, len / 3), (len / 3, 1)] {
                let epoch = window.lock_exclusive(next).unwrap();
                epoch.put(offset, &all[offset..][..some]).unwrap();
                let got = epoch.rget(offset, some).unwrap().wait().unwrap();
                assert_eq!(got, all[offset..][..some]);
                assert!(matches!(epoch.put(offset + 1, &all[..len - offset]), Err(Error::OutOfBounds { .. })));
                epoch.unlock().unwrap();
            }
            assert_eq!(window.free().unwrap(), all);
        }
        check::<u8>(&world, 3 * 4096 + 13, |i| (i * 7) as u8);
        check::<[u8; 3]>(&world, 5000, |i| [i as u8, (i >> 8) as u8, 9]);
        check::<u16>(&world, 4097, |i| i as u16);
        check::<[f64; 5]>(&world, 1001, |i| [i as f64; 5]);
        check::<u64>(&world, 1 << 16, |i| i as u64 * 0x0101_0101);
    });
}

#[test]
fn user_memory_accumulates_any_type_exactly() {
    fn check<T: Atomic + From<u8> + PartialEq + std::fmt::Debug>(world: &World, len: usize) {
        let n = world.size() as u8;
        let mut window = world.create(vec![T::zeroed(); len]).unwrap();
        let (one, zero) = (T::from(1), T::from(0));
        let epoch = window.fence().unwrap();
        for rank in 0..world.size() {
            let target = epoch.target(rank).unwrap();
            target.accumulate(0, Op::Sum, &vec![one; len]).unwrap();
            target.raccumulate(len - 1, Op::Sum, vec![one]).unwrap().wait().unwrap();
            target.fetch_and_op(len - 1, Op::Sum, one).unwrap();
            target.get_accumulate(len - 1, Op::Sum, &[one], &mut [zero]).unwrap();
            target.rget_accumulate(len - 1, Op::Sum, vec![one]).unwrap().wait().unwrap();
            while {
                let seen = target.fetch_and_op(len - 1, Op::NoOp, zero).unwrap();
                target.compare_and_swap(len - 1, seen, T::apply(Op::Sum, seen, one)).unwrap() != seen
            } {}
        }
        window.fence().unwrap();
        let back = window.free().unwrap();
        assert_eq!(back[len - 1], T::from(6 * n), "{}", std::any::type_name::<T>());
        assert!(back[..len - 1].iter().all(|&element| element == T::from(n)), "{back:?}");
    }
    ranks::on_all_sizes("user_memory_accumulates_any_type_exactly", |world| {
        check::<u8>(&world, 5);
        check::<i16>(&world, 3);
        check::<f32>(&world, 1);
        check::<f32>(&world, 7);
        check::<f64>(&world, 3);
        check::<u64>(&world, 2);
    });
}

#[test]
fn window_dropped_amid_writes_leaks_user_memory() {
    ranks::on(&[2, 3, 4], "window_dropped_amid_writes_leaks_user_memory", |world| {
        let mut window = world.create(vec![1u64; 3000]).unwrap();
        world.barrier().unwrap();
        if world.rank() == 0 {
            drop(window); // its memory is leaked
            let churn: Vec<Vec<u64>> = (0..50).map(|_| vec![7; 3000]).collect();
            world.barrier().unwrap();
            assert!(churn.iter().flatten().all(|&element| element == 7), "remote put wrote to reused memory");
        } else {
            let epoch = window.lock_shared(0).unwrap();
            for _ in 0..100 {
                epoch.put(0, &[9; 3000]).unwrap();
            }
            epoch.unlock().unwrap();
            world.barrier().unwrap();
        }
    });
}

/// Rank 0 frees the window while the others fence and go on: rank 0's memory must not be reused.
#[test]
fn free_beside_a_fence_is_refused() {
    ranks::on(&[2, 3, 4], "free_beside_a_fence_is_refused", |world| {
        let mut window = world.create(vec![1u64; 3000]).unwrap();
        if world.rank() == 0 {
            let error = window.free().unwrap_err();
            assert!(matches!(error, Error::Sync { call: "free", .. }), "{error}");
            assert!(error.to_string().contains("called fence instead"), "{error}");
            let churn: Vec<Vec<u64>> = (0..50).map(|_| vec![7; 3000]).collect();
            world.barrier().unwrap();
            assert!(churn.iter().flatten().all(|&element| element == 7), "remote put wrote to reused memory");
        } else {
            let epoch = window.fence().unwrap();
            for _ in 0..100 {
                epoch.target(0).unwrap().put(0, &[9; 3000]).unwrap();
            }
            world.barrier().unwrap();
        }
    });
}

/// Keys of user memory name the rank's process.
#[test]
fn key_of_another_process_is_refused() {
    use transom::windows::Fabric;
    for rank in transom::shm_loopback::Loopback::threads(2).unwrap() {
        let key = |pid: u32| [&pid.to_le_bytes()[..], &4096u64.to_le_bytes()].concat();
        for (rank_of, pid) in [(0, std::process::id() + 1), (1, 1), (0, 0), (1, u32::MAX), (2, std::process::id())] {
            let refused = rank.attach(rank_of, &key(pid), 8).map(drop);
            assert!(matches!(refused, Err(FabricError::BadKey { rank, .. }) if rank == rank_of), "{refused:?}");
        }
    }
}

/// Its window is replaced by one on the program's own elements, with signals; nothing may be written before these.
#[test]
fn array_on_user_memory_works() {
    ranks::on_all_sizes("array_on_user_memory_works", |world| {
        let (me, n) = (world.rank(), world.size());
        let mut array = world.array::<u64, 1>([8 * n], Distribution::Block).unwrap();
        *array.window_mut() = world.create_on(vec![me as u64; 8], 4).unwrap();
        let next = (me + 1) % n;
        let epoch = array.lock_all().unwrap();
        assert_eq!(epoch.get_one(8 * next + 5).unwrap(), next as u64);
        epoch.put_one(8 * next + 3, 100 + me as u64).unwrap();
        epoch.put(8 * next..8 * next + 2, &[200, 300]).unwrap();
        epoch.unlock().unwrap();
        array.fence().unwrap();
        let before = (me + n - 1) % n;
        let expected = [200, 300, me as u64, 100 + before as u64, me as u64, me as u64, me as u64, me as u64];
        let mut got = [0; 8];
        array.local().get(8 * me..8 * me + 8, &mut got).unwrap();
        assert_eq!(got, expected);
        let signals: Vec<u64> = (0..4).map(|at| array.window().signals().read(at).unwrap()).collect();
        assert_eq!(signals, [0; 4]);
        array.fence().unwrap();
    });
}
