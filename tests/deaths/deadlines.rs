//! Locks with a deadline: the deadline is kept, no rank waits for a request that was given up, and a later request is
//! served.

use crate::ranks;
use std::time::{Duration, Instant};
use transom::{Error, Mode, Op, Window, World};

const SOON: Duration = Duration::from_millis(60);
/// Longest time of a wait of `SOON` where ranks share cores.
const LATE: Duration = Duration::from_secs(5);
const MODES: [Mode; 2] = [Mode::Exclusive, Mode::Shared];

/// The request is not granted, and returns at its deadline, not before.
fn gives_up<T>(request: impl FnOnce(Duration) -> Result<Option<T>, Error>) {
    let begun = Instant::now();
    assert!(request(SOON).unwrap().is_none(), "lock granted although another rank holds it");
    let took = begun.elapsed();
    assert!(SOON <= took && took < ranks::within(LATE), "a wait of {SOON:?} took {took:?}");
}

#[test]
fn expired_lock_attempt_succeeds_when_repeated() {
    ranks::on(&[2, 3, 5], "expired_lock_attempt_succeeds_when_repeated", |world: World| {
        let mut window: Window<u64> = world.allocate(1).unwrap();
        let value = world.rw_lock(0, 5u64).unwrap();
        for mode in MODES {
            if world.rank() == 0 {
                let (epoch, guard) = (window.lock_exclusive(1).unwrap(), value.write().unwrap());
                world.barrier().unwrap();
                world.barrier().unwrap();
                drop((epoch, guard));
            } else {
                world.barrier().unwrap();
                for mode in [mode, Mode::Shared, Mode::Shared] {
                    gives_up(|limit| window.try_lock_for(1, mode, limit));
                }
                gives_up(|limit| window.try_lock_all_for(limit));
                gives_up(|limit| window.try_lock_ranks_for(&[(1, mode), (0, mode)], limit));
                // A call that gave up holds none of its locks.
                window.lock_exclusive(0).unwrap().unlock().unwrap();
                gives_up(|limit| value.try_read_for(limit));
                gives_up(|limit| value.try_write_for(limit));
                assert!(window.try_lock_for(1, mode, Duration::ZERO).unwrap().is_none());
                assert!(value.try_write_for(Duration::ZERO).unwrap().is_none());
                world.barrier().unwrap();
            }
            for limit in [Duration::from_secs(3600), Duration::MAX] {
                let epoch =
                    window.try_lock_for(1, mode, limit).unwrap().expect("lock should be granted before the deadline");
                epoch.unlock().unwrap();
                assert_eq!(*value.try_read_for(limit).unwrap().expect("lock should be granted before the deadline"), 5);
                value
                    .try_write_for(limit)
                    .unwrap()
                    .expect("lock should be granted before the deadline")
                    .unlock()
                    .unwrap();
            }
            for limit in [Duration::from_secs(3600), Duration::MAX] {
                let epoch =
                    window.try_lock_all_for(limit).unwrap().expect("lock should be granted before the deadline");
                assert_eq!(epoch.target(1).unwrap().get_one(0).unwrap(), 0);
                epoch.unlock().unwrap();
                let both = window.try_lock_ranks_for(&[(1, mode), (0, Mode::Shared)], limit).unwrap();
                let both = both.expect("lock should be granted before the deadline");
                assert_eq!(both.target(0).unwrap().get_one(0).unwrap(), 0);
                both.unlock().unwrap();
            }
            world.barrier().unwrap();
            window
                .try_lock_all_for(Duration::ZERO)
                .unwrap()
                .expect("free locks should be granted at once")
                .unlock()
                .unwrap();
            world.barrier().unwrap();
            window
                .try_lock_for(1, Mode::Shared, Duration::ZERO)
                .unwrap()
                .expect("free lock should be granted")
                .unlock()
                .unwrap();
            world.barrier().unwrap();
        }
    });
}

/// Rank 1 gives up, and computes; rank 2, which came after it, has the lock as soon as rank 0 has released it.
#[test]
fn abandoned_lock_request_is_skipped() {
    ranks::on(&[3, 4], "abandoned_lock_request_is_skipped", |world: World| {
        let mut window: Window<u64> = world.allocate(1).unwrap();
        // Long enough for rank 1 to ask and to give up.
        let held = ranks::within(8 * SOON);
        for (round, (first, second)) in MODES.iter().flat_map(|first| MODES.map(|second| (*first, second))).enumerate()
        {
            let mark = round as u64 + 1;
            match world.rank() {
                0 => {
                    let epoch = window.lock_exclusive(0).unwrap();
                    world.barrier().unwrap();
                    std::thread::sleep(held);
                    epoch.unlock().unwrap();
                }
                1 => {
                    world.barrier().unwrap();
                    gives_up(|limit| window.try_lock_for(0, first, limit));
                    // Makes no call for that time.
                    std::thread::sleep(held + ranks::within(8 * SOON));
                    assert_eq!(window.local().get(0).unwrap(), mark, "{first:?}, then {second:?}");
                }
                _ => {
                    world.barrier().unwrap();
                    std::thread::sleep(SOON / 2);
                    if second == Mode::Exclusive {
                        window.lock_exclusive(0).unwrap().unlock().unwrap();
                    } else {
                        window.lock_shared(0).unwrap().unlock().unwrap();
                    }
                    if world.rank() == 2 {
                        window.lock_exclusive(1).unwrap().put(0, &[mark]).unwrap();
                    }
                }
            }
            world.barrier().unwrap();
        }
    });
}

/// Requests with and without deadlines exclude each other: what is counted under them is right.
#[test]
fn locks_with_deadlines_exclude_each_other() {
    ranks::on_all_sizes("locks_with_deadlines_exclude_each_other", |world: World| {
        let mut window: Window<u64> = world.allocate(2).unwrap();
        let counted = world.mutex(world.size() - 1, 0u64).unwrap();
        let (mut mine, mut additions, me) = (0, 0, world.rank());
        for round in 0..ranks::rounds(200) {
            let limit = Duration::from_micros([0, 1, 20, 300, 5000][(round + me) % 5]);
            if (round / 3 + me).is_multiple_of(4) {
                if let Some(epoch) = window.try_lock_for(0, Mode::Shared, limit).unwrap() {
                    let both = [epoch.get_one(0).unwrap(), epoch.get_one(1).unwrap()];
                    assert_eq!(both[0], both[1], "torn value seen by rank {me}");
                }
                continue;
            }
            let epoch = match round % 3 {
                0 => Some(window.lock_exclusive(0).unwrap()),
                _ => window.try_lock_for(0, Mode::Exclusive, limit).unwrap(),
            };
            if let Some(epoch) = epoch {
                let next = epoch.get_one(0).unwrap() + 1;
                epoch.put_one(0, next).unwrap();
                epoch.flush().unwrap();
                epoch.put_one(1, next).unwrap();
                epoch.unlock().unwrap();
                mine += 1;
            }
            let count = |times: usize| {
                for _ in 0..times {
                    if let Some(mut counted) = counted.try_lock_for(limit).unwrap() {
                        *counted += 1;
                    } else {
                        *counted.lock().unwrap() += 1;
                    }
                }
            };
            std::thread::scope(|scope| {
                scope.spawn(|| count(2));
                count(1);
            });
            additions += 3;
        }
        world.barrier().unwrap();
        let all: u64 = world.all_reduce_one(mine, Op::Sum).unwrap();
        assert_eq!(window.lock_shared(0).unwrap().get_one(0).unwrap(), all);
        let all: u64 = world.all_reduce_one(additions, Op::Sum).unwrap();
        assert_eq!(*counted.lock().unwrap(), all);
        world.barrier().unwrap();
    });
}

#[test]
fn deadline_misuse_fails_and_threads_time_out() {
    ranks::on(&[1, 2], "deadline_misuse_fails_and_threads_time_out", |world: World| {
        let mut window: Window<u64> = world.allocate(1).unwrap();
        let absent =
            window.try_lock_for(world.size(), Mode::Shared, SOON).err().expect("a lock at a missing rank should fail");
        assert!(matches!(absent, Error::NoSuchRank { .. }), "{absent}");
        let value = world.mutex(0, 5u64).unwrap();
        if world.rank() == 0 {
            let guard = value.lock().unwrap();
            let again = value
                .try_lock_for(Duration::from_secs(3600))
                .map(drop)
                .expect_err("a lock that this thread holds should be refused");
            assert!(again.to_string().contains("this thread has locked it already"), "{again}");
            std::thread::scope(|scope| {
                scope.spawn(|| gives_up(|limit| value.try_lock_for(limit)));
            });
            guard.unlock().unwrap();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    value
                        .try_lock_for(Duration::from_secs(3600))
                        .unwrap()
                        .expect("free lock should be granted")
                        .unlock()
                });
            });
        }
        world.barrier().unwrap();
    });
}
