//! Short collectives of two processes that share memory: `cargo bench --bench collectives`. Callgrind (needs valgrind)
//! counts a rank's instructions, which have a bound. The time of a call, in a row, is printed beside a bare crossing
//! of a line of shared memory in the same run.

mod callgrind;
mod crossing;

use crossing::{crossing, shortest};
use std::hint::black_box;
use std::time::Duration;
use transom::{Error, Launch, Op, World};

type Call = fn(&World) -> Result<(), Error>;

/// Each call, of 8 bytes, and its bounds of instructions at rank 0 and at rank 1.
const CALLS: &[(&str, [f64; 2], Call)] = &[
    ("broadcast", [345.0, 380.0], |world| {
        black_box(world.broadcast_one(0, black_box(7_u64))?);
        Ok(())
    }),
    ("all_reduce", [475.0, 475.0], |world| {
        black_box(world.all_reduce_one(black_box(0.0), Op::Sum)?);
        Ok(())
    }),
    ("barrier", [250.0, 250.0], |world| Ok(world.barrier()?)),
];

/// Calls that are counted.
const COUNTED: usize = 100;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<_> = std::env::args().collect();
    match &args[1..] {
        [role] if role == "times" => return Ok(times(&transom::init()?)?),
        [call, counted] if !call.starts_with("--") => return count(call, counted.parse()?),
        _ => {}
    }
    println!("{:<12} {:>20} {:>20} {:>10}", "", "instructions, rank 0", "rank 1", "at most");
    let mut beyond: Vec<&str> = Vec::new();
    for (call, most, _) in CALLS {
        let each = [instructions(call, "0")?, instructions(call, "1")?];
        println!("{call:<12} {:>20.1} {:>20.1} {:>10}", each[0], each[1], format!("{}, {}", most[0], most[1]));
        beyond.extend((each[0] > most[0] || each[1] > most[1]).then_some(*call));
    }
    for _ in 0..3 {
        let launch = Launch::new(std::env::current_exe()?, 2).args(["times"]).deadline(Duration::from_secs(60));
        let outcome = launch.run()?;
        if !outcome.success() {
            return Err(outcome.to_string().into());
        }
    }
    match beyond.is_empty() {
        true => Ok(()),
        false => Err(format!("more instructions than they may take: {beyond:?}").into()),
    }
}

/// Instructions of a call at a rank: the fewest of some runs. In some runs the other rank is late, and then a wait is
/// counted.
fn instructions(call: &str, rank: &str) -> Result<f64, Box<dyn std::error::Error>> {
    let only = ["--fair-sched=yes", "--collect-atstart=no", "--toggle-collect=collectives::counted*"];
    let mut fewest = u64::MAX;
    for _ in 0..3 {
        fewest = fewest.min(callgrind::collected(&only, &[call, rank])?);
    }
    Ok(fewest as f64 / COUNTED as f64)
}

/// Two ranks make a call repeatedly. The counted rank arrives last at each call, so no wait is counted.
fn count(call: &str, rank: usize) -> Result<(), Box<dyn std::error::Error>> {
    let call = CALLS.iter().find(|(name, ..)| *name == call).expect("a call of the table").2;
    let ranks = transom::threads(2, |world| {
        (0..50).try_for_each(|_| call(&world))?;
        (0..COUNTED).try_for_each(|_| {
            if world.rank() != rank {
                return call(&world);
            }
            std::thread::sleep(Duration::from_millis(1));
            counted(&world, call)
        })
    })?;
    Ok(ranks.into_iter().collect::<Result<(), _>>()?)
}

#[inline(never)]
fn counted(world: &World, call: Call) -> Result<(), Error> {
    let made = call(world);
    // Callgrind must see the function return.
    black_box(());
    made
}

fn times(world: &World) -> Result<(), Error> {
    let mut report = vec![format!("crossing {:.0} ns", crossing(world)?)];
    for (name, _, call) in CALLS {
        world.barrier()?;
        report.push(format!("{name} {:.1} ns", shortest(2_000, || call(world))?));
    }
    if world.rank() == 0 {
        println!("{}", report.join(", "));
    }
    Ok(())
}
