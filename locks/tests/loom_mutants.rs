//! Mutants of the lock that loom must catch: orderings that are too weak, and omitted steps. Each runs on a few mixes
//! until one fails; the test prints the failure.

mod mutants;

use loom::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use mutants::{Mutant, Mutated};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use transom_locks::model::loom::{Orderings, Setup, Waiting};
use transom_locks::model::{Call, Mix};
use transom_locks::{LockLayout, Mode, Rank};

fn shared(target: Rank) -> Vec<Call> {
    Call::both(target, Mode::Shared).into()
}

fn exclusive(target: Rank) -> Vec<Call> {
    Call::both(target, Mode::Exclusive).into()
}

/// The mixes to try, from small to large.
fn mixes() -> Vec<Vec<Vec<Call>>> {
    vec![
        vec![exclusive(0), exclusive(0)],
        vec![shared(0), exclusive(0)],
        vec![[exclusive(0), shared(0)].concat(), exclusive(0)],
        vec![[exclusive(0), exclusive(0)].concat(), [shared(0), exclusive(0)].concat()],
        vec![shared(0), exclusive(0), exclusive(0)],
        vec![[shared(0), exclusive(0)].concat(), [exclusive(0), shared(0)].concat()],
        vec![[exclusive(0), shared(0)].concat(), [exclusive(0), exclusive(0)].concat()],
        vec![[shared(0), shared(0)].concat(), [exclusive(0), exclusive(0)].concat()],
        vec![[exclusive(0), exclusive(0)].concat(), [exclusive(0), exclusive(0)].concat()],
        vec![[shared(0), exclusive(0)].concat(), exclusive(0), exclusive(0)],
        vec![[exclusive(0), exclusive(0)].concat(), exclusive(0), exclusive(0)],
    ]
}

/// The mixes with deadlines to try, from small to large.
fn mixes_with_deadlines() -> Vec<Vec<Vec<Call>>> {
    let until = |mode| vec![Call::AcquireUntil(0, mode), Call::ReleaseHeld(0), Call::Settle(0)];
    let [reads, writes] = [Mode::Shared, Mode::Exclusive].map(until);
    // The second request takes over the place of the first if that gave up.
    let again = [&reads[..2], &reads[..]].concat();
    let larger = [vec![again, exclusive(0)], vec![[shared(0), shared(0), exclusive(0)].concat(), writes.clone()]];
    let rows = [shared(0), exclusive(0), reads, writes];
    let twos = [(1, 2), (0, 3), (1, 3), (3, 3), (2, 3)].map(|(a, b)| vec![rows[a].clone(), rows[b].clone()]);
    let threes = (0..64).map(|number| [number / 16, number / 4 % 4, number % 4]);
    let threes = threes.filter(|kinds| kinds.is_sorted() && kinds[2] >= 2);
    let threes = threes.map(|kinds| kinds.map(|kind| rows[kind].clone()).into());
    twos.into_iter().chain(larger).chain(threes).collect()
}

/// Mutants of deadlines that only the exhaustive check catches. A move or settlement that is not announced only makes a
/// request wait for a holder. Kept departures, and a STAY flag that is not forwarded, need more than 4 preemptions.
const UNSEEN: [Mutant; 4] = [Mutant::MovedUntold, Mutant::NotSettled, Mutant::DeparturesKept, Mutant::StayNotForwarded];

/// The failure of a mutant and the number of the mix that showed it; `None` if the mutant passes every mix.
fn caught(setup: Setup, mutant: Option<Mutant>, mixes: Vec<Vec<Vec<Call>>>) -> Option<(usize, String)> {
    mixes.into_iter().enumerate().find_map(|(nth, mix)| {
        let (ranks, mix) = (mix.len(), <Mix>::new(mix));
        let setup = Setup { preemptions: (ranks > 2).then_some(3), ..setup };
        let mutated = move |network| Mutated::<_, 16> { network, layout: LockLayout::new(0, ranks), mutant };
        catch_unwind(AssertUnwindSafe(|| mix.loom_with(setup, mutated))).err().map(|_| (nth, take_panic()))
    })
}

static PANIC: Mutex<String> = Mutex::new(String::new());

fn take_panic() -> String {
    let said = std::mem::take(&mut *PANIC.lock().unwrap());
    said.lines().next().unwrap_or_default().chars().take(150).collect()
}

/// The first panic names the violation; the panics that loom adds while it unwinds do not.
fn note_first_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let mut said = PANIC.lock().unwrap();
        if said.is_empty() {
            let payload = panic.payload();
            let words = payload.downcast_ref::<&str>().copied();
            let words = words.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
            *said = words.unwrap_or("a panic without words").to_string();
        }
    }));
}

#[test]
fn every_mutant_is_caught() {
    note_first_panics();
    let sound = Orderings::default();
    // Caught by their effect on calls, not by the words left at the end.
    let parks = Setup { check_end: false, ..Setup::default() };
    let spins = Setup { waiting: Waiting::Spins, ..parks };
    let weak = [
        ("notify relaxed", Orderings { notify: Relaxed, ..sound }),
        ("wait relaxed", Orderings { wait: Relaxed, ..sound }),
        ("cas relaxed", Orderings { cas: Relaxed, ..sound }),
        ("cas acquires only", Orderings { cas: Acquire, ..sound }),
        ("cas releases only", Orderings { cas: Release, ..sound }),
        ("add relaxed", Orderings { add: Relaxed, ..sound }),
        ("add acquires only", Orderings { add: Acquire, ..sound }),
        ("add releases only", Orderings { add: Release, ..sound }),
    ];
    let weak = weak.map(|(name, orderings)| (name.to_string(), Setup { orderings, ..spins }, None));
    // With watching ranks, the answer in `next` alone orders the predecessors' writes.
    let watch = ["notify relaxed", "wait relaxed"]
        .into_iter()
        .zip([Orderings { notify: Relaxed, ..sound }, Orderings { wait: Relaxed, ..sound }]);
    let watch =
        watch.map(|(name, orderings)| (format!("{name}, watching"), Setup { orderings, watches: true, ..spins }, None));
    let watching = Setup { watches: true, ..parks };
    let watched = mutants::OF_WATCHING.map(|mutant| (format!("{mutant:?}, watching"), watching, Some(mutant)));
    let altered = mutants::WITH_THREE_RANKS.map(|mutant| (format!("{mutant:?}"), parks, Some(mutant)));
    let timed = mutants::OF_DEADLINES.into_iter().filter(|mutant| !UNSEEN.contains(mutant));
    let mut passed = Vec::new();
    println!("{:<26} mix  caught by", "mutant");
    let all = weak.into_iter().chain(watch).chain(altered).chain(watched).map(|row| (row, mixes()));
    // Also caught by the words left at the end: a request that has left the queue does nothing more.
    let ends = Setup { check_end: true, ..Setup::default() };
    let timed = timed.map(|mutant| (format!("{mutant:?}"), ends, Some(mutant)));
    let watching = Setup { watches: true, ..ends };
    let left = mutants::OF_WATCHING_WHO_LEAVES.map(|mutant| (format!("{mutant:?}"), watching, Some(mutant)));
    let timed = timed.chain(left).map(|row| (row, mixes_with_deadlines()));
    for ((name, setup, mutant), mixes) in all.chain(timed) {
        match caught(setup, mutant, mixes) {
            Some((mix, how)) => println!("{name:<26} {mix:>3}  {how}"),
            None => passed.push(name),
        }
    }
    assert!(passed.is_empty(), "not caught: {passed:?}");
}
