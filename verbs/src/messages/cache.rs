//! Registration cache: registrations stay with their memory, for the next message from it.
//!
//! A registration is stored in a [`WireCache`] that belongs to the memory; the owner of the memory clears it before the
//! memory is freed. A registration is therefore never found for freed memory, even if other memory now has the same
//! address. The cache only lists the places, in order to limit the registered bytes: it evicts the least recently used
//! registration first.

use std::any::Any;
use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use transom_shm_loopback::messages::WireCache;

pub(super) struct Cache {
    /// Most bytes that stay registered.
    most: usize,
    /// Registered bytes and their place, least recently used first.
    places: VecDeque<(usize, Weak<WireCache>)>,
}

impl Cache {
    pub fn new(most: usize) -> Cache {
        Cache { most, places: VecDeque::new() }
    }

    /// True if a registration of `bytes` bytes may be cached.
    pub fn takes(&self, bytes: usize) -> bool {
        bytes <= self.most
    }

    /// The cached registration of this place, which becomes the most recently used.
    pub fn find<R: Any + Send + Sync>(&mut self, place: &Arc<WireCache>) -> Option<Arc<R>> {
        let kept = place.kept()?;
        let at = self.places.iter().position(|(_, known)| std::ptr::eq(known.as_ptr(), Arc::as_ptr(place)))?;
        let used = self.places.remove(at)?;
        self.places.push_back(used);
        Some(kept)
    }

    /// All cached registrations.
    pub fn kept<R: Any + Send + Sync>(&self) -> impl Iterator<Item = Arc<R>> {
        self.places.iter().filter_map(|(_, place)| place.upgrade()?.kept())
    }

    /// Caches a registration of `bytes` bytes in place of the previous one, and evicts others if the limit is exceeded.
    pub fn keep<R: Any + Send + Sync>(&mut self, place: &Arc<WireCache>, bytes: usize, what: &Arc<R>) {
        let is_this = |known: &Weak<WireCache>| std::ptr::eq(known.as_ptr(), Arc::as_ptr(place));
        self.places.retain(|(_, known)| known.strong_count() > 0 && !is_this(known));
        self.let_go(self.most.saturating_sub(bytes));
        place.keep(what.clone());
        self.places.push_back((bytes, Arc::downgrade(place)));
    }

    /// Evicts registrations until at most `most` bytes are cached. Returns true if any was evicted.
    pub fn let_go(&mut self, most: usize) -> bool {
        let mut bytes: usize = self.places.iter().map(|(bytes, _)| bytes).sum();
        let before = bytes;
        while bytes > most {
            let (of, place) = self.places.pop_front().expect("an entry holds the bytes");
            bytes -= of;
            if let Some(place) = place.upgrade() {
                place.clear();
            }
        }
        bytes < before
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{Events, Thing};

    /// Memory with a place, which records when it is freed.
    struct Buffer {
        place: Arc<WireCache>,
        events: Events,
    }

    impl Drop for Buffer {
        fn drop(&mut self) {
            self.place.clear();
            self.events.lock().unwrap().push("memory freed");
        }
    }

    fn buffer(events: &Events) -> Buffer {
        Buffer { place: Arc::default(), events: events.clone() }
    }

    fn keep(cache: &mut Cache, buffer: &Buffer, bytes: usize, name: &'static str) -> Arc<Thing> {
        let what = Arc::new(Thing(name, buffer.events.clone()));
        cache.keep(&buffer.place, bytes, &what);
        what
    }

    fn found(cache: &mut Cache, buffer: &Buffer) -> Option<&'static str> {
        cache.find::<Thing>(&buffer.place).map(|thing| thing.0)
    }

    fn happened(events: &Events) -> Vec<&'static str> {
        std::mem::take(&mut events.lock().unwrap())
    }

    #[test]
    fn cached_registration_is_found_until_memory_is_freed() {
        let (events, mut cache) = (Events::default(), Cache::new(100));
        let [first, second, third] = [(); 3].map(|()| buffer(&events));
        drop(keep(&mut cache, &second, 40, "second"));
        assert_eq!(found(&mut cache, &first), None);
        drop(keep(&mut cache, &first, 60, "first"));
        assert_eq!((found(&mut cache, &first), happened(&events)), (Some("first"), vec![]));
        drop(first);
        assert_eq!(happened(&events), ["first", "memory freed"], "the registration must be freed before its memory");
        // The bytes of the freed buffer no longer count.
        drop(keep(&mut cache, &third, 60, "third"));
        assert_eq!((found(&mut cache, &second), found(&mut cache, &third)), (Some("second"), Some("third")));
    }

    #[test]
    fn least_recently_used_registration_goes_first() {
        let (events, mut cache) = (Events::default(), Cache::new(100));
        let [a, b, c, d] = [(); 4].map(|()| buffer(&events));
        for (buffer, name) in [(&a, "a"), (&b, "b"), (&c, "c")] {
            drop(keep(&mut cache, buffer, 30, name));
        }
        let used = cache.find::<Thing>(&a.place).unwrap();
        drop(keep(&mut cache, &d, 40, "d"));
        assert_eq!(happened(&events), ["b"]);
        assert_eq!([&a, &b, &c, &d].map(|of| found(&mut cache, of)), [Some("a"), None, Some("c"), Some("d")]);
        assert!(cache.let_go(0) && !cache.let_go(0));
        assert_eq!(happened(&events), ["c", "d"], "a registration in use must be freed after its user");
        drop(used);
        assert_eq!(happened(&events), ["a"]);
        assert!(cache.takes(100) && !cache.takes(101));
    }

    #[test]
    fn replacing_registration_counts_alone() {
        let (events, mut cache) = (Events::default(), Cache::new(100));
        let [a, b] = [(); 2].map(|()| buffer(&events));
        drop(keep(&mut cache, &b, 30, "b"));
        for (bytes, name) in [(30, "a by one rail"), (60, "a by two")] {
            drop(keep(&mut cache, &a, bytes, name));
        }
        assert_eq!(happened(&events), ["a by one rail"], "expected 90 cached bytes, not 120");
        assert_eq!([&a, &b].map(|of| found(&mut cache, of)), [Some("a by two"), Some("b")]);
    }
}
