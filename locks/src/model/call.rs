//! The calls of a mix: on the locks of all ranks, their barrier and their access groups.

use crate::all_locks::AllLocks;
use crate::{At, Barrier, Error, LockLayout, Mode, Network, Pscw, Rank, TargetLock};
use std::fmt;
use std::time::Instant;

/// A call of a rank, as a [`FifoOracle`](super::FifoOracle) or a [`Mix`](super::Mix) names it. `Display` prints it as
/// traces do.
///
/// # Examples
/// ```
/// use transom_locks::{model::Call, Mode};
/// assert_eq!(Call::both(2, Mode::Shared), [Call::Acquire(2, Mode::Shared), Call::Release(2)]);
/// assert_eq!(Call::Acquire(2, Mode::Shared).to_string(), "acquire 2 shared");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    /// Takes the lock of this target.
    Acquire(Rank, Mode),
    /// Releases the lock of this target.
    Release(Rank),
    /// Takes the lock of this target if no other request is in the way.
    TryAcquire(Rank, Mode),
    /// Takes the lock of this target with a deadline that has passed: the request gives up if it must wait once it has
    /// its place. Model a later deadline by a slow rank.
    AcquireUntil(Rank, Mode),
    /// Waits until a request for the lock of this target that was given up is out of the queue.
    Settle(Rank),
    /// Releases the lock of this target if it is held.
    ReleaseHeld(Rank),
    /// Takes the locks of all targets in shared mode.
    AcquireAll,
    /// Releases the locks of all targets.
    ReleaseAll,
    /// Passes the barrier of all ranks.
    Barrier,
    /// Opens an exposure epoch to these origins.
    Post(Group),
    /// Opens an access epoch to these targets, once each of them has posted.
    Start(Group),
    /// Ends the access epoch.
    Complete,
    /// Ends the exposure epoch, once each origin has completed.
    Wait,
}

impl Call {
    /// An attempt on the lock of `target`, and its release if the attempt succeeded.
    pub const fn attempt(target: Rank, mode: Mode) -> [Call; 2] {
        [Call::TryAcquire(target, mode), Call::ReleaseHeld(target)]
    }

    /// A whole request: acquires and releases the lock of `target`.
    pub const fn both(target: Rank, mode: Mode) -> [Call; 2] {
        [Call::Acquire(target, mode), Call::Release(target)]
    }

    /// The rank whose lock the call concerns; `None` if it concerns the locks of all ranks, or no lock.
    pub const fn target(self) -> Option<Rank> {
        match self {
            Call::Acquire(target, _) | Call::TryAcquire(target, _) | Call::AcquireUntil(target, _) => Some(target),
            Call::Release(target) | Call::ReleaseHeld(target) | Call::Settle(target) => Some(target),
            Call::AcquireAll | Call::ReleaseAll => None,
            Call::Barrier | Call::Post(_) | Call::Start(_) | Call::Complete | Call::Wait => None,
        }
    }

    /// Returns whether the call concerns locks, rather than the barrier or epochs.
    pub const fn is_on_locks(self) -> bool {
        self.target().is_some() || matches!(self, Call::AcquireAll | Call::ReleaseAll)
    }

    /// An error if this call of `rank` must not wait for the word `at`: an attempt, a post or a complete.
    pub(super) fn may_wait(self, rank: Rank, at: At) -> Result<(), String> {
        let (call, rule) = match self {
            Call::TryAcquire(target, _) => (format!("an attempt at the lock of rank {target}"), "attempts never wait"),
            Call::Post(_) | Call::Complete => (self.to_string(), "post and complete never wait"),
            _ => return Ok(()),
        };
        Err(format!("rank {rank} waits on word {} of rank {} in {call}; {rule}", at.word, at.rank))
    }

    /// Makes the call on `network`.
    ///
    /// # Errors
    /// The errors of the corresponding calls of [`PassiveLock`](crate::PassiveLock), [`Barrier`] and [`Pscw`].
    ///
    /// # Examples
    /// ```
    /// use transom_locks::model::{Call, Handles, Sim, sim};
    /// use transom_locks::Mode::Exclusive;
    /// let net = Sim::new(2, Handles::<16>::words(2), sim::once(|_, network| {
    ///     let mut handles = Handles::<16>::new(2, 0);
    ///     let calls = [Call::Acquire(1, Exclusive), Call::Release(1), Call::Barrier];
    ///     calls.into_iter().try_for_each(|call| call.run(&mut handles, network))
    /// }));
    /// net.run_random(1).unwrap();
    /// ```
    pub fn run<N: Network, const C: u32>(self, handles: &mut Handles<C>, network: &N) -> Result<(), Error<N::Error>> {
        let ranks = handles.locks.len();
        let layout = LockLayout::new(handles.base, ranks);
        match self {
            Call::Acquire(target, mode) => {
                let lock = handles.lock(target)?;
                match mode {
                    Mode::Exclusive => lock.exclusive(network, layout, target)?,
                    Mode::Shared => lock.shared(network, layout, target)?,
                };
            }
            Call::TryAcquire(target, mode) => {
                let lock = handles.lock(target)?;
                match mode {
                    Mode::Exclusive => lock.try_exclusive(network, layout, target)?,
                    Mode::Shared => lock.try_shared(network, layout, target)?,
                };
            }
            Call::AcquireUntil(target, mode) => {
                let lock = handles.lock(target)?;
                // A deadline that has passed at each reading of the clock, so that a rank does the same in each run of
                // its row.
                let passed = Instant::now();
                match mode {
                    Mode::Exclusive => lock.exclusive_until(network, layout, target, passed)?,
                    Mode::Shared => lock.shared_until(network, layout, target, passed)?,
                };
            }
            Call::Settle(target) => handles.lock(target)?.settle(network, layout, target)?,
            Call::Release(target) | Call::ReleaseHeld(target) => {
                let lock = handles.lock(target)?;
                if lock.is_held() || self == Call::Release(target) {
                    lock.release(network, layout, target)?;
                }
            }
            Call::AcquireAll | Call::ReleaseAll => {
                let in_flight = &mut (0..ranks).map(|_| None).collect::<Vec<_>>();
                let mut all = AllLocks { network, layout, locks: &mut handles.locks, in_flight };
                match self {
                    Call::AcquireAll => drop(all.acquire()?),
                    _ => all.release()?,
                }
            }
            Call::Barrier => handles.sync().barrier.wait(network)?,
            Call::Post(origins) => handles.sync().groups.post(network, &Vec::from_iter(origins.ranks()))?,
            Call::Start(targets) => handles.sync().groups.start(network, &Vec::from_iter(targets.ranks()))?,
            Call::Complete => handles.sync().groups.complete(network)?,
            Call::Wait => handles.sync().groups.wait(network)?,
        }
        Ok(())
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mode = |mode: &Mode| if *mode == Mode::Exclusive { "exclusive" } else { "shared" };
        match self {
            Call::Acquire(target, how) => write!(f, "acquire {target} {}", mode(how)),
            Call::TryAcquire(target, how) => write!(f, "try {target} {}", mode(how)),
            Call::AcquireUntil(target, how) => write!(f, "until {target} {}", mode(how)),
            Call::Release(target) => write!(f, "release {target}"),
            Call::ReleaseHeld(target) => write!(f, "release {target} if held"),
            Call::Settle(target) => write!(f, "settle {target}"),
            Call::AcquireAll => f.write_str("acquire all"),
            Call::ReleaseAll => f.write_str("release all"),
            Call::Barrier => f.write_str("barrier"),
            Call::Post(origins) => write!(f, "post {origins}"),
            Call::Start(targets) => write!(f, "start {targets}"),
            Call::Complete => f.write_str("complete"),
            Call::Wait => f.write_str("wait"),
        }
    }
}

/// The ranks that an epoch names.
///
/// # Examples
/// ```
/// let group = transom_locks::model::Group::of(&[2, 1]);
/// assert_eq!((group.to_string(), group.ranks().max()), ("1,2".into(), Some(2)));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Group(u64);

impl Group {
    /// The ranks that a group can name are those below this one.
    pub const RANKS: usize = u64::BITS as usize;

    /// The group of these ranks.
    ///
    /// # Panics
    /// If a rank is not below [`RANKS`](Self::RANKS).
    pub fn of(ranks: &[Rank]) -> Self {
        Group(ranks.iter().fold(0, |group, &rank| {
            assert!(rank < Self::RANKS, "rank {rank} in a group of a mix; groups hold ranks below {}", Self::RANKS);
            group | 1 << rank
        }))
    }

    /// The ranks in ascending order.
    pub fn ranks(self) -> impl Iterator<Item = Rank> {
        (0..Self::RANKS).filter(move |rank| self.0 >> rank & 1 == 1)
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&Vec::from_iter(self.ranks().map(|rank| rank.to_string())).join(","))
    }
}

/// One rank's handles on the locks of all ranks, their barrier and their access groups. The words of the locks begin at
/// `base`; those of the barrier and of the groups follow. `C` is the width of the reader counts of the locks.
///
/// # Examples
/// ```
/// use transom_locks::{LockLayout, model::Handles};
/// assert!(Handles::<16>::words(3) > LockLayout::words(3));
/// assert!(!Handles::<16>::new(3, 0).locks()[2].is_held());
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Handles<const C: u32> {
    locks: Vec<TargetLock<C>>,
    base: usize,
    /// Made by the first call that needs it: most mixes have locks only, and states are copied for each step.
    sync: Option<Box<Sync>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Sync {
    barrier: Barrier,
    groups: Pscw,
}

impl<const C: u32> Handles<C> {
    /// Words at each rank.
    pub const fn words(ranks: usize) -> usize {
        LockLayout::words(ranks) + Barrier::words(ranks) + Pscw::words(ranks)
    }

    /// Creates the handles of a rank among `ranks`.
    pub fn new(ranks: usize, base: usize) -> Self {
        Handles { locks: vec![TargetLock::new(); ranks], base, sync: None }
    }

    /// The lock of each rank.
    pub fn locks(&self) -> &[TargetLock<C>] {
        &self.locks
    }

    fn lock<E>(&mut self, target: Rank) -> Result<&mut TargetLock<C>, Error<E>> {
        let ranks = self.locks.len();
        self.locks.get_mut(target).ok_or(Error::NoSuchRank { rank: target, ranks })
    }

    fn sync(&mut self) -> &mut Sync {
        let (ranks, base) = (self.locks.len(), self.base + LockLayout::words(self.locks.len()));
        self.sync.get_or_insert_with(|| {
            let groups = Pscw::new(ranks, base + Barrier::words(ranks));
            Box::new(Sync { barrier: Barrier::new(ranks, base), groups })
        })
    }
}
