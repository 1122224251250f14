//! Collectives that are waited for later: requests, as of messages.

use super::Reduction;
use super::group::Group;
use super::memory::Memory;
use super::reduction::{Fold, Nothing, Typed};
use super::running::{Running, Started};
use super::signature::{Kind, Signature};
use crate::messages::hold::{self, Parts};
use crate::messages::request::{Call as Name, Request, Under};
use crate::messages::{Error, Failed, Scope};
use crate::world::World;
use bytemuck::Pod;
use std::marker::PhantomData;
use std::sync::Arc;
use transom_collective::{Call, Plan, Rank};
use transom_locks::Awaited;
use transom_shm_loopback::messages::Bytes;

impl World {
    /// Starts a barrier: the request ends when all ranks have called.
    ///
    /// Collectives that are started progress in any call of the rank that waits. Ranks start them in the same order; they may be
    /// waited for in any, and dropped or forgotten: the rank does its part all the same.
    ///
    /// # Errors
    /// Those of [`broadcast`](Self::broadcast) are the request's.
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
    pub fn ibarrier(&self) -> Request<'static, ()> {
        let started = self.plan::<u8>(Call::Barrier, 0).and_then(|plan| {
            let call = Signature::of(Kind::Barrier, 1, 0);
            let none = || Vec::<u8>::new().hold();
            start_work(self.group()?, "ibarrier", call, plan, none(), none(), 1, Nothing)
        });
        match started {
            Ok(under) => Request::under_way(under, |_, _| Some(())),
            Err(error) => Request::over(Err(Failed { error, buffer: None })),
        }
    }

    /// Starts a [`broadcast`](Self::broadcast); the request gives the buffer back.
    ///
    /// # Errors
    /// Those of `broadcast` are the request's.
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
    pub fn ibroadcast<T: Pod>(&self, root: Rank, data: Vec<T>) -> Request<'static, Vec<T>> {
        let call = Signature::of(Kind::Broadcast, size_of::<T>(), data.len()).root(root);
        let plan = self.check_root::<T>(root).and_then(|()| self.plan::<T>(Call::Broadcast { root }, data.len()));
        self.owned("ibroadcast", call, plan, Vec::new(), data, Nothing)
    }

    /// Starts a [`reduce`](Self::reduce); the request gives the buffer back.
    ///
    /// # Errors
    /// Those of `reduce` are the request's.
    pub fn ireduce<T: Pod, R: Reduction<T> + 'static>(
        &self,
        root: Rank,
        data: Vec<T>,
        op: R,
    ) -> Request<'static, Vec<T>> {
        let call = Signature::of(Kind::Reduce, size_of::<T>(), data.len()).root(root).by(op.number());
        let checked = self.check_root::<T>(root).and_then(|()| self.check_operation::<T, R>(&op));
        let what = Call::Reduce { root, commutes: R::COMMUTES };
        let plan = checked.and_then(|()| self.plan::<T>(what, data.len()));
        self.owned("ireduce", call, plan, Vec::new(), data, Typed(op, PhantomData))
    }

    /// Starts an [`all_reduce`](Self::all_reduce); the request gives the buffer back.
    ///
    /// # Errors
    /// Those of `all_reduce` are the request's.
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
    pub fn iall_reduce<T: Pod, R: Reduction<T> + 'static>(&self, data: Vec<T>, op: R) -> Request<'static, Vec<T>> {
        let call = Signature::of(Kind::AllReduce, size_of::<T>(), data.len()).by(op.number());
        let what = Call::AllReduce { commutes: R::COMMUTES };
        let plan = self.check_operation::<T, R>(&op).and_then(|()| self.plan::<T>(what, data.len()));
        self.owned("iall_reduce", call, plan, Vec::new(), data, Typed(op, PhantomData))
    }

    /// Starts an [`all_gather`](Self::all_gather); the request gives what was gathered.
    ///
    /// # Errors
    /// Those of `all_gather` are the request's.
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
    pub fn iall_gather<T: Pod>(&self, mine: Vec<T>) -> Request<'static, Vec<T>> {
        let (call, len) = (Signature::of(Kind::AllGather, size_of::<T>(), mine.len()), mine.len());
        let plan = self.check_elements::<T>().and_then(|()| self.plan::<T>(Call::AllGather, len));
        match self.room(len.checked_mul(self.size())) {
            Ok(all) => self.owned("iall_gather", call, plan, mine, all, Nothing),
            Err(error) => Request::over(Err(Failed { error, buffer: None })),
        }
    }

    /// Starts an [`all_to_all`](Self::all_to_all) of blocks side by side; the request gives what came.
    ///
    /// # Errors
    /// Those of `all_to_all` are the request's.
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
    pub fn iall_to_all<T: Pod>(&self, data: Vec<T>) -> Request<'static, Vec<T>> {
        let len = data.len() / self.size();
        let call = Signature::of(Kind::AllToAll, size_of::<T>(), len);
        let checked = self.check_elements::<T>().and_then(|()| self.check_blocks("all_to_all", data.len(), len));
        let plan = checked.and_then(|()| self.plan::<T>(Call::AllToAll, len));
        match self.room(Some(data.len())) {
            Ok(got) => self.owned("iall_to_all", call, plan, data, got, Nothing),
            Err(error) => Request::over(Err(Failed { error, buffer: None })),
        }
    }

    /// Starts a collective on buffers that the request owns.
    pub(super) fn owned<T: Pod, F: Fold + 'static>(
        &self,
        name: &'static str,
        call: Signature,
        plan: Result<Plan, Error>,
        given: Vec<T>,
        data: Vec<T>,
        fold: F,
    ) -> Request<'static, Vec<T>> {
        let start = |plan| start_work(self.group()?, name, call, plan, given.hold(), data.hold(), size_of::<T>(), fold);
        match plan.and_then(start) {
            Ok(under) => Request::under_way(under, |bytes, _| <Vec<T> as Parts>::back(bytes, usize::MAX)),
            Err(error) => Request::over(Err(Failed { error, buffer: None })),
        }
    }
}

/// Starts a collective. What the buffers hold is kept, or lent, until it has ended.
#[allow(clippy::too_many_arguments, reason = "a row of a table")]
pub(super) fn start_work<F: Fold + 'static>(
    group: &Arc<Group>,
    name: &'static str,
    call: Signature,
    plan: Plan,
    given: Bytes,
    data: Bytes,
    element: usize,
    fold: F,
) -> Result<Under, Error> {
    let made = group.begin(call)?;
    let memory = Memory::new(given, data, element, plan.scratch);
    let running = Running::new(group.clone(), made, plan, memory, fold);
    let id = group.comm.hub.with(|core| core.start(Box::new(Started(Some(running)))))?;
    // The first messages go now, and not when somebody waits.
    group.comm.hub.turn_now();
    Ok(Under { comm: group.comm.clone(), id, element, call: Name::Other { name }, awaited: Awaited::Anyone })
}

impl<'s> Scope<'s, '_> {
    /// Starts a [`broadcast`](World::broadcast) of elements that the program lends.
    ///
    /// # Errors
    /// Those of `broadcast` are the request's.
    pub fn ibroadcast<T: Pod>(&'s self, root: Rank, data: &'s mut [T]) -> Request<'s, &'s mut [T]> {
        let call = Signature::of(Kind::Broadcast, size_of::<T>(), data.len()).root(root);
        let world = self.world();
        let plan = world.check_root::<T>(root).and_then(|()| world.plan::<T>(Call::Broadcast { root }, data.len()));
        self.lent("ibroadcast", call, plan, &[], data, Nothing)
    }

    /// Starts an [`all_reduce`](World::all_reduce) of elements that the program lends.
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
    ///     })
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn iall_reduce<T: Pod, R: Reduction<T> + 'static>(
        &'s self,
        data: &'s mut [T],
        op: R,
    ) -> Request<'s, &'s mut [T]> {
        let call = Signature::of(Kind::AllReduce, size_of::<T>(), data.len()).by(op.number());
        let (world, what) = (self.world(), Call::AllReduce { commutes: R::COMMUTES });
        let plan = world.check_operation::<T, R>(&op).and_then(|()| world.plan::<T>(what, data.len()));
        self.lent("iall_reduce", call, plan, &[], data, Typed(op, PhantomData))
    }

    /// Starts an [`all_gather_into`](World::all_gather_into) of elements that the program lends.
    ///
    /// # Errors
    /// Those of `all_gather_into` are the request's.
    pub fn iall_gather<T: Pod>(&'s self, mine: &'s [T], into: &'s mut [T]) -> Request<'s, &'s mut [T]> {
        let call = Signature::of(Kind::AllGather, size_of::<T>(), mine.len());
        let world = self.world();
        let blocks = || world.check_blocks("all_gather", into.len(), mine.len());
        let checked = world.check_elements::<T>().and_then(|()| blocks());
        let plan = checked.and_then(|()| world.plan::<T>(Call::AllGather, mine.len()));
        self.lent("iall_gather", call, plan, mine, into, Nothing)
    }

    /// Starts an [`all_to_all`](World::all_to_all) of elements that the program lends.
    ///
    /// # Errors
    /// Those of `all_to_all` are the request's.
    pub fn iall_to_all<T: Pod>(&'s self, data: &'s [T], into: &'s mut [T]) -> Request<'s, &'s mut [T]> {
        let world = self.world();
        let len = data.len() / world.size();
        let call = Signature::of(Kind::AllToAll, size_of::<T>(), len);
        let check = |elements| world.check_blocks("all_to_all", elements, len);
        let checked = world.check_elements::<T>().and_then(|()| check(data.len())).and_then(|()| check(into.len()));
        let plan = checked.and_then(|()| world.plan::<T>(Call::AllToAll, len));
        self.lent("iall_to_all", call, plan, data, into, Nothing)
    }

    pub(super) fn lent<T: Pod, F: Fold + 'static>(
        &'s self,
        name: &'static str,
        call: Signature,
        plan: Result<Plan, Error>,
        given: &'s [T],
        data: &'s mut [T],
        fold: F,
    ) -> Request<'s, &'s mut [T]> {
        let (group, plan) = match plan.and_then(|plan| Ok((self.world().group()?, plan))) {
            Ok(started) => started,
            Err(error) => return Request::over(Err(Failed { error, buffer: Some(data) })),
        };
        // SAFETY: the scope waits until the request is over, before `'s` ends; the borrow is handed out again only then.
        let (given, data) = unsafe { (hold::lend(given), hold::lend_mut(data)) };
        match start_work(group, name, call, plan, given, data, size_of::<T>(), fold) {
            Ok(under) => {
                self.note(under.id);
                // SAFETY: lent above, for `'s`; the collective has given it back.
                Request::under_way(under, |bytes, _| unsafe { hold::lent_mut(&bytes) })
            }
            Err(error) => Request::over(Err(Failed { error, buffer: None })),
        }
    }
}
