//! Messages and collectives that are started again and again, on the same buffers.

use super::error::Error;
use super::hold::{Parts, Shares};
use super::pending::{Sealed, Way};
use super::posting::{NOTHING, request_receive, request_send, send_now};
use super::request::Request;
use super::tag::{Peer, Source, Status, Tag, Tags};
use crate::world::World;
use bytemuck::Pod;
use std::sync::Arc;

/// A buffer, or two, and where it is sent, from where it is received, or which collective works on it, whenever it is started.
///
/// # Examples
/// ```
/// use transom::messages::Tag;
/// const HALO: Tag<f64> = Tag::new(1);
/// transom::threads(2, |world| -> Result<(), transom::Error> {
///     let other = 1 - world.rank();
///     let mut sending = world.send_init(other, HALO, vec![0.0; 100])?;
///     let mut coming = world.recv_init(other, HALO, vec![0.0; 100])?;
///     for step in 0..10 {
///         let incoming = coming.start()?;
///         sending.buffer()?.fill(step as f64);
///         let outgoing = sending.start()?;
///         // ... compute ...
///         assert_eq!(incoming.wait()?.len, 100);
///         outgoing.wait()?;
///         assert_eq!(coming.buffer()?[99], step as f64);
///     }
///     Ok(())
/// })?.into_iter().collect::<Result<(), _>>()?;
/// # Ok::<(), transom::Error>(())
/// ```
pub struct Persistent<T: Pod> {
    /// What goes, and then what comes: this many elements; or both in one.
    buffer: Arc<Shares<T>>,
    given: Option<usize>,
    begin: Begin<T>,
    started: Option<Request<'static, ()>>,
}

type Begin<T> = Box<dyn Fn(&Arc<Shares<T>>) -> Result<Request<'static, ()>, Error> + Send + Sync>;

/// A persistent message or collective that is under way: its buffers cannot be touched. Dropped or forgotten, it goes on; whatever is
/// done with them next waits for it.
#[must_use = "it says when the buffer can be used again"]
pub struct Active<'p, T: Pod>(&'p mut Persistent<T>);

impl World {
    /// A message to be sent many times; nothing is sent yet.
    ///
    /// # Errors
    /// [`Error::NoSuchRank`], [`Error::Unavailable`].
    ///
    /// # Examples
    /// See [`Persistent`].
    pub fn send_init<T: Pod + Send>(
        &self,
        to: impl Into<Peer>,
        tag: Tag<T>,
        buffer: Vec<T>,
    ) -> Result<Persistent<T>, Error> {
        let comm = self.space().comm()?.clone();
        let to = comm.target(to.into())?;
        Ok(Persistent::new(buffer, None, move |buffer| {
            let Some(to) = to else { return Ok(Request::over(Ok(((), NOTHING)))) };
            // SAFETY: `Persistent` lets nobody use the buffer until all parts of it are dropped.
            let all = unsafe { buffer.part(0..buffer.len(), false) };
            if let Some(status) = send_now(&comm, to, tag, all.view()) {
                return Ok(Request::over(Ok(((), status))));
            }
            request_send(&comm, None, to, tag, all.hold(), false, |_, _| Some(()))
        }))
    }

    /// A message to be received many times; nothing is received yet.
    ///
    /// # Errors
    /// As [`send_init`](Self::send_init).
    ///
    /// # Examples
    /// See [`Persistent`].
    pub fn recv_init<T: Pod + Send>(
        &self,
        from: impl Into<Source>,
        tag: impl Into<Tags<T>>,
        buffer: Vec<T>,
    ) -> Result<Persistent<T>, Error> {
        let comm = self.space().comm()?.clone();
        let select = comm.select(from.into(), tag.into().number())?;
        // Who is received from many times speaks often.
        if let Some(source) = select.and_then(|select| select.source) {
            comm.hub.with(|core| core.engine.expect(source))?;
        }
        Ok(Persistent::new(buffer, None, move |buffer| {
            let Some(select) = select else { return Ok(Request::over(Ok(((), NOTHING)))) };
            // SAFETY: as in `send_init`.
            request_receive(&comm, None, select, unsafe { buffer.part(0..buffer.len(), true) })
        }))
    }
}

impl<T: Pod> Persistent<T> {
    /// Of the elements the first `given` are read only, and the others written; without it, all are what `begin` makes of them.
    /// That may use them in parts of the buffer, which it drops, or which its request has dropped when it ends.
    pub(crate) fn new(
        elements: Vec<T>,
        given: Option<usize>,
        begin: impl Fn(&Arc<Shares<T>>) -> Result<Request<'static, ()>, Error> + Send + Sync + 'static,
    ) -> Self {
        Persistent { buffer: Shares::new(elements), given, begin: Box::new(begin), started: None }
    }

    /// The buffer of what this rank passes. First waits for what was started and not waited for.
    ///
    /// # Errors
    /// [`Error::Closed`] if the world went while the buffer was in use.
    pub fn buffer(&mut self) -> Result<&mut [T], Error> {
        let given = self.given.unwrap_or(self.buffer.len());
        self.idle().map(|all| &mut all[..given])
    }

    /// What came, of calls that have a buffer of their own for it ([`all_gather_init`](World::all_gather_init)); else the
    /// [`buffer`](Self::buffer). First waits for what was started and not waited for.
    ///
    /// # Errors
    /// As there.
    pub fn result(&mut self) -> Result<&mut [T], Error> {
        let given = self.given.unwrap_or(0);
        self.idle().map(|all| &mut all[given..])
    }

    fn idle(&mut self) -> Result<&mut [T], Error> {
        // How that ended is of no interest to who did not ask.
        let _ = self.finish();
        Arc::get_mut(&mut self.buffer).map(Shares::all).ok_or(Error::Closed)
    }

    /// Starts it. First waits for what was started and not waited for.
    ///
    /// # Errors
    /// [`Error::Closed`] if the world is gone; others are told by [`Active::wait`].
    pub fn start(&mut self) -> Result<Active<'_, T>, Error> {
        self.idle()?;
        self.started = Some((self.begin)(&self.buffer)?);
        Ok(Active(self))
    }

    /// Waits for what was started; nothing if nothing was.
    fn finish(&mut self) -> Option<Result<Status, Error>> {
        let ended = self.started.take()?.wait_status();
        Some(ended.map(|((), status)| status).map_err(|failed| failed.error))
    }
}

impl<T: Pod> Sealed for Active<'_, T> {
    fn has_ended(&mut self) -> bool {
        self.0.started.as_mut().is_none_or(Request::has_ended)
    }

    fn way(&self) -> Way {
        self.0.started.as_ref().map_or(Way(None), Sealed::way)
    }
}

impl<T: Pod> Active<'_, T> {
    /// Whether it has ended.
    pub fn test(&mut self) -> bool {
        self.0.started.as_mut().is_none_or(Request::test)
    }

    /// Waits until it has ended; what came.
    ///
    /// # Errors
    /// Those of [`World::send`] and [`World::recv_into`].
    pub fn wait(self) -> Result<Status, Error> {
        self.0.finish().unwrap_or(Err(Error::Closed))
    }

    /// Waits until they all have ended; what came, in the same order. An iterator that starts them starts all before any is waited
    /// for.
    ///
    /// # Errors
    /// The first that any of them gives; all are waited for even so.
    ///
    /// # Examples
    /// ```
    /// use transom::messages::{Active, Persistent, Tag};
    /// const HALO: Tag<f64> = Tag::new(1);
    /// transom::threads(2, |world| -> Result<(), transom::Error> {
    ///     let other = 1 - world.rank();
    ///     let mut halo = [world.recv_init(other, HALO, vec![0.0; 9])?, world.send_init(other, HALO, vec![1.5; 9])?];
    ///     for _ in 0..10 {
    ///         let started: Vec<_> = halo.iter_mut().map(Persistent::start).collect::<Result<_, _>>()?;
    ///         assert_eq!(Active::wait_all(started)?[0].len, 9);
    ///     }
    ///     assert_eq!(halo[0].buffer()?[8], 1.5);
    ///     Ok(())
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn wait_all(active: impl IntoIterator<Item = Self>) -> Result<Vec<Status>, Error> {
        let started: Vec<_> = active.into_iter().collect();
        let ended: Vec<_> = started.into_iter().map(Self::wait).collect();
        ended.into_iter().collect()
    }
}
