//! Signals to the launcher, as a descriptor for `poll`.

use crate::process::{Stat, ancestors};
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
        effects(self.delivery.pending().collect(), has_shell)
    }
}

/// The effects of signals that arrived together, in the order of their numbers.
fn effects(arrived: Vec<i32>, has_shell: fn() -> bool) -> impl Iterator<Item = Received> {
    // The SIGCONT may have followed the SIGTSTP.
    let continued = arrived.contains(&SIGCONT);
    arrived.into_iter().filter_map(move |signal| match signal {
        SIGCHLD | SIGXFSZ => None,
        SIGTSTP if continued || !has_shell() => None,
        SIGUSR1 => Some(Received::Forward(Signal::USR1)),
        SIGUSR2 => Some(Received::Forward(Signal::USR2)),
        SIGCONT => Some(Received::Forward(Signal::CONT)),
        SIGTSTP => Some(Received::Stop),
        signal => Some(Received::End(signal)),
    })
}

/// Returns whether a shell could continue this process once it has stopped: an ancestor in another process group of its
/// session. Where there is none, the kernel ignores a SIGTSTP that has no handler.
fn has_shell() -> bool {
    Stat::of(std::process::id()).is_some_and(|own| is_watched(own, ancestors().map_while(Stat::of)))
}

fn is_watched(own: Stat, mut ancestors: impl Iterator<Item = Stat>) -> bool {
    let other = ancestors.find(|other| (other.group, other.session) != (own.group, own.session));
    other.is_some_and(|other| other.session == own.session)
}

/// Signals that this process ignores, as a bit mask; 0 if /proc is not available.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shell_is_an_ancestor_in_another_group() {
        let watched = |own: [u32; 2], ancestors: &[[u32; 2]]| {
            let stat = |&[group, session]: &[u32; 2]| Stat { parent: 1, group, session };
            is_watched(stat(&own), ancestors.iter().map(stat))
        };
        assert!(watched([7, 3], &[[7, 3], [3, 3], [1, 1]]));
        assert!(!watched([7, 7], &[[3, 3], [1, 1]]));
        assert!(!watched([7, 3], &[[7, 3]]));
        // In a container, whose session began outside.
        assert!(watched([7, 0], &[[0, 0]]));
        assert!(!watched([0, 0], &[[0, 0], [0, 0]]));
        assert!(!watched([7, 7], &[[0, 0]]));
    }

    #[test]
    fn tstp_stops_only_what_can_be_continued() {
        let effects = |arrived: &[i32], has_shell| effects(arrived.into(), has_shell).collect::<Vec<_>>();
        assert_eq!(effects(&[SIGCHLD, SIGTSTP], || true), [Received::Stop]);
        assert_eq!(effects(&[SIGTSTP], || false), []);
        assert_eq!(effects(&[SIGCONT, SIGTSTP], || true), [Received::Forward(Signal::CONT)]);
        assert_eq!(effects(&[SIGUSR1, SIGTERM], || false), [Received::Forward(Signal::USR1), Received::End(SIGTERM)]);
    }
}
