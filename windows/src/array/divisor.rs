//! Division by a number that is known long before the dividend.

/// A divisor, prepared so that dividing by it takes a multiplication and no division instruction, which would take longer
/// than the rest of finding an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Divisor {
    divisor: usize,
    /// 2^63 / divisor, rounded up; or 0 if the dividends are too great for that, and the instruction divides.
    factor: u64,
}

impl Divisor {
    /// For dividends up to `most`. `divisor` is 1 or more; both are below 2^63.
    ///
    /// That `factor` is rounded up makes `n * factor / 2^63` greater than `n / divisor` by less than `n / 2^63`. As long as
    /// `n * divisor <= 2^63` this is less than `1 / divisor`, and so does not reach the next whole number.
    pub fn new(divisor: usize, most: usize) -> Self {
        let is_exact = most as u128 * divisor as u128 <= 1 << 63;
        Divisor { divisor, factor: if is_exact { (1u64 << 63).div_ceil(divisor as u64) } else { 0 } }
    }

    /// The number to divide by.
    #[inline(always)]
    pub fn get(self) -> usize {
        self.divisor
    }

    /// Whether [`divide_at_once`](Self::divide_at_once) may be called.
    pub fn is_exact(self) -> bool {
        self.factor != 0
    }

    /// As [`divide`](Self::divide), if the divisor [is exact](Self::is_exact).
    #[inline(always)]
    pub fn divide_at_once(self, n: usize) -> (usize, usize) {
        let quotient = ((u128::from(2 * n as u64) * u128::from(self.factor)) >> 64) as usize;
        (quotient, n - quotient * self.divisor)
    }

    /// The quotient and the remainder of `n`, which is at most the `most` of [`new`](Self::new).
    #[inline(always)]
    pub fn divide(self, n: usize) -> (usize, usize) {
        if self.is_exact() { self.divide_at_once(n) } else { (n / self.divisor, n % self.divisor) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every small pair; and, where being off by one would show, beside powers of two and multiples, with the greatest
    /// dividend as small as it may be, and as great as the factor allows.
    #[test]
    fn quotients_are_those_of_the_division_instruction() {
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
