//! All elements that a rank owns of an array, one by one.

use super::access::Access;
use super::layout::Layout;
use super::odometer::Odometer;
use super::reach::sealed::Reach;
use super::reach::{INSIDE, Part};
use crate::{Error, Fabric};
use bytemuck::Pod;
use transom_locks::Rank;

/// Elements that are copied at a time.
const AT_ONCE: usize = 512;

impl<const D: usize> Layout<D> {
    /// The indices of the elements that a rank owns, in the order of its part; empty if there is no such rank.
    ///
    /// # Examples
    /// ```
    /// use transom::array::{Distribution, Layout};
    /// let layout = Layout::new([3, 4], Distribution::BlockCyclic([2, 2]), 2)?; // 1 x 2 ranks
    /// let own: Vec<[usize; 2]> = layout.indices_of(1).collect();
    /// assert_eq!(own, [[0, 2], [0, 3], [1, 2], [1, 3], [2, 2], [2, 3]]);
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn indices_of(&self, rank: Rank) -> impl Iterator<Item = [usize; D]> + use<D> {
        self.tiles_of(rank).flat_map(|tile| {
            let (first, end) = (tile.ranges.each_ref().map(|range| range.start), tile.ranges.map(|range| range.end));
            Odometer::new(first, [1; D], end)
        })
    }
}

/// Calls without remote operations. No other rank may access these elements meanwhile; see [`Local`](crate::Local).
impl<T: Pod, F: Fabric, const D: usize> Access<'_, Part<'_, T, F>, D> {
    /// Sets each element that this rank owns to `value` of its index.
    ///
    /// # Errors
    /// The errors of [`Local::write`](crate::Local::write).
    ///
    /// # Examples
    /// ```
    /// # use transom::{Distribution, GlobalArray, Op};
    /// transom::threads(3, |world| -> Result<(), transom::Error> {
    ///     let mut table: GlobalArray<u64, 2> = world.array([10, 10], Distribution::BlockCyclic([4, 3]))?;
    ///     table.local().fill_with(|[i, j]| (i * j) as u64)?;
    ///     let mut largest = 0;
    ///     table.local().for_each(|_, product| largest = largest.max(product))?;
    ///     assert_eq!(world.all_reduce_one(largest, Op::Max)?, 81);
    ///     assert_eq!(table.fence()?.get_one([9, 7])?, 63); // at any owner
    ///     Ok(())
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn fill_with(&self, value: impl FnMut([usize; D]) -> T) -> Result<(), Error> {
        let rank = self.info.rank;
        let mut values = self.info.layout.indices_of(rank).map(value);
        let (mut offset, mut some) = (0, Vec::with_capacity(AT_ONCE));
        loop {
            some.extend(values.by_ref().take(AT_ONCE));
            if some.is_empty() {
                return Ok(());
            }
            self.through.copy_to(INSIDE, rank, offset, &some)?;
            offset += some.len();
            some.clear();
        }
    }

    /// Calls `each` with the index and the value of each element that this rank owns.
    ///
    /// # Errors
    /// The errors of [`Local::read`](crate::Local::read).
    ///
    /// # Examples
    /// See [`fill_with`](Self::fill_with).
    pub fn for_each(&self, mut each: impl FnMut([usize; D], T)) -> Result<(), Error> {
        let (rank, layout) = (self.info.rank, self.info.layout);
        let (mut indices, mut some) = (layout.indices_of(rank), Vec::new());
        let len = layout.part_len(rank);
        some.resize(AT_ONCE.min(len), T::zeroed());
        for offset in (0..len).step_by(AT_ONCE) {
            let some = &mut some[..AT_ONCE.min(len - offset)];
            self.through.copy_from(INSIDE, rank, offset, some)?;
            // The order of the two iterators matters: an index that is taken must be used.
            some.iter().zip(indices.by_ref()).for_each(|(value, index)| each(index, *value));
        }
        Ok(())
    }
}
