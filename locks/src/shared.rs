//! Shared requests of the passive lock: the place in the queue, the wait for the grant, and room in the counts.

use crate::at_once::{AtOnce, LockWords};
use crate::lock_status::{HeldAs, Status, StatusWord};
use crate::lock_word::{Grant, Waiter, Waiters};
use crate::target_lock::{Placed, Result};
use crate::{Awaited, Error, Field, LockLayout, LockWord, Network, QueuePosition, Rank, TargetLock, Wake};

impl<const C: u32> TargetLock<C> {
    /// Takes the lock of `target` together with other readers. Costs 1 fetch-and-add if no exclusive request holds it
    /// or is queued. Otherwise it also costs a compare-and-swap at the last of these requests (again for each reader
    /// that registers there in between) and local waiting.
    ///
    /// # Errors
    /// The errors of [`exclusive`](Self::exclusive).
    #[inline(always)]
    pub fn shared<N: Network>(&mut self, network: &N, layout: LockLayout, target: Rank) -> Result<QueuePosition, N> {
        let words = LockWords::find(network, layout, target);
        let once = words.map_or(AtOnce::Unfit, |words| self.shared_at_once(network, &words));
        self.shared_from(network, layout, target, once)
    }

    /// Goes on with a shared request after its attempt at once.
    #[inline(always)]
    pub(crate) fn shared_from<N: Network>(
        &mut self,
        network: &N,
        layout: LockLayout,
        target: Rank,
        once: AtOnce,
    ) -> Result<QueuePosition, N> {
        match once {
            AtOnce::Done => return Ok(QueuePosition::default()),
            AtOnce::Found(found) => return self.shared_after(network, layout, target, found),
            AtOnce::Unfit => {}
        }
        if let Status::Abandoned(tail) = self.status.get()
            && self.on_copy(move |lock| lock.revive(network, layout, target))?
        {
            return self.await_shared(network, layout, target, Placed::Behind(tail as Rank));
        }
        let pending = self.start_shared(network, layout, target)?;
        let placed = self.place_shared(network, layout, target, pending, false)?;
        self.await_shared(network, layout, target, placed)
    }

    /// Starts the request's atomic without waiting for it: `acquire_all_mut` has all of them in flight at once. If it
    /// cannot be started, nothing has happened, and the lock is not broken.
    #[inline(always)]
    pub(crate) fn start_shared<N: Network>(
        &mut self,
        network: &N,
        layout: LockLayout,
        target: Rank,
    ) -> Result<N::Pending, N> {
        self.enter(network, layout, target)?;
        let ticket = match LockWord::<C>(self.seen).is_urgent() {
            true => Some(Self::enter_gate(network, layout, target)?),
            false => None,
        };
        let started = network.start_add(layout.home(target), LockWord::<C>::ARRIVED, Wake::Nobody);
        if let Some(ticket) = ticket {
            Self::leave_gate(network, layout, target, ticket)?;
        }
        started.map_err(|error| {
            self.status = StatusWord::of(Status::Free);
            error.into()
        })
    }

    /// Completes the request's atomic, and takes the place in the queue that it gave. `timed` says that the request has
    /// a deadline.
    #[inline(always)]
    pub(crate) fn place_shared<N: Network>(
        &mut self,
        network: &N,
        layout: LockLayout,
        target: Rank,
        pending: N::Pending,
        timed: bool,
    ) -> Result<Placed, N> {
        let found = network.finish(pending)?;
        self.place_shared_at(network, layout, target, found, timed)
    }

    /// Takes the place in the queue that the request's atomic gave, which found the word `found`.
    #[inline(always)]
    pub(crate) fn place_shared_at<N: Network>(
        &mut self,
        network: &N,
        layout: LockLayout,
        target: Rank,
        found: u64,
        timed: bool,
    ) -> Result<Placed, N> {
        let found = LockWord::<C>(found);
        self.seen = found.0.wrapping_add(LockWord::<C>::ARRIVED);
        let Some(tail) = found.tail() else {
            if found.count_overflow() {
                self.on_copy(move |lock| lock.renormalise(network, layout, target))?;
            }
            self.status = StatusWord::of(Status::Held(HeldAs::Shared(Grant::Open)));
            return Ok(Placed::Granted);
        };
        Self::register(network, layout, target, found, tail, timed)
    }

    /// Waits for the grant, unless it has come already.
    #[inline(always)]
    pub(crate) fn await_shared<N: Network>(
        &mut self,
        network: &N,
        layout: LockLayout,
        target: Rank,
        placed: Placed,
    ) -> Result<QueuePosition, N> {
        let Placed::Behind(tail) = placed else { return Ok(QueuePosition::default()) };
        let node = layout.node(network.rank(), target, Field::Grant);
        let grant = network.wait(node.word, Awaited::Behind(tail), |grant| grant != 0)?;
        network.notify(node, 0, Wake::Nobody)?;
        self.status = StatusWord::of(Status::Held(HeldAs::Shared(Grant::unpack(grant))));
        Ok(QueuePosition { exclusive: Some(tail), readers: 0 })
    }

    /// Registers this reader with the last exclusive requester, which will grant it.
    #[cold]
    fn register<N: Network>(
        network: &N,
        layout: LockLayout,
        target: Rank,
        found: LockWord<C>,
        tail: Rank,
        timed: bool,
    ) -> Result<Placed, N> {
        let me = network.rank();
        if tail == me {
            return Err(Error::Corrupt { target, word: found.0 });
        }
        let mut waiters = Waiters::default();
        loop {
            network.notify(layout.node(me, target, Field::Link), waiters.0, Wake::Nobody)?;
            let found = network.cas(
                layout.node(tail, target, Field::Waiters),
                waiters.0,
                waiters.pushed(Waiter { rank: me, timed }).0,
                Wake::Home,
            )?;
            if found == waiters.0 {
                return Ok(Placed::Behind(tail));
            }
            waiters = Waiters(found);
        }
    }

    /// Makes room in `arrived`, or sees that another rank did. Until a rank has, each other rank changes the word at
    /// most twice, by a departure and an arrival, before it tries to make room too. More changes than that prove that a
    /// rank made room, even if the count is past its half again.
    #[cold]
    fn renormalise<N: Network>(&mut self, network: &N, layout: LockLayout, target: Rank) -> Result<(), N> {
        let mut seen = LockWord::<C>(self.seen);
        for _ in 0..2 * network.ranks() {
            if !seen.count_overflow() {
                break;
            }
            let new = seen.renormalised();
            let found = network.cas(layout.home(target), seen.0, new.0, Wake::Nobody)?;
            seen = if found == seen.0 { new } else { LockWord(found) };
        }
        self.seen = seen.0;
        Ok(())
    }
}
