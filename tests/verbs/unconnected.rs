//! Ranks without a connection: calls that need no connection make none, and an unreachable rank is an error that names
//! it.
//!
//! Tests that need an RDMA device are skipped, with a message, on machines without one. `tests/soft-roce/verbs` runs
//! them in guests.

use crate::adapter;
use adapter::*;
use std::time::{Duration, Instant};
use transom::{Rank, Window};

/// With eight ranks, fence and barrier do not connect all pairs.
const RANKS: usize = 8;
const VICTIM: Rank = 3;

#[test]
fn unconnected_peer_takes_empty_or_failing_calls() {
    if skipped("a connection that is not there") {
        return;
    }
    let name = "unconnected_peer_takes_empty_or_failing_calls";
    let run = run(RANKS, name, &[("TRANSOM_FABRIC", "verbs"), ("TRANSOM_INTRANODE", "off")], || {
        const LEN: usize = 1 << 20;
        let world = transom::init().expect("a rank can join its job");
        let me = world.rank();
        let mut window: Window<u8> = world.allocate(LEN).unwrap();
        let mut into = vec![1; LEN];
        let epoch = window.fence().unwrap();
        for target in (1..RANKS).map(|far| epoch.target((me + far) % RANKS).unwrap()) {
            target.get(0, &mut []).unwrap();
            target.put(0, &[]).unwrap();
            let mut got = target.rget(0, 0).unwrap();
            assert!(got.test());
            assert_eq!(got.wait().unwrap(), []);
            transom::scope(|scope| scope.get(&target, 0, &mut []).map(drop)).unwrap();
        }
        world.barrier().unwrap();
        if me == VICTIM {
            std::process::abort();
        }
        // Until the death is known.
        let begun = Instant::now();
        while world.barrier().is_ok() {
            assert!(begun.elapsed() < Duration::from_secs(60));
        }
        let target = epoch.target(VICTIM).unwrap();
        let told = |outcome: Result<(), transom::Error>| {
            let error = outcome.expect_err("an operation on a dead rank should fail");
            assert_eq!(error.lost_rank(), Some(VICTIM), "{error}");
        };
        told(target.put(0, &[7]).and_then(|()| target.flush()));
        told(target.put(0, &vec![7; LEN]).and_then(|()| target.flush()));
        told(target.get(0, &mut into));
        told(target.rput(0, vec![7; LEN]).and_then(|put| put.wait()).map(drop));
        told(target.rget(0, LEN).and_then(|get| get.wait()).map(drop));
        told(transom::scope(|scope| scope.get(&target, 0, &mut into).map(drop)));
        std::process::exit(0);
    });
    if let Some(outcome) = run {
        let died = |rank| outcome.statuses()[rank] != transom::Status::Exited(0);
        assert!((0..RANKS).all(|rank| died(rank) == (rank == VICTIM)), "{outcome}\n{}", outputs(&outcome));
    }
}
