//! Memory of pipes, which a peer writes by `Put`.

use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Release};
use transom_channel::wire::{Key, Rank};
use transom_shm_loopback::messages::{Bytes, Owner};

/// The rings of a rank, by key, each with the peer that may write there.
#[derive(Default)]
pub struct Rings {
    rings: BTreeMap<Key, (Rank, Ring)>,
    last: u64,
}

/// Memory of a ring, in words: peers announce bytes by words.
#[derive(Clone)]
struct Ring(Arc<[AtomicU64]>);

/// The engine's handle of a ring.
struct Handle(Ring);

// SAFETY: the words do not move, and the handle keeps them. The engine reads them between two calls of the wire, which
// alone writes there, and which has the engine's lock. They are not writable by the handle.
unsafe impl Owner for Handle {
    fn bytes(&mut self) -> (NonNull<u8>, usize, bool) {
        let words = &*self.0.0;
        (NonNull::from(words).cast(), size_of_val(words), false)
    }
}

impl Rings {
    /// Makes a ring of zeroed memory for a peer.
    pub fn add(&mut self, peer: Rank, length: usize) -> (Bytes, Key) {
        self.last += 1;
        let key = Key { address: self.last, key: 0 };
        let ring = Ring((0..length.div_ceil(8)).map(|_| AtomicU64::new(0)).collect());
        self.rings.insert(key, (peer, ring.clone()));
        (Bytes::owned(Handle(ring)), key)
    }

    pub fn remove(&mut self, key: Key) {
        self.rings.remove(&key);
    }

    /// Writes bytes that a peer has put. Returns false if they are outside its ring; a ring that was removed is ignored.
    pub fn write(&self, peer: Rank, to: Key, at: u64, bytes: &[u8]) -> bool {
        let Some((owner, Ring(words))) = self.rings.get(&to) else { return to.address <= self.last && to.key == 0 };
        let size = size_of_val(&**words);
        let at = usize::try_from(at).ok().filter(|&at| at <= size && bytes.len() <= size - at);
        let Some(at) = at.filter(|_| *owner == peer) else { return false };
        // The last bytes announce the others.
        let (rest, last) = bytes.split_at(bytes.len().saturating_sub(8));
        if let (Ok(word), true) = (last.try_into(), (at + rest.len()).is_multiple_of(8)) {
            write(words, at, rest);
            words[(at + rest.len()) / 8].store(u64::from_ne_bytes(word), Release);
        } else {
            write(words, at, bytes);
        }
        true
    }
}

fn write(words: &[AtomicU64], at: usize, bytes: &[u8]) {
    assert!(at + bytes.len() <= size_of_val(words), "checked by the caller");
    // SAFETY: in bounds, as asserted; the memory is interior mutable, and no other thread accesses it during a call of
    // the wire.
    unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), words.as_ptr().cast_mut().cast::<u8>().add(at), bytes.len())
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use transom_channel::wire::WireMemory;

    #[test]
    fn puts_outside_a_ring_are_refused() {
        let mut rings = Rings::default();
        let (ring, key) = rings.add(3, 60);
        assert_eq!(ring.len(), 64);
        assert!(rings.write(3, key, 4, &[1, 2, 3, 4]) && rings.write(3, key, 0, &[9; 16]));
        assert_eq!([0, 8, 16].map(|at| ring.word(at)), [0x0909_0909_0909_0909, 0x0909_0909_0909_0909, 0]);
        assert!(!rings.write(2, key, 0, &[1]), "another peer");
        assert!(!rings.write(3, key, 57, &[1; 8]) && !rings.write(3, key, u64::MAX, &[1]));
        assert!(!rings.write(3, Key { address: 2, key: 0 }, 0, &[1]), "a ring that never was");
        rings.remove(key);
        assert!(rings.write(3, key, 0, &[1]), "a late put is ignored");
        assert_eq!(ring.word(0), 0x0909_0909_0909_0909);
    }
}
