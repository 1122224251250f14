//! How long a round trip takes, and so how long to wait for one (RFC 6298).

/// What was measured of one peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoundTrip {
    /// The mean, and the mean distance from it, each of the last few; `None` before the first.
    measured: Option<(u64, u64)>,
    floor: u64,
    ceiling: u64,
}

impl RoundTrip {
    /// Nothing was measured. Whatever is, the time to wait is within these.
    pub fn new(floor: u64, ceiling: u64) -> RoundTrip {
        RoundTrip { measured: None, floor, ceiling }
    }

    /// One took so long.
    pub fn took(&mut self, time: u64) {
        self.measured = Some(match self.measured {
            None => (time, time / 2),
            Some((mean, spread)) => ((7 * mean + time) / 8, (3 * spread + mean.abs_diff(time)) / 4),
        });
    }

    /// How long to wait for an answer, where that was in vain so many times in a row.
    pub fn patience(&self, in_vain: u32) -> u64 {
        // Ten times the floor where nothing is known.
        let once = self.measured.map_or(10 * self.floor, |(mean, spread)| mean + 4 * spread).max(self.floor);
        once.saturating_mul(1 << in_vain.min(30)).min(self.ceiling)
    }
}
