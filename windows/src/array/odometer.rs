//! Counting through several ranges at once.

/// All combinations of numbers of several ranges, the last range changing fastest, each by its own step.
#[derive(Clone)]
pub(super) struct Odometer<const D: usize> {
    next: Option<[usize; D]>,
    from: [usize; D],
    step: [usize; D],
    to: [usize; D],
}

impl<const D: usize> Odometer<D> {
    /// Counts from `from` by `step`, while each number is below `to`. Yields nothing if a range is empty.
    pub fn new(from: [usize; D], step: [usize; D], to: [usize; D]) -> Self {
        Odometer { next: (0..D).all(|d| from[d] < to[d]).then_some(from), from, step, to }
    }
}

impl<const D: usize> Iterator for Odometer<D> {
    type Item = [usize; D];

    fn next(&mut self) -> Option<[usize; D]> {
        let now = self.next?;
        let mut then = now;
        self.next = (0..D).rev().find_map(|d| {
            then[d] = then[d].saturating_add(self.step[d]);
            if then[d] < self.to[d] {
                return Some(then);
            }
            then[d] = self.from[d];
            None
        });
        Some(now)
    }
}
