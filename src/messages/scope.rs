//! Scopes: messages, collectives, and gets and puts on windows, on buffers that the program lends.

use super::comm::Comm;
use super::error::{Error, Failed};
use super::hold;
use super::landing::Lent;
use super::locked::{Core, Fault, Key, Lender};
use super::posting::{NOTHING, request_receive, request_send, send_now};
use super::request::Request;
use super::tag::{Peer, Source, Tag, Tags};
use super::waits::WaitingForSome;
use crate::provider::Provider;
use crate::world::World;
use bytemuck::Pod;
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant};
use transom_locks::Awaited;
use transom_shm_loopback::messages::Bytes;
use transom_windows as windows;
use transom_windows::Element;

/// Lends buffers that outlive the scope to messages, collectives, and gets and puts on windows.
/// [`World::scope`](crate::World::scope) makes it. Gets and puts are those of a [`windows::Scope`], to which it derefs.
///
/// # Examples
/// ```
/// use transom::messages::Tag;
/// const HALO: Tag<f64> = Tag::new(1);
/// transom::threads(3, |world| -> Result<(), transom::Error> {
///     // `None` at the edges, which need no special case.
///     let up = world.rank().checked_sub(1);
///     let down = Some(world.rank() + 1).filter(|&rank| rank < world.size());
///     let mut ghost = [0.0; 4];
///     let own = [world.rank() as f64; 4];
///     let inner: f64 = world.scope(|scope| {
///         let coming = scope.irecv(up, HALO, &mut ghost);
///         let sent = scope.isend(down, HALO, &own);
///         let inner = own.iter().sum(); // while the messages are in flight
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
    lender: Lender,
    on_windows: windows::Scope<'s, 'env, Provider>,
    scope: PhantomData<&'s mut &'s ()>,
    env: PhantomData<&'env mut &'env ()>,
}

/// Time that a panicking scope waits for its sends before it reports the failure of this rank to the others.
const PATIENCE: Duration = Duration::from_secs(1);

/// Waits for all requests of a scope, also during a panic.
struct Ending<'c, 's, 'env> {
    scope: &'c Scope<'s, 'env>,
    over: bool,
    /// First failures of requests that the program did not wait for: of a window operation, and of a message or
    /// collective.
    failed_on_window: Option<crate::Error>,
    failed: Option<Fault>,
}

#[track_caller]
pub(super) fn scope<'env, R, E: From<Error>>(
    world: &'env World,
    body: impl for<'s> FnOnce(&'s Scope<'s, 'env>) -> Result<R, E>,
) -> Result<R, E> {
    let comm = world.space().comm()?.clone();
    let lender = comm.progress_engine.with(Core::open_scope)?;
    // SAFETY: `Ending` finishes the scope before it is dropped.
    let on_windows = unsafe { windows::Scope::open() };
    let scope = Scope { world, comm, lender, on_windows, scope: PhantomData, env: PhantomData };
    let mut ending = Ending { scope: &scope, over: false, failed_on_window: None, failed: None };
    let result = body(&scope);
    if result.is_err() {
        // The peers may never send the messages that these receives wait for.
        let _ = scope.comm.progress_engine.with(|core| {
            core.lent(lender).to_vec().into_iter().for_each(|key| drop(core.withdraw(key)));
        });
    }
    ending.end();
    let failed_on_window = ending.failed_on_window.take().map(|error| Error::Window(Arc::new(error)));
    let failed = failed_on_window.or_else(|| ending.failed.take().map(|fault| scope.comm.fault(fault, 1)));
    match (result, failed) {
        (Ok(_), Some(error)) => Err(E::from(error)),
        (result, _) => result,
    }
}

impl Ending<'_, '_, '_> {
    fn end(&mut self) {
        let Scope { comm, lender, world, on_windows, .. } = self.scope;
        // Window operations end without action of other ranks.
        // SAFETY: the body has returned, or unwound. Requests of the scope do not outlive it, in whichever thread.
        self.failed_on_window = unsafe { on_windows.finish() }.err();
        // Requests that have ended need no wait, even without a result taken. Dropped or forgotten receives still wait
        // for their message.
        let over = |core: &mut Core| {
            let is_over = !core.lent(*lender).iter().any(|key| core.is_under_way(*key));
            is_over.then(|| core.close_scope(*lender))
        };
        let keys = |core: &Core| core.lent(*lender).to_vec();
        let call = &WaitingForSome { progress_engine: &comm.progress_engine, call: "the end of a scope", keys };
        let mut ended = None;
        if std::thread::panicking() {
            // Requests that need an action of other ranks may never end.
            let _ = comm
                .progress_engine
                .with(|core| core.lent(*lender).to_vec().into_iter().for_each(|key| core.abandon(key)));
            // A send stays in flight. Its receiver may wait first for a later message of this rank. The failure report
            // ends that wait, and with it the send.
            ended = match comm.progress_engine.wait_until(call, Awaited::Anyone, Instant::now() + PATIENCE, over) {
                Ok(None) => {
                    world.space().fail();
                    None
                }
                Ok(ended) => ended,
                Err(_) => Some(None),
            };
        }
        // An error means that the engine is closed and has given back all buffers.
        let ended = ended.map_or_else(|| comm.progress_engine.wait(call, Awaited::Anyone, over).ok(), Some);
        self.failed = ended.flatten();
        self.over = true;
    }
}

impl Drop for Ending<'_, '_, '_> {
    fn drop(&mut self) {
        if !self.over {
            self.end();
        }
    }
}

/// Lends the gets and puts on windows.
///
/// # Examples
/// A halo with one edge received in a message and the other fetched by a get:
/// ```
/// use transom::messages::Tag;
/// const EDGE: Tag<f64> = Tag::new(1);
/// transom::threads(2, |world| -> Result<(), transom::Error> {
///     let (me, other) = (world.rank(), 1 - world.rank());
///     let mut window = world.allocate::<f64>(2)?;
///     window.local().write(0, &[me as f64; 2])?;
///     window.fence()?;
///     let epoch = window.lock_shared(other)?;
///     let (edge, mut came, mut fetched) = ([0.5 + me as f64; 2], [0.0; 2], [0.0; 2]);
///     world.scope(|scope| {
///         scope.isend(other, EDGE, &edge);
///         let mut coming = scope.irecv(other, EDGE, &mut came);
///         let mut fetch = scope.get(&epoch, 0, &mut fetched)?;
///         let first = transom::wait_any(&mut [&mut coming, &mut fetch]);
///         assert!(matches!(first, Some(0 | 1)));
///         Ok::<(), transom::Error>(()) // the other requests end with the scope
///     })?;
///     assert_eq!((came, fetched), ([0.5 + other as f64; 2], [other as f64; 2]));
///     epoch.unlock()
/// })?.into_iter().collect::<Result<(), _>>()?;
/// # Ok::<(), transom::Error>(())
/// ```
impl<'s, 'env> Deref for Scope<'s, 'env> {
    type Target = windows::Scope<'s, 'env, Provider>;

    fn deref(&self) -> &Self::Target {
        &self.on_windows
    }
}

impl<'s> Scope<'s, '_> {
    /// Starts to send elements that the program lends to the scope.
    ///
    /// # Errors
    /// The request reports the errors of [`World::send`](crate::World::send).
    pub fn isend<T: Element>(&'s self, to: impl Into<Peer>, tag: Tag<T>, data: &'s [T]) -> Request<'s, &'s [T]> {
        self.start(to.into(), tag, data, false)
    }

    /// Starts a send as [`isend`](Self::isend) that ends when the message is matched, as
    /// [`World::ssend`](crate::World::ssend).
    ///
    /// # Errors
    /// The request reports the errors of [`World::ssend`](crate::World::ssend).
    pub fn issend<T: Element>(&'s self, to: impl Into<Peer>, tag: Tag<T>, data: &'s [T]) -> Request<'s, &'s [T]> {
        self.start(to.into(), tag, data, true)
    }

    #[inline]
    fn start<T: Pod>(&'s self, to: Peer, tag: Tag<T>, data: &'s [T], sync: bool) -> Request<'s, &'s [T]> {
        let to = match self.comm.target(to) {
            Ok(Some(to)) => to,
            Ok(None) => return Request::over(Ok((data, NOTHING))),
            Err(error) => return self.failed(error, Some(data)),
        };
        if !sync && let Some(status) = send_now(&self.comm, to, tag, bytemuck::cast_slice(data)) {
            return Request::over(Ok((data, status)));
        }
        // SAFETY: the scope waits for the request before `'s` ends.
        let bytes = unsafe { hold::lend(data) };
        let back = |bytes: Bytes, _| {
            // SAFETY: the slice was lent above, for `'s`.
            unsafe { hold::lent(&bytes) }
        };
        let started = request_send(&self.comm, Some(self), to, tag, bytes, sync, back);
        started.unwrap_or_else(|error| self.failed(error, Some(data)))
    }

    /// Starts to receive into elements that the program lends to the scope. The request returns the elements received,
    /// the first of the slice.
    ///
    /// # Errors
    /// The request reports the errors of [`World::recv_into`](crate::World::recv_into).
    pub fn irecv<T: Element>(
        &'s self,
        from: impl Into<Source>,
        tag: impl Into<Tags<T>>,
        into: &'s mut [T],
    ) -> Request<'s, &'s mut [T]> {
        let select = match self.comm.select(from.into(), tag.into().number()) {
            Ok(Some(select)) => select,
            Ok(None) => return Request::over(Ok((&mut into[..0], NOTHING))),
            Err(error) => return self.failed(error, Some(into)),
        };
        // SAFETY: the scope waits for the request before `'s` ends. The borrow is handed out again only after that.
        let into = unsafe { Lent::new(into) };
        let started = request_receive(&self.comm, Some(self), select, into);
        started.unwrap_or_else(|error| self.failed(error, None))
    }

    /// A request that could not be started. The end of the scope reports the error, unless the program takes the result
    /// first.
    #[cold]
    pub(crate) fn failed<B>(&'s self, error: Error, buffer: Option<B>) -> Request<'s, B> {
        Request::unstarted(Failed { error, buffer }, &self.comm, self.lender)
    }

    pub(crate) fn world(&self) -> &World {
        self.world
    }

    pub(crate) fn comm(&self) -> &Comm {
        &self.comm
    }

    /// Registers a request whose buffers this scope lends.
    pub(crate) fn lends(&self, core: &mut Core, started: Key) {
        core.lend(self.lender, started);
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    /// A long scope keeps no state of requests that have ended.
    #[test]
    fn long_scope_forgets_completed_requests() {
        const TAG: Tag<u64> = Tag::new(1);
        let ended = crate::threads(1, |world| {
            let (mut kept, mut rooms) = (vec![0; 1000], vec![0; 5000]);
            world.scope(|scope| {
                let lent = || scope.comm.progress_engine.with(|core| core.lent(scope.lender).len()).unwrap();
                let never: Vec<_> = kept.chunks_mut(1).map(|into| scope.irecv(0, Tag::new(2), into)).collect();
                for (round, into) in rooms.chunks_mut(1).enumerate() {
                    let coming = scope.irecv(0, TAG, into);
                    world.send(0, TAG, &[round as u64])?;
                    assert_eq!(coming.wait()?, [round as u64]);
                    assert!((1000..2100).contains(&lent()), "{}", lent());
                }
                // No rank sends to these receives.
                never.into_iter().for_each(|never| drop(never.cancel()));
                Ok::<(), Error>(())
            })
        });
        assert!(ended.unwrap().into_iter().all(|ended| ended.is_ok()));
    }
}
