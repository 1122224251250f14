//! The release: how a request leaves the queue after its turn, and how those behind it are notified. README.md beside
//! the code numbers the steps.

use crate::at_once::{AtOnce, LockWords, alone};
use crate::lock_status::{HeldAs, Predecessor, Status, StatusWord};
use crate::lock_word::{Grant, Next, Waiter, Waiters};
use crate::target_lock::Result;
use crate::{Awaited, Error, Field, LockLayout, LockWord, Network, Rank, TargetLock, Wake};

impl<const C: u32> TargetLock<C> {
    /// Releases the lock. An exclusive release costs 1 compare-and-swap (again for each request that came in between),
    /// or none if the successor has announced itself. A successor costs 1 notify; `r` waiting readers cost `r`
    /// notifications and `r/3` reads more. A shared release costs 1 fetch-and-add, 2 if an exclusive request waits for
    /// the open group.
    ///
    /// # Errors
    /// [`Error::NotLocked`] if not held, and as [`exclusive`](Self::exclusive). A release that fails leaves the lock
    /// broken: other ranks may still wait for it.
    #[inline(always)]
    pub fn release<N: Network>(&mut self, network: &N, layout: LockLayout, target: Rank) -> Result<(), N> {
        let words = LockWords::find(network, layout, target);
        let once = words.map_or(AtOnce::Unfit, |words| self.release_at_once(network, &words, alone(network.rank())));
        self.release_from(network, layout, target, once)
    }

    /// Goes on with a release after its attempt at once.
    #[inline(always)]
    pub(crate) fn release_from<N: Network>(
        &mut self,
        network: &N,
        layout: LockLayout,
        target: Rank,
        once: AtOnce,
    ) -> Result<(), N> {
        match once {
            AtOnce::Done => return Ok(()),
            AtOnce::Found(found) => return self.release_after(network, layout, target, found),
            AtOnce::Unfit => {}
        }
        // The usual states come first: a jump table is slower.
        if let Status::Held(HeldAs::Exclusive(behind)) = self.status.get() {
            self.status = StatusWord::of(Status::Broken);
            return self.leave_exclusive(network, layout, target, behind);
        }
        let grant = match self.status == StatusWord::of(Status::Held(HeldAs::Shared(Grant::Open))) {
            true => Grant::Open,
            false => self.checked_grant(target)?,
        };
        self.status = StatusWord::of(Status::Broken);
        let pending = self.start_leaving(network, layout, target, grant)?;
        self.finish_leaving(network, layout, target, grant, pending)
    }

    /// The grant of a lock that is not held exclusively, with errors for a lock that is not held.
    #[cold]
    #[inline(never)]
    fn checked_grant<E>(&self, target: Rank) -> std::result::Result<Grant, Error<E>> {
        let mut lock = *self;
        match lock.leave(target)? {
            HeldAs::Shared(grant) => Ok(grant),
            HeldAs::Exclusive(_) => Err(Error::Broken { target }),
        }
    }

    /// Releases an exclusively held lock.
    #[inline(always)]
    pub(crate) fn leave_exclusive<N: Network>(
        &mut self,
        network: &N,
        layout: LockLayout,
        target: Rank,
        behind: Predecessor,
    ) -> Result<(), N> {
        let seen = LockWord::<C>(self.seen);
        // Local read: the request behind this rank, if it has announced itself. Then this rank is not the tail.
        let told = network.read_own(layout.node(network.rank(), target, Field::Next).word)?;
        let mut found = None;
        if told == 0 {
            let new = seen.without_exclusive();
            let word = network.cas(layout.home(target), seen.0, new.0, Wake::Nobody)?;
            if word == seen.0 && seen.arrived() == 0 && !behind.was_notified() {
                (self.seen, self.status) = (new.0, StatusWord::of(Status::Free));
                return Ok(());
            }
            found = Some(LockWord(word));
        }
        self.on_copy(move |lock| lock.leave_contended(network, layout, target, behind, told, found))
    }

    /// Releases an exclusive lock with requests behind it, or one that was handed over. `told` is this rank's `next`.
    /// `found` is the result of the word's compare-and-swap, which was made if `next` was 0.
    #[cold]
    #[inline(never)]
    pub(crate) fn leave_contended<N: Network>(
        &mut self,
        network: &N,
        layout: LockLayout,
        target: Rank,
        behind: Predecessor,
        told: u64,
        found: Option<LockWord<C>>,
    ) -> Result<(), N> {
        let seen = LockWord::<C>(self.seen);
        if found == Some(seen) && seen.arrived() == 0 {
            return self.finish_exclusive(network, layout, target, behind, seen.without_exclusive(), Status::Free);
        }
        if told == 0 || Next::is_special(told) {
            return self.leave_to_others(network, layout, target, behind, found);
        }
        let next = Self::checked_next(network, target, told)?;
        Self::hand_over(network, layout, target, next, None)?;
        // A guess: where ranks alternate, this rank's predecessor has queued again by now.
        let seen = seen.with_exclusive(behind.rank().unwrap_or(next.rank));
        self.finish_exclusive(network, layout, target, behind, seen, next.status_after_leaving())
    }

    /// Ends a release that the fast path could not. `found` is the result of the first compare-and-swap, if one was
    /// made: it succeeded with readers behind, or a request has come since.
    fn leave_to_others<N: Network>(
        &mut self,
        network: &N,
        layout: LockLayout,
        target: Rank,
        behind: Predecessor,
        found: Option<LockWord<C>>,
    ) -> Result<(), N> {
        let (mine, mut seen, mut found) = (LockWord::<C>(self.seen), LockWord::<C>(self.seen), found);
        while found != Some(seen) {
            match found {
                Some(found) if found.tail() == mine.tail() => seen = found,
                _ => {
                    if let Some(next) = Self::successor(network, layout, target)? {
                        Self::hand_over(network, layout, target, next, found)?;
                        let seen = found.unwrap_or(mine.with_exclusive(next.rank));
                        return self.finish_exclusive(
                            network,
                            layout,
                            target,
                            behind,
                            seen,
                            next.status_after_leaving(),
                        );
                    }
                    // The request behind has left. The word may be changed only while this rank is its tail.
                    seen = mine;
                }
            }
            found =
                Some(LockWord(network.cas(layout.home(target), seen.0, seen.without_exclusive().0, Wake::Nobody)?));
        }
        if seen.arrived() > 0 {
            Self::admit(network, layout, target, seen.arrived(), Grant::Open)?;
        }
        Self::clear_mark(network, layout, target)?;
        self.finish_exclusive(network, layout, target, behind, seen.without_exclusive(), Status::Free)
    }

    /// Clears this rank's `go` once the successor is notified, and stores the new state.
    fn finish_exclusive<N: Network>(
        &mut self,
        network: &N,
        layout: LockLayout,
        target: Rank,
        behind: Predecessor,
        seen: LockWord<C>,
        status: Status,
    ) -> Result<(), N> {
        if behind.was_notified() {
            network.notify(layout.node(network.rank(), target, Field::Go), 0, Wake::Nobody)?;
        }
        (self.seen, self.status) = (seen.0, StatusWord::of(status));
        Ok(())
    }

    /// Notifies the exclusive requester behind this rank, and the readers between, that their turn has come. `seen` is
    /// the word, if it was read while this rank held the lock.
    fn hand_over<N: Network>(
        network: &N,
        layout: LockLayout,
        target: Rank,
        next: Next,
        seen: Option<LockWord<C>>,
    ) -> Result<(), N> {
        let mut grant = Grant::Before(next.rank as u32);
        if next.timed && next.readers > 0 {
            // These readers leave through the word, so that the request can be put before another if it leaves the
            // queue.
            let seen = seen.map_or_else(|| network.add(layout.home(target), 0, Wake::Nobody).map(LockWord), Ok)?;
            Self::make_head(network, layout, target, next.rank, seen)?;
            grant = Grant::Open;
        }
        if next.watches {
            network.notify(layout.node(network.rank(), target, Field::Next), Next::TURN, Wake::Home)?;
        } else {
            Self::notify_turn(network, layout, target, next, next.readers)?;
            Self::release_next(network, layout, target, next)?;
        }
        if next.readers > 0 {
            Self::admit(network, layout, target, next.readers, grant)?;
        }
        Ok(())
    }

    /// Notifies a request that it is first, once `readers` readers have departed. A request with a deadline may be
    /// notified of a new predecessor at the same time.
    pub(crate) fn notify_turn<N: Network>(
        network: &N,
        layout: LockLayout,
        target: Rank,
        next: Next,
        readers: u64,
    ) -> Result<(), N> {
        let go = layout.node(next.rank, target, Field::Go);
        match next.timed {
            true => Self::swap(network, go, |_| readers + 1),
            false => Ok(network.notify(go, readers + 1, Wake::Home)?),
        }
    }

    /// Clears this rank's `next`, whose content is or will be passed on elsewhere.
    pub(crate) fn release_next<N: Network>(network: &N, layout: LockLayout, target: Rank, next: Next) -> Result<(), N> {
        let (word, wake) = if next.watches { (Next::AT_GO, Wake::Home) } else { (0, Wake::Nobody) };
        Ok(network.notify(layout.node(network.rank(), target, Field::Next), word, wake)?)
    }

    /// Grants `readers` registered readers. Waits for those that are about to register.
    #[cold]
    pub(crate) fn admit<N: Network>(
        network: &N,
        layout: LockLayout,
        target: Rank,
        readers: u64,
        grant: Grant,
    ) -> Result<(), N> {
        Self::each_waiter(network, layout, target, readers, |reader| {
            let at = layout.node(reader.rank, target, Field::Grant);
            if !reader.timed {
                Ok(network.notify(at, grant.pack(), Wake::Home)?)
            } else if network.add(at, grant.pack(), Wake::Home)? == Grant::ABANDONED {
                Self::leave_for(network, layout, target, grant)
            } else {
                Ok(())
            }
        })
    }

    /// Takes `readers` readers off the stack. Waits for those that are about to register.
    pub(crate) fn each_waiter<N: Network>(
        network: &N,
        layout: LockLayout,
        target: Rank,
        readers: u64,
        mut take: impl FnMut(Waiter) -> Result<(), N>,
    ) -> Result<(), N> {
        let node = layout.node(network.rank(), target, Field::Waiters);
        let mut waiters = Waiters(network.wait(node.word, Awaited::Anyone, |word| Waiters(word).count() >= readers)?);
        network.notify(node, 0, Wake::Nobody)?;
        let mut left = readers;
        loop {
            // Counts fall to 0 at the bottom of the stack; the protocol writes no other stack.
            let named = waiters.named().count() as u64;
            if waiters.count() != left || named != left.min(Waiters::NAMED) {
                return Err(Error::Corrupt { target, word: waiters.0 });
            }
            left -= named;
            // A granted reader may return and overwrite its link: read the link first.
            let rest = match waiters.named().last() {
                Some(last) if left > 0 => network.add(layout.node(last.rank, target, Field::Link), 0, Wake::Nobody)?,
                _ => 0,
            };
            waiters.named().try_for_each(&mut take)?;
            if left == 0 {
                return Ok(());
            }
            waiters = Waiters(rest);
        }
    }

    /// Starts the first atomic of a reader's release, without waiting for it.
    #[inline(always)]
    pub(crate) fn start_leaving<N: Network>(
        &self,
        network: &N,
        layout: LockLayout,
        target: Rank,
        grant: Grant,
    ) -> Result<N::Pending, N> {
        let (at, delta, wake) = match grant {
            Grant::Open => (layout.home(target), LockWord::<C>::DEPARTED, Wake::Nobody),
            Grant::Before(next) => (layout.node(next as Rank, target, Field::Drained), 1, Wake::Home),
        };
        // An addition that cannot be started has not happened, so it may be repeated. A reader that does not leave
        // blocks all later exclusive requests.
        Ok(network.start_add(at, delta, wake).or_else(|_| network.start_add(at, delta, wake))?)
    }

    /// Completes the atomic, and notifies the exclusive request, if any, that waits for the open group.
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
        self.left(network, layout, target, grant, found)
    }

    /// Ends a reader's release, whose atomic found the word `found`.
    #[inline(always)]
    pub(crate) fn left<N: Network>(
        &mut self,
        network: &N,
        layout: LockLayout,
        target: Rank,
        grant: Grant,
        found: u64,
    ) -> Result<(), N> {
        if grant == Grant::Open {
            self.seen = found.wrapping_add(LockWord::<C>::DEPARTED);
            Self::notify_head(network, layout, target, found)?;
        }
        self.status = StatusWord::of(Status::Free);
        Ok(())
    }

    /// Notifies the head after a reader of the open group has left and found the word `found`.
    #[inline(always)]
    pub(crate) fn notify_head<N: Network>(network: &N, layout: LockLayout, target: Rank, found: u64) -> Result<(), N> {
        if let Some(head) = LockWord::<C>(found).head() {
            network.add(layout.node(head, target, Field::Drained), 1, Wake::Home)?;
        }
        Ok(())
    }
}
