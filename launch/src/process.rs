//! Process identity: the ancestors of this process, their groups and sessions, and an identifier that is unique across
//! the hosts of a job.

use sha2::{Digest, Sha256};

/// Identifies a process across all hosts of a job: the hash of its host's identity and its process identifier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProcessId(pub [u8; ProcessId::BYTES]);

impl ProcessId {
    pub const BYTES: usize = 16;

    pub fn new(host: &str, process: u32) -> Self {
        let hash = Sha256::new().chain_update(process.to_le_bytes()).chain_update(host).finalize();
        ProcessId(std::array::from_fn(|at| hash[at]))
    }
}

/// The ancestors of this process, from its parent up, as far as `/proc` shows them. A process whose parent has ended is
/// the child of the process that adopted it.
pub(crate) fn ancestors() -> impl Iterator<Item = u32> {
    let parent = rustix::process::getppid().map(|parent| parent.as_raw_pid() as u32);
    // Processes may end and their numbers be reused during the walk, which could form a cycle. The limit exceeds any
    // real chain.
    std::iter::successors(parent, |&process| parent_of(process)).take(10_000)
}

fn parent_of(process: u32) -> Option<u32> {
    Stat::of(process).map(|stat| stat.parent).filter(|&parent| parent != 0)
}

/// Parent, process group and session of a process, from `/proc`. Each number is 0 for a process outside this PID
/// namespace, such as the shell that `docker exec` has on the host. (A `Pid` of rustix must not be 0, so its `getpgid` and
/// `getsid` cannot say that.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stat {
    pub parent: u32,
    pub group: u32,
    pub session: u32,
}

impl Stat {
    /// Returns `None` if the process has ended, or if `/proc` is not available.
    pub fn of(process: u32) -> Option<Self> {
        Self::parse(&std::fs::read(format!("/proc/{process}/stat")).ok()?)
    }

    /// Parses `number (name) state parent group session ...`; the name may contain any bytes.
    fn parse(stat: &[u8]) -> Option<Self> {
        let behind_name = stat.iter().rposition(|byte| *byte == b')')? + 1;
        let mut fields = std::str::from_utf8(&stat[behind_name..]).ok()?.split_ascii_whitespace().skip(1);
        let mut next = || fields.next()?.parse().ok();
        Some(Stat { parent: next()?, group: next()?, session: next()? })
    }
}

/// Returns whether a signal has stopped a process; false if it has ended.
pub(crate) fn is_stopped(process: u32) -> bool {
    let stat = std::fs::read(format!("/proc/{process}/stat")).unwrap_or_default();
    let name_end = stat.iter().rposition(|byte| *byte == b')');
    name_end.is_some_and(|end| stat[end + 1..].trim_ascii_start().first() == Some(&b'T'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::Signal;
    use std::process::Command;

    #[test]
    fn stat_is_parsed_behind_any_name() {
        let stat = |parent, group, session| Some(Stat { parent, group, session });
        assert_eq!(Stat::parse(b"17 (sh) S 5 17 18 0"), stat(5, 17, 18));
        assert_eq!(Stat::parse(b"17 (a) R 9 (b) \xff) S 5 17 18"), stat(5, 17, 18));
        assert_eq!(Stat::parse(b"1 (init) S 0 0 0 0"), stat(0, 0, 0));
        for none in [&b""[..], b"17 (sh", b"17 (sh)", b"17 (sh) S x 1 1", b"17 (sh) S", b"17 (sh) S 5 17"] {
            assert_eq!(Stat::parse(none), None);
        }
    }

    #[test]
    fn ancestors_begin_with_the_parent() {
        let mut child =
            Command::new("sh").args(["-c", "read end"]).stdin(std::process::Stdio::piped()).spawn().unwrap();
        assert_eq!(parent_of(child.id()), Some(std::process::id()));
        assert!(ancestors().all(|ancestor| ancestor != child.id() && ancestor != std::process::id()));
        assert_eq!(ancestors().next(), Some(std::os::unix::process::parent_id()));
        drop(child.stdin.take());
        child.wait().unwrap();
    }

    #[test]
    fn stopped_process_is_known_until_it_continues() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = rustix::process::Pid::from_child(&child);
        let signal = |signal| rustix::process::kill_process(pid, signal).unwrap();
        let is_stopped = || is_stopped(child.id());
        assert!(!is_stopped());
        signal(Signal::STOP);
        while !is_stopped() {
            std::thread::yield_now();
        }
        signal(Signal::CONT);
        while is_stopped() {
            std::thread::yield_now();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!super::is_stopped(child.id()));
    }

    #[test]
    fn process_ids_differ_between_hosts() {
        assert_eq!(ProcessId::new("a", 1), ProcessId::new("a", 1));
        assert_ne!(ProcessId::new("a", 1), ProcessId::new("b", 1));
        assert_ne!(ProcessId::new("a", 1), ProcessId::new("a", 2));
    }
}
