//! Interface of a provider between hosts.

use crate::{Bootstrap, NetworkWire, Node};
use std::ptr::NonNull;
use std::sync::Arc;
use transom_channel::{Changes, Config};
use transom_launch::variables::Variable;
use transom_locks::{Rank, Wake};
use transom_shm_loopback::{Region, View};
use transom_windows::{BoxBytes, BufferMemory, FabricError, OobExchange, Wait};

/// Executor of the atomics that peers request on memory of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Atomics {
    /// A processor of the rank's host. Ranks of that host then access the words with their own atomics.
    Processor,
    /// An adapter, whose atomics are not atomic with respect to those of processors. All ranks then leave all atomics
    /// to the network, including those on their own words.
    Adapter,
}

/// Kind of a region's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryKind {
    /// Memory of the library, which the ranks of the host can map.
    Allocated,
    /// Memory that the program lends to a window ([`Flavor::Create`](transom_windows::Flavor::Create)). It has no
    /// protocol words, and peers reach it only through the network.
    User,
}

/// A region to attach to, as its home rank described it.
#[derive(Clone, Copy)]
pub struct Attach<'a> {
    /// The home rank of the region, less than [`size`](OobExchange::size).
    pub rank: Rank,
    /// Result of [`Network::expose`] at the home rank. It comes from a peer and must be checked.
    pub key: &'a [u8],
    /// Length of the region in bytes.
    pub bytes: usize,
    /// Length in bytes of the protocol words at the start of the region, at most `bytes`.
    pub words: usize,
    /// Memory kind that the caller expects.
    pub kind: MemoryKind,
    /// All ranks attach to each other's region in one collective call, and detach together
    /// ([`Fabric::attach_part`](transom_windows::Fabric::attach_part)).
    pub together: bool,
    /// The home rank is on this host, and this rank moves data there by its own loads and stores; or it is this rank.
    pub near: bool,
    /// Mapping of the region in this process, if it is `near` and allocated. Clones keep it mapped.
    pub view: Option<&'a View>,
}

/// A provider between hosts, as [`Far`](crate::Far) uses it: a handle of one rank of a job or team.
///
/// `Far` owns the memory of regions. [`Direct`](crate::Direct) serves a rank's accesses to its own memory, and if
/// `TRANSOM_INTRANODE` is on, to memory of the same host. The network serves all others. What
/// [`Fabric`](transom_windows::Fabric) has too keeps its contract and its errors; comments here say only what differs.
/// Bounds are checked against the length that the caller attached with, and a dead peer causes an error that names its
/// rank.
///
/// Once the last handle of a rank is dropped, the rank has left the job.
///
/// `tests/pretend` of this crate is the smallest implementation.
pub trait Network: OobExchange + Clone + Send + Sync + 'static {
    /// Name of the network in `TRANSOM_FABRIC`.
    const NAME: &'static str;
    /// The environment variables that it reads.
    const VARIABLES: &'static [Variable];
    /// Executor of atomics.
    const ATOMICS: Atomics;

    /// Error of opening the network.
    type Error: std::error::Error + Send + Sync + 'static;
    /// Memory of this rank; a drop ends the access of peers, at once or when the last one has detached.
    type Region: Send + Sync;
    /// The right to reach a region.
    type Remote: Send + Sync;
    /// An atomic in flight; a drop discards the result.
    type Pending: Send;
    /// A read or write in flight; if dropped or leaked, the network keeps its buffer until the operation is complete.
    type Transfer: Send;

    /// Describes in one line what a job would use of this machine. Not collective.
    ///
    /// # Errors
    /// The reason why no device is usable.
    fn probe(messages: &Config) -> Result<String, Self::Error>;

    /// Describes in one line what this rank uses of its machine: device, addresses, MTU.
    fn describe(&self) -> String {
        String::new()
    }

    /// Opens the network of a job. Collective. `messages` is how the program configured messages.
    ///
    /// # Errors
    /// If one rank fails, all ranks get an error.
    fn open(job: Arc<dyn Bootstrap>, node: Node, messages: &Config) -> Result<Self, Self::Error>;

    /// Makes the network of a team. Its members call it, each with the same `members` (ranks of `self`) in the same
    /// order. `job` and `node` are those of the team.
    ///
    /// # Errors
    /// The errors of the exchange.
    fn team(&self, members: &[Rank], job: Arc<dyn Bootstrap>, node: Node) -> Result<Self, FabricError>;

    /// Opens this rank's messages, with the configuration that suits them and `asked`. Called once for each rank of a
    /// job, never on a team, and before any message may arrive.
    ///
    /// # Errors
    /// The reason why the network cannot carry messages.
    fn wire(&self, asked: &Changes) -> Result<(Box<dyn NetworkWire>, Config), FabricError>;

    /// Registers `memory`, of which the region keeps a clone as long as a peer may reach it; returns the key for peers.
    ///
    /// # Errors
    /// [`FabricError::System`], [`FabricError::Unsupported`].
    fn expose(&self, memory: &View, kind: MemoryKind) -> Result<(Self::Region, Vec<u8>), FabricError>;

    /// [`Fabric::close`](transom_windows::Fabric::close).
    fn close(&self, region: &mut Self::Region) {
        let _ = region;
    }

    /// [`Fabric::withdraw`](transom_windows::Fabric::withdraw).
    fn withdraw(&self, region: &mut Self::Region) {
        let _ = region;
    }

    /// Each of the three `attach` methods of [`Fabric`](transom_windows::Fabric), as the fields of [`Attach`] say.
    fn attach(&self, region: Attach<'_>) -> Result<Self::Remote, FabricError>;

    /// [`Fabric::put`](transom_windows::Fabric::put).
    fn put(&self, to: &Self::Remote, offset: usize, source: &[u8]) -> Result<(), FabricError>;

    /// [`Fabric::get`](transom_windows::Fabric::get).
    fn get(&self, from: &Self::Remote, offset: usize, into: &mut [u8]) -> Result<(), FabricError>;

    /// [`Fabric::start_put`](transom_windows::Fabric::start_put).
    fn start_put(&self, to: &Self::Remote, offset: usize, source: BoxBytes) -> Result<Self::Transfer, FabricError>;

    /// [`Fabric::start_get`](transom_windows::Fabric::start_get).
    fn start_get(&self, from: &Self::Remote, offset: usize, into: BoxBytes) -> Result<Self::Transfer, FabricError>;

    /// [`Fabric::test`](transom_windows::Fabric::test).
    fn test(&self, moving: &mut Self::Transfer) -> Result<bool, FabricError>;

    /// [`Fabric::finish_moving`](transom_windows::Fabric::finish_moving).
    fn finish_moving(&self, moving: Self::Transfer) -> Result<BoxBytes, FabricError>;

    /// [`Fabric::lend_put`](transom_windows::Fabric::lend_put). The provided method calls [`put`](Self::put).
    ///
    /// # Safety
    /// The contract of `Fabric`.
    unsafe fn lend_put(
        &self,
        to: &Self::Remote,
        offset: usize,
        source: NonNull<[u8]>,
    ) -> Result<Option<Self::Transfer>, FabricError> {
        // SAFETY: lent by the caller.
        self.put(to, offset, unsafe { source.as_ref() }).map(|()| None)
    }

    /// [`Fabric::lend_get`](transom_windows::Fabric::lend_get). The provided method reads into a buffer of its own.
    ///
    /// # Safety
    /// The contract of `Fabric`.
    unsafe fn lend_get(
        &self,
        from: &Self::Remote,
        offset: usize,
        into: NonNull<[u8]>,
    ) -> Result<Option<Self::Transfer>, FabricError> {
        self.start_get(from, offset, BoxBytes::from(vec![0u8; into.len()].into_boxed_slice())).map(Some)
    }

    /// [`Fabric::finish_get`](transom_windows::Fabric::finish_get). The provided method copies from that buffer.
    ///
    /// # Safety
    /// The contract of `Fabric`.
    unsafe fn finish_get(&self, moving: Self::Transfer, mut into: NonNull<[u8]>) -> Result<(), FabricError> {
        let bytes = self.finish_moving(moving)?;
        // SAFETY: lent by the caller, and used by nothing else.
        unsafe { into.as_mut() }.copy_from_slice(&bytes);
        Ok(())
    }

    /// [`Fabric::buffer`](transom_windows::Fabric::buffer).
    fn buffer(&self, bytes: usize) -> Result<BufferMemory, FabricError> {
        BufferMemory::plain(bytes)
    }

    /// [`Fabric::start_cas`](transom_windows::Fabric::start_cas), on own words too under [`Atomics::Adapter`].
    fn start_cas(
        &self,
        at: &Self::Remote,
        offset: usize,
        expected: u64,
        new: u64,
        wake: Wake,
    ) -> Result<Self::Pending, FabricError>;

    /// [`Fabric::start_add`](transom_windows::Fabric::start_add), on own words too under [`Atomics::Adapter`].
    fn start_add(&self, at: &Self::Remote, offset: usize, delta: u64, wake: Wake)
    -> Result<Self::Pending, FabricError>;

    /// [`Fabric::finish`](transom_windows::Fabric::finish).
    fn finish(&self, pending: Self::Pending) -> Result<u64, FabricError>;

    /// [`Fabric::notify`](transom_windows::Fabric::notify), on own words too under [`Atomics::Adapter`].
    fn notify(&self, at: &Self::Remote, offset: usize, value: u64, wake: Wake) -> Result<(), FabricError>;

    /// [`Fabric::wait`](transom_windows::Fabric::wait); `wait` names ranks of the job, which [`Node::here`] converts.
    fn wait<R>(
        &self,
        on: &Region,
        wait: Wait<'_>,
        look: impl FnMut() -> Result<Option<R>, FabricError>,
    ) -> Result<R, FabricError>;

    /// [`Fabric::after_empty_poll`](transom_windows::Fabric::after_empty_poll).
    fn after_empty_poll(&self) {}

    /// Starts a [flush](Self::flush), so that several are in flight at once. A call of `flush` follows.
    fn start_flush(&self, at: &Self::Remote) -> Result<(), FabricError> {
        let _ = at;
        Ok(())
    }

    /// [`Fabric::flush`](transom_windows::Fabric::flush), of what this rank did there by the network. Under
    /// [`Atomics::Processor`], started reads have read their bytes as well.
    fn flush(&self, at: &Self::Remote) -> Result<(), FabricError>;

    /// Starts an [order](Self::order), so that orders at several ranks overlap. A call of `order` follows.
    ///
    /// # Errors
    /// The errors of `order`.
    fn start_order(&self, at: &Self::Remote) -> Result<(), FabricError> {
        let _ = at;
        Ok(())
    }

    /// [`Fabric::order`](transom_windows::Fabric::order).
    fn order(&self, at: &Self::Remote) -> Result<(), FabricError>;
}
