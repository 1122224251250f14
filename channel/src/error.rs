//! What goes wrong.

use crate::packet::Malformed;
use crate::pipe::Fault;
use crate::rendezvous::Unfit;
use crate::sequence::Beyond;
use crate::wire::{Rank, Why};

/// What a message was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status {
    /// Whose message; of a send, to whom.
    pub peer: Rank,
    /// Its tag.
    pub tag: u32,
    /// Its length in bytes, as it was sent.
    pub length: u64,
}

/// Why a request failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The message was longer than the buffer, which holds its beginning. The sender does not learn of it.
    #[error(
        "a message of {} bytes with tag {} from rank {} came into a buffer of {room}: give it more room, or receive it \
         allocated", status.length, status.tag, status.peer
    )]
    Truncated {
        /// What came.
        status: Status,
        /// The buffer's length in bytes.
        room: u64,
    },
    /// A rank outside the job.
    #[error("there is no rank {rank}: the job's ranks are 0 to {}", ranks - 1)]
    NoSuchRank {
        /// Who was named.
        rank: Rank,
        /// How many there are.
        ranks: Rank,
    },
    /// A peer is lost, and what was to come of it, or to go there, with it.
    #[error("rank {rank} is lost: {lost}")]
    Lost {
        /// Who.
        rank: Rank,
        /// How.
        #[source]
        lost: Lost,
    },
    /// The receiver has dropped the team of a message before it was received.
    #[error("rank {rank} has dropped the team of this message, and discarded it")]
    Discarded {
        /// Who.
        rank: Rank,
    },
    /// The peer has left so many announced and short messages of this rank unreceived that it keeps no more. This one was not sent.
    #[error(
        "rank {rank} has left messages of this rank unreceived whose envelopes fill the overdraft of {overdraft} bytes: have it \
         receive them, or raise `overdraft`"
    )]
    Overdrawn {
        /// Who.
        rank: Rank,
        /// [`Config::overdraft`](crate::Config::overdraft).
        overdraft: u32,
    },
    /// There is no memory for a message that was to be received allocated. The message is lost; its sender does not learn
    /// of it.
    #[error(
        "there is no memory for the {} bytes of a message with tag {} from rank {}: receive it into a buffer of your own",
        status.length, status.tag, status.peer
    )]
    NoMemory {
        /// What came.
        status: Status,
    },
    /// A pipe cannot be, or be used.
    #[error("the pipe to rank {rank}: {fault}")]
    Pipe {
        /// Who is at its other end.
        rank: Rank,
        /// Why.
        #[source]
        fault: Fault,
    },
    /// The number names no pipe.
    #[error("this pipe is closed")]
    NoPipe,
    /// The number names no message of a probe.
    #[error("this message was received already")]
    NoMessage,
}

/// How a peer was lost.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Lost {
    /// The job says that it died.
    #[error("it died")]
    Died,
    /// It ended its part of the job before.
    #[error("it has left the job")]
    Left,
    /// The network does not reach it.
    #[error("neither its memory nor a network reaches it any more")]
    Unreachable,
    /// It sent bytes that are no packet.
    #[error("it sent what is no packet")]
    Malformed(#[from] Malformed),
    /// Its message came unasked, and there is no memory to keep it.
    #[error("there is no memory for a message of it")]
    NoMemory,
    /// It broke the protocol.
    #[error("it broke the protocol: {0}")]
    Broken(&'static str),
}

impl From<Why> for Lost {
    fn from(why: Why) -> Lost {
        match why {
            Why::Died => Lost::Died,
            Why::Left => Lost::Left,
            Why::Unreachable => Lost::Unreachable,
        }
    }
}

impl From<Beyond> for Lost {
    fn from(_: Beyond) -> Lost {
        Lost::Broken("it acknowledged or used more than it had")
    }
}

impl From<Unfit> for Lost {
    fn from(_: Unfit) -> Lost {
        Lost::Broken("a packet of a rendezvous that does not fit its state")
    }
}
