//! The progress of each rank as a signal at every other rank. Further signals request and grant locks, where owners
//! grant their locks themselves.

use transom::{Error, LockAllEpoch, Rank, Signals, Window, World};

pub struct Flags<'w> {
    epoch: LockAllEpoch<'w, u64>,
    rank: Rank,
    ranks: usize,
}

impl<'w> Flags<'w> {
    /// A window that has only signals.
    pub fn window(world: &World) -> Result<Window<u64>, Error> {
        world.allocate_with_signals(0, 3 * world.size())
    }

    pub fn new(world: &World, window: &'w mut Window<u64>) -> Result<Self, Error> {
        Ok(Flags { epoch: window.lock_all()?, rank: world.rank(), ranks: world.size() })
    }

    pub fn rank(&self) -> Rank {
        self.rank
    }

    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// Announces a stage to all others. A rank that waits for it sees everything stored before.
    pub fn tell(&self, stage: u64) -> Result<(), Error> {
        self.epoch.local().sync();
        let mut others = (0..self.ranks).filter(|&rank| rank != self.rank);
        others.try_for_each(|rank| self.epoch.target(rank)?.set_signal(self.rank, stage))
    }

    /// Waits until another rank has reached a stage.
    pub fn wait(&self, rank: Rank, stage: u64) -> Result<(), Error> {
        self.signals().wait_until(rank, |come| come >= stage)?;
        self.epoch.local().sync();
        Ok(())
    }

    pub fn signals(&self) -> Signals<'_> {
        self.epoch.signals()
    }

    /// The signal by which a rank requests another's lock.
    pub fn request(&self, origin: Rank) -> usize {
        self.ranks + origin
    }

    /// The signal by which an owner grants its lock.
    pub fn grant(&self, owner: Rank) -> usize {
        2 * self.ranks + owner
    }

    /// Adds 1 to a signal of a rank.
    pub fn add(&self, rank: Rank, signal: usize) -> Result<(), Error> {
        self.epoch.target(rank)?.signal(signal, 1)
    }
}
