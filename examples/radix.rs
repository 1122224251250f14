//! Radix sort, as in SPLASH-2. In each pass, ranks count the digits of their keys, compute the destinations from the
//! counts of all ranks, and put the keys into a second array, which then replaces the first. The result is compared
//! with a sequential sort.

use clap::Parser;
use std::error::Error;
use std::process::ExitCode;
use std::time::Instant;
use transom::{Distribution, GlobalArray, Op, World};

/// Sorts random 32-bit keys digit by digit, with puts to the destinations, and checks every key.
#[derive(Parser)]
#[command(after_help = "Examples:\n  cargo run --release --example radix -- --ranks 4\n  \
                        cargo run --release --example radix -- --ranks 2 -n 10000000 --bits 11")]
struct Args {
    /// Number of ranks to start
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=32767))]
    ranks: u16,
    /// Number of keys
    #[arg(short, default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1..))]
    n: u32,
    /// Bits of a digit
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=16))]
    bits: u32,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("radix: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<bool, Box<dyn Error>> {
    let world = transom::start(args.ranks.into())?;
    let n = args.n as usize;
    let [mut keys, mut sorted] = [world.array([n], Distribution::Block)?, world.array([n], Distribution::Block)?];
    keys.local().fill_with(|[i]| key(i))?;
    world.barrier()?;
    let begun = Instant::now();
    for shift in (0..u32::BITS).step_by(args.bits as usize) {
        let digit = |key: u32| (key >> shift) as usize & ((1 << args.bits) - 1);
        pass(&world, &keys, &mut sorted, 1 << args.bits, digit)?;
        std::mem::swap(&mut keys, &mut sorted);
    }
    let seconds = begun.elapsed().as_secs_f64();

    let mut right: Vec<u32> = (0..n).map(key).collect();
    right.sort_unstable();
    let mut wrong = 0;
    keys.local().for_each(|[i], key| wrong += usize::from(key != right[i]))?;
    let wrong = world.all_reduce_one(wrong, Op::Sum)?;
    if world.rank() == 0 {
        let verdict = if wrong == 0 { "every key is right".into() } else { format!("{wrong} keys are WRONG") };
        println!(
            "{n} keys by digits of {} bits: {seconds:.4} s, {:.1} million/s, {verdict}",
            args.bits,
            n as f64 / seconds / 1e6
        );
    }
    Ok(wrong == 0)
}

/// Sorts keys by one digit, stably.
fn pass(
    world: &World,
    keys: &GlobalArray<u32>,
    sorted: &mut GlobalArray<u32>,
    digits: usize,
    digit: impl Fn(u32) -> usize,
) -> Result<(), transom::Error> {
    let (me, ranks) = (world.rank(), world.size());
    let mut own = Vec::new();
    keys.local().for_each(|_, key| own.push(key))?;
    let mut count = vec![0; digits];
    own.iter().for_each(|&key| count[digit(key)] += 1);
    let all = world.all_gather(&count)?;

    // This rank's keys of a digit follow all keys of smaller digits, and those of the same digit of lower ranks.
    let of = |rank: usize, digit: usize| all[rank * digits + digit];
    let (mut before, mut runs) = (0, Vec::with_capacity(digits));
    for digit in 0..digits {
        runs.push(before + (0..me).map(|rank| of(rank, digit)).sum::<usize>());
        before += (0..ranks).map(|rank| of(rank, digit)).sum::<usize>();
    }
    own.sort_by_key(|&key| digit(key));
    let (epoch, mut rest) = (sorted.fence()?, &own[..]);
    for (digit, &start) in runs.iter().enumerate() {
        let (run, after) = rest.split_at(of(me, digit));
        epoch.put(start..start + run.len(), run)?;
        rest = after;
    }
    sorted.fence().map(drop)
}

/// A random key that every rank can compute.
fn key(number: usize) -> u32 {
    let mixed = (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    ((mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb) >> 32) as u32
}
