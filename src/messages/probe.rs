//! Probes: messages that are found, and taken out of matching, before they are received.

use super::comm::Comm;
use super::error::Error;
use super::hold::{self, Parts};
use super::locked::{Fault, Key};
use super::request::{Call, Request, Under};
use super::tag::{Source, Status, Tag, Tags};
use super::waits::Waiting;
use crate::world::World;
use bytemuck::Pod;
use std::borrow::Cow;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use transom_channel::{Id, RecvTarget, Select};
use transom_locks::Awaited;
use transom_windows::Element;

/// A message that a probe has matched (`MPI_Mprobe`). No other receive or probe can take it. If it is dropped, the
/// message is received and discarded.
///
/// # Examples
/// ```
/// use transom::messages::{Source, Tag};
/// const JOB: Tag<u32> = Tag::new(2);
/// transom::threads(2, |world| -> Result<(), transom::Error> {
///     if world.rank() == 0 {
///         return Ok(world.send(1, JOB, &[3, 1, 2])?);
///     }
///     let message = world.probe(Source::Any, JOB)?;
///     assert_eq!((message.status().from, message.status().len), (0, 3));
///     assert_eq!(message.recv()?, [3, 1, 2]);
///     Ok(())
/// })?.into_iter().collect::<Result<(), _>>()?;
/// # Ok::<(), transom::Error>(())
/// ```
#[must_use = "dropped, the message is lost"]
pub struct Message<T: Pod> {
    comm: Comm,
    /// `None` once the receive has started.
    id: Option<Id>,
    status: Status,
    elements: PhantomData<fn(T) -> T>,
}

impl World {
    /// Waits for a message and takes it out of matching, to be received later from the returned [`Message`].
    ///
    /// # Errors
    /// The errors of [`recv`](Self::recv).
    ///
    /// # Examples
    /// See [`Message`].
    pub fn probe<T: Element>(&self, from: impl Into<Source>, tag: impl Into<Tags<T>>) -> Result<Message<T>, Error> {
        probe(self.space().comm()?, from.into(), tag.into())
    }

    /// Probes as [`probe`](Self::probe), for at most `limit`; then returns `None`.
    ///
    /// # Errors
    /// The errors of [`probe`](Self::probe), reported as soon as they occur.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use transom::messages::{Source, Tag};
    /// let world = transom::init()?;
    /// assert!(world.probe_for(Source::Any, Tag::<u8>::any(), Duration::from_millis(10))?.is_none());
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn probe_for<T: Element>(
        &self,
        from: impl Into<Source>,
        tag: impl Into<Tags<T>>,
        limit: Duration,
    ) -> Result<Option<Message<T>>, Error> {
        probe_for(self.space().comm()?, from.into(), tag.into(), limit)
    }

    /// Makes a future that probes as [`probe`](Self::probe).
    ///
    /// # Errors
    /// The future reports the errors of [`try_probe`](Self::try_probe).
    ///
    /// # Examples
    /// See [`Probing`].
    pub fn probe_async<T: Element>(&self, from: impl Into<Source>, tag: impl Into<Tags<T>>) -> Probing<T> {
        Probing::new(self.space().comm().cloned(), from.into(), tag.into())
    }

    /// Probes as [`probe`](Self::probe), and returns `None` if no message has arrived.
    ///
    /// # Errors
    /// [`Error::OtherType`], [`Error::NoSuchRank`], [`Error::Unavailable`]. Without a message, [`Error::PeerDied`],
    /// [`Error::PeerLeft`] and [`Error::PeerLost`] of the source; or, from any source, a death that no receive has
    /// reported. A loop of calls thus ends.
    ///
    /// # Examples
    /// ```
    /// use transom::messages::{Source, Tag};
    /// let world = transom::init()?;
    /// assert!(world.try_probe(Source::Any, Tag::<u8>::any())?.is_none());
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn try_probe<T: Element>(
        &self,
        from: impl Into<Source>,
        tag: impl Into<Tags<T>>,
    ) -> Result<Option<Message<T>>, Error> {
        try_probe(self.space().comm()?, from.into(), tag.into())
    }

    /// Returns the status of the message that a receive would take now, without taking it: a receive of another thread
    /// may take it first.
    ///
    /// # Errors
    /// The errors of [`try_probe`](Self::try_probe).
    ///
    /// # Examples
    /// ```
    /// use transom::messages::{Source, Tag};
    /// let world = transom::init()?;
    /// world.send(0, Tag::new(5), &[1.5, 2.5])?;
    /// let status = world.peek(Source::Any, Tag::<f64>::any())?.expect("the message has arrived");
    /// assert_eq!((status.from, status.tag, status.len), (0, 5, 2));
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn peek<T: Element>(&self, from: impl Into<Source>, tag: impl Into<Tags<T>>) -> Result<Option<Status>, Error> {
        peek(self.space().comm()?, from.into(), tag.into())
    }
}

/// A future that probes and returns a [`Message`], as [`World::probe`](crate::World::probe). It may be dropped at any
/// time, as `select` does: a message that it has not returned stays available to other receives.
///
/// # Examples
/// ```
/// use transom::messages::{Source, Tag};
/// const JOB: Tag<u32> = Tag::new(2);
/// transom::threads(3, |world| -> Result<(), transom::Error> {
///     if world.rank() > 0 {
///         world.send(0, JOB, &[3, 1, 2])?;
///         assert_eq!(world.recv(0, JOB)?.0, [1, 2, 3]);
///         return Ok(());
///     }
///     let serve = async {
///         for _ in 1..world.size() {
///             let job = world.probe_async(Source::Any, JOB).await?;
///             let from = job.status().from;
///             let mut work = job.irecv().await?;
///             work.sort();
///             drop(world.isend(from, JOB, work)); // a dropped send is still delivered
///         }
///         Ok(())
///     };
///     world.block_on(serve)?
/// })?.into_iter().collect::<Result<(), _>>()?;
/// # Ok::<(), transom::Error>(())
/// ```
#[must_use = "a future does nothing unless it is awaited"]
pub struct Probing<T: Pod> {
    comm: Result<Comm, Error>,
    from: Source,
    tags: Tags<T>,
    /// Task number under which the engine keeps the waker.
    task: Option<u64>,
}

impl<T: Pod> Probing<T> {
    pub(super) fn new(comm: Result<Comm, Error>, from: Source, tags: Tags<T>) -> Self {
        Probing { comm, from, tags, task: None }
    }
}

impl<T: Pod> Future for Probing<T> {
    type Output = Result<Message<T>, Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Probing { comm, from, tags, task } = self.get_mut();
        let comm = comm.as_ref().map_err(|error| error.clone())?;
        let select = select(comm, *from, *tags)?;
        comm.progress_engine.progress_now();
        // The waker runs code of the program: it is cloned and dropped while the lock is free.
        let mut waker = Some(context.waker().clone());
        let probed = comm.progress_engine.with(|core| {
            let probed = core.engine.try_probe(select);
            if let Ok(None) = probed {
                // The future fails where a receive would, so that it does not wait forever.
                if let Some(error) = core.engine.never(select) {
                    return Err(error);
                }
                waker = waker.take().and_then(|waker| core.wake_at_news(task, waker));
            }
            probed
        })?;
        match probed.map_err(|failure| comm.failure(failure, size_of::<T>()))? {
            Some((id, came)) => Poll::Ready(message(comm, id, Ok(came))),
            None => {
                super::futures::pending(&comm.progress_engine, context);
                Poll::Pending
            }
        }
    }
}

// The type is not self-referential.
impl<T: Pod> Unpin for Probing<T> {}

impl<T: Pod> Drop for Probing<T> {
    fn drop(&mut self) {
        if let (Ok(comm), Some(task)) = (&self.comm, self.task) {
            // The waker runs code of the program: it is dropped while the lock is free.
            let waker = comm.progress_engine.with(|core| core.ignore_news(task));
            drop(waker);
        }
    }
}

fn select<T: Pod>(comm: &Comm, from: Source, tags: Tags<T>) -> Result<Select, Error> {
    let why = || Error::Misuse { why: "cannot probe for a message from `None`".into() };
    comm.select(from, tags.number())?.ok_or_else(why)
}

fn probe<T: Pod>(comm: &Comm, from: Source, tags: Tags<T>) -> Result<Message<T>, Error> {
    let (id, call, awaited) = begin(comm, from, tags)?;
    let key = Key::Message(id);
    let (result, _) =
        comm.progress_engine.wait(&Waiting { comm, call: &call, id: key }, awaited, |core| core.ended(key))?;
    message(comm, id, result)
}

fn probe_for<T: Pod>(comm: &Comm, from: Source, tags: Tags<T>, limit: Duration) -> Result<Option<Message<T>>, Error> {
    let Some(until) = Instant::now().checked_add(limit) else { return probe(comm, from, tags).map(Some) };
    let (id, call, awaited) = begin(comm, from, tags)?;
    let key = Key::Message(id);
    let mut found = comm.progress_engine.wait_until(&call, awaited, until, |core| core.ended(key))?;
    if found.is_none() && comm.progress_engine.with(|core| core.withdraw(key))?.is_none() {
        // A message was matched just before the deadline.
        found = Some(comm.progress_engine.wait(&call, awaited, |core| core.ended(key))?);
    }
    found.map(|(result, _)| message(comm, id, result)).transpose()
}

/// Posts a probe. Returns its request number, its call, and the ranks whose action can end the wait.
fn begin<T: Pod>(comm: &Comm, from: Source, tags: Tags<T>) -> Result<(Id, Call, Awaited), Error> {
    let (tag, select) = (tags.number(), select(comm, from, tags)?);
    let id = comm.progress_engine.with(|core| core.engine.receive(select, RecvTarget::Probe))?;
    Ok((id, Call::Message { name: "probe", tag }, comm.awaited(select.source)))
}

fn try_probe<T: Pod>(comm: &Comm, from: Source, tags: Tags<T>) -> Result<Option<Message<T>>, Error> {
    let Some(select) = comm.select(from, tags.number())? else { return Ok(None) };
    comm.progress_engine.progress_now();
    let probed = comm.progress_engine.with(|core| core.engine.try_probe(select))?;
    match probed.map_err(|failure| comm.failure(failure, size_of::<T>()))? {
        Some((id, came)) => message(comm, id, Ok(came)).map(Some),
        None => Ok(None),
    }
}

fn peek<T: Pod>(comm: &Comm, from: Source, tags: Tags<T>) -> Result<Option<Status>, Error> {
    let Some(select) = comm.select(from, tags.number())? else { return Ok(None) };
    comm.progress_engine.progress_now();
    let came = comm.progress_engine.with(|core| core.engine.peek(select))?;
    let came = came.map_err(|failure| comm.failure(failure, size_of::<T>()))?;
    came.map(|came| comm.status(came, size_of::<T>())).transpose()
}

fn message<T: Pod>(comm: &Comm, id: Id, result: Result<transom_channel::Status, Fault>) -> Result<Message<T>, Error> {
    let came = result.map_err(|fault| comm.fault(fault, size_of::<T>()))?;
    // A message of another element type is consumed too, as by a receive.
    let place = Status { from: 0, tag: 0, len: 0 };
    let mut message = Message { comm: comm.clone(), id: Some(id), status: place, elements: PhantomData };
    message.status = comm.status(came, size_of::<T>())?;
    Ok(message)
}

impl Message<u8> {
    /// Converts the message to the element type of `tag`, after a probe of any tag.
    ///
    /// # Errors
    /// The message itself, if its tag is another, or its length is not a multiple of the element size.
    ///
    /// # Examples
    /// ```
    /// use transom::messages::{Source, Tag};
    /// const WORK: Tag<u64> = Tag::new(1);
    /// const NAME: Tag<u8> = Tag::new(2);
    /// let world = transom::init()?;
    /// world.send(0, WORK, &[7, 8])?;
    /// world.send(0, NAME, b"Ada")?;
    /// for _ in 0..2 {
    ///     match world.probe(Source::Any, Tag::<u8>::any())?.of(WORK) {
    ///         Ok(work) => assert_eq!(work.recv()?, [7, 8]),
    ///         Err(name) => assert_eq!(name.recv()?, b"Ada"),
    ///     }
    /// }
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn of<U: Pod>(mut self, tag: Tag<U>) -> Result<Message<U>, Self> {
        let Status { tag: number, len, .. } = self.status;
        match len.checked_div(size_of::<U>()) {
            Some(elements) if number == tag.number() && elements * size_of::<U>() == len => {
                let status = Status { len: elements, ..self.status };
                Ok(Message { comm: self.comm.clone(), id: self.id.take(), status, elements: PhantomData })
            }
            _ => Err(self),
        }
    }
}

impl<T: Pod> Message<T> {
    /// Returns the source, tag and length of the message.
    pub fn status(&self) -> Status {
        self.status
    }

    /// Receives the message.
    ///
    /// # Errors
    /// The errors of [`World::recv`](crate::World::recv).
    pub fn recv(self) -> Result<Vec<T>, Error> {
        Ok(self.irecv().wait()?)
    }

    /// Starts to receive the message.
    #[must_use = "wait for it: a dropped receive is withdrawn, or its message is lost"]
    pub fn irecv(mut self) -> Request<'static, Vec<T>> {
        let length = self.status.len * size_of::<T>();
        let room = hold::vector::<T>(length).map_or(RecvTarget::Allocate, |bytes| RecvTarget::Into(bytes, length));
        match self.start(room) {
            Ok(under) => Request::under_way(under, <Vec<T> as Parts>::back),
            Err(error) => Request::over(Err(super::Failed { error, buffer: None })),
        }
    }

    /// Receives the message into a buffer.
    ///
    /// # Errors
    /// The errors of [`World::recv_into`](crate::World::recv_into).
    pub fn recv_into(mut self, into: &mut [T]) -> Result<(), Error> {
        let length = size_of_val(into);
        // SAFETY: the wait below ends before the borrow does, and nothing returns or unwinds before it.
        let room = RecvTarget::Into(unsafe { hold::lend_mut(into) }, length);
        let Under { comm, id, call, awaited, .. } = self.start(room)?;
        let (result, _) = comm.progress_engine.wait(&call, awaited, |core| core.ended(id))?;
        comm.outcome(result, size_of::<T>()).map(drop)
    }

    fn start(&mut self, room: RecvTarget<transom_shm_loopback::messages::Bytes>) -> Result<Under<'static>, Error> {
        let Some(id) = self.id.take() else { return Err(Error::Closed) };
        let comm = self.comm.clone();
        comm.progress_engine.with(|core| {
            let received = core.engine.receive_message(id, room);
            received.map_err(|(failure, _)| comm.failure(failure, size_of::<T>()))
        })??;
        let call = Call::Message { name: "recv", tag: Some(self.status.tag) };
        let awaited = comm.awaited(comm.to_job(self.status.from).ok());
        Ok(Under { comm: Cow::Owned(comm), id: Key::Message(id), element: size_of::<T>(), call, awaited, source: None })
    }
}

impl<T: Pod> Drop for Message<T> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            // Received into no memory, so that the sender learns of the receive.
            let nothing = RecvTarget::Into(Vec::<u8>::new().hold(), 0);
            let _ = self.comm.progress_engine.with(|core| {
                let _ = core.engine.receive_message(id, nothing);
                core.forget(Key::Message(id));
            });
        }
    }
}
