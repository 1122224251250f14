//! The address of memory that a rank attached to a window, and the records of such memory at both ends.

use crate::Fabric;
use crate::segment::SLOT_WORDS;
use bytemuck::{Pod, Zeroable};
use transom_locks::Rank;

/// Room for a provider's key in an address, in bytes.
pub(crate) const KEY: usize = 96;

/// The address of memory that a rank attached. It is plain data, which a program may put into windows and send. It is
/// checked at each use.
///
/// # Examples
/// See [`Window::attach`](crate::Window::attach).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Address {
    pub(crate) rank: u32,
    pub(crate) slot: u32,
    /// The attachment's number at its rank; 0 if nothing is attached.
    pub(crate) number: u64,
    pub(crate) len: u64,
    pub(crate) window: u32,
    pub(crate) key_bytes: u32,
    pub(crate) key: [u8; KEY],
}

const _: () = assert!(size_of::<Address>() == 8 * SLOT_WORDS);

impl Address {
    /// The rank that attached the memory.
    pub fn rank(&self) -> Rank {
        self.rank as Rank
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// True if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// Memory that a rank attached, reachable from this rank.
///
/// # Examples
/// See [`Window::attach`](crate::Window::attach).
pub struct Attached<F: Fabric> {
    pub(crate) remote: F::Remote,
    pub(crate) address: Address,
}

impl<F: Fabric> Attached<F> {
    /// The memory's address.
    pub fn address(&self) -> &Address {
        &self.address
    }
}

/// An occupied slot.
pub(crate) struct Attachment<F: Fabric> {
    pub region: F::Region,
    pub address: Address,
}
