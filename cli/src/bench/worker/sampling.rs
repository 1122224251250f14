//! Batches of operations, long enough for the clock's resolution.

use super::facts::Outcome;
use std::time::{Duration, Instant};
use transom::{Op, Window, World};

/// The number of samples beyond which more add no information.
const MOST: u32 = 10_000;
const SHORTEST: Duration = Duration::from_micros(1);

fn batch_time(time: Duration) -> Duration {
    (time / MOST).max(SHORTEST)
}

/// Samples of operations that this rank does alone. `run` does the given number of operations, a multiple of `unit`.
pub fn alone(time: Duration, unit: usize, mut run: impl FnMut(usize) -> Outcome) -> Outcome<Vec<f64>> {
    let mut driver = Driver::new(time, unit);
    while let Some(count) = driver.next() {
        let begun = Instant::now();
        run(count)?;
        driver.took(begun.elapsed());
    }
    Ok(driver.samples)
}

/// Collective: samples of joint operations. Rank 0 announces the number of operations of a batch, a multiple of `unit`,
/// before its own clock starts.
pub fn together(world: &World, time: Duration, unit: usize, run: impl FnMut(usize) -> Outcome) -> Outcome<Vec<f64>> {
    by_the_clock(world, time, unit, run, Ok)
}

/// The same as [`together`], but with the time of the slowest rank. A collective's root may return long before the
/// others have its data.
pub fn to_the_last(world: &World, time: Duration, unit: usize, run: impl FnMut(usize) -> Outcome) -> Outcome<Vec<f64>> {
    let last = |took: Duration| Ok(Duration::from_nanos(world.all_reduce_one(took.as_nanos() as u64, Op::Max)?));
    by_the_clock(world, time, unit, run, last)
}

fn by_the_clock(
    world: &World,
    time: Duration,
    unit: usize,
    mut run: impl FnMut(usize) -> Outcome,
    took: impl Fn(Duration) -> Outcome<Duration>,
) -> Outcome<Vec<f64>> {
    let mut told: Window<u64> = world.allocate_with_signals(1, 1)?;
    let epoch = told.lock_all()?;
    let mut driver = Driver::new(time, unit);
    for round in 1.. {
        let count = if world.rank() == 0 {
            let count = driver.next().unwrap_or(0);
            for rank in 1..world.size() {
                epoch.target(rank)?.put_signal(0, &[count as u64], 0, 1)?;
            }
            count
        } else {
            epoch.signals().wait_until(0, |told| told >= round)?;
            epoch.local().get(0)? as usize
        };
        if count == 0 {
            break;
        }
        world.barrier()?;
        let begun = Instant::now();
        run(count)?;
        let took = took(begun.elapsed())?;
        if world.rank() == 0 {
            driver.took(took);
        }
        world.barrier()?;
    }
    Ok(driver.samples)
}

/// Chooses the number of operations of the next batch. It doubles until a batch is long enough, then stays until the
/// time is over.
struct Driver {
    end: Option<Instant>,
    time: Duration,
    count: usize,
    /// Successive batches of this number that were long enough. A single one may be long by accident.
    enough: u32,
    samples: Vec<f64>,
}

impl Driver {
    fn new(time: Duration, unit: usize) -> Self {
        Driver { end: None, time, count: unit, enough: 0, samples: Vec::new() }
    }

    fn next(&mut self) -> Option<usize> {
        match self.end {
            Some(end) if Instant::now() >= end && !self.samples.is_empty() => None,
            _ => Some(self.count),
        }
    }

    fn took(&mut self, took: Duration) {
        match self.end {
            Some(_) => self.samples.push(took.as_secs_f64() * 1e9 / self.count as f64),
            None if took < batch_time(self.time) => {
                self.count *= 2;
                self.enough = 0;
            }
            None if self.enough < 2 && took < self.time => self.enough += 1,
            None => self.end = Some(Instant::now() + self.time),
        }
    }
}
