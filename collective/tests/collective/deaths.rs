//! A rank dies after every step of every algorithm. Each other rank then ends, either with the right result or with an
//! error that names the dead rank. Runs in virtual time on the simulator, with the production engines.

use crate::simulated::{Part, check};
use transom_channel::Config;
use transom_channel::sim::{Conditions, Sim};
use transom_collective::{Algorithm, Call, Hosts, Shape};

const RANKS: usize = 6;

/// The rank that dies, and the number of simulator steps before.
#[derive(Clone, Copy, Debug)]
struct Death {
    victim: u32,
    steps: usize,
}

/// Number of survivors that had to be notified; `None` if the death came after the end.
fn die(algorithm: Algorithm, call: Call, len: usize, hosts: &Hosts, death: Death) -> Option<usize> {
    let case = format!("{algorithm} of {call:?}, {len} elements, {death:?}");
    let Death { victim, steps } = death;
    let mut sim = Sim::new(steps as u64, RANKS as u32, Conditions::default(), &Config::default()).unwrap();
    let shape = |rank| Shape { rank, ranks: RANKS, len, element: 8, hosts: Some(hosts) };
    let mut parts: Vec<_> = (0..RANKS).map(|rank| Part::new(algorithm, call, shape(rank))).collect();
    for (rank, part) in parts.iter_mut().enumerate() {
        part.listen(&mut sim);
        if steps > 0 || rank != victim as usize {
            part.progress(&mut sim);
        }
        sim.wake(rank as u32, 0);
    }
    let mut taken = 0;
    loop {
        if taken == steps {
            sim.kill(victim);
        }
        taken += 1;
        let Some(rank) = sim.step() else {
            // No event is pending: ranks that still wait have waited for long.
            let mut asked = false;
            for (rank, part) in parts.iter_mut().enumerate().filter(|(rank, _)| *rank != victim as usize) {
                if taken > steps && part.ask(&mut sim) {
                    sim.wake(rank as u32, 0);
                    asked = true;
                }
            }
            if asked {
                continue;
            }
            break;
        };
        let is_dead = rank == victim && taken > steps;
        if !is_dead && parts[rank as usize].progress(&mut sim) {
            sim.wake(rank, 0);
        }
    }
    if taken <= steps {
        return None;
    }
    let mut told = 0;
    for (rank, part) in parts.iter().enumerate().filter(|(rank, _)| *rank != victim as usize) {
        assert!(part.lost.is_none_or(|lost| lost == victim), "rank {rank} was notified of another death: {case}");
        assert!(part.is_done() || part.lost.is_some(), "rank {rank} waits for ever: {case}");
        assert!(part.is_quiet(), "rank {rank} has messages in flight for ever: {case}");
        if part.is_done() {
            check(call, RANKS, len, rank, part.data());
        }
        told += usize::from(!part.is_done());
    }
    // Survivors are notified by other ranks or by a connection; none waits for a timeout.
    assert!(sim.now() < 50_000_000, "{} ns of virtual time: {case}", sim.now());
    Some(told)
}

#[test]
fn death_at_any_step_ends_all_survivors() {
    let commutes = true;
    let calls = [
        Call::Barrier,
        Call::Broadcast { root: 1 },
        Call::Reduce { root: 1, commutes },
        Call::AllReduce { commutes },
        Call::ReduceScatter,
        Call::Scan { exclusive: false },
        Call::Gather { root: 1 },
        Call::Scatter { root: 1 },
        Call::AllGather,
        Call::AllToAll,
    ];
    let hosts = Hosts::of(&[0, 0, 0, 1, 1, 2]);
    let (mut deaths, mut kinds) = (0, 0);
    for call in calls {
        // Eager and rendezvous lengths. Victims: a leaf of the trees, and the root, which is not a leader.
        for (len, victims) in [(3, &[1, 4][..]), (3000, &[1])] {
            for algorithm in Algorithm::all() {
                if !algorithm.can(call, Shape { rank: 0, ranks: RANKS, len, element: 8, hosts: Some(&hosts) }) {
                    continue;
                }
                kinds += 1;
                for &victim in victims {
                    let mut told = Vec::new();
                    while let Some(now) = die(algorithm, call, len, &hosts, Death { victim, steps: told.len() }) {
                        told.push(now);
                    }
                    deaths += told.len();
                    // A victim that has done nothing yet is needed by every rank in calls where each rank depends on
                    // each.
                    let all = matches!(
                        call,
                        Call::Barrier | Call::AllReduce { .. } | Call::AllGather | Call::AllToAll | Call::ReduceScatter
                    );
                    let root = victim == 1 && !matches!(call, Call::Scan { .. });
                    let least = if all { RANKS - 1 } else { usize::from(root) };
                    assert!(told[0] >= least, "{algorithm} of {call:?}: {} of {least} were notified", told[0]);
                    assert!(told.len() > 10, "{algorithm} of {call:?}: {} phases only", told.len());
                }
            }
        }
    }
    println!("{deaths} deaths in {kinds} kinds");
    assert!(kinds > 30 && deaths > 2000, "{deaths} deaths in {kinds} kinds");
}
