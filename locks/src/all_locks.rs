//! The locks of all targets in one call, with the requests in flight at once.

use crate::lock_word::Grant;
use crate::target_lock::{HeldAs, Placed, Status, StatusWord};
use crate::{Error, LockLayout, Network, Rank, TargetLock};
use std::ops::Range;

/// What has the lock of one target in it, for the only thread that uses it.
pub(crate) trait LockState<const C: u32> {
    /// State of the lock at this rank.
    fn get(&self) -> TargetLock<C>;

    /// Takes the state out for a step. The lock is broken until [`put`](Self::put).
    fn take(&mut self) -> TargetLock<C>;

    fn put(&mut self, lock: TargetLock<C>);

    /// A step on it.
    #[inline(always)]
    fn with<R>(&mut self, step: impl FnOnce(&mut TargetLock<C>) -> R) -> R {
        let mut lock = self.take();
        let result = step(&mut lock);
        self.put(lock);
        result
    }

    /// To be called before a release.
    #[inline(always)]
    fn end_leaked_turn(&mut self) {}
}

impl<const C: u32> LockState<C> for TargetLock<C> {
    #[inline(always)]
    fn get(&self) -> TargetLock<C> {
        *self
    }

    #[inline(always)]
    fn take(&mut self) -> TargetLock<C> {
        let broken = TargetLock { status: StatusWord::of(Status::Broken), ..*self };
        std::mem::replace(self, broken)
    }

    #[inline(always)]
    fn put(&mut self, lock: TargetLock<C>) {
        *self = lock;
    }
}

/// An atomic on the lock of one target that is under way, and for a release how the lock was held.
pub(crate) type UnderWay<N> = Option<(Grant, <N as Network>::Pending)>;

/// The locks of all targets, as one rank has them.
pub(crate) struct AllLocks<'l, N: Network, L, const C: u32> {
    pub network: &'l N,
    pub layout: LockLayout,
    pub locks: &'l mut [L],
    /// One for each lock; none between two calls.
    pub under_way: &'l mut [UnderWay<N>],
}

type Result<T, N> = std::result::Result<T, Error<<N as Network>::Error>>;

impl<N: Network, L: LockState<C>, const C: u32> AllLocks<'_, N, L, C> {
    /// [`PassiveLock::acquire_all_mut`](crate::PassiveLock::acquire_all_mut).
    #[inline(always)]
    pub fn acquire(&mut self) -> Result<bool, N> {
        // Before the first request: none may be left under way.
        let mut late = false;
        for (target, lock) in self.locks.iter_mut().enumerate() {
            let lock = lock.get();
            if lock.status != StatusWord::of(Status::Free) {
                lock.check_free(target)?;
                late = true;
            }
        }
        if late {
            self.settle()?;
        }
        let (mut held, mut waited) = (0, false);
        while held < self.locks.len() {
            match self.acquire_from(held) {
                Ok((end, waiting)) => (held, waited) = (end, waited | waiting),
                Err(error) => {
                    self.release_held();
                    return Err(error);
                }
            }
        }
        Ok(waited)
    }

    /// [`PassiveLock::release_all_mut`](crate::PassiveLock::release_all_mut).
    #[inline(always)]
    pub fn release(&mut self) -> Result<(), N> {
        match self.locks.iter_mut().position(|lock| !lock.get().is_held()) {
            Some(target) => Err(Error::NotLocked { target }),
            None => self.release_range(0..self.locks.len()),
        }
    }

    /// [`PassiveLock::release_held_mut`](crate::PassiveLock::release_held_mut).
    #[cold]
    pub fn release_held(&mut self) -> bool {
        // A release that fails leaves its lock broken.
        let _ = self.release_range(0..self.locks.len());
        // What it has in the queues still is to be out of them before its words serve another handle. Others need not wait for it.
        let _ = self.settle();
        !self.any_broken(0)
    }

    /// Awaits what is in the queues still of earlier requests.
    #[cold]
    fn settle(&mut self) -> Result<(), N> {
        let (network, layout) = (self.network, self.layout);
        let mut outcome = Ok(());
        for (target, lock) in self.locks.iter_mut().enumerate() {
            outcome = outcome.and(lock.with(|lock| lock.settle(network, layout, target)));
        }
        outcome
    }

    /// [`PassiveLock::is_settled_mut`](crate::PassiveLock::is_settled_mut).
    pub fn is_settled(&mut self) -> bool {
        let (network, layout) = (self.network, self.layout);
        // A word that cannot be read settles nothing.
        let mut locks = self.locks.iter_mut().enumerate();
        !locks.any(|(target, lock)| {
            let lock = lock.get();
            lock.is_abandoned() && lock.is_in_queue_still(network, layout, target).unwrap_or(true)
        })
    }

    fn any_broken(&mut self, from: Rank) -> bool {
        self.locks[from..].iter_mut().any(|lock| lock.get().is_broken())
    }

    /// Asks for all locks from `first` on; returns up to where it holds them now, at least one more, and whether it
    /// waited.
    #[inline(always)]
    fn acquire_from(&mut self, first: Rank) -> Result<(Rank, bool), N> {
        let (network, layout, mut outcome) = (self.network, self.layout, Ok(()));
        for (target, lock, under_way) in self.each(first..self.locks.len()) {
            match lock.with(|lock| lock.start_shared(network, layout, target)) {
                Ok(pending) => *under_way = Some((Grant::Open, pending)),
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            }
        }
        let mut waiting = Vec::new();
        for (target, lock, under_way) in self.each(first..self.locks.len()) {
            let Some((_, pending)) = under_way.take() else { continue };
            match lock.with(|lock| lock.place_shared(network, layout, target, pending, false)) {
                Ok(Placed::Granted) => {}
                Ok(placed) => waiting.push((target, placed)),
                Err(error) => outcome = outcome.and(Err(error)),
            }
        }
        if waiting.is_empty() {
            return outcome.map(|()| (self.locks.len(), false));
        }
        Ok((self.await_highest_first(waiting, outcome)?, true))
    }

    /// Up to where this rank holds all locks, when those of `waiting` were granted. From the highest down: what it has
    /// a place at meanwhile lies below. `outcome` is that of the call so far.
    #[cold]
    fn await_highest_first(&mut self, mut waiting: Vec<(Rank, Placed)>, mut outcome: Result<(), N>) -> Result<Rank, N> {
        let mut end = self.locks.len();
        while let Some((target, placed)) = waiting.pop() {
            outcome = outcome.and(self.release_range(target + 1..end));
            end = target + 1;
            // Whoever has the lock may wait for a higher one, and if that is broken, wait for ever.
            if outcome.is_err() && self.any_broken(end) {
                break;
            }
            let (network, layout) = (self.network, self.layout);
            let granted = self.locks[target].with(|lock| lock.await_shared(network, layout, target, placed));
            outcome = outcome.and(granted.map(drop));
        }
        outcome.map(|()| end)
    }

    /// Releases those of `targets` that are held. Of several errors the first; what failed is broken.
    #[inline(always)]
    fn release_range(&mut self, targets: Range<Rank>) -> Result<(), N> {
        let (network, layout, mut outcome) = (self.network, self.layout, Ok(()));
        for (target, lock, under_way) in self.each(targets.clone()) {
            // What a call that panicked had under way is not to be taken for a release.
            *under_way = None;
            lock.end_leaked_turn();
            let started = lock.with(|lock| match lock.leave::<N::Error>(target) {
                Ok(HeldAs::Shared(grant)) => lock.start_leaving(network, layout, target, grant).map(|pending| {
                    *under_way = Some((grant, pending));
                }),
                Ok(HeldAs::Exclusive(behind)) => lock.leave_exclusive(network, layout, target, behind),
                Err(_) => Ok(()),
            });
            if let Err(error) = started {
                outcome = outcome.and(Err(error));
            }
        }
        for (target, lock, under_way) in self.each(targets) {
            let Some((grant, pending)) = under_way.take() else { continue };
            if let Err(error) = lock.with(|lock| lock.finish_leaving(network, layout, target, grant, pending)) {
                outcome = outcome.and(Err(error));
            }
        }
        outcome
    }

    /// Each of `targets`, its lock, and what is under way to it.
    #[inline(always)]
    fn each(&mut self, targets: Range<Rank>) -> impl Iterator<Item = (Rank, &mut L, &mut UnderWay<N>)> {
        let locks = self.locks[targets.clone()].iter_mut();
        targets.clone().zip(locks).zip(&mut self.under_way[targets]).map(|((target, lock), of)| (target, lock, of))
    }
}
