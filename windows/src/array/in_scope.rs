//! Patches in flight on slices that the program lends until a scope ends.

use super::access::Access;
use super::combs::Comb;
use super::index::Ranges;
use super::reach::{INSIDE, Remote};
use super::transfer;
use crate::request::{Lent, Request};
use crate::scope::Scope;
use crate::{Error, Fabric, FabricError};
use bytemuck::Pod;
use bytemuck::allocation::{BoxBytes, try_from_box_bytes};
use std::ptr::NonNull;

impl<'s, 'env, F: Fabric> Scope<'s, 'env, F> {
    /// Starts a [`get`](Access::get) of a patch of an array. The scope borrows `into` until it ends, or until
    /// [`Request::wait`] returns the slice.
    ///
    /// Costs 1 get per run, all in flight at once. Elements of an owner that shares memory with this rank have arrived
    /// when this call returns. Each run whose elements are not adjacent in `into` uses a library buffer until it is
    /// waited for.
    ///
    /// # Errors
    /// The errors of [`get`](Access::get); some runs may then be in flight until the scope ends.
    ///
    /// # Examples
    /// ```
    /// use transom::{Distribution, Error, scope};
    /// transom::threads(2, |world| -> Result<(), Error> {
    ///     let mut plate = world.array::<f64, 2>([8, 8], Distribution::Block)?; // each rank has 8 rows of 4 columns
    ///     plate.local().fill_with(|[row, column]| (10 * row + column) as f64)?;
    ///     plate.fence()?;
    ///     let (mut row, mut column) = ([0.0; 8], [0.0; 8]);
    ///     let access = plate.lock_all()?;
    ///     let sum = scope(|scope| {
    ///         let row = scope.get_patch(&access, [2..3, 0..8], &mut row)?;
    ///         scope.get_patch(&access, [0..8, 5..6], &mut column)?;
    ///         // ... compute ...
    ///         Ok::<f64, Error>(row.wait()?.iter().sum())
    ///     })?;
    ///     assert_eq!((sum, column[7]), (8.0 * 20.0 + 28.0, 75.0));
    ///     Ok(())
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), Error>(())
    /// ```
    pub fn get_patch<T, E, const D: usize>(
        &'s self,
        access: &'s Access<'_, E, D>,
        ranges: impl Ranges<D>,
        into: &'s mut [T],
    ) -> Result<Request<'s, &'s mut [T]>, Error>
    where
        T: Pod,
        E: Remote<Element = T, Fabric = F>,
    {
        let (patch, through) = (access.patch(ranges.ranges(), into.len())?, &access.through);
        if patch.owners().all(|owner| through.is_shared(owner)) {
            transfer::get(&patch, through, into)?;
            return Ok(Request::ended(into));
        }
        let (elements, mut numbers) = (Lent::new(into), Vec::new());
        for share in patch.shares() {
            let target = through.target(INSIDE, share.owner)?;
            share.try_runs(|run, combs| {
                through.count_reads(1);
                let at = target.place(run.start, run.len())?;
                let started = if let [Comb { first, strip, count: 1, .. }] = combs {
                    let strip = elements.part(first.buffer..first.buffer + strip);
                    // SAFETY: the slice is lent for `'s`, and no other code accesses the elements before they are
                    // waited for.
                    unsafe { self.start_lent_get(&target, at, strip.bytes()) }
                } else {
                    let (from, combs, len) = (run.start, combs.to_vec(), run.len());
                    let buffer = BoxBytes::from(vec![T::zeroed(); len].into_boxed_slice());
                    let scatter = move |bytes| scatter(bytes, from, len, &combs, elements);
                    self.start_get(&target, at, buffer, Box::new(scatter))
                };
                numbers.extend(started.map_err(|error| target.error(error, run.start, run.len()))?);
                Ok::<(), Error>(())
            })?;
        }
        Ok(self.coming(numbers, elements))
    }

    /// Starts a [`put`](Access::put) of a patch of an array. The scope borrows `source` until it ends.
    ///
    /// Costs 1 put per run, all in flight at once; otherwise like [`get_patch`](Self::get_patch).
    ///
    /// # Errors
    /// The errors of [`put`](Access::put); some runs may then be in flight until the scope ends.
    ///
    /// # Examples
    /// ```
    /// # use transom::{Distribution, Error, scope};
    /// # let world = transom::init()?;
    /// let mut line = world.array::<u64, 1>([100], Distribution::Cyclic)?;
    /// let (low, high) = ([1; 50], [2; 50]);
    /// let access = line.lock_all()?;
    /// scope(|scope| {
    ///     scope.put_patch(&access, 0..50, &low)?;
    ///     scope.put_patch(&access, 50..100, &high)
    /// })?;
    /// access.flush()?;
    /// assert_eq!([access.get_one(49)?, access.get_one(50)?], [1, 2]);
    /// # drop(access);
    /// # Ok::<(), Error>(())
    /// ```
    pub fn put_patch<T, E, const D: usize>(
        &'s self,
        access: &'s Access<'_, E, D>,
        ranges: impl Ranges<D>,
        source: &'s [T],
    ) -> Result<(), Error>
    where
        T: Pod,
        E: Remote<Element = T, Fabric = F>,
    {
        let (patch, through) = (access.patch(ranges.ranges(), source.len())?, &access.through);
        if patch.owners().all(|owner| through.is_shared(owner)) {
            return transfer::put(&patch, through, source);
        }
        for share in patch.shares() {
            let target = through.target(INSIDE, share.owner)?;
            share.try_runs(|run, combs| {
                through.count_writes(1);
                let at = target.place(run.start, run.len())?;
                let started = if let [Comb { first, strip, count: 1, .. }] = combs {
                    self.start_lent_put(&target, at, bytemuck::cast_slice(&source[first.buffer..][..*strip]))
                } else {
                    let mut copy = vec![T::zeroed(); run.len()];
                    combs.iter().for_each(|comb| comb.gather(source, &mut copy[comb.first.part - run.start..]));
                    self.start_put(&target, at, BoxBytes::from(copy.into_boxed_slice()))
                };
                started.map_err(|error| target.error(error, run.start, run.len()))
            })?;
        }
        Ok(())
    }
}

/// Copies `len` elements of a part, from element `from` on, to their places in a lent buffer.
fn scatter<T: Pod>(bytes: BoxBytes, from: usize, len: usize, combs: &[Comb], into: Lent<T>) -> Result<(), FabricError> {
    let segment = try_from_box_bytes::<[T]>(bytes).ok().filter(|segment| segment.len() == len);
    let other = || FabricError::Misuse { why: "the provider returned another buffer".into() };
    let segment = segment.ok_or_else(other)?;
    for (comb, place) in combs.iter().flat_map(|comb| comb.strips().map(move |place| (comb, place))) {
        let strip = &segment[place.part - from..][..comb.strip];
        let place = into.part(place.buffer..place.buffer + strip.len()).elements().cast::<T>();
        // SAFETY: as long as the strip. The buffer is lent to the scope, and no other code accesses these elements.
        unsafe { place.copy_from_nonoverlapping(NonNull::from(strip).cast(), strip.len()) };
    }
    Ok(())
}
