//! Calls out of order are refused with exact errors and do no harm; words that something else wrote are reported.

use std::fmt::Debug;
use transom_locks::Mode::{Exclusive, Shared};
use transom_locks::model::{Delivery, Failure, Mix, Replay, Sim, Suspended, sim};
use transom_locks::{At, Awaited, Error, LockLayout, LockWord, Mode, Network, PassiveLock, Pscw, Rank, Wake};

type Outcome = Result<(), Error<Suspended>>;

/// Runs `phase` on each of `ranks` ranks; the lock words must be idle at the end.
fn run(ranks: usize, phase: impl Fn(Rank, &Replay) -> Outcome) -> Result<(), Failure> {
    let state = Sim::new(ranks, LockLayout::words(ranks), sim::once(phase)).run_random(1)?;
    for rank in 0..ranks {
        let word = LockWord::<16>(state.word(At { rank, word: 0 }));
        assert!(word.is_idle(), "{word:?}");
    }
    Ok(())
}

/// Asserts the outcome of a call that uses the network.
fn expect<T: Debug + PartialEq>(outcome: Result<T, Error<Suspended>>, wanted: Error<Suspended>) -> Outcome {
    match outcome {
        Err(Error::Network(suspended)) => Err(suspended.into()),
        outcome => {
            assert_eq!(outcome, Err(wanted));
            Ok(())
        }
    }
}

#[test]
fn lock_memory_is_one_line_per_word_and_node() {
    for ranks in [1, 2, 3, 64, 32_767] {
        assert_eq!(LockLayout::words(ranks), 8 * (ranks + 1));
    }
}

#[test]
fn out_of_order_calls_fail_without_harm() {
    for held in [Shared, Exclusive] {
        run(3, |_, network| {
            let mut lock = <PassiveLock<_>>::new(network, 0)?;
            assert_eq!(lock.release_mut(1), Err(Error::NotLocked { target: 1 }));
            assert_eq!(lock.release_all_mut(), Err(Error::NotLocked { target: 0 }));
            lock.acquire_mut(1, held)?;
            for asked in [Shared, Exclusive] {
                assert_eq!(lock.acquire(1, asked).err(), Some(Error::AlreadyLocked { target: 1 }));
                assert_eq!(lock.acquire_mut(1, asked), Err(Error::AlreadyLocked { target: 1 }));
            }
            assert_eq!(lock.acquire_all_mut(), Err(Error::AlreadyLocked { target: 1 }));
            assert_eq!(lock.release_all_mut(), Err(Error::NotLocked { target: 0 }));
            assert_eq!(lock.acquire(3, held).err(), Some(Error::NoSuchRank { rank: 3, ranks: 3 }));
            assert_eq!(lock.release_mut(usize::MAX), Err(Error::NoSuchRank { rank: usize::MAX, ranks: 3 }));
            assert_eq!(lock.acquire_mut(3, held), Err(Error::NoSuchRank { rank: 3, ranks: 3 }));
            assert_eq!(lock.release_mut(3), Err(Error::NoSuchRank { rank: 3, ranks: 3 }));
            lock.release_mut(1)?;
            assert_eq!(lock.release_mut(1), Err(Error::NotLocked { target: 1 }));
            let (one, _) = lock.acquire(1, held)?;
            assert_eq!(lock.acquire(1, Shared).err(), Some(Error::AlreadyLocked { target: 1 }));
            one.release()?;
            lock.acquire_all_mut()?;
            lock.release_all_mut()
        })
        .unwrap();
    }
}

#[test]
fn too_many_ranks_are_refused() {
    let too_many = |ranks, most| Some(Error::TooManyRanks { ranks, most });
    let narrow = sim::once(move |_, network| {
        assert_eq!(PassiveLock::<_, 3>::new(network, 0).err(), too_many(4, 3));
        Ok::<(), Suspended>(())
    });
    Sim::new(4, 0, narrow).run_random(1).unwrap();
    let wide = sim::once(move |_, network| {
        assert_eq!(<PassiveLock<_>>::new(network, 0).err(), too_many(32_768, 32_767));
        Ok::<(), Suspended>(())
    });
    Sim::new(32_768, 0, wide).run_random(1).unwrap();
}

#[test]
fn out_of_order_epochs_are_refused() {
    let is_epoch = |outcome: Outcome| assert!(matches!(outcome, Err(Error::Epoch(_))), "{outcome:?}");
    let phase = move |_: Rank, network: &Replay| -> Outcome {
        let (me, other) = (network.rank(), 1 - network.rank());
        let mut group = Pscw::new(2, 0);
        is_epoch(group.wait(network));
        is_epoch(group.test(network).map(drop));
        is_epoch(group.complete(network));
        is_epoch(group.post(network, &[other, other]));
        is_epoch(group.start(network, &[other, me, other]));
        assert_eq!(group.post(network, &[2]), Err(Error::NoSuchRank { rank: 2, ranks: 2 }));
        assert_eq!(group.start(network, &[7]), Err(Error::NoSuchRank { rank: 7, ranks: 2 }));
        group.post(network, &[other])?;
        is_epoch(group.post(network, &[other]));
        group.start(network, &[other])?;
        is_epoch(group.start(network, &[other]));
        group.complete(network)?;
        is_epoch(group.complete(network));
        group.wait(network)
    };
    Sim::new(2, Pscw::words(2), sim::once(phase)).run_random(1).unwrap();
}

// The words of rank 0 for the lock of rank 0.
const HOME: At = At { rank: 0, word: 0 };
const NEXT: At = At { rank: 0, word: 8 };
const GO: At = At { rank: 0, word: 9 };
const DRAINED: At = At { rank: 0, word: 10 };
const WAITERS: At = At { rank: 0, word: 11 };
const GRANT: At = At { rank: 0, word: 12 };

const TAIL_0: u64 = 1 << 16;
const TAIL_1: u64 = 2 << 16;
const TAIL_41: u64 = 42 << 16;
const ARRIVED: u64 = LockWord::<16>::ARRIVED;

/// Rank 0 of two writes these words and then requests its own lock; asserts the result of the lock and of the network.
fn asks(mode: Mode, garbage: &'static [(At, u64)], wanted: Option<u64>) -> Result<(), Failure> {
    let phase = move |rank: Rank, network: &Replay| -> Outcome {
        if rank > 0 {
            return Ok(());
        }
        garbage.iter().try_for_each(|&(at, value)| network.notify(at, value, Wake::Home))?;
        let mut lock = <PassiveLock<_>>::new(network, 0)?;
        let outcome = lock.acquire_mut(0, mode);
        match wanted {
            Some(word) => expect(outcome, Error::Corrupt { target: 0, word })?,
            None => {
                outcome?;
                return lock.release_mut(0);
            }
        }
        assert_eq!(lock.acquire(0, mode).err(), Some(Error::Broken { target: 0 }));
        assert_eq!(lock.release_mut(0), Err(Error::Broken { target: 0 }));
        Ok(())
    };
    Sim::new(2, LockLayout::words(2), sim::once(phase)).run_random(1).map(drop)
}

#[test]
fn acquire_reports_corrupt_words() {
    // A rank cannot wait for itself, nor behind more readers than there are other ranks.
    asks(Exclusive, &[(HOME, TAIL_0)], Some(1 << 32)).unwrap();
    asks(Shared, &[(HOME, TAIL_0)], Some(TAIL_0)).unwrap();
    asks(Exclusive, &[(HOME, 500 * ARRIVED)], Some(1 << 32 | 500)).unwrap();
    asks(Exclusive, &[(HOME, TAIL_1), (GO, 9)], Some(9)).unwrap();
    asks(Exclusive, &[(HOME, ARRIVED), (DRAINED, 3)], Some(3)).unwrap();
}

/// A watching rank accepts only two answers.
#[test]
fn watching_acquire_reports_corrupt_words() {
    for word in [0, 1, 1 << 57] {
        let phase = move |rank: Rank, network: &Replay| -> Outcome {
            if rank == 0 {
                network.notify(HOME, TAIL_1, Wake::Home)?;
                return expect(
                    <PassiveLock<_>>::new(network, 0)?.acquire_mut(0, Exclusive),
                    Error::Corrupt { target: 0, word },
                );
            }
            network.wait(NEXT.word, Awaited::Rank(0), |next| next != 0)?;
            Ok(network.notify(At { rank: 1, ..NEXT }, word, Wake::Home)?)
        };
        let watched = Sim::new(2, LockLayout::words(2), sim::once(phase)).with_delivery(Delivery::Watched);
        watched.run_random(1).unwrap();
    }
}

#[test]
fn nonexistent_rank_is_reported_by_network() {
    for mode in [Shared, Exclusive] {
        let failure = asks(mode, &[(HOME, TAIL_41)], None).unwrap_err();
        assert!(failure.what.starts_with("rank 41 has no word"), "{failure}");
    }
    let failure = asks(Shared, &[(HOME, TAIL_1), (GRANT, 77)], None).unwrap_err();
    assert!(failure.what.starts_with("rank 76 has no word"), "{failure}");
}

#[test]
fn release_reports_corrupt_words() {
    let releases = |garbage: &'static [(At, u64)], word: u64| {
        let phase = move |rank: Rank, network: &Replay| -> Outcome {
            if rank > 0 {
                return Ok(());
            }
            let lock = <PassiveLock<_>>::new(network, 0)?;
            let (held, _) = lock.acquire(0, Exclusive)?;
            garbage.iter().try_for_each(|&(at, value)| network.notify(at, value, Wake::Home))?;
            expect(held.release(), Error::Corrupt { target: 0, word })
        };
        Sim::new(2, LockLayout::words(2), sim::once(phase)).run_random(1).unwrap();
    };
    releases(&[(HOME, TAIL_1), (NEXT, 42 << 32)], 42 << 32);
    releases(&[(HOME, TAIL_1), (NEXT, 2 << 32 | 2)], 2 << 32 | 2);
    releases(&[(HOME, TAIL_0 | ARRIVED), (WAITERS, 2 << 48 | 2 << 32)], 2 << 48 | 2 << 32);
    releases(&[(HOME, TAIL_0 | ARRIVED), (WAITERS, 1 << 48)], 1 << 48);
    releases(&[(HOME, TAIL_0 | (4 * ARRIVED)), (WAITERS, 4 << 48 | 0x2_0002_0002)], 0);
}

/// No call panics on any contents of the words, and the model ends.
#[test]
fn garbage_never_panics() {
    let mut state = 7_u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for _ in 0..20_000 {
        let at = At { rank: 0, word: [0, 8, 9, 10, 11, 12, 13][(random() % 7) as usize] };
        let (full, narrow) = (random(), random() & 0x0003_0003_0003_0003);
        let value = if random() % 2 == 0 { full } else { narrow };
        let modes = [random() % 2 == 0, random() % 2 == 0];
        let phase = move |rank: Rank, network: &Replay| -> Outcome {
            if rank == 0 {
                network.notify(at, value, Wake::Home)?;
            }
            let lock = <PassiveLock<_>>::new(network, 0)?;
            lock.acquire(0, if modes[rank] { Shared } else { Exclusive })?.0.release()
        };
        // The run may succeed, deadlock or fail, but it returns.
        let delivery = [Delivery::Immediate, Delivery::Watched][(random() % 2) as usize];
        let _ = Sim::new(2, LockLayout::words(2), sim::once(phase)).with_delivery(delivery).run_random(random());
    }
}

#[test]
fn narrow_mix_of_eight_ranks_is_refused() {
    let text = ["R"; 8].join("|");
    assert!(<Mix>::parse(&text).is_ok());
    assert_eq!(
        Mix::<3>::parse(&text).unwrap_err(),
        "a mix has 8 ranks, but counts of 3 bits come with tickets for at most 7; use wide counts"
    );
    assert!(Mix::<3>::parse(&text[2..]).is_ok());
}

#[test]
#[should_panic = "a mix has 8 ranks, but counts of 3 bits come with tickets for at most 7"]
fn narrow_mix_of_eight_rows_is_refused() {
    let _ = Mix::<3>::new(vec![vec![]; 8]).sim();
}
