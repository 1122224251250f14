//! The steps of the passive lock. [`TargetLock`] is one rank's state of one lock. README.md beside the code numbers the
//! steps, and proves that no request is lost or overtaken.

use crate::at_once::{AtOnce, LockWords, alone};
use crate::lock_status::{HeldAs, Predecessor, Status, StatusWord};
use crate::lock_word::{Grant, Next};
use crate::{Awaited, Error, Field, LockLayout, LockWord, Network, Rank, Wake};

/// The queue position of a request: the requests before it when it took its place, in FIFO order of the atomics on the
/// lock word.
///
/// # Examples
/// ```
/// use transom_locks::QueuePosition;
/// // The lock was free, or (for a shared request) held by readers only.
/// assert_eq!(QueuePosition::default(), QueuePosition { exclusive: None, readers: 0 });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct QueuePosition {
    /// The exclusive request just before this one, holding or waiting; the lock is granted after its release.
    pub exclusive: Option<Rank>,
    /// For an exclusive request, the readers after that request whose departures this one awaits.
    pub readers: u64,
}

impl QueuePosition {
    /// Queue position of an exclusive request whose CAS returned `found`.
    #[inline(always)]
    pub(crate) fn of<const C: u32>(found: LockWord<C>) -> Self {
        match found.tail() {
            None => QueuePosition { exclusive: None, readers: found.readers() },
            Some(tail) => QueuePosition { exclusive: Some(tail), readers: found.arrived() },
        }
    }
}

/// One rank's state of the lock of one target, as plain data, with the protocol's steps. A
/// [`PassiveLock`](crate::PassiveLock) has one for each target; a model keeps them in its states. `C` is the width of
/// the word's counts.
///
/// # Examples
/// ```
/// use transom_locks::model::{sim, Sim};
/// use transom_locks::{LockLayout, TargetLock};
///
/// let layout = LockLayout::new(0, 2);
/// let net = Sim::new(2, LockLayout::words(2), sim::once(move |_, network| {
///     let mut lock = TargetLock::<16>::new();
///     lock.exclusive(network, layout, 0)?; // the lock of rank 0
///     lock.release(network, layout, 0)
/// }));
/// net.run_random(1).unwrap();
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TargetLock<const C: u32 = 16> {
    pub(crate) status: StatusWord,
    /// The lock word as last seen: the first guess of the next compare-and-swap.
    pub(crate) seen: u64,
}

/// A shared request that has its place in the queue.
#[must_use]
pub(crate) enum Placed {
    /// In the open group: the lock is held.
    Granted,
    /// Registered with the exclusive request of this rank, which will grant it.
    Behind(Rank),
}

pub(crate) type Result<T, N> = std::result::Result<T, Error<<N as Network>::Error>>;

impl<const C: u32> Default for TargetLock<C> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const C: u32> TargetLock<C> {
    /// The state of a lock before this rank's first request. Keep it from one request to the next: only it remembers
    /// that the word was urgent, so that this rank's requests starve others.
    pub const fn new() -> Self {
        TargetLock { status: StatusWord::of(Status::Free), seen: 0 }
    }

    /// Returns whether this rank holds the lock.
    pub fn is_held(&self) -> bool {
        matches!(self.status.get(), Status::Held(_))
    }

    /// Returns whether a shared request given up at its deadline is still queued, as far as this rank knows.
    pub(crate) fn is_abandoned(&self) -> bool {
        matches!(self.status.get(), Status::Abandoned(_))
    }

    /// Returns whether a call failed midway, so that the state of this rank's request in the queue is unknown.
    pub fn is_broken(&self) -> bool {
        self.status.get() == Status::Broken
    }

    /// Takes the lock of `target` exclusively. Costs 1 compare-and-swap if the lock is free. Otherwise it costs 1 more
    /// for each request that came in between, 1 notify, and local waiting. A request whose compare-and-swap keeps
    /// failing goes to the lock's gate, which bounds the attempts.
    ///
    /// # Errors
    /// [`Error::AlreadyLocked`] if held, [`Error::Broken`] after an earlier failure, [`Error::Network`] from the
    /// network.
    #[inline(always)]
    pub fn exclusive<N: Network>(&mut self, network: &N, layout: LockLayout, target: Rank) -> Result<QueuePosition, N> {
        let words = LockWords::find(network, layout, target);
        let once = words.map_or(AtOnce::Unfit, |words| self.exclusive_at_once(network, &words, alone(network.rank())));
        self.exclusive_from(network, layout, target, once)
    }

    /// Goes on with an exclusive request after its attempt at once.
    #[inline(always)]
    pub(crate) fn exclusive_from<N: Network>(
        &mut self,
        network: &N,
        layout: LockLayout,
        target: Rank,
        once: AtOnce,
    ) -> Result<QueuePosition, N> {
        match once {
            AtOnce::Done => Ok(QueuePosition::default()),
            AtOnce::Found(found) => self.exclusive_after(network, layout, target, found),
            AtOnce::Unfit => {
                let found = self.enqueue(network, layout, target)?;
                self.exclusive_at(network, layout, target, found)
            }
        }
    }

    /// Waits for the turn of an exclusive request whose CAS returned `found`, if the lock was not free.
    #[inline(always)]
    pub(crate) fn exclusive_at<N: Network>(
        &mut self,
        network: &N,
        layout: LockLayout,
        target: Rank,
        found: LockWord<C>,
    ) -> Result<QueuePosition, N> {
        if found.tail().is_none() && found.readers() == 0 {
            self.status = StatusWord::of(Status::Held(HeldAs::Exclusive(Predecessor::NONE)));
            return Ok(QueuePosition::default());
        }
        self.on_copy(move |lock| lock.exclusive_behind(network, layout, target, found))
    }

    /// Waits for the turn of an exclusive request whose CAS returned `found`.
    #[cold]
    #[inline(never)]
    fn exclusive_behind<N: Network>(
        &mut self,
        network: &N,
        layout: LockLayout,
        target: Rank,
        found: LockWord<C>,
    ) -> Result<QueuePosition, N> {
        let ahead = QueuePosition::of(found);
        let behind = Self::await_turn(network, layout, target, ahead, found.is_marked())?;
        self.status = StatusWord::of(Status::Held(HeldAs::Exclusive(behind)));
        Ok(ahead)
    }

    /// Runs a rare step on a copy: a step by reference would force the caller's state into memory. The lock is broken
    /// until the step returns.
    #[inline(always)]
    pub(crate) fn on_copy<R>(&mut self, step: impl FnOnce(&mut Self) -> R) -> R {
        let mut copy = *self;
        self.status = StatusWord::of(Status::Broken);
        let result = step(&mut copy);
        *self = copy;
        result
    }

    /// Enqueues an exclusive request; returns the word before it.
    #[inline(always)]
    pub(crate) fn enqueue<N: Network>(
        &mut self,
        network: &N,
        layout: LockLayout,
        target: Rank,
    ) -> Result<LockWord<C>, N> {
        self.enter(network, layout, target)?;
        let seen = LockWord::<C>(self.seen);
        match seen.is_urgent() {
            true => self.on_copy(move |lock| lock.enqueue_at_gate(network, layout, target, seen)),
            false => match self.attempt(network, layout, target, seen)? {
                found if found == seen => Ok(found),
                found => self.on_copy(move |lock| lock.retry_enqueue(network, layout, target, found)),
            },
        }
    }

    /// One attempt to make this rank's exclusive request the tail. Returns the word found; the attempt succeeded if
    /// that is `seen`.
    #[inline(always)]
    pub(crate) fn attempt<N: Network>(
        &mut self,
        network: &N,
        layout: LockLayout,
        target: Rank,
        seen: LockWord<C>,
    ) -> Result<LockWord<C>, N> {
        let new = seen.with_exclusive(network.rank());
        let found = LockWord(network.cas(layout.home(target), seen.0, new.0, Wake::Nobody)?);
        if found == seen {
            self.seen = new.0;
        }
        Ok(found)
    }

    /// Takes the lock of `target` exclusively if no rank holds it or waits for it; returns whether it did. The attempt
    /// takes no place in the queue, so it neither waits nor delays any other request. Costs 1 compare-and-swap, 2 if
    /// the first guess is stale, and 1 more for each request that came and went in between.
    ///
    /// # Errors
    /// The errors of [`exclusive`](Self::exclusive).
    pub fn try_exclusive<N: Network>(&mut self, network: &N, layout: LockLayout, target: Rank) -> Result<bool, N> {
        let me = network.rank();
        self.try_change(network, layout, target, HeldAs::Exclusive(Predecessor::NONE), |seen| {
            seen.is_idle().then(|| seen.with_exclusive(me))
        })
    }

    /// Takes the lock of `target` together with other readers if no exclusive request holds it or is queued; returns
    /// whether it did. Otherwise as [`try_exclusive`](Self::try_exclusive).
    ///
    /// # Errors
    /// The errors of [`exclusive`](Self::exclusive).
    pub fn try_shared<N: Network>(&mut self, network: &N, layout: LockLayout, target: Rank) -> Result<bool, N> {
        self.try_change(network, layout, target, HeldAs::Shared(Grant::Open), |seen| {
            let room = if seen.count_overflow() { seen.renormalised() } else { seen };
            (seen.tail().is_none() && !seen.is_urgent()).then(|| LockWord(room.0.wrapping_add(LockWord::<C>::ARRIVED)))
        })
    }

    /// Changes the word to `to(word)`, unless that is `None`: another request is in the way.
    fn try_change<N: Network>(
        &mut self,
        network: &N,
        layout: LockLayout,
        target: Rank,
        held: HeldAs,
        to: impl Fn(LockWord<C>) -> Option<LockWord<C>>,
    ) -> Result<bool, N> {
        if self.has_remains_in_queue(network, layout, target)? {
            return Ok(false);
        }
        self.enter(network, layout, target)?;
        // The last seen word may be out of date: only a word found now is a reason to give up.
        let mut seen = if to(LockWord(self.seen)).is_some() { LockWord(self.seen) } else { LockWord(0) };
        while let Some(new) = to(seen) {
            let found = network.cas(layout.home(target), seen.0, new.0, Wake::Nobody)?;
            if found == seen.0 {
                (self.seen, self.status) = (new.0, StatusWord::of(Status::Held(held)));
                return Ok(true);
            }
            seen = LockWord(found);
        }
        (self.seen, self.status) = (seen.0, StatusWord::of(Status::Free));
        Ok(false)
    }

    /// Waits for the turn of an exclusive request. `left` says that requests in its position may have left before.
    #[cold]
    fn await_turn<N: Network>(
        network: &N,
        layout: LockLayout,
        target: Rank,
        ahead: QueuePosition,
        left: bool,
    ) -> Result<Predecessor, N> {
        let me = network.rank();
        let (mut readers, mut behind) = (ahead.readers, Predecessor::NONE);
        Self::check_position(network, target, ahead)?;
        if let Some(tail) = ahead.exclusive {
            let next = Next { rank: me, readers, timed: false, watches: network.watches(tail) };
            let next_of_tail = layout.node(tail, target, Field::Next);
            match left {
                true => Self::announce_behind(network, next_of_tail, next.pack())?,
                false => network.notify(next_of_tail, next.pack(), Wake::Home)?,
            }
            if next.watches && Self::watch_turn(network, layout, target, tail, next)? {
                behind = Predecessor::watched(tail);
            } else {
                // This rank's release clears `go`. No rank writes it again before this rank's next request.
                let go = network.wait(layout.node(me, target, Field::Go).word, Awaited::Behind(tail), |go| go != 0)?;
                // At least the readers found by the request's CAS; more if a request between has left the queue since.
                readers = Self::readers_of_go(network, target, go, readers)?;
                behind = Predecessor::notified(ahead.exclusive);
            }
        }
        if readers > 0 {
            let drained = layout.node(me, target, Field::Drained);
            let told = network.wait(drained.word, Awaited::Anyone, |told| told >= readers)?;
            Self::drained(network, layout, target, readers, told)?;
        }
        Ok(behind)
    }

    /// Watches `next` of rank `tail`, which holds this rank's request `asked`, until the answer. Returns true if that
    /// is this rank's turn, and false if `go` will announce it.
    fn watch_turn<N: Network>(
        network: &N,
        layout: LockLayout,
        target: Rank,
        tail: Rank,
        asked: Next,
    ) -> Result<bool, N> {
        let (node, asked) = (layout.node(tail, target, Field::Next), asked.pack());
        let told = network.watch(node, Awaited::Behind(tail), |told| told & !Next::STAY != asked)?;
        if ![Next::TURN, Next::AT_GO].contains(&told) {
            return Err(Error::Corrupt { target, word: told });
        }
        // Rank `tail` waits for this before its next request.
        network.notify(node, 0, Wake::Home)?;
        Ok(told == Next::TURN)
    }

    /// Checks the position of an exclusive request that must wait.
    pub(crate) fn check_position<N: Network>(network: &N, target: Rank, ahead: QueuePosition) -> Result<(), N> {
        // A rank has at most one request at a lock, and this rank's is the one being checked.
        if ahead.exclusive == Some(network.rank()) || ahead.readers >= network.ranks() as u64 {
            let next = Next { rank: network.rank(), readers: ahead.readers, timed: false, watches: false };
            return Err(Error::Corrupt { target, word: next.pack() });
        }
        Ok(())
    }

    /// The departures that a request awaits after `go`, which must be at least the `known` ones.
    pub(crate) fn readers_of_go<N: Network>(network: &N, target: Rank, go: u64, known: u64) -> Result<u64, N> {
        let readers = go.wrapping_sub(1);
        let may_be = known..network.ranks() as u64;
        if may_be.contains(&readers) { Ok(readers) } else { Err(Error::Corrupt { target, word: go }) }
    }

    /// Clears `drained` after the last awaited departure; `told` is its value.
    pub(crate) fn drained<N: Network>(
        network: &N,
        layout: LockLayout,
        target: Rank,
        readers: u64,
        told: u64,
    ) -> Result<(), N> {
        if told != readers {
            return Err(Error::Corrupt { target, word: told });
        }
        Ok(network.notify(layout.node(network.rank(), target, Field::Drained), 0, Wake::Nobody)?)
    }

    /// Checks that this rank may request the lock.
    #[inline(always)]
    pub(crate) fn check_free<E>(&self, target: Rank) -> std::result::Result<(), Error<E>> {
        match self.status.get() {
            Status::Free | Status::Unacknowledged | Status::Abandoned(_) => Ok(()),
            Status::Held(_) => Err(Error::AlreadyLocked { target }),
            Status::Broken => Err(Error::Broken { target }),
        }
    }

    /// Begins a request: the lock is broken until the request succeeds. Waits for the remains of an earlier request.
    #[inline(always)]
    pub(crate) fn enter<N: Network>(&mut self, network: &N, layout: LockLayout, target: Rank) -> Result<(), N> {
        if self.status != StatusWord::of(Status::Free) {
            self.check_free(target)?;
            self.on_copy(move |lock| lock.settle(network, layout, target))?;
        }
        self.status = StatusWord::of(Status::Broken);
        Ok(())
    }

    /// Begins a release, and returns how the lock is held. The lock is broken until the release succeeds.
    #[inline(always)]
    pub(crate) fn leave<E>(&mut self, target: Rank) -> std::result::Result<HeldAs, Error<E>> {
        match self.status.get() {
            Status::Held(held) => {
                self.status = StatusWord::of(Status::Broken);
                Ok(held)
            }
            Status::Free | Status::Unacknowledged | Status::Abandoned(_) => Err(Error::NotLocked { target }),
            Status::Broken => Err(Error::Broken { target }),
        }
    }
}
