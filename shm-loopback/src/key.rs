//! Keys to memory of another rank of this machine: bytes that the owner sends to the other ranks.

use std::hash::{BuildHasher, RandomState};

/// The key of a region: `{tag, pid, descriptor}`.
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

/// The key of user memory: `{pid, address}`, and the block that contains it, if other ranks can map that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CmaKey {
    pub pid: u32,
    pub start: u64,
    pub block: Option<InBlock>,
}

/// Part of a block: `{tag, descriptor}` and the length of the block, and the part's offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InBlock {
    pub tag: u64,
    pub fd: u32,
    pub block_bytes: u64,
    pub offset: u64,
}

impl CmaKey {
    pub fn to_bytes(self) -> Vec<u8> {
        let mut bytes = [&self.pid.to_le_bytes()[..], &self.start.to_le_bytes()].concat();
        if let Some(InBlock { tag, fd, block_bytes, offset }) = self.block {
            bytes.extend([tag, u64::from(fd), block_bytes, offset].into_iter().flat_map(u64::to_le_bytes));
        }
        bytes
    }

    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (pid, rest) = bytes.split_first_chunk()?;
        let (start, rest) = rest.split_first_chunk()?;
        let block = match rest.as_chunks() {
            ([], []) => None,
            (&[tag, fd, block_bytes, offset], []) => {
                let [tag, fd, block_bytes, offset] = [tag, fd, block_bytes, offset].map(u64::from_le_bytes);
                Some(InBlock { tag, fd: u32::try_from(fd).ok()?, block_bytes, offset })
            }
            _ => return None,
        };
        Some(CmaKey { pid: u32::from_le_bytes(*pid), start: u64::from_le_bytes(*start), block })
    }
}

/// A tag that no other block has.
pub(crate) fn fresh_tag() -> u64 {
    RandomState::new().hash_one(std::process::id())
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    #[test]
    fn key_of_user_memory_is_read_back_or_refused() {
        let block = Some(InBlock { tag: 3, fd: 7, block_bytes: 1 << 20, offset: 4096 });
        for key in [CmaKey { pid: 5, start: 1 << 40, block: None }, CmaKey { pid: 5, start: 1 << 40, block }] {
            let bytes = key.to_bytes();
            assert_eq!(CmaKey::from_bytes(&bytes), Some(key));
            for len in (0..bytes.len()).filter(|&len| len != 12) {
                assert_eq!(CmaKey::from_bytes(&bytes[..len]), None, "{len} bytes");
            }
            assert_eq!(CmaKey::from_bytes(&[&bytes[..], &[0]].concat()), None);
        }
    }
}
