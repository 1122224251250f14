//! Point-to-point messages, matched by source and tag.
//!
//! ```
//! use transom::messages::{Source, Tag};
//!
//! const GREETING: Tag<u8> = Tag::new(1);
//! transom::threads(3, |world| -> Result<(), transom::Error> {
//!     if world.rank() > 0 {
//!         return Ok(world.send(0, GREETING, format!("rank {} is here", world.rank()).as_bytes())?);
//!     }
//!     for _ in 1..world.size() {
//!         let (text, status) = world.recv(Source::Any, GREETING)?;
//!         assert_eq!(text, format!("rank {} is here", status.from).as_bytes());
//!     }
//!     Ok(())
//! })?.into_iter().collect::<Result<(), _>>()?;
//! # Ok::<(), transom::Error>(())
//! ```
//!
//! Two messages from one rank to another, in one world or team, are received in the order in which they were sent, if a
//! receive matches both. docs/guide/messages.md has the rest.

pub(crate) mod asked;
pub(crate) mod comm;
mod ended_lists;
mod error;
mod futures;
pub(crate) mod hold;
mod landing;
pub(crate) mod locked;
#[cfg(feature = "serde")]
mod object;
mod partitioned;
mod pending;
mod persistent;
pub mod pipe;
mod posting;
mod probe;
mod progress;
pub(crate) mod progress_engine;
pub(crate) mod request;
mod requests;
mod scope;
mod tag;
mod team_setup;
mod transport;
mod unreported;
mod waits;

pub(crate) use comm::Space;
pub use error::{Error, Failed};
pub use hold::OwnedBuffer;
pub use partitioned::{Arriving, Part, Partitioned, PartitionedReceive, Parts};
pub use pending::{Pending, test_all, test_any, test_some, wait_all, wait_any, wait_any_for, wait_some};
pub use persistent::{Active, Persistent};
pub use probe::{Message, Probing};
pub use request::{Cancelled, Done, Request};
pub use requests::Requests;
pub use scope::Scope;
pub use tag::{Peer, Source, Status, Tag, Tags};
pub(crate) use team_setup::Meeting;
pub use transom_channel::{Counters, PeerFailure};

use crate::world::World;
use bytemuck::Pod;
use comm::Comm;
use landing::Fresh;
use posting::{
    NOTHING, came_short, receive_long, receive_short, request_receive, request_send, send_long, send_now,
    start_receive, try_request_send,
};
use std::future::Future;
use transom_windows::Element;

impl World {
    /// Sends elements, and returns when the buffer can be used again.
    ///
    /// A short message is sent eagerly: the call returns whether or not the receiver has posted a receive. A long
    /// message (rendezvous), or one beyond the credits of the receiver, waits until the receiver receives.
    ///
    /// # Errors
    /// - [`Error::NoSuchRank`].
    /// - [`Error::PeerDied`], [`Error::PeerLeft`] and [`Error::PeerLost`] of the receiver.
    /// - [`Error::TooManyUnreceived`]; [`Error::TeamDropped`].
    /// - [`Error::Unavailable`] where the network's device carries no messages.
    ///
    /// # Examples
    /// ```
    /// use transom::messages::Tag;
    /// const TEMPERATURES: Tag<f64> = Tag::new(1);
    /// transom::threads(2, |world| -> Result<(), transom::Error> {
    ///     if world.rank() == 0 {
    ///         world.send(1, TEMPERATURES, &[20.5, 21.0])?;
    ///     } else {
    ///         assert_eq!(world.recv(0, TEMPERATURES)?.0, [20.5, 21.0]);
    ///     }
    ///     Ok(())
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), transom::Error>(())
    /// ```
    #[inline]
    pub fn send<T: Element>(&self, to: impl Into<Peer>, tag: Tag<T>, data: &[T]) -> Result<(), Error> {
        let comm = self.space().comm()?;
        let Some(to) = comm.target(to.into())? else { return Ok(()) };
        let bytes: &[u8] = bytemuck::cast_slice(data);
        match comm.progress_engine.send_short(to, comm.context, tag.number(), bytes) {
            Some(true) => Ok(()),
            Some(false) => send_long("send", comm, to, tag.number(), bytes, false),
            None => Err(Error::Closed),
        }
    }

    /// Sends as [`send`](Self::send), and returns when the receiver has matched the message with a receive (synchronous
    /// send).
    ///
    /// # Errors
    /// The errors of [`send`](Self::send).
    ///
    /// # Examples
    /// ```
    /// use transom::messages::Tag;
    /// transom::threads(2, |world| -> Result<(), transom::Error> {
    ///     if world.rank() == 0 {
    ///         world.ssend(1, Tag::new(1), &[1_u8])?; // rank 1 has begun to receive
    ///     } else {
    ///         world.recv(0, Tag::<u8>::new(1))?;
    ///     }
    ///     Ok(())
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn ssend<T: Element>(&self, to: impl Into<Peer>, tag: Tag<T>, data: &[T]) -> Result<(), Error> {
        let comm = self.space().comm()?;
        let Some(to) = comm.target(to.into())? else { return Ok(()) };
        send_long("ssend", comm, to, tag.number(), bytemuck::cast_slice(data), true)
    }

    /// Receives a message of any length. The call allocates the vector.
    ///
    /// # Errors
    /// - [`Error::NoSuchRank`], and [`Error::PeerDied`], [`Error::PeerLeft`] and [`Error::PeerLost`] of the source.
    /// - From any source: the death of a rank of this world, reported once, even if messages of other ranks have
    ///   arrived; and [`Error::PeerLeft`] when all other ranks have left.
    /// - [`Error::OtherType`]; [`Error::NoMemory`].
    ///
    /// # Examples
    /// See [`messages`](crate::messages).
    pub fn recv<T: Element>(
        &self,
        from: impl Into<Source>,
        tag: impl Into<Tags<T>>,
    ) -> Result<(Vec<T>, Status), Error> {
        let comm = self.space().comm()?;
        let (from, tags) = (from.into(), tag.into());
        let mut fresh = Fresh(Vec::new());
        let (source, short) = receive_short(comm, from, tags.number(), &mut fresh)?;
        if let Some(came) = came_short(comm, source, short, usize::MAX, size_of::<T>()) {
            return came.map(|status| (fresh.0, status));
        }
        let Some(select) = comm.select(from, tags.number())? else { return Ok((Vec::new(), NOTHING)) };
        Ok(start_receive(comm, select)?.wait_status()?)
    }

    /// Receives a message into the first elements of a buffer. The call allocates nothing, and is the fastest receive.
    ///
    /// # Errors
    /// The errors of [`recv`](Self::recv); [`Error::Truncated`] if the message is longer than the buffer.
    ///
    /// # Examples
    /// ```
    /// use transom::messages::Tag;
    /// const LINE: Tag<f32> = Tag::new(4);
    /// transom::threads(2, |world| -> Result<(), transom::Error> {
    ///     let mut line = [0.0; 100];
    ///     if world.rank() == 0 {
    ///         world.send(1, LINE, &[1.0; 80])?;
    ///     } else {
    ///         assert_eq!(world.recv_into(0, LINE, &mut line)?.len, 80);
    ///         assert_eq!((line[79], line[80]), (1.0, 0.0));
    ///     }
    ///     Ok(())
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), transom::Error>(())
    /// ```
    #[inline]
    pub fn recv_into<T: Element>(
        &self,
        from: impl Into<Source>,
        tag: impl Into<Tags<T>>,
        into: &mut [T],
    ) -> Result<Status, Error> {
        let comm = self.space().comm()?;
        let (from, tag) = (from.into(), tag.into().number());
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(into);
        let (source, short) = receive_short(comm, from, tag, bytes)?;
        if let Some(came) = came_short(comm, source, short, bytes.len(), size_of::<T>()) {
            return came;
        }
        let Some(select) = comm.select(from, tag)? else { return Ok(NOTHING) };
        comm.outcome(receive_long(comm, select, bytes)?, size_of::<T>())
    }

    /// Sends and receives in one call, without a deadlock where ranks do so in a ring. The message received may differ
    /// in length and peer from the message sent.
    ///
    /// # Errors
    /// The errors of [`send`](Self::send) and [`recv_into`](Self::recv_into).
    ///
    /// # Examples
    /// ```
    /// use transom::messages::Tag;
    /// const SHIFT: Tag<usize> = Tag::new(9);
    /// transom::threads(5, |world| -> Result<(), transom::Error> {
    ///     let (rank, size) = (world.rank(), world.size());
    ///     let mut left = [0];
    ///     world.sendrecv((rank + 1) % size, SHIFT, &[rank], (rank + size - 1) % size, SHIFT, &mut left)?;
    ///     assert_eq!(left, [(rank + size - 1) % size]);
    ///     Ok(())
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn sendrecv<T: Element, U: Pod>(
        &self,
        to: impl Into<Peer>,
        tag: Tag<T>,
        data: &[T],
        from: impl Into<Source>,
        tags: impl Into<Tags<U>>,
        into: &mut [U],
    ) -> Result<Status, Error> {
        let (to, from, tags) = (to.into(), from.into(), tags.into());
        let comm = self.space().comm()?;
        let sent = match comm.target(to)? {
            Some(to) => send_now(comm, to, tag, bytemuck::cast_slice(data)).is_some(),
            None => true,
        };
        if sent {
            return self.recv_into(from, tags, into);
        }
        // The rendezvous request goes first: the peer may read the data while this rank reads the peer's.
        let _attending = comm.progress_engine.attending();
        self.scope(|scope| {
            let going = scope.isend(to, tag, data);
            let coming = scope.irecv(from, tags, into);
            going.wait()?;
            Ok(coming.wait_status()?.1)
        })
    }

    /// Exchanges messages as [`sendrecv`](Self::sendrecv), in one buffer. The call sends a copy of the buffer and
    /// receives into the buffer.
    ///
    /// # Errors
    /// The errors of [`sendrecv`](Self::sendrecv). After an error that names a length, the buffer holds the beginning
    /// of the message received.
    ///
    /// # Examples
    /// ```
    /// use transom::messages::Tag;
    /// const SHIFT: Tag<usize> = Tag::new(9);
    /// transom::threads(5, |world| -> Result<(), transom::Error> {
    ///     let (rank, size) = (world.rank(), world.size());
    ///     let mut block = [rank; 3];
    ///     world.sendrecv_replace((rank + 1) % size, (rank + size - 1) % size, SHIFT, &mut block)?;
    ///     assert_eq!(block, [(rank + size - 1) % size; 3]);
    ///     Ok(())
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn sendrecv_replace<T: Element>(
        &self,
        to: impl Into<Peer>,
        from: impl Into<Source>,
        tag: Tag<T>,
        data: &mut [T],
    ) -> Result<Status, Error> {
        let sent = data.to_vec();
        self.sendrecv(to, tag, &sent, from, tag, data)
    }

    /// Starts to send a buffer, which the request owns and gives back. A dropped request is delivered as well as one
    /// [waited for](Request::wait).
    ///
    /// # Errors
    /// The request reports the errors of [`send`](Self::send).
    ///
    /// # Examples
    /// See [`Request`].
    #[must_use = "wait for it, or `drop` it: a dropped send completes"]
    pub fn isend<T: Element, B: OwnedBuffer<T>>(
        &self,
        to: impl Into<Peer>,
        tag: Tag<T>,
        data: B,
    ) -> Request<'static, B> {
        self.start(to.into(), tag, data, false)
    }

    /// Starts a send as [`isend`](Self::isend) that ends when the message is matched, as [`ssend`](Self::ssend).
    ///
    /// # Errors
    /// The request reports the errors of [`ssend`](Self::ssend).
    #[must_use = "wait for it, or `drop` it: a dropped send completes"]
    pub fn issend<T: Element, B: OwnedBuffer<T>>(
        &self,
        to: impl Into<Peer>,
        tag: Tag<T>,
        data: B,
    ) -> Request<'static, B> {
        self.start(to.into(), tag, data, true)
    }

    /// Starts a send as [`isend`](Self::isend), unless the message would have to queue at this rank: the credits of the
    /// receiver are used up, or no connection exists yet. Every call that waits, and [`progress`](Self::progress), may
    /// change that.
    ///
    /// # Errors
    /// The buffer, if nothing was sent. The request reports the errors of [`send`](Self::send).
    ///
    /// # Examples
    /// ```
    /// use std::collections::VecDeque;
    /// use transom::messages::{Requests, Tag};
    /// const ITEM: Tag<u64> = Tag::new(4);
    /// transom::threads(2, |world| -> Result<(), transom::Error> {
    ///     if world.rank() == 1 {
    ///         for item in 0..1000 {
    ///             assert_eq!(world.recv(0, ITEM)?.0, [item; 100]);
    ///         }
    ///         return Ok(());
    ///     }
    ///     let mut waiting: VecDeque<_> = (0..1000).map(|item| vec![item; 100]).collect();
    ///     let mut going = Requests::new();
    ///     while let Some(item) = waiting.pop_front() {
    ///         match world.try_isend(1, ITEM, item) {
    ///             Ok(request) => drop(going.push(request)),
    ///             Err(item) => {
    ///                 waiting.push_front(item); // the program may do something else here
    ///                 world.progress()?;
    ///             }
    ///         }
    ///     }
    ///     going.wait_all()?;
    ///     Ok(())
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn try_isend<T: Element, B: OwnedBuffer<T>>(
        &self,
        to: impl Into<Peer>,
        tag: Tag<T>,
        data: B,
    ) -> Result<Request<'static, B>, B> {
        let (comm, to, data) = match self.send_at_once(to.into(), tag, data, false) {
            Ok(rest) => rest,
            Err(over) => return Ok(over),
        };
        let started = try_request_send(comm, to, tag, data.hold().read_only(), B::back);
        started.unwrap_or_else(|error| Ok(Request::over(Err(Failed { error, buffer: None }))))
    }

    fn start<T: Pod, B: OwnedBuffer<T>>(&self, to: Peer, tag: Tag<T>, data: B, sync: bool) -> Request<'static, B> {
        let (comm, to, data) = match self.send_at_once(to, tag, data, sync) {
            Ok(rest) => rest,
            Err(over) => return over,
        };
        let started = request_send(comm, None, to, tag, data.hold().read_only(), sync, B::back);
        started.unwrap_or_else(|error| Request::over(Err(Failed { error, buffer: None })))
    }

    /// Sends without a request if that is possible. `Ok` has the target and the buffer of a send that needs a request.
    #[inline(always)]
    fn send_at_once<T: Pod, B: OwnedBuffer<T>>(
        &self,
        to: Peer,
        tag: Tag<T>,
        data: B,
        sync: bool,
    ) -> Result<(&Comm, u32, B), Request<'static, B>> {
        match self.space().comm().and_then(|comm| Ok((comm, comm.target(to)?))) {
            Ok((comm, Some(to))) => match (!sync).then(|| send_now(comm, to, tag, data.view())).flatten() {
                Some(status) => Err(Request::over(Ok((data, status)))),
                None => Ok((comm, to, data)),
            },
            Ok((_, None)) => Err(Request::over(Ok((data, NOTHING)))),
            Err(error) => Err(Request::over(Err(Failed { error, buffer: Some(data) }))),
        }
    }

    /// Starts to receive a message of any length.
    ///
    /// # Errors
    /// The request reports the errors of [`recv`](Self::recv).
    ///
    /// # Examples
    /// See [`Request`].
    #[must_use = "wait for it: a dropped receive is withdrawn, or its message is lost"]
    pub fn irecv<T: Element>(&self, from: impl Into<Source>, tag: impl Into<Tags<T>>) -> Request<'static, Vec<T>> {
        let tags = tag.into();
        let select = self.space().comm().and_then(|comm| Ok((comm, comm.select(from.into(), tags.number())?)));
        let started = match select {
            Ok((comm, Some(select))) => start_receive(comm, select),
            Ok((_, None)) => return Request::over(Ok((Vec::new(), NOTHING))),
            Err(error) => Err(error),
        };
        started.unwrap_or_else(|error| Request::over(Err(Failed { error, buffer: None })))
    }

    /// Starts to receive a message into a buffer. The request gives the buffer back, shortened to the message.
    ///
    /// # Errors
    /// The request reports the errors of [`recv_into`](Self::recv_into).
    ///
    /// # Examples
    /// ```
    /// use transom::messages::Tag;
    /// let world = transom::init()?;
    /// let coming = world.irecv_into(0, Tag::<u16>::new(1), vec![0; 1000]);
    /// world.send(0, Tag::new(1), &[7_u16; 3])?;
    /// assert_eq!(coming.wait()?, [7; 3]); // the capacity is still 1000
    /// # Ok::<(), transom::Error>(())
    /// ```
    #[must_use = "wait for it: a dropped receive is withdrawn, or its message is lost"]
    pub fn irecv_into<T: Element>(
        &self,
        from: impl Into<Source>,
        tag: impl Into<Tags<T>>,
        into: Vec<T>,
    ) -> Request<'static, Vec<T>> {
        let tags = tag.into();
        let select = self.space().comm().and_then(|comm| Ok((comm, comm.select(from.into(), tags.number())?)));
        let (comm, select) = match select {
            Ok((comm, Some(select))) => (comm, select),
            Ok((_, None)) => return Request::over(Ok((Vec::new(), NOTHING))),
            Err(error) => return Request::over(Err(Failed { error, buffer: Some(into) })),
        };
        let started = request_receive(comm, None, select, into);
        started.unwrap_or_else(|error| Request::over(Err(Failed { error, buffer: None })))
    }

    /// Runs `body`, which may send from and receive into borrowed buffers, and waits for all requests that `body`
    /// started, also for dropped ones.
    ///
    /// If `body` returns an error or panics, receives without a message are withdrawn. After a panic, sends that have
    /// not ended within a second make this rank report its own failure: the receivers may be waiting for this rank
    /// instead of receiving.
    ///
    /// # Errors
    /// [`Error::Unavailable`], the error of `body`, and the first failure of a request that the program did not wait
    /// for.
    ///
    /// # Examples
    /// See [`Scope`].
    #[track_caller]
    pub fn scope<'env, R, E: From<Error>>(
        &'env self,
        body: impl for<'s> FnOnce(&'s Scope<'s, 'env>) -> Result<R, E>,
    ) -> Result<R, E> {
        scope::scope(self, body)
    }

    /// Makes progress once: takes messages that have arrived, and posts messages that can go. Every call that waits
    /// makes progress. A rank that computes for long calls it so that its peers need not wait for its messages.
    ///
    /// # Errors
    /// [`Error::Unavailable`].
    ///
    /// # Examples
    /// ```
    /// transom::init()?.progress()?;
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn progress(&self) -> Result<(), Error> {
        self.space().comm()?.progress_engine.progress_now();
        Ok(())
    }

    /// Runs a future to its end, and makes progress meanwhile. The thread sleeps when there is nothing to do.
    ///
    /// # Errors
    /// [`Error::Unavailable`].
    ///
    /// # Examples
    /// ```
    /// use transom::messages::Tag;
    /// transom::threads(2, |world| -> Result<(), transom::Error> {
    ///     let other = 1 - world.rank();
    ///     let sum = world.block_on(async {
    ///         let sent = world.isend(other, Tag::new(0), vec![20, 22]);
    ///         let got = world.irecv(other, Tag::<i32>::new(0)).await?;
    ///         sent.await?;
    ///         Ok::<i32, transom::Error>(got.iter().sum())
    ///     })??;
    ///     assert_eq!(sum, 42);
    ///     Ok(())
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn block_on<F: Future>(&self, future: F) -> Result<F::Output, Error> {
        futures::block_on(&self.space().comm()?.progress_engine, future)
    }

    /// Counts of this rank's messages by protocol, since the rank started.
    ///
    /// # Errors
    /// [`Error::Unavailable`].
    ///
    /// # Examples
    /// ```
    /// let world = transom::init()?;
    /// world.send(0, transom::messages::Tag::new(1), &[1_u8])?;
    /// assert_eq!(world.counters()?.eager, 1);
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn counters(&self) -> Result<Counters, Error> {
        self.space().comm()?.progress_engine.counters()
    }
}
