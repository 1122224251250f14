//! Why a process cannot join its job.

use crate::variables::VariableError;
use transom_locks::Rank;
use transom_windows::FabricError;

/// Why a process cannot find the other ranks of its job.
///
/// # Examples
/// ```
/// let error = transom::BootstrapError::Pmi { why: "PMI_RANK=4 is not below PMI_SIZE=4".into() };
/// assert_eq!(error.to_string(), "the launcher's PMI cannot be used: PMI_RANK=4 is not below PMI_SIZE=4");
/// ```
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum BootstrapError {
    /// A variable whose value is not what is expected.
    #[error(transparent)]
    Variable(#[from] VariableError),
    /// A call of PMIx failed.
    #[error("the launcher's PMIx cannot be used: {call}: {why}; `transom run` starts ranks without it")]
    Pmix {
        /// The call.
        call: &'static str,
        /// What it returned.
        why: String,
    },
    /// The launcher speaks PMIx, and its library is not there.
    #[error(
        "the launcher speaks PMIx, and its library cannot be loaded: {source}; install it (Debian: libpmix2), name its \
         folder in LD_LIBRARY_PATH, or start the ranks by `transom run`, which does without"
    )]
    Library {
        /// What the system said.
        source: libloading::Error,
    },
    /// The conversation by PMI failed.
    #[error("the launcher's PMI cannot be used: {why}")]
    Pmi {
        /// What was wrong.
        why: String,
    },
    /// What a rank, or the launcher, tells of the job makes no sense.
    #[error("{why}")]
    Record {
        /// What was found, and what to do.
        why: String,
    },
    /// Another process has joined the job as this rank.
    #[error(
        "rank {rank} has joined this job before, {}; each rank joins once: to start a job of its own, remove \
         TRANSOM_RANK, TRANSOM_SIZE, TRANSOM_SHM and TRANSOM_HUB from the program's environment",
        process.map_or("as another process".to_owned(), |process| format!("as process {process}"))
    )]
    Taken {
        /// The rank.
        rank: Rank,
        /// The process that has joined, if it is of this machine.
        process: Option<u32>,
    },
    /// The fabric of the ranks cannot be joined.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// The system refused something else.
    #[error("{what}: {source}")]
    System {
        /// What was asked of it.
        what: &'static str,
        /// Its answer.
        source: std::io::Error,
    },
}
transom_windows::joins_error!(BootstrapError);
