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

/// A line that takes longer than this comes from far, in nanoseconds: between what is seen within a core complex or a mesh (20 to
/// 75) and from another (100 and more).
const FAR: f64 = 90.0;
/// Crossings in one mode differ by less than this; the nearest two modes that were seen, by 1.8.
const SAME: f64 = 1.6;
/// A core that is slowed more than this by the other is shared with it: between 1, of a core of its own, and 2.
const SHARED: f64 = 1.35;

impl Mode {
    /// All in which a measurement can be used.
    pub const STEADY: [Mode; 4] = [Mode::Siblings, Mode::Near, Mode::Far, Mode::Alone];

    /// The mode of a measurement.
    pub fn of(report: &Report) -> Mode {
        let (Some(crossing), Some(slowdown)) = (report.crossing, report.slowdown) else { return Mode::Alone };
        match crossing {
            [before, after] if !same(before, after, slowdown[0], slowdown[1]) => Mode::Mixed,
            [before, after] if before + after >= 2.0 * FAR => Mode::Far,
            _ if slowdown[0] > SHARED => Mode::Siblings,
            _ => Mode::Near,
        }
    }

    /// The mode of two measurements, none if they were not taken in one and the same. (What they are called may differ where
    /// crossings are about as long as what tells near from far.)
    pub fn of_both(ours: &Report, theirs: &Report) -> Option<Mode> {
        let modes = [Mode::of(ours), Mode::of(theirs)];
        let between = |of: fn(&Report) -> Option<[f64; 2]>| Some((of(ours)?, of(theirs)?));
        let alike = match (between(|report| report.crossing), between(|report| report.slowdown)) {
            (Some((ours, theirs)), Some((our_slowdown, their_slowdown))) => {
                same(ours[0] + ours[1], theirs[0] + theirs[1], our_slowdown[0], their_slowdown[0])
            }
            _ => modes == [Mode::Alone; 2],
        };
        (alike && !modes.contains(&Mode::Mixed)).then_some(modes[0])
    }
}

fn same(crossing: f64, other: f64, slowdown: f64, other_slowdown: f64) -> bool {
    crossing.max(other) < SAME * crossing.min(other) && (slowdown > SHARED) == (other_slowdown > SHARED)
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

    fn report(crossing: [f64; 2], slowdown: [f64; 2]) -> Report {
        Report { crossing: Some(crossing), slowdown: Some(slowdown), ..Report::default() }
    }

    #[test]
    fn modes_are_told_apart_by_latency_and_throughput() {
        let mode = |crossing, slowdown| Mode::of(&report(crossing, slowdown));
        assert_eq!(mode([24.0, 35.0], [1.0, 1.1]), Mode::Near);
        assert_eq!(mode([14.0, 15.0], [1.7, 2.0]), Mode::Siblings);
        assert_eq!(mode([190.0, 200.0], [1.0, 1.0]), Mode::Far);
        assert_eq!(mode([24.0, 190.0], [1.0, 1.0]), Mode::Mixed);
        assert_eq!(mode([60.0, 110.0], [1.0, 1.0]), Mode::Mixed);
        assert_eq!(mode([24.0, 25.0], [1.0, 1.8]), Mode::Mixed);
        assert_eq!(Mode::of(&Report::default()), Mode::Alone);
        // About as long as what tells near from far.
        assert_eq!((mode([85.0, 94.0], [1.0; 2]), mode([95.0, 86.0], [1.0; 2])), (Mode::Near, Mode::Far));
    }

    #[test]
    fn like_is_paired_with_like() {
        let both = |ours, theirs| Mode::of_both(&ours, &theirs);
        let near = || report([24.0, 25.0], [1.0; 2]);
        assert_eq!(both(near(), report([30.0, 31.0], [1.1; 2])), Some(Mode::Near));
        assert_eq!(both(near(), report([190.0, 191.0], [1.0; 2])), None);
        assert_eq!(both(near(), report([24.0, 25.0], [1.8; 2])), None);
        assert_eq!(both(near(), report([12.0, 12.0], [1.0; 2])), None);
        assert_eq!(both(near(), report([24.0, 190.0], [1.0; 2])), None);
        assert_eq!(both(report([24.0, 190.0], [1.0; 2]), near()), None);
        assert_eq!(both(report([85.0, 94.0], [1.0; 2]), report([95.0, 86.0], [1.0; 2])), Some(Mode::Near));
        assert_eq!(both(Report::default(), Report::default()), Some(Mode::Alone));
        assert_eq!(both(near(), Report::default()), None);
    }
}
