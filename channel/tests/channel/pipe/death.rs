//! A peer of a pipe dies after every step of an exchange.

use super::*;
use std::collections::{BTreeMap, BTreeSet};
use transom_channel::sim::Conditions;
use transom_channel::{Config, Error, PeerFailure};

/// Rank 1 dies after `steps` steps. Returns whether it died before the end.
fn die_after(steps: usize, step: Step, seed: u64) -> bool {
    let rail = rails()[seed as usize % 3];
    let conditions = Conditions { rails: vec![rail], depth: 4, ..Conditions::default() };
    let mut sim = Sim::new(seed, 3, conditions, &Config::default()).unwrap();
    let config = Pipe { step, chunk: 1024, chunks: 4, zero_copy_from: 4000 };
    let victim = joined(&mut sim, 0, 1, config);
    let living = joined(&mut sim, 0, 2, config);
    let length = 20_000;
    let (mut open, mut gets) = (BTreeMap::new(), BTreeSet::new());
    for (other, pipe) in [(1, victim), (2, living)] {
        for (rank, end) in [(0, pipe[0]), (other, pipe[1])] {
            for _ in 0..2 {
                let put = sim.engine(rank).pipe_start_put(end, SimMemory::pattern(9, length), length).unwrap();
                open.insert((rank, put), other);
            }
            for _ in 0..3 {
                let get = sim.engine(rank).pipe_start_get(end, SimMemory::zero(length), length).unwrap();
                open.insert((rank, get), other);
                gets.insert((rank, get));
            }
        }
    }
    let (mut taken, mut over, mut living_bytes) = (0, false, 0);
    loop {
        if taken == steps {
            sim.kill(1);
        }
        taken += 1;
        let Some(rank) = sim.step() else {
            if taken > steps {
                break;
            }
            over = true;
            continue;
        };
        while let Some(done) = sim.engine(rank).completed() {
            let other = open.remove(&(rank, done.id)).expect("a request completed twice");
            let memory = done.memory.expect("a completed request returned no memory");
            match done.result {
                Ok(status) if other == 2 && gets.remove(&(rank, done.id)) => {
                    living_bytes += status.length;
                    let end = living[usize::from(rank == 2)];
                    let get = sim.engine(rank).pipe_start_get(end, SimMemory::zero(length), length).unwrap();
                    open.insert((rank, get), 2);
                    gets.insert((rank, get));
                    sim.wake(rank, 0);
                }
                Ok(_) => {}
                Err(Error::PeerFailure { rank: 1, lost: PeerFailure::Died }) => assert_eq!((rank, other), (0, 1)),
                Err(error) => panic!("{error}"),
            }
            memory.spoil();
        }
    }
    // On the surviving pipe only gets are left, which wait for more bytes.
    assert!(open.iter().all(|(id, other)| id.0 == 1 || (*other == 2 && gets.contains(id))), "waits for ever: {open:?}");
    assert_eq!(living_bytes, 4 * 20_000, "both ways");
    let lost = Error::PeerFailure { rank: 1, lost: PeerFailure::Died };
    let engine = sim.engine(0);
    while engine.pipe_get(victim[0], &mut vec![0; length]).is_ok() {
        assert!(
            engine.pipe_get(victim[0], &mut vec![0; length]) != Ok(None),
            "a dead peer's stream ended without an error"
        );
    }
    assert_eq!(engine.pipe_get(victim[0], &mut vec![0; length]), Err(lost.clone()));
    assert_eq!(engine.pipe_put(victim[0], &vec![0; length]), Err(lost.clone()));
    let put = engine.pipe_start_put(victim[0], SimMemory::zero(9), 9).unwrap();
    let done = engine.completed().unwrap();
    assert_eq!((done.id, done.result, done.memory.unwrap().len()), (put, Err(lost.clone()), 9));
    assert_eq!(engine.pipe_open(1, Pipe::default()).unwrap_err(), lost);
    engine.pipe_close(victim[0]);
    assert_eq!((engine.pipes(), sim.registrations(0)), (1, 1), "expected only the surviving pipe");
    !over
}

#[test]
fn peer_death_in_any_phase_ends_pipe_requests() {
    for (seed, step) in (0..).zip(STEPS.iter().cycle().take(15)) {
        let mut steps = 0;
        while die_after(steps, *step, seed) {
            steps += 1;
        }
        assert!(steps > 50, "expected more than 50 phases, found {steps}");
    }
}
