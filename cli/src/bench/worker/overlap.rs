//! Rank 1 computes and makes no call while rank 0 locks it, gets and unlocks. By `two_sided` rank 1 grants the lock itself,
//! once it has computed.

use super::arguments::{Sync, Worker};
use super::facts::{Facts, Outcome};
use super::memory::window;
use crate::bench::buffer::Buffer;
use crate::bench::statistics::median;
use std::hint::black_box;
use std::time::{Duration, Instant};
use transom::messages::{Error, Tag};
use transom::{Window, World};

/// Rank 1 computes this long at a time.
const COMPUTE: Duration = Duration::from_millis(20);
/// Rank 0 sleeps this long before each operation.
const PAUSE: Duration = Duration::from_millis(1);
/// The least and the largest number of repetitions.
const FEWEST: usize = 3;
const MOST: usize = 64;
/// The fraction of the time that each of the two long phases takes.
const PART: f64 = 0.4;
/// Request of a lock, and its grant; the request has an element if it is the last, which is not granted.
const LOCK: Tag<u8> = Tag::new(1);
const UNLOCK: Tag<u8> = Tag::new(2);

struct Overlap<'w> {
    world: &'w World,
    sync: Sync,
    window: Window<u64>,
    /// Tells the other ranks whether rank 0 continues.
    told: Window<u64>,
    into: Buffer<u64>,
}

pub fn measure(worker: &Worker, world: &World, facts: &mut Facts) -> Outcome {
    let (sync, len, time) = (worker.sync, worker.bytes / 8, worker.time());
    let (window, told, into) = (window(world, len)?, window(world, 1)?, Buffer::new(len, |_| 0));
    let mut overlap = Overlap { world, sync, window, told, into };
    overlap.window.local().write(0, &Buffer::new(len, pattern))?;
    overlap.window.fence()?;
    overlap.samples(time.mul_f64(PART), facts)?;
    let count = overlap.operations_of_half()?;
    facts.value("compute", overlap.repeat(true, 0, Duration::ZERO)?);
    facts.value("communication", overlap.repeat(false, count, Duration::ZERO)?);
    facts.value("both", overlap.repeat(true, count, time.mul_f64(PART))?);
    Ok(())
}

/// The value of an element, by its index; never 0.
fn pattern(at: usize) -> u64 {
    at as u64 * 7 + 1
}

impl Overlap<'_> {
    /// Until the time is over, rank 1 computes while rank 0 gets data each ms.
    fn samples(&mut self, time: Duration, facts: &mut Facts) -> Outcome {
        let begun = Instant::now();
        for done in 1.. {
            self.world.barrier()?;
            match self.world.rank() {
                0 => self.sample_each_pause(facts)?,
                1 => self.target(true)?,
                _ => {}
            }
            if !self.agree(done < FEWEST || begun.elapsed() < time)? {
                break;
            }
        }
        Ok(())
    }

    fn sample_each_pause(&mut self, facts: &mut Facts) -> Outcome {
        let (begun, mut samples) = (Instant::now(), Vec::new());
        let mut next = begun + PAUSE;
        while next < begun + COMPUTE - PAUSE {
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
            self.into.fill(0);
            let begun = Instant::now();
            self.communicate(1)?;
            samples.push(begun.elapsed().as_nanos() as f64);
            let right = self.into.iter().enumerate().all(|(at, element)| *element == pattern(at));
            facts.check(right, || "get delivered wrong elements".into());
            next = Instant::now() + PAUSE;
        }
        facts.samples(&samples);
        self.end()
    }

    /// The number of operations that take half of the computation's time, while rank 1 is in the library.
    fn operations_of_half(&mut self) -> Outcome<usize> {
        let (begun, mut count) = (Instant::now(), 0);
        match self.world.rank() {
            0 => {
                while begun.elapsed() < COMPUTE / 2 {
                    self.communicate(1)?;
                    count += 1;
                }
                self.end()?;
            }
            1 => self.target(false)?,
            _ => {}
        }
        self.world.barrier()?;
        Ok(count)
    }

    /// Collective: the median over repetitions of the seconds until all ranks are done. Rank 0 decides when to stop.
    fn repeat(&mut self, computes: bool, count: usize, time: Duration) -> Outcome<f64> {
        let (begun, mut times) = (Instant::now(), Vec::new());
        loop {
            self.world.barrier()?;
            let begun_both = Instant::now();
            match self.world.rank() {
                0 => {
                    self.communicate(count)?;
                    self.end()?;
                }
                1 => self.target(computes)?,
                _ => {}
            }
            self.world.barrier()?;
            times.push(begun_both.elapsed().as_secs_f64());
            if !self.agree(times.len() < MOST && (times.len() < FEWEST || begun.elapsed() < time))? {
                return Ok(median(&times));
            }
        }
    }

    fn communicate(&mut self, count: usize) -> Outcome {
        match self.sync {
            Sync::LockAll => {
                for _ in 0..count {
                    let epoch = self.window.lock_all()?;
                    epoch.target(1)?.get(0, black_box(&mut self.into))?;
                    epoch.unlock()?;
                }
            }
            Sync::TwoSided => {
                let epoch = self.window.lock_all()?;
                for _ in 0..count {
                    self.world.send(1, LOCK, &[])?;
                    self.world.recv_into(1, LOCK, &mut [])?;
                    epoch.target(1)?.get(0, black_box(&mut self.into))?;
                    self.world.send(1, UNLOCK, &[])?;
                }
                epoch.unlock()?;
            }
            _ => {
                for _ in 0..count {
                    let epoch = self.window.lock_shared(1)?;
                    epoch.get(0, black_box(&mut self.into))?;
                    epoch.unlock()?;
                }
            }
        }
        Ok(())
    }

    /// Rank 0 tells rank 1 that no further operation follows before their next barrier.
    fn end(&self) -> Outcome {
        if self.sync == Sync::TwoSided {
            self.world.send(1, LOCK, &[0])?;
        }
        Ok(())
    }

    /// Rank 1 computes, and then grants the locks that rank 0 asks for.
    fn target(&self, computes: bool) -> Result<(), Error> {
        if computes {
            compute();
        }
        while self.sync == Sync::TwoSided && self.world.recv_into(0, LOCK, &mut [0])?.len == 0 {
            self.world.send(0, LOCK, &[])?;
            self.world.recv_into(0, UNLOCK, &mut [])?;
        }
        Ok(())
    }

    /// Collective: returns rank 0's value.
    fn agree(&mut self, more: bool) -> Outcome<bool> {
        if self.world.rank() == 0 {
            self.told.local().set(0, u64::from(more))?;
        }
        self.told.fence()?;
        let more = self.told.lock_shared(0)?.get_one(0)?;
        self.told.fence()?;
        Ok(more != 0)
    }
}

fn compute() {
    let (begun, mut sum) = (Instant::now(), 0.0);
    while begun.elapsed() < COMPUTE {
        for at in 1..200 {
            sum = black_box(sum + 1.0 / f64::from(at));
        }
    }
}
