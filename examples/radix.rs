//! Radix sort, as SPLASH-2 has it: digit by digit, ranks count the digits of their keys, learn from all counts where theirs go,
//! and put them there, in a second array that takes the place of the first. Checked against one rank that sorts all keys.

use clap::Parser;
use std::error::Error;
use std::ops::Range;
use std::process::ExitCode;
use std::time::Instant;
use transom::array::Layout;
use transom::{Distribution, GlobalArray, Op, World};

/// Sorts random 32-bit keys by digits, which ranks put where they belong, and checks every key.
#[derive(Parser)]
#[command(after_help = "Examples:\n  cargo run --release --example radix -- --ranks 4\n  \
                        cargo run --release --example radix -- --ranks 2 -n 10000000 --bits 11")]
struct Args {
    /// How many ranks to start
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=32767))]
    ranks: u16,
    /// How many keys
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
    let mine = keys
        .layout()
        .tiles_of(world.rank())
        .next()
        .map_or(0..0, |tile: transom::array::Tile<1>| tile.ranges[0].clone());
    keys.local().put(mine.clone(), &mine.clone().map(key).collect::<Vec<u32>>())?;
    let mut counts: GlobalArray<u64, 2> =
        world.array_on(Layout::on_grid([world.size(), 1 << args.bits], Distribution::Block, [world.size(), 1])?)?;
    world.barrier()?;
    let begun = Instant::now();
    for shift in (0..u32::BITS).step_by(args.bits as usize) {
        let digit = |key: u32| (key >> shift) as usize & ((1 << args.bits) - 1);
        pass(&world, &keys, &mut sorted, &mut counts, mine.clone(), digit)?;
        std::mem::swap(&mut keys, &mut sorted);
    }
    let seconds = begun.elapsed().as_secs_f64();

    let mut got = vec![0; mine.len()];
    keys.local().get(mine.clone(), &mut got)?;
    let mut right: Vec<u32> = (0..n).map(key).collect();
    right.sort_unstable();
    let wrong = got.iter().zip(&right[mine]).filter(|(got, right)| got != right).count();
    let mut sum: GlobalArray<u64> = world.array([1], Distribution::Block)?;
    sum.lock_all()?.fetch_and_op(0, Op::Sum, wrong as u64)?;
    let wrong = sum.fence()?.get_one(0)?;
    if world.rank() == 0 {
        let verdict = if wrong == 0 { "every key is right".into() } else { format!("{wrong} keys are WRONG") };
        println!(
            "{n} keys by digits of {} bits: {seconds:.4} s, {:.1} million/s, {verdict}",
            args.bits,
            n as f64 / seconds / 1e6
        );
    }
    sum.fence()?;
    Ok(wrong == 0)
}

/// Puts keys in the order of a digit, and else as they were.
fn pass(
    world: &World,
    keys: &GlobalArray<u32>,
    sorted: &mut GlobalArray<u32>,
    counts: &mut GlobalArray<u64, 2>,
    mine: Range<usize>,
    digit: impl Fn(u32) -> usize,
) -> Result<(), transom::Error> {
    let (me, ranks, digits) = (world.rank(), world.size(), counts.layout().shape()[1]);
    let mut own = vec![0; mine.len()];
    keys.local().get(mine, &mut own)?;
    let mut count = vec![0; digits];
    own.iter().for_each(|&key| count[digit(key)] += 1);
    counts.local().put([me..me + 1, 0..digits], &count)?;
    let mut all = vec![0; ranks * digits];
    counts.fence()?.get([0..ranks, 0..digits], &mut all)?;

    // Mine of a digit come after all smaller ones, and after those of the ranks before.
    let of = |rank: usize, digit: usize| all[rank * digits + digit] as usize;
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

/// A key, random, but everybody knows it.
fn key(number: usize) -> u32 {
    let mixed = (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    ((mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb) >> 32) as u32
}
