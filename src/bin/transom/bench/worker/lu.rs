//! Dense LU by blocks, as in SPLASH-2: blocks of other ranks are fetched under their owner's lock, in one of two ways, or read
//! where they are, if ranks share memory.
//! One-sided is the library's lock. Two-sided is how MPI libraries lock: the owner grants a request when it next looks,
//! here between two block operations; the rest of the program is the same, so the difference is the lock's.

#[path = "../../../../../examples/lu/block.rs"]
pub(super) mod block;

use super::{Facts, Measurement, Outcome, Sync, Worker, gather, kernel};
use block::{Inverses, factor, subtract_product};
use std::cell::Cell;
use std::time::Instant;
use transom::provider::Provider;
use transom::windows::{Flavor, Local, LockAllEpoch};
use transom::{Error, Rank, Window, World};

impl Worker {
    pub(super) fn lu(&self, world: &World, facts: &mut Facts) -> Outcome {
        let grid = Grid::new(world, self.n, self.block)?;
        // Signals for the two-sided way: requests of each rank, grants of each rank, and arrivals at fences.
        let flavor = match self.sync {
            Sync::Shared => Flavor::Shared { len: grid.part() },
            _ => Flavor::Allocate { len: grid.part() },
        };
        let mut window: Window<f64> = world.window(flavor, 2 * world.size() + 1)?;
        for (row, column) in grid.mine(0) {
            let element = |at| grid.element(row * grid.size + at / grid.size, column * grid.size + at % grid.size);
            let block: Vec<f64> = (0..grid.area()).map(element).collect();
            window.local().write(grid.offset(row, column), &block)?;
        }
        window.fence()?;
        let clock = (self.measurement == Measurement::LuOutside).then(Clock::default);
        let begun = Instant::now();
        match self.sync {
            Sync::TwoSided => {
                let epoch = window.lock_all()?;
                let mut blocks = Clocked { blocks: TwoSided::new(world, epoch), clock: clock.as_ref() };
                factorise(grid, &mut blocks)?;
                blocks.blocks.epoch.unlock()?;
            }
            Sync::Shared => factorise(grid, &mut Clocked { blocks: Shared(&mut window), clock: clock.as_ref() })?,
            _ => factorise(grid, &mut Clocked { blocks: OneSided(&mut window), clock: clock.as_ref() })?,
        }
        window.fence()?;
        let seconds = begun.elapsed().as_secs_f64();
        let Clock { fetching, waiting } = clock.unwrap_or_default();
        let all = gather(world, &[seconds, fetching.get(), waiting.get()])?;
        if world.rank() == 0 {
            let mean = |of: usize| all.iter().map(|row| row[of]).sum::<f64>() / all.len() as f64;
            facts.value("seconds", all[0][0]);
            if self.measurement == Measurement::LuOutside {
                facts.value("outside_kernel", mean(1) + mean(2));
                facts.value("waiting", mean(2));
            } else {
                let (kernel, peak) = kernel::speeds(self.block);
                facts.value("kernel", kernel);
                facts.value("peak", peak);
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
    fn rows(self, from: usize) -> impl Iterator<Item = usize> + Clone {
        (from..self.blocks).filter(move |row| row % self.rank_rows == self.rank / self.rank_columns)
    }

    fn columns(self, from: usize) -> impl Iterator<Item = usize> + Clone {
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

/// A way to the blocks. Between two fences a block has one writer, its owner, and no reader before the next: so ranks work
/// on their own blocks where they are in the window, and others' that are done do not change.
trait Blocks {
    /// One's own part.
    fn local(&self) -> Local<'_, f64, Provider>;
    /// Another's block, under its owner's lock.
    fn fetch(&mut self, owner: Rank, offset: usize, block: &mut [f64]) -> Result<(), Error>;
    /// Another's block where it is, if it can be read there.
    fn reach(&self, _owner: Rank, _offset: usize, _area: usize) -> Result<Option<&[f64]>, Error> {
        Ok(None)
    }
    fn fence(&mut self) -> Result<(), Error>;
    /// Between two block operations.
    fn between(&self) -> Result<(), Error> {
        Ok(())
    }
}

fn factorise(grid: Grid, blocks: &mut impl Blocks) -> Result<(), Error> {
    let (size, area) = (grid.size, grid.area());
    let mut room = vec![0.0; area];
    let mut uppers = vec![0.0; grid.columns(0).count() * area];
    let mut inverses = Inverses::new(size);
    for step in 0..grid.blocks {
        if grid.owner(step, step) == grid.rank {
            factor(size, own_mut(blocks, grid.offset(step, step), area)?);
        }
        blocks.fence()?;

        let below = grid.rows(step + 1).filter(|&row| grid.owner(row, step) == grid.rank);
        let right = grid.columns(step + 1).filter(|&column| grid.owner(step, column) == grid.rank);
        if below.clone().chain(right.clone()).next().is_some() {
            bring(grid, blocks, (step, step), &mut room)?;
            inverses.invert(brought(grid, blocks, (step, step), &room)?);
        }
        for row in below {
            inverses.solve_upper(own_mut(blocks, grid.offset(row, step), area)?);
            blocks.between()?;
        }
        for column in right {
            inverses.solve_lower(own_mut(blocks, grid.offset(step, column), area)?);
            blocks.between()?;
        }
        blocks.fence()?;

        // My columns' blocks follow one another, in each row. Those of the pivot row serve all my rows, so they are fetched once.
        let Some(first) = grid.columns(step + 1).next() else { continue };
        let all = grid.columns(step + 1).count() * area;
        let owner = grid.owner(step, first);
        if owner != grid.rank {
            for (upper, column) in uppers.chunks_exact_mut(area).zip(grid.columns(step + 1)) {
                blocks.fetch(owner, grid.offset(step, column), upper)?;
            }
        }
        for row in grid.rows(step + 1) {
            bring(grid, blocks, (row, step), &mut room)?;
            let left = brought(grid, blocks, (row, step), &room)?;
            let upper = if owner == grid.rank { own(blocks, grid.offset(step, first), all)? } else { &uppers[..all] };
            let mine = own_mut(blocks, grid.offset(row, first), all)?;
            for (mine, upper) in mine.chunks_exact_mut(area).zip(upper.chunks_exact(area)) {
                subtract_product(size, mine, left, upper);
                blocks.between()?;
            }
        }
    }
    Ok(())
}

/// Brings a block that is done to `room`, unless it can be read where it is.
fn bring(grid: Grid, blocks: &mut impl Blocks, (row, column): (usize, usize), room: &mut [f64]) -> Result<(), Error> {
    let (owner, offset) = (grid.owner(row, column), grid.offset(row, column));
    if owner == grid.rank || blocks.reach(owner, offset, room.len())?.is_some() {
        return Ok(());
    }
    blocks.fetch(owner, offset, room)
}

/// A block that was brought.
fn brought<'b>(
    grid: Grid,
    blocks: &'b impl Blocks,
    (row, column): (usize, usize),
    room: &'b [f64],
) -> Result<&'b [f64], Error> {
    let (owner, offset) = (grid.owner(row, column), grid.offset(row, column));
    if owner == grid.rank {
        return own(blocks, offset, room.len());
    }
    Ok(blocks.reach(owner, offset, room.len())?.unwrap_or(room))
}

/// Own blocks that are done.
fn own<B: Blocks>(blocks: &B, offset: usize, len: usize) -> Result<&[f64], Error> {
    // SAFETY: they are not written before the next fence, which `blocks` cannot do meanwhile.
    unsafe { blocks.local().as_slice(offset, len) }
}

/// Own blocks to be written.
#[allow(clippy::mut_from_ref, reason = "of memory that is not behind the reference")]
fn own_mut<B: Blocks>(blocks: &B, offset: usize, len: usize) -> Result<&mut [f64], Error> {
    // SAFETY: nobody else reads them before the next fence, which `blocks` cannot do meanwhile, and `factorise` has no other
    // slice of them.
    unsafe { blocks.local().as_mut_slice(offset, len) }
}

/// The time of what is not block operations, if there is a clock. (Block operations are forty times as many.)
struct Clocked<'b, B> {
    blocks: B,
    clock: Option<&'b Clock>,
}

/// In seconds.
#[derive(Default)]
struct Clock {
    fetching: Cell<f64>,
    waiting: Cell<f64>,
}

fn clocked<R>(clock: Option<&Cell<f64>>, call: impl FnOnce() -> R) -> R {
    let Some(clock) = clock else { return call() };
    let begun = Instant::now();
    let returned = call();
    clock.set(clock.get() + begun.elapsed().as_secs_f64());
    returned
}

impl<B: Blocks> Blocks for Clocked<'_, B> {
    fn local(&self) -> Local<'_, f64, Provider> {
        self.blocks.local()
    }

    fn fetch(&mut self, owner: Rank, offset: usize, block: &mut [f64]) -> Result<(), Error> {
        clocked(self.clock.map(|clock| &clock.fetching), || self.blocks.fetch(owner, offset, block))
    }

    fn reach(&self, owner: Rank, offset: usize, area: usize) -> Result<Option<&[f64]>, Error> {
        // Nothing moves: the reading is the block operations'.
        self.blocks.reach(owner, offset, area)
    }

    fn fence(&mut self) -> Result<(), Error> {
        clocked(self.clock.map(|clock| &clock.waiting), || self.blocks.fence())
    }

    fn between(&self) -> Result<(), Error> {
        // Of the two-sided way's polling only what is found counts: clocks would take longer than the look.
        self.blocks.between()
    }
}

struct OneSided<'w>(&'w mut Window<f64>);

impl Blocks for OneSided<'_> {
    fn local(&self) -> Local<'_, f64, Provider> {
        self.0.local()
    }

    fn fetch(&mut self, owner: Rank, offset: usize, block: &mut [f64]) -> Result<(), Error> {
        let epoch = self.0.lock_shared(owner)?;
        epoch.get(offset, block)?;
        epoch.unlock()
    }

    fn fence(&mut self) -> Result<(), Error> {
        self.0.fence().map(drop)
    }
}

/// Where all ranks share memory.
struct Shared<'w>(&'w mut Window<f64>);

impl Blocks for Shared<'_> {
    fn local(&self) -> Local<'_, f64, Provider> {
        self.0.local()
    }

    fn fetch(&mut self, owner: Rank, offset: usize, block: &mut [f64]) -> Result<(), Error> {
        self.0.local().of(owner)?.read_into(offset, block)
    }

    fn reach(&self, owner: Rank, offset: usize, area: usize) -> Result<Option<&[f64]>, Error> {
        // SAFETY: the block is done, so its owner does not write it before the next fence, which `self` cannot do meanwhile.
        unsafe { self.0.local().of(owner)?.as_slice(offset, area) }.map(Some)
    }

    fn fence(&mut self) -> Result<(), Error> {
        self.0.fence().map(drop)
    }
}

/// Requests and grants are counted in signals: of each rank its requests, of each rank its grants, arrivals at fences.
struct TwoSided<'w> {
    epoch: LockAllEpoch<'w, f64, Provider>,
    rank: Rank,
    ranks: usize,
    served: Vec<Cell<u64>>,
    granted: Vec<u64>,
    fences: u64,
}

impl<'w> TwoSided<'w> {
    fn new(world: &World, epoch: LockAllEpoch<'w, f64, Provider>) -> Self {
        let (rank, ranks) = (world.rank(), world.size());
        TwoSided { epoch, rank, ranks, served: vec![Cell::new(0); ranks], granted: vec![0; ranks], fences: 0 }
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
            let news = |at: usize, now| {
                if at == signal { now >= value } else { served.get(at).is_some_and(|s| now > s.get()) }
            };
            if self.epoch.signals().wait_any(&all, news)?.0 == signal {
                return Ok(());
            }
        }
    }
}

impl Blocks for TwoSided<'_> {
    fn local(&self) -> Local<'_, f64, Provider> {
        self.epoch.local()
    }

    fn fetch(&mut self, owner: Rank, offset: usize, block: &mut [f64]) -> Result<(), Error> {
        self.tell(owner, self.rank)?;
        self.granted[owner] += 1;
        self.wait(self.ranks + owner, self.granted[owner])?;
        self.epoch.target(owner)?.get(offset, block)
    }

    fn fence(&mut self) -> Result<(), Error> {
        let arrivals = 2 * self.ranks;
        (0..self.ranks).try_for_each(|rank| self.tell(rank, arrivals))?;
        self.fences += 1;
        self.wait(arrivals, self.fences * self.ranks as u64)
    }

    /// Grants what was asked for.
    fn between(&self) -> Result<(), Error> {
        for (origin, served) in self.served.iter().enumerate() {
            while self.epoch.signals().read(origin)? > served.get() {
                served.set(served.get() + 1);
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
