//! Errors of a provider's verbs.

use std::io;
use transom_locks::Rank;

/// The reason why an operation of a provider failed. Errors differ in the extent of the damage: the operation alone
/// (bounds, alignment), a peer, a window (key, corrupt), or the job (system).
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
        /// The first byte.
        offset: usize,
        /// The number of bytes.
        len: usize,
        /// The region's size, in bytes.
        size: usize,
    },
    /// An atomic on bytes that are not a word.
    #[error("an atomic at byte {offset} is not aligned to 8 bytes")]
    Misaligned {
        /// The offset, in bytes.
        offset: usize,
    },
    /// The rank's process ended without leaving the job.
    #[error("rank {rank} died")]
    PeerDied {
        /// The rank.
        rank: Rank,
    },
    /// The rank dropped its handle of the job or of this team, and this call waits for the rank.
    #[error(
        "rank {rank} dropped its handle of the job or of this team, and this call waits for it: each rank keeps it until its last call has returned"
    )]
    PeerLeft {
        /// The rank.
        rank: Rank,
    },
    /// A peer's key does not identify the expected memory.
    #[error("the memory of rank {rank} cannot be reached: {why}{}", source.as_ref().map_or(String::new(), |source| format!(" ({source})")))]
    BadKey {
        /// The peer.
        rank: Rank,
        /// The finding.
        why: String,
        /// The operating system's error, if there was one.
        #[source]
        source: Option<io::Error>,
    },
    /// An operation that this provider cannot do on that memory.
    #[error("{what}")]
    Unsupported {
        /// The operation, the reason, and the remedy.
        what: &'static str,
    },
    /// A rank abandoned a collective that this rank waits in, because its own call failed.
    #[error("rank {rank} abandoned this collective call because its own call failed")]
    GivenUp {
        /// The abandoning rank, as far as this rank knows.
        rank: Rank,
    },
    /// An impossible call: too many ranks, a message too long, a second joining.
    #[error("{why}")]
    Misuse {
        /// The mistake, and the remedy.
        why: String,
    },
    /// Data that ranks share is not in the form that this version of the library writes.
    #[error("shared memory of the job is not as expected: {why}")]
    Corrupt {
        /// The finding.
        why: String,
    },
    /// The operating system refused.
    #[error("{what}: {source}{}", remedy(source))]
    System {
        /// The request to the system.
        what: String,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
}

/// The remedy for a system call that the kernel or a sandbox refuses, to follow the error: the operation alone does not
/// show it. Empty for other errors.
#[doc(hidden)]
pub fn remedy(error: &io::Error) -> &'static str {
    const EPERM: i32 = 1;
    match error.raw_os_error() {
        Some(EPERM) => "; a sandbox (seccomp) or a missing privilege forbids the system call: allow it, or run outside",
        _ if error.kind() == io::ErrorKind::Unsupported => {
            "; this kernel is too old, or a sandbox (seccomp) hides the system call: allow it, or run outside"
        }
        _ => "",
    }
}

impl FabricError {
    /// The rank whose death, leaving or abandoning made the call fail, if that is the reason.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_system_call_names_the_sandbox() {
        let shown =
            |source: io::Error| FabricError::System { what: "creating shared memory".into(), source }.to_string();
        let missing = shown(io::Error::from_raw_os_error(38));
        assert!(
            missing.starts_with("creating shared memory: Function not implemented (os error 38); this"),
            "{missing}"
        );
        for errno in [1, 38] {
            let shown = shown(io::Error::from_raw_os_error(errno));
            assert!(shown.contains("a sandbox (seccomp)") && shown.ends_with("allow it, or run outside"), "{shown}");
        }
        assert!(shown(io::Error::from_raw_os_error(12)).ends_with("(os error 12)"));
    }
}
