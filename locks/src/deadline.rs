//! Requests with a deadline, and how a request leaves the queue before its turn; README.md beside the code has the steps.

use crate::lock_word::{Grant, Moved, Next, Waiter, Waiters};
use crate::target_lock::{Behind, HeldAs, Placed, Result, Status, StatusWord};
use crate::{Ahead, At, Awaited, Error, Field, LockLayout, LockWord, Network, Rank, TargetLock, Wake};
use std::time::Instant;

/// What a wait for the turn came to.
enum Awaiting {
    /// It has come; so many readers must leave before.
    Turn(u64),
    /// The request has left the queue: what is there of it still.
    Left(Status),
}

impl<const C: u32> TargetLock<C> {
    /// [`exclusive`](Self::exclusive), unless its turn has not come by `deadline`: then it leaves the queue, which delays nobody,
    /// and returns nothing. As dear as `exclusive` if it succeeds.
    ///
    /// # Errors
    /// As `exclusive`.
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
    ) -> Result<Option<Ahead>, N> {
        self.check_free(target)?;
        if !self.settles_by(network, layout, target, deadline)? {
            return Ok(None);
        }
        let ahead = Ahead::of(self.ask(network, layout, target)?);
        if ahead != Ahead::default()
            && let Awaiting::Left(status) = self.wait_for_turn_until(network, layout, target, ahead, deadline)?
        {
            self.status = StatusWord::of(status);
            return Ok(None);
        }
        self.status = StatusWord::of(Status::Held(HeldAs::Exclusive(Behind::told(ahead.exclusive))));
        Ok(Some(ahead))
    }

    /// [`shared`](Self::shared), unless its turn has not come by `deadline`: then it returns nothing. The request stays in the
    /// queue, where whoever comes to it passes over it; the next shared request of this rank goes on in its place, if it stands
    /// there still, and an exclusive one waits until it does not.
    ///
    /// # Errors
    /// As `shared`.
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
    ) -> Result<Option<Ahead>, N> {
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

    /// Awaits what is in the queue still of an earlier request: the turn of a shared one that [`shared_until`](Self::shared_until)
    /// gave up, or that whoever came after an exclusive one has seen that it may. Afterwards nobody touches this rank's words for
    /// it. To be called before other handles use these words.
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
        if let Status::Shown | Status::Abandoned(_) = status {
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

    /// Waits for what [`settle`](Self::settle) waits for; whether it has come by the deadline.
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
            Status::Shown => network.wait_until(word(Field::Next), Awaited::Anyone, deadline, |next| next == 0)?,
            _ => return Ok(true),
        };
        Ok(settled.is_some())
    }

    /// Whether something of an earlier request is in the queue still; local. Then somebody else has the lock, or waits for it.
    pub(crate) fn is_in_queue_still<N: Network>(
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
            Status::Shown => look(Field::Next)? != 0,
            _ => false,
        })
    }

    /// Takes back that a request was given up, if its turn has not passed; whether it did. Otherwise the lock can be asked for
    /// anew.
    #[cold]
    pub(crate) fn revive<N: Network>(&mut self, network: &N, layout: LockLayout, target: Rank) -> Result<bool, N> {
        let node = layout.node(network.rank(), target, Field::Grant);
        let revived = network.cas(node, Grant::ABANDONED, 0, Wake::Nobody)? == Grant::ABANDONED;
        if revived {
            self.status = StatusWord::of(Status::Broken);
        }
        Ok(revived)
    }

    /// Leaves the queue in the name of a reader that has given up, and was granted this.
    #[cold]
    pub(crate) fn leave_for<N: Network>(network: &N, layout: LockLayout, target: Rank, grant: Grant) -> Result<(), N> {
        match grant {
            Grant::Open => {
                let found = network.add(layout.home(target), LockWord::<C>::DEPARTED, Wake::Nobody)?;
                Self::tell_head(network, layout, target, found)
            }
            Grant::Before(next) => {
                network.add(layout.node(next as Rank, target, Field::Drained), 1, Wake::Home)?;
                Ok(())
            }
        }
    }

    /// Waits until nobody stands before an exclusive request, or leaves the queue.
    #[cold]
    fn wait_for_turn_until<N: Network>(
        &mut self,
        network: &N,
        layout: LockLayout,
        target: Rank,
        ahead: Ahead,
        deadline: Instant,
    ) -> Result<Awaiting, N> {
        Self::check_ahead(network, target, ahead)?;
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
        // Whoever was told this with a deadline is the head: these readers leave through the word.
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

    /// Tells the request of rank `tail`, before which `readers` readers stand, who comes next, and waits for the turn. If
    /// it has not come by the deadline, leaves the queue.
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
        Self::come_behind(network, layout.node(tail, target, Field::Next), asked(readers))?;
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
                    // That request passes its turn on, or leaves: it says so in a moment.
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

    /// Says in `next` of the request before that it is `asked`, and keeps what that word says of who stands there.
    pub(crate) fn come_behind<N: Network>(network: &N, next_of_tail: At, asked: u64) -> Result<(), N> {
        Self::swap(network, next_of_tail, |held| asked | held & Next::STAY)
    }

    /// Makes another of what a word holds that somebody else may change by an atomic: a put might come between the two halves of an
    /// adapter's, and be lost.
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

    /// Says in `next` of the request before, in place of that this rank leaves, who stands there; fails if that has said so itself.
    fn leave_next<N: Network>(network: &N, next_of_tail: At, word: u64) -> Result<(), N> {
        let leaves = Next::leaves(network.rank());
        if network.cas(next_of_tail, leaves, word, Wake::Home)? == leaves | Next::STAY {
            network.cas(next_of_tail, leaves | Next::STAY, word | Next::STAY, Wake::Home)?;
        }
        Ok(())
    }

    /// Leaves the queue, now that `next` of rank `tail` says that this rank is about to: that rank passes on nothing before it is
    /// changed again. Those behind are put behind that rank.
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
                // Fails if somebody has come to stand there since, and said so.
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
            Self::forget_next(network, layout, target, next)?;
            let forwarded = Next { readers: moved.readers, watches: false, ..next };
            Self::leave_next(network, next_of_tail, forwarded.pack())?;
            if next.timed {
                // Fails if that request has been told something else since.
                network.cas(go, moved.pending(), moved.settled(), Wake::Home)?;
            }
            break (next.readers, next.status_of_left());
        };
        if behind > 0 {
            let mut waiters = Waiters::default();
            Self::each_waiter(network, layout, target, behind, |reader| {
                Self::push_for(network, layout, target, tail, reader, &mut waiters)
            })?;
        }
        Ok(status)
    }

    /// Registers a reader with rank `tail`, whose stack is taken to be `waiters`.
    fn push_for<N: Network>(
        network: &N,
        layout: LockLayout,
        target: Rank,
        tail: Rank,
        reader: Waiter,
        waiters: &mut Waiters,
    ) -> Result<(), N> {
        let link = layout.node(reader.rank, target, Field::Link);
        // An addition, since a notify might be under way still when the stack is read. The reader itself only waits.
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

    /// Leaves the queue as the head, which awaits `readers` departures: those that have not happened are awaited by the next
    /// exclusive request, or by nobody.
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
        // As it was when this rank became the head, if it was the tail then.
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
            Self::tell_turn(network, layout, target, next, inside(found)? + next.readers)?;
            Self::forget_next(network, layout, target, next)?;
            if next.readers > 0 {
                Self::admit(network, layout, target, next.readers, Grant::Open)?;
            }
            break (found.departed(), next.status_of_left());
        };
        if departed > 0 {
            let drained = layout.node(me, target, Field::Drained).word;
            let told = network.wait(drained, Awaited::Anyone, |told| told >= departed)?;
            Self::drained(network, layout, target, departed, told)?;
        }
        Ok(status)
    }

    /// Has the open group's readers tell `rank` when they leave, and counts their departures anew; returns the word before. Nobody else
    /// changes the head, which is as in `seen`: this rank has the lock, or is the head.
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

    /// Who stands behind this rank, where the word shows that somebody does or did; nobody, if it has left since, and the word
    /// is to be looked at again. From now on whoever stands there stays. The caller clears `next`.
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

    /// What `next` says, if a rank can have said so.
    pub(crate) fn checked_next<N: Network>(network: &N, target: Rank, word: u64) -> Result<Next, N> {
        let next = Next::unpack(word);
        if next.rank >= network.ranks() || next.readers >= network.ranks() as u64 {
            return Err(Error::Corrupt { target, word });
        }
        Ok(next)
    }

    /// Clears what requests that have left may have put into `next`, now that this rank is the tail no more and nobody stood
    /// behind it.
    pub(crate) fn clear_mark<N: Network>(network: &N, layout: LockLayout, target: Rank) -> Result<(), N> {
        let node = layout.node(network.rank(), target, Field::Next);
        let told = network.wait(node.word, Awaited::Anyone, |told| !Next::is_leaving(told))?;
        if told != 0 {
            network.notify(node, 0, Wake::Nobody)?;
        }
        Ok(())
    }
}

/// Whether whoever granted has passed over the request that was given up.
fn has_passed(grant: u64) -> bool {
    grant & !Grant::ABANDONED != 0
}
