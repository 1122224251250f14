//! What the provider needs of whoever brought the ranks together.

use std::sync::Arc;
use transom_launch::Tcp;
use transom_locks::Rank;
use transom_shm_loopback::{Loopback, Meet};
use transom_windows::{Exchange, FabricError};

/// A job as its ranks see it before there is a network: they exchange bytes, notice deaths, and make teams.
///
/// # Examples
/// ```
/// # use transom::verbs::Bootstrap;
/// fn size(job: &dyn Bootstrap) -> usize { job.size() }
/// assert_eq!(size(&transom::shm_loopback::Loopback::alone()?), 1);
/// # Ok::<(), transom::FabricError>(())
/// ```
pub trait Bootstrap: Exchange + Send + Sync {
    /// A team of these ranks, in this order, this one among them; all of them call it, and nobody else need. Each calls `meet`
    /// as often as the others, which gives what each passes to all of them.
    ///
    /// # Errors
    /// At all ranks of the team if at one.
    fn team_of(&self, members: &[Rank], meet: &mut Meet<'_>) -> Result<Arc<dyn Bootstrap>, FabricError>;

    /// Says that this rank needs nobody any more, and that nobody is to wait for it; whether others have left can still be
    /// asked.
    fn leave(&self);

    /// Whether a rank has said so.
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
    /// Their ranks there, by rank in the job. Small: there may be many ranks.
    here: Box<[u32]>,
    /// The number of each rank's host, by ranks of the job that the program was started as; nothing if all are here.
    pub(super) hosts: Arc<[u32]>,
}

/// For ranks on other hosts.
const ELSEWHERE: u32 = u32::MAX;

impl Node {
    /// Of a job all of whose ranks are here, under the same numbers.
    pub fn all(memory: Loopback) -> Self {
        let here: Vec<_> = (0..memory.size()).map(Some).collect();
        Node::some(memory, here, [].into())
    }

    /// Of a job of several hosts: `here` tells for each of its ranks under which number it takes part in `memory`, or
    /// that it is on another host; `hosts`, a number of each rank's host.
    pub fn some(memory: Loopback, here: impl Into<Box<[Option<Rank>]>>, hosts: Arc<[u32]>) -> Self {
        let here = here.into().iter().map(|rank| rank.map_or(ELSEWHERE, |rank| rank as u32)).collect();
        Node { memory, here, hosts }
    }

    /// How many ranks are here.
    pub fn ranks(&self) -> usize {
        self.memory.size()
    }

    /// Whether all ranks of the job are.
    pub fn is_all(&self) -> bool {
        self.here.iter().all(|&here| here != ELSEWHERE)
    }

    /// Bytes for each rank of the job.
    pub(super) const EACH: usize = 2 * size_of::<u32>();

    /// The rank there of a rank of the job that is here.
    pub(super) fn here(&self, rank: Rank) -> Option<Rank> {
        self.here.get(rank).filter(|&&here| here != ELSEWHERE).map(|&here| here as Rank)
    }
}
