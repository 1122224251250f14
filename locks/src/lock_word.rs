//! The packed words of the passive lock, as value types: their fields, and how each request changes them.

use crate::Rank;
use std::fmt;

/// The lock word, at the target. Its two counts are `C` bits wide: 16, or fewer in checks where counts must wrap.
///
/// ```text
///     departed (C)   readers that left the open group
///     arrived  (C)   readers that joined since the last exclusive request
///     (32-2C unused)
///     marked   (1)   a request behind the tail has left the queue: see the tail's `next`
///     tail     (15)  rank+1 of the last exclusive requester, 0 none
///     urgent   (1)   an exclusive request starves: a rank that sees this asks at the gate next time
///     head     (15)  rank+1 of the exclusive requester that the open group's readers notify, 0 none
/// ```
///
/// `departed` is on top, so its carry is lost. `arrived` carries into `departed`, and
/// [`count_overflow`](Self::count_overflow) says when a reader must [`renormalise`](Self::renormalised) the word before
/// that can happen.
///
/// # Examples
/// ```
/// use transom_locks::LockWord;
/// let word: LockWord = LockWord(LockWord::<16>::ARRIVED * 2); // two readers
/// let queued = word.with_exclusive(4); // rank 4 closes their group and waits for them
/// assert_eq!((word.readers(), queued.tail(), queued.head(), queued.readers()), (2, Some(4), Some(4), 0));
/// assert_eq!(format!("{queued:?}"), "{departed 0, arrived 0, tail 4, head 4}");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct LockWord<const C: u32 = 16>(pub u64);

impl<const C: u32> LockWord<C> {
    /// Adding this lets one reader arrive.
    pub const ARRIVED: u64 = 1 << (64 - 2 * C);
    /// Adding this lets one reader of the open group depart.
    pub const DEPARTED: u64 = 1 << (64 - C);
    /// The most ranks that may share one lock; 32,767 for 16-bit counts. Each rank adds at most one arrival before it
    /// sees that the count is past half of its range, so the other half must hold all ranks.
    pub const MAX_RANKS: usize = (1 << (C - 1)) - 1;

    const COUNT: u64 = (1 << C) - 1;
    const RANK: u64 = 0x7fff;
    const MARKED: u64 = 1 << 31;
    /// Adding this to a word that is not urgent makes it [urgent](Self::is_urgent).
    pub(crate) const URGENT: u64 = 1 << 15;
    /// Compare-and-swaps by which an exclusive request tries to enter the queue before it goes to the gate, and the
    /// same number again before it makes the word urgent. Checks with narrow counts use 1, to reach the gate soon.
    pub(crate) const ATTEMPTS: usize = if C < 16 { 1 } else { 8 };

    fn pack(departed: u64, arrived: u64, tail: u64, head: u64) -> Self {
        LockWord((departed * Self::DEPARTED) | (arrived * Self::ARRIVED) | (tail << 16) | head)
    }

    /// Readers that left the open group.
    pub fn departed(self) -> u64 {
        self.0 >> (64 - C)
    }

    /// Readers that joined since the last exclusive request.
    pub fn arrived(self) -> u64 {
        self.0 >> (64 - 2 * C) & Self::COUNT
    }

    /// The last exclusive requester, behind which the next request queues.
    #[inline]
    pub fn tail(self) -> Option<Rank> {
        ((self.0 >> 16 & Self::RANK) as Rank).checked_sub(1)
    }

    /// The exclusive requester that the open group's readers notify when they leave.
    #[inline]
    pub fn head(self) -> Option<Rank> {
        ((self.0 & Self::RANK) as Rank).checked_sub(1)
    }

    /// Readers of the open group that have not left.
    pub fn readers(self) -> u64 {
        self.arrived().wrapping_sub(self.departed()) & Self::COUNT
    }

    /// Returns whether requests behind the tail have left the queue.
    #[inline]
    pub(crate) fn is_marked(self) -> bool {
        self.0 & Self::MARKED != 0
    }

    /// Returns whether an exclusive request at the gate starves because other ranks keep changing the word.
    #[inline]
    pub fn is_urgent(self) -> bool {
        self.0 & Self::URGENT != 0
    }

    /// The word after the starving request has entered the queue.
    pub(crate) fn without_urgency(self) -> Self {
        LockWord(self.0 & !Self::URGENT)
    }

    /// `word`, the successor of this word, with this word's urgency.
    #[inline]
    fn then(self, word: Self) -> Self {
        LockWord(word.0 | self.0 & Self::URGENT)
    }

    /// The word after an exclusive request of `rank`: that rank is the tail, and the group before it is closed. If the
    /// queue was empty, the open group's readers notify that rank.
    #[inline]
    pub fn with_exclusive(self, rank: Rank) -> Self {
        let me = rank as u64 + 1;
        self.then(match self.tail() {
            None => Self::pack(0, 0, me, me),
            Some(_) => Self::pack(self.departed(), 0, me, self.0 & Self::RANK),
        })
    }

    /// The word after the tail, holding the lock, releases it: the readers queued behind it are the new open group.
    #[inline]
    pub fn without_exclusive(self) -> Self {
        self.then(Self::pack(0, self.arrived(), 0, 0))
    }

    /// The word after the tail has left the queue from behind the request of `rank` and `readers` readers: that request
    /// is the tail again. The mark makes the first guess of its release fail.
    pub(crate) fn without_tail(self, rank: Rank, readers: u64) -> Self {
        let word = Self::pack(self.departed(), self.arrived() + readers, rank as u64 + 1, self.0 & Self::RANK);
        self.then(LockWord(word.0 | Self::MARKED))
    }

    /// The word after the tail, being also the head, has left the queue: the open group's remaining `inside` readers
    /// and the readers queued behind the tail form one open group.
    pub(crate) fn reopened(self, inside: u64) -> Self {
        self.then(Self::pack(0, inside + self.arrived(), 0, 0))
    }

    /// The word after `rank`, the first request in the queue, has become the request that the open group's readers
    /// notify.
    pub(crate) fn with_head(self, rank: Rank) -> Self {
        LockWord(self.0 & !Self::RANK | (rank as u64 + 1))
    }

    /// Returns whether a reader that finds this word must renormalise it before it goes on: no exclusive request is
    /// queued, and the arrivals are past half of their range.
    #[inline]
    pub fn count_overflow(self) -> bool {
        self.tail().is_none() && self.arrived() > Self::COUNT / 2
    }

    /// Returns whether a reader that finds this word holds the lock, and need not renormalise the word: `arrived` is in
    /// the lower half of its range, and there is no tail.
    #[inline]
    pub(crate) fn admits_readers(self) -> bool {
        self.0 & (Self::RANK << 16 | Self::ARRIVED << (C - 1)) == 0
    }

    /// The word with the same readers, counted from zero departures.
    pub fn renormalised(self) -> Self {
        self.then(Self::pack(0, self.readers(), 0, 0))
    }

    /// Returns whether no rank holds the lock or waits for it.
    pub fn is_idle(self) -> bool {
        self.tail().is_none() && self.head().is_none() && self.readers() == 0 && !self.is_urgent()
    }
}

impl<const C: u32> fmt::Debug for LockWord<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{departed {}, arrived {}", self.departed(), self.arrived())?;
        for (name, rank) in [("tail", self.tail()), ("head", self.head())] {
            match rank {
                Some(rank) => write!(f, ", {name} {rank}")?,
                None => write!(f, ", {name} none")?,
            }
        }
        write!(f, "{}}}", if self.is_urgent() { ", urgent" } else { "" })
    }
}

/// The word of the gate: a ticket lock, which grants turns in the order of the additions that took the tickets. Checks
/// with narrow counts (`C` below 16) use numbers of 3 bits, so that programs that run for ever have few states.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Tickets<const C: u32>(pub u64);

impl<const C: u32> Tickets<C> {
    /// The width of a ticket's number, in bits. More numbers than ranks are needed.
    const WIDTH: u32 = if C < 16 { 3 } else { 32 };
    /// The largest number, and the most ranks.
    pub const LAST: u32 = u32::MAX >> (32 - Self::WIDTH);
    /// Adding this takes the next ticket.
    pub const TAKE: u64 = 1 << (64 - Self::WIDTH);
    const END: u64 = 1 << (64 - 2 * Self::WIDTH);

    /// The number that the next ticket will have. It wraps.
    pub fn next(self) -> u32 {
        (self.0 / Self::TAKE) as u32
    }

    /// The number of the ticket whose turn it is; equal to `next` while that ticket is not taken.
    pub fn turn(self) -> u32 {
        (self.0 / Self::END) as u32 & Self::LAST
    }

    /// The number of the ticket after `ticket`.
    pub fn after(ticket: u32) -> u32 {
        ticket.wrapping_add(1) & Self::LAST
    }

    /// Adding this ends the turn of `ticket`. After the last number it also undoes the carry into `next`.
    pub fn end(ticket: u32) -> u64 {
        if ticket == Self::LAST { Self::END.wrapping_sub(Self::TAKE) } else { Self::END }
    }
}

/// `next` of a node: the exclusive request just behind this rank, and the number of readers between.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Next {
    pub rank: Rank,
    pub readers: u64,
    /// The request has a deadline. It may replace this word to leave the queue, until the word says
    /// [`STAY`](Self::STAY).
    pub timed: bool,
    /// The requester watches this word and gets its answer here: [`TURN`](Self::TURN) or [`AT_GO`](Self::AT_GO). It
    /// then clears the word. Never set with a deadline.
    pub watches: bool,
}

impl Next {
    /// The request that stood behind has left the queue; the lock word names its replacement, if any.
    pub const LOOK: u64 = 1 << 61;
    /// Notification to a watching successor: its turn has come.
    pub const TURN: u64 = 1 << 59;
    /// Notification to a watching successor: this rank left the queue before its turn. The successor is notified of its
    /// own turn at its `go`.
    pub const AT_GO: u64 = 1 << 58;
    /// Added when this rank hands over or leaves: the request behind it, present or future, must not leave before this
    /// rank is done.
    pub const STAY: u64 = 1 << 57;
    const LEAVES: u64 = 1 << 62;
    const TIMED: u64 = 1 << 63;
    const WATCHES: u64 = 1 << 60;

    #[inline(always)]
    pub fn pack(self) -> u64 {
        let flags = (u64::from(self.timed) * Self::TIMED) | (u64::from(self.watches) * Self::WATCHES);
        flags | ((self.rank as u64 + 1) << 32) | self.readers
    }

    #[inline(always)]
    pub fn unpack(word: u64) -> Self {
        // Wrapping: a word that the protocol never wrote names no valid rank, and the caller's rank check refuses it.
        let rank = ((word & !(Self::TIMED | Self::WATCHES | Self::STAY)) >> 32) as Rank;
        let [timed, watches] = [Self::TIMED, Self::WATCHES].map(|flag| word & flag != 0);
        Next { rank: rank.wrapping_sub(1), readers: word & 0xffff_ffff, timed, watches }
    }

    /// The word by which the request of `rank`, which stands behind, announces that it leaves the queue. That rank soon
    /// changes the word again.
    pub fn leaves(rank: Rank) -> u64 {
        Self::LEAVES | (rank as u64 + 1) << 32
    }

    pub fn is_leaving(word: u64) -> bool {
        word & Self::LEAVES != 0
    }

    /// Returns whether the word is more than a plain request: a timed request, or a word about one.
    #[inline(always)]
    pub fn is_special(word: u64) -> bool {
        word >> 61 != 0
    }
}

/// `go` of a request with a deadline whose predecessor has left the queue: the request now stands behind another rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Moved {
    /// The rank that left. It makes any two such words of one time differ.
    pub by: Rank,
    /// The new predecessor.
    pub behind: Rank,
    /// The number of readers between the two.
    pub readers: u64,
}

impl Moved {
    const MOVED: u64 = 1 << 63;
    const SETTLED: u64 = 1 << 62;

    /// The word until `next` of the new predecessor names this request too.
    pub fn pending(self) -> u64 {
        Self::MOVED | (self.by as u64) << 32 | (self.behind as u64) << 16 | self.readers
    }

    pub fn settled(self) -> u64 {
        self.pending() | Self::SETTLED
    }

    pub fn is_pending(word: u64) -> bool {
        word >> 62 == Self::MOVED >> 62
    }

    pub fn unpack(word: u64) -> Option<Self> {
        let field = |shift: u32| (word >> shift & 0xffff) as Rank;
        let by = (word >> 32 & 0x3fff_ffff) as Rank;
        (word & Self::MOVED != 0).then(|| Moved { by, behind: field(16), readers: word & 0xffff })
    }
}

/// `waiters` of a node: the stack of readers that registered with the node's rank, as a count and the last three ranks.
/// A reader pushes itself by compare-and-swap and keeps the word it found in its own `link`. The node's rank reads on
/// there after three names, so a node needs one word however many readers wait.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Waiters(pub u64);

/// A registered reader.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Waiter {
    pub rank: Rank,
    /// The request has a deadline and may have been given up. It is granted by an addition, whose result shows that.
    pub timed: bool,
}

impl Waiters {
    /// The number of ranks that one word names.
    pub const NAMED: u64 = 3;
    const TIMED: u64 = 1 << 15;

    pub fn count(self) -> u64 {
        self.0 >> 48
    }

    pub fn pushed(self, waiter: Waiter) -> Self {
        let name = (u64::from(waiter.timed) * Self::TIMED) | (waiter.rank as u64 + 1);
        Waiters((self.count() + 1) << 48 | name << 32 | (self.0 >> 16 & 0xffff_ffff))
    }

    /// The last ranks pushed, latest first: three, or fewer if the stack holds fewer.
    pub fn named(self) -> impl Iterator<Item = Waiter> {
        [32, 16, 0].into_iter().map_while(move |shift| {
            let name = self.0 >> shift & 0xffff;
            let rank = ((name & !Self::TIMED) as Rank).checked_sub(1)?;
            Some(Waiter { rank, timed: name & Self::TIMED != 0 })
        })
    }
}

/// `grant` of a node: the lock is granted, and the rank to notify on release.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Grant {
    /// Granted into the open group: the reader leaves through the lock word.
    Open,
    /// Granted into a closed group: the reader notifies this rank, which comes next. (`u32`, since a handle keeps one
    /// for each target.)
    Before(u32),
}

impl Grant {
    /// In `grant` of the reader's own node: the reader has given up. The granting rank adds, so it sees this flag and
    /// leaves on the reader's behalf. The sum tells the reader that its request is out of the queue.
    pub const ABANDONED: u64 = 1 << 63;
    const OPEN: u64 = 1 << 40;

    pub fn pack(self) -> u64 {
        match self {
            Grant::Open => Self::OPEN,
            Grant::Before(rank) => u64::from(rank) + 1,
        }
    }

    pub fn unpack(word: u64) -> Self {
        match word {
            Self::OPEN => Grant::Open,
            // A rank too large for `u32` is no rank of any network.
            rank => Grant::Before(u32::try_from(rank.wrapping_sub(1)).unwrap_or(u32::MAX)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn departures_wrap_arrivals_renormalise_before_carry() {
        let mut word = LockWord::<3>(0);
        for _ in 0..3 {
            word.0 = word.0.wrapping_add(LockWord::<3>::ARRIVED);
        }
        assert!(!word.count_overflow());
        word.0 += LockWord::<3>::ARRIVED;
        assert!(word.count_overflow(), "{word:?}");
        for _ in 0..4 {
            word.0 = word.0.wrapping_add(LockWord::<3>::DEPARTED);
        }
        assert!(word.is_idle(), "{word:?}");
        assert_eq!(word.renormalised(), LockWord(0));
        for _ in 0..4 {
            word.0 = word.0.wrapping_add(LockWord::<3>::DEPARTED);
        }
        assert_eq!((word.departed(), word.arrived(), word.tail()), (0, 4, None), "{word:?}");
    }

    #[test]
    fn tickets_wrap_without_moving_the_turn() {
        let last = Tickets::<16>(u64::from(u32::MAX));
        let taken = Tickets::<16>(last.0.wrapping_add(2 * Tickets::<16>::TAKE));
        assert_eq!((last.next(), taken.next(), taken.turn()), (0, 2, u32::MAX));
        let over = Tickets::<16>(taken.0.wrapping_add(Tickets::<16>::end(u32::MAX)));
        assert_eq!((over.next(), over.turn()), (2, 0));
        assert_eq!(Tickets::<16>(over.0 + Tickets::<16>::end(0)), Tickets(2 << 32 | 1));
        // The same with numbers of three bits.
        let last = Tickets::<3>(7 << 58);
        let taken = Tickets::<3>(last.0.wrapping_add(2 * Tickets::<3>::TAKE));
        assert_eq!((taken.next(), taken.turn()), (2, 7));
        let over = Tickets::<3>(taken.0.wrapping_add(Tickets::<3>::end(7)));
        assert_eq!((over.next(), over.turn(), Tickets::<3>::after(7)), (2, 0, 0));
    }

    /// Only the request that made the word urgent clears the bit.
    #[test]
    fn urgent_word_stays_urgent_through_changes() {
        let word = LockWord::<16>(LockWord::<16>::URGENT + 3 * LockWord::<16>::ARRIVED + LockWord::<16>::DEPARTED);
        let queued = word.with_exclusive(4);
        let after = [queued.without_exclusive(), queued.without_tail(2, 1), queued.reopened(1), queued.with_head(5)];
        for word in after.into_iter().chain([word, queued, word.renormalised(), queued.with_exclusive(9)]) {
            assert!(word.is_urgent() && !word.is_idle(), "{word:?}");
            assert_eq!(word.without_urgency().0, word.0 - (1 << 15));
        }
        assert_eq!(format!("{queued:?}"), "{departed 0, arrived 0, tail 4, head 4, urgent}");
        assert_eq!((queued.tail(), queued.head()), (Some(4), Some(4)));
        assert_eq!(LockWord::<16>::default().with_exclusive(32_766).head(), Some(32_766));
    }

    #[test]
    fn waiters_word_names_last_three_readers() {
        let waiter = |(rank, timed)| Waiter { rank, timed };
        let [seven, zero, highest, two] = [(7, true), (0, false), (32_766, true), (2, false)].map(waiter);
        let word = [seven, zero, highest, two].into_iter().fold(Waiters::default(), Waiters::pushed);
        assert_eq!(word.count(), 4);
        assert_eq!(word.named().collect::<Vec<_>>(), [two, highest, zero]);
        assert_eq!(Waiters::default().pushed(seven).named().collect::<Vec<_>>(), [seven]);
    }

    #[test]
    fn timed_request_words_round_trip() {
        let next = Next { rank: 32_766, readers: 32_766, timed: true, watches: false };
        let watches = Next { timed: false, watches: true, ..next };
        assert_eq!([next, watches].map(|next| Next::unpack(next.pack())), [next, watches]);
        let words = [next.pack(), Next::leaves(0), Next::LOOK, Next { timed: false, ..next }.pack(), watches.pack()];
        assert_eq!(words.map(Next::is_special), [true, true, true, false, false]);
        for (word, is_special) in words.map(|word| (word, Next::is_special(word))) {
            assert_eq!(Next::unpack(word | Next::STAY), Next::unpack(word));
            assert_eq!(Next::is_special(word | Next::STAY), is_special);
        }
        assert_eq!(words.map(Next::is_leaving), [false, true, false, false, false]);
        let moved = Moved { by: 32_766, behind: 32_765, readers: 32_764 };
        assert_eq!([moved.pending(), moved.settled()].map(Moved::unpack), [Some(moved); 2]);
        assert_eq!([moved.pending(), moved.settled()].map(Moved::is_pending), [true, false]);
        assert_eq!(Moved::unpack(32_768), None, "the turn, after 32,767 departures");

        let word = LockWord::<16>::default().with_exclusive(32_766);
        let left = LockWord::<16>(word.0 + 3 * LockWord::<16>::ARRIVED + LockWord::<16>::DEPARTED).without_tail(5, 2);
        assert_eq!((left.tail(), left.head(), left.arrived(), left.departed()), (Some(5), Some(32_766), 5, 1));
        let [headed, reopened] = [left.with_head(9), left.reopened(4)];
        assert_eq!((headed.tail(), headed.head(), headed.arrived(), headed.departed()), (Some(5), Some(9), 5, 1));
        assert_eq!((reopened.tail(), reopened.head(), reopened.readers()), (None, None, 9));
        let unmarked = LockWord::<16>(LockWord::<16>::DEPARTED).with_exclusive(1);
        assert_ne!(left.with_exclusive(1).0 >> 31 & 1, 1, "a new tail is not marked");
        assert_eq!((left.0 >> 31 & 1, headed.0 >> 31 & 1, unmarked.0 >> 31 & 1), (1, 1, 0));
    }
}
