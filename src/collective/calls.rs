//! What every rank has as much of: the barrier, broadcast, reductions, scans.

use super::Reduction;
use crate::messages::Error;
use crate::world::World;
use bytemuck::Pod;
use transom_collective::Rank;

impl World {
    /// Collective: returns when every rank has called it. What a rank wrote to its own memory before it, and what it put and
    /// flushed, all see after it; it flushes nothing itself. No message where all ranks share memory, else ceil(log2 hosts) of one
    /// rank of each host; the first collective of a world takes memory for those to come.
    ///
    /// # Errors
    /// As [`broadcast`](Self::broadcast).
    ///
    /// # Examples
    /// ```
    /// transom::threads(4, |world| world.barrier())?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn barrier(&self) -> Result<(), Error> {
        self.call::<u8, _>(self.of_barrier()?, &[], &mut [])
    }

    /// Collective: gives the root's elements to all ranks.
    ///
    /// A long one is cut in pieces; `docs/design/collectives.md` has the algorithms, and what each sends.
    ///
    /// # Errors
    /// Of all collectives: [`Error::Mismatch`] if ranks make different calls, [`Error::PeerDied`] and [`Error::PeerLeft`] of a
    /// rank that can no longer call, all within seconds, and from then on in every collective of this world or team;
    /// [`Error::Misuse`] of a call that is wrong by itself; [`Error::NoSuchRank`]; [`Error::Unavailable`] where there are no messages.
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
    pub fn broadcast<T: Pod>(&self, root: Rank, data: &mut [T]) -> Result<(), Error> {
        self.call(self.of_broadcast::<T>(root, data.len())?, &[], data)
    }

    /// Collective: the root's value, at all ranks. What the others pass is not looked at.
    ///
    /// # Errors
    /// As [`broadcast`](Self::broadcast).
    ///
    /// # Examples
    /// ```
    /// let seeds = transom::threads(3, |world| world.broadcast_one(1, 10 + world.rank() as u64))?;
    /// assert!(seeds.into_iter().all(|seed| seed.unwrap() == 11));
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn broadcast_one<T: Pod>(&self, root: Rank, value: T) -> Result<T, Error> {
        let mut one = [value];
        self.broadcast(root, &mut one)?;
        Ok(one[0])
    }

    /// [`reduce`](Self::reduce) of one value: the result at the root, none at the others.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Examples
    /// ```
    /// let sums = transom::threads(3, |world| world.reduce_one(2, world.rank(), transom::Op::Sum))?;
    /// assert_eq!(sums.into_iter().collect::<Result<Vec<_>, _>>()?, [None, None, Some(3)]);
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn reduce_one<T: Pod, R: Reduction<T>>(&self, root: Rank, value: T, op: R) -> Result<Option<T>, Error> {
        let mut one = [value];
        self.reduce(root, &mut one, op)?;
        Ok((self.rank() == root).then_some(one[0]))
    }

    /// Collective: folds the elements of all ranks, the first of each, the second of each and so on, in the order of ranks; the
    /// root's become the results. Those of the others are left as they are.
    ///
    /// # Errors
    /// As [`broadcast`](Self::broadcast), and [`Error::OperatorPanicked`].
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
    pub fn reduce<T: Pod, R: Reduction<T>>(&self, root: Rank, data: &mut [T], op: R) -> Result<(), Error> {
        self.call(self.of_reduce::<T, R>(root, data.len(), op)?, &[], data)
    }

    /// Collective: folds the elements of all ranks, the first of each, the second of each and so on, in the order of ranks; they become
    /// the results, the same at all ranks to the bit.
    ///
    /// # Errors
    /// As [`reduce`](Self::reduce).
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
    pub fn all_reduce<T: Pod, R: Reduction<T>>(&self, data: &mut [T], op: R) -> Result<(), Error> {
        self.call(self.of_all_reduce::<T, R>(data.len(), op)?, &[], data)
    }

    /// [`all_reduce`](Self::all_reduce) of one value: the sum, the largest.
    ///
    /// # Errors
    /// As [`reduce`](Self::reduce).
    ///
    /// # Examples
    /// See [`collective`](crate::collective).
    pub fn all_reduce_one<T: Pod, R: Reduction<T>>(&self, value: T, op: R) -> Result<T, Error> {
        let mut one = [value];
        self.all_reduce(&mut one, op)?;
        Ok(one[0])
    }

    /// [`all_reduce`](Self::all_reduce) that leaves the elements as they are.
    ///
    /// # Errors
    /// As [`reduce`](Self::reduce).
    ///
    /// # Examples
    /// ```
    /// use transom::Op;
    /// let (mine, mut all) = ([1.0, 2.0], [0.0; 2]);
    /// transom::init()?.all_reduce_into(&mine, &mut all, Op::Sum)?;
    /// assert_eq!(all, mine);
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn all_reduce_into<T: Pod, R: Reduction<T>>(&self, data: &[T], into: &mut [T], op: R) -> Result<(), Error> {
        if data.len() != into.len() {
            let (data, into) = (data.len(), into.len());
            return self.refuse(format!("all_reduce_into of {data} elements needs room for as many, not {into}"));
        }
        into.copy_from_slice(data);
        self.all_reduce(into, op)
    }

    /// Collective: folds the elements of this rank and of all ranks before it; they become the results.
    ///
    /// # Errors
    /// As [`reduce`](Self::reduce).
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
    pub fn scan<T: Pod, R: Reduction<T>>(&self, data: &mut [T], op: R) -> Result<(), Error> {
        self.call(self.of_scan::<T, R>(false, data.len(), op)?, &[], data)
    }

    /// Collective: folds the elements of all ranks before this one; they become the results. Those of the first rank are left as
    /// they are.
    ///
    /// # Errors
    /// As [`reduce`](Self::reduce).
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
    pub fn exscan<T: Pod, R: Reduction<T>>(&self, data: &mut [T], op: R) -> Result<(), Error> {
        self.call(self.of_scan::<T, R>(true, data.len(), op)?, &[], data)
    }

    /// [`scan`](Self::scan) of one value.
    ///
    /// # Errors
    /// As [`reduce`](Self::reduce).
    ///
    /// # Examples
    /// ```
    /// let sums = transom::threads(4, |world| world.scan_one(world.rank() + 1, transom::Op::Sum))?;
    /// assert_eq!(sums.into_iter().collect::<Result<Vec<_>, _>>()?, [1, 3, 6, 10]);
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn scan_one<T: Pod, R: Reduction<T>>(&self, value: T, op: R) -> Result<T, Error> {
        let mut one = [value];
        self.scan(&mut one, op)?;
        Ok(one[0])
    }

    /// [`exscan`](Self::exscan) of one value; none at the first rank.
    ///
    /// # Errors
    /// As [`reduce`](Self::reduce).
    ///
    /// # Examples
    /// Where each rank's part of a file begins:
    /// ```
    /// let offsets = transom::threads(3, |world| -> Result<u64, transom::Error> {
    ///     let mine = [30, 10, 20][world.rank()];
    ///     Ok(world.exscan_one(mine, transom::Op::Sum)?.unwrap_or(0))
    /// })?;
    /// assert_eq!(offsets.into_iter().collect::<Result<Vec<_>, _>>()?, [0, 30, 40]);
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn exscan_one<T: Pod, R: Reduction<T>>(&self, value: T, op: R) -> Result<Option<T>, Error> {
        let mut one = [value];
        self.exscan(&mut one, op)?;
        Ok((self.rank() > 0).then_some(one[0]))
    }

    /// Collective: folds the elements of all ranks, of which each has a block for every rank; each rank gets its own block of the results.
    ///
    /// # Errors
    /// As [`reduce`](Self::reduce).
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
    pub fn reduce_scatter<T: Pod, R: Reduction<T>>(&self, data: &[T], into: &mut [T], op: R) -> Result<(), Error> {
        self.call(self.of_reduce_scatter::<T, R>(data.len(), into.len(), op)?, data, into)
    }

    /// [`reduce_scatter`](Self::reduce_scatter) in blocks of these lengths, the same list at all ranks.
    ///
    /// # Errors
    /// As [`reduce`](Self::reduce).
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
    pub fn reduce_scatter_v<T: Pod, R: Reduction<T>>(
        &self,
        data: &[T],
        counts: &[usize],
        into: &mut [T],
        op: R,
    ) -> Result<(), Error> {
        self.call(self.of_reduce_scatter_v::<T, R>(data.len(), counts, into.len(), op)?, data, into)
    }
}
