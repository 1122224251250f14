//! The state of a simulated network, plain data.

use super::book::Book;
use super::memory::{Channels, Memory};
use super::replay::Blocked;
use crate::{At, Rank};

/// A state of a simulated network; `L` is what the program keeps of each rank.
///
/// # Examples
/// ```
/// use transom_locks::model::{sim, Sim};
/// use transom_locks::{At, Network, Wake};
/// let net = Sim::new(2, 1, sim::once(|rank, network| network.notify(At { rank, word: 0 }, 5, Wake::Home)));
/// let state = net.start().unwrap();
/// assert_eq!((state.phase(1), state.word(At { rank: 1, word: 0 })), (0, 0));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State<L> {
    pub(super) memory: Memory,
    pub(super) channels: Channels,
    pub(super) book: Option<Book>,
    pub(super) ranks: Vec<RankState<L>>,
}

/// A rank: between phases but for the results of the present one's verbs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct RankState<L> {
    pub phase: usize,
    pub local: L,
    pub record: Vec<Option<u64>>,
    /// Follows from the rest of the state; kept so as not to run every phase to find it.
    pub blocked: Option<Blocked>,
    pub done: bool,
}

impl<L> State<L> {
    /// What a word holds.
    pub fn word(&self, at: At) -> u64 {
        self.memory.get(at)
    }

    /// The words that are not 0.
    pub fn nonzero(&self) -> impl Iterator<Item = (At, u64)> {
        self.memory.nonzero()
    }

    /// The phase in which a rank is.
    pub fn phase(&self, rank: Rank) -> usize {
        self.ranks[rank].phase
    }

    /// What the program keeps of a rank, as it was when its phase began.
    pub fn local(&self, rank: Rank) -> &L {
        &self.ranks[rank].local
    }

    /// The order book, if the program uses locks.
    pub fn book(&self) -> Option<&Book> {
        self.book.as_ref()
    }

    /// Whether every rank has ended and every message has arrived.
    pub fn is_done(&self) -> bool {
        self.ranks.iter().all(|rank| rank.done) && self.channels.busy().next().is_none()
    }
}
