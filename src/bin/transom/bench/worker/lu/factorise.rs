//! The factorisation, in the blocks' own memory.

use super::blocks::Blocks;
use super::grid::Grid;
use crate::bench::buffer::Buffer;
use crate::bench::worker::block::{Inverses, factor, subtract_product};
use transom::Error;

/// What a rank needs besides its blocks.
pub struct Room {
    /// A block of another's.
    room: Buffer<f64>,
    /// Those of a pivot row.
    uppers: Buffer<f64>,
    inverses: Inverses,
}

impl Room {
    pub fn new(grid: Grid) -> Self {
        Room {
            room: Buffer::new(grid.area(), |_| 0.0),
            uppers: Buffer::new(grid.columns(0).count() * grid.area(), |_| 0.0),
            inverses: Inverses::new(grid.size),
        }
    }
}

pub fn factorise(grid: Grid, blocks: &mut impl Blocks, room: Room) -> Result<(), Error> {
    let (size, area) = (grid.size, grid.area());
    let Room { mut room, mut uppers, mut inverses } = room;
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
