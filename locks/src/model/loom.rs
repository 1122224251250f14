//! A network over loom's atomics (feature `loom`): its ranks are loom threads, so that loom runs the code as it ships
//! under the C11 memory model, with orderings as weak as the network says they are.
//!
//! # To check the lock, and what is built on it
//! Three questions can be asked: whether the lock is fair and exclusive under the requests of *your* program; whether
//! what your program does between them is ordered; and whether a protocol of your own is right. The first needs one
//! call:
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
//! It returns how many schedules there were if in each of them
//! * every request was granted after all that came before it, in the order of their atomics on the lock word, but
//!   readers together: first come, first served, so nobody in the queue is overtaken (the order [`Book`] looks at every
//!   grant);
//! * who got the lock saw what its holders before did (loom sees races on data under each lock);
//! * no call took more operations than `README.md` promises, and none retried on a word that nobody had changed;
//! * nobody waited for ever, and at the end the lock words were idle and the nodes 0.
//!
//! Otherwise it panics, and says which.
//!
//! # Where to put it
//! The feature makes the threads of one rank queue on loom's mutex, which works inside loom models only. So it must not
//! be on when the program is built; give your package a feature that turns it on, and a test that requires it:
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
//! Schedules grow fast; a bound on preemptions, the times that a rank stops where it could go on, keeps them few. Most
//! faults show at two or three. Loom has five threads at most, so there are five ranks, and this crate's own checks
//! (`tests/loom.rs`) take on two cores
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
//! For more ranks, or longer rows, take [`Mix::sim`](super::Mix::sim): there verbs are sequentially consistent, and a
//! failure comes with its steps.
//!
//! # When it fails
//! The panic says what is wrong: the rank and the call, or in loom's words a race or a deadlock. Try the mix in `sim()`
//! first: most faults show there too, with the steps to them. For a race, which only loom can see, let it run the
//! schedule again and say which threads (rank 0 is thread 0) were where; in a test that has this mix alone, and with
//! loom's feature `checkpoint`:
//! ```sh
//! LOOM_CHECKPOINT_FILE=schedule.json LOOM_CHECKPOINT_INTERVAL=1 cargo test --release --features loom --test fairness
//! LOOM_CHECKPOINT_FILE=schedule.json LOOM_LOCATION=1 cargo test --release --features loom --test fairness
//! ```
//!
//! # A program between the calls
//! [`explore`] runs any model; [`Net::for_locks`] is its network, and a cell of loom's is what the lock protects. Here
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
//! A protocol of your own, written to [`Network`], runs on [`Net::new`] in the same way; the order book knows the words
//! of the lock only, so what is fair there you assert yourself.
//!
//! # Whether the check would notice
//! A check that cannot fail shows nothing. [`Mix::loom_with`](super::Mix::loom_with) runs a mix with weaker
//! [`Orderings`], or on a network that leaves a step out; `tests/loom_mutants.rs` of this crate does both, and each
//! must fail.

use super::book::{Book, Call, Verb};
use crate::{At, Awaited, LockLayout, Network, Rank, Wake};
use ::loom::sync::atomic::{AtomicU64, Ordering};
use ::loom::thread;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};

/// How the verbs order memory. A network that keeps what [`Network`] asks for has the [`Default`]; anything weaker is a
/// mutant that a check should catch.
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
    /// Of a compare-and-swap that succeeds; one that fails acquires if this does.
    pub cas: Ordering,
    /// Of an addition.
    pub add: Ordering,
    /// Of a notify.
    pub notify: Ordering,
    /// Of the look at a word that is waited on.
    pub wait: Ordering,
}

impl Default for Orderings {
    fn default() -> Self {
        use Ordering::{AcqRel, Acquire, Release};
        Orderings { cas: AcqRel, add: AcqRel, notify: Release, wait: Acquire }
    }
}

/// How a rank waits.
///
/// # Examples
/// ```
/// assert_ne!(transom_locks::model::loom::Waiting::Parks, transom_locks::model::loom::Waiting::Spins);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// Sleeps until a verb on its memory; few schedules, and loom finds deadlocks. Being woken itself lets it see all
    /// that came before, so that only waits that need no sleep show an ordering that is too weak.
    Parks,
    /// Looks again and again, and may see old values; for two ranks.
    Spins,
}

/// How a mix is run ([`Mix::loom_with`](super::Mix::loom_with)). The [`Default`] runs every schedule of ranks that
/// park, with the orderings that a network signs.
///
/// # Examples
/// ```
/// use transom_locks::model::loom::Setup;
/// let setup = Setup { preemptions: Some(3), ..Setup::default() };
/// assert!(setup.check_end);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// The most preemptions in a schedule; all schedules if none.
    pub preemptions: Option<usize>,
    /// How ranks wait.
    pub waiting: Waiting,
    /// How the verbs order memory.
    pub orderings: Orderings,
    /// Whether ranks watch each other's words.
    pub watches: bool,
    /// Whether the words are looked at when all is over. Without it, only what a fault does to a call shows it.
    pub check_end: bool,
}

impl Default for Setup {
    fn default() -> Self {
        let (waiting, orderings) = (Waiting::Parks, Orderings::default());
        Setup { preemptions: None, waiting, orderings, watches: false, check_end: true }
    }
}

/// Runs `model` in loom, under every schedule or those with at most so many preemptions; returns how many there were.
///
/// # Panics
/// As the model does, or loom, in the first schedule in which something is wrong.
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
    builder.check(move || {
        counter.fetch_add(1, Relaxed);
        model();
    });
    schedules.load(Relaxed)
}

/// A network of loom threads, to be made inside `loom::model`.
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
    /// The words in use, the same at each rank.
    used: Vec<usize>,
    /// For each rank those words.
    words: Vec<Vec<AtomicU64>>,
    waiting: Waiting,
    orderings: Orderings,
    // Loom switches threads only at its own operations, so what is written here just after one is atomic with it.
    book: Mutex<Option<Book>>,
    asleep: Mutex<Vec<(At, thread::Thread)>>,
}

/// The network as one rank sees it; its threads may share it by reference.
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

/// A verb that cannot be executed, or one that the order book objects to.
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
    /// A network of `ranks` ranks, which use only the words `used`, all 0.
    pub fn new(ranks: usize, used: &[usize], waiting: Waiting, orderings: Orderings) -> Arc<Net> {
        let row = |_| used.iter().map(|_| AtomicU64::new(0)).collect();
        Arc::new(Net {
            used: used.to_vec(),
            words: (0..ranks).map(row).collect(),
            waiting,
            orderings,
            book: Mutex::new(None),
            asleep: Mutex::new(Vec::new()),
        })
    }

    /// A network for the locks of `targets` among `ranks` ranks, whose words begin at 0, with an order [`Book`].
    pub fn for_locks(ranks: usize, targets: &[Rank], waiting: Waiting, orderings: Orderings) -> Arc<Net> {
        let layout = LockLayout::new(0, ranks);
        let used: Vec<usize> = (0..LockLayout::words(ranks))
            .filter(|&word| {
                // The target of the lock word and of its gate's words is the rank they lie at: for this one of the targets.
                let of = layout.field(At { rank: 0, word });
                of.is_some_and(|(target, field)| field.is_at_home() || targets.contains(&target))
            })
            .collect();
        let net = Net::new(ranks, &used, waiting, orderings);
        *lock(&net.book) = Some(Book::new(layout, ranks));
        net
    }

    /// The network as `rank` sees it.
    pub fn rank(self: &Arc<Self>, rank: Rank) -> RankNetwork {
        RankNetwork { net: Arc::clone(self), rank, watches: false }
    }

    /// What a word holds, once all threads have been joined; 0 if it is not in use.
    pub fn word(&self, at: At) -> u64 {
        self.at(at).map_or(0, |word| word.load(Ordering::Relaxed))
    }

    /// The words in use that are not 0, once all threads have been joined.
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
    /// The same in memory that all ranks share: they watch each other's words.
    pub fn watching(self) -> Self {
        RankNetwork { watches: true, ..self }
    }

    /// Tells the order book that this rank begins a call; to be followed by the call and [`returned`](Self::returned).
    ///
    /// # Errors
    /// As [`Book::begins`].
    pub fn begins(&self, call: Call) -> Result<(), Wrong> {
        self.in_book(|book| book.begins(self.rank, call))
    }

    /// Tells the order book that the call has returned.
    ///
    /// # Errors
    /// As [`Book::returned`].
    pub fn returned(&self) -> Result<(), Wrong> {
        self.in_book(|book| book.returned(self.rank))
    }

    fn in_book(&self, tell: impl FnOnce(&mut Book) -> Result<(), String>) -> Result<(), Wrong> {
        lock(&self.net.book).as_mut().map_or(Ok(()), tell).map_err(Wrong)
    }

    /// After a verb: the book sees it, and if it wakes, whoever sleeps on the word does.
    fn done(&self, verb: Verb, found: u64, wake: Wake) -> Result<u64, Wrong> {
        let at = verb.at();
        self.in_book(|book| book.saw(self.rank, verb, found))?;
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

    fn rank(&self) -> Rank {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.net.words.len()
    }

    fn cas(&self, at: At, expected: u64, new: u64, wake: Wake) -> Result<u64, Wrong> {
        let order = self.net.orderings.cas;
        let failed = if order == Ordering::Relaxed { Ordering::Relaxed } else { Ordering::Acquire };
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

    fn notify(&self, at: At, value: u64, wake: Wake) -> Result<(), Wrong> {
        let (word, order) = (self.net.at(at)?, self.net.orderings.notify);
        match self.net.waiting {
            // Loom gives a plain store and a read-modify-write of two threads no order; a rank that parks needs one.
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
                // The latest value: a verb that comes after this look finds the rank asleep.
                Waiting::Parks => word.fetch_add(0, order),
                Waiting::Spins => word.load(order),
            };
            if until(value) {
                return Ok(value);
            }
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
