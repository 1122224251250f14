//! What a provider between hosts implements.

use crate::{Bootstrap, NetworkWire, Node};
use std::ptr::NonNull;
use std::sync::Arc;
use transom_channel::{Changes, Config};
use transom_launch::variables::Variable;
use transom_locks::{Rank, Wake};
use transom_shm_loopback::{Region, View};
use transom_windows::{BoxBytes, Exchange, FabricError, Memory, Wait};

/// What executes the atomics that other ranks request of memory of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Atomics {
    /// A processor of the rank's host. Ranks of that host then use the words by atomics of their own.
    Processor,
    /// An adapter, whose atomics are not atomic towards those of processors. All ranks then leave atomics to the network, on
    /// their own words too.
    Adapter,
}

/// What kind of memory a region has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryKind {
    /// Memory of the library. Ranks of the host map it.
    Allocated,
    /// Memory that the program lends to a window ([`Flavor::Create`](transom_windows::Flavor::Create)). It takes no protocol words, and
    /// only the network reaches it.
    User,
}

/// A region to attach to, as its home rank described it.
#[derive(Clone, Copy)]
pub struct Attach<'a> {
    /// The home rank of the region, less than [`size`](Exchange::size).
    pub rank: Rank,
    /// What [`Network::expose`] returned there. It comes from a peer: check it before use.
    pub key: &'a [u8],
    /// Length of the region in bytes.
    pub bytes: usize,
    /// Length in bytes of the protocol words at its start, at most `bytes`.
    pub words: usize,
    /// The kind that the caller expects.
    pub kind: MemoryKind,
    /// All ranks attach to each other's region in one collective call, and detach together
    /// ([`Fabric::attach_part`](transom_windows::Fabric::attach_part)).
    pub together: bool,
    /// The home rank is on this host, and this rank moves data there by its own loads and stores; or it is this rank.
    pub near: bool,
    /// The region as mapped in this process, if it is `near` and allocated. It stays mapped as long as a clone lives.
    pub view: Option<&'a View>,
}

/// A provider between hosts, as [`Hybrid`](crate::Hybrid) uses it: a handle of one rank of a job or team.
///
/// `Hybrid` owns the memory of regions, serves a rank's accesses to its own memory, and, if `TRANSOM_HYBRID` says so, accesses to the
/// memory of its host. The network serves the rest. The promises are those of [`Fabric`](transom_windows::Fabric), as are errors where none
/// are named: bounds are checked against the length that the caller attached with, and a peer that dies becomes an error that
/// names its rank.
///
/// Once the last handle of a rank is dropped, the rank has left the job.
///
/// `tests/pretend` of this crate is the smallest implementation.
pub trait Network: Exchange + Clone + Send + Sync + 'static {
    /// Its name in `TRANSOM_FABRIC`.
    const NAME: &'static str;
    /// The environment variables that it reads.
    const VARIABLES: &'static [Variable];
    /// What executes atomics.
    const ATOMICS: Atomics;

    /// Why it cannot be opened.
    type Error: std::error::Error + Send + Sync + 'static;
    /// Memory of this rank that peers can reach. Dropping it ends that, at once or when the last peer has let go of it.
    type Region: Send + Sync;
    /// The right to reach a region.
    type Remote: Send + Sync;
    /// An atomic in flight. Dropping it discards the result.
    type Pending: Send;
    /// A read or write in flight, and its buffer. Dropping it, or leaking it, leaves the buffer to the network until it is done.
    type Moving: Send;

    /// Describes in a line what a job would use of this machine. Not collective.
    ///
    /// # Errors
    /// Why there is nothing to use.
    fn probe(messages: &Config) -> Result<String, Self::Error>;

    /// Opens the network of a job. Collective. `messages` is how the program configured messages.
    ///
    /// # Errors
    /// On all ranks if on one.
    fn open(job: Arc<dyn Bootstrap>, node: Node, messages: &Config) -> Result<Self, Self::Error>;

    /// Makes the network of a team. Its members call it, each with the same `members` (ranks of `self`) in the same order. `job` and
    /// `node` are those of the team.
    ///
    /// # Errors
    /// Those of the exchange.
    fn team(&self, members: &[Rank], job: Arc<dyn Bootstrap>, node: Node) -> Result<Self, FabricError>;

    /// Opens this rank's messages, with the configuration that suits them and `asked`. Called once for each rank of a job, never
    /// on a team, and before any message may arrive.
    ///
    /// # Errors
    /// Why the network takes no messages.
    fn wire(&self, asked: &Changes) -> Result<(Box<dyn NetworkWire>, Config), FabricError>;

    /// Makes memory of this rank reachable by peers. Returns the key with which they attach. The region keeps a clone of `memory` as
    /// long as a peer may reach it.
    ///
    /// # Errors
    /// [`FabricError::System`], [`FabricError::Unsupported`].
    fn expose(&self, memory: &View, kind: MemoryKind) -> Result<(Self::Region, Vec<u8>), FabricError>;

    /// Called once all ranks have [attached](Attach::together) to this region, and no rank will any more. All ranks call it, for the
    /// same regions in the same order.
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
    /// Those of `Fabric::put`.
    fn put(&self, to: &Self::Remote, offset: usize, source: &[u8]) -> Result<(), FabricError>;

    /// [`Fabric::get`](transom_windows::Fabric::get).
    ///
    /// # Errors
    /// Those of `Fabric::get`.
    fn get(&self, from: &Self::Remote, offset: usize, into: &mut [u8]) -> Result<(), FabricError>;

    /// [`Fabric::start_put`](transom_windows::Fabric::start_put).
    ///
    /// # Errors
    /// Those of `Fabric::start_put`.
    fn start_put(&self, to: &Self::Remote, offset: usize, source: BoxBytes) -> Result<Self::Moving, FabricError>;

    /// [`Fabric::start_get`](transom_windows::Fabric::start_get).
    ///
    /// # Errors
    /// Those of `Fabric::start_get`.
    fn start_get(&self, from: &Self::Remote, offset: usize, into: BoxBytes) -> Result<Self::Moving, FabricError>;

    /// [`Fabric::has_moved`](transom_windows::Fabric::has_moved).
    ///
    /// # Errors
    /// Those of `Fabric::has_moved`.
    fn has_moved(&self, moving: &mut Self::Moving) -> Result<bool, FabricError>;

    /// [`Fabric::finish_moving`](transom_windows::Fabric::finish_moving).
    ///
    /// # Errors
    /// Those of `Fabric::finish_moving`.
    fn finish_moving(&self, moving: Self::Moving) -> Result<BoxBytes, FabricError>;

    /// [`Fabric::lend_put`](transom_windows::Fabric::lend_put).
    ///
    /// # Errors
    /// Those of `Fabric::lend_put`.
    ///
    /// # Safety
    /// The contract of `Fabric::lend_put`.
    unsafe fn lend_put(
        &self,
        to: &Self::Remote,
        offset: usize,
        source: NonNull<[u8]>,
    ) -> Result<Option<Self::Moving>, FabricError> {
        // SAFETY: lent by the caller.
        self.put(to, offset, unsafe { source.as_ref() }).map(|()| None)
    }

    /// [`Fabric::lend_get`](transom_windows::Fabric::lend_get).
    ///
    /// # Errors
    /// Those of `Fabric::lend_get`.
    ///
    /// # Safety
    /// The contract of `Fabric::lend_get`.
    unsafe fn lend_get(
        &self,
        from: &Self::Remote,
        offset: usize,
        into: NonNull<[u8]>,
    ) -> Result<Option<Self::Moving>, FabricError> {
        self.start_get(from, offset, BoxBytes::from(vec![0u8; into.len()].into_boxed_slice())).map(Some)
    }

    /// [`Fabric::finish_get`](transom_windows::Fabric::finish_get).
    ///
    /// # Errors
    /// Those of `Fabric::finish_get`.
    ///
    /// # Safety
    /// The contract of `Fabric::finish_get`.
    unsafe fn finish_get(&self, moving: Self::Moving, mut into: NonNull<[u8]>) -> Result<(), FabricError> {
        let bytes = self.finish_moving(moving)?;
        // SAFETY: lent by the caller, and used by nothing else.
        unsafe { into.as_mut() }.copy_from_slice(&bytes);
        Ok(())
    }

    /// [`Fabric::buffer`](transom_windows::Fabric::buffer).
    ///
    /// # Errors
    /// Those of `Fabric::buffer`.
    fn buffer(&self, bytes: usize) -> Result<Memory, FabricError> {
        Memory::plain(bytes)
    }

    /// [`Fabric::start_cas`](transom_windows::Fabric::start_cas).
    ///
    /// # Errors
    /// Those of `Fabric::start_cas`.
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
    /// Those of `Fabric::start_add`.
    fn start_add(&self, at: &Self::Remote, offset: usize, delta: u64, wake: Wake)
    -> Result<Self::Pending, FabricError>;

    /// [`Fabric::finish`](transom_windows::Fabric::finish).
    ///
    /// # Errors
    /// Those of `Fabric::finish`.
    fn finish(&self, pending: Self::Pending) -> Result<u64, FabricError>;

    /// [`Fabric::notify`](transom_windows::Fabric::notify).
    ///
    /// # Errors
    /// Those of `Fabric::notify`.
    fn notify(&self, at: &Self::Remote, offset: usize, value: u64, wake: Wake) -> Result<(), FabricError>;

    /// [`Fabric::wait`](transom_windows::Fabric::wait), on memory of this rank. Ranks of this host number themselves as
    /// [`Node::here`] says, and `wait` names ranks of the job: check these by [`Exchange::check_peers`].
    ///
    /// # Errors
    /// Those of `Fabric::wait`.
    fn wait<R>(
        &self,
        on: &Region,
        wait: Wait<'_>,
        look: impl FnMut() -> Result<Option<R>, FabricError>,
    ) -> Result<R, FabricError>;

    /// [`Fabric::looked_in_vain`](transom_windows::Fabric::looked_in_vain).
    fn looked_in_vain(&self) {}

    /// Begins a [flush](Self::flush), so that several are in flight at once. The flush follows.
    ///
    /// # Errors
    /// Those of `flush`.
    fn start_flush(&self, at: &Self::Remote) -> Result<(), FabricError> {
        let _ = at;
        Ok(())
    }

    /// [`Fabric::flush`](transom_windows::Fabric::flush). Returns at once where this rank has used the network for nothing at that rank.
    ///
    /// # Errors
    /// Those of `Fabric::flush`.
    fn flush(&self, at: &Self::Remote) -> Result<(), FabricError>;

    /// [`Fabric::order`](transom_windows::Fabric::order).
    ///
    /// # Errors
    /// Those of `Fabric::order`.
    fn order(&self, at: &Self::Remote) -> Result<(), FabricError>;
}
