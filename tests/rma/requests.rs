//! Operations that are waited for later. No part of an epoch, a guard or a request relies on its drop.

use crate::ranks;
use std::collections::BTreeSet;
use transom::windows::Request;
use transom::{Assert, Error, Flavor, Mode, Op, Requests, Window, World};

#[test]
fn request_returns_its_buffer_or_the_data_read() {
    ranks::on_all_sizes("request_returns_its_buffer_or_the_data_read", |world| {
        let (me, n) = (world.rank(), world.size());
        let mut window: Window<u64> = world.allocate(4 * n).unwrap();
        let epoch = window.lock_all().unwrap();
        let target = epoch.target((me + 1) % n).unwrap();
        let buffer = vec![1, 2, 3, 4];
        let start = buffer.as_ptr();
        let back = target.rput(4 * me, buffer).unwrap().wait().unwrap();
        assert_eq!((&back[..], back.as_ptr()), (&[1, 2, 3, 4][..], start), "request did not return its own buffer");
        target.flush().unwrap();
        let mut get = target.rget(4 * me + 1, 3).unwrap();
        while !get.test() {}
        assert!(get.test(), "completed request became incomplete");
        assert_eq!(get.wait().unwrap(), [2, 3, 4]);
        let mut add = target.raccumulate(4 * me, Op::Sum, vec![10, 20]).unwrap();
        assert!(add.test());
        assert_eq!(add.wait().unwrap(), [10, 20], "request did not return its operands");
        let fetch = target.rget_accumulate(4 * me, Op::Prod, vec![2, 2]).unwrap();
        assert_eq!(fetch.wait().unwrap(), [11, 22], "request did not return the fetched elements");
        assert_eq!(target.rget(4 * me, 4).unwrap().wait().unwrap(), [22, 44, 3, 4]);
        epoch.unlock().unwrap();
        window.fence().unwrap();
    });
}

#[test]
fn wait_all_keeps_order_and_wait_any_drains_the_set() {
    ranks::on_all_sizes("wait_all_keeps_order_and_wait_any_drains_the_set", |world| {
        let n = world.size();
        let mut window: Window<u32> = world.allocate(101).unwrap();
        let mine: Vec<u32> = (0..101).map(|at| (1000 * world.rank() + at) as u32).collect();
        window.local().write(0, &mine).unwrap();
        window.fence().unwrap();
        let epoch = window.lock_all().unwrap();
        let targets: Vec<_> = (0..n).map(|rank| epoch.target(rank).unwrap()).collect();
        let gets = || -> Vec<Request<'_, Vec<u32>>> {
            let places = (0..50).map(|i| (i % n, 2 * i));
            places.map(|(rank, at)| targets[rank].rget(at, 1 + i_th(at)).unwrap()).collect()
        };
        fn i_th(at: usize) -> usize {
            at % 3
        }
        let expected =
            |i: usize| -> Vec<u32> { (0..=i_th(2 * i)).map(|more| (1000 * (i % n) + 2 * i + more) as u32).collect() };
        let all = Request::wait_all(gets()).unwrap();
        assert!(all.iter().enumerate().all(|(i, got)| *got == expected(i)), "{all:?}");

        let (mut given, mut requests) = (vec![false; 50], gets().into_iter().collect::<Requests<'_, _>>());
        while let Some((number, got)) = requests.wait_any() {
            assert_eq!(got.unwrap(), expected(number), "request returned under another number");
            assert!(!std::mem::replace(&mut given[number], true), "request {number} was returned twice");
            assert_eq!(requests.len(), given.iter().filter(|given| !**given).count());
        }
        assert!(given.iter().all(|given| *given) && requests.is_empty());
        assert!(requests.wait_any().is_none() && requests.test_any().is_none());
        assert_eq!(requests.push(targets[0].rget(0, 1).unwrap()), 50);
        let (number, got) = requests.wait_any().unwrap();
        assert_eq!((number, got.unwrap()), (50, vec![0]));
        assert_eq!(Request::wait_all(Vec::<Request<'_, Vec<u32>>>::new()).unwrap(), Vec::<Vec<u32>>::new());

        // Requests of different operations, and an empty one.
        let mixed =
            vec![targets[0].rget(7, 0).unwrap(), targets[0].rput(99, vec![]).unwrap(), targets[0].rget(1, 1).unwrap()];
        assert_eq!(Request::wait_all(mixed).unwrap(), [vec![], vec![], vec![1]]);
        drop(requests);
        drop(targets);
        epoch.unlock().unwrap();
        window.fence().unwrap();
    });
}

/// A get that is done, by `test`, by a flush or since its epoch has seen a signal, has read its elements: later puts
/// do not change its buffer.
#[test]
fn completed_get_is_unaffected_by_later_puts() {
    ranks::on_all_sizes("completed_get_is_unaffected_by_later_puts", |world| {
        let (me, n) = (world.rank(), world.size());
        let next = (me + 1) % n;
        let mut window: Window<u64> = world.allocate_with_signals(3, 1).unwrap();
        window.local().write(0, &[5; 3]).unwrap();
        window.fence().unwrap();
        let epoch = window.lock_all().unwrap();
        let target = epoch.target(next).unwrap();
        let mut tested = target.rget(0, 1).unwrap();
        while !tested.test() {}
        target.put(0, &[7]).unwrap();
        target.flush().unwrap();
        assert_eq!(tested.wait().unwrap(), [5], "get changed after test reported it complete");
        let flushed = target.rget(1, 1).unwrap();
        target.flush().unwrap();
        target.put(1, &[7]).unwrap();
        target.flush().unwrap();
        assert_eq!(flushed.wait().unwrap(), [5], "get changed after its flush");
        // The owner overwrites the elements once it learns that they were read.
        let mut read = target.rget(2, 1).unwrap();
        while !read.test() {}
        target.put_signal(0, &[], 0, 1).unwrap();
        epoch.signals().wait_until(0, |heard| heard == 1).unwrap();
        epoch.local().set(2, 9).unwrap();
        world.barrier().unwrap();
        assert_eq!(read.wait().unwrap(), [5], "get changed after its owner was notified");
        epoch.unlock().unwrap();
        window.fence().unwrap();
        assert_eq!(window.local().read(0, 3).unwrap(), [7, 7, 9]);
    });
}

#[test]
fn dropped_and_leaked_requests_still_complete() {
    ranks::on_all_sizes("dropped_and_leaked_requests_still_complete", |world| {
        let (me, n) = (world.rank(), world.size());
        let mut window: Window<u64> = world.allocate(6 * n).unwrap();
        let next = (me + 1) % n;
        let epoch = window.lock_shared(next).unwrap();
        drop(epoch.rput(6 * me, vec![1]).unwrap());
        leak(epoch.rput(6 * me + 1, vec![2]).unwrap());
        drop(epoch.raccumulate(6 * me + 2, Op::Sum, vec![3]).unwrap());
        leak(epoch.raccumulate(6 * me + 3, Op::Sum, vec![4]).unwrap());
        drop(epoch.rget_accumulate(6 * me + 4, Op::Sum, vec![5]).unwrap());
        leak(epoch.rget_accumulate(6 * me + 5, Op::Sum, vec![6]).unwrap());
        // A read owns its destination, so no memory dangles when the request is dropped or leaked.
        drop(epoch.rget(0, 6 * n).unwrap());
        leak(epoch.rget(0, 6 * n).unwrap());
        epoch.unlock().unwrap();
        window.fence().unwrap();
        let before = (me + n - 1) % n;
        assert_eq!(window.local().read(6 * before, 6).unwrap(), [1, 2, 3, 4, 5, 6]);
        window.fence().unwrap();
    });
}

/// Requests of any length, several in flight at once, waited for in reverse order; some are dropped or leaked.
#[test]
fn requests_of_any_length_return_their_buffers() {
    ranks::on_all_sizes("requests_of_any_length_return_their_buffers", |world| {
        const LENGTHS: [usize; 6] = [0, 1, 4_095, 4_097, 40_000, 11];
        let (me, n) = (world.rank(), world.size());
        let mut window: Window<u64> = world.allocate(LENGTHS.iter().sum()).unwrap();
        let epoch = window.lock_all().unwrap();
        let target = epoch.target((me + 1) % n).unwrap();
        let places = LENGTHS.iter().scan(0, |place, &len| Some(std::mem::replace(place, *place + len)));
        let parts: Vec<(usize, usize)> = places.zip(LENGTHS).collect();
        for turn in 0..2 {
            let data = |(place, len): (usize, usize)| -> Vec<u64> {
                (place..place + len).map(|at| (at * 1000 + 100 * turn + me) as u64).collect()
            };
            let put = |&part: &(usize, usize)| {
                let mut buffer = Vec::with_capacity(2 * part.1); // longer than the part
                buffer.extend(data(part));
                (part, target.rput(part.0, buffer).unwrap())
            };
            let mut puts: Vec<_> = parts.iter().map(put).collect();
            if turn == 1 {
                drop(puts.remove(4));
                leak(puts.remove(2));
            }
            for (part, mut put) in puts.into_iter().rev() {
                while part.1 % 2 == 1 && !put.test() {}
                assert_eq!(put.wait().unwrap(), data(part), "turn {turn}");
            }
            target.flush().unwrap();
            let mut gets: Vec<_> = parts.iter().map(|&part| (part, target.rget(part.0, part.1).unwrap())).collect();
            if turn == 0 {
                drop(gets.remove(4));
                leak(gets.remove(2));
            }
            for (part, get) in gets.into_iter().rev() {
                assert_eq!(get.wait().unwrap(), data(part), "turn {turn}");
            }
        }
        epoch.unlock().unwrap();
        window.fence().unwrap();
    });
}

#[test]
fn invalid_requests_start_nothing() {
    ranks::on_all_sizes("invalid_requests_start_nothing", |world| {
        let last = world.size() - 1;
        let mut window: Window<f64> = world.allocate(if world.rank() == last { 5 } else { 50 }).unwrap();
        let epoch = window.fence().unwrap();
        let target = epoch.target(last).unwrap();
        let before = target.rget(0, 5).unwrap().wait().unwrap();
        for (offset, len) in [(5, 1), (4, 2), (0, 6), (6, 0), (usize::MAX, 1), (usize::MAX, 0), (1 << 61, 3)] {
            let some = vec![1.0; len];
            let refused = [
                target.rput(offset, some.clone()).map(drop),
                target.rget(offset, len).map(drop),
                target.raccumulate(offset, Op::Sum, some.clone()).map(drop),
                target.rget_accumulate(offset, Op::Sum, some).map(drop),
            ];
            for outcome in refused {
                match outcome {
                    Err(Error::OutOfBounds { rank, offset: at, len: n, size: 5, .. }) => {
                        assert_eq!((rank, at, n), (last, offset, len));
                    }
                    other => panic!("{len} from {offset}: {other:?}"),
                }
            }
        }
        // A length beyond all memory is refused before memory is allocated.
        assert!(matches!(target.rget(0, usize::MAX).map(drop), Err(Error::OutOfBounds { .. })));
        for op in [Op::And, Op::LogicalXor] {
            let refused = [target.raccumulate(0, op, vec![1.0]), target.rget_accumulate(0, op, vec![1.0])];
            assert!(refused.into_iter().all(|outcome| matches!(outcome.map(drop), Err(Error::Operation { .. }))));
        }
        assert_eq!(target.rget(0, 5).unwrap().wait().unwrap(), before);
        window.fence().unwrap();
    });
}

/// Leaks any value, also one that has nothing to drop today.
fn leak<T>(value: T) {
    std::mem::forget(value);
}

fn refused(outcome: Result<(), Error>) {
    let error = outcome.expect_err("a call should be refused after the leak");
    assert!(matches!(error, Error::Lock { .. } | Error::Sync { .. }), "{error}");
}

/// Leaks are sound. An operation in flight owns its buffer. An epoch and a guard only borrow the window, and own no
/// memory that other ranks write to. Memory that the program lent stays leaked until all have freed it, and a reached
/// target keeps its memory mapped. A leak therefore only leaves a lock or an epoch open, in words of the protocol. The
/// next call that needs it closed reports that, and other calls work.
#[test]
fn leaked_epochs_leave_other_calls_working() {
    ranks::on_all_sizes("leaked_epochs_leave_other_calls_working", |world| {
        let (me, n) = (world.rank(), world.size());
        let flavors: [fn() -> Flavor<u64>; 3] =
            [|| Flavor::Allocate { len: 9 }, || Flavor::Shared { len: 9 }, || Flavor::Create(vec![0; 9])];
        for flavor in flavors
            .into_iter()
            .filter(|flavor| ranks::share_memory(&world) || !matches!(flavor(), Flavor::Shared { .. }))
        {
            let new = || -> Window<u64> { world.window(flavor(), 1).unwrap() };
            // A lock of one: it alone stays taken.
            let mut window = new();
            let epoch = window.lock_exclusive(me).unwrap();
            leak(epoch.rput(0, vec![7]).unwrap());
            leak(epoch.rget(0, 1).unwrap());
            leak(epoch);
            refused(window.lock_exclusive(me).map(drop));
            refused(window.lock_shared(me).map(drop));
            refused(window.lock_all().map(drop));
            window.lock_with(me, Mode::Exclusive, Assert::empty()).map(drop).unwrap_err();
            window.fence().unwrap();
            assert_eq!(window.local().get(0).unwrap(), 7);
            window.local().set(1, 2).unwrap();
            world.barrier().unwrap();
            drop(window); // releases the lock

            // A leaked epoch of all targets: all locks stay taken.
            let mut window = new();
            leak(window.lock_all().unwrap());
            refused(window.lock_all().map(drop));
            for rank in 0..n {
                refused(window.lock_shared(rank).map(drop));
            }
            let epoch = window.fence().unwrap();
            epoch.target((me + 1) % n).unwrap().put(3, &[4]).unwrap();
            leak(epoch); // holds nothing
            window.fence().unwrap();
            assert_eq!(window.local().get(3).unwrap(), 4);
            world.barrier().unwrap();
            drop(window);

            // A leaked lock that was not taken leaves no trace, except in debug builds.
            let mut window = new();
            leak(window.lock_with(me, Mode::Shared, Assert::NOCHECK).unwrap());
            assert_eq!(window.lock_shared(me).is_err(), cfg!(debug_assertions));
            world.barrier().unwrap();
            drop(window);

            // Access to the rank itself: it is never completed, so the exposure stays open too.
            let mut window = new();
            window.post(&[me]).unwrap();
            let epoch = window.start(&[me]).unwrap();
            epoch.target(me).unwrap().put(5, &[6]).unwrap();
            leak(epoch);
            refused(window.start(&[me]).map(drop));
            refused(window.post(&[me]));
            assert!(!window.test().unwrap());
            window.lock_exclusive(me).unwrap().put(6, &[6]).unwrap();
            window.fence().unwrap();
            assert_eq!(window.local().read(5, 2).unwrap(), [6, 6]);
            // User memory is returned when all ranks have freed it, even with leaked epochs.
            let back = window.free().unwrap();
            assert!(back.is_empty() || back == [0, 0, 0, 0, 0, 6, 6, 0, 0]);
        }
    });
}

/// A leaked access epoch ends with its window: its target does not wait for ever.
#[test]
fn leaked_access_epoch_completes_with_its_window() {
    ranks::on_all_sizes("leaked_access_epoch_completes_with_its_window", |world| {
        let (me, n) = (world.rank(), world.size());
        let mut exposed: Window<usize> = world.allocate(n).unwrap();
        let others: Vec<usize> = (0..n).filter(|&rank| rank != me).collect();
        exposed.post(&others).unwrap();
        if me == 0 {
            let epoch = exposed.start(&others).unwrap();
            others.iter().for_each(|&rank| epoch.target(rank).unwrap().put(0, &[40 + rank]).unwrap());
            leak(epoch);
            drop(exposed);
        } else {
            // From the others it comes by the usual way.
            exposed.start(&others).unwrap().complete().unwrap();
            exposed.wait().unwrap();
            assert_eq!(exposed.local().get(0).unwrap(), 40 + me);
        }
        world.barrier().unwrap();
    });
}

#[test]
fn leaked_guards_keep_only_their_lock() {
    ranks::on_all_sizes("leaked_guards_keep_only_their_lock", |world| {
        let owners: BTreeSet<usize> = [0, world.size() - 1].into();
        for owner in owners {
            let mine = |world: &World| world.rank() == 0;
            let (mutex, lock) = (world.mutex(owner, 5u64).unwrap(), world.rw_lock(owner, [1u8; 3]).unwrap());
            if mine(&world) {
                leak(mutex.lock().unwrap());
                assert!(matches!(mutex.lock(), Err(Error::Value { .. })));
                leak(lock.read().unwrap());
                assert!(matches!(lock.read(), Err(Error::Value { .. })));
                assert!(matches!(lock.write(), Err(Error::Value { .. })));
                assert!(!mutex.is_poisoned().unwrap() && !lock.is_poisoned().unwrap());
            }
            world.barrier().unwrap();
            if !mine(&world) {
                assert_eq!(*lock.read().unwrap(), [1; 3], "reader beside a leaked read guard");
            }
            world.barrier().unwrap();
            drop((mutex, lock)); // a waiting rank may get it now
        }
    });
}

#[test]
fn leaked_attached_memory_is_not_reused() {
    ranks::on_all_sizes("leaked_attached_memory_is_not_reused", |world| {
        let me = world.rank();
        let mut window: Window<u64> = world.dynamic(1).unwrap();
        let address = window.attach(4).unwrap();
        let memory = window.reach(&address).unwrap();
        let epoch = window.lock_exclusive(me).unwrap();
        let target = epoch.attached(&memory).unwrap();
        leak(target.rget(0, 4).unwrap());
        leak(target.rput(0, vec![1; 4]).unwrap());
        leak(target);
        epoch.unlock().unwrap();
        leak(memory);
        window.detach(&address).unwrap();
        // Leaked attached memory stays; new memory is other memory.
        let again = window.attach(4).unwrap();
        assert_eq!(window.local().attached(&again).unwrap().read(0, 4).unwrap(), [0; 4]);
        leak(window.local());
        window.free().unwrap();
        world.barrier().unwrap();
    });
}

/// A leaked window makes its rank one that never leaves: other ranks go on as long as they do not wait for it.
#[test]
fn leaked_window_leaves_other_ranks_working() {
    ranks::on_all_sizes("leaked_window_leaves_other_ranks_working", |world| {
        let me = world.rank();
        let mut leaked: Window<u64> = world.create(vec![me as u64; 9]).unwrap();
        let mut other: Window<u64> = world.allocate(1).unwrap();
        leaked.fence().unwrap();
        if me == 0 {
            leak(leaked);
        } else {
            let epoch = leaked.lock_shared(0).unwrap();
            epoch.put(0, &[5; 9]).unwrap();
            assert_eq!(epoch.get_one(8).unwrap(), 5);
            epoch.unlock().unwrap();
        }
        other.lock_exclusive(0).unwrap().fetch_and_op(0, Op::Sum, 1).unwrap();
        other.fence().unwrap();
        assert_eq!(other.lock_shared(0).unwrap().get_one(0).unwrap(), world.size() as u64);
        world.barrier().unwrap();
    });
}
