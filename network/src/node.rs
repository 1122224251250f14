//! The ranks of one host, and the memory that they share.

use std::sync::Arc;
use transom_launch::bootstrap::Apart;
use transom_locks::Rank;
use transom_shm_loopback::{Loopback, Meet};
use transom_windows::{FabricError, OobExchange};

/// The ranks of this host, the memory that they share, and the host of each rank of the job. Clones share all of it.
///
/// # Examples
/// ```
/// use transom_network::Node;
/// let node = Node::all(transom_shm_loopback::Loopback::alone()?); // a job on one host
/// assert_eq!((node.ranks(), node.here(0), node.here(1)), (1, Some(0), None));
/// # Ok::<(), transom_windows::FabricError>(())
/// ```
#[derive(Clone)]
pub struct Node {
    memory: Loopback,
    /// Number of each job rank among the ranks of this host, or `ELSEWHERE`. 32 bits to save memory in large jobs.
    here: Arc<[u32]>,
    /// Number of each rank's host; empty if the job has one host.
    hosts: Arc<[u32]>,
}

/// Entry of a rank that is on another host.
const ELSEWHERE: u32 = u32::MAX;

impl Node {
    /// A job with all ranks on this host, under the same numbers.
    pub fn all(memory: Loopback) -> Self {
        let here: Vec<_> = (0..memory.size()).map(Some).collect();
        Node::some(memory, here, [])
    }

    /// A job on several hosts. `here` has the number in `memory` of each rank of the job, or `None` for ranks on other
    /// hosts. `hosts` has the number of each rank's host.
    pub fn some(memory: Loopback, here: impl IntoIterator<Item = Option<Rank>>, hosts: impl Into<Arc<[u32]>>) -> Self {
        let here = here.into_iter().map(|rank| rank.map_or(ELSEWHERE, |rank| rank as u32)).collect();
        Node { memory, here, hosts: hosts.into() }
    }

    /// The job and this rank's node in it, for ranks that were found to be on several hosts.
    pub fn of(apart: Apart) -> (Arc<dyn super::Bootstrap>, Self) {
        let Apart { tcp, local, hosts } = apart;
        let neighbours = hosts.neighbours(tcp.rank());
        let here = (0..tcp.size()).map(|rank| neighbours.iter().position(|&other| other == rank));
        let numbers: Vec<u32> = hosts.of.iter().map(|&host| host as u32).collect();
        let node = Node::some(local, here, numbers);
        (Arc::new(tcp), node)
    }

    /// Bytes that a node uses per rank of the job.
    pub const EACH: usize = 2 * size_of::<u32>();

    /// The memory that the ranks of this host share.
    pub fn memory(&self) -> &Loopback {
        &self.memory
    }

    /// Number of ranks on this host.
    pub fn ranks(&self) -> usize {
        self.memory.size()
    }

    /// True if all ranks of the job are on this host.
    pub fn is_all(&self) -> bool {
        self.here.iter().all(|&here| here != ELSEWHERE)
    }

    /// Number of a job rank among the ranks of this host; `None` if the rank is on another host or does not exist.
    #[inline]
    pub fn here(&self, rank: Rank) -> Option<Rank> {
        self.here.get(rank).filter(|&&here| here != ELSEWHERE).map(|&here| here as Rank)
    }

    /// The number of each rank's host; empty if the job was started on one host.
    pub fn hosts(&self) -> &[u32] {
        &self.hosts
    }

    /// The node of a team. Its members call it, each with the same `members` in the same order. Members on this host
    /// exchange through `meet` to share memory.
    pub(crate) fn team(&self, members: &[Rank], meet: &mut Meet<'_>) -> Result<Self, FabricError> {
        let places: Vec<_> = (0..members.len()).filter(|&place| self.here(members[place]).is_some()).collect();
        let here: Vec<_> = places.iter().filter_map(|&place| self.here(members[place])).collect();
        let memory = self.memory.team(&here, &mut |mine| {
            let mut said = meet(mine)?;
            Ok(places.iter().map(|&place| std::mem::take(&mut said[place])).collect())
        })?;
        // The shared memory numbers the members in the given order.
        let here = (0..members.len()).map(|place| places.binary_search(&place).ok());
        let hosts: Vec<u32> = members.iter().filter_map(|&rank| self.hosts.get(rank).copied()).collect();
        Ok(Node::some(memory, here, hosts))
    }
}
