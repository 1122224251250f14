//! Threads of a rank that call collectives of one team: concurrent calls are errors, and calls in an order of the
//! program's succeed.

use crate::ranks;
use ranks::on;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Barrier, Mutex};
use transom::collective::Grid;
use transom::messages::Error;
use transom::{Op, World};

/// A call of every form, by its name.
type Call = fn(&World) -> Result<(), Error>;

const CALLS: [(&str, Call); 8] = [
    ("blocking", |world| world.all_reduce_one(1, Op::Sum).map(drop)),
    ("barrier", World::barrier),
    ("neighbours", |world| {
        let ring = Grid::new([world.size()], [true]).unwrap();
        world.neighbours(&ring, &[1, 2], &mut [0, 0])
    }),
    ("started", |world| Ok(world.iall_reduce(vec![1], Op::Sum).wait().map(drop)?)),
    ("ibarrier", |world| Ok(world.ibarrier().wait()?)),
    ("started neighbours", |world| {
        let ring = Grid::new([world.size()], [true]).unwrap();
        Ok(world.ineighbours(&ring, vec![1, 2]).wait().map(drop)?)
    }),
    ("persistent", |world| {
        let mut sum = world.all_reduce_init(vec![1], Op::Sum)?;
        sum.start()?.wait()?;
        Ok(())
    }),
    ("in a scope", |world| {
        let mut data = [1];
        world.scope(|scope| scope.iall_reduce(&mut data, Op::Sum).wait().map(drop).map_err(Error::from))
    }),
];

/// Threads without an order call until one gets an error; from then on no thread of any rank gets a result.
#[test]
fn unordered_threads_of_a_team_are_reported() {
    on(&[1, 2, 3], "unordered_threads_of_a_team_are_reported", |world| {
        for (name, call) in CALLS {
            let team = world.split(Some(0), 0).unwrap().unwrap();
            let begin = Barrier::new(2);
            let told = AtomicUsize::new(0);
            let loops = || {
                begin.wait();
                let error = (0..).find_map(|_| call(&team).err()).expect("a call should fail");
                let text = error.to_string();
                assert!(matches!(error, Error::Misuse { .. } | Error::Mismatch { .. }), "{name}: {text}");
                told.fetch_add(1, SeqCst);
            };
            std::thread::scope(|scope| (0..2).for_each(|_| drop(scope.spawn(loops))));
            assert_eq!(told.load(SeqCst), 2, "{name}");
            let error = call(&team).unwrap_err();
            assert!(matches!(error, Error::Mismatch { .. }), "{name}: {error}");
            world.barrier().unwrap();
        }
    });
}

/// Two threads take the next number under a mutex, which they hold around the start alone, and wait at the same time.
#[test]
fn threads_ordered_by_a_mutex_get_defined_results() {
    on(&[1, 2, 3], "threads_ordered_by_a_mutex_get_defined_results", |world| {
        let (n, rounds) = (world.size(), ranks::rounds(300));
        let next = Mutex::new(0);
        let work = || {
            loop {
                let mut number = next.lock().unwrap();
                let mine = *number;
                *number += 1;
                let started = world.iall_reduce(vec![mine], Op::Sum);
                drop(number);
                assert_eq!(started.wait().unwrap(), [n * mine]);
                if mine >= rounds {
                    return;
                }
            }
        };
        // Each thread ends with a call of its own, so that all ranks make the same number of calls.
        std::thread::scope(|scope| (0..2).for_each(|_| drop(scope.spawn(work))));
        assert_eq!(*next.lock().unwrap(), rounds + 2);
    });
}

/// One thread after the other; each call has returned before the next. Also blocking calls.
#[test]
fn threads_taking_turns_get_defined_results() {
    on(&[1, 2, 3], "threads_taking_turns_get_defined_results", |world| {
        let turn = Mutex::new(());
        for round in 0..ranks::rounds(20) {
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let _turn = turn.lock().unwrap();
                    CALLS
                        .iter()
                        .for_each(|(name, call)| call(&world).unwrap_or_else(|error| panic!("{name}: {error}")));
                });
            });
            assert_eq!(world.all_reduce_one(round, Op::Max).unwrap(), round);
        }
    });
}
