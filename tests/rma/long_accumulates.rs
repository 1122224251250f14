//! Long accumulates, which change elements where no other update is admitted, beside short ones.

use crate::arithmetic;
use crate::ranks;

use arithmetic::Model;
use transom::provider::Provider;
use transom::windows::Target;
use transom::{Atomic, Error, Op, Window, World};

/// The same elements in every flavour of memory, zero.
fn windows<T: Atomic + Send + Sync>(world: &World, len: usize) -> [Window<T>; 2] {
    [world.allocate(len).unwrap(), world.create(vec![T::zeroed(); len]).unwrap()]
}

#[test]
fn long_accumulates_in_any_epoch_lose_nothing() {
    fn check<T: Atomic + Model + PartialEq + std::fmt::Debug + Send + Sync>(world: &World, small: fn(u8) -> T) {
        // Longer than one transfer, after a part whose elements have an operation of their own each.
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
            assert!(
                wrong.is_none(),
                "element {wrong:?}: (found, expected) is {:?}",
                wrong.map(|at| (found[at], expected[at]))
            );
            window.free().unwrap();
        }
    }
    ranks::on_all_sizes("long_accumulates_in_any_epoch_lose_nothing", |world| {
        check::<u8>(&world, |small| small);
        check::<i16>(&world, i16::from);
        check::<f32>(&world, f32::from);
        check::<u64>(&world, u64::from);
    });
}

#[test]
fn concurrent_threads_accumulate_exactly() {
    ranks::on(&[1, 2, 3], "concurrent_threads_accumulate_exactly", |world| {
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
fn refused_accumulate_keeps_no_internal_lock() {
    ranks::on_all_sizes("refused_accumulate_keeps_no_internal_lock", |world| {
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

/// A failed accumulate releases its internal lock: the next call reports the death, and not that the thread holds the
/// lock.
#[test]
fn failed_accumulate_keeps_no_internal_lock() {
    const VICTIM: usize = 1;
    let name = "failed_accumulate_keeps_no_internal_lock";
    let outcome = ranks::outcome_of(3, name, |world| {
        let [mut words, mut window] = windows::<u64>(&world, 600);
        let epoch = window.fence().unwrap();
        if world.rank() == VICTIM {
            // Messages that it sent to ranks that are still in the fence would be lost with it.
            while words.local().get(0).unwrap() < 2 {
                std::thread::yield_now();
            }
            std::process::abort();
        }
        let told = words.lock_shared(VICTIM).unwrap();
        // The victim counts this, and may die before it can answer.
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

/// Singles and runs of all ranks at one target, in phases of one kind and of both.
#[test]
fn short_and_long_accumulates_lose_nothing() {
    ranks::on_all_sizes("short_and_long_accumulates_lose_nothing", |world| {
        const LEN: usize = 600;
        for mut window in windows::<f64>(&world, LEN) {
            let (rounds, n) = (ranks::rounds(40), world.size());
            let epoch = window.lock_all().unwrap();
            let target = epoch.target(0).unwrap();
            let (mut singles, mut runs) = (0, 0);
            for round in 0..rounds {
                let (short, long) = [(25, 0), (0, 4), (3, 3), (1, 1)][(round + world.rank()) % 4];
                for at in 0..short {
                    target.fetch_and_op(at % 2 * (LEN - 1), Op::Sum, 1.0).unwrap();
                    target.accumulate(7, Op::Sum, &[1.0]).unwrap();
                }
                (0..long).for_each(|_| target.accumulate(0, Op::Sum, &[1.0; LEN]).unwrap());
                singles += short;
                runs += long;
                if round % 3 == 0 {
                    epoch.flush_all().unwrap();
                }
            }
            epoch.unlock().unwrap();
            let totals = world.all_gather(&[singles, runs]).unwrap();
            let [singles, runs] = [0, 1].map(|which| totals.iter().skip(which).step_by(2).sum::<usize>() as f64);
            window.fence().unwrap();
            if world.rank() == 0 {
                let found = window.local().read(0, LEN).unwrap();
                assert_eq!(found[0] + found[LEN - 1], singles + 2.0 * runs, "of {n} ranks");
                assert_eq!((found[7], found[8]), (singles + runs, runs));
            }
            window.fence().unwrap();
        }
    });
}

/// Threads of one rank at once: one stays admitted for short accumulates, and the others are not mistaken for it.
#[test]
fn threads_mixing_accumulate_lengths_lose_nothing() {
    ranks::on(&[1, 2], "threads_mixing_accumulate_lengths_lose_nothing", |world| {
        const LEN: usize = 100;
        let mut window = world.allocate::<f64>(LEN).unwrap();
        let rounds = ranks::rounds(300);
        let epoch = window.fence().unwrap();
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let epoch = &epoch;
                scope.spawn(move || {
                    let target = epoch.target(0).unwrap();
                    for round in 0..rounds {
                        match (round / 20 + thread) % 3 {
                            0 => target.accumulate(0, Op::Sum, &[1.0; LEN]).unwrap(),
                            _ => _ = target.fetch_and_op(3, Op::Sum, 1.0).unwrap(),
                        }
                    }
                });
            }
        });
        let long = (0..3).flat_map(|thread| (0..rounds).filter(move |round| (round / 20 + thread) % 3 == 0)).count();
        window.fence().unwrap();
        let (all, long) = ((3 * rounds * world.size()) as f64, (long * world.size()) as f64);
        if world.rank() == 0 {
            assert_eq!((window.local().get(3).unwrap(), window.local().get(4).unwrap()), (all, long));
        }
        window.fence().unwrap();
    });
}

/// Compare-and-swaps and fetch-and-adds that admission to the target takes.
fn admission(window: &mut Window<u64>, target: usize, body: impl FnOnce(&Target<u64, Provider>)) -> [u64; 2] {
    let before = window.counters();
    let epoch = window.lock_all().unwrap();
    let ranks = epoch.ranks() as u64;
    body(&epoch.target(target).unwrap());
    epoch.unlock().unwrap();
    let used = window.counters() - before;
    [used.word_cas, used.word_adds - 2 * ranks]
}

#[test]
fn accumulate_admission_costs_expected_operations() {
    ranks::on(&[1, 2], "accumulate_admission_costs_expected_operations", |world| {
        if !ranks::share_memory(&world) {
            return;
        }
        let (me, last) = (world.rank(), world.size() - 1);
        let long = |target: &Target<u64, Provider>| target.accumulate(0, Op::Sum, &[1; 1000]).unwrap();
        let singles = |target: &Target<u64, Provider>| {
            (0..100).for_each(|_| _ = target.fetch_and_op(0, Op::Sum, 1).unwrap());
        };
        let [mut window, mut lent] = windows::<u64>(&world, 1000);
        if me == 0 {
            assert_eq!(admission(&mut window, last, long), [1, 1], "long accumulate without others");
            assert_eq!(
                admission(&mut window, last, singles),
                [0, 33],
                "16 short accumulates admitted one by one, then one admission that stays"
            );
            assert_eq!(admission(&mut window, last, singles), [0, 0]);
            assert_eq!(admission(&mut window, last, long), [1, 1], "long accumulate beside the rank's own short ones");
            assert_eq!(admission(&mut window, last, singles), [0, 0]);
            assert_eq!(admission(&mut lent, last, long), [1, 1]);
            assert_eq!(admission(&mut lent, last, singles), [100, 100], "short accumulates on memory without atomics");
        }
        if world.size() == 2 {
            window.fence().unwrap();
            if me == 1 {
                assert_eq!(admission(&mut window, 1, long), [1, 2], "long accumulate while rank 0 is admitted");
            }
            // Rank 0 may be in the first fence when it is asked to leave; it leaves in the second.
            window.fence().unwrap();
            window.fence().unwrap();
            if me == 1 {
                assert_eq!(admission(&mut window, 1, long), [1, 1], "long accumulate after rank 0 has left");
            }
        }
        window.fence().unwrap();
    });
}

/// The thread of a dropped window leaves, and long accumulates of other ranks are alone.
#[test]
fn dropped_window_leaves_all_gates() {
    ranks::on(&[2], "dropped_window_leaves_all_gates", |world| {
        if !ranks::share_memory(&world) {
            return;
        }
        let mut window = world.allocate::<u64>(1000).unwrap();
        if world.rank() == 0 {
            let singles = |target: &Target<u64, Provider>| {
                (0..100).for_each(|_| _ = target.fetch_and_op(0, Op::Sum, 1).unwrap());
            };
            assert_eq!(admission(&mut window, 1, singles), [0, 33]);
            drop(window);
            world.barrier().unwrap();
        } else {
            world.barrier().unwrap();
            let long = |target: &Target<u64, Provider>| target.accumulate(0, Op::Sum, &[1; 1000]).unwrap();
            assert_eq!(admission(&mut window, 1, long), [1, 1]);
        }
    });
}
