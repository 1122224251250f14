//! Mutants of the lock that loom must catch: orderings too weak, steps left out. A check that these pass checks too
//! little. Each is run on a few mixes until one fails, and how it fails is printed.

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

/// The mixes that are tried, from small to large.
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

/// How a mutant fails, and on which mix; nothing if it passes all.
fn caught(setup: Setup, mutant: Option<Mutant>) -> Option<(usize, String)> {
    mixes().into_iter().enumerate().find_map(|(nth, mix)| {
        let (ranks, mix) = (mix.len(), <Mix>::new(mix));
        // By what it does, not by what it leaves behind.
        let setup = Setup { preemptions: (ranks > 2).then_some(3), check_end: false, ..setup };
        let mutated = move |network| Mutated::<_, 16> { network, layout: LockLayout::new(0, ranks), mutant };
        catch_unwind(AssertUnwindSafe(|| mix.loom_with(setup, mutated))).err().map(|_| (nth, take_panic()))
    })
}

static PANIC: Mutex<String> = Mutex::new(String::new());

fn take_panic() -> String {
    let said = std::mem::take(&mut *PANIC.lock().unwrap());
    said.lines().next().unwrap_or_default().chars().take(150).collect()
}

#[test]
fn every_mutant_is_caught() {
    // The first panic says what is wrong; those that loom adds while it unwinds do not.
    std::panic::set_hook(Box::new(|panic| {
        let mut said = PANIC.lock().unwrap();
        if said.is_empty() {
            *said = panic.payload_as_str().unwrap_or("a panic without words").to_string();
        }
    }));
    let sound = Orderings::default();
    let spins = Setup { waiting: Waiting::Spins, ..Setup::default() };
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
    let altered = mutants::WITH_THREE_RANKS.map(|mutant| (format!("{mutant:?}"), Setup::default(), Some(mutant)));
    let mut passed = Vec::new();
    println!("{:<26} mix  caught by", "mutant");
    for (name, setup, mutant) in weak.into_iter().chain(altered) {
        match caught(setup, mutant) {
            Some((mix, how)) => println!("{name:<26} {mix:>3}  {how}"),
            None => passed.push(name),
        }
    }
    assert!(passed.is_empty(), "not caught: {passed:?}");
}
