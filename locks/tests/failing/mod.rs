//! A network on which one verb fails, or from then on every verb to the same rank.

#![allow(dead_code)] // Each test binary uses a part.

use std::sync::Mutex;
use transom_locks::{At, Awaited, Network, Rank, Wake};

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

/// The verb that fails, and the way it fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Plan {
    /// The number of the verb, from 0. An addition counts when it is started.
    pub nth: usize,
    pub how: How,
    /// True if all later verbs to the same rank are refused.
    pub for_good: bool,
}

/// A verb of [`Network`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    Cas,
    StartAdd,
    Add,
    Notify,
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

pub struct Failing<N> {
    network: N,
    plan: Plan,
    progress: Mutex<Progress>,
}

impl<N: Network> Failing<N> {
    pub fn new(network: N, plan: Plan, progress: Progress) -> Self {
        Failing { network, plan, progress: progress.into() }
    }

    pub fn progress(&self) -> Progress {
        *self.progress.lock().unwrap()
    }

    /// The way this verb fails, or `None`.
    fn fate(&self, kind: Kind, at: At) -> Option<How> {
        let mut progress = self.progress.lock().unwrap();
        progress.verbs += 1;
        match progress.failed {
            None if progress.verbs == self.plan.nth + 1 => {
                progress.failed = Some((kind, at));
                Some(self.plan.how)
            }
            Some((of, to)) if self.plan.for_good && of != Kind::Wait && kind != Kind::Wait && to.rank == at.rank => {
                Some(How::Refused)
            }
            _ => None,
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
pub enum Pending<P> {
    Heard(P),
    Unheard(P),
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
