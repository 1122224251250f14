//! Services that the provider needs from the job's bootstrap.

use std::sync::Arc;
use transom_launch::Tcp;
use transom_locks::Rank;
use transom_shm_loopback::{Loopback, Meet};
use transom_windows::{Exchange, FabricError};

/// A job before its ranks have a network. Ranks exchange bytes out of band, detect deaths, and form teams.
///
/// # Examples
/// ```
/// # use transom::verbs::Bootstrap;
/// fn size(job: &dyn Bootstrap) -> usize { job.size() }
/// assert_eq!(size(&transom::shm_loopback::Loopback::alone()?), 1);
/// # Ok::<(), transom::FabricError>(())
/// ```
pub trait Bootstrap: Exchange + Send + Sync {
    /// Makes a team of these ranks, in this order, which include the calling rank.
    ///
    /// Collective over the members; other ranks do not take part. All members call `meet` equally often; each call
    /// returns what every member passed.
    ///
    /// # Errors
    /// An error at one member is an error at all members.
    fn team_of(&self, members: &[Rank], meet: &mut Meet<'_>) -> Result<Arc<dyn Bootstrap>, FabricError>;

    /// Leaves the job: this rank needs no peer any more, and no peer waits for it. The rank may still ask which peers
    /// have left.
    fn leave(&self);

    /// Returns whether a rank has left.
    fn has_left(&self, rank: Rank) -> bool;
}

impl Bootstrap for Loopback {
    fn team_of(&self, members: &[Rank], meet: &mut Meet<'_>) -> Result<Arc<dyn Bootstrap>, FabricError> {
        Ok(Arc::new(Loopback::team(self, members, meet)?))
    }

    fn leave(&self) {
        Loopback::leave(self);
    }

    fn has_left(&self, rank: Rank) -> bool {
        Loopback::has_left(self, rank)
    }
}

impl Bootstrap for Tcp {
    fn team_of(&self, members: &[Rank], meet: &mut Meet<'_>) -> Result<Arc<dyn Bootstrap>, FabricError> {
        Ok(Arc::new(Tcp::team(self, members, meet)?))
    }

    fn leave(&self) {
        Tcp::leave(self);
    }

    fn has_left(&self, rank: Rank) -> bool {
        Tcp::has_left(self, rank)
    }
}

/// The ranks on this host, and the memory that they share.
///
/// # Examples
/// ```
/// use transom::{shm_loopback::Loopback, verbs::Node};
/// let node = Node::all(Loopback::alone()?); // a job on one host
/// assert_eq!(node.ranks(), 1);
/// # Ok::<(), transom::FabricError>(())
/// ```
pub struct Node {
    pub(super) memory: Loopback,
    /// Rank in `memory` of each job rank, or [`ELSEWHERE`]. 32 bits per rank, because a job may have many ranks.
    here: Box<[u32]>,
    /// Host number of each rank of the initial job; empty if all ranks are on this host.
    pub(super) hosts: Arc<[u32]>,
}

/// Marks a rank on another host.
const ELSEWHERE: u32 = u32::MAX;

impl Node {
    /// A job whose ranks are all on this host, with the same numbers in `memory`.
    pub fn all(memory: Loopback) -> Self {
        let here: Vec<_> = (0..memory.size()).map(Some).collect();
        Node::some(memory, here, [].into())
    }

    /// A job on several hosts.
    ///
    /// `here` holds each job rank's number in `memory`, or `None` for a rank on another host. `hosts` holds the host
    /// number of each rank.
    pub fn some(memory: Loopback, here: impl Into<Box<[Option<Rank>]>>, hosts: Arc<[u32]>) -> Self {
        let here = here.into().iter().map(|rank| rank.map_or(ELSEWHERE, |rank| rank as u32)).collect();
        Node { memory, here, hosts }
    }

    /// The number of ranks on this host.
    pub fn ranks(&self) -> usize {
        self.memory.size()
    }

    /// Returns whether all ranks of the job are on this host.
    pub fn is_all(&self) -> bool {
        self.here.iter().all(|&here| here != ELSEWHERE)
    }

    /// Bytes of memory per rank of the job.
    pub(super) const EACH: usize = 2 * size_of::<u32>();

    /// The rank in `memory` of a job rank on this host.
    pub(super) fn here(&self, rank: Rank) -> Option<Rank> {
        self.here.get(rank).filter(|&&here| here != ELSEWHERE).map(|&here| here as Rank)
    }
}
