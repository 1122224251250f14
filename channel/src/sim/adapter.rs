//! Adapters of simulated hosts, and the processors that serve them.

use crate::wire::Rank;
use std::collections::{BTreeMap, VecDeque};

/// Costs of adapters and processors. All are 0 by default. Rails of [`RailKind::Memory`](crate::wire::RailKind::Memory) have
/// none of them.
///
/// ```
/// use transom_channel::sim::{Adapter, Conditions};
///
/// // A bus of 1 GB/s for both directions together, and a cache of 128 queue pairs.
/// let adapter = Adapter { bus: 1000, queue_pairs: 128, miss: 1000, ..Adapter::default() };
/// let conditions = Conditions { adapter, ..Conditions::default() };
/// assert_eq!(Conditions::default().adapter, Adapter::default());
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Adapter {
    /// Latency of each rail beyond [`Conditions::latency`](super::Conditions::latency), in ns; 0 for rails beyond the list.
    pub latency: Vec<u64>,
    /// Time of the bus for each byte that the adapter sends or receives, in ps. A host has an adapter for each rail, which its
    /// ranks share. The bytes of a request cross both buses and the lane at the same time, so the slowest of them counts. Each
    /// connection has one request on the buses at a time, so connections and directions take turns.
    pub bus: u64,
    /// Number of queue pairs whose state the adapter holds; 0 for no limit. A connection is one at each end. The datagrams of
    /// a rank on a rail are one for all its peers.
    pub queue_pairs: usize,
    /// Time in which the adapter fetches the state of another queue pair, in ns. It replaces the least recently used one.
    /// Requests behind it wait.
    pub miss: u64,
    /// Processor time of a rank for each request that it posts, in ns.
    pub post: u64,
    /// Processor time of a rank for each completion, in ns: an arrived packet, or the end of a write or read. A packet in a
    /// ring is none.
    pub completion: u64,
    /// Processor time of a rank to look at one of its rings, in ns. Each progress call looks at all of them.
    pub look: u64,
}

/// State of the adapters of all hosts.
#[derive(Default)]
pub(super) struct Adapters(BTreeMap<(Rank, usize), State>);

#[derive(Default)]
struct State {
    /// Time until which the adapter is busy.
    free_at: u64,
    /// Queue pairs that it holds, the most recently used one first: a rank, and its peer or itself for datagrams.
    held: VecDeque<(Rank, Rank)>,
}

impl Adapters {
    /// Passes a request through the adapter of a host and rail. It begins at `from` or later. Returns the times at which its
    /// bytes begin to cross the bus, and have crossed it.
    #[inline]
    pub fn cross(
        &mut self,
        costs: &Adapter,
        place: (Rank, usize),
        queue_pair: (Rank, Rank),
        from: u64,
        bytes: u64,
    ) -> [u64; 2] {
        if costs.bus == 0 && costs.queue_pairs == 0 {
            return [from; 2];
        }
        let state = self.0.entry(place).or_default();
        let fetch = if state.holds(queue_pair, costs.queue_pairs) { 0 } else { costs.miss };
        let begins = state.free_at.max(from) + fetch;
        state.free_at = begins + bytes * costs.bus / 1000;
        [begins, state.free_at]
    }
}

impl State {
    /// Returns true if the adapter holds a queue pair. It does afterwards, as the most recently used of `most`.
    #[inline]
    fn holds(&mut self, queue_pair: (Rank, Rank), most: usize) -> bool {
        if most == 0 {
            return true;
        }
        let at = self.held.iter().position(|held| *held == queue_pair);
        at.map(|at| self.held.remove(at));
        self.held.push_front(queue_pair);
        self.held.truncate(most);
        at.is_some()
    }
}
