//! Processes that ranks started and left behind.

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitOptions};
use rustix::process::{child_subreaper, set_child_subreaper};
use rustix::process::{pidfd_open, pidfd_send_signal, waitid, waitpid};
use std::collections::HashSet;
use std::io;
use std::time::{Duration, Instant};

/// Makes orphans among this process's descendants its children while this value exists, and ends them when it is
/// dropped.
pub(super) struct Orphans {
    /// Children that existed before, which are never ended.
    before: HashSet<Pid>,
    was_subreaper: Option<Pid>,
}

impl Orphans {
    pub fn adopt() -> io::Result<Self> {
        let orphans = Orphans { before: children(), was_subreaper: child_subreaper()? };
        set_child_subreaper(Some(rustix::process::getpid()))?;
        Ok(orphans)
    }

    /// Reaps orphans that have ended, so that a long job does not fill the process table. Skips `ours`, whose exit
    /// statuses the launcher collects.
    pub fn reap(&self, ours: impl FnOnce() -> HashSet<Pid>) {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        if matches!(waitid(WaitId::All, options), Ok(Some(_))) {
            let ours = ours();
            for pid in children().difference(&self.before).filter(|pid| !ours.contains(pid)) {
                let _ = waitpid(Some(*pid), WaitOptions::NOHANG);
            }
        }
    }

    /// Kills and reaps all children that did not exist before; to be called when no rank is left. The children of a
    /// killed process become this process's, so this repeats until there are none, for two seconds at most in case some
    /// cannot be killed.
    pub fn end(&self) {
        let until = Instant::now() + Duration::from_secs(2);
        while Instant::now() < until {
            let left: Vec<Pid> = children().difference(&self.before).copied().collect();
            if left.is_empty() && (!self.before.is_empty() || no_children()) {
                return;
            }
            if left.is_empty() {
                // The kernel's lists omitted a child.
                std::thread::sleep(Duration::from_millis(10));
            }
            for pid in left {
                tracing::debug!(pid = pid.as_raw_pid(), "killing a process that a rank left behind");
                // Only this function reaps the process, so its number cannot have been reused.
                let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { continue };
                let _ = pidfd_send_signal(&process, Signal::KILL);
                let second = rustix::event::Timespec { tv_sec: 1, tv_nsec: 0 };
                let _ = poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&second));
                let _ = waitpid(Some(pid), WaitOptions::NOHANG);
            }
        }
        tracing::warn!("processes that ranks left behind could not be ended");
    }
}

impl Drop for Orphans {
    fn drop(&mut self) {
        self.end();
        let _ = set_child_subreaper(self.was_subreaper);
    }
}

/// The children of all threads of this process; empty where the kernel provides no list.
fn children() -> HashSet<Pid> {
    let threads = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let lists = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    lists.flat_map(|list| list.split_whitespace().filter_map(pid).collect::<Vec<_>>()).collect()
}

fn pid(text: &str) -> Option<Pid> {
    Pid::from_raw(text.parse().ok()?)
}

/// Returns whether this process has no child at all. Exact, whereas the lists that `children` reads may omit some while
/// others end.
fn no_children() -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    matches!(waitid(WaitId::All, options), Err(rustix::io::Errno::CHILD))
}
