//! Statistics of samples.

use hdrhistogram::Histogram;
use serde::Serialize;

/// Percentiles of nanoseconds per operation. A sample is the mean of a batch of 1 us or more. So p99, p99.9 and max are
/// those of batches too, and single slow operations do not show.
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

/// Histogram counts per nanosecond.
const FINE: f64 = 1000.0;

impl Percentiles {
    /// Returns `None` if there are no samples.
    pub fn of<'a>(samples: impl IntoIterator<Item = &'a f64>) -> Option<Self> {
        // Keeps three significant digits.
        let mut histogram = Histogram::<u64>::new(3).ok()?;
        for ns in samples {
            let ns = (ns * FINE) as u64;
            // The histogram grows as needed. A value beyond its range counts as the largest value in range.
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

/// The median; 0 of an empty slice.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        len => (sorted[(len - 1) / 2] + sorted[len / 2]) / 2.0,
    }
}

/// The first and third quartile, each a value that occurs; 0 of an empty slice.
pub fn quartiles(values: &[f64]) -> [f64; 2] {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().saturating_sub(1);
    [last / 4, last - last / 4].map(|at| sorted.get(at).copied().unwrap_or(0.0))
}

/// Jain's fairness index: 1 if all shares are equal, 1/n if one has everything.
pub fn jain(shares: &[f64]) -> f64 {
    let (sum, squares): (f64, f64) = (shares.iter().sum(), shares.iter().map(|share| share * share).sum());
    if squares == 0.0 { 1.0 } else { sum * sum / (shares.len() as f64 * squares) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jain_index_is_one_only_for_equal_shares() {
        assert_eq!(jain(&[5.0; 4]), 1.0);
        assert_eq!(jain(&[8.0, 0.0, 0.0, 0.0]), 0.25);
        assert_eq!(jain(&[0.0; 3]), 1.0);
    }

    #[test]
    fn percentiles_match_the_samples() {
        let samples: Vec<f64> = (1..=1000).map(f64::from).collect();
        let found = Percentiles::of(&samples).unwrap();
        let close = |found: f64, expected: f64| (found - expected).abs() <= expected / 500.0;
        assert!(close(found.min, 1.0) && close(found.median, 500.0) && close(found.p99, 990.0), "{found:?}");
        assert!(close(found.max, 1000.0) && close(found.mean, 500.5) && found.samples == 1000, "{found:?}");
        assert!(Percentiles::of(&[]).is_none());
        assert_eq!((median(&[]), median(&[3.0, 1.0]), median(&[9.0, 1.0, 2.0])), (0.0, 2.0, 2.0));
        let nine: Vec<f64> = (1..=9).rev().map(f64::from).collect();
        assert_eq!((quartiles(&[]), quartiles(&[5.0]), quartiles(&nine)), ([0.0; 2], [5.0; 2], [3.0, 7.0]));
    }
}
