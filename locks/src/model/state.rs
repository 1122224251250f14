//! The state of a simulated network, as plain data.

use super::call::Call;
use super::fifo_oracle::FifoOracle;
use super::memory::{Channels, SimWords};
use super::program::Program;
use super::replay::Blocked;
use super::sim::Sim;
use crate::{At, Rank};

/// A state of a simulated network. `L` is the program's state of each rank.
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
pub struct SimState<L> {
    pub(super) memory: SimWords,
    pub(super) channels: Channels,
    pub(super) oracle: Option<FifoOracle>,
    pub(super) ranks: Vec<RankState<L>>,
}

/// A rank between two phases, with the results of the current phase's verbs so far.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct RankState<L> {
    pub phase: usize,
    pub local: L,
    pub record: Vec<Option<u64>>,
    /// The rank has taken a step, and another which is alike begins after it.
    pub begun: bool,
    /// Derived from the rest of the state; stored so that phases need not be run to find it.
    pub blocked: Option<Blocked>,
    pub done: bool,
}

impl<L> SimState<L> {
    /// The value of a word.
    pub fn word(&self, at: At) -> u64 {
        self.memory.get(at)
    }

    /// Sets a word; for [`Program::reduce`].
    pub fn set(&mut self, at: At, value: u64) {
        self.memory.set(at, value);
    }

    /// The nonzero words.
    pub fn nonzero(&self) -> impl Iterator<Item = (At, u64)> {
        self.memory.nonzero()
    }

    /// The current phase of a rank.
    pub fn phase(&self, rank: Rank) -> usize {
        self.ranks[rank].phase
    }

    /// The call on a lock that a rank makes in its current phase.
    pub fn call<P: Program<Local = L>>(&self, sim: &Sim<P>, rank: Rank) -> Option<Call> {
        sim.program().call(rank, self.ranks[rank].phase)
    }

    /// The program's state of a rank, as of the beginning of its current phase.
    pub fn local(&self, rank: Rank) -> &L {
        &self.ranks[rank].local
    }

    /// The oracle, if the program uses locks.
    pub fn oracle(&self) -> Option<&FifoOracle> {
        self.oracle.as_ref()
    }

    /// Returns whether every rank has ended and every message has been delivered.
    pub fn is_done(&self) -> bool {
        self.ranks.iter().all(|rank| rank.done) && self.channels.are_empty()
    }
}
