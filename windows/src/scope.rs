//! Gets and puts under way on slices that the program lends: until a scope ends, which waits for them.

use crate::core::Core;
use crate::target::Target;
use crate::{Error, Fabric, FabricError};
use bytemuck::Pod;
use bytemuck::allocation::BoxBytes;
use std::cell::RefCell;
use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::NonNull;
use transom_locks::Rank;

/// Runs `body` with a [`Scope`], in which gets and puts are started that need not be waited for one by one: of slices that live
/// longer than the scope, which are the provider's meanwhile. When `scope` returns all is done, also if `body` panics: gets have
/// come, and sources may be used again. What was put is visible at its target after a flush, or the end of the epoch, as ever.
///
/// Where memory is shared each is done when its call returns, and nothing is kept of it. Over a network the requests are under
/// way at once: up to 32 KiB through memory that is registered already; longer ones take what [`Target::get`] and
/// [`Target::put`] of so many bytes take.
///
/// # Errors
/// Those of `body`; else the first of what was not waited for.
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
    let scope = Scope { under_way: RefCell::default(), scope: PhantomData, env: PhantomData };
    let ending = Ending(&scope);
    let result = body(&scope);
    let ended = ending.0.finish_all();
    result.and_then(|result| ended.map(|()| result).map_err(E::from))
}

/// What [`scope`] lends. One thread uses it.
///
/// # Examples
/// See [`scope`].
pub struct Scope<'s, 'env: 's, F: Fabric> {
    /// What was started here; none where it has been waited for.
    under_way: RefCell<Vec<Option<UnderWay<'s, F>>>>,
    scope: PhantomData<&'s mut &'s ()>,
    env: PhantomData<&'env mut &'env ()>,
}

struct UnderWay<'s, F: Fabric> {
    core: &'s Core<F>,
    rank: Rank,
    moving: F::Moving,
    landing: Landing,
}

/// Where what is under way goes.
enum Landing {
    /// It is a put.
    Nowhere,
    /// Bytes that are lent.
    Lent(NonNull<[u8]>),
    /// The provider has a buffer of its own; what is to be done with it.
    Scattered(Scatter),
}

/// Takes bytes that have come to their places.
pub(crate) type Scatter = Box<dyn FnOnce(BoxBytes) -> Result<(), FabricError>>;

/// Waits for what a scope has started, also if there is a panic.
struct Ending<'c, 's, 'env, F: Fabric>(&'c Scope<'s, 'env, F>);

impl<F: Fabric> Drop for Ending<'_, '_, '_, F> {
    fn drop(&mut self) {
        if let Err(error) = self.0.finish_all() {
            crate::dropped::failed("a scope ended by a panic, and what it had under way failed", &error);
        }
    }
}

impl<'s, 'env, F: Fabric> Scope<'s, 'env, F> {
    /// Starts a [`put`](Target::put). `source` is the scope's until that ends.
    ///
    /// # Errors
    /// As `put`.
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

    /// Starts a [`get`](Target::get). `into` is the scope's until that ends, or until [`Coming::wait`] gives it back.
    ///
    /// # Errors
    /// As `get`.
    #[inline]
    pub fn get<T: Pod>(
        &'s self,
        target: &'s Target<'_, T, F>,
        offset: usize,
        into: &'s mut [T],
    ) -> Result<Coming<'s, 'env, T, F>, Error> {
        let (core, len) = (target.core, into.len());
        if core.data.fabric.is_shared(target.remote) {
            target.get(offset, into)?;
            return Ok(self.coming(self.started(), NonNull::from(into)));
        }
        core.data.counters.gets.bump();
        let at = target.place(offset, len)?;
        let (first, elements) = (self.started(), NonNull::from(into));
        let bytes = NonNull::slice_from_raw_parts(elements.cast::<u8>(), size_of::<T>() * len);
        // SAFETY: lent for `'s`; nobody has the elements before `coming` is waited for.
        let started = unsafe { self.start_lent_get(target, at, bytes) };
        started.map_err(|error| target.error(error, offset, len))?;
        Ok(self.coming(first, elements))
    }

    /// Starts a put from bytes that are lent for `'s`, before whose end the scope is done with what it has under way.
    pub(crate) fn start_lent_put<T>(
        &self,
        target: &Target<'s, T, F>,
        at: usize,
        source: &'s [u8],
    ) -> Result<(), FabricError> {
        // SAFETY: as just said.
        let started = unsafe { target.core.data.fabric.lend_put(target.remote, at, NonNull::from(source)) }?;
        self.keep(target, started, Landing::Nowhere);
        Ok(())
    }

    /// Starts a put from bytes that the provider has until it is done.
    pub(crate) fn start_put<T>(
        &self,
        target: &Target<'s, T, F>,
        at: usize,
        source: BoxBytes,
    ) -> Result<(), FabricError> {
        let started = target.core.data.fabric.start_put(target.remote, at, source)?;
        self.keep(target, Some(started), Landing::Nowhere);
        Ok(())
    }

    /// Starts a get into bytes that are lent.
    ///
    /// # Safety
    /// For `'s`, or until this get is waited for; nobody uses them before.
    pub(crate) unsafe fn start_lent_get<T>(
        &self,
        target: &Target<'s, T, F>,
        at: usize,
        into: NonNull<[u8]>,
    ) -> Result<(), FabricError> {
        // SAFETY: as the caller says; before the end of `'s` the scope is done with what it has under way.
        let started = unsafe { target.core.data.fabric.lend_get(target.remote, at, into) }?;
        self.keep(target, started, Landing::Lent(into));
        Ok(())
    }

    /// Starts a get into bytes that the provider has until it is done; `scatter` has them then.
    pub(crate) fn start_get<T>(
        &self,
        target: &Target<'s, T, F>,
        at: usize,
        bytes: BoxBytes,
        scatter: Scatter,
    ) -> Result<(), FabricError> {
        let started = target.core.data.fabric.start_get(target.remote, at, bytes)?;
        self.keep(target, Some(started), Landing::Scattered(scatter));
        Ok(())
    }

    fn keep<T>(&self, target: &Target<'s, T, F>, started: Option<F::Moving>, landing: Landing) {
        let under_way = started.map(|moving| UnderWay { core: target.core, rank: target.rank, moving, landing });
        self.under_way.borrow_mut().extend(under_way.map(Some));
    }

    /// How many were started.
    pub(crate) fn started(&self) -> usize {
        self.under_way.borrow().len()
    }

    /// Elements that what was started from number `first` on is to fill.
    pub(crate) fn coming<T: Pod>(&'s self, first: usize, elements: NonNull<[T]>) -> Coming<'s, 'env, T, F> {
        Coming { scope: self, numbers: first..self.started(), elements, element: PhantomData }
    }

    /// Waits for one; what it waited for before is done.
    fn finish(&self, number: usize) -> Result<(), Error> {
        let started = self.under_way.borrow_mut()[number].take();
        let Some(UnderWay { core, rank, moving, landing }) = started else { return Ok(()) };
        let fabric = &core.data.fabric;
        let finished = match landing {
            Landing::Nowhere => fabric.finish_moving(moving).map(drop),
            Landing::Lent(into) => {
                // SAFETY: it was started with these, which nobody has before this is over.
                unsafe { fabric.finish_get(moving, into) }
            }
            Landing::Scattered(scatter) => fabric.finish_moving(moving).and_then(scatter),
        };
        finished.map_err(|source| Error::Fabric { window: core.id, rank, source })
    }

    /// Waits for some, whichever fail; the first error.
    fn finish_some(&self, numbers: Range<usize>) -> Result<(), Error> {
        numbers.map(|number| self.finish(number)).fold(Ok(()), Result::and)
    }

    fn finish_all(&self) -> Result<(), Error> {
        self.finish_some(0..self.started())
    }
}

/// Elements that a get of a [`Scope`] is to fill. The scope waits for them if nobody else does.
///
/// # Examples
/// See [`scope`].
pub struct Coming<'s, 'env: 's, T: Pod, F: Fabric> {
    scope: &'s Scope<'s, 'env, F>,
    /// What they wait for.
    numbers: Range<usize>,
    elements: NonNull<[T]>,
    element: PhantomData<&'s mut [T]>,
}

impl<'s, T: Pod, F: Fabric> Coming<'s, '_, T, F> {
    /// Whether they have come, so that [`wait`](Self::wait) will return at once.
    ///
    /// # Errors
    /// [`Error::Fabric`].
    ///
    /// # Examples
    /// ```
    /// # let fabric = transom_shm_loopback::Loopback::alone()?;
    /// # let mut window = transom_windows::Window::<u64, _>::allocate(&fabric, 0, 64)?;
    /// let mut row = [7; 10];
    /// let epoch = window.lock_shared(0)?;
    /// transom_windows::scope(|scope| {
    ///     let coming = scope.get(&epoch, 0, &mut row)?;
    ///     while !coming.test()? {
    ///         // ... a piece of other work ...
    ///     }
    ///     assert_eq!(coming.wait()?, [0; 10]);
    ///     Ok::<(), transom_windows::Error>(())
    /// })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn test(&self) -> Result<bool, Error> {
        let mut under_way = self.scope.under_way.borrow_mut();
        for started in under_way.get_mut(self.numbers.clone()).into_iter().flatten().flatten() {
            let (core, rank) = (started.core, started.rank);
            let moved = core.data.fabric.has_moved(&mut started.moving);
            if !moved.map_err(|source| Error::Fabric { window: core.id, rank, source })? {
                core.data.fabric.looked_in_vain();
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns when they have come, and gives them back.
    ///
    /// # Errors
    /// [`Error::Fabric`].
    pub fn wait(mut self) -> Result<&'s mut [T], Error> {
        self.scope.finish_some(self.numbers.clone())?;
        // SAFETY: lent for `'s`; what was to fill them is over, and `self`, which alone stands for them, ends here.
        Ok(unsafe { self.elements.as_mut() })
    }
}
