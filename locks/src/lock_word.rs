//! The packed words of the passive lock, as value types: what they hold and how each request changes them.

use crate::Rank;
use std::fmt;

/// The lock word, at the target. Four fields, the counts `C` bits wide (16 but in checks that want them to wrap):
///
/// ```text
///     departed (C)   readers that left the open group
///     arrived  (C)   readers that joined since the last exclusive request
///     (32-2C unused)
///     marked   (1)   a request behind the tail has left the queue: the tail's `next` says so
///     tail     (15)  rank+1 of the last exclusive requester, 0 none
///     urgent   (1)   an exclusive request does not get into the queue: who sees this asks at the gate next time
///     head     (15)  rank+1 of the exclusive requester the open group's readers must tell, 0 none
/// ```
///
/// `departed` is on top, so its carry falls off; `arrived` carries into it, and [`crowded`](Self::crowded) says when
/// a reader must [`renormalise`](Self::renormalised) before that can happen.
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
    /// The most ranks that may share one lock: each adds at most one arrival before it sees that the count is past
    /// its half, so the other half must hold all of them. 32,767 for 16 bits.
    pub const MAX_RANKS: usize = (1 << (C - 1)) - 1;

    const COUNT: u64 = (1 << C) - 1;
    const RANK: u64 = 0x7fff;
    const MARKED: u64 = 1 << 31;
    /// Adding this, where it is not set, makes the word [urgent](Self::is_urgent).
    pub(crate) const URGENT: u64 = 1 << 15;
    /// Compare-and-swaps by which an exclusive request tries to get into the queue, before it asks at the gate and again before it
    /// makes the word urgent. Narrow counts are for checks, which are to come there soon.
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

    /// The last exclusive requester: whoever comes next queues behind it.
    #[inline]
    pub fn tail(self) -> Option<Rank> {
        ((self.0 >> 16 & Self::RANK) as Rank).checked_sub(1)
    }

    /// The exclusive requester that the open group's readers tell when they leave.
    #[inline]
    pub fn head(self) -> Option<Rank> {
        ((self.0 & Self::RANK) as Rank).checked_sub(1)
    }

    /// Readers of the open group that have not left.
    pub fn readers(self) -> u64 {
        self.arrived().wrapping_sub(self.departed()) & Self::COUNT
    }

    /// Whether requests have left the queue behind the tail.
    #[inline]
    pub(crate) fn is_marked(self) -> bool {
        self.0 & Self::MARKED != 0
    }

    /// Whether an exclusive request at the gate does not get into the queue, since others change the word again and again.
    #[inline]
    pub fn is_urgent(self) -> bool {
        self.0 & Self::URGENT != 0
    }

    /// After that request has got into the queue.
    pub(crate) fn without_urgency(self) -> Self {
        LockWord(self.0 & !Self::URGENT)
    }

    /// `word`, which is to come after this one, as urgent as this one.
    #[inline]
    fn then(self, word: Self) -> Self {
        LockWord(word.0 | self.0 & Self::URGENT)
    }

    /// After an exclusive request of `rank`: it is the tail, the group before it is closed; if nobody was queued, the
    /// open group's readers tell it.
    #[inline]
    pub fn with_exclusive(self, rank: Rank) -> Self {
        let me = rank as u64 + 1;
        self.then(match self.tail() {
            None => Self::pack(0, 0, me, me),
            Some(_) => Self::pack(self.departed(), 0, me, self.0 & Self::RANK),
        })
    }

    /// After the tail, holding the lock, releases it: the readers that queued behind it are the new open group.
    #[inline]
    pub fn without_exclusive(self) -> Self {
        self.then(Self::pack(0, self.arrived(), 0, 0))
    }

    /// After the tail has left the queue, behind the request of `rank` and `readers` readers: that request is the tail again.
    /// The mark makes the first guess of its release fail.
    pub(crate) fn without_tail(self, rank: Rank, readers: u64) -> Self {
        let word = Self::pack(self.departed(), self.arrived() + readers, rank as u64 + 1, self.0 & Self::RANK);
        self.then(LockWord(word.0 | Self::MARKED))
    }

    /// After the tail, which is the head, has left the queue: so many readers of the open group are inside, and those behind it
    /// join them.
    pub(crate) fn reopened(self, inside: u64) -> Self {
        self.then(Self::pack(0, inside + self.arrived(), 0, 0))
    }

    /// After the first request in the queue, of `rank`, has become the one that the open group's readers tell.
    pub(crate) fn with_head(self, rank: Rank) -> Self {
        LockWord(self.0 & !Self::RANK | (rank as u64 + 1))
    }

    /// Whether a reader that finds this must renormalise before it goes on: nobody is queued and the arrivals are
    /// past the half of their field.
    #[inline]
    pub fn crowded(self) -> bool {
        self.tail().is_none() && self.arrived() > Self::COUNT / 2
    }

    /// The same readers, counted from zero departures.
    pub fn renormalised(self) -> Self {
        self.then(Self::pack(0, self.readers(), 0, 0))
    }

    /// Whether nobody holds the lock or waits for it.
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

/// The word of the gate: a ticket lock, which gives turns in the order of the additions that ask for them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Tickets(pub u64);

impl Tickets {
    /// Adding this takes the next ticket.
    pub const TAKE: u64 = 1 << 32;

    /// The number of the next ticket that is taken. It wraps.
    pub fn next(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// The number of the ticket whose turn it is, if it is taken.
    pub fn turn(self) -> u32 {
        self.0 as u32
    }

    /// Adding this ends the turn of `ticket`; the carry is taken out of `next` again.
    pub fn end(ticket: u32) -> u64 {
        if ticket == u32::MAX { 1u64.wrapping_sub(Self::TAKE) } else { 1 }
    }
}

/// `next` of a node: who asked exclusively after me, and how many readers stand between us.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Next {
    pub rank: Rank,
    pub readers: u64,
    /// It asked with a deadline, and may take this word back to leave the queue, until this says that it [stays](Self::STAY).
    pub timed: bool,
    /// It watches this word, and is told here: [`TURN`](Self::TURN) or [`AT_GO`](Self::AT_GO). It clears that. Not with a deadline.
    pub watches: bool,
}

impl Next {
    /// Who stood behind has left the queue: the lock word says who does now.
    pub const LOOK: u64 = 1 << 61;
    /// To who watches: your turn has come.
    pub const TURN: u64 = 1 << 59;
    /// To who watches: I have left the queue before my turn; you are told at your own `go`.
    pub const AT_GO: u64 = 1 << 58;
    /// Added once I pass my turn on, or leave: whoever stands behind me, or comes to stand there, stays until I have.
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
        // Wrapping: a word that no protocol wrote names no rank, and the network says so.
        let rank = ((word & !(Self::TIMED | Self::WATCHES | Self::STAY)) >> 32) as Rank;
        let [timed, watches] = [Self::TIMED, Self::WATCHES].map(|flag| word & flag != 0);
        Next { rank: rank.wrapping_sub(1), readers: word & 0xffff_ffff, timed, watches }
    }

    /// The request of `rank`, which stands behind, is about to leave the queue; this word changes soon.
    pub fn leaves(rank: Rank) -> u64 {
        Self::LEAVES | (rank as u64 + 1) << 32
    }

    pub fn is_leaving(word: u64) -> bool {
        word & Self::LEAVES != 0
    }

    /// Whether this is no plain request, but a timed one or a word about one.
    #[inline(always)]
    pub fn is_special(word: u64) -> bool {
        word >> 61 != 0
    }
}

/// `go` of a node with a deadline: the request that it stood behind has left the queue, and this one stands behind another now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Moved {
    /// Who left. So no two such words of one time are the same.
    pub by: Rank,
    /// Behind whom this one stands.
    pub behind: Rank,
    /// How many readers stand between.
    pub readers: u64,
}

impl Moved {
    const MOVED: u64 = 1 << 63;
    const SETTLED: u64 = 1 << 62;

    /// Until that rank's `next` says so too.
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

/// `waiters` of a node: a stack of the readers that registered with the node's rank, as a count and the last three
/// ranks. A reader pushes itself by compare-and-swap and keeps the word it found in its own `link`, where that rank
/// reads on after three: memory stays one word a node however many readers wait.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Waiters(pub u64);

/// A reader that registered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Waiter {
    pub rank: Rank,
    /// It asked with a deadline, and may have given up; so it is granted by an addition, which shows that.
    pub timed: bool,
}

impl Waiters {
    /// How many ranks one word names.
    pub const NAMED: u64 = 3;
    const TIMED: u64 = 1 << 15;

    pub fn count(self) -> u64 {
        self.0 >> 48
    }

    pub fn pushed(self, waiter: Waiter) -> Self {
        let name = (u64::from(waiter.timed) * Self::TIMED) | (waiter.rank as u64 + 1);
        Waiters((self.count() + 1) << 48 | name << 32 | (self.0 >> 16 & 0xffff_ffff))
    }

    /// The last ranks pushed, the latest first: three, or as many as there are.
    pub fn named(self) -> impl Iterator<Item = Waiter> {
        [32, 16, 0].into_iter().map_while(move |shift| {
            let name = self.0 >> shift & 0xffff;
            let rank = ((name & !Self::TIMED) as Rank).checked_sub(1)?;
            Some(Waiter { rank, timed: name & Self::TIMED != 0 })
        })
    }
}

/// `grant` of a node: go in, and whom to tell when leaving.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Grant {
    /// Into the open group: leave through the lock word.
    Open,
    /// Into a closed group: tell this rank, which is next. (A narrow type, since there is one for each target.)
    Before(u32),
}

impl Grant {
    /// In `grant` of one's own node: I have given up. Whoever grants adds, and so sees it, and leaves in my name; I see by what
    /// was added that my request is no more in the queue.
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
            // No network has a rank so high as what does not fit.
            rank => Grant::Before(u32::try_from(rank.wrapping_sub(1)).unwrap_or(u32::MAX)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn departures_fall_off_the_top_and_arrivals_are_renormalised_before_they_carry() {
        let mut word = LockWord::<3>(0);
        for _ in 0..3 {
            word.0 = word.0.wrapping_add(LockWord::<3>::ARRIVED);
        }
        assert!(!word.crowded());
        word.0 += LockWord::<3>::ARRIVED;
        assert!(word.crowded(), "{word:?}");
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
    fn tickets_wrap() {
        let last = Tickets(u64::from(u32::MAX));
        let taken = Tickets(last.0.wrapping_add(2 * Tickets::TAKE));
        assert_eq!((last.next(), taken.next(), taken.turn()), (0, 2, u32::MAX));
        let over = Tickets(taken.0.wrapping_add(Tickets::end(u32::MAX)));
        assert_eq!((over.next(), over.turn()), (2, 0));
        assert_eq!(Tickets(over.0 + Tickets::end(0)), Tickets(2 << 32 | 1));
    }

    /// Nobody but who made the word urgent takes that back.
    #[test]
    fn an_urgent_word_stays_so() {
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
    fn a_waiters_word_names_the_last_three() {
        let waiter = |(rank, timed)| Waiter { rank, timed };
        let [seven, zero, highest, two] = [(7, true), (0, false), (32_766, true), (2, false)].map(waiter);
        let word = [seven, zero, highest, two].into_iter().fold(Waiters::default(), Waiters::pushed);
        assert_eq!(word.count(), 4);
        assert_eq!(word.named().collect::<Vec<_>>(), [two, highest, zero]);
        assert_eq!(Waiters::default().pushed(seven).named().collect::<Vec<_>>(), [seven]);
    }

    #[test]
    fn words_about_requests_with_a_deadline() {
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
