//! Requests: messages, collectives and operations on windows in flight.

use super::comm::Comm;
use super::error::{Error, Failed};
use super::locked::{Ended, Key, Lender};
use super::pending::{Sealed, Way};
use super::posting::NOTHING;
use super::progress_engine::ProgressEngine;
use super::tag::Status;
use super::unreported::Unreported;
use super::waits::Waiting;
use std::borrow::Cow;
use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use transom_channel::{Error as Failure, Status as Came};
use transom_locks::Awaited;
use transom_shm_loopback::messages::Bytes;
use transom_windows::Request as Operation;

/// Result of a request: its buffer; or an error with the buffer, where the request has one.
pub type Done<B> = Result<B, Failed<B>>;

/// A message, a collective or a window operation in flight, and its buffer. A request is started when it is made.
///
/// Messages and collectives are started as requests of this type. `rput`, `rget`, `raccumulate` and `rget_accumulate`
/// of an epoch, and gets of a scope, return a [`windows::Request`](crate::windows::Request) with the same methods;
/// `Request::from` and [`Requests::push`](super::Requests::push) take those. [`wait_any`](crate::wait_any) and its
/// relatives wait for requests of all kinds and types together.
///
/// A dropped send, put or accumulate completes as if it had been waited for. A dropped receive is withdrawn; if its
/// message has already been matched, the message is lost. The data of a dropped get is lost. A dropped request whose
/// buffer a [`scope`](crate::World::scope) lends stays in flight, and the end of the scope waits for it. A forgotten
/// request ([`std::mem::forget`]) is safe: a forgotten receive still takes one message.
///
/// A request is also a future. Any executor can poll it; [`block_on`](crate::World::block_on) sleeps instead of polling
/// in a loop. Inside `block_on`, do not block the thread with another executor: no thread would then make progress,
/// unless the rank has a progress thread ([`start_progress_thread`](crate::World::start_progress_thread)).
///
/// # Examples
/// ```
/// use transom::messages::Tag;
/// const SQUARES: Tag<u64> = Tag::new(1);
/// transom::threads(2, |world| -> Result<(), transom::Error> {
///     let other = 1 - world.rank();
///     let coming = world.irecv(other, SQUARES);
///     let sent = world.isend(other, SQUARES, vec![1, 4, 9]);
///     // ... compute ...
///     assert_eq!(coming.wait()?, [1, 4, 9]);
///     assert_eq!(sent.wait()?, [1, 4, 9]); // the buffer is back
///     Ok(())
/// })?.into_iter().collect::<Result<(), _>>()?;
/// # Ok::<(), transom::Error>(())
/// ```
pub struct Request<'a, B> {
    pub(super) state: RequestState<'a, B>,
    back: Back<B>,
    /// The scope that lends its buffer.
    lent: PhantomData<&'a mut ()>,
}

/// Kept small, since a request is moved from frame to frame. What is rare is boxed, so that a message has two states.
pub(super) enum RequestState<'a, B> {
    UnderWay(Under<'a>),
    /// Result; `None` once the program has taken it.
    Over(Option<Over<'a, B>>),
}

pub(super) type Over<'a, B> = Result<(B, Status), Box<Rare<'a, B>>>;

/// A request that is neither a message in flight nor successful.
pub(super) enum Rare<'a, B> {
    Failed(Failed<B>, Option<Unreported<'a>>),
    /// Window operation whose end no test or wait has found yet.
    Operation(Operation<'a, B>),
}

impl<'a, B> From<Result<(B, Status), Failed<B>>> for RequestState<'a, B> {
    #[inline(always)]
    fn from(result: Result<(B, Status), Failed<B>>) -> Self {
        RequestState::Over(Some(result.map_err(failed)))
    }
}

#[cold]
fn failed<'a, B>(failed: Failed<B>) -> Box<Rare<'a, B>> {
    Box::new(Rare::Failed(failed, None))
}

/// Conversion of the engine's bytes into the result of the request.
enum Back<B> {
    /// Restores the buffer that was taken apart, cut to the received length.
    Buffer(fn(Bytes, usize) -> Option<B>),
    /// Makes a value from the bytes. It runs code of the program, so no lock may be held.
    #[cfg(feature = "serde")]
    Value(fn(Vec<u8>, Status) -> Result<B, Error>),
}

impl<B> Clone for Back<B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B> Copy for Back<B> {}

/// A request in flight.
pub(crate) struct Under<'a> {
    /// Borrowed from a scope, or owned: a reference count is expensive beside a short message.
    pub comm: Cow<'a, Comm>,
    pub id: Key,
    pub element: usize,
    pub call: Call,
    pub awaited: Awaited,
    /// Source of a receive; `None` for any source.
    pub source: Option<u32>,
}

/// A call, as named by errors and reports of long waits.
#[derive(Clone, Copy)]
pub(crate) enum Call {
    Message { name: &'static str, tag: Option<u32> },
    Other { name: &'static str },
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Call::Message { name, tag: Some(tag) } => write!(f, "{name} with tag {tag}"),
            Call::Message { name, tag: None } => write!(f, "{name} with any tag"),
            Call::Other { name } => f.write_str(name),
        }
    }
}

/// Result of [`Request::cancel`].
#[derive(Debug)]
pub enum Cancelled<'a, B> {
    /// The receive takes no message. Has its buffer, if the request had one.
    Withdrawn(Option<B>),
    /// The receive has its message, or the request is a send: it stays in flight.
    TooLate(Request<'a, B>),
}

impl<'a, B> Request<'a, B> {
    pub(crate) fn under_way(under: Under<'a>, back: fn(Bytes, usize) -> Option<B>) -> Self {
        Request { state: RequestState::UnderWay(under), back: Back::Buffer(back), lent: PhantomData }
    }

    /// Renames the call in errors and reports.
    pub(crate) fn called(mut self, call: Call) -> Self {
        if let RequestState::UnderWay(under) = &mut self.state {
            under.call = call;
        }
        self
    }

    pub(crate) fn over(result: Result<(B, Status), Failed<B>>) -> Self {
        Request { state: result.into(), back: Back::Buffer(|_, _| None), lent: PhantomData }
    }

    /// A request that the scope could not start.
    #[cold]
    pub(super) fn unstarted(failed: Failed<B>, comm: &'a Comm, lender: Lender) -> Self {
        let unreported = Unreported::new(comm, lender, failed.error.clone());
        let state = RequestState::Over(Some(Err(Box::new(Rare::Failed(failed, Some(unreported))))));
        Request { state, back: Back::Buffer(|_, _| None), lent: PhantomData }
    }

    /// Returns true if the request has ended, so that [`wait`](Self::wait) returns at once.
    pub fn test(&mut self) -> bool {
        self.has_ended() || {
            self.progress();
            self.has_ended()
        }
    }

    pub(super) fn has_ended(&mut self) -> bool {
        match &mut self.state {
            RequestState::UnderWay(under) => {
                under.comm.progress_engine.with(|core| core.has_ended(under.id).is_some()).unwrap_or(true)
            }
            RequestState::Over(Some(Err(_))) => {
                self.operation().is_none_or(Operation::test) && {
                    self.end_operation();
                    true
                }
            }
            RequestState::Over(_) => true,
        }
    }

    /// The window operation, if the request is one.
    fn operation(&mut self) -> Option<&mut Operation<'a, B>> {
        match &mut self.state {
            RequestState::Over(Some(Err(rare))) => match &mut **rare {
                Rare::Operation(operation) => Some(operation),
                Rare::Failed(..) => None,
            },
            _ => None,
        }
    }

    /// Waits for the window operation, if the request is one.
    #[cold]
    #[inline(never)]
    fn end_operation(&mut self) {
        if self.operation().is_some() {
            self.state = self.take().into();
        }
    }

    /// Progress engine of the request, if it is in flight.
    pub(super) fn progress_engine(&self) -> Option<*const ProgressEngine> {
        match &self.state {
            RequestState::UnderWay(under) => Some(Arc::as_ptr(&under.comm.progress_engine)),
            _ => None,
        }
    }

    /// Makes progress once, if the request is in flight.
    pub(super) fn progress(&self) {
        if let RequestState::UnderWay(under) = &self.state {
            under.comm.progress_engine.progress_now();
        }
    }

    /// Status of the message, once the request has ended successfully. A window operation has a status once
    /// [`test`](Self::test) has found its end: from [`Status::NOBODY`], of no elements.
    pub fn status(&self) -> Option<Status> {
        match &self.state {
            RequestState::Over(over) => over.as_ref()?.as_ref().ok().map(|(_, status)| *status),
            RequestState::UnderWay(under) => {
                let came = under.comm.progress_engine.with(|core| core.has_ended(under.id).flatten()).ok()??;
                under.comm.status(came, under.element).ok()
            }
        }
    }

    /// Waits until the request has ended, and returns its buffer: the elements received, or the elements that were
    /// sent.
    ///
    /// # Errors
    /// [`Failed`], with an [`Error`] and the buffer.
    pub fn wait(self) -> Done<B> {
        self.wait_status().map(|(buffer, _)| buffer)
    }

    /// Waits as [`wait`](Self::wait), and also returns the status of the message.
    ///
    /// # Errors
    /// The errors of [`wait`](Self::wait).
    pub fn wait_status(mut self) -> Result<(B, Status), Failed<B>> {
        if let RequestState::UnderWay(Under { comm, id, element, .. }) = &self.state {
            // The cheaper path comes first: most requests have ended well, since one progress call ends many.
            if let Ok(Some((came, bytes))) = comm.progress_engine.with(|core| core.ended_well(*id)) {
                let result = well(comm, came, bytes, *element, self.back);
                self.state = RequestState::Over(None);
                return result;
            }
            self.wait_long();
        }
        self.take()
    }

    #[inline(never)]
    fn wait_long(&mut self) {
        let RequestState::UnderWay(Under { comm, id, call, awaited, source, element }) = &self.state else {
            return self.end_operation();
        };
        if let Some((came, bytes)) = source.and_then(|source| comm.progress_engine.receive_posted(source, *id)) {
            self.state = well(comm, came, bytes, *element, self.back).into();
            return;
        }
        let ended = comm.progress_engine.wait(&Waiting { comm, call, id: *id }, *awaited, |core| core.ended(*id));
        self.end(ended);
    }

    /// Waits for at most `time`.
    ///
    /// # Errors
    /// The request itself, if it has not ended in `time`.
    pub fn wait_for(self, time: Duration) -> Result<Done<B>, Self> {
        self.wait_status_for(time).map(|ended| ended.map(|(buffer, _)| buffer))
    }

    /// Waits as [`wait_for`](Self::wait_for), and also returns the status of the message.
    ///
    /// # Errors
    /// The request itself, if it has not ended in `time`.
    pub fn wait_status_for(mut self, time: Duration) -> Result<Result<(B, Status), Failed<B>>, Self> {
        if self.operation().is_some()
            && let RequestState::Over(Some(Err(rare))) = std::mem::replace(&mut self.state, RequestState::Over(None))
            && let Rare::Operation(operation) = *rare
        {
            return operation.wait_for(time).map(of_operation).map_err(Request::from);
        }
        if let RequestState::UnderWay(Under { comm, id, call, awaited, .. }) = &self.state {
            let until = Instant::now().checked_add(time);
            let ended = match until {
                Some(until) => {
                    comm.progress_engine.wait_until(call, *awaited, until, |core| core.ended(*id)).transpose()
                }
                None => Some(comm.progress_engine.wait(call, *awaited, |core| core.ended(*id))),
            };
            match ended {
                Some(ended) => self.end(ended),
                None => return Err(self),
            }
        }
        Ok(self.take())
    }

    /// Withdraws a receive that has no message. Either the receive takes no message, or it keeps the message that it
    /// has matched.
    pub fn cancel(mut self) -> Cancelled<'a, B> {
        let RequestState::UnderWay(under) = &self.state else { return Cancelled::TooLate(self) };
        let withdrawn = under.comm.progress_engine.with(|core| core.withdraw(under.id));
        match withdrawn {
            Ok(Some(bytes)) => {
                let back = self.back;
                self.state = RequestState::Over(None);
                Cancelled::Withdrawn(as_given(bytes, back))
            }
            _ => Cancelled::TooLate(self),
        }
    }

    /// Waits for all requests, and returns their buffers in the same order. An iterator that starts requests starts all
    /// of them before the first wait.
    ///
    /// # Errors
    /// [`Error::Request`], with the index and the error of the first request that failed, and its buffer. All requests
    /// are waited for even so.
    pub fn wait_all(requests: impl IntoIterator<Item = Self>) -> Result<Vec<B>, Failed<B>> {
        // Collected first: a peer of the first request may wait for one of the later requests.
        let mut started: Vec<_> = requests.into_iter().collect();
        let mut rest = &mut started[..];
        while !rest.is_empty() {
            // One lock of the engine takes all requests that have ended.
            let ended = Self::take_row(rest);
            rest = &mut rest[ended..];
            rest.first_mut().into_iter().for_each(Self::wait_long);
        }
        let mut buffers = Vec::with_capacity(started.len());
        for (index, request) in started.iter_mut().enumerate() {
            let failed = |Failed { error, buffer }| Failed { error: Error::of_request(index, error), buffer };
            buffers.push(request.take().map_err(failed)?.0);
        }
        Ok(buffers)
    }

    /// Takes the results of the leading requests that have ended well, as far as they share one engine. Returns the
    /// length of the prefix that is over.
    fn take_row(requests: &mut [Self]) -> usize {
        let is_over =
            |request: &mut Self| matches!(request.state, RequestState::Over(_)) && request.operation().is_none();
        let mut over = requests.iter_mut().map(is_over).take_while(|is_over| *is_over).count();
        let Some(Request { state: RequestState::UnderWay(Under { comm, .. }), .. }) = requests.get(over) else {
            return over;
        };
        let progress_engine = comm.progress_engine.clone();
        let _ = progress_engine.with(|core| {
            for request in &mut requests[over..] {
                let RequestState::UnderWay(Under { comm, id, element, .. }) = &request.state else { break };
                if !Arc::ptr_eq(&progress_engine, &comm.progress_engine) {
                    break;
                }
                #[cfg(feature = "serde")]
                if matches!(request.back, Back::Value(_)) {
                    break;
                }
                let Some((came, bytes)) = core.ended_well(*id) else { break };
                request.state = well(comm, came, bytes, *element, request.back).into();
                over += 1;
            }
        });
        over
    }

    fn end(&mut self, ended: Result<Ended, Error>) {
        let RequestState::UnderWay(under) = &self.state else { return };
        self.state = outcome(&under.comm, ended, under.element, self.back).into();
    }

    #[inline(always)]
    fn take(&mut self) -> Result<(B, Status), Failed<B>> {
        let RequestState::Over(over) = &mut self.state else { unreachable!("was waited for") };
        match over.take() {
            Some(Ok(over)) => Ok(over),
            Some(Err(rare)) => rare.end(),
            None => Err(Failed { error: Error::Closed, buffer: None }),
        }
    }
}

impl<B> Rare<'_, B> {
    /// Waits for the window operation, or returns the failure.
    #[cold]
    #[inline(never)]
    fn end(self) -> Result<(B, Status), Failed<B>> {
        match self {
            Rare::Failed(failed, unreported) => {
                unreported.into_iter().for_each(|mut unreported| unreported.was_seen());
                Err(failed)
            }
            Rare::Operation(operation) => of_operation(operation.wait()),
        }
    }
}

/// Converts the result of a window operation to that of a request.
fn of_operation<B>(ended: Result<B, crate::Error>) -> Result<(B, Status), Failed<B>> {
    match ended {
        Ok(buffer) => Ok((buffer, NOTHING)),
        Err(error) => Err(Failed { error: Error::Window(Arc::new(error)), buffer: None }),
    }
}

impl<'a, B> From<Operation<'a, B>> for Request<'a, B> {
    fn from(operation: Operation<'a, B>) -> Self {
        let state = RequestState::Over(Some(Err(Box::new(Rare::Operation(operation)))));
        Request { state, back: Back::Buffer(|_, _| None), lent: PhantomData }
    }
}

impl<B> Sealed for Request<'_, B> {
    fn has_ended(&mut self) -> bool {
        Request::has_ended(self)
    }

    fn way(&self) -> Way {
        match &self.state {
            RequestState::UnderWay(under) => Way(Some((under.comm.progress_engine.clone(), under.id))),
            _ => Way(None),
        }
    }

    fn failure(&mut self) -> Option<Error> {
        self.wait_long();
        match &mut self.state {
            RequestState::Over(Some(Err(rare))) => match &mut **rare {
                Rare::Failed(failed, unreported) => {
                    unreported.iter_mut().for_each(Unreported::was_seen);
                    Some(failed.error.clone())
                }
                Rare::Operation(_) => None,
            },
            _ => None,
        }
    }
}

/// Converts the result of the engine to that of the program.
fn outcome<B>(
    comm: &Comm,
    ended: Result<Ended, Error>,
    element: usize,
    back: Back<B>,
) -> Result<(B, Status), Failed<B>> {
    match ended {
        Ok((Ok(came), bytes)) => well(comm, came, bytes, element, back),
        Ok((Err(fault), bytes)) => Err(Failed { error: comm.fault(fault, element), buffer: as_given(bytes, back) }),
        Err(error) => Err(Failed { error, buffer: None }),
    }
}

/// Returns the buffer of a request without a message, at its full length.
fn as_given<B>(bytes: Option<Bytes>, back: Back<B>) -> Option<B> {
    match back {
        Back::Buffer(back) => bytes.and_then(|bytes| back(bytes, usize::MAX)),
        #[cfg(feature = "serde")]
        Back::Value(_) => None,
    }
}

/// Converts a successful result of the engine to that of the program.
#[inline(always)]
fn well<B>(
    comm: &Comm,
    came: Came,
    bytes: Option<Bytes>,
    element: usize,
    back: Back<B>,
) -> Result<(B, Status), Failed<B>> {
    match back {
        Back::Buffer(back) => buffer(comm, came, bytes, element, back),
        #[cfg(feature = "serde")]
        Back::Value(value) => {
            value_of(buffer(comm, came, bytes, element, <Vec<u8> as super::hold::Parts>::back), value)
        }
    }
}

#[inline(always)]
fn buffer<B>(
    comm: &Comm,
    came: Came,
    bytes: Option<Bytes>,
    element: usize,
    back: fn(Bytes, usize) -> Option<B>,
) -> Result<(B, Status), Failed<B>> {
    let buffer = bytes.and_then(|bytes| back(bytes, came.length as usize));
    match (comm.status(came, element), buffer) {
        (Ok(status), Some(buffer)) => Ok((buffer, status)),
        (Ok(_), None) => Err(Failed { error: comm.failure(Failure::NoMemory { status: came }, element), buffer: None }),
        (Err(error), buffer) => Err(Failed { error, buffer }),
    }
}

#[cfg(feature = "serde")]
impl Request<'static, Vec<u8>> {
    /// Converts to a request for the value that is made from the received bytes.
    pub(crate) fn of_value<T>(mut self, value: fn(Vec<u8>, Status) -> Result<T, Error>) -> Request<'static, T> {
        let state = match std::mem::replace(&mut self.state, RequestState::Over(None)) {
            RequestState::UnderWay(under) => RequestState::UnderWay(under),
            RequestState::Over(None) => RequestState::Over(None),
            RequestState::Over(Some(over)) => value_of(over.or_else(|rare| rare.end()), value).into(),
        };
        Request { state, back: Back::Value(value), lent: PhantomData }
    }
}

#[cfg(feature = "serde")]
fn value_of<T>(
    bytes: Result<(Vec<u8>, Status), Failed<Vec<u8>>>,
    value: fn(Vec<u8>, Status) -> Result<T, Error>,
) -> Result<(T, Status), Failed<T>> {
    let value = bytes.map_err(Error::from).and_then(|(bytes, status)| Ok((value(bytes, status)?, status)));
    value.map_err(|error| Failed { error, buffer: None })
}

impl<B> Drop for Request<'_, B> {
    fn drop(&mut self) {
        if let RequestState::UnderWay(under) = &self.state {
            let _ = under.comm.progress_engine.with(|core| match under.comm {
                Cow::Borrowed(_) => core.leave_to_scope(under.id),
                Cow::Owned(_) => core.forget(under.id),
            });
        }
    }
}

impl<B> fmt::Debug for Request<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.state {
            RequestState::UnderWay(under) => write!(f, "{} in flight", under.call),
            RequestState::Over(Some(Err(rare))) if let Rare::Operation(operation) = &**rare => operation.fmt(f),
            RequestState::Over(_) => f.write_str("a request that has ended"),
        }
    }
}

// The type is not self-referential.
impl<B> Unpin for Request<'_, B> {}

impl<B> Future for Request<'_, B> {
    type Output = Done<B>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Done<B>> {
        if let RequestState::UnderWay(under) = &self.state {
            let (progress_engine, id) = (under.comm.progress_engine.clone(), under.id);
            progress_engine.progress_now();
            // The waker runs code of the program: it is cloned and dropped while the lock is free.
            let mut waker = Some(context.waker().clone());
            let ended = progress_engine.with(|core| {
                let ended = core.ended(id);
                if ended.is_none() {
                    waker = waker.take().and_then(|waker| core.wake(id, waker));
                }
                ended
            });
            match ended.transpose() {
                Some(ended) => self.end(ended),
                None => {
                    super::futures::pending(&progress_engine, context);
                    return Poll::Pending;
                }
            }
        }
        if self.operation().is_some_and(|operation| !operation.test()) {
            // A window operation wakes no task.
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(self.take().map(|(buffer, _)| buffer))
    }
}
