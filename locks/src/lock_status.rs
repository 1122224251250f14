//! The status of a rank's request at one lock, packed into one word.

use crate::Rank;
use crate::lock_word::{Grant, Next};
use std::fmt;

/// The state of this rank's request at one lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Status {
    /// No request.
    Free,
    Held(HeldAs),
    /// Released; the successor, which watches `next` of this rank, has its answer there but need not have cleared it.
    Unacknowledged,
    /// A shared request was given up at its deadline. It is still queued behind the exclusive request of this rank.
    Abandoned(u32),
    /// A call failed midway, so the state of this rank's request in the queue is unknown.
    Broken,
}

/// A [`Status`] in one word, so that threads can pass it on through an atomic.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct StatusWord(pub u64);

impl fmt::Debug for StatusWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}

impl StatusWord {
    const FREE: u64 = 0;
    const UNACKNOWLEDGED: u64 = 1;
    const BROKEN: u64 = 2;
    const ABANDONED: u64 = 3;
    const EXCLUSIVE: u64 = 4;
    const SHARED_OPEN: u64 = 5;
    const SHARED_BEFORE: u64 = 6;
    const ALONE: u64 = 7;

    /// Held exclusively, and the last seen word is the one that this rank wrote when it alone had the lock.
    pub const HELD_ALONE: Self = StatusWord(Self::ALONE);

    /// The kind in the low byte; a rank, if the status has one, in the upper half.
    #[inline(always)]
    pub const fn of(status: Status) -> Self {
        StatusWord(match status {
            Status::Free => Self::FREE,
            Status::Unacknowledged => Self::UNACKNOWLEDGED,
            Status::Broken => Self::BROKEN,
            Status::Abandoned(tail) => Self::ABANDONED | (tail as u64) << 32,
            Status::Held(HeldAs::Exclusive(Predecessor(behind))) => Self::EXCLUSIVE | (behind as u64) << 32,
            Status::Held(HeldAs::Shared(Grant::Open)) => Self::SHARED_OPEN,
            Status::Held(HeldAs::Shared(Grant::Before(next))) => Self::SHARED_BEFORE | (next as u64) << 32,
        })
    }

    #[inline(always)]
    pub fn get(self) -> Status {
        let rank = (self.0 >> 32) as u32;
        match self.0 & 0xff {
            Self::FREE => Status::Free,
            Self::UNACKNOWLEDGED => Status::Unacknowledged,
            Self::ABANDONED => Status::Abandoned(rank),
            Self::EXCLUSIVE => Status::Held(HeldAs::Exclusive(Predecessor(rank))),
            Self::ALONE => Status::Held(HeldAs::Exclusive(Predecessor::NONE)),
            Self::SHARED_OPEN => Status::Held(HeldAs::Shared(Grant::Open)),
            Self::SHARED_BEFORE => Status::Held(HeldAs::Shared(Grant::Before(rank))),
            _ => Status::Broken,
        }
    }
}

/// The part of a held lock's state that its release needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum HeldAs {
    Exclusive(Predecessor),
    Shared(Grant),
}

/// The exclusive request behind which a granted one was queued. (`u32`, since a handle keeps one for each target.)
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Predecessor(u32);

impl Next {
    /// Status of a request after it has left the queue with this successor.
    #[inline(always)]
    pub fn status_after_leaving(self) -> Status {
        if self.watches { Status::Unacknowledged } else { Status::Free }
    }
}

impl Predecessor {
    pub const NONE: Self = Predecessor(0);
    const NOTIFIED: u32 = 1 << 31;

    /// Queued behind `rank`, and notified of its turn at its own `go`.
    #[inline(always)]
    pub fn notified(rank: Option<Rank>) -> Self {
        rank.map_or(Self::NONE, |rank| Predecessor((rank as u32 + 1) | Self::NOTIFIED))
    }

    /// Queued behind `rank`, whose `next` it watched for its turn.
    pub fn watched(rank: Rank) -> Self {
        Predecessor(rank as u32 + 1)
    }

    #[inline(always)]
    pub fn rank(self) -> Option<Rank> {
        (self.0 & !Self::NOTIFIED).checked_sub(1).map(|rank| rank as Rank)
    }

    /// Returns whether the release must clear `go`.
    #[inline(always)]
    pub fn was_notified(self) -> bool {
        self.0 & Self::NOTIFIED != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_word_round_trips_each_status() {
        let exclusive = [
            Predecessor::NONE,
            Predecessor::notified(Some(0)),
            Predecessor::notified(Some(32_766)),
            Predecessor::watched(32_766),
        ];
        let shared = [Grant::Open, Grant::Before(0), Grant::Before(u32::MAX)];
        let held = exclusive.map(HeldAs::Exclusive).into_iter().chain(shared.map(HeldAs::Shared)).map(Status::Held);
        let others =
            [Status::Free, Status::Unacknowledged, Status::Abandoned(0), Status::Abandoned(32_766), Status::Broken];
        for status in held.chain(others) {
            assert_eq!(StatusWord::of(status).get(), status);
        }
        assert_eq!(StatusWord(0xfe).get(), Status::Broken);
        assert_eq!(StatusWord::HELD_ALONE.get(), Status::Held(HeldAs::Exclusive(Predecessor::NONE)));
    }
}
