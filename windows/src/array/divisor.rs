//! Division by a number that is known long before the dividend.

/// A divisor prepared so that a division takes a multiplication. A division instruction would take longer than all the
/// rest of finding an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Divisor {
    divisor: usize,
    /// 2^63 / divisor, rounded up; 0 if the dividends are too large for that, and the division instruction is used.
    factor: u64,
}

impl Divisor {
    /// Prepares `divisor` for dividends up to `most`. `divisor` is at least 1; both are below 2^63.
    ///
    /// `n * factor / 2^63` exceeds `n / divisor` by less than `n / 2^63`, since `factor` is rounded up. While `n *
    /// divisor <= 2^63`, this is less than `1 / divisor`, and so does not reach the next integer.
    pub fn new(divisor: usize, most: usize) -> Self {
        let is_exact = most as u128 * divisor as u128 <= 1 << 63;
        Divisor { divisor, factor: if is_exact { (1u64 << 63).div_ceil(divisor as u64) } else { 0 } }
    }

    /// The divisor.
    #[inline(always)]
    pub fn get(self) -> usize {
        self.divisor
    }

    /// True if [`divide_at_once`](Self::divide_at_once) may be called.
    pub fn is_exact(self) -> bool {
        self.factor != 0
    }

    /// [`divide`](Self::divide) for a divisor that [is exact](Self::is_exact).
    #[inline(always)]
    pub fn divide_at_once(self, n: usize) -> (usize, usize) {
        let quotient = ((u128::from(2 * n as u64) * u128::from(self.factor)) >> 64) as usize;
        (quotient, n - quotient * self.divisor)
    }

    /// The quotient and the remainder of `n`, which must not exceed the `most` of [`new`](Self::new).
    #[inline(always)]
    pub fn divide(self, n: usize) -> (usize, usize) {
        if self.is_exact() { self.divide_at_once(n) } else { (n / self.divisor, n % self.divisor) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks every small pair, and values beside powers of two and multiples, where an error by one would show. The
    /// largest dividend is as small as possible, or as large as the factor allows.
    #[test]
    fn quotient_equals_division_instruction() {
        let check = |n: usize, divisor: usize| {
            for most in [n, (1usize << 63) / divisor, (1 << 63) - 1].into_iter().filter(|&most| most >= n) {
                let quotient = Divisor::new(divisor, most).divide(n);
                assert_eq!(quotient, (n / divisor, n % divisor), "{n} / {divisor}, up to {most}");
            }
        };
        let small = if cfg!(miri) { 20 } else { 300 };
        for divisor in 1..small {
            (0..10 * small).for_each(|n| check(n, divisor));
        }
        let beside = |n: usize| n.saturating_sub(2)..=n.saturating_add(2);
        let powers = || (0..63).flat_map(|bits| beside(1 << bits));
        for divisor in powers().chain([3 << 40, 5 << 30, 32_767, 1_000_003]).filter(|&divisor| divisor > 0) {
            let most = (1usize << 63) / divisor;
            let multiples = [1, 2, 3, most / divisor / 2, most / divisor].map(|by: usize| by.saturating_mul(divisor));
            let dividends = powers().chain(multiples.into_iter().flat_map(beside)).chain(beside(most));
            dividends.filter(|&n| n < 1 << 63).for_each(|n| check(n, divisor));
        }
    }
}
