//! Memory of this rank, the right to reach a region, and operations in flight.

use crate::{Atomics, Network};
use transom_shm_loopback as shm;
use transom_windows::BoxBytes;

/// Memory of this rank that peers can reach.
pub struct Region<N: Network> {
    /// Dropped before the memory that it exposes.
    pub(super) exposed: N::Region,
    pub(super) memory: shm::Region,
}

impl<N: Network> Region<N> {
    /// The memory itself.
    pub fn view(&self) -> &shm::View {
        self.memory.view()
    }
}

/// The right to reach a region.
pub struct Remote<N: Network> {
    /// Dropped before the view, whose memory it may have registered. Boxed, so that handles of ranks that share memory
    /// stay small.
    pub(super) far: Box<N::Remote>,
    /// Mapping of the region, if this rank moves data there by its own loads and stores.
    pub(super) view: Option<shm::View>,
    /// Puts use the network, but this rank changes other words of the home rank with its own atomics.
    pub(super) flush_puts: bool,
}

impl<N: Network> Remote<N> {
    /// Returns the bytes that this rank accesses by its own loads, stores and atomics. There are none if the network
    /// executes all operations, and no words among them if adapters execute the atomics.
    pub fn mapped(&self) -> shm::View {
        match (&self.view, N::ATOMICS) {
            (None, _) => shm::View::empty().clone(),
            (Some(view), Atomics::Processor) => view.clone(),
            (Some(view), Atomics::Adapter) => view.clone().without_words(),
        }
    }
}

/// An atomic in flight.
pub struct Pending<N: Network>(pub(super) MaybeDone<u64, N::Pending>);

/// A read or write in flight, and its buffer.
pub struct Transfer<N: Network>(pub(super) MaybeDone<BoxBytes, N::Transfer>);

/// A completed operation, or one in flight in the network.
pub(super) enum MaybeDone<D, F> {
    Done(D),
    Far(F),
}
