//! Collectives that are waited for later, on buffers that the program lends.

use super::Reduction;
use super::described::{Described, Of};
use super::reduction::Fold;
use super::started::start;
use crate::messages::request::Request;
use crate::messages::{Failed, Scope, hold};
use bytemuck::Pod;
use transom_collective::{Grid, Rank};
use transom_windows::Section;

/// As those of [`World`](crate::World) that own their buffers; each ends with the scope at the latest.
impl<'s> Scope<'s, '_> {
    /// Starts a [`broadcast`](crate::World::broadcast) of elements that the program lends.
    ///
    /// # Errors
    /// Those of `broadcast` are the request's.
    pub fn ibroadcast<T: Pod>(&'s self, root: Rank, data: &'s mut [T]) -> Request<'s, &'s mut [T]> {
        self.lent(self.world().of_broadcast::<T>(root, data.len()), &[], data)
    }

    /// Starts a [`reduce`](crate::World::reduce) of elements that the program lends.
    ///
    /// # Errors
    /// Those of `reduce` are the request's.
    pub fn ireduce<T: Pod, R: Reduction<T> + 'static>(
        &'s self,
        root: Rank,
        data: &'s mut [T],
        op: R,
    ) -> Request<'s, &'s mut [T]> {
        self.lent(self.world().of_reduce::<T, R>(root, data.len(), op), &[], data)
    }

    /// Starts an [`all_reduce`](crate::World::all_reduce) of elements that the program lends.
    ///
    /// # Errors
    /// Those of `all_reduce` are the request's.
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
    pub fn iall_reduce<T: Pod, R: Reduction<T> + 'static>(
        &'s self,
        data: &'s mut [T],
        op: R,
    ) -> Request<'s, &'s mut [T]> {
        self.lent(self.world().of_all_reduce::<T, R>(data.len(), op), &[], data)
    }

    /// Starts a [`scan`](crate::World::scan) of elements that the program lends.
    ///
    /// # Errors
    /// Those of `scan` are the request's.
    pub fn iscan<T: Pod, R: Reduction<T> + 'static>(&'s self, data: &'s mut [T], op: R) -> Request<'s, &'s mut [T]> {
        self.lent(self.world().of_scan::<T, R>(false, data.len(), op), &[], data)
    }

    /// Starts an [`exscan`](crate::World::exscan) of elements that the program lends.
    ///
    /// # Errors
    /// Those of `exscan` are the request's.
    pub fn iexscan<T: Pod, R: Reduction<T> + 'static>(&'s self, data: &'s mut [T], op: R) -> Request<'s, &'s mut [T]> {
        self.lent(self.world().of_scan::<T, R>(true, data.len(), op), &[], data)
    }

    /// Starts [`reduce_scatter`](crate::World::reduce_scatter) with elements that the program lends.
    ///
    /// # Errors
    /// Those of `reduce_scatter` are the request's.
    pub fn ireduce_scatter<T: Pod, R: Reduction<T> + 'static>(
        &'s self,
        data: &'s [T],
        into: &'s mut [T],
        op: R,
    ) -> Request<'s, &'s mut [T]> {
        self.lent(self.world().of_reduce_scatter::<T, R>(data.len(), into.len(), op), data, into)
    }

    /// Starts [`reduce_scatter_v`](crate::World::reduce_scatter_v) with elements that the program lends.
    ///
    /// # Errors
    /// Those of `reduce_scatter_v` are the request's.
    pub fn ireduce_scatter_v<T: Pod, R: Reduction<T> + 'static>(
        &'s self,
        data: &'s [T],
        counts: &[usize],
        into: &'s mut [T],
        op: R,
    ) -> Request<'s, &'s mut [T]> {
        self.lent(self.world().of_reduce_scatter_v::<T, R>(data.len(), counts, into.len(), op), data, into)
    }

    /// Starts a [`gather_into`](crate::World::gather_into) of elements that the program lends. Only the root's room is used.
    ///
    /// # Errors
    /// Those of `gather_into` are the request's.
    pub fn igather<T: Pod>(&'s self, root: Rank, mine: &'s [T], into: &'s mut [T]) -> Request<'s, &'s mut [T]> {
        self.lent(self.world().of_gather::<T>(root, mine.len(), into.len()), mine, into)
    }

    /// Starts a [`gather_v`](crate::World::gather_v) of so many elements of each rank, which only the root need know, into its room.
    ///
    /// # Errors
    /// Those of `gather_v` are the request's.
    pub fn igather_v<T: Pod>(
        &'s self,
        root: Rank,
        mine: &'s [T],
        counts: &[usize],
        into: &'s mut [T],
    ) -> Request<'s, &'s mut [T]> {
        self.lent(self.world().of_gather_v::<T>(root, mine.len(), counts, into.len()), mine, into)
    }

    /// Starts a [`scatter`](crate::World::scatter) of elements that the program lends. Only the root's `data` is looked at.
    ///
    /// # Errors
    /// Those of `scatter` are the request's.
    pub fn iscatter<T: Pod>(&'s self, root: Rank, data: &'s [T], into: &'s mut [T]) -> Request<'s, &'s mut [T]> {
        self.lent(self.world().of_scatter::<T>(root, data.len(), into.len()), data, into)
    }

    /// Starts a [`scatter_v`](crate::World::scatter_v) of so many elements for each rank. Only the root's `data` and `counts` are looked at.
    ///
    /// # Errors
    /// Those of `scatter_v` are the request's.
    pub fn iscatter_v<T: Pod>(
        &'s self,
        root: Rank,
        data: &'s [T],
        counts: &[usize],
        into: &'s mut [T],
    ) -> Request<'s, &'s mut [T]> {
        self.lent(self.world().of_scatter_v::<T>(root, data.len(), counts, into.len()), data, into)
    }

    /// Starts [`all_gather_into`](crate::World::all_gather_into) with elements that the program lends.
    ///
    /// # Errors
    /// Those of `all_gather_into` are the request's.
    pub fn iall_gather<T: Pod>(&'s self, mine: &'s [T], into: &'s mut [T]) -> Request<'s, &'s mut [T]> {
        self.lent(self.world().of_all_gather::<T>(mine.len(), into.len()), mine, into)
    }

    /// Starts [`all_gather_v_into`](crate::World::all_gather_v_into) with elements that the program lends.
    ///
    /// # Errors
    /// Those of `all_gather_v_into` are the request's.
    pub fn iall_gather_v<T: Pod>(
        &'s self,
        mine: &'s [T],
        counts: &[usize],
        into: &'s mut [T],
    ) -> Request<'s, &'s mut [T]> {
        self.lent(self.world().of_all_gather_v::<T>(mine.len(), counts, into.len()), mine, into)
    }

    /// Starts [`all_to_all`](crate::World::all_to_all) with elements that the program lends.
    ///
    /// # Errors
    /// Those of `all_to_all` are the request's.
    pub fn iall_to_all<T: Pod>(&'s self, data: &'s [T], into: &'s mut [T]) -> Request<'s, &'s mut [T]> {
        self.lent(self.world().of_all_to_all::<T>(data.len(), into.len()), data, into)
    }

    /// Starts an [`all_to_all_v`](crate::World::all_to_all_v) of so many elements for each rank and of each, side by side.
    ///
    /// # Errors
    /// Those of `all_to_all_v` are the request's.
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
    pub fn iall_to_all_v<T: Pod>(
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

    /// Starts [`all_to_all_sections`](crate::World::all_to_all_sections) with elements that the program lends. Lists of sections are
    /// copied.
    ///
    /// # Errors
    /// Those of `all_to_all_sections` are the request's.
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
    pub fn iall_to_all_sections<T: Pod>(
        &'s self,
        data: &'s [T],
        given: &[Section<'_>],
        into: &'s mut [T],
        taken: &[Section<'_>],
    ) -> Request<'s, &'s mut [T]> {
        let of = self.world().of_all_to_all_sections::<T>(data.len(), given, into.len(), taken);
        self.lent(of.map(Described::owned), data, into)
    }

    /// Starts [`neighbours`](crate::World::neighbours) with elements that the program lends.
    ///
    /// # Errors
    /// Those of `neighbours` are the request's.
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
    pub fn ineighbours<T: Pod, const D: usize>(
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
            Err(error) => return Request::over(Err(Failed { error, buffer: Some(data) })),
        };
        // SAFETY: the scope waits until the request is over, before `'s` ends; the borrow is handed out again only then.
        let (given, data) = unsafe { (hold::lend(given), hold::lend_mut(data)) };
        match start::<T, F>(self.world(), Some(self), described, given, data) {
            // SAFETY: lent above, for `'s`; the collective has given it back.
            Ok(under) => Request::under_way(under, |bytes, _| unsafe { hold::lent_mut(&bytes) }),
            Err(error) => Request::over(Err(Failed { error, buffer: None })),
        }
    }
}
