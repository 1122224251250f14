//! The value behind a lock: taken, read, written back, marked as poisoned. What its handle and its guards share.

use crate::segment::Segment;
use crate::{Error, Fabric, FabricError};
use bytemuck::Pod;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use transom_locks::{Ahead, Mode, PassiveLock, Rank};

/// A value in the memory of one rank, and the lock that it is behind.
pub(crate) struct ValueLock<T, F: Fabric> {
    pub id: u32,
    pub home: Rank,
    /// At the home rank the value, and behind it the mark: a byte that is not 0 if the value is poisoned. One read has both.
    pub data: Arc<Segment<F>>,
    pub lock: PassiveLock<Arc<Segment<F>>>,
    pub value: PhantomData<fn() -> T>,
}

impl<T: Pod, F: Fabric> ValueLock<T, F> {
    /// The value, and whether it is poisoned, once the lock is held.
    pub fn take(&self, mode: Mode) -> Result<(Value<T>, bool), Error> {
        let ahead = self.lock.acquire(self.home, mode).map_err(|source| self.lock_error(source))?;
        self.data.counters.locks.bump();
        if ahead != Ahead::default() {
            tracing::trace!(window = self.id, ?mode, behind = ?ahead.exclusive, readers = ahead.readers, "lock granted after waiting");
        }
        self.taken()
    }

    /// As [`take`](Self::take), if that needs no waiting.
    pub fn try_take(&self, mode: Mode) -> Result<Option<(Value<T>, bool)>, Error> {
        if !self.lock.try_acquire(self.home, mode).map_err(|source| self.lock_error(source))? {
            return Ok(None);
        }
        self.data.counters.locks.bump();
        self.taken().map(Some)
    }

    /// The value, now that the lock is held.
    fn taken(&self) -> Result<(Value<T>, bool), Error> {
        let mut value = Value::<T>::zeroed();
        match self.get(0, value.with_mark()) {
            Ok(()) => {
                let poisoned = value.with_mark()[size_of::<T>()] != 0;
                Ok((value, poisoned))
            }
            Err(error) => {
                // That it could not be read is what the caller should know.
                let _ = self.release();
                Err(error)
            }
        }
    }

    pub fn get(&self, offset: usize, into: &mut [u8]) -> Result<(), Error> {
        self.data.counters.gets.bump();
        self.data.fabric.get(self.remote(), self.data.base + offset, into).map_err(|source| self.error(source))
    }

    pub fn put(&self, offset: usize, source: &[u8]) -> Result<(), Error> {
        self.data.counters.puts.bump();
        self.data.fabric.put(self.remote(), self.data.base + offset, source).map_err(|source| self.error(source))
    }

    /// Writes the value back, if there is one, and marks it if it is poisoned: seen by whoever has the lock next.
    pub fn store(&self, value: Option<&T>, poisoned: bool) -> Result<(), Error> {
        // The mark first: should the value not arrive, it is there to say so.
        let marked = if poisoned { self.put(size_of::<T>(), &[1]) } else { Ok(()) };
        let stored = value.map_or(Ok(()), |value| self.put(0, bytemuck::bytes_of(value)));
        let order = || self.data.fabric.order(self.remote()).map_err(|source| self.error(source));
        let ordered = if poisoned || value.is_some() { order() } else { Ok(()) };
        marked.and(stored).and(ordered)
    }
}

impl<T, F: Fabric> ValueLock<T, F> {
    /// Releases the lock.
    #[inline]
    pub fn release(&self) -> Result<(), Error> {
        self.lock.release(self.home).map_err(|source| self.lock_error(source))
    }

    #[inline]
    pub fn remote(&self) -> &F::Remote {
        &self.data.remotes[self.home]
    }

    #[cold]
    pub fn poisoned(&self) -> Error {
        Error::Poisoned { window: self.id, rank: self.home }
    }

    #[cold]
    pub fn error(&self, source: FabricError) -> Error {
        Error::Fabric { window: self.id, rank: self.home, source }
    }

    #[cold]
    fn lock_error(&self, source: transom_locks::Error<FabricError>) -> Error {
        Error::Lock { window: self.id, rank: self.home, source: self.data.cause(source) }
    }
}

impl<T, F: Fabric> Drop for ValueLock<T, F> {
    /// A guard that was leaked keeps the lock, which nobody could release after this.
    fn drop(&mut self) {
        if !self.lock.release_held_mut() {
            self.data.fabric.fail();
        }
    }
}

/// A copy of the value, on the heap, since values may be larger than a stack; with room for the mark behind it, so that
/// one read has both. The value has one byte at least, so room for two values is enough.
pub(crate) struct Value<T>(Vec<T>);

impl<T: Pod> Value<T> {
    #[inline]
    pub fn zeroed() -> Self {
        Value(bytemuck::zeroed_vec(2))
    }

    /// The bytes of the value and of the mark.
    #[inline]
    pub fn with_mark(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.0)[..=size_of::<T>()]
    }
}

impl<T> Deref for Value<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.0[0]
    }
}

impl<T> DerefMut for Value<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0[0]
    }
}
