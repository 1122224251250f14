//! What holds for every process that the launcher starts.

use crate::descriptors;
use rustix::process::{Resource, Signal, getpid, getppid, set_parent_process_death_signal, setrlimit};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Has a process end with this one, and have the limit of open files that this one had before it raised it.
pub(super) fn die_with_launcher(command: &mut Command) {
    let (launcher, limit) = (getpid(), descriptors::limit_for_others());
    let prepare = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // If the launcher died before the call above, no signal comes.
        if getppid() != Some(launcher) {
            return Err(rustix::io::Errno::SRCH.into());
        }
        limit.map_or(Ok(()), |limit| Ok(setrlimit(Resource::Nofile, limit)?))
    };
    // SAFETY: between fork and exec it makes three system calls and nothing else: it does not allocate, lock, or touch
    // what another thread may have been changing.
    unsafe { command.pre_exec(prepare) };
}
