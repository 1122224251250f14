//! Command lines that cannot be.

/// What is wrong with a command line, beyond what its syntax says.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Usage(pub String);
