//! Random programs of RMA calls, run by 1 to 8 ranks, against a model of what MPI's memory model lets them see.
//!
//! A program is a list of phases, the same at every rank, drawn from a seed. In each phase ranks make random calls at
//! the same time, in epochs of one kind of synchronisation. After a phase all ranks synchronise, and each records its
//! part. `programs/make.rs` draws programs, `programs/perform.rs` runs them, `programs/model.rs` checks the results.
//!
//! The longer programs come last. A failure prints the seed, the phase, and the calls of the phase that touched the
//! wrong element, with the values that they read. `TEST_SEED=<seed> cargo test --test rma programs::` runs that
//! program alone.

mod make;
mod model;
mod perform;
use crate::ranks;

use make::{Flavour, Program};
use std::sync::Mutex;
use transom::World;

/// Runs programs of a flavour on all ranks of `world`, if the ranks can have such memory; rank 0 judges them.
fn run(world: &World, flavour: Flavour, seeds: std::ops::Range<u64>) {
    if flavour == Flavour::Shared && !ranks::share_memory(world) {
        return;
    }
    let only: Option<u64> = std::env::var("TEST_SEED").ok().map(|seed| seed.parse().expect("TEST_SEED is a number"));
    for seed in seeds.filter(|&seed| only.is_none_or(|only| only == seed)) {
        let program = Program::random(flavour, seed, world.size(), ranks::share_memory(world));
        let seen = perform::perform(world, &program);
        if let Some(seen) = perform::gathered(world, &seen)
            && let Err(why) = model::judge(&program, &seen)
        {
            panic!("{flavour:?} program of seed {seed} on {} ranks: {why}", world.size());
        }
    }
}

/// Number of programs: fewer where more ranks share the cores.
fn seeds(world: &World) -> std::ops::Range<u64> {
    let many = 15.max(60 / world.size());
    let count = if cfg!(miri) { 1 } else { (ranks::rounds(20 * many) / 20).max(1) as u64 };
    0..count
}

#[test]
fn random_programs_on_allocated_windows_are_valid() {
    ranks::on_all_sizes("random_programs_on_allocated_windows_are_valid", |world| {
        run(&world, Flavour::Allocate, seeds(&world))
    });
}

#[test]
fn random_programs_on_shared_windows_are_valid() {
    ranks::on_all_sizes("random_programs_on_shared_windows_are_valid", |world| {
        run(&world, Flavour::Shared, seeds(&world))
    });
}

#[test]
fn random_programs_on_user_memory_are_valid() {
    ranks::on_all_sizes("random_programs_on_user_memory_are_valid", |world| {
        run(&world, Flavour::Create, seeds(&world))
    });
}

#[test]
fn random_programs_on_attached_memory_are_valid() {
    ranks::on_all_sizes("random_programs_on_attached_memory_are_valid", |world| {
        run(&world, Flavour::Dynamic, seeds(&world))
    });
}

#[test]
fn random_programs_on_team_windows_are_valid() {
    ranks::on(&[3, 4, 8], "random_programs_on_team_windows_are_valid", |world| {
        // Two teams at once, one with reversed ranks; then windows of the world itself.
        let (me, n) = (world.rank() as u64, world.size() as u64);
        let team = world.split(Some(me % 2), if me.is_multiple_of(2) { n - me } else { me }).unwrap().unwrap();
        run(&team, Flavour::Allocate, 100..106);
        run(&team, Flavour::Dynamic, 100..104);
        run(&world, Flavour::Shared, 100..103);
    });
}

/// The judge must be able to reject: a change of any value that was seen makes the result impossible.
#[test]
fn changed_result_is_rejected_by_the_model() {
    for (flavour, seed) in
        [(Flavour::Allocate, 21), (Flavour::Shared, 22), (Flavour::Create, 23), (Flavour::Dynamic, 24)]
    {
        let judged = Mutex::new(None);
        transom::threads(3, |world| {
            let shares = ranks::share_memory(&world);
            if flavour == Flavour::Shared && !shares {
                return;
            }
            let program = Program::random(flavour, seed, world.size(), shares);
            let seen = perform::perform(&world, &program);
            if let Some(seen) = perform::gathered(&world, &seen) {
                *judged.lock().unwrap() = Some((program, seen));
            }
        })
        .unwrap();
        let Some((program, seen)) = judged.into_inner().unwrap() else {
            assert_eq!(flavour, Flavour::Shared, "only shared windows may be unavailable");
            continue;
        };
        model::judge(&program, &seen).unwrap();
        for rank in 0..seen.len() {
            // All values, or some hundred of many.
            for at in (0..seen[rank].len()).step_by(1 + seen[rank].len() / 200) {
                let mut wrong = seen.clone();
                wrong[rank][at] ^= 0x9e37_79b9_7f4a_7c15;
                assert!(
                    model::judge(&program, &wrong).is_err(),
                    "{flavour:?}: model accepted changed value {at} of rank {rank}"
                );
            }
            let mut short = seen.clone();
            if short[rank].pop().is_some() {
                assert!(model::judge(&program, &short).is_err(), "model accepted a missing value of rank {rank}");
            }
        }
    }
}

/// Random programs use every feature of the generator.
#[test]
fn random_programs_use_every_feature() {
    let programs = |flavour| (0..60).map(move |seed| format!("{:?}", Program::random(flavour, seed, 4, true)));
    let all: String = programs(Flavour::Shared).chain(programs(Flavour::Dynamic)).collect();
    let (hows, syncs) = (["Plain", "One", "Section", "Request", "Dropped"], ["Fence", "Pscw", "Locks", "Signals"]);
    for how in hows {
        for call in ["Put", "Get", "Accumulate", "Fetch"] {
            assert!(all.contains(&format!("{call}({how}")), "no {call} by {how}");
        }
    }
    let rest = ["Put(Signal", "Swap", "Load", "Store", "Settle", "Outside", "renewed: [true", "NOCHECK", "NOPUT"];
    let epochs = ["Exclusive(2, Assert(0x0))", "Shared(1, Assert(NOCHECK))", "All(Assert(NOCHECK))", "dropped: true"];
    for word in syncs.into_iter().chain(rest).chain(epochs) {
        assert!(all.contains(word), "no {word}");
    }
}
