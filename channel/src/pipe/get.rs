//! The receiving half of a pipe.

use super::arrive::Arrivals;
use super::packet::{Chunk, Control};
use super::post::Post;
use super::{Fault, Outcome};
use crate::error::PeerFailure;
use crate::slab::Id;
use crate::wire::{Key, Lane, Part, Request, Wire, WireMemory};
use std::collections::VecDeque;

pub(super) struct Getting<M> {
    /// Buffers that the pipe owns, in order, and the room of each in bytes.
    gets: VecDeque<(Id, M, usize)>,
    /// The peer's buffer that holds the next bytes of the stream.
    remote: Option<Remote>,
    moving: Option<Moving<M>>,
    /// Memory of the pipe with bytes moved from the peer, and the start and end of those not yet got.
    bounced: Option<(M, usize, usize)>,
    /// True if the peer has continued since the last answer to a put.
    went_on: bool,
    /// Length of the stream in bytes, once the peer has ended it.
    end: Option<u64>,
    pub got: u64,
    pub ended: VecDeque<Outcome<M>>,
}

/// Destination of bytes.
pub(super) enum To<'a, M> {
    /// Memory that the pipe owns.
    Memory(&'a M),
    /// Bytes borrowed for the call.
    Bytes(&'a mut [u8]),
}

impl<M: WireMemory> To<'_, M> {
    fn fill(&mut self, at: usize, from: Part<'_, M>) {
        match self {
            To::Memory(memory) => from.copy(memory, at),
            To::Bytes(bytes) => from.memory.read(from.at, &mut bytes[at..at + from.length]),
        }
    }
}

/// A buffer of the peer.
struct Remote {
    /// Key to read it by; `None` if the peer is to write its bytes.
    from: Option<Key>,
    at: u64,
    left: u64,
}

/// A transfer of such bytes, into a buffer of the program or memory of the pipe.
struct Moving<M> {
    id: Option<Id>,
    memory: M,
    length: usize,
    key: Key,
    /// True if the read was posted, or the write requested.
    posted: bool,
}

/// Longest buffer in bytes.
const LONGEST: u64 = 1 << 62;

impl<M: WireMemory> Getting<M> {
    pub fn new() -> Getting<M> {
        Getting {
            gets: VecDeque::new(),
            remote: None,
            moving: None,
            bounced: None,
            went_on: false,
            end: None,
            got: 0,
            ended: VecDeque::new(),
        }
    }

    /// Returns true if no buffer waits and no transfer is in flight.
    pub fn is_idle(&self) -> bool {
        self.gets.is_empty() && self.moving.is_none()
    }

    /// Returns true if the next bytes are in a buffer of the peer.
    pub fn is_remote(&self) -> bool {
        self.remote.is_some() && self.bounced.is_none()
    }

    pub fn start(&mut self, id: Id, memory: M, room: usize) {
        self.gets.push_back((id, memory, room));
    }

    pub fn withdraw(&mut self, id: Id) -> Option<M> {
        let at = self.gets.iter().position(|get| get.0 == id)?;
        self.gets.remove(at).map(|(_, memory, _)| memory)
    }

    /// Ends all waiting gets: the program gets no more.
    pub fn drop_waiting(&mut self) {
        for (id, memory, _) in self.gets.drain(..) {
            self.ended.push_back(Outcome { id, result: Err(Fault::Shut), memory });
        }
    }

    /// Returns true if the peer has continued since the last answer, and so has received it. Resets the flag.
    pub fn went_on(&mut self) -> bool {
        std::mem::take(&mut self.went_on)
    }

    /// Handles the end of the peer's stream.
    pub fn end(&mut self, total: u64) -> Result<(), PeerFailure> {
        match self.end.replace(total) {
            None => Ok(()),
            Some(_) => Err(PeerFailure::Broken("it ended its pipe twice")),
        }
    }

    /// Returns true if all bytes of an ended stream were got.
    pub fn is_over(&self, arrivals: &Arrivals) -> Result<bool, PeerFailure> {
        let nothing_left =
            self.remote.is_none() && self.moving.is_none() && self.bounced.is_none() && arrivals.front().is_none();
        match self.end {
            Some(total) if nothing_left && total != self.got => {
                Err(PeerFailure::Broken("it ended its pipe before the last byte"))
            }
            end => Ok(end.is_some() && nothing_left),
        }
    }

    /// Copies bytes that have arrived, up to `room`.
    pub fn take<W: Wire<Memory = M>>(
        &mut self,
        wire: &mut W,
        memory: &M,
        arrivals: &mut Arrivals,
        mut into: To<'_, M>,
        room: usize,
    ) -> Result<usize, PeerFailure> {
        let mut taken = 0;
        while taken < room {
            let left = room - taken;
            if let Some((bounced, from, to)) = &mut self.bounced {
                let length = left.min(*to - *from);
                into.fill(taken, Part { memory: bounced, at: *from, length });
                (taken, *from) = (taken + length, *from + length);
                if from == to
                    && let Some((memory, ..)) = self.bounced.take()
                {
                    wire.give(memory);
                }
                continue;
            }
            if self.remote.is_some() {
                break;
            }
            let Some(front) = arrivals.front() else { break };
            match front.chunk {
                Chunk::Data => {
                    let length = left.min(front.length);
                    into.fill(taken, Part { memory, at: front.at, length });
                    arrivals.got(length);
                    taken += length;
                }
                Chunk::Offer { length, key } => self.meet(arrivals, Some(key), length)?,
                Chunk::Announce { length } => self.meet(arrivals, None, length)?,
                Chunk::Fin { .. } => return Err(PeerFailure::Broken("it reported a write that was not requested")),
            }
        }
        self.got += taken as u64;
        Ok(taken)
    }

    fn meet(&mut self, arrivals: &mut Arrivals, from: Option<Key>, length: u64) -> Result<(), PeerFailure> {
        if length > LONGEST {
            return Err(PeerFailure::Broken("it offered more than 2^62 bytes"));
        }
        arrivals.pop();
        self.went_on = true;
        self.remote = Some(Remote { from, at: 0, left: length });
        Ok(())
    }

    /// Starts to move bytes of the peer's buffer into memory of the pipe. May return an answer for the peer.
    pub fn bounce<W: Wire<Memory = M>>(&mut self, wire: &mut W, lane: Lane, most: usize) -> Option<Control> {
        let remote = self.remote.as_ref().filter(|_| self.moving.is_none())?;
        let memory = wire.take(most.min(remote.left as usize))?;
        self.begin(wire, lane, None, memory, most)
    }

    /// Advances the buffers. May return an answer for the peer. `lane` is `None` if the peer is lost.
    pub fn progress<W: Wire<Memory = M>>(
        &mut self,
        wire: &mut W,
        post: &mut Post,
        memory: &M,
        arrivals: &mut Arrivals,
        lane: Option<Lane>,
        token: u64,
    ) -> Result<Option<Control>, PeerFailure> {
        loop {
            if let Some(moving) = &mut self.moving {
                let (Some(remote), Some(lane)) = (&self.remote, lane) else { return Ok(None) };
                let length = moving.length;
                match (remote.from, arrivals.front().map(|came| came.chunk)) {
                    (Some(from), _) if !moving.posted => {
                        let into = Part { memory: &moving.memory, at: 0, length };
                        let request = Request::Read { from, at: remote.at as usize, into, token };
                        moving.posted = wire.post(lane, request).is_ok();
                        if !moving.posted {
                            post.refuse();
                        }
                        return Ok(None);
                    }
                    (None, None) if !moving.posted => {
                        moving.posted = true;
                        return Ok(Some(Control::Clear { length: length as u64, key: moving.key }));
                    }
                    (None, Some(Chunk::Fin { length: came })) if moving.posted && came == length as u64 => {
                        arrivals.pop();
                        self.went_on = true;
                        self.moved(wire, lane);
                    }
                    (None, Some(_)) => {
                        return Err(PeerFailure::Broken("it sent data before the write that it had announced"));
                    }
                    _ => return Ok(None),
                }
            }
            let Some((id, into, room)) = self.gets.pop_front() else { return Ok(None) };
            let taken = self.take(wire, memory, arrivals, To::Memory(&into), room);
            let taken = match taken {
                Ok(taken) => taken,
                Err(lost) => {
                    self.gets.push_front((id, into, room));
                    return Err(lost);
                }
            };
            if taken > 0 || room == 0 || self.is_over(arrivals)? {
                self.ended.push_back(Outcome { id, result: Ok(taken), memory: into });
                continue;
            }
            match lane {
                Some(lane) if self.remote.is_some() => {
                    let answer = self.begin(wire, lane, Some(id), into, room);
                    if answer.is_some() {
                        return Ok(answer);
                    }
                }
                _ => {
                    self.gets.push_front((id, into, room));
                    return Ok(None);
                }
            }
        }
    }

    /// Starts to move bytes of the peer's buffer into `memory`, or returns the request to copy them instead.
    fn begin<W: Wire<Memory = M>>(
        &mut self,
        wire: &mut W,
        lane: Lane,
        id: Option<Id>,
        memory: M,
        room: usize,
    ) -> Option<Control> {
        let remote = self.remote.as_ref().expect("looked up above");
        let length = remote.left.min(room as u64) as usize;
        let can = remote.from.is_none() || (wire.rails(wire.is_near(lane.peer))[0].read && wire.reads(lane));
        match if can { wire.register(&memory, lane) } else { None } {
            Some(key) => {
                self.moving = Some(Moving { id, memory, length, key, posted: false });
                None
            }
            None => {
                let done = remote.at;
                self.remote = None;
                match id {
                    Some(id) => self.gets.push_front((id, memory, room)),
                    None => wire.give(memory),
                }
                Some(Control::Refuse { done })
            }
        }
    }

    /// Records that the transfer is complete. May return an answer for the peer.
    pub fn moved<W: Wire<Memory = M>>(&mut self, wire: &mut W, lane: Lane) -> Option<Control> {
        let Moving { id, memory, length, key, .. } = self.moving.take()?;
        wire.release(lane, key);
        let remote = self.remote.as_mut()?;
        (remote.at, remote.left) = (remote.at + length as u64, remote.left - length as u64);
        let ack = remote.left == 0 && remote.from.is_some();
        if remote.left == 0 {
            self.remote = None;
        }
        match id {
            Some(id) => {
                self.got += length as u64;
                self.ended.push_back(Outcome { id, result: Ok(length), memory });
            }
            None => self.bounced = Some((memory, 0, length)),
        }
        ack.then_some(Control::Ack)
    }

    /// Returns the buffers of all gets. No peer or adapter accesses them any more. The caller has already
    /// filled those that could still be served.
    pub fn abandon<W: Wire<Memory = M>>(&mut self, wire: &mut W, lane: Lane) -> Vec<(Id, M)> {
        let mut gets = Vec::new();
        if let Some(Moving { id, memory, key, .. }) = self.moving.take() {
            wire.release(lane, key);
            match id {
                Some(id) => gets.push((id, memory)),
                None => wire.give(memory),
            }
        }
        gets.extend(self.gets.drain(..).map(|(id, memory, _)| (id, memory)));
        gets
    }

    pub fn give_back<W: Wire<Memory = M>>(self, wire: &mut W) {
        self.bounced.into_iter().for_each(|(memory, ..)| wire.give(memory));
    }
}
