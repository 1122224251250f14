//! Pipes: byte streams between two ranks, one in each direction.
//!
//! ```
//! use std::io::{Read, Write};
//! transom::threads(2, |world| -> Result<(), transom::Error> {
//!     let mut pipe = world.pipe(1 - world.rank())?; // both ranks call it
//!     if world.rank() == 0 {
//!         writeln!(pipe, "as much as you like").map_err(transom::Error::other)?;
//!     } else {
//!         let mut text = String::new();
//!         pipe.read_to_string(&mut text).map_err(transom::Error::other)?; // until the other end is dropped
//!         assert_eq!(text, "as much as you like\n");
//!     }
//!     Ok(())
//! })?.into_iter().collect::<Result<(), _>>()?;
//! # Ok::<(), transom::Error>(())
//! ```
//!
//! A pipe is the byte pipe of the RDMA Channel of MPICH2 over InfiniBand (IPDPS 2004), with its five functions:
//!
//! | there | here |
//! |---|---|
//! | process group | a [`World`], or team |
//! | initialise | [`World::pipe`], [`World::pipe_with`]: both ranks |
//! | put | [`Pipe::put`], [`Pipe::start_put`] |
//! | get | [`Pipe::get`], [`Pipe::start_get`] |
//! | finalise | [`Pipe::end`], or dropping it |
//!
//! `put` and `get` never wait, and return the number of bytes moved. `read` and `write` wait until at least one byte
//! has moved.
//!
//! A [`Step`] selects how bytes move. Each step improves on the one before:
//!
//! - [`Basic`](Step::Basic) writes data, head pointer and tail pointer separately.
//! - [`Piggyback`](Step::Piggyback) writes a message and its pointers as one chunk.
//! - [`Pipeline`](Step::Pipeline) writes a chunk of a long message while it copies the next chunk.
//! - [`Read`](Step::Read) and [`Write`](Step::Write) do not copy long messages, where the transport between the ranks
//!   can read or write remote memory.
//!
//! In C, the caller of a zero-copy put repeats the call with the same buffer, and must not change the buffer meanwhile.
//! Here the program gives the buffer away (`start_put`), or the call waits (`write`). docs/design/channel.md has the
//! rest; `TRANSOM_MESSAGES` sets the configuration of pipes that are opened without one.
//!
//! Each end uses [`Config::memory`] bytes of memory: 257 KiB by default.

mod stream;

use super::comm::{Comm, PIPES};
use super::error::{Error, Failed};
use super::hold::{self, OwnedBuffer, Parts};
use super::locked::{Core, Key};
use super::posting::{request_receive, request_send};
use super::request::{Call, Request, Under};
use super::tag::Tag;
use crate::world::World;
use std::borrow::Cow;
use std::fmt;
use std::ops::{Deref, DerefMut};
use transom_channel::pipe::NO_OFFER;
pub use transom_channel::pipe::{Config, Count, Fault, Step};
use transom_channel::{AtPeer, Error as Failure, Id, Select};
use transom_locks::Rank;
use transom_shm_loopback::messages::Bytes;

/// One end of a pipe. Any thread may use it by reference: one thread may put while another gets.
///
/// Dropping an end ends the stream to the peer, which still gets the bytes put before. Puts of the peer after that are
/// discarded, and fail there.
pub struct Pipe {
    comm: Comm,
    id: Id,
    /// Peer, as a rank of the job.
    peer: u32,
    rank: Rank,
    config: Config,
}

impl World {
    /// Opens a pipe to a rank, which must open it too. Two ranks may have several pipes, which both open in the same
    /// order. A rank may open a pipe to itself.
    ///
    /// # Errors
    /// The errors of [`pipe_with`](Self::pipe_with).
    ///
    /// # Examples
    /// See [`pipe`](crate::pipe).
    pub fn pipe(&self, peer: Rank) -> Result<Pipe, Error> {
        let config = self.space().comm()?.progress_engine.with(|core| core.engine.config().pipe)?;
        self.pipe_with(peer, config)
    }

    /// Opens a pipe as [`pipe`](Self::pipe), with a configuration. Both ranks pass the same one.
    ///
    /// # Errors
    /// - [`Error::Pipe`] if the configurations differ or are invalid, or there is no memory.
    /// - [`Error::NoSuchRank`]; [`Error::Unavailable`].
    /// - [`Error::PeerDied`], [`Error::PeerLeft`] and [`Error::PeerLost`] of the peer.
    ///
    /// # Examples
    /// ```
    /// use transom::pipe::{Config, Step};
    /// transom::threads(2, |world| -> Result<(), transom::Error> {
    ///     let config = Config { step: Step::Pipeline, chunk: 4096, ..Config::default() };
    ///     let pipe = world.pipe_with(1 - world.rank(), config)?;
    ///     let mut sent = 0;
    ///     let mut got = [0; 10];
    ///     let mut came = 0;
    ///     while sent < 10 || came < 10 {
    ///         sent += pipe.put(&[&[7_u8; 10][sent..]])?; // as much as fits
    ///         came += pipe.get(&mut [&mut got[came..]])?.unwrap_or(0); // as much as has arrived
    ///     }
    ///     assert_eq!(got, [7; 10]);
    ///     Ok(())
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn pipe_with(&self, peer: Rank, config: Config) -> Result<Pipe, Error> {
        let comm = self.space().comm()?;
        let to = comm.to_job(peer)?;
        let (opened, number) = comm.progress_engine.with(|core| {
            let number = core.opened.entry((comm.context, to)).or_default();
            *number = number.wrapping_add(2);
            (core.engine.pipe_open(to, config), *number)
        })?;
        let (id, offer) = match opened {
            Ok(opened) => opened,
            Err(failure) => {
                if let Failure::Pipe { .. } = failure {
                    // The peer waits for this rank's refusal.
                    exchange(comm, to, number, &NO_OFFER)?;
                    exchange(comm, to, number + 1, &[0])?;
                }
                return Err(comm.failure(failure, 1));
            }
        };
        let pipe = Pipe { comm: comm.clone(), id, peer: to, rank: peer, config };
        // The ends exchange their offers in messages of the library. Neither writes, nor leaves, before both have
        // joined.
        let theirs = exchange(comm, to, number, &offer.encode())?;
        let joined = comm.progress_engine.with(|core| core.engine.pipe_join(id, &theirs))?;
        if joined.is_ok() {
            let open = |core: &mut Core| core.engine.pipe_opens(id).then_some(());
            comm.progress_engine.wait(&"pipe", comm.awaited(Some(to)), open)?;
        }
        let both = exchange(comm, to, number + 1, &[u8::from(joined.is_ok())])?;
        let refused = Failure::Pipe { rank: to, fault: Fault::Refused };
        match joined.and(if both == [1] { Ok(()) } else { Err(refused) }) {
            Ok(()) => Ok(pipe),
            Err(failure) => {
                comm.progress_engine.with(|core| core.engine.pipe_refuse(id))?;
                Err(comm.failure(failure, 1))
            }
        }
    }
}

impl Pipe {
    /// Returns the rank at the other end.
    pub fn peer(&self) -> Rank {
        self.rank
    }

    /// Returns the configuration of the pipe.
    pub fn config(&self) -> Config {
        self.config
    }

    /// Copies bytes of these buffers, in order, into the stream, and returns the number of bytes put. Returns 0 if the
    /// ring of the peer is full, or a started put is in flight. The buffers can be used again at once.
    ///
    /// # Errors
    /// [`Error::Pipe`] if the peer has closed its end ([`Fault::Closed`]), or this end was [ended](Self::end)
    /// ([`Fault::Ended`]); the peer's failures, as [`World::send`].
    ///
    /// # Examples
    /// See [`World::pipe_with`].
    pub fn put<B: Deref<Target = [u8]>>(&self, buffers: &[B]) -> Result<usize, Error> {
        let mut moved = 0;
        // The lock is free here, since `deref` runs code of the program.
        for buffer in buffers.iter().map(Deref::deref).filter(|buffer| !buffer.is_empty()) {
            match self.turning(|engine| Ok(Some(engine.pipe_put(self.id, buffer)?))).map(Option::unwrap_or_default) {
                Ok(put) if put == buffer.len() => moved += put,
                Ok(put) => return Ok(moved + put),
                // The next call reports the error again.
                Err(_) if moved > 0 => return Ok(moved),
                Err(error) => return Err(error),
            }
        }
        Ok(moved)
    }

    /// Gets bytes from the stream into these buffers, in order, and returns the number of bytes; 0 if none have
    /// arrived, and `None` at the end of the stream. A buffer that the peer [gave away](Self::start_put) comes one
    /// chunk at a time, as each arrives: [`start_get`](Self::start_get) and `read` get it without a copy.
    ///
    /// # Errors
    /// The peer's failures, as [`World::recv`], once all bytes that had arrived have been read.
    ///
    /// # Examples
    /// See [`World::pipe_with`].
    pub fn get<B: DerefMut<Target = [u8]>>(&self, buffers: &mut [B]) -> Result<Option<usize>, Error> {
        let mut moved = 0;
        for buffer in buffers.iter_mut().map(DerefMut::deref_mut).filter(|buffer| !buffer.is_empty()) {
            match self.turning(|engine| engine.pipe_get(self.id, buffer)) {
                Ok(Some(got)) if got == buffer.len() => moved += got,
                Ok(Some(got)) => return Ok(Some(moved + got)),
                Ok(None) | Err(_) if moved > 0 => return Ok(Some(moved)),
                end => return end,
            }
        }
        Ok(Some(moved))
    }

    /// Starts to put a whole buffer, after those started before. The request returns the buffer when the peer has got
    /// the bytes; or, if they were copied, when they are sent. The last two steps do not copy a long buffer. If the
    /// request is dropped, the bytes are delivered all the same.
    ///
    /// # Errors
    /// The request reports the errors of [`put`](Self::put).
    ///
    /// # Examples
    /// ```
    /// transom::threads(2, |world| -> Result<(), transom::Error> {
    ///     let pipe = world.pipe(1 - world.rank())?;
    ///     if world.rank() == 0 {
    ///         let field = vec![1_u8; 1 << 20];
    ///         let put = pipe.start_put(field); // not copied
    ///         // ... compute ...
    ///         let field = put.wait()?; // the buffer is back
    ///         assert_eq!(field.len(), 1 << 20);
    ///     } else {
    ///         let mut got = Vec::new();
    ///         while got.len() < 1 << 20 {
    ///             got.extend(pipe.start_get(vec![0; 1 << 20]).wait()?); // as many bytes as one get returns
    ///         }
    ///         assert!(got.iter().all(|byte| *byte == 1));
    ///     }
    ///     Ok(())
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), transom::Error>(())
    /// ```
    #[must_use = "wait for it, or `drop` it: a dropped put completes"]
    pub fn start_put<B: OwnedBuffer<u8>>(&self, buffer: B) -> Request<'static, B> {
        let bytes = buffer.hold().read_only();
        let length = bytes.len();
        self.start("start_put", B::back, |engine| engine.pipe_start_put(self.id, bytes, length))
    }

    /// Starts to get bytes into a buffer, after the gets started before. The request ends with at least one byte, or
    /// with none at the end of the stream, and returns the buffer, cut to the bytes received. A dropped request gets
    /// nothing, unless its bytes are already arriving; those are lost.
    ///
    /// # Errors
    /// The request reports the errors of [`get`](Self::get).
    ///
    /// # Examples
    /// See [`start_put`](Self::start_put).
    #[must_use = "wait for it: a dropped get is withdrawn, or its bytes are lost"]
    pub fn start_get(&self, into: Vec<u8>) -> Request<'static, Vec<u8>> {
        let bytes = into.hold();
        let room = bytes.len();
        let back = <Vec<u8> as Parts>::back;
        self.start("start_get", back, |engine| engine.pipe_start_get(self.id, bytes, room))
    }

    /// Ends the stream to the peer, after the bytes put and started before. This end can still get.
    ///
    /// # Errors
    /// [`Error::Closed`].
    ///
    /// # Examples
    /// ```
    /// use std::io::{Read, Write};
    /// transom::threads(2, |world| -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    ///     let mut pipe = world.pipe(1 - world.rank())?;
    ///     let mut text = String::new();
    ///     if world.rank() == 0 {
    ///         pipe.write_all(b"how many words?")?;
    ///         pipe.end()?;
    ///         pipe.read_to_string(&mut text)?;
    ///         assert_eq!(text, "3");
    ///     } else {
    ///         pipe.read_to_string(&mut text)?;
    ///         write!(pipe, "{}", text.split(' ').count())?;
    ///     }
    ///     Ok(())
    /// })?.into_iter().for_each(|rank| rank.unwrap());
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn end(&self) -> Result<(), Error> {
        self.comm.progress_engine.with(|core| core.engine.pipe_end(self.id))
    }

    /// Returns the counts of this end: writes, and bytes moved by each method.
    ///
    /// # Examples
    /// ```
    /// let world = transom::init()?;
    /// let pipe = world.pipe(0)?; // to itself
    /// pipe.put(&[&[1_u8; 8][..]])?;
    /// assert_eq!((pipe.count().writes, pipe.count().copied), (1, 8));
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn count(&self) -> Count {
        self.comm.progress_engine.with(|core| core.engine.pipe_count(self.id)).ok().flatten().unwrap_or_default()
    }

    /// Makes progress and calls again if the first call moved nothing.
    #[inline]
    fn turning(
        &self,
        mut call: impl FnMut(&mut super::locked::Engine) -> Result<Option<usize>, Failure>,
    ) -> Result<Option<usize>, Error> {
        let mut engine = || self.comm.progress_engine.with(|core| call(&mut core.engine));
        let mut moved = engine()?;
        if moved == Ok(Some(0)) {
            self.comm.progress_engine.progress_now();
            moved = engine()?;
        }
        moved.map_err(|failure| self.comm.failure(failure, 1))
    }

    fn start<B>(
        &self,
        name: &'static str,
        back: fn(Bytes, usize) -> Option<B>,
        start: impl FnOnce(&mut super::locked::Engine) -> Result<Id, Failure>,
    ) -> Request<'static, B> {
        let started = self.comm.progress_engine.with(|core| start(&mut core.engine));
        let error = match started {
            Ok(Ok(id)) => {
                let (call, awaited) = (Call::Other { name }, self.comm.awaited(Some(self.peer)));
                return Request::under_way(
                    Under {
                        comm: Cow::Owned(self.comm.clone()),
                        id: Key::Message(id),
                        element: 1,
                        call,
                        awaited,
                        source: None,
                    },
                    back,
                );
            }
            Ok(Err(failure)) => self.comm.failure(failure, 1),
            Err(error) => error,
        };
        Request::over(Err(Failed { error, buffer: None }))
    }

    /// Makes progress until `call` returns a value.
    fn wait<R>(
        &self,
        name: &str,
        mut call: impl FnMut(&mut super::locked::Engine) -> Result<Option<R>, Failure>,
    ) -> Result<R, Error> {
        let awaited = self.comm.awaited(Some(self.peer));
        let waited = self.comm.progress_engine.wait(&name, awaited, |core| call(&mut core.engine).transpose())?;
        waited.map_err(|failure| self.comm.failure(failure, 1))
    }

    /// Lends a buffer to the pipe until the started transfer has ended. Returns the number of bytes moved.
    fn lend(
        &self,
        name: &'static str,
        start: impl FnOnce(&mut super::locked::Engine) -> Result<Id, Failure>,
    ) -> Result<usize, Error> {
        let id = self.comm.progress_engine.with(|core| start(&mut core.engine))?;
        let id = id.map_err(|failure| self.comm.failure(failure, 1))?;
        let (result, _) = self
            .comm
            .progress_engine
            .wait(&name, self.comm.awaited(Some(self.peer)), |core| core.ended(Key::Message(id)))?;
        result.map(|came| came.length as usize).map_err(|fault| self.comm.fault(fault, 1))
    }

    fn write_some(&self, data: &[u8]) -> Result<usize, Error> {
        if data.is_empty() {
            return Ok(0);
        }
        let length = data.len();
        if matches!(self.config.step, Step::Read | Step::Write) && length >= self.config.zero_copy_from as usize {
            // SAFETY: the borrow lasts until this function returns, and by then the engine has given the handle back.
            let bytes = unsafe { hold::lend(data) };
            return self.lend("write", |engine| engine.pipe_start_put(self.id, bytes, length));
        }
        self.wait("write", |engine| Ok(Some(engine.pipe_put(self.id, data)?).filter(|moved| *moved > 0)))
    }

    fn read_some(&self, into: &mut [u8]) -> Result<usize, Error> {
        if into.is_empty() {
            return Ok(0);
        }
        let got = self.wait("read", |engine| {
            Ok(match engine.pipe_get_here(self.id, into)? {
                Ok(Some(0)) => None,
                Ok(got) => Some(Ok(got.unwrap_or(0))),
                Err(AtPeer) => Some(Err(AtPeer)),
            })
        })?;
        match got {
            Ok(got) => Ok(got),
            Err(AtPeer) => {
                let room = into.len();
                // SAFETY: as in `write_some`.
                let bytes = unsafe { hold::lend_mut(into) };
                self.lend("read", |engine| engine.pipe_start_get(self.id, bytes, room))
            }
        }
    }
}

/// Exchanges messages of equal length with the peer.
fn exchange(comm: &Comm, peer: u32, tag: u32, mine: &[u8]) -> Result<Vec<u8>, Error> {
    let comm = comm.apart(PIPES);
    let select = Select { context: comm.context, source: Some(peer), tag: Some(tag) };
    let coming = request_receive(&comm, None, select, vec![0_u8; mine.len()])?;
    let coming = coming.called(Call::Other { name: "pipe" });
    let said =
        request_send(&comm, None, peer, Tag::<u8>::new(tag), mine.to_vec().hold(), false, <Vec<u8> as Parts>::back)?;
    let came = coming.wait()?;
    // The message must be delivered even if this rank makes no further call of the library.
    said.wait()?;
    Ok(came)
}

impl Drop for Pipe {
    fn drop(&mut self) {
        let _ = self.comm.progress_engine.with(|core| core.engine.pipe_close(self.id));
    }
}

impl fmt::Debug for Pipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a pipe to rank {}, {:?}", self.rank, self.config.step)
    }
}
