//! What goes wrong with a message.

use super::tag::Status;
use std::fmt;
use std::sync::Arc;
use transom_channel::Lost;
use transom_channel::pipe::Fault;
use transom_locks::Rank;
use transom_windows::FabricError;

/// Why a message was not sent or received. `?` also makes a [`transom::Error`](crate::Error) of it.
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
    /// A message longer than the buffer. It is received; the buffer holds its beginning.
    #[error(
        "a message of {} elements with tag {} from rank {} came into a buffer of {room}: give it more room, or use `recv`, \
         which allocates", status.len, status.tag, status.from
    )]
    Truncated {
        /// What came.
        status: Status,
        /// Elements of the buffer.
        room: usize,
    },
    /// A message whose bytes are no whole number of elements. It is received, and of no use.
    #[error(
        "a message of {bytes} bytes with tag {tag} from rank {from} is not of elements of {element} bytes: both ends must \
         name a tag with one type"
    )]
    OtherType {
        /// Who sent it.
        from: Rank,
        /// Its tag.
        tag: u32,
        /// Its length in bytes.
        bytes: u64,
        /// Bytes of an element here.
        element: usize,
    },
    /// A rank outside the world or team.
    #[error("there is no rank {rank}: ranks are 0 to {}", ranks - 1)]
    NoSuchRank {
        /// The rank named.
        rank: Rank,
        /// How many there are.
        ranks: usize,
    },
    /// The rank's process ended without leaving the job.
    #[error("rank {rank} died")]
    PeerDied {
        /// Which one.
        rank: Rank,
    },
    /// The rank dropped its [`World`](crate::World), of the job or, in a collective, of this team. It takes part in nothing any more.
    #[error(
        "rank {rank} dropped its `World`, of the job or of this team, before this call: each rank keeps it until its last call has returned"
    )]
    PeerLeft {
        /// Which one.
        rank: Rank,
    },
    /// The rank was cut off.
    #[error("rank {rank} was cut off: {lost}")]
    PeerLost {
        /// Which one.
        rank: Rank,
        /// Why.
        #[source]
        lost: Lost,
    },
    /// The receiver dropped its team before it received this message.
    #[error(
        "rank {rank} dropped its team before it received this message: a rank keeps a team until it has what is sent to it there"
    )]
    TeamDropped {
        /// The receiver.
        rank: Rank,
    },
    /// The receiver keeps no more unreceived messages of this rank. This one was not sent.
    #[error(
        "rank {rank} has not received so many messages of this rank that their envelopes fill {overdraft} bytes: have it receive \
         them, or raise `overdraft` in TRANSOM_MESSAGES at all ranks"
    )]
    TooManyUnreceived {
        /// The receiver.
        rank: Rank,
        /// The limit in bytes: 64 for each message, and the data of those of at most 64 bytes.
        overdraft: u32,
    },
    /// There is no memory for a message. It is received, and lost.
    #[error("there is no memory for a message of {bytes} bytes with tag {tag} from rank {from}")]
    NoMemory {
        /// Who sent it.
        from: Rank,
        /// Its tag.
        tag: u32,
        /// Its length in bytes.
        bytes: u64,
    },
    /// The world of this request is gone.
    #[error("this rank has left its job, and its messages with it")]
    Closed,
    /// Not all parts of a partitioned message were made ready.
    #[error("{missing} parts of a partitioned message were dropped before they were ready")]
    PartsNotReady {
        /// How many.
        missing: usize,
    },
    /// The sender dropped its end of a partitioned message before it sent what this round waits for.
    #[error(
        "rank {rank} dropped its end of a partitioned message (`psend_init`) before it sent the parts of this round: keep it as long as \
         the receiver starts rounds"
    )]
    SenderDropped {
        /// The sender.
        rank: Rank,
    },
    /// A pipe cannot be opened, or be used.
    #[error("the pipe to rank {rank}: {fault}")]
    Pipe {
        /// Who is at its other end.
        rank: Rank,
        /// Why.
        #[source]
        fault: Fault,
    },
    /// A value that cannot be sent.
    #[cfg(feature = "serde")]
    #[error("a value of type {name} cannot be serialised by postcard: {source}")]
    Unserialised {
        /// The type's name.
        name: &'static str,
        /// Why.
        source: postcard::Error,
    },
    /// A message that is no value of the type asked for. It is received, and of no use.
    #[cfg(feature = "serde")]
    #[error(
        "the message of {} bytes with tag {} from rank {} is no value of type {name}: both ends must name a tag with one \
         type, by `send_object` and `recv_object`, in programs of one source", status.len, status.tag, status.from
    )]
    OtherObject {
        /// What came, in bytes.
        status: Status,
        /// The type's name.
        name: &'static str,
        /// What postcard says, if it was asked.
        source: Option<postcard::Error>,
    },
    /// Ranks of a world or team made different collective calls. None of its collectives can be any more.
    #[error("{why}: all ranks of a team make the same collective calls, in the same order")]
    Mismatch {
        /// Who called what.
        why: String,
    },
    /// The operation of a reduction panicked. No collective of this world or team can be any more.
    #[error("the operation of a reduction panicked at rank {rank}")]
    OperatorPanicked {
        /// Where.
        rank: Rank,
    },
    /// An operation on a window failed, among the requests that were waited for. `?` makes the same [`transom::Error`](crate::Error) of it
    /// as the operation's own wait would have given.
    #[error(transparent)]
    Window(Arc<crate::Error>),
    /// What cannot be.
    #[error("{why}")]
    Misuse {
        /// What was wrong, and what to do.
        why: String,
    },
    /// This rank has no messages.
    #[error("this rank can have no messages: {why}")]
    Unavailable {
        /// What stands in the way.
        why: String,
    },
}

impl Error {
    /// The rank that died, left or was cut off, if that is it.
    ///
    /// # Examples
    /// ```
    /// let error = transom::messages::Error::PeerDied { rank: 3 };
    /// assert_eq!(error.lost_rank(), Some(3));
    /// assert_eq!(transom::Error::from(error).lost_rank(), Some(3)); // `?` loses nothing
    /// ```
    pub fn lost_rank(&self) -> Option<Rank> {
        match self {
            Error::PeerDied { rank } | Error::PeerLeft { rank } | Error::PeerLost { rank, .. } => Some(*rank),
            Error::Window(error) => error.lost_rank(),
            _ => None,
        }
    }
}

/// A `main` that returns an error prints its `Debug`, so that is the message and not the fields.
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

/// A request that failed, and its buffer, which nobody else uses any more.
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
    /// Why.
    pub error: Error,
    /// What the request was given, if it was given anything; or what came, if that is of use.
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
