//! A square block, row by row, and what LU does with it.

/// A block of `size` x `size` numbers.
pub struct Block {
    size: usize,
    elements: Vec<f64>,
}

/// The inverses of a diagonal block's factors, negative, so that what they multiply can be subtracted: a block is solved by
/// the one fast kernel there is.
pub struct Inverses {
    lower: Block,
    upper: Block,
    /// What the block was that is being solved.
    old: Block,
}

impl Block {
    pub fn new(size: usize) -> Self {
        Block { size, elements: vec![0.0; size * size] }
    }

    pub fn elements(&self) -> &[f64] {
        &self.elements
    }

    pub fn elements_mut(&mut self) -> &mut [f64] {
        &mut self.elements
    }

    pub fn fill(&mut self, element: impl Fn(usize, usize) -> f64) {
        let size = self.size;
        for (at, x) in self.elements.iter_mut().enumerate() {
            *x = element(at / size, at % size);
        }
    }

    /// Factors itself: L (with ones on its diagonal, not stored) below, U on and above the diagonal.
    pub fn factor(&mut self) {
        for k in 0..self.size {
            let (above, below) = self.elements.split_at_mut((k + 1) * self.size);
            let pivots = &above[k * self.size..];
            for row in below.chunks_exact_mut(self.size) {
                row[k] /= pivots[k];
                let factor = row[k];
                subtract_scaled(&mut row[k + 1..], factor, &pivots[k + 1..]);
            }
        }
    }

    /// What [`solve_lower`](Self::solve_lower) and [`solve_upper`](Self::solve_upper) need of this block, once it is
    /// factored.
    pub fn inverses(&self) -> Inverses {
        let minus_one = |i, j| if i == j { -1.0 } else { 0.0 };
        let [mut lower, mut upper] = [(); 2].map(|()| Block::new(self.size));
        lower.fill(minus_one);
        for i in 1..self.size {
            let (above, row) = lower.elements.split_at_mut(i * self.size);
            for (k, solved) in above.chunks_exact(self.size).enumerate() {
                subtract_scaled(&mut row[..self.size], self.elements[i * self.size + k], solved);
            }
        }
        upper.fill(minus_one);
        for row in upper.elements.chunks_exact_mut(self.size) {
            for (k, pivots) in self.elements.chunks_exact(self.size).enumerate() {
                row[k] /= pivots[k];
                let factor = row[k];
                subtract_scaled(&mut row[k + 1..], factor, &pivots[k + 1..]);
            }
        }
        Inverses { lower, upper, old: Block::new(self.size) }
    }

    /// Becomes inverse(L) times itself, L from a factored diagonal block.
    pub fn solve_lower(&mut self, diagonal: &mut Inverses) {
        self.set_aside(&mut diagonal.old);
        self.subtract_product(&diagonal.lower, &diagonal.old);
    }

    /// Becomes itself times inverse(U), U from a factored diagonal block.
    pub fn solve_upper(&mut self, diagonal: &mut Inverses) {
        self.set_aside(&mut diagonal.old);
        self.subtract_product(&diagonal.old, &diagonal.upper);
    }

    fn set_aside(&mut self, old: &mut Block) {
        std::mem::swap(&mut self.elements, &mut old.elements);
        self.elements.fill(0.0);
    }

    /// Subtracts `left` times `right`: where nearly all of the time goes.
    pub fn subtract_product(&mut self, left: &Block, right: &Block) {
        let (size, c, a, b) = (self.size, &mut self.elements[..], &left.elements[..], &right.elements[..]);
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512f") {
                // SAFETY: the processor has what the function was compiled for.
                return unsafe { subtract_product_avx512(size, c, a, b) };
            }
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                // SAFETY: as above.
                return unsafe { subtract_product_avx2(size, c, a, b) };
            }
        }
        tiles::<false>(size, c, a, b);
    }

    /// The largest absolute value, or `least` if that is larger; infinite if any is not a number.
    pub fn largest(&self, least: f64) -> f64 {
        self.elements.iter().fold(least, |most, x| if x.is_nan() { f64::INFINITY } else { most.max(x.abs()) })
    }

    pub fn keep_unit_lower(&mut self) {
        self.keep(|i, j, x| if i > j { x } else { f64::from(i == j) });
    }

    pub fn keep_upper(&mut self) {
        self.keep(|i, j, x| if i <= j { x } else { 0.0 });
    }

    fn keep(&mut self, element: impl Fn(usize, usize, f64) -> f64) {
        let size = self.size;
        for (at, x) in self.elements.iter_mut().enumerate() {
            *x = element(at / size, at % size, *x);
        }
    }
}

fn subtract_scaled(row: &mut [f64], factor: f64, other: &[f64]) {
    for (x, y) in row.iter_mut().zip(other) {
        *x -= factor * y;
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn subtract_product_avx512(size: usize, c: &mut [f64], a: &[f64], b: &[f64]) {
    tiled::<true>(size, c, a, b);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn subtract_product_avx2(size: usize, c: &mut [f64], a: &[f64], b: &[f64]) {
    tiled::<true>(size, c, a, b);
}

/// Rows and columns of a tile of `c` that stays in registers while a row of `a` meets a column of `b`.
const ROWS: usize = 8;
const COLUMNS: usize = 16;

/// `tiles`; for blocks of the usual sizes, copies of it that know theirs and so check no index: twice as fast.
#[inline(always)]
fn tiled<const FUSED: bool>(size: usize, c: &mut [f64], a: &[f64], b: &[f64]) {
    match size {
        16 => tiles::<FUSED>(16, &mut c[..16 * 16], &a[..16 * 16], &b[..16 * 16]),
        32 => tiles::<FUSED>(32, &mut c[..32 * 32], &a[..32 * 32], &b[..32 * 32]),
        _ => tiles::<FUSED>(size, c, a, b),
    }
}

#[inline(always)]
fn tiles<const FUSED: bool>(size: usize, c: &mut [f64], a: &[f64], b: &[f64]) {
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
    // What tiles do not cover: columns on the right of the whole rows, then the rows below.
    for i in 0..size {
        let from = if i < whole_rows { whole_columns } else { 0 };
        for k in 0..size {
            let (row, other) = (&mut c[i * size + from..(i + 1) * size], &b[k * size + from..(k + 1) * size]);
            subtract_scaled(row, a[i * size + k], other);
        }
    }
}
