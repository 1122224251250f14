//! Errors of messages.

use super::tag::Status;
use std::fmt;
use std::sync::Arc;
use transom_channel::PeerFailure;
use transom_channel::pipe::Fault;
use transom_locks::Rank;
use transom_windows::FabricError;

/// Error of a message, pipe, collective or request. `?` converts it to a [`transom::Error`](crate::Error).
///
/// # Examples
/// ```
/// use transom::messages::{Error, Tag};
/// let world = transom::init()?;
/// let error = world.send(5, Tag::new(1), &[1.0]).unwrap_err();
/// assert!(matches!(error, Error::NoSuchRank { rank: 5, ranks: 1 }));
/// assert_eq!(error.to_string(), "there is no rank 5: ranks are 0 to 0");
/// # Ok::<(), transom::Error>(())
/// ```
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The message is longer than the buffer. The message is consumed; the buffer holds its beginning.
    #[error(
        "a message of {} elements with tag {} from rank {} exceeds the buffer of {room}: use a larger buffer, or \
         `recv`, which allocates", status.len, status.tag, status.from
    )]
    Truncated {
        /// Status of the message.
        status: Status,
        /// Length of the buffer, in elements.
        room: usize,
    },
    /// The length of the message is not a multiple of the element size. The message is consumed and discarded.
    #[error(
        "a message of {bytes} bytes with tag {tag} from rank {from} is no multiple of elements of {element} bytes: use \
         a tag of one type at both ends"
    )]
    OtherType {
        /// The sender.
        from: Rank,
        /// Tag of the message.
        tag: u32,
        /// Length of the message, in bytes.
        bytes: u64,
        /// Size of an element at the receiver, in bytes.
        element: usize,
    },
    /// The world or team has no such rank.
    #[error("there is no rank {rank}: ranks are 0 to {}", ranks - 1)]
    NoSuchRank {
        /// The rank passed to the call.
        rank: Rank,
        /// Number of ranks.
        ranks: usize,
    },
    /// The rank's process ended without leaving the job.
    #[error("rank {rank} died")]
    PeerDied {
        /// The rank that died.
        rank: Rank,
    },
    /// The rank dropped its [`World`](crate::World) of the job.
    #[error(
        "rank {rank} dropped its `World` of the job before this call: each rank keeps it until its last call has returned"
    )]
    PeerLeft {
        /// The rank that left.
        rank: Rank,
    },
    /// This rank has cut the rank off: it was unreachable, broke the protocol, or sent a message for which there is no
    /// memory.
    #[error("rank {rank} was cut off: {lost}")]
    PeerLost {
        /// The rank that was cut off.
        rank: Rank,
        /// The cause.
        #[source]
        lost: PeerFailure,
    },
    /// The rank dropped its [`World`](crate::World) of this team before it received this message, or before this
    /// collective call.
    #[error(
        "rank {rank} dropped its `World` of this team before this call: each rank keeps it until its messages are received and its last \
         call has returned"
    )]
    TeamDropped {
        /// The rank that left the team.
        rank: Rank,
    },
    /// The receiver stores no more unreceived messages of this rank. The message was not sent.
    #[error(
        "unreceived messages from this rank to rank {rank} fill {overdraft} bytes with their envelopes: receive them \
         there, or raise `overdraft` in TRANSOM_MESSAGES at all ranks"
    )]
    TooManyUnreceived {
        /// The receiver.
        rank: Rank,
        /// The limit in bytes: 64 for each message, and the data of those of at most 64 bytes.
        overdraft: u32,
    },
    /// This rank has no memory for the message. The message is consumed and lost.
    #[error("cannot allocate memory for a message of {bytes} bytes with tag {tag} from rank {from}")]
    NoMemory {
        /// The sender.
        from: Rank,
        /// Tag of the message.
        tag: u32,
        /// Length of the message, in bytes.
        bytes: u64,
    },
    /// The world of this request has been dropped.
    #[error("this rank has left its job, and can send and receive no more messages")]
    Closed,
    /// Parts of a partitioned message were dropped before they were ready.
    #[error("{missing} parts of a partitioned message were dropped before they were ready")]
    PartsNotReady {
        /// Number of missing parts.
        missing: usize,
    },
    /// The sender dropped its end of a partitioned message before it sent all parts of this round.
    #[error(
        "rank {rank} dropped its end of a partitioned message (`psend_init`) before it sent the parts of this round: keep it as long as \
         the receiver starts rounds"
    )]
    SenderDropped {
        /// The sender.
        rank: Rank,
    },
    /// A pipe cannot be opened or used.
    #[error("the pipe to rank {rank}: {fault}")]
    Pipe {
        /// The rank at the other end.
        rank: Rank,
        /// The cause.
        #[source]
        fault: Fault,
    },
    /// The value cannot be serialised.
    #[cfg(feature = "serde")]
    #[error("a value of type {name} cannot be serialised by postcard: {source}")]
    Unserialised {
        /// Name of the type.
        name: &'static str,
        /// The cause.
        source: postcard::Error,
    },
    /// The message is not a value of the type requested. The message is consumed and discarded.
    #[cfg(feature = "serde")]
    #[error(
        "the message of {} bytes with tag {} from rank {} does not decode as {name}: use a tag of one type at both \
         ends, with `send_object` and `recv_object`, in programs of one source", status.len, status.tag, status.from
    )]
    OtherObject {
        /// Status of the message, with the length in bytes.
        status: Status,
        /// Name of the type.
        name: &'static str,
        /// The error of postcard; `None` if the type mark differs, or bytes are left over.
        source: Option<postcard::Error>,
    },
    /// Ranks of a world or team made different collective calls. All later collectives of that world or team fail.
    #[error("{why}: all ranks of a team make the same collective calls, in the same order")]
    Mismatch {
        /// The calls and their ranks.
        why: String,
    },
    /// The operation of a reduction panicked. All later collectives of this world or team fail.
    #[error("the operation of a reduction panicked at rank {rank}")]
    OperatorPanicked {
        /// The rank on which the operation panicked.
        rank: Rank,
    },
    /// One of several requests that were waited for together failed: the first in their order. `?` converts it to a
    /// [`transom::Error::Request`](crate::Error::Request).
    #[error("request {index} (from 0) of those waited for failed: {source}")]
    Request {
        /// The index of the request among those waited for; in [`Requests`](super::Requests), its number.
        index: usize,
        /// The error of the request.
        source: Box<Error>,
    },
    /// A window operation among the requests that were waited for failed. `?` converts it to the same
    /// [`transom::Error`](crate::Error) as the operation's own wait would have given.
    #[error(transparent)]
    Window(Arc<crate::Error>),
    /// The call or its arguments are invalid.
    #[error("{why}")]
    Misuse {
        /// The fault, and how to correct the call.
        why: String,
    },
    /// This rank cannot send or receive messages.
    #[error("messages are not available at this rank: {why}")]
    Unavailable {
        /// The cause.
        why: String,
    },
}

impl Error {
    /// Returns the rank that died, left the job or the team, or was cut off, if the error is of this kind.
    ///
    /// # Examples
    /// ```
    /// let error = transom::messages::Error::PeerDied { rank: 3 };
    /// assert_eq!(error.lost_rank(), Some(3));
    /// assert_eq!(transom::Error::from(error).lost_rank(), Some(3)); // `?` keeps the rank
    /// ```
    pub fn lost_rank(&self) -> Option<Rank> {
        match self {
            Error::PeerDied { rank }
            | Error::PeerLeft { rank }
            | Error::TeamDropped { rank }
            | Error::PeerLost { rank, .. } => Some(*rank),
            Error::Window(error) => error.lost_rank(),
            Error::Request { source, .. } => source.lost_rank(),
            _ => None,
        }
    }

    pub(super) fn of_request(index: usize, source: Error) -> Self {
        Error::Request { index, source: Box::new(source) }
    }
}

/// Prints the message: a `main` that returns an error prints its `Debug`.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<Error> for crate::Error {
    #[track_caller]
    fn from(error: Error) -> Self {
        let lost = error.lost_rank();
        let error = match error {
            Error::Window(window) => match Arc::try_unwrap(window) {
                Ok(window) => return window,
                Err(shared) => Error::Window(shared),
            },
            Error::Request { index, source } => {
                return crate::Error::Request { index, source: Box::new(crate::Error::from(*source)) };
            }
            error => error,
        };
        crate::Error::other_lost(error, lost)
    }
}

impl From<FabricError> for Error {
    fn from(error: FabricError) -> Self {
        match error {
            FabricError::PeerDied { rank } => Error::PeerDied { rank },
            FabricError::PeerLeft { rank } => Error::PeerLeft { rank },
            error => Error::Unavailable { why: error.to_string() },
        }
    }
}

/// A failed request: its error and its buffer, which the library no longer uses.
///
/// # Examples
/// ```
/// use transom::messages::Tag;
/// let world = transom::init()?;
/// let failed = world.isend(7, Tag::new(1), vec![1_u8, 2]).wait().unwrap_err();
/// assert_eq!(failed.buffer, Some(vec![1, 2]));
/// # Ok::<(), transom::Error>(())
/// ```
pub struct Failed<B> {
    /// The error.
    pub error: Error,
    /// The buffer of the request, if it had one; or the data received, if usable.
    pub buffer: Option<B>,
}

impl<B> fmt::Debug for Failed<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.error, f)
    }
}

impl<B> fmt::Display for Failed<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.error, f)
    }
}

impl<B> std::error::Error for Failed<B> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

impl<B> From<Failed<B>> for Error {
    fn from(failed: Failed<B>) -> Self {
        failed.error
    }
}

impl<B> From<Failed<B>> for crate::Error {
    #[track_caller]
    fn from(failed: Failed<B>) -> Self {
        failed.error.into()
    }
}
