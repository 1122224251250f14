//! Started collectives: requests that own their buffers.

use super::Reduction;
use super::call_desc::{Described, Of, total};
use super::group::Member;
use super::memory::CallBuffers;
use super::ragged::Ragged;
use super::reduction::Fold;
use super::running::{Running, Started};
use crate::messages::hold::Parts;
use crate::messages::request::{Call as Name, Request, Under};
use crate::messages::{Error, Failed, Scope};
use crate::world::World;
use bytemuck::Pod;
use std::borrow::Cow;
use std::sync::Arc;
use transom_collective::{Grid, Plan, Rank};
use transom_locks::Awaited;
use transom_shm_loopback::messages::Bytes;
use transom_windows::{Element, Section};

/// Started (nonblocking) collectives. They progress in any waiting call of the rank.
///
/// Ranks must start collectives in the same order, but may wait for them in any order. A dropped or forgotten request
/// does not stop the collective: the rank still does its part. The request reports invalid arguments.
///
/// Threads of a rank must start the collectives of one team one after the other, in an order that is the same at all
/// ranks; they may wait at the same time. If two threads start at once, the second gets [`Error::Misuse`], and all
/// later calls of the team fail with [`Error::Mismatch`] at all ranks.
impl World {
    /// Starts a barrier: the request completes when all ranks have called.
    ///
    /// # Errors
    /// The request reports the errors of [`broadcast`](Self::broadcast).
    ///
    /// # Examples
    /// ```
    /// transom::threads(3, |world| -> Result<(), transom::Error> {
    ///     let there = world.ibarrier();
    ///     // ... compute ...
    ///     Ok(there.wait()?)
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), transom::Error>(())
    /// ```
    #[must_use = "wait for it, or `drop` it: a dropped collective completes, and its result is lost"]
    pub fn ibarrier(&self) -> Request<'static, ()> {
        let none = || Vec::<u8>::new().hold();
        let started = self.of_barrier().and_then(|barrier| start::<u8, _>(self, None, barrier, none(), none()));
        match started {
            Ok(under) => Request::under_way(under, |_, _| Some(())),
            Err(error) => Request::over(Err(Failed { error, buffer: None })),
        }
    }

    /// Starts a [`broadcast`](Self::broadcast); the request returns the buffer.
    ///
    /// # Errors
    /// The request reports the errors of `broadcast`.
    ///
    /// # Examples
    /// ```
    /// transom::threads(3, |world| -> Result<(), transom::Error> {
    ///     let data = if world.rank() == 0 { vec![1.5; 10] } else { vec![0.0; 10] };
    ///     let coming = world.ibroadcast(0, data);
    ///     // ... compute ...
    ///     assert_eq!(coming.wait()?, [1.5; 10]);
    ///     Ok(())
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), transom::Error>(())
    /// ```
    #[must_use = "wait for it, or `drop` it: a dropped collective completes, and its result is lost"]
    pub fn ibroadcast<T: Element>(&self, root: Rank, data: Vec<T>) -> Request<'static, Vec<T>> {
        self.owned(self.of_broadcast::<T>(root, data.len()), Vec::new(), data)
    }

    /// Starts a [`reduce`](Self::reduce); the request returns the buffer.
    ///
    /// # Errors
    /// The request reports the errors of `reduce`.
    ///
    /// # Examples
    /// ```
    /// use transom::Op;
    /// transom::threads(3, |world| -> Result<(), transom::Error> {
    ///     let total = world.ireduce(2, vec![world.rank()], Op::Sum).wait()?;
    ///     assert_eq!(total, [[0], [1], [3]][world.rank()]);
    ///     Ok(())
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), transom::Error>(())
    /// ```
    #[must_use = "wait for it, or `drop` it: a dropped collective completes, and its result is lost"]
    pub fn ireduce<T: Element, R: Reduction<T> + 'static>(
        &self,
        root: Rank,
        data: Vec<T>,
        op: R,
    ) -> Request<'static, Vec<T>> {
        self.owned(self.of_reduce::<T, R>(root, data.len(), op), Vec::new(), data)
    }

    /// Starts an [`all_reduce`](Self::all_reduce); the request returns the buffer.
    ///
    /// # Errors
    /// The request reports the errors of `all_reduce`.
    ///
    /// # Examples
    /// ```
    /// use transom::Op;
    /// transom::threads(4, |world| -> Result<(), transom::Error> {
    ///     let (sum, most) = (world.iall_reduce(vec![1, 2], Op::Sum), world.iall_reduce(vec![world.rank()], Op::Max));
    ///     assert_eq!(most.wait()?, [3]); // in any order
    ///     assert_eq!(sum.wait()?, [4, 8]);
    ///     Ok(())
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), transom::Error>(())
    /// ```
    #[must_use = "wait for it, or `drop` it: a dropped collective completes, and its result is lost"]
    pub fn iall_reduce<T: Element, R: Reduction<T> + 'static>(&self, data: Vec<T>, op: R) -> Request<'static, Vec<T>> {
        self.owned(self.of_all_reduce::<T, R>(data.len(), op), Vec::new(), data)
    }

    /// Starts a [`scan`](Self::scan); the request returns the buffer.
    ///
    /// # Errors
    /// The request reports the errors of `scan`.
    ///
    /// # Examples
    /// ```
    /// use transom::Op;
    /// transom::threads(3, |world| -> Result<(), transom::Error> {
    ///     let before_me_and_mine = world.iscan(vec![1], Op::Sum);
    ///     let before_me = world.iexscan(vec![1], Op::Sum);
    ///     assert_eq!(before_me_and_mine.wait()?, [world.rank() + 1]);
    ///     let before_me = before_me.wait()?;
    ///     assert!(world.rank() == 0 || before_me == [world.rank()]);
    ///     Ok(())
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), transom::Error>(())
    /// ```
    #[must_use = "wait for it, or `drop` it: a dropped collective completes, and its result is lost"]
    pub fn iscan<T: Element, R: Reduction<T> + 'static>(&self, data: Vec<T>, op: R) -> Request<'static, Vec<T>> {
        self.owned(self.of_scan::<T, R>(false, data.len(), op), Vec::new(), data)
    }

    /// Starts an [`exscan`](Self::exscan); the request returns the buffer.
    ///
    /// # Errors
    /// The request reports the errors of `exscan`.
    ///
    /// # Examples
    /// See [`iscan`](Self::iscan).
    #[must_use = "wait for it, or `drop` it: a dropped collective completes, and its result is lost"]
    pub fn iexscan<T: Element, R: Reduction<T> + 'static>(&self, data: Vec<T>, op: R) -> Request<'static, Vec<T>> {
        self.owned(self.of_scan::<T, R>(true, data.len(), op), Vec::new(), data)
    }

    /// Starts a [`reduce_scatter`](Self::reduce_scatter) of one block per rank; the request returns this rank's block.
    ///
    /// # Errors
    /// The request reports the errors of `reduce_scatter`.
    ///
    /// # Examples
    /// ```
    /// use transom::Op;
    /// transom::threads(2, |world| -> Result<(), transom::Error> {
    ///     let mine = world.ireduce_scatter(vec![1, 2, 30, 40], Op::Sum).wait()?;
    ///     assert_eq!(mine, [[2, 4], [60, 80]][world.rank()]);
    ///     Ok(())
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), transom::Error>(())
    /// ```
    #[must_use = "wait for it, or `drop` it: a dropped collective completes, and its result is lost"]
    pub fn ireduce_scatter<T: Element, R: Reduction<T> + 'static>(
        &self,
        data: Vec<T>,
        op: R,
    ) -> Request<'static, Vec<T>> {
        let len = data.len() / self.size();
        self.owned_into(self.of_reduce_scatter::<T, R>(data.len(), len, op), data, Some(len))
    }

    /// Starts a [`reduce_scatter_v`](Self::reduce_scatter_v) with block lengths `counts`; the request returns this
    /// rank's block.
    ///
    /// # Errors
    /// The request reports the errors of `reduce_scatter_v`.
    ///
    /// # Examples
    /// ```
    /// use transom::Op;
    /// transom::threads(2, |world| -> Result<(), transom::Error> {
    ///     let mine = world.ireduce_scatter_v(vec![1, 20, 30], &[1, 2], Op::Sum).wait()?;
    ///     assert_eq!(mine, [&[2][..], &[40, 60]][world.rank()]);
    ///     Ok(())
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), transom::Error>(())
    /// ```
    #[must_use = "wait for it, or `drop` it: a dropped collective completes, and its result is lost"]
    pub fn ireduce_scatter_v<T: Element, R: Reduction<T> + 'static>(
        &self,
        data: Vec<T>,
        counts: &[usize],
        op: R,
    ) -> Request<'static, Vec<T>> {
        let mine = counts.get(self.rank()).copied();
        self.owned_into(self.of_reduce_scatter_v::<T, R>(data.len(), counts, mine.unwrap_or(0), op), data, mine)
    }

    /// Starts a [`gather`](Self::gather); the request returns all elements at the root, and an empty vector at the
    /// other ranks.
    ///
    /// # Errors
    /// The request reports the errors of `gather`.
    ///
    /// # Examples
    /// ```
    /// transom::threads(3, |world| -> Result<(), transom::Error> {
    ///     let all = world.igather(1, vec![world.rank()]).wait()?;
    ///     assert_eq!(all, [&[][..], &[0, 1, 2], &[]][world.rank()]);
    ///     Ok(())
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), transom::Error>(())
    /// ```
    #[must_use = "wait for it, or `drop` it: a dropped collective completes, and its result is lost"]
    pub fn igather<T: Element>(&self, root: Rank, mine: Vec<T>) -> Request<'static, Vec<T>> {
        let all = if root == self.rank() { mine.len().checked_mul(self.size()) } else { Some(0) };
        self.owned_into(self.of_gather::<T>(root, mine.len(), all.unwrap_or(0)), mine, all)
    }

    /// Starts a [`gather_v`](Self::gather_v) with block lengths `counts`, used only at the root. The request returns
    /// all elements at the root, and an empty vector at the other ranks.
    ///
    /// # Errors
    /// The request reports the errors of `gather_v`.
    ///
    /// # Examples
    /// ```
    /// transom::threads(2, |world| -> Result<(), transom::Error> {
    ///     let mine = vec![world.rank(); world.rank() + 1];
    ///     let counts = if world.rank() == 0 { vec![1, 2] } else { vec![] };
    ///     let all = world.igather_v(0, mine, &counts).wait()?;
    ///     assert_eq!(all, [&[0, 1, 1][..], &[]][world.rank()]);
    ///     Ok(())
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), transom::Error>(())
    /// ```
    #[must_use = "wait for it, or `drop` it: a dropped collective completes, and its result is lost"]
    pub fn igather_v<T: Element>(&self, root: Rank, mine: Vec<T>, counts: &[usize]) -> Request<'static, Vec<T>> {
        let all = if root == self.rank() { total(counts) } else { Some(0) };
        self.owned_into(self.of_gather_v::<T>(root, mine.len(), counts, all.unwrap_or(0)), mine, all)
    }

    /// Starts a [`scatter`](Self::scatter) of blocks of `len` elements; the request returns this rank's block. `data`
    /// is used only at the root.
    ///
    /// # Errors
    /// The request reports the errors of `scatter`.
    ///
    /// # Examples
    /// ```
    /// transom::threads(3, |world| -> Result<(), transom::Error> {
    ///     let all = if world.rank() == 0 { vec![1, 2, 3, 4, 5, 6] } else { vec![] };
    ///     assert_eq!(world.iscatter(0, all, 2).wait()?, [[1, 2], [3, 4], [5, 6]][world.rank()]);
    ///     Ok(())
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), transom::Error>(())
    /// ```
    #[must_use = "wait for it, or `drop` it: a dropped collective completes, and its result is lost"]
    pub fn iscatter<T: Element>(&self, root: Rank, data: Vec<T>, len: usize) -> Request<'static, Vec<T>> {
        self.owned_into(self.of_scatter::<T>(root, data.len(), len), data, Some(len))
    }

    /// Starts a [`scatter_v`](Self::scatter_v) in which this rank receives `len` elements; the request returns them.
    /// `data` is used only at the root.
    ///
    /// # Errors
    /// The request reports the errors of `scatter_v`.
    ///
    /// # Examples
    /// ```
    /// use transom::collective::Ragged;
    /// transom::threads(2, |world| -> Result<(), transom::Error> {
    ///     let all = (world.rank() == 0).then(|| Ragged::from(vec![vec![1.5], vec![2.5, 3.5]]));
    ///     let mine = world.iscatter_v(0, all, world.rank() + 1).wait()?;
    ///     assert_eq!(mine, [&[1.5][..], &[2.5, 3.5]][world.rank()]);
    ///     Ok(())
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), transom::Error>(())
    /// ```
    #[must_use = "wait for it, or `drop` it: a dropped collective completes, and its result is lost"]
    pub fn iscatter_v<T: Element>(&self, root: Rank, data: Option<Ragged<T>>, len: usize) -> Request<'static, Vec<T>> {
        let (data, counts) = data.map_or_else(Default::default, Ragged::into_parts);
        self.owned_into(self.of_scatter_v::<T>(root, data.len(), &counts, len), data, Some(len))
    }

    /// Starts an [`all_gather`](Self::all_gather); the request returns the gathered elements.
    ///
    /// # Errors
    /// The request reports the errors of `all_gather`.
    ///
    /// # Examples
    /// ```
    /// transom::threads(3, |world| -> Result<(), transom::Error> {
    ///     let coming = world.iall_gather(vec![world.rank()]);
    ///     assert_eq!(coming.wait()?, [0, 1, 2]);
    ///     Ok(())
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), transom::Error>(())
    /// ```
    #[must_use = "wait for it, or `drop` it: a dropped collective completes, and its result is lost"]
    pub fn iall_gather<T: Element>(&self, mine: Vec<T>) -> Request<'static, Vec<T>> {
        let all = mine.len().checked_mul(self.size());
        self.owned_into(self.of_all_gather::<T>(mine.len(), all.unwrap_or(0)), mine, all)
    }

    /// Starts an [`all_gather_v`](Self::all_gather_v) with block lengths `counts`; the request returns the gathered
    /// elements.
    ///
    /// # Errors
    /// The request reports the errors of `all_gather_v`.
    ///
    /// # Examples
    /// ```
    /// transom::threads(2, |world| -> Result<(), transom::Error> {
    ///     let mine = vec![world.rank(); world.rank() + 1];
    ///     assert_eq!(world.iall_gather_v(mine, &[1, 2]).wait()?, [0, 1, 1]);
    ///     Ok(())
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), transom::Error>(())
    /// ```
    #[must_use = "wait for it, or `drop` it: a dropped collective completes, and its result is lost"]
    pub fn iall_gather_v<T: Element>(&self, mine: Vec<T>, counts: &[usize]) -> Request<'static, Vec<T>> {
        let all = total(counts);
        self.owned_into(self.of_all_gather_v::<T>(mine.len(), counts, all.unwrap_or(0)), mine, all)
    }

    /// Starts an [`all_to_all`](Self::all_to_all) of contiguous blocks; the request returns the received blocks.
    ///
    /// # Errors
    /// The request reports the errors of `all_to_all`.
    ///
    /// # Examples
    /// ```
    /// transom::threads(2, |world| -> Result<(), transom::Error> {
    ///     let coming = world.iall_to_all(vec![10 + world.rank(), 20 + world.rank()]);
    ///     assert_eq!(coming.wait()?, [[10, 11], [20, 21]][world.rank()]);
    ///     Ok(())
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), transom::Error>(())
    /// ```
    #[must_use = "wait for it, or `drop` it: a dropped collective completes, and its result is lost"]
    pub fn iall_to_all<T: Element>(&self, data: Vec<T>) -> Request<'static, Vec<T>> {
        let len = data.len();
        self.owned_into(self.of_all_to_all::<T>(len, len), data, Some(len))
    }

    /// Starts an [`all_to_all_v`](Self::all_to_all_v) in which rank `i` sends `counts[i]` elements; the request returns
    /// the received blocks in rank order.
    ///
    /// # Errors
    /// The request reports the errors of `all_to_all_v`.
    ///
    /// # Examples
    /// ```
    /// use transom::collective::Ragged;
    /// transom::threads(2, |world| -> Result<(), transom::Error> {
    ///     let to_each = [vec![vec![0], vec![1, 1]], vec![vec![2, 2, 2], vec![]]][world.rank()].clone();
    ///     let coming = world.iall_to_all_v(Ragged::from(to_each), &[[1, 3], [2, 0]][world.rank()]);
    ///     assert_eq!(coming.wait()?, [&[0, 2, 2, 2][..], &[1, 1]][world.rank()]);
    ///     Ok(())
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), transom::Error>(())
    /// ```
    #[must_use = "wait for it, or `drop` it: a dropped collective completes, and its result is lost"]
    pub fn iall_to_all_v<T: Element>(&self, to_each: Ragged<T>, counts: &[usize]) -> Request<'static, Vec<T>> {
        let (all, (data, given)) = (total(counts), to_each.into_parts());
        self.owned_into(self.of_all_to_all_v::<T>(&given, counts, all.unwrap_or(0)), data, all)
    }

    /// Starts an [`all_to_all_sections`](Self::all_to_all_sections); the request returns `into`. The lists of sections
    /// are copied.
    ///
    /// # Errors
    /// The request reports the errors of `all_to_all_sections`.
    ///
    /// # Examples
    /// ```
    /// use transom::Section;
    /// transom::threads(2, |world| -> Result<(), transom::Error> {
    ///     let row = vec![10 * world.rank(), 10 * world.rank() + 1]; // of a matrix of 2 rows
    ///     let element = [0, 1].map(|rank| Section::Contiguous { offset: rank, len: 1 });
    ///     let coming = world.iall_to_all_sections(row, &element, vec![0; 2], &element);
    ///     // ... compute ...
    ///     assert_eq!(coming.wait()?, [[0, 10], [1, 11]][world.rank()]); // a column
    ///     Ok(())
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), transom::Error>(())
    /// ```
    #[must_use = "wait for it, or `drop` it: a dropped collective completes, and its result is lost"]
    pub fn iall_to_all_sections<T: Element>(
        &self,
        data: Vec<T>,
        given: &[Section<'_>],
        into: Vec<T>,
        taken: &[Section<'_>],
    ) -> Request<'static, Vec<T>> {
        let of = self.of_all_to_all_sections::<T>(data.len(), given, into.len(), taken);
        self.owned(of.map(Described::owned), data, into)
    }

    /// Starts [`neighbours`](Self::neighbours); the request returns the received blocks, with zeros for missing
    /// neighbours at open edges.
    ///
    /// # Errors
    /// The request reports the errors of `neighbours`.
    ///
    /// # Examples
    /// ```
    /// use transom::collective::Grid;
    /// transom::threads(4, |world| -> Result<(), transom::Error> {
    ///     let ring = Grid::new([4], [true]).expect("a ring");
    ///     let coming = world.ineighbours(&ring, vec![world.rank(); 2]);
    ///     // ... compute ...
    ///     assert_eq!(coming.wait()?, [(world.rank() + 3) % 4, (world.rank() + 1) % 4]);
    ///     Ok(())
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), transom::Error>(())
    /// ```
    #[must_use = "wait for it, or `drop` it: a dropped collective completes, and its result is lost"]
    pub fn ineighbours<T: Element, const D: usize>(&self, grid: &Grid<D>, data: Vec<T>) -> Request<'static, Vec<T>> {
        let len = data.len();
        self.owned_into(self.of_neighbours::<T, D>(grid, len, len), data, Some(len))
    }

    /// Starts a collective on buffers that the request owns; the request returns `data`.
    fn owned<T: Pod, F: Fold + 'static>(&self, of: Of<F>, given: Vec<T>, data: Vec<T>) -> Request<'static, Vec<T>> {
        let described = match of {
            Ok(described) => described,
            Err(error) => return Request::over(Err(Failed { error, buffer: Some(data) })),
        };
        match start::<T, F>(self, None, described, given.hold(), data.hold()) {
            Ok(under) => Request::under_way(under, |bytes, _| <Vec<T> as Parts>::back(bytes, usize::MAX)),
            Err(error) => Request::over(Err(Failed { error, buffer: None })),
        }
    }

    /// Same as [`owned`](Self::owned), with a zeroed result buffer of `elements` elements.
    fn owned_into<T: Pod, F: Fold + 'static>(
        &self,
        of: Of<F>,
        given: Vec<T>,
        elements: Option<usize>,
    ) -> Request<'static, Vec<T>> {
        match of.and_then(|described| Ok((described, self.room(elements)?))) {
            Ok((described, data)) => self.owned(Ok(described), given, data),
            Err(error) => Request::over(Err(Failed { error, buffer: Some(given) })),
        }
    }
}

/// Starts a collective. The buffers must stay owned by their handles, or lent by `lender`, until it completes.
pub(super) fn start<T, F: Fold + 'static>(
    world: &World,
    lender: Option<&Scope<'_, '_>>,
    described: Described<F>,
    given: Bytes,
    data: Bytes,
) -> Result<Under<'static>, Error> {
    let Described { signature, what, fold } = described;
    let plan = what.plan::<T>(world)?;
    start_plan::<T, F>(world.group()?, lender, Described { signature, what: plan, fold }, given, data)
}

/// Same as [`start`], with a finished plan.
pub(super) fn start_plan<T, F: Fold + 'static>(
    group: &Arc<Member>,
    lender: Option<&Scope<'_, '_>>,
    Described { signature, what: plan, fold }: Described<F, Plan>,
    given: Bytes,
    data: Bytes,
) -> Result<Under<'static>, Error> {
    let signature = signature.started();
    let scratch = group.take_scratch::<T>(plan.scratch).map_err(|error| group.refuse(error))?;
    let mut turn = group.enter()?;
    let made = group.begin_to_start(&mut turn, signature)?;
    let memory = CallBuffers::new(given, data, size_of::<T>(), scratch);
    let running = Running::new(group.clone(), made, plan, memory, fold);
    let id = group.comm.progress_engine.with(|core| {
        let id = core.start(Box::new(Started::new(running)));
        // The engine is still locked: no turn can run before the scope has registered the loan.
        if let Some(scope) = lender {
            scope.lends(core, id);
        }
        id
    })?;
    // Posts the first messages before the program waits, and before another thread may start the next call.
    group.comm.progress_engine.progress_now();
    group.watch_threads(&mut turn, made);
    drop(turn);
    let call = Name::Other { name: signature.name() };
    Ok(Under {
        comm: Cow::Owned(group.comm.clone()),
        id,
        element: size_of::<T>(),
        call,
        awaited: Awaited::Anyone,
        source: None,
    })
}
