//! The provider of a job: memory that is mapped here directly, and all else by one of the providers of the build.

pub(crate) mod asked;
#[macro_use]
mod table;

mod chosen;
mod job_provider;
mod report;

pub(crate) use report::report;
pub use table::Chosen;

use asked::{Choice, FABRIC};
use transom_launch::bootstrap::Apart;
use transom_launch::variables::{Variable, VariableError};
use transom_network::Direct;
use transom_shm_loopback::Loopback;
use transom_windows::FabricError;

/// The provider of a [`World`](crate::World): a handle of one rank. Operations on memory that is mapped in this process
/// are this processor's own; the provider that TRANSOM_FABRIC [chose](Direct::inner) executes all others.
///
/// # Examples
/// ```
/// use transom::provider::Chosen;
/// let world = transom::init()?;
/// assert!(matches!(world.provider().inner(), Chosen::Loopback(_)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub type Provider = Direct<Chosen>;

/// Returns the shared memory, if all ranks share it.
pub(crate) fn shared_memory(provider: &Provider) -> Option<&Loopback> {
    provider.inner().shared_memory()
}

/// Returns the host number of each rank, if there are several hosts.
pub(crate) fn hosts(provider: &Provider) -> Option<Vec<u32>> {
    provider.inner().hosts()
}

/// Returns the shared memory of this rank's host, if there are several hosts and data moves through it.
pub(crate) fn memory_of_host(provider: &Provider) -> Option<&Loopback> {
    provider.inner().memory_of_host()
}

/// Returns the transport of this rank's messages, if a network carries them. Called once for each rank of a job.
///
/// # Safety
/// The contract of [`ShmWire::open`](transom_shm_loopback::messages::ShmWire::open).
pub(crate) unsafe fn transport(
    provider: &Provider,
    asked: &transom_channel::Changes,
) -> Result<Option<job_provider::ConfiguredTransport>, FabricError> {
    // SAFETY: caller's contract.
    unsafe { provider.inner().transport(asked) }
}

/// Returns the variables that the providers of this build read.
pub(crate) fn variables() -> Vec<Variable> {
    [transom_network::variables::TABLE, &Chosen::variables()].concat()
}

/// Returns each provider that TRANSOM_FABRIC can name, with the resources of this machine that it would use, or the
/// reason why it is unusable. `transom info` prints the list.
///
/// # Examples
/// ```
/// let found = transom::provider::probe();
/// assert_eq!(found[0].0, "shm");
/// assert!(found[0].1.is_ok());
/// ```
pub fn probe() -> Vec<(&'static str, Result<String, String>)> {
    let mut probed = Chosen::probe().into_iter();
    let found = |row: &table::Row| match row.built {
        true => probed.next().expect("every row that is built is probed"),
        false => Err(format!("not in this build (cargo feature `{}`)", row.name)),
    };
    table::ROWS.iter().map(|row| row.name).zip(table::ROWS.iter().map(found)).collect()
}

/// Reports the failure of this rank to the job and its teams, unless another rank died first: its peers already know
/// that death, and must not blame this rank.
pub(crate) fn fail(job: &Provider) {
    use transom_windows::OobExchange;
    match (job.lost(), shared_memory(job)) {
        (Some(FabricError::PeerDied { .. }), _) => {}
        (_, Some(memory)) => memory.fail_with_teams(),
        (_, None) => job.fail(),
    }
}

/// Error of opening the provider of a job.
///
/// # Examples
/// ```
/// let error = transom::provider::ProviderError::Apart { hosts: "a (ranks 0), b (ranks 1)".into() };
/// assert!(error.to_string().contains("TRANSOM_FABRIC"));
/// ```
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ProviderError {
    /// A TRANSOM_ variable has an invalid value.
    #[error(transparent)]
    Variable(#[from] VariableError),
    /// The ranks are on several hosts, and no provider was chosen that reaches other hosts.
    #[error(
        "the ranks are on several hosts that share no memory: {hosts}; set TRANSOM_FABRIC to auto or to a network of this \
         build ({}), or start all ranks on one host",
        Chosen::networks().join(", ")
    )]
    Apart {
        /// The ranks of each host.
        hosts: String,
    },
    /// TRANSOM_FABRIC names different providers at two ranks of several hosts.
    #[error(
        "TRANSOM_FABRIC is {mine} at rank {me}, and {theirs} at rank {rank}; set the same value at all ranks, or none"
    )]
    Disagree {
        /// This rank.
        me: usize,
        /// The provider that it names.
        mine: &'static str,
        /// Another rank.
        rank: usize,
        /// The provider that it names.
        theirs: String,
    },
    /// The provider could not be made.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// The network cannot be used.
    #[error("no network{}: {source}", between(.hosts.as_deref()))]
    Network {
        /// The ranks of each host, if there are several.
        hosts: Option<String>,
        /// The cause.
        source: transom_network::NetworkError,
    },
}

fn between(hosts: Option<&str>) -> String {
    hosts.map_or(String::new(), |hosts| format!(" between the hosts of the ranks, which share no memory, {hosts}"))
}

fn choice() -> Result<Choice, VariableError> {
    Ok(FABRIC.get()?.unwrap_or_default())
}

/// Opens the provider of ranks that are threads of one process. They share memory, so a choice that threads cannot have
/// is ignored.
pub(crate) fn of_threads(job: Loopback) -> Result<Provider, ProviderError> {
    Chosen::of_threads(job, choice()?).map(Direct::new)
}

/// Opens the provider of the ranks of one host. Collective.
pub(crate) fn of_one_machine(job: Loopback) -> Result<Provider, ProviderError> {
    Chosen::on_one_host(job, choice()?).map(Direct::new)
}

/// Opens the provider of the ranks of several hosts. Collective.
pub(crate) fn of_several_hosts(apart: Apart) -> Result<Provider, ProviderError> {
    Chosen::on_several_hosts(apart, choice()?).map(Direct::new)
}
