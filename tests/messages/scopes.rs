//! Requests on memory that a scope lends: its end waits for them, and reports those that did not start.

use crate::ranks;
use ranks::{on, pattern};
use transom::Window;
use transom::messages::{Error, Tag};

const ONE: Tag<u64> = Tag::new(1);
const TWO: Tag<u64> = Tag::new(2);
const BYTES: Tag<u8> = Tag::new(9);

#[test]
fn scope_waits_for_requests_on_borrowed_memory() {
    on(&[1, 2, 4], "scope_waits_for_requests_on_borrowed_memory", |world| {
        let (rank, size) = (world.rank(), world.size());
        let (next, before) = ((rank + 1) % size, (rank + size - 1) % size);
        let mine = pattern(rank, 100_000);
        let mut got = vec![0; 100_000];
        let counted = world.scope(|scope| {
            // The scope still waits for all of them.
            std::mem::forget(scope.irecv(before, BYTES, &mut got));
            std::mem::forget(scope.isend(next, BYTES, &mine));
            Ok::<usize, Error>(17)
        });
        assert_eq!(counted.unwrap(), 17);
        assert_eq!(got, pattern(before, 100_000));
        world.barrier().unwrap();
        // A synchronous send ends when it is matched.
        let data = [7];
        let ended = world.scope(|scope| {
            let mut sent = scope.issend(rank, BYTES, &data);
            assert!(!sent.test());
            assert_eq!(world.recv(rank, BYTES)?.0, data);
            assert_eq!(sent.wait()?, data);
            Ok::<(), Error>(())
        });
        ended.unwrap();
        // A panic withdraws receives that have no sender.
        let mut never = [0_u8; 4];
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            world.scope(|scope| {
                std::mem::forget(scope.irecv(rank, BYTES, &mut never));
                if scope_is_to_end() {
                    panic!("intended panic");
                }
                Ok::<(), Error>(())
            })
        }));
        assert!(panicked.is_err());
        world.send(rank, BYTES, &[1]).unwrap();
        assert_eq!(world.recv(rank, BYTES).unwrap().0, [1]);
    });
}

fn scope_is_to_end() -> bool {
    true
}

/// The compiler checks it: without the attributes, requests of the world would be dropped without a warning.
#[test]
#[deny(unused_must_use, unfulfilled_lint_expectations)]
fn requests_of_a_scope_need_no_use() {
    on(&[1], "requests_of_a_scope_need_no_use", |world| {
        let (own, mut got, mut sums, mut read) = ([3], [0], [1], [7]);
        let mut window: Window<u64> = world.allocate(1).unwrap();
        let epoch = window.lock_shared(0).unwrap();
        let scoped = world.scope(|scope| {
            scope.irecv(0, ONE, &mut got);
            scope.isend(0, ONE, &own);
            scope.iall_reduce(&mut sums, transom::Op::Sum);
            scope.get(&epoch, 0, &mut read)?;
            Ok::<(), transom::Error>(())
        });
        scoped.unwrap();
        assert_eq!((got, sums, read), ([3], [1], [0]));
        #[expect(unused_must_use, reason = "the dropped receive is withdrawn")]
        world.irecv(0, ONE);
        #[expect(unused_must_use, reason = "the dropped barrier completes")]
        world.ibarrier();
    });
}

#[test]
fn scope_end_reports_requests_that_did_not_start() {
    on(&[1, 2], "scope_end_reports_requests_that_did_not_start", |world| {
        let size = world.size();
        let (own, mut got, mut sums, mut own_got) = ([3_u64], [0], [0], [0]);
        let ended: [Result<(), Error>; 4] = [
            world.scope(|scope| {
                scope.isend(size, ONE, &own);
                Ok(())
            }),
            world.scope(|scope| {
                scope.irecv(size, ONE, &mut got);
                Ok(())
            }),
            world.scope(|scope| {
                scope.ibroadcast(size, &mut sums);
                Ok(())
            }),
            world.scope(|scope| {
                scope.irecv(world.rank(), TWO, &mut own_got);
                scope.issend(world.rank(), TWO, &own);
                scope.isend(size, ONE, &own);
                Ok(())
            }),
        ];
        for (number, ended) in ended.into_iter().enumerate() {
            let error = ended.expect_err("the request names a rank that does not exist");
            assert!(matches!(error, Error::NoSuchRank { rank, .. } if rank == size), "scope {number}: {error}");
        }
        // The program takes the results.
        let taken: Result<(), Error> = world.scope(|scope| {
            assert_eq!(scope.isend(size, ONE, &own).wait().unwrap_err().buffer, Some(&own[..]));
            let mut request = scope.isend(size, ONE, &own);
            assert!(transom::wait_all(&mut [&mut request]).is_err());
            Ok(())
        });
        taken.unwrap();
    });
}
