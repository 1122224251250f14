//! The order book: what every request on a lock is owed, written down as the verbs go by, and checked.

use crate::gate;
use crate::lock_word::Next;
use crate::{At, Field, LockLayout, LockWord, Mode, Rank};
use std::collections::BTreeSet;

/// Changes of the lock word for each rank at most, from when it is urgent until all ask at the gate: a release, a request, making
/// room for that in the count, and its release.
const CHANGES: usize = 4;

/// Of who leaves the queue: what it takes the word to hold at first, that again when who stood behind it has left, and what it finds when
/// another comes after that.
const GUESSES: usize = 3;

/// A call of a rank on the locks, as a book or a [`Mix`](super::Mix) names it.
///
/// # Examples
/// ```
/// use transom_locks::{model::Call, Mode};
/// assert_eq!(Call::both(2, Mode::Shared), [Call::Acquire(2, Mode::Shared), Call::Release(2)]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    /// Take the lock of this target.
    Acquire(Rank, Mode),
    /// Release the lock of this target.
    Release(Rank),
    /// Take the lock of this target if nobody is in the way.
    TryAcquire(Rank, Mode),
    /// Take the lock of this target, unless its turn has not come when it has taken its place: a deadline that has passed. For
    /// one that passes later, let its rank be slow.
    AcquireUntil(Rank, Mode),
    /// Await the turn of a request for the lock of this target that was given up.
    Settle(Rank),
    /// Release the lock of this target if it is held.
    ReleaseHeld(Rank),
    /// Take the locks of all targets, shared.
    AcquireAll,
    /// Release the locks of all targets.
    ReleaseAll,
}

impl Call {
    /// The lock of `target` is tried, and released if that succeeded.
    pub const fn attempt(target: Rank, mode: Mode) -> [Call; 2] {
        [Call::TryAcquire(target, mode), Call::ReleaseHeld(target)]
    }

    /// A whole request: the lock of `target` is taken and released.
    pub const fn both(target: Rank, mode: Mode) -> [Call; 2] {
        [Call::Acquire(target, mode), Call::Release(target)]
    }
}

/// A verb as the network executed it.
///
/// # Examples
/// ```
/// use transom_locks::{model::Verb, At};
/// assert_eq!(Verb::Notify { at: At { rank: 1, word: 4 }, value: 7 }.at().rank, 1);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verb {
    /// Compare-and-swap.
    Cas {
        /// On which word.
        at: At,
        /// What the caller took it to hold.
        expected: u64,
        /// What it was to hold.
        new: u64,
    },
    /// Fetch-and-add.
    Add {
        /// On which word.
        at: At,
        /// What was added.
        delta: u64,
    },
    /// A put of 8 bytes.
    Notify {
        /// To which word.
        at: At,
        /// What was put.
        value: u64,
    },
}

impl Verb {
    /// The word it acts on.
    pub fn at(self) -> At {
        match self {
            Verb::Cas { at, .. } | Verb::Add { at, .. } | Verb::Notify { at, .. } => at,
        }
    }
}

/// An audit of a family of locks. A request takes its place in the order at its atomic on the lock word: the
/// compare-and-swap that succeeds, or the addition of a reader. When the call that acquires returns, every earlier
/// request on that lock must have been released, but for readers among readers; a release counts from its first verb.
/// This one property is mutual exclusion, readers that share, and strict first come, first served from that place
/// on. The book also counts each call's operations on the network against the cost that README.md promises.
///
/// Both model networks keep one; it is plain data, so that an explored state includes it.
///
/// # Examples
/// ```
/// use transom_locks::model::{Book, Call, Verb};
/// use transom_locks::{At, Mode, LockLayout};
///
/// let mut book = Book::new(LockLayout::new(0, 2), 2);
/// let home = At { rank: 0, word: 0 };
/// for rank in 0..2 {
///     book.begins(rank, Call::Acquire(0, Mode::Exclusive)).unwrap();
///     book.saw(rank, Verb::Cas { at: home, expected: 0, new: 1 }, 0).unwrap();
/// }
/// book.returned(0).unwrap();
/// assert!(book.returned(1).unwrap_err().contains("rank 0"), "rank 0 came first and has not released it");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Book {
    layout: LockLayout,
    /// For each target the requests that have a place and have not been released, in order.
    queues: Vec<Vec<Entry>>,
    /// For each rank the call it is in.
    calls: Vec<Option<OpenCall>>,
    /// Whether there was a request with a deadline: those who meet it pay for it.
    timed: bool,
    /// Ranks, with targets, that have told their turn to who watched, and not asked since: a request with a deadline may end before it has
    /// a place, as long as whoever watched looks there.
    shown: BTreeSet<(Rank, Rank)>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Entry {
    rank: Rank,
    mode: Mode,
    granted: bool,
    /// Given up, and in the queue still.
    abandoned: bool,
}

/// A call that has not returned, and what it cost so far.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct OpenCall {
    call: Call,
    begun: bool,
    /// Compare-and-swaps that succeeded.
    cas: u32,
    add: u32,
    /// Notifications to other ranks, but for grants.
    notify: u32,
    grants: u32,
    /// The word of the last compare-and-swap, if it failed, and whether another rank touched it since.
    failed: Option<(At, bool)>,
    /// Compare-and-swaps of the lock word that failed: of an exclusive request before one took, from when it made the word urgent, if it
    /// did; afterwards, of what leaves the queue.
    missed: u32,
    /// Verbs at the gate: entering it, making the word urgent, and leaving it.
    gate: u32,
    /// Of an exclusive request: it has made the word urgent.
    urgent: bool,
    /// Of an attempt: somebody was in the way of its last verb.
    blocked: bool,
    /// Of a request with a deadline: it has given up.
    left: bool,
}

impl Book {
    /// A book on the locks of `ranks` ranks in the words of `layout`.
    pub fn new(layout: LockLayout, ranks: usize) -> Self {
        Book { layout, queues: vec![Vec::new(); ranks], calls: vec![None; ranks], timed: false, shown: BTreeSet::new() }
    }

    /// `rank` begins `call` with its next verb: a lock that it releases is held until then.
    ///
    /// # Errors
    /// It is in another call.
    pub fn begins(&mut self, rank: Rank, call: Call) -> Result<(), String> {
        if let Some(open) = &self.calls[rank] {
            return Err(format!("rank {rank} begins {call:?} within {:?}", open.call));
        }
        self.calls[rank] = Some(OpenCall::new(call));
        self.timed |= matches!(call, Call::AcquireUntil(..));
        // An attempt may see at once that somebody is.
        let in_the_way = self.in_the_way(rank);
        self.calls[rank].as_mut().expect("just made").blocked = in_the_way;
        Ok(())
    }

    /// `rank` executed `verb` and the word had held `found`. Called before any other rank takes a step.
    ///
    /// # Errors
    /// It begins the release of what is not held, a compare-and-swap failed again though nobody touched the word
    /// since it failed before, others have kept the request out of the queue, or in it, too often, or a put falls
    /// where atomics of others may be under way.
    pub fn saw(&mut self, rank: Rank, verb: Verb, found: u64) -> Result<(), String> {
        self.begin(rank, false)?;
        let at = verb.at();
        let field = self.layout.field(at);
        if !matches!(verb, Verb::Cas { expected, .. } if expected != found) {
            self.touched(at);
        }
        let (in_the_way, ranks) = (self.in_the_way(rank), self.queues.len());
        let Some(open) = &mut self.calls[rank] else { return Ok(()) };
        open.blocked = in_the_way;
        if is_at_gate(field, verb) {
            open.gate += 1;
            if matches!(field, Some((_, Field::Word))) {
                (open.urgent, open.missed) = (true, 0);
            }
            return Ok(());
        }
        match verb {
            Verb::Cas { expected, .. } if expected == found => {
                if open.asks_exclusively() {
                    open.missed = 0;
                }
                open.cas += 1;
                open.failed = None;
            }
            Verb::Cas { .. } => {
                if open.failed == Some((at, false)) {
                    return Err(format!("rank {rank} retries on a word that nobody changed, {at:?}"));
                }
                open.failed = Some((at, false));
                let is_attempt = matches!(open.call, Call::TryAcquire(..));
                if matches!(field, Some((_, Field::Word))) && !is_attempt {
                    open.missed += 1;
                    if open.missed > open.most_missed(ranks) {
                        let what = if open.asks_exclusively() { "was kept out of" } else { "does not leave" };
                        return Err(format!("rank {rank} {what} the queue by {} changes of the word", open.missed));
                    }
                }
            }
            // Who looks elsewhere may learn of a change that is older.
            Verb::Add { .. } => (open.add, open.failed) = (open.add + 1, None),
            Verb::Notify { value, .. } if at.rank == rank => {
                if let (Some((target, Field::Next)), Next::TURN | Next::AT_GO) = (field, value) {
                    self.shown.insert((rank, target));
                }
            }
            Verb::Notify { .. } if matches!(field, Some((_, Field::Grant))) => open.grants += 1,
            Verb::Notify { value, .. } => {
                open.notify += 1;
                if value != 0 && found != 0 && matches!(field, Some((_, Field::Next | Field::Go))) {
                    return Err(format!(
                        "rank {rank} puts what others change by atomics, {at:?}, which held {found:#x}"
                    ));
                }
            }
        }
        let done = !matches!(verb, Verb::Cas { expected, .. } if expected != found);
        if let (true, Some((target, field))) = (done, field)
            && self.saw_given_up(rank, target, field, verb, found)
        {
            return Ok(());
        }
        let Some(open) = &self.calls[rank] else { return Ok(()) };
        let mode = match (open.call, verb) {
            (Call::Acquire(_, Mode::Exclusive) | Call::AcquireUntil(_, Mode::Exclusive), Verb::Cas { .. }) if done => {
                Mode::Exclusive
            }
            (Call::TryAcquire(_, mode), Verb::Cas { .. }) if done => mode,
            (
                Call::Acquire(_, Mode::Shared) | Call::AcquireUntil(_, Mode::Shared) | Call::AcquireAll,
                Verb::Add { .. },
            ) => Mode::Shared,
            _ => return Ok(()),
        };
        let Some((target, field @ (Field::Word | Field::Drained))) = field else { return Ok(()) };
        let Some(queue) = self.queues.get_mut(target) else { return Ok(()) };
        match queue.iter().position(|entry| entry.rank == rank) {
            // Whoever asks for all locks gives up some places while it waits for another.
            Some(given_up) => drop(queue.remove(given_up)),
            None if field == Field::Word => {
                queue.push(Entry { rank, mode, granted: false, abandoned: false });
                self.shown.remove(&(rank, target));
            }
            None => {}
        }
        Ok(())
    }

    /// Whether a verb was about a request that is given up, or was: it took one out of the order, or back.
    fn saw_given_up(&mut self, rank: Rank, target: Rank, field: Field, verb: Verb, found: u64) -> bool {
        let (Some(queue), Some(open)) = (self.queues.get_mut(target), &mut self.calls[rank]) else { return false };
        let at = verb.at();
        let place = |of: Rank| queue.iter().position(|entry| entry.rank == of);
        match verb {
            // The reader itself gives up, or takes that back.
            Verb::Cas { new, .. } if field == Field::Grant && at.rank == rank => {
                open.left = new != 0;
                if let Some(place) = place(rank) {
                    queue[place].abandoned = new != 0;
                }
                true
            }
            // Who grants it finds that it has.
            Verb::Add { .. } if field == Field::Grant && found != 0 => {
                if let Some(place) = place(at.rank) {
                    queue.remove(place);
                }
                true
            }
            Verb::Cas { .. } | Verb::Add { .. } if open.call == Call::AcquireUntil(target, Mode::Exclusive) => {
                // Its word is taken back from the one before it, or as the first it gives the lock word to others.
                let leaves = place(rank).filter(|_| match verb {
                    Verb::Cas { new, .. } if field == Field::Next => Next::is_leaving(new),
                    _ => field == Field::Word,
                });
                if let Some(place) = leaves {
                    queue.remove(place);
                    open.left = true;
                }
                open.left
            }
            _ => false,
        }
    }

    /// This word changed, also if that was asked for before.
    pub(super) fn touched(&mut self, at: At) {
        for call in self.calls.iter_mut().flatten() {
            if let Some((failed, touched)) = &mut call.failed {
                *touched |= *failed == at;
            }
        }
    }

    /// The call of `rank` returned.
    ///
    /// # Errors
    /// What was granted too early, or cost too much, in words.
    pub fn returned(&mut self, rank: Rank) -> Result<(), String> {
        self.begin(rank, true)?;
        let Some(open) = self.calls[rank].take() else { return Ok(()) };
        open.check(rank, self.queues.len(), self.timed)?;
        let abandoned = |target: Rank| {
            self.queues.get(target).is_some_and(|queue| queue.iter().any(|entry| entry.rank == rank && entry.abandoned))
        };
        match open.call {
            Call::Acquire(target, _) => self.granted(rank, target),
            Call::AcquireAll => (0..self.queues.len()).try_for_each(|target| self.granted(rank, target)),
            Call::TryAcquire(target, _) if open.cas > 0 => self.granted(rank, target),
            Call::AcquireUntil(target, _) | Call::TryAcquire(target, _) if abandoned(target) => Ok(()),
            Call::AcquireUntil(..) if open.left => Ok(()),
            Call::AcquireUntil(target, _) if open.cas + open.add == 0 && self.shown.contains(&(rank, target)) => Ok(()),
            Call::AcquireUntil(target, _) => self.granted(rank, target),
            Call::TryAcquire(..) if !open.blocked => Err(format!("rank {rank} gave up, and nobody was in the way")),
            Call::Settle(target) if abandoned(target) => {
                Err(format!("rank {rank} has a request at the lock of rank {target} still"))
            }
            Call::Settle(_) | Call::TryAcquire(..) | Call::Release(_) | Call::ReleaseHeld(_) | Call::ReleaseAll => {
                Ok(())
            }
        }
    }

    /// Whether somebody is in the way of the attempt of `rank`: holds the lock, waits for it, is about to, or is about to release it.
    fn in_the_way(&self, rank: Rank) -> bool {
        let Some(OpenCall { call: Call::TryAcquire(target, mode), .. }) = self.calls[rank] else { return false };
        let entry = |entry: &Entry| [mode, entry.mode].contains(&Mode::Exclusive);
        let under_way = |call: &OpenCall| match call.call {
            Call::Release(of) | Call::ReleaseHeld(of) => of == target && call.begun,
            Call::ReleaseAll => call.begun,
            Call::AcquireUntil(of, _) if call.left => of == target,
            // It is about to ask, and has said so.
            Call::Acquire(of, _) | Call::AcquireUntil(of, _) => of == target && call.urgent,
            _ => false,
        };
        self.queues.get(target).is_some_and(|queue| queue.iter().any(entry))
            || self.calls.iter().flatten().any(under_way)
    }

    /// How many hold the lock of `target`, and whether shared.
    pub fn holders(&self, target: Rank) -> (usize, Option<Mode>) {
        let mut holders = self.queues.get(target).into_iter().flatten().filter(|entry| entry.granted);
        match holders.next() {
            Some(first) => (1 + holders.count(), Some(first.mode)),
            None => (0, None),
        }
    }

    /// A release begun is a release.
    fn begin(&mut self, rank: Rank, returned: bool) -> Result<(), String> {
        let Some(open) = self.calls[rank].as_mut().filter(|open| !open.begun) else { return Ok(()) };
        open.begun = true;
        let targets = match open.call {
            Call::Release(target) | Call::ReleaseHeld(target) => target..target + 1,
            Call::ReleaseAll => 0..self.queues.len(),
            _ => return Ok(()),
        };
        for target in targets {
            let queue = self.queues.get_mut(target).ok_or_else(|| format!("there is no lock of rank {target}"))?;
            match queue.iter().position(|entry| entry.rank == rank && entry.granted) {
                Some(place) => drop(queue.remove(place)),
                // Without a verb: it was not held.
                None if returned && matches!(self.calls[rank], Some(OpenCall { call: Call::ReleaseHeld(_), .. })) => {}
                None => return Err(format!("rank {rank} releases the lock of rank {target}, which it does not hold")),
            }
        }
        Ok(())
    }

    fn granted(&mut self, rank: Rank, target: Rank) -> Result<(), String> {
        let queue = self.queues.get_mut(target).ok_or_else(|| format!("there is no lock of rank {target}"))?;
        let Some(place) = queue.iter().position(|entry| entry.rank == rank) else {
            return Err(format!("rank {rank} was granted the lock of rank {target} without a place in the order"));
        };
        let mode = queue[place].mode;
        if let Some(first) = queue[..place]
            .iter()
            .filter(|entry| !entry.abandoned)
            .find(|entry| [mode, entry.mode].contains(&Mode::Exclusive))
        {
            return Err(format!(
                "rank {rank} was granted the lock of rank {target} ({mode:?}) before rank {} ({:?}), which came first, \
                 released it",
                first.rank, first.mode
            ));
        }
        queue[place].granted = true;
        Ok(())
    }
}

/// Whether a verb is one of the gate's. (A turn that is told is no other word that a `go` holds.)
fn is_at_gate(field: Option<(Rank, Field)>, verb: Verb) -> bool {
    match (field, verb) {
        (Some((_, Field::Tickets | Field::Slot)), _) => true,
        (Some((_, Field::Go)), Verb::Notify { value, .. }) => value == gate::TURN,
        (Some((_, Field::Word)), Verb::Add { delta, .. }) => delta == <LockWord>::URGENT,
        _ => false,
    }
}

impl OpenCall {
    fn new(call: Call) -> Self {
        let (begun, failed, blocked, left, urgent) = (false, None, false, false, false);
        let [cas, add, notify, grants, missed, gate] = [0; 6];
        OpenCall { call, begun, cas, add, notify, grants, failed, missed, gate, urgent, blocked, left }
    }

    /// How often it may find that the word has changed: in its attempts, and once it has made the word urgent by what each rank does
    /// before it sees that; when it leaves, by guesses, and by readers of whom each departs or arrives but once until it has left.
    fn most_missed(&self, ranks: usize) -> u32 {
        let most = match self.asks_exclusively() {
            true if self.urgent => CHANGES * ranks,
            true => 2 * <LockWord>::ATTEMPTS,
            false => 2 * ranks + GUESSES,
        };
        most as u32
    }

    /// Whether it is an exclusive request that is not in the queue yet.
    fn asks_exclusively(&self) -> bool {
        let exclusive = matches!(self.call, Call::Acquire(_, Mode::Exclusive) | Call::AcquireUntil(_, Mode::Exclusive));
        exclusive && self.cas == 0
    }

    /// The cost that README.md promises. Each failed compare-and-swap has been seen to be due to another rank, or is
    /// the first guess.
    fn check(&self, rank: Rank, ranks: usize, timed: bool) -> Result<(), String> {
        let many = ranks as u32;
        let most = match self.call {
            Call::AcquireUntil(..) if self.left => [6 + many, 6 * many, 3, many],
            Call::Release(_) | Call::ReleaseHeld(_) if timed => [2, 4 + 3 * many, 1, many],
            Call::Settle(_) => [0; 4],
            // A reader compares-and-swaps either to register or to make room in the count.
            Call::Acquire(_, Mode::Shared) | Call::AcquireUntil(_, Mode::Shared) => [1, 1, 0, 0],
            // Where it watches it clears what it was shown.
            Call::Acquire(_, Mode::Exclusive) => [if timed { 2 } else { 1 }, 0, 2, 0],
            // It says by an atomic that it stands behind another, as all do where others have left.
            Call::AcquireUntil(_, Mode::Exclusive) => [2, 0, 0, 0],
            Call::TryAcquire(..) => [1, 0, 0, 0],
            // In each round it holds one lock more at least; 1 addition for each lock where nobody is queued.
            Call::AcquireAll => [ranks as u32 * ranks as u32, 3 * ranks as u32 * ranks as u32, 0, 0],
            // Which kind of release it is, the verbs show.
            Call::Release(_) | Call::ReleaseHeld(_) if self.grants + self.notify + self.cas == 0 => [0, 2, 0, 0],
            Call::Release(_) | Call::ReleaseHeld(_) => [1, self.grants.saturating_sub(1) / 3, 1, ranks as u32 - 1],
            Call::ReleaseAll => [0, 2 * ranks as u32, 0, 0],
        };
        // To enter, to make the word urgent, and to leave.
        let most_at_gate = match self.call {
            Call::Acquire(_, Mode::Exclusive) | Call::AcquireUntil(_, Mode::Exclusive) => 7,
            Call::Acquire(_, Mode::Shared) | Call::AcquireUntil(_, Mode::Shared) => 6,
            Call::AcquireAll => 6 * many * many,
            _ => 0,
        };
        if self.gate > most_at_gate {
            return Err(format!(
                "{:?} of rank {rank} took {} verbs at the gate; at most {most_at_gate}",
                self.call, self.gate
            ));
        }
        let spent = [self.cas, self.add, self.notify, self.grants];
        if spent.iter().zip(&most).any(|(spent, most)| spent > most) {
            return Err(format!(
                "{:?} of rank {rank} took {spent:?} compare-and-swaps, additions, notifications and grants; at most {most:?}",
                self.call
            ));
        }
        Ok(())
    }
}
