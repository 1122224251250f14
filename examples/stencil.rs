//! Heat in a plate: each point becomes the mean of its four neighbours, again and again. Ranks own strips of rows and
//! need the last row of the strip above and the first of the strip below, their *halo*. An array has that by one call, and so
//! has any memory, by messages; three ways show what else there is, on a window. Each is checked against one rank that does it all.

use clap::{Parser, ValueEnum};
use std::error::Error;
use std::ops::Range;
use std::process::ExitCode;
use std::time::Instant;
use transom::array::Layout;
use transom::collective::Grid;
use transom::{Distribution, Op, Rank, Window, World};

/// Diffuses heat in an n x n plate by strips of rows, exchanges halos by each synchronisation, and checks every point.
#[derive(Parser)]
#[command(after_help = "Examples:\n  cargo run --release --example stencil -- --ranks 4\n  \
                        cargo run --release --example stencil -- --ranks 2 -n 2000 --steps 50 --by signal")]
struct Args {
    /// How many ranks to start
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=32767))]
    ranks: u16,
    /// Rows and columns of the plate; at least one row for each rank
    #[arg(short, default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..))]
    n: u32,
    /// How often every point becomes the mean of its neighbours
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    steps: u32,
    /// How halos are exchanged; all ways, one after the other, if not said
    #[arg(long)]
    by: Option<By>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum By {
    /// The halo of an array
    Array,
    /// The collective of neighbours on a grid
    Neighbours,
    /// A fence of all ranks each step
    Fence,
    /// Post, start, complete and wait between neighbours
    Pscw,
    /// Put-with-signal: no call but the put itself
    Signal,
}

fn main() -> ExitCode {
    let args = Args::parse();
    if args.n < u32::from(args.ranks) {
        eprintln!(
            "stencil: {} rows are not one for each of {} ranks; use -n {} or more",
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
        return Err(format!("{n} rows are not one for each of {ranks} ranks").into());
    }
    let expected = Strip::new(n, 0..n).diffused_alone(args.steps);
    let mut all_right = true;
    for by in args.by.map_or(vec![By::Array, By::Neighbours, By::Fence, By::Pscw, By::Signal], |by| vec![by]) {
        let (seconds, strip) = match by {
            By::Array => by_array(&world, n, args.steps)?,
            By::Neighbours => by_neighbours(&world, n, args.steps)?,
            by => by_window(&world, n, args.steps, by)?,
        };

        // The same operations in the same order: every point must be the same, to the last bit.
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

/// Whole rows of an array, with a row of ghost cells above and below. Returns the time, and this rank's strip.
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

/// Rows side by side in any memory: first and last go out, and the neighbours' come in.
fn by_neighbours(world: &World, n: usize, steps: u32) -> Result<(f64, Strip), transom::Error> {
    let mut strip = Strip::new(n, world.share(n));
    let grid = Grid::of(world.size(), [false]).expect("there are ranks");
    let below = (strip.rows() + 1) * n;
    // What lies outside the plate stays.
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

/// By window and by hand.
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

/// Of what lies above the plate.
const HOT: f64 = 100.0;

/// One step, of rows of which the first and the last are others', or outside the plate.
fn diffuse(n: usize, points: &mut [f64], next: &mut [f64]) {
    for i in 1..(points.len() / n).max(1) - 1 {
        for j in 0..n {
            let left = if j > 0 { points[i * n + j - 1] } else { 0.0 };
            let right = if j + 1 < n { points[i * n + j + 1] } else { 0.0 };
            let (above, below) = (points[(i - 1) * n + j], points[(i + 1) * n + j]);
            next[i * n + j] = 0.25 * (above + below + left + right);
        }
    }
    // What lies outside the plate stays; halos are exchanged anew.
    if let Some(inner) = points.len().checked_sub(n).filter(|&end| end > n).map(|end| n..end) {
        points[inner.clone()].copy_from_slice(&next[inner]);
    }
}

/// A strip of rows, with a row above and one below that belong to the neighbours; outside the plate it is hot above
/// and cold elsewhere.
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

    /// The whole plate, done by one: its rows without those outside.
    fn diffused_alone(mut self, steps: u32) -> Self {
        for _ in 0..steps {
            diffuse(self.n, &mut self.points, &mut self.next);
        }
        self.points = self.inner().to_vec();
        self
    }
}

/// Where the neighbours put their rows: two places for each, used in turn, so that a neighbour that is a step ahead
/// does not overwrite a row that has not been read.
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
        // My first row is what the one above has below it, my last what the one below has above it.
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
