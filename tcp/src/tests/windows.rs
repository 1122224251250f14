//! Windows over TCP, and over TCP beside shared memory.

use super::on_hosts;
use crate::Tcp;
use transom_locks::Rank;
use transom_network::Hybrid;
use transom_windows::{Fabric, Flavor, OobExchange, Op, Window};

/// Two ranks on two hosts, three on two, two on each of two.
const HOSTS: [&[u32]; 3] = [&[0, 1], &[0, 0, 1], &[0, 1, 0, 1]];

/// Every rank puts its number at every rank, and adds it to a sum there under the lock.
fn exchanges(world: &Hybrid<Tcp>) {
    let (me, ranks) = (world.rank(), world.size());
    let mut window = Window::<u64, _>::allocate(world, 0, 1 + ranks).unwrap();
    for target in 0..ranks {
        let epoch = window.lock_exclusive(target).unwrap();
        let sum = epoch.get_one(0).unwrap();
        epoch.put(0, &[sum + 10 + me as u64]).unwrap();
        epoch.put(1 + me, &[100 + me as u64]).unwrap();
        epoch.unlock().unwrap();
    }
    window.fence().unwrap();
    let mut found = vec![0; 1 + ranks];
    let sum = (0..ranks as u64).map(|rank| 10 + rank).sum();
    let expected: Vec<u64> = std::iter::once(sum).chain((0..ranks as u64).map(|rank| 100 + rank)).collect();
    for target in 0..ranks {
        window.lock_shared(target).unwrap().get(0, &mut found).unwrap();
        assert_eq!(found, expected, "at rank {target}, as rank {me} sees it");
    }
    window.fence().unwrap();
}

#[test]
fn exchange_between_hosts_reaches_all_ranks() {
    HOSTS.into_iter().for_each(|hosts| on_hosts(hosts, |world| exchanges(&world)));
}

#[test]
fn team_in_another_order_reaches_its_members() {
    on_hosts(HOSTS[2], |world| {
        let members: [Rank; 3] = [3, 1, 0];
        if world.rank() != 2 {
            // The meeting is collective at all ranks of the job.
            let meet = &mut |mine: &[u8]| {
                let all = world.all_gather(mine)?;
                Ok(members.iter().map(|&rank| all[rank].clone()).collect())
            };
            exchanges(&world.team(&members, meet).unwrap());
        } else {
            // Members meet three times: the job's handle, the node's, and the memory's on each host.
            while world.all_gather(&[]).is_ok() {}
        }
    });
}

#[test]
fn long_transfers_arrive_whole() {
    on_hosts(HOSTS[0], |world| {
        let (me, other) = (world.rank(), 1 - world.rank());
        let len = 3 << 20;
        let mut window = Window::<u8, _>::allocate(&world, 0, len).unwrap();
        let bytes: Vec<u8> = (0..len).map(|at| (at % 251) as u8 ^ me as u8).collect();
        let epoch = window.lock_exclusive(other).unwrap();
        epoch.put(0, &bytes).unwrap();
        let mut found = vec![0; len];
        epoch.get(0, &mut found).unwrap();
        assert!(found == bytes);
        let mut part = vec![0; 100_001];
        epoch.get(77, &mut part).unwrap();
        assert!(part == bytes[77..][..100_001]);
        epoch.unlock().unwrap();
        window.fence().unwrap();
        let found = window.local().read(0, len).unwrap();
        assert!(found.iter().zip(&bytes).all(|(found, own)| found ^ own == 1));
    });
}

/// The two ranks put 8 MiB at each other at once: their sockets fill, and each must receive while it sends.
#[test]
fn simultaneous_floods_do_not_deadlock() {
    on_hosts(HOSTS[0], |world| {
        let other = 1 - world.rank();
        let mut window = Window::<u64, _>::allocate(&world, 0, 1 << 20).unwrap();
        let epoch = window.lock_all().unwrap();
        let target = epoch.target(other).unwrap();
        let mut found = vec![0; 1 << 20];
        for round in 1..=4 {
            target.put(0, &vec![round; 1 << 20]).unwrap();
            target.get(0, &mut found).unwrap();
            assert!(found.iter().all(|word| *word == round));
        }
        epoch.unlock().unwrap();
    });
}

#[test]
fn atomics_of_all_ranks_add_up() {
    on_hosts(HOSTS[2], |world| {
        let ranks = world.size();
        let mut window = Window::<u64, _>::allocate(&world, 0, 2).unwrap();
        let epoch = window.lock_all().unwrap();
        for round in 0..200 {
            let target = epoch.target(round % ranks).unwrap();
            target.fetch_and_op(0, Op::Sum, 1).unwrap();
            target.accumulate(1, Op::Sum, &[2]).unwrap();
        }
        epoch.unlock().unwrap();
        window.fence().unwrap();
        let local = window.local();
        assert_eq!([local.get(0).unwrap(), local.get(1).unwrap()], [200, 400]);
    });
}

/// Puts to memory that a program lends to a window use the network, while ranks of the same host change the signal
/// themselves.
#[test]
fn put_to_lent_memory_precedes_its_signal() {
    on_hosts(HOSTS[2], |world| {
        let me = world.rank();
        let mut window = Window::<u64, _>::new(&world, 0, Flavor::Create(vec![0; 4]), 1).unwrap();
        let epoch = window.lock_all().unwrap();
        for round in 1..=100 {
            for target in 0..4 {
                epoch.target(target).unwrap().put_signal(me, &[round], 0, 1).unwrap();
            }
            epoch.signals().wait_until(0, |arrived| arrived == 4 * round).unwrap();
            assert_eq!([0, 1, 2, 3].map(|from| epoch.local().get(from).unwrap()), [round; 4]);
            world.barrier().unwrap();
        }
        epoch.unlock().unwrap();
        assert_eq!(window.free().unwrap(), [100; 4]);
    });
}

/// A faulty peer keeps attached what it does not own: the program gets its memory back, and no peer reaches it.
#[test]
fn freed_window_leaves_no_access_to_lent_memory() {
    on_hosts(HOSTS[0], |world| {
        let regions = world.network().regions();
        let mut window = Window::<u64, _>::new(&world, 0, Flavor::Create(vec![3; 4]), 1).unwrap();
        window.fence().unwrap();
        let sizes =
            || (1..10).filter_map(|number| regions.with(number, |view| Ok(view.len())).ok()).collect::<Vec<_>>();
        assert!(sizes().contains(&32), "{:?}", sizes());
        (1..10).for_each(|number| _ = regions.attach(number));
        assert_eq!(window.free().unwrap(), [3; 4]);
        assert!(!sizes().contains(&32), "{:?}", sizes());
    });
}

/// Threads of a rank wait for replies of one connection.
#[test]
fn threads_of_a_rank_share_a_connection() {
    on_hosts(HOSTS[0], |world| {
        let other = 1 - world.rank();
        let mut window = Window::<u64, _>::allocate(&world, 0, 9).unwrap();
        let epoch = window.lock_all().unwrap();
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let epoch = &epoch;
                scope.spawn(move || {
                    let target = epoch.target(other).unwrap();
                    for round in 0..100 {
                        assert_eq!(target.fetch_and_op(thread, Op::Sum, 1).unwrap(), round);
                        target.fetch_and_op(8, Op::Sum, 1).unwrap();
                    }
                });
            }
        });
        epoch.unlock().unwrap();
        window.fence().unwrap();
        let local = window.local();
        assert_eq!((local.get(0).unwrap(), local.get(7).unwrap(), local.get(8).unwrap()), (100, 100, 800));
    });
}

/// A drop is not collective: the others use the window on.
#[test]
fn dropped_window_stays_until_all_dropped_it() {
    on_hosts(HOSTS[0], |world| {
        let (me, other) = (world.rank(), 1 - world.rank());
        let regions = world.network().regions();
        let before = regions.len();
        let mut window = Window::<u64, _>::allocate(&world, 0, 1).unwrap();
        window.fence().unwrap();
        if me == 0 {
            drop(window);
            world.barrier().unwrap();
        } else {
            world.barrier().unwrap();
            let epoch = window.lock_exclusive(other).unwrap();
            epoch.put(0, &[7]).unwrap();
            assert_eq!(epoch.get_one(0).unwrap(), 7);
            epoch.unlock().unwrap();
            drop(window);
        }
        assert!(regions.len() > before);
        (0..2).for_each(|_| world.barrier().unwrap());
        assert_eq!(regions.len(), before);
    });
}

/// A rank attaches alone to memory of another, which drops it: it stays until the rank detaches.
#[test]
fn attached_region_stays_until_it_is_detached() {
    on_hosts(HOSTS[0], |world| {
        let (me, regions) = (world.rank(), world.network().regions());
        let (own, own_key) = world.allocate(8).unwrap();
        let before = regions.len();
        let (region, key) = world.allocate(8).unwrap();
        let [keys, own_keys] = [&key, &own_key].map(|key| world.all_gather(key).unwrap());
        if me == 1 {
            world.barrier().unwrap();
            drop(region);
            assert!(regions.len() > before, "rank 0 is attached");
            (0..2).for_each(|_| world.barrier().unwrap());
            assert_eq!(regions.len(), before);
        } else {
            let other = world.attach(1, &own_keys[1], 8).unwrap();
            let remote = world.attach(1, &keys[1], 8).unwrap();
            (0..2).for_each(|_| world.barrier().unwrap());
            world.get(&remote, 0, &mut [0; 8]).unwrap();
            drop(remote);
            // The reply follows the execution of all earlier requests.
            world.get(&other, 0, &mut [0; 8]).unwrap();
            world.barrier().unwrap();
        }
        world.barrier().unwrap();
        drop(own);
    });
}
