//! Memory that this rank needs no more and others may still reach: dropping a window, a team or attached memory is not
//! collective. What ranks made together has a number, the same at each of them; a rank that drops its part says so to all
//! the next time they do something together, and once all that made it have, the memory goes. For attached memory each rank that reaches
//! it counts itself on a word of its owner.

use super::Slot;
use crate::sys::Registered;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use transom_launch::lock;
use transom_locks::Rank;
use transom_shm_loopback::View;

/// Memory that nobody here needs. It goes in this order.
pub(crate) struct Deferred {
    pub _registrations: Vec<Arc<Registered>>,
    pub _memory: View,
    /// Where those who reach it count themselves.
    pub reached: Option<Slot>,
}

/// What the ranks of a job or team made together and have not all let go of, and what one of them detached; each may be
/// kept with something of type `M`.
pub(crate) struct Remains<M = Vec<Deferred>>(Mutex<State<M>>);

struct State<M> {
    /// The number of what is made next by all.
    next: u64,
    /// How many teams were made that this rank leads.
    led: u64,
    /// Not let go of by all.
    shared: HashMap<u64, Shared<M>>,
    /// What this rank has let go of and not yet said so.
    untold: Vec<u64>,
    /// Memory that was attached, and is not any more.
    detached: Vec<Deferred>,
}

/// What several ranks made.
struct Shared<M> {
    sharers: u32,
    /// How many have said that they dropped it.
    gone: u32,
    kept: Option<M>,
}

impl<M> Default for Remains<M> {
    fn default() -> Self {
        let (shared, untold, detached) = Default::default();
        Remains(Mutex::new(State { next: 0, led: 0, shared, untold, detached }))
    }
}

const ENTRY: usize = 8;

/// Numbers of teams: apart from those of what all make.
const TEAMS: u64 = 1 << 63;

impl<M> Remains<M> {
    fn state(&self) -> MutexGuard<'_, State<M>> {
        lock(&self.0)
    }

    /// The number of what all ranks, so many, have just made together. All call this alike.
    pub fn number(&self, ranks: usize) -> u64 {
        let mut state = self.state();
        let number = state.next;
        state.next += 1;
        drop(state);
        self.share(number, ranks);
        number
    }

    /// A number for a team that this rank leads: its own choice, and no other's.
    pub fn lead(&self, rank: Rank) -> u64 {
        let mut state = self.state();
        state.led += 1;
        TEAMS | (rank as u64) << 32 | state.led
    }

    /// So many ranks, this one among them, have made together what has this number.
    pub fn share(&self, number: u64, sharers: usize) {
        self.state().shared.insert(number, Shared { sharers: sharers as u32, gone: 0, kept: None });
    }

    /// This rank drops its part; what others may reach is kept until all have.
    pub fn let_go(&self, number: u64, kept: Option<M>) {
        let mut state = self.state();
        state.untold.push(number);
        if let Some(shared) = state.shared.get_mut(&number) {
            shared.kept = kept;
        }
    }

    /// Keeps memory that was detached until nobody counts himself on it.
    pub fn detach(&self, memory: Deferred) {
        self.state().detached.push(memory);
        self.sweep();
    }

    /// Lets go of what was detached and nobody reaches. Who finds it detached after he has counted himself leaves it alone.
    pub fn sweep(&self) {
        let reached = |memory: &mut Deferred| memory.reached.as_ref().is_some_and(|count| count.count() > 0);
        let gone: Vec<_> = self.state().detached.extract_if(.., |memory| !reached(memory)).collect();
        drop(gone); // while nothing is locked
    }

    /// Whether there is something to tell.
    pub fn is_untold(&self) -> bool {
        !self.state().untold.is_empty()
    }

    /// All that is untold, before a message to all.
    pub fn tell(&self, message: &[u8]) -> Vec<u8> {
        let untold = std::mem::take(&mut self.state().untold);
        let entries = untold.iter().flat_map(|number| number.to_le_bytes());
        (untold.len() as u32).to_le_bytes().into_iter().chain(entries).chain(message.iter().copied()).collect()
    }

    /// The message of one rank, of all that were sent together.
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
        drop(gone); // while nothing is locked
        Some(message)
    }

    /// How much is kept: what was made together, and what was detached.
    #[cfg(test)]
    fn kept(&self) -> (usize, usize) {
        let state = self.state();
        (state.shared.values().filter(|shared| shared.kept.is_some()).count(), state.detached.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All tell each other what they have to tell, with a message; the bytes that each sent.
    fn meet(ranks: &[Remains<&str>]) -> Vec<usize> {
        let told: Vec<_> = ranks.iter().map(|rank| rank.tell(b"message")).collect();
        for rank in ranks {
            told.iter().for_each(|told| assert_eq!(rank.hear(told), Some(&b"message"[..])));
        }
        told.iter().map(Vec::len).collect()
    }

    #[test]
    fn what_was_made_together_goes_when_all_have_let_go() {
        let ranks: [Remains<&str>; 3] = Default::default();
        let windows = [0, 1].map(|_| ranks.each_ref().map(|rank| rank.number(3)));
        assert_eq!(windows, [[0; 3], [1; 3]]);
        ranks[0].let_go(0, Some("memory"));
        ranks[1].let_go(1, Some("memory"));
        ranks[1].let_go(0, Some("memory"));
        // 8 bytes for each window that was dropped, whatever the number of ranks.
        assert_eq!(meet(&ranks), [7 + 4 + 8, 7 + 4 + 16, 7 + 4]);
        assert_eq!(ranks.each_ref().map(|rank| rank.kept().0), [1, 2, 0], "the last may still reach them");
        ranks[2].let_go(0, Some("memory"));
        meet(&ranks);
        assert_eq!(ranks.each_ref().map(|rank| rank.kept().0), [0, 1, 0]);
        assert_eq!(meet(&ranks), [11; 3], "nothing is told twice");
    }

    #[test]
    fn a_team_goes_when_its_members_have_dropped_it() {
        let ranks: [Remains<&str>; 3] = Default::default();
        let window = ranks.each_ref().map(|rank| rank.number(3));
        // Two of the three, led by rank 2; the third knows nothing of it.
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
    fn what_is_heard_is_read_with_care() {
        let rank = Remains::<&str>::default();
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
        assert_eq!(rank.hear(&unknown), Some(&[][..]), "of no use, and no harm");
        assert_eq!(rank.hear(&[0xff; 4]), None);
        rank.hear(&told).unwrap();
        assert_eq!(rank.kept().0, 0);
    }
}
