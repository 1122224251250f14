//! Requests: sends, receives, probed messages and pipe operations.

use crate::error::{Error, Status};
use crate::packet::{Envelope, Keys};
use crate::rendezvous::{Receiving, Sending};
use crate::slab::Id;
use crate::striping::Timed;
use crate::tuner::Protocol;
use crate::wire::Rank;

/// Target of a receive.
#[derive(Debug)]
pub enum RecvTarget<M> {
    /// The first bytes of this memory, at most this many.
    Into(M, usize),
    /// Memory that is allocated when the message is matched.
    Allocate,
    /// Memory that this function makes when the message is matched, given the message's length. The function
    /// must not use the engine. If it returns `None`, the message is received as by `Allocate`.
    Make(fn(usize) -> Option<M>),
    /// No memory yet: the request completes when it is matched, and its number then names the message; see
    /// [`Engine::receive_message`](super::Engine::receive_message).
    Probe,
}

impl<M> RecvTarget<M> {
    /// The memory given by the caller, if any.
    pub fn into_memory(self) -> Option<M> {
        match self {
            RecvTarget::Into(memory, _) => Some(memory),
            RecvTarget::Allocate | RecvTarget::Make(_) | RecvTarget::Probe => None,
        }
    }

    /// Becomes the room for a message of `length` bytes.
    pub(super) fn make(&mut self, length: u64) {
        if let RecvTarget::Make(make) = self {
            let made = usize::try_from(length).ok().and_then(|length| Some(RecvTarget::Into(make(length)?, length)));
            *self = made.unwrap_or(RecvTarget::Allocate);
        }
    }

    /// Capacity in bytes; `None` if memory is exhausted.
    pub(super) fn length(&self) -> Option<u64> {
        if let RecvTarget::Into(_, length) = self { Some(*length as u64) } else { None }
    }
}

/// A request that has ended.
#[derive(Debug)]
pub struct Completion<M> {
    /// The request.
    pub id: Id,
    /// Its result.
    pub result: Result<Status, Error>,
    /// Memory that the request was given, or allocated. Neither the peer nor an adapter accesses it any more.
    pub memory: Option<M>,
}

/// Outcome of a cancel.
#[derive(Debug, PartialEq, Eq)]
pub enum Cancelled<M> {
    /// The receive was withdrawn; its memory is returned.
    Withdrawn(Option<M>),
    /// The receive was matched and completes; or there is no receive of this number.
    TooLate,
}

pub(super) enum Request<M> {
    Send(Send<M>),
    Receive(Receive<M>),
    Message(Unexpected<M>),
    /// A put or get of this pipe, which has its memory.
    Piped(Id),
    /// A request that has ended, and its memory, until the program takes them.
    Over(Result<Status, Error>, Option<M>),
}

pub(super) struct Send<M> {
    pub to: Rank,
    pub envelope: Envelope,
    pub sync: bool,
    pub memory: M,
    pub state: Sending,
    /// Keys of its memory, if registered. Boxed, like `timed`, because requests are moved and most messages
    /// are short.
    pub keys: Option<Box<Keys>>,
    /// The receiver's request, once it has answered.
    pub receiver: Option<Id>,
    /// Times of its stripes, if there are several.
    pub timed: Option<Box<Timed>>,
}

pub(super) struct Receive<M> {
    pub room: RecvTarget<M>,
    /// Its number in the matching, until it is matched.
    pub posted: Option<Id>,
    pub moving: Option<Box<Moving>>,
    pub keys: Option<Box<Keys>>,
}

/// Rendezvous of a receive whose message waits at the sender.
pub(super) struct Moving {
    pub from: Rank,
    pub envelope: Envelope,
    pub sender: Id,
    /// Capacity of the receive in bytes; `None` if allocation failed.
    pub room: Option<u64>,
    pub state: Receiving,
    /// Times of its stripes, if it is read in several.
    pub timed: Option<Box<Timed>>,
    /// Protocol, if there was a choice.
    pub way: Option<Protocol>,
}

/// A message that matched no posted receive.
pub(super) struct Unexpected<M> {
    pub from: Rank,
    pub envelope: Envelope,
    pub what: UnexpectedBody<M>,
}

pub(super) enum UnexpectedBody<M> {
    /// The data has arrived. `sync` is the sender's request if it waits for the match.
    Eager { data: M, sync: Option<Id> },
    /// The data is at the sender. The keys are boxed, because most such messages are copied in packets and have none.
    Rts { sender: Id, keys: Option<Box<Keys>> },
}

impl<M> Request<M> {
    /// The peer that a send or a matched receive moves its message to or from.
    pub fn peer(&self) -> Option<Rank> {
        match self {
            Request::Send(send) => Some(send.to),
            Request::Receive(receive) => receive.moving.as_ref().map(|moving| moving.from),
            Request::Message(_) | Request::Piped(_) | Request::Over(..) => None,
        }
    }

    /// Times of the stripes of a send or receive.
    pub fn timed(&mut self) -> Option<&mut Timed> {
        match self {
            Request::Send(send) => send.timed.as_deref_mut(),
            Request::Receive(receive) => receive.moving.as_mut()?.timed.as_deref_mut(),
            Request::Message(_) | Request::Piped(_) | Request::Over(..) => None,
        }
    }

    /// Drops the times of the stripes: a stripe that took another rail than planned must not adapt the
    /// weights.
    pub fn forget_times(&mut self) {
        match self {
            Request::Send(send) => send.timed = None,
            Request::Receive(Receive { moving: Some(moving), .. }) => moving.timed = None,
            _ => {}
        }
    }

    /// Memory that is sent or received into, and its registrations.
    pub fn memory(&mut self) -> Option<(&M, &mut Option<Box<Keys>>)> {
        match self {
            Request::Send(send) => Some((&send.memory, &mut send.keys)),
            Request::Receive(Receive { room: RecvTarget::Into(memory, _), keys, .. }) => Some((memory, keys)),
            Request::Receive(_) | Request::Message(_) | Request::Piped(_) | Request::Over(..) => None,
        }
    }
}

impl<M> Send<M> {
    pub fn status(&self) -> Status {
        Status { peer: self.to, tag: self.envelope.tag, length: self.envelope.length }
    }
}

impl Moving {
    /// Number of bytes to receive.
    pub fn length(&self) -> u64 {
        self.room.unwrap_or(0).min(self.envelope.length)
    }
}

impl<M> Unexpected<M> {
    pub fn status(&self) -> Status {
        Status { peer: self.from, tag: self.envelope.tag, length: self.envelope.length }
    }

    /// Its cost to the receiver, in bytes.
    pub fn cost(&self) -> u64 {
        match self.what {
            UnexpectedBody::Eager { .. } => cost(self.envelope.length),
            UnexpectedBody::Rts { .. } => cost(0),
        }
    }
}

/// Cost of a message of `length` bytes to its receiver, in bytes.
#[inline(always)]
pub(super) fn cost(length: u64) -> u64 {
    u64::from(crate::credit::HEADER).saturating_add(length)
}

impl<M> Receive<M> {
    pub fn new(room: RecvTarget<M>) -> Receive<M> {
        Receive { room, posted: None, moving: None, keys: None }
    }
}

/// Result of a receive that has room for `room` bytes.
pub(super) fn outcome(peer: Rank, envelope: Envelope, room: Option<u64>) -> Result<Status, Error> {
    let status = Status { peer, tag: envelope.tag, length: envelope.length };
    match room {
        None => Err(Error::NoMemory { status }),
        Some(room) if room < status.length => Err(Error::Truncated { status, room }),
        Some(_) => Ok(status),
    }
}
