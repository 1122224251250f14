//! Storage of values by number. A number that is reused has a new generation, so that a stale or invalid
//! number finds nothing.

use std::num::NonZeroU32;

/// Number of a request, at this rank or at a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id {
    index: u32,
    generation: NonZeroU32,
}

impl Id {
    /// Index of its slot. Values stored at the same time have different indices, below the most that were
    /// stored at once.
    pub fn index(self) -> usize {
        self.index as usize
    }

    /// Encodes the number for a packet or as a token of the wire; never 0.
    pub fn to_wire(self) -> u64 {
        u64::from(self.generation.get()) << 32 | u64::from(self.index)
    }

    /// Decodes a number from a packet or a token; `None` if it is malformed.
    pub fn from_wire(id: u64) -> Option<Id> {
        Some(Id { index: id as u32, generation: NonZeroU32::new((id >> 32) as u32)? })
    }
}

/// Slots that an empty slab keeps allocated.
const KEPT: usize = 1024;

/// The next generation.
fn later(generation: NonZeroU32) -> NonZeroU32 {
    generation.checked_add(1).unwrap_or(NonZeroU32::MIN)
}

/// Values by number. Memory follows the most values stored at once; slots beyond 1,024 are freed once all are
/// empty.
#[derive(Debug)]
pub struct Slab<T> {
    places: Vec<(NonZeroU32, Option<T>)>,
    free: Vec<u32>,
    /// Generation of a new slot: later than that of any number issued for a slot that was deallocated.
    first: NonZeroU32,
    /// Most slots so far.
    most: usize,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Slab { places: Vec::new(), free: Vec::new(), first: NonZeroU32::MIN, most: 0 }
    }
}

impl<T> Slab<T> {
    /// Stores a value, and returns its number.
    pub fn insert(&mut self, value: T) -> Id {
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push((self.first, None));
            self.most = self.most.max(self.places.len());
            u32::try_from(self.places.len() - 1).expect("fewer than 2^32 requests at once")
        });
        let place = &mut self.places[index as usize];
        place.1 = Some(value);
        Id { index, generation: place.0 }
    }

    /// The value of this number; `None` if the number is stale or invalid.
    pub fn get(&self, id: Id) -> Option<&T> {
        self.places.get(id.index as usize).filter(|place| place.0 == id.generation)?.1.as_ref()
    }

    /// The value of this number, mutably; `None` if the number is stale or invalid.
    pub fn get_mut(&mut self, id: Id) -> Option<&mut T> {
        self.places.get_mut(id.index as usize).filter(|place| place.0 == id.generation)?.1.as_mut()
    }

    /// Removes and returns the value of this number; `None` if the number is stale or invalid.
    pub fn remove(&mut self, id: Id) -> Option<T> {
        let place = self.places.get_mut(id.index as usize).filter(|place| place.0 == id.generation)?;
        let value = place.1.take()?;
        self.free(id);
        Some(value)
    }

    /// Like [`remove`](Self::remove), dropping the value in place. The number must be valid.
    pub(crate) fn free(&mut self, id: Id) {
        let place = &mut self.places[id.index as usize];
        debug_assert_eq!(place.0, id.generation);
        *place = (later(place.0), None);
        self.free.push(id.index);
        if self.free.len() == self.places.len() && self.places.len() > KEPT {
            self.give_back();
        }
    }

    #[cold]
    #[inline(never)]
    fn give_back(&mut self) {
        let generations = self.places[KEPT..].iter().map(|place| place.0);
        self.first = generations.max().map_or(self.first, |last| last.max(self.first));
        self.places.truncate(KEPT);
        self.places.shrink_to_fit();
        self.free = (0..KEPT as u32).rev().collect();
    }

    /// All values with their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (Id, &T)> {
        (0..)
            .zip(&self.places)
            .filter_map(|(index, (generation, value))| Some((Id { index, generation: *generation }, value.as_ref()?)))
    }

    /// Number of values stored.
    pub fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// Most values stored at once.
    pub fn most(&self) -> usize {
        self.most
    }

    /// Returns true if no value is stored.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::{KEPT, Slab};

    #[test]
    fn removed_entries_are_freed_without_reusing_ids() {
        let mut slab = Slab::default();
        let flood: Vec<_> = (0..3 * KEPT).map(|number| slab.insert(number)).collect();
        flood.iter().for_each(|id| _ = slab.remove(*id));
        assert_eq!((slab.places.len(), slab.places.capacity(), slab.most()), (KEPT, KEPT, 3 * KEPT));
        let again: Vec<_> = (0..3 * KEPT).map(|number| slab.insert(number)).collect();
        for (late, (number, id)) in flood.iter().zip(again.iter().enumerate()) {
            assert_eq!((slab.get(*late), slab.get(*id)), (None, Some(&number)), "{late:?} {id:?}");
        }
        // Second round, with one slot reused more often than the others.
        for _ in 0..5 {
            let id = again[3 * KEPT - 1];
            if slab.get(id).is_some() {
                slab.remove(id);
            }
            let busy = slab.insert(0);
            slab.remove(busy);
        }
        let last = slab.insert(0);
        again.iter().for_each(|id| _ = slab.remove(*id));
        slab.remove(last);
        assert!(slab.is_empty());
        let all: Vec<_> = (0..3 * KEPT).map(|number| slab.insert(number)).collect();
        assert!(!all.contains(&last), "an id was reused");
    }
}
