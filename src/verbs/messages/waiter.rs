//! Waiting for messages: adapters wake nobody.

use crate::verbs::wait::{NAPS, is_crowded};
use std::cell::Cell;
use std::time::{Duration, Instant};
use transom_locks::Rank;
use transom_shm_loopback::messages::{Look, Naps};
use transom_windows::Wait;

/// How often who attends to messages looks who is gone.
const CHECK: Duration = Duration::from_millis(100);
/// How long it sleeps at most: adapters ring no bell.
const LONGEST_NAP: Duration = Duration::from_millis(5);

/// How they sleep who have messages from neighbours, too, which ring.
pub const AMONG_NEIGHBOURS: Naps = Naps { first: NAPS[0], longest: NAPS[1], longest_idle: LONGEST_NAP };

/// How threads of a rank wait for its messages.
#[derive(Clone, Copy, Debug)]
pub struct Waiter {
    rank: Rank,
    crowded: bool,
}

impl Waiter {
    /// Of a rank that has so many on its host, itself too.
    pub(in crate::verbs) fn new(rank: Rank, ranks_here: usize) -> Waiter {
        Waiter { rank, crowded: is_crowded(ranks_here) }
    }

    /// Waits until `look`, which takes what comes, has found what it looks for. `check` is called ten times a second.
    pub fn wait<R>(&self, wait: Wait<'_>, mut look: impl FnMut() -> Look<R>, mut check: impl FnMut()) -> R {
        let (busy, mut nap) = (Cell::new(false), NAPS[0]);
        let found = || {
            let looked = look();
            busy.set(matches!(looked, Look::Busy));
            Ok(if let Look::Found(found) = looked { Some(found) } else { None })
        };
        let check = || {
            check();
            Ok(())
        };
        let waited = wait.until(self.crowded, found, check, |look| {
            if busy.get() {
                nap = NAPS[0];
                std::thread::yield_now();
            } else {
                std::thread::sleep(nap);
                nap = (nap * 2).min(NAPS[1]);
            }
            look()
        });
        waited.unwrap_or_else(|error| unreachable!("neither look nor check fails: {error}"))
    }

    /// As [`wait`](Self::wait), for a thread that computes nothing and waits for nothing in particular: where nothing comes it
    /// sleeps longer and longer.
    pub fn attend<R>(&self, mut look: impl FnMut() -> Look<R>, mut check: impl FnMut()) -> R {
        let (mut nap, mut checked) = (NAPS[0], Instant::now());
        loop {
            match look() {
                Look::Found(found) => return found,
                Look::Busy => {
                    nap = NAPS[0];
                    std::thread::yield_now();
                }
                Look::Idle => {
                    std::thread::sleep(nap);
                    nap = (nap * 2).min(LONGEST_NAP);
                }
            }
            if checked.elapsed() >= CHECK {
                check();
                checked = Instant::now();
            }
        }
    }

    /// Whether ranks of this host share cores.
    pub fn is_crowded(&self) -> bool {
        self.crowded
    }

    /// This rank.
    pub fn rank(&self) -> Rank {
        self.rank
    }
}
