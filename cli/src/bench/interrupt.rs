//! Cleanup after a signal during a job: ends the job, and removes the directory of the built programs.

use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io;
use std::path::PathBuf;
use std::sync::Mutex;

struct Left {
    job: Option<Pid>,
    dir: Option<PathBuf>,
}

static LEFT: Mutex<Left> = Mutex::new(Left { job: None, dir: None });

fn with_left<R>(change: impl FnOnce(&mut Left) -> R) -> R {
    // A panicking thread leaves the state consistent, because each change is one assignment.
    change(&mut LEFT.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
}

/// From now on SIGINT, SIGTERM, SIGQUIT and SIGHUP clean up and end this process. SIGHUP stays ignored if it was, as
/// under nohup.
pub fn handle() -> io::Result<()> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok());
    let hang_up = ignored.unwrap_or(0) & (1 << (SIGHUP - 1)) == 0;
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGQUIT].into_iter().chain(hang_up.then_some(SIGHUP)))?;
    let wait = move || {
        if let Some(signal) = signals.forever().next() {
            // Holds the lock until the process ends, so that no further job starts.
            with_left(|left| {
                if let Some(job) = left.job {
                    let _ = kill_process(job, Signal::TERM);
                }
                if let Some(dir) = &left.dir {
                    let _ = std::fs::remove_dir_all(dir);
                }
                std::process::exit(128 + signal);
            });
        }
    };
    std::thread::Builder::new().name("signals".into()).spawn(wait).map(drop)
}

/// Forgets the job, which has ended and is about to be reaped. Its process id may be reused afterwards.
pub fn ended() {
    with_left(|left| left.job = None);
}

/// Starts a job. A signal finds it registered from its first moment.
pub fn spawn(command: &mut std::process::Command) -> io::Result<std::process::Child> {
    with_left(|left| {
        let child = command.spawn()?;
        left.job = Some(Pid::from_child(&child));
        Ok(child)
    })
}

/// Registers a directory to be removed.
pub fn directory(dir: PathBuf) {
    with_left(|left| left.dir = Some(dir));
}
