//! Why a verb of a provider failed.

use std::io;
use transom_locks::Rank;

/// Why an operation of a provider failed, grouped by what it breaks: the operation alone (bounds, alignment), a peer,
/// a window (key, corrupt), or the job (system).
///
/// # Examples
/// ```
/// let error = transom_windows::FabricError::PeerDied { rank: 3 };
/// assert_eq!(error.to_string(), "rank 3 died");
/// ```
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum FabricError {
    /// Bytes outside a region.
    #[error("{len} bytes from byte {offset} on are outside a region of {size} bytes")]
    OutOfBounds {
        /// Where they begin, in bytes.
        offset: usize,
        /// How many they are, in bytes.
        len: usize,
        /// The region's size, in bytes.
        size: usize,
    },
    /// An atomic on bytes that are not a word.
    #[error("an atomic at byte {offset} is not aligned to 8 bytes")]
    Misaligned {
        /// Where it is, in bytes.
        offset: usize,
    },
    /// The rank's process ended without leaving the job.
    #[error("rank {rank} died")]
    PeerDied {
        /// Which one.
        rank: Rank,
    },
    /// The rank dropped its handle of the job or of this team, and this call waits for the rank.
    #[error(
        "rank {rank} dropped its handle of the job or of this team, and this call waits for it: each rank keeps it until its last call has returned"
    )]
    PeerLeft {
        /// Which one.
        rank: Rank,
    },
    /// A peer's key does not lead to the memory it should.
    #[error("the memory of rank {rank} cannot be reached: {why}{}", source.as_ref().map_or(String::new(), |source| format!(" ({source})")))]
    BadKey {
        /// Whose.
        rank: Rank,
        /// What was found.
        why: String,
        /// The system's word on it, if it had one.
        #[source]
        source: Option<io::Error>,
    },
    /// An operation that this provider cannot do on that memory.
    #[error("{what}")]
    Unsupported {
        /// Which, why, and what to do.
        what: &'static str,
    },
    /// A rank gave up a collective that this one waits in, because its own call failed.
    #[error("rank {rank} has given up this collective call, because its own failed")]
    GivenUp {
        /// Which, as far as this rank knows.
        rank: Rank,
    },
    /// A call that cannot be: too many ranks, a message too long, a second joining.
    #[error("{why}")]
    Misuse {
        /// What was wrong, and what to do.
        why: String,
    },
    /// Something that ranks share is not as this version of the library writes it.
    #[error("shared memory of the job is not as expected: {why}")]
    Corrupt {
        /// What was found.
        why: String,
    },
    /// The operating system refused.
    #[error("{what}: {source}")]
    System {
        /// What was asked of it.
        what: String,
        /// Its answer.
        #[source]
        source: io::Error,
    },
}

impl FabricError {
    /// The rank whose death, leaving or giving up made the call fail, if that is why.
    ///
    /// # Examples
    /// ```
    /// use transom_windows::FabricError;
    /// assert_eq!(FabricError::PeerLeft { rank: 3 }.lost_rank(), Some(3));
    /// assert_eq!(FabricError::Misaligned { offset: 3 }.lost_rank(), None);
    /// ```
    pub fn lost_rank(&self) -> Option<Rank> {
        match self {
            FabricError::PeerDied { rank } | FabricError::PeerLeft { rank } | FabricError::GivenUp { rank } => {
                Some(*rank)
            }
            _ => None,
        }
    }
}
