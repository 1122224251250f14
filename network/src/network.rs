//! Interface of a provider between hosts.

use crate::{Bootstrap, NetworkWire, Node};
use std::ptr::NonNull;
use std::sync::Arc;
use transom_channel::{Changes, Config};
use transom_launch::variables::Variable;
use transom_locks::{Rank, Wake};
use transom_shm_loopback::{Region, View};
use transom_windows::{BoxBytes, FabricError, Memory, OobExchange, Wait};

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

/// A provider between hosts, as [`Hybrid`](crate::Hybrid) uses it: a handle of one rank of a job or team.
///
/// `Hybrid` owns the memory of regions and serves a rank's accesses to its own memory. If `TRANSOM_INTRANODE` is on, it
/// also serves accesses to memory of the same host. The network serves all others. The contract and the errors are
/// those of [`Fabric`](transom_windows::Fabric), unless stated otherwise: bounds are checked against the length that
/// the caller attached with, and a dead peer causes an error that names its rank.
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
    /// Memory of this rank that peers can reach. Dropping it ends access, at once or when the last peer has detached.
    type Region: Send + Sync;
    /// The right to reach a region.
    type Remote: Send + Sync;
    /// An atomic in flight. Dropping it discards the result.
    type Pending: Send;
    /// A read or write in flight, and its buffer. If it is dropped or leaked, the network keeps the buffer until the
    /// operation has completed.
    type Transfer: Send;

    /// Describes in one line what a job would use of this machine. Not collective.
    ///
    /// # Errors
    /// The reason why no device is usable.
    fn probe(messages: &Config) -> Result<String, Self::Error>;

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

    /// Makes memory of this rank reachable by peers. Returns the key with which they attach. The region keeps a clone
    /// of `memory` as long as a peer may reach it.
    ///
    /// # Errors
    /// [`FabricError::System`], [`FabricError::Unsupported`].
    fn expose(&self, memory: &View, kind: MemoryKind) -> Result<(Self::Region, Vec<u8>), FabricError>;

    /// Called once all ranks have [attached](Attach::together) to this region and no further rank will. All ranks call
    /// it, for the same regions in the same order.
    fn close(&self, region: &mut Self::Region) {
        let _ = region;
    }

    /// Attaches to a region.
    ///
    /// # Errors
    /// [`FabricError::BadKey`].
    fn attach(&self, region: Attach<'_>) -> Result<Self::Remote, FabricError>;

    /// [`Fabric::put`](transom_windows::Fabric::put).
    ///
    /// # Errors
    /// The errors of `Fabric::put`.
    fn put(&self, to: &Self::Remote, offset: usize, source: &[u8]) -> Result<(), FabricError>;

    /// [`Fabric::get`](transom_windows::Fabric::get).
    ///
    /// # Errors
    /// The errors of `Fabric::get`.
    fn get(&self, from: &Self::Remote, offset: usize, into: &mut [u8]) -> Result<(), FabricError>;

    /// [`Fabric::start_put`](transom_windows::Fabric::start_put).
    ///
    /// # Errors
    /// The errors of `Fabric::start_put`.
    fn start_put(&self, to: &Self::Remote, offset: usize, source: BoxBytes) -> Result<Self::Transfer, FabricError>;

    /// [`Fabric::start_get`](transom_windows::Fabric::start_get).
    ///
    /// # Errors
    /// The errors of `Fabric::start_get`.
    fn start_get(&self, from: &Self::Remote, offset: usize, into: BoxBytes) -> Result<Self::Transfer, FabricError>;

    /// [`Fabric::test`](transom_windows::Fabric::test).
    ///
    /// # Errors
    /// The errors of `Fabric::test`.
    fn test(&self, moving: &mut Self::Transfer) -> Result<bool, FabricError>;

    /// [`Fabric::finish_moving`](transom_windows::Fabric::finish_moving).
    ///
    /// # Errors
    /// The errors of `Fabric::finish_moving`.
    fn finish_moving(&self, moving: Self::Transfer) -> Result<BoxBytes, FabricError>;

    /// [`Fabric::lend_put`](transom_windows::Fabric::lend_put).
    ///
    /// # Errors
    /// The errors of `Fabric::lend_put`.
    ///
    /// # Safety
    /// The contract of `Fabric::lend_put`.
    unsafe fn lend_put(
        &self,
        to: &Self::Remote,
        offset: usize,
        source: NonNull<[u8]>,
    ) -> Result<Option<Self::Transfer>, FabricError> {
        // SAFETY: lent by the caller.
        self.put(to, offset, unsafe { source.as_ref() }).map(|()| None)
    }

    /// [`Fabric::lend_get`](transom_windows::Fabric::lend_get).
    ///
    /// # Errors
    /// The errors of `Fabric::lend_get`.
    ///
    /// # Safety
    /// The contract of `Fabric::lend_get`.
    unsafe fn lend_get(
        &self,
        from: &Self::Remote,
        offset: usize,
        into: NonNull<[u8]>,
    ) -> Result<Option<Self::Transfer>, FabricError> {
        self.start_get(from, offset, BoxBytes::from(vec![0u8; into.len()].into_boxed_slice())).map(Some)
    }

    /// [`Fabric::finish_get`](transom_windows::Fabric::finish_get).
    ///
    /// # Errors
    /// The errors of `Fabric::finish_get`.
    ///
    /// # Safety
    /// The contract of `Fabric::finish_get`.
    unsafe fn finish_get(&self, moving: Self::Transfer, mut into: NonNull<[u8]>) -> Result<(), FabricError> {
        let bytes = self.finish_moving(moving)?;
        // SAFETY: lent by the caller, and used by nothing else.
        unsafe { into.as_mut() }.copy_from_slice(&bytes);
        Ok(())
    }

    /// [`Fabric::buffer`](transom_windows::Fabric::buffer).
    ///
    /// # Errors
    /// The errors of `Fabric::buffer`.
    fn buffer(&self, bytes: usize) -> Result<Memory, FabricError> {
        Memory::plain(bytes)
    }

    /// [`Fabric::start_cas`](transom_windows::Fabric::start_cas).
    ///
    /// # Errors
    /// The errors of `Fabric::start_cas`.
    fn start_cas(
        &self,
        at: &Self::Remote,
        offset: usize,
        expected: u64,
        new: u64,
        wake: Wake,
    ) -> Result<Self::Pending, FabricError>;

    /// [`Fabric::start_add`](transom_windows::Fabric::start_add).
    ///
    /// # Errors
    /// The errors of `Fabric::start_add`.
    fn start_add(&self, at: &Self::Remote, offset: usize, delta: u64, wake: Wake)
    -> Result<Self::Pending, FabricError>;

    /// [`Fabric::finish`](transom_windows::Fabric::finish).
    ///
    /// # Errors
    /// The errors of `Fabric::finish`.
    fn finish(&self, pending: Self::Pending) -> Result<u64, FabricError>;

    /// [`Fabric::notify`](transom_windows::Fabric::notify).
    ///
    /// # Errors
    /// The errors of `Fabric::notify`.
    fn notify(&self, at: &Self::Remote, offset: usize, value: u64, wake: Wake) -> Result<(), FabricError>;

    /// [`Fabric::wait`](transom_windows::Fabric::wait), on memory of this rank. `wait` names ranks of the job, which
    /// [`OobExchange::check_peers`] checks; [`Node::here`] converts them to numbers on this host.
    ///
    /// # Errors
    /// The errors of `Fabric::wait`.
    fn wait<R>(
        &self,
        on: &Region,
        wait: Wait<'_>,
        look: impl FnMut() -> Result<Option<R>, FabricError>,
    ) -> Result<R, FabricError>;

    /// [`Fabric::after_empty_poll`](transom_windows::Fabric::after_empty_poll).
    fn after_empty_poll(&self) {}

    /// Starts a [flush](Self::flush), so that several flushes are in flight at once. A call of `flush` follows.
    ///
    /// # Errors
    /// The errors of `flush`.
    fn start_flush(&self, at: &Self::Remote) -> Result<(), FabricError> {
        let _ = at;
        Ok(())
    }

    /// [`Fabric::flush`](transom_windows::Fabric::flush). Returns at once if this rank has not used the network
    /// for operations at that rank.
    ///
    /// # Errors
    /// The errors of `Fabric::flush`.
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
    ///
    /// # Errors
    /// The errors of `Fabric::order`.
    fn order(&self, at: &Self::Remote) -> Result<(), FabricError>;
}
