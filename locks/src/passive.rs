//! The passive lock as a program uses it: one lock at each rank, shared or exclusive, granted in the order asked for.

use crate::lock_word::Grant;
use crate::primitive::{Condvar, Mutex, MutexGuard, ThreadId, this_thread};
use crate::target_lock::{Hold, Settled};
use crate::{Ahead, Error, LockLayout, LockWord, Network, Rank, TargetLock};
use std::ops::Range;

/// How a lock is held.
///
/// # Examples
/// ```
/// assert_ne!(transom_locks::Mode::Shared, transom_locks::Mode::Exclusive);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Together with other readers.
    Shared,
    /// Alone.
    Exclusive,
}

/// One rank's handle on the locks of all ranks: a shared/exclusive lock at each, truly passive (its home rank may sleep),
/// granted first come, first served in the order of the atomics on its word.
///
/// Threads of one rank may share a handle: for one target they queue on a mutex of the handle before they ask for the
/// lock. The `_mut` calls need `&mut` access and do without that mutex.
///
/// A handle that is dropped releases the locks that it holds.
///
/// `C` is the width of the word's reader counts; leave it alone outside checks that want them to wrap.
///
/// After Li et al., "Efficient and Truly Passive MPI-3 RMA Using InfiniBand Atomics", EuroMPI 2013; README.md beside
/// the code has the steps and the cost of each call.
///
/// # Examples
#[cfg_attr(not(feature = "loom"), doc = "```")]
#[cfg_attr(feature = "loom", doc = "```no_run")] // Loom's mutex works inside loom's models only.
/// use transom_locks::model::{sim, Sim};
/// use transom_locks::{Error, LockLayout, Mode, PassiveLock};
///
/// let net = Sim::new(3, LockLayout::words(3), sim::once(|_, network| {
///     let lock = <PassiveLock<_>>::new(network, 0)?;
///     let ahead = lock.acquire(2, Mode::Exclusive)?; // the lock of rank 2
///     assert_ne!(ahead.exclusive, Some(lock.rank()));
///     assert_eq!(lock.acquire(2, Mode::Shared), Err(Error::AlreadyLocked { target: 2 }));
///     lock.release(2)
/// }));
/// net.run_random(7).unwrap();
/// ```
pub struct PassiveLock<N: Network, const C: u32 = 16> {
    network: N,
    layout: LockLayout,
    targets: Box<[Entry<N::Pending, C>]>,
}

/// This rank's state at the lock of one target, and the threads of this rank that queue for it.
struct Entry<P, const C: u32> {
    state: Mutex<State<C>>,
    /// Told when the lock is released while threads wait for that.
    released: Condvar,
    /// An atomic of a call on all locks that is under way to this one, and for a release how it was held.
    under_way: Option<(Grant, P)>,
}

struct State<const C: u32> {
    lock: TargetLock<C>,
    /// The thread that acquired the lock, if it did so by [`PassiveLock::acquire`].
    holder: Option<ThreadId>,
    /// How many threads wait for `released`.
    waiting: usize,
}

impl<P, const C: u32> Entry<P, C> {
    fn new(lock: TargetLock<C>) -> Self {
        let state = Mutex::new(State { lock, holder: None, waiting: 0 });
        Entry { state, released: Condvar::new(), under_way: None }
    }

    #[inline(always)]
    fn lock(&mut self) -> &mut TargetLock<C> {
        &mut self.state.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner()).lock
    }

    /// The state, for this thread alone.
    fn turn(&self) -> Turn<'_, C> {
        let state = self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        Turn { state: Some(state), released: &self.released }
    }
}

/// A thread's turn at an entry. When it ends, also by a panic of the network, and the lock is not held, the next thread
/// that waits is told.
struct Turn<'e, const C: u32> {
    /// Always there between two calls.
    state: Option<MutexGuard<'e, State<C>>>,
    released: &'e Condvar,
}

impl<const C: u32> Turn<'_, C> {
    fn state(&mut self) -> &mut State<C> {
        self.state.as_mut().expect("taken only while waiting")
    }

    /// Waits until another thread releases the lock.
    fn wait(&mut self) {
        self.state().waiting += 1;
        let state = self.state.take().expect("taken only here");
        let mut state = self.released.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner());
        state.waiting -= 1;
        self.state = Some(state);
    }
}

impl<const C: u32> Drop for Turn<'_, C> {
    fn drop(&mut self) {
        let Some(state) = &mut self.state else { return };
        if !state.lock.is_held() {
            state.holder = None;
            // Telling nobody would be a system call too.
            if state.waiting > 0 {
                self.released.notify_one();
            }
        }
    }
}

impl<N: Network, const C: u32> PassiveLock<N, C> {
    /// A handle on locks whose words begin at `base` (the beginning of a cache line) in each rank's memory and are 0
    /// at the start. Every rank of `network` makes one with the same `base`; nothing is communicated.
    ///
    /// # Errors
    /// [`Error::TooManyRanks`] if the word cannot name and count them all.
    pub fn new(network: N, base: usize) -> Result<Self, Error<N::Error>> {
        let (ranks, most) = (network.ranks(), LockWord::<C>::MAX_RANKS);
        if ranks > most {
            return Err(Error::TooManyRanks { ranks, most });
        }
        Ok(Self::with_locks(network, base, (0..ranks).map(|_| TargetLock::new())))
    }

    /// For a model, which keeps the [`TargetLock`]s in its states.
    pub(crate) fn with_locks(network: N, base: usize, locks: impl Iterator<Item = TargetLock<C>>) -> Self {
        let layout = LockLayout::new(base, network.ranks());
        PassiveLock { network, layout, targets: locks.map(Entry::new).collect() }
    }

    /// This rank.
    pub fn rank(&self) -> Rank {
        self.network.rank()
    }

    /// Takes the lock of `target`. Another thread of this rank that holds it is waited for.
    ///
    /// # Errors
    /// As [`TargetLock::exclusive`], and [`Error::NoSuchRank`]; [`Error::AlreadyLocked`] also if this thread holds it.
    pub fn acquire(&self, target: Rank, mode: Mode) -> Result<Ahead, Error<N::Error>> {
        Error::check_rank(target, self.targets.len())?;
        let (mut turn, me) = (self.targets[target].turn(), this_thread());
        while turn.state().lock.is_held() {
            if turn.state().holder.is_none_or(|holder| holder == me) {
                return Err(Error::AlreadyLocked { target });
            }
            turn.wait();
        }
        // The mutex stays locked while this waits for other ranks: no other thread of this rank could have the lock sooner.
        let ahead = match mode {
            Mode::Exclusive => turn.state().lock.exclusive(&self.network, self.layout, target),
            Mode::Shared => turn.state().lock.shared(&self.network, self.layout, target),
        }?;
        turn.state().holder = Some(me);
        Ok(ahead)
    }

    /// Releases the lock of `target`, by the thread that acquired it.
    ///
    /// # Errors
    /// As [`TargetLock::release`], and [`Error::NoSuchRank`]; [`Error::NotLocked`] also if another thread holds it.
    pub fn release(&self, target: Rank) -> Result<(), Error<N::Error>> {
        Error::check_rank(target, self.targets.len())?;
        let mut turn = self.targets[target].turn();
        if turn.state().holder.is_some_and(|holder| holder != this_thread()) {
            return Err(Error::NotLocked { target });
        }
        turn.state().lock.release(&self.network, self.layout, target)
    }

    /// [`acquire`](Self::acquire) by the only thread that uses the handle, which `&mut` shows: no mutex, no more than
    /// the protocol's own atomics.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire).
    #[inline(always)]
    pub fn acquire_mut(&mut self, target: Rank, mode: Mode) -> Result<Ahead, Error<N::Error>> {
        let (network, layout, lock) = self.parts(target)?;
        match mode {
            Mode::Exclusive => lock.exclusive(network, layout, target),
            Mode::Shared => lock.shared(network, layout, target),
        }
    }

    /// [`release`](Self::release) by the only thread that uses the handle.
    ///
    /// # Errors
    /// As [`release`](Self::release).
    #[inline(always)]
    pub fn release_mut(&mut self, target: Rank) -> Result<(), Error<N::Error>> {
        let (network, layout, lock) = self.parts(target)?;
        lock.release(network, layout, target)
    }

    /// Takes the locks of all ranks, shared, all requests in flight at once: one round trip if no exclusive request
    /// is held or queued anywhere; returns whether one was.
    ///
    /// Where requests must wait, this rank never waits for a lock while it holds, or has a place at, one of a higher
    /// rank: it releases those and asks again later. So calls of this kind, and programs that take several locks in
    /// the order of their ranks, cannot come to wait for each other in a circle.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire); one that is held or broken already leaves all others untouched. A call that fails
    /// later first follows every request that it has made to its end, and releases what it holds then: its requests
    /// stay in no queue, as far as the network still carries out what that takes.
    pub fn acquire_all_mut(&mut self) -> Result<bool, Error<N::Error>> {
        for (target, entry) in self.targets.iter_mut().enumerate() {
            // Before the first request: none may be left under way.
            match entry.lock() {
                lock if lock.is_held() => return Err(Error::AlreadyLocked { target }),
                lock if lock.is_broken() => return Err(Error::Broken { target }),
                _ => {}
            }
        }
        let (mut held, mut waited) = (0, false);
        while held < self.targets.len() {
            match self.acquire_from(held) {
                Ok((end, waiting)) => (held, waited) = (end, waited | waiting),
                Err(error) => {
                    self.release_held_mut();
                    return Err(error);
                }
            }
        }
        Ok(waited)
    }

    /// Releases every lock that this rank holds; returns whether no lock is broken then. For a handle that is given up:
    /// others must not wait for a lock that nobody can release any more.
    pub fn release_held_mut(&mut self) -> bool {
        let mut whole = true;
        for target in 0..self.targets.len() {
            if self.lock(target).is_held() {
                whole &= self.release_mut(target).is_ok();
            }
            whole &= !self.lock(target).is_broken();
        }
        whole
    }

    /// Asks for all locks from `first` on; returns up to where it holds them now, at least one more, and whether it waited.
    #[inline(always)]
    fn acquire_from(&mut self, first: Rank) -> Result<(Rank, bool), Error<N::Error>> {
        let (network, layout) = (&self.network, self.layout);
        let mut outcome = Ok(());
        for (entry, target) in self.targets[first..].iter_mut().zip(first..) {
            match entry.lock().start_shared(network, layout, target) {
                Ok(pending) => entry.under_way = Some((Grant::Open, pending)),
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            }
        }
        let mut waiting = Vec::new();
        for (entry, target) in self.targets[first..].iter_mut().zip(first..) {
            let Some((_, pending)) = entry.under_way.take() else { continue };
            match entry.lock().settle_shared(network, layout, target, pending) {
                Ok(Settled::In(_)) => {}
                Ok(settled) => waiting.push((target, settled)),
                Err(error) => outcome = outcome.and(Err(error)),
            }
        }
        if waiting.is_empty() {
            return outcome.map(|()| (self.targets.len(), false));
        }
        let end = self.await_highest_first(waiting);
        outcome.and(end).map(|end| (end, true))
    }

    /// Up to where this rank holds all locks, when those of `waiting` were granted. From the highest down: what it has a
    /// place at meanwhile lies below.
    #[cold]
    fn await_highest_first(&mut self, mut waiting: Vec<(Rank, Settled)>) -> Result<Rank, Error<N::Error>> {
        let (mut end, mut outcome) = (self.targets.len(), Ok(()));
        while let Some((target, settled)) = waiting.pop() {
            let released = self.release_range(target + 1..end);
            end = target + 1;
            let (network, layout, lock) = self.parts(target)?;
            let granted = lock.await_shared(network, layout, target, settled).map(drop);
            outcome = outcome.and(released).and(granted);
        }
        outcome.map(|()| end)
    }

    /// Releases the locks of all ranks, all requests in flight at once.
    ///
    /// # Errors
    /// As [`release`](Self::release); one that is not held leaves all others untouched. Of several that fail the first;
    /// the rest is released all the same.
    pub fn release_all_mut(&mut self) -> Result<(), Error<N::Error>> {
        if let Some(target) = (0..self.targets.len()).find(|&target| !self.lock(target).is_held()) {
            return Err(Error::NotLocked { target });
        }
        self.release_range(0..self.targets.len())
    }

    /// Releases those of `targets` that are held.
    #[inline(always)]
    fn release_range(&mut self, targets: Range<Rank>) -> Result<(), Error<N::Error>> {
        let (network, layout) = (&self.network, self.layout);
        let mut outcome = Ok(());
        for (entry, target) in self.targets[targets.clone()].iter_mut().zip(targets.start..) {
            let started = match entry.lock().leave::<N::Error>(target) {
                Ok(Hold::Shared(grant)) => entry.lock().start_leaving(network, layout, target, grant).map(|pending| {
                    entry.under_way = Some((grant, pending));
                }),
                Ok(Hold::Exclusive(before)) => entry.lock().finish_exclusive(network, layout, target, before),
                // A request of a call on all locks that failed.
                Err(_) => Ok(()),
            };
            if let Err(error) = started {
                outcome = outcome.and(Err(error));
            }
        }
        for (entry, target) in self.targets[targets.clone()].iter_mut().zip(targets.start..) {
            let Some((grant, pending)) = entry.under_way.take() else { continue };
            if let Err(error) = entry.lock().finish_leaving(network, layout, target, grant, pending) {
                outcome = outcome.and(Err(error));
            }
        }
        outcome
    }

    #[inline(always)]
    fn parts(&mut self, target: Rank) -> Result<(&N, LockLayout, &mut TargetLock<C>), Error<N::Error>> {
        let ranks = self.targets.len();
        let Some(entry) = self.targets.get_mut(target) else {
            return Err(Error::NoSuchRank { rank: target, ranks });
        };
        Ok((&self.network, self.layout, entry.lock()))
    }

    fn lock(&mut self, target: Rank) -> &mut TargetLock<C> {
        self.targets[target].lock()
    }

    /// For a model: the state of each target's lock, which it keeps; the handle then releases nothing.
    pub(crate) fn take_locks(mut self) -> impl Iterator<Item = TargetLock<C>> {
        let targets = std::mem::take(&mut self.targets).into_vec().into_iter();
        targets.map(|mut entry| *entry.lock())
    }
}

impl<N: Network, const C: u32> Drop for PassiveLock<N, C> {
    fn drop(&mut self) {
        self.release_held_mut();
    }
}
