//! The processes of the ranks: starting them, sending signals to them, and that none is left.

use super::meeting::{HubOfHosts, Meeting};
use super::signals::Signals;
use super::{Launch, LaunchError, Status, remote};
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
use transom_shm_loopback::Job;

/// The processes of all ranks. Those that have not ended are killed when it is dropped.
pub(super) struct Ranks(Vec<Process>);

/// The reading ends of a rank's stdout and stderr.
pub(super) type Pipes = [OwnedFd; 2];

struct Process {
    child: Child,
    /// Readable when the process has ended.
    pidfd: OwnedFd,
    status: Option<Status>,
    /// It is a rank's connection to its host.
    remote: bool,
}

/// How long ranks on other hosts have to end when they are killed, before their connections are cut.
const KILL_TO_CUT: Duration = Duration::from_secs(2);

impl Ranks {
    /// Starts all of them. If one cannot be started, those before it are killed.
    pub fn start(
        launch: &Launch,
        meeting: &Meeting,
        signals: Option<&mut Signals>,
        deadline: Option<Instant>,
    ) -> Result<(Self, Vec<Pipes>), LaunchError> {
        match meeting {
            Meeting::Memory(job) => Self::start_here(launch, job),
            Meeting::Hub(hub) => Self::start_on_hosts(launch, hub, signals, deadline),
        }
    }

    fn start_on_hosts(
        launch: &Launch,
        hub: &HubOfHosts,
        signals: Option<&mut Signals>,
        deadline: Option<Instant>,
    ) -> Result<(Self, Vec<Pipes>), LaunchError> {
        let children = remote::start(launch, &hub.hosts(), |rank| hub.environment(rank), signals, deadline)?;
        let (mut ranks, mut pipes) = (Ranks(Vec::with_capacity(launch.ranks)), Vec::with_capacity(launch.ranks));
        let failed = |source| LaunchError::System { what: "watching the connections to the hosts", source };
        // Should one fail, those after it end as the pipes of their connections are closed.
        for child in children {
            pipes.push(ranks.add(child, true).map_err(failed)?);
        }
        Ok((ranks, pipes))
    }

    fn start_here(launch: &Launch, job: &Job) -> Result<(Self, Vec<Pipes>), LaunchError> {
        let mut ranks = Ranks(Vec::with_capacity(launch.ranks));
        let mut pipes = Vec::with_capacity(launch.ranks);
        for rank in 0..launch.ranks {
            let started = ranks.start_one(rank, launch, job);
            pipes.push(started.map_err(|source| {
                let advice = advice(&source, &launch.program, launch.ranks);
                LaunchError::Start { program: launch.program.clone(), rank, advice, source }
            })?);
        }
        Ok((ranks, pipes))
    }

    fn start_one(&mut self, rank: Rank, launch: &Launch, job: &Job) -> io::Result<Pipes> {
        let mut command = Command::new(&launch.program);
        command.args(&launch.args).envs(launch.env.iter().map(|(name, value)| (name, value)));
        for name in Meeting::of_hosts() {
            command.env_remove(name);
        }
        command.envs(job.environment(rank));
        let stdin = if rank == 0 && !launch.capture { Stdio::inherit() } else { Stdio::null() };
        command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped());
        let launcher = getpid();
        let die_with_launcher = move || {
            set_parent_process_death_signal(Some(Signal::KILL))?;
            // A launcher that died before the call above sends nothing.
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

    /// The ranks that have not ended, each with what becomes readable when it does.
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

    /// How all ranks ended, once they have.
    pub fn statuses(&self) -> Option<Vec<Status>> {
        self.0.iter().map(|process| process.status).collect()
    }

    /// To all that have not ended.
    pub fn signal(&mut self, signal: Signal) {
        for (rank, process) in self.0.iter_mut().enumerate().filter(|(_, process)| process.status.is_none()) {
            tracing::debug!(rank, signal = signal.as_raw(), "signal sent");
            // It may have ended meanwhile.
            match process.remote {
                true => remote::signal(&mut process.child, signal),
                false => drop(pidfd_send_signal(&process.pidfd, signal)),
            }
        }
    }

    /// Ends what is left of connections to hosts that do not answer.
    pub fn cut(&mut self) {
        for (rank, process) in self.0.iter_mut().enumerate().filter(|(_, process)| process.status.is_none()) {
            tracing::debug!(rank, "ending its process here");
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

/// What is wrong with a program that cannot be started, and what to do.
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
