//! What a request is.

use crate::error::{Error, Status};
use crate::packet::{Envelope, Keys};
use crate::rates::Way;
use crate::rendezvous::{Receiving, Sending};
use crate::slab::Id;
use crate::striping::Timed;
use crate::wire::Rank;

/// Where a message is received.
#[derive(Debug)]
pub enum Room<M> {
    /// Into the first bytes of this memory, so many.
    Into(M, usize),
    /// Into memory that is taken when the message is matched.
    Allocate,
    /// Into memory that this function makes when the message is matched, of as many bytes as that has. It must not use the engine. Where
    /// it makes none the message is received as by `Allocate`.
    Make(fn(usize) -> Option<M>),
    /// Nowhere yet: the request completes when it is matched, and its number is that of a message then; see
    /// [`Engine::receive_message`](super::Engine::receive_message).
    Probe,
}

impl<M> Room<M> {
    /// The memory that was given.
    pub fn into_memory(self) -> Option<M> {
        match self {
            Room::Into(memory, _) => Some(memory),
            Room::Allocate | Room::Make(_) | Room::Probe => None,
        }
    }

    /// What it is for a message of so many bytes.
    pub(super) fn of(self, length: u64) -> Self {
        match (self, usize::try_from(length)) {
            (Room::Make(make), Ok(length)) => make(length).map_or(Room::Allocate, |memory| Room::Into(memory, length)),
            (Room::Make(_), Err(_)) => Room::Allocate,
            (room, _) => room,
        }
    }
}

/// A request that has ended.
#[derive(Debug)]
pub struct Completion<M> {
    /// Which.
    pub id: Id,
    /// How.
    pub result: Result<Status, Error>,
    /// What it was given, or took; neither the peer nor an adapter touches it any more.
    pub memory: Option<M>,
}

/// What came of a cancel.
#[derive(Debug, PartialEq, Eq)]
pub enum Cancelled<M> {
    /// The receive is no more; what it was given.
    Withdrawn(Option<M>),
    /// It has its message, and completes; or there is none of this number.
    TooLate,
}

pub(super) enum Request<M> {
    Send(Send<M>),
    Receive(Receive<M>),
    Message(Unexpected<M>),
    /// A put or get of a pipe, which has its memory.
    Piped(Id),
    /// One that has ended, and its memory, until somebody takes it.
    Over(Result<Status, Error>, Option<M>),
}

pub(super) struct Send<M> {
    pub to: Rank,
    pub envelope: Envelope,
    pub sync: bool,
    pub memory: M,
    pub state: Sending,
    /// Of its memory, where it is registered. Boxed, as below: most messages are short, and requests are moved.
    pub keys: Option<Box<Keys>>,
    /// The receiver's request, once it has answered.
    pub receiver: Option<Id>,
    /// Its stripes, if they are several.
    pub timed: Option<Box<Timed>>,
}

pub(super) struct Receive<M> {
    pub room: Room<M>,
    /// Its number in the matching, until it is matched.
    pub posted: Option<Id>,
    pub moving: Option<Box<Moving>>,
    pub keys: Option<Box<Keys>>,
}

/// A receive whose message waits at its sender.
pub(super) struct Moving {
    pub from: Rank,
    pub envelope: Envelope,
    pub sender: Id,
    /// What there is room for; `None` if there was no memory to take.
    pub room: Option<u64>,
    pub state: Receiving,
    /// Its stripes, if it is read in several.
    pub timed: Option<Box<Timed>>,
    /// If both ways were there.
    pub way: Option<Way>,
}

/// A message that no receive waits for.
pub(super) struct Unexpected<M> {
    pub from: Rank,
    pub envelope: Envelope,
    pub what: What<M>,
}

pub(super) enum What<M> {
    /// It is here.
    Eager { data: M, sync: Option<Id> },
    /// It waits at its sender. Boxed, since most are copied in packets, and have no keys.
    Rts { sender: Id, keys: Option<Box<Keys>> },
}

impl Moving {
    /// Bytes that come.
    pub fn length(&self) -> u64 {
        self.room.unwrap_or(0).min(self.envelope.length)
    }
}

impl<M> Unexpected<M> {
    pub fn status(&self) -> Status {
        Status { peer: self.from, tag: self.envelope.tag, length: self.envelope.length }
    }

    /// What it costs its receiver, in bytes.
    pub fn cost(&self) -> u64 {
        match self.what {
            What::Eager { .. } => cost(self.envelope.length),
            What::Rts { .. } => cost(0),
        }
    }
}

pub(super) fn cost(length: u64) -> u64 {
    u64::from(crate::credit::HEADER).saturating_add(length)
}

impl<M> Receive<M> {
    pub fn new(room: Room<M>) -> Receive<M> {
        Receive { room, posted: None, moving: None, keys: None }
    }
}

/// How a receive ends, by the room that there was.
pub(super) fn outcome(peer: Rank, envelope: Envelope, room: Option<u64>) -> Result<Status, Error> {
    let status = Status { peer, tag: envelope.tag, length: envelope.length };
    match room {
        None => Err(Error::NoMemory { status }),
        Some(room) if room < status.length => Err(Error::Truncated { status, room }),
        Some(_) => Ok(status),
    }
}
