//! Dense LU by blocks, as in SPLASH-2. Blocks of other ranks are copied, or read in place if the ranks share memory.

mod blocks;
mod factorise;
mod flags;
mod grid;
mod ways;

use super::arguments::{Measurement, Sync, Worker};
use super::facts::{Facts, Outcome, gather};
use super::kernel;
use blocks::{Blocks, Clock, Clocked};
use factorise::{Room, factorise};
use flags::Flags;
use grid::Grid;
use std::time::Instant;
use transom::{Error, Flavor, Window, World};
use ways::{Flushed, OneSided, Shared, TwoSided};

pub fn measure(worker: &Worker, world: &World, facts: &mut Facts) -> Outcome {
    let grid = Grid::new(world, worker.n, worker.block)?;
    let flavor = match worker.sync {
        Sync::Shared => Flavor::Shared { len: grid.part() },
        _ => Flavor::Allocate { len: grid.part() },
    };
    let mut window: Window<f64> = world.window(flavor, 0)?;
    let mut flags = Flags::window(world)?;
    let flags = Flags::new(world, &mut flags)?;
    for (row, column) in grid.mine(0) {
        let element = |at| grid.element(row * grid.size + at / grid.size, column * grid.size + at % grid.size);
        let block: Vec<f64> = (0..grid.area()).map(element).collect();
        window.local().write(grid.offset(row, column), &block)?;
    }
    window.fence()?;
    let clock = (worker.measurement == Measurement::LuOutside).then(Clock::default);
    let clocked = clock.as_ref();
    let room = Room::new(grid);
    let begun = Instant::now();
    match worker.sync {
        Sync::TwoSided => {
            let blocks = TwoSided::new(window.lock_all()?, &flags);
            by(grid, blocks, &flags, clocked, room)?.epoch.unlock()?;
        }
        Sync::Flush => {
            by(grid, Flushed(window.lock_all()?), &flags, clocked, room)?.0.unlock()?;
        }
        Sync::Shared => _ = by(grid, Shared(&mut window), &flags, clocked, room)?,
        _ => _ = by(grid, OneSided(&mut window), &flags, clocked, room)?,
    }
    window.fence()?;
    let seconds = begun.elapsed().as_secs_f64();
    let Clock { fetching, telling, waiting } = clock.unwrap_or_default();
    let all = gather(world, &[seconds, fetching.get() + telling.get(), waiting.get()])?;
    if world.rank() == 0 {
        let mean = |of: usize| all.iter().map(|row| row[of]).sum::<f64>() / all.len() as f64;
        facts.value("seconds", all[0][0]);
        if worker.measurement == Measurement::LuOutside {
            facts.value("outside_kernel", mean(1) + mean(2));
            facts.value("waiting", mean(2));
        }
        kernel::tell(worker.block, facts);
        let residual = residual(grid, &mut window)?;
        facts.check(residual <= 10.0, || format!("the residual of LU is {residual}, expected at most 10"));
    }
    window.fence()?;
    Ok(())
}

/// Factors with the given access to the blocks, and returns the access.
fn by<B: Blocks>(grid: Grid, blocks: B, flags: &Flags, clock: Option<&Clock>, room: Room) -> Result<B, Error> {
    let mut blocks = Clocked { blocks, clock };
    factorise(grid, &mut blocks, flags, room)?;
    Ok(blocks.blocks)
}

/// |LUx - Ax| in units of n eps max|A| |x|, for one x. One rank computes it in the time of reading all blocks once.
fn residual(grid: Grid, window: &mut Window<f64>) -> Result<f64, Error> {
    let (size, padded) = (grid.size, grid.blocks * grid.size);
    let mut factors = Vec::with_capacity(grid.blocks * grid.blocks);
    for (row, column) in (0..grid.blocks).flat_map(|row| (0..grid.blocks).map(move |column| (row, column))) {
        let mut block = vec![0.0; grid.area()];
        window.lock_shared(grid.owner(row, column))?.get(grid.offset(row, column), &mut block)?;
        factors.push(block);
    }
    let factor = |i: usize, j: usize| factors[i / size * grid.blocks + j / size][i % size * size + j % size];
    let x: Vec<f64> = (0..padded).map(|i| 1.0 + (i % 7) as f64 / 7.0).collect();
    let upper: Vec<f64> = (0..padded).map(|i| (i..padded).map(|j| factor(i, j) * x[j]).sum()).collect();
    let (mut worst, mut largest) = (0.0f64, 0.0f64);
    for i in 0..padded {
        let lower = upper[i] + (0..i).map(|j| factor(i, j) * upper[j]).sum::<f64>();
        let mut product = 0.0;
        for (j, x) in x.iter().enumerate() {
            let element = grid.element(i, j);
            largest = largest.max(element.abs());
            product += element * x;
        }
        let off = (lower - product).abs();
        worst = if off.is_nan() { f64::INFINITY } else { worst.max(off) };
    }
    Ok(worst / (grid.n as f64 * f64::EPSILON * largest * 2.0))
}
