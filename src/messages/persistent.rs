//! Persistent messages and collectives, started many times on the same buffers.

use super::error::Error;
use super::hold::{Parts, Shares};
use super::pending::{Sealed, Way};
use super::posting::{NOTHING, request_receive, request_send, send_now};
use super::request::Request;
use super::tag::{Peer, Source, Status, Tag, Tags};
use crate::world::World;
use bytemuck::Pod;
use std::sync::Arc;
use transom_windows::Element;

/// A persistent request: its buffers, and the message or collective that each start makes of them.
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
    /// Elements to send, then elements received. `given` is the number of elements to send; `None` if one part serves
    /// both.
    buffer: Arc<Shares<T>>,
    given: Option<usize>,
    begin: Begin<T>,
    started: Option<Request<'static, ()>>,
}

type Begin<T> = Box<dyn Fn(&Arc<Shares<T>>) -> Result<Request<'static, ()>, Error> + Send + Sync>;

/// A started persistent request, whose buffers the program cannot access. A dropped or forgotten one stays in flight:
/// the next access to the buffers waits for it.
#[must_use = "the buffer may be used again only when it completes"]
pub struct Active<'p, T: Pod>(&'p mut Persistent<T>);

impl World {
    /// Makes a persistent send, without sending.
    ///
    /// # Errors
    /// [`Error::NoSuchRank`], [`Error::Unavailable`].
    ///
    /// # Examples
    /// See [`Persistent`].
    pub fn send_init<T: Element + Send>(
        &self,
        to: impl Into<Peer>,
        tag: Tag<T>,
        buffer: Vec<T>,
    ) -> Result<Persistent<T>, Error> {
        let comm = self.space().comm()?.clone();
        let to = comm.target(to.into())?;
        Ok(Persistent::new(buffer, None, move |buffer| {
            let Some(to) = to else { return Ok(Request::over(Ok(((), NOTHING)))) };
            // SAFETY: `Persistent` gives access to the buffer only after all parts of it are dropped.
            let all = unsafe { buffer.part(0..buffer.len(), false) };
            if let Some(status) = send_now(&comm, to, tag, all.view()) {
                return Ok(Request::over(Ok(((), status))));
            }
            request_send(&comm, None, to, tag, all.hold(), false, |_, _| Some(()))
        }))
    }

    /// Makes a persistent receive, without receiving.
    ///
    /// # Errors
    /// The errors of [`send_init`](Self::send_init).
    ///
    /// # Examples
    /// See [`Persistent`].
    pub fn recv_init<T: Element + Send>(
        &self,
        from: impl Into<Source>,
        tag: impl Into<Tags<T>>,
        buffer: Vec<T>,
    ) -> Result<Persistent<T>, Error> {
        let comm = self.space().comm()?.clone();
        let select = comm.select(from.into(), tag.into().number())?;
        // A source of a persistent receive sends often, so it gets a ring.
        if let Some(source) = select.and_then(|select| select.source) {
            comm.progress_engine.with(|core| core.engine.expect(source))?;
        }
        Ok(Persistent::new(buffer, None, move |buffer| {
            let Some(select) = select else { return Ok(Request::over(Ok(((), NOTHING)))) };
            // SAFETY: as in `send_init`.
            request_receive(&comm, None, select, unsafe { buffer.part(0..buffer.len(), true) })
        }))
    }
}

impl<T: Pod> Persistent<T> {
    /// Makes a persistent request that only reads the first `given` elements and writes the others; without `given`,
    /// `begin` decides. `begin` may use the elements in parts of the buffer. It drops the parts, or its request has
    /// dropped them when it ends.
    pub(crate) fn new(
        elements: Vec<T>,
        given: Option<usize>,
        begin: impl Fn(&Arc<Shares<T>>) -> Result<Request<'static, ()>, Error> + Send + Sync + 'static,
    ) -> Self {
        Persistent { buffer: Shares::new(elements), given, begin: Box::new(begin), started: None }
    }

    /// Returns the buffer with this rank's input. First waits for the last start, if the program has not.
    ///
    /// # Errors
    /// [`Error::Closed`] if the world was dropped while the buffer was in use.
    pub fn buffer(&mut self) -> Result<&mut [T], Error> {
        let given = self.given.unwrap_or(self.buffer.len());
        self.idle().map(|all| &mut all[..given])
    }

    /// Returns the output of calls that have a separate buffer for it ([`all_gather_init`](World::all_gather_init));
    /// otherwise the [`buffer`](Self::buffer). First waits for the last start, if the program has not.
    ///
    /// # Errors
    /// The errors of [`buffer`](Self::buffer).
    pub fn result(&mut self) -> Result<&mut [T], Error> {
        let given = self.given.unwrap_or(0);
        self.idle().map(|all| &mut all[given..])
    }

    fn idle(&mut self) -> Result<&mut [T], Error> {
        // The program did not wait for the last start, so its result is discarded.
        let _ = self.finish();
        Arc::get_mut(&mut self.buffer).map(Shares::all).ok_or(Error::Closed)
    }

    /// Starts the message or collective. First waits for the last start, if the program has not.
    ///
    /// # Errors
    /// [`Error::Closed`] if the world was dropped. [`Active::wait`] reports other errors.
    pub fn start(&mut self) -> Result<Active<'_, T>, Error> {
        self.idle()?;
        self.started = Some((self.begin)(&self.buffer)?);
        Ok(Active(self))
    }

    /// Waits for the last start, and returns its result; `None` without one.
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

    fn failure(&mut self) -> Option<Error> {
        self.0.started.as_mut()?.failure()
    }
}

impl<T: Pod> Active<'_, T> {
    /// Returns true if the request has ended.
    pub fn test(&mut self) -> bool {
        self.0.started.as_mut().is_none_or(Request::test)
    }

    /// Waits until the request has ended, and returns its status.
    ///
    /// # Errors
    /// The errors of [`World::send`] and [`World::recv_into`].
    pub fn wait(self) -> Result<Status, Error> {
        self.0.finish().unwrap_or(Err(Error::Closed))
    }

    /// Waits until all requests have ended, and returns their statuses in the same order. An iterator that starts
    /// requests starts all of them before the first wait.
    ///
    /// # Errors
    /// [`Error::Request`], with the index and the error of the first request that failed. All requests are waited for
    /// even so.
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
        let status =
            |(index, ended): (usize, Result<Status, Error>)| ended.map_err(|error| Error::of_request(index, error));
        ended.into_iter().enumerate().map(status).collect()
    }
}
