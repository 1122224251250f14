//! Requests by number. A number that is used again has another generation, so that a late or wrong one finds nothing.

use std::num::NonZeroU32;

/// Names a request, of this rank or to a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id {
    index: u32,
    generation: NonZeroU32,
}

impl Id {
    /// Its place: no two that are kept at once have the same, and it is below the most that ever were.
    pub fn index(self) -> usize {
        self.index as usize
    }

    /// As it goes into a packet, or is a token of the wire; never 0.
    pub fn to_wire(self) -> u64 {
        u64::from(self.generation.get()) << 32 | u64::from(self.index)
    }

    /// What a packet, or a token, names.
    pub fn from_wire(id: u64) -> Option<Id> {
        Some(Id { index: id as u32, generation: NonZeroU32::new((id >> 32) as u32)? })
    }
}

/// Places that a slab keeps when it becomes empty.
const KEPT: usize = 1024;

/// The generation after this one.
fn later(generation: NonZeroU32) -> NonZeroU32 {
    generation.checked_add(1).unwrap_or(NonZeroU32::MIN)
}

/// What is kept by number. As many places as were used at once; those of a flood are given back once all are free.
#[derive(Debug)]
pub struct Slab<T> {
    places: Vec<(NonZeroU32, Option<T>)>,
    free: Vec<u32>,
    /// Generation of a new place: later than any that was given back.
    first: NonZeroU32,
    /// Most places that there were.
    most: usize,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Slab { places: Vec::new(), free: Vec::new(), first: NonZeroU32::MIN, most: 0 }
    }
}

impl<T> Slab<T> {
    /// Keeps something.
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

    /// What goes by this number.
    pub fn get(&self, id: Id) -> Option<&T> {
        self.places.get(id.index as usize).filter(|place| place.0 == id.generation)?.1.as_ref()
    }

    /// What goes by this number.
    pub fn get_mut(&mut self, id: Id) -> Option<&mut T> {
        self.places.get_mut(id.index as usize).filter(|place| place.0 == id.generation)?.1.as_mut()
    }

    /// Keeps it no longer.
    pub fn remove(&mut self, id: Id) -> Option<T> {
        let place = self.places.get_mut(id.index as usize).filter(|place| place.0 == id.generation)?;
        let value = place.1.take()?;
        self.free(id);
        Some(value)
    }

    /// As [`remove`](Self::remove), of what is there, where it is.
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

    /// All that is kept.
    pub fn iter(&self) -> impl Iterator<Item = (Id, &T)> {
        (0..)
            .zip(&self.places)
            .filter_map(|(index, (generation, value))| Some((Id { index, generation: *generation }, value.as_ref()?)))
    }

    /// How many are kept.
    pub fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// How many were kept at once, at most.
    pub fn most(&self) -> usize {
        self.most
    }

    /// Whether none is kept.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::{KEPT, Slab};

    #[test]
    fn places_of_a_flood_are_given_back() {
        let mut slab = Slab::default();
        let flood: Vec<_> = (0..3 * KEPT).map(|number| slab.insert(number)).collect();
        flood.iter().for_each(|id| _ = slab.remove(*id));
        assert_eq!((slab.places.len(), slab.places.capacity(), slab.most()), (KEPT, KEPT, 3 * KEPT));
        let again: Vec<_> = (0..3 * KEPT).map(|number| slab.insert(number)).collect();
        for (late, (number, id)) in flood.iter().zip(again.iter().enumerate()) {
            assert_eq!((slab.get(*late), slab.get(*id)), (None, Some(&number)), "{late:?} {id:?}");
        }
        // Once more, with one place that was used more often than the others.
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
        assert!(!all.contains(&last), "a number that was used names something else");
    }
}
