//! Deferred release of memory. Dropping a window, a team or attached memory is not collective, so peers may still
//! access memory that this rank no longer needs.
//!
//! Every object that ranks made together has a number, the same at each of them. A rank that drops its part reports
//! that in the next collective creation. The memory is released once all makers have dropped it.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};
use transom_launch::lock;
use transom_locks::Rank;

/// Objects that the ranks of a job or team made together and have not all dropped. Each object may keep something of type
/// `M`, which peers may access until then.
///
/// # Examples
/// ```
/// use transom_network::DeferredFree;
/// let [mine, other]: [DeferredFree<Vec<u8>>; 2] = Default::default();
/// let window = mine.number(2);
/// assert_eq!(other.number(2), window);
/// mine.let_go(window, Some(vec![0; 100])); // kept: the other rank may access it
/// other.let_go(window, None);
/// let told = [mine.tell(b"exchanged", || ()), other.tell(b"", || ())];
/// assert_eq!(mine.hear(&told[0]), Some(&b"exchanged"[..]));
/// assert!(mine.hear(&told[1]).is_some()); // freed
/// ```
pub struct DeferredFree<M>(Mutex<DeferredState<M>>);

struct DeferredState<M> {
    /// Number of the next object made by all ranks.
    next: u64,
    /// Number of teams led by this rank so far.
    led: u64,
    /// Objects not yet dropped by all makers.
    shared: HashMap<u64, Shared<M>>,
    /// Objects that this rank has dropped without reporting it yet.
    untold: Vec<u64>,
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
        DeferredFree(Mutex::new(DeferredState { next: 0, led: 0, shared: HashMap::new(), untold: Vec::new() }))
    }
}

const ENTRY: usize = 8;

/// Set in numbers of teams, to separate them from other objects.
const TEAMS: u64 = 1 << 63;

impl<M> DeferredFree<M> {
    fn state(&self) -> MutexGuard<'_, DeferredState<M>> {
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
        if state.shared.get(&number).is_some_and(|shared| shared.sharers == 1) {
            // No other rank knows the object.
            state.shared.remove(&number);
            drop(state);
            return drop(kept); // outside the lock
        }
        state.untold.push(number);
        if let Some(shared) = state.shared.get_mut(&number) {
            shared.kept = kept;
        }
    }

    /// Returns whether there are drops to report.
    pub fn is_untold(&self) -> bool {
        !self.state().untold.is_empty()
    }

    /// Prefixes a message to all ranks with the unreported drops. If there are any, `drain` is called first: no earlier
    /// request of this rank may access the memory that the report releases.
    pub fn tell(&self, message: &[u8], drain: impl FnOnce()) -> Vec<u8> {
        let untold = std::mem::take(&mut self.state().untold);
        if !untold.is_empty() {
            drain();
        }
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

    /// Number of kept objects.
    #[cfg(test)]
    fn kept(&self) -> usize {
        self.state().shared.values().filter(|shared| shared.kept.is_some()).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Exchanges a message with reports between all ranks; returns the number of bytes that each rank sent.
    fn meet(ranks: &[DeferredFree<&str>]) -> Vec<usize> {
        let told: Vec<_> = ranks.iter().map(|rank| rank.tell(b"message", || ())).collect();
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
        assert_eq!(ranks.each_ref().map(|rank| rank.kept()), [1, 2, 0], "the last rank may still access them");
        ranks[2].let_go(0, Some("memory"));
        meet(&ranks);
        assert_eq!(ranks.each_ref().map(|rank| rank.kept()), [0, 1, 0]);
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
        assert_eq!(ranks[0].kept(), 1);
        ranks[2].let_go(team, None);
        meet(&ranks);
        assert_eq!(ranks[0].kept(), 0);
    }

    #[test]
    fn earlier_requests_are_drained_before_a_report() {
        let rank = DeferredFree::<&str>::default();
        let drains = std::cell::Cell::new(0);
        let tell = || rank.tell(b"", || drains.set(drains.get() + 1));
        rank.number(2);
        tell();
        assert_eq!(drains.get(), 0, "nothing is reported");
        rank.let_go(0, None);
        tell();
        assert_eq!(drains.get(), 1);
    }

    #[test]
    fn object_of_one_rank_is_released_at_once() {
        let rank = DeferredFree::<std::sync::Arc<()>>::default();
        let memory = std::sync::Arc::new(());
        let number = rank.number(1);
        rank.let_go(number, Some(memory.clone()));
        assert!(std::sync::Arc::strong_count(&memory) == 1 && !rank.is_untold());
    }

    #[test]
    fn malformed_reports_are_refused() {
        let rank = DeferredFree::<&str>::default();
        rank.number(2);
        let told = {
            rank.let_go(0, Some("memory"));
            rank.tell(b"", || ())
        };
        for cut in 0..told.len() {
            assert_eq!(rank.hear(&told[..cut]), None);
        }
        assert_eq!(rank.kept(), 1);
        let unknown = [&1u32.to_le_bytes()[..], &77u64.to_le_bytes()].concat();
        assert_eq!(rank.hear(&unknown), Some(&[][..]), "an unknown number is ignored");
        assert_eq!(rank.hear(&[0xff; 4]), None);
        (0..2).for_each(|_| _ = rank.hear(&told).unwrap());
        assert_eq!(rank.kept(), 0);
    }
}
