//! The interface of a provider to a job, beside windows: opening, teams, and the memory that ranks share.

use super::ProviderError;
use super::asked::Choice;
use transom_launch::bootstrap::Apart;
use transom_launch::variables::Variable;
use transom_network::{Far, Mapped, Network, Node};
use transom_shm_loopback::Loopback;
use transom_windows::FabricError;

/// A provider that a job may choose.
pub(crate) trait JobProvider: Mapped {
    /// True if ranks of several hosts can use the provider.
    const BETWEEN_HOSTS: bool = false;
    /// True if ranks that are threads of one process can use the provider.
    const BETWEEN_THREADS: bool = true;

    /// Returns the variables that the provider reads.
    fn variables() -> Vec<Variable> {
        Vec::new()
    }

    /// Returns the resources of this machine that the provider would use, or the reason why it is unusable.
    fn probe() -> Result<String, String>;

    /// Describes in one line what this rank uses.
    fn describe(&self) -> String;

    /// Opens the provider for ranks of one host. Collective if they are processes.
    fn on_one_host(job: Loopback, choice: Choice) -> Result<Self, ProviderError>;

    /// Opens the provider for ranks that are threads of one process.
    fn of_threads(job: Loopback, choice: Choice) -> Result<Self, ProviderError> {
        Self::on_one_host(job, choice)
    }

    /// Opens the provider for ranks of several hosts. Collective.
    fn on_several_hosts(apart: Apart, _: Choice) -> Result<Self, ProviderError> {
        Err(ProviderError::Apart { hosts: apart.hosts.to_string() })
    }

    /// Returns the shared memory, if all ranks share it.
    fn shared_memory(&self) -> Option<&Loopback>;

    /// Returns the host number of each rank, if there are several hosts.
    fn hosts(&self) -> Option<Vec<u32>> {
        None
    }

    /// Returns the shared memory of this rank's host, if there are several hosts and data moves through it.
    fn memory_of_host(&self) -> Option<&Loopback> {
        None
    }

    /// Returns the transport of this rank's messages, if a network carries them; `None` if shared memory does. Called
    /// once for each rank of a job.
    ///
    /// # Safety
    /// The contract of [`ShmWire::open`](transom_shm_loopback::messages::ShmWire::open).
    unsafe fn transport(&self, _: &transom_channel::Changes) -> Result<Option<ConfiguredTransport>, FabricError> {
        Ok(None)
    }
}

/// The transport of messages, and the configuration that suits it.
pub(crate) type ConfiguredTransport = (transom_network::Transport, transom_channel::Config);

impl JobProvider for Loopback {
    fn probe() -> Result<String, String> {
        Ok("ranks on this machine share memory".into())
    }

    fn describe(&self) -> String {
        "shm".into()
    }

    fn on_one_host(job: Loopback, _: Choice) -> Result<Self, ProviderError> {
        Ok(job)
    }

    fn shared_memory(&self) -> Option<&Loopback> {
        Some(self)
    }
}

#[cfg(feature = "delayed")]
impl JobProvider for transom_windows::Delayed<Loopback> {
    fn probe() -> Result<String, String> {
        Ok("operations of shared memory, late and unordered".into())
    }

    fn describe(&self) -> String {
        "delayed".into()
    }

    fn on_one_host(job: Loopback, _: Choice) -> Result<Self, ProviderError> {
        Ok(Self::new(job)?)
    }

    fn shared_memory(&self) -> Option<&Loopback> {
        Some(self.inner())
    }
}

impl<N: Network> JobProvider for Far<N> {
    const BETWEEN_HOSTS: bool = true;
    const BETWEEN_THREADS: bool = false;

    fn variables() -> Vec<Variable> {
        N::VARIABLES.to_vec()
    }

    fn probe() -> Result<String, String> {
        N::probe(&crate::messages::asked::configured()).map_err(|why| why.to_string())
    }

    fn describe(&self) -> String {
        Far::describe(self)
    }

    fn on_one_host(job: Loopback, _: Choice) -> Result<Self, ProviderError> {
        let node = Node::all(job.clone());
        let opened = Self::open(std::sync::Arc::new(job), node, &crate::messages::asked::configured());
        opened.map_err(|source| ProviderError::Network { hosts: None, source })
    }

    fn on_several_hosts(apart: Apart, _: Choice) -> Result<Self, ProviderError> {
        let hosts = apart.hosts.to_string();
        let (job, node) = Node::of(apart);
        let opened = Self::open(job, node, &crate::messages::asked::configured());
        opened.map_err(|source| ProviderError::Network { hosts: Some(hosts), source })
    }

    fn shared_memory(&self) -> Option<&Loopback> {
        None
    }

    fn hosts(&self) -> Option<Vec<u32>> {
        Far::hosts(self)
    }

    fn memory_of_host(&self) -> Option<&Loopback> {
        Far::memory_of_host(self)
    }

    unsafe fn transport(&self, asked: &transom_channel::Changes) -> Result<Option<ConfiguredTransport>, FabricError> {
        // SAFETY: caller's contract.
        unsafe { Far::transport(self, asked) }.map(Some)
    }
}
