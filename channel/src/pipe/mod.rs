//! A stream of bytes between two ranks, each way: what goes in at one end comes out at the other, in order, without
//! boundaries.
//!
//! [`put`](crate::Engine::pipe_put) and [`get`](crate::Engine::pipe_get) never wait, and say how much they moved. How the bytes move is the [`Step`]:
//!
//! | step | a message that fits | its tail | a long one |
//! |---|---|---|---|
//! | `Basic` | copied to the side, written; then the head pointer is written | the tail pointer is written | the same, whole |
//! | `Piggyback` | one write: data, its length and the mark that it is there | rides on what goes back, or is told at half a ring | copied to the side whole, then written in chunks |
//! | `Pipeline` | the same | the same | each chunk is written once it is copied |
//! | `Read` | the same | the same | offered, and read by the receiver from where it is |
//! | `Write` | the same | the same | announced, and written to where the receiver wants it |
//!
//! The last two are for buffers that the pipe owns ([`start_put`](crate::Engine::pipe_start_put), [`start_get`](crate::Engine::pipe_start_get)), as
//! peer and adapter use them until the put or get has ended. What a rail does not do, or memory that cannot be registered,
//! goes in chunks.
//!
//! Each end has memory that the other writes to:
//! ```text
//!     0       head pointer (Basic)
//!     64      tail pointer of what this end puts
//!     128     control: 4 slots of 64 bytes
//!     384     the ring: chunks, or bytes (Basic)
//! ```
//! Control is apart from the ring, so that an end that puts and does not get learns of an answer that would stand behind
//! data. Of answers to a put one at most is under way, and of the three others each goes once: its slots need no credit.

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

use crate::error::Lost;
use crate::ring::{Marker, Receiver, Sender, Shape};
use crate::slab::Id;
use crate::wire::{Data, Lane, Rank, Wire};
use arrive::Arrivals;
use get::{Getting, To};
use packet::Control;
use post::{Post, Told};
use put::Putting;
use std::collections::VecDeque;

const HEAD: usize = 0;
const TAIL: usize = 64;
const CONTROL: usize = 128;
const CONTROLS: Shape = Shape { slots: 4, bytes: 64 };
const RING: usize = 384;
/// The most that a ring can have, as pointers that ride in immediate values must tell.
const MOST: usize = 1 << 20;

/// A put or get that has ended.
#[derive(Debug)]
pub struct Outcome<M> {
    /// Which.
    pub id: Id,
    /// How many bytes; `Err` if the peer has closed its end.
    pub result: Result<usize, Fault>,
    /// What it was given.
    pub memory: M,
}

/// One end of a pipe.
pub struct Pipe<M> {
    lane: Lane,
    /// This end, as the peer is told.
    offer: Offer,
    /// What the peer writes to.
    memory: M,
    post: Post,
    putting: Putting<M>,
    getting: Getting<M>,
    arrivals: Arrivals,
    control_in: Receiver,
    control_out: Sender,
    /// Control that waits to be posted.
    to_tell: VecDeque<Control>,
    /// Control that was posted, in all; and up to the last answer to a put.
    controls: (u32, u32),
    token: u64,
    phase: Phase,
    /// The peer gets nothing any more.
    peer_shut: bool,
    /// The peer posts nothing any more.
    peer_closed: bool,
    /// The ends did not come together: neither writes.
    void: bool,
    /// The peer is lost: nothing is posted, and what has come can be got.
    gone: bool,
    /// Something has come.
    heard: bool,
}

/// What the program has said of its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Open,
    /// It puts no more.
    Ended,
    /// It neither puts nor gets.
    Closing,
    /// The peer was told that it does not get: neither end waits for what the other has under way.
    Shut,
    /// The peer was told: this end posts nothing any more.
    Closed,
}

/// Tokens of pipes have this bit, which none of a request has; the next says whether it is of what is put.
const TOKEN: u64 = 1 << 31;
const OF_PUT: u64 = 1 << 30;

/// Whether a token is a pipe's.
pub(crate) fn is_token(token: u64) -> bool {
    token & TOKEN != 0
}

/// Which pipe it is of.
pub(crate) fn id_of(token: u64) -> Option<Id> {
    Id::from_wire(token & !(TOKEN | OF_PUT))
}

impl<M> Pipe<M> {
    /// One end, with memory that the peer may write to from now on. `number` is its own among the pipes to this peer.
    pub(crate) fn open<W: Wire<Memory = M>>(
        wire: &mut W,
        peer: Rank,
        config: Config,
        number: u8,
    ) -> Result<Pipe<M>, Fault> {
        let rail = *wire.rails(wire.is_near(peer)).first().ok_or(Fault::NoMarker)?;
        let marker = Marker::of(&rail).ok_or(Fault::NoMarker)?;
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
            post: Post::new(lane, marker, rail.mark_last || rail.whole_word),
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

    /// Its number among all pipes of this rank, by which the wire's events find it.
    pub(crate) fn number(&mut self, id: Id) {
        self.token = id.to_wire() | TOKEN;
    }

    /// What the peer is to be told, so that it can join.
    pub fn offer(&self) -> &Offer {
        &self.offer
    }

    /// The peer has told its end: from now on bytes go.
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

    /// Puts bytes, as many as go now, and says how many. They can be used again at once.
    pub(crate) fn put<W: Wire<Memory = M>>(&mut self, wire: &mut W, data: &[u8]) -> Result<Result<usize, Fault>, Lost> {
        self.listen(wire)?;
        if let Some(fault) = self.cannot_put() {
            return Ok(Err(fault));
        }
        // Behind a buffer that is under way, or a mark that was refused: later.
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

    /// Gets bytes into memory, as many as have come and there is room for, and says how many; `None` at the end. Those of a
    /// buffer that the peer has kept are moved over in pieces, if `bounce`.
    pub(crate) fn get<W: Wire<Memory = M>>(
        &mut self,
        wire: &mut W,
        into: &mut [u8],
        bounce: bool,
    ) -> Result<Option<usize>, Lost> {
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
                // Into memory of the pipe's own, as these bytes are lent for this call only.
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

    /// Starts to put all of a buffer, behind those that were started before. It is the pipe's until its outcome comes.
    pub(crate) fn start_put(&mut self, id: Id, memory: M, length: usize) {
        match self.cannot_put() {
            Some(fault) => self.putting.ended.push_back(Outcome { id, result: Err(fault), memory }),
            None => self.putting.start(id, memory, length),
        }
    }

    /// Starts to get bytes into a buffer, behind those that were started before. It ends when there is one at least, or at the
    /// end with none.
    pub(crate) fn start_get(&mut self, id: Id, memory: M, room: usize) {
        self.getting.start(id, memory, room);
    }

    /// Takes back a get that has not begun.
    pub(crate) fn withdraw(&mut self, id: Id) -> Option<M> {
        self.getting.withdraw(id)
    }

    /// Takes what has come, and posts what can go.
    pub(crate) fn turn<W: Wire<Memory = M>>(&mut self, wire: &mut W) -> Result<(), Lost> {
        self.listen(wire)?;
        if !self.gone && self.post.is_free(wire) {
            let (config, rides, token) = (&self.offer.config, self.arrivals.tail(), self.token | OF_PUT);
            if self.putting.turn(wire, &mut self.post, config, rides, token)? {
                self.arrivals.rode();
            }
        }
        self.turn_get(wire)?;
        self.wind_up();
        self.tell(wire);
        Ok(())
    }

    /// A put or get that has ended.
    pub(crate) fn outcome(&mut self) -> Option<Outcome<M>> {
        self.putting.ended.pop_front().or_else(|| self.getting.ended.pop_front())
    }

    /// The program puts no more: the peer comes to the end after what was put and started.
    pub(crate) fn end(&mut self) {
        self.phase = self.phase.max(Phase::Ended);
    }

    /// The program neither puts nor gets any more. What was put and started is delivered; what comes is dropped.
    pub(crate) fn close(&mut self) {
        self.phase = self.phase.max(Phase::Closing);
        self.getting.drop_waiting();
    }

    /// The ends do not come together, which both know, and neither writes.
    pub(crate) fn refuse(&mut self) {
        self.void = true;
        self.close();
    }

    /// A read or write of this pipe is done.
    pub(crate) fn moved<W: Wire<Memory = M>>(&mut self, wire: &mut W, token: u64) {
        if token & OF_PUT != 0 {
            self.putting.written();
        } else if let Some(answer) = self.getting.moved(wire, self.lane) {
            self.to_tell.push_back(answer);
        }
    }

    /// An immediate value of the peer for this pipe.
    pub(crate) fn told(&mut self, value: u32) -> Result<(), Lost> {
        match Told::of(value) {
            (Told::Ring, _) => Ok(self.arrivals.told()?),
            (Told::Control, _) => Ok(self.control_in.told()?),
            (Told::Head, value) => self.arrivals.head(value.into(), true).map(drop),
            (Told::Tail, value) => self.putting.tail(value.into(), true).map(drop),
        }
    }

    /// The peer is lost, and neither it nor the wire touches any memory of the pipe's any more. What has come can be got,
    /// first by the buffers that wait; the others are given back.
    pub(crate) fn lose<W: Wire<Memory = M>>(&mut self, wire: &mut W) -> Vec<(Id, M)> {
        if !std::mem::replace(&mut self.gone, true) {
            wire.release(self.lane, self.offer.key);
            self.to_tell.clear();
        }
        // What is broken was told already, or is not worth to be.
        let _ = self.turn(wire);
        let mut left = self.putting.abandon(wire, self.lane);
        left.extend(self.getting.abandon(wire, self.lane));
        left
    }

    /// Gives back its memory.
    pub(crate) fn give_back<W: Wire<Memory = M>>(mut self, wire: &mut W) {
        if !self.gone {
            wire.release(self.lane, self.offer.key);
            self.post.leave(wire);
        }
        self.getting.give_back(wire);
        wire.give(self.memory);
    }

    /// Who is at the other end.
    pub fn peer(&self) -> Rank {
        self.lane.peer
    }

    /// What was counted.
    pub fn count(&self) -> Count {
        Count { got: self.getting.got, ..self.post.count }
    }

    /// Whether the next bytes are in a buffer that the peer has kept, for one that the pipe owns to get.
    pub(crate) fn is_remote(&self) -> bool {
        self.getting.is_idle() && self.getting.is_remote()
    }

    /// Whether the peer is lost.
    pub fn is_gone(&self) -> bool {
        self.gone
    }

    /// Whether something of it waits for the wire or the peer, so that it needs turns.
    pub fn is_active(&self) -> bool {
        let busy = !self.putting.is_idle() || !self.getting.is_idle();
        busy || self.is_refused() || (self.phase >= Phase::Closing && !self.gone)
    }

    /// Whether the peer waits for something that this end has still to post.
    pub fn is_needed(&self) -> bool {
        let untold = match self.phase {
            Phase::Open | Phase::Closed => false,
            Phase::Ended => !self.putting.is_over(),
            Phase::Closing | Phase::Shut => true,
        };
        !self.gone && self.post.is_joined() && (!self.putting.is_idle() || self.is_refused() || untold)
    }

    /// Whether the wire has refused something, so that it is to be tried again.
    pub fn is_refused(&self) -> bool {
        !self.gone && self.post.is_joined() && (self.post.is_refused() || !self.to_tell.is_empty())
    }

    /// Whether the program has closed it, and the peer has, or is lost, or they have not come together: its memory can be given back.
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

    /// Takes control and pointers, and notes which chunks have come.
    fn listen<W: Wire<Memory = M>>(&mut self, wire: &mut W) -> Result<(), Lost> {
        while let Some(control) = packet::next_control(wire, &self.memory, &mut self.control_in)? {
            self.heard = true;
            match control {
                Control::End { total } => self.getting.end(total)?,
                Control::Shut => {
                    self.peer_shut = true;
                    self.putting.close(wire, self.lane);
                }
                Control::Close if self.peer_shut => self.peer_closed = true,
                Control::Close => {
                    return Err(Lost::Broken("it has closed its pipe before it said that it gets no more"));
                }
                answer => self.putting.answered(wire, &mut self.post, answer)?,
            }
        }
        if self.post.words {
            self.heard |= self.putting.tail(wire.word(&self.memory, TAIL), false)?;
            self.heard |= self.arrivals.head(wire.word(&self.memory, HEAD), false)?;
        }
        while let Some(freed) = self.arrivals.look(wire, &self.memory)? {
            self.heard = true;
            self.putting.freed(freed)?;
        }
        Ok(())
    }

    /// Whether something has come since this was asked last: bytes, room, or that the peer ends.
    pub(crate) fn take_heard(&mut self) -> bool {
        std::mem::take(&mut self.heard)
    }

    fn turn_get<W: Wire<Memory = M>>(&mut self, wire: &mut W) -> Result<(), Lost> {
        let lane = (!self.gone).then_some(self.lane);
        let (memory, arrivals) = (&self.memory, &mut self.arrivals);
        let answer = self.getting.turn(wire, &mut self.post, memory, arrivals, lane, self.token)?;
        if self.getting.went_on() {
            self.control_out.freed(self.controls.1)?;
        }
        self.to_tell.extend(answer);
        Ok(())
    }

    /// Says that this end gets no more, puts no more, and then that it posts no more, once that is so.
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
        // The end of the stream comes after its last byte.
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
