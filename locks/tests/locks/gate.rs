//! The gate: an exclusive request enters the queue after a bounded number of attempts, whatever other ranks do to the
//! lock word.

use crate::crowd::{WORD, among};
use crate::mutants::{self, Mutant, MutantMix, TICKETS};
use transom_locks::Mode::{Exclusive, Shared};
use transom_locks::model::{Call, Delivery, Sim};
use transom_locks::{Field, LockLayout, LockWord, Rank};

fn sim<const C: u32>(rows: Vec<Vec<Call>>, mutant: Option<Mutant>, tickets: u32) -> Sim<MutantMix<C>> {
    Sim::new(rows.len(), LockLayout::words(rows.len()), MutantMix { mutant, tickets, ..MutantMix::new(rows) })
}

/// The choice of the rank that takes the next step.
#[derive(Clone, Copy, Debug)]
enum Choice {
    Random(u64),
    /// Requests go before releases, so a release finds a successor whenever one is possible.
    InRow,
}

/// The cost until rank 0's first call is in the queue, if rank 0 never takes a step before the others have changed the
/// word, as long as they can. Returns the verbs of rank 0 and the steps of the others.
fn kept_out(rows: Vec<Vec<Call>>, mutant: Option<Mutant>, choice: Choice) -> Result<(usize, usize), String> {
    let others: Vec<Rank> = (1..rows.len()).collect();
    let net = sim::<16>(rows, mutant, 0);
    let mut random = fastrand::Rng::with_seed(if let Choice::Random(seed) = choice { seed } else { 0 });
    among(
        &net,
        net.start().map_err(|failure| failure.what)?,
        &others,
        |state, ready| match choice {
            Choice::Random(_) => random.choice(ready).unwrap(),
            Choice::InRow => ready.into_iter().min_by_key(|&rank| (state.phase(rank) % 2, state.phase(rank))).unwrap(),
        },
        |before, now| now.word(WORD) != before.word(WORD),
        |now| now.phase(0) == 0 && LockWord::<16>(now.word(WORD)).tail() != Some(0),
    )
}

/// The calls that the others repeat while rank 0 makes its `first` call.
fn crowds(first: Call) -> Vec<(&'static str, Vec<Vec<Call>>)> {
    const ROUNDS: usize = 400;
    let reads = Call::both(0, Shared).to_vec();
    let writes = Call::both(0, Exclusive).to_vec();
    let timed = |mode| vec![Call::AcquireUntil(0, mode), Call::ReleaseHeld(0)];
    let tries = |mode| Call::attempt(0, mode).to_vec();
    let all = vec![Call::AcquireAll, Call::ReleaseAll];
    let crowd = |rows: &[&Vec<Call>], many: usize| -> Vec<Vec<Call>> {
        let rows = rows.iter().flat_map(|row| vec![row.repeat(ROUNDS); many]);
        [vec![first, Call::ReleaseHeld(0)]].into_iter().chain(rows).collect()
    };
    vec![
        ("1 reader", crowd(&[&reads], 1)),
        ("2 readers", crowd(&[&reads], 2)),
        ("8 readers", crowd(&[&reads], 8)),
        ("3 writers", crowd(&[&writes], 3)),
        ("readers and writers", crowd(&[&reads, &writes], 3)),
        ("readers of all", crowd(&[&all], 2)),
        ("readers with deadlines", crowd(&[&timed(Shared)], 3)),
        ("writers with deadlines", crowd(&[&timed(Exclusive)], 3)),
        (
            "everybody",
            crowd(&[&reads, &writes, &timed(Shared), &timed(Exclusive), &tries(Shared), &tries(Exclusive)], 1),
        ),
    ]
}

#[test]
fn exclusive_request_enters_queue_in_bounded_verbs() {
    let (asks, until) = (Call::Acquire(0, Exclusive), Call::AcquireUntil(0, Exclusive));
    for (what, rows) in [asks, until].into_iter().flat_map(crowds) {
        let ranks = rows.len();
        let (mut most_verbs, mut most_steps) = (0, 0);
        for choice in (0..60).map(Choice::Random).chain([Choice::InRow]) {
            let (verbs, steps) =
                kept_out(rows.clone(), None, choice).unwrap_or_else(|wrong| panic!("{what}, {choice:?}: {wrong}"));
            (most_verbs, most_steps) = (most_verbs.max(verbs), most_steps.max(steps));
        }
        println!("{what}: {most_verbs} verbs, {most_steps} steps of the others");
        assert!(most_verbs <= 25 + 4 * ranks, "{what}: {most_verbs} verbs before it is in the queue");
    }
}

#[test]
fn mutant_without_urgency_starves_a_request() {
    for mutant in mutants::OF_URGENCY {
        let both =
            |(_, rows): (_, Vec<Vec<Call>>)| [Choice::Random(1), Choice::InRow].map(|choice| (rows.clone(), choice));
        let tries = crowds(Call::Acquire(0, Exclusive)).into_iter().flat_map(both);
        let wrong = tries.into_iter().find_map(|(rows, choice)| kept_out(rows, Some(mutant), choice).err());
        let wrong = wrong.unwrap_or_else(|| panic!("{mutant:?} is not caught"));
        assert!(wrong.contains("kept out of the queue by") || wrong.contains("not done after"), "{mutant:?}: {wrong}");
    }
}

/// Mixes that reach the gate soon with narrow counts.
fn mixes() -> Vec<Vec<Vec<Call>>> {
    let [reads, writes] = [Shared, Exclusive].map(|mode| Call::both(0, mode).to_vec());
    let timed = vec![Call::AcquireUntil(0, Exclusive), Call::ReleaseHeld(0), Call::Settle(0)];
    vec![
        vec![writes.repeat(2), writes.repeat(2), writes.repeat(2)],
        vec![reads.repeat(3), writes.clone(), [reads.clone(), writes.clone()].concat()],
        vec![reads.repeat(4), writes.repeat(2)],
        vec![reads.repeat(2), timed.repeat(2), [timed, writes].concat()],
    ]
}

/// Requests take their places in the queue in the order of their tickets, under every schedule of three ranks.
#[test]
fn places_come_in_ticket_order() {
    let [reads, writes] = [Shared, Exclusive].map(|mode| Call::both(0, mode).to_vec());
    let rows = vec![writes, reads.repeat(2), reads.repeat(2)];
    for delivery in [Delivery::Immediate, Delivery::Deferred, Delivery::Torn] {
        let states = sim::<3>(rows.clone(), None, 0).with_delivery(delivery).explore(1_000_000).unwrap();
        println!("{delivery:?}: {states} states");
    }
}

#[test]
fn ticket_numbers_wrap_without_losing_turns() {
    for tickets in [0, u32::MAX - 3, u32::MAX - 1, u32::MAX] {
        for rows in mixes() {
            let net = sim::<3>(rows, None, tickets);
            for seed in 0..3000 {
                net.run_random(seed).unwrap_or_else(|failure| panic!("{tickets} tickets: {failure}"));
            }
        }
    }
}

#[test]
fn every_mutant_of_the_gate_is_caught() {
    for mutant in mutants::OF_GATE {
        let fails = |rows: &Vec<Vec<Call>>| {
            let net = sim::<3>(rows.clone(), Some(mutant), 0);
            (0..20_000).find_map(|seed| net.run_random(seed).err())
        };
        let failure = mixes().iter().find_map(fails).unwrap_or_else(|| panic!("{mutant:?} is not caught"));
        println!("{:<24} {}", format!("{mutant:?}"), failure.what);
    }
    assert_eq!(LockLayout::new(0, 3).field(TICKETS), Some((0, Field::Tickets)));
}
