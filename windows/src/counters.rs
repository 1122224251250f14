//! Counters of a window's operations, for programs and tests that measure its cost.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counters {
    ($($name:ident: $doc:literal),* $(,)?) => {
        /// The operations of this rank on a window so far. Threads of one rank that count at the same moment may lose
        /// counts: exact counts would cost an atomic instruction per operation.
        ///
        /// # Examples
        /// ```
        /// let before = transom_windows::Counters { puts: 2, ..Default::default() };
        /// let after = transom_windows::Counters { puts: 5, gets: 1, ..Default::default() };
        /// assert_eq!((after - before).puts, 3);
        /// ```
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counters { $(#[doc = $doc] pub $name: u64,)* }

        impl std::ops::Sub for Counters {
            type Output = Counters;
            fn sub(self, before: Counters) -> Counters {
                Counters { $($name: self.$name.wrapping_sub(before.$name),)* }
            }
        }

        impl std::ops::Add for Counters {
            type Output = Counters;
            fn add(self, other: Counters) -> Counters {
                Counters { $($name: self.$name.wrapping_add(other.$name),)* }
            }
        }

        #[derive(Default)]
        pub(crate) struct CounterCells { $(pub $name: Count,)* }

        impl CounterCells {
            pub fn read(&self) -> Counters {
                Counters { $($name: self.$name.0.load(Relaxed),)* }
            }
        }
    };
}

counters! {
    puts: "Puts.",
    gets: "Gets.",
    atomics: "`fetch_and_op` and `compare_and_swap` calls.",
    accumulates: "`accumulate` and `get_accumulate` calls.",
    signals: "Signals given by `put_signal`, `signal` and `set_signal`.",
    locks: "Locks taken; lock_all counts one for each rank.",
    flushes: "Flushes.",
    fences: "Fences.",
    word_cas: "Compare-and-swaps that synchronisation needed, at any rank.",
    word_adds: "Fetch-and-adds that synchronisation needed, at any rank.",
    notifications: "Notifications of other ranks that synchronisation needed.",
}

/// A statistic: counted by a load and a store instead of an atomic instruction.
#[derive(Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    #[inline(always)]
    pub fn bump(&self) {
        self.add(1);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }

    #[inline(always)]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }
}
