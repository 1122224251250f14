//! Bootstrap of a job: communication among its ranks before they have a network.

use std::sync::Arc;
use std::time::Instant;
use transom_launch::Tcp;
use transom_locks::Rank;
use transom_shm_loopback::messages::ProgressHook;
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

    /// Lets exchanges of this job or team send each result to a host once, to be passed on through `memory`, which the
    /// ranks of this host share. All ranks call it between two exchanges; the memory's rank 0 has the number `first`
    /// here.
    ///
    /// # Errors
    /// Errors of the exchange of `memory`, or memory that cannot be allocated.
    fn pass_on_through(&self, memory: &Loopback, first: Rank) -> Result<(), FabricError> {
        let _ = (memory, first);
        Ok(())
    }

    /// Announces that this rank has left: it needs no other rank, and no rank may wait for it. It can still ask whether
    /// others have left.
    fn leave(&self);

    /// Returns true if `rank` has left.
    fn has_left(&self, rank: Rank) -> bool;

    /// Asks, by the job's own connections, whether the process of `rank` runs. A stopped process does not answer.
    /// [`seen_running`](Self::seen_running) returns the answer.
    fn ask_whether_running(&self, rank: Rank);

    /// The time at which `rank` last answered that its process runs. `None` without an answer, and always on one host.
    fn seen_running(&self, rank: Rank) -> Option<Instant>;

    /// Makes the waits of this rank in exchanges, of the job and of its teams, call `progress`, which progresses
    /// messages. The first call counts.
    fn progress_in_waits(&self, hook: Arc<dyn ProgressHook>);
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

    fn ask_whether_running(&self, _: Rank) {}

    fn seen_running(&self, _: Rank) -> Option<Instant> {
        None
    }

    fn progress_in_waits(&self, hook: Arc<dyn ProgressHook>) {
        Loopback::progress_in_waits(self, hook);
    }
}

impl Bootstrap for Tcp {
    fn team_of(&self, members: &[Rank], meet: &mut Meet<'_>) -> Result<Arc<dyn Bootstrap>, FabricError> {
        Ok(Arc::new(Tcp::team(self, members, meet)?))
    }

    fn pass_on_through(&self, memory: &Loopback, first: Rank) -> Result<(), FabricError> {
        Tcp::pass_on_through(self, memory, first)
    }

    fn leave(&self) {
        Tcp::leave(self);
    }

    fn has_left(&self, rank: Rank) -> bool {
        Tcp::has_left(self, rank)
    }

    fn ask_whether_running(&self, rank: Rank) {
        Tcp::ask_whether_running(self, rank);
    }

    fn seen_running(&self, rank: Rank) -> Option<Instant> {
        Tcp::seen_running(self, rank)
    }

    fn progress_in_waits(&self, hook: Arc<dyn ProgressHook>) {
        Tcp::progress_in_waits(self, hook);
    }
}
