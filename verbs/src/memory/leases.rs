//! Registered memory that is lent and comes back: registering takes longer than a large read does, so what came back is kept
//! for the next that needs as much, within bounds; what was longest of no use goes first.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard};
use transom_launch::lock;

/// Memory of type `B` to be lent.
pub(crate) struct Leases<B> {
    /// Bytes that are kept for later at most.
    most: usize,
    kept: Mutex<Kept<B>>,
}

struct Kept<B> {
    /// With their sizes; what came back last is last.
    free: VecDeque<(usize, B)>,
    bytes: usize,
    counts: Leased,
}

/// Memory that somebody has; it comes back when this is dropped, which is not before the adapter is done with it.
pub(crate) struct Lease<B> {
    /// None when dropped.
    memory: Option<B>,
    size: usize,
    home: Arc<Leases<B>>,
}

/// How often.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Leased {
    /// What had come back was lent again.
    pub reused: u64,
    /// It was made.
    pub made: u64,
}

/// The least that is registered.
const LEAST: usize = 64 << 10;

/// As many bytes as are registered for so many: a quarter more at most, so that requests of about a size share.
fn size_for(bytes: usize) -> Option<usize> {
    let step = (bytes.checked_next_power_of_two()? / 8).max(LEAST);
    bytes.max(1).checked_next_multiple_of(step)
}

impl<B> Leases<B> {
    pub fn new(most: usize) -> Arc<Self> {
        let (free, counts) = Default::default();
        Arc::new(Leases { most, kept: Mutex::new(Kept { free, bytes: 0, counts }) })
    }

    /// Memory of at least so many bytes: what came back, or what `make` makes while nothing is locked.
    ///
    /// # Errors
    /// That of `make`, if it fails also once nothing is kept here.
    pub fn lease<E>(self: &Arc<Self>, bytes: usize, make: impl Fn(usize) -> Result<B, E>) -> Result<Lease<B>, E> {
        let size = size_for(bytes).unwrap_or(bytes);
        let lease = |memory| Lease { memory: Some(memory), size, home: self.clone() };
        {
            let mut kept = self.kept();
            if let Some(at) = kept.free.iter().rposition(|(of, _)| *of == size) {
                let (_, memory) = kept.free.remove(at).expect("just found");
                kept.bytes -= size;
                kept.counts.reused += 1;
                return Ok(lease(memory));
            }
            kept.counts.made += 1;
        }
        let made = make(size).or_else(|error| match self.let_go(0) {
            // The limit of locked memory may be all that is in the way.
            true => make(size),
            false => Err(error),
        });
        made.map(lease)
    }

    pub fn counts(&self) -> Leased {
        self.kept().counts
    }

    /// Keeps no more than so many bytes; whether that was less than before.
    fn let_go(&self, most: usize) -> bool {
        let mut gone = Vec::new();
        let mut kept = self.kept();
        while kept.bytes > most {
            let (size, memory) = kept.free.pop_front().expect("of which there are bytes");
            kept.bytes -= size;
            gone.push(memory);
        }
        drop(kept);
        // Taken back while nothing is locked.
        !gone.is_empty()
    }

    fn kept(&self) -> MutexGuard<'_, Kept<B>> {
        lock(&self.kept)
    }
}

impl<B> Deref for Lease<B> {
    type Target = B;

    fn deref(&self) -> &B {
        self.memory.as_ref().expect("until dropped")
    }
}

impl<B> DerefMut for Lease<B> {
    fn deref_mut(&mut self) -> &mut B {
        self.memory.as_mut().expect("until dropped")
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

    fn lease(leases: &Arc<Leases<usize>>, bytes: usize) -> Lease<usize> {
        leases.lease(bytes, Ok::<_, ()>).unwrap()
    }

    #[test]
    fn what_came_back_is_lent_again_within_bounds() {
        let leases = Leases::new(300 * KIB);
        let (first, second) = (lease(&leases, 40_000), lease(&leases, 50_000));
        assert_eq!((*first, *second), (64 * KIB, 64 * KIB), "two at once are two");
        assert_eq!(leases.counts(), Leased { reused: 0, made: 2 });
        drop(first);
        drop(second);
        drop(lease(&leases, 60_000));
        assert_eq!(leases.counts(), Leased { reused: 1, made: 2 });
        drop(lease(&leases, 200_000)); // 256 KiB: too much beside two of 64, and one goes
        drop(lease(&leases, 1));
        assert_eq!(leases.counts(), Leased { reused: 1, made: 4 }, "both had to go");
        drop(lease(&leases, 8 << 20)); // more than is ever kept
        drop(lease(&leases, 8 << 20));
        assert_eq!(leases.counts().made, 6);
        assert!(leases.kept().bytes <= 300 * KIB);
    }

    #[test]
    fn a_quarter_more_at_most_is_registered() {
        for bytes in [0, 1, 65_536, 65_537, 1 << 20, (1 << 20) + 1, 5_000_000, 1 << 33] {
            let size = size_for(bytes).unwrap();
            assert!(size >= bytes && size <= (bytes + bytes / 4).max(bytes + LEAST), "{bytes}: {size}");
        }
        assert_eq!(size_for(usize::MAX), None);
    }

    #[test]
    fn what_is_kept_is_not_in_the_way_of_what_is_needed() {
        let leases = Leases::new(1 << 20);
        drop(lease(&leases, 64 * KIB));
        let tries = Cell::new(0);
        let make = |size| {
            tries.set(tries.get() + 1);
            if tries.get() == 1 { Err("the limit of locked memory") } else { Ok(size) }
        };
        let lent = leases.lease(500 * KIB, make).unwrap();
        assert_eq!(*lent, 512 * KIB);
        assert_eq!(leases.kept().free.len(), 0);
        tries.set(0);
        assert_eq!(leases.lease(500 * KIB, make).err(), Some("the limit of locked memory"), "nothing more can go");
    }
}
