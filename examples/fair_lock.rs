//! Ranks compete for one lock; the order of grants is checked against the order of requests.
//!
//! Each request learns from its position in the queue which exclusive request preceded it. The exclusive holder writes
//! its name beside the lock. Once granted, a request compares that name with its predecessor: if they differ, a request
//! was overtaken.

use clap::Parser;
use std::error::Error;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use transom::{Op, QueuePosition, Rank, Window, World};

/// N ranks compete for the lock of rank 0, shared and exclusive. Shows each rank's acquisitions and longest wait.
///
/// Exits with an error if the grants did not follow the order of the requests.
#[derive(Parser)]
#[command(after_help = "Examples:\n  cargo run --release --example fair_lock -- --ranks 4\n  \
                        cargo run --release --example fair_lock -- --ranks 8 --shared 90 --seconds 3\n\n\
                        Use more ranks than cores to see the starvation that unfair locks cause.")]
struct Args {
    /// Number of ranks to start
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=32767))]
    ranks: u16,
    /// Percentage of requests that are shared; the others are exclusive
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u8).range(..=100))]
    shared: u8,
    /// Duration of the competition in seconds
    #[arg(long, default_value_t = 1.0, value_parser = seconds)]
    seconds: f64,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if seconds > 0.0 && seconds <= 3600.0 => Ok(seconds),
        _ => Err("expected a number of seconds above 0, up to 3600".into()),
    }
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("fair_lock: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Elements of rank 0's window: name of the last exclusive holder, number of competing ranks, and the end flag.
const LAST: usize = 0;
const COMPETING: usize = 1;
const OVER: usize = 2;
const FRONT: usize = 3;

/// Results of one rank; `FIELDS` is their number.
const FIELDS: usize = 4;
#[derive(Default)]
struct Seen {
    shared: u64,
    exclusive: u64,
    overtaken: u64,
    longest_wait: Duration,
}

fn run(args: &Args) -> Result<bool, Box<dyn Error>> {
    let world = transom::start(args.ranks.into())?;
    let mut window: Window<u64> = world.allocate(if world.rank() == 0 { FRONT } else { 0 })?;
    window.fence()?;
    let seen = compete(&world, &mut window, args)?;

    let mine = [seen.shared, seen.exclusive, seen.overtaken, seen.longest_wait.as_nanos() as u64];
    if let Some(all) = world.gather(0, &mine)? {
        report(args, &all);
    }
    Ok(world.all_reduce_one(seen.overtaken, Op::Sum)? == 0)
}

fn compete(world: &World, window: &mut Window<u64>, args: &Args) -> Result<Seen, transom::Error> {
    let (me, mut seen) = (world.rank(), Seen::default());
    // Each rank has its own reproducible mix of requests.
    let mut random = fastrand::Rng::with_seed(me as u64);
    window.lock_shared(0)?.fetch_and_op(COMPETING, Op::Sum, 1)?;
    let end = Instant::now() + Duration::from_secs_f64(args.seconds);
    loop {
        let shared = random.u8(0..100) < args.shared;
        let asked = Instant::now();
        let epoch = if shared { window.lock_shared(0)? } else { window.lock_exclusive(0)? };
        let waited = asked.elapsed();
        let mut front = [0; FRONT];
        epoch.get(0, &mut front)?;
        seen.overtaken += u64::from(!in_turn(epoch.ahead(), front[LAST]));
        if !shared {
            epoch.fetch_and_op(LAST, Op::Replace, name(me))?;
        }
        // Only acquisitions between common start and end count: otherwise a rank that competes alone would acquire the
        // lock too often.
        if front[OVER] == 0 && front[COMPETING] == world.size() as u64 {
            seen.longest_wait = seen.longest_wait.max(waited);
            *(if shared { &mut seen.shared } else { &mut seen.exclusive }) += 1;
        }
        if front[OVER] == 0 && asked >= end {
            epoch.fetch_and_op(OVER, Op::Replace, 1)?;
        }
        epoch.unlock()?;
        if front[OVER] != 0 {
            return Ok(seen);
        }
    }
}

/// True if the last exclusive holder is the request's predecessor, or if there is no predecessor.
fn in_turn(ahead: QueuePosition, last: u64) -> bool {
    ahead.exclusive.is_none_or(|before| name(before) == last)
}

/// Name of a rank in the window; 0 stands for no rank.
fn name(rank: Rank) -> u64 {
    rank as u64 + 1
}

fn report(args: &Args, seen: &[u64]) {
    let rows: Vec<_> = seen.chunks_exact(FIELDS).collect();
    let got: Vec<u64> = rows.iter().map(|row| row[0] + row[1]).collect();
    let (total, most) = (got.iter().sum::<u64>(), got.iter().max().copied().unwrap_or(0));
    println!("{} ranks, {} % shared, {} s: {} acquisitions", rows.len(), args.shared, args.seconds, total);
    println!(
        "{:>5} {:>12} {:>10} {:>10} {:>14} {:>10}",
        "rank", "acquisitions", "shared", "exclusive", "longest wait", "overtaken"
    );
    for (rank, (row, &got)) in rows.iter().zip(&got).enumerate() {
        let bar = "#".repeat((got * 30).checked_div(most).unwrap_or(0) as usize);
        let longest = format!("{:.3} ms", row[3] as f64 / 1e6);
        println!("{rank:>5} {got:>12} {:>10} {:>10} {longest:>14} {:>10}  {bar}", row[0], row[1], row[2]);
    }
    let squares: f64 = got.iter().map(|&got| (got as f64).powi(2)).sum();
    let jain = if total == 0 { 1.0 } else { (total as f64).powi(2) / (rows.len() as f64 * squares) };
    println!("evenness (Jain's index, 1 is best): {jain:.4}");
    match rows.iter().map(|row| row[2]).sum::<u64>() {
        0 => println!("grants came in request order"),
        overtaken => println!("NOT FAIR: {overtaken} requests were overtaken"),
    }
}
