//! The receiver's end.

use super::cut::{Announcement, Cut};
use super::pieces::{Piece, Pieces};
use crate::lock::lock;
use crate::messages::comm::{ANNOUNCED, Comm, PARTS};
use crate::messages::error::Error;
use crate::messages::hold::{Parts as _, Shares};
use crate::messages::locked::{Core, Ended, Key, Work};
use crate::messages::tag::{Peer, Tag};
use crate::world::World;
use bytemuck::Pod;
use std::sync::{Arc, Mutex, MutexGuard};
use transom_channel::{Room, Select, Status as Came};

/// A buffer that is received again and again, whose parts can be used as they come.
///
/// # Examples
/// See [`Partitioned`](super::Partitioned).
pub struct PartitionedReceive<T: Pod + Send + Sync> {
    coming: Arc<Coming<T>>,
    /// The work that waits for the announcement.
    expecting: Option<Key>,
}

/// A partitioned message that is under way to this rank. Dropped or forgotten, it goes on; whatever is done next waits for it.
#[must_use = "it says what has come"]
pub struct Arriving<'p, T: Pod + Send + Sync>(&'p mut PartitionedReceive<T>);

struct Coming<T> {
    comm: Comm,
    /// None is nobody.
    from: Option<u32>,
    cut: Cut,
    buffer: Arc<Shares<T>>,
    round: Mutex<Round>,
}

/// Locked after the engine, by whoever locks both.
struct Round {
    /// What the sender said of its parts.
    announced: Option<Result<Announcement, Error>>,
    /// Was started before that.
    asked: bool,
    /// By the sender's parts, once these are known.
    pieces: Pieces,
}

impl World {
    /// A message to be received many times, in parts; nothing is received yet. How they are cut, and which
    /// [`psend_init`](Self::psend_init) it meets, is said there.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Examples
    /// See [`Partitioned`](crate::messages::Partitioned).
    pub fn precv_init<T: Pod + Send + Sync>(
        &self,
        from: impl Into<Peer>,
        tag: Tag<T>,
        buffer: Vec<T>,
        parts: usize,
    ) -> Result<PartitionedReceive<T>, Error> {
        let comm = self.space().comm()?;
        let (from, cut) = (comm.target(from.into())?, Cut::new(buffer.len(), parts, size_of::<T>())?);
        // Nobody's parts come as soon as they are asked for.
        let announced = from.is_none().then_some(Ok(Announcement { first: 0, cut }));
        let round = Mutex::new(Round { announced, asked: false, pieces: Pieces::new(0, Piece::Held) });
        let coming = Arc::new(Coming { comm: comm.clone(), from, cut, buffer: Shares::new(buffer), round });
        let expecting = match from {
            Some(from) => Some(comm.hub.with(|core| {
                core.engine.expect(from);
                expect(core, comm, from, tag.number(), coming.clone())
            })?),
            None => None,
        };
        Ok(PartitionedReceive { coming, expecting })
    }
}

/// Waits for what the sender says of its parts.
struct Expecting<T> {
    announcement: Key,
    coming: Arc<Coming<T>>,
}

fn expect<T: Pod + Send + Sync>(core: &mut Core, comm: &Comm, from: u32, tag: u32, coming: Arc<Coming<T>>) -> Key {
    let select = Select { context: comm.context + ANNOUNCED, source: Some(from), tag: Some(tag) };
    let bytes = vec![0_u8; Announcement::BYTES].hold();
    let id = core.engine.receive(select, Room::Into(bytes, Announcement::BYTES));
    let work = core.start(Box::new(Expecting { announcement: Key::Message(id), coming }));
    // What comes of it is asked of the round.
    core.forget(work);
    work
}

impl<T: Pod + Send + Sync> Work for Expecting<T> {
    fn turn(&mut self, core: &mut Core) -> Option<Ended> {
        let (result, bytes) = core.ended(self.announcement)?;
        let coming = &*self.coming;
        let announced = match result.clone() {
            Ok(came) => {
                let bytes = bytes.and_then(|bytes| Vec::<u8>::back(bytes, came.length as usize)).unwrap_or_default();
                Announcement::decode(&bytes, coming.cut)
            }
            Err(fault) => Err(coming.comm.fault(fault, 1)),
        };
        let mut round = coming.round();
        round.announced = Some(announced);
        if std::mem::take(&mut round.asked) {
            coming.post(core, &mut round);
        }
        Some((result, None))
    }

    fn awaits(&mut self, awaited: &mut Vec<Key>) -> bool {
        awaited.push(self.announcement);
        true
    }

    fn must_end(&self) -> bool {
        false
    }

    fn stop(&mut self, core: &mut Core) {
        core.forget(self.announcement);
    }
}

impl<T: Pod + Send + Sync> Coming<T> {
    fn round(&self) -> MutexGuard<'_, Round> {
        lock(&self.round)
    }

    /// Receives all parts, or does when they are announced.
    fn post(&self, core: &mut Core, round: &mut Round) {
        let Announcement { first, cut } = match &round.announced {
            None => return round.asked = true,
            Some(Err(_)) => return,
            Some(Ok(announcement)) => *announcement,
        };
        round.pieces = Pieces::new(cut.parts, Piece::Ended(Ok(())));
        let Some(from) = self.from else { return };
        for (index, piece) in round.pieces.all().iter_mut().enumerate() {
            let tag = Some(first + index as u32);
            let select = Select { context: self.comm.context + PARTS, source: Some(from), tag };
            // SAFETY: parts are apart; none is read before its message has ended, nor posted again before all have.
            let bytes = unsafe { self.buffer.part(cut.range(index), true) }.hold();
            let room = bytes.len();
            let id = core.engine.receive(select, Room::Into(bytes, room));
            *piece = Piece::UnderWay(Key::Message(id));
        }
    }

    /// How these parts of the receiver's have ended, once they have.
    fn look(&self, core: &mut Core, parts: std::ops::Range<usize>) -> Option<Result<(), Error>> {
        let round = &mut *self.round();
        if round.asked {
            return None;
        }
        let cut = match &round.announced {
            Some(Ok(Announcement { cut, .. })) => *cut,
            Some(Err(error)) => return Some(Err(error.clone())),
            // Was never started.
            None => return Some(Ok(())),
        };
        if round.pieces.len() == 0 {
            return Some(Ok(()));
        }
        let theirs = cut.parts_with(self.cut.range(parts.start).start..self.cut.range(parts.end - 1).end);
        let judge = |index: usize, came: Came| match came.length {
            length if length == cut.bytes(index) as u64 => Piece::Ended(Ok(())),
            0 => Piece::Lost,
            length => {
                let why = format!("a part of {} bytes came with {length}, which no sender does", cut.bytes(index));
                Piece::Ended(Err(Error::Misuse { why }))
            }
        };
        let over = round.pieces.take(core, &self.comm, theirs.clone(), judge);
        over.then(|| round.pieces.outcome(theirs))
    }

    fn wait(&self, parts: std::ops::Range<usize>) -> Result<(), Error> {
        self.comm.hub.wait(&"precv", self.comm.awaited(self.from), |core| self.look(core, parts.clone()))?
    }
}

impl<T: Pod + Send + Sync> PartitionedReceive<T> {
    /// The buffer. First waits for what was started and not waited for.
    ///
    /// # Errors
    /// [`Error::Closed`] if the world is gone.
    pub fn buffer(&mut self) -> Result<&mut [T], Error> {
        self.rest()?;
        // SAFETY: all parts have ended, and this borrow lets nobody start them again.
        Ok(unsafe { self.coming.buffer.write(0..self.coming.buffer.len()) })
    }

    /// Starts it. First waits for what was started and not waited for.
    ///
    /// # Errors
    /// [`Error::Closed`] if the world is gone; others are told by [`Arriving`].
    pub fn start(&mut self) -> Result<Arriving<'_, T>, Error> {
        self.rest()?;
        let coming = &*self.coming;
        coming.comm.hub.with(|core| coming.post(core, &mut coming.round()))?;
        Ok(Arriving(self))
    }

    /// Returns when the engine has no part; how that ended is of no interest to who did not ask.
    fn rest(&self) -> Result<(), Error> {
        match self.coming.wait(0..self.coming.cut.parts) {
            Err(Error::Closed) => Err(Error::Closed),
            _ => Ok(()),
        }
    }
}

impl<T: Pod + Send + Sync> Arriving<'_, T> {
    /// The elements of a part, if they have come.
    ///
    /// # Errors
    /// [`Error::PartsNotReady`] if the sender has lost some of them; [`Error::Misuse`] if there is no such part, or the ends do not
    /// agree; those of [`World::recv`].
    pub fn arrived(&self, part: usize) -> Result<Option<&[T]>, Error> {
        let coming = &*self.0.coming;
        self.check(part)?;
        let look = || coming.comm.hub.with(|core| coming.look(core, part..part + 1));
        let mut looked = look()?;
        if looked.is_none() {
            coming.comm.hub.turn_now();
            looked = look()?;
        }
        looked.transpose()?.map(|()| Ok(self.elements(part))).transpose()
    }

    /// The elements of a part, once they have come.
    ///
    /// # Errors
    /// As [`arrived`](Self::arrived).
    pub fn part(&self, part: usize) -> Result<&[T], Error> {
        self.check(part)?;
        self.0.coming.wait(part..part + 1)?;
        Ok(self.elements(part))
    }

    /// Returns when all has come, or will not.
    ///
    /// # Errors
    /// As [`arrived`](Self::arrived).
    pub fn wait(self) -> Result<(), Error> {
        self.0.coming.wait(0..self.0.coming.cut.parts)
    }

    fn check(&self, part: usize) -> Result<(), Error> {
        let parts = self.0.coming.cut.parts;
        if part < parts {
            return Ok(());
        }
        Err(Error::Misuse { why: format!("there is no part {part}: parts are 0 to {}", parts - 1) })
    }

    /// Of a part that has come.
    fn elements(&self, part: usize) -> &[T] {
        let Coming { buffer, cut, .. } = &*self.0.coming;
        // SAFETY: the engine has none of these elements any more, and this borrow lets nobody start them again.
        unsafe { buffer.read(cut.range(part)) }
    }
}

impl<T: Pod + Send + Sync> Drop for PartitionedReceive<T> {
    fn drop(&mut self) {
        let coming = &*self.coming;
        let _ = coming.comm.hub.with(|core| {
            self.expecting.into_iter().for_each(|key| core.stop(key));
            coming.round().pieces.forget(core);
        });
    }
}
