//! The interface of a provider to a job, beside windows: opening, teams, and the memory that ranks share.

use super::ProviderError;
use super::asked::Choice;
use transom_launch::bootstrap::Apart;
use transom_launch::variables::Variable;
use transom_locks::Rank;
use transom_shm_loopback::{Loopback, Meet, View};
use transom_windows::{Fabric, FabricError};

/// A provider that a job may choose.
pub(crate) trait JobProvider: Fabric {
    /// True if ranks of several hosts can use the provider.
    const BETWEEN_HOSTS: bool = false;
    /// True if ranks that are threads of one process can use the provider.
    const BETWEEN_THREADS: bool = true;

    /// Returns the variables that the provider reads.
    fn variables() -> Vec<Variable> {
        Vec::new()
    }

    /// Returns the resources of this machine that the provider would use, or the reason why it is unusable. An enum of
    /// providers returns one entry for each.
    fn probe() -> Vec<Result<String, String>>;

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

    /// Makes the provider of a team; see [`Loopback::team`].
    fn team(&self, members: &[Rank], meet: &mut Meet<'_>) -> Result<Self, FabricError>;

    /// Returns the memory that the ranks of this host share.
    fn memory(&self) -> &Loopback;

    /// Returns the bytes of this rank's memory.
    fn view(on: &Self::Region) -> &View;

    /// Returns what is mapped here of memory that was attached to: there the caller executes operations by
    /// [`memory`](Self::memory).
    fn mapped(&self, at: &Self::Remote) -> View;

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
    unsafe fn transport(&self, _: &transom_channel::Changes) -> Result<Option<Transport>, FabricError> {
        Ok(None)
    }
}

/// The transport of messages, and the configuration that suits it.
pub(crate) type Transport = (transom_network::Transport, transom_channel::Config);

impl JobProvider for Loopback {
    fn probe() -> Vec<Result<String, String>> {
        vec![Ok("ranks on this machine share memory".into())]
    }

    fn describe(&self) -> String {
        "shm".into()
    }

    fn on_one_host(job: Loopback, _: Choice) -> Result<Self, ProviderError> {
        Ok(job)
    }

    fn team(&self, members: &[Rank], meet: &mut Meet<'_>) -> Result<Self, FabricError> {
        Loopback::team(self, members, meet)
    }

    fn memory(&self) -> &Loopback {
        self
    }

    fn view(on: &Self::Region) -> &View {
        on.view()
    }

    fn mapped(&self, at: &View) -> View {
        at.clone()
    }

    fn shared_memory(&self) -> Option<&Loopback> {
        Some(self)
    }
}

#[cfg(feature = "delayed")]
impl JobProvider for transom_windows::Delayed<Loopback> {
    fn probe() -> Vec<Result<String, String>> {
        vec![Ok("operations of shared memory, late and unordered".into())]
    }

    fn describe(&self) -> String {
        "delayed".into()
    }

    fn on_one_host(job: Loopback, _: Choice) -> Result<Self, ProviderError> {
        Ok(Self::new(job)?)
    }

    fn team(&self, members: &[Rank], meet: &mut Meet<'_>) -> Result<Self, FabricError> {
        Self::new(self.inner().team(members, meet)?)
    }

    fn memory(&self) -> &Loopback {
        self.inner()
    }

    fn view(on: &Self::Region) -> &View {
        on.view()
    }

    /// Nothing: all operations are delayed.
    fn mapped(&self, _: &Self::Remote) -> View {
        View::empty().clone()
    }

    fn shared_memory(&self) -> Option<&Loopback> {
        Some(self.inner())
    }
}

impl<N: transom_network::Network> JobProvider for transom_network::Hybrid<N> {
    const BETWEEN_HOSTS: bool = true;
    const BETWEEN_THREADS: bool = false;

    fn variables() -> Vec<Variable> {
        N::VARIABLES.to_vec()
    }

    fn probe() -> Vec<Result<String, String>> {
        vec![N::probe(&crate::messages::asked::configured()).map_err(|why| why.to_string())]
    }

    fn describe(&self) -> String {
        transom_network::Hybrid::describe(self)
    }

    fn on_one_host(job: Loopback, _: Choice) -> Result<Self, ProviderError> {
        let node = transom_network::Node::all(job.clone());
        let opened = Self::new(std::sync::Arc::new(job), node, &crate::messages::asked::configured());
        opened.map_err(|source| ProviderError::Network { hosts: None, source })
    }

    fn on_several_hosts(apart: Apart, _: Choice) -> Result<Self, ProviderError> {
        let hosts = apart.hosts.to_string();
        let (job, node) = transom_network::Node::of(apart);
        let opened = Self::new(job, node, &crate::messages::asked::configured());
        opened.map_err(|source| ProviderError::Network { hosts: Some(hosts), source })
    }

    fn team(&self, members: &[Rank], meet: &mut Meet<'_>) -> Result<Self, FabricError> {
        transom_network::Hybrid::team(self, members, meet)
    }

    fn memory(&self) -> &Loopback {
        transom_network::Hybrid::memory(self)
    }

    fn view(on: &Self::Region) -> &View {
        on.view()
    }

    fn mapped(&self, at: &Self::Remote) -> View {
        at.mapped()
    }

    fn shared_memory(&self) -> Option<&Loopback> {
        None
    }

    fn hosts(&self) -> Option<Vec<u32>> {
        transom_network::Hybrid::hosts(self)
    }

    fn memory_of_host(&self) -> Option<&Loopback> {
        transom_network::Hybrid::memory_of_host(self)
    }

    unsafe fn transport(&self, asked: &transom_channel::Changes) -> Result<Option<Transport>, FabricError> {
        // SAFETY: caller's contract.
        unsafe { transom_network::Hybrid::transport(self, asked) }.map(Some)
    }
}
