//! Assertions of programs. In every build a true assertion saves the documented operations, and an assertion that the
//! call does not accept is refused. In debug builds a false assertion is an error only at the rank that made it.

use crate::ranks;
use transom::windows::Assert;
use transom::{Counters, Error, Mode, Op, Window, World};

const CHECKED: bool = cfg!(debug_assertions);

/// The error names the call and the assertion.
fn is_wrong<T>(outcome: Result<T, Error>, call: &str, asserted: Assert) {
    match outcome.map(drop) {
        Err(Error::Assertion { call: named, asserted: found, .. }) => assert_eq!((named, found), (call, asserted)),
        other => panic!("{call} with {asserted:?}: {other:?}"),
    }
}

/// Returns the error in debug builds; other builds trust the assertion.
fn is_wrong_if_checked<T>(outcome: Result<T, Error>, call: &str, asserted: Assert) {
    if CHECKED {
        is_wrong(outcome, call, asserted)
    } else {
        drop(outcome.expect("an unchecked assertion should be trusted"))
    }
}

fn cost(window: &mut Window<u64>, call: impl FnOnce(&mut Window<u64>)) -> Counters {
    let before = window.counters();
    call(window);
    window.counters() - before
}

#[test]
fn valid_assertions_save_documented_operations() {
    ranks::on_all_sizes("valid_assertions_save_documented_operations", |world| {
        let (me, n) = (world.rank(), world.size());
        let mut window: Window<u64> = world.allocate(n).unwrap();
        let mut others: Vec<usize> = (0..n).collect();
        others.rotate_left(me);

        // Fences: no operation before the first, none after the last, and no put to the first rank's part in between.
        let noput = if me == 0 { Assert::NOPUT } else { Assert::empty() };
        let epoch = window.fence_with(Assert::NOPRECEDE | Assert::NOSTORE | noput).unwrap();
        for &rank in others.iter().filter(|&&rank| rank > 0) {
            epoch.target(rank).unwrap().put(me, &[me as u64 + 1]).unwrap();
        }
        let rounds = u64::from(n.next_power_of_two().ilog2());
        let last = cost(&mut window, |w| _ = w.fence_with(Assert::NOSUCCEED | Assert::NOSTORE).unwrap());
        assert_eq!(last, Counters { fences: 1, notifications: rounds, ..Counters::default() });
        let expected: Vec<u64> = (0..n as u64).map(|rank| if me == 0 { 0 } else { rank + 1 }).collect();
        assert_eq!(window.local().read(0, n).unwrap(), expected);

        // Post and start send no notification. Debug builds do, to check the assertion.
        world.barrier().unwrap();
        let post = cost(&mut window, |w| w.post_with(&others, Assert::NOCHECK | Assert::NOSTORE).unwrap());
        let told = if CHECKED { n as u64 - 1 } else { 0 };
        assert_eq!(post, Counters { notifications: told, ..Counters::default() });
        world.barrier().unwrap();
        let access = cost(&mut window, |w| {
            let epoch = w.start_with(&others, Assert::NOCHECK).unwrap();
            epoch.target((me + 1) % n).unwrap().put(0, &[5]).unwrap();
            epoch.complete().unwrap();
            w.wait().unwrap();
        });
        assert_eq!(access, Counters { puts: 1, notifications: n as u64 - 1, ..Counters::default() });
        assert_eq!(window.local().get(0).unwrap(), 5);
        // Then calls without assertions: counts continue where they were.
        window.post(&others).unwrap();
        window.start(&others).unwrap().complete().unwrap();
        window.wait().unwrap();

        // Locks.
        let lock = |adds, locks, flushes| match CHECKED {
            true => Counters { locks, word_adds: adds, ..Counters::default() },
            false => Counters { flushes, ..Counters::default() },
        };
        for round in 0..n {
            world.barrier().unwrap();
            if round == me {
                let exclusive = cost(&mut window, |w| {
                    w.lock_with((me + 1) % n, Mode::Exclusive, Assert::NOCHECK).unwrap().unlock().unwrap();
                });
                let taken = Counters { locks: 1, word_cas: exclusive.word_cas, ..Counters::default() };
                assert_eq!(exclusive, if CHECKED { taken } else { lock(0, 0, 1) });
            }
        }
        world.barrier().unwrap();
        // The put is visible when the epoch has ended, as if the lock had been taken.
        let next = (me + 1) % n;
        let epoch = window.lock_with(next, Mode::Shared, Assert::NOCHECK).unwrap();
        epoch.put(0, &[100 + me as u64]).unwrap();
        epoch.unlock().unwrap();
        world.barrier().unwrap();
        window.sync();
        let before = (me + n - 1) % n;
        assert_eq!(window.local().get(0).unwrap(), 100 + before as u64);
        world.barrier().unwrap();
        let epoch = window.lock_all_with(Assert::NOCHECK).unwrap();
        epoch.target(next).unwrap().put(0, &[200 + me as u64]).unwrap();
        epoch.unlock().unwrap();
        world.barrier().unwrap();
        window.sync();
        assert_eq!(window.local().get(0).unwrap(), 200 + before as u64);
        world.barrier().unwrap();
        // Shared locks do not exclude each other. The ranks lock one after the other, for exact counts.
        let shared = cost(&mut window, |w| {
            let epoch = w.lock_with(0, Mode::Shared, Assert::NOCHECK).unwrap();
            epoch.fetch_and_op(1 % n, Op::Sum, 1).unwrap();
            world.barrier().unwrap(); // all hold it
            epoch.unlock().unwrap();
        });
        // In shared memory a first short accumulate is admitted and leaves; over a network it stays admitted.
        let admissions = if window.local().of(0).is_ok() { 2 } else { 1 };
        let held = lock(2, 1, 1);
        assert_eq!(shared, Counters { atomics: 1, word_adds: held.word_adds + admissions, ..held });
        world.barrier().unwrap();
        let all = cost(&mut window, |w| {
            let epoch = w.lock_all_with(Assert::NOCHECK).unwrap();
            world.barrier().unwrap();
            epoch.unlock().unwrap();
        });
        assert_eq!(all, lock(2 * n as u64, n as u64, n as u64));
        world.barrier().unwrap();
    });
}

#[test]
fn inapplicable_assertions_are_refused() {
    ranks::on_all_sizes("inapplicable_assertions_are_refused", |world| {
        let me = world.rank();
        let mut window: Window<u64> = world.allocate(1).unwrap();
        let means = |call: &str| match call {
            "fence" => Assert::NOSTORE | Assert::NOPUT | Assert::NOPRECEDE | Assert::NOSUCCEED,
            "post" => Assert::NOCHECK | Assert::NOSTORE | Assert::NOPUT,
            _ => Assert::NOCHECK,
        };
        for asserted in (0..32).map(Assert::from_bits_retain) {
            for call in ["fence", "post", "start", "lock", "lock_all"] {
                let unknown = asserted.difference(means(call));
                if unknown.is_empty() {
                    continue;
                }
                match call {
                    "fence" => is_wrong(window.fence_with(asserted), call, unknown),
                    "post" => is_wrong(window.post_with(&[me], asserted), call, unknown),
                    "start" => is_wrong(window.start_with(&[me], asserted), call, unknown),
                    "lock" => is_wrong(window.lock_with(me, Mode::Exclusive, asserted), call, unknown),
                    _ => is_wrong(window.lock_all_with(asserted), call, unknown),
                }
            }
        }
        is_wrong(window.fence_with(Assert::from_bits_retain(0x80)), "fence", Assert::from_bits_retain(0x80));
        // The refused calls have opened no epoch.
        assert!(window.wait().is_err());
        window.lock_exclusive(me).unwrap().unlock().unwrap();
        window.lock_all().unwrap().unlock().unwrap();
        window.post(&[me]).unwrap();
        window.start(&[me]).unwrap().complete().unwrap();
        window.wait().unwrap();
        window.fence().unwrap();
    });
}

#[test]
fn false_fence_assertion_fails_only_its_rank() {
    ranks::on_all_sizes("false_fence_assertion_fails_only_its_rank", |world| {
        let (me, n) = (world.rank(), world.size());
        let mut window: Window<u64> = world.allocate(n).unwrap();
        for wrong in 0..n {
            // The rank has stored and put, and asserts a flag that a fence does not take.
            window.fence().unwrap();
            if me == wrong {
                window.local().set(0, 1).unwrap();
                is_wrong_if_checked(window.fence_with(Assert::NOSTORE), "fence", Assert::NOSTORE);
                // The refused fence still synchronised: no store has happened since.
                window.fence_with(Assert::NOSTORE).unwrap();
                window.lock_exclusive((me + 1) % n).unwrap().put(1 % n, &[2]).unwrap();
                window.fence_with(Assert::NOPRECEDE).unwrap(); // the unlock synchronised
                let epoch = window.fence().unwrap();
                epoch.target((me + 1) % n).unwrap().put(1 % n, &[3]).unwrap();
                is_wrong_if_checked(window.fence_with(Assert::NOPRECEDE), "fence", Assert::NOPRECEDE);
                is_wrong(window.fence_with(Assert::NOCHECK), "fence", Assert::NOCHECK);
            } else {
                for _ in 0..6 {
                    window.fence().unwrap();
                }
            }
            window.fence().unwrap();
        }
        assert_eq!(window.local().get(1 % n).unwrap(), 3);
        window.fence().unwrap();
    });
}

#[test]
fn operation_after_nosucceed_fence_is_refused() {
    ranks::on_all_sizes("operation_after_nosucceed_fence_is_refused", |world| {
        let mut window: Window<u64> = world.allocate(1).unwrap();
        let epoch = window.fence_with(Assert::NOSUCCEED).unwrap();
        is_wrong_if_checked(epoch.target(0).map(drop), "fence", Assert::NOSUCCEED);
        assert_eq!(epoch.local().get(0).unwrap(), 0, "local load after the last fence differs");
        let epoch = window.fence().unwrap();
        epoch.target(0).unwrap().get_one(0).unwrap();
        window.fence().unwrap();
    });
}

#[test]
fn put_despite_noput_is_detected_by_its_target() {
    ranks::on_all_sizes("put_despite_noput_is_detected_by_its_target", |world| {
        let (me, n) = (world.rank(), world.size());
        let mut window: Window<u64> = world.allocate(9000).unwrap();
        let previous = (me + n - 1) % n;
        for at in [0, 4096, 8999] {
            // Epochs by fences.
            let epoch = window.fence_with(Assert::NOPUT).unwrap();
            world.barrier().unwrap(); // all have read their parts
            let target = epoch.target((me + 1) % n).unwrap();
            target.put(at, &[1 + me as u64]).and(target.flush()).unwrap();
            world.barrier().unwrap(); // it is there before they read again
            is_wrong_if_checked(window.fence(), "fence", Assert::NOPUT);
            assert_eq!(window.local().get(at).unwrap(), 1 + previous as u64, "put despite NOPUT did not arrive");
            window.fence().unwrap();

            // Epochs by post and wait.
            window.post_with(&[previous], Assert::NOPUT).unwrap();
            let epoch = window.start(&[(me + 1) % n]).unwrap();
            epoch.target((me + 1) % n).unwrap().accumulate(at, Op::Sum, &[5]).unwrap();
            epoch.complete().unwrap();
            is_wrong_if_checked(window.wait(), "wait", Assert::NOPUT);
            assert!(window.wait().is_err(), "wait succeeded without an exposure epoch");
            window.fence().unwrap();
        }
        // One assertion that holds, and one that is broken after a lock: the lock does not end the promise.
        let epoch = window.fence_with(Assert::NOPUT).unwrap();
        epoch.target((me + 1) % n).unwrap().get_one(0).unwrap();
        window.fence_with(Assert::NOPUT).unwrap();
        window.lock_shared(me).unwrap().unlock().unwrap();
        world.barrier().unwrap();
        window.lock_exclusive((me + 1) % n).unwrap().put(7, &[7]).unwrap();
        world.barrier().unwrap();
        is_wrong_if_checked(window.fence(), "fence", Assert::NOPUT);
        // A rank's own stores are not puts of others.
        window.fence_with(Assert::NOPUT).unwrap();
        window.local().set(1, 8).unwrap();
        window.fence().unwrap();
    });
}

#[test]
fn local_store_despite_nostore_is_detected() {
    ranks::on_all_sizes("local_store_despite_nostore_is_detected", |world| {
        let (me, n) = (world.rank(), world.size());
        let shared = ranks::share_memory(&world);
        let mut window: Window<u64> = if shared { world.allocate_shared(2) } else { world.allocate(2) }.unwrap();
        window.local().set(0, 1).unwrap();
        is_wrong_if_checked(window.post_with(&[], Assert::NOSTORE), "post", Assert::NOSTORE);
        if CHECKED {
            window.post(&[]).unwrap(); // nothing was posted
        }
        window.wait().unwrap();
        window.local().of(me).unwrap().set(0, 2).unwrap();
        is_wrong_if_checked(window.fence_with(Assert::NOSTORE), "fence", Assert::NOSTORE);
        window.local().set(0, 3).unwrap();
        window.sync();
        window.fence_with(Assert::NOSTORE).unwrap();
        // A store to another's part is no store to the rank's own part.
        if n > 1 && shared {
            window.local().of((me + 1) % n).unwrap().set(1, 4).unwrap();
            window.fence_with(Assert::NOSTORE).unwrap();
            assert_eq!(window.local().get(1).unwrap(), 4);
        }
        world.barrier().unwrap();
    });
}

#[test]
fn nocheck_start_before_its_post_is_detected() {
    ranks::on_all_sizes("nocheck_start_before_its_post_is_detected", |world| {
        let me = world.rank();
        let mut window: Window<u64> = world.allocate(1).unwrap();
        if CHECKED {
            is_wrong(window.start_with(&[me], Assert::NOCHECK), "start", Assert::NOCHECK);
        }
        world.barrier().unwrap();
        window.post_with(&[me], Assert::NOCHECK).unwrap();
        window.start_with(&[me], Assert::NOCHECK).unwrap().complete().unwrap();
        window.wait().unwrap();
        // A group is still checked in every build.
        assert!(matches!(window.start_with(&[me, me], Assert::NOCHECK), Err(Error::Sync { .. })));
        assert!(matches!(window.post_with(&[world.size()], Assert::NOCHECK), Err(Error::Sync { .. })));
        world.barrier().unwrap();
    });
}

/// One rank holds the lock until the other reports that its assertion was refused.
#[test]
fn nocheck_lock_of_a_held_lock_is_detected() {
    ranks::on(&[2, 3], "nocheck_lock_of_a_held_lock_is_detected", |world| {
        for call in ["lock", "lock_all"] {
            in_the_way(&world, call);
        }
    });
}

fn in_the_way(world: &World, call: &str) {
    let me = world.rank();
    let (mut window, mut news): (Window<u64>, Window<u64>) = (world.allocate(1).unwrap(), world.allocate(1).unwrap());
    // Timing decides whether the rank had to wait. The test repeats until it did.
    loop {
        if me == 1 {
            let epoch = window.lock_exclusive(0).unwrap();
            world.barrier().unwrap();
            std::thread::sleep(std::time::Duration::from_millis(20));
            epoch.unlock().unwrap();
        } else {
            world.barrier().unwrap();
        }
        if me == 0 {
            let outcome = match call {
                "lock" => window.lock_with(0, Mode::Shared, Assert::NOCHECK).map(drop),
                _ => window.lock_all_with(Assert::NOCHECK).map(drop),
            };
            if outcome.is_err() || !CHECKED {
                is_wrong_if_checked(outcome, call, Assert::NOCHECK);
                for rank in 0..world.size() {
                    news.lock_exclusive(rank).unwrap().put(0, &[1]).unwrap();
                }
            }
        }
        news.fence().unwrap();
        if news.local().get(0).unwrap() == 1 {
            break;
        }
    }
    // The lock was released: any rank can take it.
    window.lock_exclusive(0).unwrap().unlock().unwrap();
    window.lock_all().unwrap().unlock().unwrap();
    world.barrier().unwrap();
}
