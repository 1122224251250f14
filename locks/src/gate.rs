//! The gate of a lock: the way into its queue for requests that others keep out of it. README.md beside the code says why it ends.

use crate::lock_word::Tickets;
use crate::target_lock::Result;
use crate::{Awaited, Error, Field, LockLayout, LockWord, Network, Rank, TargetLock, Wake};

/// In a slot, or at `go` of who waits: the turn of its ticket has come.
pub(crate) const TURN: u64 = 1 << 63;

impl<const C: u32> TargetLock<C> {
    /// Takes a place in the queue for an exclusive request of which one attempt has failed: by some more, or else at the gate. Returns
    /// what the word held before, which is taken to be `seen`.
    #[cold]
    #[inline(never)]
    pub(crate) fn ask_again<N: Network>(
        &mut self,
        network: &N,
        layout: LockLayout,
        target: Rank,
        seen: LockWord<C>,
    ) -> Result<LockWord<C>, N> {
        match self.attempts(network, layout, target, seen, LockWord::<C>::ATTEMPTS - 1)? {
            (found, true) => Ok(found),
            (found, false) => self.ask_at_gate(network, layout, target, found),
        }
    }

    /// So many attempts at most: what the word held at the last, and whether that took.
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

    /// Takes a place in the queue for an exclusive request that others have kept out of it, or that saw that they keep another
    /// out. As [`ask_again`](Self::ask_again).
    #[cold]
    #[inline(never)]
    pub(crate) fn ask_at_gate<N: Network>(
        &mut self,
        network: &N,
        layout: LockLayout,
        target: Rank,
        seen: LockWord<C>,
    ) -> Result<LockWord<C>, N> {
        let ticket = Self::enter_gate(network, layout, target)?;
        // In this turn nobody else makes the word urgent.
        let seen = seen.without_urgency();
        let (mut found, took) = self.attempts(network, layout, target, seen, LockWord::<C>::ATTEMPTS)?;
        if !took {
            found = self.ask_urgently(network, layout, target)?;
        }
        Self::leave_gate(network, layout, target, ticket)?;
        Ok(found)
    }

    /// Makes the word urgent, and tries until this rank's exclusive request is the tail. Each rank changes the word a few times at
    /// most before it sees that it is urgent, and then asks at the gate, which this rank has.
    fn ask_urgently<N: Network>(&mut self, network: &N, layout: LockLayout, target: Rank) -> Result<LockWord<C>, N> {
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

    /// Takes a ticket, and waits for its turn. Who has the turn waits for nobody: it makes its request, and passes the turn on.
    #[cold]
    pub(crate) fn enter_gate<N: Network>(network: &N, layout: LockLayout, target: Rank) -> Result<u32, N> {
        let me = network.rank();
        let tickets = Tickets(network.add(layout.tickets(target), Tickets::TAKE, Wake::Nobody)?);
        let ticket = tickets.next();
        if tickets.turn() != ticket {
            let slot = layout.slot(target, ticket);
            match network.cas(slot, 0, me as u64 + 1, Wake::Nobody)? {
                0 => {
                    // No request of this rank is in the queue: nobody else tells it anything here.
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
            // Before this rank's turn ends, and so before the slot is another ticket's.
            network.notify(slot, 0, Wake::Nobody)?;
        }
        Ok(ticket)
    }

    /// Passes the turn on.
    #[cold]
    pub(crate) fn leave_gate<N: Network>(network: &N, layout: LockLayout, target: Rank, ticket: u32) -> Result<(), N> {
        let tickets = Tickets(network.add(layout.tickets(target), Tickets::end(ticket), Wake::Nobody)?);
        if tickets.turn() != ticket {
            return Err(Error::Corrupt { target, word: tickets.0 });
        }
        let next = ticket.wrapping_add(1);
        if next == tickets.next() {
            return Ok(());
        }
        match network.cas(layout.slot(target, next), 0, TURN, Wake::Nobody)? {
            0 => Ok(()),
            // Who has that ticket was here first.
            name if (1..=network.ranks() as u64).contains(&name) => {
                Ok(network.notify(layout.node(name as Rank - 1, target, Field::Go), TURN, Wake::Home)?)
            }
            word => Err(Error::Corrupt { target, word }),
        }
    }
}
