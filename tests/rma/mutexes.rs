//! Arrays of values behind locks, created by all ranks together.

use crate::ranks;
use std::panic::{AssertUnwindSafe, catch_unwind};
use transom::{Error, World};

/// Each value has a lock of its own, at any home rank. Their number need not be a multiple of the number of ranks.
#[test]
fn each_mutex_of_an_array_counts_separately() {
    ranks::on_all_sizes("each_mutex_of_an_array_counts_separately", |world: World| {
        let (me, n) = (world.rank(), world.size());
        for len in [0, 1, n, 3 * n + 1] {
            // Only the home rank determines the first value.
            let value = |i: usize| {
                if i % n == me {
                    1000 * i as u64
                } else {
                    panic!("initial value of {i} requested at a rank that is not its home")
                }
            };
            let mutexes = world.mutexes(len, value).unwrap();
            assert_eq!(mutexes.len(), len);
            let homes: Vec<_> = mutexes.iter().map(|mutex| mutex.home()).collect();
            assert_eq!(homes, (0..len).map(|i| i % n).collect::<Vec<_>>());
            let rounds = ranks::rounds(100);
            for round in 0..rounds {
                for (i, mutex) in mutexes.iter().enumerate().skip((me + round) % 3) {
                    *mutex.lock().unwrap() += i as u64;
                }
            }
            world.barrier().unwrap();
            let rounds_of = |i: usize| -> u64 {
                let skipped_less = |rank: usize| (0..rounds).filter(|round| (rank + round) % 3 <= i).count() as u64;
                (0..n).map(skipped_less).sum()
            };
            for (i, mutex) in mutexes.iter().enumerate() {
                assert_eq!(*mutex.lock().unwrap(), 1000 * i as u64 + i as u64 * rounds_of(i), "number {i} of {len}");
            }
            world.barrier().unwrap();
        }
    });
}

/// Two values of one array: a lock of one is no lock of the other.
#[test]
fn one_thread_may_hold_several_array_locks() {
    ranks::on_all_sizes("one_thread_may_hold_several_array_locks", |world: World| {
        let n = world.size();
        let cells = world.rw_locks(4 * n, |_| [0u16; 50]).unwrap(); // longer than some words
        for round in 0..ranks::rounds(50) {
            // Locks are taken in ascending order, so that no cycle of waits arises.
            let (low, high) = (round % (2 * n), 2 * n + (world.rank() + round) % (2 * n));
            let mut one = cells[low].write().unwrap();
            let mut other = cells[high].write().unwrap();
            one[49] += 1;
            other[49] += 1;
            let again = cells[low].try_read().map(drop).unwrap_err();
            let named = format!("rw_lock {low} of array {} at rank {}: this", cells[0].id(), low % n);
            assert!(again.to_string().starts_with(&named), "{again}");
            other.unlock().unwrap();
            one.unlock().unwrap();
        }
        world.barrier().unwrap();
        let sum: usize = cells.iter().map(|cell| usize::from(cell.read().unwrap()[49])).sum();
        assert_eq!(sum, 2 * n * ranks::rounds(50));
        world.barrier().unwrap();
    });
}

/// Errors name the mutex.
#[test]
fn panic_poisons_one_mutex_of_an_array() {
    ranks::on_all_sizes("panic_poisons_one_mutex_of_an_array", |world: World| {
        let n = world.size();
        let before = world.mutex(0, 0u8).unwrap();
        let mutexes = world.mutexes(2 * n, |_| 0u8).unwrap();
        let after = world.mutex(0, 0u8).unwrap();
        assert_eq!(after.id(), before.id() + 1 + 2 * n as u32, "mutexes of the array do not have consecutive ids");
        let last = 2 * n - 1;
        if world.rank() == 0 {
            let locked = || {
                let _guard = mutexes[last].lock().unwrap();
                panic!("on purpose");
            };
            assert!(catch_unwind(AssertUnwindSafe(locked)).is_err());
        }
        world.barrier().unwrap();
        let number = before.id() + 1 + last as u32;
        for (i, mutex) in mutexes.iter().enumerate() {
            match mutex.lock() {
                Ok(_) if i < last => {}
                Err(Error::Poisoned { value }) if i == last => {
                    assert_eq!((value.id, value.index, value.home), (number, Some(last), n - 1));
                }
                other => panic!("{i}: {:?}", other.map(|guard| *guard)),
            }
        }
        world.barrier().unwrap();
    });
}

#[test]
fn mismatched_mutex_arrays_are_refused() {
    ranks::on_all_sizes("mismatched_mutex_arrays_are_refused", |world: World| {
        let (me, n) = (world.rank(), world.size());
        let error = world.mutexes(2, |_| ()).map(drop).unwrap_err();
        assert!(matches!(error, Error::Size { what: "mutexes", .. }), "{error}");
        assert!(
            matches!(world.mutexes(usize::MAX / 2, |_| 0u8), Err(Error::Size { .. })),
            "array with too many mutexes was made"
        );
        if n > 1 {
            let error = world.mutexes(10 + usize::from(me == 1), |_| 0u8).map(drop).unwrap_err().to_string();
            assert!(error.contains("of 10 values (mutexes or rw_locks) of u8"), "{error}");
            // Numbers are the same at all ranks again.
            assert_eq!(*world.mutex(0, 7).unwrap().lock().unwrap(), 7);
            let one_alone = if me == 1 { world.mutexes(0, |_| 0u8).map(drop) } else { world.mutex(0, 0u8).map(drop) };
            let error = one_alone.unwrap_err().to_string();
            assert!(error.contains("(mutex or rw_lock) of u8 at rank 0, rank 1 makes array 4 of 0 values"), "{error}");
        }
        let good = world.mutexes(3, |i| i).unwrap();
        assert_eq!(*good[2].lock().unwrap(), 2);
        world.barrier().unwrap();
    });
}
