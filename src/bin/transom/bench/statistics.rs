//! What is made of samples.

use super::protocol::Report;
use hdrhistogram::Histogram;
use serde::Serialize;
use std::fmt;

/// How far apart the cores are, as cache lines cross. Some machines change between the two by themselves, and whatever
/// ranks share moves with it; so samples are compared within one mode only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    Near,
    Far,
    /// Nothing crossed: one rank, or nothing that was shared.
    Alone,
}

/// A line that takes longer than this comes from far: between what is seen within a core complex (20 to 40 ns) and
/// from another (100 ns and more).
const FAR: f64 = 70.0;

impl Mode {
    /// The mode of a measurement, if it did not change meanwhile.
    pub fn of(report: &Report) -> Option<Mode> {
        let mode = |&ns: &f64| if ns < FAR { Mode::Near } else { Mode::Far };
        match &report.crossing[..] {
            [before, after] => (mode(before) == mode(after)).then(|| mode(before)),
            _ => Some(Mode::Alone),
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Mode::Near => "near",
            Mode::Far => "far",
            Mode::Alone => "-",
        })
    }
}

/// Of nanoseconds per operation. A sample is the mean of a batch, of 1 us or more, so p99, p99.9 and max too are those
/// of batches: single operations that are slower do not show.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Percentiles {
    pub samples: u64,
    pub min: f64,
    pub median: f64,
    pub p90: f64,
    pub p99: f64,
    pub p99_9: f64,
    pub max: f64,
    pub mean: f64,
}

/// Counts of the histogram in a nanosecond.
const FINE: f64 = 1000.0;

impl Percentiles {
    /// None of no samples.
    pub fn of<'a>(samples: impl IntoIterator<Item = &'a f64>) -> Option<Self> {
        // Three digits are kept.
        let mut histogram = Histogram::<u64>::new(3).ok()?;
        for ns in samples {
            let ns = (ns * FINE) as u64;
            // It grows as needed; what is beyond all that it can count is counted as the largest that it can.
            if histogram.record(ns).is_err() {
                histogram.saturating_record(ns);
            }
        }
        let at = |quantile| histogram.value_at_quantile(quantile) as f64 / FINE;
        (!histogram.is_empty()).then(|| Percentiles {
            samples: histogram.len(),
            min: histogram.min() as f64 / FINE,
            median: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p99_9: at(0.999),
            max: histogram.max() as f64 / FINE,
            mean: histogram.mean() / FINE,
        })
    }
}

/// 0 of nothing.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        len => (sorted[(len - 1) / 2] + sorted[len / 2]) / 2.0,
    }
}

/// Jain's index of shares: 1 if all are alike, 1/n if one has all.
pub fn jain(shares: &[f64]) -> f64 {
    let (sum, squares): (f64, f64) = (shares.iter().sum(), shares.iter().map(|share| share * share).sum());
    if squares == 0.0 { 1.0 } else { sum * sum / (shares.len() as f64 * squares) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jain_is_one_where_all_have_the_same_and_less_where_not() {
        assert_eq!(jain(&[5.0; 4]), 1.0);
        assert_eq!(jain(&[8.0, 0.0, 0.0, 0.0]), 0.25);
        assert_eq!(jain(&[0.0; 3]), 1.0);
    }

    #[test]
    fn percentiles_are_those_of_the_samples() {
        let samples: Vec<f64> = (1..=1000).map(f64::from).collect();
        let found = Percentiles::of(&samples).unwrap();
        let close = |found: f64, expected: f64| (found - expected).abs() <= expected / 500.0;
        assert!(close(found.min, 1.0) && close(found.median, 500.0) && close(found.p99, 990.0), "{found:?}");
        assert!(close(found.max, 1000.0) && close(found.mean, 500.5) && found.samples == 1000, "{found:?}");
        assert!(Percentiles::of(&[]).is_none());
        assert_eq!((median(&[]), median(&[3.0, 1.0]), median(&[9.0, 1.0, 2.0])), (0.0, 2.0, 2.0));
    }

    #[test]
    fn a_mode_that_changed_is_none() {
        let mode = |crossing: &[f64]| Mode::of(&Report { crossing: crossing.to_vec(), ..Report::default() });
        assert_eq!(mode(&[24.0, 35.0]), Some(Mode::Near));
        assert_eq!(mode(&[190.0, 200.0]), Some(Mode::Far));
        assert_eq!(mode(&[24.0, 190.0]), None);
        assert_eq!(mode(&[]), Some(Mode::Alone));
    }
}
