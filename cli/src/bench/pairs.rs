//! Ours and a peer's side by side: what the pairs of jobs of one comparison sum up to.

use super::figures::{Done, Figures, named};
use super::mode::Mode;
use super::protocol::Report;
use super::statistics::{median, quartiles};
use super::targets::Comparison;
use super::text::number;
use serde::Serialize;

/// A job of ours and one of a peer's, one right after the other, in the same mode.
pub struct Pair {
    mode: Mode,
    ours: Side,
    theirs: Side,
    ours_first: bool,
}

struct Side {
    figures: Figures,
    crossing: Option<[f64; 2]>,
    slowdown: Option<[f64; 2]>,
}

impl Side {
    fn of(figures: Figures, report: &Report) -> Self {
        Side { figures, crossing: report.crossing, slowdown: report.slowdown }
    }
}

impl Pair {
    /// None if the cores moved during one of the two, or between them.
    pub fn of(ours: &Done, theirs: &Done, ours_first: bool) -> Option<Self> {
        let mode = Mode::of_both(&ours.run.report, &theirs.run.report)?;
        let side = |done: &Done| Side::of(done.figures.clone(), &done.run.report);
        Some(Pair { mode, ours: side(ours), theirs: side(theirs), ours_first })
    }
}

/// Ours and a peer's, in one mode.
#[derive(Clone, Debug, Serialize)]
pub struct Pairs {
    pub measurement: &'static str,
    pub sync: &'static str,
    pub their_sync: &'static str,
    pub bytes: usize,
    #[serde(rename = "type")]
    pub element: &'static str,
    pub ranks: usize,
    pub mode: Mode,
    pub peer: String,
    pub figure: &'static str,
    pub ours: f64,
    pub theirs: f64,
    pub ratio: Ratio,
    pub pairs: usize,
    pub each: Vec<Each>,
    /// Pairs in which the cores moved.
    pub dropped: usize,
    pub target: Option<f64>,
    /// None where there is no target, or the peer's lock is not fair.
    pub reached: Option<bool>,
    pub note: String,
}

/// One pair, as it was.
#[derive(Clone, Debug, Serialize)]
pub struct Each {
    pub ours: f64,
    pub theirs: f64,
    pub ours_first: bool,
    /// Before and after.
    pub our_crossings_ns: Option<[f64; 2]>,
    pub their_crossings_ns: Option<[f64; 2]>,
    pub our_slowdowns: Option<[f64; 2]>,
    pub their_slowdowns: Option<[f64; 2]>,
}

/// How many times as good as theirs ours is.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Ratio {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

/// A lock is fair up to this ratio of most to fewest.
const FAIR: f64 = 1.1;
/// What both sides must have alike may differ by this much.
const ALIKE: f64 = 1.05;

/// The pairs of a comparison, for each mode that there was.
pub fn by_mode(comparison: &Comparison, peer: &str, pairs: &[Pair], dropped: usize) -> Vec<Pairs> {
    Mode::STEADY.into_iter().filter_map(|mode| of_mode(comparison, peer, mode, pairs, dropped)).collect()
}

fn of_mode(comparison: &Comparison, peer: &str, mode: Mode, pairs: &[Pair], dropped: usize) -> Option<Pairs> {
    let pairs: Vec<_> = pairs.iter().filter(|pair| pair.mode == mode).collect();
    let each: Vec<_> = pairs.iter().filter_map(|pair| each(comparison, pair)).collect();
    let (ours, theirs): (Vec<_>, Vec<_>) = each.iter().map(|each| (each.ours, each.theirs)).unzip();
    let ratios: Vec<f64> = each.iter().map(|each| ratio(comparison, each)).collect();
    let ratio = Ratio {
        median: median(&ratios),
        min: ratios.iter().copied().reduce(f64::min)?,
        max: ratios.iter().copied().reduce(f64::max)?,
    };
    let both = |figure: &str| {
        let of = |side: fn(&Pair) -> &Side| {
            median(&pairs.iter().filter_map(|pair| named(&side(pair).figures, figure)).collect::<Vec<_>>())
        };
        (of(|pair| &pair.ours), of(|pair| &pair.theirs))
    };
    let mut notes = Vec::new();
    if comparison.element != "i64" {
        notes.push(format!("of {}", comparison.element));
    }
    if comparison.theirs != comparison.sync {
        notes.push(format!("theirs is {}", comparison.theirs));
    }
    for also in comparison.also {
        let (ours, theirs) = both(also);
        notes.push(format!("{}: ours {}, theirs {}", also.replace('_', " "), number(ours), number(theirs)));
    }
    let unfair = comparison.fair && both("most/fewest").1 > FAIR;
    if unfair {
        notes.push("no target: theirs is not fair".to_owned());
    }
    let target = comparison.ratio.filter(|_| !unfair);
    Some(Pairs {
        measurement: comparison.measurement,
        sync: comparison.sync,
        their_sync: comparison.theirs,
        bytes: comparison.bytes,
        element: comparison.element,
        ranks: comparison.ranks,
        mode,
        peer: peer.to_owned(),
        figure: comparison.figure,
        ours: median(&ours),
        theirs: median(&theirs),
        ratio,
        pairs: each.len(),
        each,
        dropped,
        target,
        reached: target.map(|target| ratio.median >= target),
        note: notes.join("; "),
    })
}

fn each(comparison: &Comparison, pair: &Pair) -> Option<Each> {
    let of = |side: &Side| named(&side.figures, comparison.figure);
    Some(Each {
        ours: of(&pair.ours)?,
        theirs: of(&pair.theirs)?,
        ours_first: pair.ours_first,
        our_crossings_ns: pair.ours.crossing,
        their_crossings_ns: pair.theirs.crossing,
        our_slowdowns: pair.ours.slowdown,
        their_slowdowns: pair.theirs.slowdown,
    })
}

fn ratio(comparison: &Comparison, each: &Each) -> f64 {
    if comparison.more_is_better { each.ours / each.theirs } else { each.theirs / each.ours }
}

/// Why the two sides are not alike where they must be: three quarters of the pairs lie beyond what is allowed, on one side, so
/// noise it is not. None if they are alike.
pub fn unlike(comparison: &Comparison, pairs: &[Pair]) -> Option<String> {
    let each: Vec<_> = pairs.iter().filter_map(|pair| each(comparison, pair)).collect();
    let [low, high] = quartiles(&each.iter().map(|each| ratio(comparison, each)).collect::<Vec<_>>());
    if !each.is_empty() && low <= ALIKE && high >= 1.0 / ALIKE {
        return None;
    }
    let of = |side: fn(&Each) -> f64| number(median(&each.iter().map(side).collect::<Vec<_>>()));
    Some(format!(
        "LU's kernels are not alike: ours {}, theirs {} GFLOP/s, a ratio of {low:.3} to {high:.3} in half of {} pairs, where up to \
         {ALIKE} would do; so what is compared would be compilers, not libraries",
        of(|each| each.ours),
        of(|each| each.theirs),
        each.len()
    ))
}

#[cfg(test)]
mod tests {
    use super::super::targets::COMPARISONS;
    use super::*;

    fn side(gflops: f64) -> Side {
        Side::of(vec![("kernel_GFLOP/s".into(), gflops)], &Report::default())
    }

    fn kernels(speeds: &[(f64, f64)]) -> Option<String> {
        let comparison = COMPARISONS.iter().find(|comparison| comparison.alike).expect("the kernel's");
        let pair = |&(ours, theirs): &(f64, f64)| Pair {
            mode: Mode::Alone,
            ours: side(ours),
            theirs: side(theirs),
            ours_first: true,
        };
        unlike(comparison, &speeds.iter().map(pair).collect::<Vec<_>>())
    }

    #[test]
    fn kernels_that_differ_beyond_noise_are_not_alike() {
        assert_eq!(kernels(&[(100.0, 100.0); 9]), None);
        assert_eq!(kernels(&[(104.9, 100.0); 9]), None);
        let slow = kernels(&[(92.0, 67.0); 9]).expect("not alike");
        assert!(slow.contains("ours 92.0, theirs 67.0 GFLOP/s") && slow.contains("1.373"), "{slow}");
        assert!(kernels(&[(67.0, 92.0); 9]).is_some() && kernels(&[]).is_some());
        // Some jobs that something else slowed, on one side or both.
        let mut noisy = [(100.0, 100.0); 9];
        noisy[..2].fill((50.0, 100.0));
        noisy[7..].fill((100.0, 40.0));
        assert_eq!(kernels(&noisy), None);
        let mut noisy = [(110.0, 100.0); 9];
        noisy[..2].fill((50.0, 100.0));
        assert!(kernels(&noisy).is_some());
    }
}
