//! Access to the blocks of LU: what the factorization needs, and the time that it takes.

use super::flags::Flags;
use std::cell::Cell;
use std::time::Instant;
use transom::{Error, Local, Rank};

/// Access to the blocks. A block is written only by its owner, and others read it only after the owner has announced
/// that it is done. So a rank works on its own blocks in place, and blocks of others do not change once done.
pub trait Blocks {
    /// This rank's part of the window.
    fn local(&self) -> Local<'_, f64>;
    /// Copies another rank's block, under its owner's lock.
    fn fetch(&mut self, owner: Rank, offset: usize, block: &mut [f64]) -> Result<(), Error>;
    /// Another rank's block in place, if memory is shared.
    fn reach(&self, _owner: Rank, _offset: usize, _area: usize) -> Result<Option<&[f64]>, Error> {
        Ok(None)
    }
    /// Waits until another rank has reached a stage.
    fn wait(&mut self, flags: &Flags, rank: Rank, stage: u64) -> Result<(), Error> {
        flags.wait(rank, stage)
    }
    /// Announces a stage to all others.
    fn tell(&mut self, flags: &Flags, stage: u64) -> Result<(), Error> {
        flags.tell(stage)
    }
    /// Called between two block operations.
    fn between(&self) -> Result<(), Error> {
        Ok(())
    }
}

/// Measures the time outside block operations, if there is a clock. (There are forty times as many block operations as
/// other calls.)
pub struct Clocked<'b, B> {
    pub blocks: B,
    pub clock: Option<&'b Clock>,
}

/// Times in seconds.
#[derive(Default)]
pub struct Clock {
    pub fetching: Cell<f64>,
    pub telling: Cell<f64>,
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
        // Nothing is copied; reading is part of the block operations.
        self.blocks.reach(owner, offset, area)
    }

    fn wait(&mut self, flags: &Flags, rank: Rank, stage: u64) -> Result<(), Error> {
        clocked(self.clock.map(|clock| &clock.waiting), || self.blocks.wait(flags, rank, stage))
    }

    fn tell(&mut self, flags: &Flags, stage: u64) -> Result<(), Error> {
        clocked(self.clock.map(|clock| &clock.telling), || self.blocks.tell(flags, stage))
    }

    fn between(&self) -> Result<(), Error> {
        // No clock here: it would take longer than the two-sided way's check for requests.
        self.blocks.between()
    }
}
