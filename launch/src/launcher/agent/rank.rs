//! A rank of this host: its process, its pipes, and the file from which it reads the secret.

use crate::launcher::child::{self, Process};
use crate::launcher::host_job::{HostJob, SearchPath};
use crate::tcp::{Addresses, Contact, Secret, Uplink};
use crate::variables::{self, HUB, HUB_VIA, SECRET, SIZE};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, Signal, kill_process_group, setsid};
use rustix::thread::CpuSet;
use std::ffi::OsString;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::process::CommandExt;
use std::path::{Component, Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use transom_locks::Rank;

/// Descriptors of a rank: its process, two pipes, and the file.
pub(super) const DESCRIPTORS: usize = 4;

pub(super) struct RankHere {
    pub rank: Rank,
    pub process: Process,
    /// Stdout and stderr, each until its end.
    pub pipes: [Option<OwnedFd>; 2],
    pub has_exited: bool,
    /// The rank finds the file by this process and descriptor.
    _secret: OwnedFd,
}

/// The variables and the program that all ranks of a host have.
pub(super) struct Common<'a> {
    job: &'a HostJob,
    /// The folder of the ranks, which is this process's.
    folder: PathBuf,
    path: OsString,
    /// Addresses of the job's hub for ranks of this host.
    hub: String,
    /// The host's connection to the hub. Without it each rank connects to the hub itself.
    pub uplink: Option<Uplink>,
}

impl<'a> Common<'a> {
    /// `carries`: the ranks share a connection to the hub.
    pub fn new(job: &'a HostJob, carries: bool) -> Self {
        let path = match &job.path {
            SearchPath::Given(path) => path.clone(),
            SearchPath::AfterOwn(others) => {
                let own = std::env::var_os("PATH").unwrap_or_default();
                let both = [own, others.clone()].into_iter().filter(|path| !path.is_empty());
                both.collect::<Vec<_>>().join(":".as_ref())
            }
        };
        let hub = hub_from_here(variable(job, HUB.name), std::env::var("SSH_CONNECTION").ok().as_deref());
        let uplink = carries.then(|| connect(job, &hub)).and_then(|uplink| {
            uplink.inspect_err(|error| tracing::warn!(%error, "each rank connects to the hub itself")).ok()
        });
        let given = Path::new(&job.folder);
        let is_plain = given.components().all(|part| part != Component::ParentDir);
        let folder = if is_plain { None } else { std::env::current_dir().ok() }.unwrap_or_else(|| given.into());
        Common { job, folder, path, hub, uplink }
    }

    /// Starts the rank with this index, in this process's folder and a session of its own. Returns the stdin of rank 0,
    /// too.
    pub fn start(&self, number: usize, processors: Option<CpuSet>) -> io::Result<(RankHere, Option<ChildStdin>)> {
        let (rank, variables) = &self.job.ranks[number];
        let secret = memfd_create("transom secret", MemfdFlags::CLOEXEC)?;
        rustix::io::write(&secret, format!("transom secret {}\n", self.job.secret).as_bytes())?;
        let mut command = Command::new(&self.job.program);
        command.args(&self.job.args).env("PWD", &self.folder);
        variables::removed_for_ranks().for_each(|name| _ = command.env_remove(name));
        command.envs(self.job.env.iter().map(|(name, value)| (name, value))).env("PATH", &self.path);
        command.envs(variables.iter().map(|(name, value)| (name, value))).env(HUB.name, &self.hub);
        command.envs(self.uplink.iter().map(|uplink| (HUB_VIA.name, uplink.address().to_string())));
        command.env(SECRET.name, format!("{},{}", std::process::id(), secret.as_raw_fd()));
        let has_input = self.job.input && *rank == 0;
        command.stdin(if has_input { Stdio::piped() } else { Stdio::null() });
        child::prepare(&mut command, processors);
        // SAFETY: between fork and exec the closure makes one system call.
        unsafe { command.pre_exec(|| Ok(setsid().map(drop)?)) };
        let (mut process, pipes) = child::start(&mut command)?;
        tracing::debug!(rank, pid = process.child.id(), "rank started");
        let stdin = process.child.stdin.take();
        let pipes = pipes.map(Some);
        Ok((RankHere { rank: *rank, process, pipes, has_exited: false, _secret: secret }, stdin))
    }
}

impl RankHere {
    /// Sends a signal to the rank's process group, if the rank has not been reaped: its number is free then.
    pub fn signal(&self, signal: Signal) {
        if !self.has_exited {
            let _ = kill_process_group(Pid::from_child(&self.process.child), signal);
        }
    }
}

/// Ranks do not outlive the agent.
impl Drop for RankHere {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
    }
}

/// The value of a variable that all ranks of a host have; empty if it is not set.
fn variable<'j>(job: &'j HostJob, name: &str) -> &'j str {
    job.ranks[0].1.iter().find(|(set, _)| set == name).map_or("", |(_, value)| value)
}

/// Begins to connect this host to the hub at these addresses.
fn connect(job: &HostJob, hub: &str) -> io::Result<Uplink> {
    let malformed = || io::Error::other("the launcher sent no addresses of the hub, no secret or no number of ranks");
    let Addresses(addresses) = hub.parse().map_err(|_| malformed())?;
    let secret = Secret::from_text(&job.secret).ok_or_else(malformed)?;
    let size = variable(job, SIZE.name).parse().map_err(|_| malformed())?;
    Uplink::start(Contact { via: None, addresses, secret }, size, job.ranks.iter().map(|(rank, _)| *rank).collect())
}

/// Prepends the address from which `ssh` reached this host, because the hub can be reached there. Skips an address with an
/// interface name, which is valid only on the other machine, and `UNKNOWN`, which `sshd` reports when it does not serve a
/// socket.
fn hub_from_here(hub: &str, connection: Option<&str>) -> String {
    let client = connection.and_then(|text| text.split(' ').next()?.parse::<IpAddr>().ok());
    let port = hub.rsplit(':').next().and_then(|port| port.parse::<u16>().ok());
    match (client, port) {
        (Some(client), Some(port)) => format!("{},{hub}", SocketAddr::new(client, port)),
        _ => hub.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ssh_client_address_precedes_the_hubs() {
        for (connection, hub) in [
            (Some("192.0.2.7 50000 192.0.2.8 22"), "192.0.2.7:5,h:5"),
            (Some("2001:db8::7 50000 2001:db8::8 22"), "[2001:db8::7]:5,h:5"),
            // The scope names an interface of the other machine.
            (Some("fe80::7%eth0 50000 fe80::8%eth0 22"), "h:5"),
            // `sshd` with a command as its transport.
            (Some("UNKNOWN 65535 UNKNOWN 65535"), "h:5"),
            (Some(""), "h:5"),
            (None, "h:5"),
        ] {
            assert_eq!(hub_from_here("h:5", connection), hub, "{connection:?}");
        }
    }
}
