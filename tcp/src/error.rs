//! Errors of opening the provider.

use transom_launch::ListenError;
use transom_windows::FabricError;

/// The reason why the provider over TCP cannot be used.
///
/// # Examples
/// ```
/// let error = transom_tcp::TcpError::Peer { rank: 3 };
/// assert_eq!(error.to_string(), "rank 3 could not listen for connections; its own error says why");
/// ```
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum TcpError {
    /// The rank cannot listen for connections.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// A system call failed.
    #[error("{what}: {source}")]
    System {
        /// The operation that failed.
        what: String,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// The ranks could not exchange their addresses.
    #[error("the ranks cannot exchange their addresses: {0}")]
    Exchange(#[from] FabricError),
    /// Another rank could not be reached by peers.
    #[error("rank {rank} could not listen for connections; its own error says why")]
    Peer {
        /// The other rank.
        rank: transom_locks::Rank,
    },
}

transom_windows::joins_error!(TcpError);
