//! Collectives that are started again and again, on one buffer.

use super::Reduction;
use super::reduction::{Fold, Nothing, Typed};
use super::signature::{Kind, Signature};
use super::started::start_work;
use crate::messages::hold::{Parts, Whole};
use crate::messages::request::Request;
use crate::messages::{Error, Persistent};
use crate::world::World;
use bytemuck::Pod;
use std::marker::PhantomData;
use transom_collective::{Call, Plan, Rank};

impl World {
    /// A [`broadcast`](Self::broadcast) to be made many times, on one buffer. Nothing is sent yet; the plan is made. All ranks
    /// start it at the same place among their collective calls.
    ///
    /// # Errors
    /// [`Error::NoSuchRank`], [`Error::Misuse`], [`Error::Unavailable`]; others are told when it is waited for.
    ///
    /// # Examples
    /// ```
    /// transom::threads(3, |world| -> Result<(), transom::Error> {
    ///     let mut settings = world.broadcast_init(0, vec![0.0; 4])?;
    ///     for step in 1..5 {
    ///         if world.rank() == 0 {
    ///             settings.buffer()?.fill(step as f64);
    ///         }
    ///         settings.start()?.wait()?;
    ///         assert_eq!(settings.buffer()?[3], step as f64);
    ///     }
    ///     Ok(())
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn broadcast_init<T: Pod>(&self, root: Rank, data: Vec<T>) -> Result<Persistent<T>, Error> {
        self.check_root::<T>(root)?;
        let plan = self.plan::<T>(Call::Broadcast { root }, data.len())?;
        let call = Signature::of(Kind::Broadcast, size_of::<T>(), data.len()).root(root);
        self.persistent("broadcast_init", call, plan, data, || Nothing)
    }

    /// A [`reduce`](Self::reduce) to be made many times, see [`broadcast_init`](Self::broadcast_init).
    ///
    /// # Errors
    /// As there.
    ///
    /// # Examples
    /// See [`all_reduce_init`](Self::all_reduce_init).
    pub fn reduce_init<T: Pod, R: Reduction<T> + Clone + 'static>(
        &self,
        root: Rank,
        data: Vec<T>,
        op: R,
    ) -> Result<Persistent<T>, Error> {
        self.check_root::<T>(root)?;
        self.check_operation::<T, R>(&op)?;
        let plan = self.plan::<T>(Call::Reduce { root, commutes: R::COMMUTES }, data.len())?;
        let call = Signature::of(Kind::Reduce, size_of::<T>(), data.len()).root(root).by(op.number());
        self.persistent("reduce_init", call, plan, data, move || Typed(op.clone(), PhantomData))
    }

    /// An [`all_reduce`](Self::all_reduce) to be made many times, see [`broadcast_init`](Self::broadcast_init).
    ///
    /// # Errors
    /// As there.
    ///
    /// # Examples
    /// ```
    /// use transom::Op;
    /// transom::threads(4, |world| -> Result<(), transom::Error> {
    ///     let mut residual = world.all_reduce_init(vec![0.0; 2], Op::Max)?;
    ///     for step in 0..3 {
    ///         residual.buffer()?.copy_from_slice(&[world.rank() as f64, step as f64]);
    ///         let coming = residual.start()?;
    ///         // ... compute ...
    ///         coming.wait()?;
    ///         assert_eq!(residual.buffer()?, [3.0, step as f64]);
    ///     }
    ///     Ok(())
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn all_reduce_init<T: Pod, R: Reduction<T> + Clone + 'static>(
        &self,
        data: Vec<T>,
        op: R,
    ) -> Result<Persistent<T>, Error> {
        self.check_operation::<T, R>(&op)?;
        let plan = self.plan::<T>(Call::AllReduce { commutes: R::COMMUTES }, data.len())?;
        let call = Signature::of(Kind::AllReduce, size_of::<T>(), data.len()).by(op.number());
        self.persistent("all_reduce_init", call, plan, data, move || Typed(op.clone(), PhantomData))
    }

    /// The same call, of the same plan, whenever it is started.
    fn persistent<T: Pod, F: Fold + 'static>(
        &self,
        name: &'static str,
        call: Signature,
        plan: Plan,
        data: Vec<T>,
        fold: impl Fn() -> F + Send + Sync + 'static,
    ) -> Result<Persistent<T>, Error> {
        let group = self.group()?.clone();
        Ok(Persistent::new(data, move |data| {
            let none = Vec::<T>::new().hold();
            let started = start_work(&group, name, call, plan.clone(), none, data.hold(), size_of::<T>(), fold());
            Ok(Request::under_way(started?, Whole::back))
        }))
    }
}
