//! Two ranks exchange messages of increasing length, and print one-way latency and bandwidth. On one machine the
//! messages are in memory that both ranks map: see `World::buffer`.

use clap::Parser;
use std::time::Instant;
use transom::messages::Tag;

/// Sends messages to and fro between two ranks, checks them, and prints latency and bandwidth.
#[derive(Parser)]
#[command(after_help = "Examples:\n  cargo run --release --example ping\n  \
                        cargo run --release --example ping -- --longest 65536 --rounds 1000")]
struct Args {
    /// Length of the longest message in bytes
    #[arg(long, default_value_t = 4 << 20, value_parser = clap::value_parser!(u32).range(1..))]
    longest: u32,
    /// Number of messages of each length, each way
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
}

const BALL: Tag<u8> = Tag::new(1);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let Args { longest, rounds } = Args::parse();
    let world = transom::start(2)?;
    if world.size() != 2 {
        return Err(format!("ping needs two ranks, found {}", world.size()).into());
    }
    if world.rank() == 0 {
        println!("{:>10} {:>12} {:>10}", "bytes", "us one way", "MB/s");
    }
    let mut memory = world.buffer::<u8>(longest as usize)?;
    for length in lengths(longest) {
        let ball = &mut memory[..length as usize];
        let mut begun = Instant::now();
        // In round 0, which is not timed, rank 1 inverts every byte; later only the first byte.
        for round in 0..=rounds {
            let turned = if round == 0 { ball.len() } else { 1 };
            if round == 1 {
                begun = Instant::now();
            }
            if world.rank() == 0 {
                (0..turned).for_each(|at| ball[at] = byte(at, round));
                world.send(1, BALL, ball)?;
                world.recv_into(1, BALL, ball)?;
                assert!((0..turned).all(|at| ball[at] == !byte(at, round)), "the answer");
            } else {
                world.recv_into(0, BALL, ball)?;
                ball[..turned].iter_mut().for_each(|byte| *byte = !*byte);
                world.send(0, BALL, ball)?;
            }
        }
        let one_way = begun.elapsed().as_secs_f64() / f64::from(rounds) / 2.0;
        if world.rank() == 0 {
            println!("{length:>10} {:>12.2} {:>10.0}", one_way * 1e6, f64::from(length) / one_way / 1e6);
            // The other bytes are as rank 1 returned them in round 0.
            assert!((1..ball.len()).all(|at| ball[at] == !byte(at, 0)), "the other bytes");
        }
    }
    Ok(())
}

/// Lengths from 8 bytes on, each four times the previous one, and finally `longest`.
fn lengths(longest: u32) -> impl Iterator<Item = u32> {
    std::iter::successors(Some(8_u32), |length| length.checked_mul(4))
        .take_while(move |length| *length < longest)
        .chain([longest])
}

/// Byte of the message that rank 0 sends.
fn byte(at: usize, round: u32) -> u8 {
    (at % 251) as u8 ^ round as u8
}
