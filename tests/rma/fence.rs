//! Fence and barrier: no rank passes before all have arrived, and earlier puts are visible afterwards.

use crate::ranks;
use transom::{Op, Window};

#[test]
fn puts_before_a_fence_are_visible_after_it() {
    ranks::on_all_sizes("puts_before_a_fence_are_visible_after_it", |world| {
        let (me, n) = (world.rank(), world.size());
        let mut window: Window<usize> = world.allocate(n).unwrap();
        for round in 0..ranks::rounds(500) {
            let epoch = window.fence().unwrap();
            for step in 0..n {
                epoch.target((me + step) % n).unwrap().put(me, &[round * n + me]).unwrap();
            }
            let epoch = window.fence().unwrap();
            let seen = epoch.local().read(0, n).unwrap();
            assert!((0..n).all(|rank| seen[rank] == round * n + rank), "round {round}: {seen:?}");
        }
    });
}

#[test]
fn barrier_holds_until_all_ranks_arrive() {
    ranks::on_all_sizes("barrier_holds_until_all_ranks_arrive", |world| {
        let mut window: Window<u64> = world.allocate(1).unwrap();
        for round in 1..=ranks::rounds(500) as u64 {
            window.lock_shared(0).unwrap().fetch_and_op(0, Op::Sum, 1).unwrap();
            world.barrier().unwrap();
            let came = window.lock_shared(0).unwrap().get_one(0).unwrap();
            assert!(came >= round * world.size() as u64, "{came} in round {round}");
            world.barrier().unwrap();
        }
    });
}
