//! Tests of ranks that make different calls, die, leave, or panic, and of corrupt shared memory.

use super::*;
use crate::collective::block::LineKind;
use crate::collective::lines::Says;
use crate::collective::shared_lines::SharedLines as _;
use std::sync::Barrier;
use transom_windows::FabricError;

/// A call that differs from that of the other ranks.
type Other = fn(&mut ShmCollective, &mut [u8]) -> Result<(), Failure>;

const OTHERS: &[(&str, Other, Other)] = &[
    (
        "operations",
        |board, data| board.all_reduce(1, data, 8, &mut mix),
        |board, data| board.all_reduce(2, data, 8, &mut mix),
    ),
    (
        "lengths",
        |board, data| board.all_reduce(3, data, 8, &mut mix),
        |board, data| board.all_reduce(4, &mut data[..8], 8, &mut mix),
    ),
    ("long and short", |board, data| board.broadcast(5, 0, data), |board, data| board.broadcast(6, 0, &mut data[..1])),
    ("roots", |board, data| board.broadcast(7, 0, data), |board, data| board.broadcast(8, board.lines.me, data)),
    (
        "roots of reductions",
        |board, data| board.reduce(9, 0, data, 8, &mut mix),
        |board, data| board.reduce(10, board.lines.me, data, 8, &mut mix),
    ),
    ("calls", |board, data| board.broadcast(11, 0, data), |board, data| board.reduce(12, 0, data, 8, &mut mix)),
    ("moves", |board, _| board.barrier(13), |board, data| board.all_to_all(14, &vec![0; data.len()], data)),
    ("an extra call", |_, _| Ok(()), |board, data| board.broadcast(16, board.lines.me, data)),
];

#[test]
fn different_calls_fail_at_all_ranks() {
    for ranks in [2, 3, 6] {
        for (which, (name, theirs, odd)) in OTHERS.iter().enumerate() {
            for strict in [false, true] {
                for len in [48, 240, 120 << 10] {
                    let what = format!("{name}, {ranks} ranks, strict: {strict}, {len} bytes");
                    let failures = all_well(on_threads(ranks, |team| {
                        let mut board = open(&team, strict);
                        let data = &mut vec![0; len][..];
                        let call = if team.rank() == ranks - 1 { odd } else { theirs };
                        let begun = Instant::now();
                        let first = call(&mut board, data);
                        let failed = (0..20).map(|_| board.barrier(99)).find(Result::is_err);
                        let still = board.barrier(99);
                        assert!(begun.elapsed() < Duration::from_secs(20), "{what}");
                        assert!(matches!(still, Err(Failure::Mismatch { .. })), "{what}: {still:?}");
                        (team.rank(), first.err().or(failed.and_then(Result::err)).expect("fails"))
                    }));
                    for (rank, failure) in failures {
                        let Failure::Mismatch { rank: other, theirs } = failure else { panic!("{what}: {failure:?}") };
                        let odd = ranks - 1;
                        assert!(other != rank && (rank == odd || other == odd), "{what}: rank {rank} blames {other}");
                        let (one, two) = (2 * which as u64 + 1, 2 * which as u64 + 2);
                        assert!([one, two, 99].contains(&theirs), "{what}: rank {rank} was notified of call {theirs}");
                    }
                }
            }
        }
    }
}

#[test]
fn wrong_buffers_fail_at_all_ranks() {
    let wrong: [Other; 7] = [
        |board, data| board.broadcast(1, 2, data),
        |board, data| board.all_gather(1, &[0; 3], data),
        |board, data| board.all_to_all(1, &[0; 7], data),
        |board, data| board.reduce(1, 0, data, 0, &mut mix),
        |board, data| board.all_reduce(1, data, 3, &mut mix),
        |board, data| board.reduce_scatter(1, &[0; 15], data, 8, &mut mix),
        |board, data| board.reduce_scatter(1, &[0; 16], data, 3, &mut mix),
    ];
    for call in wrong {
        let failures = all_well(on_threads(2, |team| {
            let mut board = open(&team, false);
            let called = if team.rank() == 0 { call(&mut board, &mut [0; 8]) } else { board.barrier(1) };
            [called.unwrap_err(), board.barrier(1).unwrap_err()]
        }));
        assert!(matches!(&failures[0][0], Failure::Fabric(FabricError::Misuse { .. })), "{failures:?}");
        for failure in failures.iter().flatten().skip(1) {
            assert!(matches!(failure, Failure::Fabric(FabricError::GivenUp { rank: 0 })), "{failures:?}");
        }
    }
}

/// Returns the failures of the other ranks when rank 1 ends in the middle of calls. Checks that they come in time.
fn told(ranks: usize, ends: impl Fn(ShmCollective, Loopback) + Sync) -> Vec<Option<Failure>> {
    let results = on_threads(ranks, |team| {
        let mut board = open(&team, false);
        for call in 0..5 {
            check(&mut board, 6, call, 0, 40_000, 1).unwrap();
        }
        if team.rank() == 1 {
            ends(board, team);
            return None;
        }
        let begun = Instant::now();
        let failure = check(&mut board, 6, 5, 0, 40_000, 1).unwrap_err();
        assert!(begun.elapsed() < Duration::from_secs(10));
        assert!(board.barrier(7).is_err(), "a call on an aborted board succeeded");
        Some(failure)
    });
    results.into_iter().map(|result| result.unwrap_or(None)).collect()
}

#[test]
fn lost_rank_is_named() {
    for ranks in [2, 4] {
        for (failures, died) in [
            (told(ranks, |_, _| panic!("dies")), true),
            (told(ranks, |board, team| drop((board, team))), false),
            // Drops the board before the team.
            (told(ranks, |board, team| drop((team, board))), false),
        ] {
            for (rank, failure) in failures.iter().enumerate().filter(|(rank, _)| *rank != 1) {
                let as_expected = match failure {
                    Some(Failure::Fabric(FabricError::PeerDied { rank: 1 })) => died,
                    Some(Failure::Fabric(FabricError::PeerLeft { rank: 1 })) => !died,
                    _ => false,
                };
                assert!(as_expected, "rank {rank} of {ranks}: {failures:?}");
            }
        }
    }
}

#[test]
fn dropped_board_counts_as_left() {
    let failures = all_well(on_threads(3, |team| {
        let mut board = open(&team, false);
        board.barrier(1).unwrap();
        if team.rank() == 1 {
            drop(board);
            team.barrier().unwrap();
            return None;
        }
        let failure = board.barrier(2).unwrap_err();
        team.barrier().unwrap(); // the rank is still there
        Some(failure)
    }));
    let named = |failure: &Failure| matches!(failure, Failure::Fabric(FabricError::PeerLeft { rank: 1 }));
    assert!(failures.iter().flatten().all(named), "{failures:?}");
}

#[test]
fn dead_process_is_named() {
    let body = |team: Loopback| {
        let mut board = open(&team, false);
        for call in 0.. {
            if team.rank() == 2 && call == 20 {
                std::process::abort();
            }
            let begun = Instant::now();
            if let Err(failure) = check(&mut board, 6, call, 0, 40_000, 1) {
                let died = matches!(failure, Failure::Fabric(FabricError::PeerDied { rank: 2 }));
                assert!(died && call == 20 && begun.elapsed() < Duration::from_secs(10), "{failure:?} in call {call}");
                assert!(board.barrier(1).is_err());
                return;
            }
        }
    };
    let Some(ended) = on_processes(4, "failures::dead_process_is_named", body) else { return };
    assert_eq!(ended, [true, true, false, true]);
}

#[test]
fn fold_panic_fails_all_ranks() {
    for (ranks, len) in [(2, 8), (2, 100_000), (5, 8), (5, 100_000)] {
        let results = on_threads(ranks, |team| {
            let mut board = open(&team, false);
            let mut data = vec![0; len];
            let rank = team.rank();
            let mut folds = 0;
            let reduced = board.all_reduce(1, &mut data, 8, &mut |_, _, _| {
                folds += 1;
                assert!(rank != 1 || folds < 2 && ranks > 2, "this fold fails");
            });
            // With few elements every rank has all data that it needs, and fails in its next call.
            reduced.and_then(|()| board.barrier(2)).unwrap_err()
        });
        for (rank, result) in results.iter().enumerate() {
            match (rank, result) {
                (1, Err(_)) => {}
                (_, Ok(Failure::Panicked { rank: 1 })) => {}
                other => panic!("{other:?} of {ranks}"),
            }
        }
    }
}

/// Calls end whatever other ranks have written.
#[test]
fn corrupt_shared_memory_is_an_error() {
    let failures = all_well(on_threads(2, |team| {
        let mut board = open(&team, false);
        board.barrier(1).unwrap();
        if team.rank() == 1 {
            let line = board.lines.block.line(1, board.lines.round + 1, LineKind::Pair);
            board.lines.shared.word(line).store(0x7000, std::sync::atomic::Ordering::SeqCst);
            team.barrier().unwrap();
            return None;
        }
        let failed = board.barrier(1);
        team.barrier().unwrap();
        Some(failed)
    }));
    assert!(matches!(&failures[0], Some(Err(Failure::Fabric(FabricError::Corrupt { .. })))), "{failures:?}");
    let broken = all_well(on_threads(1, |team| {
        let mut board = open(&team, false);
        board.lines.shared.word(board.lines.block.broken()).store(77, std::sync::atomic::Ordering::SeqCst);
        board.barrier(1).unwrap_err()
    }));
    assert!(matches!(&broken[0], Failure::Fabric(FabricError::Corrupt { .. })), "{broken:?}");
}

/// A root that finds the board broken withdraws its buffer and may write to it, so a rank that reads it then must fail.
#[test]
fn read_from_a_broken_board_fails() {
    let (reads, written, done) = (Barrier::new(2), Barrier::new(2), Barrier::new(2));
    all_well(on_threads(2, |team| {
        let mut board = open(&team, false);
        let reach = board.reach.clone().unwrap();
        let mut data = vec![team.rank() as u8; 64 << 10];
        board.lines.begin("broadcast", 1, Says::Some(data.len())).unwrap();
        if team.rank() == 0 {
            let key = reach.lead_to(data.as_mut_ptr().expose_provenance(), data.len());
            board.lines.post(&[key.address.to_le_bytes(), key.key.to_le_bytes()].concat()).unwrap();
            reads.wait();
            board.breaker().give_up();
            data.fill(7);
            written.wait();
            done.wait();
            crate::reach::withdraw(key);
        } else {
            let round = board.lines.post(&[]).unwrap();
            let offered = board.offered(0, round).unwrap();
            reads.wait();
            written.wait();
            let read = board.lines.read_directly(&reach, 0, (offered, 0), &mut data);
            done.wait();
            assert!(matches!(read, Err(Failure::Fabric(FabricError::GivenUp { rank: 0 }))), "{read:?}");
        }
    }));
}
