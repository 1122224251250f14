//! Arrays over all ranks of a world, with indices that do not say who owns what.
//!
//! A [`GlobalArray`] is a window and a [`Layout`], which says who has which element, and where. Its calls open the
//! window's epochs, which lend an [`Access`] with every operation.

mod access;
mod error;
mod index;
mod layout;
mod pointer;
mod reach;
mod runs;

pub use access::Access;
pub use error::ArrayError;
pub use index::{Index, Ranges};
pub use layout::{Distribution, Layout, LayoutError, Tile};
pub use pointer::GlobalPtr;
pub use reach::{Part, Reach, Remote};
pub use runs::Run;

use crate::provider::Provider;
use crate::windows::{Exchange, FenceEpoch, LockAllEpoch, LockEpoch};
use crate::{Rank, Window, World};
use access::Known;
use bytemuck::Pod;

/// An array of `D` dimensions whose elements the ranks of a world share, each has a part of; see [`Distribution`].
/// Elements are named by their index in the whole, patches by ranges of indices.
///
/// Epochs are those of its [`Window`], with the same rules and costs: no access to what others own without one, one at a
/// time, and what was put is visible when the window's would be. The part of a rank is exactly its elements, without
/// padding.
///
/// # Examples
/// ```
/// use transom::{Distribution, GlobalArray};
/// transom::threads(4, |world| -> Result<(), transom::ArrayError> {
///     // 100 x 100, in tiles of 16 x 16 dealt to a grid of 2 x 2 ranks
///     let mut plate: GlobalArray<f64, 2> = world.array([100, 100], Distribution::BlockCyclic([16, 16]))?;
///     for tile in plate.layout().tiles_of(world.rank()) {
///         plate.local().put_tile(tile.index, &vec![tile.owner as f64; tile.len()])?; // by memcpy
///     }
///     let epoch = plate.fence()?; // everybody has written what it owns
///     let mut column = [0.0; 100];
///     epoch.get([0..100, 17..18], &mut column)?; // whoever has it
///     assert_eq!((column[0], column[16]), (1.0, 3.0));
///     Ok(())
/// })?.into_iter().collect::<Result<(), _>>()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct GlobalArray<T, const D: usize = 1> {
    layout: Layout<D>,
    window: Window<T>,
}

impl<T: Pod, const D: usize> GlobalArray<T, D> {
    /// Collective: an array of zeroed elements. All ranks pass the same layout; [`World::array`] makes it of a shape.
    ///
    /// # Errors
    /// [`ArrayError::Layout`] if it is not for as many ranks as the world has, [`ArrayError::Mismatch`];
    /// [`ArrayError::Window`] if there is no memory, here or elsewhere.
    ///
    /// # Examples
    /// ```
    /// use transom::GlobalArray;
    /// use transom::array::{Distribution, Layout};
    /// transom::threads(6, |world| -> Result<(), transom::ArrayError> {
    ///     let rows = Layout::on_grid([60, 8], Distribution::Block, [world.size(), 1])?; // whole rows
    ///     let mut array: GlobalArray<f32, 2> = GlobalArray::new(&world, rows)?;
    ///     array.lock_exclusive(2)?.put([25..27, 0..8], &[1.0; 16])?;
    ///     Ok(())
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn new(world: &World, layout: Layout<D>) -> Result<Self, ArrayError> {
        Self::agreed(world, Ok(layout))
    }

    /// The array, if all ranks ask for the same. One whose layout cannot be tells the others, which wait for it.
    pub(crate) fn agreed(world: &World, layout: Result<Layout<D>, LayoutError>) -> Result<Self, ArrayError> {
        let layout = layout.and_then(|layout| match layout.ranks() == world.size() {
            true => Ok(layout),
            false => Err(LayoutError::Grid { grid: layout.grid().to_vec(), ranks: Some(world.size()) }),
        });
        let numbers = match &layout {
            Ok(layout) => [layout.shape(), layout.block(), layout.grid()].concat(),
            Err(_) => Vec::new(),
        };
        let mine: Vec<u8> = numbers.into_iter().flat_map(|number| (number as u64).to_le_bytes()).collect();
        let failed = |source| crate::Error::Fabric { window: world.next_window(), rank: world.rank(), source };
        let all = world.fabric().all_gather(&mine).map_err(failed)?;
        let layout = layout?;
        if let Some(rank) = all.iter().position(|other| *other != mine) {
            return Err(ArrayError::Mismatch { rank });
        }
        Ok(GlobalArray { layout, window: world.allocate(layout.part_len(world.rank()))? })
    }

    /// Which rank has which element, and where.
    pub fn layout(&self) -> &Layout<D> {
        &self.layout
    }

    /// The window that holds the elements: its counters, its number, this rank.
    pub fn window(&self) -> &Window<T> {
        &self.window
    }

    /// The window, to open epochs that only windows have, such as post/start/complete/wait; [`Layout::locate`] and
    /// [`Layout::tile`] tell ranks and offsets.
    ///
    /// # Examples
    /// ```
    /// # use transom::{Distribution, GlobalArray};
    /// let world = transom::init()?;
    /// let mut array: GlobalArray<u64> = world.array([10], Distribution::Block)?;
    /// let (owner, offset) = array.layout().locate([7]).expect("inside");
    /// let window = array.window_mut();
    /// window.post(&[0])?;
    /// let epoch = window.start(&[owner])?;
    /// epoch.target(owner)?.put(offset, &[1])?;
    /// epoch.complete()?;
    /// window.wait()?;
    /// assert_eq!(array.local().get_one(7)?, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn window_mut(&mut self) -> &mut Window<T> {
        &mut self.window
    }

    /// A pointer to an element.
    ///
    /// # Errors
    /// [`ArrayError::Outside`].
    ///
    /// # Examples
    /// ```
    /// use transom::{Distribution, GlobalPtr};
    /// let world = transom::init()?;
    /// let array = world.array::<f64, 2>([5, 5], Distribution::Block)?;
    /// let pointer: GlobalPtr<f64> = array.ptr([2, 4])?;
    /// assert_eq!(array.index_of(pointer)?, [2, 4]);
    /// assert!(array.index_of(GlobalPtr::NULL).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn ptr(&self, index: impl Index<T, D>) -> Result<GlobalPtr<T>, ArrayError> {
        self.known().ptr(index)
    }

    /// The index of the element that a pointer points to.
    ///
    /// # Errors
    /// [`ArrayError::Pointer`].
    pub fn index_of(&self, pointer: GlobalPtr<T>) -> Result<[usize; D], ArrayError> {
        pointer.follow(self.window.id(), &self.layout)
    }

    /// This rank's own elements, read and written by copy; [`Layout::tiles_of`] tells which they are. No epoch is
    /// needed, and no remote operation; what others put is seen once a synchronisation orders it.
    ///
    /// # Examples
    /// ```
    /// use transom::{ArrayError, Distribution};
    /// transom::threads(2, |world| -> Result<(), ArrayError> {
    ///     let array = world.array::<u8, 1>([10], Distribution::Block)?; // 0..5 and 5..10
    ///     let put = array.local().put(0..5, b"hello");
    ///     assert!(matches!((world.rank(), put), (0, Ok(())) | (1, Err(ArrayError::NotReached { owner: 0, .. }))));
    ///     Ok(())
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn local(&self) -> Access<'_, Part<'_, T>, D> {
        Access { known: self.known(), through: Part { rank: self.window.rank(), local: self.window.local() } }
    }

    /// Opens an epoch that has the elements of `owner` to itself; see
    /// [`Window::lock_exclusive`](crate::windows::Window::lock_exclusive), also for the cost.
    ///
    /// # Errors
    /// [`ArrayError::Window`]. So for the following.
    #[inline]
    pub fn lock_exclusive(&mut self, owner: Rank) -> Result<Access<'_, LockEpoch<'_, T, Provider>, D>, ArrayError> {
        let (array, rank) = (self.window.id(), self.window.rank());
        let through = self.window.lock_exclusive(owner)?;
        Ok(Access { known: Known { array, rank, layout: &self.layout }, through })
    }

    /// Opens an epoch that shares the elements of `owner`; see
    /// [`Window::lock_shared`](crate::windows::Window::lock_shared).
    ///
    /// # Errors
    /// [`ArrayError::Window`].
    #[inline]
    pub fn lock_shared(&mut self, owner: Rank) -> Result<Access<'_, LockEpoch<'_, T, Provider>, D>, ArrayError> {
        let (array, rank) = (self.window.id(), self.window.rank());
        let through = self.window.lock_shared(owner)?;
        Ok(Access { known: Known { array, rank, layout: &self.layout }, through })
    }

    /// Opens an epoch on all elements, shared; see [`Window::lock_all`](crate::windows::Window::lock_all).
    ///
    /// # Errors
    /// [`ArrayError::Window`].
    pub fn lock_all(&mut self) -> Result<Access<'_, LockAllEpoch<'_, T, Provider>, D>, ArrayError> {
        let (array, rank) = (self.window.id(), self.window.rank());
        let through = self.window.lock_all()?;
        Ok(Access { known: Known { array, rank, layout: &self.layout }, through })
    }

    /// Collective: ends the epoch of the last fence, if any, and opens the next, on all elements; see
    /// [`Window::fence`](crate::windows::Window::fence).
    ///
    /// # Errors
    /// [`ArrayError::Window`] if a rank died or left.
    pub fn fence(&mut self) -> Result<Access<'_, FenceEpoch<'_, T, Provider>, D>, ArrayError> {
        let (array, rank) = (self.window.id(), self.window.rank());
        let through = self.window.fence()?;
        Ok(Access { known: Known { array, rank, layout: &self.layout }, through })
    }

    fn known(&self) -> Known<'_, D> {
        Known { array: self.window.id(), rank: self.window.rank(), layout: &self.layout }
    }
}
