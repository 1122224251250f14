//! Random schedules of the shipped lock with many ranks: the properties of exhaustive.rs at a larger scale. A failure
//! prints its seed; `SEED=<seed> cargo test -p transom-locks --test locks random::` runs that alone.

use crate::mutants::{Mutant, Mutated};
use std::time::Instant;
use transom_locks::Mode::{Exclusive, Shared};
use transom_locks::model::{Call, Delivery, Mix, Program, Replay, Sim, SimState, Suspended, sim};
use transom_locks::{Barrier, Error, Field, LockLayout, Network, Pscw, Rank, TargetLock, Wake};

/// The seeds to run: `SEED`, or the first `most`.
fn seeds(most: u64) -> impl Iterator<Item = u64> {
    let one: Option<u64> = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok());
    one.map_or(0..most, |seed| seed..seed + 1)
}

/// Runs many random schedules and prints their number.
fn run<P: Program>(what: &str, most: u64, net: impl Fn(u64) -> Sim<P>) {
    let begun = Instant::now();
    let mut count = 0;
    for seed in seeds(most) {
        for delivery in [Delivery::Immediate, Delivery::Deferred, Delivery::Watched, Delivery::Torn] {
            if let Err(failure) = net(seed).with_delivery(delivery).run_random(seed) {
                panic!("{what}, {delivery:?}: {failure}; SEED={seed} runs it again");
            }
            count += 1;
        }
    }
    println!("{what}: {count} schedules, {:.1?}", begun.elapsed());
}

/// Requests of `ranks` ranks on `targets` locks: a writer in every `one_in`, and a call for all locks in every
/// twentieth.
fn mix(ranks: usize, requests: usize, targets: usize, one_in: u64, seed: u64) -> Vec<Vec<Call>> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut random = move |below: u64| {
        // Xorshift64 (Marsaglia, 2003).
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) % below
    };
    let mut request = move || {
        if random(20) == 0 {
            return [Call::AcquireAll, Call::ReleaseAll];
        }
        let target = random(targets as u64) as Rank;
        Call::both(target, if random(one_in) == 0 { Exclusive } else { Shared })
    };
    (0..ranks).map(|_| (0..requests).flat_map(|_| request()).collect()).collect()
}

#[test]
fn random_schedules_of_many_ranks_hold_properties() {
    check_mixes(1);
}

#[test]
#[ignore = "long: `tests/full` runs it"]
fn long_random_schedules_hold_properties() {
    check_mixes(8);
}

/// Runs `times` as many schedules as the test that is run by default.
fn check_mixes(times: u64) {
    for (ranks, requests, schedules) in [(5, 8, 375), (16, 6, 75), (33, 4, 15), (64, 3, 5)] {
        for (targets, one_in) in [(1, 2), (1, 8), (3, 3)] {
            let what = format!("{ranks} ranks x {requests} on {targets} locks, 1 writer in {one_in}");
            run(&what, times * schedules, |seed| Mix::<16>::new(mix(ranks, requests, targets, one_in, seed)).sim());
        }
    }
}

/// Requests of which every second has a deadline, which passes at once or, if the schedule delays the rank, later.
fn with_deadlines(ranks: usize, requests: usize, one_in: u64, seed: u64) -> Vec<Vec<Call>> {
    let mut rows = mix(ranks, requests, 2, one_in, seed);
    for (at, row) in rows.iter_mut().enumerate() {
        let mut until = false;
        for (place, call) in row.iter_mut().enumerate() {
            match *call {
                Call::Acquire(target, mode) => {
                    until = (seed + (at * requests + place / 2) as u64).is_multiple_of(2);
                    if until {
                        *call = Call::AcquireUntil(target, mode);
                    }
                }
                Call::Release(target) if until => *call = Call::ReleaseHeld(target),
                _ => {}
            }
        }
        row.extend([Call::Settle(0), Call::Settle(1)]);
    }
    rows
}

#[test]
fn random_deadlines_of_many_ranks_hold_properties() {
    check_deadlines(1);
}

#[test]
#[ignore = "long: `tests/full` runs it"]
fn long_random_deadlines_hold_properties() {
    check_deadlines(8);
}

/// Runs `times` as many schedules as the test that is run by default.
fn check_deadlines(times: u64) {
    for (ranks, requests, schedules) in [(3, 6, 2500), (4, 6, 1250), (5, 6, 1000), (9, 4, 375), (33, 3, 25), (64, 2, 5)]
    {
        for one_in in [1, 2, 8] {
            let what = format!("{ranks} ranks x {requests}, half of them with deadlines, 1 writer in {one_in}");
            run(&what, times * schedules, |seed| Mix::<16>::new(with_deadlines(ranks, requests, one_in, seed)).sim());
        }
    }
}

/// All readers queue behind one writer, so that the chain of links has many words.
#[test]
fn long_chain_of_readers_is_granted() {
    for ranks in [16, 33, 64] {
        run(&format!("{} readers behind a writer", ranks - 1), 10, |_| QueuedReaders::new(ranks, None).sim());
    }
}

#[test]
fn chain_without_links_is_corrupt() {
    let failure = QueuedReaders::new(16, Some(Mutant::Untold(Field::Link))).sim().run_random(1).unwrap_err();
    println!("no links: {}", failure.what);
    assert!(failure.what.contains("lock memory for the lock of rank 0 holds"), "{failure}");
}

/// Rank 0 takes the lock exclusively, and releases it once all others are queued behind it; then all take it in shared
/// mode.
struct QueuedReaders {
    ranks: usize,
    mutant: Option<Mutant>,
}

impl QueuedReaders {
    fn new(ranks: usize, mutant: Option<Mutant>) -> Self {
        QueuedReaders { ranks, mutant }
    }

    /// One word more at each rank, which rank 0 notifies once it holds the lock.
    fn sim(self) -> Sim<Self> {
        Sim::new(self.ranks, LockLayout::words(self.ranks) + 1, self)
    }
}

impl Program for QueuedReaders {
    type Local = TargetLock;

    fn start(&self, _: Rank) -> TargetLock {
        TargetLock::new()
    }

    fn phases(&self, _: Rank) -> usize {
        5
    }

    fn phase(&self, rank: Rank, phase: usize, lock: &mut TargetLock, network: &Replay) -> Result<(), Error<Suspended>> {
        use transom_locks::{At, Awaited};
        let layout = LockLayout::new(0, self.ranks);
        let flag = LockLayout::words(self.ranks);
        let mutated = Mutated::<_, 16> { network, layout, mutant: self.mutant };
        match (phase, rank) {
            (0, 0) => drop(lock.exclusive(&mutated, layout, 0)?),
            (1, 0) => (1..self.ranks).try_for_each(|rank| network.notify(At { rank, word: flag }, 1, Wake::Home))?,
            // Rank 0's `waiters`: the count is in the top 16 bits.
            (2, 0) => drop(network.wait(8 + 3, Awaited::Anyone, |waiters| waiters >> 48 == self.ranks as u64 - 1)?),
            (3, 0) => lock.release(&mutated, layout, 0)?,
            (0, _) => drop(network.wait(flag, Awaited::Rank(0), |flag| flag == 1)?),
            (1 | 3, _) => drop(lock.shared(&mutated, layout, 0)?),
            (2, _) | (4, 1..) => lock.release(&mutated, layout, 0)?,
            _ => {}
        }
        Ok(())
    }

    fn locks(&self) -> Option<LockLayout> {
        Some(LockLayout::new(0, self.ranks))
    }

    fn call(&self, rank: Rank, phase: usize) -> Option<Call> {
        match (phase, rank) {
            (0, 0) => Some(Call::Acquire(0, Exclusive)),
            (3, 0) => Some(Call::Release(0)),
            (1 | 3, 1..) => Some(Call::Acquire(0, Shared)),
            (2 | 4, 1..) => Some(Call::Release(0)),
            _ => None,
        }
    }

    fn check(&self, state: &SimState<TargetLock>) -> Result<(), String> {
        let held = state.is_done() && (0..self.ranks).any(|rank| state.local(rank).is_held());
        if held { Err("at the end a lock is held".into()) } else { Ok(()) }
    }
}

#[test]
fn random_barriers_and_access_groups_complete() {
    for ranks in [2, 5, 16, 33] {
        run(&format!("barrier of {ranks}"), 20, |_| {
            let wait = move |_: Rank, network: &Replay| {
                let mut barrier = Barrier::new(ranks, 0);
                (0..3).try_for_each(|_| barrier.wait(network))
            };
            Sim::new(ranks, Barrier::words(ranks), sim::once(wait))
        });
        // Each rank exposes its memory to its right neighbour and accesses that of its left neighbour, twice.
        run(&format!("access groups of {ranks}"), 20, |_| {
            let exchange = move |rank: Rank, network: &Replay| {
                let mut group = Pscw::new(ranks, 0);
                let (right, left) = ([(rank + 1) % ranks], [(rank + ranks - 1) % ranks]);
                for _ in 0..2 {
                    group.post(network, &right)?;
                    group.start(network, &left)?;
                    group.complete(network)?;
                    group.wait(network)?;
                }
                Ok::<(), Error<Suspended>>(())
            };
            Sim::new(ranks, Pscw::words(ranks), sim::once(exchange))
        });
    }
}
