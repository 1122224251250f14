//! Raises the limit of open files: a job needs several descriptors per rank, and the soft limit is often low.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::sync::OnceLock;

/// Descriptors reserved for whatever a launcher or a program opens beyond those counted.
const RESERVED: u64 = 32;

/// The limit before this process raised it. Child processes get it back, because some programs close or poll every
/// descriptor up to the limit.
static BEFORE: OnceLock<Rlimit> = OnceLock::new();

/// The limit of open files is below the number that this process needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooFew {
    /// Needed descriptors, including those open now.
    pub need: u64,
    pub limit: u64,
}

/// Ensures that `more` further descriptors can be open, and raises the soft limit to the hard limit if necessary.
pub(super) fn make_room(more: usize) -> Result<(), TooFew> {
    let open = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    let need = (open + more) as u64 + RESERVED;
    let limit = getrlimit(Resource::Nofile);
    let is_enough = |limit: Option<u64>| limit.is_none_or(|limit| limit >= need);
    if is_enough(limit.current) {
        return Ok(());
    }
    if !is_enough(limit.maximum) {
        return Err(TooFew { need, limit: limit.maximum.unwrap_or(u64::MAX) });
    }
    BEFORE.get_or_init(|| limit);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    setrlimit(Resource::Nofile, raised).map_err(|_| TooFew { need, limit: limit.current.unwrap_or(u64::MAX) })
}

/// The limit for child processes; `None` if this process has not changed its own.
pub(super) fn limit_for_children() -> Option<Rlimit> {
    BEFORE.get().copied()
}
