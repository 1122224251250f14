//! Errors of starting a job, and their conversion into the crate's [`Error`](crate::Error) by `?`.

use crate::provider::ProviderError;
use transom_launch::bootstrap::BootstrapError;
use transom_launch::launcher::LaunchError;
use transom_launch::variables::VariableError;
use transom_windows::FabricError;

/// Error of starting or joining a job.
///
/// # Examples
/// ```
/// let error = transom::StartError::Join(transom::FabricError::PeerDied { rank: 1 });
/// assert_eq!(error.to_string(), "cannot join the job: rank 1 died");
/// ```
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The memory that the ranks of a job share from the start cannot be made or reached.
    #[error("cannot join the job: {0}")]
    Join(#[source] FabricError),
    /// The job that this process was started for cannot be joined.
    #[error("cannot join the job: {0}")]
    Bootstrap(#[from] BootstrapError),
    /// No provider connects the ranks.
    #[error(transparent)]
    Provider(#[from] ProviderError),
    /// The system cannot start a thread for a rank.
    #[error("cannot start a thread for each rank: {0}; start fewer ranks, or raise the limit with `ulimit -u`")]
    Thread(#[source] std::io::Error),
    /// The ranks cannot be started.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// The program's own file cannot be found to start copies.
    #[error(
        "cannot find the program to start copies of: {0}; it is read from /proc/self/exe, so /proc must be mounted"
    )]
    Program(#[source] std::io::Error),
    /// A TRANSOM_ variable has an invalid value.
    #[error(transparent)]
    Variable(#[from] VariableError),
}

transom_windows::joins_error!(StartError, ProviderError);
