//! Arrays over all ranks of a world, with indices that are independent of ownership.
//!
//! A [`GlobalArray`] is a window with a [`Layout`], which maps each element to its owner and position. Its calls open
//! the window's epochs, as an [`Access`], which has every operation.

mod access;
mod atomics;
mod combs;
mod divisor;
mod halo;
mod in_scope;
mod index;
mod layout;
mod odometer;
mod own;
mod patch;
mod pointer;
mod reach;
mod runs;
mod share;
mod transfer;

pub use crate::array_error::{ArrayError, LayoutError};
pub use access::Access;
pub use halo::Halo;
pub use index::{Index, Ranges};
pub use layout::{Distribution, Layout, Tile};
pub use pointer::GlobalPtr;
pub use reach::{Part, Reach, Remote};
pub use runs::Run;

use crate::{Error, Fabric, FenceEpoch, LockAllEpoch, LockEpoch, LockRanksEpoch, Mode, Window};
use access::ArrayInfo;
use bytemuck::Pod;
use std::ops::Range;
use std::time::Duration;
use transom_locks::Rank;

/// An array of `D` dimensions, distributed over the ranks of a world; see [`Distribution`]. Calls name elements by
/// their index in the whole array, and patches by ranges of indices.
///
/// Epochs are those of its [`Window`], with the same rules and costs. Other ranks' elements can be accessed only within
/// an epoch, one epoch is open at a time, and puts become visible as they would in the window. A rank's part of the
/// window has the rank's elements and no padding.
///
/// # Examples
/// ```
/// use transom::{Distribution, GlobalArray};
/// transom::threads(4, |world| -> Result<(), transom::Error> {
///     // 100 x 100, in tiles of 16 x 16 dealt to a grid of 2 x 2 ranks
///     let mut plate: GlobalArray<f64, 2> = world.array([100, 100], Distribution::BlockCyclic([16, 16]))?;
///     for tile in plate.layout().tiles_of(world.rank()) {
///         plate.local().put_tile(tile.index, &vec![tile.owner as f64; tile.len()])?; // by memcpy
///     }
///     let epoch = plate.fence()?; // every rank has written its elements
///     let mut column = [0.0; 100];
///     epoch.get([0..100, 17..18], &mut column)?; // at any owners
///     assert_eq!((column[0], column[16]), (1.0, 3.0));
///     Ok(())
/// })?.into_iter().collect::<Result<(), _>>()?;
/// # Ok::<(), transom::Error>(())
/// ```
pub struct GlobalArray<T, F: Fabric, const D: usize = 1> {
    layout: Layout<D>,
    window: Window<T, F>,
}

impl<T: Pod, F: Fabric, const D: usize> GlobalArray<T, F, D> {
    /// Collective: creates an array of zeroed elements, if all ranks pass the same layout. `id` is the number of its
    /// window. A rank without a layout passes its error, so that the other ranks, which wait for it, fail too.
    ///
    /// # Errors
    /// [`Error::Layout`], also if the layout is for another number of ranks; [`ArrayError::Mismatch`];
    /// [`Error::Fabric`] if no memory is available, here or at another rank.
    ///
    /// # Examples
    /// ```
    /// // In `transom`: `let array = world.array_on::<f32, 2>(layout)?;`
    /// use transom_windows::GlobalArray;
    /// use transom_windows::array::{Distribution, Layout};
    /// # let fabric = transom_shm_loopback::Loopback::alone()?;
    /// let layout = Layout::new([10, 10], Distribution::Block, 1);
    /// let array = GlobalArray::<f32, _, 2>::new(&fabric, 0, layout)?;
    /// assert_eq!(array.local().get_one([9, 9])?, 0.0);
    /// # Ok::<(), transom_windows::Error>(())
    /// ```
    pub fn new(fabric: &F, id: u32, layout: Result<Layout<D>, LayoutError>) -> Result<Self, Error> {
        let (rank, ranks) = (fabric.rank(), fabric.size());
        let layout = layout.and_then(|layout| match layout.ranks() == ranks {
            true => Ok(layout),
            false => Err(LayoutError::Grid { grid: layout.grid().to_vec(), ranks: Some(ranks) }),
        });
        let numbers = match &layout {
            Ok(layout) => [layout.shape(), layout.block(), layout.grid(), layout.first_short()].concat(),
            Err(_) => Vec::new(),
        };
        let mine: Vec<u8> = numbers.into_iter().flat_map(|number| (number as u64).to_le_bytes()).collect();
        let all = fabric.all_gather(&mine).map_err(|source| Error::Fabric { window: id, rank, source })?;
        let layout = layout?;
        if let Some(rank) = all.iter().position(|other| *other != mine) {
            return Err(ArrayError::Mismatch { rank }.into());
        }
        Ok(GlobalArray { layout, window: Window::allocate(fabric, id, layout.part_len(rank))? })
    }

    /// The owner and position of each element.
    pub fn layout(&self) -> &Layout<D> {
        &self.layout
    }

    /// The elements that this rank owns, in an array with one block per rank, as with [`Distribution::Block`] and
    /// [`Balanced`](Distribution::Balanced); see [`Layout::own`].
    ///
    /// # Errors
    /// [`ArrayError::SeveralTiles`].
    ///
    /// # Examples
    /// ```
    /// use transom::Distribution;
    /// transom::threads(3, |world| -> Result<(), transom::Error> {
    ///     let mut array = world.array::<f64, 2>([4, 8], Distribution::Balanced)?; // of ranks in a row
    ///     let [rows, columns] = array.own()?;
    ///     array.local().put([rows.clone(), columns.clone()], &vec![1.0; rows.len() * columns.len()])?;
    ///     assert_eq!(array.fence()?.get_one([3, 7])?, 1.0);
    ///     Ok(())
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn own(&self) -> Result<[Range<usize>; D], Error> {
        let own = self.layout.own(self.window.rank());
        own.ok_or_else(|| ArrayError::SeveralTiles { array: self.window.id() }.into())
    }

    /// The window that holds the elements, for its counters, number and rank.
    pub fn window(&self) -> &Window<T, F> {
        &self.window
    }

    /// The window, to open epochs that only windows have, such as post/start/complete/wait. [`Layout::locate`] and
    /// [`Layout::tile`] give ranks and offsets.
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
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn window_mut(&mut self) -> &mut Window<T, F> {
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
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn ptr(&self, index: impl Index<T, D>) -> Result<GlobalPtr<T>, Error> {
        ArrayInfo::of(&self.layout, &self.window).ptr(index)
    }

    /// The index of the element at a pointer.
    ///
    /// # Errors
    /// [`ArrayError::Pointer`].
    pub fn index_of(&self, pointer: GlobalPtr<T>) -> Result<[usize; D], Error> {
        pointer.follow(self.window.id(), &self.layout)
    }

    /// This rank's own elements, read and written by copy; [`Layout::tiles_of`] lists them. Needs no epoch and no
    /// remote operation. Puts of other ranks are seen once a synchronisation orders them.
    ///
    /// # Examples
    /// ```
    /// use transom::Distribution;
    /// transom::threads(2, |world| -> Result<(), transom::Error> {
    ///     let array = world.array::<u8, 1>([10], Distribution::Block)?; // 0..5 and 5..10
    ///     let put = array.local().put(0..5, b"hello");
    ///     assert!(matches!((world.rank(), put), (0, Ok(())) | (1, Err(transom::Error::Array(_)))));
    ///     Ok(())
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), transom::Error>(())
    /// ```
    #[inline]
    pub fn local(&self) -> Access<'_, Part<'_, T, F>, D> {
        let through = Part { rank: self.window.rank(), local: self.window.local() };
        Access { info: ArrayInfo::of(&self.layout, &self.window), through }
    }

    /// Opens an epoch with exclusive access to the elements of `owner`. See
    /// [`Window::lock_exclusive`](crate::Window::lock_exclusive), also for the cost.
    ///
    /// # Errors
    /// [`Error::NoSuchRank`], [`Error::Fabric`], [`Error::Lock`].
    #[inline]
    pub fn lock_exclusive(&mut self, owner: Rank) -> Result<Access<'_, LockEpoch<'_, T, F>, D>, Error> {
        let info = ArrayInfo::of(&self.layout, &self.window);
        Ok(Access { info, through: self.window.lock_exclusive(owner)? })
    }

    /// Opens an epoch with shared access to the elements of `owner`. See
    /// [`Window::lock_shared`](crate::Window::lock_shared).
    ///
    /// # Errors
    /// [`Error::NoSuchRank`], [`Error::Fabric`], [`Error::Lock`].
    #[inline]
    pub fn lock_shared(&mut self, owner: Rank) -> Result<Access<'_, LockEpoch<'_, T, F>, D>, Error> {
        let info = ArrayInfo::of(&self.layout, &self.window);
        Ok(Access { info, through: self.window.lock_shared(owner)? })
    }

    /// Opens an epoch on the elements of several owners, each locked exclusively or shared, in rank order. See
    /// [`Window::lock_ranks`](crate::Window::lock_ranks), also for the cost.
    ///
    /// # Errors
    /// [`Error::NoSuchRank`], [`Error::Fabric`], [`Error::Lock`]; no owner is locked then.
    ///
    /// # Examples
    /// ```
    /// use transom::{Distribution, Mode};
    /// transom::threads(3, |world| -> Result<(), transom::Error> {
    ///     let mut accounts = world.array::<i64, 1>([30], Distribution::Cyclic)?;
    ///     let (from, to) = (world.rank(), 14); // account 14 belongs to rank 2
    ///     let owners = [from, to].map(|account| (account % world.size(), Mode::Exclusive));
    ///     let access = accounts.lock_ranks(&owners)?;
    ///     let (paid, had) = (access.get_one(from)? - 5, access.get_one(to)? + 5);
    ///     access.put_one(from, paid)?;
    ///     access.put_one(to, had)?;
    ///     access.unlock()?;
    ///     assert_eq!(accounts.fence()?.get_one(14)?, 15);
    ///     Ok(())
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn lock_ranks(&mut self, owners: &[(Rank, Mode)]) -> Result<Access<'_, LockRanksEpoch<'_, T, F>, D>, Error> {
        let info = ArrayInfo::of(&self.layout, &self.window);
        Ok(Access { info, through: self.window.lock_ranks(owners)? })
    }

    /// [`lock_ranks`](Self::lock_ranks) with a time limit: returns `None`, with no owner locked, if not all locks are
    /// granted within `limit`. See [`Window::try_lock_ranks_for`](crate::Window::try_lock_ranks_for).
    ///
    /// # Errors
    /// The errors of [`lock_ranks`](Self::lock_ranks). The death of a rank is an error even before the deadline.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use transom::{Distribution, Mode};
    /// let world = transom::init()?;
    /// let mut array = world.array::<u8, 1>([10], Distribution::Block)?;
    /// let access = array.try_lock_ranks_for(&[(0, Mode::Shared)], Duration::from_millis(100))?;
    /// assert_eq!(access.expect("no other rank locks it").get_one(3)?, 0);
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn try_lock_ranks_for(
        &mut self,
        owners: &[(Rank, Mode)],
        limit: Duration,
    ) -> Result<Option<Access<'_, LockRanksEpoch<'_, T, F>, D>>, Error> {
        let info = ArrayInfo::of(&self.layout, &self.window);
        Ok(self.window.try_lock_ranks_for(owners, limit)?.map(|through| Access { info, through }))
    }

    /// Opens an epoch with shared access to all elements; see [`Window::lock_all`](crate::Window::lock_all).
    ///
    /// # Errors
    /// [`Error::Fabric`], [`Error::Lock`].
    pub fn lock_all(&mut self) -> Result<Access<'_, LockAllEpoch<'_, T, F>, D>, Error> {
        let info = ArrayInfo::of(&self.layout, &self.window);
        Ok(Access { info, through: self.window.lock_all()? })
    }

    /// Collective: ends the epoch of the last fence, if any, and opens the next, on all elements; see
    /// [`Window::fence`](crate::Window::fence).
    ///
    /// # Errors
    /// [`Error::Sync`] if a rank died or left; [`Error::Fabric`].
    pub fn fence(&mut self) -> Result<Access<'_, FenceEpoch<'_, T, F>, D>, Error> {
        let info = ArrayInfo::of(&self.layout, &self.window);
        Ok(Access { info, through: self.window.fence()? })
    }
}
