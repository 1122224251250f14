//! The lock that no other rank uses: its request is one atomic on a word found beforehand, and so is its release. All
//! other cases go on with the steps of [`TargetLock`], from the word that this atomic found.

use crate::lock_status::{HeldAs, Predecessor, Status, StatusWord};
use crate::lock_word::Grant;
use crate::target_lock::Result;
use crate::{Field, FoundWord, LockLayout, LockWord, Network, QueuePosition, Rank, TargetLock};

/// The words that a rank needs at a lock which no other rank uses, found once.
pub(crate) struct LockWords<N: Network> {
    /// The lock word.
    word: N::Found,
    /// `next` of this rank.
    next: N::Found,
}

/// The outcome of a request or release at once.
#[derive(Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(crate) enum AtOnce {
    /// The call is complete, and the state is the new one.
    Done,
    /// The atomic was made and found this word: the call goes on by its other steps. A lock whose request stops here is
    /// broken.
    Found(u64),
    /// Nothing was done, and the state is unchanged.
    Unfit,
}

/// No request.
pub(crate) const FREE: StatusWord = StatusWord::of(Status::Free);
const ALONE: StatusWord = StatusWord::HELD_ALONE;
const BROKEN: StatusWord = StatusWord::of(Status::Broken);
/// Held by a reader of the open group.
pub(crate) const OPEN: StatusWord = StatusWord::of(Status::Held(HeldAs::Shared(Grant::Open)));

impl<N: Network> LockWords<N> {
    /// Finds the words of the lock of `target`; `None` if the network finds no words there.
    pub fn find(network: &N, layout: LockLayout, target: Rank) -> Option<Self> {
        let next = layout.node(network.rank(), target, Field::Next);
        Some(LockWords { word: network.find(layout.home(target))?, next: network.find(next)? })
    }
}

/// The lock word while `rank` alone has the lock exclusively.
#[inline]
pub(crate) fn alone(rank: Rank) -> u64 {
    LockWord::<16>(0).with_exclusive(rank).0
}

impl<const C: u32> TargetLock<C> {
    /// Takes the lock exclusively if its word was idle when this rank last saw it, and is still the same. `alone` is the
    /// word while this rank alone has the lock exclusively.
    #[inline(always)]
    pub(crate) fn exclusive_at_once<N: Network>(&mut self, network: &N, words: &LockWords<N>, alone: u64) -> AtOnce {
        // After an exclusive release both are 0, which is one comparison.
        if self.status.0 | self.seen != FREE.0 && !(self.status == FREE && LockWord::<C>(self.seen).is_idle()) {
            return AtOnce::Unfit;
        }
        let found = network.cas_found(&words.word, self.seen, alone);
        if found != self.seen {
            self.status = BROKEN;
            return AtOnce::Found(found);
        }
        (self.seen, self.status) = (alone, ALONE);
        AtOnce::Done
    }

    /// Goes on with an exclusive request whose first atomic found `found`, and changed nothing.
    #[cold]
    #[inline(never)]
    pub(crate) fn exclusive_after<N: Network>(
        &mut self,
        network: &N,
        layout: LockLayout,
        target: Rank,
        found: u64,
    ) -> Result<QueuePosition, N> {
        let found = self.retry_enqueue(network, layout, target, LockWord(found))?;
        self.exclusive_at(network, layout, target, found)
    }

    /// Takes the lock together with other readers if no exclusive request holds it or is queued.
    #[inline(always)]
    pub(crate) fn shared_at_once<N: Network>(&mut self, network: &N, words: &LockWords<N>) -> AtOnce {
        if self.status != FREE || LockWord::<C>(self.seen).is_urgent() {
            return AtOnce::Unfit;
        }
        let found = network.add_found(&words.word, LockWord::<C>::ARRIVED);
        if !LockWord::<C>(found).admits_readers() {
            self.status = BROKEN;
            return AtOnce::Found(found);
        }
        (self.seen, self.status) = (found.wrapping_add(LockWord::<C>::ARRIVED), OPEN);
        AtOnce::Done
    }

    /// Goes on with a shared request whose atomic found `found`.
    #[cold]
    #[inline(never)]
    pub(crate) fn shared_after<N: Network>(
        &mut self,
        network: &N,
        layout: LockLayout,
        target: Rank,
        found: u64,
    ) -> Result<QueuePosition, N> {
        let placed = self.place_shared_at(network, layout, target, found, false)?;
        self.await_shared(network, layout, target, placed)
    }

    /// Releases the lock if it was taken at once, and no other rank has requested it since. `alone` as above.
    #[inline(always)]
    pub(crate) fn release_at_once<N: Network>(&mut self, network: &N, words: &LockWords<N>, alone: u64) -> AtOnce {
        if self.status != ALONE {
            return self.depart_at_once(network, words);
        }
        if words.next.read() != 0 {
            return AtOnce::Unfit;
        }
        let found = network.cas_found(&words.word, alone, 0);
        if found != alone {
            return AtOnce::Found(found);
        }
        (self.seen, self.status) = (0, FREE);
        AtOnce::Done
    }

    /// Leaves the open group. A head that awaits its departures is left to [`release_after`](Self::release_after).
    #[inline(always)]
    pub(crate) fn depart_at_once<N: Network>(&mut self, network: &N, words: &LockWords<N>) -> AtOnce {
        if self.status != OPEN {
            return AtOnce::Unfit;
        }
        let found = network.add_found(&words.word, LockWord::<C>::DEPARTED);
        if LockWord::<C>(found).head().is_some() {
            return AtOnce::Found(found);
        }
        (self.seen, self.status) = (found.wrapping_add(LockWord::<C>::DEPARTED), FREE);
        AtOnce::Done
    }

    /// Goes on with a release whose first atomic found `found`.
    #[cold]
    #[inline(never)]
    pub(crate) fn release_after<N: Network>(
        &mut self,
        network: &N,
        layout: LockLayout,
        target: Rank,
        found: u64,
    ) -> Result<(), N> {
        let is_exclusive = self.status == ALONE;
        self.status = BROKEN;
        match is_exclusive {
            true => self.leave_contended(network, layout, target, Predecessor::NONE, 0, Some(LockWord(found))),
            false => self.left(network, layout, target, Grant::Open, found),
        }
    }
}
