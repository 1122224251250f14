//! Blocked dense LU factorisation, the kernel of SPLASH-2 (Woo et al., ISCA 1995): contiguous blocks, dealt to a 2-D
//! grid of ranks, which is a global array in tiles. What others own is fetched by get under the passive lock, while
//! the owner goes on computing.

mod block;

use block::Block;
use clap::Parser;
use std::error::Error;
use std::process::ExitCode;
use std::time::Instant;
use transom::{ArrayError, Counters, Distribution, GlobalArray, Op, Rank, World};

/// Factors a dense n x n matrix as L U, without pivoting, and checks the result.
///
/// Prints time, speed, the residual max|A - LU| / (max|A| n eps), and the remote operations that it took. Exits with
/// an error if the residual exceeds 10.
#[derive(Parser)]
#[command(after_help = "Examples:\n  cargo run --release --example lu -- --ranks 4 -n 1024\n  \
                        cargo run --release --example lu -- --ranks 2 -n 1000 --block 32\n\n\
                        The matrix is random with a dominant diagonal, so that it needs no pivoting.")]
struct Args {
    /// How many ranks to start; more than there are cores work too
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=32767))]
    ranks: u16,
    /// Rows and columns of the matrix
    #[arg(short, default_value_t = 1024, value_parser = at_least_one, allow_negative_numbers = true)]
    n: usize,
    /// Rows and columns of a block, the unit of ownership and of transfer
    #[arg(long, default_value_t = 16, value_parser = at_least_one, allow_negative_numbers = true)]
    block: usize,
}

fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err("a whole number from 1 on is expected".into()),
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

    let (residual, largest) = matrix.residual()?;
    let [residual, largest] = combine(&world, Op::Max, [residual, largest])?;
    let residual = residual / (largest * args.n as f64 * f64::EPSILON);
    let Counters { gets, puts, locks, word_cas, word_adds, word_posts, .. } = operations;
    let mine = [gets, puts, locks, word_cas, word_adds, word_posts].map(|count| count as f64);
    let operations = combine(&world, Op::Sum, mine)?;
    if world.rank() == 0 {
        report(args, matrix.array.layout().grid(), seconds, residual, operations);
    }
    Ok(residual <= 10.0)
}

/// The matrix, in blocks of `size` x `size`; the last may reach past n, and are padded with the identity.
struct Matrix {
    n: usize,
    size: usize,
    blocks: usize,
    rank: Rank,
    array: GlobalArray<f64, 2>,
}

impl Matrix {
    fn new(world: &World, n: usize, size: usize) -> Result<Self, ArrayError> {
        let blocks = n.div_ceil(size);
        let array = world.array([blocks.saturating_mul(size); 2], Distribution::BlockCyclic([size; 2]))?;
        Ok(Matrix { n, size, blocks, rank: world.rank(), array })
    }

    fn load(&self, row: usize, column: usize, into: &mut Block) -> Result<(), ArrayError> {
        self.array.local().get_tile([row, column], into.elements_mut())
    }

    fn store(&self, row: usize, column: usize, block: &Block) -> Result<(), ArrayError> {
        self.array.local().put_tile([row, column], block.elements())
    }

    /// Copies a block here: one's own by load, another's by get, which that rank need not notice.
    fn fetch(&mut self, row: usize, column: usize, into: &mut Block) -> Result<(), ArrayError> {
        match self.array.layout().tile([row, column]) {
            Some(tile) if tile.owner != self.rank => {
                let epoch = self.array.lock_shared(tile.owner)?;
                epoch.get_tile(tile.index, into.elements_mut())?;
                epoch.unlock()
            }
            _ => self.load(row, column, into),
        }
    }

    /// A block as it is before the factorisation.
    fn original(&self, row: usize, column: usize, into: &mut Block) {
        into.fill(|i, j| element(self.n, row * self.size + i, column * self.size + j));
    }

    fn fill(&self) -> Result<(), ArrayError> {
        let mut block = Block::new(self.size);
        for tile in self.array.layout().tiles_of(self.rank) {
            let [row, column] = tile.index;
            self.original(row, column, &mut block);
            self.store(row, column, &block)?;
        }
        Ok(())
    }

    /// My rows of blocks from `from` on.
    fn rows(&self, from: usize) -> impl Iterator<Item = usize> + use<> {
        self.along(0, from)
    }

    /// My columns of blocks from `from` on.
    fn columns(&self, from: usize) -> impl Iterator<Item = usize> + use<> {
        self.along(1, from)
    }

    fn along(&self, dimension: usize, from: usize) -> impl Iterator<Item = usize> + use<> {
        let of = self.array.layout().grid()[dimension];
        let mine = self.array.layout().coordinates(self.rank).map(|place| place[dimension]);
        (from..self.blocks).filter(move |block| Some(block % of) == mine)
    }

    fn is_mine(&self, row: usize, column: usize) -> bool {
        self.array.layout().tile([row, column]).is_some_and(|tile| tile.owner == self.rank)
    }

    fn factor(&mut self) -> Result<(), ArrayError> {
        let size = self.size;
        let (mut diagonal, mut block) = (Block::new(size), Block::new(size));
        let mut left = Block::new(size);
        let mut upper: Vec<_> = self.columns(0).map(|_| Block::new(size)).collect();
        for step in 0..self.blocks {
            if self.is_mine(step, step) {
                self.load(step, step, &mut diagonal)?;
                diagonal.factor();
                self.store(step, step, &diagonal)?;
            }
            self.array.fence()?;

            self.perimeter(step, &mut diagonal, &mut block)?;
            self.array.fence()?;

            // The pivot row's blocks serve all my rows, so they are fetched once.
            let columns: Vec<_> = self.columns(step + 1).collect();
            for (at, &column) in columns.iter().enumerate() {
                self.fetch(step, column, &mut upper[at])?;
            }
            for row in self.rows(step + 1) {
                self.fetch(row, step, &mut left)?;
                for (at, &column) in columns.iter().enumerate() {
                    self.load(row, column, &mut block)?;
                    block.subtract_product(&left, &upper[at]);
                    self.store(row, column, &block)?;
                }
            }
        }
        Ok(())
    }

    /// Solves my blocks below and to the right of the factored diagonal block of a step.
    fn perimeter(&mut self, step: usize, diagonal: &mut Block, block: &mut Block) -> Result<(), ArrayError> {
        let (next, size) = (step + 1, self.blocks);
        let below = (next..size).map(|row| (row, step)).filter(|&(row, column)| self.is_mine(row, column));
        let right = (next..size).map(|column| (step, column)).filter(|&(row, column)| self.is_mine(row, column));
        let (below, right): (Vec<_>, Vec<_>) = (below.collect(), right.collect());
        if below.len() + right.len() == 0 {
            return Ok(());
        }
        self.fetch(step, step, diagonal)?;
        let mut diagonal = diagonal.inverses();
        for (row, column) in below {
            self.load(row, column, block)?;
            block.solve_upper(&mut diagonal);
            self.store(row, column, block)?;
        }
        for (row, column) in right {
            self.load(row, column, block)?;
            block.solve_lower(&mut diagonal);
            self.store(row, column, block)?;
        }
        Ok(())
    }

    /// The largest |A - LU| and the largest |A| among my blocks.
    fn residual(&mut self) -> Result<(f64, f64), ArrayError> {
        let size = self.size;
        let (mut lower, mut upper, mut rest) = (Block::new(size), Block::new(size), Block::new(size));
        let (mut residual, mut largest) = (0.0, 0.0);
        for tile in self.array.layout().tiles_of(self.rank) {
            let [row, column] = tile.index;
            self.original(row, column, &mut rest);
            largest = rest.largest(largest);
            for step in 0..=row.min(column) {
                self.fetch(row, step, &mut lower)?;
                self.fetch(step, column, &mut upper)?;
                if step == row {
                    lower.keep_unit_lower();
                }
                if step == column {
                    upper.keep_upper();
                }
                rest.subtract_product(&lower, &upper);
            }
            residual = rest.largest(residual);
        }
        Ok((residual, largest))
    }
}

/// An element of the matrix to be factored, from a hash of its place.
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

/// Combines what every rank found.
fn combine<const N: usize>(world: &World, op: Op, mine: [f64; N]) -> Result<[f64; N], ArrayError> {
    let mut combined = world.array([N], Distribution::Block)?;
    combined.lock_all()?.accumulate(0..N, op, &mine)?;
    let mut all = [0.0; N];
    combined.fence()?.get(0..N, &mut all)?;
    Ok(all)
}

fn report(args: &Args, [rows, columns]: [usize; 2], seconds: f64, residual: f64, operations: [f64; 6]) {
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
