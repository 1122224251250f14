//! The random numbers of NPB: x' = 5^13 x mod 2^46, divided by 2^46.

const MULTIPLIER: u64 = 1_220_703_125;
const MASK: u64 = (1 << 46) - 1;

/// The sequence of random numbers of a seed. Each rank starts at its own position in the same sequence.
pub struct Random(u64);

impl Random {
    /// Seed of all kernels but EP.
    pub const SEED: u64 = 314_159_265;

    /// Returns the sequence after `position` numbers.
    pub fn at(seed: u64, position: u64) -> Self {
        let (mut state, mut power, mut left) = (seed, MULTIPLIER, position);
        while left > 0 {
            if left & 1 == 1 {
                state = multiply(state, power);
            }
            power = multiply(power, power);
            left >>= 1;
        }
        Random(state)
    }

    /// Returns the next number, above 0 and below 1.
    pub fn next(&mut self) -> f64 {
        self.0 = multiply(self.0, MULTIPLIER);
        const SCALE: f64 = 1.0 / (1_u64 << 46) as f64;
        // A signed number becomes a double by one instruction of x86-64.
        self.0 as i64 as f64 * SCALE
    }
}

/// The product mod 2^46. The product mod 2^64 has the same low bits.
fn multiply(a: u64, b: u64) -> u64 {
    a.wrapping_mul(b) & MASK
}
