//! What the provider needs of whoever brought the ranks together.

use crate::job::tcp::Tcp;
use std::sync::Arc;
use transom_locks::Rank;
use transom_shm_loopback::Loopback;
use transom_windows::{Exchange, FabricError};

/// A job as its ranks see it before there is a network: they exchange bytes, notice deaths, and split into teams.
///
/// # Examples
/// ```
/// # use transom::verbs::Bootstrap;
/// fn size(job: &dyn Bootstrap) -> usize { job.size() }
/// assert_eq!(size(&transom::shm_loopback::Loopback::alone()?), 1);
/// # Ok::<(), transom::FabricError>(())
/// ```
pub trait Bootstrap: Exchange + Send + Sync {
    /// Collective: a team of those that name the same colour, numbered by `key`, then by rank; none for those that name no
    /// colour.
    ///
    /// # Errors
    /// On all ranks of a team if on one.
    fn team(&self, colour: Option<u64>, key: u64) -> Result<Option<Arc<dyn Bootstrap>>, FabricError>;

    /// Says that this rank needs nobody any more, and that nobody is to wait for it; whether others have left can still be
    /// asked.
    fn leave(&self);
}

impl Bootstrap for Loopback {
    fn team(&self, colour: Option<u64>, key: u64) -> Result<Option<Arc<dyn Bootstrap>>, FabricError> {
        Ok(self.split(colour, key)?.map(|team| Arc::new(team) as _))
    }

    fn leave(&self) {
        Loopback::leave(self);
    }
}

impl Bootstrap for Tcp {
    fn team(&self, colour: Option<u64>, key: u64) -> Result<Option<Arc<dyn Bootstrap>>, FabricError> {
        Ok(self.split(colour, key)?.map(|team| Arc::new(team) as _))
    }

    fn leave(&self) {
        Tcp::leave(self);
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
    /// Their ranks there, by rank in the job; none for those on other hosts.
    pub(super) here: Box<[Option<Rank>]>,
}

impl Node {
    /// Of a job all of whose ranks are here, under the same numbers.
    pub fn all(memory: Loopback) -> Self {
        let here = (0..memory.size()).map(Some).collect();
        Node { memory, here }
    }

    /// Of a job of several hosts: `here` tells for each of its ranks under which number it takes part in `memory`, or
    /// that it is on another host.
    pub fn some(memory: Loopback, here: impl Into<Box<[Option<Rank>]>>) -> Self {
        Node { memory, here: here.into() }
    }

    /// How many ranks are here.
    pub fn ranks(&self) -> usize {
        self.memory.size()
    }

    /// Whether all ranks of the job are.
    pub fn is_all(&self) -> bool {
        self.here.iter().all(Option::is_some)
    }
}
