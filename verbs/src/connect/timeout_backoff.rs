//! Timeout multiplier for connections that seem cut. A congested link is only slow, and a new connection that repeats
//! its requests makes it slower. Each connection broken off soon after another therefore doubles the timeout.

use std::time::{Duration, Instant};

#[derive(Debug, Default)]
pub(super) struct TimeoutBackoff {
    /// Number of connections broken off in succession, and the time of the last.
    broken_off: u32,
    last: Option<Instant>,
}

impl TimeoutBackoff {
    /// After this time without a break the timeout is the initial one again.
    const CALM: Duration = Duration::from_secs(30);
    /// Largest exponent of the multiplier.
    const MOST: u32 = 4;

    pub fn breaks_off(&mut self, now: Instant) {
        self.broken_off = 1 + if self.is_calm(now) { 0 } else { self.broken_off };
        self.last = Some(now);
    }

    /// The multiplier of the initial timeout.
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
    fn repeated_breaks_double_the_timeout_until_calm() {
        let (begun, mut backoff) = (Instant::now(), TimeoutBackoff::default());
        let at = |seconds| begun + Duration::from_secs(seconds);
        assert_eq!(backoff.times(at(0)), 1);
        let times: Vec<u32> = (0..6)
            .map(|turn| {
                backoff.breaks_off(at(20 * turn));
                backoff.times(at(20 * turn + 1))
            })
            .collect();
        assert_eq!(times, [2, 4, 8, 16, 16, 16]);
        assert_eq!((backoff.times(at(130)), backoff.times(at(131))), (16, 1));
        backoff.breaks_off(at(140));
        assert_eq!(backoff.times(at(141)), 2, "the first timeout again");
    }
}
