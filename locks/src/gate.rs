//! The gate of a lock: access to its queue for requests that starve. README.md beside the code proves that it ends.

use crate::lock_word::Tickets;
use crate::target_lock::Result;
use crate::{Awaited, Error, Field, LockLayout, LockWord, Network, Rank, TargetLock, Wake};

/// In a slot, or at `go` of the waiting rank: the turn of its ticket has come.
pub(crate) const TURN: u64 = 1 << 63;

impl<const C: u32> TargetLock<C> {
    /// Enqueues an exclusive request whose first attempt failed: by further attempts, then at the gate. Returns the
    /// word before the request. `seen` is the word as last found.
    #[cold]
    #[inline(never)]
    pub(crate) fn retry_enqueue<N: Network>(
        &mut self,
        network: &N,
        layout: LockLayout,
        target: Rank,
        seen: LockWord<C>,
    ) -> Result<LockWord<C>, N> {
        match self.attempts(network, layout, target, seen, LockWord::<C>::ATTEMPTS - 1)? {
            (found, true) => Ok(found),
            (found, false) => self.enqueue_at_gate(network, layout, target, found),
        }
    }

    /// Makes up to `most` attempts. Returns the word that the last one found, and whether it succeeded.
    fn attempts<N: Network>(
        &mut self,
        network: &N,
        layout: LockLayout,
        target: Rank,
        mut seen: LockWord<C>,
        most: usize,
    ) -> Result<(LockWord<C>, bool), N> {
        for _ in 0..most {
            let found = self.attempt(network, layout, target, seen)?;
            if found == seen {
                return Ok((found, true));
            }
            seen = found;
        }
        Ok((seen, false))
    }

    /// Enqueues an exclusive request at the gate, because it starves or has seen that another request does. Returns the
    /// word before the request.
    #[cold]
    #[inline(never)]
    pub(crate) fn enqueue_at_gate<N: Network>(
        &mut self,
        network: &N,
        layout: LockLayout,
        target: Rank,
        seen: LockWord<C>,
    ) -> Result<LockWord<C>, N> {
        let ticket = Self::enter_gate(network, layout, target)?;
        // Only the rank that has the turn makes the word urgent.
        let seen = seen.without_urgency();
        let (mut found, took) = self.attempts(network, layout, target, seen, LockWord::<C>::ATTEMPTS)?;
        if !took {
            found = self.enqueue_urgently(network, layout, target)?;
        }
        Self::leave_gate(network, layout, target, ticket)?;
        Ok(found)
    }

    /// Makes the word urgent, and repeats its attempt until this rank's exclusive request is the tail. Any other rank
    /// changes the word only a few times before it sees the urgency; its next request then waits at the gate, which
    /// this rank holds.
    fn enqueue_urgently<N: Network>(
        &mut self,
        network: &N,
        layout: LockLayout,
        target: Rank,
    ) -> Result<LockWord<C>, N> {
        let home = layout.home(target);
        let mut seen = LockWord::<C>(network.add(home, LockWord::<C>::URGENT, Wake::Nobody)? | LockWord::<C>::URGENT);
        loop {
            let new = seen.with_exclusive(network.rank()).without_urgency();
            let found = LockWord(network.cas(home, seen.0, new.0, Wake::Nobody)?);
            if found == seen {
                self.seen = new.0;
                return Ok(seen);
            }
            seen = found;
        }
    }

    /// Takes a ticket and waits for its turn. A rank that has the turn waits for no other: it makes its request and
    /// passes the turn on.
    #[cold]
    pub(crate) fn enter_gate<N: Network>(network: &N, layout: LockLayout, target: Rank) -> Result<u32, N> {
        let me = network.rank();
        let tickets = Tickets::<C>(network.add(layout.tickets(target), Tickets::<C>::TAKE, Wake::Nobody)?);
        let ticket = tickets.next();
        if tickets.turn() != ticket {
            let slot = layout.slot(target, ticket);
            match network.cas(slot, 0, me as u64 + 1, Wake::Nobody)? {
                0 => {
                    // No request of this rank is in the queue, so `go` can only announce the turn.
                    let go = layout.node(me, target, Field::Go);
                    let told = network.wait(go.word, Awaited::Anyone, |go| go != 0)?;
                    if told != TURN {
                        return Err(Error::Corrupt { target, word: told });
                    }
                    network.notify(go, 0, Wake::Nobody)?;
                }
                TURN => {}
                word => return Err(Error::Corrupt { target, word }),
            }
            // The slot is cleared before this rank's turn ends, so before another ticket uses it.
            network.notify(slot, 0, Wake::Nobody)?;
        }
        Ok(ticket)
    }

    /// Ends the turn of `ticket`, and wakes the rank that waits with the next one.
    #[cold]
    pub(crate) fn leave_gate<N: Network>(network: &N, layout: LockLayout, target: Rank, ticket: u32) -> Result<(), N> {
        let tickets = Tickets::<C>(network.add(layout.tickets(target), Tickets::<C>::end(ticket), Wake::Nobody)?);
        if tickets.turn() != ticket {
            return Err(Error::Corrupt { target, word: tickets.0 });
        }
        let next = Tickets::<C>::after(ticket);
        if next == tickets.next() {
            return Ok(());
        }
        match network.cas(layout.slot(target, next), 0, TURN, Wake::Nobody)? {
            0 => Ok(()),
            // The next ticket's rank reached the slot first, and waits at its `go`.
            name if (1..=network.ranks() as u64).contains(&name) => {
                Ok(network.notify(layout.node(name as Rank - 1, target, Field::Go), TURN, Wake::Home)?)
            }
            word => Err(Error::Corrupt { target, word }),
        }
    }
}
