//! Blocked dense LU factorisation, the kernel of SPLASH-2 (Woo et al., ISCA 1995). Contiguous blocks are distributed
//! over a 2-D grid of ranks: a global array in tiles. A rank gets blocks of other ranks under a passive-target lock,
//! while their owner continues to compute.

mod block;

use block::{Inverses, factor, subtract_product};
use clap::Parser;
use std::error::Error;
use std::ops::Range;
use std::process::ExitCode;
use std::time::Instant;
use transom::array::Tile;
use transom::{Counters, Distribution, GlobalArray, Op, Rank, World};

/// Factors a dense n x n matrix as L U, without pivoting, and checks the result.
///
/// Prints time, speed, the residual max|A - LU| / (max|A| n eps), and the numbers of remote operations. Exits with an
/// error if the residual exceeds 10.
#[derive(Parser)]
#[command(after_help = "Examples:\n  cargo run --release --example lu -- --ranks 4 -n 1024\n  \
                        cargo run --release --example lu -- --ranks 2 -n 1000 --block 32\n\n\
                        The matrix is random with a dominant diagonal, so that it needs no pivoting.")]
struct Args {
    /// Number of ranks to start; may exceed the number of cores
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=32767))]
    ranks: u16,
    /// Number of rows and of columns of the matrix
    #[arg(short, default_value_t = 1024, value_parser = at_least_one, allow_negative_numbers = true)]
    n: usize,
    /// Rows and columns of a block, the unit of ownership and of transfer
    #[arg(long, default_value_t = 16, value_parser = at_least_one, allow_negative_numbers = true)]
    block: usize,
}

fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err("expected a whole number of at least 1".into()),
        Ok(number) => Ok(number),
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    if args.block > args.n {
        eprintln!(
            "lu: a block of {0} x {0} is larger than the matrix, {1} x {1}; use --block {1} or less",
            args.block, args.n
        );
        return ExitCode::from(2);
    }
    match run(&args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("lu: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<bool, Box<dyn Error>> {
    let world = transom::start(args.ranks.into())?;
    let mut matrix = Matrix::new(&world, args.n, args.block)?;
    matrix.fill()?;

    matrix.array.fence()?;
    let (before, begun) = (matrix.array.window().counters(), Instant::now());
    matrix.factor()?;
    matrix.array.fence()?;
    let (seconds, operations) = (begun.elapsed().as_secs_f64(), matrix.array.window().counters() - before);

    let mut worst = <[f64; 2]>::from(matrix.residual()?);
    world.all_reduce(&mut worst, Op::Max)?;
    let [residual, largest] = worst;
    let residual = residual / (largest * args.n as f64 * f64::EPSILON);
    let Counters { gets, puts, locks, word_cas, word_adds, notifications, .. } = operations;
    let mut operations = [gets, puts, locks, word_cas, word_adds, notifications];
    world.all_reduce(&mut operations, Op::Sum)?;
    if world.rank() == 0 {
        report(args, matrix.array.layout().grid(), seconds, residual, operations);
    }
    Ok(residual <= 10.0)
}

/// The matrix, in blocks of `size` x `size`. The last block row and column may exceed n and are padded with the
/// identity.
struct Matrix {
    n: usize,
    size: usize,
    blocks: usize,
    rank: Rank,
    /// Finished blocks, for other ranks to get.
    array: GlobalArray<f64, 2>,
    /// Working copy of this rank's blocks, in the order of the array.
    mine: Vec<f64>,
}

impl Matrix {
    fn new(world: &World, n: usize, size: usize) -> Result<Self, transom::Error> {
        let blocks = n.div_ceil(size);
        let array = world.array([blocks.saturating_mul(size); 2], Distribution::BlockCyclic([size; 2]))?;
        let mine = vec![0.0; array.layout().part_len(world.rank())];
        Ok(Matrix { n, size, blocks, rank: world.rank(), array, mine })
    }

    fn tile(&self, row: usize, column: usize) -> Tile<2> {
        self.array.layout().tile([row, column]).expect("a block of the matrix")
    }

    fn is_mine(&self, row: usize, column: usize) -> bool {
        self.tile(row, column).owner == self.rank
    }

    /// Range of this rank's block in `mine`.
    fn place(&self, row: usize, column: usize) -> Range<usize> {
        let begin = self.tile(row, column).offset;
        begin..begin + self.size * self.size
    }

    /// Publishes this rank's finished block to the other ranks.
    fn publish(&self, row: usize, column: usize) -> Result<(), transom::Error> {
        self.array.local().put_tile([row, column], &self.mine[self.place(row, column)])
    }

    /// Copies a finished block, with a get if another rank owns it; the owner takes no part.
    fn fetch(&mut self, row: usize, column: usize, into: &mut [f64]) -> Result<(), transom::Error> {
        let tile = self.tile(row, column);
        if tile.owner == self.rank {
            into.copy_from_slice(&self.mine[self.place(row, column)]);
            return Ok(());
        }
        let epoch = self.array.lock_shared(tile.owner)?;
        epoch.get_tile(tile.index, into)?;
        epoch.unlock()
    }

    /// A block of the matrix before the factorisation.
    fn original(&self, row: usize, column: usize) -> Vec<f64> {
        let (n, size) = (self.n, self.size);
        (0..size * size).map(|at| element(n, row * size + at / size, column * size + at % size)).collect()
    }

    fn fill(&mut self) -> Result<(), transom::Error> {
        for tile in self.array.layout().tiles_of(self.rank) {
            let [row, column] = tile.index;
            let (place, block) = (self.place(row, column), self.original(row, column));
            self.mine[place].copy_from_slice(&block);
            // Touches the array's memory now, so that page faults are not measured.
            self.publish(row, column)?;
        }
        Ok(())
    }

    /// This rank's block rows from `from` on.
    fn rows(&self, from: usize) -> impl Iterator<Item = usize> + use<> {
        self.along(0, from)
    }

    /// This rank's block columns from `from` on.
    fn columns(&self, from: usize) -> impl Iterator<Item = usize> + use<> {
        self.along(1, from)
    }

    fn along(&self, dimension: usize, from: usize) -> impl Iterator<Item = usize> + use<> {
        let of = self.array.layout().grid()[dimension];
        let mine = self.array.layout().coordinates(self.rank).map(|place| place[dimension]);
        (from..self.blocks).filter(move |block| Some(block % of) == mine)
    }

    fn factor(&mut self) -> Result<(), transom::Error> {
        let (size, area) = (self.size, self.size * self.size);
        let mut left = vec![0.0; area];
        let mut upper: Vec<_> = self.columns(0).map(|_| vec![0.0; area]).collect();
        let mut inverses = Inverses::new(size);
        for step in 0..self.blocks {
            if self.is_mine(step, step) {
                let place = self.place(step, step);
                factor(size, &mut self.mine[place]);
                self.publish(step, step)?;
            }
            self.array.fence()?;

            self.perimeter(step, &mut left, &mut inverses)?;
            self.array.fence()?;

            // Gets the blocks of the pivot row once for all rows of this rank.
            let Some(first) = self.columns(step + 1).next() else { continue };
            for (upper, column) in upper.iter_mut().zip(self.columns(step + 1)) {
                self.fetch(step, column, upper)?;
            }
            let columns = self.columns(step + 1).count();
            for row in self.rows(step + 1) {
                self.fetch(row, step, &mut left)?;
                // This rank's blocks of a row are contiguous.
                let begin = self.place(row, first).start;
                let blocks = self.mine[begin..][..columns * area].chunks_exact_mut(area);
                for (block, upper) in blocks.zip(&upper) {
                    subtract_product(size, block, &left, upper);
                }
            }
        }
        Ok(())
    }

    /// Solves this rank's blocks below and to the right of the factored diagonal block of a step.
    fn perimeter(&mut self, step: usize, diagonal: &mut [f64], inverses: &mut Inverses) -> Result<(), transom::Error> {
        let (next, size) = (step + 1, self.blocks);
        let below = (next..size).map(|row| (row, step)).filter(|&(row, column)| self.is_mine(row, column));
        let right = (next..size).map(|column| (step, column)).filter(|&(row, column)| self.is_mine(row, column));
        let (below, right): (Vec<_>, Vec<_>) = (below.collect(), right.collect());
        if below.len() + right.len() == 0 {
            return Ok(());
        }
        self.fetch(step, step, diagonal)?;
        inverses.invert(diagonal);
        for (row, column) in below {
            let place = self.place(row, column);
            inverses.solve_upper(&mut self.mine[place]);
            self.publish(row, column)?;
        }
        for (row, column) in right {
            let place = self.place(row, column);
            inverses.solve_lower(&mut self.mine[place]);
            self.publish(row, column)?;
        }
        Ok(())
    }

    /// The largest |A - LU| and the largest |A| in this rank's blocks.
    fn residual(&mut self) -> Result<(f64, f64), transom::Error> {
        let size = self.size;
        let (mut lower, mut upper) = (vec![0.0; size * size], vec![0.0; size * size]);
        let (mut residual, mut most) = (0.0, 0.0);
        for tile in self.array.layout().tiles_of(self.rank) {
            let [row, column] = tile.index;
            let mut rest = self.original(row, column);
            most = largest(&rest, most);
            for step in 0..=row.min(column) {
                self.fetch(row, step, &mut lower)?;
                self.fetch(step, column, &mut upper)?;
                if step == row {
                    keep(size, &mut lower, |i, j, x| if i > j { x } else { f64::from(i == j) });
                }
                if step == column {
                    keep(size, &mut upper, |i, j, x| if i <= j { x } else { 0.0 });
                }
                subtract_product(size, &mut rest, &lower, &upper);
            }
            residual = largest(&rest, residual);
        }
        Ok((residual, most))
    }
}

/// The largest absolute value, at least `least`; infinite if an element is NaN.
fn largest(block: &[f64], least: f64) -> f64 {
    block.iter().fold(least, |most, x| if x.is_nan() { f64::INFINITY } else { most.max(x.abs()) })
}

/// Replaces each element by `element(row, column, value)`.
fn keep(size: usize, block: &mut [f64], element: impl Fn(usize, usize, f64) -> f64) {
    for (at, x) in block.iter_mut().enumerate() {
        *x = element(at / size, at % size, *x);
    }
}

/// Element of the matrix to be factored, a hash of its indices.
fn element(n: usize, row: usize, column: usize) -> f64 {
    if row >= n || column >= n {
        return f64::from(row == column);
    }
    let mut hash = (row as u64) << 32 | column as u64;
    for _ in 0..2 {
        hash = (hash ^ hash >> 31).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
    let random = (hash >> 11) as f64 / (1u64 << 52) as f64 - 1.0;
    if row == column { n as f64 + 1.0 + random } else { random }
}

fn report(args: &Args, [rows, columns]: [usize; 2], seconds: f64, residual: f64, operations: [u64; 6]) {
    let n = args.n as f64;
    let verdict = if residual <= 10.0 { "good: at most 10" } else { "BAD: more than 10" };
    println!("LU of {n} x {n} in blocks of {0} x {0}, {1} ranks as {rows} x {columns}", args.block, rows * columns);
    println!("  time      {seconds:.4} s");
    println!("  speed     {:.2} GFLOP/s", 2.0 / 3.0 * n * n * n / seconds / 1e9);
    println!("  residual  {residual:.3} ({verdict})");
    let [gets, puts, locks, cas, adds, posts] = operations;
    println!("  of all ranks: {gets} gets, {puts} puts, {locks} locks");
    println!(
        "  to synchronise: {} atomics ({cas} compare-and-swaps, {adds} fetch-and-adds), {posts} posts",
        cas + adds
    );
}
