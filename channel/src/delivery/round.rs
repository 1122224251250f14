//! Round-trip measurement and resend timeout (RFC 6298).

/// Measured round trip of one peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoundTrip {
    /// Smoothed mean and mean deviation in ns; `None` before the first measurement.
    measured: Option<(u64, u64)>,
    floor: u64,
    ceiling: u64,
}

impl RoundTrip {
    /// State before the first measurement. Timeouts are always between `floor` and `ceiling`.
    pub fn new(floor: u64, ceiling: u64) -> RoundTrip {
        RoundTrip { measured: None, floor, ceiling }
    }

    /// Records a round trip of `time` nanoseconds.
    pub fn took(&mut self, time: u64) {
        self.measured = Some(match self.measured {
            None => (time, time / 2),
            Some((mean, spread)) => ((7 * mean + time) / 8, (3 * spread + mean.abs_diff(time)) / 4),
        });
    }

    /// Timeout in ns after `in_vain` consecutive timeouts.
    pub fn patience(&self, in_vain: u32) -> u64 {
        // Ten times the floor before the first measurement.
        let once = self.measured.map_or(10 * self.floor, |(mean, spread)| mean + 4 * spread).max(self.floor);
        once.saturating_mul(1 << in_vain.min(30)).min(self.ceiling)
    }
}
