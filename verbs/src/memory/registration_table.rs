//! Table of long-lived registrations by address. Large operations on such memory need neither a copy nor a
//! registration.
//!
//! An entry exists only while its owner has the memory. A lookup for memory that a caller may use therefore finds the
//! registration of that memory, never one of earlier memory at the same address.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use transom_launch::lock;

/// Registrations of type `R`, by the addresses that they cover.
pub(crate) struct RegistrationTable<R>(Mutex<Ranges<R>>);

struct Ranges<R> {
    /// Length and registration, by first address and a number that distinguishes equal addresses.
    all: BTreeMap<(u64, u64), (u64, Arc<R>)>,
    next: u64,
    /// Length of the longest entry ever, in bytes: bounds the search before an address.
    longest: u64,
}

/// An entry, which exists until this is dropped.
pub(crate) struct Entry<R> {
    at: (u64, u64),
    table: Arc<RegistrationTable<R>>,
}

impl<R> RegistrationTable<R> {
    pub fn new() -> Arc<Self> {
        Arc::new(RegistrationTable(Mutex::new(Ranges { all: BTreeMap::new(), next: 0, longest: 0 })))
    }

    /// Adds an entry.
    pub fn add(self: &Arc<Self>, start: u64, bytes: u64, what: Arc<R>) -> Entry<R> {
        let mut ranges = self.ranges();
        let at = (start, ranges.next);
        ranges.next += 1;
        ranges.longest = ranges.longest.max(bytes);
        ranges.all.insert(at, (bytes, what));
        Entry { at, table: self.clone() }
    }

    /// A registration that covers all of these bytes.
    pub fn find(&self, start: u64, bytes: u64) -> Option<Arc<R>> {
        let ranges = self.ranges();
        // Entries that begin at `start` or before, nearest first. Usually the nearest covers it, because memory seldom
        // overlaps.
        let mut before = ranges.all.range(..=(start, u64::MAX)).rev();
        let near = before.by_ref().take_while(|((from, _), _)| start - from <= ranges.longest);
        let covers = |from: u64, covered: u64| covered.checked_sub(start - from).is_some_and(|rest| bytes <= rest);
        near.into_iter().find(|((from, _), (covered, _))| covers(*from, *covered)).map(|(_, (_, what))| what.clone())
    }

    fn ranges(&self) -> MutexGuard<'_, Ranges<R>> {
        lock(&self.0)
    }
}

impl<R> Drop for Entry<R> {
    fn drop(&mut self) {
        let gone = self.table.ranges().all.remove(&self.at);
        drop(gone); // outside the lock
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn table(ranges: &[(u64, u64)]) -> (Arc<RegistrationTable<usize>>, Vec<Entry<usize>>) {
        let table = RegistrationTable::new();
        let add = |(number, &(start, bytes))| table.add(start, bytes, Arc::new(number));
        let entries = ranges.iter().enumerate().map(add).collect();
        (table, entries)
    }

    #[test]
    fn covered_range_is_found_and_others_are_not() {
        let (table, mut entries) = table(&[(100, 50), (150, 50), (1000, 24)]);
        let find = |start, bytes| table.find(start, bytes).map(|number| *number);
        assert_eq!([find(100, 50), find(149, 1), find(150, 50), find(1023, 1)], [Some(0), Some(0), Some(1), Some(2)]);
        assert_eq!([find(99, 2), find(100, 51), find(200, 1), find(1000, 25), find(0, 5000)], [None; 5]);
        assert_eq!([find(u64::MAX, 1), find(u64::MAX, u64::MAX), find(1001, u64::MAX)], [None; 3]);
        assert_eq!((find(1024, 0), find(1025, 0)), (Some(2), None));
        drop(entries.remove(1));
        assert_eq!(
            (find(150, 50), find(160, 1), find(120, 30)),
            (None, None, Some(0)),
            "only the dropped entry is gone"
        );
    }

    #[test]
    fn found_registration_outlives_its_entry() {
        let (table, entries) = table(&[(4096, 4096)]);
        let found = table.find(5000, 100).unwrap();
        drop(entries);
        assert!(table.find(5000, 100).is_none());
        assert_eq!(Arc::strong_count(&found), 1, "only the user holds it");
    }

    proptest! {
        /// Compares the table with a linear search. Ranges overlap and nest, and some are removed.
        #[test]
        fn lookup_equals_linear_search(
            ranges in prop::collection::vec((0u64..60, 0u64..30), 0..12),
            gone in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
        ) {
            let (table, entries) = table(&ranges);
            let mut entries: Vec<_> = entries.into_iter().map(Some).collect();
            if !entries.is_empty() {
                gone.iter().for_each(|one| drop(entries[one.index(ranges.len())].take()));
            }
            for start in 0..95 {
                for bytes in 1..35 {
                    let covers = |number: usize| {
                        let (from, covered) = ranges[number];
                        entries[number].is_some() && from <= start && start + bytes <= from + covered
                    };
                    let found = table.find(start, bytes).map(|number| *number);
                    prop_assert_eq!(found.is_some(), (0..ranges.len()).any(covers), "{} bytes at {}", bytes, start);
                    prop_assert!(found.is_none_or(covers), "{:?} does not cover {} bytes at {}", found, bytes, start);
                }
            }
        }
    }
}
