//! Mutants of the protocol: one step omitted or altered at the boundary to the network, so that the code under check is
//! the code that ships. A check that a mutant passes is too weak.

#![allow(dead_code)] // Each test binary uses a part.

use transom_locks::model::{Call, Handles, Mix, Program, Replay, SimState, Suspended};
use transom_locks::{At, Awaited, Error, Field, LockLayout, LockWord, Network, Rank, Wake};

/// The fault in the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mutant {
    /// Notifications or additions with content to this field are omitted.
    Untold(Field),
    /// Verbs on this field wake no rank.
    Unwoken(Field),
    /// A wait on this field ends at once.
    Unawaited(Field),
    /// This field of a rank's own node is not cleared after use.
    Uncleared(Field),
    /// A reader that leaves the open group does not notify the head.
    NoSignalToHead,
    /// An exclusive request does not close the group before it: the count of its readers goes on.
    GroupNotClosed,
    /// The last exclusive holder leaves the departures of an earlier group in the word.
    DeparturesNotCleared,
    /// A waiting reader does not register.
    NoRegistration,
    /// An overflowing count of arrivals is not renormalised.
    NotRenormalised,
    /// A failed attempt counts as successful.
    CountedAsSuccess,
    /// An attempt finds another request where there is none.
    GivenUp,
    /// A leaving request assumes that it has taken back its word from its predecessor.
    TakenBack,
    /// A leaving tail does not tell its predecessor to look at the lock word again.
    NoLook,
    /// A leaving request does not tell its predecessor which request stands behind.
    NotForwarded,
    /// A leaving request does not notify its successor of the new predecessor.
    MovedUntold,
    /// A leaving request does not notify its successor that the move is settled.
    NotSettled,
    /// A request that hands over or leaves does not make its successor stay.
    NotStaying,
    /// A leaving request that finds STAY in its predecessor's `next` writes nothing more.
    StayUnseen,
    /// A request that announces itself drops STAY from `next`.
    StayForgotten,
    /// A leaving request drops STAY when it forwards its successor.
    StayNotForwarded,
    /// A request that becomes the tail again is not marked in the word.
    NotMarked,
    /// The readers before a leaving tail are not added to those behind its predecessor.
    ReadersForgotten,
    /// The readers inside are not counted when the head leaves.
    InsideForgotten,
    /// Departures reported to one head are counted again for the next.
    DeparturesKept,
    /// The readers inside go on notifying the old head.
    HeadKept,
    /// A reader gives up although it was granted.
    GivenUpGranted,
    /// A reader takes over a place that was passed over.
    RevivedPassed,
    /// A granting rank does not see that the reader has given up.
    AbandonedUnseen,
    /// A watching request assumes that its turn has come.
    Unwatched,
    /// A rank makes a new request before its successor has seen the answer to the last.
    NotSeen,
    /// A leaving request does not direct its watching successor to `go`.
    AtGoUntold,
    /// A leaving request tells its watching successor that its turn has come.
    TurnTold,
    /// A request directed to `go` assumes that its turn has come.
    TurnTaken,
    /// Every rank has the turn at the gate.
    GateOpen,
    /// The rank that waits with the next ticket is not notified of its turn.
    GateUntold,
    /// The turn is not written into the slot of a ticket whose rank does not wait yet.
    GateNotShown,
    /// A starving request does not make the word urgent.
    NotUrgent,
    /// The starving request leaves the word urgent.
    UrgentStill,
    /// Readers do not see the urgency.
    UrgencyUnseen,
}

/// Mutants of requests that watch their predecessor, which three ranks reveal.
pub const OF_WATCHING: [Mutant; 4] =
    [Mutant::Untold(Field::Next), Mutant::Uncleared(Field::Next), Mutant::Unwatched, Mutant::NotSeen];

/// Mutants of watching requests whose predecessor leaves.
pub const OF_WATCHING_WHO_LEAVES: [Mutant; 3] = [Mutant::AtGoUntold, Mutant::TurnTold, Mutant::TurnTaken];

/// Mutants of requests with deadlines, which three ranks reveal.
pub const OF_DEADLINES: [Mutant; 16] = [
    Mutant::TakenBack,
    Mutant::NoLook,
    Mutant::NotForwarded,
    Mutant::MovedUntold,
    Mutant::NotSettled,
    Mutant::NotStaying,
    Mutant::StayUnseen,
    Mutant::StayNotForwarded,
    Mutant::NotMarked,
    Mutant::ReadersForgotten,
    Mutant::InsideForgotten,
    Mutant::DeparturesKept,
    Mutant::HeadKept,
    Mutant::GivenUpGranted,
    Mutant::RevivedPassed,
    Mutant::AbandonedUnseen,
];

/// Mutants of the gate that some schedule of three ranks reveals.
pub const OF_GATE: [Mutant; 5] =
    [Mutant::GateOpen, Mutant::GateUntold, Mutant::GateNotShown, Mutant::Uncleared(Field::Slot), Mutant::UrgentStill];

/// Mutants that show only where a request starves.
pub const OF_URGENCY: [Mutant; 2] = [Mutant::NotUrgent, Mutant::UrgencyUnseen];

/// Flags of the lock word and of node words that concern deadlines and the gate.
const MARKED: u64 = 1 << 31;
const LOOK: u64 = 1 << 61;
const STAY: u64 = 1 << 57;
const LEAVES: u64 = 1 << 62;
const TURN: u64 = 1 << 59;
const AT_GO: u64 = 1 << 58;
const MOVED: u64 = 1 << 63;
const SETTLED: u64 = 3 << 62;
const ABANDONED: u64 = 1 << 63;
const URGENT: u64 = 1 << 15;
/// In a slot of the gate, or at `go` of the rank that waits there.
const TURN_AT_GATE: u64 = 1 << 63;

/// Mutants that three ranks reveal. Of the others, a link matters from four waiting readers on, and only a narrow count
/// overflows soon.
pub const WITH_THREE_RANKS: [Mutant; 22] = [
    Mutant::Unwoken(Field::Next),
    Mutant::Unwoken(Field::Go),
    Mutant::Unwoken(Field::Drained),
    Mutant::Unwoken(Field::Waiters),
    Mutant::Unwoken(Field::Grant),
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

/// The network of one rank, with the fault `mutant`.
pub struct Mutated<N, const C: u32> {
    pub network: N,
    pub layout: LockLayout,
    pub mutant: Option<Mutant>,
}

/// An addition, started or omitted, and the bits to hide from its result.
pub struct Pending<P>(Option<P>, u64);

impl<N: Network, const C: u32> Mutated<N, C> {
    /// A deadline mutant's version of a compare-and-swap: its new value, whether it is omitted, and whether it counts
    /// as successful.
    fn of_deadlines(&self, at: At, expected: u64, new: u64) -> Option<(u64, bool, bool)> {
        let (field, own) = (self.layout.field(at)?.1, at.rank == self.rank());
        let (before, after, me) = (LockWord::<C>(expected), LockWord::<C>(new), Some(self.rank()));
        let tail_leaves = before.tail() == me && after.tail() != me;
        let more = after.arrived().wrapping_sub(before.arrived()).wrapping_mul(LockWord::<C>::ARRIVED);
        let leaves = LEAVES | (self.rank() as u64 + 1) << 32;
        let (left_out, believed) = (Some((new, true, true)), Some((new, false, true)));
        match (self.mutant?, field) {
            (Mutant::TakenBack, Field::Next) if new & LEAVES != 0 => believed,
            (Mutant::NoLook, Field::Next) if new & LOOK != 0 => left_out,
            (Mutant::NotForwarded, Field::Next) if expected == leaves && new != LOOK => left_out,
            (Mutant::StayUnseen, Field::Next) if expected == leaves | STAY => left_out,
            (Mutant::StayForgotten, Field::Next) if expected != leaves | STAY => Some((new & !STAY, false, false)),
            (Mutant::StayNotForwarded, Field::Next) if expected == leaves | STAY && new & LOOK == 0 => {
                Some((new & !STAY, false, false))
            }
            (Mutant::NotSettled, Field::Go) if new >> 62 == SETTLED >> 62 => left_out,
            (Mutant::MovedUntold, Field::Go) if new >> 62 == MOVED >> 62 => left_out,
            (Mutant::Untold(Field::Go), Field::Go) if new >> 62 == 0 => left_out,
            (Mutant::NotMarked, Field::Word) if tail_leaves => Some((new & !MARKED, false, false)),
            (Mutant::ReadersForgotten, Field::Word) if tail_leaves && after.tail().is_some() => {
                Some((new.wrapping_sub(more), false, false))
            }
            (Mutant::InsideForgotten, Field::Word) if tail_leaves && after.tail().is_none() => {
                Some((new.wrapping_sub(more), false, false))
            }
            (Mutant::GivenUpGranted, Field::Grant) if own && new == ABANDONED => believed,
            (Mutant::RevivedPassed, Field::Grant) if own && expected == ABANDONED => believed,
            _ => None,
        }
    }

    fn wake(&self, at: At, wake: Wake) -> Wake {
        if self.is(at, Mutant::Unwoken) { Wake::Nobody } else { wake }
    }

    fn is(&self, at: At, mutant: impl Fn(Field) -> Mutant) -> bool {
        let Some((_, field)) = self.layout.field(at) else { return false };
        self.mutant == Some(mutant(field))
    }
}

impl<N: Network, const C: u32> Network for Mutated<N, C> {
    type Error = N::Error;
    type Pending = Pending<N::Pending>;
    type Found = std::convert::Infallible;

    fn rank(&self) -> Rank {
        self.network.rank()
    }

    fn ranks(&self) -> usize {
        self.network.ranks()
    }

    fn cas(&self, at: At, expected: u64, mut new: u64, wake: Wake) -> Result<u64, N::Error> {
        let wake = self.wake(at, wake);
        if let Some((new, is_left_out, is_believed)) = self.of_deadlines(at, expected, new) {
            let found = if is_left_out { expected } else { self.network.cas(at, expected, new, wake)? };
            return Ok(if is_believed { expected } else { found });
        }
        match self.layout.field(at) {
            Some((_, Field::Waiters)) if self.mutant == Some(Mutant::NoRegistration) => return Ok(expected),
            Some((_, Field::Slot)) if new == TURN_AT_GATE && self.mutant == Some(Mutant::GateNotShown) => {
                // A rank that waits there already is notified.
                let found = self.network.add(at, 0, wake)?;
                return Ok(found);
            }
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
                    Some(Mutant::UrgentStill) if before.tail() != me && after.tail() == me => new |= expected & URGENT,
                    Some(Mutant::NotRenormalised) if before.tail() == after.tail() => return Ok(expected),
                    Some(Mutant::CountedAsSuccess) if before.tail().is_none() => {
                        return self.network.cas(at, expected, new, wake).map(|_| expected);
                    }
                    Some(Mutant::GivenUp) => {
                        // Always fails: a lock word never has this value.
                        let found = self.network.cas(at, u64::MAX, u64::MAX, wake)?;
                        return Ok(LockWord::<C>(found).with_exclusive(self.rank() + 1).0);
                    }
                    _ => {}
                }
            }
            _ => {}
        }
        self.network.cas(at, expected, new, wake)
    }

    fn start_add(&self, at: At, delta: u64, wake: Wake) -> Result<Self::Pending, N::Error> {
        let wake = self.wake(at, wake);
        let field = self.layout.field(at).map(|(_, field)| field);
        let is_told = delta > 0 && delta != STAY;
        if is_told && self.is(at, Mutant::Untold) {
            return Ok(Pending(None, 0));
        }
        let delta = match self.mutant {
            Some(Mutant::NotStaying) if delta == STAY => 0,
            // The departures that the head was notified of, when another request becomes the head.
            Some(Mutant::HeadKept) if field == Some(Field::Word) && (delta as i64).unsigned_abs() < URGENT => 0,
            Some(Mutant::DeparturesKept) if field == Some(Field::Word) && delta > LockWord::<C>::DEPARTED => {
                if delta.is_multiple_of(LockWord::<C>::DEPARTED) { 0 } else { delta }
            }
            _ => delta,
        };
        let (is_grant, is_ticket) = (field == Some(Field::Grant), field == Some(Field::Tickets));
        let hidden = match self.mutant {
            Some(Mutant::GateOpen) if is_ticket => u64::MAX,
            Some(Mutant::NotUrgent) if delta == URGENT => return Ok(Pending(None, 0)),
            Some(Mutant::UrgencyUnseen) if field == Some(Field::Word) && delta != URGENT => URGENT,
            Some(Mutant::AbandonedUnseen) if is_grant => u64::MAX,
            Some(Mutant::NoSignalToHead) if delta == LockWord::<C>::DEPARTED => 0xffff,
            _ => 0,
        };
        Ok(Pending(Some(self.network.start_add(at, delta, wake)?), hidden))
    }

    fn finish(&self, Pending(pending, hide): Self::Pending) -> Result<u64, N::Error> {
        let found = pending.map_or(Ok(0), |pending| self.network.finish(pending))?;
        Ok(found & !hide)
    }

    fn try_finish(&self, Pending(pending, hide): Self::Pending) -> Result<u64, Self::Pending> {
        let Some(pending) = pending else { return Ok(0) };
        let found = self.network.try_finish(pending);
        found.map(|found| found & !hide).map_err(|pending| Pending(Some(pending), hide))
    }

    fn notify(&self, at: At, value: u64, wake: Wake) -> Result<(), N::Error> {
        let wake = self.wake(at, wake);
        let own = at.rank == self.rank();
        let is_go = matches!(self.layout.field(at), Some((_, Field::Go)));
        match self.mutant {
            Some(Mutant::AtGoUntold) if own && value == AT_GO => return Ok(()),
            Some(Mutant::GateUntold) if is_go && value == TURN_AT_GATE => return Ok(()),
            Some(Mutant::TurnTold) if own && value == AT_GO => return self.network.notify(at, TURN, wake),
            _ => {}
        }
        // A word cleared at another rank is one that this rank watched there.
        let left_out = if value == 0 { self.is(at, Mutant::Uncleared) } else { self.is(at, Mutant::Untold) };
        if left_out { Ok(()) } else { self.network.notify(at, value, wake) }
    }

    fn wait(&self, word: usize, on: Awaited, until: impl Fn(u64) -> bool) -> Result<u64, N::Error> {
        let at = At { rank: self.rank(), word };
        if self.mutant == Some(Mutant::NotSeen) && until(0) && !until(TURN) {
            return Ok(0);
        }
        if !self.is(at, Mutant::Unawaited) {
            return self.network.wait(word, on, until);
        }
        match self.layout.field(at) {
            // Goes on with the value found; elsewhere with the value awaited.
            Some((_, Field::Waiters)) => self.network.wait(word, on, |_| true),
            _ => Ok((1..).find(|&value| until(value)).unwrap_or(1)),
        }
    }

    fn watches(&self, rank: Rank) -> bool {
        self.network.watches(rank)
    }

    fn watch(&self, at: At, on: Awaited, until: impl Fn(u64) -> bool) -> Result<u64, N::Error> {
        match self.mutant {
            Some(Mutant::Unwatched) => Ok(TURN),
            Some(Mutant::TurnTaken) => {
                self.network.watch(at, on, until).map(|told| if told == AT_GO { TURN } else { told })
            }
            _ => self.network.watch(at, on, until),
        }
    }
}

/// The tickets of the gate of the lock of rank 0.
pub const TICKETS: At = At { rank: 0, word: 1 };

/// A mix run with a mutant.
pub struct MutantMix<const C: u32> {
    pub mix: Mix<C>,
    pub rows: Vec<Vec<Call>>,
    pub mutant: Option<Mutant>,
    /// True if the words are also checked at the end.
    pub end: bool,
    /// The ticket count at the gate of the lock of rank 0 at the start.
    pub tickets: u32,
}

impl<const C: u32> MutantMix<C> {
    pub fn new(rows: Vec<Vec<Call>>) -> Self {
        MutantMix { mix: Mix::new(rows.clone()), rows, mutant: None, end: true, tickets: 0 }
    }
}

impl<const C: u32> Program for MutantMix<C> {
    type Local = Handles<C>;

    fn start(&self, rank: Rank) -> Self::Local {
        self.mix.start(rank)
    }

    fn phases(&self, rank: Rank) -> usize {
        self.mix.phases(rank)
    }

    fn phase(
        &self,
        rank: Rank,
        phase: usize,
        handles: &mut Self::Local,
        network: &Replay,
    ) -> Result<(), Error<Suspended>> {
        let layout = LockLayout::new(0, self.rows.len());
        let network = Mutated::<_, C> { network, layout, mutant: self.mutant };
        self.rows[rank][phase].run(handles, &network)
    }

    fn before(&self, write: &mut dyn FnMut(At, u64)) {
        // Numbers of tickets have 3 bits where counts are narrow.
        let tickets = u64::from(self.tickets);
        write(TICKETS, if C < 16 { (tickets & 7) << 61 | (tickets & 7) << 58 } else { tickets << 32 | tickets });
    }

    fn locks(&self) -> Option<LockLayout> {
        self.mix.locks()
    }

    fn call(&self, rank: Rank, phase: usize) -> Option<Call> {
        self.mix.call(rank, phase)
    }

    fn alike(&self, rank: Rank) -> Option<Rank> {
        self.mix.alike(rank)
    }

    fn check(&self, state: &SimState<Self::Local>) -> Result<(), String> {
        if self.end { self.mix.check(state) } else { Ok(()) }
    }
}
