//! Calls on the locks of all targets, with their requests in flight at once.

use crate::at_once::AtOnce;
use crate::lock_status::{HeldAs, Status, StatusWord};
use crate::lock_word::Grant;
use crate::target_lock::Placed;
use crate::{Error, LockLayout, Network, Rank, TargetLock};
use std::ops::Range;

/// Storage of one target's lock state, for the only thread that uses it.
pub(crate) trait LockState<const C: u32> {
    /// The state of this rank's request at the lock.
    fn get(&self) -> TargetLock<C>;

    /// Takes the state out for a step. The lock is broken until [`put`](Self::put).
    fn take(&mut self) -> TargetLock<C>;

    fn put(&mut self, lock: TargetLock<C>);

    /// Runs a step on the state.
    #[inline(always)]
    fn with<R>(&mut self, step: impl FnOnce(&mut TargetLock<C>) -> R) -> R {
        let mut lock = self.take();
        let result = step(&mut lock);
        self.put(lock);
        result
    }

    /// Ends a turn whose guard was leaked. Called before a release.
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

/// An atomic in flight to the lock of one target; for a release, with how the lock was held.
pub(crate) type InFlight<N> = Option<(Grant, <N as Network>::Pending)>;

/// One rank's states of the locks of all targets.
pub(crate) struct AllLocks<'l, N: Network, L, const C: u32> {
    pub network: &'l N,
    pub layout: LockLayout,
    pub locks: &'l mut [L],
    /// One per lock; `None` between two calls.
    pub in_flight: &'l mut [InFlight<N>],
}

type Result<T, N> = std::result::Result<T, Error<<N as Network>::Error>>;

impl<N: Network, L: LockState<C>, const C: u32> AllLocks<'_, N, L, C> {
    /// [`PassiveLock::acquire_all_mut`](crate::PassiveLock::acquire_all_mut).
    #[inline(always)]
    pub fn acquire(&mut self) -> Result<bool, N> {
        // Checked before the first request, so that no request stays in flight after an error.
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
        self.go_on(0, false)
    }

    /// Goes on with a request of all locks at `target`, after its attempt at once; this rank holds the locks before it.
    pub fn acquire_from_once(&mut self, target: Rank, once: AtOnce) -> Result<bool, N> {
        let AtOnce::Found(found) = once else {
            return if target == 0 { self.acquire() } else { self.go_on(target, false) };
        };
        let (network, layout) = (self.network, self.layout);
        let placed = self.locks[target].with(|lock| lock.place_shared_at(network, layout, target, found, false));
        let (held, waited) = match placed {
            Ok(Placed::Granted) => (target + 1, false),
            started => match self.acquire_rest(target, target, started.map(Some)) {
                Ok(so_far) => so_far,
                Err(error) => {
                    self.release_held();
                    return Err(error);
                }
            },
        };
        self.go_on(held, waited)
    }

    /// Requests the locks that this rank does not hold yet, from `held` on. `waited` is returned if it is true.
    #[inline(always)]
    fn go_on(&mut self, mut held: Rank, mut waited: bool) -> Result<bool, N> {
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

    /// Goes on with a release of all locks at `target`, after its release at once; those before it are released.
    pub fn release_from_once(&mut self, target: Rank, once: AtOnce) -> Result<(), N> {
        let (network, layout) = (self.network, self.layout);
        match once {
            AtOnce::Found(found) => {
                let released = self.locks[target].with(|lock| lock.release_after(network, layout, target, found));
                released.and(self.release_range(target + 1..self.locks.len()))
            }
            _ if target == 0 => self.release(),
            _ => self.release_range(target..self.locks.len()),
        }
    }

    /// [`PassiveLock::release_held_mut`](crate::PassiveLock::release_held_mut).
    #[cold]
    pub fn release_held(&mut self) -> bool {
        // A failed release leaves its lock broken.
        let _ = self.release_range(0..self.locks.len());
        // Requests of this rank must be out of all queues before another handle uses its words. Other ranks need not
        // wait for this one.
        let _ = self.settle();
        !self.any_broken(0)
    }

    /// Waits for the remains of earlier requests in all queues.
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
        // A word that cannot be read counts as unsettled.
        let mut locks = self.locks.iter_mut().enumerate();
        !locks.any(|(target, lock)| {
            let lock = lock.get();
            lock.is_abandoned() && lock.has_remains_in_queue(network, layout, target).unwrap_or(true)
        })
    }

    fn any_broken(&mut self, from: Rank) -> bool {
        self.locks[from..].iter_mut().any(|lock| lock.get().is_broken())
    }

    /// Requests all locks from `first` on. Returns the end of the range that this rank now holds, at least `first + 1`,
    /// and whether the call waited.
    #[inline(always)]
    fn acquire_from(&mut self, first: Rank) -> Result<(Rank, bool), N> {
        let (network, layout) = (self.network, self.layout);
        let mut locks = self.each(first..self.locks.len());
        let stopped = locks.find_map(|(target, lock, in_flight)| {
            let started = lock.with(|lock| {
                let pending = lock.start_shared(network, layout, target)?;
                match network.try_finish(pending) {
                    Ok(found) => lock.place_shared_at(network, layout, target, found, false).map(Some),
                    Err(pending) => {
                        *in_flight = Some((Grant::Open, pending));
                        Ok(None)
                    }
                }
            });
            match started {
                Ok(Some(Placed::Granted)) => None,
                other => Some((target, other)),
            }
        });
        drop(locks);
        match stopped {
            None => Ok((self.locks.len(), false)),
            Some((target, started)) => self.acquire_rest(first, target, started),
        }
    }

    /// Goes on at `target`, the first lock that was not granted at once: requests the locks behind it, and completes
    /// every request from `first` on. `started` is the request at `target`: its place in the queue, unless it is in
    /// flight.
    #[cold]
    #[inline(never)]
    fn acquire_rest(
        &mut self,
        first: Rank,
        target: Rank,
        started: Result<Option<Placed>, N>,
    ) -> Result<(Rank, bool), N> {
        let (network, layout) = (self.network, self.layout);
        let (mut waiting, mut outcome) = (Vec::new(), Ok(()));
        match started {
            Ok(placed) => waiting.extend(placed.map(|placed| (target, placed))),
            Err(error) => outcome = Err(error),
        }
        for (target, lock, in_flight) in self.each(target + 1..self.locks.len()) {
            if outcome.is_err() {
                break;
            }
            match lock.with(|lock| lock.start_shared(network, layout, target)) {
                Ok(pending) => *in_flight = Some((Grant::Open, pending)),
                Err(error) => outcome = Err(error),
            }
        }
        for (target, lock, in_flight) in self.each(first..self.locks.len()) {
            let Some((_, pending)) = in_flight.take() else { continue };
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

    /// Waits for the grants of the `waiting` requests, from the highest rank down, so that this rank is queued only at
    /// lower locks meanwhile. Returns the end of the range that this rank holds. `outcome` is that of the call so far.
    #[cold]
    fn await_highest_first(&mut self, mut waiting: Vec<(Rank, Placed)>, mut outcome: Result<(), N>) -> Result<Rank, N> {
        let mut end = self.locks.len();
        while let Some((target, placed)) = waiting.pop() {
            outcome = outcome.and(self.release_range(target + 1..end));
            end = target + 1;
            // The holder may wait for a higher lock; if that one is broken, this wait might never end.
            if outcome.is_err() && self.any_broken(end) {
                break;
            }
            let (network, layout) = (self.network, self.layout);
            let granted = self.locks[target].with(|lock| lock.await_shared(network, layout, target, placed));
            outcome = outcome.and(granted.map(drop));
        }
        outcome.map(|()| end)
    }

    /// Releases the held locks of `targets`. Returns the first error; locks whose release failed are broken.
    #[inline(always)]
    fn release_range(&mut self, targets: Range<Rank>) -> Result<(), N> {
        let (network, layout, mut outcome, mut any_in_flight) = (self.network, self.layout, Ok(()), false);
        for (target, lock, in_flight) in self.each(targets.clone()) {
            // An operation left in flight by a call that panicked must not be taken for this release.
            *in_flight = None;
            lock.end_leaked_turn();
            let left = lock.with(|lock| match lock.leave::<N::Error>(target) {
                Ok(HeldAs::Shared(grant)) => {
                    let pending = lock.start_leaving(network, layout, target, grant)?;
                    match network.try_finish(pending) {
                        Ok(found) => lock.left(network, layout, target, grant, found),
                        Err(pending) => {
                            (*in_flight, any_in_flight) = (Some((grant, pending)), true);
                            Ok(())
                        }
                    }
                }
                Ok(HeldAs::Exclusive(behind)) => lock.leave_exclusive(network, layout, target, behind),
                Err(_) => Ok(()),
            });
            if let Err(error) = left {
                outcome = outcome.and(Err(error));
            }
        }
        if !any_in_flight {
            return outcome;
        }
        for (target, lock, in_flight) in self.each(targets) {
            let Some((grant, pending)) = in_flight.take() else { continue };
            if let Err(error) = lock.with(|lock| lock.finish_leaving(network, layout, target, grant, pending)) {
                outcome = outcome.and(Err(error));
            }
        }
        outcome
    }

    /// Each target of `targets` with its lock and its operation in flight.
    #[inline(always)]
    fn each(&mut self, targets: Range<Rank>) -> impl Iterator<Item = (Rank, &mut L, &mut InFlight<N>)> {
        let locks = self.locks[targets.clone()].iter_mut();
        targets.clone().zip(locks).zip(&mut self.in_flight[targets]).map(|((target, lock), of)| (target, lock, of))
    }
}
