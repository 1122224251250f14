//! Number of rounds of the tests that feed hostile bytes to an engine.

/// `usual` rounds, times the variable `FUZZ` if it is set. `tests/nightly fuzz` sets it.
pub fn rounds(usual: u64) -> u64 {
    let times = std::env::var("FUZZ").map_or(1, |times| times.parse().expect("FUZZ must be a number"));
    usual * times
}
