//! LU with each synchronization. `OneSided` uses the library's lock. `TwoSided` locks as MPI libraries do: the owner
//! grants a request at its next check, here between two block operations. The rest of the program is the same, so the
//! difference is that of the locks. `Flushed` uses one epoch for everything, as MPI programs often do. `Shared` reads
//! blocks in place where ranks share memory.

use super::blocks::Blocks;
use super::flags::Flags;
use std::cell::Cell;
use transom::{Error, Local, LockAllEpoch, Rank, Window};

pub struct OneSided<'w>(pub &'w mut Window<f64>);

impl Blocks for OneSided<'_> {
    fn local(&self) -> Local<'_, f64> {
        self.0.local()
    }

    fn fetch(&mut self, owner: Rank, offset: usize, block: &mut [f64]) -> Result<(), Error> {
        let epoch = self.0.lock_shared(owner)?;
        epoch.get(offset, block)?;
        epoch.unlock()
    }
}

/// One epoch from beginning to end. The data of a get are complete when the call returns.
pub struct Flushed<'w>(pub LockAllEpoch<'w, f64>);

impl Blocks for Flushed<'_> {
    fn local(&self) -> Local<'_, f64> {
        self.0.local()
    }

    fn fetch(&mut self, owner: Rank, offset: usize, block: &mut [f64]) -> Result<(), Error> {
        self.0.target(owner)?.get(offset, block)
    }
}

/// For ranks that all share memory.
pub struct Shared<'w>(pub &'w mut Window<f64>);

impl Blocks for Shared<'_> {
    fn local(&self) -> Local<'_, f64> {
        self.0.local()
    }

    fn fetch(&mut self, owner: Rank, offset: usize, block: &mut [f64]) -> Result<(), Error> {
        self.0.local().of(owner)?.read_into(offset, block)
    }

    fn reach(&self, owner: Rank, offset: usize, area: usize) -> Result<Option<&[f64]>, Error> {
        // SAFETY: the block is finished, so its owner no longer writes it.
        unsafe { self.0.local().of(owner)?.as_slice(offset, area) }.map(Some)
    }
}

/// Owners grant their locks themselves.
pub struct TwoSided<'w> {
    pub epoch: LockAllEpoch<'w, f64>,
    pub flags: &'w Flags<'w>,
    served: Vec<Cell<u64>>,
    granted: Vec<u64>,
}

impl<'w> TwoSided<'w> {
    pub fn new(epoch: LockAllEpoch<'w, f64>, flags: &'w Flags<'w>) -> Self {
        TwoSided { epoch, flags, served: vec![Cell::new(0); flags.ranks()], granted: vec![0; flags.ranks()] }
    }

    /// Waits until a signal has the given value, and grants requests meanwhile.
    fn wait_for(&self, signal: usize, value: u64) -> Result<(), Error> {
        let requests = (0..self.flags.ranks()).map(|origin| self.flags.request(origin));
        let all: Vec<_> = requests.chain([signal]).collect();
        let news = |at: usize, now| match at == signal {
            true => now >= value,
            false => now > self.served[at - self.flags.request(0)].get(),
        };
        loop {
            self.between()?;
            if self.flags.signals().wait_any(&all, news)?.0 == signal {
                return Ok(());
            }
        }
    }
}

impl Blocks for TwoSided<'_> {
    fn local(&self) -> Local<'_, f64> {
        self.epoch.local()
    }

    fn fetch(&mut self, owner: Rank, offset: usize, block: &mut [f64]) -> Result<(), Error> {
        self.flags.add(owner, self.flags.request(self.flags.rank()))?;
        self.granted[owner] += 1;
        self.wait_for(self.flags.grant(owner), self.granted[owner])?;
        self.epoch.target(owner)?.get(offset, block)
    }

    fn wait(&mut self, flags: &Flags, rank: Rank, stage: u64) -> Result<(), Error> {
        self.wait_for(rank, stage)?;
        flags.wait(rank, stage)
    }

    /// Grants the pending requests.
    fn between(&self) -> Result<(), Error> {
        for (origin, served) in self.served.iter().enumerate() {
            while self.flags.signals().read(self.flags.request(origin))? > served.get() {
                served.set(served.get() + 1);
                self.flags.add(origin, self.flags.grant(self.flags.rank()))?;
            }
        }
        Ok(())
    }
}
