//! Put with signal: a rank that sees the signal sees the data. Waits for one of several signals.

use crate::ranks;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};
use transom::{Error, FabricError, Op, Window};

#[test]
fn data_is_visible_when_its_signal_arrives() {
    ranks::on_all_sizes("data_is_visible_when_its_signal_arrives", |world| {
        let (me, n) = (world.rank(), world.size());
        const LEN: usize = 100;
        // A stretch and a signal for each origin, and one signal that lets it write again.
        let mut window: Window<usize> = world.allocate_with_signals(LEN * n, n + 1).unwrap();
        let epoch = window.lock_all().unwrap();
        let signals = epoch.signals();
        assert_eq!(signals.len(), n + 1);
        for round in 1..=300 {
            for step in 0..n {
                let target = epoch.target((me + step) % n).unwrap();
                target.put_signal(me * LEN, &[round; LEN], me, 1).unwrap();
            }
            let mut waiting: Vec<_> = (0..n).collect();
            while !waiting.is_empty() {
                let (origin, value) = signals.wait_any(&waiting, |_, value| value >= round as u64).unwrap();
                assert_eq!(value, round as u64, "signal of rank {origin} is a round ahead");
                assert_eq!(epoch.local().read(origin * LEN, LEN).unwrap(), [round; LEN]);
                waiting.retain(|&rank| rank != origin);
            }
            for rank in 0..n {
                epoch.target(rank).unwrap().put_signal(0, &[], n, 1).unwrap();
            }
            signals.wait_until(n, |all| all >= (round * n) as u64).unwrap();
        }
        epoch.unlock().unwrap();
        window.fence().unwrap();
    });
}

#[test]
fn missing_signals_are_refused_without_effect() {
    ranks::on_all_sizes("missing_signals_are_refused_without_effect", |world| {
        // Rank r has r signals.
        let me = world.rank();
        let mut window: Window<u8> = world.allocate_with_signals(3, me).unwrap();
        window.local().write(0, &[9; 3]).unwrap();
        assert_eq!((window.signals().len(), window.signals().is_empty()), (me, me == 0));
        for signal in 0..me {
            window.signals().set(signal, 5).unwrap();
            assert_eq!(window.signals().read(signal).unwrap(), 5);
        }
        let epoch = window.fence().unwrap();
        for rank in 0..world.size() {
            let outcome = epoch.target(rank).unwrap().put_signal(0, &[1], rank, 1);
            let Err(Error::NoSuchSignal { rank: named, signal, signals, .. }) = outcome else { panic!("{outcome:?}") };
            assert_eq!((named, signal, signals), (rank, rank, rank));
            let outside = epoch.target(rank).unwrap().put_signal(3, &[1], 0, 1);
            assert!(outside.is_err(), "put_signal beyond the elements was accepted");
        }
        assert!(matches!(epoch.signals().wait_any(&[], |_, _| true), Err(Error::NoSignalNamed { .. })));
        assert!(matches!(epoch.signals().read(me), Err(Error::NoSuchSignal { .. })));
        window.fence().unwrap();
        assert_eq!(window.local().read(0, 3).unwrap(), [9; 3], "refused put_signal changed elements");
        assert!((0..me).all(|signal| window.signals().read(signal).unwrap() == 5));
        window.fence().unwrap();
    });
}

/// Atomics on the data do not wake a rank that sleeps until a signal comes. Each wake-up would cost the origin a
/// system call, and the sleeper its sleep.
#[test]
fn atomics_on_data_wake_no_signal_waiter() {
    if ranks::over_network() {
        return; // no rank is woken there
    }
    let looks = AtomicUsize::new(0);
    let looks_when_asleep = || {
        let mut seen = looks.load(SeqCst);
        loop {
            // While it spins or yields it looks more often than that.
            std::thread::sleep(Duration::from_millis(30));
            match looks.load(SeqCst) {
                now if now == seen && now > 0 => return now,
                now => seen = now,
            }
        }
    };
    transom::threads(2, |world| {
        let mut window: Window<u64> = world.allocate_with_signals(4, 1).unwrap();
        let epoch = window.lock_all().unwrap();
        if world.rank() == 1 {
            let arrived = |value| {
                looks.fetch_add(1, SeqCst);
                value == 1
            };
            epoch.signals().wait_until(0, arrived).unwrap();
        } else {
            let (target, begun) = (epoch.target(1).unwrap(), Instant::now());
            let before = looks_when_asleep();
            for _ in 0..10_000 {
                target.fetch_and_op(0, Op::Sum, 1).unwrap();
                target.accumulate(1, Op::Xor, &[1, 2]).unwrap();
                target.compare_and_swap(3, 0, 0).unwrap();
            }
            // The wait looks without a wake-up ten times a second.
            let most = 2 * (2 + begun.elapsed().as_millis() as usize / 100);
            let after = looks.load(SeqCst) - before;
            target.put_signal(0, &[], 0, 1).unwrap();
            assert!(
                after <= most,
                "the waiter checked its signal {after} times during atomics on its data, expected at most {most}"
            );
        }
        epoch.unlock().unwrap();
        window.fence().unwrap();
    })
    .unwrap();
}

/// No rank is left that could give the signal.
#[test]
fn signal_wait_fails_after_all_others_left() {
    ranks::on(&[2, 3, 4, 8], "signal_wait_fails_after_all_others_left", |world| {
        let window: Window<u64> = world.allocate_with_signals(1, 1).unwrap();
        if world.rank() > 0 {
            return; // leaves
        }
        let begun = Instant::now();
        let error = window.signals().wait_until(0, |value| value == 1).unwrap_err();
        assert!(matches!(error, Error::Fabric { source: FabricError::PeerLeft { .. }, .. }), "{error}");
        assert!(begun.elapsed() < ranks::within(Duration::from_secs(1)), "it took {:?}", begun.elapsed());
    });
}

#[test]
fn signal_wait_returns_none_at_its_deadline() {
    ranks::on(&[1, 2, 3, 4], "signal_wait_returns_none_at_its_deadline", |world| {
        let mut window: Window<u64> = world.allocate_with_signals(1, 2).unwrap();
        let epoch = window.lock_all().unwrap();
        let signals = epoch.signals();
        for limit in [Duration::from_millis(60), Duration::ZERO] {
            let begun = Instant::now();
            assert_eq!(signals.wait_any_for(&[0, 1], limit, |_, value| value > 0).unwrap(), None);
            let took = begun.elapsed();
            assert!(limit <= took && took < ranks::within(Duration::from_secs(5)), "{limit:?} took {took:?}");
        }
        world.barrier().unwrap();
        epoch.target((world.rank() + 1) % world.size()).unwrap().signal(1, 7).unwrap();
        for limit in [Duration::from_secs(3600), Duration::MAX] {
            assert_eq!(signals.wait_any_for(&[0, 1], limit, |_, value| value > 0).unwrap(), Some((1, 7)));
            assert_eq!(signals.wait_until_for(1, limit, |value| value == 7).unwrap(), Some(7));
        }
        // The signal has arrived, so the call needs no time.
        assert_eq!(signals.wait_until_for(1, Duration::ZERO, |value| value == 7).unwrap(), Some(7));
        let none = signals.wait_any_for(&[], Duration::ZERO, |_, _| true);
        assert!(matches!(none, Err(Error::NoSignalNamed { .. })), "{none:?}");
        epoch.unlock().unwrap();
    });
}
