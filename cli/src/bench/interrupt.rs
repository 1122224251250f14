//! What is left to do when somebody ends the program while a job runs: end the job, and remove what was built.

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
    // Whoever panicked meanwhile has left nothing half done: each change is one assignment.
    change(&mut LEFT.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
}

/// From now on SIGINT, SIGTERM, SIGQUIT and SIGHUP end this process after that; SIGHUP stays ignored if it was, as by
/// nohup.
pub fn handle() -> io::Result<()> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok());
    let hang_up = ignored.unwrap_or(0) & (1 << (SIGHUP - 1)) == 0;
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGQUIT].into_iter().chain(hang_up.then_some(SIGHUP)))?;
    let wait = move || {
        if let Some(signal) = signals.forever().next() {
            // Held until the end, so that no job starts any more.
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

/// The job has ended, and will be waited for: its number may then be another's.
pub fn ended() {
    with_left(|left| left.job = None);
}

/// Starts a job so that it is known from its first moment.
pub fn spawn(command: &mut std::process::Command) -> io::Result<std::process::Child> {
    with_left(|left| {
        let child = command.spawn()?;
        left.job = Some(Pid::from_child(&child));
        Ok(child)
    })
}

/// A directory to be removed.
pub fn directory(dir: PathBuf) {
    with_left(|left| left.dir = Some(dir));
}
