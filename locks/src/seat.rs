//! The passive lock's steps. [`Seat`] is one rank's place at one lock; README.md beside the code numbers the steps
//! and says why nobody is lost or overtaken.

use crate::word::{Grant, Next, Waiters};
use crate::{At, Awaited, Error, Rank, Word, Words};

/// Words of one cache line; the lock word and each node have a line of their own.
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
/// use transom_locks::{At, Field, Places};
/// // In the memory of rank 1, the first word of its node for the lock of rank 0.
/// assert_eq!(Places::new(0, 2).field(At { rank: 1, word: 8 }), Some((0, Field::Next)));
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
/// use transom_locks::{At, Field, Places};
/// assert_eq!(Places::words(64), 8 * 65);
/// assert_eq!(Places::new(16, 64).field(At { rank: 5, word: 16 }), Some((5, Field::Word)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Places {
    base: usize,
    ranks: usize,
}

impl Places {
    /// The places of the locks of `ranks` ranks from word `base` on, which should begin a cache line.
    pub const fn new(base: usize, ranks: usize) -> Self {
        Places { base, ranks }
    }

    /// Words of lock memory at each rank: `8 (ranks + 1)`, one cache line for the lock word and one for each node.
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
/// [`PassiveLock`](crate::PassiveLock) is a row of seats; a model keeps seats in its states. `C` is the width of the
/// word's counts.
///
/// # Examples
/// ```
/// use transom_locks::model::{sim, Sim};
/// use transom_locks::{Places, Seat};
///
/// let places = Places::new(0, 2);
/// let net = Sim::new(2, Places::words(2), sim::once(move |_, words| {
///     let mut seat = Seat::<16>::new();
///     seat.exclusive(words, places, 0)?; // the lock of rank 0
///     seat.release(words, places, 0)
/// }));
/// net.run_random(1).unwrap();
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Seat<const C: u32 = 16> {
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

type Result<T, W> = std::result::Result<T, Error<<W as Words>::Error>>;

impl<const C: u32> Default for Seat<C> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const C: u32> Seat<C> {
    /// A seat at a lock that nobody has touched.
    pub const fn new() -> Self {
        Seat { held: Held::Nothing, seen: 0 }
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
    /// that came in between, 1 post, and local waiting.
    ///
    /// # Errors
    /// [`Error::AlreadyLocked`] if held, [`Error::Broken`] after an earlier failure, [`Error::Words`] from the network.
    #[inline(always)]
    pub fn exclusive<W: Words>(&mut self, words: &W, places: Places, target: Rank) -> Result<Ahead, W> {
        self.enter(target)?;
        let mut seen = Word::<C>(self.seen);
        loop {
            let new = seen.with_exclusive(words.rank());
            let found = words.cas(places.home(target), seen.0, new.0)?;
            if found == seen.0 {
                self.seen = new.0;
                break;
            }
            seen = Word(found);
        }
        let ahead = match seen.tail() {
            None => Ahead { exclusive: None, readers: seen.readers() },
            Some(tail) => Ahead { exclusive: Some(tail), readers: seen.arrived() },
        };
        if ahead != Ahead::default() {
            Self::wait_for_turn(words, places, target, ahead)?;
        }
        self.held = Held::In(Hold::Exclusive(ahead.exclusive.map_or(0, |rank| rank as u32 + 1)));
        Ok(ahead)
    }

    #[cold]
    fn wait_for_turn<W: Words>(words: &W, places: Places, target: Rank, ahead: Ahead) -> Result<(), W> {
        let me = words.rank();
        let next = Next { rank: me, readers: ahead.readers };
        // Each rank has one request at most, and this one is mine.
        if ahead.exclusive == Some(me) || ahead.readers >= words.ranks() as u64 {
            return Err(Error::Corrupt { target, word: next.pack() });
        }
        if let Some(tail) = ahead.exclusive {
            words.post(places.node(tail, target, NEXT), next.pack())?;
            // Cleared when this rank lets go: nobody tells it anew before it asks anew.
            let go = words.wait(places.node(me, target, GO).word, Awaited::Anyone, |go| go != 0)?;
            if go != ahead.readers + 1 {
                return Err(Error::Corrupt { target, word: go });
            }
        }
        if ahead.readers > 0 {
            let drained = places.node(me, target, DRAINED);
            match words.wait(drained.word, Awaited::Anyone, |told| told >= ahead.readers)? {
                told if told == ahead.readers => words.post(drained, 0)?,
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
    pub fn shared<W: Words>(&mut self, words: &W, places: Places, target: Rank) -> Result<Ahead, W> {
        let pending = self.start_shared(words, places, target)?;
        let settled = self.settle_shared(words, places, target, pending)?;
        self.await_shared(words, places, target, settled)
    }

    /// The request's atomic, not waited for: lock_all has all of them in flight at once.
    #[inline(always)]
    pub(crate) fn start_shared<W: Words>(&mut self, words: &W, places: Places, target: Rank) -> Result<W::Pending, W> {
        self.enter(target)?;
        Ok(words.start_add(places.home(target), Word::<C>::ARRIVED)?)
    }

    /// Takes the place in the queue that the atomic gave.
    #[inline(always)]
    pub(crate) fn settle_shared<W: Words>(
        &mut self,
        words: &W,
        places: Places,
        target: Rank,
        pending: W::Pending,
    ) -> Result<Settled, W> {
        let found = Word::<C>(words.finish(pending)?);
        self.seen = found.0.wrapping_add(Word::<C>::ARRIVED);
        let Some(tail) = found.tail() else {
            if found.crowded() {
                self.renormalise(words, places, target)?;
            }
            self.held = Held::In(Hold::Shared(Grant::Open));
            return Ok(Settled::In(Ahead::default()));
        };
        Self::register(words, places, target, found, tail)
    }

    #[inline(always)]
    pub(crate) fn await_shared<W: Words>(
        &mut self,
        words: &W,
        places: Places,
        target: Rank,
        settled: Settled,
    ) -> Result<Ahead, W> {
        match settled {
            Settled::In(ahead) => Ok(ahead),
            Settled::Waiting(ahead) => {
                let grant = take_any(words, places.node(words.rank(), target, GRANT))?;
                self.held = Held::In(Hold::Shared(Grant::unpack(grant)));
                Ok(ahead)
            }
        }
    }

    /// Tells the last exclusive requester that a reader waits for its grant.
    #[cold]
    fn register<W: Words>(words: &W, places: Places, target: Rank, found: Word<C>, tail: Rank) -> Result<Settled, W> {
        let me = words.rank();
        if tail == me {
            return Err(Error::Corrupt { target, word: found.0 });
        }
        let mut waiters = Waiters::default();
        loop {
            words.post(places.node(me, target, LINK), waiters.0)?;
            let found = words.cas(places.node(tail, target, WAITERS), waiters.0, waiters.pushed(me).0)?;
            if found == waiters.0 {
                return Ok(Settled::Waiting(Ahead { exclusive: Some(tail), readers: 0 }));
            }
            waiters = Waiters(found);
        }
    }

    /// Makes room in `arrived`, or sees that another did.
    #[cold]
    fn renormalise<W: Words>(&mut self, words: &W, places: Places, target: Rank) -> Result<(), W> {
        let mut seen = Word::<C>(self.seen);
        while seen.crowded() {
            let new = seen.renormalised();
            let found = words.cas(places.home(target), seen.0, new.0)?;
            if found == seen.0 {
                seen = new;
            } else {
                seen = Word(found);
            }
        }
        self.seen = seen.0;
        Ok(())
    }

    /// Lets go. Exclusive: 1 compare-and-swap (again for each request that came in between), or none if the successor
    /// has said that it is there; with a successor 1 post, with `r` waiting readers `r` posts and `r/3` reads more.
    /// Shared: 1 fetch-and-add; 2 if an exclusive request waits for the open group.
    ///
    /// # Errors
    /// [`Error::NotLocked`] if not held, and as [`exclusive`](Self::exclusive).
    #[inline(always)]
    pub fn release<W: Words>(&mut self, words: &W, places: Places, target: Rank) -> Result<(), W> {
        match self.leave(target)? {
            Hold::Shared(grant) => {
                let pending = Self::start_leaving::<W>(words, places, target, grant)?;
                self.finish_leaving(words, places, target, grant, pending)?;
            }
            Hold::Exclusive(before) => self.finish_exclusive(words, places, target, before)?,
        }
        Ok(())
    }

    #[inline(always)]
    pub(crate) fn finish_exclusive<W: Words>(
        &mut self,
        words: &W,
        places: Places,
        target: Rank,
        before: u32,
    ) -> Result<(), W> {
        let seen = Word::<C>(self.seen);
        // Local: who asked behind this rank, if it has said so; then this rank is not the tail.
        let told = words.wait(places.node(words.rank(), target, NEXT).word, Awaited::Anyone, |_| true)?;
        if told == 0 {
            let new = seen.without_exclusive();
            let found = words.cas(places.home(target), seen.0, new.0)?;
            if found == seen.0 && seen.arrived() == 0 {
                return self.gone(words, places, target, before, new);
            }
            return self.finish_before_others(words, places, target, before, Word(found));
        }
        let next = Self::hand_over(words, places, target, told)?;
        // A guess: where ranks take turns, the one that this one followed has asked again by now.
        let seen = seen.with_exclusive(before.checked_sub(1).map_or(next, |before| before as Rank));
        self.gone(words, places, target, before, seen)
    }

    /// After the first compare-and-swap of the word found `found`: it took, or somebody has asked since.
    #[cold]
    fn finish_before_others<W: Words>(
        &mut self,
        words: &W,
        places: Places,
        target: Rank,
        before: u32,
        found: Word<C>,
    ) -> Result<(), W> {
        let me = words.rank();
        let (mut seen, mut found) = (Word::<C>(self.seen), found);
        while found != seen {
            seen = found;
            if seen.tail() != Some(me) {
                let told = words.wait(places.node(me, target, NEXT).word, Awaited::Anyone, |next| next != 0)?;
                Self::hand_over(words, places, target, told)?;
                return self.gone(words, places, target, before, seen);
            }
            found = Word(words.cas(places.home(target), seen.0, seen.without_exclusive().0)?);
        }
        if seen.arrived() > 0 {
            Self::admit(words, places, target, seen.arrived(), Grant::Open)?;
        }
        self.gone(words, places, target, before, seen.without_exclusive())
    }

    /// Clears what this rank was told, now that the next has been.
    #[inline(always)]
    fn gone<W: Words>(&mut self, words: &W, places: Places, target: Rank, before: u32, seen: Word<C>) -> Result<(), W> {
        if before != 0 {
            words.post(places.node(words.rank(), target, GO), 0)?;
        }
        self.seen = seen.0;
        self.held = Held::Nothing;
        Ok(())
    }

    /// Tells the exclusive requester behind this rank, and the readers between, that their turn has come; returns it.
    #[cold]
    fn hand_over<W: Words>(words: &W, places: Places, target: Rank, word: u64) -> Result<Rank, W> {
        let next = Next::unpack(word);
        if next.rank >= words.ranks() || next.readers >= words.ranks() as u64 {
            return Err(Error::Corrupt { target, word });
        }
        words.post(places.node(next.rank, target, GO), next.readers + 1)?;
        words.post(places.node(words.rank(), target, NEXT), 0)?;
        if next.readers > 0 {
            Self::admit(words, places, target, next.readers, Grant::Before(next.rank as u32))?;
        }
        Ok(next.rank)
    }

    /// Grants `readers` registered readers, awaiting those that are about to register.
    #[cold]
    fn admit<W: Words>(words: &W, places: Places, target: Rank, readers: u64, grant: Grant) -> Result<(), W> {
        let node = places.node(words.rank(), target, WAITERS);
        let mut waiters = Waiters(words.wait(node.word, Awaited::Anyone, |word| Waiters(word).count() >= readers)?);
        words.post(node, 0)?;
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
                Some(last) if left > 0 => words.add(places.node(last, target, LINK), 0)?,
                _ => 0,
            };
            for reader in waiters.named() {
                words.post(places.node(reader, target, GRANT), grant.pack())?;
            }
            if left == 0 {
                return Ok(());
            }
            waiters = Waiters(rest);
        }
    }

    /// The first atomic of a reader that leaves, not waited for.
    #[inline(always)]
    pub(crate) fn start_leaving<W: Words>(
        words: &W,
        places: Places,
        target: Rank,
        grant: Grant,
    ) -> Result<W::Pending, W> {
        Ok(match grant {
            Grant::Open => words.start_add(places.home(target), Word::<C>::DEPARTED)?,
            Grant::Before(next) => words.start_add(places.node(next as Rank, target, DRAINED), 1)?,
        })
    }

    /// Tells the exclusive request, if any, that waits for the open group.
    #[inline(always)]
    pub(crate) fn finish_leaving<W: Words>(
        &mut self,
        words: &W,
        places: Places,
        target: Rank,
        grant: Grant,
        pending: W::Pending,
    ) -> Result<(), W> {
        let found = words.finish(pending)?;
        if grant == Grant::Open {
            self.seen = found.wrapping_add(Word::<C>::DEPARTED);
            if let Some(head) = Word::<C>(found).head() {
                words.add(places.node(head, target, DRAINED), 1)?;
            }
        }
        self.held = Held::Nothing;
        Ok(())
    }

    /// Until the call succeeds the seat is broken.
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

    /// How the lock is held that is now let go. Until the call succeeds the seat is broken.
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
fn take_any<W: Words>(words: &W, at: At) -> Result<u64, W> {
    let value = words.wait(at.word, Awaited::Anyone, |value| value != 0)?;
    words.post(at, 0)?;
    Ok(value)
}
