//! Symmetry among ranks with equal rows: schedules that differ only in their names count as one.

use super::{Step, attempt, exclusive, mixes, shared, until};
use std::collections::HashSet;
use transom_locks::Mode::{Exclusive, Shared};
use transom_locks::Rank;
use transom_locks::model::Delivery::{Deferred, Immediate, Watched};
use transom_locks::model::{Call, Mix, Program, Sim, SimState};

/// Justifies the reduction by [`Program::alike`]. Where ranks with equal rows swap names, the same steps are possible and the same
/// properties hold. Checks every schedule of three ranks with one request each, and random schedules of more.
#[test]
fn ranks_with_equal_rows_are_interchangeable() {
    for delivery in [Immediate, Deferred, Watched] {
        let renamed = |rows: &[Vec<Call>], names| Renamed {
            sim: Mix::<16>::new(rows.to_vec()).sim().with_delivery(delivery),
            names,
        };
        for rows in mixes(3, 1).filter(|rows| rows[1] == rows[2]) {
            renamed(&rows, vec![0, 2, 1]).run_all();
        }
        for row in [until(Shared), until(Exclusive), attempt(Shared), attempt(Exclusive)] {
            for rows in [shared(0), exclusive(0)].map(|first| vec![first, row.clone(), row.clone()]) {
                renamed(&rows, vec![0, 2, 1]).run_random(300);
            }
        }
        for rows in mixes(3, 2).filter(|rows| rows[1] == rows[2]) {
            renamed(&rows, vec![0, 2, 1]).run_random(200);
        }
        let chain = [exclusive(0), shared(0), shared(0), shared(0), shared(0)];
        renamed(&chain, vec![0, 3, 1, 4, 2]).run_random(500);
    }
}

/// Two networks; the second takes each step of the first with renamed ranks.
struct Renamed<P> {
    sim: Sim<P>,
    names: Vec<Rank>,
}

type Pair<P> = (SimState<<P as Program>::Local>, SimState<<P as Program>::Local>);

impl<P: Program> Renamed<P> {
    fn rename(&self, step: Step) -> Step {
        match step {
            Step::Rank(rank) => Step::Rank(self.names[rank]),
            Step::Deliver { from, to, queue } => Step::Deliver { from: self.names[from], to: self.names[to], queue },
        }
    }

    fn start(&self) -> Pair<P> {
        (self.sim.start().unwrap(), self.sim.start().unwrap())
    }

    /// The pair after a step of the first network and the renamed step of the second, which must match.
    fn step(&self, (one, other): &Pair<P>, step: Step) -> Pair<P> {
        let pair = (self.sim.step(one, step).unwrap(), self.sim.step(other, self.rename(step)).unwrap());
        assert!(self.matches(&pair), "{step:?}: {pair:?}");
        pair
    }

    fn run_all(&self) {
        let (mut seen, mut todo) = (HashSet::from([self.start()]), vec![self.start()]);
        while let Some(pair) = todo.pop() {
            let next = self.sim.steps(&pair.0).map(|step| self.step(&pair, step));
            todo.extend(next.filter(|pair| seen.insert(pair.clone())));
        }
    }

    fn run_random(&self, schedules: u64) {
        for seed in 0..schedules {
            let (mut pair, mut random) = (self.start(), fastrand::Rng::with_seed(seed));
            while let Some(step) = random.choice(self.sim.steps(&pair.0).collect::<Vec<_>>()) {
                pair = self.step(&pair, step);
            }
        }
    }

    /// Returns whether both can take the same steps, and have reached the same phases.
    fn matches(&self, (one, other): &Pair<P>) -> bool {
        let renamed: HashSet<Step> = self.sim.steps(one).map(|step| self.rename(step)).collect();
        let far = self.names.iter().enumerate().all(|(rank, &name)| one.phase(rank) == other.phase(name));
        far && renamed == self.sim.steps(other).collect()
    }
}
