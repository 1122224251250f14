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

/// What is kept by number. As many places as were ever used at once.
#[derive(Debug)]
pub struct Slab<T> {
    places: Vec<(NonZeroU32, Option<T>)>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Slab { places: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    /// Keeps something.
    pub fn insert(&mut self, value: T) -> Id {
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push((NonZeroU32::MIN, None));
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
        *place = (place.0.checked_add(1).unwrap_or(NonZeroU32::MIN), None);
        self.free.push(id.index);
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
        self.places.len()
    }

    /// Whether none is kept.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
