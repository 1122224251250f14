//! Multigrid solver of SPLASH-2 OCEAN for a Poisson equation on a square: red-black Gauss-Seidel sweeps on grids, each
//! half as fine as the previous one. A global test after every sweep selects the next grid (Brandt, "Multi-Level
//! Adaptive Solutions to Boundary-Value Problems", 1977, cycle C). Ranks own strips of rows of each grid, and exchange
//! borders through the halos of arrays.
//!
//! The same solver also runs on threads with barriers, for comparison; a single thread is the serial form.

use clap::{Parser, ValueEnum};
use std::cell::Cell;
use std::error::Error;
use std::f64::consts::PI;
use std::ops::Range;
use std::process::ExitCode;
use std::sync::{Barrier, Mutex, MutexGuard};
use std::time::Instant;
use transom::array::{Halo, Layout};
use transom::{Distribution, GlobalArray, Op, World};

/// Solves a Poisson equation by multigrid on strips of rows, and checks every point and the residual.
#[derive(Parser)]
#[command(after_help = "Examples:\n  cargo run --release --example ocean -- --ranks 4\n  \
                        cargo run --release --example ocean -- --ranks 2 -n 1024 --by threads")]
struct Args {
    /// Number of ranks to start, or of threads; beyond 8, ranks own no rows
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=32767))]
    ranks: u16,
    /// Rows and columns of the finest grid, a power of two
    #[arg(short, default_value_t = 512, value_parser = power_of_two)]
    n: usize,
    /// Largest residual of the solution; the right side is at most 1
    #[arg(long, default_value_t = 1e-7, value_parser = tolerance)]
    tolerance: f64,
    /// Number of solutions to time; the fastest counts
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    times: u32,
    /// Owners of the strips of rows
    #[arg(long, default_value = "ranks")]
    by: By,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum By {
    /// Ranks, which exchange borders through the halos of arrays
    Ranks,
    /// Threads of one process, which copy each other's borders between barriers; a single thread does neither
    Threads,
}

/// Rows and columns of the coarsest grid.
const COARSEST: usize = 8;
const FINEST: usize = 1 << 13;

fn power_of_two(text: &str) -> Result<usize, String> {
    match text.parse::<usize>() {
        Ok(n) if n.is_power_of_two() && (COARSEST..=FINEST).contains(&n) => Ok(n),
        _ => Err(format!("expected a power of two from {COARSEST} to {FINEST}")),
    }
}

fn tolerance(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(tolerance) if tolerance >= 1e-8 => Ok(tolerance),
        _ => Err("expected a residual of at least 1e-8".into()),
    }
}

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> ExitCode {
    let args = Args::parse();
    let right = match args.by {
        By::Ranks => on_ranks(&args),
        By::Threads => on_threads(&args),
    };
    match right {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("ocean: {error}");
            ExitCode::FAILURE
        }
    }
}

fn on_ranks(args: &Args) -> Outcome<bool> {
    let world = transom::start(args.ranks.into())?;
    let strip = |n, rows| Ok(Borders::new(&world, n, rows)?);
    let largest = |x| Ok(world.all_reduce_one(x, Op::Max)?);
    let solution = solve(args, world.size(), strip, largest)?;
    Ok(solution.is_right(args, world.rank() == 0, "ranks", world.size()))
}

fn on_threads(args: &Args) -> Outcome<bool> {
    let threads = usize::from(args.ranks);
    if threads > COARSEST {
        return Err(format!("{threads} threads cannot share {COARSEST} rows; use --ranks {COARSEST} or fewer").into());
    }
    let meeting = Meeting::new(threads);
    std::thread::scope(|scope| {
        let thread = |number| {
            let thread = Thread { meeting: &meeting, number, turn: Cell::new(0) };
            let solution =
                solve(args, threads, |n, rows| Ok(Copies::new(&thread, n, rows)), |x| Ok(thread.largest(x)))?;
            Ok(solution.is_right(args, number == 0, "threads", threads))
        };
        let others: Vec<_> = (1..threads).map(|number| scope.spawn(move || thread(number))).collect();
        let right = thread(0);
        others.into_iter().for_each(|other| _ = other.join());
        right
    })
}

struct Solution {
    seconds: f64,
    sweeps: usize,
    /// Largest residual of the equation, and largest distance from the known solution, over all points.
    residual: f64,
    distance: f64,
}

impl Solution {
    fn is_right(&self, args: &Args, says: bool, members: &str, of: usize) -> bool {
        // The largest sum of a row of the inverse matrix is below 1/8.
        let right = self.residual <= args.tolerance && self.distance <= args.tolerance / 8.0;
        if says {
            let Solution { seconds, sweeps, residual, distance } = self;
            let verdict = if right { "every point is right" } else { "WRONG" };
            println!(
                "{0} x {0}, {members}: {of}, {seconds:.5} s, {sweeps} sweeps, residual {residual:.1e}, {verdict}",
                args.n
            );
            if !right {
                println!("  distance from the known solution {distance:.1e}");
            }
        }
        right
    }
}

/// Solves the equation on grids whose strips `strip` creates, from the grid's size and the rows of each member.
/// `largest` returns the maximum over all members.
fn solve<S: Strip>(
    args: &Args,
    members: usize,
    strip: impl Fn(usize, usize) -> Outcome<S>,
    largest: impl Fn(f64) -> Outcome<f64>,
) -> Outcome<Solution> {
    let levels = (args.n / COARSEST).ilog2() + 1;
    let grid = |level| Ok(Grid::new(COARSEST << level, strip(COARSEST << level, COARSEST.div_ceil(members) << level)?));
    let mut grids = (0..levels).map(grid).collect::<Outcome<Vec<_>>>()?;
    let (mut seconds, mut sweeps) = (f64::INFINITY, 0);
    for _ in 0..args.times {
        grids.last_mut().expect("one at least").begin();
        largest(0.0)?;
        let begun = Instant::now();
        sweeps = cycle(&mut grids, args.tolerance, &largest)?;
        seconds = seconds.min(begun.elapsed().as_secs_f64());
    }
    let [residual, distance] = grids.last_mut().expect("one at least").check();
    Ok(Solution { seconds, sweeps, residual: largest(residual)?, distance: largest(distance)? })
}

/// A sweep that leaves more than this fraction of the residual is followed by one on a coarser grid.
const SLOW: f64 = 0.6;
/// Residual required of a correction, relative to that of the grid which it corrects.
const CORRECTION: f64 = 0.3;
const MOST_SWEEPS: usize = 10_000;

/// Sweeps on the grids until the residual of the finest is small enough; returns the number of sweeps.
fn cycle<S: Strip>(grids: &mut [Grid<S>], tolerance: f64, largest: impl Fn(f64) -> Outcome<f64>) -> Outcome<usize> {
    let finest = grids.len() - 1;
    let mut tolerances = vec![tolerance; grids.len()];
    let (mut level, mut before) = (finest, f64::INFINITY);
    for sweep in 1..=MOST_SWEEPS {
        let grid = &mut grids[level];
        let red = grid.relax(0);
        grid.strip.exchange()?;
        let black = grid.relax(1);
        grid.strip.exchange()?;
        let residual = largest(red.max(black))? * 4.0 * (grid.n * grid.n) as f64;
        if residual <= tolerances[level] {
            if level == finest {
                return Ok(sweep);
            }
            let (coarse, fine) = grids.split_at_mut(level + 1);
            fine[0].correct(&mut coarse[level]);
            (level, before) = (level + 1, f64::INFINITY);
        } else if level > 0 && residual > SLOW * before {
            let (coarse, fine) = grids.split_at_mut(level);
            coarse[level - 1].restrict(&mut fine[0]);
            tolerances[level - 1] = CORRECTION * residual;
            (level, before) = (level - 1, f64::INFINITY);
        } else {
            before = residual;
        }
    }
    Err(format!("the residual is above {tolerance:e} after {MOST_SWEEPS} sweeps; use a larger --tolerance").into())
}

/// Rows of a grid that a rank or thread owns.
trait Strip {
    fn rows(&self) -> Range<usize>;
    /// The own rows, with one ghost row above and below and one column left and right.
    fn cells(&mut self) -> &mut [f64];
    /// Collective: updates the ghost rows.
    fn exchange(&mut self) -> Outcome<()>;
}

/// A member's strip of a grid of n x n points. The solution is 0 on the border: row and column 0, and those after the
/// last.
struct Grid<S> {
    n: usize,
    strip: S,
    /// Right side times the square of the grid spacing.
    right: Vec<f64>,
}

impl<S: Strip> Grid<S> {
    fn new(n: usize, strip: S) -> Self {
        let right = vec![0.0; strip.rows().len() * n];
        Grid { n, strip, right }
    }

    /// Own rows except the border row.
    fn inner(&self) -> Range<usize> {
        let rows = self.strip.rows();
        rows.start.max(1)..rows.end
    }

    /// Sets the right side, and 0 for the solution.
    fn begin(&mut self) {
        let (n, rows) = (self.n, self.strip.rows());
        for (row, right) in rows.zip(self.right.chunks_exact_mut(n)) {
            for (column, right) in right.iter_mut().enumerate() {
                *right = MODES.map(|mode| mode.at(n, row, column)).iter().sum::<f64>() / (n * n) as f64;
            }
        }
        self.strip.cells().fill(0.0);
    }

    /// Relaxes every second point: solves its equation for the point itself. Returns the largest change.
    fn relax(&mut self, colour: usize) -> f64 {
        let (n, first, inner) = (self.n, self.strip.rows().start, self.inner());
        let (cells, mut largest) = (self.strip.cells(), 0.0_f64);
        for row in inner {
            let right = &self.right[(row - first) * n..][..n];
            let [above, own, below] = three(cells, n + 2, row - first);
            for column in (2 - (row + colour) % 2..n).step_by(2) {
                let at = column + 1;
                let point = 0.25 * (above[at] + below[at] + own[at - 1] + own[at + 1] + right[column]);
                largest = largest.max((point - own[at]).abs());
                own[at] = point;
            }
        }
        largest
    }

    /// Sets up the equation for the correction of a grid twice as fine. A coarse point takes half of the fine point's
    /// residual: its black neighbours have none after a sweep.
    fn restrict(&mut self, fine: &mut Grid<S>) {
        let (n, first) = (self.n, self.strip.rows().start);
        for row in self.inner() {
            let right = &mut self.right[(row - first) * n..][..n];
            for (column, right) in right.iter_mut().enumerate().skip(1) {
                *right = 2.0 * fine.residual(2 * row, 2 * column);
            }
        }
        self.strip.cells().fill(0.0);
    }

    /// Adds the correction from a grid half as fine, to the ghost rows too.
    fn correct(&mut self, coarse: &mut Grid<S>) {
        let (n, rows, coarse_n, coarse_first) = (self.n, self.strip.rows(), coarse.n, coarse.strip.rows().start);
        if rows.is_empty() {
            return;
        }
        let (cells, coarse) = (self.strip.cells(), coarse.strip.cells());
        for row in rows.start.max(2) - 1..n.min(rows.end + 1) {
            let own = &mut cells[(row + 1 - rows.start) * (n + 2)..][..n + 2];
            let [above, below] = [row / 2, row.div_ceil(2)]
                .map(|row| &coarse[(row + 1 - coarse_first) * (coarse_n + 2)..][..coarse_n + 2]);
            for column in 1..n {
                let [left, right] = [column / 2 + 1, column.div_ceil(2) + 1];
                own[column + 1] += 0.25 * (above[left] + above[right] + below[left] + below[right]);
            }
        }
    }

    /// Residual of a point times the square of the grid spacing.
    fn residual(&mut self, row: usize, column: usize) -> f64 {
        let (n, first) = (self.n, self.strip.rows().start);
        let right = self.right[(row - first) * n + column];
        let [above, own, below] = three(self.strip.cells(), n + 2, row - first);
        let at = column + 1;
        right + above[at] + below[at] + own[at - 1] + own[at + 1] - 4.0 * own[at]
    }

    /// Largest residual and largest distance from the known solution.
    fn check(&mut self) -> [f64; 2] {
        let (n, first) = (self.n, self.strip.rows().start);
        let (mut residual, mut distance) = (0.0_f64, 0.0_f64);
        for (row, column) in self.inner().flat_map(|row| (1..n).map(move |column| (row, column))) {
            residual = larger(residual, self.residual(row, column) * (n * n) as f64);
            let known = MODES.map(|mode| mode.at(n, row, column) / mode.eigenvalue(n)).iter().sum::<f64>();
            distance = larger(distance, known - self.strip.cells()[(row + 1 - first) * (n + 2) + column + 1]);
        }
        [residual, distance]
    }
}

/// An own row with the row above and the row below.
fn three(cells: &mut [f64], width: usize, row: usize) -> [&mut [f64]; 3] {
    let (above, rest) = cells[row * width..][..3 * width].split_at_mut(width);
    let (own, below) = rest.split_at_mut(width);
    [above, own, below]
}

/// The larger absolute value; infinite if the new one is NaN.
fn larger(most: f64, x: f64) -> f64 {
    if x.is_nan() { f64::INFINITY } else { most.max(x.abs()) }
}

/// The right side has a smooth and a rough part, each an eigenvector of the equation.
const MODES: [Mode; 2] = [Mode { across: 1, down: 2 }, Mode { across: 5, down: 3 }];

struct Mode {
    across: usize,
    down: usize,
}

impl Mode {
    fn at(&self, n: usize, row: usize, column: usize) -> f64 {
        let wave = |times: usize, at: usize| (PI * ((times * at) as f64) / n as f64).sin();
        0.5 * wave(self.down, row) * wave(self.across, column)
    }

    fn eigenvalue(&self, n: usize) -> f64 {
        let part = |times: usize| (PI * times as f64 / (2 * n) as f64).sin().powi(2);
        4.0 * (n * n) as f64 * (part(self.across) + part(self.down))
    }
}

/// A rank's strip: rows of an array with their halo.
struct Borders {
    array: GlobalArray<f64, 2>,
    halo: Halo<f64, 2>,
}

impl Borders {
    fn new(world: &World, n: usize, rows: usize) -> Result<Self, transom::Error> {
        let layout = Layout::on_grid([n, n], Distribution::BlockCyclic([rows, n]), [world.size(), 1])?;
        let array = world.array_on(layout)?;
        let halo = array.halo([1, 1])?;
        Ok(Borders { array, halo })
    }
}

impl Strip for Borders {
    fn rows(&self) -> Range<usize> {
        let [rows, _] = self.halo.own();
        rows
    }

    fn cells(&mut self) -> &mut [f64] {
        self.halo.cells_mut()
    }

    fn exchange(&mut self) -> Outcome<()> {
        Ok(self.halo.exchange(&mut self.array)?)
    }
}

/// Exchange among threads. Each thread alternates between two slots for its values, so that a thread one exchange ahead
/// does not overwrite values that are still being read.
struct Meeting {
    barrier: Barrier,
    brought: Vec<[Mutex<Vec<f64>>; 2]>,
}

impl Meeting {
    fn new(threads: usize) -> Self {
        Meeting { barrier: Barrier::new(threads), brought: (0..threads).map(|_| Default::default()).collect() }
    }
}

struct Thread<'m> {
    meeting: &'m Meeting,
    number: usize,
    turn: Cell<usize>,
}

impl Thread<'_> {
    /// Publishes this thread's values and waits for those of all threads.
    fn meet(&self, values: &[&[f64]]) {
        self.turn.set(1 - self.turn.get());
        let mut mine = self.brought_by(self.number);
        mine.clear();
        values.iter().for_each(|values| mine.extend_from_slice(values));
        drop(mine);
        self.meeting.barrier.wait();
    }

    fn brought_by(&self, thread: usize) -> MutexGuard<'_, Vec<f64>> {
        self.meeting.brought[thread][self.turn.get()].lock().expect("no thread panics")
    }

    fn threads(&self) -> usize {
        self.meeting.brought.len()
    }

    fn largest(&self, x: f64) -> f64 {
        if self.threads() == 1 {
            return x;
        }
        self.meet(&[&[x]]);
        (0..self.threads()).map(|thread| self.brought_by(thread)[0]).fold(x, f64::max)
    }
}

/// A thread's strip.
struct Copies<'t> {
    thread: &'t Thread<'t>,
    n: usize,
    rows: Range<usize>,
    cells: Vec<f64>,
}

impl<'t> Copies<'t> {
    fn new(thread: &'t Thread<'t>, n: usize, rows: usize) -> Self {
        let rows = n.min(thread.number * rows)..n.min((thread.number + 1) * rows);
        Copies { thread, n, cells: vec![0.0; (rows.len() + 2) * (n + 2)], rows }
    }
}

impl Strip for Copies<'_> {
    fn rows(&self) -> Range<usize> {
        self.rows.clone()
    }

    fn cells(&mut self) -> &mut [f64] {
        &mut self.cells
    }

    fn exchange(&mut self) -> Outcome<()> {
        let Copies { thread, n, rows, cells } = self;
        if thread.threads() == 1 {
            return Ok(());
        }
        let row = |row: usize| row * (*n + 2)..(row + 1) * (*n + 2);
        thread.meet(&[&cells[row(1)], &cells[row(rows.len())]]);
        if rows.start > 0 && rows.start < rows.end {
            cells[row(0)].copy_from_slice(&thread.brought_by(thread.number - 1)[row(1)]);
        }
        if rows.start < rows.end && rows.end < *n {
            cells[row(rows.len() + 1)].copy_from_slice(&thread.brought_by(thread.number + 1)[row(0)]);
        }
        Ok(())
    }
}
