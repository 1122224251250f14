//! What a rank tells others of a region: where it is, and the key of each of its rails. Bytes of a peer: read with care.

use crate::sys::Registered;
use crate::wr::Place;
use std::sync::Arc;

/// The most rails that a key has room for.
const RAILS: usize = 8;

/// A region as its peers name it: an address, and a key for each rail of its rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Keys {
    pub address: u64,
    keys: [u32; RAILS],
    rails: u8,
}

impl Keys {
    /// Of memory at `address`, registered with so many rails.
    pub fn new(address: u64, keys: &[u32]) -> Self {
        let mut table = [0; RAILS];
        table[..keys.len()].copy_from_slice(keys);
        Keys { address, keys: table, rails: keys.len() as u8 }
    }

    /// Of registrations of one memory with the first rails; of no bytes if there is none.
    pub fn of(registered: &[Arc<Registered>]) -> Self {
        let keys: Vec<u32> = registered.iter().map(|at| at.remote_key()).collect();
        registered.first().map_or(Keys::new(0, &[0]), |at| Keys::new(at.address, &keys))
    }

    /// The region's first byte, as requests on that rail name it.
    pub fn place(&self, rail: usize) -> Option<Place> {
        let key = *self.keys[..self.rails.into()].get(rail)?;
        Some(Place { address: self.address, key })
    }

    /// The keys of the further rails.
    pub fn further(&self) -> &[u32] {
        self.keys[..self.rails.into()].get(1..).unwrap_or_default()
    }

    /// Behind `before`, which says something else.
    pub fn to_bytes(self, before: &[u8]) -> Vec<u8> {
        let keys = self.keys[..self.rails.into()].iter().flat_map(|key| key.to_le_bytes());
        let tail = keys.chain(self.address.to_le_bytes()).chain([self.rails]);
        before.iter().copied().chain(tail).collect()
    }

    /// And what was before it.
    pub fn from_bytes(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (&rails, bytes) = bytes.split_last()?;
        let (bytes, address) = bytes.split_last_chunk()?;
        let rails = Some(rails).filter(|&rails| (1..=RAILS as u8).contains(&rails))?;
        let (before, keys) = bytes.split_at_checked(bytes.len().checked_sub(4 * usize::from(rails))?)?;
        let keys: Vec<u32> = keys.as_chunks().0.iter().map(|key| u32::from_le_bytes(*key)).collect();
        Some((Keys::new(u64::from_le_bytes(*address), &keys), before))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_room_for_each_rail_and_is_read_with_care() {
        let keys = Keys::new(0x7f00_0000_1000, &[7, 8, 9]);
        let told = keys.to_bytes(b"shared");
        assert_eq!(told.len(), 6 + 3 * 4 + 8 + 1);
        assert_eq!(Keys::from_bytes(&told), Some((keys, &b"shared"[..])));
        assert_eq!(keys.place(2), Some(Place { address: 0x7f00_0000_1000, key: 9 }));
        assert_eq!(keys.place(3), None);
        for len in 0..3 * 4 + 8 {
            assert_eq!(Keys::from_bytes(&told[told.len() - len..]), None, "the last {len} bytes");
        }
        for rails in [0, RAILS as u8 + 1, 255] {
            let mut wrong = [0; 200];
            wrong[199] = rails;
            assert_eq!(Keys::from_bytes(&wrong), None, "{rails} rails");
        }
    }
}
