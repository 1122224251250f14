//! Posting of sends and receives: without a request if possible, otherwise by a request.

use super::comm::Comm;
use super::error::{Error, Failed};
use super::hold;
use super::landing::{Fresh, RecvInto};
use super::locked::{Fault, Key};
use super::request::{Call, Request, Under};
use super::scope::Scope;
use super::tag::{Source, Status, Tag};
use super::waits::Waiting;
use bytemuck::Pod;
use std::borrow::Cow;
use transom_channel::{Error as Failure, RecvBuf, RecvTarget, Select, Short, Status as Came};
use transom_shm_loopback::messages::Bytes;

/// Status of a message from [`Source::None`] or to [`Peer::None`](super::Peer::None).
pub(super) const NOTHING: Status = Status { from: Status::NOBODY, tag: 0, len: 0 };

/// Sends a message by a request, and waits for the request.
#[inline(never)]
pub(super) fn send_long(
    name: &'static str,
    comm: &Comm,
    to: u32,
    tag: u32,
    data: &[u8],
    sync: bool,
) -> Result<(), Error> {
    // Set before the rendezvous request, since the receiver chooses its protocol by whether the sender waits.
    let _attending = comm.progress_engine.attending();
    // SAFETY: the borrow lasts until this function returns, and by then the engine has given the handle back.
    let bytes = unsafe { hold::lend(data) };
    let id = comm
        .progress_engine
        .with(|core| Key::Message(core.engine.send(to, comm.context, tag, bytes, data.len(), sync)))?;
    let call = Call::Message { name, tag: Some(tag) };
    let (result, _) = comm.progress_engine.wait(&call, comm.awaited(Some(to)), |core| core.ended(id))?;
    // Errors of sends have no lengths, so the element size is irrelevant.
    result.map(drop).map_err(|fault| comm.fault(fault, 1))
}

/// Receives a message by a request, and waits for the request.
#[inline(never)]
pub(super) fn receive_long(comm: &Comm, select: Select, into: &mut [u8]) -> Result<Result<Came, Fault>, Error> {
    let room = into.len();
    // SAFETY: the borrow lasts until this function returns, and by then the engine has given the handle back.
    let bytes = unsafe { hold::lend_mut(into) };
    let id =
        comm.progress_engine.with(|core| Key::Message(core.engine.receive(select, RecvTarget::Into(bytes, room))))?;
    let call = Call::Message { name: "recv", tag: select.tag };
    let call = Waiting { comm, call: &call, id };
    Ok(comm.progress_engine.wait(&call, comm.awaited(select.source), |core| core.ended(id))?.0)
}

/// Receives a short message from a ring, now or soon, without a request. Returns the source and the result.
#[inline(always)]
pub(super) fn receive_short<S: RecvBuf + ?Sized>(
    comm: &Comm,
    from: Source,
    tag: Option<u32>,
    into: &mut S,
) -> Result<(u32, Option<Short>), Error> {
    Ok(match from {
        Source::Rank(rank) => {
            let source = comm.to_job(rank)?;
            (source, comm.progress_engine.receive_short(comm.context, source, tag, into))
        }
        Source::Any => match comm.progress_engine.receive_any(comm.context, tag, into) {
            Some((source, short)) => (source, Some(short)),
            None => (0, None),
        },
        Source::None => (0, Some(Short::Long)),
    })
}

/// Returns the result of a short receive into `room` bytes; `None` if the message needs a request.
#[inline(always)]
pub(super) fn came_short(
    comm: &Comm,
    source: u32,
    short: Option<Short>,
    room: usize,
    element: usize,
) -> Option<Result<Status, Error>> {
    match short {
        Some(Short::Done(taken)) => {
            let status = Came { peer: source, tag: taken.tag(), length: taken.length().into() };
            if taken.length() as usize > room {
                return Some(Err(comm.failure(Failure::Truncated { status, room: room as u64 }, element)));
            }
            Some(comm.status(status, element))
        }
        Some(Short::Nothing | Short::Long) => None,
        None => Some(Err(Error::Closed)),
    }
}

/// Sends a message eagerly without a request, and returns its status; `None` if that is not possible.
#[inline]
pub(super) fn send_now<T>(comm: &Comm, to: u32, tag: Tag<T>, data: &[u8]) -> Option<Status> {
    let sent = comm.progress_engine.send_short(to, comm.context, tag.number(), data) == Some(true);
    let len = data.len().checked_div(size_of::<T>()).unwrap_or(0);
    sent.then(|| Status { from: comm.numbered(to), tag: tag.number(), len })
}

/// The ranks of a request: borrowed from its scope, or a clone.
#[inline(always)]
fn kept<'a>(comm: &Comm, scope: Option<&'a Scope<'a, '_>>) -> Cow<'a, Comm> {
    scope.map_or_else(|| Cow::Owned(comm.clone()), |scope| Cow::Borrowed(scope.comm()))
}

/// Starts to send a message. A scope may lend its buffer.
pub(super) fn request_send<'a, T, B>(
    comm: &Comm,
    scope: Option<&'a Scope<'a, '_>>,
    to: u32,
    tag: Tag<T>,
    bytes: Bytes,
    sync: bool,
    back: fn(Bytes, usize) -> Option<B>,
) -> Result<Request<'a, B>, Error> {
    let (tag, length) = (tag.number(), bytes.len());
    let id = comm.progress_engine.with(|core| {
        let id = core.engine.send(to, comm.context, tag, bytes, length, sync);
        scope.into_iter().for_each(|scope| scope.lends(core, Key::Message(id)));
        Key::Message(id)
    })?;
    Ok(sending::<T, B>(comm, scope, (id, to, tag), back))
}

/// Starts a send as [`request_send`], unless the message would have to queue at this rank. In that case the buffer is
/// returned.
pub(super) fn try_request_send<T, B>(
    comm: &Comm,
    to: u32,
    tag: Tag<T>,
    bytes: Bytes,
    back: fn(Bytes, usize) -> Option<B>,
) -> Result<Result<Request<'static, B>, B>, Error> {
    let (tag, length) = (tag.number(), bytes.len());
    let tried = comm
        .progress_engine
        .with(|core| core.engine.send_unless_it_waits(to, comm.context, tag, bytes, length, false))?;
    Ok(match tried {
        Ok(id) => Ok(sending::<T, B>(comm, None, (Key::Message(id), to, tag), back)),
        Err(bytes) => Err(back(bytes, length).expect("the buffer has its original type")),
    })
}

fn sending<'a, T, B>(
    comm: &Comm,
    scope: Option<&'a Scope<'a, '_>>,
    (id, to, tag): (Key, u32, u32),
    back: fn(Bytes, usize) -> Option<B>,
) -> Request<'a, B> {
    let (call, awaited) = (Call::Message { name: "isend", tag: Some(tag) }, comm.awaited(Some(to)));
    let under = Under { comm: kept(comm, scope), id, element: size_of::<T>(), call, awaited, source: None };
    Request::under_way(under, back)
}

/// Receives a message that is in the ring of its source; otherwise posts a request.
pub(super) fn request_receive<'a, L: RecvInto>(
    comm: &Comm,
    scope: Option<&'a Scope<'a, '_>>,
    select: Select,
    mut into: L,
) -> Result<Request<'a, L::Back>, Error> {
    let element = size_of::<L::Element>();
    let started = comm.progress_engine.with(|core| {
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(into.room());
        let room = bytes.len();
        if let Some(source) = select.source
            && let short @ Short::Done(_) = core.engine.try_receive(select.context, source, select.tag, bytes, 1)
        {
            return Err((into, came_short(comm, source, Some(short), room, element)));
        }
        let id = core.engine.receive(select, RecvTarget::Into(into.hold(), room));
        scope.into_iter().for_each(|scope| scope.lends(core, Key::Message(id)));
        Ok(Key::Message(id))
    })?;
    Ok(match started {
        Ok(id) => {
            let call = Call::Message { name: "irecv", tag: select.tag };
            let awaited = comm.awaited(select.source);
            let back = |bytes, received| L::back(bytes, received).map(|into| into.came(usize::MAX));
            Request::under_way(
                Under { comm: kept(comm, scope), id, element, call, awaited, source: select.source },
                back,
            )
        }
        Err((into, Some(Ok(status)))) => Request::over(Ok((into.came(status.len), status))),
        Err((into, Some(Err(error)))) => {
            let buffer = Some(into.came(usize::MAX));
            match scope {
                Some(scope) => scope.failed(error, buffer),
                None => Request::over(Err(Failed { error, buffer })),
            }
        }
        Err((_, None)) => unreachable!("a completed receive has a message"),
    })
}

/// Starts to receive into memory that is allocated when the length is known.
pub(super) fn start_receive<T: Pod>(comm: &Comm, select: Select) -> Result<Request<'static, Vec<T>>, Error> {
    let element = size_of::<T>();
    let mut fresh = Fresh(Vec::new());
    let started = comm.progress_engine.with(|core| {
        if let Some(source) = select.source
            && let short @ Short::Done(_) = core.engine.try_receive(select.context, source, select.tag, &mut fresh, 1)
        {
            return Err(came_short(comm, source, Some(short), usize::MAX, element));
        }
        Ok(Key::Message(core.engine.receive(select, RecvTarget::Make(hold::vector::<T>))))
    })?;
    Ok(match started {
        Ok(id) => {
            let call = Call::Message { name: "recv", tag: select.tag };
            let under = Under {
                comm: kept(comm, None),
                id,
                element,
                call,
                awaited: comm.awaited(select.source),
                source: select.source,
            };
            Request::under_way(under, <Vec<T> as hold::Parts>::back)
        }
        Err(Some(Ok(status))) => Request::over(Ok((fresh.0, status))),
        Err(Some(Err(error))) => Request::over(Err(Failed { error, buffer: None })),
        Err(None) => unreachable!("a completed receive has a message"),
    })
}
