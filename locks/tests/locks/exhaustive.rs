//! Every state that any schedule of the shipped lock reaches, for all mixes of requests of a few ranks. Checks strict
//! FIFO, mutual exclusion, sharing among readers, the order of tickets, bounded cost, attempts that never wait, absence
//! of deadlock, and idle words at the end.

mod alike;
mod torn;

use crate::mutants::{self, Mutant, MutantMix, Mutated};
use std::collections::HashSet;
use std::fmt;
use std::time::Instant;
use transom_locks::Mode::{Exclusive, Shared};
use transom_locks::model::Delivery::{self, Deferred, Immediate, Torn, Watched};
use transom_locks::model::{Call, Deliver, Failure, Handles, Mix, Program, Replay, Search, Sim, Step, Suspended};
use transom_locks::{At, Awaited, Error, Field, LockLayout, Mode, Network, Rank, Wake};

/// Every delivery.
const ALL: [Delivery; 4] = [Immediate, Deferred, Watched, Torn];

/// The result of a check: the number of states, whether readers shared, and the first violation.
struct Verdict {
    states: usize,
    shared: bool,
    wrong: Option<Failure>,
}

fn check<P: Program>(sim: Sim<P>) -> Verdict {
    let mut shared = false;
    let explored = sim.explore_with(&Search::default(), (), |(), step| {
        shared |= step.after.oracle().is_some_and(|oracle| oracle.holders(0).0 > 1);
        Ok(())
    });
    match explored {
        Ok(explored) => Verdict { states: explored.states, shared, wrong: None },
        Err(stopped) => Verdict { states: 0, shared, wrong: stopped.violation() },
    }
}

/// Checks every mix and prints the number of states.
fn check_all<const C: u32>(
    what: impl fmt::Display,
    delivery: impl Deliver + Copy + Send + Sync + 'static,
    mixes: impl Iterator<Item = Vec<Vec<Call>>>,
) {
    let (begun, mut states, mut count) = (Instant::now(), 0, 0);
    for rows in mixes {
        let verdict = check(Mix::<C>::new(rows.clone()).sim().with_delivery(delivery));
        assert_eq!(verdict.wrong, None, "{rows:?}");
        let readers = rows.iter().filter(|row| row.iter().any(is_shared)).count();
        assert_eq!(verdict.shared, readers > 1, "readers share whenever there are two: {rows:?}");
        states += verdict.states;
        count += 1;
    }
    println!("{what}, {delivery:?}: {count} mixes, {states} states, {:.1?}", begun.elapsed());
}

/// Checks random schedules of a mix with too many states.
fn check_few<const C: u32>(what: &str, delivery: Delivery, rows: &[Vec<Call>]) {
    let sim = Mix::<C>::new(rows.to_vec()).sim().with_delivery(delivery);
    let begun = Instant::now();
    for seed in 0..20_000 {
        sim.run_random(seed).unwrap_or_else(|failure| panic!("{what}, {delivery:?}: {failure}"));
    }
    println!("{what}, {delivery:?}: 20000 random schedules, {:.1?}", begun.elapsed());
}

fn is_shared(call: &Call) -> bool {
    matches!(call, Call::Acquire(0, Shared) | Call::AcquireAll)
}

/// Every mix of `ranks` ranks with `requests` requests each on the lock of rank 0, up to the order of ranks.
fn mixes(ranks: usize, requests: u32) -> impl Iterator<Item = Vec<Vec<Call>>> {
    let kinds = 1usize << requests;
    let row = move |kind: usize| -> Vec<Call> {
        (0..requests).flat_map(|nth| Call::both(0, if kind >> nth & 1 == 0 { Shared } else { Exclusive })).collect()
    };
    (0..kinds.pow(ranks as u32)).filter_map(move |number| {
        let kinds: Vec<usize> = (0..ranks as u32).map(|rank| number / kinds.pow(rank) % kinds).collect();
        kinds.is_sorted().then(|| kinds.into_iter().map(row).collect())
    })
}

fn shared(target: Rank) -> Vec<Call> {
    Call::both(target, Shared).into()
}

fn exclusive(target: Rank) -> Vec<Call> {
    Call::both(target, Exclusive).into()
}

fn attempt(mode: Mode) -> Vec<Call> {
    Call::attempt(0, mode).into()
}

fn all() -> Vec<Call> {
    vec![Call::AcquireAll, Call::ReleaseAll]
}

#[test]
fn two_ranks_hold_properties_in_every_schedule() {
    for requests in 1..=4 {
        check_all::<16>(format!("2 ranks x {requests}"), Immediate, mixes(2, requests));
        check_all::<16>(format!("2 ranks x {requests}"), Watched, mixes(2, requests));
        check_all::<16>(format!("2 ranks x {requests}"), Torn, mixes(2, requests));
    }
    for requests in 1..=3 {
        check_all::<16>(format!("2 ranks x {requests}"), Deferred, mixes(2, requests));
    }
}

#[test]
fn three_ranks_hold_properties_in_every_schedule() {
    for delivery in ALL {
        check_all::<16>("3 ranks x 1", delivery, mixes(3, 1));
    }
}

#[test]
#[ignore = "long: `tests/full` runs it"]
fn three_ranks_with_two_requests_hold_properties() {
    for delivery in ALL {
        check_all::<16>("3 ranks x 2", delivery, mixes(3, 2));
    }
}

#[test]
#[ignore = "long: `tests/full` runs it"]
fn four_ranks_hold_properties_in_every_schedule() {
    for delivery in ALL {
        check_all::<16>("4 ranks x 1", delivery, mixes(4, 1));
    }
    // Two requests each, where that is feasible.
    let twice = [vec![[shared(0), shared(0)].concat(); 4]];
    for delivery in [Immediate, Torn] {
        check_all::<16>("4 ranks x 2, readers", delivery, twice.clone().into_iter());
    }
    let last = [[shared(0), exclusive(0)].concat(), [exclusive(0), shared(0)].concat()];
    let again = last.into_iter().map(|twice| vec![exclusive(0), shared(0), shared(0), twice]);
    for delivery in [Immediate, Watched, Torn] {
        check_all::<16>("4 ranks, one of them x 2", delivery, again.clone());
    }
}

/// With narrow counts a request reaches the gate after one attempt, and makes the word urgent after another.
#[test]
fn narrow_counts_reach_the_gate_and_hold_properties() {
    for requests in 1..=3 {
        check_all::<3>(format!("2 ranks x {requests}, counts of 3 bits"), Immediate, mixes(2, requests));
    }
    for delivery in ALL {
        check_all::<3>("2 ranks x 2, counts of 3 bits", delivery, mixes(2, 2));
        check_all::<3>("3 ranks x 1, counts of 3 bits", delivery, mixes(3, 1));
    }
}

#[test]
#[ignore = "long: `tests/full` runs it"]
fn three_ranks_at_the_gate_hold_properties() {
    let again = [shared(0), exclusive(0)].concat();
    for delivery in [Immediate, Torn] {
        let once = mixes(2, 1).map(|rows| [rows, vec![again.clone()]].concat());
        check_all::<3>("3 ranks, one of them x 2, counts of 3 bits", delivery, once);
    }
    for rows in mixes(3, 2) {
        check_few::<3>("3 ranks x 2, counts of 3 bits", Immediate, &rows);
    }
}

/// An attempt gets the lock if no request is in the way, fails if one is, and delays none.
#[test]
fn attempts_succeed_only_without_conflict() {
    let rows = [Shared, Exclusive].map(|mode| [Call::both(0, mode).to_vec(), attempt(mode)]).concat();
    let twice: Vec<_> =
        rows.iter().flat_map(|first| rows.iter().map(|second| [first.clone(), second.clone()].concat())).collect();
    for delivery in ALL {
        let (mut states, mut tried) = (0, 0);
        let mut run = |mix: Vec<Vec<Call>>| {
            if !mix.iter().flatten().any(|call| matches!(call, Call::TryAcquire(..))) {
                return;
            }
            let verdict = check(Mix::<16>::new(mix.clone()).sim().with_delivery(delivery));
            assert_eq!(verdict.wrong, None, "{mix:?}");
            (states, tried) = (states + verdict.states, tried + 1);
        };
        for (at, first) in twice.iter().enumerate() {
            twice[at..].iter().for_each(|second| run(vec![first.clone(), second.clone()]));
        }
        for kinds in 0..4usize.pow(3) {
            let kinds = [kinds / 16, kinds / 4 % 4, kinds % 4];
            if kinds.is_sorted() {
                run(kinds.map(|kind| rows[kind].clone()).into());
            }
        }
        run(vec![exclusive(0), shared(0), [attempt(Exclusive), attempt(Shared)].concat()]);
        println!("with attempts, {delivery:?}: {tried} mixes, {states} states");
    }
    // Counts of three bits wrap under attempts, too.
    let reads = |n: usize| [attempt(Shared).repeat(n), shared(0)].concat();
    for mix in [vec![reads(4), reads(4)], vec![reads(3), [reads(3), attempt(Exclusive)].concat()]] {
        assert_eq!(check(Mix::<3>::new(mix.clone()).sim()).wrong, None, "{mix:?}");
    }
}

fn until(mode: Mode) -> Vec<Call> {
    vec![Call::AcquireUntil(0, mode), Call::ReleaseHeld(0), Call::Settle(0)]
}

/// Every multiset of `ranks` of these rows that includes a deadline.
fn with_deadlines(rows: &[Vec<Call>], ranks: u32) -> Vec<Vec<Vec<Call>>> {
    let timed = |mix: &Vec<Vec<Call>>| mix.iter().flatten().any(|call| matches!(call, Call::AcquireUntil(..)));
    let kinds = |mix: usize| (0..ranks).map(move |rank| mix / rows.len().pow(rank) % rows.len());
    let all = (0..rows.len().pow(ranks)).filter(|&mix| kinds(mix).is_sorted());
    all.map(|mix| kinds(mix).map(|kind| rows[kind].clone()).collect()).filter(timed).collect()
}

fn check_deadlines<const C: u32>(what: &str, deliveries: &[Delivery], mixes: &[Vec<Vec<Call>>]) {
    for &delivery in deliveries {
        let (begun, mut states) = (Instant::now(), 0);
        for mix in mixes {
            let verdict = check(Mix::<C>::new(mix.clone()).sim().with_delivery(delivery));
            assert_eq!(verdict.wrong, None, "{mix:?}, {delivery:?}");
            states += verdict.states;
        }
        println!("deadlines, {what}, {delivery:?}: {} mixes, {states} states, {:.1?}", mixes.len(), begun.elapsed());
    }
}

/// A request with a deadline gets its turn in order or leaves the queue; requests behind it go on in order, and none
/// waits for it.
#[test]
fn deadline_requests_keep_queue_order() {
    let rows = [shared(0), exclusive(0), until(Shared), until(Exclusive)];
    // The second request may revive the one that the first gave up.
    let again = |first: &[Call], second: &[Call]| [&first[..2], second].concat();
    let twice: Vec<_> = rows.iter().flat_map(|first| rows.iter().map(|second| again(first, second))).collect();
    check_deadlines::<16>("2 ranks x 2", &ALL, &with_deadlines(&twice, 2));
    check_deadlines::<16>("3 ranks x 1", &[Immediate, Deferred, Watched], &with_deadlines(&rows, 3));
}

#[test]
#[ignore = "long: `tests/full` runs it"]
fn deadlines_with_torn_atomics_keep_queue_order() {
    let rows = [shared(0), exclusive(0), until(Shared), until(Exclusive)];
    check_deadlines::<16>("3 ranks x 1", &[Torn], &with_deadlines(&rows, 3));
}

#[test]
#[ignore = "long: `tests/full` runs it"]
fn deadlines_at_the_gate_keep_queue_order() {
    let rows = [shared(0), exclusive(0), until(Shared), until(Exclusive)];
    check_deadlines::<3>("3 ranks x 1, counts of 3 bits", &ALL, &with_deadlines(&rows, 3));
    let tries = [until(Shared), until(Exclusive), attempt(Shared), attempt(Exclusive), shared(0), exclusive(0)];
    check_deadlines::<16>("3 ranks x 1, and attempts", &ALL, &with_deadlines(&tries, 3));
}

/// Mixes with too many states: random schedules.
#[test]
#[ignore = "long: `tests/full` runs it"]
fn deadlines_of_four_ranks_keep_queue_order() {
    let rows = [shared(0), exclusive(0), until(Shared), until(Exclusive)];
    for mix in with_deadlines(&rows, 4) {
        check_few::<16>("4 ranks with deadlines", Immediate, &mix);
    }
}

/// Rank 0 takes the lock. If it `sits`, it keeps the lock, as does every other rank that gets it, until the requests
/// with deadlines of all others have returned. None of these may therefore wait for a holder.
struct Punctual {
    rows: Vec<Mode>,
    sits: bool,
    mutant: Option<Mutant>,
}

impl Punctual {
    fn check(self, delivery: Delivery) -> Verdict {
        let ranks = self.rows.len();
        // One word more at each rank counts the requests that have returned.
        check(Sim::new(ranks, LockLayout::words(ranks) + 1, self).with_delivery(delivery))
    }
}

impl Program for Punctual {
    type Local = Handles<16>;

    fn start(&self, _: Rank) -> Self::Local {
        Handles::new(self.rows.len(), 0)
    }

    fn phases(&self, _: Rank) -> usize {
        5
    }

    fn phase(
        &self,
        rank: Rank,
        phase: usize,
        handles: &mut Self::Local,
        network: &Replay,
    ) -> Result<(), Error<Suspended>> {
        let ranks = self.rows.len();
        if let Some(call) = self.call(rank, phase) {
            let network = Mutated::<_, 16> { network, layout: LockLayout::new(0, ranks), mutant: self.mutant };
            return call.run(handles, &network);
        }
        let word = LockLayout::words(ranks);
        match (phase, rank) {
            (1, 1..) => (0..ranks).try_for_each(|rank| network.add(At { rank, word }, 1, Wake::Home).map(drop))?,
            (2, 1..) => drop(network.wait(word, Awaited::Anyone, |returned| returned == ranks as u64 - 1)?),
            (2, _) if self.sits => drop(network.wait(word, Awaited::Anyone, |returned| returned == ranks as u64 - 1)?),
            _ => {}
        }
        Ok(())
    }

    fn locks(&self) -> Option<LockLayout> {
        Some(LockLayout::new(0, self.rows.len()))
    }

    fn call(&self, rank: Rank, phase: usize) -> Option<Call> {
        match (phase, rank) {
            (0, 0) => Some(Call::Acquire(0, self.rows[0])),
            (0, _) => Some(Call::AcquireUntil(0, self.rows[rank])),
            (3, _) => Some(Call::ReleaseHeld(0)),
            (4, _) => Some(Call::Settle(0)),
            _ => None,
        }
    }
}

/// The modes of the holder and of the requests with deadlines, and whether the holder sits.
fn holders() -> impl Iterator<Item = (Vec<Mode>, bool)> {
    let modes = [Shared, Exclusive];
    let three = (0..8).map(move |bits| [0, 1, 2].map(|rank| modes[bits >> rank & 1]).to_vec());
    three.flat_map(|rows| [true, false].map(|sits| (rows.clone(), sits)))
}

/// A deadline holds whatever the holders do: leaving the queue takes verbs of other ranks that are in progress, but no
/// release.
#[test]
fn deadline_leaves_queue_without_a_release() {
    check_holders(Immediate);
}

#[test]
#[ignore = "long: `tests/full` runs it"]
fn deadline_leaves_queue_in_every_delivery() {
    [Deferred, Watched, Torn].into_iter().for_each(check_holders);
}

fn check_holders(delivery: Delivery) {
    for (rows, sits) in holders() {
        let begun = Instant::now();
        let what = format!("{rows:?}, the first {}, {delivery:?}", if sits { "sits" } else { "goes" });
        let verdict = Punctual { rows, sits, mutant: None }.check(delivery);
        assert_eq!(verdict.wrong, None, "{what}");
        println!("{what}: {} states, {:.1?}", verdict.states, begun.elapsed());
    }
}

/// A reader gives up and then requests all locks.
#[test]
fn given_up_read_before_all_locks_holds_properties() {
    let (reads, tries) = after_given_up_read();
    check_deadlines::<16>("and all locks", &ALL, &[vec![reads.clone(), exclusive(0)]]);
    check_deadlines::<16>("and all locks", &[Immediate, Watched], &[vec![reads, all(), exclusive(0)]]);
    check_deadlines::<16>("then attempts", &ALL, &[vec![tries.clone(), exclusive(0)]]);
    check_deadlines::<16>("then attempts", &[Immediate, Watched], &[vec![tries, shared(0), exclusive(0)]]);
}

#[test]
#[ignore = "long: `tests/full` runs it"]
fn given_up_read_beside_two_ranks_holds_properties() {
    let (reads, tries) = after_given_up_read();
    check_deadlines::<16>("and all locks", &[Deferred, Torn], &[vec![reads, all(), exclusive(0)]]);
    check_deadlines::<16>("then attempts", &[Deferred, Torn], &[vec![tries, shared(0), exclusive(0)]]);
}

/// A request that is given up, before all locks and before attempts.
fn after_given_up_read() -> (Vec<Call>, Vec<Call>) {
    let given_up = until(Shared)[..2].to_vec();
    let tries = [attempt(Shared), attempt(Exclusive), exclusive(0)].concat();
    ([given_up.clone(), all()].concat(), [given_up, tries].concat())
}

/// A chain of waiting readers longer than one word names.
#[test]
#[ignore = "long: `tests/full` runs it"]
fn four_waiting_readers_are_granted_by_links() {
    let rows = vec![exclusive(0), shared(0), shared(0), shared(0), shared(0)];
    check_all::<16>("5 ranks, a writer and four readers", Immediate, [rows.clone()].into_iter());
    check_all::<16>("5 ranks, a writer and four readers", Torn, [rows].into_iter());
}

/// The requests of `AcquireAll` are in flight at once, and may arrive in any order.
#[test]
fn acquire_all_in_any_order_holds_properties() {
    for delivery in ALL {
        let others = [exclusive(0), exclusive(1), shared(1), [exclusive(1), exclusive(0)].concat(), all()];
        check_all::<16>("2 ranks, one takes all locks", delivery, others.into_iter().map(|row| vec![row, all()]));
        let three = [vec![exclusive(0), exclusive(1), all()], vec![exclusive(0), shared(0), all()]];
        check_all::<16>("3 ranks, one takes all locks", delivery, three.into_iter());
    }
}

#[test]
#[ignore = "long: `tests/full` runs it"]
fn acquire_all_beside_ordered_locks_never_deadlocks() {
    // Two calls for all locks and two writers could deadlock if the former did not release the higher locks.
    let in_order = vec![Call::Acquire(0, Exclusive), Call::Acquire(1, Exclusive), Call::Release(0), Call::Release(1)];
    for delivery in ALL {
        let two = [vec![all(), in_order.clone()]];
        check_all::<16>("one takes all locks, one two in order", delivery, two.into_iter());
    }
    let three = vec![all(), all(), in_order];
    check_all::<16>("two take all locks, one two in order", Immediate, [three.clone()].into_iter());
    check_few::<16>("two take all locks, one two in order", Torn, &three);
    let four = [all(), all(), exclusive(0), exclusive(1)];
    for delivery in [Immediate, Torn] {
        check_few::<16>("two take all locks, two one each", delivery, &four);
    }
}

/// Counts of three bits wrap and are renormalised.
#[test]
fn narrow_counts_wrap_and_are_renormalised() {
    let reads = |n: usize| shared(0).repeat(n);
    let rows = [
        vec![reads(9), reads(9)],
        vec![reads(4), [reads(4), exclusive(0)].concat()],
        vec![[exclusive(0), reads(2)].concat(), [reads(4), exclusive(0)].concat()],
        vec![reads(3), reads(2), exclusive(0)],
    ];
    for delivery in [Immediate, Torn] {
        check_all::<3>("counts of 3 bits", delivery, rows.clone().into_iter());
    }
    check_all::<3>("counts of 3 bits", Immediate, three_readers());
}

#[test]
#[ignore = "long: `tests/full` runs it"]
fn narrow_counts_wrap_with_torn_atomics() {
    check_all::<3>("counts of 3 bits", Torn, three_readers());
}

/// Three ranks that read three times each, so that counts of three bits wrap.
fn three_readers() -> impl Iterator<Item = Vec<Vec<Call>>> {
    [vec![shared(0).repeat(3); 3]].into_iter()
}

/// The failure of a mutant on the first of these mixes that reveals it, preferably by its effect on calls.
fn caught<const C: u32>(mutant: Mutant, delivery: Delivery, mixes: &[Vec<Vec<Call>>]) -> Option<String> {
    [false, true].into_iter().find_map(|end| {
        mixes.iter().find_map(|rows| {
            let program = MutantMix::<C> { mutant: Some(mutant), end, ..MutantMix::new(rows.clone()) };
            let sim = Sim::new(rows.len(), LockLayout::words(rows.len()), program).with_delivery(delivery);
            check(sim).wrong.map(|failure| failure.what)
        })
    })
}

#[test]
fn every_mutant_is_caught() {
    let mut passed = Vec::new();
    let mut report = |mutant: Mutant, how: Option<String>| match how {
        Some(how) => println!("{:<20} {how}", format!("{mutant:?}")),
        None => passed.push(mutant),
    };
    let small: Vec<_> = mixes(2, 1).chain(mixes(2, 2)).chain(mixes(3, 1)).chain(mixes(3, 2)).collect();
    for mutant in mutants::WITH_THREE_RANKS {
        report(mutant, caught::<16>(mutant, Immediate, &small));
    }
    for mutant in mutants::OF_WATCHING {
        report(mutant, caught::<16>(mutant, Watched, &small));
    }
    let chain = [vec![exclusive(0), shared(0), shared(0), shared(0), shared(0)]];
    report(Mutant::Untold(Field::Link), caught::<16>(Mutant::Untold(Field::Link), Immediate, &chain));
    let long = [vec![shared(0).repeat(9), [shared(0).repeat(9), exclusive(0)].concat()]];
    report(Mutant::NotRenormalised, caught::<3>(Mutant::NotRenormalised, Immediate, &long));
    let tries: Vec<_> = [Shared, Exclusive].map(|mode| vec![attempt(mode), exclusive(0)]).into();
    report(Mutant::CountedAsSuccess, caught::<16>(Mutant::CountedAsSuccess, Immediate, &tries));
    report(Mutant::GivenUp, caught::<16>(Mutant::GivenUp, Immediate, &[vec![attempt(Exclusive)]]));
    assert!(passed.is_empty(), "not caught: {passed:?}");
}

#[test]
fn every_mutant_of_deadlines_is_caught() {
    let rows = [shared(0), exclusive(0), until(Shared), until(Exclusive)];
    let again = [until(Shared)[..2].to_vec(), until(Shared)].concat();
    let stale = vec![shared(0).repeat(2), exclusive(0), until(Exclusive)];
    let timed = [with_deadlines(&rows, 2), vec![vec![again, exclusive(0)], stale], with_deadlines(&rows, 3)].concat();
    let mut passed = Vec::new();
    for mutant in mutants::OF_DEADLINES {
        // A missing notification lets a request wait for a holder, and has no other effect.
        let late =
            || holders().find_map(|(rows, sits)| Punctual { rows, sits, mutant: Some(mutant) }.check(Immediate).wrong);
        let late = || late().map(|failure| failure.what);
        let is_late = [Mutant::MovedUntold, Mutant::NotSettled].contains(&mutant);
        match if is_late { late() } else { caught::<16>(mutant, Immediate, &timed) } {
            Some(how) => println!("{:<20} {how}", format!("{mutant:?}")),
            None => passed.push(mutant),
        }
    }
    for mutant in mutants::OF_WATCHING_WHO_LEAVES {
        match caught::<16>(mutant, Watched, &timed) {
            Some(how) => println!("{:<20} {how}", format!("{mutant:?}")),
            None => passed.push(mutant),
        }
    }
    assert!(passed.is_empty(), "not caught: {passed:?}");
}

/// The explorer, which keeps fingerprints, visits as many states as a search that keeps whole states.
#[test]
fn exploration_visits_every_state_once() {
    for rows in mixes(2, 2).chain(mixes(3, 1)) {
        for delivery in [Immediate, Deferred, Watched, Torn] {
            let sim = Mix::<16>::new(rows.clone()).sim().with_delivery(delivery);
            let start = sim.start().unwrap();
            let (mut states, mut todo) = (HashSet::from([start.clone()]), vec![start]);
            while let Some(state) = todo.pop() {
                let next = sim.steps(&state).map(|step| sim.step(&state, step).unwrap());
                todo.extend(next.filter(|next| states.insert(next.clone())));
            }
            let search = Search { symmetry: false, ..Search::default() };
            let explored = sim.explore_with(&search, (), |(), _| Ok(())).unwrap();
            assert_eq!(explored.states, states.len(), "{rows:?}, {delivery:?}");
        }
    }
}
