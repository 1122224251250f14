//! Errors of starting, and how `?` makes the one [`Error`] of all errors of the crate.

use crate::job::bootstrap::BootstrapError;
use crate::job::launcher::{HostListError, LaunchError};
use crate::job::variables::VariableError;
use crate::provider::ProviderError;
use transom_windows::{Error, FabricError};

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

/// A `main` that returns an error prints its `Debug`, so that is the message and not the fields.
macro_rules! reads_as_its_message {
    ($($error:ty),* $(,)?) => {$(
        impl std::fmt::Debug for $error {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(self, f)
            }
        }

        impl From<$error> for Error {
            #[track_caller]
            fn from(error: $error) -> Self {
                Error::other(error)
            }
        }
    )*};
}

reads_as_its_message!(StartError, LaunchError, BootstrapError, ProviderError, HostListError, VariableError);
#[cfg(feature = "verbs")]
reads_as_its_message!(crate::verbs::VerbsError);
