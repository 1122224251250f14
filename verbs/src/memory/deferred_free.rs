//! Deferred release of memory. Dropping a window, a team or attached memory is not collective, so peers may still
//! access memory that this rank no longer needs.
//!
//! Every object that ranks made together has a number, the same at each of them. A rank that drops its part reports
//! that in the next collective creation. The memory is released once all makers have dropped it. For attached memory,
//! each rank that uses it counts itself on a word of the owner.

use super::Slot;
use crate::sys::Registered;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use transom_launch::lock;
use transom_locks::Rank;
use transom_shm_loopback::View;

/// Memory that this rank no longer needs. Fields are dropped in this order.
pub(crate) struct Deferred {
    pub _registrations: Vec<Arc<Registered>>,
    pub _memory: View,
    /// Word on which peers that use the memory count themselves.
    pub reached: Option<Slot>,
}

/// Objects that the ranks of a job or team made together and have not all dropped, and detached memory. Each object may
/// keep something of type `M`.
pub(crate) struct DeferredFree<M = Vec<Deferred>>(Mutex<State<M>>);

struct State<M> {
    /// Number of the next object made by all ranks.
    next: u64,
    /// Number of teams led by this rank so far.
    led: u64,
    /// Objects not yet dropped by all makers.
    shared: HashMap<u64, Shared<M>>,
    /// Objects that this rank has dropped without reporting it yet.
    untold: Vec<u64>,
    /// Detached memory.
    detached: Vec<Deferred>,
}

/// An object made by several ranks.
struct Shared<M> {
    sharers: u32,
    /// Number of makers that have reported dropping it.
    gone: u32,
    kept: Option<M>,
}

impl<M> Default for DeferredFree<M> {
    fn default() -> Self {
        let (shared, untold, detached) = Default::default();
        DeferredFree(Mutex::new(State { next: 0, led: 0, shared, untold, detached }))
    }
}

const ENTRY: usize = 8;

/// Set in numbers of teams, to separate them from other objects.
const TEAMS: u64 = 1 << 63;

impl<M> DeferredFree<M> {
    fn state(&self) -> MutexGuard<'_, State<M>> {
        lock(&self.0)
    }

    /// The number of an object that `ranks` ranks have just made together; all of them call this in the same order.
    pub fn number(&self, ranks: usize) -> u64 {
        let mut state = self.state();
        let number = state.next;
        state.next += 1;
        drop(state);
        self.share(number, ranks);
        number
    }

    /// A number for a team that this rank leads, unique over all leaders.
    pub fn lead(&self, rank: Rank) -> u64 {
        let mut state = self.state();
        state.led += 1;
        TEAMS | (rank as u64) << 32 | state.led
    }

    /// Registers an object with this number, made by `sharers` ranks including this one.
    pub fn share(&self, number: u64, sharers: usize) {
        self.state().shared.insert(number, Shared { sharers: sharers as u32, gone: 0, kept: None });
    }

    /// Drops this rank's part; memory that peers may access is kept until all have dropped theirs.
    pub fn let_go(&self, number: u64, kept: Option<M>) {
        let mut state = self.state();
        state.untold.push(number);
        if let Some(shared) = state.shared.get_mut(&number) {
            shared.kept = kept;
        }
    }

    /// Keeps detached memory until no peer counts itself on it.
    pub fn detach(&self, memory: Deferred) {
        self.state().detached.push(memory);
        self.sweep();
    }

    /// Releases detached memory without users. A peer that finds memory detached after counting itself does not access
    /// it.
    pub fn sweep(&self) {
        let reached = |memory: &mut Deferred| memory.reached.as_ref().is_some_and(|count| count.count() > 0);
        let gone: Vec<_> = self.state().detached.extract_if(.., |memory| !reached(memory)).collect();
        drop(gone); // outside the lock
    }

    /// Returns whether there are drops to report.
    pub fn is_untold(&self) -> bool {
        !self.state().untold.is_empty()
    }

    /// Prefixes a message to all ranks with the unreported drops.
    pub fn tell(&self, message: &[u8]) -> Vec<u8> {
        let untold = std::mem::take(&mut self.state().untold);
        let entries = untold.iter().flat_map(|number| number.to_le_bytes());
        (untold.len() as u32).to_le_bytes().into_iter().chain(entries).chain(message.iter().copied()).collect()
    }

    /// Processes the drops in one rank's message, and returns the message; `None` if it is malformed.
    pub fn hear<'b>(&self, bytes: &'b [u8]) -> Option<&'b [u8]> {
        let (count, rest) = bytes.split_first_chunk()?;
        let (entries, message) = rest.split_at_checked((u32::from_le_bytes(*count) as usize).checked_mul(ENTRY)?)?;
        let mut gone = Vec::new();
        let mut state = self.state();
        for entry in entries.as_chunks::<ENTRY>().0 {
            let number = u64::from_le_bytes(*entry);
            let Some(shared) = state.shared.get_mut(&number) else { continue };
            shared.gone += 1;
            if shared.gone >= shared.sharers {
                gone.push(state.shared.remove(&number));
            }
        }
        drop(state);
        drop(gone); // outside the lock
        Some(message)
    }

    /// Number of kept objects, and of detached memories.
    #[cfg(test)]
    fn kept(&self) -> (usize, usize) {
        let state = self.state();
        (state.shared.values().filter(|shared| shared.kept.is_some()).count(), state.detached.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Exchanges a message with reports between all ranks; returns the number of bytes that each rank sent.
    fn meet(ranks: &[DeferredFree<&str>]) -> Vec<usize> {
        let told: Vec<_> = ranks.iter().map(|rank| rank.tell(b"message")).collect();
        for rank in ranks {
            told.iter().for_each(|told| assert_eq!(rank.hear(told), Some(&b"message"[..])));
        }
        told.iter().map(Vec::len).collect()
    }

    #[test]
    fn shared_object_is_released_when_all_dropped_it() {
        let ranks: [DeferredFree<&str>; 3] = Default::default();
        let windows = [0, 1].map(|_| ranks.each_ref().map(|rank| rank.number(3)));
        assert_eq!(windows, [[0; 3], [1; 3]]);
        ranks[0].let_go(0, Some("memory"));
        ranks[1].let_go(1, Some("memory"));
        ranks[1].let_go(0, Some("memory"));
        // 8 bytes per dropped window, for any number of ranks.
        assert_eq!(meet(&ranks), [7 + 4 + 8, 7 + 4 + 16, 7 + 4]);
        assert_eq!(ranks.each_ref().map(|rank| rank.kept().0), [1, 2, 0], "the last rank may still access them");
        ranks[2].let_go(0, Some("memory"));
        meet(&ranks);
        assert_eq!(ranks.each_ref().map(|rank| rank.kept().0), [0, 1, 0]);
        assert_eq!(meet(&ranks), [11; 3], "each drop is reported once");
    }

    #[test]
    fn team_is_released_when_its_members_dropped_it() {
        let ranks: [DeferredFree<&str>; 3] = Default::default();
        let window = ranks.each_ref().map(|rank| rank.number(3));
        // Two of the three ranks form a team led by rank 2; the third does not know it.
        let team = ranks[2].lead(2);
        assert!(team != ranks[2].lead(2) && team != ranks[0].lead(0) && !window.contains(&team));
        [&ranks[0], &ranks[2]].into_iter().for_each(|rank| rank.share(team, 2));
        ranks[0].let_go(team, Some("what the team kept"));
        meet(&ranks);
        assert_eq!(ranks[0].kept().0, 1);
        ranks[2].let_go(team, None);
        meet(&ranks);
        assert_eq!(ranks[0].kept().0, 0);
    }

    #[test]
    fn malformed_reports_are_refused() {
        let rank = DeferredFree::<&str>::default();
        rank.number(1);
        let told = {
            rank.let_go(0, Some("memory"));
            rank.tell(b"")
        };
        for cut in 0..told.len() {
            assert_eq!(rank.hear(&told[..cut]), None);
        }
        assert_eq!(rank.kept().0, 1);
        let unknown = [&1u32.to_le_bytes()[..], &77u64.to_le_bytes()].concat();
        assert_eq!(rank.hear(&unknown), Some(&[][..]), "an unknown number is ignored");
        assert_eq!(rank.hear(&[0xff; 4]), None);
        rank.hear(&told).unwrap();
        assert_eq!(rank.kept().0, 0);
    }
}
