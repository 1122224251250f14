//! Locks of a network that finds words: a request of a lock that no other rank uses is one atomic on a found word.

use crate::atomics::{Atomics, Verb, in_time, lock_word, memory, quiet};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::thread;
use std::time::Duration;
use transom_locks::Mode::{Exclusive, Shared};
use transom_locks::{Error, PassiveLock, QueuePosition, Rank};

type Lock = PassiveLock<Atomics<fn(Verb)>>;

fn no_verb(verb: Verb) {
    panic!("{verb:?} that looks for its word");
}

/// A handle of `rank` whose network finds words, and the count of its verbs on them.
fn handle(words: &Arc<Vec<Vec<AtomicU64>>>, rank: Rank, hook: fn(Verb)) -> (Lock, Arc<AtomicUsize>) {
    let verbs = Arc::new(AtomicUsize::new(0));
    (Lock::new(Atomics::new(words, rank, hook).finding(&verbs), 0).unwrap(), verbs)
}

#[test]
fn free_lock_takes_one_found_atomic_each_way() {
    let words = memory(3);
    let (mut lock, verbs) = handle(&words, 0, no_verb);
    let mut taken = |call: &mut dyn FnMut(&mut Lock)| {
        verbs.store(0, Relaxed);
        call(&mut lock);
        verbs.load(Relaxed)
    };
    for target in [1, 0] {
        // An exclusive release reads `next` too. After readers the word has counts, and is as free.
        assert_eq!(taken(&mut |lock| _ = lock.acquire_mut(target, Exclusive).unwrap()), 1);
        assert_eq!(taken(&mut |lock| lock.release_mut(target).unwrap()), 2);
        assert_eq!(taken(&mut |lock| _ = lock.acquire_mut(target, Shared).unwrap()), 1);
        assert_eq!(taken(&mut |lock| lock.release_mut(target).unwrap()), 1);
        assert_eq!(taken(&mut |lock| drop(lock.acquire(target, Exclusive).unwrap())), 3);
        assert_eq!(taken(&mut |lock| drop(lock.acquire(target, Shared).unwrap())), 2);
    }
    assert_eq!(taken(&mut |lock| assert_eq!(lock.acquire_all_mut(), Ok(false))), 3);
    assert_eq!(taken(&mut |lock| lock.release_all_mut().unwrap()), 3);
    assert!((0..3).all(|target| lock_word(&words, target).is_idle()));
}

#[test]
fn misuse_of_a_found_lock_is_an_error() {
    let words = memory(2);
    let (mut lock, _) = handle(&words, 0, quiet);
    assert_eq!(lock.release_mut(1), Err(Error::NotLocked { target: 1 }));
    assert_eq!(lock.release_mut(2), Err(Error::NoSuchRank { rank: 2, ranks: 2 }));
    assert_eq!(lock.acquire_mut(2, Shared), Err(Error::NoSuchRank { rank: 2, ranks: 2 }));
    for mode in [Exclusive, Shared] {
        assert_eq!(lock.acquire_mut(1, mode), Ok(QueuePosition::default()));
        assert_eq!(lock.acquire_mut(1, mode), Err(Error::AlreadyLocked { target: 1 }));
        // One lock that is held, or not, leaves the other as it is.
        assert_eq!(lock.acquire_all_mut(), Err(Error::AlreadyLocked { target: 1 }));
        assert_eq!(lock.release_all_mut(), Err(Error::NotLocked { target: 0 }));
        assert!(lock_word(&words, 0).is_idle() && !lock_word(&words, 1).is_idle());
        lock.release_mut(1).unwrap();
    }
    std::mem::forget(lock.acquire(1, Exclusive).unwrap());
    lock.release_mut(1).unwrap();
    drop(lock.acquire(1, Shared).unwrap());
    assert!(lock_word(&words, 1).is_idle());
}

/// A request that has changed the lock word, and is not finished, is not made again: its count would be there twice.
#[test]
fn unfinished_request_leaves_its_lock_broken() {
    let words = memory(2);
    let ((mut holder, _), (mut lock, _)) = (handle(&words, 1, quiet), handle(&words, 0, quiet));
    holder.acquire_mut(1, Exclusive).unwrap();
    // Its release would wait for the request that is never finished.
    std::mem::forget(holder);
    assert!(!lock.one_mut(1).unwrap().begin(Shared).is_done());
    assert_eq!(lock_word(&words, 1).readers(), 1);
    assert_eq!(lock.acquire_mut(1, Shared), Err(Error::Broken { target: 1 }));
    assert_eq!(lock_word(&words, 1).readers(), 1);
    assert_eq!(lock.acquire_mut(0, Shared), Ok(QueuePosition::default()));
}

/// The request finds another word than it has seen, and queues; the release finds the request, and lets it go on.
#[test]
fn request_waits_for_a_lock_taken_at_once() {
    type Call = (fn(&mut Lock), fn(&mut Lock));
    const WRITE: Call = (|lock| _ = lock.acquire_mut(1, Exclusive).unwrap(), |lock| lock.release_mut(1).unwrap());
    const READ: Call = (|lock| _ = lock.acquire_mut(1, Shared).unwrap(), |lock| lock.release_mut(1).unwrap());
    const ALL: Call = (|lock| _ = lock.acquire_all_mut().unwrap(), |lock| lock.release_all_mut().unwrap());
    in_time(|| {
        for (holds, wants) in [(WRITE, WRITE), (WRITE, READ), (WRITE, ALL), (READ, WRITE), (ALL, WRITE)] {
            let words = memory(3);
            let ((mut holder, _), (mut other, _)) = (handle(&words, 0, quiet), handle(&words, 2, quiet));
            holds.0(&mut holder);
            let (before, has_lock) = (lock_word(&words, 1), AtomicBool::new(false));
            thread::scope(|scope| {
                scope.spawn(|| {
                    wants.0(&mut other);
                    has_lock.store(true, SeqCst);
                    wants.1(&mut other);
                });
                while lock_word(&words, 1) == before && !has_lock.load(SeqCst) {
                    thread::yield_now();
                }
                assert!(!has_lock.load(SeqCst), "two ranks have the lock");
                holds.1(&mut holder);
            });
            assert!((0..3).all(|target| lock_word(&words, target).is_idle()));
        }
    });
}

/// Ranks that find words beside ranks that do not, with requests of each kind.
#[test]
fn found_words_keep_ranks_apart() {
    const RANKS: usize = 4;
    in_time(|| {
        let (words, data) = (memory(RANKS), [const { [const { AtomicU64::new(0) }; 2] }; RANKS]);
        let write = |target: Rank| {
            for cell in &data[target] {
                cell.store(cell.load(Relaxed) + 1, Relaxed);
            }
        };
        let read = |target: Rank| assert_eq!(data[target][0].load(Relaxed), data[target][1].load(Relaxed));
        let body = |rank: Rank| {
            let network = Atomics::new(&words, rank, quiet as fn(Verb));
            let network = if rank.is_multiple_of(2) { network.watching() } else { network };
            let network = if rank < 3 { network.finding(&Arc::default()) } else { network };
            let (mut lock, mut random, mut written) = (Lock::new(network, 0).unwrap(), rank as u64 + 1, [0; RANKS]);
            for _ in 0..3000 {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let (target, limit) = ((random >> 40) as Rank % RANKS, Duration::from_micros(random >> 50 & 63));
                match random >> 60 {
                    0..4 => _ = lock.acquire_mut(target, Exclusive).unwrap(),
                    4..7 => {
                        lock.acquire_mut(target, Shared).unwrap();
                        read(target);
                        lock.release_mut(target).unwrap();
                        continue;
                    }
                    7..9 => {
                        lock.acquire_all_mut().unwrap();
                        (0..RANKS).for_each(read);
                        lock.release_all_mut().unwrap();
                        continue;
                    }
                    9..11 if !lock.try_acquire_mut(target, Exclusive).unwrap() => continue,
                    9..11 => {}
                    11..13 => {
                        if lock.acquire_for_mut(target, Shared, limit).unwrap().is_some() {
                            read(target);
                            lock.release_mut(target).unwrap();
                        }
                        continue;
                    }
                    _ if lock.acquire_for_mut(target, Exclusive, limit).unwrap().is_none() => continue,
                    _ => {}
                }
                write(target);
                written[target] += 1;
                lock.release_mut(target).unwrap();
            }
            written
        };
        let written = thread::scope(|scope| {
            let ranks: Vec<_> = (0..RANKS).map(|rank| scope.spawn(move || body(rank))).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect::<Vec<_>>()
        });
        for target in 0..RANKS {
            assert!(lock_word(&words, target).is_idle());
            assert_eq!(data[target][0].load(Relaxed), written.iter().map(|of| of[target]).sum::<u64>());
        }
    });
}
