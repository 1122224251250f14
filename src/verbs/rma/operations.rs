//! How an operation gets from the call to the adapter and back.

use super::failure::Halt;
use super::member::{Member, Way};
use crate::verbs::connect::Link;
use crate::verbs::endpoint::Endpoints;
use crate::verbs::lane::{Lane, Signal, Stop};
use crate::verbs::memory::{Buffer, Lent, Slot};
use crate::verbs::sys::{Access, QueuePair};
use crate::verbs::wr::{Piece, Place, Verb};
use std::sync::Arc;
use std::time::{Duration, Instant};
use transom_locks::Awaited;
use transom_windows::FabricError;

/// How often whoever waits for a connection looks whether that is vain.
const ROUND: Duration = Duration::from_millis(100);
/// How long after a death a rank still tries to reach the others.
const OTHERS_LEAVE: Duration = Duration::from_secs(2);
/// After how long a port that is down will not come up in time.
const PORT_DOWN: Duration = Duration::from_secs(5);
/// Reads of a long get that are under way at once.
const AT_ONCE: usize = 8;
/// Bytes of a read in one request.
const READ: usize = 1 << 20;

pub(super) type RailLane = Lane<QueuePair, Lent>;

/// A request under way that brings something, and where it brings it. Dropped, it leaves that to nobody.
pub(super) struct Bringing {
    pub way: Way,
    pub number: u64,
    /// None once it was taken.
    pub into: Option<Lent>,
    pub member: Arc<Member>,
}

impl Drop for Bringing {
    fn drop(&mut self) {
        if let Some(into) = self.into.take() {
            self.member.abandon(self.way, self.number, into);
        }
    }
}

impl Member {
    fn endpoints(&self) -> &Endpoints<QueuePair, Lent> {
        &self.core().endpoints
    }

    /// The lane to a peer.
    ///
    /// # Panics
    /// Before there is one.
    pub fn lane(&self, way: Way) -> &RailLane {
        self.endpoints().lane(way.peer).expect("there is a connection")
    }

    /// Repeats `attempt` until it gives something, letting completions in before each.
    #[inline]
    pub fn until<R>(
        &self,
        way: Way,
        mut attempt: impl FnMut(&RailLane) -> Result<Option<R>, Halt>,
    ) -> Result<R, FabricError> {
        let (mut patience, mut silence, lane) = (self.patience(), None, self.lane(way));
        loop {
            self.progress();
            match attempt(lane) {
                Ok(Some(done)) => return Ok(done),
                Ok(None) => {}
                Err(halt) => return Err(self.why(way, halt)),
            }
            if patience.pause() {
                self.works()?;
                self.alive(way)?;
                self.served(way, &mut silence)?;
            }
        }
    }

    /// The connection to a peer, made if there is none.
    #[inline]
    pub fn connect(&self, way: Way) -> Result<(), FabricError> {
        match self.endpoints().lane(way.peer) {
            Some(_) => Ok(()),
            None => self.connect_first(way),
        }
    }

    /// A peer that does not answer is waited for while the job says that it lives and the port is up: it may be stopped.
    #[cold]
    fn connect_first(&self, way: Way) -> Result<(), FabricError> {
        let (core, began, mut down) = (self.core(), Instant::now(), None);
        let mut link = core.want(way.peer);
        loop {
            link = match link {
                Link::Ready => return Ok(()),
                Link::Refused { by_peer, errno } => {
                    let whose = if by_peer { format!("rank {}", way.rank) } else { "this rank".into() };
                    let what = format!("no connection to rank {}: the RDMA device of {whose} refuses", way.rank);
                    return Err(FabricError::System { what, source: std::io::Error::from_raw_os_error(errno) });
                }
                Link::Absent => core.want(way.peer),
                Link::Wanted => core.await_connection(way.peer, ROUND),
            };
            if link != Link::Wanted {
                continue;
            }
            self.works()?;
            self.alive(way)?;
            if began.elapsed() > OTHERS_LEAVE {
                // Left, or somebody died, so that the others leave too.
                self.exchange.check_peers(Awaited::Rank(way.rank))?;
            }
            if !core.rail.health.port_down() {
                down = None;
            } else if down.get_or_insert_with(Instant::now).elapsed() > PORT_DOWN {
                return Err(self.unreachable(way, "it does not answer".into()));
            }
        }
    }

    /// Posts a verb once there is room and what was ordered before has been done; returns its number.
    pub fn post(
        &self,
        way: Way,
        ordered: bool,
        mut post: impl FnMut(&RailLane) -> Result<Option<u64>, Halt>,
    ) -> Result<u64, FabricError> {
        // Mostly nothing stands in the way.
        if let Some(lane) = self.endpoints().lane(way.peer)
            && (!ordered || self.endpoints().before(way.peer).is_none())
            && let Ok(Some(number)) = post(lane)
        {
            return Ok(number);
        }
        self.connect(way)?;
        if ordered {
            self.await_order(way)?;
        }
        self.until(way, post)
    }

    /// Waits for what must be seen before a verb of this peer.
    fn await_order(&self, way: Way) -> Result<(), FabricError> {
        while let Some((peer, number)) = self.endpoints().before(way.peer) {
            self.complete(self.way_to(peer).unwrap_or(Way { rank: way.rank, peer }), number)?;
        }
        Ok(())
    }

    /// Waits until the request of that number, and all before it, are complete.
    pub fn complete(&self, way: Way, number: u64) -> Result<(), FabricError> {
        self.until(way, |lane| match lane.is_complete(number) {
            Ok(true) => Ok(Some(())),
            Ok(false) => retry(lane.ask()).map(|_| None),
            Err(failure) => Err(Halt::Failed(failure)),
        })
    }

    /// Leaves something to the adapter until it is done with it, for somebody who walked away.
    pub fn abandon(&self, way: Way, number: u64, what: Lent) {
        self.lane(way).lend(number, what);
    }

    /// A piece to put bytes in; none if there is none now.
    fn chunk(&self, lane: &RailLane) -> Result<Option<Slot>, Halt> {
        if !retry(lane.may_lend())?.unwrap_or(false) {
            return Ok(None);
        }
        let chunks = &self.core().memory.chunks;
        if let Some(slot) = chunks.take_free() {
            return Ok(Some(slot));
        }
        // Others may have what they are done with.
        self.endpoints().all().for_each(|(_, lane)| lane.reclaim());
        match chunks.take() {
            Ok(slot) => Ok(Some(slot)),
            // There will be one again when something is complete.
            Err(error) if !chunks.is_empty() => {
                tracing::debug!(%error, "no more memory for puts; waiting");
                Ok(None)
            }
            Err(error) => Err(Halt::Memory(error)),
        }
    }

    /// Writes bytes, which may be used again when this returns.
    pub fn write(&self, way: Way, to: Place, source: &[u8]) -> Result<(), FabricError> {
        let mut to = to;
        for bytes in source.chunks(self.core().memory.chunks.bytes()) {
            let mut filled = None;
            self.post(way, true, |lane| {
                if bytes.len() <= lane.inline() {
                    return retry(lane.post_inline(to, bytes));
                }
                // Copied while nothing is locked.
                let slot = match filled.take() {
                    Some(filled) => filled,
                    None => {
                        let Some(slot) = self.chunk(lane)? else { return Ok(None) };
                        slot.write(bytes);
                        Lent::Slot(slot)
                    }
                };
                let Lent::Slot(held) = &slot else { unreachable!("just filled") };
                let piece = held.piece(bytes.len());
                // SAFETY: of the slot, which the lane has until the request is complete.
                let posted = unsafe { lane.post(Verb::Write, to, piece, Signal::Always, Some(slot)) };
                retry(posted.map_err(|(stop, back)| {
                    filled = back;
                    stop
                }))
            })?;
            to.address += bytes.len() as u64;
        }
        Ok(())
    }

    /// Starts a request that brings something to memory that the caller keeps until it has come, or [leaves](Bringing) to
    /// the lane.
    ///
    /// # Safety
    /// It does.
    unsafe fn post_for(
        &self,
        way: Way,
        ordered: bool,
        verb: Verb,
        at: Place,
        piece: Piece,
    ) -> Result<u64, FabricError> {
        self.post(way, ordered, |lane| {
            // SAFETY: by the caller's word.
            let posted = unsafe { lane.post(verb, at, piece, Signal::Always, None) };
            retry(posted.map_err(|(stop, _)| stop))
        })
    }

    /// Starts a request that brings something to a slot.
    ///
    /// # Errors
    /// Then nothing was started.
    fn bring(
        self: &Arc<Self>,
        way: Way,
        verb: Verb,
        at: Place,
        into: Slot,
        len: usize,
    ) -> Result<Bringing, FabricError> {
        let ordered = !matches!(verb, Verb::Read);
        let piece = into.piece(len);
        // SAFETY: what is returned keeps the memory, and leaves it to the lane if it is dropped sooner.
        let number = unsafe { self.post_for(way, ordered, verb, at, piece) }?;
        Ok(Bringing { way, number, into: Some(Lent::Slot(into)), member: self.clone() })
    }

    /// Reads bytes; several pieces at once.
    pub fn read(self: &Arc<Self>, way: Way, from: Place, into: &mut [u8]) -> Result<(), FabricError> {
        let chunks = &self.core().memory.chunks;
        let mut from = from;
        for window in into.chunks_mut(AT_ONCE * chunks.bytes()) {
            let mut under_way: [Option<Bringing>; AT_ONCE] = [const { None }; AT_ONCE];
            for (piece, reading) in window.chunks(chunks.bytes()).zip(&mut under_way) {
                *reading = Some(self.start_read(way, from, piece.len())?);
                from.address += piece.len() as u64;
            }
            for (piece, reading) in window.chunks_mut(chunks.bytes()).zip(under_way) {
                reading.map_or(Ok(()), |reading| reading.finish(|brought| brought.read(piece)))?;
            }
        }
        Ok(())
    }

    /// Starts a read: through a slot if it has room, else to memory registered for it.
    pub fn start_read(self: &Arc<Self>, way: Way, from: Place, len: usize) -> Result<Bringing, FabricError> {
        let no_memory = |error| self.why(way, Halt::Memory(error));
        let memory = &self.core().memory;
        if len <= memory.chunks.bytes() {
            return self.bring(way, Verb::Read, from, memory.chunks.take().map_err(no_memory)?, len);
        }
        let register = |bytes| Buffer::new(&self.core().rail.domain, bytes, Access::Local);
        let buffer = memory.leases.lease(len, register).map_err(no_memory)?;
        let pieces = (0..len).step_by(READ).map(|at| (at as u64, buffer.piece(at, (len - at).min(READ))));
        let pieces: Vec<_> = pieces.collect();
        let mut reading = Bringing { way, number: 0, into: Some(Lent::Lease(buffer)), member: self.clone() };
        for (at, piece) in pieces {
            let from = Place { address: from.address + at, key: from.key };
            // SAFETY: as for `bring`.
            reading.number = unsafe { self.post_for(way, false, Verb::Read, from, piece) }?;
        }
        Ok(reading)
    }

    /// Starts an atomic.
    pub fn start_atomic(self: &Arc<Self>, way: Way, verb: Verb, at: Place) -> Result<Bringing, FabricError> {
        let cell = self.core().memory.cells.take().map_err(|error| self.why(way, Halt::Memory(error)))?;
        self.bring(way, verb, at, cell, 8)
    }

    /// Puts a word in one piece, towards readers and atomics.
    pub fn swap(self: &Arc<Self>, way: Way, at: Place, value: u64, guess: u64) -> Result<(), FabricError> {
        let mut guess = guess;
        loop {
            let swap = Verb::CompareAndSwap { expected: guess, new: value };
            match self.start_atomic(way, swap, at)?.word()? {
                found if found == guess => return Ok(()),
                found => guess = found,
            }
        }
    }

    /// Returns when all that was posted to a peer is complete.
    pub fn flush(&self, way: Way) -> Result<(), FabricError> {
        let Some(lane) = self.endpoints().lane(way.peer) else { return Ok(()) };
        self.complete(way, lane.posted())?;
        lane.reclaim();
        Ok(())
    }

    /// Has the completion of what was posted told, so that several flushes wait at once.
    pub fn start_flush(&self, way: Way) -> Result<(), FabricError> {
        let asked = self.endpoints().lane(way.peer).map_or(Ok(()), |lane| lane.ask());
        retry(asked).map(drop).map_err(|halt| self.why(way, halt))
    }

    /// What was posted to a peer is to be complete before a verb of this thread to another.
    pub fn order(&self, way: Way) -> Result<(), FabricError> {
        if let Some(failure) = self.endpoints().lane(way.peer).and_then(Lane::failure) {
            return Err(self.why(way, Halt::Failed(failure)));
        }
        self.endpoints().mark(way.peer);
        Ok(())
    }
}

impl Bringing {
    /// Whether it has come.
    pub fn has_come(&self) -> Result<bool, FabricError> {
        self.member.progress();
        let come = self.member.lane(self.way).is_complete(self.number);
        come.map_err(|failure| self.member.why(self.way, Halt::Failed(failure)))
    }

    /// Waits until it has come, and takes what it brought.
    pub fn finish<R>(mut self, take: impl FnOnce(&Lent) -> R) -> Result<R, FabricError> {
        self.member.complete(self.way, self.number)?;
        let into = self.into.take().expect("taken once");
        Ok(take(&into))
    }

    /// The word that an atomic brings.
    pub fn word(self) -> Result<u64, FabricError> {
        self.finish(|cell| {
            let mut word = [0; 8];
            cell.read(&mut word);
            u64::from_ne_bytes(word)
        })
    }
}

/// None where there is no room now.
fn retry<T>(posted: Result<T, Stop>) -> Result<Option<T>, Halt> {
    match posted {
        Ok(done) => Ok(Some(done)),
        Err(Stop::Full) => Ok(None),
        Err(Stop::Failed(failure)) => Err(Halt::Failed(failure)),
        Err(Stop::System(error)) => Err(Halt::System(error)),
    }
}
