//! LU by each synchronisation. One-sided is the library's lock. Two-sided is how MPI libraries lock: the owner grants a request
//! when it next looks, here between two block operations; the rest of the program is the same, so the difference is the lock's.
//! By flush all is in one epoch, as MPI programs are often written; and where ranks share memory, blocks are read in place.

use super::blocks::Blocks;
use std::cell::Cell;
use std::sync::atomic::{Ordering::SeqCst, fence};
use transom::{Error, Local, LockAllEpoch, Rank, Window, World};

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

    fn fence(&mut self) -> Result<(), Error> {
        self.0.fence().map(drop)
    }
}

/// One epoch from the beginning to the end; whatever is got is here when the call returns.
pub struct Flushed<'w> {
    pub world: &'w World,
    pub epoch: LockAllEpoch<'w, f64>,
}

impl Blocks for Flushed<'_> {
    fn local(&self) -> Local<'_, f64> {
        self.epoch.local()
    }

    fn fetch(&mut self, owner: Rank, offset: usize, block: &mut [f64]) -> Result<(), Error> {
        self.epoch.target(owner)?.get(offset, block)
    }

    fn fence(&mut self) -> Result<(), Error> {
        // As `Window::sync` on both sides of what tells the others, which an epoch does not lend.
        fence(SeqCst);
        self.world.barrier()?;
        fence(SeqCst);
        Ok(())
    }
}

/// Where all ranks share memory.
pub struct Shared<'w>(pub &'w mut Window<f64>);

impl Blocks for Shared<'_> {
    fn local(&self) -> Local<'_, f64> {
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
pub struct TwoSided<'w> {
    pub epoch: LockAllEpoch<'w, f64>,
    rank: Rank,
    ranks: usize,
    served: Vec<Cell<u64>>,
    granted: Vec<u64>,
    fences: u64,
}

impl<'w> TwoSided<'w> {
    pub fn new(world: &World, epoch: LockAllEpoch<'w, f64>) -> Self {
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
    fn local(&self) -> Local<'_, f64> {
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
