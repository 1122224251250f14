//! The state that an abandoned request leaves behind, and the time until its call returns.

use std::cell::Cell;
use std::time::Duration;
use transom_locks::Mode::{Exclusive, Shared};
use transom_locks::model::{Call, Delivery, Handles, Mix, Replay, Sim, SimState, Step, Suspended, sim};
use transom_locks::{At, Awaited, Error, LockLayout, Network, PassiveLock, Wake};

type Outcome = Result<(), Error<Suspended>>;

const NO_TIME: Duration = Duration::from_nanos(1);

/// Word indices in a rank's node for the lock of rank 0, as laid out in README.md.
const NEXT: usize = 8;
const GO: usize = 9;
const GRANT: usize = 12;

/// Rank 0 holds the lock until rank 1, whose shared request behind it was given up, has returned from another call. The
/// call must return under every schedule.
fn while_another_holds_it(call: impl Fn(&mut PassiveLock<&Replay>) -> Outcome) {
    let flag = LockLayout::words(2);
    let ranks = sim::once(|rank, network: &Replay| -> Outcome {
        let tell = |rank| network.notify(At { rank, word: flag }, 1, Wake::Home);
        let mut lock = <PassiveLock<_>>::new(network, 0)?;
        if rank == 0 {
            lock.acquire_mut(0, Exclusive)?;
            tell(1)?;
            network.wait(flag, Awaited::Anyone, |told| told == 1)?;
            return lock.release_mut(0);
        }
        network.wait(flag, Awaited::Anyone, |told| told == 1)?;
        assert!(lock.acquire_for_mut(0, Shared, NO_TIME)?.is_none());
        call(&mut lock)?;
        tell(0)?;
        Ok(())
    });
    let mut net = Sim::new(2, flag + 1, ranks);
    for delivery in [Delivery::Immediate, Delivery::Deferred, Delivery::Watched, Delivery::Torn] {
        net = net.with_delivery(delivery);
        net.explore(100_000).unwrap();
    }
}

#[test]
fn attempt_after_given_up_read_does_not_wait() {
    for mode in [Shared, Exclusive] {
        while_another_holds_it(|lock| {
            assert!(!lock.try_acquire_mut(0, mode)?);
            Ok(())
        });
    }
}

/// The successor watches the word in which the last request of rank 0 handed over, and may not have cleared it.
#[test]
fn attempt_after_hand_over_to_watcher_does_not_wait() {
    for mode in [Shared, Exclusive] {
        let rows = [[Call::both(0, Exclusive), Call::attempt(0, mode)].concat(), Call::both(0, Exclusive).into()];
        <Mix>::new(rows).sim().with_delivery(Delivery::Watched).explore(100_000).unwrap();
    }
}

#[test]
fn timed_request_after_given_up_read_does_not_wait() {
    for mode in [Shared, Exclusive] {
        while_another_holds_it(|lock| {
            assert!(lock.acquire_for_mut(0, mode, NO_TIME)?.is_none());
            Ok(())
        });
    }
}

#[test]
fn given_up_read_is_unsettled_while_queued() {
    while_another_holds_it(|lock| {
        assert!(!lock.is_settled_mut());
        Ok(())
    });
}

/// A reader that asks again before any rank has reached its place takes that place over: the holder sees its flag taken
/// back.
#[test]
fn repeated_read_takes_over_given_up_place() {
    let flag = LockLayout::words(2);
    let seen = std::cell::Cell::new(false);
    let ranks = sim::once(|rank, network: &Replay| -> Outcome {
        let tell = |rank| network.notify(At { rank, word: flag }, 1, Wake::Home);
        let mut lock = <PassiveLock<_>>::new(network, 0)?;
        if rank == 0 {
            lock.acquire_mut(0, Exclusive)?;
            tell(1)?;
            network.wait(flag, Awaited::Anyone, |told| told == 1)?;
            // No rank waits for this word, so it wakes none: one read, which in some schedules follows the reader's
            // change.
            let taken_back = network.add(At { rank: 1, word: GRANT }, 0, Wake::Nobody)? == 0;
            seen.set(seen.get() || taken_back);
            return lock.release_mut(0);
        }
        network.wait(flag, Awaited::Anyone, |told| told == 1)?;
        assert!(lock.acquire_for_mut(0, Shared, NO_TIME)?.is_none());
        tell(0)?;
        lock.acquire_mut(0, Shared)?;
        lock.release_mut(0)
    });
    Sim::new(2, flag + 1, ranks).explore(100_000).unwrap();
    assert!(seen.get(), "the reader asks for a new place");
}

/// Rank 1 leaves the queue and settles its move of rank 2 late, after rank 3 has moved rank 2's next request. The word
/// of a moved request names the mover, so rank 1 does not settle rank 3's move, and the deadline of rank 2 holds.
#[test]
fn mover_settles_only_its_own_move() {
    let timed = [Call::AcquireUntil(0, Exclusive), Call::ReleaseHeld(0)];
    let rows = [Call::both(0, Exclusive).repeat(2), timed.to_vec(), timed.repeat(2), timed.to_vec()];
    let net = <Mix>::new(rows).sim();
    let mut state = net.start().unwrap();
    let word = |state: &SimState<_>, rank, word| state.word(At { rank, word });
    let tells = |rank: usize| move |state: &SimState<Handles<16>>| word(state, rank, NEXT) != 0;
    let ends = |rank: usize, calls: usize| move |state: &SimState<Handles<16>>| state.phase(rank) == calls;
    // Runs this rank alone until the condition holds; false if the rank blocks.
    let mut go = |rank: usize, until: &dyn Fn(&SimState<Handles<16>>) -> bool| {
        for _ in 0..50 {
            if until(&state) {
                return true;
            }
            if !net.steps(&state).any(|step| step == Step::Rank(rank)) {
                return false;
            }
            state = net.step(&state, Step::Rank(rank)).unwrap();
        }
        panic!("rank {rank} does not come there");
    };
    let forwards = |state: &SimState<Handles<16>>| word(state, 0, NEXT) >> 32 & 0x7fff == 3;
    let moved = |state: &SimState<Handles<16>>| word(state, 2, GO) != 0;
    assert!(go(0, &ends(0, 1)), "0 holds it");
    assert!(go(1, &tells(0)), "1 stands behind 0");
    assert!(go(2, &tells(1)), "2 stands behind 1");
    assert!(go(1, &forwards), "1 leaves: 0 names 2, whose move is not settled yet");
    assert!(go(0, &ends(0, 2)), "0 releases the lock");
    assert!(go(2, &ends(2, 2)), "2 has acquired and released");
    assert!(go(0, &ends(0, 3)), "0 holds the lock again");
    assert!(go(3, &tells(0)), "3 stands behind 0");
    assert!(go(2, &tells(3)), "2 stands behind 3");
    assert!(go(3, &moved), "3 leaves and moves 2");
    let late = Cell::new(false);
    go(1, &|_| late.replace(true)); // rank 1's late settlement
    assert!(go(2, &ends(2, 3)) || go(3, &ends(3, 2)), "3 has left");
    go(3, &ends(3, 2));
    go(1, &ends(1, 2));
    assert!(go(2, &ends(2, 4)), "2, whose deadline has passed, waits for 0, which holds the lock");
}

/// The releasing rank has passed over the request.
#[test]
fn passed_over_read_is_settled() {
    let settled = Cell::new([None; 2]);
    let net = Sim::new(
        2,
        LockLayout::words(2) + 1,
        sim::once(|rank, network: &Replay| -> Outcome {
            let flag = LockLayout::words(2);
            let tell = |rank, value| network.notify(At { rank, word: flag }, value, Wake::Home);
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
