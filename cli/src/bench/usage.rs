//! Errors of the command line.

/// An error in a command line of correct syntax.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Usage(pub String);
