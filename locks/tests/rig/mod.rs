//! What the loom checks share: ranks as loom threads that make calls, with data under each lock.

#![allow(dead_code)] // Each test binary uses some.

use crate::mutants::{Mutant, Mutated};
use loom::cell::UnsafeCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use transom_locks::Mode::{Exclusive, Shared};
use transom_locks::model::Call;
use transom_locks::model::loom::{Net, Orderings, RankNetwork, Waiting, Wrong};
use transom_locks::{Error, Field, LockLayout, LockWord, PassiveLock, Rank};

/// How a mix of calls is run.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// The most preemptions in a schedule; all schedules if none.
    pub preemptions: Option<usize>,
    pub waiting: Waiting,
    pub orderings: Orderings,
    pub mutant: Option<Mutant>,
}

/// Every schedule, ranks that sleep when they wait, nothing wrong.
pub fn plain() -> Setup {
    Setup { preemptions: None, waiting: Waiting::Parks, orderings: Orderings::default(), mutant: None }
}

/// A request, taken and let go.
pub fn shared(target: Rank) -> Vec<Call> {
    Call::both(target, Shared).into()
}

/// A request, taken and let go.
pub fn exclusive(target: Rank) -> Vec<Call> {
    Call::both(target, Exclusive).into()
}

/// All locks, taken and let go.
pub fn all() -> Vec<Call> {
    vec![Call::AcquireAll, Call::ReleaseAll]
}

/// Runs `model` in loom; returns how many schedules there were.
pub fn explore(preemptions: Option<usize>, model: impl Fn() + Send + Sync + 'static) -> usize {
    let runs = Arc::new(AtomicUsize::new(0));
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.max_branches = 20_000;
    let counter = Arc::clone(&runs);
    builder.check(move || {
        counter.fetch_add(1, Relaxed);
        model();
    });
    runs.load(Relaxed)
}

/// Runs one row of calls for each rank in loom, with an order book and with data under each lock that loom sees
/// races on; returns how many schedules there were.
pub fn check(setup: Setup, rows: &[Vec<Call>]) -> usize {
    let rows = rows.to_vec();
    let targets: Vec<Rank> =
        (0..rows.len()).filter(|target| rows.iter().flatten().any(|call| concerns(*call, *target))).collect();
    explore(setup.preemptions, move || {
        let net = Net::for_locks(rows.len(), &targets, setup.waiting, setup.orderings);
        let data: Rc<Vec<UnsafeCell<()>>> = Rc::new(rows.iter().map(|_| UnsafeCell::new(())).collect());
        let rank = |rank: Rank| {
            let (network, data, calls) = (net.rank(rank), Rc::clone(&data), rows[rank].clone());
            move || run(setup.mutant, &network, &data, &calls).unwrap()
        };
        let others: Vec<_> = (1..rows.len()).map(|other| loom::thread::spawn(rank(other))).collect();
        rank(0)();
        for other in others {
            other.join().unwrap();
        }
        // A mutant is to be caught by what it does.
        if setup.mutant.is_none() {
            check_end(&net, rows.len());
        }
    })
}

fn concerns(call: Call, target: Rank) -> bool {
    match call {
        Call::Acquire(other, _) | Call::Release(other) => other == target,
        Call::AcquireAll | Call::ReleaseAll => true,
    }
}

fn run(
    mutant: Option<Mutant>,
    rank: &RankNetwork,
    data: &[UnsafeCell<()>],
    calls: &[Call],
) -> Result<(), Error<Wrong>> {
    let network = Mutated::<_, 16> { network: rank, places: LockLayout::new(0, data.len()), mutant };
    let mut lock = <PassiveLock<_>>::new(network, 0)?;
    for &call in calls {
        rank.begins(call)?;
        match call {
            Call::Acquire(target, mode) => drop(lock.acquire_mut(target, mode)?),
            Call::Release(target) => lock.release_mut(target)?,
            Call::AcquireAll => drop(lock.acquire_all_mut()?),
            Call::ReleaseAll => lock.release_all_mut()?,
        }
        rank.returned()?;
        match call {
            Call::Acquire(target, Exclusive) => data[target].with_mut(drop),
            Call::Acquire(target, Shared) => data[target].with(drop),
            Call::AcquireAll => data.iter().for_each(|data| data.with(drop)),
            Call::Release(_) | Call::ReleaseAll => {}
        }
    }
    Ok(())
}

/// The locks are idle and the nodes as the next request must find them.
pub fn check_end(net: &Net, ranks: usize) {
    let places = LockLayout::new(0, ranks);
    for (at, value) in net.nonzero() {
        match places.field(at) {
            Some((_, Field::Word)) => {
                assert!(LockWord::<16>(value).is_idle(), "at the end {:?}", LockWord::<16>(value))
            }
            field => assert!(matches!(field, Some((_, Field::Link))), "at the end {field:?} holds {value:#x}"),
        }
    }
}
