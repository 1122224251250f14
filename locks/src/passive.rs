//! The passive lock as a program uses it: one lock at each rank, shared or exclusive, granted in the order asked for.

use crate::primitive::{Condvar, Mutex, MutexGuard, ThreadId, current};
use crate::seat::{Hold, Settled};
use crate::word::Grant;
use crate::{Ahead, Error, Places, Rank, Seat, Word, Words};
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

/// One rank's handle on the locks of all ranks: a shared/exclusive lock at each, truly passive (its owner may sleep),
/// granted first come, first served in the order of the atomics on its word.
///
/// Threads of one rank may share a handle: for one target they queue here, before the word. With `&mut` access the
/// `_mut` calls do without that queue.
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
/// use transom_locks::{Error, Mode, PassiveLock, Places};
///
/// let net = Sim::new(3, Places::words(3), sim::once(|_, words| {
///     let lock = <PassiveLock<_>>::new(words, 0)?;
///     let ahead = lock.acquire(2, Mode::Exclusive)?; // the lock of rank 2
///     assert_ne!(ahead.exclusive, Some(lock.rank()));
///     assert_eq!(lock.acquire(2, Mode::Shared), Err(Error::AlreadyLocked { target: 2 }));
///     lock.release(2)
/// }));
/// net.run_random(7).unwrap();
/// ```
pub struct PassiveLock<W: Words, const C: u32 = 16> {
    words: W,
    places: Places,
    slots: Box<[Slot<W::Pending, C>]>,
}

/// The seat at one target's lock, and the threads of this rank that queue for it.
struct Slot<P, const C: u32> {
    state: Mutex<State<C>>,
    freed: Condvar,
    /// An atomic of a call on all locks that is under way to this one, and for a release how it was held.
    under_way: Option<(Grant, P)>,
}

struct State<const C: u32> {
    seat: Seat<C>,
    /// The thread that holds the lock or is asking for it, if it went through the queue.
    owner: Option<ThreadId>,
    /// A thread is on its way through the protocol with a copy of the seat.
    busy: bool,
}

impl<P, const C: u32> Slot<P, C> {
    #[inline(always)]
    fn seat(&mut self) -> &mut Seat<C> {
        &mut self.state.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner()).seat
    }

    fn lock(&self) -> MutexGuard<'_, State<C>> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl<W: Words, const C: u32> PassiveLock<W, C> {
    /// A handle on locks whose words begin at `base` (the beginning of a cache line) in each rank's memory and are 0
    /// at the start. Every rank of `words` makes one with the same `base`; nothing is communicated.
    ///
    /// # Errors
    /// [`Error::TooManyRanks`] if the word cannot name and count them all.
    pub fn new(words: W, base: usize) -> Result<Self, Error<W::Error>> {
        let (ranks, most) = (words.ranks(), Word::<C>::MAX_RANKS);
        if ranks > most {
            return Err(Error::TooManyRanks { ranks, most });
        }
        Ok(Self::with_seats(words, base, (0..ranks).map(|_| Seat::new())))
    }

    /// For a model, which keeps the seats in its states.
    pub(crate) fn with_seats(words: W, base: usize, seats: impl Iterator<Item = Seat<C>>) -> Self {
        let state = |seat| Mutex::new(State { seat, owner: None, busy: false });
        let slot = |seat| Slot { state: state(seat), freed: Condvar::new(), under_way: None };
        let places = Places::new(base, words.ranks());
        PassiveLock { words, places, slots: seats.map(slot).collect() }
    }

    /// This rank.
    pub fn rank(&self) -> Rank {
        self.words.rank()
    }

    /// Takes the lock of `target`. Another thread of this rank that holds it is waited for.
    ///
    /// # Errors
    /// As [`Seat::exclusive`], and [`Error::NoSuchRank`].
    pub fn acquire(&self, target: Rank, mode: Mode) -> Result<Ahead, Error<W::Error>> {
        let mut seat = self.take_seat(target)?;
        let outcome = match mode {
            Mode::Exclusive => seat.exclusive(&self.words, self.places, target),
            Mode::Shared => seat.shared(&self.words, self.places, target),
        };
        self.put_seat(target, seat);
        outcome
    }

    /// Lets go of the lock of `target`.
    ///
    /// # Errors
    /// As [`Seat::release`], and [`Error::NoSuchRank`].
    pub fn release(&self, target: Rank) -> Result<(), Error<W::Error>> {
        Error::check_rank(target, self.slots.len())?;
        let mut state = self.slots[target].lock();
        if state.busy {
            // Another thread is still asking for it.
            return Err(Error::NotLocked { target });
        }
        let mut seat = state.seat;
        state.busy = true;
        drop(state);
        let outcome = seat.release(&self.words, self.places, target);
        self.put_seat(target, seat);
        outcome
    }

    /// [`acquire`](Self::acquire) by the only thread that uses the handle, which the type shows: no queue before the
    /// word, no more than the protocol's own atomics.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire).
    #[inline(always)]
    pub fn acquire_mut(&mut self, target: Rank, mode: Mode) -> Result<Ahead, Error<W::Error>> {
        let (words, places, seat) = self.parts(target)?;
        match mode {
            Mode::Exclusive => seat.exclusive(words, places, target),
            Mode::Shared => seat.shared(words, places, target),
        }
    }

    /// [`release`](Self::release) by the only thread that uses the handle.
    ///
    /// # Errors
    /// As [`release`](Self::release).
    #[inline(always)]
    pub fn release_mut(&mut self, target: Rank) -> Result<(), Error<W::Error>> {
        let (words, places, seat) = self.parts(target)?;
        seat.release(words, places, target)
    }

    /// Takes the locks of all ranks, shared, all requests in flight at once: one round trip if no exclusive request
    /// is held or queued anywhere; returns whether one was.
    ///
    /// Where requests must wait, this rank never waits for a lock while it holds, or has a place at, one of a higher
    /// rank: it lets go of those and asks again later. So calls of this kind, and programs that take several locks in
    /// the order of their ranks, cannot come to wait for each other in a circle.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire); one that is held or broken already leaves all others untouched. What the call
    /// took before it failed it lets go again.
    pub fn acquire_all_mut(&mut self) -> Result<bool, Error<W::Error>> {
        for (target, slot) in self.slots.iter_mut().enumerate() {
            // Before the first request: none may be left under way.
            match slot.seat() {
                seat if seat.is_held() => return Err(Error::AlreadyLocked { target }),
                seat if seat.is_broken() => return Err(Error::Broken { target }),
                _ => {}
            }
        }
        let (mut held, mut waited) = (0, false);
        while held < self.slots.len() {
            match self.acquire_from(held) {
                Ok((end, waiting)) => (held, waited) = (end, waited | waiting),
                Err(error) => {
                    let _ = self.release_held_mut();
                    return Err(error);
                }
            }
        }
        Ok(waited)
    }

    /// Lets go of every lock that this rank holds; says whether all its seats are as they should be then. For a
    /// handle that is given up: others must not wait for a lock that nobody can release any more.
    pub fn release_held_mut(&mut self) -> bool {
        let mut whole = true;
        for target in 0..self.slots.len() {
            if self.seat(target).is_held() {
                whole &= self.release_mut(target).is_ok();
            }
            whole &= !self.seat(target).is_broken();
        }
        whole
    }

    /// Asks for all locks from `first` on; returns up to where it holds them now, at least one more, and whether it waited.
    #[inline(always)]
    fn acquire_from(&mut self, first: Rank) -> Result<(Rank, bool), Error<W::Error>> {
        let (words, places) = (&self.words, self.places);
        for (slot, target) in self.slots[first..].iter_mut().zip(first..) {
            slot.under_way = Some((Grant::Open, slot.seat().start_shared(words, places, target)?));
        }
        let mut waiting = Vec::new();
        for (slot, target) in self.slots[first..].iter_mut().zip(first..) {
            let Some((_, pending)) = slot.under_way.take() else { continue };
            let settled = slot.seat().settle_shared(words, places, target, pending)?;
            if let Settled::Waiting(_) = settled {
                waiting.push((target, settled));
            }
        }
        if waiting.is_empty() { Ok((self.slots.len(), false)) } else { Ok((self.await_highest_first(waiting)?, true)) }
    }

    /// Up to where this rank holds all locks, when those of `waiting` were granted. From the highest down: what it has a
    /// place at meanwhile lies below.
    #[cold]
    fn await_highest_first(&mut self, mut waiting: Vec<(Rank, Settled)>) -> Result<Rank, Error<W::Error>> {
        let mut end = self.slots.len();
        while let Some((target, settled)) = waiting.pop() {
            self.release_range(target + 1..end)?;
            end = target + 1;
            let (words, places, seat) = self.parts(target)?;
            seat.await_shared(words, places, target, settled)?;
        }
        Ok(end)
    }

    /// Lets go of the locks of all ranks, all requests in flight at once.
    ///
    /// # Errors
    /// As [`release`](Self::release); one that is not held leaves all others untouched.
    pub fn release_all_mut(&mut self) -> Result<(), Error<W::Error>> {
        if let Some(target) = (0..self.slots.len()).find(|&target| !self.seat(target).is_held()) {
            return Err(Error::NotLocked { target });
        }
        self.release_range(0..self.slots.len())
    }

    #[inline(always)]
    fn release_range(&mut self, targets: Range<Rank>) -> Result<(), Error<W::Error>> {
        let (words, places) = (&self.words, self.places);
        for (slot, target) in self.slots[targets.clone()].iter_mut().zip(targets.start..) {
            match slot.seat().leave(target)? {
                Hold::Shared(grant) => {
                    slot.under_way = Some((grant, Seat::<C>::start_leaving(words, places, target, grant)?));
                }
                Hold::Exclusive(before) => slot.seat().finish_exclusive(words, places, target, before)?,
            }
        }
        for (slot, target) in self.slots[targets.clone()].iter_mut().zip(targets.start..) {
            let Some((grant, pending)) = slot.under_way.take() else { continue };
            slot.seat().finish_leaving(words, places, target, grant, pending)?;
        }
        Ok(())
    }

    #[inline(always)]
    fn parts(&mut self, target: Rank) -> Result<(&W, Places, &mut Seat<C>), Error<W::Error>> {
        let ranks = self.slots.len();
        let Some(slot) = self.slots.get_mut(target) else {
            return Err(Error::NoSuchRank { rank: target, ranks });
        };
        Ok((&self.words, self.places, slot.seat()))
    }

    pub(crate) fn seat(&mut self, target: Rank) -> &Seat<C> {
        self.slots[target].seat()
    }

    /// The seat, once no other thread of this rank uses it.
    fn take_seat(&self, target: Rank) -> Result<Seat<C>, Error<W::Error>> {
        Error::check_rank(target, self.slots.len())?;
        let (slot, me) = (&self.slots[target], current().id());
        let mut state = slot.lock();
        while state.busy || state.seat.is_held() {
            if state.owner == Some(me) || state.owner.is_none() {
                return Err(Error::AlreadyLocked { target });
            }
            state = slot.freed.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
        state.busy = true;
        state.owner = Some(me);
        Ok(state.seat)
    }

    fn put_seat(&self, target: Rank, seat: Seat<C>) {
        let slot = &self.slots[target];
        let mut state = slot.lock();
        state.seat = seat;
        state.busy = false;
        if !seat.is_held() {
            state.owner = None;
            slot.freed.notify_one();
        }
    }
}
