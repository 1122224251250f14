//! Messages and collectives that are started again and again, from and into one buffer.

use super::error::{Error, Failed};
use super::hold::{Again, Whole};
use super::request::Request;
use super::tag::{Peer, Source, Status, Tag, Tags};
use super::{NOTHING, request_receive, request_send, send_now};
use crate::world::World;
use bytemuck::Pod;
use std::sync::Arc;
use transom_shm_loopback::messages::Place;

/// A buffer, and where it is sent, from where it is received, or which collective works on it, whenever it is started.
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
    /// With what is kept beside the buffer; it goes before that.
    begin: Begin<T>,
    state: State<T>,
}

type Begin<T> = Box<dyn Fn(Vec<T>) -> Result<Request<'static, Whole<T>>, Error> + Send + Sync>;

enum State<T: Pod> {
    Idle(Vec<T>),
    Started(Request<'static, Whole<T>>),
    /// The buffer went with an error.
    Gone,
}

/// A persistent message or collective that is under way: its buffer cannot be touched. Dropped or forgotten, it goes on; whatever is done with
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
        let comm = self.space().comm()?.clone();
        let (to, place) = (comm.target(to.into())?, Arc::<Place>::default());
        Ok(Persistent::new(buffer, move |buffer| {
            let Some(to) = to else { return Ok(Request::over(Ok((Whole(buffer), NOTHING)))) };
            if let Some(status) = send_now(&comm, to, tag, bytemuck::cast_slice(&buffer)) {
                return Ok(Request::over(Ok((Whole(buffer), status))));
            }
            request_send(&comm, to, tag, Again::hold(buffer, &place), false, Again::back)
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
        Ok(Persistent::new(buffer, move |buffer| {
            let Some(select) = select else { return Ok(Request::over(Ok((Whole(buffer), NOTHING)))) };
            request_receive(&comm, select, Whole(buffer))
        }))
    }
}

impl<T: Pod> Persistent<T> {
    /// What `begin` does with the buffer, which its request gives back.
    pub(crate) fn new(
        buffer: Vec<T>,
        begin: impl Fn(Vec<T>) -> Result<Request<'static, Whole<T>>, Error> + Send + Sync + 'static,
    ) -> Self {
        Persistent { begin: Box::new(begin), state: State::Idle(buffer) }
    }

    /// The buffer. First waits for what was started and not waited for.
    ///
    /// # Errors
    /// [`Error::Closed`] if the world is gone, and the buffer with it.
    pub fn buffer(&mut self) -> Result<&mut [T], Error> {
        // How that ended is of no interest to who did not ask.
        let _ = self.finish();
        match &mut self.state {
            State::Idle(buffer) => Ok(buffer),
            _ => Err(Error::Closed),
        }
    }

    /// Starts it. First waits for what was started and not waited for.
    ///
    /// # Errors
    /// [`Error::Closed`] if the world is gone; others are told by [`Active::wait`].
    pub fn start(&mut self) -> Result<Active<'_, T>, Error> {
        let _ = self.finish();
        let State::Idle(buffer) = std::mem::replace(&mut self.state, State::Gone) else { return Err(Error::Closed) };
        self.state = State::Started((self.begin)(buffer)?);
        Ok(Active(self))
    }

    /// Waits for what was started; nothing if nothing was.
    fn finish(&mut self) -> Option<Result<Status, Error>> {
        let request = match std::mem::replace(&mut self.state, State::Gone) {
            State::Started(request) => request,
            other => {
                self.state = other;
                return None;
            }
        };
        Some(match request.wait_status() {
            Ok((Whole(buffer), status)) => {
                self.state = State::Idle(buffer);
                Ok(status)
            }
            Err(Failed { error, buffer }) => {
                if let Some(Whole(buffer)) = buffer {
                    self.state = State::Idle(buffer);
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
