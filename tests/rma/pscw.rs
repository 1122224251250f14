//! Post, start, complete and wait: groups of any size and order, and calls in a wrong state.

use crate::ranks;
use std::time::{Duration, Instant};
use transom::{Error, Window};

#[test]
fn ring_neighbours_exchange_by_post_and_start() {
    ranks::on_all_sizes("ring_neighbours_exchange_by_post_and_start", |world| {
        let (me, n) = (world.rank(), world.size());
        let mut neighbours = vec![(me + 1) % n, (me + n - 1) % n];
        neighbours.sort();
        neighbours.dedup();
        let mut window: Window<usize> = world.allocate(n).unwrap();
        for round in 1..=500 {
            window.post(&neighbours).unwrap();
            let epoch = window.start(&neighbours).unwrap();
            for &rank in &neighbours {
                epoch.target(rank).unwrap().put(me, &[round * 100 + me]).unwrap();
            }
            epoch.complete().unwrap();
            if round % 2 == 0 {
                window.wait().unwrap();
            } else {
                while !window.test().unwrap() {
                    std::thread::yield_now();
                }
            }
            // The next round's puts cannot come before the next post.
            for &rank in &neighbours {
                assert_eq!(window.local().get(rank).unwrap(), round * 100 + rank);
            }
        }
    });
}

#[test]
fn changing_groups_of_any_size_synchronise() {
    ranks::on_all_sizes("changing_groups_of_any_size_synchronise", |world| {
        let (me, n) = (world.rank(), world.size());
        let mut window: Window<u64> = world.allocate(n).unwrap();
        for round in 0..ranks::rounds(200) {
            // Each round has one target; the origins are all ranks above a moving limit, named in a moving order.
            let target = round % n;
            let origins: Vec<_> = (0..n).map(|i| (i * (n - 1) + round) % n).filter(|&rank| rank >= round % 3).collect();
            if me == target {
                window.post(&origins).unwrap();
            }
            if origins.contains(&me) {
                let epoch = window.start(&[target]).unwrap();
                epoch.target(target).unwrap().put(me, &[round as u64]).unwrap();
                drop(epoch); // completes
            }
            if me == target {
                window.wait().unwrap();
                for &origin in &origins {
                    assert_eq!(window.local().get(origin).unwrap(), round as u64);
                }
            }
        }
        window.fence().unwrap();
    });
}

#[test]
fn calls_out_of_order_are_refused_without_effect() {
    ranks::on_all_sizes("calls_out_of_order_are_refused_without_effect", |world| {
        let me = world.rank();
        let mut window: Window<u64> = world.allocate(1).unwrap();
        let refused = |outcome: Result<(), Error>, call: &str| match outcome {
            Err(Error::Sync { call: named, .. }) => assert_eq!(named, call),
            other => panic!("{call}: {other:?}"),
        };
        refused(window.wait(), "wait");
        refused(window.test().map(drop), "test");
        refused(window.post(&[me, me]), "post");
        refused(window.post(&[world.size()]), "post");
        refused(window.start(&[world.size()]).map(drop), "start");
        window.post(&[me]).unwrap();
        refused(window.post(&[me]), "post");
        let epoch = window.start(&[me]).unwrap();
        let other = (me + 1) % world.size();
        if other != me {
            assert!(matches!(epoch.target(other).map(drop), Err(Error::NotStarted { rank, .. }) if rank == other));
        }
        assert!(matches!(epoch.target(world.size()).map(drop), Err(Error::NoSuchRank { .. })));
        std::mem::forget(epoch); // leaked: still open, and the next start reports it
        refused(window.start(&[me]).map(drop), "start");
        let mut window: Window<u64> = world.allocate(1).unwrap();
        window.post(&[]).unwrap();
        drop(window.start(&[]).unwrap());
        window.start(&[]).unwrap().complete().unwrap();
        window.wait().unwrap();
    });
}

/// A rank that tests now and then learns within a second that an origin has left, however rarely it tests.
#[test]
fn rare_tests_report_a_departed_origin() {
    ranks::on(&[2, 3, 4, 8], "rare_tests_report_a_departed_origin", |world| {
        let mut window: Window<u64> = world.allocate(1).unwrap();
        if world.rank() == 1 {
            return; // leaves
        }
        let (begun, within) = (Instant::now(), ranks::within(Duration::from_secs(1)));
        window.post(&[1]).unwrap();
        let error = loop {
            match window.test() {
                Err(error) => break error,
                Ok(done) => assert!(
                    !done && begun.elapsed() < within,
                    "test did not report the departure after {:?}",
                    begun.elapsed()
                ),
            }
            std::thread::sleep(Duration::from_millis(50));
        };
        assert_eq!(error.lost_rank(), Some(1), "{error}");
    });
}

/// An origin that has completed may leave; no rank waits for it.
#[test]
fn completed_origin_may_leave_before_the_others() {
    ranks::on(&[3, 4], "completed_origin_may_leave_before_the_others", |world| {
        let mut window: Window<u64> = world.allocate(1).unwrap();
        match world.rank() {
            0 => {
                window.post(&[1, 2]).unwrap();
                while !window.test().unwrap() {
                    std::thread::sleep(Duration::from_millis(5));
                }
                assert_eq!(window.local().get(0).unwrap(), 7);
            }
            rank @ (1 | 2) => {
                let epoch = window.start(&[0]).unwrap();
                if rank == 2 {
                    // The first of them has left long ago.
                    std::thread::sleep(Duration::from_millis(400));
                    epoch.target(0).unwrap().put(0, &[7]).unwrap();
                }
                epoch.complete().unwrap();
            }
            _ => {}
        }
    });
}
