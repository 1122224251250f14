//! The guard of an agent.

use super::{KILLED_RANKS, ignore_in_this_process, lost, named};
use crate::launcher::orphans::Orphans;
use crate::process::is_stopped;
use rustix::io::retry_on_intr;
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, kill_process, pidfd_open, pidfd_send_signal, wait};
use rustix::stdio::{dup2_stdin, dup2_stdout};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

/// A stopped agent has four seconds to go on: a batch system may stop and continue all processes of a job. The steps
/// count only time in which the guard itself runs.
const STEP: Duration = Duration::from_millis(100);
const STEPS: usize = 40;

/// Starts this program again as the agent of a host, and waits for its end. Returns the exit status.
///
/// If the agent is killed, or stays stopped, all its descendants are killed. Reports that on stderr, with the host's name.
///
/// # Errors
/// A failed system call. The agent, if it was started, notices the end of this process and kills its ranks.
///
/// # Examples
/// ```no_run
/// let status = transom::host_agent::guard("node1")?; // in `transom host-agent --host=node1`
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn guard(host: &str) -> io::Result<u8> {
    try_guard(host).map_err(|error| named(host, error))
}

fn try_guard(host: &str) -> io::Result<u8> {
    ignore_in_this_process(&[SIGUSR1, SIGUSR2])?;
    let orphans = Orphans::adopt()?;
    let mut agent = Command::new("/proc/self/exe");
    agent
        .arg0("transom")
        .args(["host-agent", &format!("--host={host}"), "--guard"])
        .arg(std::process::id().to_string());
    let agent = Pid::from_child(&agent.spawn()?);
    // The guard outlives the agent, so that it kills what the ranks leave.
    let pidfd = Arc::new(pidfd_open(agent, PidfdFlags::empty())?);
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        let pidfd = pidfd.clone();
        // SAFETY: the handler makes one system call, which is async-signal-safe.
        unsafe { signal_hook::low_level::register(signal, move || _ = pidfd_send_signal(&pidfd, Signal::TERM)) }?;
    }
    // The connection ends with the agent.
    let nothing = File::options().read(true).write(true).open("/dev/null")?;
    dup2_stdin(&nothing)?;
    dup2_stdout(&nothing)?;
    let what = loop {
        let Some((process, status)) = retry_on_intr(|| wait(WaitOptions::UNTRACED))? else { continue };
        match status.exit_status() {
            // An orphan has ended.
            _ if process != agent => {}
            // The agent has ended the ranks. Processes that left a rank's process group go on.
            Some(code) if code == 0 || code == i32::from(KILLED_RANKS) => {
                std::mem::forget(orphans);
                return Ok(code as u8);
            }
            // An error of the agent, which it has reported.
            Some(code) => return Ok(code as u8),
            None if !status.stopped() => break "killed",
            None if (0..STEPS).all(|_| {
                std::thread::sleep(STEP);
                is_stopped(agent.as_raw_pid() as u32)
            }) =>
            {
                let _ = kill_process(agent, Signal::KILL);
                break "stopped";
            }
            None => {}
        }
    };
    let _ = io::stderr().write_all(lost(host, what, agent.as_raw_pid()).as_bytes());
    // Dropping `orphans` kills what is left.
    Ok(KILLED_RANKS)
}
