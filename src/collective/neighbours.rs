//! Exchanges between neighbours on a grid.

use crate::messages::Error;
use crate::world::World;
use bytemuck::Pod;
use transom_collective::Grid;

impl World {
    /// Collective: blocks for the neighbours of a rank on a grid, and as many from them, side by side: of who is before and
    /// after in the first dimension, then in the second, and so on. Where nobody is, at an edge, the block is neither read nor
    /// written. One message to each neighbour.
    ///
    /// # Errors
    /// As [`broadcast`](Self::broadcast); [`Error::Misuse`] if there are not 2 blocks for each dimension, or not as many
    /// ranks on the grid.
    ///
    /// # Examples
    /// Ghost rows of a grid of which each rank has some rows:
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
