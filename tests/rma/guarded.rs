//! Values behind locks: exact under contention, never torn, poisoned by a panic, an error after the holder's death;
//! and their cost.

use crate::ranks;
use ranks::Waiter;
use ranks::die;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};
use transom::shm_loopback::Loopback;
use transom::windows::{Delayed, ReadGuard, WriteGuard};
use transom::{Counters, Error, GlobalMutex, GlobalRwLock, Op, Status, Window, World, locks};

const IN_TIME: Duration = Duration::from_secs(1);
const VICTIM: usize = 1;

#[test]
fn counters_are_exact_under_contention() {
    ranks::on_all_sizes("counters_are_exact_under_contention", |world: World| {
        let each = if cfg!(miri) { 5 } else { ranks::rounds(1000) as u64 };
        let n = world.size();
        // Two values, behind both kinds of lock, with different homes.
        let mutex = world.mutex(n - 1, 5u64).unwrap();
        let rw_lock = world.rw_lock(0, [1u32; 3]).unwrap();
        for i in 0..each {
            let mut guard = mutex.lock().unwrap();
            *guard += 1;
            if i % 2 == 0 {
                guard.unlock().unwrap(); // the others are dropped
            }
            rw_lock.write().unwrap()[2] += 1;
        }
        world.barrier().unwrap();
        assert_eq!(*mutex.lock().unwrap(), 5 + each * n as u64);
        assert_eq!(*rw_lock.read().unwrap(), [1, 1, 1 + each as u32 * n as u32]);
    });
}

#[test]
fn threads_and_ranks_exclude_each_other() {
    ranks::on_all_sizes("threads_and_ranks_exclude_each_other", |world| {
        let each = if cfg!(miri) { 3 } else { ranks::rounds(200) as u64 };
        let lock = world.rw_lock(0, [0u64; 8]).unwrap();
        let count = || {
            for i in 0..each {
                lock.write().unwrap().iter_mut().for_each(|part| *part += 1);
                let guard = lock.read().unwrap();
                assert!(guard[0] > i && guard.iter().all(|part| *part == guard[0]), "torn: {guard:?}");
            }
        };
        std::thread::scope(|scope| {
            // Joined one by one: ThreadSanitizer sees a join, but not how a scope ends.
            for thread in [(); 3].map(|()| scope.spawn(count)) {
                thread.join().unwrap();
            }
        });
        world.barrier().unwrap();
        assert_eq!(*lock.read().unwrap(), [3 * each * world.size() as u64; 8]);
    });
}

/// An attempt returns `None` while another thread of this rank holds the lock. It is no error that all other ranks
/// have left.
#[test]
fn try_lock_works_after_all_other_ranks_left() {
    let name = "try_lock_works_after_all_other_ranks_left";
    ranks::on(&[1, 2, 4], name, |world| {
        let lock = world.rw_lock(0, 5_u64).unwrap();
        world.barrier().unwrap();
        if world.rank() > 0 {
            return; // leaves
        }
        let guard = lock.write().unwrap();
        let tries = || {
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_millis(400) {
                assert!(lock.try_write().unwrap().is_none());
                assert!(lock.try_read_for(Duration::from_millis(1)).unwrap().is_none());
            }
        };
        std::thread::scope(|scope| scope.spawn(tries).join().unwrap());
        drop(guard);
        assert_eq!(*lock.try_read().unwrap().expect("free lock should be granted"), 5);
    });
}

#[test]
fn concurrent_readers_see_no_torn_value() {
    ranks::on_all_sizes("concurrent_readers_see_no_torn_value", |world| {
        let each = if cfg!(miri) { 8 } else { ranks::rounds(2000) as u64 };
        let (me, n) = (world.rank(), world.size());
        // Every rank passes a value; the home rank's is used.
        let lock = world.rw_lock(n / 2, [me as u64; 8]).unwrap();
        let guard = lock.read().unwrap();
        world.barrier().unwrap(); // all hold it now
        assert_eq!(*guard, [(n / 2) as u64; 8]);
        guard.unlock().unwrap();
        for i in 0..each {
            if (i + me as u64).is_multiple_of(4) {
                let mut guard = lock.write().unwrap();
                let next = guard[0] + 1;
                *guard = [next; 8];
            } else {
                let guard = lock.read().unwrap();
                assert!(guard.iter().all(|part| *part == guard[0]), "torn: {guard:?}");
            }
        }
        world.barrier().unwrap();
        assert_eq!(lock.read().unwrap()[7], (n / 2) as u64 + each / 4 * n as u64);
    });
}

#[test]
fn guard_cost_matches_the_docs() {
    ranks::on_all_sizes("guard_cost_matches_the_docs", |world| {
        let (me, n) = (world.rank(), world.size());
        let lock = world.rw_lock(n - 1, [0u64; 8]).unwrap();
        let cost = |call: &dyn Fn() -> Result<(), Error>| {
            let before = lock.counters();
            call().unwrap();
            lock.counters() - before
        };
        let none = Counters::default();
        for rank in 0..n {
            if rank == me {
                // All others are in the barrier below and do not contend.
                cost(&|| lock.write()?.unlock()); // the first guess may be out of date
                let looked = Counters { locks: 1, gets: 1, word_cas: 2, ..none };
                assert_eq!(cost(&|| lock.write()?.unlock()), looked);
                let wrote = cost(&|| {
                    lock.write()?[3] += 1;
                    Ok(())
                });
                assert_eq!(wrote, Counters { puts: 1, ..looked });
                assert_eq!(cost(&|| lock.read()?.unlock()), Counters { locks: 1, gets: 1, word_adds: 2, ..none });
                assert_eq!(
                    cost(&|| lock.is_poisoned().map(|poisoned| assert!(!poisoned))),
                    Counters { gets: 1, ..none }
                );
                assert_eq!(cost(&|| lock.clear_poison()), Counters { puts: 1, flushes: 1, ..none });
            }
            world.barrier().unwrap();
        }
        assert_eq!(lock.read().unwrap()[3], n as u64);
    });
}

/// The error reports the value as poisoned and names no rank as lost. The lock is released again.
fn is_poisoned<G>(outcome: Result<G, Error>, home: usize) {
    let error = outcome.err().expect("locking a poisoned value should fail");
    let named = matches!(&error, Error::Poisoned { value } if (value.what, value.home) == ("rw_lock", home));
    assert!(named && error.lost_rank().is_none(), "{error}");
}

#[test]
fn panic_poisons_at_all_ranks_until_cleared() {
    ranks::on_all_sizes("panic_poisons_at_all_ranks_until_cleared", |world| {
        let (me, n) = (world.rank(), world.size());
        let (home, last) = (n / 2, n - 1);
        let lock = world.rw_lock(home, [1u64; 2]).unwrap();
        let panicked = |hold: &(dyn Fn() + Sync)| {
            // The holder is a thread of the rank, so that the rank lives on.
            assert!(std::thread::scope(|scope| scope.spawn(hold).join()).is_err());
        };
        if me == 0 {
            panicked(&|| {
                let _guard = lock.read().unwrap();
                panic!("a reader changes nothing");
            });
            assert!(!lock.is_poisoned().unwrap());
            panicked(&|| {
                let mut guard = lock.write().unwrap();
                guard[0] = 2;
                panic!("between the halves");
            });
        }
        world.barrier().unwrap();
        assert!(lock.is_poisoned().unwrap());
        is_poisoned(lock.write(), home);
        is_poisoned(lock.read(), home);
        assert_eq!(*lock.write_ignoring_poison().unwrap(), [2, 1]);
        let guard: ReadGuard<_, _> = lock.read_ignoring_poison().unwrap();
        assert_eq!(*guard, [2, 1]);
        guard.unlock().unwrap();
        world.barrier().unwrap();
        if me == last {
            let mut guard: WriteGuard<_, _> = lock.write_ignoring_poison().unwrap();
            guard[1] = 2;
            lock.clear_poison().unwrap(); // needs no lock, and none is free
            guard.unlock().unwrap();
        }
        world.barrier().unwrap();
        assert_eq!(*lock.write().unwrap(), [2, 2]);
        assert!(!lock.is_poisoned().unwrap());
        world.barrier().unwrap();
        // A holder that locked while it was already unwinding does not poison, as with std.
        struct Late<'l>(&'l GlobalRwLock<[u64; 2]>);
        impl Drop for Late<'_> {
            fn drop(&mut self) {
                self.0.write().unwrap()[0] += 1;
            }
        }
        panicked(&|| {
            let _late = Late(&lock);
            panic!("before the lock");
        });
        world.barrier().unwrap();
        assert_eq!(*lock.read().unwrap(), [2 + n as u64, 2]);
    });
}

/// The rank that cleared the poison may report it by any means. A channel, for example, orders no operations in
/// flight.
#[test]
fn cleared_poison_is_visible_to_a_notified_rank() {
    let (cleared, good) = std::sync::mpsc::channel();
    let mut ranks = Loopback::threads(2).unwrap();
    let (other, home) = (ranks.pop().unwrap(), ranks.pop().unwrap());
    let value = |fabric| {
        let fabric = Delayed::new(fabric).unwrap();
        transom::windows::GlobalMutex::new(&fabric, 0, 0, 1u64).unwrap()
    };
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let value = value(home);
            good.recv().unwrap();
            assert!(!value.is_poisoned().unwrap());
            good.recv().unwrap();
        });
        scope.spawn(move || {
            let value = value(other);
            let half = || {
                let _guard = value.lock().unwrap();
                panic!("between the halves");
            };
            assert!(catch_unwind(AssertUnwindSafe(half)).is_err() && value.is_poisoned().unwrap());
            value.clear_poison().unwrap();
            cleared.send(()).unwrap();
            cleared.send(()).unwrap();
        });
    });
}

/// Waits, without a lock, until the victim has poisoned the value: a rank that waits for a lock when a rank dies gets
/// an error.
fn await_poison(sign: &GlobalMutex<u8>) {
    while !sign.is_poisoned().unwrap() {
        std::thread::yield_now();
    }
}

fn with_a_death(name: &str, end: Status, body: impl Fn(World)) {
    for size in [2, 3, 4, 8] {
        let Some(outcome) = ranks::outcome_of(size, name, &body) else { return };
        ranks::only_failed(&outcome, VICTIM, end);
    }
}

#[test]
fn panic_ending_a_process_poisons_its_lock() {
    with_a_death("panic_ending_a_process_poisons_its_lock", Status::Exited(101), |world| {
        let (sign, lock) = (world.mutex(0, 0).unwrap(), world.rw_lock(0, [1u64; 2]).unwrap());
        if world.rank() == VICTIM {
            let _sign = sign.lock().unwrap(); // poisoned after the other is unlocked
            let mut guard = lock.write().unwrap();
            guard[0] = 2;
            panic!("between the halves");
        }
        await_poison(&sign);
        is_poisoned(lock.read(), 0);
        assert_eq!(*lock.read_ignoring_poison().unwrap(), [2, 1]);
    });
}

#[test]
fn panic_of_a_rank_thread_poisons_its_lock() {
    let ran = catch_unwind(|| {
        transom::threads(3, |world| {
            let lock = world.mutex(0, 1u64).unwrap();
            world.barrier().unwrap();
            if world.rank() == VICTIM {
                *lock.lock().unwrap() = 2;
                let _guard = lock.lock().unwrap();
                panic!("the victim");
            }
            while world.barrier().is_ok() {} // until the other rank is gone
            assert!(lock.is_poisoned().unwrap());
        })
    });
    let panic = ran.expect_err("the victim's panic should propagate");
    assert_eq!(panic.downcast_ref(), Some(&"the victim"));
}

#[test]
fn dead_lock_holder_is_named_in_time() {
    with_a_death("dead_lock_holder_is_named_in_time", Status::Killed(9), |world| {
        let (sign, lock) = (world.mutex(0, 0).unwrap(), world.rw_lock(0, 7u64).unwrap());
        // Number of waiting ranks, at rank 0.
        let mut waiting: Window<u64> = world.allocate(1).unwrap();
        let others = world.size() as u64 - 1;
        let mut until_all_wait = |one_more| {
            waiting.lock_shared(0).unwrap().fetch_and_op(0, Op::Sum, one_more).unwrap();
            while waiting.lock_shared(0).unwrap().get_one(0).unwrap() < others {
                std::thread::yield_now();
            }
        };
        if world.rank() == VICTIM {
            let _guard = lock.write().unwrap();
            let give = || {
                let _sign = sign.lock().unwrap();
                panic!("the sign");
            };
            assert!(catch_unwind(AssertUnwindSafe(give)).is_err());
            until_all_wait(0);
            die();
        }
        await_poison(&sign);
        let lost = |error: Error| assert_eq!(error.lost_rank(), Some(VICTIM), "{error}");
        // Threads of this rank as well: one waits, the other queues behind it.
        let waiters = [Waiter::default(), Waiter::default()];
        let told = lock.counters().notifications;
        let begun = std::thread::scope(|scope| {
            let threads = waiters.each_ref().map(|waiter| {
                scope.spawn(|| {
                    waiter.asks();
                    lost(lock.write().unwrap_err());
                })
            });
            waiters.iter().for_each(Waiter::until_it_waits);
            // The rank has notified the one that it waits for. Over a network it sleeps earlier, until there is a
            // connection.
            while lock.counters().notifications == told {
                std::thread::yield_now();
            }
            until_all_wait(1);
            let begun = Instant::now();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            begun
        });
        lost(lock.read().unwrap_err());
        assert!(begun.elapsed() < ranks::within(IN_TIME), "it took {:?}", begun.elapsed());
    });
}

/// The error names the object as the program made it, and the operation of its thread.
fn already<G>(outcome: Result<G, Error>, what: &str, id: u32, home: usize) {
    let error = outcome.err().expect("relocking by one thread should fail");
    assert!(matches!(error, Error::Value { source: locks::Error::AlreadyLocked { .. }, .. }), "{error}");
    let says = format!("{what} {id} at rank {home}: this thread has locked it already: drop that guard first");
    assert!(error.to_string().starts_with(&says), "{error}");
}

#[test]
fn relocking_by_one_thread_is_refused() {
    ranks::on_all_sizes("relocking_by_one_thread_is_refused", |world| {
        let home = world.size() - 1;
        let (mutex, rw_lock) = (world.mutex(home, 0u8).unwrap(), world.rw_lock(home, 0u8).unwrap());
        let guard = mutex.lock().unwrap();
        already(mutex.lock(), "mutex", mutex.id(), home);
        drop(guard);
        let guard = rw_lock.read().unwrap();
        already(rw_lock.read(), "rw_lock", rw_lock.id(), home);
        already(rw_lock.write(), "rw_lock", rw_lock.id(), home);
        drop(guard);
        *rw_lock.write().unwrap() += 1;
        world.barrier().unwrap();
        assert_eq!(usize::from(*rw_lock.read().unwrap()), world.size());
    });
}

#[test]
fn leaked_guard_locks_until_its_handle_is_dropped() {
    ranks::on_all_sizes("leaked_guard_locks_until_its_handle_is_dropped", |world| {
        let lock = world.mutex(0, 1u64).unwrap();
        let last = world.size() - 1;
        if world.rank() == last {
            let mut guard = lock.lock().unwrap();
            *guard = 2;
            std::mem::forget(guard);
        }
        world.barrier().unwrap();
        if world.rank() == last {
            already(lock.lock(), "mutex", lock.id(), 0);
            drop(lock);
        } else {
            assert_eq!(*lock.lock().unwrap(), 1, "value of a leaked guard was written back");
        }
        world.barrier().unwrap();
    });
}

#[test]
fn invalid_lock_creation_fails_at_all_ranks() {
    ranks::on_all_sizes("invalid_lock_creation_fails_at_all_ranks", |world| {
        let (me, n) = (world.rank(), world.size());
        let error = world.mutex(n, 0u8).unwrap_err();
        let says = format!("mutex 0 at rank {n}: there is no rank {n}; ranks are 0 to {}", n - 1);
        assert_eq!(error.to_string(), says);
        let error = world.rw_lock(0, ()).unwrap_err();
        assert!(matches!(error, Error::Size { what: "rw_lock", element: 0, .. }), "{error}");
        if n > 1 {
            assert!(world.mutex(me, 0u8).is_err(), "different home ranks should be refused");
            assert!(world.rw_lock(if me == 0 { usize::MAX } else { 0 }, 0u8).is_err());
        }
        // The next value can be made and locked.
        assert_eq!(*world.mutex(0, [1u8, 2, 3]).unwrap().lock().unwrap(), [1, 2, 3]);
    });
}

#[test]
fn locks_are_send_and_sync_and_guards_are_sync() {
    fn shared<T: Send + Sync>(_: &T) {}
    fn lent<T: Sync>(_: &T) {}
    let world = transom::init().unwrap();
    let (mutex, rw_lock) = (world.mutex(0, 1u64).unwrap(), world.rw_lock(0, 1u64).unwrap());
    shared(&mutex);
    shared(&rw_lock);
    lent(&mutex.lock().unwrap());
    lent(&rw_lock.read().unwrap());
}

/// A value may be larger than fits a stack many times over.
#[test]
fn large_values_are_locked_on_a_small_stack() {
    ranks::on(&[1, 2, 3], "large_values_are_locked_on_a_small_stack", |world| {
        let value = world.mutex(0, [7u8; 128 << 10]).unwrap();
        let work = || {
            let mut guard = value.lock().unwrap();
            guard[100_000] += 1;
            guard.unlock().unwrap();
        };
        // Less than four such values, for all copies of a call.
        let small = std::thread::Builder::new().stack_size(512 << 10);
        std::thread::scope(|scope| small.spawn_scoped(scope, work).unwrap().join().unwrap());
        world.barrier().unwrap();
        assert_eq!(value.lock().unwrap()[100_000] as usize, 7 + world.size());
    });
}
