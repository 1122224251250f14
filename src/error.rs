//! Errors of starting, and how `?` makes the one [`Error`] of all errors of the crate.

use crate::provider::ProviderError;
use transom_launch::bootstrap::BootstrapError;
use transom_launch::launcher::LaunchError;
use transom_launch::variables::VariableError;
use transom_windows::FabricError;

/// Why a program has no world.
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
    /// The ranks have no provider between them.
    #[error(transparent)]
    Provider(#[from] ProviderError),
    /// The system cannot start a thread for a rank.
    #[error("cannot start a thread for each rank: {0}")]
    Thread(#[source] std::io::Error),
    /// The ranks cannot be started.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// The program's own file cannot be found to start copies.
    #[error("cannot find the program to start copies of: {0}")]
    Program(#[source] std::io::Error),
    /// A TRANSOM_ variable whose value is not what is expected.
    #[error(transparent)]
    Variable(#[from] VariableError),
}

transom_windows::joins_error!(StartError, ProviderError);
