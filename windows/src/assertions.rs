//! What a program may assert about its own synchronisation (MPI-3.1 §11.5.5), and in debug builds the checks of it.

use crate::core::Core;
use crate::counters::{Count, CounterCells};
use crate::local::Local;
use crate::{Error, Fabric};
use bytemuck::Pod;
use std::hash::{DefaultHasher, Hasher};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard};
use transom_locks::Rank;

bitflags::bitflags! {
    /// What a program asserts when it synchronises, so that less need be done. Believed; in debug builds also checked,
    /// where that finds only what is wrong, but not all of it: an assertion that does not hold is [`Error::Assertion`].
    /// One that means nothing to the call is that error in every build.
    ///
    /// # Examples
    /// ```
    /// # let fabric = transom_shm_loopback::Loopback::alone()?;
    /// # let mut window = transom_windows::Window::<u64, _>::allocate(&fabric, 0, 64)?;
    /// use transom_windows::Assert;
    /// let epoch = window.fence_with(Assert::NOPRECEDE)?; // the first: nothing comes before
    /// epoch.target(0)?.put(0, &[1])?;
    /// window.fence_with(Assert::NOSUCCEED)?; // the last: nothing comes after
    /// assert!(window.fence_with(Assert::NOCHECK).is_err()); // a fence has nothing to check
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Assert: u8 {
        /// To a lock: nobody holds or asks for a lock that conflicts, so none is taken; saves all its remote
        /// operations. To `post` and `start`, both of them or neither: every `post` has been called before any `start`
        /// that matches it, so nothing is told and nothing awaited; saves the posts.
        const NOCHECK = 1;
        /// To `fence` and `post`: this rank has not written to its own part since it last synchronised. Saves nothing
        /// where memory is coherent, as it is on all providers.
        const NOSTORE = 2;
        /// To `fence` and `post`: nobody puts to or accumulates in this rank's part, or stores to it by
        /// [`Local::of`](crate::Local::of), until its next fence, or the `wait` that ends the exposure. Saves nothing, as
        /// above.
        const NOPUT = 4;
        /// To `fence`: no rank has operated on the window since it last synchronised; saves the flush.
        const NOPRECEDE = 8;
        /// To `fence`: no rank operates on the window before it synchronises next. Saves nothing.
        const NOSUCCEED = 16;
    }
}

impl Assert {
    pub(crate) const FENCE: Assert =
        Assert::NOSTORE.union(Assert::NOPUT).union(Assert::NOPRECEDE).union(Assert::NOSUCCEED);
    pub(crate) const POST: Assert = Assert::NOCHECK.union(Assert::NOSTORE).union(Assert::NOPUT);
    pub(crate) const START: Assert = Assert::NOCHECK;
    pub(crate) const LOCK: Assert = Assert::NOCHECK;
}

/// What this rank did when it last synchronised, kept in debug builds only.
#[derive(Default)]
pub(crate) struct Checks {
    /// Writes to its own part: so far, and when it last synchronised.
    stores: Count,
    stores_then: AtomicU64,
    operations_then: AtomicU64,
    /// What its part was when it said that nobody will put there, and how often it had itself written to it.
    noput: Mutex<Option<Promise>>,
}

struct Promise {
    hash: u64,
    stores: u64,
}

impl Checks {
    #[inline(always)]
    pub fn stored(&self) {
        if cfg!(debug_assertions) {
            self.stores.bump();
        }
    }

    fn promised(&self) -> MutexGuard<'_, Option<Promise>> {
        self.noput.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    #[inline(always)]
    pub fn synchronised(&self, counters: &CounterCells) {
        if cfg!(debug_assertions) {
            self.stores_then.store(self.stores.get(), Relaxed);
            self.operations_then.store(operations(counters), Relaxed);
        }
    }
}

fn operations(counters: &CounterCells) -> u64 {
    let done = counters.read();
    done.puts + done.gets + done.atomics + done.accumulates + done.signals
}

impl<T: Pod, F: Fabric> Core<T, F> {
    /// An error if the call knows nothing of such an assertion.
    pub(crate) fn allowed(&self, call: &'static str, asserted: Assert, allowed: Assert) -> Result<(), Error> {
        match asserted.difference(allowed) {
            none if none.is_empty() => Ok(()),
            unknown => Err(self.wrong(call, unknown, "it means nothing to this call")),
        }
    }

    /// Whether what is asserted of the past holds, as far as this rank can tell. Debug builds only.
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

    /// Whether the promise that nobody would put here was kept; it ends. Debug builds only.
    pub(crate) fn check_noput(&self, call: &'static str) -> Result<(), Error> {
        let promise = self.checks.promised().take();
        match promise {
            // What this rank wrote itself cannot be told from what others did.
            Some(promise) if promise.stores == self.checks.stores.get() && promise.hash != self.hash()? => {
                Err(self.wrong(call, Assert::NOPUT, "elements of this rank's part have changed meanwhile"))
            }
            _ => Ok(()),
        }
    }

    /// Remembers what this rank's part is, for [`check_noput`](Self::check_noput). Debug builds only.
    pub(crate) fn promise_noput(&self) -> Result<(), Error> {
        let promise = Promise { hash: self.hash()?, stores: self.checks.stores.get() };
        *self.checks.promised() = Some(promise);
        Ok(())
    }

    fn hash(&self) -> Result<u64, Error> {
        let (local, mut hasher) = (Local::new(self), DefaultHasher::new());
        let mut copy = vec![T::zeroed(); local.len().min(1 << 12)];
        for offset in (0..local.len()).step_by(1 << 12) {
            let some = local.len() - offset;
            let some = &mut copy[..some.min(1 << 12)];
            local.read_into(offset, some)?;
            hasher.write(bytemuck::cast_slice(some));
        }
        Ok(hasher.finish())
    }

    #[cold]
    pub(crate) fn wrong(&self, call: &'static str, asserted: Assert, why: &'static str) -> Error {
        Error::Assertion { window: self.id, rank: self.data.fabric.rank() as Rank, call, asserted, why }
    }
}
