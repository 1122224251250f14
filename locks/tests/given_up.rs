//! What a request that was given up leaves behind, and how soon it is.
#![cfg(not(feature = "loom"))]

use std::cell::Cell;
use std::time::Duration;
use transom_locks::Mode::{Exclusive, Shared};
use transom_locks::model::sim::Replay;
use transom_locks::model::sim::{self, Sim, Step, Suspended};
use transom_locks::model::{Call, Mix};
use transom_locks::{At, Awaited, Error, LockLayout, Network, PassiveLock};

/// A reader takes and leaves the lock between any two verbs of the rank that asks: so each of its compare-and-swaps fails.
#[test]
fn a_deadline_ends_the_attempts_to_get_into_the_queue() {
    const ROUNDS: usize = 500;
    let timed = vec![Call::AcquireUntil(0, Exclusive), Call::ReleaseHeld(0)];
    let net = <Mix>::new([timed, Call::both(0, Shared).repeat(ROUNDS)]).sim();
    let mut state = net.start().unwrap();
    let mut verbs = 0;
    while state.phase(0) == 0 {
        let before = state.phase(1);
        while state.phase(1) < 2 * ROUNDS && state.phase(1) < before + 2 {
            state = net.step(&state, Step::Rank(1)).unwrap();
        }
        state = net.step(&state, Step::Rank(0)).unwrap();
        verbs += 1;
    }
    assert!(verbs < 20, "{verbs} verbs of a request whose deadline has passed");
    assert!(state.phase(1) < 50, "{} rounds of the reader", state.phase(1) / 2);
}

/// Whoever released the lock has passed over it.
#[test]
fn what_was_passed_over_is_settled() {
    let settled = Cell::new([None; 2]);
    let net = Sim::new(
        2,
        LockLayout::words(2) + 1,
        sim::once(|rank, network: &Replay| -> Result<(), Error<Suspended>> {
            let flag = LockLayout::words(2);
            let tell = |rank, value| network.notify(At { rank, word: flag }, value);
            let mut lock = <PassiveLock<_>>::new(network, 0)?;
            if rank == 0 {
                lock.acquire_mut(0, Exclusive)?;
                tell(1, 1)?;
                network.wait(flag, Awaited::Anyone, |told| told == 1)?;
                lock.release_mut(0)?;
                tell(1, 2)?;
                return Ok(());
            }
            network.wait(flag, Awaited::Anyone, |told| told == 1)?;
            assert!(lock.acquire_for_mut(0, Shared, Duration::from_nanos(1))?.is_none());
            let before = lock.is_settled_mut();
            tell(0, 1)?;
            network.wait(flag, Awaited::Anyone, |told| told == 2)?;
            settled.set([Some(before), Some(lock.is_settled_mut())]);
            Ok(())
        }),
    );
    net.run_random(3).unwrap();
    assert_eq!(settled.get(), [Some(false), Some(true)]);
}
