//! The error of every protocol of this crate.

use crate::Rank;
use std::fmt;

/// The reason why a call on a lock, an access group or a barrier failed. `E` is the network's own error.
///
/// # Examples
/// ```
/// use transom_locks::Error;
/// let error: Error<std::io::Error> = Error::AlreadyLocked { target: 3 };
/// assert_eq!(error.to_string(), "this rank already holds the lock of rank 3, or is requesting it; unlock it first");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error<E> {
    /// A second request for a lock by a rank, or a thread, that holds it or is requesting it.
    AlreadyLocked {
        /// The rank whose lock it is.
        target: Rank,
    },
    /// A release of a lock that is not held, or that another thread of the rank holds.
    NotLocked {
        /// The rank whose lock it is.
        target: Rank,
    },
    /// An earlier call on this lock failed midway, so the state of this rank's request in the queue is unknown. Other
    /// ranks may wait for it until the network ends their waits.
    Broken {
        /// The rank whose lock it is.
        target: Rank,
    },
    /// More ranks than the lock word can name and count.
    TooManyRanks {
        /// The number of ranks.
        ranks: usize,
        /// The largest number of ranks that one lock word supports.
        most: usize,
    },
    /// A rank outside `0..ranks`.
    NoSuchRank {
        /// The rank that the caller named.
        rank: Rank,
        /// The number of ranks.
        ranks: usize,
    },
    /// A word holds a value that the protocol never writes: something else wrote to lock memory.
    Corrupt {
        /// The rank whose lock it is.
        target: Rank,
        /// The value found.
        word: u64,
    },
    /// A rank abandoned a barrier because one of its calls failed.
    GivenUp {
        /// The abandoning rank, as far as this rank knows.
        rank: Rank,
    },
    /// A post, start, complete or wait out of order, or a group that names a rank twice.
    Epoch(&'static str),
    /// The network failed.
    Network(E),
}

impl<E> Error<E> {
    /// Checks a rank that a caller names.
    #[inline]
    pub(crate) fn check_rank(rank: Rank, ranks: usize) -> Result<(), Self> {
        if rank < ranks { Ok(()) } else { Err(Error::NoSuchRank { rank, ranks }) }
    }
}

impl<E> From<E> for Error<E> {
    fn from(error: E) -> Self {
        Error::Network(error)
    }
}

impl<E: fmt::Display> fmt::Display for Error<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::AlreadyLocked { target } => {
                write!(f, "this rank already holds the lock of rank {target}, or is requesting it; unlock it first")
            }
            Error::NotLocked { target } => {
                write!(f, "cannot release the lock of rank {target}: this rank, or this thread of it, does not hold it")
            }
            Error::Broken { target } => {
                write!(
                    f,
                    "an earlier call on the lock of rank {target} failed midway; this rank cannot use the lock again"
                )
            }
            Error::TooManyRanks { ranks, most } => {
                write!(f, "{ranks} ranks cannot share one lock word; at most {most} can")
            }
            Error::NoSuchRank { rank, ranks } => {
                write!(f, "there is no rank {rank}; ranks are 0 to {}", ranks.saturating_sub(1))
            }
            Error::Corrupt { target, word } => write!(
                f,
                "lock memory for the lock of rank {target} holds {word:#x}, which the protocol never writes; \
                 something else wrote there"
            ),
            Error::GivenUp { rank } => {
                write!(f, "rank {rank} abandoned this synchronisation because its call failed; it cannot be used again")
            }
            Error::Epoch(what) => f.write_str(what),
            Error::Network(error) => error.fmt(f),
        }
    }
}

impl<E: std::error::Error + 'static> std::error::Error for Error<E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            // Displayed as itself, so the chain continues with its own source.
            Error::Network(error) => error.source(),
            _ => None,
        }
    }
}
