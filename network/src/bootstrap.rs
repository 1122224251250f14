//! Bootstrap of a job: communication among its ranks before they have a network.

use std::sync::Arc;
use transom_launch::Tcp;
use transom_locks::Rank;
use transom_shm_loopback::{Loopback, Meet};
use transom_windows::{FabricError, OobExchange};

/// A job before its ranks have a network: they exchange a few bytes, detect deaths and create teams.
///
/// # Examples
/// ```
/// # use transom_network::Bootstrap;
/// fn size(job: &dyn Bootstrap) -> usize { job.size() }
/// assert_eq!(size(&transom_shm_loopback::Loopback::alone()?), 1);
/// # Ok::<(), transom_windows::FabricError>(())
/// ```
pub trait Bootstrap: OobExchange + Send + Sync {
    /// Creates a team of `members`, in this order. Only the members call it, this rank among them. All members call
    /// `meet` equally often; each call returns what every member passed to it.
    ///
    /// # Errors
    /// If one rank of the team fails, all of them get an error.
    fn team_of(&self, members: &[Rank], meet: &mut Meet<'_>) -> Result<Arc<dyn Bootstrap>, FabricError>;

    /// Announces that this rank has left: it needs no other rank, and no rank may wait for it. It can still ask whether
    /// others have left.
    fn leave(&self);

    /// Returns true if `rank` has left.
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
