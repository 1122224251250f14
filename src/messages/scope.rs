//! Messages from and into buffers that the program lends.

use super::comm::Comm;
use super::error::{Error, Failed};
use super::hold;
use super::landing::Lent;
use super::locked::{Core, Key};
use super::posting::{NOTHING, request_receive, request_send, send_now};
use super::request::Request;
use super::tag::{Peer, Source, Tag, Tags};
use crate::world::World;
use bytemuck::Pod;
use std::marker::PhantomData;
use std::sync::Mutex;
use transom_locks::Awaited;

/// What [`World::scope`](crate::World::scope) lends: messages from and into buffers that live longer than the scope.
///
/// # Examples
/// ```
/// use transom::messages::Tag;
/// const HALO: Tag<f64> = Tag::new(1);
/// transom::threads(3, |world| -> Result<(), transom::Error> {
///     // None at the edges, where there is nobody: no special case.
///     let up = world.rank().checked_sub(1);
///     let down = Some(world.rank() + 1).filter(|&rank| rank < world.size());
///     let mut ghost = [0.0; 4];
///     let own = [world.rank() as f64; 4];
///     let inner: f64 = world.scope(|scope| {
///         let coming = scope.irecv(up, HALO, &mut ghost);
///         let sent = scope.isend(down, HALO, &own);
///         let inner = own.iter().sum(); // while they are under way
///         coming.wait()?;
///         sent.wait()?;
///         Ok::<f64, transom::Error>(inner)
///     })?;
///     assert_eq!(inner, 4.0 * world.rank() as f64);
///     assert_eq!(ghost, [up.unwrap_or(0) as f64; 4]);
///     Ok(())
/// })?.into_iter().collect::<Result<(), _>>()?;
/// # Ok::<(), transom::Error>(())
/// ```
pub struct Scope<'s, 'env: 's> {
    world: &'env World,
    comm: Comm,
    /// All that was started here.
    started: Mutex<Vec<Key>>,
    scope: PhantomData<&'s mut &'s ()>,
    env: PhantomData<&'env mut &'env ()>,
}

/// Waits for what a scope has started, also if there is a panic.
struct Ending<'c, 's, 'env>(&'c Scope<'s, 'env>);

pub(super) fn scope<'env, R, E: From<Error>>(
    world: &'env World,
    body: impl for<'s> FnOnce(&'s Scope<'s, 'env>) -> Result<R, E>,
) -> Result<R, E> {
    let comm = world.space().comm()?.clone();
    let scope = Scope { world, comm, started: Mutex::default(), scope: PhantomData, env: PhantomData };
    let ending = Ending(&scope);
    let result = body(&scope);
    drop(ending);
    result
}

impl Drop for Ending<'_, '_, '_> {
    fn drop(&mut self) {
        let Scope { comm, started, .. } = self.0;
        let started = std::mem::take(&mut *started.lock().unwrap_or_else(|poisoned| poisoned.into_inner()));
        if std::thread::panicking() {
            // What waits for others may wait for ever.
            let _ = comm.hub.with(|core| started.iter().for_each(|id| core.abandon(*id)));
        }
        // What is over and was not asked for is over; what was forgotten has its message to wait for.
        let left = |core: &mut Core| started.iter().any(|id| core.is_under_way(*id));
        let waited = comm.hub.wait(&"the end of a scope", Awaited::Anyone, |core| (!left(core)).then_some(()));
        // An error says that the engine is gone, and has given back all buffers.
        let _ = waited;
        let _ = comm.hub.with(|core| started.iter().for_each(|id| core.forget(*id)));
    }
}

impl<'s> Scope<'s, '_> {
    /// Starts to send elements that the program lends.
    ///
    /// # Errors
    /// Those of [`World::send`](crate::World::send) are the request's.
    pub fn isend<T: Pod>(&'s self, to: impl Into<Peer>, tag: Tag<T>, data: &'s [T]) -> Request<'s, &'s [T]> {
        let to = match self.comm.target(to.into()) {
            Ok(Some(to)) => to,
            Ok(None) => return Request::over(Ok((data, NOTHING))),
            Err(error) => return Request::over(Err(Failed { error, buffer: Some(data) })),
        };
        if let Some(status) = send_now(&self.comm, to, tag, bytemuck::cast_slice(data)) {
            return Request::over(Ok((data, status)));
        }
        // SAFETY: the scope waits until the request is over, before `'s` ends.
        let bytes = unsafe { hold::lend(data) };
        // SAFETY: lent above, for `'s`.
        let started = request_send(&self.comm, to, tag, bytes, false, |bytes, _| unsafe { hold::lent(&bytes) });
        match started {
            Ok(request) => self.noted(request),
            Err(error) => Request::over(Err(Failed { error, buffer: Some(data) })),
        }
    }

    /// Starts to receive into elements that the program lends; the request gives the first of them, as many as came.
    ///
    /// # Errors
    /// Those of [`World::recv_into`](crate::World::recv_into) are the request's.
    pub fn irecv<T: Pod>(
        &'s self,
        from: impl Into<Source>,
        tag: impl Into<Tags<T>>,
        into: &'s mut [T],
    ) -> Request<'s, &'s mut [T]> {
        let select = match self.comm.select(from.into(), tag.into().number()) {
            Ok(Some(select)) => select,
            Ok(None) => return Request::over(Ok((&mut into[..0], NOTHING))),
            Err(error) => return Request::over(Err(Failed { error, buffer: Some(into) })),
        };
        // SAFETY: the scope waits until the request is over, before `'s` ends; the borrow is handed out again only then.
        let into = unsafe { Lent::new(into) };
        let started = request_receive(&self.comm, select, into);
        match started {
            Ok(request) => self.noted(request),
            Err(error) => Request::over(Err(Failed { error, buffer: None })),
        }
    }

    fn noted<B>(&self, request: Request<'s, B>) -> Request<'s, B> {
        request.key().into_iter().for_each(|key| self.note(key));
        request
    }

    pub(crate) fn world(&self) -> &World {
        self.world
    }

    pub(crate) fn note(&self, id: Key) {
        self.started.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(id);
    }
}
