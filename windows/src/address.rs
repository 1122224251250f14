//! The address of memory that a rank attached to a window, and what holds such memory at both ends.

use crate::Fabric;
use crate::segment::SLOT_WORDS;
use bytemuck::{Pod, Zeroable};
use transom_locks::Rank;

/// Bytes of a provider's key that an address has room for.
pub(crate) const KEY: usize = 96;

/// The address of memory that a rank attached: plain data, to be put into windows and sent as the program likes. It is
/// checked when it is used.
///
/// # Examples
/// See [`Window::attach`](crate::Window::attach).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Address {
    pub(crate) rank: u32,
    pub(crate) slot: u32,
    /// 0 if nothing is attached.
    pub(crate) number: u64,
    pub(crate) len: u64,
    pub(crate) window: u32,
    pub(crate) key_bytes: u32,
    pub(crate) key: [u8; KEY],
}

const _: () = assert!(size_of::<Address>() == 8 * SLOT_WORDS);

impl Address {
    /// The rank that attached it.
    pub fn rank(&self) -> Rank {
        self.rank as Rank
    }

    /// How many elements it is.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether it is no element.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// Memory that a rank attached, within reach of this one.
///
/// # Examples
/// See [`Window::attach`](crate::Window::attach).
pub struct Attached<F: Fabric> {
    pub(crate) remote: F::Remote,
    pub(crate) address: Address,
}

impl<F: Fabric> Attached<F> {
    /// Where it is.
    pub fn address(&self) -> &Address {
        &self.address
    }
}

/// A slot that holds something.
pub(crate) struct Attachment<F: Fabric> {
    pub region: F::Region,
    pub address: Address,
}
