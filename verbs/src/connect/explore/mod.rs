//! Model check: every run of two machines over a network that loses, delays, duplicates, reorders and forges datagrams.
//! Adapters refuse verbs and lose queue pairs, and ranks die, at any moment, within the budget of a run.
//!
//! The network keeps every datagram ever sent and may deliver it at any time. Never means loss, late means delay, twice
//! means duplication. A stopped rank is one whose steps come late.
//!
//! The check is a plain breadth-first search instead of stateright, whose `eventually` ignores runs that return to a
//! state. From every state found, a fair network is simulated: each side that wants a connection must then get it, or a
//! reason why not.

mod adapter;
mod carry;
mod traffic;
mod world;

use adapter::{Mutant, Refusal};
use std::collections::HashSet;
use std::rc::Rc;
use world::{Budget, Step, World, changes_nothing};

const MUTANTS: [Mutant; 21] = [
    Mutant::ForgeriesOpened,
    Mutant::OldHeard,
    Mutant::NewUnheard,
    Mutant::ReplyToAnother,
    Mutant::CrossingUnheard,
    Mutant::RepliesOnce,
    Mutant::AsksOnce,
    Mutant::RejectsUnsent,
    Mutant::OtherReason,
    Mutant::NotRetired,
    Mutant::NotConnected,
    Mutant::OtherRail,
    Mutant::OtherPsn,
    Mutant::ReadyWhenAnswered,
    Mutant::LossUntold,
    Mutant::OldLoss,
    Mutant::GenerationsAnew,
    Mutant::DeathUntold,
    Mutant::DeathAsLoss,
    Mutant::RetiresInWords,
    Mutant::OldRetired,
];

const TRAFFIC_MUTANTS: [Mutant; 8] = [
    Mutant::ToldTooSoon,
    Mutant::OldForgotten,
    Mutant::AllAgain,
    Mutant::NothingAgain,
    Mutant::OnePacketLess,
    Mutant::OnePacketMore,
    Mutant::AnyGeneration,
    Mutant::ResultsForged,
];

/// A state, the index of its predecessor, and the step between them.
type Found = (Rc<World>, usize, Option<(usize, Step, Refusal)>);

/// Explores all states. Returns their number, or the fault with the steps that led to it.
fn explore(budget: Budget, mutant: Option<Mutant>) -> Result<usize, String> {
    let start = Rc::new(World::new(budget));
    let mut seen = HashSet::from([start.clone()]);
    let mut found: Vec<Found> = vec![(start, 0, None)];
    let story = |found: &[Found], mut at: usize, last: String| {
        let mut steps = vec![last];
        while let Some(step) = found[at].2 {
            steps.push(format!("{step:?}"));
            at = found[at].1;
        }
        steps.reverse();
        steps.join("\n")
    };
    let mut at = 0;
    while at < found.len() {
        let world = found[at].0.clone();
        let carries = budget.posts != [0, 0];
        if carries {
            world.finishes(mutant).map_err(|wrong| story(&found, at, wrong))?;
        } else {
            world.settles(None, mutant).map_err(|wrong| story(&found, at, wrong))?;
        }
        for side in 0..2 {
            if !carries && !world.sides[side].dead {
                for refusal in [Refusal::None, Refusal::Make, Refusal::Connect] {
                    world.settles(Some((side, refusal)), mutant).map_err(|wrong| story(&found, at, wrong))?;
                }
                changes_nothing(&world, side, mutant).map_err(|wrong| story(&found, at, wrong))?;
            }
            for step in world.steps(side, mutant) {
                for refusal in [Refusal::None, Refusal::Make, Refusal::Connect] {
                    if refusal != Refusal::None && world.budget.refusals == 0 {
                        continue;
                    }
                    let Some(after) = world.after(side, step, refusal, mutant) else { continue };
                    let (after, _) =
                        after.map_err(|wrong| story(&found, at, format!("{:?}\n{wrong}", (side, step, refusal))))?;
                    if matches!(step, Step::Forged(_)) && after != *world {
                        return Err(story(&found, at, format!("{step:?} changes {world:#?} into {after:#?}")));
                    }
                    let after = Rc::new(after);
                    if seen.insert(after.clone()) {
                        found.push((after, at, Some((side, step, refusal))));
                    }
                }
            }
        }
        at += 1;
    }
    Ok(found.len())
}

const RUNS: [Budget; 4] = [
    Budget { wants: 1, losses: 1, refusals: 1, deaths: 1, posts: [0, 0], rails: 1, retires: 0 },
    Budget { wants: 2, losses: 2, refusals: 0, deaths: 0, posts: [0, 0], rails: 2, retires: 0 },
    Budget { wants: 2, losses: 1, refusals: 1, deaths: 0, posts: [0, 0], rails: 1, retires: 0 },
    Budget { wants: 2, losses: 2, refusals: 0, deaths: 0, posts: [0, 0], rails: 1, retires: 1 },
];

/// Runs with requests: of both sides at once, and over several connections.
const TRAFFIC: [Budget; 3] = [
    Budget { wants: 1, losses: 2, refusals: 0, deaths: 0, posts: [1, 0], rails: 1, retires: 0 },
    Budget { wants: 1, losses: 1, refusals: 0, deaths: 0, posts: [2, 0], rails: 1, retires: 0 },
    Budget { wants: 1, losses: 1, refusals: 0, deaths: 0, posts: [1, 1], rails: 1, retires: 0 },
];

#[test]
fn requests_execute_exactly_once() {
    holds(&TRAFFIC);
}

#[test]
fn machines_agree_on_any_network() {
    holds(&RUNS);
}

fn holds(runs: &[Budget]) {
    for &budget in runs {
        match explore(budget, None) {
            Ok(states) => {
                println!("{budget:?}: {states} states");
                assert!(states > 1000, "{budget:?}: {states} states only");
            }
            Err(wrong) => panic!("{budget:?}\n{wrong}"),
        }
    }
}

/// Two million states: `cargo test --release -p transom-verbs --lib larger_budget -- --ignored`.
#[test]
#[ignore = "takes minutes and 4 GiB"]
fn machines_agree_with_a_larger_budget() {
    let budget = Budget { wants: 2, losses: 2, refusals: 1, deaths: 1, posts: [0, 0], rails: 1, retires: 0 };
    println!("{} states", explore(budget, None).unwrap_or_else(|wrong| panic!("{wrong}")));
}

#[test]
fn every_mutant_is_caught() {
    caught(&MUTANTS, &RUNS);
}

#[test]
fn every_mutant_of_reposting_is_caught() {
    caught(&TRAFFIC_MUTANTS, &TRAFFIC);
}

fn caught(mutants: &[Mutant], runs: &[Budget]) {
    let mut passed = Vec::new();
    for &mutant in mutants {
        match runs.iter().find_map(|&budget| explore(budget, Some(mutant)).err()) {
            Some(wrong) => {
                let what = wrong.lines().find(|line| !line.starts_with('(')).unwrap_or_default();
                println!("{:<18} {what}", format!("{mutant:?}"));
            }
            None => passed.push(mutant),
        }
    }
    assert!(passed.is_empty(), "not caught: {passed:?}");
}
