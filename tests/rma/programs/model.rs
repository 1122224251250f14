//! Results that MPI's memory model permits for a program.
//!
//! All ranks synchronise between two phases, so each element's recorded value is its value.
//! Within a phase:
//!
//! 1. An element by itself is a register. The calls that touched it have one order in which every read returns the last
//!    write, and which ends with the element's value after the phase. Each rank's calls keep their order, accumulates
//!    included: the program settles a put before it accesses its element again. MPI leaves racing puts and gets
//!    undefined; this library defines their results.
//! 2. Elements that are put or got together do not move in one piece, nor does memory that the kernel copies. Where such
//!    calls race, rule 1 holds for each byte, and not for the element.
//! 3. An exclusive epoch is not interrupted. No other epoch's call on the element comes between two of its own, and its
//!    calls come between no two of another epoch. Accesses outside epochs are not excluded.
//! 4. Where all epochs on a target are exclusive, they have one order for all of its elements.
//! 5. Once all signals to it have arrived, a rank sees all puts that were made with them.
//!
//! Rule 1 is per element: the order in which two elements change is not defined.

use super::make::{Action, Call, Flavour, How, On, Phase, Program, Sync};
use crate::arithmetic::Model;
use std::collections::HashSet;
use transom::{Op, Rank};

/// Effect of a call on one element, and the value that it read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    Write(u64),
    Read(u64),
    /// Operation, operand, and the previous value if the call returned it.
    Update(Op, u64, Option<u64>),
    Swap {
        expected: u64,
        new: u64,
        was: u64,
    },
}

impl Act {
    /// The element after the act. Returns `None` if the element cannot have been `value` before.
    fn on(self, value: u64) -> Option<u64> {
        match self {
            Act::Write(new) => Some(new),
            Act::Read(seen) => (seen == value).then_some(value),
            Act::Update(_, _, Some(was)) if was != value => None,
            Act::Update(op, operand, _) => Some(u64::model(op, value, operand)),
            Act::Swap { was, .. } if was != value => None,
            Act::Swap { expected, new, .. } => Some(if value == expected { new } else { value }),
        }
    }

    /// The same act on one byte of the element.
    fn lane(self, lane: u32) -> Act {
        let byte = |value: u64| value >> (8 * lane) & 0xff;
        match self {
            Act::Write(value) => Act::Write(byte(value)),
            Act::Read(value) => Act::Read(byte(value)),
            other => other,
        }
    }
}

/// Lock mode in which an epoch has its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hold {
    /// No epoch.
    None,
    Shared,
    Alone,
}

#[derive(Clone, Copy, Debug)]
struct Event {
    target: Rank,
    element: usize,
    /// Number of the epoch at its origin.
    epoch: usize,
    hold: Hold,
    act: Act,
    /// Moved with other elements in one call.
    together: bool,
}

/// Checks that `seen`, by rank, is a possible result of the program. The error says why it is not.
pub fn judge(program: &Program, seen: &[Vec<u64>]) -> Result<(), String> {
    let mut logs: Vec<_> = seen.iter().map(|log| log.iter().copied()).collect();
    let mut state: Vec<Vec<u64>> = program.lens.iter().map(|&len| vec![0; len]).collect();
    let mut signals = vec![0; state.len()];
    for (number, phase) in program.phases.iter().enumerate() {
        let (mut origins, mut after) = (Vec::new(), Vec::new());
        for rank in 0..state.len() {
            let all = phase.epochs.iter().flatten().flat_map(|epoch| &epoch.calls);
            signals[rank] += all.filter(|call| call.signals(rank)).count() as u64;
            let log = &mut logs[rank];
            let short = || format!("phase {number}: rank {rank} recorded too few values");
            origins.push(events(phase, rank, log).ok_or_else(short)?);
            let at_signal: Vec<u64> = match phase.sync {
                Sync::Signals => log.take(state[rank].len()).collect(),
                _ => Vec::new(),
            };
            let part: Vec<u64> = log.take(state[rank].len()).collect();
            let signal = log.next().ok_or_else(short)?;
            if signal != signals[rank] {
                return Err(format!("phase {number}: the signal of rank {rank} is {signal}, not {}", signals[rank]));
            }
            if matches!(phase.sync, Sync::Signals) && at_signal != part {
                return Err(format!(
                    "phase {number}: part of rank {rank} was {at_signal:?} at its signals, and {part:?} at the end"
                ));
            }
            after.push(part);
        }
        for (target, (old, new)) in state.iter().zip(&after).enumerate() {
            judge_part(program.flavour, target, old, new, &origins)
                .map_err(|why| format!("phase {number}, {:?}, {why}", phase.sync))?;
        }
        state = after;
        for (part, _) in state.iter_mut().zip(&phase.renewed).filter(|(_, renewed)| **renewed) {
            part.fill(0);
        }
    }
    match logs.iter_mut().position(|log| log.next().is_some()) {
        Some(rank) => Err(format!("rank {rank} recorded too many values")),
        None => Ok(()),
    }
}

/// Events of a rank in a phase, with the values that it read. Returns `None` if the log is too short.
fn events(phase: &Phase, rank: Rank, log: &mut dyn Iterator<Item = u64>) -> Option<Vec<Event>> {
    let mut events = Vec::new();
    for (number, epoch) in phase.epochs[rank].iter().enumerate() {
        let hold = match epoch.on {
            On::Exclusive(..) => Hold::Alone,
            On::Outside => Hold::None,
            _ => Hold::Shared,
        };
        for call in &epoch.calls {
            for (i, &element) in call.elements.iter().enumerate() {
                let act = match &call.what {
                    Action::Put(_, values) | Action::Store(values) => Act::Write(values[i]),
                    Action::Get(How::Dropped) | Action::Settle { .. } => continue,
                    Action::Get(_) | Action::Load => Act::Read(log.next()?),
                    Action::Accumulate(_, op, operands) | Action::Fetch(How::Dropped, op, operands) => {
                        Act::Update(*op, operands[i], None)
                    }
                    Action::Fetch(_, op, operands) => Act::Update(*op, operands[i], Some(log.next()?)),
                    Action::Swap { expected, new } => Act::Swap { expected: *expected, new: *new, was: log.next()? },
                };
                let together = call.elements.len() > 1;
                events.push(Event { target: call.target, element, epoch: number, hold, act, together });
            }
        }
    }
    Some(events)
}

impl Call {
    /// Returns whether the call signals a rank.
    pub fn signals(&self, rank: Rank) -> bool {
        matches!(self.what, Action::Put(How::Signal, _)) && self.target == rank
    }
}

/// Largest number of calls of a rank that a failure prints.
const MOST: usize = 20;

fn judge_part(flavour: Flavour, target: Rank, old: &[u64], new: &[u64], origins: &[Vec<Event>]) -> Result<(), String> {
    let here: Vec<Vec<Event>> =
        origins.iter().map(|events| events.iter().copied().filter(|event| event.target == target).collect()).collect();
    for element in 0..old.len() {
        let of = |events: &Vec<Event>| events.iter().copied().filter(|event| event.element == element).collect();
        let on_it: Vec<Vec<Event>> = here.iter().map(of).collect();
        let events = || on_it.iter().flatten();
        let changes_whole = events().any(|event| matches!(event.act, Act::Update(..) | Act::Swap { .. }));
        let in_pieces = flavour == Flavour::Create || events().any(|event| event.together);
        let explained = match in_pieces && !changes_whole {
            false => register(old[element], &on_it, new[element]),
            true => (0..8).all(|lane| {
                let mut lanes = on_it.clone();
                lanes.iter_mut().flatten().for_each(|event| event.act = event.act.lane(lane));
                let byte = |value: u64| value >> (8 * lane) & 0xff;
                register(byte(old[element]), &lanes, byte(new[element]))
            }),
        };
        if !explained {
            let told = on_it.iter().enumerate().filter(|(_, events)| !events.is_empty()).map(|(origin, events)| {
                let acts = events
                    .iter()
                    .take(MOST)
                    .map(|event| format!("{:?} in its epoch {} ({:?})", event.act, event.epoch, event.hold));
                let more = events.len().saturating_sub(MOST);
                format!("\n  rank {origin}: {}; and {more} more", acts.collect::<Vec<_>>().join("; "))
            });
            return Err(format!(
                "element {element} of rank {target} was {}, is {}; no order explains:{}",
                old[element],
                new[element],
                told.collect::<String>()
            ));
        }
    }
    let alone = here.iter().flatten().all(|event| event.hold == Hold::Alone);
    if alone && !one_after_the_other(old, &here, new) {
        return Err(format!("part of rank {target} was {old:?}, is {new:?}; no order of epochs explains {here:?}"));
    }
    Ok(())
}

/// Rules 1 and 3: returns whether one order of the events on an element explains all values that were read.
fn register(old: u64, origins: &[Vec<Event>], new: u64) -> bool {
    let mut tried: HashSet<(Vec<usize>, u64)> = HashSet::new();
    let mut open = vec![(vec![0; origins.len()], old)];
    while let Some((done, value)) = open.pop() {
        if done.iter().zip(origins).all(|(&done, events)| done == events.len()) {
            if value == new {
                return true;
            }
            continue;
        }
        // The epoch that an origin is in the middle of.
        let amid = |origin: usize| {
            let (events, done) = (&origins[origin], done[origin]);
            let (before, next) = (events.get(done.checked_sub(1)?)?, events.get(done)?);
            (before.epoch == next.epoch).then_some(next.hold)
        };
        for (origin, events) in origins.iter().enumerate() {
            let Some(event) = events.get(done[origin]) else { continue };
            let held_off = |hold| {
                hold != Hold::None && event.hold != Hold::None && (hold, event.hold) != (Hold::Shared, Hold::Shared)
            };
            if (0..origins.len()).filter(|&other| other != origin).filter_map(amid).any(held_off) {
                continue;
            }
            if let Some(value) = event.act.on(value) {
                let mut done = done.clone();
                done[origin] += 1;
                if tried.insert((done.clone(), value)) {
                    open.push((done, value));
                }
            }
        }
    }
    false
}

/// Rule 4: returns whether one order of whole epochs explains all values that were read in a part.
fn one_after_the_other(old: &[u64], origins: &[Vec<Event>], new: &[u64]) -> bool {
    let epochs: Vec<Vec<&[Event]>> =
        origins.iter().map(|events| events.chunk_by(|a, b| a.epoch == b.epoch).collect()).collect();
    let mut tried: HashSet<(Vec<usize>, Vec<u64>)> = HashSet::new();
    let mut open = vec![(vec![0; origins.len()], old.to_vec())];
    while let Some((done, part)) = open.pop() {
        if done.iter().zip(&epochs).all(|(&done, epochs)| done == epochs.len()) {
            if part == new {
                return true;
            }
            continue;
        }
        for (origin, epochs) in epochs.iter().enumerate() {
            let (mut part, Some(epoch)) = (part.clone(), epochs.get(done[origin])) else { continue };
            let possible = epoch.iter().all(|event| {
                let value = event.act.on(part[event.element]);
                value.map(|value| part[event.element] = value).is_some()
            });
            let mut done = done.clone();
            done[origin] += 1;
            if possible && tried.insert((done.clone(), part.clone())) {
                open.push((done, part));
            }
        }
    }
    false
}

/// Wrong results, each beside a right one that differs little.
#[cfg(test)]
mod tests {
    use super::*;

    fn event(epoch: usize, hold: Hold, act: Act) -> Event {
        Event { target: 0, element: 0, epoch, hold, act, together: false }
    }

    fn shared<const N: usize>(acts: [Act; N]) -> Vec<Event> {
        acts.map(|act| event(0, Hold::Shared, act)).into()
    }

    fn alone<const N: usize>(acts: [Act; N]) -> Vec<Event> {
        acts.map(|act| event(0, Hold::Alone, act)).into()
    }

    use Act::{Read, Swap, Update, Write};
    const ADD: Act = Update(Op::Sum, 1, None);

    #[test]
    fn racing_puts_leave_one_of_their_values() {
        let puts = [shared([Write(1)]), shared([Write(2)])];
        assert!(register(0, &puts, 1) && register(0, &puts, 2));
        assert!(!register(0, &puts, 0), "model accepted the loss of both puts");
        assert!(!register(0, &puts, 3), "model accepted a value that no rank put");
    }

    #[test]
    fn get_never_sees_the_old_value_again() {
        let see = |first, second| [shared([Write(1)]), shared([Read(first), Read(second)])];
        for (first, second) in [(0, 0), (0, 1), (1, 1)] {
            assert!(register(0, &see(first, second), 1));
        }
        assert!(!register(0, &see(1, 0), 1));
        assert!(!register(0, &see(2, 2), 1));
        assert!(
            !register(0, &[shared([Write(1), Read(0)])], 1),
            "model accepted an old value after the rank's own put"
        );
    }

    #[test]
    fn accumulates_are_applied_exactly_once() {
        let adds = [shared([ADD, ADD]), shared([ADD])];
        assert!(register(5, &adds, 8));
        assert!(!register(5, &adds, 7) && !register(5, &adds, 9));
        let fetched = |a, b| [shared([Update(Op::Sum, 1, Some(a))]), shared([Update(Op::Sum, 1, Some(b))])];
        assert!(register(0, &fetched(0, 1), 2) && register(0, &fetched(1, 0), 2));
        assert!(!register(0, &fetched(0, 0), 2) && !register(0, &fetched(1, 1), 2));
    }

    #[test]
    fn accumulates_of_one_rank_keep_their_order() {
        let replaces = [shared([Update(Op::Replace, 1, None), Update(Op::Replace, 2, None)])];
        assert!(register(0, &replaces, 2) && !register(0, &replaces, 1));
    }

    #[test]
    fn one_of_two_equal_swaps_succeeds() {
        let swap = |was, new| Swap { expected: 0, new, was };
        assert!(register(0, &[shared([swap(0, 1)]), shared([swap(1, 2)])], 1));
        assert!(!register(0, &[shared([swap(0, 1)]), shared([swap(0, 2)])], 1), "model accepted two successful swaps");
        assert!(!register(0, &[shared([swap(0, 1)])], 0), "model accepted a matching swap without effect");
        assert!(!register(0, &[shared([swap(7, 1)])], 1), "model accepted the effect of an unequal swap");
    }

    #[test]
    fn exclusive_epoch_is_not_interrupted() {
        let increment = |was| [Read(was), Write(was + 1)];
        assert!(register(0, &[alone(increment(0)), alone(increment(1))], 2));
        let lost = [alone(increment(0)), alone(increment(0))];
        assert!(!register(0, &lost, 1));
        assert!(
            register(0, &[shared(increment(0)), shared(increment(0))], 1),
            "model refused interleaved shared epochs"
        );
        assert!(!register(0, &[alone([Write(1), Write(2)]), shared([Read(1)])], 2));
        assert!(
            !register(0, &[shared([Read(0), Read(1)]), alone([Write(1)])], 1),
            "model accepted a write amid another epoch"
        );
        let outside = vec![event(0, Hold::None, Read(1))];
        assert!(register(0, &[alone([Write(1), Write(2)]), outside], 2), "model refused an access without a lock");
    }

    #[test]
    fn exclusive_epochs_have_one_order_for_all_elements() {
        let puts = |value| [0, 1].map(|element| Event { element, ..event(0, Hold::Alone, Write(value)) }).to_vec();
        let origins = [puts(1), puts(2)];
        assert!(one_after_the_other(&[0, 0], &origins, &[1, 1]) && one_after_the_other(&[0, 0], &origins, &[2, 2]));
        assert!(!one_after_the_other(&[0, 0], &origins, &[1, 2]));
    }

    #[test]
    fn only_piecewise_puts_may_mix() {
        let put = |value, together| vec![Event { together, ..event(0, Hold::Shared, Write(value)) }];
        let mixed = |together| {
            judge_part(Flavour::Allocate, 0, &[0], &[0x0102], &[put(0x0101, together), put(0x0202, together)])
        };
        assert!(mixed(true).is_ok() && mixed(false).is_err());
        let own = judge_part(Flavour::Create, 0, &[0], &[0x0102], &[put(0x0101, false), put(0x0202, false)]);
        assert!(own.is_ok());
        let strange = judge_part(Flavour::Create, 0, &[0], &[0x0103], &[put(0x0101, false), put(0x0202, false)]);
        assert!(strange.unwrap_err().contains("no order explains"));
    }
}
