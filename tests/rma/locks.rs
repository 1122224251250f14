//! The passive lock between real ranks: exclusion, sharing, order, lock_all, and calls in a wrong state.

use crate::ranks;
use std::time::Duration;
use transom::{Assert, Error, Op, Window, World, locks};

#[test]
fn exclusive_epoch_excludes_all_others() {
    ranks::on_all_sizes("exclusive_epoch_excludes_all_others", |world: World| {
        let each = ranks::rounds(1000) as u64;
        let mut window: Window<u64> = world.allocate(2).unwrap();
        window.fence().unwrap();
        let n = world.size();
        for i in 0..each {
            // Two elements that change only together; every rank's lock in turn.
            let epoch = window.lock_exclusive(i as usize % n).unwrap();
            let mut both = [0; 2];
            epoch.get(0, &mut both).unwrap();
            assert_eq!(both[0], both[1], "another rank was in the exclusive epoch");
            epoch.put(0, &[both[0] + 1]).unwrap();
            epoch.put(1, &[both[1] + 1]).unwrap();
            epoch.unlock().unwrap();
        }
        window.fence().unwrap();
        let turns = (0..each).filter(|i| *i as usize % n == world.rank()).count() * n;
        assert_eq!(window.local().read(0, 2).unwrap(), [turns as u64; 2]);
    });
}

#[test]
fn readers_share_the_lock_and_writers_exclude_all() {
    ranks::on_all_sizes("readers_share_the_lock_and_writers_exclude_all", |world| {
        let (me, n) = (world.rank(), world.size());
        let mut window: Window<u64> = world.allocate(2).unwrap();
        let mut meeting: Window<u64> = world.allocate(1).unwrap();
        window.fence().unwrap();
        // All ranks hold the lock of rank 0 shared, each until it has seen all the others hold it too.
        let epoch = window.lock_shared(0).unwrap();
        meeting.lock_shared(0).unwrap().fetch_and_op(0, Op::Sum, 1).unwrap();
        while meeting.lock_shared(0).unwrap().get_one(0).unwrap() < n as u64 {
            std::thread::yield_now();
        }
        epoch.unlock().unwrap();
        // Readers must never see the two elements apart.
        let writes = ranks::rounds(500) as u64;
        for i in 0..4 * writes {
            if (i + me as u64).is_multiple_of(4) {
                let epoch = window.lock_exclusive(0).unwrap();
                let value = epoch.get_one(0).unwrap();
                epoch.put(0, &[value + 1]).unwrap();
                epoch.put(1, &[value + 1]).unwrap();
                epoch.unlock().unwrap();
            } else {
                let epoch = window.lock_shared(0).unwrap();
                assert_eq!(epoch.get_one(0).unwrap(), epoch.get_one(1).unwrap());
                epoch.unlock().unwrap();
            }
        }
        window.fence().unwrap();
        if me == 0 {
            assert_eq!(window.local().get(0).unwrap(), writes * n as u64);
        }
    });
}

/// Each request knows the exclusive request just before it in the queue. Once granted, it must find that request as
/// the last holder. Goes on until 10,000 requests had to wait for another.
#[test]
fn lock_grants_follow_request_order() {
    ranks::on_all_sizes("lock_grants_follow_request_order", |world| {
        let hand_overs = ranks::rounds(10_000) as u64;
        let me = world.rank() as u64 + 1;
        // The name of the last exclusive holder, and the number of requests that had to wait.
        let mut window: Window<u64> = world.allocate(2).unwrap();
        window.fence().unwrap();
        for i in 0.. {
            let shared = (i * 7 + me).is_multiple_of(5);
            let epoch = if shared { window.lock_shared(0).unwrap() } else { window.lock_exclusive(0).unwrap() };
            let last = epoch.get_one(0).unwrap();
            if let Some(before) = epoch.ahead().exclusive {
                assert_eq!(before as u64 + 1, last, "overtaken at request {i}");
                epoch.fetch_and_op(1, Op::Sum, 1).unwrap();
            }
            if !shared {
                epoch.put(0, &[me]).unwrap();
            }
            let enough = epoch.get_one(1).unwrap() >= hand_overs || world.size() == 1 && i >= hand_overs;
            epoch.unlock().unwrap();
            if enough {
                break;
            }
        }
        window.fence().unwrap();
    });
}

/// A rank that has waited long sleeps, and the rank that hands the lock over wakes it. A turn of rank 0 is twice as
/// long as a wait spins and yields. A sleep without a wake-up takes 100 ms, so a rank that got the lock earlier was
/// woken. With packet loss this is not seen each time: turns go on until each waiting rank has seen it, or for fifty
/// turns.
#[test]
fn rank_asleep_for_a_lock_is_woken() {
    ranks::on_all_sizes("rank_asleep_for_a_lock_is_woken", |world| {
        const HELD: Duration = Duration::from_millis(25);
        let mut window: Window<u64> = world.allocate(1).unwrap();
        let (mut shortest, mut turns) = (None, 0);
        loop {
            window.fence().unwrap();
            if world.rank() > 0 {
                std::thread::sleep(HELD / 5);
            }
            let asked = std::time::Instant::now();
            let epoch = window.lock_exclusive(0).unwrap();
            if epoch.ahead().exclusive == Some(0) {
                shortest = Some(asked.elapsed().min(shortest.unwrap_or(Duration::MAX)));
            }
            if world.rank() == 0 {
                std::thread::sleep(HELD);
            }
            epoch.unlock().unwrap();
            turns += 1;
            let unseen = shortest.is_some_and(|shortest| shortest >= 3 * HELD);
            assert!(!unseen || turns < 50, "{shortest:?}");
            if world.all_reduce_one(u64::from(unseen || turns < 5), Op::Max).unwrap() == 0 {
                break;
            }
        }
    });
}

#[test]
fn lock_all_shares_with_readers_and_excludes_writers() {
    ranks::on_all_sizes("lock_all_shares_with_readers_and_excludes_writers", |world| {
        let (me, n) = (world.rank(), world.size());
        let mut window: Window<u64> = world.allocate(2).unwrap();
        let mut meeting: Window<u64> = world.allocate(1).unwrap();
        window.fence().unwrap();
        // Some ranks hold all locks, others that of one rank as readers. Each waits until it has seen all others hold
        // theirs.
        let mut meet = || {
            meeting.lock_shared(0).unwrap().fetch_and_op(0, Op::Sum, 1).unwrap();
            while meeting.lock_shared(0).unwrap().get_one(0).unwrap() < n as u64 {
                std::thread::yield_now();
            }
        };
        if me.is_multiple_of(3) {
            let epoch = window.lock_shared(n - 1).unwrap();
            meet();
            epoch.unlock().unwrap();
        } else {
            let epoch = window.lock_all().unwrap();
            meet();
            epoch.unlock().unwrap();
        }
        let (rounds, locks_all) = (ranks::rounds(300), |rank: usize, round: usize| (round + rank).is_multiple_of(3));
        for round in 0..rounds {
            if locks_all(me, round) {
                let epoch = window.lock_all().unwrap();
                assert_eq!(epoch.ranks(), n);
                for rank in 0..n {
                    let target = epoch.target(rank).unwrap();
                    assert_eq!(target.get_one(0).unwrap(), target.get_one(1).unwrap());
                }
                epoch.flush_all().unwrap();
                epoch.unlock().unwrap();
            } else {
                let epoch = window.lock_exclusive((me + round) % n).unwrap();
                let value = epoch.get_one(0).unwrap() + 1;
                epoch.put(0, &[value]).unwrap();
                std::thread::yield_now(); // so that a rank that is wrongly here sees the halves differ
                epoch.put(1, &[value]).unwrap();
                epoch.unlock().unwrap();
            }
        }
        window.fence().unwrap();
        // Nothing that was written here is lost.
        let writes = (0..n).flat_map(|rank| (0..rounds).map(move |round| (rank, round)));
        let here = writes.filter(|&(rank, round)| !locks_all(rank, round) && (rank + round) % n == me).count();
        assert_eq!(window.local().read(0, 2).unwrap(), [here as u64; 2]);
    });
}

/// A writer that queued behind readers is let in by the last of them, which notifies the writer and not the lock's
/// home. The readers' puts must arrive first.
#[test]
fn writer_sees_puts_of_readers_before_it() {
    ranks::on(&[3, 4], "writer_sees_puts_of_readers_before_it", |world| {
        const ENOUGH: u64 = 6;
        let (writer, mut round) = (world.size() - 1, 0);
        // The value that the first reader put, and how often the writer came after a reader.
        let mut window: Window<u64> = world.allocate(2).unwrap();
        let mut turns: Window<u64> = world.allocate_with_signals(0, 1).unwrap();
        let turns = turns.fence_with(Assert::NOPRECEDE).unwrap();
        loop {
            round += 1;
            let told = || turns.signals().wait_until(0, |value| value >= round).unwrap();
            let tell = |rank| turns.target(rank).unwrap().put_signal(0, &[], 0, 1).unwrap();
            let pause = || std::thread::sleep(ranks::within(Duration::from_millis(1)));
            if world.rank() == 0 {
                // The first holder waits until the others have queued behind it.
                let epoch = window.lock_exclusive(0).unwrap();
                world.barrier().unwrap();
                told();
                pause();
                epoch.unlock().unwrap();
            } else if world.rank() < writer {
                world.barrier().unwrap();
                if world.rank() == 1 {
                    tell(writer);
                }
                if round.is_multiple_of(2) {
                    let epoch = window.lock_all().unwrap();
                    if world.rank() == 1 {
                        epoch.target(0).unwrap().put(0, &[round]).unwrap();
                    }
                    epoch.unlock().unwrap();
                } else {
                    let epoch = window.lock_shared(0).unwrap();
                    if world.rank() == 1 {
                        epoch.put(0, &[round]).unwrap();
                    }
                    epoch.unlock().unwrap();
                }
            } else {
                world.barrier().unwrap();
                told();
                pause();
                tell(0);
                let epoch = window.lock_exclusive(0).unwrap();
                if epoch.ahead().readers == writer as u64 - 1 {
                    assert_eq!(
                        epoch.get_one(0).unwrap(),
                        round,
                        "writer does not see the put of the readers before it"
                    );
                    epoch.fetch_and_op(1, Op::Sum, 1).unwrap();
                }
                epoch.unlock().unwrap();
            }
            world.barrier().unwrap();
            let seen = window.lock_shared(0).unwrap().get_one(1).unwrap();
            world.barrier().unwrap();
            if seen >= ENOUGH {
                break;
            }
        }
    });
}

#[test]
fn dropped_epoch_releases_its_lock() {
    ranks::on_all_sizes("dropped_epoch_releases_its_lock", |world| {
        let mut window: Window<u64> = world.allocate(1).unwrap();
        window.fence().unwrap();
        for _ in 0..ranks::rounds(100) {
            window.lock_exclusive(0).unwrap().put(0, &[1]).unwrap();
            drop(window.lock_all().unwrap());
        }
        window.fence().unwrap();
    });
}

#[test]
fn lock_after_leaked_epoch_is_refused() {
    ranks::on_all_sizes("lock_after_leaked_epoch_is_refused", |world| {
        // Each rank leaks an epoch on its own part, so no rank waits for another.
        let me = world.rank();
        let mut window: Window<u64> = world.allocate(1).unwrap();
        std::mem::forget(window.lock_exclusive(me).unwrap());
        let already = |outcome: Result<(), Error>| {
            let Err(Error::Lock { rank, source: locks::Error::AlreadyLocked { target }, .. }) = outcome else {
                panic!("{outcome:?}");
            };
            assert_eq!((rank, target), (me, me));
        };
        already(window.lock_exclusive(me).map(drop));
        already(window.lock_shared(me).map(drop));
        already(window.lock_all().map(drop));
        window.fence().unwrap();
    });
}

/// Elements wider than a word: the epoch's own target reads, changes and writes them back, because no other rank has
/// access.
#[test]
fn threads_in_an_exclusive_epoch_lose_no_accumulate() {
    ranks::on_all_sizes("threads_in_an_exclusive_epoch_lose_no_accumulate", |world| {
        let each = ranks::rounds(2000) as u64;
        let mut window: Window<u64> = world.allocate(4).unwrap();
        let mut epoch = window.lock_exclusive(0).unwrap();
        let threads = epoch.for_threads();
        std::thread::scope(|scope| {
            let add = || (0..each).for_each(|_| threads.target().accumulate(0, Op::Sum, &[1, 2, 3, 4]).unwrap());
            for thread in [(); 3].map(|()| scope.spawn(add)) {
                thread.join().unwrap();
            }
        });
        epoch.unlock().unwrap();
        window.fence().unwrap();
        let expected = if world.rank() == 0 { 3 * each * world.size() as u64 } else { 0 };
        assert_eq!(window.local().read(0, 4).unwrap(), [1, 2, 3, 4].map(|nth| nth * expected));
    });
}

#[test]
fn threads_sharing_an_epoch_lose_no_operation() {
    ranks::on_all_sizes("threads_sharing_an_epoch_lose_no_operation", |world| {
        let mut window: Window<u64> = world.allocate(1).unwrap();
        window.fence().unwrap();
        let epoch = window.lock_all().unwrap();
        std::thread::scope(|scope| {
            let add = || {
                (0..epoch.ranks()).for_each(|rank| {
                    epoch.target(rank).unwrap().fetch_and_op(0, Op::Sum, 1).unwrap();
                })
            };
            // Joined one by one: ThreadSanitizer sees a join, but not how a scope ends.
            for thread in [(); 3].map(|()| scope.spawn(add)) {
                thread.join().unwrap();
            }
        });
        epoch.unlock().unwrap();
        window.fence().unwrap();
        assert_eq!(window.local().get(0).unwrap(), 3 * world.size() as u64);
    });
}
