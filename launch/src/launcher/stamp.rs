//! Time stamps of output lines.

use std::time::{Duration, SystemTime};

/// The time now in UTC, by RFC 3339, with a space behind it.
pub(super) fn now() -> String {
    of(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default())
}

/// The stamp of a time since 1970.
fn of(since: Duration) -> String {
    let (days, seconds) = (since.as_secs() / 86400, since.as_secs() % 86400);
    // Years begin with March here, so that a leap day is the last day of its year. 1970-01-01 is day 719468 since
    // 0000-03-01, and 400 years have 146097 days (Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms").
    let (era, day) = ((days + 719_468) / 146_097, (days + 719_468) % 146_097);
    let year = (day - day / 1460 + day / 36524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let march_month = (5 * day + 2) / 153;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    let day = day - (153 * march_month + 2) / 5 + 1;
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z ", since.subsec_millis())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expected values are those of `date --utc`.
    #[test]
    fn stamps_agree_with_the_calendar() {
        for (millis, stamp) in [
            (0, "1970-01-01T00:00:00.000Z "),
            (951_782_400_000, "2000-02-29T00:00:00.000Z "),
            (1_709_251_199_999, "2024-02-29T23:59:59.999Z "),
            (1_795_989_784_123, "2026-11-29T22:03:04.123Z "),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z "),
        ] {
            assert_eq!(of(Duration::from_millis(millis)), stamp);
        }
    }
}
