//! Scopes: gets and puts in flight on borrowed slices, completed at the latest when the scope ends.

use crate::core::Core;
use crate::request::{Landed, Lent, Operation, Request};
use crate::target::Target;
use crate::{Error, Fabric, FabricError};
use bytemuck::Pod;
use bytemuck::allocation::BoxBytes;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard};
use transom_locks::Rank;

/// Runs `body` with a [`Scope`], which starts gets and puts on borrowed slices that need not be waited for one by one.
///
/// The slices must outlive the scope, and belong to the provider until then. When `scope` returns, also by a panic of
/// `body`, all operations have completed: gets have their data, and sources may be reused. Puts still need a flush, or
/// the end of the epoch, to be visible at their targets.
///
/// If memory is shared, each operation completes within its call and uses no further memory. Over a network the
/// requests are in flight concurrently: those of up to 32 KiB through preregistered memory; longer ones cost the same
/// as [`Target::get`] and [`Target::put`] of that length.
///
/// # Errors
/// The error of `body`; otherwise the first error of an operation that was not waited for.
///
/// # Examples
/// ```
/// // In `transom`: `let mut window = world.allocate::<u64>(64)?;`
/// # let fabric = transom_shm_loopback::Loopback::alone()?;
/// # let mut window = transom_windows::Window::<u64, _>::allocate(&fabric, 0, 64)?;
/// # window.local().write(0, &[1, 2, 3, 4])?;
/// use transom_windows::{Error, scope};
/// let (mut above, mut below) = ([0; 2], [0; 2]);
/// let epoch = window.lock_all()?;
/// let (up, down) = (epoch.target(0)?, epoch.target(0)?); // two neighbours
/// let sum = scope(|scope| {
///     scope.put(&up, 10, &[5, 6])?;
///     scope.get(&up, 0, &mut above)?;
///     let below = scope.get(&down, 2, &mut below)?;
///     // ... compute ...
///     Ok::<u64, Error>(below.wait()?.iter().sum()) // this one is there
/// })?;
/// assert_eq!((above, sum), ([1, 2], 3 + 4));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn scope<'env, F: Fabric, R, E: From<Error>>(
    body: impl for<'s> FnOnce(&'s Scope<'s, 'env, F>) -> Result<R, E>,
) -> Result<R, E> {
    // SAFETY: `Ending` finishes it.
    let scope = unsafe { Scope::open() };
    let ending = Ending(&scope);
    let result = body(&scope);
    let ended = ending.0.finish_all();
    result.and_then(|result| ended.map(|()| result).map_err(E::from))
}

/// Starts gets and puts on borrowed slices. Created by [`scope`].
///
/// # Examples
/// See [`scope`].
pub struct Scope<'s, 'env: 's, F: Fabric> {
    /// Operations started here; `None` once the program has waited for the operation.
    in_flight: Mutex<Vec<Option<InFlight<'s, F>>>>,
    scope: PhantomData<&'s mut &'s ()>,
    env: PhantomData<&'env mut &'env ()>,
}

struct InFlight<'s, F: Fabric> {
    core: &'s Core<F>,
    rank: Rank,
    moving: F::Transfer,
    landing: Landing,
}

/// Destination of an operation's bytes.
enum Landing {
    /// The operation is a put.
    Nowhere,
    Lent(Lent<u8>),
    /// The provider has its own buffer, whose bytes this function copies to their places.
    Scattered(Scatter),
}

/// Copies received bytes to their places.
pub(crate) type Scatter = Box<dyn FnOnce(BoxBytes) -> Result<(), FabricError> + Send>;

/// Waits for all operations of a scope, also after a panic.
struct Ending<'c, 's, 'env, F: Fabric>(&'c Scope<'s, 'env, F>);

impl<F: Fabric> Drop for Ending<'_, '_, '_, F> {
    fn drop(&mut self) {
        if let Err(error) = self.0.finish_all() {
            crate::dropped::failed("a scope ended by a panic, and its operations in flight failed", &error);
        }
    }
}

impl<'s, 'env, F: Fabric> Scope<'s, 'env, F> {
    /// Opens a scope that its caller ends, for a scope of an upper layer that lends other things as well.
    ///
    /// # Safety
    /// The caller calls [`finish`](Self::finish) after the last use of the scope and before `'s` ends, also if there is
    /// a panic.
    pub unsafe fn open() -> Self {
        Scope { in_flight: Mutex::default(), scope: PhantomData, env: PhantomData }
    }

    /// Waits for all started operations.
    ///
    /// # Safety
    /// No other thread tests or waits for a request of this scope during the call. That thread would take an operation
    /// that this call is completing for one that has ended, and read its buffer.
    ///
    /// # Errors
    /// The first error of an operation that was not waited for.
    ///
    /// # Examples
    /// [`scope`] calls it after its body.
    pub unsafe fn finish(&self) -> Result<(), Error> {
        self.finish_all()
    }

    fn finish_all(&self) -> Result<(), Error> {
        let all = 0..self.in_flight().len();
        self.finish_some(all)
    }

    /// Starts a [`put`](Target::put). `source` belongs to the scope until the scope ends.
    ///
    /// # Errors
    /// Same as `put`.
    #[inline]
    pub fn put<T: Pod>(&'s self, target: &'s Target<'_, T, F>, offset: usize, source: &'s [T]) -> Result<(), Error> {
        let core = target.core;
        if core.data.fabric.is_shared(target.remote) {
            return target.put(offset, source);
        }
        core.data.counters.puts.bump();
        let at = target.place(offset, source.len())?;
        let started = self.start_lent_put(target, at, bytemuck::cast_slice(source));
        started.map_err(|error| target.error(error, offset, source.len()))
    }

    /// Starts a [`get`](Target::get). `into` belongs to the scope until the scope ends, or until [`Request::wait`]
    /// returns it.
    ///
    /// # Errors
    /// Same as `get`.
    ///
    /// # Examples
    /// ```
    /// # let fabric = transom_shm_loopback::Loopback::alone()?;
    /// # let mut window = transom_windows::Window::<u64, _>::allocate(&fabric, 0, 64)?;
    /// let mut row = [7; 10];
    /// let epoch = window.lock_shared(0)?;
    /// transom_windows::scope(|scope| {
    ///     let mut coming = scope.get(&epoch, 0, &mut row)?;
    ///     while !coming.test() {
    ///         // ... a piece of other work ...
    ///     }
    ///     assert_eq!(coming.wait()?, [0; 10]);
    ///     Ok::<(), transom_windows::Error>(())
    /// })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn get<T: Pod>(
        &'s self,
        target: &'s Target<'_, T, F>,
        offset: usize,
        into: &'s mut [T],
    ) -> Result<Request<'s, &'s mut [T]>, Error> {
        let (core, len) = (target.core, into.len());
        if core.data.fabric.is_shared(target.remote) {
            target.get(offset, into)?;
            return Ok(Request::ended(into));
        }
        core.data.counters.gets.bump();
        let at = target.place(offset, len)?;
        let into = Lent::new(into);
        // SAFETY: lent for `'s`; the elements are not accessed before the request is waited for.
        let started = unsafe { self.start_lent_get(target, at, into.bytes()) };
        let number = started.map_err(|error| target.error(error, offset, len))?;
        Ok(self.coming(Vec::from_iter(number), into))
    }

    /// Starts a put from bytes that are lent for `'s`. The scope completes its operations before `'s` ends.
    pub(crate) fn start_lent_put<T>(
        &self,
        target: &Target<'s, T, F>,
        at: usize,
        source: &'s [u8],
    ) -> Result<(), FabricError> {
        // SAFETY: lent for `'s`, as described above.
        let started = unsafe { target.core.data.fabric.lend_put(target.remote, at, NonNull::from(source)) }?;
        if let Some(started) = started {
            self.keep(target, started, Landing::Nowhere);
        }
        Ok(())
    }

    /// Starts a put from bytes that the provider owns until the put completes.
    pub(crate) fn start_put<T>(
        &self,
        target: &Target<'s, T, F>,
        at: usize,
        source: BoxBytes,
    ) -> Result<(), FabricError> {
        let started = target.core.data.fabric.start_put(target.remote, at, source)?;
        self.keep(target, started, Landing::Nowhere);
        Ok(())
    }

    /// Starts a get into lent bytes. Returns its number, or `None` if the get has completed.
    ///
    /// # Safety
    /// `into` is lent for `'s`, or until this get is waited for, and not accessed before.
    pub(crate) unsafe fn start_lent_get<T>(
        &self,
        target: &Target<'s, T, F>,
        at: usize,
        into: Lent<u8>,
    ) -> Result<Option<usize>, FabricError> {
        // SAFETY: caller's contract; the scope completes its operations before the end of `'s`.
        let started = unsafe { target.core.data.fabric.lend_get(target.remote, at, into.elements()) }?;
        Ok(started.map(|started| self.keep(target, started, Landing::Lent(into))))
    }

    /// Starts a get into bytes that the provider owns until completion; `scatter` receives them then. Returns its
    /// number.
    pub(crate) fn start_get<T>(
        &self,
        target: &Target<'s, T, F>,
        at: usize,
        bytes: BoxBytes,
        scatter: Scatter,
    ) -> Result<Option<usize>, FabricError> {
        let started = target.core.data.fabric.start_get(target.remote, at, bytes)?;
        Ok(Some(self.keep(target, started, Landing::Scattered(scatter))))
    }

    /// Records an operation until it is waited for. Returns its number.
    fn keep<T>(&self, target: &Target<'s, T, F>, moving: F::Transfer, landing: Landing) -> usize {
        let mut in_flight = self.in_flight();
        in_flight.push(Some(InFlight { core: target.core, rank: target.rank, moving, landing }));
        in_flight.len() - 1
    }

    fn in_flight(&self) -> MutexGuard<'_, Vec<Option<InFlight<'s, F>>>> {
        self.in_flight.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The request for the elements of `into`, which the operations `numbers` fill.
    pub(crate) fn coming<T: Pod>(&'s self, numbers: Vec<usize>, into: Lent<T>) -> Request<'s, &'s mut [T]> {
        Request::in_flight(Gets { scope: self, numbers, into: into.bytes() }, slice::<T>)
    }

    /// Waits for one operation, unless it was waited for before.
    fn finish_one(&self, number: usize) -> Result<(), Error> {
        let started = self.in_flight()[number].take();
        let Some(InFlight { core, rank, moving, landing }) = started else { return Ok(()) };
        let fabric = &core.data.fabric;
        let finished = match landing {
            Landing::Nowhere => fabric.finish_moving(moving).map(drop),
            Landing::Lent(into) => {
                // SAFETY: the get was started with these bytes, which are not accessed before it has completed.
                unsafe { fabric.finish_get(moving, into.elements()) }
            }
            Landing::Scattered(scatter) => fabric.finish_moving(moving).and_then(scatter),
        };
        finished.map_err(|source| Error::Fabric { window: core.id, rank, source })
    }

    /// Waits for all `numbers`, even if some fail; returns the first error.
    fn finish_some(&self, numbers: impl IntoIterator<Item = usize>) -> Result<(), Error> {
        numbers.into_iter().map(|number| self.finish_one(number)).fold(Ok(()), Result::and)
    }
}

/// Gets of a scope that fill one buffer.
struct Gets<'s, 'env: 's, F: Fabric> {
    scope: &'s Scope<'s, 'env, F>,
    numbers: Vec<usize>,
    into: Lent<u8>,
}

impl<F: Fabric> Operation for Gets<'_, '_, F> {
    fn test(&mut self) -> bool {
        let mut in_flight = self.scope.in_flight();
        for number in &self.numbers {
            let Some(InFlight { core, moving, .. }) = &mut in_flight[*number] else { continue };
            // The error is kept for `finish`.
            if let Ok(false) = core.data.fabric.test(moving) {
                let core = *core;
                drop(in_flight);
                core.data.fabric.after_empty_poll();
                return false;
            }
        }
        true
    }

    fn finish(self: Box<Self>) -> Result<Landed, Error> {
        self.scope.finish_some(self.numbers)?;
        Ok(Landed::Lent(self.into))
    }
}

/// The elements that were passed to [`Scope::coming`].
fn slice<'s, T: Pod>(landed: Landed) -> Option<&'s mut [T]> {
    let Landed::Lent(bytes) = landed else { return None };
    let bytes = bytes.elements();
    let elements =
        NonNull::slice_from_raw_parts(bytes.cast::<T>(), bytes.len().checked_div(size_of::<T>()).unwrap_or(0));
    // SAFETY: these are the elements passed to `coming`, which are lent for `'s`. The operations that fill them have
    // completed, and the request, the only handle on the elements, has ended.
    Some(unsafe { &mut *elements.as_ptr() })
}
