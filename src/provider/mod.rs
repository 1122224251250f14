//! Which provider the ranks of a job use. A build that has one only uses that one, and nothing more; with several, each
//! call looks which it is.

pub(crate) mod asked;

use asked::{Choice, FABRIC};
use transom_launch::bootstrap::Apart;
use transom_launch::variables::VariableError;
use transom_shm_loopback::Loopback;
use transom_windows::FabricError;

#[cfg(any(feature = "verbs", feature = "delayed"))]
mod several;
#[cfg(any(feature = "verbs", feature = "delayed"))]
pub use several::{Moving, Pending, Provider, Region, Remote};

/// The provider of a [`World`](crate::World): shared memory.
#[cfg(not(any(feature = "verbs", feature = "delayed")))]
pub type Provider = Loopback;

/// The memory of ranks that share it all.
pub(crate) fn shared_memory(provider: &Provider) -> Option<&Loopback> {
    #[cfg(any(feature = "verbs", feature = "delayed"))]
    return match provider {
        Provider::Loopback(job) => Some(job),
        #[cfg(feature = "verbs")]
        Provider::Verbs(_) => None,
        #[cfg(feature = "delayed")]
        Provider::Delayed(delayed) => Some(delayed.inner()),
    };
    #[cfg(not(any(feature = "verbs", feature = "delayed")))]
    Some(provider)
}

/// Of ranks on several hosts, a number of each rank's.
pub(crate) fn hosts(provider: &Provider) -> Option<Vec<u32>> {
    #[cfg(feature = "verbs")]
    if let Provider::Verbs(verbs) = provider {
        return verbs.hosts();
    }
    let _ = provider;
    None
}

/// Of ranks on several hosts, what those of this one share, if they are to.
pub(crate) fn memory_of_host(provider: &Provider) -> Option<&Loopback> {
    #[cfg(feature = "verbs")]
    if let Provider::Verbs(verbs) = provider {
        return verbs.memory_of_host();
    }
    let _ = provider;
    None
}

/// Tells the others that this rank has failed, in the job and in its teams; not where one has died, as they know then, and this rank
/// is not to be named for it.
pub(crate) fn fail(job: &Provider) {
    use transom_windows::Exchange;
    match (job.lost(), shared_memory(job)) {
        (Some(FabricError::PeerDied { .. }), _) => {}
        (_, Some(memory)) => memory.fail_with_teams(),
        (_, None) => job.fail(),
    }
}

/// Why the ranks of a job have no provider between them.
///
/// # Examples
/// ```
/// let error = transom::provider::ProviderError::Apart { hosts: "a (ranks 0), b (ranks 1)".into() };
/// assert!(error.to_string().contains("TRANSOM_FABRIC"));
/// ```
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ProviderError {
    /// A TRANSOM_ variable says what cannot be.
    #[error(transparent)]
    Variable(#[from] VariableError),
    /// The ranks are on several hosts, and there is no provider between them.
    #[error(
        "the ranks are on several hosts that share no memory: {hosts}; between hosts they need the provider verbs (the \
         cargo feature `verbs`, and TRANSOM_FABRIC auto or verbs), or start them all on one"
    )]
    Apart {
        /// Who is where.
        hosts: String,
    },
    /// The provider could not be made.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// RDMA cannot be used.
    #[cfg(feature = "verbs")]
    #[error("cannot use RDMA{}: {source}", between(.hosts.as_deref()))]
    Verbs {
        /// Who is where, if the ranks are on several hosts.
        hosts: Option<String>,
        /// Why not.
        source: crate::verbs::VerbsError,
    },
}

#[cfg(feature = "verbs")]
fn between(hosts: Option<&str>) -> String {
    hosts.map_or(String::new(), |hosts| format!(" between the hosts of the ranks, which share no memory, {hosts}"))
}

/// The provider of ranks that are threads of one process.
pub(crate) fn of_threads(job: Loopback) -> Result<Provider, ProviderError> {
    match FABRIC.get::<Choice>()?.unwrap_or_default() {
        #[cfg(feature = "delayed")]
        Choice::Delayed => Ok(Provider::Delayed(transom_windows::Delayed::new(job)?)),
        // They share memory, whatever is asked for.
        _ => Ok(of_memory(job)),
    }
}

/// Collective: the provider of the ranks of one machine.
pub(crate) fn of_one_machine(job: Loopback) -> Result<Provider, ProviderError> {
    match FABRIC.get::<Choice>()?.unwrap_or_default() {
        #[cfg(feature = "verbs")]
        Choice::Verbs => {
            use crate::verbs::{Node, Verbs};
            let verbs = Verbs::new(std::sync::Arc::new(job.clone()), Node::all(job), &crate::verbs::messages());
            verbs.map(Provider::Verbs).map_err(|source| ProviderError::Verbs { hosts: None, source })
        }
        _ => of_threads(job),
    }
}

/// Collective: the provider of the ranks of several hosts.
#[cfg(not(feature = "verbs"))]
pub(crate) fn of_several_hosts(apart: Apart) -> Result<Provider, ProviderError> {
    FABRIC.get::<Choice>()?;
    Err(ProviderError::Apart { hosts: apart.hosts.to_string() })
}

/// Collective: the provider of the ranks of several hosts.
#[cfg(feature = "verbs")]
pub(crate) fn of_several_hosts(apart: Apart) -> Result<Provider, ProviderError> {
    use crate::verbs::{Node, Verbs};
    use transom_windows::Exchange;
    let Apart { tcp, local, hosts } = apart;
    if let Choice::Shm | Choice::Delayed = FABRIC.get::<Choice>()?.unwrap_or_default() {
        return Err(ProviderError::Apart { hosts: hosts.to_string() });
    }
    let neighbours = hosts.neighbours(tcp.rank());
    let here: Vec<_> = (0..tcp.size()).map(|rank| neighbours.iter().position(|&other| other == rank)).collect();
    let numbers = hosts.of.iter().map(|&host| host as u32).collect();
    let verbs = Verbs::new(std::sync::Arc::new(tcp), Node::some(local, here, numbers), &crate::verbs::messages());
    verbs.map(Provider::Verbs).map_err(|source| ProviderError::Verbs { hosts: Some(hosts.to_string()), source })
}

fn of_memory(job: Loopback) -> Provider {
    #[cfg(any(feature = "verbs", feature = "delayed"))]
    return Provider::Loopback(job);
    #[cfg(not(any(feature = "verbs", feature = "delayed")))]
    job
}
