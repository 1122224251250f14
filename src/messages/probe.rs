//! Messages that were found before they are received.

use super::comm::Comm;
use super::error::Error;
use super::hold::{self, Parts};
use super::locked::{Fault, Key};
use super::request::{Call, Request, Under};
use super::tag::{Source, Status, Tags};
use bytemuck::Pod;
use std::borrow::Cow;
use std::marker::PhantomData;
use std::time::{Duration, Instant};
use transom_channel::{Id, Room};
use transom_locks::Awaited;

/// A message that a probe has found. It is this one's to receive, whatever other threads or receives do. Dropped, it is
/// received, and lost.
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
    /// None once it is being received.
    id: Option<Id>,
    status: Status,
    elements: PhantomData<fn(T) -> T>,
}

pub(super) fn probe<T: Pod>(comm: &Comm, from: Source, tags: Tags<T>) -> Result<Message<T>, Error> {
    let (id, call, awaited) = begin(comm, from, tags)?;
    let (result, _) = comm.hub.wait(&call, awaited, |core| core.ended(Key::Message(id)))?;
    message(comm, id, result)
}

pub(super) fn probe_for<T: Pod>(
    comm: &Comm,
    from: Source,
    tags: Tags<T>,
    limit: Duration,
) -> Result<Option<Message<T>>, Error> {
    let Some(until) = Instant::now().checked_add(limit) else { return probe(comm, from, tags).map(Some) };
    let (id, call, awaited) = begin(comm, from, tags)?;
    let key = Key::Message(id);
    let mut found = comm.hub.wait_until(&call, awaited, until, |core| core.ended(key))?;
    if found.is_none() && comm.hub.with(|core| core.withdraw(key))?.is_none() {
        // It has come at the last moment.
        found = Some(comm.hub.wait(&call, awaited, |core| core.ended(key))?);
    }
    found.map(|(result, _)| message(comm, id, result)).transpose()
}

/// Has the engine look for a message; its number, the call, and whose doing ends the wait for it.
fn begin<T: Pod>(comm: &Comm, from: Source, tags: Tags<T>) -> Result<(Id, Call, Awaited), Error> {
    let tag = tags.number();
    let Some(select) = comm.select(from, tag)? else {
        return Err(Error::Misuse { why: "there is no message from nobody to be found".into() });
    };
    let id = comm.hub.with(|core| core.engine.receive(select, Room::Probe))?;
    Ok((id, Call::Message { name: "probe", tag }, comm.awaited(select.source)))
}

pub(super) fn try_probe<T: Pod>(comm: &Comm, from: Source, tags: Tags<T>) -> Result<Option<Message<T>>, Error> {
    let Some(select) = comm.select(from, tags.number())? else { return Ok(None) };
    comm.hub.turn_now();
    let probed = comm.hub.with(|core| core.engine.try_probe(select))?;
    match probed.map_err(|failure| comm.failure(failure, size_of::<T>()))? {
        Some((id, came)) => message(comm, id, Ok(came)).map(Some),
        None => Ok(None),
    }
}

pub(super) fn peek<T: Pod>(comm: &Comm, from: Source, tags: Tags<T>) -> Result<Option<Status>, Error> {
    let Some(select) = comm.select(from, tags.number())? else { return Ok(None) };
    comm.hub.turn_now();
    let came = comm.hub.with(|core| core.engine.peek(select))?;
    let came = came.map_err(|failure| comm.failure(failure, size_of::<T>()))?;
    came.map(|came| comm.status(came, size_of::<T>())).transpose()
}

fn message<T: Pod>(comm: &Comm, id: Id, result: Result<transom_channel::Status, Fault>) -> Result<Message<T>, Error> {
    let came = result.map_err(|fault| comm.fault(fault, size_of::<T>()))?;
    // Of other elements it is consumed all the same, as by a receive.
    let place = Status { from: 0, tag: 0, len: 0 };
    let mut message = Message { comm: comm.clone(), id: Some(id), status: place, elements: PhantomData };
    message.status = comm.status(came, size_of::<T>())?;
    Ok(message)
}

impl<T: Pod> Message<T> {
    /// What it is.
    pub fn status(&self) -> Status {
        self.status
    }

    /// Receives it.
    ///
    /// # Errors
    /// As [`World::recv`](crate::World::recv).
    pub fn recv(self) -> Result<Vec<T>, Error> {
        Ok(self.irecv().wait()?)
    }

    /// Starts to receive it.
    pub fn irecv(mut self) -> Request<'static, Vec<T>> {
        let length = self.status.len * size_of::<T>();
        let room = hold::vector::<T>(length).map_or(Room::Allocate, |bytes| Room::Into(bytes, length));
        match self.start(room) {
            Ok(under) => Request::under_way(under, <Vec<T> as Parts>::back),
            Err(error) => Request::over(Err(super::Failed { error, buffer: None })),
        }
    }

    /// Receives it into a buffer.
    ///
    /// # Errors
    /// As [`World::recv_into`](crate::World::recv_into).
    pub fn recv_into(mut self, into: &mut [T]) -> Result<(), Error> {
        let length = size_of_val(into);
        // SAFETY: what is under way is waited for below, and only then the borrow ends; nothing returns or unwinds before.
        let room = Room::Into(unsafe { hold::lend_mut(into) }, length);
        let Under { comm, id, call, awaited, .. } = self.start(room)?;
        let (result, _) = comm.hub.wait(&call, awaited, |core| core.ended(id))?;
        comm.outcome(result, size_of::<T>()).map(drop)
    }

    fn start(&mut self, room: Room<transom_shm_loopback::messages::Bytes>) -> Result<Under<'static>, Error> {
        let Some(id) = self.id.take() else { return Err(Error::Closed) };
        let comm = self.comm.clone();
        comm.hub.with(|core| {
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
            // Into nothing: its sender is told that it was received.
            let nothing = Room::Into(Vec::<u8>::new().hold(), 0);
            let _ = self.comm.hub.with(|core| {
                let _ = core.engine.receive_message(id, nothing);
                core.forget(Key::Message(id));
            });
        }
    }
}
