//! The summary of the pairs of jobs of one comparison: our library beside a peer.

use super::figures::{Done, Figures, named};
use super::mode::Mode;
use super::protocol::Report;
use super::statistics::{median, quartiles};
use super::targets::Comparison;
use super::text::number;
use serde::Serialize;

/// A job of ours and one of a peer, back to back and in the same mode.
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
    /// Returns `None` if the core placement changed during or between the two jobs.
    pub fn of(ours: &Done, theirs: &Done, ours_first: bool) -> Option<Self> {
        let mode = Mode::of_both(&ours.run.report, &theirs.run.report)?;
        let side = |done: &Done| Side::of(done.figures.clone(), &done.run.report);
        Some(Pair { mode, ours: side(ours), theirs: side(theirs), ours_first })
    }
}

/// The pairs of one comparison with one peer, in one mode.
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
    /// `None` if the two sides do not do the same, or take less than the clock can tell.
    pub ratio: Option<Ratio>,
    /// No peer is faster in this comparison and mode. Only this row has the target.
    pub best: bool,
    pub pairs: usize,
    pub each: Vec<Each>,
    /// The number of pairs during which the core placement changed.
    pub dropped: usize,
    pub target: Option<f64>,
    /// `None` if there is no target.
    pub reached: Option<bool>,
    pub note: String,
}

/// The results of one pair.
#[derive(Clone, Debug, Serialize)]
pub struct Each {
    pub ours: f64,
    pub theirs: f64,
    pub ours_first: bool,
    /// Before and after the job.
    pub our_crossings_ns: Option<[f64; 2]>,
    pub their_crossings_ns: Option<[f64; 2]>,
    pub our_slowdowns: Option<[f64; 2]>,
    pub their_slowdowns: Option<[f64; 2]>,
}

/// The factor by which ours is better than theirs.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Ratio {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

/// Steps of the clock below which two times by single readings have no ratio.
const STEPS: f64 = 5.0;
/// The largest ratio of two kernels that count as alike.
const ALIKE: f64 = 1.05;

/// Marks the best peer of each mode among the rows of one comparison, and applies the target to it.
pub fn mark_best(comparison: &Comparison, rows: &mut [Pairs]) {
    for mode in Mode::STEADY {
        let of_mode = rows.iter_mut().filter(|row| row.mode == mode);
        let rated = of_mode.filter_map(|row| Some((row.ratio?.median, row)));
        if let Some((median, row)) = rated.min_by(|(one, _), (other, _)| one.total_cmp(other)) {
            row.best = true;
            row.target = comparison.ratio;
            row.reached = comparison.ratio.map(|target| median >= target);
        }
    }
}

/// Summarizes the pairs of a comparison, separately for each mode.
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
    let (our_step, their_step) = both("clock_step_ns");
    let shortest = STEPS * f64::max(our_step, their_step);
    let known = median(&ours) >= shortest && median(&theirs) >= shortest;
    if !comparison.equal {
        notes.push("for information: the two sides do not do the same".to_owned());
    } else if !known {
        notes.push(format!("no ratio below {STEPS} steps of the clock, {} ns", number(shortest)));
    }
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
        ratio: Some(ratio).filter(|_| comparison.equal && known),
        best: false,
        pairs: each.len(),
        each,
        dropped,
        target: None,
        reached: None,
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

/// Returns the reason why the two kernels differ, or `None` if they are alike. They differ if three quarters of the
/// pairs deviate beyond the tolerance in one direction, which noise does not explain.
pub fn unlike(comparison: &Comparison, pairs: &[Pair]) -> Option<String> {
    let each: Vec<_> = pairs.iter().filter_map(|pair| each(comparison, pair)).collect();
    let [low, high] = quartiles(&each.iter().map(|each| ratio(comparison, each)).collect::<Vec<_>>());
    if !each.is_empty() && low <= ALIKE && high >= 1.0 / ALIKE {
        return None;
    }
    let of = |side: fn(&Each) -> f64| number(median(&each.iter().map(side).collect::<Vec<_>>()));
    Some(format!(
        "LU's kernels differ: ours {}, theirs {} GFLOP/s, a ratio of {low:.3} to {high:.3} in half of {} pairs, expected \
         at most {ALIKE}; the comparison would be one of compilers, not of libraries",
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
        let comparison = COMPARISONS.iter().find(|comparison| comparison.alike).expect("the kernel has a comparison");
        let pair = |&(ours, theirs): &(f64, f64)| Pair {
            mode: Mode::Alone,
            ours: side(ours),
            theirs: side(theirs),
            ours_first: true,
        };
        unlike(comparison, &speeds.iter().map(pair).collect::<Vec<_>>())
    }

    /// Pairs with one peer that takes `theirs` where ours takes `ours`.
    fn row(comparison: &Comparison, peer: &str, ours: f64, theirs: f64) -> Pairs {
        let side =
            |ns| Side::of(vec![(comparison.figure.into(), ns), ("clock_step_ns".into(), 10.0)], &Report::default());
        let pair = Pair { mode: Mode::Alone, ours: side(ours), theirs: side(theirs), ours_first: true };
        by_mode(comparison, peer, &[pair], 0).remove(0)
    }

    fn comparison(is: impl Fn(&Comparison) -> bool) -> &'static Comparison {
        COMPARISONS.iter().find(|comparison| is(comparison)).expect("there is such a comparison")
    }

    #[test]
    fn target_applies_to_the_best_peer_alone() {
        let put = comparison(|of| of.measurement == "put" && of.ratio == Some(5.0));
        let mut rows = [row(put, "a", 60.0, 600.0), row(put, "b", 60.0, 240.0), row(put, "c", 60.0, 300.0)];
        mark_best(put, &mut rows);
        let marks = rows.map(|row| (row.best, row.target, row.reached));
        assert_eq!(marks, [(false, None, None), (true, Some(5.0), Some(false)), (false, None, None)]);
    }

    #[test]
    fn unequal_or_too_short_times_have_no_ratio() {
        let (overhead, buffers) = (comparison(|of| of.measurement == "overhead"), comparison(|of| !of.equal));
        assert!(row(overhead, "a", 50.0, 60.0).ratio.is_some());
        for (ours, theirs) in [(49.0, 60.0), (60.0, 49.0)] {
            let short = row(overhead, "a", ours, theirs);
            assert!(short.ratio.is_none() && short.note.contains("below 5 steps of the clock"), "{}", short.note);
        }
        let mut unequal = [row(buffers, "a", 100.0, 50.0)];
        mark_best(buffers, &mut unequal);
        assert!(unequal[0].ratio.is_none() && !unequal[0].best && unequal[0].note.contains("for information"));
    }

    #[test]
    fn kernels_differing_beyond_noise_are_reported() {
        assert_eq!(kernels(&[(100.0, 100.0); 9]), None);
        assert_eq!(kernels(&[(104.9, 100.0); 9]), None);
        let slow = kernels(&[(92.0, 67.0); 9]).expect("the kernels differ beyond noise");
        assert!(slow.contains("ours 92.0, theirs 67.0 GFLOP/s") && slow.contains("1.373"), "{slow}");
        assert!(kernels(&[(67.0, 92.0); 9]).is_some() && kernels(&[]).is_some());
        // Some jobs slowed by other load, on either side.
        let mut noisy = [(100.0, 100.0); 9];
        noisy[..2].fill((50.0, 100.0));
        noisy[7..].fill((100.0, 40.0));
        assert_eq!(kernels(&noisy), None);
        let mut noisy = [(110.0, 100.0); 9];
        noisy[..2].fill((50.0, 100.0));
        assert!(kernels(&noisy).is_some());
    }
}
