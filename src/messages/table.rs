//! What is kept of each request, by its key.

use super::hub::Key;
use std::collections::HashMap;
use transom_channel::Id;

/// Messages are found by their place in the engine, without a hash. The engine gives the place of a message that has ended to
/// another: what is still kept of the earlier one is with the rest then.
pub(super) struct Table<T> {
    places: Vec<Option<(Id, T)>>,
    rest: HashMap<Key, T>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Table { places: Vec::new(), rest: HashMap::new() }
    }
}

impl<T> Table<T> {
    /// Nothing else is kept by this key.
    #[inline]
    pub fn insert(&mut self, key: Key, kept: T) {
        let Key::Message(id) = key else {
            self.rest.insert(key, kept);
            return;
        };
        if self.places.len() <= id.index() {
            self.places.resize_with(id.index() + 1, || None);
        }
        if let Some((earlier, kept)) = self.places[id.index()].replace((id, kept)) {
            self.rest.insert(Key::Message(earlier), kept);
        }
    }

    #[inline]
    pub fn get(&self, key: Key) -> Option<&T> {
        match key {
            Key::Message(id) if self.is_in_place(id) => self.places[id.index()].as_ref().map(|(_, kept)| kept),
            _ => self.rest.get(&key),
        }
    }

    #[inline]
    pub fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        match key {
            Key::Message(id) if self.is_in_place(id) => self.places[id.index()].as_mut().map(|(_, kept)| kept),
            _ => self.rest.get_mut(&key),
        }
    }

    #[inline]
    pub fn remove(&mut self, key: Key) -> Option<T> {
        match key {
            Key::Message(id) if self.is_in_place(id) => self.places[id.index()].take().map(|(_, kept)| kept),
            _ => self.rest.remove(&key),
        }
    }

    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.places.iter_mut().flatten().map(|(_, kept)| kept).chain(self.rest.values_mut())
    }

    #[inline]
    fn is_in_place(&self, id: Id) -> bool {
        matches!(self.places.get(id.index()), Some(Some((of, _))) if *of == id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ended_message_is_kept_though_another_has_its_place() {
        let mut slab = transom_channel::Slab::default();
        let earlier = slab.insert(());
        slab.remove(earlier);
        let later = slab.insert(());
        assert_eq!((earlier.index(), later.index()), (0, 0));
        let (earlier, later, work) = (Key::Message(earlier), Key::Message(later), Key::Work(0));
        let mut table = Table::default();
        table.insert(earlier, "earlier");
        table.insert(later, "later");
        table.insert(work, "work");
        *table.get_mut(earlier).unwrap() = "ended";
        assert_eq!([earlier, later, work].map(|key| *table.get(key).unwrap()), ["ended", "later", "work"]);
        assert_eq!(table.values_mut().count(), 3);
        assert_eq!(table.remove(later), Some("later"));
        assert!(table.get(later).is_none());
        assert_eq!([earlier, work].map(|key| table.remove(key).unwrap()), ["ended", "work"]);
        assert!(table.get(earlier).is_none() && table.get(work).is_none());
    }
}
