//! A pool of registered memory. Registration takes longer than a large read, so returned memory stays registered for
//! reuse, up to a limit. The least recently returned memory is freed first.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard};
use transom_launch::lock;

/// A pool of memory of type `B`.
pub(crate) struct RegistrationPool<B> {
    /// Most bytes kept for reuse.
    most: usize,
    kept: Mutex<PooledMemory<B>>,
}

struct PooledMemory<B> {
    /// Free memory with its size, in order of return.
    free: VecDeque<(usize, B)>,
    bytes: usize,
    counts: Leased,
}

/// Memory on loan; it returns to the pool when dropped, which must not happen before the adapter is done with it.
pub(crate) struct Lease<B> {
    /// `None` during drop.
    memory: Option<B>,
    size: usize,
    home: Arc<RegistrationPool<B>>,
}

/// Counters of the pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Leased {
    /// Leases that reused returned memory.
    pub reused: u64,
    /// Leases for which memory was made.
    pub made: u64,
}

/// Smallest allocation, in bytes.
const LEAST: usize = 64 << 10;

/// The allocation size for a request: at most a quarter larger, so that requests of similar size share memory.
fn size_for(bytes: usize) -> Option<usize> {
    let step = (bytes.checked_next_power_of_two()? / 8).max(LEAST);
    bytes.max(1).checked_next_multiple_of(step)
}

impl<B> RegistrationPool<B> {
    pub fn new(most: usize) -> Arc<Self> {
        let (free, counts) = Default::default();
        Arc::new(RegistrationPool { most, kept: Mutex::new(PooledMemory { free, bytes: 0, counts }) })
    }

    /// Leases memory of at least `bytes` bytes: returned memory, or memory from `make`, which is called outside the
    /// lock.
    ///
    /// # Errors
    /// The error of `make`, if it fails again after all free memory was released.
    pub fn lease<E>(self: &Arc<Self>, bytes: usize, make: impl Fn(usize) -> Result<B, E>) -> Result<Lease<B>, E> {
        let size = size_for(bytes).unwrap_or(bytes);
        let lease = |memory| Lease { memory: Some(memory), size, home: self.clone() };
        {
            let mut kept = self.kept();
            if let Some(at) = kept.free.iter().rposition(|(of, _)| *of == size) {
                let (_, memory) = kept.free.remove(at).expect("the entry was found above");
                kept.bytes -= size;
                kept.counts.reused += 1;
                return Ok(lease(memory));
            }
            kept.counts.made += 1;
        }
        let made = make(size).or_else(|error| match self.let_go(0) {
            // The limit of locked memory may have been the only obstacle.
            true => make(size),
            false => Err(error),
        });
        made.map(lease)
    }

    pub fn counts(&self) -> Leased {
        self.kept().counts
    }

    /// Frees memory until at most `most` bytes are kept; returns whether any was freed.
    fn let_go(&self, most: usize) -> bool {
        let mut gone = Vec::new();
        let mut kept = self.kept();
        while kept.bytes > most {
            let (size, memory) = kept.free.pop_front().expect("the list holds the counted bytes");
            kept.bytes -= size;
            gone.push(memory);
        }
        drop(kept);
        // Deregistered outside the lock.
        !gone.is_empty()
    }

    fn kept(&self) -> MutexGuard<'_, PooledMemory<B>> {
        lock(&self.kept)
    }
}

impl<B> Deref for Lease<B> {
    type Target = B;

    fn deref(&self) -> &B {
        self.memory.as_ref().expect("present until dropped")
    }
}

impl<B> DerefMut for Lease<B> {
    fn deref_mut(&mut self) -> &mut B {
        self.memory.as_mut().expect("present until dropped")
    }
}

impl<B> Drop for Lease<B> {
    fn drop(&mut self) {
        let Some(memory) = self.memory.take() else { return };
        {
            let mut kept = self.home.kept();
            kept.free.push_back((self.size, memory));
            kept.bytes += self.size;
        }
        self.home.let_go(self.home.most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    const KIB: usize = 1 << 10;

    fn lease(pool: &Arc<RegistrationPool<usize>>, bytes: usize) -> Lease<usize> {
        pool.lease(bytes, Ok::<_, ()>).unwrap()
    }

    #[test]
    fn returned_memory_is_reused_within_limits() {
        let pool = RegistrationPool::new(300 * KIB);
        let (first, second) = (lease(&pool, 40_000), lease(&pool, 50_000));
        assert_eq!((*first, *second), (64 * KIB, 64 * KIB), "concurrent leases are distinct");
        assert_eq!(pool.counts(), Leased { reused: 0, made: 2 });
        drop(first);
        drop(second);
        drop(lease(&pool, 60_000));
        assert_eq!(pool.counts(), Leased { reused: 1, made: 2 });
        drop(lease(&pool, 200_000)); // 256 KiB: exceeds the limit beside two of 64 KiB, so memory is freed
        drop(lease(&pool, 1));
        assert_eq!(pool.counts(), Leased { reused: 1, made: 4 }, "both were freed");
        drop(lease(&pool, 8 << 20)); // more than the limit
        drop(lease(&pool, 8 << 20));
        assert_eq!(pool.counts().made, 6);
        assert!(pool.kept().bytes <= 300 * KIB);
    }

    #[test]
    fn allocation_exceeds_request_by_a_quarter_at_most() {
        for bytes in [0, 1, 65_536, 65_537, 1 << 20, (1 << 20) + 1, 5_000_000, 1 << 33] {
            let size = size_for(bytes).unwrap();
            assert!(size >= bytes && size <= (bytes + bytes / 4).max(bytes + LEAST), "{bytes}: {size}");
        }
        assert_eq!(size_for(usize::MAX), None);
    }

    #[test]
    fn free_memory_is_released_when_allocation_fails() {
        let pool = RegistrationPool::new(1 << 20);
        drop(lease(&pool, 64 * KIB));
        let tries = Cell::new(0);
        let make = |size| {
            tries.set(tries.get() + 1);
            if tries.get() == 1 { Err("the limit of locked memory") } else { Ok(size) }
        };
        let lent = pool.lease(500 * KIB, make).unwrap();
        assert_eq!(*lent, 512 * KIB);
        assert_eq!(pool.kept().free.len(), 0);
        tries.set(0);
        assert_eq!(pool.lease(500 * KIB, make).err(), Some("the limit of locked memory"), "no free memory is left");
    }
}
