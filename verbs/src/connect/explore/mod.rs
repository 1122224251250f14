//! Every run of two machines over a network that loses, delays, repeats and reorders datagrams, and forges some; whose
//! adapters refuse, lose queue pairs, and whose ranks die: at any moment, as often as the budget of a run says.
//!
//! The network keeps every datagram that was ever sent, and delivers any of them at any time: never is loss, late is delay,
//! twice is repetition. A stopped rank is one whose steps come late. A plain breadth-first search, and not stateright,
//! whose `eventually` does not look at runs that come back to a state: from each state that is found here, the network
//! begins to deliver, and whoever wants a connection must get it, or the reason why not.
//!
//! `tests/mutants` has the lines of the code that these tests guard: `tests/mutants verbs`.

mod adapter;
mod carry;
mod traffic;
mod world;

use adapter::Refusal;
use std::collections::HashSet;
use std::rc::Rc;
use world::{Budget, Step, World, changes_nothing};

/// A state, the number of the one before, and what led from that to this.
type Found = (Rc<World>, usize, Option<(usize, Step, Refusal)>);

/// Explores everything; how many states there were, or what is wrong and how it came about.
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
