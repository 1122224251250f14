//! Two ranks send each other messages of growing length, and print how long one takes one way, and how many bytes a second
//! that is. They are in memory that the ranks map, where they are on one machine: see `World::buffer`.

use clap::Parser;
use std::time::Instant;
use transom::messages::Tag;

/// Sends messages to and fro between two ranks, checks them, and prints latency and bandwidth.
#[derive(Parser)]
#[command(after_help = "Examples:\n  cargo run --release --example ping\n  \
                        cargo run --release --example ping -- --longest 65536 --rounds 1000")]
struct Args {
    /// Bytes of the longest message
    #[arg(long, default_value_t = 4 << 20, value_parser = clap::value_parser!(u32).range(1..))]
    longest: u32,
    /// Messages of each length, each way
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
}

const BALL: Tag<u8> = Tag::new(1);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let Args { longest, rounds } = Args::parse();
    let world = transom::start(2)?;
    if world.size() != 2 {
        return Err(format!("ping takes two ranks, and there are {}", world.size()).into());
    }
    if world.rank() == 0 {
        println!("{:>10} {:>12} {:>10}", "bytes", "us one way", "MB/s");
    }
    let mut memory = world.buffer::<u8>(longest as usize)?;
    for length in std::iter::successors(Some(8), |length| Some(4 * length)).take_while(|length| *length <= longest) {
        let ball = &mut memory[..length as usize];
        let begun = Instant::now();
        for round in 0..rounds {
            if world.rank() == 0 {
                ball[0] = round as u8;
                world.send(1, BALL, ball)?;
                world.recv_into(1, BALL, ball)?;
                assert_eq!(ball[0], round as u8 ^ 0xff, "the answer");
            } else {
                world.recv_into(0, BALL, ball)?;
                ball[0] ^= 0xff;
                world.send(0, BALL, ball)?;
            }
        }
        let one_way = begun.elapsed().as_secs_f64() / f64::from(2 * rounds);
        if world.rank() == 0 {
            println!("{length:>10} {:>12.2} {:>10.0}", one_way * 1e6, f64::from(length) / one_way / 1e6);
        }
    }
    Ok(())
}
