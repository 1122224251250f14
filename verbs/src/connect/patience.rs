//! How long a connection is waited for that seems cut. Where it is only slow, since a link is congested, what is asked for again by a new
//! one makes that worse: so each that is broken off soon after another is waited for twice as long.

use std::time::{Duration, Instant};

#[derive(Debug, Default)]
pub(super) struct Patience {
    /// How many were broken off, each soon after the one before, and when the last was.
    broken_off: u32,
    last: Option<Instant>,
}

impl Patience {
    /// After so long without one the next is waited for as the first.
    const CALM: Duration = Duration::from_secs(30);
    /// At most two to so many times as long.
    const MOST: u32 = 4;

    pub fn breaks_off(&mut self, now: Instant) {
        self.broken_off = 1 + if self.is_calm(now) { 0 } else { self.broken_off };
        self.last = Some(now);
    }

    /// How many times as long as the first.
    pub fn times(&self, now: Instant) -> u32 {
        if self.is_calm(now) { 1 } else { 1 << self.broken_off.min(Self::MOST) }
    }

    fn is_calm(&self, now: Instant) -> bool {
        self.last.is_none_or(|last| now.saturating_duration_since(last) > Self::CALM)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_broken_off_again_is_waited_for_longer_until_it_is_calm() {
        let (begun, mut patience) = (Instant::now(), Patience::default());
        let at = |seconds| begun + Duration::from_secs(seconds);
        assert_eq!(patience.times(at(0)), 1);
        let times: Vec<u32> = (0..6)
            .map(|turn| {
                patience.breaks_off(at(20 * turn));
                patience.times(at(20 * turn + 1))
            })
            .collect();
        assert_eq!(times, [2, 4, 8, 16, 16, 16]);
        assert_eq!((patience.times(at(130)), patience.times(at(131))), (16, 1));
        patience.breaks_off(at(140));
        assert_eq!(patience.times(at(141)), 2, "as the first");
    }
}
