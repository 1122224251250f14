//! Errors of a process that tries to join its job.

use crate::variables::VariableError;
use transom_locks::Rank;
use transom_windows::FabricError;

/// The error of a process that cannot find the other ranks of its job.
///
/// # Examples
/// ```
/// let error = transom::BootstrapError::Pmi { why: "PMI_RANK=4 is not below PMI_SIZE=4".into() };
/// assert_eq!(error.to_string(), "the launcher's PMI cannot be used: PMI_RANK=4 is not below PMI_SIZE=4");
/// ```
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum BootstrapError {
    /// An environment variable has a value that cannot be read.
    #[error(transparent)]
    Variable(#[from] VariableError),
    /// A PMIx function failed.
    #[error("the launcher's PMIx cannot be used: {call}: {why}; `transom run` starts ranks without it")]
    Pmix {
        /// The PMIx function.
        call: &'static str,
        /// The fault, as PMIx names it.
        why: String,
    },
    /// The launcher speaks PMIx, but its library cannot be loaded.
    #[error(
        "the launcher speaks PMIx, but the PMIx library cannot be loaded: {source}; install it (Debian: libpmix2), name its \
         folder in LD_LIBRARY_PATH, or start the ranks by `transom run`, which needs no library"
    )]
    Library {
        /// The dynamic loader's error.
        source: libloading::Error,
    },
    /// The PMI-1 exchange with the launcher failed.
    #[error("the launcher's PMI cannot be used: {why}")]
    Pmi {
        /// The fault.
        why: String,
    },
    /// Data about the job, from a rank or from the launcher, is malformed or incomplete.
    #[error("{why}")]
    Record {
        /// The data found, and the remedy.
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
        /// The process that joined first, if it runs on this machine.
        process: Option<u32>,
    },
    /// The provider between the ranks could not be joined.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// Another system call failed.
    #[error("{what}: {source}{}", transom_windows::remedy(source))]
    System {
        /// The operation that failed.
        what: &'static str,
        /// The system's error.
        source: std::io::Error,
    },
}
transom_windows::joins_error!(BootstrapError);
