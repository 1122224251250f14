//! Every rank prints a greeting, then adds itself to a counter in rank 0's memory without rank 0's help.

use clap::Parser;
use transom::{Op, Window};

/// Prints a greeting from every rank, and counts the ranks in a window of rank 0.
#[derive(Parser)]
#[command(after_help = "Examples:\n  cargo run --release --example hello -- --ranks 8\n  \
                        transom run -n 8 --tag target/release/examples/hello")]
struct Args {
    /// Number of ranks to start; not needed under `transom run`, which sets it
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=32767))]
    ranks: u16,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args = Args::parse();
    let world = transom::start(args.ranks.into())?;
    println!("hello from rank {} of {}", world.rank(), world.size());

    let mut counter: Window<u64> = world.allocate(1)?;
    let epoch = counter.lock_shared(0)?;
    let before = epoch.fetch_and_op(0, Op::Sum, 1)?;
    epoch.unlock()?;

    counter.fence()?; // all ranks have added
    if before == 0 {
        let total = counter.lock_shared(0)?.get_one(0)?;
        assert_eq!(total, world.size() as u64, "each rank has added 1");
        println!("rank {} came first; {total} ranks were counted", world.rank());
    }
    counter.fence()?; // rank 0 keeps its memory until the counter was read
    Ok(())
}
