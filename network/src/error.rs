//! Errors of opening a network.

use transom_launch::variables::VariableError;
use transom_locks::Rank;
use transom_windows::FabricError;

/// Failure of a job's ranks to open a network.
///
/// # Examples
/// ```
/// let error = transom_network::NetworkError::Peer { rank: 3 };
/// assert_eq!(error.to_string(), "rank 3 could not open its network; see that rank's error");
/// ```
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum NetworkError {
    /// A TRANSOM_ variable has an invalid value.
    #[error(transparent)]
    Variable(#[from] VariableError),
    /// The ranks could not compare their settings.
    #[error("the ranks cannot compare their settings: {0}")]
    OobExchange(#[from] FabricError),
    /// Another rank has an invalid setting.
    #[error("rank {rank} could not open its network; see that rank's error")]
    Peer {
        /// The rank with the invalid setting.
        rank: Rank,
    },
    /// Ranks of one host would use different transports to each other, and wait for ever.
    #[error("TRANSOM_INTRANODE is {} at rank {rank}, and {} at rank {me}; set the same value at all ranks, or none",
            if *.on { "on" } else { "off" }, if *.on { "off" } else { "on" })]
    Disagree {
        /// The first rank with another setting.
        rank: Rank,
        /// True if it is on at `rank`.
        on: bool,
        /// This rank.
        me: Rank,
    },
    /// The network itself could not be opened.
    #[error("{network}: {source}")]
    Open {
        /// [`Network::NAME`](crate::Network::NAME).
        network: &'static str,
        /// The network's error.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

transom_windows::joins_error!(NetworkError);
