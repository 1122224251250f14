//! Request forms of the operations: started now, waited for later. A request owns its buffer, so that it may be leaked
//! or dropped at any time; it borrows its target, so that it does not outlive its epoch.

use crate::core::Core;
use crate::target::Target;
use crate::{Atomic, Error, Fabric, FabricError, Op};
use bytemuck::Pod;
use bytemuck::allocation::{BoxBytes, try_from_box_bytes};
use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::ptr::NonNull;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use transom_locks::Rank;

/// An operation on a window in flight, and its buffer `B`: a `Vec<T>` that the request owns, or the slice that a
/// [`scope`](crate::scope()) lends.
///
/// Dropping or forgetting ([`std::mem::forget`]) a request does not cancel the operation: a put completes as if it had
/// been waited for. The result of a get is lost, unless a scope lends its buffer.
///
/// A request is also a future. No completion event wakes its task: a pending request reschedules itself at each poll.
///
/// # Examples
/// ```
/// // In `transom`: `let mut window = world.allocate::<u64>(64)?;`
/// # let fabric = transom_shm_loopback::Loopback::alone()?;
/// # let mut window = transom_windows::Window::<u64, _>::allocate(&fabric, 0, 64)?;
/// let epoch = window.lock_all()?;
/// let target = epoch.target(0)?;
/// target.rput(0, vec![1, 2])?.wait()?; // the buffer is back
/// let get = target.rget(0, 2)?;
/// // ... compute ...
/// assert_eq!(get.wait()?, [1, 2]);
/// # Ok::<(), transom_windows::Error>(())
/// ```
pub struct Request<'a, B>(RequestState<'a, B>);

enum RequestState<'a, B> {
    /// The operation's result; `None` once the program has taken it.
    Ended(Option<Result<B, Arc<Error>>>),
    InFlight {
        operation: Box<dyn Operation + Send + 'a>,
        back: fn(Landed) -> Option<B>,
    },
}

/// An operation that a provider has in flight.
pub(crate) trait Operation {
    /// Returns true if the operation has ended, in success or failure. Otherwise the call has progressed the rank's
    /// messages.
    fn test(&mut self) -> bool;

    /// Waits for the end of the operation.
    fn finish(self: Box<Self>) -> Result<Landed, Error>;
}

/// The buffer that an operation returns on completion.
pub(crate) enum Landed {
    Owned(BoxBytes),
    Lent(Lent<u8>),
}

/// Elements that a scope lends to operations: to one at a time, or different elements to each.
#[derive(Clone, Copy)]
pub(crate) struct Lent<T>(NonNull<[T]>);

// SAFETY: plain data, lent exclusively; the scope decides which operation uses the elements and when, on any thread.
unsafe impl<T: Pod> Send for Lent<T> {}

impl<T: Pod> Lent<T> {
    pub fn new(elements: &mut [T]) -> Self {
        Lent(NonNull::from(elements))
    }

    pub fn elements(self) -> NonNull<[T]> {
        self.0
    }

    /// The elements of `range`.
    pub fn part(self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.0.len(), "{range:?} of {}", self.0.len());
        // SAFETY: inside the elements, as checked above.
        let start = unsafe { self.0.cast::<T>().add(range.start) };
        Lent(NonNull::slice_from_raw_parts(start, range.len()))
    }

    pub fn bytes(self) -> Lent<u8> {
        Lent(NonNull::slice_from_raw_parts(self.0.cast(), self.0.len() * size_of::<T>()))
    }
}

impl<'a, B> Request<'a, B> {
    /// A request of an operation that completed when it was started.
    #[inline(always)]
    pub(crate) fn ended(buffer: B) -> Self {
        Request(RequestState::Ended(Some(Ok(buffer))))
    }

    pub(crate) fn in_flight(operation: impl Operation + Send + 'a, back: fn(Landed) -> Option<B>) -> Self {
        Request(RequestState::InFlight { operation: Box::new(operation), back })
    }

    /// Returns true if the operation has ended, in success or failure, so that [`wait`](Self::wait) returns at once.
    /// Otherwise the call has progressed the rank's messages.
    pub fn test(&mut self) -> bool {
        match &mut self.0 {
            RequestState::Ended(_) => true,
            RequestState::InFlight { operation, .. } => operation.test(),
        }
    }

    /// Waits for the operation and returns its buffer: the elements read or fetched, or the source of a put or
    /// accumulate. A put still needs a flush to be visible at the target.
    ///
    /// # Errors
    /// [`Error::Fabric`].
    pub fn wait(self) -> Result<B, Error> {
        match self.0 {
            RequestState::Ended(Some(ended)) => ended.map_err(|error| {
                Arc::try_unwrap(error).unwrap_or_else(|shared| {
                    let lost = shared.lost_rank();
                    Error::other_lost(shared, lost)
                })
            }),
            RequestState::Ended(None) => Err(misuse("a request was waited for again")),
            RequestState::InFlight { operation, back } => {
                let landed = operation.finish()?;
                back(landed).ok_or_else(|| misuse("a provider gave back another buffer"))
            }
        }
    }

    /// Waits for the operation and returns its error, which [`wait`](Self::wait) also returns. For waits of upper layers
    /// for several requests.
    #[doc(hidden)]
    pub fn failure(&mut self) -> Option<Arc<Error>> {
        if let RequestState::InFlight { .. } = self.0 {
            let request = Request(std::mem::replace(&mut self.0, RequestState::Ended(None)));
            self.0 = RequestState::Ended(Some(request.wait().map_err(Arc::new)));
        }
        match &self.0 {
            RequestState::Ended(Some(Err(error))) => Some(error.clone()),
            _ => None,
        }
    }

    /// Waits for `time` at most. Between polls the request yields its core.
    ///
    /// # Errors
    /// The request itself, if the operation has not ended.
    ///
    /// # Examples
    /// ```
    /// # let fabric = transom_shm_loopback::Loopback::alone()?;
    /// # let mut window = transom_windows::Window::<u64, _>::allocate(&fabric, 0, 64)?;
    /// use std::time::Duration;
    /// let epoch = window.lock_shared(0)?;
    /// let mut get = epoch.rget(0, 2)?;
    /// let got = loop {
    ///     match get.wait_for(Duration::from_millis(1)) {
    ///         Ok(ended) => break ended?,
    ///         Err(not_yet) => get = not_yet, // ... something else ...
    ///     }
    /// };
    /// assert_eq!(got, [0, 0]);
    /// # Ok::<(), transom_windows::Error>(())
    /// ```
    pub fn wait_for(mut self, time: Duration) -> Result<Result<B, Error>, Self> {
        let Some(until) = Instant::now().checked_add(time) else { return Ok(self.wait()) };
        while !self.test() {
            if Instant::now() >= until {
                return Err(self);
            }
            std::thread::yield_now();
        }
        Ok(self.wait())
    }

    /// Waits for all requests. Returns their buffers in the same order.
    ///
    /// # Errors
    /// [`Error::Request`], with the index and the error of the first request that failed. All are waited for even so.
    pub fn wait_all(requests: impl IntoIterator<Item = Self>) -> Result<Vec<B>, Error> {
        let started: Vec<_> = requests.into_iter().collect();
        let waited: Vec<_> = started.into_iter().map(Self::wait).collect();
        let buffer = |(index, ended): (usize, Result<B, Error>)| {
            ended.map_err(|source| Error::Request { index, source: Box::new(source) })
        };
        waited.into_iter().enumerate().map(buffer).collect()
    }
}

fn misuse(why: &str) -> Error {
    Error::Provider(FabricError::Misuse { why: why.into() })
}

impl<B> fmt::Debug for Request<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            RequestState::Ended(_) => "an operation that has ended",
            RequestState::InFlight { .. } => "an operation in flight",
        })
    }
}

// No field is self-referential.
impl<B> Unpin for Request<'_, B> {}

impl<B> Future for Request<'_, B> {
    type Output = Result<B, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if !self.test() {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(Request(std::mem::replace(&mut self.0, RequestState::Ended(None))).wait())
    }
}

/// An operation whose buffer the provider owns.
struct Owned<'t, F: Fabric> {
    core: &'t Core<F>,
    rank: Rank,
    moving: F::Transfer,
}

impl<F: Fabric> Operation for Owned<'_, F> {
    fn test(&mut self) -> bool {
        let fabric = &self.core.data.fabric;
        // The error is kept for `finish`.
        let ended = fabric.test(&mut self.moving).unwrap_or(true);
        if !ended {
            fabric.after_empty_poll();
        }
        ended
    }

    fn finish(self: Box<Self>) -> Result<Landed, Error> {
        let Owned { core, rank, moving } = *self;
        let finished = core.data.fabric.finish_moving(moving);
        finished.map(Landed::Owned).map_err(|source| Error::Fabric { window: core.id, rank, source })
    }
}

fn vector<T: Pod>(landed: Landed) -> Option<Vec<T>> {
    match landed {
        Landed::Owned(bytes) => try_from_box_bytes::<[T]>(bytes).ok().map(Vec::from),
        Landed::Lent(_) => None,
    }
}

impl<T: Pod, F: Fabric> Target<'_, T, F> {
    /// Starts a [`put`](Self::put) of a buffer that the request returns. Over a network a large buffer is not copied,
    /// and this call does not wait; the buffer loses its spare capacity there.
    ///
    /// # Errors
    /// Same as `put`.
    ///
    /// # Examples
    /// See [`Request`].
    pub fn rput(&self, offset: usize, source: Vec<T>) -> Result<Request<'_, Vec<T>>, Error> {
        let fabric = &self.core.data.fabric;
        if fabric.is_shared(self.remote) {
            self.put(offset, &source)?;
            return Ok(Request::ended(source));
        }
        self.core.data.counters.puts.bump();
        let (at, len) = (self.place(offset, source.len())?, source.len());
        let moving = fabric.start_put(self.remote, at, BoxBytes::from(source.into_boxed_slice()));
        Ok(self.in_flight(moving.map_err(|error| self.error(error, offset, len))?))
    }

    /// Starts a [`get`](Self::get) of `len` elements.
    ///
    /// # Errors
    /// Same as `get`.
    ///
    /// # Examples
    /// See [`Request`].
    pub fn rget(&self, offset: usize, len: usize) -> Result<Request<'_, Vec<T>>, Error> {
        self.core.data.counters.gets.bump();
        let at = self.place(offset, len)?;
        let (fabric, failed) = (&self.core.data.fabric, |error| self.error(error, offset, len));
        let mut buffer = bytemuck::zeroed_vec(len);
        if fabric.is_shared(self.remote) {
            // The copy takes this rank's processor time whenever it is made.
            fabric.get(self.remote, at, bytemuck::cast_slice_mut(&mut buffer)).map_err(failed)?;
            return Ok(Request::ended(buffer));
        }
        let moving = fabric.start_get(self.remote, at, BoxBytes::from(buffer.into_boxed_slice()));
        Ok(self.in_flight(moving.map_err(failed)?))
    }

    fn in_flight(&self, moving: F::Transfer) -> Request<'_, Vec<T>> {
        Request::in_flight(Owned { core: self.core, rank: self.rank(), moving }, vector::<T>)
    }
}

impl<T: Pod, F: Fabric> Target<'_, T, F> {
    /// Starts an [`accumulate`](Self::accumulate) of operands that the request returns. It has completed when this call
    /// returns.
    ///
    /// # Errors
    /// Same as `accumulate`.
    ///
    /// # Examples
    /// ```
    /// # let fabric = transom_shm_loopback::Loopback::alone()?;
    /// # let mut window = transom_windows::Window::<u64, _>::allocate(&fabric, 0, 64)?;
    /// use transom_windows::{Op, Request};
    /// let epoch = window.lock_shared(0)?;
    /// let adds = vec![epoch.raccumulate(0, Op::Sum, vec![1, 2])?, epoch.raccumulate(1, Op::Sum, vec![3, 4])?];
    /// assert_eq!(Request::wait_all(adds)?, [[1, 2], [3, 4]]);
    /// assert_eq!(epoch.rget(0, 3)?.wait()?, [1, 5, 4]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn raccumulate(&self, offset: usize, op: Op, operands: Vec<T>) -> Result<Request<'_, Vec<T>>, Error>
    where
        T: Atomic,
    {
        self.accumulate(offset, op, &operands)?;
        Ok(Request::ended(operands))
    }

    /// Starts a [`get_accumulate`](Self::get_accumulate), whose request returns the previous elements. It has completed
    /// when this call returns.
    ///
    /// # Errors
    /// Same as `get_accumulate`.
    ///
    /// # Examples
    /// ```
    /// # let fabric = transom_shm_loopback::Loopback::alone()?;
    /// # let mut window = transom_windows::Window::<u64, _>::allocate(&fabric, 0, 64)?;
    /// use transom_windows::Op;
    /// let epoch = window.lock_shared(0)?;
    /// epoch.put(0, &[7, 8])?;
    /// assert_eq!(epoch.rget_accumulate(0, Op::Sum, vec![10, 20])?.wait()?, [7, 8]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn rget_accumulate(&self, offset: usize, op: Op, operands: Vec<T>) -> Result<Request<'_, Vec<T>>, Error>
    where
        T: Atomic,
    {
        let mut results = vec![T::zeroed(); operands.len()];
        self.get_accumulate(offset, op, &operands, &mut results)?;
        Ok(Request::ended(results))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fails;

    impl Operation for Fails {
        fn test(&mut self) -> bool {
            true
        }

        fn finish(self: Box<Self>) -> Result<Landed, Error> {
            Err(Error::Fabric { window: 3, rank: 2, source: FabricError::PeerDied { rank: 2 } })
        }
    }

    fn failing() -> Request<'static, ()> {
        Request::in_flight(Fails, |_| None)
    }

    #[test]
    fn failed_request_keeps_its_error() {
        let mut request = failing();
        assert_eq!(request.failure().map(|error| error.lost_rank()), Some(Some(2)));
        assert!(matches!(request.wait(), Err(Error::Fabric { window: 3, rank: 2, .. })));
        // The caller still has the error.
        let mut request = failing();
        let shared = request.failure().expect("the operation failed");
        let error = request.wait().expect_err("the operation failed");
        assert_eq!((error.to_string(), error.lost_rank()), (shared.to_string(), Some(2)));
        assert!(Request::ended(()).failure().is_none());
    }

    #[test]
    fn failed_wait_all_names_the_request() {
        let error = Request::wait_all([Request::ended(()), failing(), failing()]).expect_err("two requests fail");
        assert_eq!(
            (error.to_string().as_str(), error.lost_rank()),
            ("request 1 (from 0) of those waited for failed: window 3, rank 2: rank 2 died", Some(2))
        );
    }
}
