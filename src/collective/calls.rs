//! Collectives in which every rank passes the same number of elements: barrier, broadcast, reductions and scans.

use super::Reduction;
use crate::messages::Error;
use crate::world::World;
use transom_collective::Rank;
use transom_windows::Element;

impl World {
    /// Collective: returns once every rank has called it.
    ///
    /// Stores that a rank made to its own memory before the barrier, and puts that it flushed before, are visible to
    /// all ranks after it. The barrier itself flushes nothing. It sends no message if all ranks share memory; otherwise
    /// one rank of each host sends ceil(log2 hosts). The first collective of a world allocates memory for the later
    /// ones.
    ///
    /// # Errors
    /// Same as [`broadcast`](Self::broadcast).
    ///
    /// # Examples
    /// ```
    /// transom::threads(4, |world| world.barrier())?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn barrier(&self) -> Result<(), Error> {
        self.call::<u8, _>(self.of_barrier()?, &[], &mut [])
    }

    /// Collective: copies the root's elements to all ranks.
    ///
    /// Long broadcasts are pipelined in segments; `docs/design/collectives.md` lists the algorithms and the messages
    /// that each sends.
    ///
    /// # Errors
    /// These errors apply to all collectives:
    ///
    /// - [`Error::Mismatch`] if ranks make different calls.
    /// - [`Error::PeerDied`], [`Error::PeerLeft`] and, in a team, [`Error::TeamDropped`] if a rank can no longer call.
    ///   Every rank gets these errors, or the mismatch, within seconds; all later collectives of this world or team fail
    ///   with the same error.
    /// - [`Error::Misuse`] if this rank's arguments are invalid.
    /// - [`Error::NoSuchRank`] if the root is not a rank of this world or team.
    /// - [`Error::Unavailable`] if messages are not available.
    ///
    /// # Examples
    /// ```
    /// transom::threads(3, |world| -> Result<(), transom::Error> {
    ///     let mut sizes = if world.rank() == 0 { [640_u32, 480] } else { [0; 2] };
    ///     world.broadcast(0, &mut sizes)?;
    ///     assert_eq!(sizes, [640, 480]);
    ///     Ok(())
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn broadcast<T: Element>(&self, root: Rank, data: &mut [T]) -> Result<(), Error> {
        self.call(self.of_broadcast::<T>(root, data.len())?, &[], data)
    }

    /// Collective: returns the root's value at all ranks. Values of the other ranks are ignored.
    ///
    /// # Errors
    /// Same as [`broadcast`](Self::broadcast).
    ///
    /// # Examples
    /// ```
    /// let seeds = transom::threads(3, |world| world.broadcast_one(1, 10 + world.rank() as u64))?;
    /// assert!(seeds.into_iter().all(|seed| seed.unwrap() == 11));
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn broadcast_one<T: Element>(&self, root: Rank, value: T) -> Result<T, Error> {
        let mut one = [value];
        self.broadcast(root, &mut one)?;
        Ok(one[0])
    }

    /// [`reduce`](Self::reduce) of one value: the result at the root, `None` at the other ranks.
    ///
    /// # Errors
    /// Same as [`reduce`](Self::reduce).
    ///
    /// # Examples
    /// ```
    /// let sums = transom::threads(3, |world| world.reduce_one(2, world.rank(), transom::Op::Sum))?;
    /// assert_eq!(sums.into_iter().collect::<Result<Vec<_>, _>>()?, [None, None, Some(3)]);
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn reduce_one<T: Element, R: Reduction<T>>(&self, root: Rank, value: T, op: R) -> Result<Option<T>, Error> {
        let mut one = [value];
        self.reduce(root, &mut one, op)?;
        Ok((self.rank() == root).then_some(one[0]))
    }

    /// Collective: combines the elements of all ranks, index by index and in rank order; the results replace the root's
    /// elements. Elements of the other ranks are unchanged.
    ///
    /// # Errors
    /// Same as [`broadcast`](Self::broadcast), and [`Error::OperatorPanicked`].
    ///
    /// # Examples
    /// ```
    /// use transom::Op;
    /// transom::threads(3, |world| -> Result<(), transom::Error> {
    ///     let mut counts = [1, world.rank() as u64];
    ///     world.reduce(2, &mut counts, Op::Sum)?;
    ///     assert_eq!(counts, if world.rank() == 2 { [3, 3] } else { [1, world.rank() as u64] });
    ///     Ok(())
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn reduce<T: Element, R: Reduction<T>>(&self, root: Rank, data: &mut [T], op: R) -> Result<(), Error> {
        self.call(self.of_reduce::<T, R>(root, data.len(), op)?, &[], data)
    }

    /// Collective: combines the elements of all ranks, index by index and in rank order; the results replace the
    /// elements of every rank. All ranks get bitwise identical results.
    ///
    /// # Errors
    /// Same as [`reduce`](Self::reduce).
    ///
    /// # Examples
    /// ```
    /// use transom::Op;
    /// transom::threads(4, |world| -> Result<(), transom::Error> {
    ///     let mut bounds = [world.rank() as i32, -(world.rank() as i32)];
    ///     world.all_reduce(&mut bounds, Op::Max)?;
    ///     assert_eq!(bounds, [3, 0]);
    ///     Ok(())
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn all_reduce<T: Element, R: Reduction<T>>(&self, data: &mut [T], op: R) -> Result<(), Error> {
        self.call(self.of_all_reduce::<T, R>(data.len(), op)?, &[], data)
    }

    /// [`all_reduce`](Self::all_reduce) of one value, such as a sum or a maximum.
    ///
    /// # Errors
    /// Same as [`reduce`](Self::reduce).
    ///
    /// # Examples
    /// See [`collective`](crate::collective).
    pub fn all_reduce_one<T: Element, R: Reduction<T>>(&self, value: T, op: R) -> Result<T, Error> {
        let mut one = [value];
        self.all_reduce(&mut one, op)?;
        Ok(one[0])
    }

    /// [`all_reduce`](Self::all_reduce) with separate input and output buffers; `data` is unchanged.
    ///
    /// # Errors
    /// Same as [`reduce`](Self::reduce).
    ///
    /// # Examples
    /// ```
    /// use transom::Op;
    /// let (mine, mut all) = ([1.0, 2.0], [0.0; 2]);
    /// transom::init()?.all_reduce_into(&mine, &mut all, Op::Sum)?;
    /// assert_eq!(all, mine);
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn all_reduce_into<T: Element, R: Reduction<T>>(&self, data: &[T], into: &mut [T], op: R) -> Result<(), Error> {
        if data.len() != into.len() {
            let (data, into) = (data.len(), into.len());
            return self.refuse(format!("all_reduce_into: `into` has {into} elements, expected {data}"));
        }
        into.copy_from_slice(data);
        self.all_reduce(into, op)
    }

    /// Collective: inclusive scan. The results combine the elements of ranks 0 to this one and replace this rank's
    /// elements.
    ///
    /// # Errors
    /// Same as [`reduce`](Self::reduce).
    ///
    /// # Examples
    /// ```
    /// let sums = transom::threads(4, |world| -> Result<u64, transom::Error> {
    ///     let mut sum = [world.rank() as u64 + 1];
    ///     world.scan(&mut sum, transom::Op::Sum)?;
    ///     Ok(sum[0])
    /// })?;
    /// assert_eq!(sums.into_iter().collect::<Result<Vec<_>, _>>()?, [1, 3, 6, 10]);
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn scan<T: Element, R: Reduction<T>>(&self, data: &mut [T], op: R) -> Result<(), Error> {
        self.call(self.of_scan::<T, R>(false, data.len(), op)?, &[], data)
    }

    /// Collective: exclusive scan. The results combine the elements of all ranks before this one and replace this
    /// rank's elements. Elements of rank 0 are unchanged.
    ///
    /// # Errors
    /// Same as [`reduce`](Self::reduce).
    ///
    /// # Examples
    /// ```
    /// let before = transom::threads(3, |world| -> Result<[u64; 2], transom::Error> {
    ///     let mut mine = [[30, 1], [10, 2], [20, 3]][world.rank()];
    ///     world.exscan(&mut mine, transom::Op::Sum)?;
    ///     Ok(mine)
    /// })?;
    /// assert_eq!(before.into_iter().collect::<Result<Vec<_>, _>>()?, [[30, 1], [30, 1], [40, 3]]);
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn exscan<T: Element, R: Reduction<T>>(&self, data: &mut [T], op: R) -> Result<(), Error> {
        self.call(self.of_scan::<T, R>(true, data.len(), op)?, &[], data)
    }

    /// [`scan`](Self::scan) of one value.
    ///
    /// # Errors
    /// Same as [`reduce`](Self::reduce).
    ///
    /// # Examples
    /// ```
    /// let sums = transom::threads(4, |world| world.scan_one(world.rank() + 1, transom::Op::Sum))?;
    /// assert_eq!(sums.into_iter().collect::<Result<Vec<_>, _>>()?, [1, 3, 6, 10]);
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn scan_one<T: Element, R: Reduction<T>>(&self, value: T, op: R) -> Result<T, Error> {
        let mut one = [value];
        self.scan(&mut one, op)?;
        Ok(one[0])
    }

    /// [`exscan`](Self::exscan) of one value; `None` at rank 0.
    ///
    /// # Errors
    /// Same as [`reduce`](Self::reduce).
    ///
    /// # Examples
    /// The offset of each rank's part of a file:
    /// ```
    /// let offsets = transom::threads(3, |world| -> Result<u64, transom::Error> {
    ///     let mine = [30, 10, 20][world.rank()];
    ///     Ok(world.exscan_one(mine, transom::Op::Sum)?.unwrap_or(0))
    /// })?;
    /// assert_eq!(offsets.into_iter().collect::<Result<Vec<_>, _>>()?, [0, 30, 40]);
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn exscan_one<T: Element, R: Reduction<T>>(&self, value: T, op: R) -> Result<Option<T>, Error> {
        let mut one = [value];
        self.exscan(&mut one, op)?;
        Ok((self.rank() > 0).then_some(one[0]))
    }

    /// Collective: combines the elements of all ranks, one block per rank in each; every rank gets its own block of the
    /// results.
    ///
    /// # Errors
    /// Same as [`reduce`](Self::reduce).
    ///
    /// # Examples
    /// ```
    /// transom::threads(3, |world| -> Result<(), transom::Error> {
    ///     let mut mine = [0; 2];
    ///     world.reduce_scatter(&[1, 2, 10, 20, 100, 200], &mut mine, transom::Op::Sum)?;
    ///     assert_eq!(mine, [[3, 6], [30, 60], [300, 600]][world.rank()]);
    ///     Ok(())
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn reduce_scatter<T: Element, R: Reduction<T>>(&self, data: &[T], into: &mut [T], op: R) -> Result<(), Error> {
        self.call(self.of_reduce_scatter::<T, R>(data.len(), into.len(), op)?, data, into)
    }

    /// [`reduce_scatter`](Self::reduce_scatter) with block lengths `counts`, which must be the same list at all ranks.
    ///
    /// # Errors
    /// Same as [`reduce`](Self::reduce).
    ///
    /// # Examples
    /// ```
    /// transom::threads(2, |world| -> Result<(), transom::Error> {
    ///     let mut mine = vec![0; [1, 2][world.rank()]];
    ///     world.reduce_scatter_v(&[1, 10, 20], &[1, 2], &mut mine, transom::Op::Sum)?;
    ///     assert_eq!(mine, [&[2][..], &[20, 40]][world.rank()]);
    ///     Ok(())
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn reduce_scatter_v<T: Element, R: Reduction<T>>(
        &self,
        data: &[T],
        counts: &[usize],
        into: &mut [T],
        op: R,
    ) -> Result<(), Error> {
        self.call(self.of_reduce_scatter_v::<T, R>(data.len(), counts, into.len(), op)?, data, into)
    }
}
