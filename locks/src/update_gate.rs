//! Admission of atomic updates at one target: many single updates at a time, or one run of updates alone.
//!
//! A *single* changes its elements by one atomic per word, so singles need no exclusion among themselves. A *run* that
//! is alone at the target may change its elements by plain loads and stores. A run that finds singles admitted changes
//! its elements as singles do, word by word.
//!
//! # The word
//! ```text
//! 63..48  alone    rank+1 of the run that is alone at the target, or 0
//! 47..24  among    runs that update word by word, or wait to
//! 23..0   singles  threads that are admitted for singles, or wait to be
//! ```
//!
//! # Why a run that is alone excludes every other update
//! 1. A run becomes alone by a compare-and-swap from a word that counts only the singles of its own thread, which has
//!    none in flight while it makes a run. No other update is admitted at that moment.
//! 2. A single, or a run among singles, is counted by an addition first. It starts once `alone` is 0 after that: at
//!    once, or when it has seen `alone` become 0.
//! 3. While any other update is counted, rule 1 admits no run alone. An update started by rule 2 therefore stays
//!    admitted until it takes back its count, after its last atomic.
//!
//! # Why no wait is unbounded
//! A counted update waits for at most one run, since no further run becomes alone before it. A run tries [`ATTEMPTS`]
//! times to become alone, and is counted then. [`enter_alone`](UpdateGate::enter_alone) is for memory without singles;
//! runs there wait for each other in no particular order.

use crate::{At, Awaited, Error, Network, Rank, Wake};

/// The gate of the updates of one target: one word, initially 0.
///
/// # Examples
/// ```
/// use transom_locks::model::{sim, Sim};
/// use transom_locks::{At, Run, UpdateGate};
///
/// let net = Sim::new(2, 1, sim::once(|rank, network| {
///     let gate = UpdateGate::new(At { rank: 0, word: 0 });
///     match rank {
///         0 => {
///             gate.enter_single(network)?;
///             gate.leave_single(network)
///         }
///         _ => {
///             let run = gate.enter_run(network, false)?;
///             gate.leave_run(network, run)
///         }
///     }
/// }));
/// net.explore(1_000).unwrap();
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UpdateGate {
    at: At,
}

/// The way a run was admitted.
///
/// # Examples
/// See [`UpdateGate`].
#[must_use = "a run that is admitted must leave"]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Run {
    /// No other update is admitted.
    Alone,
    /// Singles may be admitted too: the run changes each word by an atomic.
    Among,
}

/// Attempts of a run to become alone.
const ATTEMPTS: usize = 8;

const SINGLE: u64 = 1;
const AMONG: u64 = 1 << 24;
const ALONE: u64 = 1 << 48;

/// The part of a word that counts singles.
const SINGLES: u64 = AMONG - 1;

type Result<T, N> = std::result::Result<T, Error<<N as Network>::Error>>;

impl UpdateGate {
    /// The gate whose word is at `at`.
    pub const fn new(at: At) -> Self {
        UpdateGate { at }
    }

    /// Admits the thread for singles until [`leave_single`](Self::leave_single). Costs 1 fetch-and-add, then a wait for
    /// a run that is alone, if there is one.
    ///
    /// # Errors
    /// [`Error::Network`]. The thread is not admitted. It may stay counted, so that runs update word by word from then
    /// on.
    pub fn enter_single<N: Network>(&self, network: &N) -> Result<(), N> {
        self.enter(network, SINGLE)
    }

    /// Ends the admission by [`enter_single`](Self::enter_single); the thread has no single in flight. 1 fetch-and-add.
    ///
    /// # Errors
    /// [`Error::Network`].
    pub fn leave_single<N: Network>(&self, network: &N) -> Result<(), N> {
        self.add(network, SINGLE.wrapping_neg(), Wake::Nobody).map(drop)
    }

    /// Admits a run: alone if no other thread is admitted for singles. `admitted` says that the calling thread is.
    /// Costs 1 compare-and-swap, repeated after a wait for another run, and 1 fetch-and-add if there are singles.
    ///
    /// # Errors
    /// The errors of [`enter_single`](Self::enter_single).
    pub fn enter_run<N: Network>(&self, network: &N, admitted: bool) -> Result<Run, N> {
        let mine = u64::from(admitted);
        for _ in 0..ATTEMPTS {
            let found = self.try_alone(network, mine)?;
            if found == mine {
                return Ok(Run::Alone);
            }
            let or_singles = |word| word == mine || word & SINGLES != mine;
            if or_singles(found) {
                break;
            }
            self.watch(network, found, or_singles)?;
        }
        self.enter(network, AMONG)?;
        Ok(Run::Among)
    }

    /// Admits a run alone, at a target without singles. Costs 1 compare-and-swap, repeated after a wait for another
    /// run.
    ///
    /// # Errors
    /// The errors of [`enter_single`](Self::enter_single).
    pub fn enter_alone<N: Network>(&self, network: &N) -> Result<Run, N> {
        loop {
            match self.try_alone(network, 0)? {
                0 => return Ok(Run::Alone),
                found => self.watch(network, found, |word| word == 0)?,
            };
        }
    }

    /// Ends a run. 1 fetch-and-add.
    ///
    /// # Errors
    /// [`Error::Network`].
    pub fn leave_run<N: Network>(&self, network: &N, run: Run) -> Result<(), N> {
        let counted = match run {
            Run::Alone => alone(network.rank()),
            Run::Among => AMONG,
        };
        self.add(network, counted.wrapping_neg(), Wake::Home).map(drop)
    }

    fn enter<N: Network>(&self, network: &N, counted: u64) -> Result<(), N> {
        let found = self.add(network, counted, Wake::Nobody)?;
        match found / ALONE {
            0 => Ok(()),
            _ => self.watch(network, found, |word| word < ALONE).map(drop),
        }
    }

    /// Tries to become alone; returns the word found. The attempt succeeded if that is `mine`, the singles of this
    /// thread.
    fn try_alone<N: Network>(&self, network: &N, mine: u64) -> Result<u64, N> {
        Ok(network.cas(self.at, mine, mine + alone(network.rank()), Wake::Nobody)?)
    }

    /// Waits for the run that `found` names as alone, or for the updates that it counts.
    fn watch<N: Network>(&self, network: &N, found: u64, until: impl Fn(u64) -> bool) -> Result<u64, N> {
        let awaited = match found / ALONE {
            0 => Awaited::Anyone,
            run => Awaited::Rank(run as Rank - 1),
        };
        Ok(network.watch(self.at, awaited, until)?)
    }

    fn add<N: Network>(&self, network: &N, delta: u64, wake: Wake) -> Result<u64, N> {
        Ok(network.add(self.at, delta, wake)?)
    }
}

fn alone(rank: Rank) -> u64 {
    (rank as u64 + 1) * ALONE
}
