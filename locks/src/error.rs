//! What a protocol reports.

use crate::Rank;
use std::fmt;

/// Why a call on a lock, an access group or a barrier failed. `E` is the network's own error.
///
/// # Examples
/// ```
/// use transom_locks::Error;
/// let error: Error<std::io::Error> = Error::AlreadyLocked { target: 3 };
/// assert_eq!(error.to_string(), "this rank already holds the lock of rank 3, or is asking for it; unlock it first");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error<E> {
    /// A second request of one rank, or of one of its threads, for one lock.
    AlreadyLocked {
        /// Whose lock.
        target: Rank,
    },
    /// A release of what is not held, or of what another thread of the rank holds.
    NotLocked {
        /// Whose lock.
        target: Rank,
    },
    /// An earlier call on this lock failed midway, and what the queue holds of this rank is unknown: others may wait
    /// for it, and go on when the network tells them that they need not.
    Broken {
        /// Whose lock.
        target: Rank,
    },
    /// More ranks than the lock word can name and count.
    TooManyRanks {
        /// How many there are.
        ranks: usize,
        /// How many there may be.
        most: usize,
    },
    /// A rank outside `0..ranks`.
    NoSuchRank {
        /// The rank named.
        rank: Rank,
        /// How many there are.
        ranks: usize,
    },
    /// A word holds what the protocol never writes: something else wrote to lock memory.
    Corrupt {
        /// Where, as well as it is known: the lock's target and the value found.
        target: Rank,
        /// The value found.
        word: u64,
    },
    /// A rank gave up a barrier, because a call of it failed.
    GivenUp {
        /// Which, as far as this rank knows.
        rank: Rank,
    },
    /// A post, start, complete or wait out of turn, or a group that names a rank twice.
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
                write!(f, "this rank already holds the lock of rank {target}, or is asking for it; unlock it first")
            }
            Error::NotLocked { target } => {
                write!(f, "this rank does not hold the lock of rank {target}, or another of its threads does")
            }
            Error::Broken { target } => {
                write!(
                    f,
                    "an earlier call on the lock of rank {target} failed midway; this rank cannot use the lock again"
                )
            }
            Error::TooManyRanks { ranks, most } => {
                write!(f, "{ranks} ranks cannot share one lock word; {most} at most")
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
                write!(f, "rank {rank} has given up this synchronisation, because its call failed")
            }
            Error::Epoch(what) => f.write_str(what),
            Error::Network(error) => error.fmt(f),
        }
    }
}

impl<E: std::error::Error + 'static> std::error::Error for Error<E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            // Shown as itself, so its own source is the next in the chain.
            Error::Network(error) => error.source(),
            _ => None,
        }
    }
}
