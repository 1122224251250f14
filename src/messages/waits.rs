//! Descriptions of waiting requests for the reports of long waits.

use super::comm::Comm;
use super::locked::{Core, Key};
use super::progress_engine::ProgressEngine;
use std::fmt;
use transom_channel::Waits;

/// A call that waits for one request. The report also names a message that has arrived but does not match.
pub(super) struct Waiting<'a, C> {
    pub comm: &'a Comm,
    pub call: &'a C,
    pub id: Key,
}

impl<C: fmt::Display> fmt::Display for Waiting<'_, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.call.fmt(f)?;
        let waits = self.comm.progress_engine.with(|core| core.waits(self.id)).ok().flatten();
        if let Some(Waits { other: Some(other), .. }) = waits {
            let from = self.comm.numbered(other.peer);
            write!(f, " (a message with tag {} from rank {from} has arrived, which does not match)", other.tag)?;
        }
        Ok(())
    }
}

/// A call that waits for several requests. The report names the first, by its rank in the job.
pub(super) struct WaitingForSome<'a, K> {
    pub progress_engine: &'a ProgressEngine,
    pub call: &'static str,
    /// The requests that have not ended.
    pub keys: K,
}

impl<K: Fn(&Core) -> Vec<Key>> fmt::Display for WaitingForSome<'_, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.call)?;
        let waits =
            |core: &mut Core| (self.keys)(core).into_iter().filter_map(|key| core.waits(key)).collect::<Vec<_>>();
        let waits = self.progress_engine.with(waits).unwrap_or_default();
        let Some((Waits { sends, peer, tag, .. }, more)) = waits.split_first() else { return Ok(()) };
        f.write_str(if *sends { ", for a send" } else { ", for a receive" })?;
        match tag {
            Some(tag) => write!(f, " with tag {tag}")?,
            None => f.write_str(" with any tag")?,
        }
        match (sends, peer) {
            (true, Some(rank)) => write!(f, " to rank {rank}")?,
            (false, Some(rank)) => write!(f, " from rank {rank}")?,
            (_, None) => f.write_str(" from any rank")?,
        }
        match more.len() {
            0 => Ok(()),
            more => write!(f, ", and {more} more"),
        }
    }
}
