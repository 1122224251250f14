//! Waiting by polling: adapters cannot wake a thread when they change a word.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Interval between checks whether the awaited ranks are still alive.
const ROUND: Duration = Duration::from_millis(100);
/// Time spent yielding the processor before sleeping.
const YIELDS: Duration = Duration::from_millis(2);
/// Shortest and longest sleep.
pub(super) const NAPS: [Duration; 2] = [Duration::from_micros(20), Duration::from_micros(500)];

/// Returns whether the ranks of this host occupy all cores, so that the awaited rank or the adapter's driver may lack
/// one.
pub(super) fn is_oversubscribed(ranks: usize) -> bool {
    // Cached, because the query takes system calls.
    static CORES: OnceLock<usize> = OnceLock::new();
    ranks >= *CORES.get_or_init(|| std::thread::available_parallelism().map_or(1, |n| n.get()))
}

/// Backoff of one wait: spins, then yields, then sleeps for growing times.
pub(super) struct Backoff {
    spins: u32,
    began: Option<Instant>,
    asked: Option<Instant>,
    nap: Duration,
}

impl Backoff {
    /// Backoff in a job with `ranks` ranks on this host.
    pub fn new(ranks: usize) -> Self {
        Backoff { spins: if is_oversubscribed(ranks) { 20 } else { 2000 }, began: None, asked: None, nap: NAPS[0] }
    }

    /// Returns whether the wait has reached the sleeping phase.
    #[inline]
    pub fn is_long(&self) -> bool {
        self.nap > NAPS[0]
    }

    /// Pauses between two polls; returns whether to check that the awaited ranks are alive.
    #[inline]
    pub fn pause(&mut self) -> bool {
        if self.spins > 0 {
            self.spins -= 1;
            std::hint::spin_loop();
            return false;
        }
        self.pause_long()
    }

    #[cold]
    fn pause_long(&mut self) -> bool {
        let now = Instant::now();
        let began = *self.began.get_or_insert(now);
        if now - began < YIELDS {
            std::thread::yield_now();
        } else {
            std::thread::sleep(self.nap);
            self.nap = (self.nap * 2).min(NAPS[1]);
        }
        // Not earlier, because data of a dead rank may still be arriving.
        let ask = now - *self.asked.get_or_insert(now) >= ROUND;
        if ask {
            self.asked = Some(now);
        }
        ask
    }
}
