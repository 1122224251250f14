//! The processes of the ranks, on this machine or on hosts: starting them, signalling them, and ending them all.

use super::binding;
use super::child::{self, Pipes, Process, advice};
use super::control_plane::ControlPlane;
use super::host_job::HostJob;
use super::input::Input;
use super::offer::{Offer, Starter};
use super::outcome::{LaunchError, Listed, Status};
use super::output::Output;
use super::records::Told;
use super::remote::Host;
use super::settings::Settings;
use super::shell::Shells;
use crate::variables;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::AsFd;
use rustix::io::retry_on_intr;
use rustix::process::{Pid, Signal, pidfd_send_signal};
use std::collections::{HashSet, VecDeque};
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use transom_locks::Rank;

/// Time that ranks on other hosts have to end after SIGKILL, before their `ssh` is killed.
const KILL_TO_CUT: Duration = Duration::from_secs(2);
/// Most hosts being reached at once, because each login takes processor time on this machine.
const AT_ONCE: usize = 64;
/// Descriptors per rank on this machine, and descriptors needed while a rank is started.
const OF_RANK: usize = 3;
const OF_START: usize = 8;
/// Descriptors per host.
const OF_HOST: usize = 4;

/// All ranks. Dropping it kills those that have not ended.
pub(super) struct Ranks {
    statuses: Vec<Option<Status>>,
    /// Processes by rank; empty if the ranks are on hosts.
    here: Vec<Process>,
    /// Ways to hosts.
    shells: Shells,
    /// Hosts whose `ssh` has been started.
    hosts: Vec<Host>,
    /// State of each rank on a host, by rank.
    there: Vec<There>,
    /// Stdin for rank 0 on a host, its first one.
    input: Option<Input>,
    /// Each host that is reached is reported.
    verbose: bool,
    /// Processors to which each rank on this machine is bound.
    processors: Option<Vec<Vec<usize>>>,
    /// The programs that hosts may start ranks with.
    offer: Offer,
    /// Hosts still to be reached: name and job.
    next: VecDeque<(String, HostJob)>,
}

/// State of a rank as its host has reported it.
#[derive(Clone, Copy, Default)]
struct There {
    exited: Option<Status>,
    /// Number of its two output streams that have ended.
    ended: usize,
    /// Part of its output is lost.
    lost: bool,
}

/// Owner of a descriptor that became ready.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Of {
    Rank(Rank),
    Host(usize),
    /// Stdin of this process.
    Input,
}

impl Ranks {
    /// Starts all ranks, or begins to reach their hosts. If one cannot be started, the earlier ones are killed.
    pub fn start(settings: &Settings, control_plane: &ControlPlane) -> Result<(Self, Vec<Pipes>), LaunchError> {
        let count = settings.ranks;
        let mut ranks = Ranks {
            statuses: vec![None; count],
            here: Vec::new(),
            shells: Shells::find(),
            offer: Offer::new(settings.agent.as_deref())?,
            hosts: Vec::new(),
            there: Vec::new(),
            processors: None,
            input: None,
            verbose: settings.verbose,
            next: VecDeque::new(),
        };
        if let Some(hosts) = control_plane.hosts() {
            ranks.there = vec![There::default(); count];
            ranks.input = (!settings.capture).then(Input::new);
            ranks.prepare_hosts(settings, control_plane, hosts)?;
            ranks.ask_hosts()?;
            return Ok((ranks, Vec::new()));
        }
        ranks.processors = binding::here(settings.bind_to, count);
        let mut pipes = Vec::with_capacity(count);
        for rank in 0..count {
            let started = ranks.start_here(rank, settings, control_plane.environment(rank));
            pipes.push(started.map_err(|source| {
                let advice = advice(&source, &settings.program, settings.folder.as_deref().unwrap_or(Path::new(".")));
                LaunchError::Start { program: settings.program.clone(), rank, advice, source }
            })?);
        }
        Ok((ranks, pipes))
    }

    /// Describes the place of each rank on this machine. Hosts describe theirs on stderr.
    pub fn describe_here(&self) -> Vec<String> {
        let of = |rank: Rank| self.processors.as_ref().map(|processors| processors[rank].as_slice());
        let (host, count) = (rustix::system::uname(), self.here.len());
        let host = host.nodename().to_string_lossy();
        (0..count).map(|rank| binding::describe(rank, &host, rank, count, of(rank))).collect()
    }

    /// Number of descriptors needed for `ranks` ranks, on `hosts` hosts or on this machine.
    pub fn descriptors(ranks: usize, hosts: Option<usize>) -> usize {
        OF_START + hosts.map_or(OF_RANK * ranks, |hosts| OF_HOST * hosts)
    }

    fn prepare_hosts(
        &mut self,
        settings: &Settings,
        control_plane: &ControlPlane,
        hosts: Vec<(&str, &[Rank])>,
    ) -> Result<(), LaunchError> {
        let system = |source| LaunchError::System { what: "finding this folder", source };
        let folder = settings.folder_on_hosts().map_err(system)?;
        let secret = control_plane.secret().unwrap_or_default();
        for (host, ranks) in hosts {
            let variables: Vec<_> = ranks.iter().map(|&rank| (rank, control_plane.environment(rank))).collect();
            let job = HostJob::new(settings, host, folder.as_os_str(), &secret, variables);
            let job =
                job.map_err(|why| LaunchError::Host { rank: ranks[0], host: host.to_owned(), why: why.to_string() })?;
            self.next.push_back((host.to_owned(), job));
        }
        Ok(())
    }

    fn ask_hosts(&mut self) -> Result<(), LaunchError> {
        let mut asked = self.hosts.iter().filter(|host| !host.is_reached()).count();
        while asked < AT_ONCE
            && let Some((name, job)) = self.next.pop_front()
        {
            self.hosts.push(Host::start(&self.shells, &self.offer, &name, job)?);
            asked += 1;
        }
        Ok(())
    }

    fn start_here(
        &mut self,
        rank: Rank,
        settings: &Settings,
        environment: Vec<(&'static str, String)>,
    ) -> io::Result<Pipes> {
        let mut command = Command::new(&settings.program);
        command.args(&settings.args).envs(settings.env.iter().map(|(name, value)| (name, value)));
        settings.folder.iter().for_each(|folder| _ = command.current_dir(folder));
        variables::removed_for_ranks().for_each(|name| _ = command.env_remove(name));
        command.envs(environment);
        let stdin = if rank == 0 && !settings.capture { Stdio::inherit() } else { Stdio::null() };
        command.stdin(stdin);
        child::prepare(&mut command, self.processors.as_ref().map(|processors| binding::set(&processors[rank])));
        let (process, pipes) = child::start(&mut command)?;
        tracing::debug!(rank, pid = process.child.id(), "rank started");
        self.here.push(process);
        Ok(pipes)
    }

    /// The ranks that have not ended.
    pub fn running(&self) -> impl Iterator<Item = Rank> {
        self.statuses.iter().enumerate().filter(|(_, status)| status.is_none()).map(|(rank, _)| rank)
    }

    /// Returns whether every host has received its job.
    pub fn are_reached(&self) -> bool {
        self.next.is_empty() && self.hosts.iter().all(Host::is_reached)
    }

    /// The descriptors to wait for. Output of ranks on hosts is read only if there is `room`.
    pub fn awaited(&self, room: bool) -> impl Iterator<Item = (Of, PollFd<'_>)> {
        let running = self.here.iter().enumerate().filter(|(rank, _)| self.statuses[*rank].is_none());
        let here = running
            .map(|(rank, process)| (Of::Rank(rank), PollFd::from_borrowed_fd(process.pidfd.as_fd(), PollFlags::IN)));
        let hosts = self.hosts.iter().enumerate();
        let takes_input = self.hosts.first().is_some_and(Host::is_reached) && self.statuses[0].is_none();
        let input = self.input.as_ref().filter(|_| takes_input).and_then(Input::awaited).map(|fd| (Of::Input, fd));
        let hosts = hosts.flat_map(move |(number, host)| host.awaited(room).map(move |fd| (Of::Host(number), fd)));
        here.chain(hosts).chain(input)
    }

    /// The earliest time at which a host needs attention without an event.
    pub fn next_time(&self) -> Option<Instant> {
        self.hosts.iter().flat_map(|host| [host.until(), host.check_at()]).flatten().min()
    }

    /// Handles the events and returns the ranks that have ended, with their statuses. Output of ranks on hosts goes to
    /// `output`, if there is `room`.
    pub fn step(
        &mut self,
        happened: &[Of],
        room: bool,
        output: &mut Output,
    ) -> Result<Vec<(Rank, Status)>, LaunchError> {
        let failed = |source| LaunchError::System { what: "asking how a rank ended", source };
        let mut ended = Vec::new();
        for of in happened {
            if let Of::Rank(rank) = *of
                && let Some(status) = self.here[rank].child.try_wait().map_err(failed)?
            {
                ended.push((rank, Status::from(status)));
            }
        }
        let now = Instant::now();
        for number in 0..self.hosts.len() {
            let late = self.hosts[number].until().is_some_and(|until| until <= now);
            if late || happened.contains(&Of::Host(number)) {
                self.turn_host(number, room, output, &mut ended)?;
            }
        }
        if happened.contains(&Of::Input)
            && let (Some(input), Some(host)) = (&mut self.input, self.hosts.first_mut())
            && let Some(bytes) = input.read()
        {
            host.feed(&bytes);
        }
        self.hosts.iter_mut().for_each(|host| host.check(now));
        self.ask_hosts()?;
        for &(rank, status) in &ended {
            self.statuses[rank] = Some(status);
        }
        self.release();
        Ok(ended)
    }

    fn turn_host(
        &mut self,
        number: usize,
        room: bool,
        output: &mut Output,
        ended: &mut Vec<(Rank, Status)>,
    ) -> Result<(), LaunchError> {
        let host = &mut self.hosts[number];
        let (before, reached) = (host.ended, host.is_reached());
        for told in host.step(room)? {
            let rank = match told {
                Told::Complained(bytes) => {
                    output.take_of_host(number, &bytes);
                    continue;
                }
                Told::Broken(why) => {
                    output.say(&format!("host {}: {why}; its ranks are being ended", host.name));
                    continue;
                }
                Told::Wrote(rank, stream, bytes) => {
                    self.there[rank].ended += usize::from(bytes.is_empty());
                    output.take(rank, stream, &bytes);
                    rank
                }
                Told::Fed(bytes) => {
                    self.input.iter_mut().for_each(|input| input.fed(bytes));
                    continue;
                }
                Told::Lost(rank) => {
                    self.there[rank].lost = true;
                    output.say(&format!(
                        "the output of rank {rank} is lost: host {} cannot write it to a file (dd failed; is there room in /dev/shm, \
                         or where TMPDIR is?)",
                        host.name
                    ));
                    host.signal(rank, Signal::KILL);
                    rank
                }
                Told::Exited(rank, status) => {
                    self.there[rank].exited = Some(status);
                    rank
                }
            };
            if let There { exited: Some(status), ended: 2, lost } = self.there[rank] {
                // With lost output, success is not credible, and SIGKILL was the launcher's own.
                let spoilt = lost && (status.success() || status == Status::Killed(Signal::KILL.as_raw()));
                let status = if spoilt { Status::Exited(1) } else { status };
                ended.push((rank, status));
            }
        }
        if self.verbose && host.is_reached() && !reached {
            let starter = match &host.starter {
                Some(Starter::Agent(path)) => path,
                _ => "a shell script",
            };
            output.say(&format!("host {}: reached; {starter} starts {}", host.name, Listed(&host.ranks)));
        }
        if host.ended && !before {
            // A host that disappears without reporting its ranks counts as failed, even if its `ssh` exited with status
            // 0.
            let status = host.status().filter(|status| !status.success()).unwrap_or(Status::Exited(255));
            let left = host.ranks.iter().copied().filter(|&rank| self.statuses[rank].is_none());
            let left: Vec<Rank> = left.filter(|rank| ended.iter().all(|(other, _)| other != rank)).collect();
            ended.extend(left.into_iter().map(|rank| (rank, self.there[rank].exited.unwrap_or(status))));
        }
        Ok(())
    }

    /// Closes the connection to each host whose ranks have all ended.
    fn release(&mut self) {
        for host in self.hosts.iter_mut().filter(|host| host.is_reached()) {
            if host.ranks.iter().all(|&rank| self.statuses[rank].is_some()) {
                host.release();
            }
        }
    }

    /// Gives up the hosts not yet reached. Their ranks never started; returns them as killed by SIGTERM.
    pub fn reach_no_more(&mut self) -> Vec<(Rank, Status)> {
        let mut ended = Vec::new();
        let mut number = 0;
        let status = Status::Killed(Signal::TERM.as_raw());
        while let Some(host) = self.hosts.get_mut(number) {
            if !host.is_reached() && !host.ended {
                host.give_up();
                ended.extend(host.ranks.iter().map(|&rank| (rank, status)));
            }
            number += 1;
        }
        ended.extend(
            std::mem::take(&mut self.next)
                .into_iter()
                .flat_map(|(_, job)| job.ranks.into_iter().map(move |(rank, _)| (rank, status))),
        );
        for &(rank, status) in &ended {
            self.statuses[rank] = Some(status);
        }
        ended
    }

    /// A rank's status, once it has ended.
    pub fn status(&self, rank: Rank) -> Option<Status> {
        self.statuses[rank]
    }

    /// The statuses of all ranks, once all have ended.
    pub fn statuses(&self) -> Option<Vec<Status>> {
        self.statuses.iter().copied().collect()
    }

    /// Process identifiers of the ranks on this machine and of each `ssh`.
    pub fn processes(&self) -> HashSet<Pid> {
        let here = self.here.iter().map(|process| Pid::from_child(&process.child));
        here.chain(self.hosts.iter().map(Host::process)).collect()
    }

    /// Sends a signal to every rank that has not ended.
    pub fn signal(&mut self, signal: Signal) {
        let running: Vec<Rank> = self.running().collect();
        tracing::debug!(ranks = ?running, signal = signal.as_raw(), "signal sent");
        for rank in running {
            if let Some(process) = self.here.get(rank) {
                // An error means that the process has ended meanwhile.
                let _ = pidfd_send_signal(&process.pidfd, signal);
            }
            // A rank whose process exited but whose pipes are still open needs no signal.
            if self.there.get(rank).is_some_and(|there| there.exited.is_none())
                && let Some(host) = self.hosts.iter_mut().find(|host| host.is_reached() && host.has(rank))
            {
                host.signal(rank, signal);
            }
        }
    }

    /// Kills the `ssh` of every host with running ranks: those hosts do not answer.
    pub fn cut(&mut self) {
        for host in &mut self.hosts {
            if host.ranks.iter().any(|&rank| self.statuses[rank].is_none()) {
                host.cut();
            }
        }
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
        for (rank, process) in self.here.iter_mut().enumerate() {
            if self.statuses[rank].is_none() {
                let _ = process.child.wait();
            }
        }
        self.end_hosts();
    }
}

impl Ranks {
    /// Ends the remaining processes on hosts, and each `ssh`. Runs before orphans are killed, because an `ssh` is a
    /// child of this process but not an orphan of a rank.
    pub fn end_hosts(&mut self) {
        // A host ends its ranks when the pipe to it is closed.
        let until = Instant::now() + KILL_TO_CUT;
        self.hosts.iter_mut().for_each(Host::close);
        for host in self.hosts.iter_mut().filter(|host| host.is_reached() && !host.ended) {
            // SIGCHLD from another `ssh` may interrupt the wait.
            let _ = retry_on_intr(|| {
                let left = Timespec::try_from(until.saturating_duration_since(Instant::now())).ok();
                poll(&mut [PollFd::new(&host.pidfd, PollFlags::IN)], left.as_ref())
            });
        }
        // Dropping a host kills its `ssh`.
        self.hosts.clear();
    }
}
