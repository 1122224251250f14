//! Checks of a program's assertions, in debug builds, as far as this rank can tell.

use crate::checks::{Promise, operations};
use crate::core::Core;
use crate::{Assert, Error, Fabric};
use std::hash::{DefaultHasher, Hasher};
use std::sync::atomic::Ordering::Relaxed;
use transom_locks::Rank;

impl<F: Fabric> Core<F> {
    /// Checks that the call accepts every assertion in `asserted`.
    pub(crate) fn allowed(&self, call: &'static str, asserted: Assert, allowed: Assert) -> Result<(), Error> {
        match asserted.difference(allowed) {
            none if none.is_empty() => Ok(()),
            unknown => Err(self.wrong(call, unknown, "this call does not accept it")),
        }
    }

    /// Checks assertions about the past, as far as this rank can tell. Debug builds only.
    pub(crate) fn check_past(&self, call: &'static str, asserted: Assert) -> Result<(), Error> {
        let checks = &self.checks;
        if asserted.contains(Assert::NOSTORE) && checks.stores.get() != checks.stores_then.load(Relaxed) {
            return Err(self.wrong(call, Assert::NOSTORE, "this rank has written to its own part"));
        }
        let operations = operations(&self.data.counters);
        if asserted.contains(Assert::NOPRECEDE) && operations != checks.operations_then.load(Relaxed) {
            return Err(self.wrong(call, Assert::NOPRECEDE, "this rank has operated on the window"));
        }
        Ok(())
    }

    /// Checks a promise that no rank would put here, and ends it. Debug builds only.
    pub(crate) fn check_noput(&self, call: &'static str) -> Result<(), Error> {
        let promise = self.checks.promised().take();
        match promise {
            // Changes by this rank's own writes cannot be told from those by other ranks.
            Some(promise) if promise.stores == self.checks.stores.get() && promise.hash != self.hash()? => {
                Err(self.wrong(call, Assert::NOPUT, "elements of this rank's part have changed meanwhile"))
            }
            _ => Ok(()),
        }
    }

    /// Records the contents of this rank's part for [`check_noput`](Self::check_noput). Debug builds only.
    pub(crate) fn promise_noput(&self) -> Result<(), Error> {
        let promise = Promise { hash: self.hash()?, stores: self.checks.stores.get() };
        *self.checks.promised() = Some(promise);
        Ok(())
    }

    fn hash(&self) -> Result<u64, Error> {
        let (data, mut hasher) = (&self.data, DefaultHasher::new());
        let ((region, base), rank) = (data.own_part(), data.fabric.rank());
        let (bytes, mut copy) = (data.sizes[rank].bytes, [0; 1 << 12]);
        for offset in (0..bytes).step_by(copy.len()) {
            let some = &mut copy[..(bytes - offset).min(1 << 12)];
            let loaded = data.fabric.load(region, base + offset, some);
            loaded.map_err(|source| Error::Fabric { window: self.id, rank, source })?;
            hasher.write(some);
        }
        Ok(hasher.finish())
    }

    #[cold]
    pub(crate) fn wrong(&self, call: &'static str, asserted: Assert, why: &'static str) -> Error {
        Error::Assertion { window: self.id, rank: self.data.fabric.rank() as Rank, call, asserted, why }
    }
}
