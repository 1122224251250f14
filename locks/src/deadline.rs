//! Requests with a deadline, and how a request leaves the queue before its turn. README.md beside the code has the
//! steps.

use crate::lock_status::{HeldAs, Predecessor, Status, StatusWord};
use crate::lock_word::{Grant, Moved, Next, Waiter, Waiters};
use crate::target_lock::{Placed, Result};
use crate::{At, Awaited, Error, Field, LockLayout, LockWord, Network, QueuePosition, Rank, TargetLock, Wake};
use std::time::Instant;

/// The outcome of a wait for the turn.
enum Awaiting {
    /// The turn has come; `.0` readers must leave before.
    Turn(u64),
    /// The request has left the queue, with this status.
    Left(Status),
}

impl<const C: u32> TargetLock<C> {
    /// [`exclusive`](Self::exclusive) with a deadline: a request whose turn has not come by then leaves the queue and
    /// returns `None`. It delays no other request. A successful call costs as much as `exclusive`.
    ///
    /// # Errors
    /// The errors of `exclusive`.
    ///
    /// # Examples
    /// ```
    /// use std::time::Instant;
    /// use transom_locks::model::{sim, Sim};
    /// use transom_locks::{LockLayout, TargetLock};
    ///
    /// let layout = LockLayout::new(0, 1);
    /// let net = Sim::new(1, LockLayout::words(1), sim::once(move |_, network| {
    ///     let mut lock = TargetLock::<16>::new();
    ///     assert!(lock.exclusive_until(network, layout, 0, Instant::now())?.is_some());
    ///     lock.release(network, layout, 0)
    /// }));
    /// net.run_random(1).unwrap();
    /// ```
    pub fn exclusive_until<N: Network>(
        &mut self,
        network: &N,
        layout: LockLayout,
        target: Rank,
        deadline: Instant,
    ) -> Result<Option<QueuePosition>, N> {
        self.check_free(target)?;
        if !self.settles_by(network, layout, target, deadline)? {
            return Ok(None);
        }
        let ahead = QueuePosition::of(self.enqueue(network, layout, target)?);
        if ahead != QueuePosition::default()
            && let Awaiting::Left(status) = self.await_turn_until(network, layout, target, ahead, deadline)?
        {
            self.status = StatusWord::of(status);
            return Ok(None);
        }
        self.status = StatusWord::of(Status::Held(HeldAs::Exclusive(Predecessor::notified(ahead.exclusive))));
        Ok(Some(ahead))
    }

    /// [`shared`](Self::shared) with a deadline: returns `None` if the turn has not come by then. The request stays in
    /// the queue, and the rank that reaches it passes over it. This rank's next shared request takes over the place if
    /// it is still queued; an exclusive request waits until it is not.
    ///
    /// # Errors
    /// The errors of `shared`.
    ///
    /// # Examples
    /// ```
    /// use std::time::Instant;
    /// use transom_locks::model::{sim, Sim};
    /// use transom_locks::{LockLayout, TargetLock};
    ///
    /// let layout = LockLayout::new(0, 1);
    /// let net = Sim::new(1, LockLayout::words(1), sim::once(move |_, network| {
    ///     let mut lock = TargetLock::<16>::new();
    ///     assert!(lock.shared_until(network, layout, 0, Instant::now())?.is_some());
    ///     lock.release(network, layout, 0)
    /// }));
    /// net.run_random(1).unwrap();
    /// ```
    pub fn shared_until<N: Network>(
        &mut self,
        network: &N,
        layout: LockLayout,
        target: Rank,
        deadline: Instant,
    ) -> Result<Option<QueuePosition>, N> {
        let placed = if let Status::Abandoned(tail) = self.status.get()
            && self.revive(network, layout, target)?
        {
            Placed::Behind(tail as Rank)
        } else {
            if !self.settles_by(network, layout, target, deadline)? {
                return Ok(None);
            }
            let pending = self.start_shared(network, layout, target)?;
            self.place_shared(network, layout, target, pending, true)?
        };
        if let Placed::Behind(tail) = placed {
            let node = layout.node(network.rank(), target, Field::Grant);
            let granted = network.wait_until(node.word, Awaited::Behind(tail), deadline, |grant| grant != 0)?;
            if granted.is_none() && network.cas(node, 0, Grant::ABANDONED, Wake::Nobody)? == 0 {
                self.status = StatusWord::of(Status::Abandoned(tail as u32));
                return Ok(None);
            }
        }
        self.await_shared(network, layout, target, placed).map(Some)
    }

    /// Waits for the remains of this rank's last request. These are a shared request that
    /// [`shared_until`](Self::shared_until) gave up, or an answer that the successor of an exclusive one has not seen.
    /// Afterwards no rank touches this rank's words for them. Call it before other handles use these words.
    ///
    /// # Errors
    /// [`Error::Network`]; the lock is broken then.
    ///
    /// # Examples
    /// ```
    /// use transom_locks::model::{sim, Sim};
    /// use transom_locks::{LockLayout, TargetLock};
    ///
    /// let layout = LockLayout::new(0, 1);
    /// let net = Sim::new(1, LockLayout::words(1), sim::once(move |_, network| {
    ///     TargetLock::<16>::new().settle(network, layout, 0) // nothing was given up
    /// }));
    /// net.run_random(1).unwrap();
    /// ```
    #[cold]
    #[inline(never)]
    pub fn settle<N: Network>(&mut self, network: &N, layout: LockLayout, target: Rank) -> Result<(), N> {
        let node = |field| layout.node(network.rank(), target, field);
        let status = self.status.get();
        if let Status::Unacknowledged | Status::Abandoned(_) = status {
            self.status = StatusWord::of(Status::Broken);
            if let Status::Abandoned(tail) = status {
                let grant = node(Field::Grant);
                network.wait(grant.word, Awaited::Behind(tail as Rank), has_passed)?;
                network.notify(grant, 0, Wake::Nobody)?;
            } else {
                network.wait(node(Field::Next).word, Awaited::Anyone, |next| next == 0)?;
            }
            self.status = StatusWord::of(Status::Free);
        }
        Ok(())
    }

    /// [`settle`](Self::settle)'s wait, with a deadline; returns whether it ended in time.
    fn settles_by<N: Network>(
        &self,
        network: &N,
        layout: LockLayout,
        target: Rank,
        deadline: Instant,
    ) -> Result<bool, N> {
        let word = |field| layout.node(network.rank(), target, field).word;
        let settled = match self.status.get() {
            Status::Abandoned(tail) => {
                network.wait_until(word(Field::Grant), Awaited::Behind(tail as Rank), deadline, has_passed)?
            }
            Status::Unacknowledged => {
                network.wait_until(word(Field::Next), Awaited::Anyone, deadline, |next| next == 0)?
            }
            _ => return Ok(true),
        };
        Ok(settled.is_some())
    }

    /// Returns whether an earlier request of this rank has remains in the queue. Then another rank holds the lock or
    /// waits for it. Local.
    pub(crate) fn has_remains_in_queue<N: Network>(
        &self,
        network: &N,
        layout: LockLayout,
        target: Rank,
    ) -> Result<bool, N> {
        let look = |field| {
            let word = layout.node(network.rank(), target, field).word;
            network.wait(word, Awaited::Anyone, |_| true)
        };
        Ok(match self.status.get() {
            Status::Abandoned(_) => !has_passed(look(Field::Grant)?),
            Status::Unacknowledged => look(Field::Next)? != 0,
            _ => false,
        })
    }

    /// Takes over the place of a request that was given up, unless its turn has passed; returns whether it did. If not,
    /// a new request may be made.
    #[cold]
    pub(crate) fn revive<N: Network>(&mut self, network: &N, layout: LockLayout, target: Rank) -> Result<bool, N> {
        let node = layout.node(network.rank(), target, Field::Grant);
        let revived = network.cas(node, Grant::ABANDONED, 0, Wake::Nobody)? == Grant::ABANDONED;
        if revived {
            self.status = StatusWord::of(Status::Broken);
        }
        Ok(revived)
    }

    /// Leaves the queue on behalf of a reader that has given up and was given `grant`.
    #[cold]
    pub(crate) fn leave_for<N: Network>(network: &N, layout: LockLayout, target: Rank, grant: Grant) -> Result<(), N> {
        match grant {
            Grant::Open => {
                let found = network.add(layout.home(target), LockWord::<C>::DEPARTED, Wake::Nobody)?;
                Self::notify_head(network, layout, target, found)
            }
            Grant::Before(next) => {
                network.add(layout.node(next as Rank, target, Field::Drained), 1, Wake::Home)?;
                Ok(())
            }
        }
    }

    /// Waits for the turn of an exclusive request, or leaves the queue at the deadline.
    #[cold]
    fn await_turn_until<N: Network>(
        &mut self,
        network: &N,
        layout: LockLayout,
        target: Rank,
        ahead: QueuePosition,
        deadline: Instant,
    ) -> Result<Awaiting, N> {
        Self::check_position(network, target, ahead)?;
        let mut readers = ahead.readers;
        if let Some(tail) = ahead.exclusive {
            match self.await_go(network, layout, target, tail, readers, deadline)? {
                Awaiting::Turn(told) => readers = told,
                left => return Ok(left),
            }
        }
        if readers == 0 {
            return Ok(Awaiting::Turn(0));
        }
        // A request with a deadline that awaits departures is the head: these readers leave through the word.
        let drained = layout.node(network.rank(), target, Field::Drained).word;
        match network.wait_until(drained, Awaited::Anyone, deadline, |told| told >= readers)? {
            Some(told) => Self::drained(network, layout, target, readers, told).map(|()| Awaiting::Turn(0)),
            None => {
                let status = self.leave_as_head(network, layout, target, readers)?;
                if ahead.exclusive.is_some() {
                    network.notify(layout.node(network.rank(), target, Field::Go), 0, Wake::Nobody)?;
                }
                Ok(Awaiting::Left(status))
            }
        }
    }

    /// Announces this rank's request, which stands behind `readers` readers and the request of rank `tail`, and waits
    /// for the turn. Leaves the queue if the turn has not come by the deadline.
    fn await_go<N: Network>(
        &mut self,
        network: &N,
        layout: LockLayout,
        target: Rank,
        mut tail: Rank,
        mut readers: u64,
        deadline: Instant,
    ) -> Result<Awaiting, N> {
        let (me, ranks) = (network.rank(), network.ranks());
        let node = layout.node(me, target, Field::Go);
        let mut last = 0;
        let asked = |readers| Next { rank: me, readers, timed: true, watches: false }.pack();
        Self::announce_behind(network, layout.node(tail, target, Field::Next), asked(readers))?;
        loop {
            let go = match network.wait_until(node.word, Awaited::Behind(tail), deadline, |go| go != last)? {
                Some(go) => go,
                None => {
                    if !Moved::is_pending(last) {
                        let next = layout.node(tail, target, Field::Next);
                        if network.cas(next, asked(readers), Next::leaves(me), Wake::Home)? == asked(readers) {
                            let status = self.leave_from_behind(network, layout, target, tail, readers)?;
                            if last != 0 {
                                network.notify(node, 0, Wake::Nobody)?;
                            }
                            return Ok(Awaiting::Left(status));
                        }
                    }
                    // The predecessor hands over or leaves, and is about to write `go`.
                    network.wait(node.word, Awaited::Behind(tail), |go| go != last)?
                }
            };
            let Some(moved) = Moved::unpack(go) else {
                return Self::readers_of_go(network, target, go, readers).map(Awaiting::Turn);
            };
            if moved.behind >= ranks || moved.behind == me || moved.readers >= ranks as u64 {
                return Err(Error::Corrupt { target, word: go });
            }
            (last, tail, readers) = (go, moved.behind, moved.readers);
        }
    }

    /// Announces a request in `next` of the predecessor, and keeps the flag [`STAY`](Next::STAY) there.
    pub(crate) fn announce_behind<N: Network>(network: &N, next_of_tail: At, asked: u64) -> Result<(), N> {
        Self::swap(network, next_of_tail, |held| asked | held & Next::STAY)
    }

    /// Replaces a word that other ranks may change by atomics. A put could fall between the two halves of an adapter's
    /// atomic and be lost.
    pub(crate) fn swap<N: Network>(network: &N, at: At, new: impl Fn(u64) -> u64) -> Result<(), N> {
        let mut seen = 0;
        loop {
            let found = network.cas(at, seen, new(seen), Wake::Home)?;
            if found == seen {
                return Ok(());
            }
            seen = found;
        }
    }

    /// Replaces this rank's leave announcement in `next` of the predecessor by `word`. Does nothing if the successor
    /// has replaced it already.
    fn leave_next<N: Network>(network: &N, next_of_tail: At, word: u64) -> Result<(), N> {
        let leaves = Next::leaves(network.rank());
        if network.cas(next_of_tail, leaves, word, Wake::Home)? == leaves | Next::STAY {
            network.cas(next_of_tail, leaves | Next::STAY, word | Next::STAY, Wake::Home)?;
        }
        Ok(())
    }

    /// Leaves the queue, after `next` of rank `tail` has announced it: that rank hands over nothing until `next`
    /// changes again. The requests behind this rank move behind rank `tail`.
    fn leave_from_behind<N: Network>(
        &mut self,
        network: &N,
        layout: LockLayout,
        target: Rank,
        tail: Rank,
        readers: u64,
    ) -> Result<Status, N> {
        let me = network.rank();
        let next_of_tail = layout.node(tail, target, Field::Next);
        let mut seen = LockWord::<C>(self.seen);
        let (behind, status) = loop {
            let found = LockWord::<C>(network.cas(
                layout.home(target),
                seen.0,
                seen.without_tail(tail, readers).0,
                Wake::Nobody,
            )?);
            if found == seen {
                // Fails if a new request stands there by now and has announced itself.
                Self::leave_next(network, next_of_tail, Next::LOOK)?;
                Self::clear_mark(network, layout, target)?;
                break (seen.arrived(), Status::Free);
            }
            if found.tail() == Some(me) {
                seen = found;
                continue;
            }
            let Some(next) = Self::successor(network, layout, target)? else {
                seen = LockWord(self.seen);
                continue;
            };
            let moved = Moved { by: me, behind: tail, readers: readers + next.readers };
            let go = layout.node(next.rank, target, Field::Go);
            if next.timed {
                Self::swap(network, go, |_| moved.pending())?;
            }
            Self::release_next(network, layout, target, next)?;
            let forwarded = Next { readers: moved.readers, watches: false, ..next };
            Self::leave_next(network, next_of_tail, forwarded.pack())?;
            if next.timed {
                // Fails if that request has been notified of its turn, or of another move, since.
                network.cas(go, moved.pending(), moved.settled(), Wake::Home)?;
            }
            break (next.readers, next.status_after_leaving());
        };
        if behind > 0 {
            let mut waiters = Waiters::default();
            Self::each_waiter(network, layout, target, behind, |reader| {
                Self::push_for(network, layout, target, tail, reader, &mut waiters)
            })?;
        }
        Ok(status)
    }

    /// Registers a reader with rank `tail`, whose stack is assumed to be `waiters`.
    fn push_for<N: Network>(
        network: &N,
        layout: LockLayout,
        target: Rank,
        tail: Rank,
        reader: Waiter,
        waiters: &mut Waiters,
    ) -> Result<(), N> {
        let link = layout.node(reader.rank, target, Field::Link);
        // An addition, since a notify might still be in flight when the stack is read. The reader itself only waits.
        let mut held = network.add(link, 0, Wake::Nobody)?;
        loop {
            network.add(link, waiters.0.wrapping_sub(held), Wake::Nobody)?;
            held = waiters.0;
            let pushed = waiters.pushed(reader);
            let found = network.cas(layout.node(tail, target, Field::Waiters), waiters.0, pushed.0, Wake::Home)?;
            if found == waiters.0 {
                *waiters = pushed;
                return Ok(());
            }
            *waiters = Waiters(found);
        }
    }

    /// Leaves the queue as the head that awaits `readers` departures. Those still outstanding are awaited by the next
    /// exclusive request, or by none.
    fn leave_as_head<N: Network>(
        &mut self,
        network: &N,
        layout: LockLayout,
        target: Rank,
        readers: u64,
    ) -> Result<Status, N> {
        let me = network.rank();
        let inside =
            |word: LockWord<C>| readers.checked_sub(word.departed()).ok_or(Error::Corrupt { target, word: word.0 });
        // The word as this rank made it when it became the head, if it was also the tail.
        let first = LockWord::<C>(0).with_exclusive(me);
        let mut seen = first;
        let (departed, status) = loop {
            let found = LockWord::<C>(network.cas(
                layout.home(target),
                seen.0,
                seen.reopened(inside(seen)?).0,
                Wake::Nobody,
            )?);
            if found == seen {
                if seen.arrived() > 0 {
                    Self::admit(network, layout, target, seen.arrived(), Grant::Open)?;
                }
                Self::clear_mark(network, layout, target)?;
                break (seen.departed(), Status::Free);
            }
            if found.tail() == Some(me) {
                seen = found;
                continue;
            }
            let Some(next) = Self::successor(network, layout, target)? else {
                seen = first;
                continue;
            };
            let found = Self::make_head(network, layout, target, next.rank, found)?;
            Self::notify_turn(network, layout, target, next, inside(found)? + next.readers)?;
            Self::release_next(network, layout, target, next)?;
            if next.readers > 0 {
                Self::admit(network, layout, target, next.readers, Grant::Open)?;
            }
            break (found.departed(), next.status_after_leaving());
        };
        if departed > 0 {
            let drained = layout.node(me, target, Field::Drained).word;
            let told = network.wait(drained, Awaited::Anyone, |told| told >= departed)?;
            Self::drained(network, layout, target, departed, told)?;
        }
        Ok(status)
    }

    /// Makes `rank` the head, which the open group's readers notify, and resets the count of departures. Returns the
    /// word before. No other rank changes the head, which is the one in `seen`: this rank holds the lock or is the
    /// head.
    #[cold]
    pub(crate) fn make_head<N: Network>(
        network: &N,
        layout: LockLayout,
        target: Rank,
        rank: Rank,
        seen: LockWord<C>,
    ) -> Result<LockWord<C>, N> {
        let home = layout.home(target);
        let found = LockWord::<C>(network.add(home, seen.with_head(rank).0.wrapping_sub(seen.0), Wake::Nobody)?);
        if found.departed() > 0 {
            network.add(home, found.departed().wrapping_neg().wrapping_mul(LockWord::<C>::DEPARTED), Wake::Nobody)?;
        }
        Ok(found)
    }

    /// The request behind this rank, given that the word shows a tail behind it, now or before. `None` if that request
    /// has left since: the caller then looks at the word again. From now on a request that stands there stays. The
    /// caller clears `next`.
    #[cold]
    pub(crate) fn successor<N: Network>(network: &N, layout: LockLayout, target: Rank) -> Result<Option<Next>, N> {
        let node = layout.node(network.rank(), target, Field::Next);
        let looked = Next::LOOK | Next::STAY;
        let mut told = network.wait(node.word, Awaited::Anyone, |told| told != 0 && told != looked)?;
        if Next::is_special(told) && told & Next::STAY == 0 {
            told = network.add(node, Next::STAY, Wake::Nobody)? | Next::STAY;
        }
        if Next::is_leaving(told) {
            told = network.wait(node.word, Awaited::Anyone, |told| !Next::is_leaving(told))?;
        }
        if told == looked { Ok(None) } else { Self::checked_next(network, target, told).map(Some) }
    }

    /// Decodes `next`, and checks that a rank can have written it.
    pub(crate) fn checked_next<N: Network>(network: &N, target: Rank, word: u64) -> Result<Next, N> {
        let next = Next::unpack(word);
        if next.rank >= network.ranks() || next.readers >= network.ranks() as u64 {
            return Err(Error::Corrupt { target, word });
        }
        Ok(next)
    }

    /// Clears what departed requests may have written into `next`. This rank is no longer the tail, and no request
    /// stood behind it.
    pub(crate) fn clear_mark<N: Network>(network: &N, layout: LockLayout, target: Rank) -> Result<(), N> {
        let node = layout.node(network.rank(), target, Field::Next);
        let told = network.wait(node.word, Awaited::Anyone, |told| !Next::is_leaving(told))?;
        if told != 0 {
            network.notify(node, 0, Wake::Nobody)?;
        }
        Ok(())
    }
}

/// Returns whether the granting rank has passed over the request that was given up.
fn has_passed(grant: u64) -> bool {
    grant & !Grant::ABANDONED != 0
}
