//! Started collectives on borrowed buffers.

use super::Reduction;
use super::call_desc::{Described, Of};
use super::reduction::Fold;
use super::started::start;
use crate::messages::request::{Request, Under};
use crate::messages::{Scope, hold};
use bytemuck::Pod;
use std::borrow::Cow;
use transom_collective::{Grid, Rank};
use transom_windows::{Element, Section};

/// Started collectives like those of [`World`](crate::World), on borrowed instead of owned buffers. Each completes at
/// the latest when the scope ends.
impl<'s> Scope<'s, '_> {
    /// Starts a [`broadcast`](crate::World::broadcast) of a borrowed buffer.
    ///
    /// # Errors
    /// The request reports the errors of `broadcast`.
    pub fn ibroadcast<T: Element>(&'s self, root: Rank, data: &'s mut [T]) -> Request<'s, &'s mut [T]> {
        self.lent(self.world().of_broadcast::<T>(root, data.len()), &[], data)
    }

    /// Starts a [`reduce`](crate::World::reduce) of a borrowed buffer.
    ///
    /// # Errors
    /// The request reports the errors of `reduce`.
    pub fn ireduce<T: Element, R: Reduction<T> + 'static>(
        &'s self,
        root: Rank,
        data: &'s mut [T],
        op: R,
    ) -> Request<'s, &'s mut [T]> {
        self.lent(self.world().of_reduce::<T, R>(root, data.len(), op), &[], data)
    }

    /// Starts an [`all_reduce`](crate::World::all_reduce) of a borrowed buffer.
    ///
    /// # Errors
    /// The request reports the errors of `all_reduce`.
    ///
    /// # Examples
    /// ```
    /// transom::threads(3, |world| -> Result<(), transom::Error> {
    ///     let mut residuals = [world.rank() as f64; 100];
    ///     world.scope(|scope| {
    ///         let sum = scope.iall_reduce(&mut residuals, transom::Op::Sum);
    ///         // ... compute ...
    ///         assert_eq!(sum.wait()?[99], 3.0);
    ///         Ok::<(), transom::Error>(())
    ///     })?;
    ///     Ok(())
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn iall_reduce<T: Element, R: Reduction<T> + 'static>(
        &'s self,
        data: &'s mut [T],
        op: R,
    ) -> Request<'s, &'s mut [T]> {
        self.lent(self.world().of_all_reduce::<T, R>(data.len(), op), &[], data)
    }

    /// Starts a [`scan`](crate::World::scan) of a borrowed buffer.
    ///
    /// # Errors
    /// The request reports the errors of `scan`.
    pub fn iscan<T: Element, R: Reduction<T> + 'static>(
        &'s self,
        data: &'s mut [T],
        op: R,
    ) -> Request<'s, &'s mut [T]> {
        self.lent(self.world().of_scan::<T, R>(false, data.len(), op), &[], data)
    }

    /// Starts an [`exscan`](crate::World::exscan) of a borrowed buffer.
    ///
    /// # Errors
    /// The request reports the errors of `exscan`.
    pub fn iexscan<T: Element, R: Reduction<T> + 'static>(
        &'s self,
        data: &'s mut [T],
        op: R,
    ) -> Request<'s, &'s mut [T]> {
        self.lent(self.world().of_scan::<T, R>(true, data.len(), op), &[], data)
    }

    /// Starts [`reduce_scatter`](crate::World::reduce_scatter) on borrowed buffers.
    ///
    /// # Errors
    /// The request reports the errors of `reduce_scatter`.
    pub fn ireduce_scatter<T: Element, R: Reduction<T> + 'static>(
        &'s self,
        data: &'s [T],
        into: &'s mut [T],
        op: R,
    ) -> Request<'s, &'s mut [T]> {
        self.lent(self.world().of_reduce_scatter::<T, R>(data.len(), into.len(), op), data, into)
    }

    /// Starts [`reduce_scatter_v`](crate::World::reduce_scatter_v) on borrowed buffers.
    ///
    /// # Errors
    /// The request reports the errors of `reduce_scatter_v`.
    pub fn ireduce_scatter_v<T: Element, R: Reduction<T> + 'static>(
        &'s self,
        data: &'s [T],
        counts: &[usize],
        into: &'s mut [T],
        op: R,
    ) -> Request<'s, &'s mut [T]> {
        self.lent(self.world().of_reduce_scatter_v::<T, R>(data.len(), counts, into.len(), op), data, into)
    }

    /// Starts [`gather_into`](crate::World::gather_into) on borrowed buffers. `into` is used only at the root.
    ///
    /// # Errors
    /// The request reports the errors of `gather_into`.
    pub fn igather<T: Element>(&'s self, root: Rank, mine: &'s [T], into: &'s mut [T]) -> Request<'s, &'s mut [T]> {
        self.lent(self.world().of_gather::<T>(root, mine.len(), into.len()), mine, into)
    }

    /// Starts [`gather_v_into`](crate::World::gather_v_into) on borrowed buffers. `counts` (elements of each rank) and
    /// `into` are used only at the root.
    ///
    /// # Errors
    /// The request reports the errors of `gather_v`.
    pub fn igather_v<T: Element>(
        &'s self,
        root: Rank,
        mine: &'s [T],
        counts: &[usize],
        into: &'s mut [T],
    ) -> Request<'s, &'s mut [T]> {
        self.lent(self.world().of_gather_v::<T>(root, mine.len(), counts, into.len()), mine, into)
    }

    /// Starts a [`scatter`](crate::World::scatter) on borrowed buffers. `data` is used only at the root.
    ///
    /// # Errors
    /// The request reports the errors of `scatter`.
    pub fn iscatter<T: Element>(&'s self, root: Rank, data: &'s [T], into: &'s mut [T]) -> Request<'s, &'s mut [T]> {
        self.lent(self.world().of_scatter::<T>(root, data.len(), into.len()), data, into)
    }

    /// Starts [`scatter_v_into`](crate::World::scatter_v_into) on borrowed buffers. `data` and `counts` (elements for
    /// each rank) are used only at the root.
    ///
    /// # Errors
    /// The request reports the errors of `scatter_v`.
    pub fn iscatter_v<T: Element>(
        &'s self,
        root: Rank,
        data: &'s [T],
        counts: &[usize],
        into: &'s mut [T],
    ) -> Request<'s, &'s mut [T]> {
        self.lent(self.world().of_scatter_v::<T>(root, data.len(), counts, into.len()), data, into)
    }

    /// Starts [`all_gather_into`](crate::World::all_gather_into) on borrowed buffers.
    ///
    /// # Errors
    /// The request reports the errors of `all_gather_into`.
    pub fn iall_gather<T: Element>(&'s self, mine: &'s [T], into: &'s mut [T]) -> Request<'s, &'s mut [T]> {
        self.lent(self.world().of_all_gather::<T>(mine.len(), into.len()), mine, into)
    }

    /// Starts [`all_gather_v_into`](crate::World::all_gather_v_into) on borrowed buffers.
    ///
    /// # Errors
    /// The request reports the errors of `all_gather_v_into`.
    pub fn iall_gather_v<T: Element>(
        &'s self,
        mine: &'s [T],
        counts: &[usize],
        into: &'s mut [T],
    ) -> Request<'s, &'s mut [T]> {
        self.lent(self.world().of_all_gather_v::<T>(mine.len(), counts, into.len()), mine, into)
    }

    /// Starts [`all_to_all`](crate::World::all_to_all) on borrowed buffers.
    ///
    /// # Errors
    /// The request reports the errors of `all_to_all`.
    pub fn iall_to_all<T: Element>(&'s self, data: &'s [T], into: &'s mut [T]) -> Request<'s, &'s mut [T]> {
        self.lent(self.world().of_all_to_all::<T>(data.len(), into.len()), data, into)
    }

    /// Starts [`all_to_all_v_into`](crate::World::all_to_all_v_into) on borrowed buffers: `given[i]` elements go to
    /// rank `i` and `taken[i]` elements come from it.
    ///
    /// # Errors
    /// The request reports the errors of `all_to_all_v`.
    ///
    /// # Examples
    /// ```
    /// transom::threads(2, |world| -> Result<(), transom::Error> {
    ///     let (data, mut got) = ([7; 3], vec![0; [3, 3][world.rank()]]);
    ///     let (given, taken) = ([[1, 2], [2, 1]][world.rank()], [[1, 2], [2, 1]][world.rank()]);
    ///     world.scope(|scope| {
    ///         assert_eq!(scope.iall_to_all_v(&data, &given, &mut got, &taken).wait()?, [7; 3]);
    ///         Ok::<(), transom::Error>(())
    ///     })?;
    ///     Ok(())
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn iall_to_all_v<T: Element>(
        &'s self,
        data: &'s [T],
        given: &[usize],
        into: &'s mut [T],
        taken: &[usize],
    ) -> Request<'s, &'s mut [T]> {
        let world = self.world();
        let checked = world.check_counts("all_to_all_v", ("given", given), ("data", data.len()));
        self.lent(checked.and_then(|()| world.of_all_to_all_v::<T>(given, taken, into.len())), data, into)
    }

    /// Starts [`all_to_all_sections`](crate::World::all_to_all_sections) on borrowed buffers. The lists of sections are
    /// copied.
    ///
    /// # Errors
    /// The request reports the errors of `all_to_all_sections`.
    ///
    /// # Examples
    /// ```
    /// use transom::Section;
    /// transom::threads(2, |world| -> Result<(), transom::Error> {
    ///     let (given, mut into) = ([world.rank(), 7], [9; 4]);
    ///     let first = [Section::Contiguous { offset: 0, len: 1 }; 2]; // the same element to both
    ///     let odd = [1, 3].map(|offset| Section::Contiguous { offset, len: 1 });
    ///     world.scope(|scope| {
    ///         let coming = scope.iall_to_all_sections(&given, &first, &mut into, &odd);
    ///         // ... compute ...
    ///         assert_eq!(coming.wait()?, [9, 0, 9, 1]);
    ///         Ok::<(), transom::Error>(())
    ///     })?;
    ///     Ok(())
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn iall_to_all_sections<T: Element>(
        &'s self,
        data: &'s [T],
        given: &[Section<'_>],
        into: &'s mut [T],
        taken: &[Section<'_>],
    ) -> Request<'s, &'s mut [T]> {
        let of = self.world().of_all_to_all_sections::<T>(data.len(), given, into.len(), taken);
        self.lent(of.map(Described::owned), data, into)
    }

    /// Starts [`neighbours`](crate::World::neighbours) on borrowed buffers.
    ///
    /// # Errors
    /// The request reports the errors of `neighbours`.
    ///
    /// # Examples
    /// ```
    /// use transom::collective::Grid;
    /// transom::threads(2, |world| -> Result<(), transom::Error> {
    ///     let (grid, edges, mut ghosts) = (Grid::new([2], [false]).expect("a row"), [1.5, 2.5], [0.0; 2]);
    ///     world.scope(|scope| {
    ///         let coming = scope.ineighbours(&grid, &edges, &mut ghosts);
    ///         // ... compute what needs no ghosts ...
    ///         assert_eq!(coming.wait()?, [[0.0, 1.5], [2.5, 0.0]][world.rank()]);
    ///         Ok::<(), transom::Error>(())
    ///     })?;
    ///     Ok(())
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn ineighbours<T: Element, const D: usize>(
        &'s self,
        grid: &Grid<D>,
        data: &'s [T],
        into: &'s mut [T],
    ) -> Request<'s, &'s mut [T]> {
        self.lent(self.world().of_neighbours::<T, D>(grid, data.len(), into.len()), data, into)
    }

    fn lent<T: Pod, F: Fold + 'static>(
        &'s self,
        of: Of<F>,
        given: &'s [T],
        data: &'s mut [T],
    ) -> Request<'s, &'s mut [T]> {
        let described = match of {
            Ok(described) => described,
            Err(error) => return self.failed(error, Some(data)),
        };
        // SAFETY: the scope waits until the request has completed, before `'s` ends; the borrow is returned only after
        // completion.
        let (given, data) = unsafe { (hold::lend(given), hold::lend_mut(data)) };
        match start::<T, F>(self.world(), Some(self), described, given, data) {
            // SAFETY: lent above for `'s`; the completed collective has returned the buffer.
            Ok(under) => Request::under_way(Under { comm: Cow::Borrowed(self.comm()), ..under }, |bytes, _| unsafe {
                hold::lent_mut(&bytes)
            }),
            Err(error) => self.failed(error, None),
        }
    }
}
