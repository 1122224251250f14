//! Room for descriptors: a job needs some for each rank, and the limit of a process is often low for no reason.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::sync::OnceLock;

/// For what a launcher or a program opens beside what is counted.
const BESIDE: u64 = 32;

/// The limit before it was raised, which processes that are started get back: some take a high limit for a reason to
/// close or to watch that many.
static BEFORE: OnceLock<Rlimit> = OnceLock::new();

/// The system lets this process open fewer descriptors than it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooFew {
    /// With those that are open.
    pub need: u64,
    pub limit: u64,
}

/// Sees to it that so many more descriptors can be open, and raises the limit of this process as far as it may if not.
pub(super) fn make_room(more: usize) -> Result<(), TooFew> {
    let open = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    let need = (open + more) as u64 + BESIDE;
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

/// The limit that processes get which this one starts; `None` if it is this one's.
pub(super) fn limit_for_others() -> Option<Rlimit> {
    BEFORE.get().copied()
}
