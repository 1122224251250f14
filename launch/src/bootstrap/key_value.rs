//! The key-value store that PMI and PMIx launchers offer their ranks.

use super::error::BootstrapError;
use transom_locks::Rank;

/// A store into which each rank puts values; every rank can get them after a fence.
pub(super) trait KeyValue {
    fn rank(&self) -> Rank;
    fn size(&self) -> usize;
    fn put(&mut self, key: &str, value: &[u8]) -> Result<(), BootstrapError>;
    /// Waits until all ranks have called `fence`; collective.
    fn fence(&mut self) -> Result<(), BootstrapError>;
    fn get(&mut self, rank: Rank, key: &str) -> Result<Vec<u8>, BootstrapError>;
    /// Disconnects from the launcher.
    fn finish(self: Box<Self>) -> Result<(), BootstrapError>;
}
