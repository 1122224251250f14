//! Starting a process: settings common to all that the launcher starts, and a rank with its pipes.

use crate::descriptors;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Resource, Signal};
use rustix::process::{getpid, getppid, pidfd_open, set_parent_process_death_signal, setrlimit};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// The read ends of a rank's stdout and stderr.
pub(super) type Pipes = [OwnedFd; 2];

/// The process of a rank.
pub(super) struct Process {
    pub child: Child,
    /// Readable once the process has ended.
    pub pidfd: OwnedFd,
}

/// Starts a rank with pipes for stdout and stderr.
pub(super) fn start(command: &mut Command) -> io::Result<(Process, Pipes)> {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let pidfd = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).inspect_err(|_| {
        let _ = child.kill();
        let _ = child.wait();
    })?;
    let missing = || io::Error::other("the child has no pipe for stdout or stderr");
    let (stdout, stderr) = (child.stdout.take().ok_or_else(missing)?, child.stderr.take().ok_or_else(missing)?);
    Ok((Process { child, pidfd }, [stdout.into(), stderr.into()]))
}

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

/// The fault that kept a program from starting in a folder, and the remedy.
pub(super) fn advice(error: &io::Error, program: &Path, folder: &Path) -> String {
    let shown = program.display();
    let there = folder.join(program);
    let by_path = !program.as_os_str().as_encoded_bytes().contains(&b'/');
    match Errno::from_io_error(error) {
        Some(Errno::NOENT) if by_path && there.exists() => {
            format!("no such program in PATH; the program in this folder is `./{shown}`")
        }
        Some(Errno::NOENT) if by_path => "no such program in PATH; is it built, and is the name right?".to_owned(),
        Some(Errno::NOENT) if there.exists() => {
            "the interpreter named in its first line does not exist; correct that line or install the interpreter"
                .to_owned()
        }
        Some(Errno::NOENT) => "there is no such file; is it built, and is the path right?".to_owned(),
        Some(Errno::ACCESS) if there.is_dir() => "it is a folder; name the program in it".to_owned(),
        Some(Errno::ACCESS) => format!("it is not executable; `chmod +x {shown}` makes it so if it is a program"),
        Some(Errno::NOEXEC) => "it is not a program that this machine can run; a script needs a first line like \
                                `#!/bin/sh`"
            .to_owned(),
        Some(Errno::MFILE | Errno::NFILE) => "too many open files; raise the limit with `ulimit -n`".to_owned(),
        Some(Errno::AGAIN) => "too many processes; raise the limit with `ulimit -u`".to_owned(),
        Some(Errno::TOOBIG) => "its arguments and environment are too long; pass fewer or shorter ones".to_owned(),
        _ => format!("{error}{}", transom_windows::remedy(error)),
    }
}
