//! Errors of requests and peers.

use crate::packet::Malformed;
use crate::pipe::Fault;
use crate::rendezvous::Unfit;
use crate::sequence::Beyond;
use crate::wire::{Rank, Why};

/// Envelope of a message: its peer, tag and length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status {
    /// Sender of a received message; receiver of a sent one.
    pub peer: Rank,
    /// Tag of the message.
    pub tag: u32,
    /// Length of the message in bytes, as sent.
    pub length: u64,
}

/// Reason why a request failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The message was longer than the buffer, which holds its beginning. The sender is not notified.
    #[error(
        "a message of {} bytes with tag {} from rank {} exceeds the buffer of {room} bytes: use a larger buffer, or \
         receive into allocated memory", status.length, status.tag, status.peer
    )]
    Truncated {
        /// Envelope of the message.
        status: Status,
        /// Length of the buffer in bytes.
        room: u64,
    },
    /// The rank is outside the job.
    #[error("there is no rank {rank}: the job's ranks are 0 to {}", ranks - 1)]
    NoSuchRank {
        /// Rank named by the caller.
        rank: Rank,
        /// Number of ranks in the job.
        ranks: Rank,
    },
    /// The peer is lost, and with it all requests to and from it.
    #[error("rank {rank} is lost: {lost}")]
    PeerFailure {
        /// The lost rank.
        rank: Rank,
        /// Reason of the loss.
        #[source]
        lost: PeerFailure,
    },
    /// The receiver has dropped the team of a message before it was received.
    #[error("rank {rank} dropped the team of this message, and discarded the message")]
    Discarded {
        /// The receiver.
        rank: Rank,
    },
    /// The peer has left too many RTS packets and short messages of this rank unreceived. This message was
    /// not sent.
    #[error(
        "unreceived messages from this rank to rank {rank} fill the overdraft of {overdraft} bytes with their \
         envelopes: receive them there, or raise `overdraft`"
    )]
    Overdrawn {
        /// Receiver whose overdraft is used up.
        rank: Rank,
        /// The configured [`Config::overdraft`](crate::Config::overdraft), in bytes.
        overdraft: u32,
    },
    /// Allocation failed for a message to be received into allocated memory. The message is lost; its sender
    /// is not notified.
    #[error(
        "cannot allocate the {} bytes of a message with tag {} from rank {}: receive it into your own buffer",
        status.length, status.tag, status.peer
    )]
    NoMemory {
        /// Envelope of the lost message.
        status: Status,
    },
    /// A pipe could not be opened, or an operation on it failed.
    #[error("the pipe to rank {rank}: {fault}")]
    Pipe {
        /// Rank at the other end of the pipe.
        rank: Rank,
        /// Cause of the failure.
        #[source]
        fault: Fault,
    },
    /// The number names no open pipe.
    #[error("this pipe is closed")]
    NoPipe,
    /// The number names no probed message.
    #[error("this message was received already")]
    NoMessage,
}

/// Reason why a peer was lost.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PeerFailure {
    /// The job reported that the rank died.
    #[error("it died")]
    Died,
    /// The rank had ended its part of the job.
    #[error("it has left the job")]
    Left,
    /// No network reaches the rank.
    #[error("neither shared memory nor a network reaches it any more")]
    Unreachable,
    /// The rank sent a malformed packet.
    #[error("it sent a malformed packet")]
    Malformed(#[from] Malformed),
    /// The rank sent a message eagerly, and no memory is left to keep it.
    #[error("no memory is left for a message from it")]
    NoMemory,
    /// The rank violated the protocol.
    #[error("it broke the protocol: {0}")]
    Broken(&'static str),
}

impl From<Why> for PeerFailure {
    fn from(why: Why) -> PeerFailure {
        match why {
            Why::Died => PeerFailure::Died,
            Why::Left => PeerFailure::Left,
            Why::Unreachable => PeerFailure::Unreachable,
        }
    }
}

impl From<Beyond> for PeerFailure {
    fn from(_: Beyond) -> PeerFailure {
        PeerFailure::Broken("it acknowledged or freed more than was sent")
    }
}

impl From<Unfit> for PeerFailure {
    fn from(_: Unfit) -> PeerFailure {
        PeerFailure::Broken("a packet does not fit the state of its rendezvous")
    }
}
