//! The factorization, in place in the blocks' memory. There are no barriers: each rank goes through its rows of blocks
//! step by step, announces its progress, and waits only for blocks that it needs.

use super::blocks::Blocks;
use super::flags::Flags;
use super::grid::Grid;
use crate::bench::buffer::Buffer;
use crate::bench::worker::block::{Inverses, factor, subtract_product};
use std::ops::Range;
use transom::{Error, Rank};

/// A rank's memory besides its blocks.
pub struct Room {
    /// Another rank's block of a pivot column, in one of this rank's rows.
    left: Buffer<f64>,
    /// Other ranks' blocks of a pivot row, in this rank's columns.
    uppers: Buffer<f64>,
    /// Another rank's diagonal block.
    diagonal: Buffer<f64>,
    inverses: Inverses,
    /// The step whose diagonal block `inverses` belongs to.
    inverted: Option<usize>,
}

impl Room {
    pub fn new(grid: Grid) -> Self {
        let blocks = |count: usize| Buffer::new(count * grid.area(), |_| 0.0);
        let (inverses, inverted) = (Inverses::new(grid.size), None);
        Room { left: blocks(1), uppers: blocks(grid.columns(0).count()), diagonal: blocks(1), inverses, inverted }
    }
}

pub fn factorise(grid: Grid, blocks: &mut impl Blocks, flags: &Flags, room: Room) -> Result<(), Error> {
    let stages = Stages { blocks: grid.blocks };
    let mut work = Factorisation { grid, blocks, flags, room, stages };
    for step in 0..grid.blocks {
        work.bring_uppers(step)?;
        for row in grid.rows(step) {
            work.row(step, row)?;
        }
    }
    // An owner that grants its locks itself must continue until no rank needs one.
    work.blocks.tell(flags, stages.end())?;
    (0..flags.ranks()).try_for_each(|rank| work.wait(rank, stages.end()))
}

/// The numbering of a rank's progress. A rank goes through steps and their rows in order, so each stage includes all
/// earlier ones.
#[derive(Clone, Copy)]
struct Stages {
    blocks: usize,
}

impl Stages {
    fn diagonal(self, step: usize) -> u64 {
        self.row(step, step) - 1
    }

    /// The step's solved blocks of a row: that in the pivot column, or the whole pivot row.
    fn row(self, step: usize, row: usize) -> u64 {
        (step * (self.blocks + 1) + row + 2) as u64
    }

    fn end(self) -> u64 {
        self.row(self.blocks, self.blocks)
    }
}

struct Factorisation<'a, 'f, B> {
    grid: Grid,
    blocks: &'a mut B,
    flags: &'a Flags<'f>,
    room: Room,
    stages: Stages,
}

impl<B: Blocks> Factorisation<'_, '_, B> {
    fn wait(&mut self, rank: Rank, stage: u64) -> Result<(), Error> {
        if rank == self.grid.rank { Ok(()) } else { self.blocks.wait(self.flags, rank, stage) }
    }

    /// Fetches the previous step's pivot row once, as it updates all rows of this rank.
    fn bring_uppers(&mut self, step: usize) -> Result<(), Error> {
        let (grid, area) = (self.grid, self.grid.area());
        let (Some(before), Some(first)) = (step.checked_sub(1), grid.columns(step).next()) else { return Ok(()) };
        let owner = grid.owner(before, first);
        self.wait(owner, self.stages.row(before, before))?;
        for (upper, column) in self.room.uppers.chunks_exact_mut(area).zip(grid.columns(step)) {
            if owner != grid.rank {
                self.blocks.fetch(owner, grid.offset(before, column), upper)?;
            }
        }
        Ok(())
    }

    /// Updates a row of this rank by the previous step, and solves this step's part of it. The blocks that others wait
    /// for come first.
    fn row(&mut self, step: usize, row: usize) -> Result<(), Error> {
        let (grid, area) = (self.grid, self.grid.area());
        if let Some(before) = step.checked_sub(1) {
            self.wait(grid.owner(row, before), self.stages.row(before, row))?;
            bring(grid, self.blocks, (row, before), &mut self.room.left)?;
        }
        if grid.owner(row, step) == grid.rank {
            self.update(step, row, step..step + 1)?;
            let block = grid.offset(row, step);
            if row == step {
                factor(grid.size, own_mut(self.blocks, block, area)?);
                self.blocks.tell(self.flags, self.stages.diagonal(step))?;
            } else {
                self.invert(step)?;
                self.room.inverses.solve_upper(own_mut(self.blocks, block, area)?);
                self.blocks.tell(self.flags, self.stages.row(step, row))?;
            }
        }
        self.update(step, row, step + 1..grid.blocks)?;
        if row == step {
            for column in grid.columns(step + 1) {
                self.invert(step)?;
                self.room.inverses.solve_lower(own_mut(self.blocks, grid.offset(row, column), area)?);
                self.blocks.between()?;
            }
            self.blocks.tell(self.flags, self.stages.row(step, row))?;
        }
        Ok(())
    }

    /// Subtracts the previous step's product from this rank's blocks of a row in the given columns.
    fn update(&mut self, step: usize, row: usize, columns: Range<usize>) -> Result<(), Error> {
        let (grid, area) = (self.grid, self.grid.area());
        let mine = grid.columns(columns.start).take_while(|column| columns.contains(column));
        let (Some(before), Some(first)) = (step.checked_sub(1), mine.clone().next()) else { return Ok(()) };
        // In each row, the blocks of this rank's columns are contiguous.
        let (all, skipped) =
            (mine.count() * area, grid.columns(step).take_while(|&column| column < first).count() * area);
        let left = brought(grid, self.blocks, (row, before), &self.room.left)?;
        let upper = match grid.owner(before, first) == grid.rank {
            true => own(self.blocks, grid.offset(before, first), all)?,
            false => &self.room.uppers[skipped..][..all],
        };
        let mine = own_mut(self.blocks, grid.offset(row, first), all)?;
        for (mine, upper) in mine.chunks_exact_mut(area).zip(upper.chunks_exact(area)) {
            subtract_product(grid.size, mine, left, upper);
            self.blocks.between()?;
        }
        Ok(())
    }

    /// Inverts the diagonal block of a step, once it is done.
    fn invert(&mut self, step: usize) -> Result<(), Error> {
        let (grid, owner) = (self.grid, self.grid.owner(step, step));
        if self.room.inverted.replace(step) != Some(step) {
            self.wait(owner, self.stages.diagonal(step))?;
            bring(grid, self.blocks, (step, step), &mut self.room.diagonal)?;
            self.room.inverses.invert(brought(grid, self.blocks, (step, step), &self.room.diagonal)?);
        }
        Ok(())
    }
}

/// Copies a finished block to `room`, unless it can be read in place.
fn bring(grid: Grid, blocks: &mut impl Blocks, (row, column): (usize, usize), room: &mut [f64]) -> Result<(), Error> {
    let (owner, offset) = (grid.owner(row, column), grid.offset(row, column));
    if owner == grid.rank || blocks.reach(owner, offset, room.len())?.is_some() {
        return Ok(());
    }
    blocks.fetch(owner, offset, room)
}

/// A block that [`bring`] has made available.
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

/// Finished blocks of this rank.
fn own<B: Blocks>(blocks: &B, offset: usize, len: usize) -> Result<&[f64], Error> {
    // SAFETY: a finished block has no writer. Only its owner writes it, before announcing the stage that finishes it.
    unsafe { blocks.local().as_slice(offset, len) }
}

/// Blocks of this rank that it may write.
#[allow(clippy::mut_from_ref, reason = "of memory that is not behind the reference")]
fn own_mut<B: Blocks>(blocks: &B, offset: usize, len: usize) -> Result<&mut [f64], Error> {
    // SAFETY: no other rank reads a block before its owner has announced the stage that finishes it, and
    // `Factorisation` holds no other slice of it.
    unsafe { blocks.local().as_mut_slice(offset, len) }
}
