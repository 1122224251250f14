//! Waiting without a bell: adapters ring none when they have changed a word.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// How long a waiter goes without asking whether those it waits for still live.
const ROUND: Duration = Duration::from_millis(100);
/// Time spent yielding the processor to others, before it sleeps.
const YIELDS: Duration = Duration::from_millis(2);
/// How long it sleeps at a time: at first, and at most.
pub(super) const NAPS: [Duration; 2] = [Duration::from_micros(20), Duration::from_micros(500)];

/// Whether so many ranks of this host leave no core to whoever is waited for, or to the adapter's driver.
pub(super) fn is_crowded(ranks: usize) -> bool {
    // Asking takes system calls.
    static CORES: OnceLock<usize> = OnceLock::new();
    ranks >= *CORES.get_or_init(|| std::thread::available_parallelism().map_or(1, |n| n.get()))
}

/// One wait: spins, then yields, then sleeps in steps that grow.
pub(super) struct Patience {
    spins: u32,
    began: Option<Instant>,
    asked: Option<Instant>,
    nap: Duration,
}

impl Patience {
    /// Of a job of so many ranks on this host.
    pub fn new(ranks: usize) -> Self {
        Patience { spins: if is_crowded(ranks) { 20 } else { 2000 }, began: None, asked: None, nap: NAPS[0] }
    }

    /// Whether it sleeps between two looks.
    #[inline]
    pub fn is_long(&self) -> bool {
        self.nap > NAPS[0]
    }

    /// To be called between two looks. Whether it is time to ask if the wait is vain.
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
        // Not sooner: what everybody has done already may only have to reach us.
        let ask = now - *self.asked.get_or_insert(now) >= ROUND;
        if ask {
            self.asked = Some(now);
        }
        ask
    }
}
