//! A network over loom's atomics (feature `loom`). Its ranks are loom threads, so loom runs the code that ships under
//! the C11 memory model, with the memory orderings that a network guarantees.
//!
//! # Checking the lock, and code built on it
//! Such checks answer three questions: whether the lock is fair and exclusive under the requests of *your* program;
//! whether your program's actions under the lock are ordered; and whether a protocol of your own is right. The first
//! needs one call:
//! ```
//! use transom_locks::model::{Call, Mix};
//! use transom_locks::Mode::{Exclusive, Shared};
//!
//! // Two ranks write, one reads under both locks.
//! let writes = Call::both(0, Exclusive);
//! let reads = [Call::AcquireAll, Call::ReleaseAll];
//! let schedules = <Mix>::new([writes, writes, reads]).loom(Some(2));
//! assert!(schedules > 100, "{schedules}");
//! ```
//! It returns the number of schedules if in each of them
//! * every request was granted after all that came before it, in the order of their atomics on the lock word, except
//!   readers among readers: first come, first served, and no queued request is overtaken (the [`FifoOracle`] checks
//!   every grant);
//! * the new holder saw the writes of earlier holders (loom detects races on data under each lock);
//! * no call took more operations than `README.md` promises, and none retried on an unchanged word;
//! * no rank waited for ever, and at the end the lock words were idle and the nodes 0.
//!
//! Otherwise it panics with a description.
//!
//! # Where to put the check
//! The feature makes the threads of one rank queue on loom's mutex, which works inside loom models only. It must
//! therefore be off when the program is built. Give your package a feature that turns it on, and a test that requires
//! it:
//! ```toml
//! [features]
//! loom = ["transom-locks/loom", "dep:loom"]
//! [dependencies]
//! loom = { version = "0.7", optional = true }
//! [[test]]
//! name = "fairness"
//! required-features = ["loom"]
//! ```
//! and run `cargo test --release --features loom --test fairness`.
//!
//! # How far to go
//! The number of schedules grows fast. A bound on preemptions (points at which a rank stops although it could go on)
//! keeps it small, and most faults show at two or three. Loom allows five threads, so five ranks. This crate's own
//! checks (`tests/loom.rs`) take on two cores
//!
//! | ranks | requests each | preemptions | schedules of all mixes | |
//! |---|---|---|---|---|
//! | 2 | 1 | any | 177 | 20 ms |
//! | 2 | 2 | any | 244,000 | 25 s |
//! | 3 | 1 | 5 | 50,000 | 10 s |
//! | 3 | 2 | 3 | 117,000 | 19 s |
//! | 4 | 1 | 3 | 82,000 | 17 s |
//! | 5 | 1 | 2 | 15,000 | 4 s |
//!
//! For more ranks, or longer rows, use [`Mix::sim`](super::Mix::sim): its verbs are sequentially consistent, and a
//! failure comes with its steps.
//!
//! # When the check fails
//! The panic names the rank, the call and the violation, or it is loom's report of a race or a deadlock. The last verbs
//! of each rank are on stderr, in the order of the failing schedule, with the values that they found. Try the mix in
//! `sim()` first: most faults show there too, with the steps that lead to them. A race shows only in loom. To see which
//! threads were where (rank 0 is thread 0), let loom repeat the failing schedule, in a test that runs this mix alone,
//! with loom's feature `checkpoint`:
//! ```sh
//! LOOM_CHECKPOINT_FILE=schedule.json LOOM_CHECKPOINT_INTERVAL=1 cargo test --release --features loom --test fairness
//! LOOM_CHECKPOINT_FILE=schedule.json LOOM_LOCATION=1 cargo test --release --features loom --test fairness
//! ```
//!
//! # A program between the calls
//! [`explore`] runs any model. [`Net::for_locks`] is a network for it, and a loom cell is the data under the lock. Here
//! two threads of rank 0 share a handle, and rank 1 has its own:
//! ```
//! use loom::{cell::Cell, thread};
//! use std::{rc::Rc, sync::Arc};
//! use transom_locks::model::loom::{explore, Net, Orderings, Waiting};
//! use transom_locks::{Mode, PassiveLock};
//!
//! explore(Some(2), || {
//!     let net = Net::for_locks(2, &[0], Waiting::Parks, Orderings::default());
//!     let sum = Rc::new(Cell::new(0));
//!     let handles = [0, 1].map(|rank| Arc::new(<PassiveLock<_>>::new(net.rank(rank), 0).unwrap()));
//!     let add = |lock: &Arc<PassiveLock<_>>| {
//!         let (lock, sum) = (lock.clone(), sum.clone());
//!         move || {
//!             let (held, _ahead) = lock.acquire(0, Mode::Exclusive).unwrap();
//!             sum.set(sum.get() + 1);
//!             held.release().unwrap();
//!         }
//!     };
//!     let others = [thread::spawn(add(&handles[0])), thread::spawn(add(&handles[1]))];
//!     add(&handles[0])();
//!     others.into_iter().for_each(|other| other.join().unwrap());
//!     assert_eq!(sum.get(), 3);
//! });
//! ```
//! A protocol of your own, written to [`Network`], runs on [`Net::new`] in the same way. The oracle knows only the
//! words of the lock, so your model asserts its own fairness.
//!
//! # Checking the check
//! A check that cannot fail proves nothing. [`Mix::loom_with`](super::Mix::loom_with) runs a mix with weaker
//! [`Orderings`], or on a network that omits a step. This crate's `tests/loom_mutants.rs` does both, and each run must
//! fail.

use super::call::Call;
use super::event::Action;
use super::fifo_oracle::{FifoOracle, Verb};
use super::names;
use crate::{At, Awaited, FoundWord, LockLayout, Network, Rank, Wake};
use ::loom::sync::atomic::{AtomicU64, Ordering};
use ::loom::thread;
use std::cell::RefCell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};

/// The memory orderings of the verbs. The [`Default`] is the contract of [`Network`]; anything weaker is a mutant that
/// a check should catch.
///
/// # Examples
/// ```
/// use transom_locks::model::loom::Orderings;
/// use std::sync::atomic::Ordering::{AcqRel, Relaxed};
/// let mutant = Orderings { notify: Relaxed, ..Orderings::default() };
/// assert_eq!(mutant.cas, AcqRel);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Orderings {
    /// Ordering of a compare-and-swap. One that fails stores nothing, so it has only the acquire half of this.
    pub cas: Ordering,
    /// Ordering of an addition.
    pub add: Ordering,
    /// Ordering of a notify.
    pub notify: Ordering,
    /// Ordering of the load of a word that a rank waits on.
    pub wait: Ordering,
}

impl Default for Orderings {
    fn default() -> Self {
        use Ordering::{AcqRel, Acquire, Release};
        Orderings { cas: AcqRel, add: AcqRel, notify: Release, wait: Acquire }
    }
}

/// The way a rank waits.
///
/// # Examples
/// ```
/// assert_ne!(transom_locks::model::loom::Waiting::Parks, transom_locks::model::loom::Waiting::Spins);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// The rank sleeps until a verb changes its memory: few schedules, and loom finds deadlocks. The wake-up itself
    /// makes earlier writes visible, so only waits that end without a sleep reveal an ordering that is too weak.
    Parks,
    /// The rank polls, and may see old values. Only feasible for two ranks.
    Spins,
}

/// The setup of a mix in loom ([`Mix::loom_with`](super::Mix::loom_with)). The [`Default`] runs every schedule of ranks
/// that park, with the orderings that a network guarantees.
///
/// # Examples
/// ```
/// use transom_locks::model::loom::Setup;
/// let setup = Setup { preemptions: Some(3), ..Setup::default() };
/// assert!(setup.check_end);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// The most preemptions in a schedule; `None` for all schedules.
    pub preemptions: Option<usize>,
    /// The way ranks wait.
    pub waiting: Waiting,
    /// The memory orderings of the verbs.
    pub orderings: Orderings,
    /// True if ranks share memory: they watch each other's words, and [find](Network::find) words.
    pub watches: bool,
    /// True if the words are checked at the end. Without it, only a fault's effect on a call reveals it.
    pub check_end: bool,
}

impl Default for Setup {
    fn default() -> Self {
        let (waiting, orderings) = (Waiting::Parks, Orderings::default());
        Setup { preemptions: None, waiting, orderings, watches: false, check_end: true }
    }
}

/// Runs `model` in loom, under every schedule or those with at most `preemptions` preemptions; returns the number of
/// schedules.
///
/// # Panics
/// In the first schedule in which the model or loom finds a violation.
///
/// # Examples
/// ```
/// use loom::sync::atomic::{AtomicU64, Ordering::Relaxed};
/// let schedules = transom_locks::model::loom::explore(None, || {
///     let word = std::sync::Arc::new(AtomicU64::new(0));
///     let other = loom::thread::spawn({ let word = word.clone(); move || word.fetch_add(1, Relaxed) });
///     word.fetch_add(1, Relaxed);
///     other.join().unwrap();
///     assert_eq!(word.load(Relaxed), 2);
/// });
/// assert!(schedules > 1);
/// ```
pub fn explore(preemptions: Option<usize>, model: impl Fn() + Send + Sync + 'static) -> usize {
    let schedules = Arc::new(AtomicUsize::new(0));
    let mut builder = ::loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.max_branches = 20_000;
    let counter = Arc::clone(&schedules);
    let checked = catch_unwind(AssertUnwindSafe(|| {
        builder.check(move || {
            counter.fetch_add(1, Relaxed);
            model();
        });
    }));
    if let Err(panic) = checked {
        // Loom runs all threads of a model on this one, so the log is the failing schedule's.
        let log = LOG.with_borrow_mut(std::mem::take);
        eprintln!("the last verbs of schedule {}:\n{log}", schedules.load(Relaxed));
        resume_unwind(panic);
    }
    schedules.load(Relaxed)
}

thread_local! {
    /// The verbs of the current schedule, for a report.
    static LOG: RefCell<Log> = RefCell::default();
}

/// The verbs that the ranks of a network have executed, in order, with the value that each found.
#[derive(Debug, Default)]
struct Log {
    /// The number of ranks of a network for locks, whose words have names.
    ranks: Option<usize>,
    verbs: Vec<(Rank, Action, u64)>,
}

/// Prints the last 10 verbs of each rank.
impl fmt::Display for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let later = |nth: usize, rank| self.verbs[nth..].iter().filter(|verb| verb.0 == rank).count();
        for (nth, &(rank, action, found)) in self.verbs.iter().enumerate() {
            if later(nth, rank) > 10 {
                continue;
            }
            let at = action.at();
            let name = self.ranks.map_or_else(|| names::name(None, at), |ranks| names::name_in_mix(ranks, at));
            let layout = self.ranks.map(|ranks| LockLayout::new(0, ranks));
            let show = |value| names::value::<16>(layout, at, value);
            write!(f, "{:>5}  rank {rank}  ", nth + 1)?;
            match action {
                Action::Wait(_) => writeln!(f, "reads {name}: {}", show(found))?,
                Action::Verb(Verb::Cas { expected, .. }) if expected != found => {
                    writeln!(f, "cas FAILS {name}: {}; expected {}", show(found), show(expected))?;
                }
                Action::Verb(Verb::Cas { new, .. }) => writeln!(f, "cas {name}: {} -> {}", show(found), show(new))?,
                Action::Verb(Verb::Add { delta, .. }) => {
                    writeln!(f, "add {name}: {} -> {}", show(found), show(found.wrapping_add(delta)))?;
                }
                Action::Verb(Verb::Notify { value, .. }) => writeln!(f, "put {name}: {}", show(value))?,
            }
        }
        Ok(())
    }
}

/// A network of loom threads. Create it inside `loom::model`.
///
/// # Examples
/// ```
/// use transom_locks::model::loom::{Net, Orderings, Waiting};
/// use transom_locks::{At, Awaited, Network, Wake};
///
/// loom::model(|| {
///     let net = Net::new(2, &[0], Waiting::Parks, Orderings::default());
///     let zero = net.rank(0);
///     let other = loom::thread::spawn(move || zero.wait(0, Awaited::Rank(1), |word| word == 7).unwrap());
///     net.rank(1).notify(At { rank: 0, word: 0 }, 7, Wake::Home).unwrap();
///     other.join().unwrap();
/// });
/// ```
#[derive(Debug)]
pub struct Net {
    /// Sorted indices of the words in use, the same at each rank.
    used: Vec<usize>,
    /// Per rank: those words.
    words: Vec<Vec<AtomicU64>>,
    waiting: Waiting,
    orderings: Orderings,
    // Loom switches threads only at its own operations, so a write just after one is atomic with it.
    oracle: Mutex<Option<FifoOracle>>,
    asleep: Mutex<Vec<(At, thread::Thread)>>,
}

/// The network as one rank sees it. The rank's threads may share it by reference.
///
/// # Examples
/// ```
/// # use transom_locks::model::loom::{Net, Orderings, Waiting};
/// use transom_locks::Network;
/// loom::model(|| {
///     let net = Net::new(2, &[0], Waiting::Parks, Orderings::default());
///     assert_eq!(net.rank(1).rank(), 1);
/// });
/// ```
#[derive(Clone, Debug)]
pub struct RankNetwork {
    net: Arc<Net>,
    rank: Rank,
    watches: bool,
}

/// A verb that cannot be executed, or a violation that the oracle reports.
///
/// # Examples
/// ```
/// # use transom_locks::model::loom::{Net, Orderings, Waiting};
/// use transom_locks::{At, Network, Wake};
/// loom::model(|| {
///     let net = Net::new(1, &[0], Waiting::Parks, Orderings::default());
///     let error = net.rank(0).notify(At { rank: 3, word: 0 }, 1, Wake::Home).unwrap_err();
///     assert_eq!(error.to_string(), "rank 3 has no word 0");
/// });
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong(pub String);

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Wrong {}

impl Net {
    /// Creates a network of `ranks` ranks that use only the words `used`, all 0.
    pub fn new(ranks: usize, used: &[usize], waiting: Waiting, orderings: Orderings) -> Arc<Net> {
        LOG.set(Log::default());
        let row = |_| used.iter().map(|_| AtomicU64::new(0)).collect();
        Arc::new(Net {
            used: used.to_vec(),
            words: (0..ranks).map(row).collect(),
            waiting,
            orderings,
            oracle: Mutex::new(None),
            asleep: Mutex::new(Vec::new()),
        })
    }

    /// Creates a network, with a [`FifoOracle`], for the locks of `targets` among `ranks` ranks. Lock memory begins at
    /// word 0.
    pub fn for_locks(ranks: usize, targets: &[Rank], waiting: Waiting, orderings: Orderings) -> Arc<Net> {
        Net::for_calls(ranks, targets, &[], waiting, orderings)
    }

    /// [`for_locks`](Self::for_locks) with further words, which lie after lock memory.
    pub(super) fn for_calls(
        ranks: usize,
        targets: &[Rank],
        words: &[usize],
        waiting: Waiting,
        orderings: Orderings,
    ) -> Arc<Net> {
        let layout = LockLayout::new(0, ranks);
        let mut used: Vec<usize> = (0..LockLayout::words(ranks))
            .filter(|&word| {
                // Home words (lock word, tickets, slots) belong to the lock of the rank where they lie, so every rank
                // keeps them.
                let of = layout.field(At { rank: 0, word });
                of.is_some_and(|(target, field)| field.is_at_home() || targets.contains(&target))
            })
            .collect();
        used.extend(words);
        let net = Net::new(ranks, &used, waiting, orderings);
        *lock(&net.oracle) = Some(FifoOracle::new(layout, ranks));
        LOG.with_borrow_mut(|log| log.ranks = Some(ranks));
        net
    }

    /// The network as `rank` sees it.
    pub fn rank(self: &Arc<Self>, rank: Rank) -> RankNetwork {
        RankNetwork { net: Arc::clone(self), rank, watches: false }
    }

    /// The value of a word after all threads have been joined; 0 if the word is not in use.
    pub fn word(&self, at: At) -> u64 {
        self.at(at).map_or(0, |word| word.load(Ordering::Relaxed))
    }

    /// The nonzero words in use, after all threads have been joined.
    pub fn nonzero(&self) -> Vec<(At, u64)> {
        let all = (0..self.words.len()).flat_map(|rank| self.used.iter().map(move |&word| At { rank, word }));
        all.map(|at| (at, self.word(at))).filter(|&(_, value)| value != 0).collect()
    }

    fn at(&self, at: At) -> Result<&AtomicU64, Wrong> {
        let found = self.used.binary_search(&at.word).ok().and_then(|place| self.words.get(at.rank)?.get(place));
        found.ok_or_else(|| Wrong(format!("rank {} has no word {}", at.rank, at.word)))
    }
}

impl RankNetwork {
    /// The same network in memory that all ranks share: they watch each other's words, and find words.
    pub fn watching(self) -> Self {
        RankNetwork { watches: true, ..self }
    }

    /// Reports to the oracle that this rank begins a call. The call and [`returned`](Self::returned) must follow.
    ///
    /// # Errors
    /// The errors of [`FifoOracle::begins`].
    pub fn begins(&self, call: Call) -> Result<(), Wrong> {
        self.with_oracle(|oracle| oracle.begins(self.rank, call))
    }

    /// Reports to the oracle that the call has returned.
    ///
    /// # Errors
    /// The errors of [`FifoOracle::returned`].
    pub fn returned(&self) -> Result<(), Wrong> {
        self.with_oracle(|oracle| oracle.returned(self.rank))
    }

    fn with_oracle(&self, tell: impl FnOnce(&mut FifoOracle) -> Result<(), String>) -> Result<(), Wrong> {
        lock(&self.net.oracle).as_mut().map_or(Ok(()), tell).map_err(Wrong)
    }

    /// Completes a verb: reports it to the oracle, and wakes ranks that sleep on the word if the verb wakes.
    fn done(&self, verb: Verb, found: u64, wake: Wake) -> Result<u64, Wrong> {
        let at = verb.at();
        LOG.with_borrow_mut(|log| log.verbs.push((self.rank, Action::Verb(verb), found)));
        self.with_oracle(|oracle| oracle.saw(self.rank, verb, found))?;
        lock(&self.net.asleep).retain(|(word, thread)| {
            let wakes = *word == at && wake == Wake::Home;
            if wakes {
                thread.unpark();
            }
            !wakes
        });
        Ok(found)
    }
}

impl Network for RankNetwork {
    type Error = Wrong;
    type Pending = u64;
    type Found = FoundAt;

    fn rank(&self) -> Rank {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.net.words.len()
    }

    fn cas(&self, at: At, expected: u64, new: u64, wake: Wake) -> Result<u64, Wrong> {
        let order = self.net.orderings.cas;
        let acquires = !matches!(order, Ordering::Relaxed | Ordering::Release);
        let failed = if acquires { Ordering::Acquire } else { Ordering::Relaxed };
        let outcome = self.net.at(at)?.compare_exchange(expected, new, order, failed);
        self.done(Verb::Cas { at, expected, new }, outcome.unwrap_or_else(|found| found), wake)
    }

    fn start_add(&self, at: At, delta: u64, wake: Wake) -> Result<u64, Wrong> {
        let found = self.net.at(at)?.fetch_add(delta, self.net.orderings.add);
        self.done(Verb::Add { at, delta }, found, wake)
    }

    fn finish(&self, found: u64) -> Result<u64, Wrong> {
        Ok(found)
    }

    fn try_finish(&self, found: u64) -> Result<u64, u64> {
        Ok(found)
    }

    fn find(&self, at: At) -> Option<FoundAt> {
        self.watches.then(|| FoundAt { network: self.clone(), at })
    }

    fn notify(&self, at: At, value: u64, wake: Wake) -> Result<(), Wrong> {
        let (word, order) = (self.net.at(at)?, self.net.orderings.notify);
        match self.net.waiting {
            // Loom does not order a plain store of one thread and a read-modify-write of another; a rank that parks
            // needs that order.
            Waiting::Parks => drop(word.swap(value, order)),
            Waiting::Spins => word.store(value, order),
        }
        self.done(Verb::Notify { at, value }, 0, wake).map(drop)
    }

    fn wait(&self, word: usize, on: Awaited, until: impl Fn(u64) -> bool) -> Result<u64, Wrong> {
        self.watch(At { rank: self.rank, word }, on, until)
    }

    fn watches(&self, _: Rank) -> bool {
        self.watches
    }

    fn watch(&self, at: At, _: Awaited, until: impl Fn(u64) -> bool) -> Result<u64, Wrong> {
        let (word, order) = (self.net.at(at)?, self.net.orderings.wait);
        loop {
            let value = match self.net.waiting {
                // Reads the latest value, so that a verb after this read finds the rank asleep.
                Waiting::Parks => word.fetch_add(0, order),
                Waiting::Spins => word.load(order),
            };
            if until(value) {
                LOG.with_borrow_mut(|log| log.verbs.push((self.rank, Action::Wait(at), value)));
                return Ok(value);
            }
            self.with_oracle(|oracle| oracle.waits(self.rank, at))?;
            match self.net.waiting {
                Waiting::Parks => {
                    lock(&self.net.asleep).push((at, thread::current()));
                    thread::park();
                }
                Waiting::Spins => thread::yield_now(),
            }
        }
    }
}

/// A word that a network [found](Network::find). A verb that the network or the oracle refuses panics.
#[derive(Clone, Debug)]
pub struct FoundAt {
    network: RankNetwork,
    at: At,
}

impl FoundWord for FoundAt {
    fn cas(&self, expected: u64, new: u64) -> u64 {
        self.network.cas(self.at, expected, new, Wake::Nobody).unwrap_or_else(|wrong| panic!("{wrong}"))
    }

    fn add(&self, delta: u64) -> u64 {
        self.network.add(self.at, delta, Wake::Nobody).unwrap_or_else(|wrong| panic!("{wrong}"))
    }

    fn read(&self) -> u64 {
        self.network.read_own(self.at.word).unwrap_or_else(|wrong| panic!("{wrong}"))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
