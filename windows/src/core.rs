//! The part of a window that its epochs share: memory, counts, and the errors that name it.

use crate::address::Attachment;
use crate::checks::Checks;
use crate::segment::Segment;
use crate::updates::Gates;
use crate::{Error, Fabric, FabricError};
use std::sync::Arc;
use transom_locks::{Awaited, Rank};

/// The window's state that operations need; epochs share it while they hold the rest.
pub(crate) struct Core<F: Fabric> {
    pub id: u32,
    /// Bytes per element.
    pub element: usize,
    pub data: Arc<Segment<F>>,
    /// This rank's attachments by slot, and the number of attachments so far.
    pub attached: Box<[Option<Attachment<F>>]>,
    pub numbers: u64,
    pub gates: Gates,
    pub checks: Checks,
}

impl<F: Fabric> Core<F> {
    /// Returns the number of elements of type `U` in memory that was attached as `len` elements of the window.
    pub fn attached_len<U>(&self, len: usize) -> usize {
        len * self.element / size_of::<U>()
    }

    /// [`Target::flush`], for one rank or for all.
    pub fn flush(&self, rank: Rank) -> Result<(), Error> {
        let data = &self.data;
        data.counters.flushes.bump();
        data.fabric.flush(&data.remotes[rank]).map_err(|source| Error::Fabric { window: self.id, rank, source })
    }

    pub fn flush_all(&self) -> Result<(), Error> {
        let data = &self.data;
        data.counters.flushes.add(data.remotes.len() as u64);
        let flushed = data.fabric.flush_all(data.remotes.iter());
        flushed.map_err(|source| Error::Fabric { window: self.id, rank: data.fabric.rank(), source })
    }

    /// Called when an epoch ends. Returns whether the provider has its puts to order.
    #[inline(always)]
    pub fn ends_epoch(&self) -> bool {
        self.checks.synchronised(&self.data.counters);
        self.gates.epoch_ends(&self.data)
    }

    /// The error of an operation at a rank.
    #[cold]
    #[inline(never)]
    pub fn fabric_error(&self, rank: Rank, source: FabricError) -> Error {
        Error::Fabric { window: self.id, rank, source }
    }

    /// Orders this rank's puts to another before its later verbs to that rank.
    #[inline(always)]
    pub fn order(&self, rank: Rank) -> Result<(), Error> {
        match self.data.fabric.order(&self.data.remotes[rank]) {
            Ok(()) => Ok(()),
            Err(source) => Err(Error::Fabric { window: self.id, rank, source }),
        }
    }

    /// Orders this rank's puts to every rank before its later verbs.
    pub fn order_all(&self) -> Result<(), Error> {
        let ordered = self.data.fabric.order_all(self.data.remotes.iter());
        ordered.map_err(|source| Error::Fabric { window: self.id, rank: self.data.fabric.rank(), source })
    }

    /// Checks for a death, after a lock was not granted in time. Like an unlimited wait, repeated calls with short
    /// limits must report a death; the check itself runs only now and then.
    #[cold]
    pub fn not_had(&self, rank: Rank) -> Result<(), Error> {
        let alive = self.data.check_seldom(|fabric| fabric.check_peers(Awaited::Anyone));
        alive.map_err(|lost| self.lock_error_at(rank, lost.into()))
    }

    #[cold]
    pub fn lock_error_at(&self, rank: Rank, source: transom_locks::Error<FabricError>) -> Error {
        Error::Lock { window: self.id, rank, source: self.data.cause(source) }
    }

    /// The error of a call on all locks, with the rank at which it failed, as far as the source names it.
    #[cold]
    pub fn lock_error(&self, source: transom_locks::Error<FabricError>) -> Error {
        use transom_locks::Error::{AlreadyLocked, Broken, Corrupt, NotLocked};
        let rank = match source {
            AlreadyLocked { target } | NotLocked { target } | Broken { target } | Corrupt { target, .. } => target,
            _ => self.data.fabric.rank(),
        };
        self.lock_error_at(rank, source)
    }

    #[cold]
    pub fn sync_error(&self, call: &'static str, source: transom_locks::Error<FabricError>) -> Error {
        Error::Sync { window: self.id, call, source: self.data.cause(source) }
    }

    #[cold]
    pub fn no_such_rank(&self, rank: Rank) -> Error {
        Error::NoSuchRank { window: self.id, rank, size: self.data.remotes.len() }
    }
}
