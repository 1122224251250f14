//! The processes of the ranks: starting them, sending signals to them, and ending them all.

use super::control_plane::ControlPlane;
use super::outcome::{LaunchError, Status};
use super::output::Pipes;
use super::remote;
use super::settings::Settings;
use super::signals::Signals;
use crate::job::variables;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::process::{Pid, PidfdFlags, Signal};
use rustix::process::{getpid, getppid, pidfd_open, pidfd_send_signal, set_parent_process_death_signal};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use transom_locks::Rank;

/// The processes of all ranks. Those that have not ended are killed when it is dropped.
pub(super) struct Ranks(Vec<Process>);

struct Process {
    child: Child,
    /// Readable when the process has ended.
    pidfd: OwnedFd,
    status: Option<Status>,
    /// It is the `ssh` of a rank on another host.
    remote: bool,
}

/// How long ranks on other hosts have to end when they are killed, before their `ssh` is.
const KILL_TO_CUT: Duration = Duration::from_secs(2);

impl Ranks {
    /// Starts all of them. If one cannot be started, those before it are killed.
    pub fn start(
        settings: &Settings,
        control_plane: &ControlPlane,
        signals: Option<&mut Signals>,
        deadline: Option<Instant>,
    ) -> Result<(Self, Vec<Pipes>), LaunchError> {
        let mut ranks = Ranks(Vec::with_capacity(settings.ranks));
        let mut pipes = Vec::with_capacity(settings.ranks);
        let environment = |rank| control_plane.environment(rank);
        if let Some(hosts) = control_plane.hosts() {
            let failed = |source| LaunchError::System { what: "watching the connections to the hosts", source };
            // If this fails for one, those after it end as the pipes of their connections are closed.
            for child in remote::start(settings, &hosts, environment, signals, deadline)? {
                pipes.push(ranks.add(child, true).map_err(failed)?);
            }
            return Ok((ranks, pipes));
        }
        for rank in 0..settings.ranks {
            let started = ranks.start_here(rank, settings, environment(rank));
            pipes.push(started.map_err(|source| {
                let advice = advice(&source, &settings.program, settings.ranks);
                LaunchError::Start { program: settings.program.clone(), rank, advice, source }
            })?);
        }
        Ok((ranks, pipes))
    }

    fn start_here(
        &mut self,
        rank: Rank,
        settings: &Settings,
        environment: Vec<(&'static str, String)>,
    ) -> io::Result<Pipes> {
        let mut command = Command::new(&settings.program);
        command.args(&settings.args).envs(settings.env.iter().map(|(name, value)| (name, value)));
        variables::removed_for_ranks().for_each(|name| _ = command.env_remove(name));
        command.envs(environment);
        let stdin = if rank == 0 && !settings.capture { Stdio::inherit() } else { Stdio::null() };
        command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped());
        let launcher = getpid();
        let die_with_launcher = move || {
            set_parent_process_death_signal(Some(Signal::KILL))?;
            // If the launcher died before the call above, no signal comes.
            if getppid() == Some(launcher) { Ok(()) } else { Err(rustix::io::Errno::SRCH.into()) }
        };
        // SAFETY: between fork and exec it makes two system calls and nothing else: it does not allocate, lock, or
        // touch what another thread may have been changing.
        unsafe { command.pre_exec(die_with_launcher) };
        let child = command.spawn()?;
        tracing::debug!(rank, pid = child.id(), "rank started");
        self.add(child, false)
    }

    fn add(&mut self, mut child: Child, remote: bool) -> io::Result<Pipes> {
        let pidfd = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).inspect_err(|_| {
            let _ = child.kill();
            let _ = child.wait();
        })?;
        let missing = || io::Error::other("a pipe that was asked for is not there");
        let pipes = (child.stdout.take(), child.stderr.take());
        self.0.push(Process { child, pidfd, status: None, remote });
        Ok([pipes.0.ok_or_else(missing)?.into(), pipes.1.ok_or_else(missing)?.into()])
    }

    /// The ranks that have not ended, each with a descriptor that becomes readable when it does.
    pub fn running(&self) -> impl Iterator<Item = (Rank, BorrowedFd<'_>)> {
        let running = self.0.iter().enumerate().filter(|(_, process)| process.status.is_none());
        running.map(|(rank, process)| (rank, process.pidfd.as_fd()))
    }

    /// How a rank ended, if it has.
    pub fn reap(&mut self, rank: Rank) -> io::Result<Option<Status>> {
        let process = &mut self.0[rank];
        if process.status.is_none() {
            let status = process.child.try_wait()?.map(Status::from);
            process.status = status.map(|status| if process.remote { status.of_shell() } else { status });
        }
        Ok(process.status)
    }

    /// How a rank ended, if it has been reaped.
    pub fn status(&self, rank: Rank) -> Option<Status> {
        self.0[rank].status
    }

    /// How all ranks ended, once they have.
    pub fn statuses(&self) -> Option<Vec<Status>> {
        self.0.iter().map(|process| process.status).collect()
    }

    /// Sends a signal to all that have not ended.
    pub fn signal(&mut self, signal: Signal) {
        for (rank, process) in self.0.iter_mut().enumerate().filter(|(_, process)| process.status.is_none()) {
            tracing::debug!(rank, signal = signal.as_raw(), "signal sent");
            // An error means that it has ended meanwhile.
            match process.remote {
                true => remote::signal(&mut process.child, signal),
                false => drop(pidfd_send_signal(&process.pidfd, signal)),
            }
        }
    }

    /// Kills the `ssh` of ranks that have not ended: their hosts do not answer.
    pub fn cut(&mut self) {
        for (rank, process) in self.0.iter_mut().enumerate().filter(|(_, process)| process.status.is_none()) {
            tracing::debug!(rank, "killing its ssh");
            let _ = process.child.kill();
        }
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
        let until = Instant::now() + KILL_TO_CUT;
        for process in self.0.iter_mut().filter(|process| process.status.is_none()) {
            if process.remote {
                let left = Timespec::try_from(until.saturating_duration_since(Instant::now())).ok();
                let _ = poll(&mut [PollFd::new(&process.pidfd, PollFlags::IN)], left.as_ref());
                let _ = process.child.kill();
            }
            let _ = process.child.wait();
        }
    }
}

/// Why a program cannot be started, and what to do.
fn advice(error: &io::Error, program: &Path, ranks: usize) -> String {
    use rustix::io::Errno;
    let shown = program.display();
    let by_path = !program.as_os_str().as_encoded_bytes().contains(&b'/');
    match Errno::from_io_error(error) {
        Some(Errno::NOENT) if by_path && program.exists() => {
            format!("no such program in PATH; the one in this folder is `./{shown}`")
        }
        Some(Errno::NOENT) if by_path => "no such program in PATH; is it built, and is the name right?".to_owned(),
        Some(Errno::NOENT) if program.exists() => "the interpreter that its first line names is not there".to_owned(),
        Some(Errno::NOENT) => "there is no such file; is it built, and is the path right?".to_owned(),
        Some(Errno::ACCESS) if program.is_dir() => "it is a folder; name the program in it".to_owned(),
        Some(Errno::ACCESS) => format!("it is not executable; `chmod +x {shown}` makes it so if it is a program"),
        Some(Errno::NOEXEC) => "it is not a program that this machine can run; a script needs a first line like \
                                `#!/bin/sh`"
            .to_owned(),
        Some(Errno::MFILE | Errno::NFILE) => {
            format!("too many open files: {ranks} ranks need {}; `ulimit -n` says and sets the limit", 3 * ranks + 32)
        }
        Some(Errno::AGAIN) => "too many processes; `ulimit -u` says and sets the limit".to_owned(),
        Some(Errno::TOOBIG) => "its arguments and environment are too long".to_owned(),
        _ => error.to_string(),
    }
}
