//! The address of a region and its remote key on each rail, as published to peers. Decoding validates the bytes, which
//! come from a peer.

use crate::sys::Registered;
use crate::wr::RemoteAddress;
use std::sync::Arc;

/// Most rails in a record.
const RAILS: usize = 8;

/// A region as peers name it: an address, and a remote key per rail of its rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Keys {
    pub address: u64,
    keys: [u32; RAILS],
    rails: u8,
}

impl Keys {
    /// A region at `address` with these keys.
    pub fn new(address: u64, keys: &[u32]) -> Self {
        let mut table = [0; RAILS];
        table[..keys.len()].copy_from_slice(keys);
        Keys { address, keys: table, rails: keys.len() as u8 }
    }

    /// The registrations of one memory with the first rails; an empty region if there are none.
    pub fn of(registered: &[Arc<Registered>]) -> Self {
        let keys: Vec<u32> = registered.iter().map(|at| at.remote_key()).collect();
        registered.first().map_or(Keys::new(0, &[0]), |at| Keys::new(at.address, &keys))
    }

    /// The region's first byte for requests on that rail.
    pub fn place(&self, rail: usize) -> Option<RemoteAddress> {
        let key = *self.keys[..self.rails.into()].get(rail)?;
        Some(RemoteAddress { address: self.address, key })
    }

    /// The keys on further rails.
    pub fn further(&self) -> &[u32] {
        self.keys[..self.rails.into()].get(1..).unwrap_or_default()
    }

    /// Encodes the keys after the bytes `before`.
    pub fn to_bytes(self, before: &[u8]) -> Vec<u8> {
        let keys = self.keys[..self.rails.into()].iter().flat_map(|key| key.to_le_bytes());
        let tail = keys.chain(self.address.to_le_bytes()).chain([self.rails]);
        before.iter().copied().chain(tail).collect()
    }

    /// Decodes the keys; returns them with the bytes before them.
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
    fn keys_of_all_rails_round_trip() {
        let keys = Keys::new(0x7f00_0000_1000, &[7, 8, 9]);
        let told = keys.to_bytes(b"shared");
        assert_eq!(told.len(), 6 + 3 * 4 + 8 + 1);
        assert_eq!(Keys::from_bytes(&told), Some((keys, &b"shared"[..])));
        assert_eq!(keys.place(2), Some(RemoteAddress { address: 0x7f00_0000_1000, key: 9 }));
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
