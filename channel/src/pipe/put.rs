//! The sending half of a pipe.

use super::packet::{Chunk, Control};
use super::post::{Post, Told, extend};
use super::{Config, Fault, HEAD, Outcome, RING, Step};
use crate::error::PeerFailure;
use crate::ring::Sender;
use crate::slab::Id;
use crate::wire::{Data, Key, Lane, Part, Rail, RailKind, Request, Wire};
use std::collections::VecDeque;

pub(super) struct Putting<M> {
    way: Way,
    /// Buffers that the pipe owns, in order; the first is in flight.
    puts: VecDeque<Put<M>>,
    /// The peer's answer about the announced bytes of the first buffer.
    answer: Option<Control>,
    /// Bytes of the stream sent so far.
    sent: u64,
    /// True if the end of the stream was reported to the peer.
    over: bool,
    /// True if the peer has closed its end.
    closed: bool,
    pub ended: VecDeque<Outcome<M>>,
}

/// The peer's ring, as known to this end.
enum Way {
    /// Pointers count bytes since the start of the stream.
    Bytes { size: u64, chunk: usize, head: u64, told: u64, tail: u64, staging: Vec<u8> },
    /// Uses `staging` if all of a put is copied before any of it is written.
    Chunks { ring: Sender, payload: usize, freed: u64, staging: Option<Vec<u8>> },
}

struct Put<M> {
    id: Id,
    memory: M,
    length: usize,
    /// Bytes already moved.
    at: usize,
    how: How,
}

/// State of a buffer, with the key of its memory.
#[derive(Clone, Copy)]
enum How {
    New,
    Copied,
    Offering(Key),
    Offered(Key),
    Announcing(Key),
    Announced(Key),
    /// `length`: bytes of the write. `fin`: whether its FIN was posted. `done`: whether the write is
    /// complete.
    Writing {
        key: Key,
        length: usize,
        fin: bool,
        done: bool,
    },
}

const NO_ANSWER: PeerFailure = PeerFailure::Broken("it answered a put that is not in flight");

impl<M> Putting<M> {
    /// The sending half; `None` if memory is exhausted.
    pub fn new(config: &Config) -> Option<Putting<M>> {
        let shape = config.shape();
        let (size, chunk) = (shape.size() as u64, config.chunk as usize);
        let way = match config.step {
            Step::Basic => Way::Bytes { size, chunk, head: 0, told: 0, tail: 0, staging: staging(shape.size())? },
            step => {
                let staging = if step == Step::Piggyback { Some(staging(shape.size())?) } else { None };
                let ring = Sender::new(0, shape, Key { address: 0, key: 0 });
                Way::Chunks { ring, payload: config.payload(), freed: 0, staging }
            }
        };
        let (puts, ended) = (VecDeque::new(), VecDeque::new());
        Some(Putting { way, puts, answer: None, sent: 0, over: false, closed: false, ended })
    }

    /// Returns true if no buffer is in flight.
    pub fn is_idle(&self) -> bool {
        self.puts.is_empty()
    }

    pub fn is_over(&self) -> bool {
        self.over
    }

    /// Length of the stream at its end; `None` after the first call.
    pub fn over(&mut self) -> Option<u64> {
        (!std::mem::replace(&mut self.over, true)).then_some(self.sent)
    }

    /// Copies and posts as many bytes as possible now. The chunks carry `freed`.
    pub fn copy<W: Wire<Memory = M>>(&mut self, wire: &mut W, post: &mut Post, freed: u32, data: Data<'_, M>) -> usize {
        let moved = self.way.copy(wire, post, freed, data);
        self.sent += moved as u64;
        moved
    }

    pub fn start(&mut self, id: Id, memory: M, length: usize) {
        self.puts.push_back(Put { id, memory, length, at: 0, how: How::New });
    }

    /// Advances the buffers. Returns whether a chunk that carries `freed` was posted.
    pub fn progress<W: Wire<Memory = M>>(
        &mut self,
        wire: &mut W,
        post: &mut Post,
        config: &Config,
        freed: u32,
        token: u64,
    ) -> Result<bool, PeerFailure> {
        let (mut rode, lane) = (false, post.lane);
        while let Some(put) = self.puts.front_mut() {
            match put.how {
                How::New => put.how = choose(wire, post, config, put),
                How::Copied => {
                    let left = Part { memory: &put.memory, at: put.at, length: put.length - put.at };
                    let moved = self.way.copy(wire, post, freed, Data::Of(left));
                    rode |= moved > 0;
                    put.at += moved;
                    self.sent += moved as u64;
                    if put.at < put.length {
                        break;
                    }
                    self.finish(wire, lane, None, Ok(()));
                }
                How::Offering(key) => {
                    let offer = Chunk::Offer { length: put.length as u64, key };
                    if !self.way.chunk(wire, post, freed, offer) {
                        break;
                    }
                    (put.how, rode) = (How::Offered(key), true);
                }
                How::Announcing(key) => {
                    if !self.way.chunk(wire, post, freed, Chunk::Announce { length: put.length as u64 }) {
                        break;
                    }
                    (put.how, rode) = (How::Announced(key), true);
                }
                How::Offered(_) => break,
                How::Announced(key) => {
                    let (to, length) = match self.answer {
                        None => break,
                        Some(Control::Clear { length, key }) => (key, length),
                        Some(Control::Refuse { done }) if done == put.at as u64 => {
                            self.answer = None;
                            wire.release(lane, key);
                            post.count.downgrades += 1;
                            put.how = How::Copied;
                            continue;
                        }
                        Some(_) => return Err(NO_ANSWER),
                    };
                    if length == 0 || length > (put.length - put.at) as u64 {
                        return Err(PeerFailure::Broken("it requested an invalid number of bytes of a put"));
                    }
                    let length = length as usize;
                    let from = Part { memory: &put.memory, at: put.at, length };
                    if wire.post(lane, Request::Write { from, to, at: 0, token }).is_err() {
                        post.refuse();
                        break;
                    }
                    self.answer = None;
                    put.how = How::Writing { key, length, fin: false, done: false };
                }
                // The FIN uses the lane of the write, and so follows it.
                How::Writing { key, length, fin: false, done } => {
                    if !self.way.chunk(wire, post, freed, Chunk::Fin { length: length as u64 }) {
                        break;
                    }
                    (put.how, rode) = (How::Writing { key, length, fin: true, done }, true);
                }
                How::Writing { done: false, .. } => break,
                How::Writing { key, length, .. } => {
                    put.at += length;
                    self.sent += length as u64;
                    post.count.written += length as u64;
                    let closed = self.closed;
                    if put.at == put.length {
                        self.finish(wire, lane, Some(key), Ok(()));
                    } else if closed {
                        self.finish(wire, lane, Some(key), Err(Fault::Closed));
                    } else {
                        put.how = How::Announced(key);
                    }
                }
            }
        }
        Ok(rode)
    }

    /// Handles the peer's answer about the first buffer.
    pub fn answered<W: Wire<Memory = M>>(
        &mut self,
        wire: &mut W,
        post: &mut Post,
        answer: Control,
    ) -> Result<(), PeerFailure> {
        let put = self.puts.front_mut().ok_or(NO_ANSWER)?;
        match (answer, put.how) {
            (Control::Ack, How::Offered(key)) => {
                self.sent += put.length as u64;
                post.count.read += put.length as u64;
                put.at = put.length;
                self.finish(wire, post.lane, Some(key), Ok(()));
            }
            (Control::Refuse { done }, How::Offered(key)) if done < put.length as u64 => {
                wire.release(post.lane, key);
                post.count.downgrades += 1;
                self.sent += done;
                (put.at, put.how) = (done as usize, How::Copied);
            }
            // The answer may arrive before this end knows that the last write is complete.
            (Control::Clear { .. } | Control::Refuse { .. }, How::Announced(_) | How::Writing { .. })
                if self.answer.is_none() =>
            {
                self.answer = Some(answer);
            }
            _ => return Err(NO_ANSWER),
        }
        Ok(())
    }

    /// Records that the write of the first buffer is complete.
    pub fn written(&mut self) {
        if let Some(Put { how: How::Writing { done, .. }, .. }) = self.puts.front_mut() {
            *done = true;
        }
    }

    /// Applies the peer's tail pointer, or its low bits. Returns whether it is new.
    pub fn tail(&mut self, value: u64, low: bool) -> Result<bool, PeerFailure> {
        let beyond = PeerFailure::Broken("a tail pointer of its pipe is out of range");
        match &mut self.way {
            Way::Bytes { head, tail, .. } => {
                let value = if low { extend(*tail, value) } else { value };
                if value < *tail || value > *head {
                    return Err(beyond);
                }
                Ok(std::mem::replace(tail, value) != value)
            }
            Way::Chunks { freed, .. } => {
                let value = if low { extend(*freed, value) } else { value };
                self.freed_to(value)
            }
        }
    }

    /// Applies the low bits of the count of freed chunks, as carried by a chunk.
    pub fn freed(&mut self, low: u32) -> Result<(), PeerFailure> {
        let Way::Chunks { freed, .. } = &self.way else { return Ok(()) };
        let more = low.wrapping_sub(*freed as u32);
        // Older values are ignored.
        if more < 1 << 31 {
            self.freed_to(*freed + u64::from(more))?;
        }
        Ok(())
    }

    fn freed_to(&mut self, value: u64) -> Result<bool, PeerFailure> {
        if let Way::Chunks { ring, freed, .. } = &mut self.way
            && value > *freed
        {
            if value - *freed > u64::from(ring.flying()) {
                return Err(PeerFailure::Broken("a tail pointer of its pipe is out of range"));
            }
            ring.freed(value as u32)?;
            *freed = value;
            return Ok(true);
        }
        Ok(false)
    }

    /// Reports the head pointer, unless it was reported. `false` if the wire refuses.
    pub fn tell<W: Wire<Memory = M>>(&mut self, wire: &mut W, post: &mut Post) -> bool {
        self.way.tell(wire, post)
    }

    /// Ends the waiting puts. The peer has reported that it gets no more and accesses no memory of this end.
    pub fn close<W: Wire<Memory = M>>(&mut self, wire: &mut W, lane: Lane) {
        self.closed = true;
        let kept = usize::from(matches!(self.puts.front(), Some(Put { how: How::Writing { .. }, .. })));
        for put in self.puts.drain(kept..) {
            put.how.key().into_iter().for_each(|key| wire.release(lane, key));
            self.ended.push_back(Outcome { id: put.id, result: Err(Fault::Closed), memory: put.memory });
        }
    }

    /// Returns the buffers of all puts. No peer or adapter accesses them any more.
    pub fn abandon<W: Wire<Memory = M>>(&mut self, wire: &mut W, lane: Lane) -> Vec<(Id, M)> {
        let puts = std::mem::take(&mut self.puts).into_iter();
        puts.map(|put| {
            put.how.key().into_iter().for_each(|key| wire.release(lane, key));
            (put.id, put.memory)
        })
        .collect()
    }

    fn finish<W: Wire<Memory = M>>(&mut self, wire: &mut W, lane: Lane, key: Option<Key>, result: Result<(), Fault>) {
        key.into_iter().for_each(|key| wire.release(lane, key));
        if let Some(Put { id, memory, length, .. }) = self.puts.pop_front() {
            self.ended.push_back(Outcome { id, result: result.map(|()| length), memory });
        }
    }
}

/// Chooses how a buffer moves: in place or copied.
fn choose<W: Wire>(wire: &mut W, post: &mut Post, config: &Config, put: &Put<W::Memory>) -> How {
    let lane = post.lane;
    let Rail { read, write, kind, .. } = wire.rails(wire.is_near(lane.peer))[0];
    // A FIN must follow its write in order, which datagrams do not guarantee.
    let write = write && kind != RailKind::Datagram;
    let long = put.length >= (config.zero_copy_from as usize).max(1);
    let offer: fn(Key) -> How = How::Offering;
    let how = match config.step {
        Step::Read if read => offer,
        Step::Write if write => How::Announcing,
        // The rail does not support the chosen step; use the other one.
        Step::Read if write => How::Announcing,
        Step::Write if read => offer,
        _ => return How::Copied,
    };
    if !long {
        return How::Copied;
    }
    match wire.register(&put.memory, lane) {
        Some(key) => how(key),
        None => {
            post.count.downgrades += 1;
            How::Copied
        }
    }
}

impl How {
    fn key(self) -> Option<Key> {
        match self {
            How::New | How::Copied => None,
            How::Offering(key) | How::Offered(key) | How::Announcing(key) | How::Announced(key) => Some(key),
            How::Writing { key, .. } => Some(key),
        }
    }
}

/// Allocates staging memory, into which a put is copied before it is written.
fn staging(length: usize) -> Option<Vec<u8>> {
    let mut staging = Vec::new();
    staging.try_reserve_exact(length).ok()?;
    staging.resize(length, 0);
    Some(staging)
}

/// Copies `data` into staging memory.
fn stage<'s, W: Wire>(wire: &W, data: Data<'_, W::Memory>, staging: &'s mut [u8]) -> Data<'s, W::Memory> {
    let there = &mut staging[..data.length()];
    match data {
        Data::None => {}
        Data::Of(part) => wire.read(part.memory, part.at, there),
        Data::Bytes(bytes) => there.copy_from_slice(bytes),
    }
    Data::Bytes(there)
}

impl Way {
    fn copy<W: Wire>(&mut self, wire: &mut W, post: &mut Post, freed: u32, data: Data<'_, W::Memory>) -> usize {
        let mut moved = 0;
        match self {
            Way::Bytes { size, chunk, head, tail, staging, .. } => {
                let most = data.length().min((*size - (*head - *tail)) as usize);
                let from = stage(wire, data.stretch(0, most), staging);
                while moved < most {
                    let at = (*head % *size) as usize;
                    let length = (most - moved).min(*chunk).min(*size as usize - at);
                    if !post.bytes(wire, RING + at, from.stretch(moved, length)) {
                        break;
                    }
                    moved += length;
                    *head += length as u64;
                }
                self.tell(wire, post);
            }
            Way::Chunks { ring, payload, staging, .. } => {
                let free = (ring.shape.slots - ring.flying()) as usize;
                let most = data.length().min(free * *payload);
                let from = match staging {
                    Some(staging) => stage(wire, data.stretch(0, most), staging),
                    None => data,
                };
                let (head, bytes) = Chunk::Data.encode(freed);
                while moved < most {
                    let length = (most - moved).min(*payload);
                    if !post.message(wire, ring, RING, Told::Ring, &head[..bytes], from.stretch(moved, length)) {
                        break;
                    }
                    moved += length;
                }
            }
        }
        post.count.copied += moved as u64;
        moved
    }

    /// Posts a chunk without data.
    fn chunk<W: Wire>(&mut self, wire: &mut W, post: &mut Post, freed: u32, chunk: Chunk) -> bool {
        let Way::Chunks { ring, .. } = self else { unreachable!("the first step copies all") };
        let (head, bytes) = chunk.encode(freed);
        post.message(wire, ring, RING, Told::Ring, &head[..bytes], Data::None)
    }

    fn tell<W: Wire>(&mut self, wire: &mut W, post: &mut Post) -> bool {
        let Way::Bytes { head, told, .. } = self else { return true };
        if head != told {
            if !post.value(wire, Told::Head, HEAD, *head) {
                return false;
            }
            *told = *head;
        }
        true
    }
}
