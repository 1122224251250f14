//! Signals to the launcher, as a descriptor for `poll`.

use rustix::fd::{AsFd, BorrowedFd};
use rustix::process::Signal;
use signal_hook::consts::{SIGCHLD, SIGCONT, SIGHUP, SIGINT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2, SIGXFSZ};
use signal_hook::iterator::backend::SignalDelivery;
use signal_hook::iterator::exfiltrator::SignalOnly;
use std::io;
use std::os::unix::net::UnixStream;

/// A signal to the launcher, by its effect on the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Received {
    /// Ends the job.
    End(i32),
    /// Is passed on to all ranks.
    Forward(Signal),
    /// Stops all ranks and the launcher: SIGTSTP, as Ctrl-Z sends it.
    Stop,
}

/// While this value exists, signals to this process act on the job.
pub(super) struct Signals {
    delivery: SignalDelivery<UnixStream, SignalOnly>,
}

impl Signals {
    pub fn handle() -> io::Result<Self> {
        let (read, write) = UnixStream::pair()?;
        let ignored = ignored();
        let obeyed =
            [SIGINT, SIGHUP, SIGUSR1, SIGUSR2, SIGTSTP].into_iter().filter(|signal| ignored & (1 << (signal - 1)) == 0);
        // SIGCHLD: if it were ignored, the kernel would reap the ranks before their statuses are read. SIGXFSZ: a write
        // beyond the limit of file sizes then fails with an error that the launcher reports.
        let handled = obeyed.chain([SIGTERM, SIGCONT, SIGCHLD, SIGXFSZ]);
        let delivery = SignalDelivery::with_pipe(read, write, SignalOnly, handled)?;
        Ok(Signals { delivery })
    }

    /// Readable once a signal has arrived.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.delivery.get_read().as_fd()
    }

    /// Signals that arrived since the last call and concern the job.
    pub fn pending(&mut self) -> impl Iterator<Item = Received> {
        self.delivery.pending().filter_map(|signal| match signal {
            SIGCHLD | SIGXFSZ => None,
            SIGUSR1 => Some(Received::Forward(Signal::USR1)),
            SIGUSR2 => Some(Received::Forward(Signal::USR2)),
            SIGCONT => Some(Received::Forward(Signal::CONT)),
            SIGTSTP => Some(Received::Stop),
            signal => Some(Received::End(signal)),
        })
    }
}

/// Signals that this process ignores, as a bit mask; 0 if /proc is not available.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}
