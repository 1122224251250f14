//! A network on which one verb fails; from then on every verb to the same rank may fail, or every verb: the rank's network
//! has died.
//!
//! # Examples
//! A lock adds 1 to its word, notes its holder, and gives the word back. Each verb of rank 0 fails in turn, and its network
//! lives on; whatever fails, the word must be 0 at the end. The lock that forgets the word is found out:
//! ```
//! use transom_locks::model::failing::{Extent, Failing, Failure, How, Plan, Progress};
//! use transom_locks::model::{Search, Sim, Stopped, sim};
//! use transom_locks::{At, Network, Wake};
//!
//! const WORD: At = At { rank: 1, word: 0 };
//! const HOLDER: At = At { rank: 1, word: 1 };
//!
//! fn take_turn<N: Network>(network: &N, gives_back: bool) -> Result<(), N::Error> {
//!     network.add(WORD, 1, Wake::Nobody)?;
//!     let noted = network.notify(HOLDER, 1 + network.rank() as u64, Wake::Nobody);
//!     if noted.is_ok() || gives_back {
//!         network.add(WORD, u64::MAX, Wake::Nobody)?;
//!     }
//!     noted
//! }
//!
//! let check = |gives_back, nth| {
//!     let plan = Plan { nth, how: How::Refused, extent: Extent::Verb };
//!     let net = Sim::new(2, 2, sim::once(move |rank, network| {
//!         if rank > 0 {
//!             return take_turn(network, gives_back);
//!         }
//!         match take_turn(&Failing::new(network, plan, Progress::default()), gives_back) {
//!             Err(Failure::Network(suspended)) => Err(suspended), // the simulator runs the phase again
//!             Ok(()) | Err(Failure::Made) => Ok(()),
//!         }
//!     }));
//!     net.explore_with(&Search::default(), (), |(), step| match step.after.word(WORD) {
//!         left if left > 0 && step.after.is_done() => Err(format!("the word holds {left} at the end")),
//!         _ => Ok(()),
//!     })
//! };
//! assert!((0..2).all(|nth| check(true, nth).is_ok()));
//! let failure = check(false, 1).unwrap_err().violation().unwrap();
//! assert_eq!(failure.what, "the word holds 1 at the end");
//! ```
//! A rank that others wait for must notify them of its failure ([`Barrier`](crate::Barrier) does), or their network must end
//! their waits.

use crate::{At, Awaited, Network, Rank, Wake};
use std::sync::{Mutex, PoisonError};

/// The way the verb fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum How {
    /// The verb is not executed and returns an error; a `start_add` does not start.
    Refused,
    /// The verb is executed, but returns an error; for an addition `finish` does.
    Unheard,
    /// The verb is not executed; an addition starts, and its `finish` returns an error.
    Lost,
}

/// The verbs that fail after the planned one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Extent {
    /// Nothing: the planned verb fails alone.
    Verb,
    /// Every later verb to the same rank, but no wait, is refused: that rank can no longer be reached.
    Rank,
    /// Every later verb and wait is refused: the network of the rank itself has died.
    Network,
}

/// The verb that fails, the way it fails, and what fails after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Plan {
    /// The number of the verb, from 0. An addition counts when it is started.
    pub nth: usize,
    /// The way it fails.
    pub how: How,
    /// The verbs that fail after it.
    pub extent: Extent,
}

/// A verb of [`Network`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A compare-and-swap.
    Cas,
    /// An addition that is started, with its `finish`.
    StartAdd,
    /// An addition.
    Add,
    /// An 8-byte put.
    Notify,
    /// A wait for a word of its own memory, or of a rank that it watches.
    Wait,
}

/// The error of the failing network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure<E> {
    /// An error of the underlying network.
    Network(E),
    /// The planned failure.
    Made,
}

/// The progress of a plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Progress {
    /// The number of verbs so far.
    pub verbs: usize,
    /// The verb that failed.
    pub failed: Option<(Kind, At)>,
}

/// A network that executes verbs on another, and lets one fail as planned.
#[derive(Debug)]
pub struct Failing<N> {
    network: N,
    plan: Plan,
    progress: Mutex<Progress>,
}

impl<N: Network> Failing<N> {
    /// Creates a network that fails as planned. A phase of a simulated rank keeps `progress` from the phase before; it is
    /// the default at first.
    pub fn new(network: N, plan: Plan, progress: Progress) -> Self {
        Failing { network, plan, progress: progress.into() }
    }

    /// The progress of the plan so far.
    pub fn progress(&self) -> Progress {
        *self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The way this verb fails, or `None`.
    fn fate(&self, kind: Kind, at: At) -> Option<How> {
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        progress.verbs += 1;
        match progress.failed {
            None if progress.verbs == self.plan.nth + 1 => {
                progress.failed = Some((kind, at));
                Some(self.plan.how)
            }
            Some((of, to)) => {
                let is_refused = match self.plan.extent {
                    Extent::Verb => false,
                    Extent::Rank => of != Kind::Wait && kind != Kind::Wait && to.rank == at.rank,
                    Extent::Network => true,
                };
                is_refused.then_some(How::Refused)
            }
            None => None,
        }
    }

    fn verb<R>(
        &self,
        kind: Kind,
        at: At,
        execute: impl FnOnce() -> Result<R, N::Error>,
    ) -> Result<R, Failure<N::Error>> {
        match self.fate(kind, at) {
            None => execute().map_err(Failure::Network),
            Some(How::Unheard) => Err(execute().map_or_else(Failure::Network, |_| Failure::Made)),
            Some(How::Refused | How::Lost) => Err(Failure::Made),
        }
    }
}

/// An addition in flight, and whether its result is lost.
#[derive(Debug)]
pub enum Pending<P> {
    /// Its result is returned.
    Heard(P),
    /// The addition is executed, and its result is lost.
    Unheard(P),
    /// The addition is not executed.
    Lost,
}

impl<N: Network> Network for Failing<N> {
    type Error = Failure<N::Error>;
    type Pending = Pending<N::Pending>;
    type Found = std::convert::Infallible;

    fn rank(&self) -> Rank {
        self.network.rank()
    }

    fn ranks(&self) -> usize {
        self.network.ranks()
    }

    fn cas(&self, at: At, expected: u64, new: u64, wake: Wake) -> Result<u64, Self::Error> {
        self.verb(Kind::Cas, at, || self.network.cas(at, expected, new, wake))
    }

    fn start_add(&self, at: At, delta: u64, wake: Wake) -> Result<Self::Pending, Self::Error> {
        let start = || self.network.start_add(at, delta, wake).map_err(Failure::Network);
        match self.fate(Kind::StartAdd, at) {
            None => start().map(Pending::Heard),
            Some(How::Refused) => Err(Failure::Made),
            Some(How::Unheard) => start().map(Pending::Unheard),
            Some(How::Lost) => Ok(Pending::Lost),
        }
    }

    fn finish(&self, pending: Self::Pending) -> Result<u64, Self::Error> {
        match pending {
            Pending::Heard(pending) => self.network.finish(pending).map_err(Failure::Network),
            Pending::Unheard(pending) => {
                Err(self.network.finish(pending).map_or_else(Failure::Network, |_| Failure::Made))
            }
            Pending::Lost => Err(Failure::Made),
        }
    }

    fn try_finish(&self, pending: Self::Pending) -> Result<u64, Self::Pending> {
        match pending {
            Pending::Heard(pending) => self.network.try_finish(pending).map_err(Pending::Heard),
            pending => Err(pending),
        }
    }

    fn add(&self, at: At, delta: u64, wake: Wake) -> Result<u64, Self::Error> {
        self.verb(Kind::Add, at, || self.network.add(at, delta, wake))
    }

    fn notify(&self, at: At, value: u64, wake: Wake) -> Result<(), Self::Error> {
        self.verb(Kind::Notify, at, || self.network.notify(at, value, wake))
    }

    fn wait(&self, word: usize, on: Awaited, until: impl Fn(u64) -> bool) -> Result<u64, Self::Error> {
        let at = At { rank: self.rank(), word };
        // A wait changes nothing, and its caller need not have been able to go on.
        match self.fate(Kind::Wait, at) {
            None => self.network.wait(word, on, until).map_err(Failure::Network),
            Some(_) => Err(Failure::Made),
        }
    }

    fn watches(&self, rank: Rank) -> bool {
        self.network.watches(rank)
    }

    fn watch(&self, at: At, on: Awaited, until: impl Fn(u64) -> bool) -> Result<u64, Self::Error> {
        match self.fate(Kind::Wait, at) {
            None => self.network.watch(at, on, until).map_err(Failure::Network),
            Some(_) => Err(Failure::Made),
        }
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;
    use crate::Error;
    use crate::model::{Sim, Suspended, sim};

    /// The later verbs that fail once a verb to rank 0 has: a put to rank 1, a put to rank 0, and a wait.
    fn refused(extent: Extent, expected: [bool; 3]) {
        let net = Sim::new(
            2,
            1,
            sim::once(move |_, network| -> Result<(), Error<Suspended>> {
                let plan = Plan { nth: 0, how: How::Refused, extent };
                let failing = Failing::new(network, plan, Progress::default());
                let made = |result| match result {
                    Err(Failure::Network(suspended)) => Err(suspended),
                    other => Ok(other.is_err()),
                };
                let put = |rank| made(failing.notify(At { rank, word: 0 }, 1, Wake::Home));
                let first = put(0)?;
                let later = [put(1)?, put(0)?, made(failing.wait(0, Awaited::Anyone, |_| true).map(drop))?];
                if first && later == expected { Ok(()) } else { Err(Error::Epoch("other verbs failed than planned")) }
            }),
        );
        net.run_random(1).unwrap_or_else(|failure| panic!("{extent:?}: {failure}"));
    }

    #[test]
    fn failure_extends_to_later_verbs_as_planned() {
        refused(Extent::Verb, [false, false, false]);
        refused(Extent::Rank, [false, true, false]);
        refused(Extent::Network, [true, true, true]);
    }
}
