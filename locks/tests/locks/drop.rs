//! Dropping a handle releases its locks, however acquired; a model that runs single calls keeps them.

use crate::atomics::{Atomics, Verb, in_time, lock_word, memory, quiet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;
use transom_locks::Mode::{self, Exclusive, Shared};
use transom_locks::model::{Call, Handles, Sim, Suspended, sim};
use transom_locks::{At, Error, LockLayout, LockWord, Network, PassiveLock, QueuePosition, TargetLock};

type Lock = PassiveLock<Atomics<fn(Verb)>>;

/// The ways to acquire locks.
const TAKES: [fn(&mut Lock, Mode); 3] = [
    |lock, mode| std::mem::forget(lock.acquire(1, mode).unwrap()),
    |lock, mode| lock.acquire_mut(1, mode).map(|_| ()).unwrap(),
    |lock, _| lock.acquire_all_mut().map(|_| ()).unwrap(),
];

#[test]
fn dropped_handle_releases_its_locks() {
    for take in TAKES {
        for mode in [Shared, Exclusive] {
            let memory = memory(3);
            let handle = |rank| Lock::new(Atomics::new(&memory, rank, quiet as fn(_)), 0).unwrap();
            let mut holder = handle(0);
            take(&mut holder, mode);
            assert!(!lock_word(&memory, 1).is_idle());
            drop(holder);
            for target in 0..3 {
                assert!(lock_word(&memory, target).is_idle());
                assert_eq!(handle(2).acquire_mut(target, Exclusive), Ok(QueuePosition::default()));
            }
        }
    }
}

/// The release reaches waiting ranks too.
#[test]
fn dropped_handle_lets_waiters_go_on() {
    in_time(|| {
        for (take, waits) in TAKES.into_iter().flat_map(|take| [(take, Shared), (take, Exclusive)]) {
            let memory = memory(2);
            let handle = |rank| Lock::new(Atomics::new(&memory, rank, quiet as fn(_)), 0).unwrap();
            let mut holder = handle(0);
            take(&mut holder, Exclusive);
            let before = lock_word(&memory, 1);
            thread::scope(|scope| {
                scope.spawn(|| handle(1).acquire_mut(1, waits).unwrap());
                while lock_word(&memory, 1) == before {
                    thread::yield_now();
                }
                drop(holder);
            });
            assert!(lock_word(&memory, 1).is_idle());
        }
    });
}

/// The network panics within a call on all locks: locks whose requests are in flight are broken, and no later release
/// takes these requests for its own. A request whose addition had its result at once is not in flight: it is released.
#[test]
fn panic_midway_breaks_requests_in_flight() {
    in_time(|| {
        for (panics_at, posts) in (0..3).flat_map(|at| [(at, false), (at, true)]) {
            let (memory, adds) = (memory(3), AtomicUsize::new(0));
            let hook = |verb| {
                assert!(verb != Verb::Add || adds.fetch_add(1, Relaxed) != panics_at, "of the network");
            };
            let network = Atomics::new(&memory, 0, &hook);
            let network = if posts { network.posting() } else { network };
            let mut lock = <PassiveLock<_>>::new(network, 0).unwrap();
            assert!(catch_unwind(AssertUnwindSafe(|| lock.acquire_all_mut())).is_err());
            assert!(!lock.release_held_mut());
            for target in 0..3 {
                let broken = target == panics_at || posts && target < panics_at;
                let expected = if broken { Err(Error::Broken { target }) } else { Ok(QueuePosition::default()) };
                assert_eq!(lock.acquire_mut(target, Exclusive), expected, "{target}, {panics_at}, {posts}");
            }
            drop(lock);
            let readers = [0, 1, 2].map(|target| lock_word(&memory, target).readers());
            assert_eq!(readers, [0, 1, 2].map(|target| u64::from(posts && target < panics_at)));
        }
    });
}

/// A phase of a simulated network ends by dropping a handle that holds locks: the release is part of the phase.
#[test]
fn simulated_phase_end_releases_held_locks() {
    let net = Sim::new(
        2,
        LockLayout::words(2),
        sim::once(|_, network| {
            let mut lock = <PassiveLock<_>>::new(network, 0)?;
            lock.acquire_mut(0, Exclusive)?;
            lock.acquire_mut(1, Shared).map(drop)
        }),
    );
    assert!(net.explore(10_000).unwrap() > 50);
    for seed in 0..20 {
        let state = net.run_random(seed).unwrap();
        for rank in 0..2 {
            let word = LockWord::<16>(state.word(At { rank, word: 0 }));
            assert!(word.is_idle(), "{word:?}");
        }
    }
}

/// Calls that a model makes one by one leave the held locks to the model.
#[test]
fn model_call_keeps_acquired_locks() {
    let acquires = |_, network: &sim::Replay| -> Result<(), Error<Suspended>> {
        let mut handles = Handles::<16>::new(network.ranks(), 0);
        Call::AcquireAll.run(&mut handles, network)?;
        assert!(handles.locks().iter().all(TargetLock::is_held));
        Ok(())
    };
    let state = Sim::new(3, LockLayout::words(3), sim::once(acquires)).run_random(1).unwrap();
    for rank in 0..3 {
        assert_eq!(LockWord::<16>(state.word(At { rank, word: 0 })).readers(), 3);
    }
}
