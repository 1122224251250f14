//! Memory of messages that the wire accesses without a copy: buffers that this rank sends from, and buffers that a peer
//! may write to by a key.

use std::collections::BTreeMap;
use std::ptr::NonNull;
use transom_channel::wire::{Key, Part, Rank};
use transom_shm_loopback::messages::Bytes;

/// The second half of the keys of registered memory. Those of rings have 0 there.
const REGISTERED: u64 = 1;

/// The registered memory of a rank, by key.
#[derive(Default)]
pub struct Registered {
    memory: BTreeMap<u64, Memory>,
    last: u64,
}

struct Memory {
    /// The peer that may write there.
    peer: Rank,
    start: NonNull<u8>,
    len: usize,
    is_writable: bool,
}

/// A range of a buffer that this rank sends from.
pub struct Source {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the memory belongs to requests of the engine, which any thread may run. The wire accesses it only in its
// calls.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Send for Source {}

impl Registered {
    /// Registers a buffer for a peer. `None`: the bytes are in no buffer.
    pub fn add(&mut self, memory: &Bytes, peer: Rank) -> Option<Key> {
        let memory = Memory { peer, start: memory.start()?, len: memory.len(), is_writable: memory.is_writable() };
        self.last += 1;
        self.memory.insert(self.last, memory);
        Some(Key { address: self.last, key: REGISTERED })
    }

    pub fn remove(&mut self, key: Key) {
        if key.key == REGISTERED {
            self.memory.remove(&key.address);
        }
    }

    /// Returns whether a peer may write `length` bytes at an offset. Bytes for memory that was released are ignored.
    pub fn admits(&self, peer: Rank, to: Key, at: u64, length: u64) -> bool {
        match self.memory.get(&to.address).filter(|_| to.key == REGISTERED) {
            Some(memory) => {
                let (len, is_peer) = (memory.len as u64, memory.peer == peer);
                is_peer && memory.is_writable && at <= len && length <= len - at
            }
            None => to.key == REGISTERED && (1..=self.last).contains(&to.address),
        }
    }

    /// Calls `act` with the bytes of an [admitted](Self::admits) write. `None`: the memory was released.
    pub fn with<R>(&mut self, to: Key, at: u64, length: u64, act: impl FnOnce(&mut [u8]) -> R) -> Option<R> {
        let Memory { start, len, is_writable, .. } = *self.memory.get(&to.address)?;
        let range = (at as usize).checked_add(length as usize).is_some_and(|end| end <= len);
        assert!(range && is_writable && to.key == REGISTERED, "checked when the write arrived");
        // SAFETY: in bounds, as asserted. The engine keeps the buffer until it releases the key, and neither it nor the
        // program accesses the bytes before, so the slice is the only access during this call of the wire.
        Some(act(unsafe { std::slice::from_raw_parts_mut(start.as_ptr().add(at as usize), length as usize) }))
    }
}

impl Source {
    /// A range of a buffer. `None`: the bytes are in no buffer.
    pub fn of(part: Part<'_, Bytes>) -> Option<Source> {
        let Part { memory, at, length } = part;
        assert!(at.checked_add(length).is_some_and(|end| end <= memory.len()), "{length} bytes at {at} of a buffer");
        // SAFETY: in bounds, as asserted.
        Some(Source { start: unsafe { memory.start()?.add(at) }, len: length })
    }

    /// The bytes.
    ///
    /// # Safety
    /// The engine keeps the buffer as long as the slice is used.
    pub unsafe fn bytes<'s>(&self) -> &'s [u8] {
        // SAFETY: initialised memory in bounds, which exists by the caller's contract. Nothing writes to a buffer that
        // the engine sends from.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_outside_registered_memory_are_refused() {
        let mut registered = Registered::default();
        let buffer = Bytes::owned(vec![0_u8; 10].into_boxed_slice());
        let key = registered.add(&buffer, 3).unwrap();
        assert!(
            registered.admits(3, key, 0, 10) && registered.admits(3, key, 10, 0) && registered.admits(3, key, 9, 1)
        );
        for (peer, to, at, length) in [
            (2, key, 0, 1),
            (3, key, 0, 11),
            (3, key, 11, 0),
            (3, key, u64::MAX, 1),
            (3, key, 1, u64::MAX),
            (3, Key { key: 0, ..key }, 0, 1),
            (3, Key { address: key.address + 1, ..key }, 0, 1),
            (3, Key { address: 0, ..key }, 0, 1),
        ] {
            assert!(!registered.admits(peer, to, at, length), "{length} bytes at {at} of {to:?}, from {peer}");
        }
        let sent = [1_u8, 2, 3];
        // SAFETY: `sent` is not modified, and lives longer than the handle.
        let lent = unsafe { Bytes::lent(NonNull::from(&sent).cast(), 3, false) };
        let read_only = registered.add(&lent, 3).unwrap();
        assert!(!registered.admits(3, read_only, 0, 1), "memory that this rank sends from");
        registered.with(key, 4, 3, |bytes| bytes.copy_from_slice(&sent)).unwrap();
        registered.remove(key);
        assert!(registered.admits(3, key, 0, 1), "a late write is ignored");
        assert!(registered.with(key, 0, 1, |_| ()).is_none());
        assert_eq!(buffer.into_owner::<Box<[u8]>>().unwrap()[..], [0, 0, 0, 0, 1, 2, 3, 0, 0, 0]);
    }
}
