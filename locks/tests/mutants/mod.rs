//! The protocol with one step left out or altered, made at the boundary to the network, so that the code under check
//! is the code that ships. A check that a mutant passes would check too little.

#![allow(dead_code)] // Each test binary uses some.

use transom_locks::{At, Awaited, Field, LockLayout, LockWord, Network, Rank};

/// What is wrong with the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mutant {
    /// Notifications or additions to this field that tell something do not happen.
    Untold(Field),
    /// A wait on this field ends at once.
    Unawaited(Field),
    /// This field of one's own node is not cleared after use.
    Uncleared(Field),
    /// A reader that leaves the open group does not tell the head.
    NoSignalToHead,
    /// An exclusive request does not close the group before it: its readers go on being counted.
    GroupNotClosed,
    /// The last exclusive holder leaves the departures of an earlier group in the word.
    DeparturesNotCleared,
    /// A reader that waits does not register.
    NoRegistration,
    /// A crowded count of arrivals is not renormalised.
    NotRenormalised,
    /// An attempt believes that it changed the word of a lock.
    Believed,
    /// An attempt finds somebody who is not there.
    GivenUp,
}

/// Those that three ranks show. The rest: a link matters from four waiting readers on, and only a narrow count is soon
/// crowded.
pub const WITH_THREE_RANKS: [Mutant; 17] = [
    Mutant::Untold(Field::Next),
    Mutant::Untold(Field::Go),
    Mutant::Untold(Field::Drained),
    Mutant::Untold(Field::Grant),
    Mutant::NoRegistration,
    Mutant::NoSignalToHead,
    Mutant::Unawaited(Field::Go),
    Mutant::Unawaited(Field::Drained),
    Mutant::Unawaited(Field::Grant),
    Mutant::Unawaited(Field::Waiters),
    Mutant::Uncleared(Field::Next),
    Mutant::Uncleared(Field::Go),
    Mutant::Uncleared(Field::Drained),
    Mutant::Uncleared(Field::Grant),
    Mutant::Uncleared(Field::Waiters),
    Mutant::GroupNotClosed,
    Mutant::DeparturesNotCleared,
];

/// The network of one rank, through which `mutant` shows.
pub struct Mutated<N, const C: u32> {
    pub network: N,
    pub layout: LockLayout,
    pub mutant: Option<Mutant>,
}

/// An addition: under way or left out, and whether the head is to be hidden from its result.
pub struct Pending<P>(Option<P>, bool);

impl<N: Network, const C: u32> Mutated<N, C> {
    fn is(&self, at: At, mutant: impl Fn(Field) -> Mutant) -> bool {
        let Some((_, field)) = self.layout.field(at) else { return false };
        self.mutant == Some(mutant(field))
    }
}

impl<N: Network, const C: u32> Network for Mutated<N, C> {
    type Error = N::Error;
    type Pending = Pending<N::Pending>;

    fn rank(&self) -> Rank {
        self.network.rank()
    }

    fn ranks(&self) -> usize {
        self.network.ranks()
    }

    fn cas(&self, at: At, expected: u64, mut new: u64) -> Result<u64, N::Error> {
        match self.layout.field(at) {
            Some((_, Field::Waiters)) if self.mutant == Some(Mutant::NoRegistration) => return Ok(expected),
            Some((_, Field::Word)) => {
                let (before, after) = (LockWord::<C>(expected), LockWord::<C>(new));
                let me = Some(self.rank());
                match self.mutant {
                    Some(Mutant::GroupNotClosed) if before.tail() != me && after.tail() == me => {
                        new += before.arrived() * LockWord::<C>::ARRIVED;
                    }
                    Some(Mutant::DeparturesNotCleared) if before.tail() == me && after.tail().is_none() => {
                        new += before.departed() * LockWord::<C>::DEPARTED;
                    }
                    Some(Mutant::NotRenormalised) if before.tail() == after.tail() => return Ok(expected),
                    Some(Mutant::Believed) if before.tail().is_none() => {
                        return self.network.cas(at, expected, new).map(|_| expected);
                    }
                    Some(Mutant::GivenUp) => {
                        // Fails: no word of a lock is that.
                        let found = self.network.cas(at, u64::MAX, u64::MAX)?;
                        return Ok(LockWord::<C>(found).with_exclusive(self.rank() + 1).0);
                    }
                    _ => {}
                }
            }
            _ => {}
        }
        self.network.cas(at, expected, new)
    }

    fn start_add(&self, at: At, delta: u64) -> Result<Self::Pending, N::Error> {
        if delta > 0 && self.is(at, Mutant::Untold) {
            return Ok(Pending(None, false));
        }
        let hide = self.mutant == Some(Mutant::NoSignalToHead) && delta == LockWord::<C>::DEPARTED;
        Ok(Pending(Some(self.network.start_add(at, delta)?), hide))
    }

    fn finish(&self, Pending(pending, hide): Self::Pending) -> Result<u64, N::Error> {
        let found = pending.map_or(Ok(0), |pending| self.network.finish(pending))?;
        Ok(if hide { found & !0xffff } else { found })
    }

    fn notify(&self, at: At, value: u64) -> Result<(), N::Error> {
        let own = at.rank == self.rank();
        let left_out = if own && value == 0 { self.is(at, Mutant::Uncleared) } else { self.is(at, Mutant::Untold) };
        if left_out { Ok(()) } else { self.network.notify(at, value) }
    }

    fn wait(&self, word: usize, on: Awaited, until: impl Fn(u64) -> bool) -> Result<u64, N::Error> {
        let at = At { rank: self.rank(), word };
        if !self.is(at, Mutant::Unawaited) {
            return self.network.wait(word, on, until);
        }
        match self.layout.field(at) {
            // Goes on with what is there; elsewhere with what it was to wait for.
            Some((_, Field::Waiters)) => self.network.wait(word, on, |_| true),
            _ => Ok((1..).find(|&value| until(value)).unwrap_or(1)),
        }
    }
}
