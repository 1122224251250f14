//! Ranks count random values into one histogram whose bins are distributed over all of them: first each value by a
//! fetch_and_op at the bin's owner, then many at once by an accumulate of locally counted values.

use clap::Parser;
use std::error::Error;
use std::process::ExitCode;
use std::time::Instant;
use transom::{Op, Rank, Window, World};

/// N ranks count random values into a distributed histogram, one by one and in chunks. Shows the rates and the bins.
///
/// Exits with an error if a bin differs from a sequential recount.
#[derive(Parser)]
#[command(after_help = "Examples:\n  cargo run --release --example histogram -- --ranks 4\n  \
                        cargo run --release --example histogram -- --ranks 8 --bins 1000 --values 100000\n\n\
                        With few bins ranks often collide in one; with large chunks they seldom do.")]
struct Args {
    /// Number of ranks to start
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=32767))]
    ranks: u16,
    /// Number of bins over all ranks
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    bins: u32,
    /// Number of values that each rank counts
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000_000))]
    values: u32,
    /// Number of values that a rank counts locally before each accumulate
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000_000))]
    chunk: u32,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("histogram: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<bool, Box<dyn Error>> {
    let world = transom::start(args.ranks.into())?;
    let mut singly = Histogram::new(&world, args)?;
    let mut by_chunk = Histogram::new(&world, args)?;
    let seconds = [
        singly.timed(|histogram| histogram.count_singly(args))?,
        by_chunk.timed(|histogram| histogram.count_by_chunk(args))?,
    ];
    let mut right = true;
    if world.rank() == 0 {
        let found = [singly.read()?, by_chunk.read()?];
        right = report(args, world.size(), seconds, found);
    }
    by_chunk.window.fence()?; // no rank frees its bins before rank 0 has read them
    Ok(right)
}

/// Bins distributed over the ranks in blocks.
struct Histogram {
    window: Window<u64>,
    rank: Rank,
    bins: usize,
    /// Bins per rank; the last ranks may have fewer, or none.
    block: usize,
}

impl Histogram {
    fn new(world: &World, args: &Args) -> Result<Self, transom::Error> {
        let (rank, bins) = (world.rank(), args.bins as usize);
        let block = bins.div_ceil(world.size());
        let mine = bins.saturating_sub(rank * block).min(block);
        Ok(Histogram { window: world.allocate(mine)?, rank, bins, block })
    }

    /// Time in seconds that all ranks need for `count`.
    fn timed(&mut self, count: impl FnOnce(&mut Self) -> Result<(), transom::Error>) -> Result<f64, transom::Error> {
        self.window.fence()?;
        let begun = Instant::now();
        self.window.fence()?; // a second fence: after the first, others could begin before this rank reads the clock
        count(self)?;
        self.window.fence()?;
        Ok(begun.elapsed().as_secs_f64())
    }

    fn count_singly(&mut self, args: &Args) -> Result<(), transom::Error> {
        let epoch = self.window.lock_all()?;
        for bin in bins_of(self.rank, args) {
            epoch.target(bin / self.block)?.fetch_and_op(bin % self.block, Op::Sum, 1)?;
        }
        epoch.unlock()
    }

    fn count_by_chunk(&mut self, args: &Args) -> Result<(), transom::Error> {
        let epoch = self.window.lock_all()?;
        let (mut bins, mut left) = (bins_of(self.rank, args), args.values);
        let mut counted = vec![0; self.bins];
        while left > 0 {
            let chunk = left.min(args.chunk);
            counted.fill(0);
            bins.by_ref().take(chunk as usize).for_each(|bin| counted[bin] += 1);
            // Starts at the rank's own block, so that not all ranks access the same target at once.
            let blocks: Vec<_> = counted.chunks(self.block).enumerate().collect();
            let home = self.rank.min(blocks.len());
            for (owner, block) in blocks[home..].iter().chain(&blocks[..home]) {
                epoch.target(*owner)?.accumulate(0, Op::Sum, block)?;
            }
            left -= chunk;
        }
        epoch.unlock()
    }

    /// Reads all bins from their owners.
    fn read(&mut self) -> Result<Vec<u64>, transom::Error> {
        let mut all = vec![0; self.bins];
        for (owner, block) in all.chunks_mut(self.block).enumerate() {
            self.window.lock_shared(owner)?.get(0, block)?;
        }
        Ok(all)
    }
}

/// Bins of the values that a rank counts, reproducible and bell-shaped: each value is the mean of four random numbers.
fn bins_of(rank: Rank, args: &Args) -> impl Iterator<Item = usize> + use<> {
    let (mut random, bins) = (fastrand::Rng::with_seed(rank as u64), f64::from(args.bins));
    let value = move || (0..4).map(|_| random.f64()).sum::<f64>() / 4.0;
    std::iter::repeat_with(value).map(move |value| (value * bins) as usize).take(args.values as usize)
}

fn report(args: &Args, ranks: usize, seconds: [f64; 2], found: [Vec<u64>; 2]) -> bool {
    let mut expected = vec![0u64; args.bins as usize];
    (0..ranks).flat_map(|rank| bins_of(rank, args)).for_each(|bin| expected[bin] += 1);
    let updates = ranks as u64 * u64::from(args.values);
    println!("{ranks} ranks, {} values each, {} bins", args.values, args.bins);
    let mut right = true;
    for ((how, seconds), found) in ["fetch_and_op", "accumulate"].into_iter().zip(seconds).zip(&found) {
        println!("{how:<12} {seconds:>10.4} s {:>10.3} million updates/s", updates as f64 / seconds / 1e6);
        let wrong = found.iter().zip(&expected).filter(|(found, expected)| found != expected).count();
        if wrong > 0 || found.iter().sum::<u64>() != updates {
            println!("WRONG: {how} left {wrong} bins with wrong counts, {} values in all", found.iter().sum::<u64>());
            right = false;
        }
    }
    bars(&expected);
    if right {
        println!("both agree with a sequential recount: {updates} values, every bin");
    }
    right
}

/// Prints at most 20 bars, each for the same number of bins.
fn bars(bins: &[u64]) {
    let width = bins.len().div_ceil(20);
    let sums: Vec<u64> = bins.chunks(width).map(|bins| bins.iter().sum()).collect();
    let most = sums.iter().max().copied().unwrap_or(0);
    for (at, &sum) in sums.iter().enumerate() {
        let bar = "#".repeat((sum * 50).checked_div(most).unwrap_or(0) as usize);
        println!("{:>8} {sum:>12}  {bar}", at * width);
    }
}
