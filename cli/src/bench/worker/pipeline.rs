//! A wavefront over a grid, as in the Parallel Research Kernel Synch_p2p, by put-with-signal or by messages.

use super::arguments::{Sync, Worker};
use super::facts::{Facts, Outcome};
use super::memory::{window, window_of};
use crate::bench::buffer::Buffer;
use crate::bench::statistics::median;
use std::hint::black_box;
use std::time::{Duration, Instant};
use transom::messages::Tag;
use transom::{Flavor, LockAllEpoch, Target, World};

/// Sweeps over a grid of n x n. Rank 0 chooses the number of sweeps from the time of one.
pub fn measure(worker: &Worker, world: &World, facts: &mut Facts) -> Outcome {
    let (n, time) = (worker.grid, worker.time());
    if n < 2 * world.size() {
        return Err(format!(
            "a grid of {n} columns has fewer than two for each of {} ranks; use a larger --grid",
            world.size()
        )
        .into());
    }
    let mut told = window::<u64>(world, 1)?;
    let mut window = window_of::<f64>(world, Flavor::Allocate { len: n }, 1)?;
    let epoch = window.lock_all()?;
    let way = match worker.sync {
        Sync::TwoSided => Way::Messages(world),
        _ => Way::signals(world, &epoch)?,
    };
    let mut part = Part::new(world, n, way);
    world.barrier()?;
    let mut took = Duration::from_nanos(1);
    // The first sweep is the warm-up, the second is timed.
    for _ in 0..2 {
        let begun = Instant::now();
        part.sweep()?;
        world.barrier()?;
        took = begun.elapsed();
    }
    told.local().set(0, (time.as_nanos() / took.as_nanos().max(1)).clamp(1, 1 << 20) as u64)?;
    told.fence()?;
    let sweeps = told.lock_shared(0)?.get_one(0)?;
    world.barrier()?;
    let begun = Instant::now();
    for _ in 0..sweeps {
        part.sweep()?;
    }
    world.barrier()?;
    let seconds = begun.elapsed().as_secs_f64();
    if world.rank() == 0 {
        let points = ((n - 1) * (n - 1)) as f64;
        facts.value("mflops", 2.0 * points * sweeps as f64 / seconds / 1e6);
        // Every element of the first row and column starts as its index. Each sweep adds the previous value of the
        // corner.
        let (corner, expected) = (-part.grid[1], (sweeps + 2) as f64 * (2 * n - 2) as f64);
        facts.check(corner == expected, || format!("the corner is {corner}, expected {expected}"));
        facts.value("limit", 2.0 * points / part.alone() / 1e6);
    }
    // Borrows the epoch.
    drop(part);
    epoch.unlock()?;
    Ok(())
}

const VALUE: Tag<f64> = Tag::new(1);

/// The transport of values from a rank to the next, and from the last rank to the first.
enum Way<'e, 'w> {
    Signals {
        epoch: &'e LockAllEpoch<'w, f64>,
        next: Target<'e, f64>,
        first: Target<'e, f64>,
        /// The number of values received in all sweeps, so that the signal need not be reset.
        come: u64,
    },
    Messages(&'w World),
}

impl<'e, 'w> Way<'e, 'w> {
    fn signals(world: &World, epoch: &'e LockAllEpoch<'w, f64>) -> Result<Self, transom::Error> {
        let (next, first) = (epoch.target((world.rank() + 1) % world.size())?, epoch.target(0)?);
        Ok(Way::Signals { epoch, next, first, come: 0 })
    }

    /// Passes a row's value to the next rank.
    fn send(&self, rank: usize, row: usize, value: f64) -> Result<(), transom::Error> {
        match self {
            Way::Signals { next, .. } => next.put_signal(row, &[value], 0, 1),
            Way::Messages(world) => Ok(world.send(rank + 1, VALUE, &[value])?),
        }
    }

    /// Passes the corner to the first rank.
    fn send_back(&self, value: f64) -> Result<(), transom::Error> {
        match self {
            Way::Signals { first, .. } => first.put_signal(0, &[value], 0, 1),
            Way::Messages(world) => Ok(world.send(0, VALUE, &[value])?),
        }
    }

    /// Receives the next value, which must be that of `row`.
    fn receive(&mut self, from: usize, row: usize) -> Result<f64, transom::Error> {
        match self {
            Way::Signals { epoch, come, .. } => {
                *come += 1;
                epoch.signals().wait_until(0, |values| values >= *come)?;
                epoch.local().get(row)
            }
            Way::Messages(world) => {
                let mut value = [0.0];
                world.recv_into(from, VALUE, &mut value)?;
                Ok(value[0])
            }
        }
    }
}

struct Part<'e, 'w> {
    way: Way<'e, 'w>,
    rank: usize,
    ranks: usize,
    rows: usize,
    /// The number of this rank's columns, and one more for the left neighbour's last.
    width: usize,
    grid: Buffer<f64>,
}

impl<'e, 'w> Part<'e, 'w> {
    fn new(world: &World, n: usize, way: Way<'e, 'w>) -> Self {
        let (rank, ranks) = (world.rank(), world.size());
        let mine = world.share(n);
        let width = mine.len() + 1;
        // The first row and the first column start as their indices.
        let grid = Buffer::new(n * width, |at| match (at / width, at % width) {
            (0, column) => (mine.start + column) as f64 - 1.0,
            (row, 1) if rank == 0 => row as f64,
            _ => 0.0,
        });
        Part { way, rank, ranks, rows: n, width, grid }
    }

    /// Computes one row of this rank's columns, and returns the last element.
    fn row(&mut self, i: usize) -> f64 {
        let (above, row) = self.grid[(i - 1) * self.width..(i + 1) * self.width].split_at_mut(self.width);
        // The grid's first column is given.
        let first_mine = if self.rank == 0 { 2 } else { 1 };
        let mut left = row[first_mine - 1];
        for (x, above) in row[first_mine..].iter_mut().zip(above[first_mine - 1..].windows(2)) {
            // Only one addition, not two, depends on the previous element.
            left += above[1] - above[0];
            *x = left;
        }
        left
    }

    /// The seconds of a sweep over this rank's columns without waiting, which is a lower limit.
    fn alone(&mut self) -> f64 {
        let sweeps = (0..15).map(|_| {
            let begun = Instant::now();
            for i in 1..self.rows {
                black_box(self.row(i));
            }
            begun.elapsed().as_secs_f64()
        });
        median(&sweeps.collect::<Vec<_>>())
    }

    fn sweep(&mut self) -> Result<(), transom::Error> {
        let (width, last) = (self.width, self.rank + 1 == self.ranks);
        for i in 1..self.rows {
            if self.rank > 0 {
                self.grid[i * width] = self.way.receive(self.rank - 1, i)?;
            }
            let handed_on = self.row(i);
            if !last {
                self.way.send(self.rank, i, handed_on)?;
            }
        }
        // The corner goes back to the first element, so that the next sweep starts from its negative.
        let corner = self.grid[self.rows * width - 1];
        if self.ranks == 1 {
            self.grid[1] = -corner;
        } else if last {
            self.way.send_back(-corner)?;
        } else if self.rank == 0 {
            self.grid[1] = self.way.receive(self.ranks - 1, 0)?;
        }
        Ok(())
    }
}
