//! What leads to memory of another rank of this machine: bytes that its rank tells the others.

use std::hash::{BuildHasher, RandomState};

/// What leads to a region: `{tag, pid, descriptor}`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    pub tag: u64,
    pub pid: u32,
    pub fd: u32,
}

impl Key {
    pub fn to_bytes(self) -> Vec<u8> {
        [&self.tag.to_le_bytes()[..], &self.pid.to_le_bytes(), &self.fd.to_le_bytes()].concat()
    }

    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (tag, rest) = bytes.split_first_chunk()?;
        let (pid, rest) = rest.split_first_chunk()?;
        let fd = u32::from_le_bytes(rest.try_into().ok()?);
        Some(Key { tag: u64::from_le_bytes(*tag), pid: u32::from_le_bytes(*pid), fd })
    }
}

/// What leads to memory of a program's own: `{pid, address}`.
pub(crate) struct CmaKey {
    pub pid: u32,
    pub start: u64,
}

impl CmaKey {
    pub fn to_bytes(&self) -> Vec<u8> {
        [&self.pid.to_le_bytes()[..], &self.start.to_le_bytes()].concat()
    }

    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (pid, rest) = bytes.split_first_chunk()?;
        let start = u64::from_le_bytes(rest.try_into().ok()?);
        Some(CmaKey { pid: u32::from_le_bytes(*pid), start })
    }
}

/// A number that no other block has.
pub(crate) fn fresh_tag() -> u64 {
    RandomState::new().hash_one(std::process::id())
}
