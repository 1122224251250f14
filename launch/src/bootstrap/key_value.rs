//! What another launcher offers its ranks.

use super::error::BootstrapError;
use transom_locks::Rank;

/// A store of values that each rank puts, and all ranks can get after a fence.
pub(super) trait KeyValue {
    fn rank(&self) -> Rank;
    fn size(&self) -> usize;
    fn put(&mut self, key: &str, value: &[u8]) -> Result<(), BootstrapError>;
    /// Collective.
    fn fence(&mut self) -> Result<(), BootstrapError>;
    fn get(&mut self, rank: Rank, key: &str) -> Result<Vec<u8>, BootstrapError>;
    /// Ends the conversation with the launcher.
    fn finish(self: Box<Self>) -> Result<(), BootstrapError>;
}
