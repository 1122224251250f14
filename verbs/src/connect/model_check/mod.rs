//! Model check: every run of two machines over a network that loses, delays, duplicates, reorders and forges datagrams.
//! Adapters refuse verbs and lose queue pairs, and ranks die, at any moment, within the budget of a run.
//!
//! The network keeps every datagram ever sent and may deliver it at any time. Never means loss, late means delay, twice
//! means duplication. A stopped rank is one whose steps come late.
//!
//! The check is a plain breadth-first search instead of stateright, whose `eventually` ignores runs that return to a
//! state. From every state found, a fair network is simulated: each side that wants a connection must then get it, or a
//! reason why not.
//!
//! `tests/mutants verbs` breaks the code that these tests guard.

mod adapter;
mod carry;
mod traffic;
mod world;

use adapter::Refusal;
use std::collections::HashSet;
use std::rc::Rc;
use world::{Budget, Step, World, changes_nothing};

/// A state, the index of its predecessor, and the step between them.
type Found = (Rc<World>, usize, Option<(usize, Step, Refusal)>);

/// Explores all states. Returns their number, or the fault with the steps that led to it.
fn explore(budget: Budget) -> Result<usize, String> {
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
        if budget.losses == 0 && world.sides.iter().any(|side| side.traffic.has_lost()) {
            return Err(story(&found, at, format!("a result is lost though no connection broke: {world:#?}")));
        }
        if carries {
            world.finishes().map_err(|wrong| story(&found, at, wrong))?;
        } else {
            world.settles(None).map_err(|wrong| story(&found, at, wrong))?;
        }
        for side in 0..2 {
            if !carries && !world.sides[side].dead {
                for refusal in [Refusal::None, Refusal::Make, Refusal::Connect] {
                    world.settles(Some((side, refusal))).map_err(|wrong| story(&found, at, wrong))?;
                }
                changes_nothing(&world, side).map_err(|wrong| story(&found, at, wrong))?;
            }
            for step in world.steps(side) {
                for refusal in [Refusal::None, Refusal::Make, Refusal::Connect] {
                    if refusal != Refusal::None && world.budget.refusals == 0 {
                        continue;
                    }
                    let Some(after) = world.after(side, step, refusal) else { continue };
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

fn holds(runs: &[Budget]) {
    for &budget in runs {
        match explore(budget) {
            Ok(states) => {
                println!("{budget:?}: {states} states");
                assert!(states > 1000, "{budget:?}: {states} states only");
            }
            Err(wrong) => panic!("{budget:?}\n{wrong}"),
        }
    }
}
