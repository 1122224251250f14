//! Neighbour exchange on a Cartesian grid.

use crate::messages::Error;
use crate::world::World;
use bytemuck::Pod;
use transom_collective::Grid;

impl World {
    /// Collective: exchanges one block with each neighbour on a grid, in one message per neighbour.
    ///
    /// `data` and `into` hold 2 blocks per dimension: of the neighbour before and the neighbour after in the first
    /// dimension, then in the second, and so on. At an open edge, the block of the missing neighbour is neither read
    /// nor written.
    ///
    /// # Errors
    /// Same as [`broadcast`](Self::broadcast); [`Error::Misuse`] if the buffers do not hold 2 blocks per dimension, or
    /// the grid has a different number of ranks.
    ///
    /// # Examples
    /// Ghost rows of a grid that is distributed by rows:
    /// ```
    /// use transom::collective::Grid;
    /// transom::threads(3, |world| -> Result<(), transom::Error> {
    ///     let grid = Grid::of(world.size(), [false]).expect("there are ranks");
    ///     let (first, last) = (10 * world.rank(), 10 * world.rank() + 9); // its first and last row
    ///     let mut ghosts = [usize::MAX; 2];
    ///     world.neighbours(&grid, &[first, last], &mut ghosts)?;
    ///     assert_eq!(ghosts, [[usize::MAX, 10], [9, 20], [19, usize::MAX]][world.rank()]);
    ///     Ok(())
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn neighbours<T: Pod, const D: usize>(&self, grid: &Grid<D>, data: &[T], into: &mut [T]) -> Result<(), Error> {
        self.call(self.of_neighbours::<T, D>(grid, data.len(), into.len())?, data, into)
    }
}
