//! Ways to the blocks of LU: what the factorisation asks of them, and the time that they take.

use super::flags::Flags;
use std::cell::Cell;
use std::time::Instant;
use transom::{Error, Local, Rank};

/// A way to the blocks. A block has one writer, its owner, and no reader before that has told that it is done: so ranks work on
/// their own blocks where they are in the window, and others' that are done do not change.
pub trait Blocks {
    /// One's own part.
    fn local(&self) -> Local<'_, f64>;
    /// Another's block, under its owner's lock.
    fn fetch(&mut self, owner: Rank, offset: usize, block: &mut [f64]) -> Result<(), Error>;
    /// Another's block where it is, if it can be read there.
    fn reach(&self, _owner: Rank, _offset: usize, _area: usize) -> Result<Option<&[f64]>, Error> {
        Ok(None)
    }
    /// Until another rank has come so far.
    fn wait(&mut self, flags: &Flags, rank: Rank, stage: u64) -> Result<(), Error> {
        flags.wait(rank, stage)
    }
    /// Between two block operations.
    fn between(&self) -> Result<(), Error> {
        Ok(())
    }
}

/// The time of what is not block operations, if there is a clock. (Block operations are forty times as many.)
pub struct Clocked<'b, B> {
    pub blocks: B,
    pub clock: Option<&'b Clock>,
}

/// In seconds.
#[derive(Default)]
pub struct Clock {
    pub fetching: Cell<f64>,
    pub waiting: Cell<f64>,
}

fn clocked<R>(clock: Option<&Cell<f64>>, call: impl FnOnce() -> R) -> R {
    let Some(clock) = clock else { return call() };
    let begun = Instant::now();
    let returned = call();
    clock.set(clock.get() + begun.elapsed().as_secs_f64());
    returned
}

impl<B: Blocks> Blocks for Clocked<'_, B> {
    fn local(&self) -> Local<'_, f64> {
        self.blocks.local()
    }

    fn fetch(&mut self, owner: Rank, offset: usize, block: &mut [f64]) -> Result<(), Error> {
        clocked(self.clock.map(|clock| &clock.fetching), || self.blocks.fetch(owner, offset, block))
    }

    fn reach(&self, owner: Rank, offset: usize, area: usize) -> Result<Option<&[f64]>, Error> {
        // Nothing moves: the reading is the block operations'.
        self.blocks.reach(owner, offset, area)
    }

    fn wait(&mut self, flags: &Flags, rank: Rank, stage: u64) -> Result<(), Error> {
        clocked(self.clock.map(|clock| &clock.waiting), || self.blocks.wait(flags, rank, stage))
    }

    fn between(&self) -> Result<(), Error> {
        // Of the two-sided way's polling only what is found counts: clocks would take longer than the look.
        self.blocks.between()
    }
}
