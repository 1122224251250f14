//! Dense LU by blocks, as in SPLASH-2: blocks of other ranks are fetched under their owner's lock, in one of two ways.
//! One-sided is the library's lock. Two-sided is how MPI libraries lock: the owner grants a request when it next looks,
//! here between two block operations; the rest of the program is the same, so the difference is the lock's.

#[allow(dead_code, reason = "shared with the example, which needs more")]
#[path = "../../../../../examples/lu/block.rs"]
mod block;

use super::{Facts, Measurement, Outcome, Sync, Worker, gather};
use block::Block;
use std::cell::Cell;
use std::time::{Duration, Instant};
use transom::provider::Provider;
use transom::windows::LockAllEpoch;
use transom::{Error, Rank, Window, World};

impl Worker {
    pub(super) fn lu(&self, world: &World, facts: &mut Facts) -> Outcome {
        let grid = Grid::new(world, self.n, self.block)?;
        // Signals for the two-sided way: requests of each rank, grants of each rank, and arrivals at fences.
        let mut window = world.allocate_with_signals::<f64>(grid.part(), 2 * world.size() + 1)?;
        // A rank works on its own blocks in place, in memory of its own; into the window goes what is done.
        let mut mine: Vec<_> = (0..grid.part() / grid.area()).map(|_| Block::new(grid.size)).collect();
        for (row, column) in grid.mine(0) {
            let element = |i, j| grid.element(row * grid.size + i, column * grid.size + j);
            let block = &mut mine[grid.number(row, column)];
            block.fill(element);
            // Memory that nobody touched before is not what is measured.
            window.local().write(grid.offset(row, column), block.elements())?;
        }
        window.fence()?;
        let clock = (self.measurement == Measurement::LuOutside).then(Cell::default);
        let begun = Instant::now();
        match self.sync {
            Sync::TwoSided => {
                let epoch = window.lock_all()?;
                let mut blocks = TwoSided::new(world, epoch);
                factor(grid, &mut mine, &mut Clocked { blocks: &mut blocks, clock: clock.as_ref() })?;
                blocks.epoch.unlock()?;
            }
            _ => {
                let mut blocks = OneSided(&mut window);
                factor(grid, &mut mine, &mut Clocked { blocks: &mut blocks, clock: clock.as_ref() })?;
            }
        }
        window.fence()?;
        let seconds = begun.elapsed().as_secs_f64();
        let outside = clock.map(|outside: Cell<Duration>| outside.get().as_secs_f64());
        let all = gather(world, &[seconds, outside.unwrap_or(0.0)])?;
        if world.rank() == 0 {
            facts.value("seconds", all[0][0]);
            if outside.is_some() {
                facts.value("outside_kernel", all.iter().map(|row| row[1]).sum::<f64>() / all.len() as f64);
            }
            let residual = residual(grid, &mut window)?;
            facts.check(residual <= 10.0, || format!("the residual of LU is {residual}, more than 10"));
        }
        window.fence()?;
        Ok(())
    }
}

/// Who owns which block: rows of blocks are dealt to rows of ranks, columns to columns.
#[derive(Clone, Copy)]
struct Grid {
    n: usize,
    /// Rows of a block.
    size: usize,
    /// Rows of blocks; the last may reach past n and is padded with the identity.
    blocks: usize,
    rank: Rank,
    rank_rows: usize,
    rank_columns: usize,
}

impl Grid {
    fn new(world: &World, n: usize, size: usize) -> Result<Self, String> {
        if size > n {
            return Err(format!("a block of {size} rows is larger than the matrix of {n}"));
        }
        let ranks = world.size();
        let rank_rows = (1..=ranks.isqrt()).rev().find(|rows| ranks.is_multiple_of(*rows)).unwrap_or(1);
        Ok(Grid { n, size, blocks: n.div_ceil(size), rank: world.rank(), rank_rows, rank_columns: ranks / rank_rows })
    }

    fn owner(self, row: usize, column: usize) -> Rank {
        row % self.rank_rows * self.rank_columns + column % self.rank_columns
    }

    /// Elements of a block.
    fn area(self) -> usize {
        self.size * self.size
    }

    /// The number of a block among its owner's.
    fn number(self, row: usize, column: usize) -> usize {
        row / self.rank_rows * self.blocks.div_ceil(self.rank_columns) + column / self.rank_columns
    }

    /// Where a block begins in its owner's part of the window.
    fn offset(self, row: usize, column: usize) -> usize {
        self.number(row, column) * self.area()
    }

    /// Elements of the window at each rank.
    fn part(self) -> usize {
        self.blocks.div_ceil(self.rank_rows) * self.blocks.div_ceil(self.rank_columns) * self.area()
    }

    /// My rows of blocks from `from` on, and my columns.
    fn rows(self, from: usize) -> impl Iterator<Item = usize> {
        (from..self.blocks).filter(move |row| row % self.rank_rows == self.rank / self.rank_columns)
    }

    fn columns(self, from: usize) -> impl Iterator<Item = usize> {
        (from..self.blocks).filter(move |column| column % self.rank_columns == self.rank % self.rank_columns)
    }

    /// My blocks to the right of and below a diagonal block.
    fn mine(self, from: usize) -> impl Iterator<Item = (usize, usize)> {
        self.rows(from).flat_map(move |row| self.columns(from).map(move |column| (row, column)))
    }

    /// An element of the matrix to be factored, from a hash of its place.
    fn element(self, row: usize, column: usize) -> f64 {
        if row >= self.n || column >= self.n {
            return f64::from(row == column);
        }
        let mut hash = (row as u64) << 32 | column as u64;
        for _ in 0..2 {
            hash = (hash ^ hash >> 31).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        }
        let random = (hash >> 11) as f64 / (1u64 << 52) as f64 - 1.0;
        if row == column { self.n as f64 + 1.0 + random } else { random }
    }
}

/// A way to the blocks.
trait Blocks {
    /// Into one's own part, for others to fetch.
    fn publish(&self, offset: usize, block: &Block) -> Result<(), Error>;
    /// Another's part, under its lock.
    fn fetch(&mut self, owner: Rank, offset: usize, block: &mut Block) -> Result<(), Error>;
    fn fence(&mut self) -> Result<(), Error>;
    /// Between two block operations.
    fn between(&mut self) -> Result<(), Error>;
}

fn factor(grid: Grid, mine: &mut [Block], blocks: &mut impl Blocks) -> Result<(), Error> {
    let new = || Block::new(grid.size);
    let (mut diagonal, mut left) = (new(), new());
    let mut upper: Vec<_> = grid.columns(0).map(|_| new()).collect();
    for step in 0..grid.blocks {
        if grid.owner(step, step) == grid.rank {
            let block = &mut mine[grid.number(step, step)];
            block.factor();
            blocks.publish(grid.offset(step, step), block)?;
        }
        blocks.fence()?;

        let below: Vec<_> = grid.rows(step + 1).filter(|&row| grid.owner(row, step) == grid.rank).collect();
        let right: Vec<_> = grid.columns(step + 1).filter(|&column| grid.owner(step, column) == grid.rank).collect();
        if below.len() + right.len() > 0 {
            get(grid, mine, blocks, (step, step), &mut diagonal)?;
        }
        let mut solver = diagonal.inverses();
        for row in below {
            let block = &mut mine[grid.number(row, step)];
            block.solve_upper(&mut solver);
            blocks.publish(grid.offset(row, step), block)?;
            blocks.between()?;
        }
        for column in right {
            let block = &mut mine[grid.number(step, column)];
            block.solve_lower(&mut solver);
            blocks.publish(grid.offset(step, column), block)?;
            blocks.between()?;
        }
        blocks.fence()?;

        // The pivot row's blocks serve all my rows, so they are fetched once.
        for (upper, column) in upper.iter_mut().zip(grid.columns(step + 1)) {
            get(grid, mine, blocks, (step, column), upper)?;
        }
        for row in grid.rows(step + 1) {
            get(grid, mine, blocks, (row, step), &mut left)?;
            for (upper, column) in upper.iter().zip(grid.columns(step + 1)) {
                let block = &mut mine[grid.number(row, column)];
                block.subtract_product(&left, upper);
                blocks.between()?;
            }
        }
    }
    Ok(())
}

/// Copies a block that is done here, wherever it is.
fn get(
    grid: Grid,
    mine: &[Block],
    blocks: &mut impl Blocks,
    (row, column): (usize, usize),
    into: &mut Block,
) -> Result<(), Error> {
    let owner = grid.owner(row, column);
    if owner == grid.rank {
        into.elements_mut().copy_from_slice(mine[grid.number(row, column)].elements());
        return Ok(());
    }
    blocks.fetch(owner, grid.offset(row, column), into)
}

/// Adds what is not block operations to the clock, if there is one. (Block operations are forty times as many.)
struct Clocked<'b, B> {
    blocks: &'b mut B,
    clock: Option<&'b Cell<Duration>>,
}

fn clocked<R>(clock: Option<&Cell<Duration>>, call: impl FnOnce() -> R) -> R {
    let Some(clock) = clock else { return call() };
    let begun = Instant::now();
    let returned = call();
    clock.set(clock.get() + begun.elapsed());
    returned
}

impl<B: Blocks> Blocks for Clocked<'_, B> {
    fn publish(&self, offset: usize, block: &Block) -> Result<(), Error> {
        clocked(self.clock, || self.blocks.publish(offset, block))
    }

    fn fetch(&mut self, owner: Rank, offset: usize, block: &mut Block) -> Result<(), Error> {
        clocked(self.clock, || self.blocks.fetch(owner, offset, block))
    }

    fn fence(&mut self) -> Result<(), Error> {
        clocked(self.clock, || self.blocks.fence())
    }

    fn between(&mut self) -> Result<(), Error> {
        // Of the two-sided way's polling only what is found counts: clocks would take longer than the look.
        self.blocks.between()
    }
}

struct OneSided<'w>(&'w mut Window<f64>);

impl Blocks for OneSided<'_> {
    fn publish(&self, offset: usize, block: &Block) -> Result<(), Error> {
        self.0.local().write(offset, block.elements())
    }

    fn fetch(&mut self, owner: Rank, offset: usize, block: &mut Block) -> Result<(), Error> {
        let epoch = self.0.lock_shared(owner)?;
        epoch.get(offset, block.elements_mut())?;
        epoch.unlock()
    }

    fn fence(&mut self) -> Result<(), Error> {
        self.0.fence().map(drop)
    }

    fn between(&mut self) -> Result<(), Error> {
        Ok(())
    }
}

/// Requests and grants are counted in signals: of each rank its requests, of each rank its grants, arrivals at fences.
struct TwoSided<'w> {
    epoch: LockAllEpoch<'w, f64, Provider>,
    rank: Rank,
    ranks: usize,
    served: Vec<u64>,
    granted: Vec<u64>,
    fences: u64,
}

impl<'w> TwoSided<'w> {
    fn new(world: &World, epoch: LockAllEpoch<'w, f64, Provider>) -> Self {
        let (rank, ranks) = (world.rank(), world.size());
        TwoSided { epoch, rank, ranks, served: vec![0; ranks], granted: vec![0; ranks], fences: 0 }
    }

    /// Adds 1 to a signal of a rank.
    fn tell(&self, rank: Rank, signal: usize) -> Result<(), Error> {
        self.epoch.target(rank)?.put_signal(0, &[], signal, 1)
    }

    /// Waits until a signal has come so far, and grants what is asked for meanwhile.
    fn wait(&mut self, signal: usize, value: u64) -> Result<(), Error> {
        let mut all: Vec<_> = (0..self.ranks).collect();
        all.push(signal);
        loop {
            self.between()?;
            let served = &self.served;
            let news =
                |at: usize, now| if at == signal { now >= value } else { served.get(at).is_some_and(|&s| now > s) };
            if self.epoch.signals().wait_any(&all, news)?.0 == signal {
                return Ok(());
            }
        }
    }
}

impl Blocks for TwoSided<'_> {
    fn publish(&self, offset: usize, block: &Block) -> Result<(), Error> {
        self.epoch.local().write(offset, block.elements())
    }

    fn fetch(&mut self, owner: Rank, offset: usize, block: &mut Block) -> Result<(), Error> {
        self.tell(owner, self.rank)?;
        self.granted[owner] += 1;
        self.wait(self.ranks + owner, self.granted[owner])?;
        self.epoch.target(owner)?.get(offset, block.elements_mut())
    }

    fn fence(&mut self) -> Result<(), Error> {
        let arrivals = 2 * self.ranks;
        (0..self.ranks).try_for_each(|rank| self.tell(rank, arrivals))?;
        self.fences += 1;
        self.wait(arrivals, self.fences * self.ranks as u64)
    }

    /// Grants what was asked for.
    fn between(&mut self) -> Result<(), Error> {
        for origin in 0..self.ranks {
            while self.epoch.signals().read(origin)? > self.served[origin] {
                self.served[origin] += 1;
                self.tell(origin, self.ranks + self.rank)?;
            }
        }
        Ok(())
    }
}

/// |LUx - Ax| in units of n eps max|A| |x|, for one x: one rank can have it in the time of reading all blocks once.
fn residual(grid: Grid, window: &mut Window<f64>) -> Result<f64, Error> {
    let (size, padded) = (grid.size, grid.blocks * grid.size);
    let mut factors = Vec::with_capacity(grid.blocks * grid.blocks);
    for (row, column) in (0..grid.blocks).flat_map(|row| (0..grid.blocks).map(move |column| (row, column))) {
        let mut block = Block::new(size);
        window.lock_shared(grid.owner(row, column))?.get(grid.offset(row, column), block.elements_mut())?;
        factors.push(block);
    }
    let factor = |i: usize, j: usize| factors[i / size * grid.blocks + j / size].elements()[i % size * size + j % size];
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
