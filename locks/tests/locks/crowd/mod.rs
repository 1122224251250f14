//! Drives one rank among others that repeat their calls, in the worst order known for that rank.

use super::mutants::MutantMix;
use transom_locks::model::{Handles, Program, Sim, SimState, Step};
use transom_locks::{At, Rank};

pub type Net = Sim<MutantMix<16>>;
pub type Now = SimState<Handles<16>>;

/// The lock word of rank 0.
pub const WORD: At = At { rank: 0, word: 0 };

pub fn can(net: &Net, state: &Now, rank: Rank) -> bool {
    net.steps(state).any(|step| step == Step::Rank(rank))
}

/// Runs rank 0 while `goes_on`. Before each of its steps the `others` run, one step of the rank that `choose` picks at
/// a time, until `is_ready` accepts the states before and now, or none of them can run. Returns the verbs of rank 0 and
/// the steps of the others.
pub fn among(
    net: &Net,
    mut state: Now,
    others: &[Rank],
    mut choose: impl FnMut(&Now, Vec<Rank>) -> Rank,
    is_ready: impl Fn(&Now, &Now) -> bool,
    goes_on: impl Fn(&Now) -> bool,
) -> Result<(usize, usize), String> {
    let (mut verbs, mut steps) = (0, 0);
    while goes_on(&state) {
        let before = state.clone();
        for _ in 0..1000 {
            let ready: Vec<Rank> = others.iter().copied().filter(|&rank| can(net, &state, rank)).collect();
            if ready.is_empty() || is_ready(&before, &state) {
                break;
            }
            state = net.step(&state, Step::Rank(choose(&state, ready)))?;
            steps += 1;
        }
        if can(net, &state, 0) {
            state = net.step(&state, Step::Rank(0))?;
            verbs += 1;
        } else if !others.iter().any(|&rank| can(net, &state, rank)) {
            return Err("nobody can go on".into());
        }
        if others.iter().all(|&rank| state.phase(rank) == net.program().phases(rank)) {
            return Err(format!("not done after {verbs} verbs, and others have done all they had to"));
        }
    }
    Ok((verbs, steps))
}
