//! Atomic operations on an array's elements.

use super::access::Access;
use super::index::{Index, Ranges};
use super::reach::{INSIDE, Part, Reach, Remote};
use super::transfer;
use crate::word_wait::wait_calls;
use crate::{Atomic, Error, Fabric, Op};
use bytemuck::Pod;
use std::time::Duration;

/// The bounds on [`Atomic`] and [`Remote`] are on each call instead of the impl, so that the compiler's message for a
/// missing one is useful.
impl<T: Pod, E: Reach<Element = T>, const D: usize> Access<'_, E, D> {
    /// Replaces an element by the result of an operation on it, and returns its previous value. Atomicity and cost are
    /// those of [`Target::fetch_and_op`](crate::Target::fetch_and_op).
    ///
    /// # Errors
    /// The errors of [`get_one`](Self::get_one).
    #[inline]
    pub fn fetch_and_op(&self, index: impl Index<T, D>, op: Op, operand: T) -> Result<T, Error>
    where
        T: Atomic,
        E: Remote,
    {
        let (owner, offset) = self.place(index)?;
        self.through.with_target(INSIDE, owner, |target| target.fetch_and_op(offset, op, operand))
    }

    /// Puts `new` if the element equals `expected`, bit for bit, and returns its previous value. Atomicity and cost are
    /// those of [`Target::compare_and_swap`](crate::Target::compare_and_swap).
    ///
    /// # Errors
    /// The errors of [`get_one`](Self::get_one).
    #[inline]
    pub fn compare_and_swap(&self, index: impl Index<T, D>, expected: T, new: T) -> Result<T, Error>
    where
        T: Atomic,
        E: Remote,
    {
        let (owner, offset) = self.place(index)?;
        self.through.with_target(INSIDE, owner, |target| target.compare_and_swap(offset, expected, new))
    }

    /// Replaces each element of a patch by the result of an operation on it and its operand, each atomically. 1
    /// [`Target::accumulate`](crate::Target::accumulate) per run.
    ///
    /// # Errors
    /// The errors of [`put`](Self::put).
    ///
    /// # Examples
    /// ```
    /// # use transom::{Distribution, GlobalArray, Op};
    /// transom::threads(3, |world| -> Result<(), transom::Error> {
    ///     let mut sums: GlobalArray<i32> = world.array([10], Distribution::Block)?;
    ///     sums.lock_all()?.accumulate(2..8, Op::Sum, &[1, 2, 3, 4, 5, 6])?;
    ///     let access = sums.fence()?;
    ///     assert_eq!(access.get_one(7)?, 3 * 6);
    ///     Ok(())
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn accumulate(&self, ranges: impl Ranges<D>, op: Op, operands: &[T]) -> Result<(), Error>
    where
        T: Atomic,
        E: Remote,
    {
        let patch = self.patch(ranges.ranges(), operands.len())?;
        transfer::try_runs(&patch, operands, |owner, offset, operands| {
            self.through.with_target(INSIDE, owner, |target| target.accumulate(offset, op, operands))
        })
    }

    /// [`accumulate`](Self::accumulate) that also writes each element's previous value to `results`. 1
    /// [`Target::get_accumulate`](crate::Target::get_accumulate) per run.
    ///
    /// # Errors
    /// The errors of [`put`](Self::put); [`ArrayError::BufferLength`](super::ArrayError::BufferLength) also if
    /// `results` and `operands` differ in length.
    ///
    /// # Examples
    /// ```
    /// # use transom::{Distribution, GlobalArray, Op};
    /// let world = transom::init()?;
    /// let mut counts: GlobalArray<u64> = world.array([10], Distribution::Cyclic)?;
    /// let (epoch, mut before) = (counts.lock_all()?, [9; 2]);
    /// epoch.get_accumulate(3..5, Op::Sum, &[1, 2], &mut before)?;
    /// epoch.get_accumulate(4..6, Op::Sum, &[1, 2], &mut before)?;
    /// assert_eq!(before, [2, 0]);
    /// # drop(epoch);
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn get_accumulate(&self, ranges: impl Ranges<D>, op: Op, operands: &[T], results: &mut [T]) -> Result<(), Error>
    where
        T: Atomic,
        E: Remote,
    {
        let ranges = ranges.ranges();
        self.patch(ranges.clone(), results.len())?;
        let patch = self.patch(ranges, operands.len())?;
        transfer::try_runs_into(&patch, operands, results, |owner, offset, operands, results| {
            self.through.with_target(INSIDE, owner, |target| target.get_accumulate(offset, op, operands, results))
        })
    }

    /// Reads an element atomically: [`fetch_and_op`](Self::fetch_and_op) with [`Op::NoOp`].
    ///
    /// # Errors
    /// The errors of [`get_one`](Self::get_one).
    ///
    /// # Examples
    /// ```
    /// # use transom::{Distribution, GlobalArray};
    /// let world = transom::init()?;
    /// let mut plane: GlobalArray<i64, 2> = world.array([4, 4], Distribution::Block)?;
    /// let epoch = plane.lock_all()?; // other ranks may do the same concurrently
    /// epoch.store([2, 1], 5)?;
    /// assert_eq!(epoch.fetch_add([2, 1], 2)?, 5);
    /// assert_eq!(epoch.swap([2, 1], -1)?, 7);
    /// assert_eq!(epoch.load([2, 1])?, -1);
    /// # drop(epoch);
    /// # Ok::<(), transom::Error>(())
    /// ```
    #[inline]
    pub fn load(&self, index: impl Index<T, D>) -> Result<T, Error>
    where
        T: Atomic,
        E: Remote,
    {
        self.fetch_and_op(index, Op::NoOp, T::zeroed())
    }

    /// Replaces an element atomically: an accumulate with [`Op::Replace`].
    ///
    /// # Errors
    /// The errors of [`get_one`](Self::get_one).
    ///
    /// # Examples
    /// See [`load`](Self::load).
    #[inline]
    pub fn store(&self, index: impl Index<T, D>, element: T) -> Result<(), Error>
    where
        T: Atomic,
        E: Remote,
    {
        let (owner, offset) = self.place(index)?;
        self.through.with_target(INSIDE, owner, |target| target.store(offset, element))
    }

    /// Replaces an element atomically, and returns its previous value: [`fetch_and_op`](Self::fetch_and_op) with
    /// [`Op::Replace`].
    ///
    /// # Errors
    /// The errors of [`get_one`](Self::get_one).
    ///
    /// # Examples
    /// See [`load`](Self::load).
    #[inline]
    pub fn swap(&self, index: impl Index<T, D>, element: T) -> Result<T, Error>
    where
        T: Atomic,
        E: Remote,
    {
        self.fetch_and_op(index, Op::Replace, element)
    }

    /// Adds to an element atomically, and returns its previous value: [`fetch_and_op`](Self::fetch_and_op) with
    /// [`Op::Sum`].
    ///
    /// # Errors
    /// The errors of [`get_one`](Self::get_one).
    ///
    /// # Examples
    /// See [`load`](Self::load).
    #[inline]
    pub fn fetch_add(&self, index: impl Index<T, D>, operand: T) -> Result<T, Error>
    where
        T: Atomic,
        E: Remote,
    {
        self.fetch_and_op(index, Op::Sum, operand)
    }
}

impl<T: Atomic, E: Remote<Element = T>, const D: usize> Access<'_, E, D> {
    wait_calls! {
        /// Waits until an element at any owner satisfies `until`, and returns its value. Other ranks put the element or
        /// change it by atomics. See [`Target::wait_until`](crate::Target::wait_until), also for the cost.
        ///
        /// # Errors
        /// The errors of [`get_one`](Self::get_one); [`Error::Fabric`] also if a rank died, or all others left.
        ///
        /// # Examples
        /// ```
        /// use transom::Distribution;
        /// transom::threads(3, |world| -> Result<(), transom::Error> {
        ///     let mut done = world.array::<u64, 1>([9], Distribution::Block)?;
        ///     let epoch = done.lock_all()?;
        ///     epoch.fetch_add(7, 1)?; // CONDVARSIGNAL, at any rank
        ///     assert_eq!(epoch.wait_until(7, |ranks| ranks == 3)?, 3); // CONDVARWAIT
        ///     epoch.unlock()
        /// })?.into_iter().collect::<Result<(), _>>()?;
        /// # Ok::<(), transom::Error>(())
        /// ```
        wait_until: index: impl Index<T, D>,

        /// [`wait_until`](Self::wait_until) with a time limit: returns `None` after `limit`.
        ///
        /// # Errors
        /// The errors of `wait_until`.
        ///
        /// # Examples
        /// See [`Target::wait_until_for`](crate::Target::wait_until_for).
        wait_until_for
    }

    fn wait_by(
        &self,
        index: impl Index<T, D>,
        limit: Option<Duration>,
        until: impl Fn(T) -> bool,
    ) -> Result<Option<T>, Error> {
        let (owner, offset) = self.place(index)?;
        self.through.with_target(INSIDE, owner, |target| target.wait_by(offset, limit, until))
    }
}

impl<T: Atomic, F: Fabric, const D: usize> Access<'_, Part<'_, T, F>, D> {
    wait_calls! {
        /// Waits until an element that this rank owns satisfies `until`, and returns its value; see
        /// [`Local::wait_until`](crate::Local::wait_until). No remote operation.
        ///
        /// # Errors
        /// The errors of [`get_one`](Self::get_one); [`Error::Fabric`] also if a rank died, or all others left.
        ///
        /// # Examples
        /// ```
        /// use transom::Distribution;
        /// transom::threads(2, |world| -> Result<(), transom::Error> {
        ///     let mut words = world.array::<u64, 1>([2], Distribution::Block)?; // one each
        ///     let (me, epoch) = (world.rank(), words.lock_all()?);
        ///     epoch.store(1 - me, 5)?;
        ///     epoch.unlock()?;
        ///     assert_eq!(words.local().wait_until(me, |word| word != 0)?, 5);
        ///     Ok(())
        /// })?.into_iter().collect::<Result<(), _>>()?;
        /// # Ok::<(), transom::Error>(())
        /// ```
        wait_until: index: impl Index<T, D>,

        /// [`wait_until`](Self::wait_until) with a time limit: returns `None` after `limit`.
        ///
        /// # Errors
        /// The errors of `wait_until`.
        ///
        /// # Examples
        /// See [`Local::wait_until_for`](crate::Local::wait_until_for).
        wait_until_for
    }

    fn wait_by(
        &self,
        index: impl Index<T, D>,
        limit: Option<Duration>,
        until: impl Fn(T) -> bool,
    ) -> Result<Option<T>, Error> {
        let (_, offset) = self.place(index)?;
        self.through.local.wait_by(offset, limit, until)
    }
}
