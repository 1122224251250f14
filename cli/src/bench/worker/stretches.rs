//! Stretches of successive acquisitions of a contended lock, timed if each rank had its share. A total per second
//! rewards a lock that a rank keeps while others wait; a fair stretch does not.

use super::facts::{Facts, Outcome, gather};
use transom::World;

/// Acquisitions in a stretch.
const LENGTH: usize = 500;
/// The stretches that are recorded, from the first acquisition on.
const MOST: usize = 1 << 14;
/// The least and the greatest part of its share that each rank must have had.
const SHARE: (f64, f64) = (0.7, 1.4);

/// This rank's acquisitions, by their position in the order of all.
pub struct Stretches {
    /// This rank's acquisitions in each stretch.
    mine: Vec<f64>,
    /// The time of each stretch's first acquisition in nanoseconds; 0 if another rank made it.
    begun: Vec<f64>,
}

impl Stretches {
    pub fn new() -> Self {
        Stretches { mine: vec![0.0; MOST], begun: vec![0.0; MOST] }
    }

    /// Records the acquisition that found the counter at `before`. `now` is the time in nanoseconds after its unlock.
    #[inline]
    pub fn record(&mut self, before: i64, now: impl FnOnce() -> f64) {
        let before = before as usize;
        let Some(mine) = self.mine.get_mut(before / LENGTH) else { return };
        *mine += 1.0;
        if before.is_multiple_of(LENGTH) {
            self.begun[before / LENGTH] = now();
        }
    }

    /// Collective: a sample for each fair stretch.
    pub fn report(self, world: &World, facts: &mut Facts) -> Outcome {
        let all = gather(world, &[self.mine, self.begun].concat())?;
        facts.samples(&fair(&all));
        Ok(())
    }
}

/// Nanoseconds per acquisition of each fair stretch. A rank's row is its acquisitions in each stretch, then the times.
fn fair(ranks: &[Vec<f64>]) -> Vec<f64> {
    let half = ranks.first().map_or(0, |row| row.len() / 2);
    let begun = |at: usize| ranks.iter().map(|row| row[half + at]).fold(0.0, f64::max);
    let share = LENGTH as f64 / ranks.len() as f64;
    let is_fair = |at: usize| ranks.iter().all(|row| (SHARE.0..=SHARE.1).contains(&(row[at] / share)));
    let ends = (1..half).filter(|&at| begun(at - 1) > 0.0 && begun(at) > begun(at - 1));
    ends.filter(|&at| is_fair(at - 1)).map(|at| (begun(at) - begun(at - 1)) / LENGTH as f64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_stretches_with_equal_shares_are_timed() {
        // Four stretches, of which the second is unfair and the third took half the time of the first.
        let first = vec![250.0, 400.0, 350.0, 10.0, 1000.0, 0.0, 0.0, 80_000.0];
        let second = vec![250.0, 100.0, 175.0, 10.0, 0.0, 51_000.0, 55_000.0, 0.0];
        assert_eq!(fair(&[first.clone(), second.clone()]), [100.0, 50.0]);
        // A rank that no longer competes has no share.
        assert!(fair(&[first, second, vec![0.0; 8]]).is_empty() && fair(&[]).is_empty());
    }
}
