//! The relation of the cores of ranks 0 and 1: the time of a cache line from one to the other, which every hand-over
//! costs at least, and the slowdown of one by the other, as of two hardware threads of a core.

use super::facts::{Facts, Outcome};
use crate::bench::cores;
use crate::bench::statistics::median;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Release};
use std::time::{Duration, Instant};
use transom::{Local, World};

/// The number of timed games, and of round trips in each.
const GAMES: usize = 21;
const ROUND_TRIPS: u64 = 200;
/// Unsuccessful reads after which the waiting rank yields, because the other may need this core.
const PATIENCE: u32 = 2000;

/// Phases of rank 1: it sleeps, is to start the loop, executes the loop, is to stop.
const ASLEEP: u64 = 0;
const BEGIN: u64 = 1;
const RUNS: u64 = 2;
const STOP: u64 = 3;
/// The number of timed loops alone, and of those together.
const LOOPS: usize = 25;
/// The time that rank 1 sleeps between two checks.
const NAP: Duration = Duration::from_micros(200);

/// Collective. Ranks 0 and 1 measure while the others wait. Ranks that share no memory measure nothing, because no
/// cache line crosses.
pub fn take(world: &World, cores: &[usize], facts: &mut Facts) -> Outcome {
    // A single core has no crossing.
    if world.size() < 2 || cores.len() < 2 {
        return Ok(());
    }
    let me = world.rank();
    let window = world.allocate::<u64>(8)?;
    let court = match me < 2 && window.local().of(1 - me).is_ok() {
        true => Some(Court::new(&window.local().of(0)?)?),
        false => None,
    };
    world.barrier()?;
    if let Some(court) = court {
        // If there are more ranks than cores, ranks 0 and 1 are bound only here.
        cores::on(cores.get(me).copied(), || play(me as u64, &court, facts));
    }
    world.barrier()?;
    Ok(())
}

/// Words in rank 0's memory, accessed by bare loads and stores as on the peers' side.
struct Court<'w> {
    /// The word that passes back and forth.
    ball: &'w AtomicU64,
    /// The phase of rank 1.
    phase: &'w AtomicU64,
}

impl<'w> Court<'w> {
    fn new(line: &Local<'w, u64>) -> Outcome<Self> {
        // SAFETY: no rank accesses these elements before the caller's next barrier, and the slice ends here.
        let first = unsafe { line.as_mut_slice(0, 2) }?.as_mut_ptr();
        // SAFETY: both words are aligned and live as long as the window. All ranks access them only as atomics.
        let word = |at| unsafe { AtomicU64::from_ptr(first.add(at)) };
        Ok(Court { ball: word(0), phase: word(1) })
    }
}

fn play(me: u64, court: &Court, facts: &mut Facts) {
    let crossing = crossing(me, court.ball);
    if me == 1 {
        slow_the_other(court.phase);
    } else {
        facts.cores(crossing, slowdown(court.phase));
    }
}

/// Waits until a word has the expected value.
fn until(word: &AtomicU64, expected: u64) {
    let mut looks = 0u32;
    while word.load(Acquire) != expected {
        looks = looks.saturating_add(1);
        if looks > PATIENCE {
            std::thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
    }
}

/// The nanoseconds of a line from one core to the other.
fn crossing(me: u64, ball: &AtomicU64) -> f64 {
    let mut times = Vec::with_capacity(GAMES);
    // Even values are rank 0's turns.
    let mut mine = me;
    for _ in 0..GAMES {
        let begun = Instant::now();
        for _ in 0..ROUND_TRIPS {
            until(ball, mine);
            ball.store(mine + 1, Release);
            mine += 2;
        }
        times.push(begun.elapsed().as_secs_f64() * 1e9 / (2 * ROUND_TRIPS) as f64);
    }
    median(&times)
}

/// The time of the loop while rank 1 executes it too, divided by its time alone.
fn slowdown(phase: &AtomicU64) -> f64 {
    let timed = || {
        let begun = Instant::now();
        run_loop();
        begun.elapsed().as_secs_f64()
    };
    // Rank 1 sleeps, or is about to fall asleep.
    let alone: Vec<_> = (0..LOOPS).map(|_| timed()).collect();
    phase.store(BEGIN, Release);
    until(phase, RUNS);
    let together: Vec<_> = (0..LOOPS).map(|_| timed()).collect();
    phase.store(STOP, Release);
    median(&together) / median(&alone)
}

fn slow_the_other(phase: &AtomicU64) {
    while phase.load(Acquire) == ASLEEP {
        std::thread::sleep(NAP);
    }
    phase.store(RUNS, Release);
    while phase.load(Acquire) != STOP {
        run_loop();
    }
}

/// About 10 us of shifts and additions, in as many independent chains as a core can execute at a time.
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
