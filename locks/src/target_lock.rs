//! The passive lock's steps. [`TargetLock`] is one rank's place at one lock; README.md beside the code numbers the steps
//! and says why nobody is lost or overtaken.

use crate::lock_word::{Grant, Next, Waiters};
use crate::{At, Awaited, Error, LockWord, Network, Rank};

/// Network of one cache line; the lock word and each node have a line of their own.
const LINE: usize = 8;

// A node's words.
const NEXT: usize = 0;
const GO: usize = 1;
const DRAINED: usize = 2;
const WAITERS: usize = 3;
const GRANT: usize = 4;
const LINK: usize = 5;

/// The field of a node, for whoever watches the words of a lock go by.
///
/// # Examples
/// ```
/// use transom_locks::{At, Field, LockLayout};
/// // In the memory of rank 1, the first word of its node for the lock of rank 0.
/// assert_eq!(LockLayout::new(0, 2).field(At { rank: 1, word: 8 }), Some((0, Field::Next)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Field {
    /// The lock word of its rank.
    Word,
    /// Who asked exclusively after the node's rank, and how many readers stand between.
    Next,
    /// From the predecessor: you are first, after that many departures.
    Go,
    /// Departures told to the node's rank.
    Drained,
    /// The readers that registered with the node's rank.
    Waiters,
    /// To a waiting reader: go in, and whom to tell when leaving.
    Grant,
    /// What the node's rank found in `waiters` when it registered.
    Link,
}

/// Where the words of one family of locks lie (one lock at each rank), the same at every rank: from `base` on a line
/// with the lock word of the rank itself, then a node for the lock of each rank.
///
/// # Examples
/// ```
/// use transom_locks::{At, Field, LockLayout};
/// assert_eq!(LockLayout::words(64), 8 * 65);
/// assert_eq!(LockLayout::new(16, 64).field(At { rank: 5, word: 16 }), Some((5, Field::Word)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LockLayout {
    base: usize,
    ranks: usize,
}

impl LockLayout {
    /// The layout of the locks of `ranks` ranks from word `base` on, which should begin a cache line.
    pub const fn new(base: usize, ranks: usize) -> Self {
        LockLayout { base, ranks }
    }

    /// Network of lock memory at each rank: `8 (ranks + 1)`, one cache line for the lock word and one for each node.
    pub const fn words(ranks: usize) -> usize {
        LINE * (ranks + 1)
    }

    /// Which lock (by its target) and field a word belongs to; `None` for padding and words of others.
    pub fn field(self, at: At) -> Option<(Rank, Field)> {
        let line = at.word.checked_sub(self.base)? / LINE;
        match ((at.word - self.base) % LINE, line) {
            (0, 0) => Some((at.rank, Field::Word)),
            (_, 0) => None,
            (_, line) if line > self.ranks => None,
            (NEXT, line) => Some((line - 1, Field::Next)),
            (GO, line) => Some((line - 1, Field::Go)),
            (DRAINED, line) => Some((line - 1, Field::Drained)),
            (WAITERS, line) => Some((line - 1, Field::Waiters)),
            (GRANT, line) => Some((line - 1, Field::Grant)),
            (LINK, line) => Some((line - 1, Field::Link)),
            _ => None,
        }
    }

    #[inline]
    fn home(self, target: Rank) -> At {
        At { rank: target, word: self.base }
    }

    #[inline]
    fn node(self, rank: Rank, target: Rank, field: usize) -> At {
        At { rank, word: self.base + LINE * (target + 1) + field }
    }
}

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

/// How a lock is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Hold {
    /// After the exclusive request of this rank + 1, or of none. (A narrow type, for a small seat.)
    Exclusive(u32),
    Shared(Grant),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Held {
    Nothing,
    In(Hold),
    /// A call failed midway: what the queue holds of this rank is unknown.
    Broken,
}

/// One rank's place at the lock of one target, as plain data, with the protocol's steps on it.
/// [`PassiveLock`](crate::PassiveLock) is a row of locks; a model keeps locks in its states. `C` is the width of the
/// word's counts.
///
/// # Examples
/// ```
/// use transom_locks::model::{sim, Sim};
/// use transom_locks::{LockLayout, TargetLock};
///
/// let layout = LockLayout::new(0, 2);
/// let net = Sim::new(2, LockLayout::words(2), sim::once(move |_, network| {
///     let mut seat = TargetLock::<16>::new();
///     seat.exclusive(network, layout, 0)?; // the lock of rank 0
///     seat.release(network, layout, 0)
/// }));
/// net.run_random(1).unwrap();
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TargetLock<const C: u32 = 16> {
    held: Held,
    /// The word as last seen: the first guess of the next compare-and-swap.
    seen: u64,
}

/// A shared request between its atomic and its grant.
#[must_use]
pub(crate) enum Settled {
    In(Ahead),
    Waiting(Ahead),
}

type Result<T, N> = std::result::Result<T, Error<<N as Network>::Error>>;

impl<const C: u32> Default for TargetLock<C> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const C: u32> TargetLock<C> {
    /// A seat at a lock that nobody has touched.
    pub const fn new() -> Self {
        TargetLock { held: Held::Nothing, seen: 0 }
    }

    /// Whether this rank holds the lock.
    pub fn is_held(&self) -> bool {
        matches!(self.held, Held::In(_))
    }

    /// Whether a call failed midway, so that what the queue holds of this rank is unknown.
    pub fn is_broken(&self) -> bool {
        self.held == Held::Broken
    }

    /// Takes the lock of `target` exclusively: 1 compare-and-swap if it is free; otherwise also one for each request
    /// that came in between, 1 notify, and local waiting.
    ///
    /// # Errors
    /// [`Error::AlreadyLocked`] if held, [`Error::Broken`] after an earlier failure, [`Error::Network`] from the network.
    #[inline(always)]
    pub fn exclusive<N: Network>(&mut self, network: &N, layout: LockLayout, target: Rank) -> Result<Ahead, N> {
        self.enter(target)?;
        let mut seen = LockWord::<C>(self.seen);
        loop {
            let new = seen.with_exclusive(network.rank());
            let found = network.cas(layout.home(target), seen.0, new.0)?;
            if found == seen.0 {
                self.seen = new.0;
                break;
            }
            seen = LockWord(found);
        }
        let ahead = match seen.tail() {
            None => Ahead { exclusive: None, readers: seen.readers() },
            Some(tail) => Ahead { exclusive: Some(tail), readers: seen.arrived() },
        };
        if ahead != Ahead::default() {
            Self::wait_for_turn(network, layout, target, ahead)?;
        }
        self.held = Held::In(Hold::Exclusive(ahead.exclusive.map_or(0, |rank| rank as u32 + 1)));
        Ok(ahead)
    }

    #[cold]
    fn wait_for_turn<N: Network>(network: &N, layout: LockLayout, target: Rank, ahead: Ahead) -> Result<(), N> {
        let me = network.rank();
        let next = Next { rank: me, readers: ahead.readers };
        // Each rank has one request at most, and this one is mine.
        if ahead.exclusive == Some(me) || ahead.readers >= network.ranks() as u64 {
            return Err(Error::Corrupt { target, word: next.pack() });
        }
        if let Some(tail) = ahead.exclusive {
            network.notify(layout.node(tail, target, NEXT), next.pack())?;
            // Cleared when this rank lets go: nobody tells it anew before it asks anew.
            let go = network.wait(layout.node(me, target, GO).word, Awaited::Anyone, |go| go != 0)?;
            if go != ahead.readers + 1 {
                return Err(Error::Corrupt { target, word: go });
            }
        }
        if ahead.readers > 0 {
            let drained = layout.node(me, target, DRAINED);
            match network.wait(drained.word, Awaited::Anyone, |told| told >= ahead.readers)? {
                told if told == ahead.readers => network.notify(drained, 0)?,
                word => return Err(Error::Corrupt { target, word }),
            }
        }
        Ok(())
    }

    /// Takes the lock of `target` together with other readers: 1 fetch-and-add if no exclusive request is held or
    /// queued; otherwise also a compare-and-swap at the last of these (again for each reader that registers there in
    /// between) and local waiting.
    ///
    /// # Errors
    /// As [`exclusive`](Self::exclusive).
    #[inline(always)]
    pub fn shared<N: Network>(&mut self, network: &N, layout: LockLayout, target: Rank) -> Result<Ahead, N> {
        let pending = self.start_shared(network, layout, target)?;
        let settled = self.settle_shared(network, layout, target, pending)?;
        self.await_shared(network, layout, target, settled)
    }

    /// The request's atomic, not waited for: lock_all has all of them in flight at once.
    #[inline(always)]
    pub(crate) fn start_shared<N: Network>(
        &mut self,
        network: &N,
        layout: LockLayout,
        target: Rank,
    ) -> Result<N::Pending, N> {
        self.enter(target)?;
        network.start_add(layout.home(target), LockWord::<C>::ARRIVED).map_err(|error| {
            // Nothing was started, so nothing is to be undone.
            self.held = Held::Nothing;
            error.into()
        })
    }

    /// Takes the place in the queue that the atomic gave.
    #[inline(always)]
    pub(crate) fn settle_shared<N: Network>(
        &mut self,
        network: &N,
        layout: LockLayout,
        target: Rank,
        pending: N::Pending,
    ) -> Result<Settled, N> {
        let found = LockWord::<C>(network.finish(pending)?);
        self.seen = found.0.wrapping_add(LockWord::<C>::ARRIVED);
        let Some(tail) = found.tail() else {
            if found.crowded() {
                self.renormalise(network, layout, target)?;
            }
            self.held = Held::In(Hold::Shared(Grant::Open));
            return Ok(Settled::In(Ahead::default()));
        };
        Self::register(network, layout, target, found, tail)
    }

    #[inline(always)]
    pub(crate) fn await_shared<N: Network>(
        &mut self,
        network: &N,
        layout: LockLayout,
        target: Rank,
        settled: Settled,
    ) -> Result<Ahead, N> {
        match settled {
            Settled::In(ahead) => Ok(ahead),
            Settled::Waiting(ahead) => {
                let grant = take_any(network, layout.node(network.rank(), target, GRANT))?;
                self.held = Held::In(Hold::Shared(Grant::unpack(grant)));
                Ok(ahead)
            }
        }
    }

    /// Tells the last exclusive requester that a reader waits for its grant.
    #[cold]
    fn register<N: Network>(
        network: &N,
        layout: LockLayout,
        target: Rank,
        found: LockWord<C>,
        tail: Rank,
    ) -> Result<Settled, N> {
        let me = network.rank();
        if tail == me {
            return Err(Error::Corrupt { target, word: found.0 });
        }
        let mut waiters = Waiters::default();
        loop {
            network.notify(layout.node(me, target, LINK), waiters.0)?;
            let found = network.cas(layout.node(tail, target, WAITERS), waiters.0, waiters.pushed(me).0)?;
            if found == waiters.0 {
                return Ok(Settled::Waiting(Ahead { exclusive: Some(tail), readers: 0 }));
            }
            waiters = Waiters(found);
        }
    }

    /// Makes room in `arrived`, or sees that another did.
    #[cold]
    fn renormalise<N: Network>(&mut self, network: &N, layout: LockLayout, target: Rank) -> Result<(), N> {
        let mut seen = LockWord::<C>(self.seen);
        while seen.crowded() {
            let new = seen.renormalised();
            let found = network.cas(layout.home(target), seen.0, new.0)?;
            if found == seen.0 {
                seen = new;
            } else {
                seen = LockWord(found);
            }
        }
        self.seen = seen.0;
        Ok(())
    }

    /// Lets go. Exclusive: 1 compare-and-swap (again for each request that came in between), or none if the successor
    /// has said that it is there; with a successor 1 notify, with `r` waiting readers `r` notifications and `r/3` reads more.
    /// Shared: 1 fetch-and-add; 2 if an exclusive request waits for the open group.
    ///
    /// # Errors
    /// [`Error::NotLocked`] if not held, and as [`exclusive`](Self::exclusive).
    #[inline(always)]
    pub fn release<N: Network>(&mut self, network: &N, layout: LockLayout, target: Rank) -> Result<(), N> {
        match self.leave(target)? {
            Hold::Shared(grant) => {
                let pending = self.start_leaving(network, layout, target, grant)?;
                self.finish_leaving(network, layout, target, grant, pending)?;
            }
            Hold::Exclusive(before) => self.finish_exclusive(network, layout, target, before)?,
        }
        Ok(())
    }

    #[inline(always)]
    pub(crate) fn finish_exclusive<N: Network>(
        &mut self,
        network: &N,
        layout: LockLayout,
        target: Rank,
        before: u32,
    ) -> Result<(), N> {
        let seen = LockWord::<C>(self.seen);
        // Local: who asked behind this rank, if it has said so; then this rank is not the tail.
        let told = network.wait(layout.node(network.rank(), target, NEXT).word, Awaited::Anyone, |_| true)?;
        if told == 0 {
            let new = seen.without_exclusive();
            let found = network.cas(layout.home(target), seen.0, new.0)?;
            if found == seen.0 && seen.arrived() == 0 {
                return self.gone(network, layout, target, before, new);
            }
            return self.finish_before_others(network, layout, target, before, LockWord(found));
        }
        let next = Self::hand_over(network, layout, target, told)?;
        // A guess: where ranks take turns, the one that this one followed has asked again by now.
        let seen = seen.with_exclusive(before.checked_sub(1).map_or(next, |before| before as Rank));
        self.gone(network, layout, target, before, seen)
    }

    /// After the first compare-and-swap of the word found `found`: it took, or somebody has asked since.
    #[cold]
    fn finish_before_others<N: Network>(
        &mut self,
        network: &N,
        layout: LockLayout,
        target: Rank,
        before: u32,
        found: LockWord<C>,
    ) -> Result<(), N> {
        let me = network.rank();
        let (mut seen, mut found) = (LockWord::<C>(self.seen), found);
        while found != seen {
            seen = found;
            if seen.tail() != Some(me) {
                let told = network.wait(layout.node(me, target, NEXT).word, Awaited::Anyone, |next| next != 0)?;
                Self::hand_over(network, layout, target, told)?;
                return self.gone(network, layout, target, before, seen);
            }
            found = LockWord(network.cas(layout.home(target), seen.0, seen.without_exclusive().0)?);
        }
        if seen.arrived() > 0 {
            Self::admit(network, layout, target, seen.arrived(), Grant::Open)?;
        }
        self.gone(network, layout, target, before, seen.without_exclusive())
    }

    /// Clears what this rank was told, now that the next has been.
    #[inline(always)]
    fn gone<N: Network>(
        &mut self,
        network: &N,
        layout: LockLayout,
        target: Rank,
        before: u32,
        seen: LockWord<C>,
    ) -> Result<(), N> {
        if before != 0 {
            network.notify(layout.node(network.rank(), target, GO), 0)?;
        }
        self.seen = seen.0;
        self.held = Held::Nothing;
        Ok(())
    }

    /// Tells the exclusive requester behind this rank, and the readers between, that their turn has come; returns it.
    #[cold]
    fn hand_over<N: Network>(network: &N, layout: LockLayout, target: Rank, word: u64) -> Result<Rank, N> {
        let next = Next::unpack(word);
        if next.rank >= network.ranks() || next.readers >= network.ranks() as u64 {
            return Err(Error::Corrupt { target, word });
        }
        network.notify(layout.node(next.rank, target, GO), next.readers + 1)?;
        network.notify(layout.node(network.rank(), target, NEXT), 0)?;
        if next.readers > 0 {
            Self::admit(network, layout, target, next.readers, Grant::Before(next.rank as u32))?;
        }
        Ok(next.rank)
    }

    /// Grants `readers` registered readers, awaiting those that are about to register.
    #[cold]
    fn admit<N: Network>(network: &N, layout: LockLayout, target: Rank, readers: u64, grant: Grant) -> Result<(), N> {
        let node = layout.node(network.rank(), target, WAITERS);
        let mut waiters = Waiters(network.wait(node.word, Awaited::Anyone, |word| Waiters(word).count() >= readers)?);
        network.notify(node, 0)?;
        let mut left = readers;
        loop {
            // Counts fall to 0 at the bottom of the stack; what breaks this is not one of ours.
            let named = waiters.named().count() as u64;
            if waiters.count() != left || named != left.min(Waiters::NAMED) {
                return Err(Error::Corrupt { target, word: waiters.0 });
            }
            left -= named;
            // A reader that was granted may come back and write its link anew: read on first.
            let rest = match waiters.named().last() {
                Some(last) if left > 0 => network.add(layout.node(last, target, LINK), 0)?,
                _ => 0,
            };
            for reader in waiters.named() {
                network.notify(layout.node(reader, target, GRANT), grant.pack())?;
            }
            if left == 0 {
                return Ok(());
            }
            waiters = Waiters(rest);
        }
    }

    /// The first atomic of a reader that leaves, not waited for. If it cannot be started, the lock is held as before.
    #[inline(always)]
    pub(crate) fn start_leaving<N: Network>(
        &mut self,
        network: &N,
        layout: LockLayout,
        target: Rank,
        grant: Grant,
    ) -> Result<N::Pending, N> {
        let started = match grant {
            Grant::Open => network.start_add(layout.home(target), LockWord::<C>::DEPARTED),
            Grant::Before(next) => network.start_add(layout.node(next as Rank, target, DRAINED), 1),
        };
        started.map_err(|error| {
            self.held = Held::In(Hold::Shared(grant));
            error.into()
        })
    }

    /// Tells the exclusive request, if any, that waits for the open group.
    #[inline(always)]
    pub(crate) fn finish_leaving<N: Network>(
        &mut self,
        network: &N,
        layout: LockLayout,
        target: Rank,
        grant: Grant,
        pending: N::Pending,
    ) -> Result<(), N> {
        let found = network.finish(pending)?;
        if grant == Grant::Open {
            self.seen = found.wrapping_add(LockWord::<C>::DEPARTED);
            if let Some(head) = LockWord::<C>(found).head() {
                network.add(layout.node(head, target, DRAINED), 1)?;
            }
        }
        self.held = Held::Nothing;
        Ok(())
    }

    /// Until the call succeeds the lock is broken.
    #[inline(always)]
    fn enter<E>(&mut self, target: Rank) -> std::result::Result<(), Error<E>> {
        match self.held {
            Held::Nothing => {
                self.held = Held::Broken;
                Ok(())
            }
            held => Err(held.refusal(target)),
        }
    }

    /// How the lock is held that is now let go. Until the call succeeds the lock is broken.
    #[inline(always)]
    pub(crate) fn leave<E>(&mut self, target: Rank) -> std::result::Result<Hold, Error<E>> {
        match std::mem::replace(&mut self.held, Held::Broken) {
            Held::In(hold) => Ok(hold),
            Held::Nothing => {
                self.held = Held::Nothing;
                Err(Error::NotLocked { target })
            }
            Held::Broken => Err(Error::Broken { target }),
        }
    }
}

impl Held {
    /// Why a seat that is not empty takes no request.
    #[cold]
    fn refusal<E>(self, target: Rank) -> Error<E> {
        match self {
            Held::Broken => Error::Broken { target },
            _ => Error::AlreadyLocked { target },
        }
    }
}

/// Waits until a word of one's own node is told, and leaves it as the next request must find it: 0.
fn take_any<N: Network>(network: &N, at: At) -> Result<u64, N> {
    let value = network.wait(at.word, Awaited::Anyone, |value| value != 0)?;
    network.notify(at, 0)?;
    Ok(value)
}
