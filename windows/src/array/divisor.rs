//! Division by a number that is known long before the dividend.

/// A divisor, prepared so that dividing by it mostly takes no division instruction, which would take longer than all else
/// that finding an element does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Divisor {
    divisor: usize,
    /// 2^63 / divisor, rounded up; or 0 if that does not do for all dividends.
    factor: u64,
}

impl Divisor {
    /// For dividends up to `most`; `divisor` is not 0, and both are below 2^63.
    pub fn new(divisor: usize, most: usize) -> Self {
        // n * factor / 2^63 exceeds n / divisor by n * (factor * divisor - 2^63) / (2^63 * divisor). That factor is below
        // `divisor`, so while n * divisor is at most 2^63 the excess is below 1 / divisor, by which n / divisor is below the
        // next whole number at least.
        let is_exact = most as u128 * divisor as u128 <= 1 << 63;
        Divisor { divisor, factor: if is_exact { (1u64 << 63).div_ceil(divisor as u64) } else { 0 } }
    }

    /// The number to divide by.
    #[inline(always)]
    pub fn get(self) -> usize {
        self.divisor
    }

    /// The quotient and the remainder of `n`, which is at most what `new` was told.
    #[inline(always)]
    pub fn divide(self, n: usize) -> (usize, usize) {
        let quotient = match self.factor {
            0 => n / self.divisor,
            factor => (u128::from(2 * n as u64) * u128::from(factor) >> 64) as usize,
        };
        (quotient, n - quotient * self.divisor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every small pair, and around every multiple that could be off by one: beside powers of two, at both ends.
    #[test]
    fn quotients_are_those_of_the_division_instruction() {
        let around = |n: usize| n.saturating_sub(2)..=n.saturating_add(2);
        let ends: Vec<usize> = (0..=BITS).flat_map(|bits| around(1 << bits)).filter(|&n| n <= 1 << BITS).collect();
        let most = (1 << BITS) - 1;
        let check = |n: usize, divisor: usize| {
            assert_eq!(Divisor::new(divisor).divide(n), (n / divisor, n % divisor), "{n} / {divisor}");
        };
        for divisor in 1..200 {
            (0..2000).for_each(|n| check(n, divisor));
        }
        for &divisor in ends.iter().chain(&[3 << 40, 5 << 30, 32_767, 1_000_003]).filter(|&&divisor| divisor > 0) {
            ends.iter().filter(|&&n| n <= most).for_each(|&n| check(n, divisor));
            for multiple in [1, 2, 3, most / divisor / 2, most / divisor] {
                around(multiple.saturating_mul(divisor)).filter(|&n| n <= most).for_each(|n| check(n, divisor));
            }
        }
    }
}
