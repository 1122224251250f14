//! Messages that are sent or received again and again, from and into one buffer.

use super::comm::Comm;
use super::error::{Error, Failed};
use super::hold::Shares;
use super::request::Request;
use super::tag::{Peer, Source, Status, Tag, Tags};
use super::{NOTHING, request_receive, request_send};
use crate::world::World;
use bytemuck::Pod;
use std::sync::Arc;

/// A buffer, and where it is sent, or from where it is received, whenever it is started.
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
    comm: Comm,
    what: What<T>,
    buffer: Arc<Shares<T>>,
    state: State,
}

enum What<T> {
    Send(Peer, Tag<T>),
    Receive(Source, Tags<T>),
}

enum State {
    Idle,
    Started(Request<'static, ()>),
    /// The world is gone.
    Gone,
}

/// A persistent message that is under way: its buffer cannot be touched. Dropped or forgotten, it goes on; whatever is done with
/// the buffer next waits for it.
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
        let (comm, to) = (self.space().comm()?, to.into());
        comm.target(to)?;
        let what = What::Send(to, tag);
        Ok(Persistent { comm: comm.clone(), what, buffer: Shares::new(buffer), state: State::Idle })
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
        let (comm, from, tags) = (self.space().comm()?, from.into(), tag.into());
        comm.select(from, tags.number())?;
        let what = What::Receive(from, tags);
        Ok(Persistent { comm: comm.clone(), what, buffer: Shares::new(buffer), state: State::Idle })
    }
}

impl<T: Pod> Persistent<T> {
    /// The buffer. First waits for what was started and not waited for.
    ///
    /// # Errors
    /// [`Error::Closed`] if the world is gone, and the buffer with it.
    pub fn buffer(&mut self) -> Result<&mut [T], Error> {
        self.rest()?;
        // SAFETY: nothing is under way, and this borrow lets nobody start it.
        Ok(unsafe { self.buffer.write(0..self.buffer.len()) })
    }

    /// Starts it. First waits for what was started and not waited for.
    ///
    /// # Errors
    /// [`Error::Closed`] if the world is gone; others are told by [`Active::wait`].
    pub fn start(&mut self) -> Result<Active<'_, T>, Error>
    where
        T: Send,
    {
        self.rest()?;
        self.state = State::Started(self.begin()?);
        Ok(Active(self))
    }

    fn begin(&self) -> Result<Request<'static, ()>, Error>
    where
        T: Send,
    {
        let comm = &self.comm;
        // SAFETY: nothing is under way, and nobody has the elements before the request has ended.
        let part = |writable| unsafe { self.buffer.part(0..self.buffer.len(), writable) };
        let under = match self.what {
            What::Send(to, tag) => match comm.target(to)? {
                Some(to) => request_send(comm, to, tag, part(false), false)?,
                None => return Ok(Request::over(Ok(((), NOTHING)))),
            },
            What::Receive(from, tags) => match comm.select(from, tags.number())? {
                Some(select) => request_receive(comm, select, part(true), size_of::<T>())?,
                None => return Ok(Request::over(Ok(((), NOTHING)))),
            },
        };
        Ok(Request::under_way(under, |_, _| Some(())))
    }

    /// Returns when nothing is under way. How that ended is of no interest to who did not ask.
    fn rest(&mut self) -> Result<(), Error> {
        let _ = self.finish();
        match self.state {
            State::Idle => Ok(()),
            _ => Err(Error::Closed),
        }
    }

    /// Waits for what was started; nothing if nothing was.
    fn finish(&mut self) -> Option<Result<Status, Error>> {
        if !matches!(self.state, State::Started(_)) {
            return None;
        }
        let State::Started(request) = std::mem::replace(&mut self.state, State::Gone) else {
            unreachable!("was looked at")
        };
        Some(match request.wait_status() {
            Ok((_, status)) => {
                self.state = State::Idle;
                Ok(status)
            }
            // Without the world nobody says whether the engine has given the buffer back.
            Err(Failed { error, buffer }) => {
                if buffer.is_some() {
                    self.state = State::Idle;
                }
                Err(error)
            }
        })
    }
}

impl<T: Pod> Active<'_, T> {
    /// Whether it has ended.
    pub fn test(&mut self) -> bool {
        match &mut self.0.state {
            State::Started(request) => request.test(),
            _ => true,
        }
    }

    /// Waits until it has ended; what came.
    ///
    /// # Errors
    /// Those of [`World::send`] and [`World::recv_into`].
    pub fn wait(self) -> Result<Status, Error> {
        self.0.finish().unwrap_or(Err(Error::Closed))
    }
}
