//! The passive lock's steps. [`TargetLock`] is what one rank knows of one lock; README.md beside the code numbers the
//! steps and says why nobody is lost or overtaken.

use crate::lock_word::{Grant, Next, Waiter, Waiters};
use crate::{Awaited, Error, Field, LockLayout, LockWord, Network, Rank, Wake};
use std::fmt;

/// Who stood before a request when it took its place in the queue: the FIFO order, as the atomics on the word made it.
///
/// # Examples
/// ```
/// use transom_locks::Ahead;
/// // Nobody: the lock was free, or for a shared request held by readers only.
/// assert_eq!(Ahead::default(), Ahead { exclusive: None, readers: 0 });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Ahead {
    /// The exclusive request just before this one, held or waiting; the lock is granted after it.
    pub exclusive: Option<Rank>,
    /// For an exclusive request, the readers it had to let out first, after that request.
    pub readers: u64,
}

impl Ahead {
    /// Of an exclusive request that found the word so.
    #[inline(always)]
    pub(crate) fn of<const C: u32>(found: LockWord<C>) -> Self {
        match found.tail() {
            None => Ahead { exclusive: None, readers: found.readers() },
            Some(tail) => Ahead { exclusive: Some(tail), readers: found.arrived() },
        }
    }
}

/// What this rank has of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Status {
    /// No request.
    Free,
    Held(HeldAs),
    /// Released, and whoever was next has been shown so in `next` of this rank, but need not have cleared it.
    Shown,
    /// Its deadline has passed, and its shared request is in the queue still, behind the exclusive one of this rank.
    Abandoned(u32),
    /// A call failed midway: what the queue holds of this rank is unknown.
    Broken,
}

/// A [`Status`] as a word, so that threads can hand it to each other.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct StatusWord(pub u64);

impl fmt::Debug for StatusWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}

impl StatusWord {
    const FREE: u64 = 0;
    const SHOWN: u64 = 1;
    const BROKEN: u64 = 2;
    const ABANDONED: u64 = 3;
    const EXCLUSIVE: u64 = 4;
    const SHARED_OPEN: u64 = 5;
    const SHARED_BEFORE: u64 = 6;

    /// What it is, and above that the rank, if it has one.
    #[inline(always)]
    pub const fn of(status: Status) -> Self {
        StatusWord(match status {
            Status::Free => Self::FREE,
            Status::Shown => Self::SHOWN,
            Status::Broken => Self::BROKEN,
            Status::Abandoned(tail) => Self::ABANDONED | (tail as u64) << 32,
            Status::Held(HeldAs::Exclusive(Behind(behind))) => Self::EXCLUSIVE | (behind as u64) << 32,
            Status::Held(HeldAs::Shared(Grant::Open)) => Self::SHARED_OPEN,
            Status::Held(HeldAs::Shared(Grant::Before(next))) => Self::SHARED_BEFORE | (next as u64) << 32,
        })
    }

    #[inline(always)]
    pub fn get(self) -> Status {
        let rank = (self.0 >> 32) as u32;
        match self.0 & 0xff {
            Self::FREE => Status::Free,
            Self::SHOWN => Status::Shown,
            Self::ABANDONED => Status::Abandoned(rank),
            Self::EXCLUSIVE => Status::Held(HeldAs::Exclusive(Behind(rank))),
            Self::SHARED_OPEN => Status::Held(HeldAs::Shared(Grant::Open)),
            Self::SHARED_BEFORE => Status::Held(HeldAs::Shared(Grant::Before(rank))),
            _ => Status::Broken,
        }
    }
}

/// How a lock is held, as far as its release needs to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum HeldAs {
    Exclusive(Behind),
    Shared(Grant),
}

/// Behind whose exclusive request one was made that has its turn. (A narrow type, since there is one for each target.)
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Behind(u32);

impl Next {
    /// Of a request that has left the queue with this one behind it.
    #[inline(always)]
    pub fn status_of_left(self) -> Status {
        if self.watches { Status::Shown } else { Status::Free }
    }
}

impl Behind {
    pub const NOBODY: Self = Behind(0);
    const TOLD: u32 = 1 << 31;

    /// Behind this rank's, and told at its own `go` that its turn has come.
    #[inline(always)]
    pub fn told(rank: Option<Rank>) -> Self {
        rank.map_or(Self::NOBODY, |rank| Behind((rank as u32 + 1) | Self::TOLD))
    }

    /// Behind this rank's, which it watched.
    pub fn watched(rank: Rank) -> Self {
        Behind(rank as u32 + 1)
    }

    #[inline(always)]
    pub fn rank(self) -> Option<Rank> {
        (self.0 & !Self::TOLD).checked_sub(1).map(|rank| rank as Rank)
    }

    /// Whether `go` is to be cleared.
    #[inline(always)]
    pub fn was_told(self) -> bool {
        self.0 & Self::TOLD != 0
    }
}

/// The lock of one target as one rank knows it, plain data, with the protocol's steps on it. A
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
    /// The word as last seen: the first guess of the next compare-and-swap.
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
    /// Of a lock as this rank knows it at first. One that is made anew for each request does not know whom it keeps out of the queue.
    pub const fn new() -> Self {
        TargetLock { status: StatusWord::of(Status::Free), seen: 0 }
    }

    /// Whether this rank holds the lock.
    pub fn is_held(&self) -> bool {
        matches!(self.status.get(), Status::Held(_))
    }

    /// Whether a shared request was given up at its deadline, which stands behind another rank's until that has passed over it.
    pub(crate) fn is_abandoned(&self) -> bool {
        matches!(self.status.get(), Status::Abandoned(_))
    }

    /// Whether a call failed midway, so that what the queue holds of this rank is unknown.
    pub fn is_broken(&self) -> bool {
        self.status.get() == Status::Broken
    }

    /// Takes the lock of `target` exclusively: 1 compare-and-swap if it is free; otherwise also one for each request
    /// that came in between, 1 notify, and local waiting. Where that fails again and again it asks at the lock's gate, which bounds
    /// how often it does.
    ///
    /// # Errors
    /// [`Error::AlreadyLocked`] if held, [`Error::Broken`] after an earlier failure, [`Error::Network`] from the
    /// network.
    #[inline(always)]
    pub fn exclusive<N: Network>(&mut self, network: &N, layout: LockLayout, target: Rank) -> Result<Ahead, N> {
        let found = self.ask(network, layout, target)?;
        if found.tail().is_none() && found.readers() == 0 {
            self.status = StatusWord::of(Status::Held(HeldAs::Exclusive(Behind::NOBODY)));
            return Ok(Ahead::default());
        }
        self.aside(move |lock| lock.exclusive_behind(network, layout, target, found))
    }

    /// Waits for the turn of an exclusive request that found the word so.
    #[cold]
    #[inline(never)]
    fn exclusive_behind<N: Network>(
        &mut self,
        network: &N,
        layout: LockLayout,
        target: Rank,
        found: LockWord<C>,
    ) -> Result<Ahead, N> {
        let ahead = Ahead::of(found);
        let behind = Self::wait_for_turn(network, layout, target, ahead, found.is_marked())?;
        self.status = StatusWord::of(Status::Held(HeldAs::Exclusive(behind)));
        Ok(ahead)
    }

    /// A step that is rare, on a copy: by address this would be kept in memory for its sake. Until the step is over the lock is
    /// broken.
    #[inline(always)]
    pub(crate) fn aside<R>(&mut self, step: impl FnOnce(&mut Self) -> R) -> R {
        let mut copy = *self;
        self.status = StatusWord::of(Status::Broken);
        let result = step(&mut copy);
        *self = copy;
        result
    }

    /// Takes a place in the queue for an exclusive request; returns what the word held before.
    #[inline(always)]
    pub(crate) fn ask<N: Network>(&mut self, network: &N, layout: LockLayout, target: Rank) -> Result<LockWord<C>, N> {
        self.enter(network, layout, target)?;
        let seen = LockWord::<C>(self.seen);
        match seen.is_urgent() {
            true => self.aside(move |lock| lock.ask_at_gate(network, layout, target, seen)),
            false => match self.attempt(network, layout, target, seen)? {
                found if found == seen => Ok(found),
                found => self.aside(move |lock| lock.ask_again(network, layout, target, found)),
            },
        }
    }

    /// An attempt to make this rank's exclusive request the tail: what the word held. It took if that is `seen`.
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

    /// Takes the lock of `target` exclusively if nobody has it or waits for it; whether it did. Asks for no place in the queue,
    /// so it delays nobody, and waits for nobody. 1 compare-and-swap, or 2 if the first guess is stale; one more for each
    /// request that came and went in between.
    ///
    /// # Errors
    /// As [`exclusive`](Self::exclusive).
    pub fn try_exclusive<N: Network>(&mut self, network: &N, layout: LockLayout, target: Rank) -> Result<bool, N> {
        let me = network.rank();
        self.try_change(network, layout, target, HeldAs::Exclusive(Behind::NOBODY), |seen| {
            seen.is_idle().then(|| seen.with_exclusive(me))
        })
    }

    /// Takes the lock of `target` together with other readers if no exclusive request is held or queued; whether it did.
    /// Else as [`try_exclusive`](Self::try_exclusive).
    ///
    /// # Errors
    /// As [`exclusive`](Self::exclusive).
    pub fn try_shared<N: Network>(&mut self, network: &N, layout: LockLayout, target: Rank) -> Result<bool, N> {
        self.try_change(network, layout, target, HeldAs::Shared(Grant::Open), |seen| {
            let room = if seen.crowded() { seen.renormalised() } else { seen };
            (seen.tail().is_none() && !seen.is_urgent()).then(|| LockWord(room.0.wrapping_add(LockWord::<C>::ARRIVED)))
        })
    }

    /// Changes the word as `to` says, unless that finds that somebody is in the way.
    fn try_change<N: Network>(
        &mut self,
        network: &N,
        layout: LockLayout,
        target: Rank,
        held: HeldAs,
        to: impl Fn(LockWord<C>) -> Option<LockWord<C>>,
    ) -> Result<bool, N> {
        if self.is_in_queue_still(network, layout, target)? {
            return Ok(false);
        }
        self.enter(network, layout, target)?;
        // What was seen last may be long past: only what is found now is a reason to give up.
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

    /// Waits until nobody stands before an exclusive request. Others may have `left`, that stood where it does.
    #[cold]
    fn wait_for_turn<N: Network>(
        network: &N,
        layout: LockLayout,
        target: Rank,
        ahead: Ahead,
        left: bool,
    ) -> Result<Behind, N> {
        let me = network.rank();
        let (mut readers, mut behind) = (ahead.readers, Behind::NOBODY);
        Self::check_ahead(network, target, ahead)?;
        if let Some(tail) = ahead.exclusive {
            let next = Next { rank: me, readers, timed: false, watches: network.watches(tail) };
            let next_of_tail = layout.node(tail, target, Field::Next);
            match left {
                true => Self::come_behind(network, next_of_tail, next.pack())?,
                false => network.notify(next_of_tail, next.pack(), Wake::Home)?,
            }
            if next.watches && Self::watch_for_turn(network, layout, target, tail, next)? {
                behind = Behind::watched(tail);
            } else {
                // Cleared when this rank releases: nobody tells it anew before it asks anew.
                let go = network.wait(layout.node(me, target, Field::Go).word, Awaited::Behind(tail), |go| go != 0)?;
                // More than stood between when it asked, if a request that did has left the queue since.
                readers = Self::readers_of_go(network, target, go, readers)?;
                behind = Behind::told(ahead.exclusive);
            }
        }
        if readers > 0 {
            let drained = layout.node(me, target, Field::Drained);
            let told = network.wait(drained.word, Awaited::Anyone, |told| told >= readers)?;
            Self::drained(network, layout, target, readers, told)?;
        }
        Ok(behind)
    }

    /// Watches what it has put into `next` of rank `tail` until that says whether its turn has come; or it will be told at `go`.
    fn watch_for_turn<N: Network>(
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
        // That rank awaits this before it asks anew.
        network.notify(node, 0, Wake::Home)?;
        Ok(told == Next::TURN)
    }

    /// Checks who stands before an exclusive request that must wait.
    pub(crate) fn check_ahead<N: Network>(network: &N, target: Rank, ahead: Ahead) -> Result<(), N> {
        // Each rank has one request at most, and this one is mine.
        if ahead.exclusive == Some(network.rank()) || ahead.readers >= network.ranks() as u64 {
            let next = Next { rank: network.rank(), readers: ahead.readers, timed: false, watches: false };
            return Err(Error::Corrupt { target, word: next.pack() });
        }
        Ok(())
    }

    /// How many departures an exclusive request awaits that was told `go`; no fewer than it knows of.
    pub(crate) fn readers_of_go<N: Network>(network: &N, target: Rank, go: u64, known: u64) -> Result<u64, N> {
        let readers = go.wrapping_sub(1);
        let may_be = known..network.ranks() as u64;
        if may_be.contains(&readers) { Ok(readers) } else { Err(Error::Corrupt { target, word: go }) }
    }

    /// All before an exclusive request have left, as it was `told`.
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

    /// Takes the lock of `target` together with other readers: 1 fetch-and-add if no exclusive request is held or
    /// queued; otherwise also a compare-and-swap at the last of these (again for each reader that registers there in
    /// between) and local waiting.
    ///
    /// # Errors
    /// As [`exclusive`](Self::exclusive).
    #[inline(always)]
    pub fn shared<N: Network>(&mut self, network: &N, layout: LockLayout, target: Rank) -> Result<Ahead, N> {
        if let Status::Abandoned(tail) = self.status.get()
            && self.aside(move |lock| lock.revive(network, layout, target))?
        {
            return self.await_shared(network, layout, target, Placed::Behind(tail as Rank));
        }
        let pending = self.start_shared(network, layout, target)?;
        let placed = self.place_shared(network, layout, target, pending, false)?;
        self.await_shared(network, layout, target, placed)
    }

    /// The request's atomic, not waited for: lock_all has all of them in flight at once. If it cannot be started,
    /// nothing has happened, and the lock is not broken.
    #[inline(always)]
    pub(crate) fn start_shared<N: Network>(
        &mut self,
        network: &N,
        layout: LockLayout,
        target: Rank,
    ) -> Result<N::Pending, N> {
        self.enter(network, layout, target)?;
        let ticket = match LockWord::<C>(self.seen).is_urgent() {
            true => Some(Self::enter_gate(network, layout, target)?),
            false => None,
        };
        let started = network.start_add(layout.home(target), LockWord::<C>::ARRIVED, Wake::Nobody);
        if let Some(ticket) = ticket {
            Self::leave_gate(network, layout, target, ticket)?;
        }
        started.map_err(|error| {
            self.status = StatusWord::of(Status::Free);
            error.into()
        })
    }

    /// Takes the place in the queue that the atomic gave, for a request that is `timed` or not.
    #[inline(always)]
    pub(crate) fn place_shared<N: Network>(
        &mut self,
        network: &N,
        layout: LockLayout,
        target: Rank,
        pending: N::Pending,
        timed: bool,
    ) -> Result<Placed, N> {
        let found = LockWord::<C>(network.finish(pending)?);
        self.seen = found.0.wrapping_add(LockWord::<C>::ARRIVED);
        let Some(tail) = found.tail() else {
            if found.crowded() {
                self.aside(move |lock| lock.renormalise(network, layout, target))?;
            }
            self.status = StatusWord::of(Status::Held(HeldAs::Shared(Grant::Open)));
            return Ok(Placed::Granted);
        };
        Self::register(network, layout, target, found, tail, timed)
    }

    /// Waits for the grant, unless it is there.
    #[inline(always)]
    pub(crate) fn await_shared<N: Network>(
        &mut self,
        network: &N,
        layout: LockLayout,
        target: Rank,
        placed: Placed,
    ) -> Result<Ahead, N> {
        let Placed::Behind(tail) = placed else { return Ok(Ahead::default()) };
        let node = layout.node(network.rank(), target, Field::Grant);
        let grant = network.wait(node.word, Awaited::Behind(tail), |grant| grant != 0)?;
        network.notify(node, 0, Wake::Nobody)?;
        self.status = StatusWord::of(Status::Held(HeldAs::Shared(Grant::unpack(grant))));
        Ok(Ahead { exclusive: Some(tail), readers: 0 })
    }

    /// Tells the last exclusive requester that a reader waits for its grant.
    #[cold]
    fn register<N: Network>(
        network: &N,
        layout: LockLayout,
        target: Rank,
        found: LockWord<C>,
        tail: Rank,
        timed: bool,
    ) -> Result<Placed, N> {
        let me = network.rank();
        if tail == me {
            return Err(Error::Corrupt { target, word: found.0 });
        }
        let mut waiters = Waiters::default();
        loop {
            network.notify(layout.node(me, target, Field::Link), waiters.0, Wake::Nobody)?;
            let found = network.cas(
                layout.node(tail, target, Field::Waiters),
                waiters.0,
                waiters.pushed(Waiter { rank: me, timed }).0,
                Wake::Home,
            )?;
            if found == waiters.0 {
                return Ok(Placed::Behind(tail));
            }
            waiters = Waiters(found);
        }
    }

    /// Makes room in `arrived`, or sees that another did. While nobody has, each other rank changes the word twice at most, as it departs
    /// and arrives, before it tries that too. So after more changes somebody did, though the count is past its half again.
    #[cold]
    fn renormalise<N: Network>(&mut self, network: &N, layout: LockLayout, target: Rank) -> Result<(), N> {
        let mut seen = LockWord::<C>(self.seen);
        for _ in 0..2 * network.ranks() {
            if !seen.crowded() {
                break;
            }
            let new = seen.renormalised();
            let found = network.cas(layout.home(target), seen.0, new.0, Wake::Nobody)?;
            seen = if found == seen.0 { new } else { LockWord(found) };
        }
        self.seen = seen.0;
        Ok(())
    }

    /// Whether this rank may ask for the lock.
    #[inline(always)]
    pub(crate) fn check_free<E>(&self, target: Rank) -> std::result::Result<(), Error<E>> {
        match self.status.get() {
            Status::Free | Status::Shown | Status::Abandoned(_) => Ok(()),
            Status::Held(_) => Err(Error::AlreadyLocked { target }),
            Status::Broken => Err(Error::Broken { target }),
        }
    }

    /// Before a request: until it succeeds the lock is broken. Awaits what is in the queue still of an earlier one.
    #[inline(always)]
    fn enter<N: Network>(&mut self, network: &N, layout: LockLayout, target: Rank) -> Result<(), N> {
        if self.status != StatusWord::of(Status::Free) {
            self.check_free(target)?;
            self.aside(move |lock| lock.settle(network, layout, target))?;
        }
        self.status = StatusWord::of(Status::Broken);
        Ok(())
    }

    /// Before a release: how the lock is held. Until the release succeeds the lock is broken.
    #[inline(always)]
    pub(crate) fn leave<E>(&mut self, target: Rank) -> std::result::Result<HeldAs, Error<E>> {
        match self.status.get() {
            Status::Held(held) => {
                self.status = StatusWord::of(Status::Broken);
                Ok(held)
            }
            Status::Free | Status::Shown | Status::Abandoned(_) => Err(Error::NotLocked { target }),
            Status::Broken => Err(Error::Broken { target }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_words_give_back_each_status() {
        let exclusive = [Behind::NOBODY, Behind::told(Some(0)), Behind::told(Some(32_766)), Behind::watched(32_766)];
        let shared = [Grant::Open, Grant::Before(0), Grant::Before(u32::MAX)];
        let held = exclusive.map(HeldAs::Exclusive).into_iter().chain(shared.map(HeldAs::Shared)).map(Status::Held);
        let others = [Status::Free, Status::Shown, Status::Abandoned(0), Status::Abandoned(32_766), Status::Broken];
        for status in held.chain(others) {
            assert_eq!(StatusWord::of(status).get(), status);
        }
        assert_eq!(StatusWord(0xfe).get(), Status::Broken);
    }
}
