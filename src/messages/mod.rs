//! Messages: what one rank sends and another receives, matched by source and tag.
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
//! Messages of a pair of ranks, in one world or team, with tags that a receive takes, are received in the order in which they
//! were sent. docs/guide/messages.md has the rest.

pub(crate) mod asked;
pub(crate) mod comm;
mod ended_lists;
mod error;
mod futures;
pub(crate) mod hold;
pub(crate) mod hub;
mod landing;
pub(crate) mod locked;
mod meeting;
#[cfg(feature = "serde")]
mod object;
mod partitioned;
mod pending;
mod persistent;
pub mod pipe;
mod posting;
mod probe;
mod progress;
pub(crate) mod request;
mod requests;
mod scope;
mod tag;
mod transport;
mod waits;

pub(crate) use comm::Space;
pub use error::{Error, Failed};
pub use hold::Held;
pub(crate) use meeting::Meeting;
pub use partitioned::{Arriving, Part, Partitioned, PartitionedReceive, Parts};
pub use pending::{Pending, test_all, test_any, test_some, wait_all, wait_any, wait_any_for, wait_some};
pub use persistent::{Active, Persistent};
pub use probe::{Message, Probing};
pub use request::{Cancelled, Done, Request};
pub use requests::Requests;
pub use scope::Scope;
pub use tag::{Peer, Source, Status, Tag, Tags};
pub use transom_channel::{Lost, Meter};

use crate::world::World;
use bytemuck::Pod;
use comm::Comm;
use landing::Fresh;
use posting::{
    NOTHING, came_short, receive_long, receive_short, request_receive, request_send, send_long, send_now,
    start_receive, try_request_send,
};
use std::future::Future;

impl World {
    /// Sends elements. It returns when they can be used again: a short message is with the receiver then, or on its way, whether it
    /// receives or not; a long one, or one of many that it has not received, waits until it does.
    ///
    /// # Errors
    /// [`Error::NoSuchRank`]; [`Error::PeerDied`], [`Error::PeerLeft`] and [`Error::PeerLost`] of that rank;
    /// [`Error::Unavailable`] where the network's device carries no messages.
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
    pub fn send<T: Pod>(&self, to: impl Into<Peer>, tag: Tag<T>, data: &[T]) -> Result<(), Error> {
        let comm = self.space().comm()?;
        let Some(to) = comm.target(to.into())? else { return Ok(()) };
        let bytes: &[u8] = bytemuck::cast_slice(data);
        match comm.hub.send_short(to, comm.context, tag.number(), bytes) {
            Some(true) => Ok(()),
            Some(false) => send_long("send", comm, to, tag.number(), bytes, false),
            None => Err(Error::Closed),
        }
    }

    /// As [`send`](Self::send), and returns when the message was matched with its receive: when both have met.
    ///
    /// # Errors
    /// As there.
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
    pub fn ssend<T: Pod>(&self, to: impl Into<Peer>, tag: Tag<T>, data: &[T]) -> Result<(), Error> {
        let comm = self.space().comm()?;
        let Some(to) = comm.target(to.into())? else { return Ok(()) };
        send_long("ssend", comm, to, tag.number(), bytemuck::cast_slice(data), true)
    }

    /// Receives a message, however long it is.
    ///
    /// # Errors
    /// Those of ranks, as [`send`](Self::send): also from any source, once, when a rank of this world dies (also if
    /// messages of others lie there), or when all others have left; [`Error::OtherType`]; [`Error::NoMemory`].
    ///
    /// # Examples
    /// See [`messages`](crate::messages).
    pub fn recv<T: Pod>(&self, from: impl Into<Source>, tag: impl Into<Tags<T>>) -> Result<(Vec<T>, Status), Error> {
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

    /// Receives a message into the first elements of a buffer. It takes no memory, and is the shortest way.
    ///
    /// # Errors
    /// As [`recv`](Self::recv); [`Error::Truncated`] if the message is longer.
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
    pub fn recv_into<T: Pod>(
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

    /// Sends and receives at once, so that ranks can do it in a circle. What is received may be longer or shorter than what is
    /// sent, and from another rank.
    ///
    /// # Errors
    /// As [`send`](Self::send) and [`recv_into`](Self::recv_into).
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
    pub fn sendrecv<T: Pod, U: Pod>(
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
        // Announced first: the other rank may begin to read it while this one reads.
        let _attending = comm.hub.attending();
        self.scope(|scope| {
            let going = scope.isend(to, tag, data);
            let coming = scope.irecv(from, tags, into);
            going.wait()?;
            Ok(coming.wait_status()?.1)
        })
    }

    /// As [`sendrecv`](Self::sendrecv), by one buffer: what comes takes the place of what is sent, of which there is a copy meanwhile.
    ///
    /// # Errors
    /// As there. After one that names a length the buffer holds the beginning of what came.
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
    pub fn sendrecv_replace<T: Pod>(
        &self,
        to: impl Into<Peer>,
        from: impl Into<Source>,
        tag: Tag<T>,
        data: &mut [T],
    ) -> Result<Status, Error> {
        let sent = data.to_vec();
        self.sendrecv(to, tag, &sent, from, tag, data)
    }

    /// Starts to send a buffer, which the request gives back; to [`wait`](Request::wait) for, or to drop: it is delivered all
    /// the same.
    ///
    /// # Errors
    /// Those of [`send`](Self::send) are the request's.
    ///
    /// # Examples
    /// See [`Request`].
    pub fn isend<T: Pod, B: Held<T>>(&self, to: impl Into<Peer>, tag: Tag<T>, data: B) -> Request<'static, B> {
        self.start(to.into(), tag, data, false)
    }

    /// As [`isend`](Self::isend), of a send that ends when it is matched, as [`ssend`](Self::ssend).
    ///
    /// # Errors
    /// As there.
    pub fn issend<T: Pod, B: Held<T>>(&self, to: impl Into<Peer>, tag: Tag<T>, data: B) -> Request<'static, B> {
        self.start(to.into(), tag, data, true)
    }

    /// As [`isend`](Self::isend), unless the message would have to wait at this rank: the receiver lets it send no more now, or there
    /// is no connection yet. Every call that waits, and [`progress`](Self::progress), may make room.
    ///
    /// # Errors
    /// The buffer, if nothing was sent. Those of [`send`](Self::send) are the request's.
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
    ///                 waiting.push_front(item); // and something else may be done meanwhile
    ///                 world.progress()?;
    ///             }
    ///         }
    ///     }
    ///     going.wait_all().into_iter().try_for_each(|(_, sent)| sent.map(drop))?;
    ///     Ok(())
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn try_isend<T: Pod, B: Held<T>>(
        &self,
        to: impl Into<Peer>,
        tag: Tag<T>,
        data: B,
    ) -> Result<Request<'static, B>, B> {
        let (comm, to, data) = match self.send_at_once(to.into(), tag, data, false) {
            Ok(rest) => rest,
            Err(over) => return Ok(over),
        };
        let started = try_request_send(comm, to, tag, data.hold(), B::back);
        started.unwrap_or_else(|error| Ok(Request::over(Err(Failed { error, buffer: None }))))
    }

    fn start<T: Pod, B: Held<T>>(&self, to: Peer, tag: Tag<T>, data: B, sync: bool) -> Request<'static, B> {
        let (comm, to, data) = match self.send_at_once(to, tag, data, sync) {
            Ok(rest) => rest,
            Err(over) => return over,
        };
        let started = request_send(comm, None, to, tag, data.hold(), sync, B::back);
        started.unwrap_or_else(|error| Request::over(Err(Failed { error, buffer: None })))
    }

    /// Sends what can go without a request, or cannot be sent; else where it is to go.
    #[inline(always)]
    fn send_at_once<T: Pod, B: Held<T>>(
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

    /// Starts to receive a message, however long it is.
    ///
    /// # Errors
    /// Those of [`recv`](Self::recv) are the request's.
    ///
    /// # Examples
    /// See [`Request`].
    pub fn irecv<T: Pod>(&self, from: impl Into<Source>, tag: impl Into<Tags<T>>) -> Request<'static, Vec<T>> {
        let tags = tag.into();
        let select = self.space().comm().and_then(|comm| Ok((comm, comm.select(from.into(), tags.number())?)));
        let started = match select {
            Ok((comm, Some(select))) => start_receive(comm, select),
            Ok((_, None)) => return Request::over(Ok((Vec::new(), NOTHING))),
            Err(error) => Err(error),
        };
        started.unwrap_or_else(|error| Request::over(Err(Failed { error, buffer: None })))
    }

    /// Starts to receive a message into a buffer, which is shortened to what came.
    ///
    /// # Errors
    /// Those of [`recv_into`](Self::recv_into) are the request's.
    ///
    /// # Examples
    /// ```
    /// use transom::messages::Tag;
    /// let world = transom::init()?;
    /// let coming = world.irecv_into(0, Tag::<u16>::new(1), vec![0; 1000]);
    /// world.send(0, Tag::new(1), &[7_u16; 3])?;
    /// assert_eq!(coming.wait()?, [7; 3]); // with room for 1000 still
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn irecv_into<T: Pod>(
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

    /// Runs `body`, in which buffers that it borrows are sent and received without being given away, and waits for all that it
    /// started, also what was dropped. If `body` gives an error, receives that have no message are withdrawn. If it panics, receives that have no message are withdrawn, and sends that are not done within a second tell the
    /// others that this rank died, since they may wait for it instead of receiving.
    ///
    /// # Errors
    /// [`Error::Unavailable`], those of `body`, and the first of what nobody has waited for.
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

    /// Turns the messages once: takes what has come, and posts what can go. Every call that waits does; a rank that computes for
    /// long, and lets others wait for its messages, may.
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
        self.space().comm()?.hub.turn_now();
        Ok(())
    }

    /// Runs a future to its end, and turns the messages meanwhile; it sleeps when there is nothing to do.
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
        futures::block_on(&self.space().comm()?.hub, future)
    }

    /// What messages went where, counted since the rank began.
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
    pub fn counters(&self) -> Result<Meter, Error> {
        self.space().comm()?.hub.meter()
    }
}
