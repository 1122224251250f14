//! LU's operations on square blocks. A block is a slice of `size` x `size` numbers in row-major order.

/// Factors a block in place: L (its unit diagonal is not stored) below, U on and above the diagonal.
pub fn factor(size: usize, block: &mut [f64]) {
    for k in 0..size {
        let (above, below) = block.split_at_mut((k + 1) * size);
        let pivots = &above[k * size..];
        for row in below.chunks_exact_mut(size) {
            row[k] /= pivots[k];
            let factor = row[k];
            subtract_scaled(&mut row[k + 1..], factor, &pivots[k + 1..]);
        }
    }
}

/// The negative inverses of a factored diagonal block's L and U. With them blocks are solved by the fast kernel
/// [`subtract_product`] alone.
pub struct Inverses {
    size: usize,
    lower: Vec<f64>,
    upper: Vec<f64>,
    /// Copy of the block that is being solved.
    old: Vec<f64>,
}

impl Inverses {
    pub fn new(size: usize) -> Self {
        let [lower, upper, old] = [(); 3].map(|()| vec![0.0; size * size]);
        Inverses { size, lower, upper, old }
    }

    /// Computes the inverses of a diagonal block's factors.
    pub fn invert(&mut self, diagonal: &[f64]) {
        let size = self.size;
        for inverse in [&mut self.lower, &mut self.upper] {
            inverse.fill(0.0);
            inverse.iter_mut().step_by(size + 1).for_each(|x| *x = -1.0);
        }
        for i in 1..size {
            let (above, row) = self.lower.split_at_mut(i * size);
            for (k, solved) in above.chunks_exact(size).enumerate() {
                subtract_scaled(&mut row[..size], diagonal[i * size + k], solved);
            }
        }
        for (i, row) in self.upper.chunks_exact_mut(size).enumerate() {
            // The part left of the diagonal stays 0.
            for (k, pivots) in diagonal.chunks_exact(size).enumerate().skip(i) {
                row[k] /= pivots[k];
                let factor = row[k];
                subtract_scaled(&mut row[k + 1..], factor, &pivots[k + 1..]);
            }
        }
    }

    /// Replaces a block by inverse(L) times the block.
    pub fn solve_lower(&mut self, block: &mut [f64]) {
        self.set_aside(block);
        subtract_product(self.size, block, &self.lower, &self.old);
    }

    /// Replaces a block by the block times inverse(U).
    pub fn solve_upper(&mut self, block: &mut [f64]) {
        self.set_aside(block);
        subtract_product(self.size, block, &self.old, &self.upper);
    }

    fn set_aside(&mut self, block: &mut [f64]) {
        self.old.copy_from_slice(block);
        block.fill(0.0);
    }
}

/// Subtracts `a` times `b` from `c`. Nearly all of LU's time is spent here.
pub fn subtract_product(size: usize, c: &mut [f64], a: &[f64], b: &[f64]) {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f") {
            // SAFETY: the processor has the features that the function was compiled for.
            return unsafe { subtract_product_avx512(size, c, a, b) };
        }
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            // SAFETY: the processor has the features that the function was compiled for.
            return unsafe { subtract_product_avx2(size, c, a, b) };
        }
    }
    tiled::<false, 4, 4>(size, c, a, b);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn subtract_product_avx512(size: usize, c: &mut [f64], a: &[f64], b: &[f64]) {
    tiled::<true, 8, 16>(size, c, a, b);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn subtract_product_avx2(size: usize, c: &mut [f64], a: &[f64], b: &[f64]) {
    tiled::<true, 4, 8>(size, c, a, b);
}

/// Calls `tiles`. For blocks of the usual sizes it calls variants with a constant size, which need no index checks and
/// are twice as fast.
#[inline(always)]
fn tiled<const FUSED: bool, const ROWS: usize, const COLUMNS: usize>(size: usize, c: &mut [f64], a: &[f64], b: &[f64]) {
    match size {
        16 => tiles::<FUSED, ROWS, COLUMNS>(16, &mut c[..16 * 16], &a[..16 * 16], &b[..16 * 16]),
        32 => tiles::<FUSED, ROWS, COLUMNS>(32, &mut c[..32 * 32], &a[..32 * 32], &b[..32 * 32]),
        _ => tiles::<FUSED, ROWS, COLUMNS>(size, c, a, b),
    }
}

/// Multiplies by tiles of ROWS x COLUMNS numbers of `c`, which stay in registers during a loop over the columns of `a`
/// and rows of `b`.
#[inline(always)]
fn tiles<const FUSED: bool, const ROWS: usize, const COLUMNS: usize>(size: usize, c: &mut [f64], a: &[f64], b: &[f64]) {
    let (whole_rows, whole_columns) = (size - size % ROWS, size - size % COLUMNS);
    for i in (0..whole_rows).step_by(ROWS) {
        for j in (0..whole_columns).step_by(COLUMNS) {
            let mut tile = [[0.0; COLUMNS]; ROWS];
            for k in 0..size {
                let row: &[f64; COLUMNS] = b[k * size + j..][..COLUMNS].try_into().expect("a row of the tile");
                for (sums, i) in tile.iter_mut().zip(i..) {
                    let factor = a[i * size + k];
                    for (sum, x) in sums.iter_mut().zip(row) {
                        *sum = if FUSED { factor.mul_add(*x, *sum) } else { factor * x + *sum };
                    }
                }
            }
            for (sums, i) in tile.iter().zip(i..) {
                for (x, sum) in c[i * size + j..][..COLUMNS].iter_mut().zip(sums) {
                    *x -= sum;
                }
            }
        }
    }
    // The part outside whole tiles: the columns to the right of the whole rows, then the rows below.
    for i in 0..size {
        let from = if i < whole_rows { whole_columns } else { 0 };
        for k in 0..size {
            let (row, other) = (&mut c[i * size + from..(i + 1) * size], &b[k * size + from..(k + 1) * size]);
            subtract_scaled(row, a[i * size + k], other);
        }
    }
}

fn subtract_scaled(row: &mut [f64], factor: f64, other: &[f64]) {
    for (x, y) in row.iter_mut().zip(other) {
        *x -= factor * y;
    }
}
