//! Results are right where packets are lost: `tests/soft-roce/verbs` starts this test on two hosts with packet loss.

use crate::adapter;
use adapter::*;
use transom::{Error, Op, Window};

/// Each rank counts, writes and reads at the other rank. It knows the expected values, because no other rank does so
/// there.
#[test]
fn results_are_correct_despite_packet_loss() {
    const LEN: usize = 600;
    if std::env::var_os(ROLE).is_none() || std::env::var_os("TEST_HOSTS_ARE_SEVERAL").is_none() {
        return eprintln!("skipped: needs two hosts that lose packets, and `transom run`");
    }
    let world = transom::init().expect("a rank can join its job");
    let (me, other) = (world.rank(), 1 - world.rank());
    let mut window: Window<u64> = world.allocate(LEN + 1).unwrap();
    window.fence().unwrap();
    let epoch = window.lock_all().unwrap();
    let there = epoch.target(other).unwrap();
    // A connection that breaks may lose the result of an atomic, and the error says so.
    let or_lost = |found: Result<u64, Error>, expected| match found {
        Err(error) if error.to_string().contains("was lost with the connection") => {
            println!("rank {me}: {error}");
            expected
        }
        found => found.unwrap(),
    };
    let mut wrong = Vec::new();
    for round in 0..400_u64 {
        // Behind a write that is not waited for.
        there.put(0, &[round; 4]).unwrap();
        let counted = or_lost(there.fetch_and_op(LEN, Op::Sum, 1), round);
        let swapped = or_lost(there.compare_and_swap(LEN, round + 1, round + 1), round + 1);
        there.put(4, &[round; LEN - 4]).unwrap();
        // Several operations in flight at once.
        let reads: Vec<_> = [(0, 4), (4, 300), (304, LEN - 304), (LEN, 1)]
            .map(|(from, len)| there.rget(from, len).unwrap())
            .into_iter()
            .map(|request| request.wait().unwrap())
            .collect();
        let read = reads[..3].iter().flatten().all(|value| *value == round);
        if (counted, swapped, reads[3][0], read) != (round, round + 1, round + 1, true) {
            wrong.push((round, counted, swapped, reads[3][0], read));
        }
    }
    println!("rank {me}: {} rounds were wrong: {wrong:x?}", wrong.len());
    epoch.unlock().unwrap();
    meet(&world).unwrap();
    assert!(wrong.is_empty());
}
