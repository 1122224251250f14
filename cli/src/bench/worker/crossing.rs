//! How the cores of ranks 0 and 1 are to each other: how long a cache line takes from one to the other, which every hand-over
//! costs at least, and how much the one slows the other, as two hardware threads of a core do.

use super::facts::{Facts, Outcome};
use crate::bench::cores;
use crate::bench::statistics::median;
use std::hint::black_box;
use std::time::{Duration, Instant};
use transom::{Target, Window, World};

/// Games with the ball, of so many round trips.
const GAMES: usize = 21;
const ROUND_TRIPS: u64 = 200;
/// Looks after which the other rank may need this core to go on.
const PATIENCE: u32 = 2000;

/// Where the ball lies, and how far the rest has come, in the memory of rank 0.
const BALL: usize = 0;
const PHASE: usize = 1;
/// What rank 1 is to do or does: sleep, begin to run the loop, run it, stop.
const ASLEEP: u64 = 0;
const BEGIN: u64 = 1;
const RUNS: u64 = 2;
const STOP: u64 = 3;
/// How often the loop is timed, alone and together.
const LOOPS: usize = 25;
/// How long rank 1 sleeps between two looks.
const NAP: Duration = Duration::from_micros(200);

/// Collective: ranks 0 and 1 play, the others wait. Where the two share no memory, no line crosses: over a network nothing
/// is measured.
pub fn take(world: &World, cores: &[usize], facts: &mut Facts) -> Outcome {
    // On one core nothing crosses.
    if world.size() < 2 || cores.len() < 2 {
        return Ok(());
    }
    let me = world.rank();
    let mut window = world.allocate::<u64>(8)?;
    world.barrier()?;
    if me < 2 && window.local().of(1 - me).is_ok() {
        // Ranks that are not bound, being more than cores, are for this.
        cores::on(cores.get(me).copied(), || play(me as u64, &mut window, facts))?;
    }
    world.barrier()?;
    Ok(())
}

fn play(me: u64, window: &mut Window<u64>, facts: &mut Facts) -> Outcome {
    let epoch = window.lock_all()?;
    let line = epoch.target(0)?;
    let crossing = crossing(me, &line)?;
    if me == 1 {
        slow_the_other(&line)?;
    } else {
        facts.cores(crossing, slowdown(&line)?);
    }
    Ok(epoch.unlock()?)
}

/// Waits until a word is as expected.
fn until(line: &Target<u64>, word: usize, expected: u64) -> Outcome {
    let mut looks = 0u32;
    while line.get_one(word)? != expected {
        looks = looks.saturating_add(1);
        if looks > PATIENCE {
            std::thread::yield_now();
        }
        std::hint::spin_loop();
    }
    Ok(())
}

/// Nanoseconds of a line from one core to the other.
fn crossing(me: u64, line: &Target<u64>) -> Outcome<f64> {
    let mut times = Vec::with_capacity(GAMES);
    // Even is rank 0's turn.
    let mut mine = me;
    for _ in 0..GAMES {
        let begun = Instant::now();
        for _ in 0..ROUND_TRIPS {
            until(line, BALL, mine)?;
            line.put(BALL, &[mine + 1])?;
            mine += 2;
        }
        times.push(begun.elapsed().as_secs_f64() * 1e9 / (2 * ROUND_TRIPS) as f64);
    }
    Ok(median(&times))
}

/// How many times as long the loop takes while rank 1 runs it too.
fn slowdown(line: &Target<u64>) -> Outcome<f64> {
    let timed = || {
        let begun = Instant::now();
        run_loop();
        begun.elapsed().as_secs_f64()
    };
    // Rank 1 is asleep, or will be during the first of these.
    let alone: Vec<_> = (0..LOOPS).map(|_| timed()).collect();
    line.put(PHASE, &[BEGIN])?;
    until(line, PHASE, RUNS)?;
    let together: Vec<_> = (0..LOOPS).map(|_| timed()).collect();
    line.put(PHASE, &[STOP])?;
    Ok(median(&together) / median(&alone))
}

fn slow_the_other(line: &Target<u64>) -> Outcome {
    while line.get_one(PHASE)? == ASLEEP {
        std::thread::sleep(NAP);
    }
    line.put(PHASE, &[RUNS])?;
    while line.get_one(PHASE)? != STOP {
        run_loop();
    }
    Ok(())
}

/// Some 10 us of shifts and additions, as many at a time as a core has units for.
fn run_loop() {
    let mut chains: [u64; 8] = black_box([1, 2, 3, 4, 5, 6, 7, 8]);
    for _ in 0..2000 {
        for x in &mut chains {
            *x ^= *x << 13;
            *x ^= *x >> 7;
            *x = x.wrapping_add(*x << 17);
        }
    }
    black_box(chains);
}
