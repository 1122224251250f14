//! A verb of rank 0 fails, at every possible place and in every way, under every schedule: rank 0 always returns, what
//! it cannot know about is broken, and no other lock has anything of it left.

use crate::failing::{Failing, Failure, How, Kind, Plan, Progress};
use std::collections::HashSet;
use transom_locks::Mode::{Exclusive, Shared};
use transom_locks::model::{Call, Delivery, Program, Replay, Sim, State, Step, Suspended};
use transom_locks::{At, Error, Field, LockLayout, LockWord, Network, Rank, TargetLock, Wake};

/// Rows of calls, where rank 0 has a network on which something fails.
struct Rows<const C: u32> {
    rows: Vec<Vec<Call>>,
    plan: Plan,
}

/// What a rank keeps: its locks, and at rank 0 what has failed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Kept<const C: u32> {
    locks: Vec<TargetLock<C>>,
    progress: Progress,
}

impl<const C: u32> Rows<C> {
    fn layout(&self) -> LockLayout {
        LockLayout::new(0, self.rows.len())
    }

    fn sim(self, delivery: Delivery) -> Sim<Self> {
        Sim::new(self.rows.len(), LockLayout::words(self.rows.len()) + 1, self).with_delivery(delivery)
    }
}

impl<const C: u32> Program for Rows<C> {
    type Local = Kept<C>;

    fn start(&self, _: Rank) -> Kept<C> {
        Kept { locks: vec![TargetLock::new(); self.rows.len()], progress: Progress::default() }
    }

    /// One more, so that what rank 0 keeps of its last call is seen before anything else is found wrong.
    fn phases(&self, rank: Rank) -> usize {
        self.rows[rank].len() + 1
    }

    fn phase(&self, rank: Rank, phase: usize, kept: &mut Kept<C>, network: &Replay) -> Result<(), Error<Suspended>> {
        let Some(call) = self.rows[rank].get(phase) else {
            let word = LockLayout::words(self.rows.len());
            return Ok(network.notify(At { rank, word }, 1, Wake::Home)?);
        };
        if rank > 0 {
            return call.run(&mut kept.locks, network, 0);
        }
        let failing = Failing::new(network, self.plan, kept.progress);
        let outcome = call.run(&mut kept.locks, &failing, 0);
        kept.progress = failing.progress();
        match outcome {
            Err(Error::Network(Failure::Network(suspended))) => Err(suspended.into()),
            Ok(()) | Err(Error::Network(Failure::Made)) => Ok(()),
            // What an earlier call did not get is not released, and what it broke not taken.
            Err(Error::NotLocked { target }) if kept.progress.failed.is_some() && !kept.locks[target].is_held() => {
                Ok(())
            }
            Err(Error::Broken { target }) if kept.locks[target].is_broken() => Ok(()),
            Err(error) => panic!("{error:?} in {call:?} of rank 0 with {:?}", self.plan),
        }
    }

    fn locks(&self) -> Option<LockLayout> {
        Some(self.layout())
    }

    /// Those of rank 0, some of which fail, are not in the order book.
    fn call(&self, rank: Rank, phase: usize) -> Option<Call> {
        self.rows[rank].get(phase).copied().filter(|_| rank > 0)
    }

    fn check(&self, state: &State<Kept<C>>) -> Result<(), String> {
        if state.is_done() { self.check_end(state) } else { Ok(()) }
    }
}

impl<const C: u32> Rows<C> {
    /// Whether rank 0 holds nothing at the end, and what it did not break is as if it had never asked.
    fn check_end(&self, state: &State<Kept<C>>) -> Result<(), String> {
        let kept = state.local(0);
        if let Some(target) = kept.locks.iter().position(TargetLock::<C>::is_held) {
            return Err(format!("rank 0 holds the lock of rank {target} at the end"));
        }
        for (at, value) in state.nonzero() {
            match self.layout().field(at) {
                Some((target, _)) if kept.locks[target].is_broken() => {}
                Some((_, Field::Word)) if LockWord::<C>(value).is_idle() => {}
                Some((_, Field::Tickets)) if value >> 32 == value & 0xffff_ffff => {}
                Some((_, Field::Link)) | None => {}
                Some((target, field)) => {
                    return Err(format!("{field:?} at rank {} of lock {target} holds {value:#x}", at.rank));
                }
            }
        }
        self.check_broken(kept)
    }

    /// One verb that fails breaks its lock at most, and those below it at which rank 0 waits; one that did not start,
    /// none.
    fn check_broken(&self, kept: &Kept<C>) -> Result<(), String> {
        let broken: Vec<Rank> = (0..kept.locks.len()).filter(|&target| kept.locks[target].is_broken()).collect();
        let Some((kind, at)) = kept.progress.failed else {
            return if broken.is_empty() { Ok(()) } else { Err(format!("nothing failed, and {broken:?} are broken")) };
        };
        let none = kind == Kind::StartAdd && self.plan.how == How::Refused;
        let highest = (!none).then(|| self.layout().field(at).map(|(target, _)| target)).flatten();
        if !self.plan.for_good && broken.last().copied() != highest {
            return Err(format!("{kind:?} on {at:?} failed, and {broken:?} are broken"));
        }
        Ok(())
    }

    /// Whether nobody goes on because ranks wait at locks that rank 0 has broken: there the network must end their
    /// waits.
    fn only_broken_hold_up(&self, deadlock: &str, kept: &Kept<C>) -> bool {
        let mut at_locks = deadlock.split("lock of rank ").skip(1);
        !deadlock.contains("rank 0 waits")
            && at_locks.all(|rest| {
                let digits = rest.split(|letter: char| !letter.is_ascii_digit()).next().unwrap_or_default();
                digits.parse().is_ok_and(|target: Rank| kept.locks[target].is_broken())
            })
    }
}

/// What was seen of all schedules.
#[derive(Default)]
struct Seen {
    states: usize,
    /// Ends in which the plan's verb failed.
    failed: usize,
    /// Of these, those in which a rank waits for ever at a broken lock.
    held_up: usize,
}

/// Visits every state.
fn explore<const C: u32>(sim: &Sim<Rows<C>>) -> Seen {
    let start = sim.start().unwrap();
    let (mut states, mut todo) = (HashSet::from([start.clone()]), vec![start]);
    let mut seen = Seen::default();
    while let Some(state) = todo.pop() {
        let steps: Vec<Step> = sim.steps(&state).collect();
        for step in steps {
            match sim.step(&state, step) {
                Ok(next) => {
                    if states.insert(next.clone()) {
                        seen.failed += usize::from(next.is_done() && next.local(0).progress.failed.is_some());
                        todo.push(next);
                    }
                }
                Err(what) => {
                    let (rows, kept) = (sim.program(), state.local(0));
                    let fine = what.starts_with("deadlock:") && rows.only_broken_hold_up(&what, kept);
                    assert!(fine, "{:?}, {:?}: {what}", rows.rows, rows.plan);
                    rows.check_broken(kept).unwrap_or_else(|what| panic!("{:?}, {:?}: {what}", rows.rows, rows.plan));
                    seen.failed += 1;
                    seen.held_up += 1;
                }
            }
        }
    }
    seen.states = states.len();
    seen
}

/// Lets each verb of rank 0 fail, in every way, until there are no more.
fn at_every_place<const C: u32>(rows: &[Vec<Call>]) {
    let (mut states, mut places, mut held_up) = (0, 0, 0);
    // Among more than two, what is under way makes too many states.
    let busy = rows.iter().filter(|row| !row.is_empty()).count();
    let all = [Delivery::Immediate, Delivery::Watched, Delivery::Deferred];
    for delivery in all.into_iter().take(if busy > 2 { 2 } else { 3 }) {
        for nth in 0.. {
            let mut failed = 0;
            for how in [How::Refused, How::Unheard, How::Lost] {
                for for_good in [false, true] {
                    let plan = Plan { nth, how, for_good };
                    let seen = explore(&Rows::<C> { rows: rows.to_vec(), plan }.sim(delivery));
                    failed += seen.failed;
                    held_up += seen.held_up;
                    states += seen.states;
                }
            }
            if failed == 0 {
                places += nth;
                break;
            }
        }
    }
    assert!(places > 0);
    println!("{rows:?}: {places} places, {states} states, {held_up} ends in which others wait at a broken lock");
}

fn shared(target: Rank) -> Vec<Call> {
    Call::both(target, Shared).into()
}

fn exclusive(target: Rank) -> Vec<Call> {
    Call::both(target, Exclusive).into()
}

fn all() -> Vec<Call> {
    vec![Call::AcquireAll, Call::ReleaseAll]
}

/// All locks, and then each by itself: what a failure did not break can be used again.
fn all_and_each(ranks: usize) -> Vec<Call> {
    all().into_iter().chain((0..ranks).flat_map(|target| [exclusive(target), shared(target)].concat())).collect()
}

#[test]
fn nobody_else() {
    for ranks in [1, 2, 3, 4] {
        let mut rows = vec![vec![]; ranks];
        rows[0] = all_and_each(ranks);
        at_every_place::<16>(&rows);
    }
}

#[test]
fn one_other_rank() {
    for other in [exclusive(0), exclusive(1), shared(0), [exclusive(1), exclusive(0)].concat()] {
        at_every_place::<16>(&[all_and_each(2), other]);
    }
}

/// The other takes the locks in their order: what rank 0 waits for may depend on what it has not released.
#[test]
fn another_takes_two_in_order() {
    let in_order = vec![Call::Acquire(0, Exclusive), Call::Acquire(1, Exclusive), Call::Release(1), Call::Release(0)];
    at_every_place::<16>(&[all(), in_order.clone()]);
    at_every_place::<16>(&[all(), [in_order, exclusive(0)].concat()]);
}

#[test]
#[ignore = "long: `tests/full` runs it"]
fn two_other_ranks() {
    at_every_place::<16>(&[all(), exclusive(0), exclusive(2)]);
    at_every_place::<16>(&[all(), exclusive(1), exclusive(1)]);
    at_every_place::<16>(&[all(), exclusive(2), shared(2)]);
}

#[test]
fn single_requests() {
    for mine in [exclusive(0), shared(0)] {
        at_every_place::<16>(&[[mine.clone(), shared(0)].concat(), exclusive(0)]);
        at_every_place::<16>(&[mine.clone(), exclusive(0), shared(0)]);
        at_every_place::<16>(&[mine, exclusive(0), exclusive(0)]);
    }
}

/// With narrow counts a request comes to the gate after one attempt.
#[test]
#[ignore = "long: `tests/full` runs it"]
fn single_requests_at_the_gate() {
    for mine in [exclusive(0), shared(0)] {
        at_every_place::<3>(&[[mine.clone(), shared(0)].concat(), exclusive(0)]);
        at_every_place::<3>(&[mine, exclusive(0), exclusive(0)]);
    }
}
