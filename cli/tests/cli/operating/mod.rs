//! Options and variables of `transom run` for those who run jobs: limits of time, environment, signals, lists of hosts,
//! output files, placement. A script replaces `ssh` and runs its command on this machine.

mod aliases;
mod builds;
mod environment;
mod helpers;
mod hosts;
mod input;
mod limit;
mod local_rank;
mod mapping;
mod output;
mod placement;
mod signals;

use crate::copies::outside_batch_job;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;
use tempfile::TempDir;

/// Time limit of each job; the test fails beyond it.
const LIMIT: Duration = Duration::from_secs(60);
/// Records each host that is reached, and runs the command in another folder and an almost empty environment.
const SSH: &str = "#!/bin/sh\necho $1 >>$0.calls\ncd / && exec env -i PATH=/usr/bin:/bin sh -c \"$2\"\n";

/// A call of `transom`, in a folder of its own.
struct Job {
    command: Command,
    folder: TempDir,
}

#[derive(Debug)]
struct Ended {
    code: Option<i32>,
    /// Lines of stdout, sorted.
    lines: Vec<String>,
    stderr: String,
}

/// `transom run` with these arguments.
fn job(args: &[&str]) -> Job {
    let folder = TempDir::new().unwrap();
    let ssh = folder.path().join("ssh");
    std::fs::write(&ssh, SSH).unwrap();
    std::fs::set_permissions(&ssh, PermissionsExt::from_mode(0o755)).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_transom"));
    command.arg("run").args(args).env("TRANSOM_SSH", ssh);
    for name in ["TRANSOM_LOG", "TRANSOM_FABRIC", "TRANSOM_GRACE", "TRANSOM_OUTPUT_PREFIX"] {
        command.env_remove(name);
    }
    outside_batch_job(&mut command);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Job { command, folder }
}

fn run(args: &[&str]) -> Ended {
    job(args).end()
}

impl Job {
    fn env(mut self, name: &str, value: impl AsRef<std::ffi::OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// Runs the job to its end.
    fn end(mut self) -> Ended {
        let child = self.command.spawn().unwrap();
        end(child)
    }
}

/// Waits for the end of a job.
fn end(child: Child) -> Ended {
    let pid = rustix::process::Pid::from_child(&child);
    let (send, receive) = mpsc::channel();
    std::thread::spawn(move || send.send(child.wait_with_output()));
    let Ok(output) = receive.recv_timeout(LIMIT) else {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        panic!("the job has not ended after {LIMIT:?}");
    };
    let output = output.unwrap();
    let mut lines: Vec<_> = String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect();
    lines.sort();
    Ended { code: output.status.code(), lines, stderr: String::from_utf8_lossy(&output.stderr).into_owned() }
}
