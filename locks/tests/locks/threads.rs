//! Threads of one rank that share a handle: the lock excludes them, leaves none waiting, and refuses misuse.

use crate::atomics::{Atomics, Verb, in_time, lock_word, memory, quiet};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};
use transom_locks::Mode::{self, Exclusive, Shared};
use transom_locks::{Error, LockLayout, PassiveLock, Rank, TargetLock};

type Lock<H> = PassiveLock<Atomics<H>>;

/// Two unsynchronised read-modify-writes lose an update, unless the lock excludes them.
#[test]
fn threads_exclude_each_other() {
    in_time(|| {
        for ranks in [1, 2, 3, 4, 8] {
            let (memory, sum, rounds) = (memory(ranks), AtomicU64::new(0), 400 / ranks as u64);
            let handles: Vec<Lock<_>> =
                (0..ranks).map(|rank| Lock::new(Atomics::new(&memory, rank, quiet as fn(Verb)), 0).unwrap()).collect();
            thread::scope(|scope| {
                for (handle, number) in handles.iter().flat_map(|handle| [0, 1, 2].map(|number| (handle, number))) {
                    let sum = &sum;
                    scope.spawn(move || {
                        for round in 0..rounds {
                            let mode = if (round + number) % 3 == 0 { Shared } else { Exclusive };
                            let (held, _) = handle.acquire(ranks - 1, mode).unwrap();
                            let seen = sum.load(Relaxed);
                            thread::yield_now();
                            match mode {
                                Exclusive => sum.store(seen + 1, Relaxed),
                                Shared => assert_eq!(sum.load(Relaxed), seen, "a thread wrote while another read"),
                            }
                            held.release().unwrap();
                        }
                    });
                }
            });
            let writes: u64 =
                (0..3).map(|number| (0..rounds).filter(|round| (round + number) % 3 != 0).count() as u64).sum();
            assert_eq!(sum.into_inner(), ranks as u64 * writes);
            assert!(lock_word(&memory, ranks - 1).is_idle());
        }
    });
}

/// A thread that holds the lock for long and asks again at once gets it about once between two turns of another thread.
#[test]
fn threads_of_one_rank_alternate() {
    in_time(|| {
        for limit in [None, Some(Duration::from_secs(10))] {
            let memory = memory(1);
            let lock = Lock::new(Atomics::new(&memory, 0, quiet as fn(Verb)), 0).unwrap();
            let (kept, over) = (AtomicU64::new(0), AtomicBool::new(false));
            thread::scope(|scope| {
                scope.spawn(|| {
                    while !over.load(SeqCst) && kept.load(SeqCst) < 2000 {
                        let (held, _) = lock.acquire(0, Exclusive).unwrap();
                        kept.fetch_add(1, SeqCst);
                        thread::sleep(Duration::from_millis(1));
                        held.release().unwrap();
                    }
                });
                while kept.load(SeqCst) == 0 {
                    thread::yield_now();
                }
                for _ in 0..20 {
                    let (held, _) = match limit {
                        None => lock.acquire(0, Exclusive).unwrap(),
                        Some(limit) => lock.acquire_for(0, Exclusive, limit).unwrap().expect("its turn comes"),
                    };
                    held.release().unwrap();
                }
                over.store(true, SeqCst);
            });
            let kept = kept.into_inner();
            assert!(kept < 60, "{kept} turns beside 20, with a limit of {limit:?}");
        }
    });
}

/// An attempt waits neither for another rank nor for another thread, and delays neither.
#[test]
fn attempt_never_waits_nor_delays() {
    in_time(|| {
        let memory = memory(2);
        let handles = [0, 1].map(|rank| Lock::new(Atomics::new(&memory, rank, quiet as fn(Verb)), 0).unwrap());
        let [one, other] = &handles;
        let held = one.try_acquire(1, Shared).unwrap().expect("it is free");
        assert_eq!(one.try_acquire(1, Shared).err(), Some(Error::AlreadyLocked { target: 1 }));
        assert_eq!(one.try_acquire(2, Shared).err(), Some(Error::NoSuchRank { rank: 2, ranks: 2 }));
        let tried = |lock: &Lock<_>, mode| lock.try_acquire(1, mode).map(|held| held.is_some());
        let on_a_thread =
            |lock: &Lock<_>, mode| thread::scope(|scope| scope.spawn(|| tried(lock, mode)).join().unwrap());
        assert_eq!(on_a_thread(one, Shared), Ok(false), "another thread of the rank has it");
        assert_eq!(tried(other, Exclusive), Ok(false));
        assert_eq!(tried(other, Shared), Ok(true));
        held.release().unwrap();
        assert_eq!(on_a_thread(one, Exclusive), Ok(true));
        thread::scope(|scope| scope.spawn(|| std::mem::forget(one.try_acquire(1, Exclusive))).join().unwrap());
        assert_eq!(tried(one, Exclusive), Ok(false), "that thread has it still");
        assert_eq!(tried(other, Shared), Ok(false));
    });
}

/// Attempts and requests of many threads: the lock excludes them, and leaves none waiting.
#[test]
fn attempts_among_requests_exclude_each_other() {
    in_time(|| {
        let (memory, sum, got) = (memory(3), AtomicU64::new(0), AtomicU64::new(0));
        let handles: Vec<Lock<_>> =
            (0..3).map(|rank| Lock::new(Atomics::new(&memory, rank, quiet as fn(Verb)), 0).unwrap()).collect();
        thread::scope(|scope| {
            for (handle, tries) in handles.iter().flat_map(|handle| [false, true].map(|tries| (handle, tries))) {
                let (sum, got) = (&sum, &got);
                scope.spawn(move || {
                    for _ in 0..200 {
                        let held = if tries {
                            handle.try_acquire(0, Exclusive)
                        } else {
                            handle.acquire(0, Exclusive).map(|(held, _)| Some(held))
                        };
                        if let Some(held) = held.unwrap() {
                            let seen = sum.load(Relaxed);
                            thread::yield_now();
                            sum.store(seen + 1, Relaxed);
                            got.fetch_add(1, Relaxed);
                            held.release().unwrap();
                        }
                    }
                });
            }
        });
        assert_eq!(sum.into_inner(), got.load(Relaxed));
        assert!(got.into_inner() >= 600 && lock_word(&memory, 0).is_idle());
    });
}

/// A rank's network panics in a call that acquires, or in one that releases, while other threads want the lock.
#[test]
fn network_panic_leaves_no_thread_waiting() {
    for mode in [Shared, Exclusive] {
        for in_release in [false, true] {
            in_time(move || (0..20).for_each(|_| one_panics(mode, in_release)));
        }
    }
}

fn one_panics(mode: Mode, in_release: bool) {
    let (panics, asked) = (AtomicBool::new(false), Barrier::new(4));
    let hook = |verb| {
        if matches!(verb, Verb::Cas | Verb::Add) && panics.swap(false, SeqCst) {
            if !in_release {
                asked.wait();
                // The others are in line by now, or join later: both must be woken.
                thread::sleep(Duration::from_millis(1));
            }
            panic!("of the network");
        }
    };
    let handle: Lock<_> = PassiveLock::new(Atomics::new(&memory(1), 0, hook), 0).unwrap();
    thread::scope(|scope| {
        let first = scope.spawn(|| {
            panics.store(!in_release, SeqCst);
            let (held, _) = handle.acquire(0, mode).unwrap();
            asked.wait();
            thread::sleep(Duration::from_millis(1));
            panics.store(true, SeqCst);
            held.release().unwrap();
        });
        let others: [_; 3] = std::array::from_fn(|_| {
            scope.spawn(|| {
                asked.wait();
                handle.acquire(0, mode).map(drop)
            })
        });
        assert!(first.join().is_err());
        for other in others {
            assert_eq!(other.join().unwrap(), Err(Error::Broken { target: 0 }));
        }
    });
}

/// Other threads wait for the holder; the holder's own second request must not wait.
#[test]
fn second_request_of_thread_is_refused() {
    in_time(|| {
        let zero: Lock<_> = PassiveLock::new(Atomics::new(&memory(1), 0, quiet), 0).unwrap();
        let (held, _) = zero.acquire(0, Shared).unwrap();
        thread::scope(|scope| {
            let other = scope.spawn(|| zero.acquire(0, Shared).unwrap().0.release());
            assert_eq!(zero.acquire(0, Shared).err(), Some(Error::AlreadyLocked { target: 0 }));
            assert_eq!(zero.try_acquire(0, Shared).err(), Some(Error::AlreadyLocked { target: 0 }));
            thread::sleep(Duration::from_millis(1));
            assert!(!other.is_finished());
            held.release().unwrap();
            other.join().unwrap().unwrap();
        });
        drop(zero.acquire(0, Exclusive).unwrap());
        zero.acquire(0, Exclusive).unwrap().0.release().unwrap();
    });
}

/// A lock taken through `&mut` belongs to no thread, and a lock that a thread leaked is released through the handle.
#[test]
fn lock_taken_by_handle_belongs_to_no_thread() {
    in_time(|| {
        let mut zero: Lock<_> = PassiveLock::new(Atomics::new(&memory(1), 0, quiet), 0).unwrap();
        let releases: [fn(&mut Lock<_>); 3] = [
            |lock| lock.release_mut(0).unwrap(),
            |lock| lock.release_all_mut().unwrap(),
            |lock| assert!(lock.release_held_mut()),
        ];
        for release in releases {
            std::mem::forget(zero.acquire(0, Shared).unwrap());
            assert_eq!(zero.acquire_mut(0, Shared), Err(Error::AlreadyLocked { target: 0 }));
            release(&mut zero);
            zero.acquire_mut(0, Exclusive).unwrap();
            thread::scope(|scope| {
                let asked = scope.spawn(|| zero.acquire(0, Shared).map(drop)).join().unwrap();
                assert_eq!(asked, Err(Error::AlreadyLocked { target: 0 }));
            });
            zero.release_mut(0).unwrap();
            thread::scope(|scope| {
                scope.spawn(|| zero.acquire(0, Shared).unwrap().0.release()).join().unwrap().unwrap()
            });
        }
    });
}

/// A network that reenters the lock on the same thread during a wait gets an error instead of a deadlock.
#[test]
fn reentrant_request_from_network_is_refused() {
    in_time(|| {
        static ASKED: AtomicBool = AtomicBool::new(false);
        static LOCK: std::sync::OnceLock<Lock<fn(Verb)>> = std::sync::OnceLock::new();
        fn hook(_: Verb) {
            let lock = LOCK.get().unwrap();
            assert_eq!(lock.acquire(0, Shared).err(), Some(Error::AlreadyLocked { target: 0 }));
            ASKED.store(true, SeqCst);
        }
        let network = Atomics::new(&memory(1), 0 as Rank, hook as fn(Verb));
        let lock = LOCK.get_or_init(|| PassiveLock::new(network, 0).unwrap());
        lock.acquire(0, Exclusive).unwrap().0.release().unwrap();
        assert!(ASKED.load(SeqCst));
    });
}

/// A stalled watcher, which has its turn but has not cleared its predecessor's word, does not delay the deadline of the
/// predecessor's next request.
#[test]
fn deadline_holds_while_watcher_is_stalled() {
    in_time(|| {
        for mode in [Shared, Exclusive] {
            let (memory, layout) = (memory(2), LockLayout::new(0, 2));
            let (told, stands, goes_on) = (AtomicU64::new(0), AtomicBool::new(false), AtomicBool::new(false));
            let wait = |so: &dyn Fn() -> bool| {
                while !so() {
                    thread::yield_now();
                }
            };
            let stand_still = |verb| {
                // The first notify is the watcher's request, the second acknowledges its turn.
                if verb == Verb::Notify && told.fetch_add(1, SeqCst) == 1 {
                    stands.store(true, SeqCst);
                    wait(&|| goes_on.load(SeqCst));
                }
            };
            let network = Atomics::new(&memory, 0, quiet);
            let mut lock = TargetLock::<16>::new();
            lock.exclusive(&network, layout, 0).unwrap();
            thread::scope(|scope| {
                scope.spawn(|| {
                    let (watcher, mut lock) =
                        (Atomics::new(&memory, 1, stand_still).watching(), TargetLock::<16>::new());
                    lock.exclusive(&watcher, layout, 0).unwrap();
                    lock.release(&watcher, layout, 0).unwrap();
                });
                wait(&|| told.load(SeqCst) > 0);
                lock.release(&network, layout, 0).unwrap();
                wait(&|| stands.load(SeqCst));
                let soon = || Instant::now() + Duration::from_millis(5);
                let late = match mode {
                    Shared => lock.shared_until(&network, layout, 0, soon()).unwrap(),
                    Exclusive => lock.exclusive_until(&network, layout, 0, soon()).unwrap(),
                };
                assert_eq!(late, None);
                goes_on.store(true, SeqCst);
                lock.exclusive(&network, layout, 0).unwrap();
                lock.release(&network, layout, 0).unwrap();
            });
            assert!(lock_word(&memory, 0).is_idle());
        }
    });
}
