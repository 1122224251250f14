//! fetch_and_op and compare_and_swap, alone and racing, against the result of a sequence of them.

use crate::arithmetic;
use crate::ranks;
use arithmetic::Model;
use transom::{Atomic, Op, Window, World};

#[test]
fn fetch_and_op_of_any_type_matches_the_model() {
    fn check<T: Atomic + Model + PartialEq + std::fmt::Debug>(world: &World, first: T, operands: &[T]) {
        let mut window: Window<T> = world.allocate(3).unwrap();
        window.fence().unwrap();
        // Rank r is the only one that changes element 1 of the next rank.
        let next = (world.rank() + 1) % world.size();
        let epoch = window.lock_exclusive(next).unwrap();
        epoch.put(1, &[first]).unwrap();
        let mut expected = first;
        for op in T::OPERATIONS.iter().copied() {
            for &operand in operands {
                assert_eq!(epoch.fetch_and_op(1, op, operand).unwrap(), expected, "{op:?} {operand:?}");
                expected = T::model(op, expected, operand);
            }
        }
        assert_eq!(epoch.get_one(1).unwrap(), expected);
        assert_eq!([0, 2].map(|at| epoch.get_one(at).unwrap()), [T::zeroed(); 2], "adjacent elements changed");
    }
    ranks::on_all_sizes("fetch_and_op_of_any_type_matches_the_model", |world| {
        check::<u8>(&world, 5, &[0, 1, 3, u8::MAX, 1 << 7]);
        check::<i8>(&world, -5, &[0, 1, -3, i8::MAX, i8::MIN]);
        check::<u16>(&world, 5, &[0, 1, 3, u16::MAX, 1 << 15]);
        check::<i16>(&world, -5, &[0, 1, -3, i16::MAX, i16::MIN]);
        check::<u32>(&world, 5, &[0, 1, 3, u32::MAX, 1 << 31]);
        check::<i32>(&world, -5, &[0, 1, -3, i32::MAX, i32::MIN]);
        check::<u64>(&world, 5, &[0, 1, 3, u64::MAX, 1 << 63]);
        check::<i64>(&world, -5, &[0, 1, -3, i64::MAX, i64::MIN]);
        check::<f32>(&world, 0.5, &[0.0, 1.5, -3.25, 1e30, -1e-30]);
        check::<f64>(&world, 0.5, &[0.0, 1.5, -3.25, 1e300, -1e-300]);
    });
}

#[test]
fn racing_sums_draw_each_ticket_once() {
    ranks::on_all_sizes("racing_sums_draw_each_ticket_once", |world| {
        let each = ranks::rounds(2000);
        let n = world.size();
        let mut tickets: Window<u64> = world.allocate(1).unwrap();
        let mut drawn: Window<u64> = world.allocate(each * n).unwrap();
        let mut sums: Window<f64> = world.allocate(1).unwrap();
        drawn.fence().unwrap();
        let last = n - 1;
        for _ in 0..each {
            let ticket = tickets.lock_shared(last).unwrap().fetch_and_op(0, Op::Sum, 1).unwrap();
            drawn.lock_shared(0).unwrap().fetch_and_op(ticket as usize, Op::Sum, 1).unwrap();
            sums.lock_shared(last).unwrap().fetch_and_op(0, Op::Sum, 0.5).unwrap();
        }
        drawn.fence().unwrap();
        if world.rank() == 0 {
            assert!(drawn.local().read(0, each * n).unwrap().iter().all(|&times| times == 1));
        }
        let sum = sums.lock_shared(last).unwrap().get_one(0).unwrap();
        assert_eq!(sum, 0.5 * (each * n) as f64);
        drawn.fence().unwrap();
    });
}

#[test]
fn racing_swaps_have_one_winner_per_round() {
    ranks::on_all_sizes("racing_swaps_have_one_winner_per_round", |world| {
        let rounds = ranks::rounds(1000) as u64;
        let mut window: Window<u64> = world.allocate(2).unwrap();
        window.fence().unwrap();
        let mut won = 0;
        for round in 0..rounds {
            let epoch = window.lock_all().unwrap();
            let target = epoch.target(0).unwrap();
            let found = target.compare_and_swap(0, round, round + 1).unwrap();
            assert!(found <= rounds);
            won += u64::from(found == round);
            epoch.unlock().unwrap();
            // Waits until this round is decided.
            while window.lock_shared(0).unwrap().get_one(0).unwrap() <= round {}
        }
        window.lock_shared(0).unwrap().fetch_and_op(1, Op::Sum, won).unwrap();
        window.fence().unwrap();
        assert_eq!(window.lock_shared(0).unwrap().get_one(1).unwrap(), rounds);
        window.fence().unwrap();
    });
}

#[test]
fn compare_and_swap_needs_bitwise_equality() {
    fn check<T: Atomic + Model + PartialEq + std::fmt::Debug>(world: &World, [first, second, third]: [T; 3]) {
        let mut window: Window<T> = world.allocate(11).unwrap();
        window.fence().unwrap();
        let next = (world.rank() + 1) % world.size();
        let epoch = window.lock_exclusive(next).unwrap();
        for at in 0..11 {
            epoch.put(at, &[first]).unwrap();
            assert_eq!(epoch.compare_and_swap(at, second, third).unwrap(), first, "swap with an unequal comparand");
            assert_eq!(epoch.compare_and_swap(at, first, second).unwrap(), first, "swap with an equal comparand");
            assert_eq!(epoch.compare_and_swap(at, first, third).unwrap(), second, "swap with an unequal comparand");
            assert_eq!(epoch.get_one(at).unwrap(), second);
            assert!(at == 10 || epoch.get_one(at + 1).unwrap() == T::zeroed());
        }
    }
    ranks::on_all_sizes("compare_and_swap_needs_bitwise_equality", |world| {
        check::<u8>(&world, [1, 2, 3]);
        check::<i16>(&world, [-1, 2, -3]);
        check::<f32>(&world, [1.5, 2.0, -3.0]);
        check::<i64>(&world, [-1, 2, -3]);
        let mut window: Window<f32> = world.allocate(2).unwrap();
        window.fence().unwrap();
        let epoch = window.lock_exclusive(world.rank()).unwrap();
        epoch.put(0, &[f32::NAN, 0.0]).unwrap();
        assert!(epoch.compare_and_swap(0, f32::NAN, 1.0).unwrap().is_nan());
        assert_eq!(epoch.get_one(0).unwrap(), 1.0, "swap did not match a NaN of equal bits");
        assert_eq!(epoch.compare_and_swap(1, -0.0, 1.0).unwrap().to_bits(), 0);
        assert_eq!(epoch.get_one(1).unwrap(), 0.0, "swap matched 0 with -0");
    });
}
