//! Heat in a plate: each point repeatedly becomes the mean of its four neighbours. Ranks own strips of rows and need
//! the last row of the strip above and the first of the strip below, their *halo*. An array exchanges halos in one
//! call, and the neighbour collective does for any memory. Three more methods use a window. Each result is compared
//! with a sequential one.

use clap::{Parser, ValueEnum};
use std::error::Error;
use std::ops::Range;
use std::process::ExitCode;
use std::time::Instant;
use transom::array::Layout;
use transom::collective::Grid;
use transom::{Distribution, Op, Rank, Window, World};

/// Diffuses heat in an n x n plate by strips of rows, exchanges halos by each method, and checks every point.
#[derive(Parser)]
#[command(after_help = "Examples:\n  cargo run --release --example stencil -- --ranks 4\n  \
                        cargo run --release --example stencil -- --ranks 2 -n 2000 --steps 50 --by signal")]
struct Args {
    /// Number of ranks to start
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=32767))]
    ranks: u16,
    /// Rows and columns of the plate; at least one row for each rank
    #[arg(short, default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..))]
    n: u32,
    /// Number of steps, in each of which every point becomes the mean of its neighbours
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    steps: u32,
    /// Method of exchanging halos; all methods in turn by default
    #[arg(long)]
    by: Option<By>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum By {
    /// The halo of an array
    Array,
    /// The neighbour collective on a grid
    Neighbours,
    /// A fence of all ranks in each step
    Fence,
    /// Post, start, complete and wait between neighbours
    Pscw,
    /// Put-with-signal, without another call
    Signal,
}

fn main() -> ExitCode {
    let args = Args::parse();
    if args.n < u32::from(args.ranks) {
        eprintln!(
            "stencil: {} rows for {} ranks, expected at least one for each rank; use -n {} or more",
            args.n, args.ranks, args.ranks
        );
        return ExitCode::from(2);
    }
    match run(&args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("stencil: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<bool, Box<dyn Error>> {
    let world = transom::start(args.ranks.into())?;
    let (n, ranks) = (args.n as usize, world.size());
    if n < ranks {
        return Err(format!("{n} rows for {ranks} ranks, expected at least one for each rank").into());
    }
    let expected = Strip::new(n, 0..n).diffused_alone(args.steps);
    let mut all_right = true;
    for by in args.by.map_or(vec![By::Array, By::Neighbours, By::Fence, By::Pscw, By::Signal], |by| vec![by]) {
        let (seconds, strip) = match by {
            By::Array => by_array(&world, n, args.steps)?,
            By::Neighbours => by_neighbours(&world, n, args.steps)?,
            by => by_window(&world, n, args.steps, by)?,
        };

        // The same operations run in the same order, so every point must be bitwise equal.
        let mine = &expected.points[strip.first * n..][..strip.rows() * n];
        let wrong = strip.inner().iter().zip(mine).filter(|(point, right)| point != right).count();
        let wrong = world.all_reduce_one(wrong, Op::Sum)?;
        all_right &= wrong == 0;
        if world.rank() == 0 {
            let (points, name) = ((n * n) as f64 * f64::from(args.steps), format!("{by:?}").to_lowercase());
            let verdict = if wrong == 0 { "every point is right".into() } else { format!("{wrong} points are WRONG") };
            println!("by {name:<10} {seconds:.4} s, {:>8.1} million points/s, {verdict}", points / seconds / 1e6);
        }
    }
    Ok(all_right)
}

/// Exchanges with the halo of an array, which has a row of ghost cells above and below. Returns the time and this
/// rank's strip.
fn by_array(world: &World, n: usize, steps: u32) -> Result<(f64, Strip), transom::Error> {
    let rows = Layout::on_grid([n, n], Distribution::Block, [world.size(), 1])?;
    let mut plate = world.array_on::<f64, 2>(rows)?;
    let mut halo = plate.halo([1, 0])?;
    let [rows, _] = halo.own();
    if rows.start == 0 && !rows.is_empty() {
        halo.cells_mut()[..n].fill(HOT);
    }
    let mut next = halo.cells().to_vec();
    world.barrier()?;
    let begun = Instant::now();
    for _ in 0..steps {
        halo.exchange(&mut plate)?;
        diffuse(n, halo.cells_mut(), &mut next);
    }
    world.barrier()?;
    Ok((begun.elapsed().as_secs_f64(), Strip { n, first: rows.start, points: halo.cells().to_vec(), next }))
}

/// Exchanges with the neighbour collective, for rows in any memory: sends the first and last row, receives the ghost
/// rows.
fn by_neighbours(world: &World, n: usize, steps: u32) -> Result<(f64, Strip), transom::Error> {
    let mut strip = Strip::new(n, world.share(n));
    let grid = Grid::of(world.size(), [false]).expect("there are ranks");
    let below = (strip.rows() + 1) * n;
    // Ghost rows outside the plate keep their values.
    let mut ghosts = [&strip.points[..n], &strip.points[below..]].concat();
    world.barrier()?;
    let begun = Instant::now();
    for _ in 0..steps {
        let edges = [strip.row(1), strip.row(strip.rows())].concat();
        world.neighbours(&grid, &edges, &mut ghosts)?;
        strip.points[..n].copy_from_slice(&ghosts[..n]);
        strip.points[below..].copy_from_slice(&ghosts[n..]);
        diffuse(n, &mut strip.points, &mut strip.next);
    }
    world.barrier()?;
    Ok((begun.elapsed().as_secs_f64(), strip))
}

/// Exchanges by puts to a window, with the synchronisation `by`.
fn by_window(world: &World, n: usize, steps: u32, by: By) -> Result<(f64, Strip), transom::Error> {
    let mut strip = Strip::new(n, world.share(n));
    let mut halo = Halo::new(world, n)?;
    world.barrier()?;
    let begun = Instant::now();
    for step in 0..steps {
        halo.exchange(by, step as usize, &mut strip)?;
        diffuse(n, &mut strip.points, &mut strip.next);
    }
    world.barrier()?;
    Ok((begun.elapsed().as_secs_f64(), strip))
}

/// Temperature above the plate.
const HOT: f64 = 100.0;

/// One step. The first and the last row are ghost rows, of neighbours or outside the plate.
fn diffuse(n: usize, points: &mut [f64], next: &mut [f64]) {
    for i in 1..(points.len() / n).max(1) - 1 {
        for j in 0..n {
            let left = if j > 0 { points[i * n + j - 1] } else { 0.0 };
            let right = if j + 1 < n { points[i * n + j + 1] } else { 0.0 };
            let (above, below) = (points[(i - 1) * n + j], points[(i + 1) * n + j]);
            next[i * n + j] = 0.25 * (above + below + left + right);
        }
    }
    // Ghost rows are left unchanged: those outside the plate are constant, the others are exchanged in the next step.
    if let Some(inner) = points.len().checked_sub(n).filter(|&end| end > n).map(|end| n..end) {
        points[inner.clone()].copy_from_slice(&next[inner]);
    }
}

/// A strip of rows, with a ghost row above and one below. Outside the plate it is hot above and cold elsewhere.
struct Strip {
    n: usize,
    first: usize,
    points: Vec<f64>,
    next: Vec<f64>,
}

impl Strip {
    fn new(n: usize, rows: Range<usize>) -> Self {
        let mut points = vec![0.0; (rows.len() + 2) * n];
        if rows.start == 0 {
            points[..n].fill(HOT);
        }
        Strip { n, first: rows.start, next: points.clone(), points }
    }

    fn rows(&self) -> usize {
        (self.points.len() / self.n).saturating_sub(2)
    }

    fn row(&self, row: usize) -> &[f64] {
        &self.points[row * self.n..][..self.n]
    }

    fn inner(&self) -> &[f64] {
        &self.points[self.n.min(self.points.len())..][..self.rows() * self.n]
    }

    /// Computes the whole plate sequentially; returns its rows without the ghost rows.
    fn diffused_alone(mut self, steps: u32) -> Self {
        for _ in 0..steps {
            diffuse(self.n, &mut self.points, &mut self.next);
        }
        self.points = self.inner().to_vec();
        self
    }
}

/// Window that the neighbours put their rows into: two slots for each neighbour, used alternately, so that a neighbour
/// one step ahead does not overwrite a row that has not been read.
struct Halo {
    window: Window<f64>,
    neighbours: Vec<Rank>,
}

const FROM_ABOVE: usize = 0;
const FROM_BELOW: usize = 1;

impl Halo {
    fn new(world: &World, n: usize) -> Result<Self, transom::Error> {
        let (me, ranks) = (world.rank(), world.size());
        let neighbours = [me.checked_sub(1), Some(me + 1).filter(|&below| below < ranks)];
        let window = world.allocate_with_signals(4 * n, 2)?;
        Ok(Halo { window, neighbours: neighbours.into_iter().flatten().collect() })
    }

    fn exchange(&mut self, by: By, step: usize, strip: &mut Strip) -> Result<(), transom::Error> {
        let (me, n, turn) = (self.window.rank(), strip.n, step % 2);
        // This rank's first row is the rank above's lower ghost row; its last row is the rank below's upper ghost row.
        let row_for = |rank: Rank, strip: &Strip| match rank < me {
            true => (strip.row(1).to_vec(), FROM_BELOW),
            false => (strip.row(strip.rows()).to_vec(), FROM_ABOVE),
        };
        let place = |side: usize| (2 * turn + side) * n;
        match by {
            By::Array | By::Neighbours => unreachable!("they need no window"),
            By::Fence => {
                let epoch = self.window.fence()?;
                for &rank in &self.neighbours {
                    let (row, side) = row_for(rank, strip);
                    epoch.target(rank)?.put(place(side), &row)?;
                }
                self.window.fence()?;
            }
            By::Pscw => {
                self.window.post(&self.neighbours)?;
                let epoch = self.window.start(&self.neighbours)?;
                for &rank in &self.neighbours {
                    let (row, side) = row_for(rank, strip);
                    epoch.target(rank)?.put(place(side), &row)?;
                }
                epoch.complete()?;
                self.window.wait()?;
            }
            By::Signal => {
                let epoch = self.window.lock_all()?;
                for &rank in &self.neighbours {
                    let (row, side) = row_for(rank, strip);
                    epoch.target(rank)?.put_signal(place(side), &row, side, 1)?;
                }
                for &rank in &self.neighbours {
                    let side = if rank < me { FROM_ABOVE } else { FROM_BELOW };
                    epoch.signals().wait_until(side, |rows| rows > step as u64)?;
                }
                epoch.unlock()?;
            }
        }
        let (rows, local) = (strip.rows(), self.window.local());
        for &rank in &self.neighbours {
            let (side, row) = if rank < me { (FROM_ABOVE, 0) } else { (FROM_BELOW, rows + 1) };
            local.read_into(place(side), &mut strip.points[row * n..][..n])?;
        }
        Ok(())
    }
}
