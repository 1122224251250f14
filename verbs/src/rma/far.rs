//! Where an operation goes.

use super::member::Way;
use crate::wr::Place;

/// A place of a peer, and the way to it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Far<'k> {
    pub way: Way,
    pub place: Place,
    /// By which the further rails name the memory; none if it is reached by the first alone.
    pub keys: &'k [u32],
}

impl Far<'_> {
    /// What is reached by one rail alone.
    pub fn of(way: Way, place: Place) -> Self {
        Far { way, place, keys: &[] }
    }

    /// So many bytes on, as a rail names it.
    pub fn at(&self, rail: usize, bytes: usize) -> Place {
        let key = rail.checked_sub(1).map_or(self.place.key, |further| self.keys[further]);
        Place { address: self.place.address + bytes as u64, key }
    }
}
