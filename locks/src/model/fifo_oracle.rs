//! The FIFO oracle: observes every verb, and checks the order, cost and fairness of each request on a lock.

use super::call::Call;
use super::sync_oracle::SyncOracle;
use crate::gate;
use crate::lock_word::{Next, Tickets};
use crate::{At, Field, LockLayout, LockWord, Mode, Rank};
use std::collections::BTreeSet;

/// Most changes of the lock word per rank from when it is urgent until every rank asks at the gate: a release, a
/// request, making room in the count for that, and its release.
const CHANGES: usize = 4;

/// Wrong guesses of the word that a leaving request may make: the first one, the same again after the request behind it
/// has left, and one more after another request has come.
const GUESSES: usize = 3;

/// A verb that the network has executed.
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
        /// The word.
        at: At,
        /// The value expected by the caller.
        expected: u64,
        /// The value to store.
        new: u64,
    },
    /// Fetch-and-add.
    Add {
        /// The word.
        at: At,
        /// The addend.
        delta: u64,
    },
    /// A put of 8 bytes.
    Notify {
        /// The word.
        at: At,
        /// The value.
        value: u64,
    },
}

impl Verb {
    /// The word on which the verb acts.
    pub fn at(self) -> At {
        match self {
            Verb::Cas { at, .. } | Verb::Add { at, .. } | Verb::Notify { at, .. } => at,
        }
    }
}

/// A checker of a family of locks. A request takes its place in the order at its atomic on the lock word: the
/// compare-and-swap that succeeds, or a reader's addition. When the acquiring call returns, every earlier request on
/// that lock must have been released, except for readers among readers. A release counts from its first verb. This one
/// property implies mutual exclusion, sharing among readers, and strict first come, first served. The oracle also
/// compares each call's network operations with the cost that README.md promises. It also checks barriers and access
/// groups: a rank leaves a barrier after all have entered it, an access starts after its exposure was posted, and an
/// exposure ends after its accesses were completed.
///
/// Both model networks keep an oracle. It is plain data, so that an explored state includes it.
///
/// # Examples
/// ```
/// use transom_locks::model::{FifoOracle, Call, Verb};
/// use transom_locks::{At, Mode, LockLayout};
///
/// let mut oracle = FifoOracle::new(LockLayout::new(0, 2), 2);
/// let home = At { rank: 0, word: 0 };
/// for rank in 0..2 {
///     oracle.begins(rank, Call::Acquire(0, Mode::Exclusive)).unwrap();
///     oracle.saw(rank, Verb::Cas { at: home, expected: 0, new: 1 }, 0).unwrap();
/// }
/// oracle.returned(0).unwrap();
/// assert!(oracle.returned(1).unwrap_err().contains("rank 0"), "rank 0 came first and has not released it");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FifoOracle {
    layout: LockLayout,
    /// Per target: the requests that have a place and have not been released, in order.
    queues: Vec<Vec<Entry>>,
    /// Per rank: its call in progress.
    calls: Vec<Option<OpenCall>>,
    /// True if any request had a deadline. Calls that meet such requests may cost more.
    timed: bool,
    /// Pairs (rank, target): the rank has shown its turn to a watching successor and has not requested the lock since.
    /// Until the successor clears that word, the rank's request with a deadline may end without a place.
    shown: BTreeSet<(Rank, Rank)>,
    /// Pairs (target, rank): requests that have a ticket of a gate and no place yet, in the order of the tickets.
    ticketed: Vec<(Rank, Rank)>,
    sync: SyncOracle,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Entry {
    rank: Rank,
    mode: Mode,
    granted: bool,
    /// The request was given up and is still queued.
    abandoned: bool,
}

/// A call in progress, and its cost so far.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct OpenCall {
    call: Call,
    begun: bool,
    /// Compare-and-swaps that succeeded.
    cas: u32,
    add: u32,
    /// Notifications to other ranks, except grants.
    notify: u32,
    grants: u32,
    /// The word of the last compare-and-swap, if that failed, and whether another rank has changed the word since.
    failed: Option<(At, bool)>,
    /// Failed compare-and-swaps of the lock word. For an exclusive request: before its first success, counted anew once
    /// it makes the word urgent. Afterwards: while it leaves the queue.
    missed: u32,
    /// Verbs at the gate: entering it, making the word urgent, and leaving it.
    gate: u32,
    /// An exclusive request has made the word urgent.
    urgent: bool,
    /// An attempt's last verb found another request in the way.
    blocked: bool,
    /// A request with a deadline has given up.
    left: bool,
}

impl FifoOracle {
    /// Creates an oracle for the locks of `ranks` ranks in the words of `layout`.
    pub fn new(layout: LockLayout, ranks: usize) -> Self {
        FifoOracle {
            layout,
            queues: vec![Vec::new(); ranks],
            calls: vec![None; ranks],
            timed: false,
            shown: BTreeSet::new(),
            ticketed: Vec::new(),
            sync: SyncOracle::default(),
        }
    }

    /// Records that `rank` begins `call` with its next verb. A lock that the call releases is held until then.
    ///
    /// # Errors
    /// `rank` is in another call.
    pub fn begins(&mut self, rank: Rank, call: Call) -> Result<(), String> {
        if let Some(open) = &self.calls[rank] {
            return Err(format!("rank {rank} begins {call:?} within {:?}", open.call));
        }
        self.calls[rank] = Some(OpenCall::new(call));
        self.timed |= matches!(call, Call::AcquireUntil(..));
        // An attempt may find another request in the way before its first verb.
        let is_obstructed = self.is_obstructed(rank);
        self.calls[rank].as_mut().expect("just made").blocked = is_obstructed;
        Ok(())
    }

    /// Records that `rank` executed `verb`, and that the word held `found` before. Must be called before any other rank
    /// takes a step.
    ///
    /// # Errors
    /// A description of a violation, which is one of
    /// * the release of a lock that is not held;
    /// * a repeated failure of a compare-and-swap on a word that has not changed in between;
    /// * a place that a request took before the request with an earlier ticket of the gate;
    /// * too many changes by other ranks that keep the request out of the queue, or in it;
    /// * a put to a word that other ranks may be changing by atomics.
    pub fn saw(&mut self, rank: Rank, verb: Verb, found: u64) -> Result<(), String> {
        self.begin(rank, false)?;
        let at = verb.at();
        let field = self.layout.field(at);
        if !matches!(verb, Verb::Cas { expected, .. } if expected != found) {
            self.touched(at);
        }
        let (is_obstructed, ranks) = (self.is_obstructed(rank), self.queues.len());
        let Some(open) = &mut self.calls[rank] else { return Ok(()) };
        open.blocked = is_obstructed;
        if is_at_gate(field, verb) {
            open.gate += 1;
            if matches!(field, Some((_, Field::Word))) {
                (open.urgent, open.missed) = (true, 0);
            }
            if let (Some((target, Field::Tickets)), Verb::Add { delta, .. }) = (field, verb)
                && [Tickets::<16>::TAKE, Tickets::<3>::TAKE].contains(&delta)
            {
                self.ticketed.push((target, rank));
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
                    return Err(format!("rank {rank} retries on a word that no rank has changed, {at:?}"));
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
            // A read of another word may reveal a change older than the failure.
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
                        "rank {rank} puts to a word that other ranks change by atomics, {at:?}, which held {found:#x}"
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
            // A call for all locks gives up some places while it waits for another.
            Some(given_up) => drop(queue.remove(given_up)),
            None if field == Field::Word => {
                queue.push(Entry { rank, mode, granted: false, abandoned: false });
                self.shown.remove(&(rank, target));
                self.placed_by_ticket(rank, target)?;
            }
            None => {}
        }
        Ok(())
    }

    /// Checks that a request which took its place has the first ticket among those that have none yet.
    fn placed_by_ticket(&mut self, rank: Rank, target: Rank) -> Result<(), String> {
        let Some(nth) = self.ticketed.iter().position(|&ticket| ticket == (target, rank)) else { return Ok(()) };
        match self.ticketed[..nth].iter().find(|ticket| ticket.0 == target) {
            Some((_, first)) => Err(format!(
                "rank {rank} took its place at the lock of rank {target} before rank {first}, which has an earlier ticket"
            )),
            None => {
                self.ticketed.remove(nth);
                Ok(())
            }
        }
    }

    /// Records that `rank` must wait for a change of the word `at`.
    ///
    /// # Errors
    /// The call of `rank` is an attempt, which never waits.
    pub fn waits(&self, rank: Rank, at: At) -> Result<(), String> {
        self.calls[rank].as_ref().map_or(Ok(()), |open| open.call.may_wait(rank, at))
    }

    /// Returns whether a verb belongs to a request that gives up or has given up; removes the request from the order,
    /// or restores it.
    fn saw_given_up(&mut self, rank: Rank, target: Rank, field: Field, verb: Verb, found: u64) -> bool {
        let (Some(queue), Some(open)) = (self.queues.get_mut(target), &mut self.calls[rank]) else { return false };
        let at = verb.at();
        let place = |of: Rank| queue.iter().position(|entry| entry.rank == of);
        match verb {
            // The reader gives up, or takes that back.
            Verb::Cas { new, .. } if field == Field::Grant && at.rank == rank => {
                open.left = new != 0;
                if let Some(place) = place(rank) {
                    queue[place].abandoned = new != 0;
                }
                true
            }
            // The granting rank finds that the reader has given up.
            Verb::Add { .. } if field == Field::Grant && found != 0 => {
                if let Some(place) = place(at.rank) {
                    queue.remove(place);
                }
                true
            }
            Verb::Cas { .. } | Verb::Add { .. } if open.call == Call::AcquireUntil(target, Mode::Exclusive) => {
                // The request takes its word back from its predecessor, or as the first request it changes the lock
                // word.
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

    /// Records that this word changed, possibly by an operation issued earlier.
    pub(super) fn touched(&mut self, at: At) {
        for call in self.calls.iter_mut().flatten() {
            if let Some((failed, touched)) = &mut call.failed {
                *touched |= *failed == at;
            }
        }
    }

    /// Records that the call of `rank` returned.
    ///
    /// # Errors
    /// A description of a grant that came too early, or of a cost that was exceeded.
    pub fn returned(&mut self, rank: Rank) -> Result<(), String> {
        self.begin(rank, true)?;
        let Some(open) = self.calls[rank].take() else { return Ok(()) };
        open.check(rank, self.queues.len(), self.timed)?;
        self.sync.returned(rank, open.call)?;
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
            Call::TryAcquire(..) if !open.blocked => Err(format!("rank {rank} gave up although no request was ahead")),
            Call::Settle(target) if abandoned(target) => {
                Err(format!("rank {rank} still has a request at the lock of rank {target}"))
            }
            Call::Settle(_) | Call::TryAcquire(..) | Call::Release(_) | Call::ReleaseHeld(_) | Call::ReleaseAll => {
                Ok(())
            }
            Call::Barrier | Call::Post(_) | Call::Start(_) | Call::Complete | Call::Wait => Ok(()),
        }
    }

    /// Returns whether another request is in the way of the attempt of `rank`: it holds the lock, waits for it, is
    /// about to, or is being released.
    fn is_obstructed(&self, rank: Rank) -> bool {
        let Some(OpenCall { call: Call::TryAcquire(target, mode), .. }) = self.calls[rank] else { return false };
        let entry = |entry: &Entry| [mode, entry.mode].contains(&Mode::Exclusive);
        let obstructs = |call: &OpenCall| match call.call {
            Call::Release(of) | Call::ReleaseHeld(of) => of == target && call.begun,
            Call::ReleaseAll => call.begun,
            Call::AcquireUntil(of, _) if call.left => of == target,
            // The call has made the word urgent, and is about to enter the queue.
            Call::Acquire(of, _) | Call::AcquireUntil(of, _) => of == target && call.urgent,
            _ => false,
        };
        self.queues.get(target).is_some_and(|queue| queue.iter().any(entry))
            || self.calls.iter().flatten().any(obstructs)
    }

    /// Returns whether a call of `rank` has begun and not returned.
    pub(super) fn is_in_call(&self, rank: Rank) -> bool {
        self.calls[rank].is_some()
    }

    /// The targets of the locks at which a rank holds a place or the lock.
    pub fn targets_of(&self, rank: Rank) -> impl Iterator<Item = Rank> {
        let has = move |queue: &Vec<Entry>| queue.iter().any(|entry| entry.rank == rank);
        self.queues.iter().enumerate().filter(move |(_, queue)| has(queue)).map(|(target, _)| target)
    }

    /// The mode of a rank's request at the lock of `target`, and whether it holds the lock.
    pub(super) fn place_of(&self, rank: Rank, target: Rank) -> Option<(Mode, bool)> {
        let entry = self.queues.get(target)?.iter().find(|entry| entry.rank == rank)?;
        Some((entry.mode, entry.granted))
    }

    /// The mode in which a rank holds a lock; exclusively, if it holds several in both modes.
    pub fn held_by(&self, rank: Rank) -> Option<Mode> {
        let held = self.queues.iter().flatten().filter(|entry| entry.rank == rank && entry.granted);
        held.map(|entry| entry.mode).max_by_key(|mode| *mode == Mode::Exclusive)
    }

    /// The number of holders of the lock of `target`, and their mode.
    pub fn holders(&self, target: Rank) -> (usize, Option<Mode>) {
        let mut holders = self.queues.get(target).into_iter().flatten().filter(|entry| entry.granted);
        match holders.next() {
            Some(first) => (1 + holders.count(), Some(first.mode)),
            None => (0, None),
        }
    }

    /// Marks the call as begun, at its first verb or when it returns. A release takes effect in the order when it begins.
    fn begin(&mut self, rank: Rank, returned: bool) -> Result<(), String> {
        let Some(open) = self.calls[rank].as_mut().filter(|open| !open.begun) else { return Ok(()) };
        open.begun = true;
        self.sync.began(rank, open.call, self.queues.len());
        let targets = match open.call {
            Call::Release(target) | Call::ReleaseHeld(target) => target..target + 1,
            Call::ReleaseAll => 0..self.queues.len(),
            _ => return Ok(()),
        };
        for target in targets {
            let queue = self.queues.get_mut(target).ok_or_else(|| format!("there is no lock of rank {target}"))?;
            match queue.iter().position(|entry| entry.rank == rank && entry.granted) {
                Some(place) => drop(queue.remove(place)),
                // The call made no verb: the lock was not held.
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

/// Returns whether a verb is one of the gate's. (TURN is no other value of a `go`.)
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

    /// The most changes of the word that the call may find. An exclusive request finds them in its attempts, or, once
    /// it has made the word urgent, from each rank before that rank sees the urgency. A leaving request finds them by
    /// wrong guesses, and by readers that depart or arrive once each.
    fn most_missed(&self, ranks: usize) -> u32 {
        let most = match self.asks_exclusively() {
            true if self.urgent => CHANGES * ranks,
            true => 2 * <LockWord>::ATTEMPTS,
            false => 2 * ranks + GUESSES,
        };
        most as u32
    }

    /// Returns whether the call is an exclusive request that is not in the queue yet.
    fn asks_exclusively(&self) -> bool {
        let exclusive = matches!(self.call, Call::Acquire(_, Mode::Exclusive) | Call::AcquireUntil(_, Mode::Exclusive));
        exclusive && self.cas == 0
    }

    /// Checks the cost against README.md. Each failed compare-and-swap was caused by another rank, or was the first
    /// guess.
    fn check(&self, rank: Rank, ranks: usize, timed: bool) -> Result<(), String> {
        let many = ranks as u32;
        let most = match self.call {
            Call::AcquireUntil(..) if self.left => [6 + many, 6 * many, 3, many],
            Call::Release(_) | Call::ReleaseHeld(_) if timed => [2, 4 + 3 * many, 1, many],
            Call::Settle(_) => [0; 4],
            // A reader's compare-and-swap either registers it or makes room in the count.
            Call::Acquire(_, Mode::Shared) | Call::AcquireUntil(_, Mode::Shared) => [1, 1, 0, 0],
            // A watching request clears the word in which it was notified.
            Call::Acquire(_, Mode::Exclusive) => [if timed { 2 } else { 1 }, 0, 2, 0],
            // The request announces itself to its predecessor by an atomic, as all requests do where others have left.
            Call::AcquireUntil(_, Mode::Exclusive) => [2, 0, 0, 0],
            Call::TryAcquire(..) => [1, 0, 0, 0],
            // Each round gains at least one lock. Where no exclusive request is queued a lock costs 1 addition.
            Call::AcquireAll => [ranks as u32 * ranks as u32, 3 * ranks as u32 * ranks as u32, 0, 0],
            // The verbs show which kind of release this is.
            Call::Release(_) | Call::ReleaseHeld(_) if self.grants + self.notify + self.cas == 0 => [0, 2, 0, 0],
            Call::Release(_) | Call::ReleaseHeld(_) => [1, self.grants.saturating_sub(1) / 3, 1, ranks as u32 - 1],
            Call::ReleaseAll => [0, 2 * ranks as u32, 0, 0],
            Call::Barrier => [0, 0, ranks.next_power_of_two().trailing_zeros(), 0],
            Call::Post(origins) => [0, 0, origins.ranks().count() as u32, 0],
            Call::Complete => [0, 0, many, 0],
            Call::Start(_) | Call::Wait => [0; 4],
        };
        // Verbs to enter, to make the word urgent, and to leave.
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
