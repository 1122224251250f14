//! The way to a host: the command that executes a line of `sh` there.

use super::hosts::HostList;
use std::collections::HashSet;
use std::path::Path;
use std::process::Command;

/// The job must not own a shared `ssh` connection, which would end with it. It uses the user's existing master
/// connection but creates none.
const SSH: &str = "ssh -oBatchMode=yes -oServerAliveInterval=5 -oControlMaster=no";
/// Starts a step beside those that run, with all cores that the job has on the node: the launcher or the user binds
/// ranks.
const SRUN: &str = "srun --overlap --cpu-bind=none --mpi=none -N1 -n1 -w";
/// Describes how this user logged in here, which is not the way from a host to the hub.
const LOGIN: &str = "SSH_CONNECTION";

/// The ways to hosts, as this process's environment selects them.
pub(super) struct Shells {
    /// The command in TRANSOM_SSH.
    asked: Option<String>,
    /// Nodes of the Slurm job in which this process runs; empty if there is no `srun`.
    nodes: HashSet<String>,
}

impl Shells {
    pub fn find() -> Self {
        let asked = std::env::var("TRANSOM_SSH").ok().filter(|words| !words.trim().is_empty());
        let path = std::env::var_os("PATH").unwrap_or_default();
        let has_srun = std::env::split_paths(&path).any(|folder| folder.join("srun").is_file());
        let nodes = if has_srun { HostList::nodes_of_slurm() } else { Vec::new() };
        Shells { asked, nodes: nodes.into_iter().collect() }
    }

    /// The command that passes `line` to `sh` on a host.
    pub fn command(&self, host: &str, line: &str) -> Command {
        let Some(words) = self.words(host) else {
            let mut command = Command::new("sh");
            command.args(["-c", line]).env_remove(LOGIN);
            return command;
        };
        let mut words = words.split_ascii_whitespace();
        let program = words.next().unwrap_or("ssh");
        let mut command = Command::new(program);
        // `srun` would pass the variable on.
        command.args(words).arg(host).env_remove(LOGIN);
        match Path::new(program).file_name().is_some_and(|name| name == "srun") {
            // Executes its arguments; `ssh` gives them to a shell of the host.
            true => command.args(["sh", "-c", line]),
            false => command.arg(line),
        };
        command
    }

    /// The words of the command before the host; `None` for this machine, which needs none.
    fn words(&self, host: &str) -> Option<&str> {
        let own = rustix::system::uname();
        let here = host == "localhost" || own.nodename().to_bytes() == host.as_bytes();
        match &self.asked {
            Some(words) => Some(words),
            None if here => None,
            None if self.nodes.contains(host) => Some(SRUN),
            None => Some(SSH),
        }
    }

    /// Returns the advice for a host that cannot be reached.
    pub fn remedy(&self, host: &str) -> String {
        match self.words(host) {
            None => String::new(),
            Some(SRUN) => format!(
                "; does `srun --overlap -N1 -n1 -w {host} true` work in this Slurm job? TRANSOM_SSH=ssh reaches the host without Slurm"
            ),
            Some(_) => format!("; does `ssh {host} true` work without a password?"),
        }
    }
}
