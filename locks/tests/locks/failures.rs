//! One verb of rank 0 fails, at every possible place and in every way, under every schedule. Rank 0 always returns, a
//! lock in an unknown state is broken, and no other lock keeps anything of rank 0's requests.

use std::collections::HashSet;
use transom_locks::Mode::{Exclusive, Shared};
use transom_locks::model::failing::{Extent, Failing, Failure, How, Kind, Plan, Progress};
use transom_locks::model::{Call, Delivery, Handles, Program, Replay, Sim, SimState, Step, Suspended};
use transom_locks::{At, Error, Field, LockLayout, LockWord, Network, Rank, TargetLock, Wake};

/// Rows of calls; rank 0 runs on a failing network.
struct Rows<const C: u32> {
    rows: Vec<Vec<Call>>,
    plan: Plan,
}

/// The state of a rank: its handles, and for rank 0 the progress of the plan.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct RankLocks<const C: u32> {
    handles: Handles<C>,
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
    type Local = RankLocks<C>;

    fn start(&self, _: Rank) -> RankLocks<C> {
        RankLocks { handles: Handles::new(self.rows.len(), 0), progress: Progress::default() }
    }

    /// One phase more, so that the state of rank 0 after its last call is checked first.
    fn phases(&self, rank: Rank) -> usize {
        self.rows[rank].len() + 1
    }

    fn phase(
        &self,
        rank: Rank,
        phase: usize,
        kept: &mut RankLocks<C>,
        network: &Replay,
    ) -> Result<(), Error<Suspended>> {
        let Some(call) = self.rows[rank].get(phase) else {
            let word = LockLayout::words(self.rows.len());
            return Ok(network.notify(At { rank, word }, 1, Wake::Home)?);
        };
        if rank > 0 {
            return call.run(&mut kept.handles, network);
        }
        let failing = Failing::new(network, self.plan, kept.progress);
        let outcome = call.run(&mut kept.handles, &failing);
        kept.progress = failing.progress();
        match outcome {
            Err(Error::Network(Failure::Network(suspended))) => Err(suspended.into()),
            Ok(()) | Err(Error::Network(Failure::Made)) => Ok(()),
            // A lock that an earlier call did not get is not released, and a lock that it broke is not taken.
            Err(Error::NotLocked { target })
                if kept.progress.failed.is_some() && !kept.handles.locks()[target].is_held() =>
            {
                Ok(())
            }
            Err(Error::Broken { target }) if kept.handles.locks()[target].is_broken() => Ok(()),
            Err(error) => panic!("{error:?} in {call:?} of rank 0 with {:?}", self.plan),
        }
    }

    fn locks(&self) -> Option<LockLayout> {
        Some(self.layout())
    }

    /// Calls of rank 0, some of which fail, are not reported to the oracle.
    fn call(&self, rank: Rank, phase: usize) -> Option<Call> {
        self.rows[rank].get(phase).copied().filter(|_| rank > 0)
    }

    fn check(&self, state: &SimState<RankLocks<C>>) -> Result<(), String> {
        if state.is_done() { self.check_end(state) } else { Ok(()) }
    }
}

impl<const C: u32> Rows<C> {
    /// Returns whether rank 0 holds nothing at the end, and left no trace at the locks that it did not break.
    fn check_end(&self, state: &SimState<RankLocks<C>>) -> Result<(), String> {
        let kept = state.local(0);
        if let Some(target) = kept.handles.locks().iter().position(TargetLock::<C>::is_held) {
            return Err(format!("rank 0 holds the lock of rank {target} at the end"));
        }
        for (at, value) in state.nonzero() {
            match self.layout().field(at) {
                Some((target, _)) if kept.handles.locks()[target].is_broken() => {}
                Some((_, Field::Word)) if LockWord::<C>(value).is_idle() => {}
                Some((_, Field::Tickets)) if C == 16 && value >> 32 == value & 0xffff_ffff => {}
                Some((_, Field::Tickets)) if C < 16 && value >> 61 == value >> 58 & 7 => {}
                Some((_, Field::Link)) | None => {}
                Some((target, field)) => {
                    return Err(format!("{field:?} at rank {} of lock {target} holds {value:#x}", at.rank));
                }
            }
        }
        self.check_broken(kept)
    }

    /// A failing verb breaks at most its own lock and the locks below it at which rank 0 waits. A verb that did not
    /// start breaks none.
    fn check_broken(&self, kept: &RankLocks<C>) -> Result<(), String> {
        let broken: Vec<Rank> =
            (0..kept.handles.locks().len()).filter(|&target| kept.handles.locks()[target].is_broken()).collect();
        let Some((kind, at)) = kept.progress.failed else {
            return if broken.is_empty() { Ok(()) } else { Err(format!("nothing failed, and {broken:?} are broken")) };
        };
        let none = kind == Kind::StartAdd && self.plan.how == How::Refused;
        let highest = (!none).then(|| self.layout().field(at).map(|(target, _)| target)).flatten();
        if self.plan.extent == Extent::Verb && broken.last().copied() != highest {
            return Err(format!("{kind:?} on {at:?} failed, and {broken:?} are broken"));
        }
        Ok(())
    }

    /// Returns whether ranks are blocked only at locks that rank 0 has broken, where the network must end their waits.
    fn only_broken_hold_up(&self, deadlock: &str, kept: &RankLocks<C>) -> bool {
        let mut at_locks = deadlock.split(" at lock ").skip(1);
        let waits = deadlock.matches(" waits for ").count();
        !deadlock.contains("rank 0 waits")
            && at_locks.clone().count() == waits
            && at_locks.all(|rest| {
                let digits = rest.split(|letter: char| !letter.is_ascii_digit()).next().unwrap_or_default();
                digits.parse().is_ok_and(|target: Rank| kept.handles.locks()[target].is_broken())
            })
    }
}

/// Statistics of all schedules.
#[derive(Default)]
struct Seen {
    states: usize,
    /// Final states in which the plan's verb failed.
    failed: usize,
    /// Failed final states in which a rank waits for ever at a broken lock.
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

/// Lets each verb of rank 0 fail, in every way, until a plan's verb is beyond the last.
fn at_every_place<const C: u32>(rows: &[Vec<Call>]) {
    // With more than two busy ranks, messages in flight make too many states for the short checks.
    let busy = rows.iter().filter(|row| !row.is_empty()).count();
    let all = [Delivery::Immediate, Delivery::Watched, Delivery::Torn, Delivery::Deferred];
    at_every_place_in::<C>(&all[..if busy > 2 { 3 } else { 4 }], rows);
}

fn at_every_place_in<const C: u32>(deliveries: &[Delivery], rows: &[Vec<Call>]) {
    let (mut states, mut places, mut held_up) = (0, 0, 0);
    for &delivery in deliveries {
        for nth in 0.. {
            let mut failed = 0;
            for how in [How::Refused, How::Unheard, How::Lost] {
                for extent in [Extent::Verb, Extent::Rank] {
                    let plan = Plan { nth, how, extent };
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

/// All locks, and then each by itself: locks that a failure did not break remain usable.
fn all_and_each(ranks: usize) -> Vec<Call> {
    all().into_iter().chain((0..ranks).flat_map(|target| [exclusive(target), shared(target)].concat())).collect()
}

#[test]
fn failure_without_other_ranks_is_contained() {
    for ranks in [1, 2, 3, 4] {
        let mut rows = vec![vec![]; ranks];
        rows[0] = all_and_each(ranks);
        at_every_place::<16>(&rows);
    }
}

#[test]
fn failure_beside_one_other_rank_is_contained() {
    for other in [exclusive(0), exclusive(1), shared(0), [exclusive(1), exclusive(0)].concat()] {
        at_every_place::<16>(&[all_and_each(2), other]);
    }
}

/// The other rank takes the locks in order: rank 0 may wait for a release that depends on its own.
#[test]
fn failure_beside_ordered_locks_is_contained() {
    let in_order = vec![Call::Acquire(0, Exclusive), Call::Acquire(1, Exclusive), Call::Release(1), Call::Release(0)];
    at_every_place::<16>(&[all(), in_order.clone()]);
    at_every_place::<16>(&[all(), [in_order, exclusive(0)].concat()]);
}

#[test]
#[ignore = "long: `tests/full` runs it"]
fn failure_beside_two_other_ranks_is_contained() {
    at_every_place::<16>(&[all(), exclusive(0), exclusive(2)]);
    at_every_place::<16>(&[all(), exclusive(1), exclusive(1)]);
    at_every_place::<16>(&[all(), exclusive(2), shared(2)]);
}

#[test]
fn failure_of_a_single_request_is_contained() {
    for mine in [exclusive(0), shared(0)] {
        at_every_place::<16>(&[[mine.clone(), shared(0)].concat(), exclusive(0)]);
        at_every_place::<16>(&[mine.clone(), exclusive(0), shared(0)]);
        at_every_place::<16>(&[mine, exclusive(0), exclusive(0)]);
    }
}

#[test]
#[ignore = "long: `tests/full` runs it"]
fn failure_beside_puts_in_flight_is_contained() {
    for mine in [exclusive(0), shared(0)] {
        at_every_place_in::<16>(&[Delivery::Deferred], &[mine.clone(), exclusive(0), shared(0)]);
        at_every_place_in::<16>(&[Delivery::Deferred], &[mine, exclusive(0), exclusive(0)]);
    }
}

/// With narrow counts a request reaches the gate after one attempt.
#[test]
#[ignore = "long: `tests/full` runs it"]
fn failure_at_the_gate_is_contained() {
    for mine in [exclusive(0), shared(0)] {
        at_every_place::<3>(&[[mine.clone(), shared(0)].concat(), exclusive(0)]);
        at_every_place::<3>(&[mine, exclusive(0), exclusive(0)]);
    }
}
