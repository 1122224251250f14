//! The receive end of a partitioned message.

use super::cut::{Announcement, Cut};
use super::discard::{discard, post_farewell};
use super::expected::{Lane, ReceiveEnd, expect};
use super::pieces::{Piece, Pieces};
use crate::messages::comm::{Comm, PARTS};
use crate::messages::error::Error;
use crate::messages::hold::{Parts as _, Shares};
use crate::messages::locked::{Core, Fault, Key};
use crate::messages::tag::{Peer, Tag};
use crate::world::World;
use bytemuck::Pod;
use std::sync::{Arc, Mutex, MutexGuard};
use transom_channel::{RecvTarget, Select, Status as Came};
use transom_launch::lock;
use transom_windows::Element;

/// A persistent partitioned receive, whose parts can be used as they arrive. A dropped one keeps its place in the order
/// in which ends meet; the library receives and discards what its sender sends.
///
/// # Examples
/// See [`Partitioned`](super::Partitioned).
pub struct PartitionedReceive<T: Pod + Send + Sync>(Arc<Coming<T>>);

/// A started partitioned receive. A dropped or forgotten one stays in flight; the next call on the receive waits for
/// it.
#[must_use = "only it shows which parts have arrived"]
pub struct Arriving<'p, T: Pod + Send + Sync>(&'p mut PartitionedReceive<T>);

struct Coming<T> {
    comm: Comm,
    /// `None` for a receive from [`Peer::None`].
    lane: Option<Lane>,
    cut: Cut,
    buffer: Arc<Shares<T>>,
    round: Mutex<Round>,
}

/// A send end that agrees with this receive end.
#[derive(Clone, Copy)]
struct Sender {
    /// Tag of its first part.
    first: u32,
    cut: Cut,
    /// Receive of its farewell; `None` for a sender [`Peer::None`].
    farewell: Option<Key>,
}

/// State of a round. Lock order: the engine first.
struct Round {
    /// Send end, once its announcement has come.
    announced: Option<Result<Sender, Error>>,
    /// The round was started before the announcement came.
    asked: bool,
    /// State of each part of the sender, once the announcement has come.
    pieces: Pieces,
}

impl World {
    /// Makes a persistent receive of a partitioned message, without receiving. [`psend_init`](Self::psend_init) says
    /// how the elements are cut, and which ends meet.
    ///
    /// # Errors
    /// The errors of [`psend_init`](Self::psend_init).
    ///
    /// # Examples
    /// See [`Partitioned`](crate::messages::Partitioned).
    pub fn precv_init<T: Element + Send + Sync>(
        &self,
        from: impl Into<Peer>,
        tag: Tag<T>,
        buffer: Vec<T>,
        parts: usize,
    ) -> Result<PartitionedReceive<T>, Error> {
        let comm = self.space().comm()?;
        let (from, cut) = (comm.target(from.into())?, Cut::new(buffer.len(), parts, size_of::<T>())?);
        let lane = from.map(|source| Lane { context: comm.context, source, tag: tag.number() });
        // Parts from `None` have arrived at once.
        let announced = from.is_none().then_some(Ok(Sender { first: 0, cut, farewell: None }));
        let round = Mutex::new(Round { announced, asked: false, pieces: Pieces::new(0, Piece::Held) });
        let coming = Arc::new(Coming { comm: comm.clone(), lane, cut, buffer: Shares::new(buffer), round });
        if let Some(lane) = lane {
            comm.progress_engine.with(|core| {
                core.engine.expect(lane.source);
                expect(core, lane, coming.clone());
            })?;
        }
        Ok(PartitionedReceive(coming))
    }
}

impl<T: Pod + Send + Sync> ReceiveEnd for Coming<T> {
    fn announced(&self, core: &mut Core, announced: Result<Announcement, Fault>) {
        let Some(lane) = self.lane else { return };
        let announced = announced.map_err(|fault| self.comm.fault(fault, 1)).and_then(|said| {
            let (farewell, cut) = (post_farewell(core, lane, said.first, said.parts), said.cut(self.cut));
            if cut.is_err() {
                discard(core, lane, said.first, said.parts, farewell);
            }
            Ok(Sender { first: said.first, cut: cut?, farewell: Some(farewell) })
        });
        let mut round = self.round();
        round.announced = Some(announced);
        if std::mem::take(&mut round.asked) {
            self.post(core, &mut round);
        }
    }
}

impl<T: Pod + Send + Sync> Coming<T> {
    fn round(&self) -> MutexGuard<'_, Round> {
        lock(&self.round)
    }

    /// Posts the receives of all parts, or notes that they are to be posted when the announcement comes.
    fn post(&self, core: &mut Core, round: &mut Round) {
        let Sender { first, cut, .. } = match &round.announced {
            None => return round.asked = true,
            Some(Err(_)) => return,
            Some(Ok(sender)) => *sender,
        };
        round.pieces = Pieces::new(cut.parts, Piece::Ended(Ok(())));
        let Some(Lane { source, .. }) = self.lane else { return };
        for (index, piece) in round.pieces.all().iter_mut().enumerate() {
            let tag = Some(first + index as u32);
            let select = Select { context: self.comm.context + PARTS, source: Some(source), tag };
            // SAFETY: parts do not overlap. No part is read before its message has ended, or posted again before all
            // messages have ended.
            let bytes = unsafe { self.buffer.part(cut.range(index), true) }.hold();
            let room = bytes.len();
            let id = core.engine.receive(select, RecvTarget::Into(bytes, room));
            *piece = Piece::UnderWay(Key::Message(id));
        }
    }

    /// Returns the result of these parts of the receiver once they have ended.
    fn look(&self, core: &mut Core, parts: std::ops::Range<usize>) -> Option<Result<(), Error>> {
        let round = &mut *self.round();
        if round.asked {
            return None;
        }
        let Sender { cut, farewell, .. } = match &round.announced {
            Some(Ok(sender)) => *sender,
            Some(Err(error)) => return Some(Err(error.clone())),
            // The receive was never started.
            None => return Some(Ok(())),
        };
        if round.pieces.len() == 0 {
            return Some(Ok(()));
        }
        let theirs = cut.parts_with(self.cut.range(parts.start).start..self.cut.range(parts.end - 1).end);
        let judge = |index: usize, came: Came| match came.length {
            length if length == cut.bytes(index) as u64 => Piece::Ended(Ok(())),
            0 => Piece::PeerFailure,
            length => {
                let why = format!("a part has {length} bytes, expected {}", cut.bytes(index));
                Piece::Ended(Err(Error::Misuse { why }))
            }
        };
        let mut over = round.pieces.take(core, &self.comm, theirs.clone(), judge);
        // The farewell arrives after all parts, so a receive that is still unmatched gets no message.
        if !over && let Some(farewell) = farewell.and_then(|key| core.has_ended(key).flatten()) {
            round.pieces.fail_unmatched(core, &Error::SenderDropped { rank: self.comm.numbered(farewell.peer) });
            over = round.pieces.take(core, &self.comm, theirs.clone(), judge);
        }
        over.then(|| round.pieces.outcome(theirs))
    }

    fn wait(&self, parts: std::ops::Range<usize>) -> Result<(), Error> {
        self.comm.progress_engine.wait(&"precv", self.comm.awaited(self.lane.map(|lane| lane.source)), |core| {
            self.look(core, parts.clone())
        })?
    }
}

impl<T: Pod + Send + Sync> PartitionedReceive<T> {
    /// Returns the buffer. First waits for the last start, if the program has not.
    ///
    /// # Errors
    /// [`Error::Closed`] if the world was dropped.
    pub fn buffer(&mut self) -> Result<&mut [T], Error> {
        self.rest()?;
        // SAFETY: all parts have ended, and this borrow prevents a new start.
        Ok(unsafe { self.0.buffer.write(0..self.0.buffer.len()) })
    }

    /// Starts a round. First waits for the last start, if the program has not.
    ///
    /// # Errors
    /// [`Error::Closed`] if the world was dropped. [`Arriving`] reports other errors.
    pub fn start(&mut self) -> Result<Arriving<'_, T>, Error> {
        self.rest()?;
        let coming = &*self.0;
        coming.comm.progress_engine.with(|core| coming.post(core, &mut coming.round()))?;
        Ok(Arriving(self))
    }

    /// Waits until no part is in flight. The program did not wait for the last start, so its result is discarded.
    fn rest(&self) -> Result<(), Error> {
        match self.0.wait(0..self.0.cut.parts) {
            Err(Error::Closed) => Err(Error::Closed),
            _ => Ok(()),
        }
    }
}

impl<T: Pod + Send + Sync> Arriving<'_, T> {
    /// Returns the elements of a part; `None` if they have not arrived.
    ///
    /// # Errors
    /// - [`Error::PartsNotReady`] if the sender has lost some of the elements.
    /// - [`Error::SenderDropped`] if the sender dropped its end before it sent them.
    /// - [`Error::Misuse`] if there is no such part, or the ends do not agree.
    /// - The errors of [`World::recv`].
    pub fn arrived(&self, part: usize) -> Result<Option<&[T]>, Error> {
        let coming = &*self.0.0;
        self.check(part)?;
        let look = || coming.comm.progress_engine.with(|core| coming.look(core, part..part + 1));
        let mut looked = look()?;
        if looked.is_none() {
            coming.comm.progress_engine.progress_now();
            looked = look()?;
        }
        looked.transpose()?.map(|()| Ok(self.elements(part))).transpose()
    }

    /// Waits for a part, and returns its elements.
    ///
    /// # Errors
    /// The errors of [`arrived`](Self::arrived).
    pub fn part(&self, part: usize) -> Result<&[T], Error> {
        self.check(part)?;
        self.0.0.wait(part..part + 1)?;
        Ok(self.elements(part))
    }

    /// Waits until all parts have arrived, or have failed.
    ///
    /// # Errors
    /// The errors of [`arrived`](Self::arrived).
    pub fn wait(self) -> Result<(), Error> {
        self.0.0.wait(0..self.0.0.cut.parts)
    }

    fn check(&self, part: usize) -> Result<(), Error> {
        let parts = self.0.0.cut.parts;
        if part < parts {
            return Ok(());
        }
        Err(Error::Misuse { why: format!("there is no part {part}: parts are 0 to {}", parts - 1) })
    }

    /// Elements of a part that has arrived.
    fn elements(&self, part: usize) -> &[T] {
        let Coming { buffer, cut, .. } = &*self.0.0;
        // SAFETY: the engine no longer holds these elements, and this borrow prevents a new start.
        unsafe { buffer.read(cut.range(part)) }
    }
}

impl<T: Pod + Send + Sync> Drop for PartitionedReceive<T> {
    fn drop(&mut self) {
        let Some(lane) = self.0.lane else { return };
        let _ = self.0.comm.progress_engine.with(|core| {
            core.expected.release(lane, &self.0);
            let mut round = self.0.round();
            round.pieces.forget(core);
            if let Some(Ok(Sender { first, cut, farewell: Some(farewell) })) = round.announced.take() {
                discard(core, lane, first, cut.parts, farewell);
            }
        });
    }
}
