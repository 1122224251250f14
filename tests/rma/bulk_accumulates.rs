//! Accumulates under a lock of their own, in windows that are told to have long ones.

use crate::arithmetic;
use crate::ranks;

use arithmetic::Model;
use transom::provider::Provider;
use transom::windows::Target;
use transom::{Atomic, Error, Op, Window, World};

/// The same elements in every flavour of memory, zero.
fn windows<T: Atomic>(world: &World, len: usize) -> [Window<T>; 2] {
    let mut windows = [world.allocate(len).unwrap(), world.create(vec![T::zeroed(); len]).unwrap()];
    for window in &mut windows {
        window.bulk_accumulates().unwrap();
        window.bulk_accumulates().unwrap(); // is so already
    }
    windows
}

#[test]
fn nothing_is_lost_in_epochs_of_any_kind() {
    fn check<T: Atomic + Model + PartialEq + std::fmt::Debug>(world: &World, small: fn(u8) -> T) {
        // Longer than what is moved at a time, after a part whose elements each have an operation of their own.
        let long = 4096 / size_of::<T>() + 3;
        let (rounds, n, last) = (ranks::rounds(16), world.size(), world.size() - 1);
        let ops = [Op::Sum, Op::Min, Op::Max];
        for mut window in windows::<T>(world, 4 + long) {
            for round in 0..rounds {
                let change = |target: &Target<T, Provider>| {
                    for (at, op) in ops.into_iter().enumerate() {
                        target.fetch_and_op(at, op, small(1)).unwrap();
                    }
                    let mut seen = target.fetch_and_op(3, Op::NoOp, small(0)).unwrap();
                    loop {
                        let found = target.compare_and_swap(3, seen, T::model(Op::Sum, seen, small(1))).unwrap();
                        if found == seen {
                            break;
                        }
                        seen = found;
                    }
                    target.accumulate(4, Op::NoOp, &vec![small(1); long]).unwrap();
                    target.accumulate(4, Op::Sum, &vec![small(1); long]).unwrap();
                };
                // Every rank opens the same kind of epoch in a round: kinds may not be mixed.
                match round % 4 {
                    0 => change(&window.lock_shared(last).unwrap()),
                    1 => change(&window.lock_exclusive(last).unwrap()),
                    2 => change(&window.lock_all().unwrap().target(last).unwrap()),
                    _ => change(&window.fence().unwrap().target(last).unwrap()),
                }
                window.fence().unwrap();
            }
            let mut expected = vec![small((n * rounds) as u8); 4 + long];
            expected[1] = small(0);
            expected[2] = small(1);
            let mut found = vec![small(0); 4 + long];
            window.lock_shared(last).unwrap().get(0, &mut found).unwrap();
            let wrong = (0..4 + long).find(|&at| found[at] != expected[at]);
            assert!(wrong.is_none(), "element {wrong:?}: {:?}", wrong.map(|at| (found[at], expected[at])));
            window.free().unwrap();
        }
    }
    ranks::on_all_sizes("nothing_is_lost_in_epochs_of_any_kind", |world| {
        check::<u8>(&world, |small| small);
        check::<i16>(&world, i16::from);
        check::<f32>(&world, f32::from);
        check::<u64>(&world, u64::from);
    });
}

#[test]
fn a_call_is_atomic_as_a_whole() {
    ranks::on_all_sizes("a_call_is_atomic_as_a_whole", |world| {
        const LEN: usize = 1500; // three pieces
        for mut window in windows::<u64>(&world, LEN) {
            let (rounds, mut seen) = (ranks::rounds(100), vec![0; LEN]);
            let epoch = window.lock_all().unwrap();
            let target = epoch.target(0).unwrap();
            let mut before = None;
            for _ in 0..rounds {
                target.get_accumulate(0, Op::Sum, &[1; LEN], &mut seen).unwrap();
                assert!(seen.iter().all(|&ticket| ticket == seen[0]), "{:?}", &seen[..10]);
                assert!(before < Some(seen[0]), "{before:?}, then {}", seen[0]);
                before = Some(seen[0]);
                target.get_accumulate(0, Op::NoOp, &[1; LEN], &mut seen).unwrap();
                assert!(seen.iter().all(|&sum| sum == seen[0]), "{:?}", &seen[..10]);
            }
            epoch.unlock().unwrap();
            window.fence().unwrap();
            let sum = (world.size() * rounds) as u64;
            assert!(world.rank() > 0 || window.local().read(0, LEN).unwrap() == [sum; LEN]);
            window.free().unwrap();
        }
    });
}

#[test]
fn threads_of_a_rank_accumulate_at_once() {
    ranks::on(&[1, 2, 3], "threads_of_a_rank_accumulate_at_once", |world| {
        const LEN: usize = 100;
        for mut window in windows::<i32>(&world, LEN) {
            let rounds = ranks::rounds(200);
            let epoch = window.fence().unwrap();
            std::thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| {
                        let target = epoch.target(0).unwrap();
                        (0..rounds).for_each(|_| target.accumulate(0, Op::Sum, &[1; LEN]).unwrap());
                    });
                }
            });
            window.fence().unwrap();
            let sum = (3 * rounds * world.size()) as i32;
            assert!(world.rank() > 0 || window.local().read(0, LEN).unwrap() == [sum; LEN]);
            window.free().unwrap();
        }
    });
}

#[test]
fn what_is_refused_changes_nothing_and_keeps_no_lock() {
    ranks::on_all_sizes("what_is_refused_changes_nothing_and_keeps_no_lock", |world| {
        for mut window in windows::<f64>(&world, 5) {
            let epoch = window.fence().unwrap();
            let target = epoch.target(world.size() - 1).unwrap();
            for (offset, len) in [(5, 1), (4, 2), (0, 6), (usize::MAX, 1)] {
                let refused = target.accumulate(offset, Op::Sum, &vec![1.0; len]);
                assert!(matches!(refused, Err(Error::OutOfBounds { .. })), "{refused:?}");
            }
            let refused = [
                target.fetch_and_op(5, Op::Sum, 1.0).map(drop),
                target.compare_and_swap(5, 0.0, 1.0).map(drop),
                target.get_accumulate(0, Op::Sum, &[1.0; 2], &mut [0.0]),
                target.accumulate(0, Op::Xor, &[1.0]),
            ];
            assert!(refused.iter().all(Result::is_err), "{refused:?}");
            target.accumulate(0, Op::Sum, &[]).unwrap();
            window.fence().unwrap();
            assert_eq!(window.local().read(0, 5).unwrap(), [0.0; 5]);
            window.free().unwrap();
        }
    });
}

/// The lock is let go also if what it was taken for fails: who asks again is told of the death, not that it has the lock.
#[test]
fn one_that_fails_keeps_no_lock() {
    const VICTIM: usize = 1;
    let name = "one_that_fails_keeps_no_lock";
    let outcome = ranks::outcome_of(3, name, |world| {
        let [mut words, mut window] = windows::<u64>(&world, 600);
        let epoch = window.fence().unwrap();
        if world.rank() == VICTIM {
            // What it sent to those that are still in the fence would be lost with it.
            while words.local().get(0).unwrap() < 2 {
                std::thread::yield_now();
            }
            std::process::abort();
        }
        let told = words.lock_shared(VICTIM).unwrap();
        // Counted, it may die before it can answer that.
        let _ = told.fetch_and_op(0, Op::Sum, 1);
        let _ = told.unlock();
        let target = epoch.target(VICTIM).unwrap();
        for _ in 0..2 {
            let error = loop {
                if let Err(error) = target.accumulate(0, Op::Sum, &[1; 600]) {
                    break error;
                }
            };
            assert_eq!(error.lost_rank(), Some(VICTIM), "{error}");
        }
        epoch.target(world.rank()).unwrap().accumulate(0, Op::Sum, &[1; 600]).unwrap();
        assert_eq!(window.local().read(0, 600).unwrap(), [1; 600]);
    });
    if let Some(outcome) = outcome {
        ranks::only_failed(&outcome, VICTIM, transom::Status::Killed(6));
    }
}

#[test]
fn a_long_accumulate_takes_two_atomics() {
    ranks::on(&[1, 2], "a_long_accumulate_takes_two_atomics", |world| {
        let [mut window, _lent] = windows::<u64>(&world, 1000);
        window.fence().unwrap();
        if world.rank() == 0 {
            let before = window.counters();
            let epoch = window.lock_all().unwrap();
            epoch.target(0).unwrap().accumulate(0, Op::Sum, &[1; 1000]).unwrap();
            epoch.unlock().unwrap();
            let used = window.counters() - before;
            assert_eq!((used.word_cas, used.accumulates), (2, 1), "{used:?}");
        }
        window.fence().unwrap();
    });
}
