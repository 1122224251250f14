//! Symmetry among ranks with equal rows: schedules that differ only in their names count as one.

use super::{Seen, attempt, exclusive, mixes, shared, until};
use stateright::{Checker, Model, Property};
use std::collections::HashSet;
use transom_locks::Mode::{Exclusive, Shared};
use transom_locks::Rank;
use transom_locks::model::Delivery::{Deferred, Immediate, Watched};
use transom_locks::model::{Call, Mix, Program, Sim, Step};

/// Per rank: the last rank before it with the same row. Rank 0 differs from all others where the lock is its own, and
/// with several locks no two ranks are interchangeable.
pub fn alike(rows: &[Vec<Call>]) -> Vec<Option<Rank>> {
    let one_lock = |call: &Call| match *call {
        Call::Acquire(target, _) | Call::TryAcquire(target, _) | Call::AcquireUntil(target, _) => target == 0,
        Call::Release(target) | Call::ReleaseHeld(target) | Call::Settle(target) => target == 0,
        Call::AcquireAll | Call::ReleaseAll => false,
    };
    if !rows.iter().flatten().all(one_lock) {
        return Vec::new();
    }
    (0..rows.len()).map(|rank| (1..rank).rev().find(|&other| rows[other] == rows[rank])).collect()
}

/// Justifies the reduction by `alike`. Where ranks with equal rows swap names, the same steps are possible and the same
/// properties hold. Checks every schedule of three ranks with one request each, and random schedules of more.
#[test]
fn ranks_with_equal_rows_are_interchangeable() {
    for delivery in [Immediate, Deferred, Watched] {
        let renamed = |rows: &[Vec<Call>], names| Renamed {
            sim: Mix::<16>::new(rows.to_vec()).sim().with_delivery(delivery),
            names,
        };
        for rows in mixes(3, 1).filter(|rows| alike(rows)[2] == Some(1)) {
            let pairs = renamed(&rows, vec![0, 2, 1]).checker().threads(1).spawn_bfs().join();
            assert_eq!(pairs.discovery("alike").map(|path| path.into_actions()), None, "{rows:?}, {delivery:?}");
        }
        for row in [until(Shared), until(Exclusive), attempt(Shared), attempt(Exclusive)] {
            for rows in [shared(0), exclusive(0)].map(|first| vec![first, row.clone(), row.clone()]) {
                renamed(&rows, vec![0, 2, 1]).run_random(300);
            }
        }
        for rows in mixes(3, 2).filter(|rows| alike(rows)[2] == Some(1)) {
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

impl<P: Program> Renamed<P> {
    fn rename(&self, step: Step) -> Step {
        match step {
            Step::Rank(rank) => Step::Rank(self.names[rank]),
            Step::Deliver { from, to } => Step::Deliver { from: self.names[from], to: self.names[to] },
        }
    }

    fn run_random(&self, schedules: u64) {
        for seed in 0..schedules {
            let (mut pair, mut random) = (self.init_states().remove(0), fastrand::Rng::with_seed(seed));
            loop {
                assert!(self.matches(&pair), "seed {seed}: {:?}", (pair.0.err(), pair.1.err()));
                let mut steps = Vec::new();
                self.actions(&pair, &mut steps);
                let Some(step) = random.choice(steps) else { break };
                pair = self.next_state(&pair, step).expect("both are right so far");
            }
        }
    }

    /// Returns whether both are free of violations, can take the same steps, and have reached the same phases.
    fn matches(&self, pair: &(Seen<P>, Seen<P>)) -> bool {
        let (Ok(one), Ok(other)) = pair else { return false };
        let renamed: HashSet<Step> = self.sim.steps(one).map(|step| self.rename(step)).collect();
        let far = self.names.iter().enumerate().all(|(rank, &name)| one.phase(rank) == other.phase(name));
        far && renamed == self.sim.steps(other).collect()
    }
}

impl<P: Program> Model for Renamed<P> {
    type State = (Seen<P>, Seen<P>);
    type Action = Step;

    fn init_states(&self) -> Vec<Self::State> {
        let start = || self.sim.start().map_err(|failure| failure.what);
        vec![(start(), start())]
    }

    fn actions(&self, (one, _): &Self::State, actions: &mut Vec<Step>) {
        if let Ok(one) = one {
            actions.extend(self.sim.steps(one));
        }
    }

    fn next_state(&self, (one, other): &Self::State, step: Step) -> Option<Self::State> {
        let (one, other) = (one.as_ref().ok()?, other.as_ref().ok()?);
        Some((self.sim.step(one, step), self.sim.step(other, self.rename(step))))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![Property::always("alike", Self::matches)]
    }
}
