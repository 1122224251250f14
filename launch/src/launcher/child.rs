//! Settings common to all processes that the launcher starts.

use crate::descriptors;
use rustix::process::{Resource, Signal, getpid, getppid, set_parent_process_death_signal, setrlimit};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Ends the child when the launcher dies, gives it the launcher's original limit of open files, and binds it to
/// processors.
pub(super) fn prepare(command: &mut Command, processors: Option<CpuSet>) {
    let (launcher, limit) = (getpid(), descriptors::limit_for_children());
    let prepare = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // A launcher that died before the call above sends no signal.
        if getppid() != Some(launcher) {
            return Err(rustix::io::Errno::SRCH.into());
        }
        processors.map_or(Ok(()), |processors| sched_setaffinity(None, &processors))?;
        limit.map_or(Ok(()), |limit| Ok(setrlimit(Resource::Nofile, limit)?))
    };
    // SAFETY: between fork and exec the closure makes four system calls only. It does not allocate, take a lock, or
    // touch memory that another thread may have been changing.
    unsafe { command.pre_exec(prepare) };
}
