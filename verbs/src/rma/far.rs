//! The target location of an operation.

use super::member::Way;
use crate::wr::RemoteAddress;

/// A place in a peer's memory, and the way to it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Far<'k> {
    pub way: Way,
    pub place: RemoteAddress,
    /// Keys of the memory on the further rails; empty if only the first rail reaches it.
    pub keys: &'k [u32],
}

impl Far<'_> {
    /// A location reached by one rail only.
    pub fn of(way: Way, place: RemoteAddress) -> Self {
        Far { way, place, keys: &[] }
    }

    /// The place `bytes` bytes further, with the key of a rail.
    pub fn at(&self, rail: usize, bytes: usize) -> RemoteAddress {
        let key = rail.checked_sub(1).map_or(self.place.key, |further| self.keys[further]);
        RemoteAddress { address: self.place.address + bytes as u64, key }
    }
}
