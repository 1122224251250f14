//! The placement of the cores of two ranks relative to each other during a measurement.

use super::protocol::Report;
use serde::Serialize;
use std::fmt;

/// The relation of two cores. Some machines migrate threads by themselves, which changes every figure of shared memory,
/// so samples are compared only within one mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Two hardware threads of one core, which slow each other.
    Siblings,
    /// Separate cores that share a cache.
    Near,
    Far,
    /// No cache line crosses: there is one rank, or the ranks share no memory.
    Alone,
    /// The mode changed during the job.
    Mixed,
}

/// The shortest crossing from a far core, in nanoseconds. Within a core complex or a mesh 20 to 75 ns were measured,
/// from another one 100 ns and more.
const FAR: f64 = 90.0;
/// Crossings of one mode differ by less than this factor. The two closest modes measured differ by 1.8.
const SAME: f64 = 1.6;
/// The least slowdown of hardware threads that share a core. It is 1 on separate cores, and up to 2 on a shared one.
const SHARED: f64 = 1.35;

impl Mode {
    /// The modes in which a measurement is usable.
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

    /// The common mode of two measurements, by our report. `None` if they were not taken in the same mode. Near the
    /// threshold of near and far, two reports may name different modes and still match.
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
    fn modes_differ_in_latency_and_throughput() {
        let mode = |crossing, slowdown| Mode::of(&report(crossing, slowdown));
        assert_eq!(mode([24.0, 35.0], [1.0, 1.1]), Mode::Near);
        assert_eq!(mode([14.0, 15.0], [1.7, 2.0]), Mode::Siblings);
        assert_eq!(mode([190.0, 200.0], [1.0, 1.0]), Mode::Far);
        assert_eq!(mode([24.0, 190.0], [1.0, 1.0]), Mode::Mixed);
        assert_eq!(mode([60.0, 110.0], [1.0, 1.0]), Mode::Mixed);
        assert_eq!(mode([24.0, 25.0], [1.0, 1.8]), Mode::Mixed);
        assert_eq!(Mode::of(&Report::default()), Mode::Alone);
        // Crossings close to the threshold of near and far.
        assert_eq!((mode([85.0, 94.0], [1.0; 2]), mode([95.0, 86.0], [1.0; 2])), (Mode::Near, Mode::Far));
    }

    #[test]
    fn only_reports_of_the_same_mode_pair() {
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
