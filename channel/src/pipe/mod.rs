//! A pipe: a stream of bytes between two ranks, in each direction. Bytes come out at one end in the order in
//! which they went in at the other, without message boundaries.
//!
//! [`put`](crate::Engine::pipe_put) and [`get`](crate::Engine::pipe_get) never block, and return the number
//! of bytes moved. The [`Step`] selects how bytes move:
//!
//! | step | a message that fits | its tail | a long one |
//! |---|---|---|---|
//! | `Basic` | copied into staging memory, written; then the head pointer is written | the tail pointer is written | the same, whole |
//! | `Piggyback` | one write: data, its length and the mark | carried by data in the other direction, or written after half a ring | copied into staging memory whole, then written in chunks |
//! | `Pipeline` | the same | the same | each chunk is written as soon as it is copied |
//! | `Read` | the same | the same | offered; the receiver reads it in place |
//! | `Write` | the same | the same | announced; the sender writes it into the receiver's buffer |
//!
//! Staging memory is not registered. A wire between hosts therefore copies it once more than the baseline of the paper.
//!
//! The last two apply to buffers that the pipe owns ([`start_put`](crate::Engine::pipe_start_put),
//! [`start_get`](crate::Engine::pipe_start_get)): peer and adapter access them until the put or get has
//! ended. Chunks are used where the rail does not support the step, or memory cannot be registered.
//!
//! Each end has memory that the other end writes to:
//! ```text
//!     0       head pointer (Basic)
//!     64      tail pointer of what this end puts
//!     128     control: 4 slots of 64 bytes
//!     384     the ring: chunks, or bytes (Basic)
//! ```
//! Control has slots apart from the ring. So an end that puts and never gets receives answers that would
//! otherwise wait behind data. At most one answer to a put is in flight, and each of the three other control
//! messages is sent once: control slots need no credit.

mod arrive;
mod config;
mod get;
mod offer;
mod packet;
mod post;
mod put;

pub use config::{Config, Count, Fault, Step};
pub use offer::{NO_OFFER, OFFER, Offer};
pub(crate) use post::number_of;

use crate::error::PeerFailure;
use crate::ring::{CompletionFlag, Receiver, RingConfig, Sender};
use crate::slab::Id;
use crate::wire::{Data, Lane, Rank, Wire, WireMemory};
use arrive::Arrivals;
use get::{Getting, To};
use packet::Control;
use post::{Post, Told};
use put::Putting;
use std::collections::VecDeque;

const HEAD: usize = 0;
const TAIL: usize = 64;
const CONTROL: usize = 128;
const CONTROLS: RingConfig = RingConfig { slots: 4, bytes: 64 };
const RING: usize = 384;
/// Largest ring in bytes: the pointer bits of an immediate value must cover it.
const MOST: usize = 1 << 20;

/// Result of a put or get that has ended.
#[derive(Debug)]
pub struct Outcome<M> {
    /// Number of the put or get.
    pub id: Id,
    /// Number of bytes moved; `Err` if the peer has closed its end.
    pub result: Result<usize, Fault>,
    /// Memory that the operation was given.
    pub memory: M,
}

/// One end of a pipe.
pub struct Pipe<M> {
    lane: Lane,
    /// This end's offer to the peer.
    offer: Offer,
    /// Memory that the peer writes to.
    memory: M,
    post: Post,
    putting: Putting<M>,
    getting: Getting<M>,
    arrivals: Arrivals,
    control_in: Receiver,
    control_out: Sender,
    /// Control messages that wait to be posted.
    to_tell: VecDeque<Control>,
    /// Number of control messages posted in all, and the number posted up to the last answer to a put.
    controls: (u32, u32),
    token: u64,
    phase: Phase,
    /// True if the peer gets no more bytes.
    peer_shut: bool,
    /// True if the peer posts nothing more.
    peer_closed: bool,
    /// True if the ends failed to join: neither writes.
    void: bool,
    /// True if the peer is lost: nothing is posted, but bytes that have arrived can be got.
    gone: bool,
    /// True if anything has arrived since the last check.
    heard: bool,
}

/// State of this end, as requested by the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Open,
    /// The program puts no more.
    Ended,
    /// The program neither puts nor gets.
    Closing,
    /// The peer was notified that this end gets no more: neither end waits for the other's puts in flight.
    Shut,
    /// The peer was notified that this end posts nothing more.
    Closed,
}

/// Tokens of pipes have this bit, which no token of a request has. The next bit marks the token of a put.
const TOKEN: u64 = 1 << 31;
const OF_PUT: u64 = 1 << 30;

/// Returns true if a token belongs to a pipe.
pub(crate) fn is_token(token: u64) -> bool {
    token & TOKEN != 0
}

/// Number of the pipe that a token belongs to.
pub(crate) fn id_of(token: u64) -> Option<Id> {
    Id::from_wire(token & !(TOKEN | OF_PUT))
}

impl<M: WireMemory> Pipe<M> {
    /// Opens one end, with memory that the peer may write to from now on. `number` identifies it among this
    /// rank's pipes to the peer.
    pub(crate) fn open<W: Wire<Memory = M>>(
        wire: &mut W,
        peer: Rank,
        config: Config,
        number: u8,
    ) -> Result<Pipe<M>, Fault> {
        let rail = *wire.rails(wire.is_near(peer)).first().ok_or(Fault::NoMarker)?;
        // A pointer or a FIN must not become visible before the bytes that it reports. A rail that orders only the bytes
        // of one put therefore tells all by immediate values.
        let words = rail.whole_word || !rail.immediate;
        let marker = if words { CompletionFlag::of(&rail) } else { Some(CompletionFlag::Immediate) };
        let marker = marker.ok_or(Fault::NoMarker)?;
        if !config.is_sound() {
            return Err(Fault::Sizes { chunk: config.chunk, chunks: config.chunks });
        }
        let no_memory = Fault::NoMemory(config.memory());
        let putting = Putting::new(&config).ok_or(no_memory.clone())?;
        let (memory, key) = wire.ring(peer, config.memory()).ok_or(no_memory)?;
        let lane = Lane { peer, rail: 0 };
        Ok(Pipe {
            lane,
            offer: Offer { config, number, key },
            memory,
            post: Post::new(lane, marker, words),
            putting,
            getting: Getting::new(),
            arrivals: Arrivals::new(&config, marker),
            control_in: Receiver::new(0, CONTROLS, marker),
            control_out: Sender::new(0, CONTROLS, key),
            to_tell: VecDeque::new(),
            controls: (0, 0),
            token: TOKEN,
            phase: Phase::Open,
            peer_shut: false,
            peer_closed: false,
            void: false,
            gone: false,
            heard: false,
        })
    }

    /// Sets the end's number among all pipes of this rank; the wire's tokens contain it.
    pub(crate) fn number(&mut self, id: Id) {
        self.token = id.to_wire() | TOKEN;
    }

    /// The offer to send to the peer, so that it can join.
    pub fn offer(&self) -> &Offer {
        &self.offer
    }

    /// Joins the peer's end, from its offer. Bytes can move from now on.
    pub(crate) fn join<W: Wire<Memory = M>>(&mut self, wire: &mut W, theirs: &Offer) -> Result<(), Fault> {
        let (mine, theirs_too) = (self.offer.config, theirs.config);
        if mine != theirs_too {
            return Err(Fault::Differs { theirs: theirs_too, mine });
        }
        if !wire.reaches(self.lane, theirs.key, mine.memory()) {
            return Err(Fault::Unreachable);
        }
        self.post.join(theirs);
        Ok(())
    }

    /// Puts as many bytes as can be posted now, and returns their number. The caller may reuse `data` at
    /// once.
    pub(crate) fn put<W: Wire<Memory = M>>(
        &mut self,
        wire: &mut W,
        data: &[u8],
    ) -> Result<Result<usize, Fault>, PeerFailure> {
        self.listen(wire)?;
        if let Some(fault) = self.cannot_put() {
            return Ok(Err(fault));
        }
        // A buffer is still in flight, or the wire has refused a mark: put later.
        if self.gone || !self.putting.is_idle() || !self.post.is_free(wire) {
            return Ok(Ok(0));
        }
        let moved = self.putting.copy(wire, &mut self.post, self.arrivals.tail(), Data::Bytes(data));
        if moved > 0 {
            self.arrivals.rode();
        }
        self.tell(wire);
        Ok(Ok(moved))
    }

    /// Gets as many bytes as have arrived and fit, and returns their number; `None` at the end of the stream.
    /// If `bounce`, bytes in a buffer that the peer has offered or announced are moved in pieces through
    /// memory of the pipe.
    pub(crate) fn get<W: Wire<Memory = M>>(
        &mut self,
        wire: &mut W,
        into: &mut [u8],
        bounce: bool,
    ) -> Result<Option<usize>, PeerFailure> {
        self.listen(wire)?;
        self.turn_get(wire)?;
        let mut moved = 0;
        if self.getting.is_idle() {
            let room = into.len();
            moved = self.getting.take(wire, &self.memory, &mut self.arrivals, To::Bytes(into), room)?;
            if moved == 0 && room > 0 {
                if self.getting.is_over(&self.arrivals)? {
                    return Ok(None);
                }
                // Move the bytes into memory of the pipe: `into` is borrowed for this call only.
                if bounce && !self.gone {
                    let answer = self.getting.bounce(wire, self.lane, self.offer.config.payload());
                    self.to_tell.extend(answer);
                    self.turn_get(wire)?;
                }
            }
        }
        self.tell(wire);
        Ok(Some(moved))
    }

    /// Starts to put a whole buffer, behind earlier ones. The pipe owns it until the outcome is taken.
    pub(crate) fn start_put(&mut self, id: Id, memory: M, length: usize) {
        match self.cannot_put() {
            Some(fault) => self.putting.ended.push_back(Outcome { id, result: Err(fault), memory }),
            None => self.putting.start(id, memory, length),
        }
    }

    /// Starts to get bytes into a buffer, behind earlier ones. The get ends with at least one byte, or with
    /// none at the end of the stream.
    pub(crate) fn start_get(&mut self, id: Id, memory: M, room: usize) {
        self.getting.start(id, memory, room);
    }

    /// Withdraws a get that has not begun.
    pub(crate) fn withdraw(&mut self, id: Id) -> Option<M> {
        self.getting.withdraw(id)
    }

    /// Handles arrived bytes and control, and posts what can be sent now.
    pub(crate) fn progress<W: Wire<Memory = M>>(&mut self, wire: &mut W) -> Result<(), PeerFailure> {
        self.listen(wire)?;
        if !self.gone && self.post.is_free(wire) {
            let (config, rides, token) = (&self.offer.config, self.arrivals.tail(), self.token | OF_PUT);
            if self.putting.progress(wire, &mut self.post, config, rides, token)? {
                self.arrivals.rode();
            }
        }
        self.turn_get(wire)?;
        self.wind_up();
        self.tell(wire);
        Ok(())
    }

    /// The next outcome of a put or get that has ended.
    pub(crate) fn outcome(&mut self) -> Option<Outcome<M>> {
        self.putting.ended.pop_front().or_else(|| self.getting.ended.pop_front())
    }

    /// Ends the stream of this end: the peer reaches its end after all bytes that were put or started.
    pub(crate) fn end(&mut self) {
        self.phase = self.phase.max(Phase::Ended);
    }

    /// Closes this end: no more puts or gets. Puts that were started are delivered; arriving bytes are
    /// dropped.
    pub(crate) fn close(&mut self) {
        self.phase = self.phase.max(Phase::Closing);
        self.getting.drop_waiting();
    }

    /// Gives up a pipe whose ends failed to join. Both ends know it, and neither writes.
    pub(crate) fn refuse(&mut self) {
        self.void = true;
        self.close();
    }

    /// Records that a read or write of this pipe is complete.
    pub(crate) fn moved<W: Wire<Memory = M>>(&mut self, wire: &mut W, token: u64) {
        if token & OF_PUT != 0 {
            self.putting.written();
        } else if let Some(answer) = self.getting.moved(wire, self.lane) {
            self.to_tell.push_back(answer);
        }
    }

    /// Handles an immediate value of the peer for this pipe.
    pub(crate) fn told(&mut self, value: u32) -> Result<(), PeerFailure> {
        match Told::of(value) {
            (Told::Ring, _) => Ok(self.arrivals.told()?),
            (Told::Control, _) => Ok(self.control_in.told()?),
            (Told::Head, value) => self.arrivals.head(value.into(), true).map(drop),
            (Told::Tail, value) => self.putting.tail(value.into(), true).map(drop),
        }
    }

    /// Handles the loss of the peer. Neither peer nor wire accesses the pipe's memory any more. Waiting
    /// buffers get the bytes that have arrived; buffers that get none are returned.
    pub(crate) fn lose<W: Wire<Memory = M>>(&mut self, wire: &mut W) -> Vec<(Id, M)> {
        if !std::mem::replace(&mut self.gone, true) {
            wire.release(self.lane, self.offer.key);
            self.to_tell.clear();
        }
        // A protocol error was reported already, or no longer matters.
        let _ = self.progress(wire);
        let mut left = self.putting.abandon(wire, self.lane);
        left.extend(self.getting.abandon(wire, self.lane));
        left
    }

    /// Frees the pipe's memory.
    pub(crate) fn give_back<W: Wire<Memory = M>>(mut self, wire: &mut W) {
        if !self.gone {
            wire.release(self.lane, self.offer.key);
            self.post.leave(wire);
        }
        self.getting.give_back(wire);
        wire.give(self.memory);
    }

    /// Rank at the other end.
    pub fn peer(&self) -> Rank {
        self.lane.peer
    }

    /// Counters of this end.
    pub fn count(&self) -> Count {
        Count { got: self.getting.got, ..self.post.count }
    }

    /// Returns true if the next bytes are in a buffer of the peer. Only a get into a buffer that the pipe
    /// owns moves them without a bounce.
    pub(crate) fn is_remote(&self) -> bool {
        self.getting.is_idle() && self.getting.is_remote()
    }

    /// Returns true if the peer is lost.
    pub fn is_gone(&self) -> bool {
        self.gone
    }

    /// Returns true if an operation waits for the wire or the peer, so that the pipe needs progress calls.
    pub fn is_active(&self) -> bool {
        let busy = !self.putting.is_idle() || !self.getting.is_idle();
        busy || self.is_refused() || (self.phase >= Phase::Closing && !self.gone)
    }

    /// Returns true if the peer waits for a message that this end has not posted yet.
    pub fn is_needed(&self) -> bool {
        let untold = match self.phase {
            Phase::Open | Phase::Closed => false,
            Phase::Ended => !self.putting.is_over(),
            Phase::Closing | Phase::Shut => true,
        };
        !self.gone && self.post.is_joined() && (!self.putting.is_idle() || self.is_refused() || untold)
    }

    /// Returns true if the wire has refused a request that must be posted again.
    pub fn is_refused(&self) -> bool {
        !self.gone && self.post.is_joined() && (self.post.is_refused() || !self.to_tell.is_empty())
    }

    /// Returns true if the pipe's memory can be freed: the program has closed this end, and the peer has
    /// closed its end, is lost or never joined.
    pub fn is_finished(&self) -> bool {
        let both = self.phase == Phase::Closed && self.peer_closed && !self.is_refused();
        both || ((self.gone || self.void) && self.phase >= Phase::Closing)
    }

    fn cannot_put(&self) -> Option<Fault> {
        match () {
            () if self.phase != Phase::Open => Some(Fault::Ended),
            () if self.peer_shut => Some(Fault::Closed),
            () => None,
        }
    }

    /// Handles control and pointers, and records arrived chunks.
    fn listen<W: Wire<Memory = M>>(&mut self, wire: &mut W) -> Result<(), PeerFailure> {
        while let Some(control) = packet::next_control(&self.memory, &mut self.control_in)? {
            self.heard = true;
            match control {
                Control::End { total } => self.getting.end(total)?,
                Control::Shut => {
                    self.peer_shut = true;
                    self.putting.close(wire, self.lane);
                }
                Control::Close if self.peer_shut => self.peer_closed = true,
                Control::Close => {
                    return Err(PeerFailure::Broken("it closed its pipe before it stopped its gets"));
                }
                answer => self.putting.answered(wire, &mut self.post, answer)?,
            }
        }
        if self.post.words {
            self.heard |= self.putting.tail(self.memory.word(TAIL), false)?;
            self.heard |= self.arrivals.head(self.memory.word(HEAD), false)?;
        }
        while let Some(freed) = self.arrivals.look(&self.memory)? {
            self.heard = true;
            self.putting.freed(freed)?;
        }
        Ok(())
    }

    /// Returns true if bytes, room or the peer's end has arrived since the last call.
    pub(crate) fn take_heard(&mut self) -> bool {
        std::mem::take(&mut self.heard)
    }

    fn turn_get<W: Wire<Memory = M>>(&mut self, wire: &mut W) -> Result<(), PeerFailure> {
        let lane = (!self.gone).then_some(self.lane);
        let (memory, arrivals) = (&self.memory, &mut self.arrivals);
        let answer = self.getting.progress(wire, &mut self.post, memory, arrivals, lane, self.token)?;
        if self.getting.went_on() {
            self.control_out.freed(self.controls.1)?;
        }
        self.to_tell.extend(answer);
        Ok(())
    }

    /// Queues the messages that this end gets no more, has ended its stream, and posts nothing more, as each
    /// becomes true.
    fn wind_up(&mut self) {
        if self.gone {
            return;
        }
        if self.phase == Phase::Closing && self.getting.is_idle() {
            self.to_tell.push_back(Control::Shut);
            self.phase = Phase::Shut;
        }
        if self.phase == Phase::Open || !self.putting.is_idle() {
            return;
        }
        if let Some(total) = self.putting.over() {
            self.to_tell.push_back(Control::End { total });
        }
        if self.phase == Phase::Shut {
            self.to_tell.push_back(Control::Close);
            self.phase = Phase::Closed;
        }
    }

    /// Posts pointers and control that are due.
    fn tell<W: Wire<Memory = M>>(&mut self, wire: &mut W) {
        if self.gone || !self.post.is_free(wire) {
            return;
        }
        // The end of the stream must follow its last byte.
        if !self.putting.tell(wire, &mut self.post) {
            return;
        }
        if let Some(tail) = self.arrivals.due().filter(|_| !self.peer_closed && self.phase != Phase::Closed)
            && self.post.value(wire, Told::Tail, TAIL, tail)
        {
            self.arrivals.tell();
        }
        while let Some(control) = self.to_tell.front() {
            let ring = &mut self.control_out;
            if !self.post.message(wire, ring, CONTROL, Told::Control, &control.encode(), Data::None) {
                break;
            }
            self.post.count.alone += 1;
            self.controls.0 += 1;
            if control.is_answer() {
                self.controls.1 = self.controls.0;
            }
            self.to_tell.pop_front();
        }
    }
}
