//! Windows whose accumulates are of many elements: a lock at each rank makes them atomic, instead of an atomic for each
//! element or word. The lock is the passive one, of a family of its own, so that epochs of any kind may accumulate.

use crate::core::Bulk;
use crate::segment::{Segment, Size};
use crate::target::Target;
use crate::window::Window;
use crate::words::{Purpose, Words, element};
use crate::{Error, Fabric, FabricError, Mode};
use bytemuck::Pod;
use std::sync::Arc;
use transom_locks::PassiveLock;

impl<T: Pod, F: Fabric> Window<T, F> {
    /// Collective: from here on accumulates take a lock of their own at their target, and change the elements where
    /// they are, or over a network read, operate and write back, 4 KiB at a time, instead of one atomic for each element or word. As before they are atomic for each element towards
    /// all others, in epochs of any kind; and now also each call as a whole (of a section or a patch, each of its runs). Each rank pays 64 (ranks + 1) bytes.
    ///
    /// For programs whose accumulates are long, from some dozens of elements on (of shared memory; over a network,
    /// from two words on): 64 KiB then take a twentieth of the time. One of a single element takes longer, and waits if
    /// another is under way. MPI has the info key `mpi_accumulate_granularity` for this.
    ///
    /// User memory ([`Flavor::Create`](crate::Flavor::Create)), which takes no atomics, takes accumulates,
    /// `fetch_and_op` and `compare_and_swap` from here on.
    ///
    /// # Errors
    /// [`Error::Fabric`] if there is no memory, here or elsewhere, [`Error::Mismatch`] if ranks disagree about the window; then at
    /// no rank anything has changed.
    ///
    /// # Examples
    /// ```
    /// // In `transom`: `let mut window = world.create(vec![1.0; 10_000])?;`
    /// # let fabric = transom_shm_loopback::Loopback::alone()?;
    /// use transom_windows::{Flavor, Op, Window};
    /// let mut window = Window::new(&fabric, 0, Flavor::Create(vec![1.0; 10_000]), 0)?;
    /// window.bulk_accumulates()?;
    /// let epoch = window.lock_all()?;
    /// epoch.target(0)?.accumulate(0, Op::Sum, &[0.5; 10_000])?;
    /// epoch.unlock()?;
    /// assert_eq!(window.free()?, [1.5; 10_000]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn bulk_accumulates(&mut self) -> Result<(), Error> {
        if self.core.bulk.is_some() {
            return Ok(());
        }
        let (id, fabric, rank) = (self.core.id, &self.core.data.fabric, self.rank());
        // All must be here for the same. Nobody returns before all have come, with nothing under way.
        let (element, words) = (element::<T>(), Words::new(self.ranks()).locks());
        let what = (&*element, 0);
        let words = Segment::allocate(fabric, Purpose::BulkAccumulates, id, what, words, Ok(Size::default()), None);
        let words = Arc::new(words.map_err(|source| source.of(id, rank, 0, size_of::<T>()))?);
        let lock = PassiveLock::new(words.clone(), 0).map_err(|source| self.core.lock_error_at(rank, source))?;
        self.core.bulk = Some(Bulk { words, lock });
        Ok(())
    }
}

impl<T: Pod, F: Fabric> Target<'_, T, F> {
    /// Does something to elements from `offset` on while nobody else accumulates at the target: `body` orders what it
    /// puts before whatever comes later, so that whoever has the lock next sees it.
    pub(crate) fn in_bulk<R>(
        &self,
        bulk: &Bulk<F>,
        offset: usize,
        len: usize,
        body: impl FnOnce() -> Result<R, FabricError>,
    ) -> Result<R, Error> {
        let (core, rank) = (self.core, self.rank());
        let (held, _) = bulk.lock.acquire(rank, Mode::Exclusive).map_err(|source| core.lock_error_at(rank, source))?;
        let done = body().map_err(|error| self.error(error, offset, len));
        // One that failed does not keep the lock.
        let released = held.release().map_err(|source| core.lock_error_at(rank, source));
        done.and_then(|done| released.map(|()| done))
    }
}
