//! Blocked dense LU factorisation, the kernel of SPLASH-2 (Woo et al., ISCA 1995): contiguous blocks, dealt to a 2-D
//! grid of ranks. Each rank holds its blocks in a window; the others fetch them by get under the passive lock, while
//! the owner goes on computing.

mod block;

use block::Block;
use clap::Parser;
use std::error::Error;
use std::process::ExitCode;
use std::time::Instant;
use transom::{Counters, Op, Rank, Window, World};

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
    let grid = Grid::new(world.size(), args.n, args.block)?;
    let mut matrix = Matrix::new(&world, grid)?;
    matrix.fill()?;

    matrix.window.fence()?;
    let (before, begun) = (matrix.window.counters(), Instant::now());
    matrix.factor()?;
    matrix.window.fence()?;
    let (seconds, operations) = (begun.elapsed().as_secs_f64(), matrix.window.counters() - before);

    let (residual, largest) = matrix.residual()?;
    let [residual, largest] = combine(&world, Op::Max, [residual, largest])?;
    let residual = residual / (largest * args.n as f64 * f64::EPSILON);
    let Counters { gets, puts, locks, word_cas, word_adds, word_posts, .. } = operations;
    let mine = [gets, puts, locks, word_cas, word_adds, word_posts].map(|count| count as f64);
    let operations = combine(&world, Op::Sum, mine)?;
    if world.rank() == 0 {
        report(args, grid, seconds, residual, operations);
    }
    Ok(residual <= 10.0)
}

/// Who owns which block: rows of blocks are dealt to rows of ranks, columns to columns.
#[derive(Clone, Copy)]
struct Grid {
    n: usize,
    /// Rows of a block.
    size: usize,
    /// Rows of blocks; the last may reach past n and is padded with the identity.
    blocks: usize,
    rank_rows: usize,
    rank_columns: usize,
}

impl Grid {
    fn new(ranks: usize, n: usize, size: usize) -> Result<Self, String> {
        let rank_rows = (1..=ranks.isqrt()).rev().find(|rows| ranks.is_multiple_of(*rows)).unwrap_or(1);
        let grid = Grid { n, size, blocks: n.div_ceil(size), rank_rows, rank_columns: ranks / rank_rows };
        match grid.blocks.checked_mul(size).and_then(|padded| padded.checked_mul(padded)?.checked_mul(8)) {
            Some(_) => Ok(grid),
            None => Err(format!("a matrix of {n} x {n} numbers is more than memory can address")),
        }
    }

    fn owner(self, row: usize, column: usize) -> Rank {
        row % self.rank_rows * self.rank_columns + column % self.rank_columns
    }

    /// Where a block begins in its owner's part of the window.
    fn offset(self, row: usize, column: usize) -> usize {
        let in_a_row = self.blocks.div_ceil(self.rank_columns);
        (row / self.rank_rows * in_a_row + column / self.rank_columns) * self.size * self.size
    }

    /// Elements of the window at each rank.
    fn part(self) -> usize {
        self.blocks.div_ceil(self.rank_rows) * self.blocks.div_ceil(self.rank_columns) * self.size * self.size
    }

    /// An element of the matrix to be factored, from a hash of its place.
    fn element(self, row: usize, column: usize) -> f64 {
        if row >= self.n || column >= self.n {
            return f64::from(row == column);
        }
        let mut hash = (row as u64) << 32 | column as u64;
        for _ in 0..2 {
            hash = (hash ^ hash >> 31).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        }
        let random = (hash >> 11) as f64 / (1u64 << 52) as f64 - 1.0;
        if row == column { self.n as f64 + 1.0 + random } else { random }
    }
}

struct Matrix {
    grid: Grid,
    rank: Rank,
    window: Window<f64>,
}

impl Matrix {
    fn new(world: &World, grid: Grid) -> Result<Self, transom::Error> {
        Ok(Matrix { grid, rank: world.rank(), window: world.allocate(grid.part())? })
    }

    fn is_mine(&self, row: usize, column: usize) -> bool {
        self.grid.owner(row, column) == self.rank
    }

    /// Copies a block here: one's own by load, another's by get, which that rank need not notice.
    fn fetch(&mut self, row: usize, column: usize, into: &mut Block) -> Result<(), transom::Error> {
        let (owner, offset) = (self.grid.owner(row, column), self.grid.offset(row, column));
        if owner == self.rank {
            return self.window.local().read_into(offset, into.elements_mut());
        }
        let epoch = self.window.lock_shared(owner)?;
        epoch.get(offset, into.elements_mut())?;
        epoch.unlock()
    }

    fn store(&self, row: usize, column: usize, block: &Block) -> Result<(), transom::Error> {
        self.window.local().write(self.grid.offset(row, column), block.elements())
    }

    fn fill(&mut self) -> Result<(), transom::Error> {
        let (grid, mut block) = (self.grid, Block::new(self.grid.size));
        for row in self.rows(0) {
            for column in self.columns(0) {
                block.fill(|i, j| grid.element(row * grid.size + i, column * grid.size + j));
                self.store(row, column, &block)?;
            }
        }
        Ok(())
    }

    /// My rows of blocks from `from` on.
    fn rows(&self, from: usize) -> impl Iterator<Item = usize> + use<> {
        every(from, self.rank / self.grid.rank_columns, self.grid.rank_rows, self.grid.blocks)
    }

    /// My columns of blocks from `from` on.
    fn columns(&self, from: usize) -> impl Iterator<Item = usize> + use<> {
        every(from, self.rank % self.grid.rank_columns, self.grid.rank_columns, self.grid.blocks)
    }

    fn factor(&mut self) -> Result<(), transom::Error> {
        let size = self.grid.size;
        let (mut diagonal, mut block) = (Block::new(size), Block::new(size));
        let mut left = Block::new(size);
        let mut upper: Vec<_> = self.columns(0).map(|_| Block::new(size)).collect();
        for step in 0..self.grid.blocks {
            if self.is_mine(step, step) {
                self.fetch(step, step, &mut diagonal)?;
                diagonal.factor();
                self.store(step, step, &diagonal)?;
            }
            self.window.fence()?;

            self.perimeter(step, &mut diagonal, &mut block)?;
            self.window.fence()?;

            // The pivot row's blocks serve all my rows, so they are fetched once.
            let columns: Vec<_> = self.columns(step + 1).collect();
            for (at, &column) in columns.iter().enumerate() {
                self.fetch(step, column, &mut upper[at])?;
            }
            for row in self.rows(step + 1) {
                self.fetch(row, step, &mut left)?;
                for (at, &column) in columns.iter().enumerate() {
                    self.fetch(row, column, &mut block)?;
                    block.subtract_product(&left, &upper[at]);
                    self.store(row, column, &block)?;
                }
            }
        }
        Ok(())
    }

    /// Solves my blocks below and to the right of the factored diagonal block of a step.
    fn perimeter(&mut self, step: usize, diagonal: &mut Block, block: &mut Block) -> Result<(), transom::Error> {
        let (next, size) = (step + 1, self.grid.blocks);
        let below = (next..size).map(|row| (row, step)).filter(|&(row, column)| self.is_mine(row, column));
        let right = (next..size).map(|column| (step, column)).filter(|&(row, column)| self.is_mine(row, column));
        let (below, right): (Vec<_>, Vec<_>) = (below.collect(), right.collect());
        if below.len() + right.len() > 0 {
            self.fetch(step, step, diagonal)?;
        }
        for (row, column) in below {
            self.fetch(row, column, block)?;
            block.solve_upper(diagonal);
            self.store(row, column, block)?;
        }
        for (row, column) in right {
            self.fetch(row, column, block)?;
            block.solve_lower(diagonal);
            self.store(row, column, block)?;
        }
        Ok(())
    }

    /// The largest |A - LU| and the largest |A| among my blocks.
    fn residual(&mut self) -> Result<(f64, f64), transom::Error> {
        let (grid, size) = (self.grid, self.grid.size);
        let (mut lower, mut upper, mut rest) = (Block::new(size), Block::new(size), Block::new(size));
        let (mut residual, mut largest) = (0.0, 0.0);
        let columns: Vec<_> = self.columns(0).collect();
        for (row, &column) in self.rows(0).flat_map(|row| columns.iter().map(move |column| (row, column))) {
            rest.fill(|i, j| grid.element(row * size + i, column * size + j));
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

/// The places from `from` on that a grid deals to its `mine`th of `of` lines.
fn every(from: usize, mine: usize, of: usize, to: usize) -> impl Iterator<Item = usize> {
    let first = from + (mine + of - from % of) % of;
    (first..to).step_by(of)
}

/// Combines what every rank found, in a window of rank 0.
fn combine<const N: usize>(world: &World, op: Op, mine: [f64; N]) -> Result<[f64; N], transom::Error> {
    let mut window: Window<f64> = world.allocate(N)?;
    let epoch = window.lock_shared(0)?;
    for (at, value) in mine.into_iter().enumerate() {
        epoch.fetch_and_op(at, op, value)?;
    }
    epoch.unlock()?;
    window.fence()?;
    let mut all = [0.0; N];
    window.lock_shared(0)?.get(0, &mut all)?;
    window.fence()?;
    Ok(all)
}

fn report(args: &Args, grid: Grid, seconds: f64, residual: f64, operations: [f64; 6]) {
    let n = args.n as f64;
    let verdict = if residual <= 10.0 { "good: at most 10" } else { "BAD: more than 10" };
    let (rows, columns) = (grid.rank_rows, grid.rank_columns);
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
