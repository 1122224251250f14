//! How the cores of two ranks were to each other while something was measured.

use super::protocol::Report;
use serde::Serialize;
use std::fmt;

/// Some machines change between these by themselves, and whatever ranks share moves with it; so samples are compared within
/// one mode only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Two hardware threads of one core: what the one does slows the other.
    Siblings,
    /// Cores of their own, which share a cache.
    Near,
    Far,
    /// Nothing crossed: one rank, or nothing that was shared.
    Alone,
    /// One of the first three before, another after.
    Mixed,
}

/// A line that takes longer than this comes from far, in nanoseconds: between what is seen within a core complex (20 to 40) and
/// from another (100 and more).
const FAR: f64 = 70.0;
/// A core that is slowed more than this by the other is shared with it: between 1, of a core of its own, and 2.
const SHARED: f64 = 1.35;

impl Mode {
    /// All in which a measurement can be used.
    pub const STEADY: [Mode; 4] = [Mode::Siblings, Mode::Near, Mode::Far, Mode::Alone];

    /// The mode of a measurement.
    pub fn of(report: &Report) -> Mode {
        let mode = |crossing: f64, slowdown: f64| match crossing {
            ns if ns >= FAR => Mode::Far,
            _ if slowdown > SHARED => Mode::Siblings,
            _ => Mode::Near,
        };
        let [Some(crossing), Some(slowdown)] = [report.crossing, report.slowdown] else { return Mode::Alone };
        let [before, after] = [0, 1].map(|at| mode(crossing[at], slowdown[at]));
        if before == after { before } else { Mode::Mixed }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Mode::Siblings => "siblings",
            Mode::Near => "near",
            Mode::Far => "far",
            Mode::Alone => "-",
            Mode::Mixed => "mixed",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_told_apart_by_latency_and_throughput() {
        let mode = |crossing, slowdown| {
            Mode::of(&Report { crossing: Some(crossing), slowdown: Some(slowdown), ..Report::default() })
        };
        assert_eq!(mode([24.0, 35.0], [1.0, 1.1]), Mode::Near);
        assert_eq!(mode([14.0, 15.0], [1.7, 2.0]), Mode::Siblings);
        assert_eq!(mode([190.0, 200.0], [1.0, 1.0]), Mode::Far);
        assert_eq!(mode([24.0, 190.0], [1.0, 1.0]), Mode::Mixed);
        assert_eq!(mode([24.0, 25.0], [1.0, 1.8]), Mode::Mixed);
        assert_eq!(Mode::of(&Report::default()), Mode::Alone);
    }
}
