//! Locks of several targets at once, and attempts that do not wait.

use crate::ranks;
use transom::Mode::Exclusive;
use transom::array::ArrayError;
use transom::{Distribution, Error, Mode, Op, Window, World};

/// Transfers between accounts at two ranks: a reader of all accounts sees the full sum.
#[test]
fn update_under_two_locks_is_seen_whole() {
    let name = "update_under_two_locks_is_seen_whole";
    ranks::on_all_sizes(name, |world: World| {
        const EACH: u64 = 1000;
        let (me, n) = (world.rank(), world.size());
        let mut window: Window<u64> = world.allocate(1).unwrap();
        window.local().set(0, EACH).unwrap();
        window.fence().unwrap();
        for round in 0..ranks::rounds(60) {
            let (from, to) = ((me + round) % n, (me * 3 + 2 * round + 1) % n);
            if from == to {
                let all: Vec<_> = (0..n).rev().map(|rank| (rank, Mode::Shared)).collect();
                let epoch = window.lock_ranks(&all).unwrap();
                let sum: u64 = (0..n).map(|rank| epoch.target(rank).unwrap().get_one(0).unwrap()).sum();
                assert_eq!(sum, EACH * n as u64, "sum of the accounts read by rank {me}");
                epoch.unlock().unwrap();
                continue;
            }
            let epoch = window.lock_ranks(&[(from, Mode::Exclusive), (to, Mode::Exclusive)]).unwrap();
            let (here, there) = (epoch.target(from).unwrap(), epoch.target(to).unwrap());
            let amount = here.get_one(0).unwrap().min(round as u64);
            here.put_one(0, here.get_one(0).unwrap() - amount).unwrap();
            there.put_one(0, there.get_one(0).unwrap() + amount).unwrap();
            // A drop unlocks as well.
        }
        window.fence().unwrap();
        let epoch = window.lock_all().unwrap();
        let sum: u64 = (0..n).map(|rank| epoch.target(rank).unwrap().get_one(0).unwrap()).sum();
        assert_eq!(sum, EACH * n as u64);
        epoch.unlock().unwrap();
        window.fence().unwrap();
    });
}

#[test]
fn invalid_lock_ranks_leaves_nothing_locked() {
    ranks::on(&[1, 2], "invalid_lock_ranks_leaves_nothing_locked", |world: World| {
        use Mode::Shared;
        let mut window: Window<u64> = world.allocate(1).unwrap();
        let n = world.size();
        assert!(matches!(window.lock_ranks(&[(0, Shared), (n, Shared)]), Err(Error::NoSuchRank { .. })));
        let epoch = window.lock_ranks(&[(n - 1, Shared)]).unwrap();
        assert!(n == 1 || matches!(epoch.target(0), Err(Error::NotStarted { rank: 0, .. })));
        assert!(matches!(epoch.target(n), Err(Error::NoSuchRank { .. })));
        drop(epoch);
        window.lock_ranks(&[]).unwrap().unlock().unwrap();
        world.barrier().unwrap();
        window.lock_exclusive(0).unwrap().unlock().unwrap();
    });
}

#[test]
fn target_named_twice_is_locked_once() {
    ranks::on(&[1, 2, 3], "target_named_twice_is_locked_once", |world: World| {
        use Mode::{Exclusive, Shared};
        let mut window: Window<u64> = world.allocate(1).unwrap();
        let none = [(0, Shared), (0, Shared)];
        for (targets, others) in
            [(none, true), ([(0, Shared), (0, Exclusive)], false), ([(0, Exclusive), (0, Shared)], false)]
        {
            world.barrier().unwrap();
            if world.rank() == 0 {
                let epoch = window.lock_ranks(&targets).unwrap();
                epoch.target(0).unwrap().fetch_add(0, 1).unwrap();
                world.barrier().unwrap(); // it is held
                world.barrier().unwrap(); // the others have tried
                epoch.unlock().unwrap();
            } else {
                world.barrier().unwrap();
                let shared = window.try_lock(0, Shared).unwrap();
                assert_eq!(shared.is_some(), others, "{targets:?}");
                drop(shared);
                world.barrier().unwrap();
            }
            world.barrier().unwrap();
            window.lock_exclusive(0).unwrap().unlock().unwrap();
        }
    });
}

/// Attempts and waiting requests exclude each other.
#[test]
fn try_lock_and_lock_exclude_each_other() {
    ranks::on_all_sizes("try_lock_and_lock_exclude_each_other", |world: World| {
        let (me, home) = (world.rank(), world.size() - 1);
        let mut window: Window<u64> = world.allocate(2).unwrap();
        window.fence().unwrap();
        let mut done = 0;
        for round in 0..ranks::rounds(200) {
            let epoch = match (round + me) % 3 {
                0 => Some(window.lock_exclusive(home).unwrap()),
                _ => window.try_lock(home, Mode::Exclusive).unwrap(),
            };
            if let Some(epoch) = epoch {
                let value = epoch.get_one(0).unwrap();
                epoch.put_one(0, value + 1).unwrap();
                done += 1;
            }
        }
        window.lock_shared(home).unwrap().fetch_add(1, done).unwrap();
        window.fence().unwrap();
        let mut both = [0; 2];
        window.lock_shared(home).unwrap().get(0, &mut both).unwrap();
        assert_eq!(both[0], both[1], "updates under the lock differ from grants");
        window.fence().unwrap();
    });
}

#[test]
fn try_lock_is_none_while_another_rank_holds_it() {
    ranks::on(&[2, 3], "try_lock_is_none_while_another_rank_holds_it", |world: World| {
        let mut window: Window<u64> = world.allocate(1).unwrap();
        let shared = world.mutex(0, 5u64).unwrap();
        if world.rank() == 0 {
            let (epoch, guard) = (window.lock_shared(1).unwrap(), shared.lock().unwrap());
            world.barrier().unwrap();
            world.barrier().unwrap();
            drop((epoch, guard));
            world.barrier().unwrap();
        } else {
            world.barrier().unwrap();
            assert!(window.try_lock(1, Mode::Exclusive).unwrap().is_none());
            window
                .try_lock(1, Mode::Shared)
                .unwrap()
                .expect("a shared lock should be granted beside a reader")
                .unlock()
                .unwrap();
            assert!(shared.try_lock().unwrap().is_none());
            world.barrier().unwrap();
            world.barrier().unwrap();
            if world.rank() == 1 {
                *shared.try_lock().unwrap().expect("free lock should be granted") += 1;
                window.try_lock(1, Mode::Exclusive).unwrap().expect("free lock should be granted").unlock().unwrap();
            }
        }
        world.barrier().unwrap();
        assert_eq!(*shared.lock().unwrap(), 6);
    });
}

/// Threads with a target of one epoch each lose no update of each other, in every mode of lock.
#[test]
fn threads_with_own_targets_lose_no_accumulate() {
    ranks::on(&[1, 2, 4], "threads_with_own_targets_lose_no_accumulate", |world: World| {
        let (last, each) = (world.size() - 1, ranks::rounds(5000) as u64);
        let mut window: Window<u64> = world.allocate(2).unwrap();
        let epoch = window.lock_ranks(&[(last, Exclusive)]).unwrap();
        let targets = [0, 1].map(|_| epoch.target(last).unwrap());
        std::thread::scope(|scope| {
            for target in targets {
                scope.spawn(move || (0..each).for_each(|_| target.accumulate(0, Op::Sum, &[1, 1]).unwrap()));
            }
        });
        epoch.unlock().unwrap();
        let epoch = window.lock_exclusive(last).unwrap();
        let views = [0, 8].map(|_| epoch.view::<u64>(0).unwrap());
        std::thread::scope(|scope| {
            for view in views {
                scope.spawn(move || (0..each).for_each(|_| view.accumulate(0, Op::Sum, &[1, 1]).unwrap()));
            }
        });
        epoch.unlock().unwrap();
        world.barrier().unwrap();
        let all = 4 * each * world.size() as u64;
        assert_eq!(window.lock_shared(last).unwrap().get_one(1).unwrap(), all);
        world.barrier().unwrap();
    });
}

/// Two elements of an array at two owners are changed together; a reader of both sees their sum unchanged.
#[test]
fn array_elements_of_two_owners_change_together() {
    ranks::on_all_sizes("array_elements_of_two_owners_change_together", |world: World| {
        let (me, n) = (world.rank(), world.size());
        let mut array = world.array::<i64, 1>([2 * n], Distribution::Cyclic).unwrap();
        for round in 0..ranks::rounds(60) {
            let (from, to) = ((me + round) % (2 * n), (3 * me + 2 * round + 1) % (2 * n));
            let owners = [(from % n, Exclusive), (to % n, Exclusive)];
            let access = array.lock_ranks(&owners).unwrap();
            access.put_one(from, access.get_one(from).unwrap() - 7).unwrap();
            access.flush().unwrap();
            access.put_one(to, access.get_one(to).unwrap() + 7).unwrap();
            access.unlock().unwrap();
            let all: Vec<_> = (0..n).map(|rank| (rank, Mode::Shared)).collect();
            let mut elements = vec![0; 2 * n];
            array.lock_ranks(&all).unwrap().get(0..2 * n, &mut elements).unwrap();
            assert_eq!(elements.iter().sum::<i64>(), 0, "read by rank {me} in round {round}");
        }
        array.fence().unwrap();
    });
}

#[test]
fn array_elements_of_an_unlocked_owner_are_refused() {
    ranks::on(&[3], "array_elements_of_an_unlocked_owner_are_refused", |world: World| {
        let mut array = world.array::<u64, 1>([9], Distribution::Cyclic).unwrap();
        let access = array.lock_ranks(&[(2, Mode::Shared), (0, Mode::Shared)]).unwrap();
        access.accumulate(3..4, Op::Sum, &[1]).unwrap();
        assert_eq!(access.get_one(5).unwrap(), 0);
        for error in [access.put(0..9, &[1; 9]).unwrap_err(), access.fetch_and_op(4, Op::Sum, 1).unwrap_err()] {
            assert_eq!(
                error.to_string(),
                "array 0: cannot access elements of rank 1 here: only those of ranks [0, 2] can be accessed"
            );
            let Error::Array(ArrayError::NotReached { owner: 1, reached, .. }) = error else { panic!("{error}") };
            assert_eq!(reached, [0, 2]);
        }
        access.unlock().unwrap();
        assert!(matches!(array.lock_ranks(&[(3, Exclusive)]).map(drop), Err(Error::NoSuchRank { .. })));
        let all: Vec<_> = (0..3).map(|rank| (rank, Mode::Shared)).collect();
        let access = array
            .try_lock_ranks_for(&all, std::time::Duration::from_secs(60))
            .unwrap()
            .expect("locks should be granted without a writer");
        let mut elements = [7; 9];
        access.get(0..9, &mut elements).unwrap();
        assert_eq!(elements.iter().sum::<u64>(), elements[3]);
        access.unlock().unwrap();
        assert_eq!(array.fence().unwrap().get_one(3).unwrap(), 3);
        array.fence().unwrap();
    });
}
