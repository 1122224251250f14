//! Detection of vanished hosts at the other end of a connection. A process that computes or is stopped does not count
//! as vanished, whatever it leaves unread: its kernel still answers.

use nix::sys::socket::getsockopt;
use nix::{getsockopt_impl, libc, sockopt_impl};
use rustix::net::sockopt;
use std::io;
use std::mem::offset_of;
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Interval between checks of a connection.
pub(super) const LOOK: Duration = Duration::from_secs(2);
/// Longest time that a host may leave data or a probe unanswered. Checks are [`LOOK`] apart, so a vanished host is
/// detected within ten seconds.
const SILENT: Duration = Duration::from_secs(8);
/// Retransmissions without an answer before a host counts as vanished. The network may lose fewer in a row, and this
/// host makes none while it is suspended itself.
const ATTEMPTS: u8 = 5;

/// Configures a connection: small messages are sent at once, and an idle connection ends ten seconds after the other
/// host's last sign of life. Lost data are retransmitted six times at constant intervals, so that [enough
/// attempts](ATTEMPTS) fit into the time even where an answer takes a second.
///
/// The kernel does not send these probes while data are outstanding. Its limit for that case, TCP_USER_TIMEOUT, does
/// not serve: it also ends a connection whose other side reports a full receive window, as the kernel of a stopped
/// process does. [`Silence`] checks such connections instead.
pub(super) fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, Duration::from_secs(4))?;
    sockopt::set_tcp_keepintvl(stream, Duration::from_secs(1))?;
    sockopt::set_tcp_keepcnt(stream, 6)?;
    sockopt::set_tcp_thin_linear_timeouts(stream, true)?;
    // Linear timeouts have no effect under a congestion control without slow start (BBR). Every kernel has Reno; where
    // selecting it is forbidden, the connection works unchanged.
    let _ = sockopt::set_tcp_congestion(stream, "reno");
    Ok(())
}

/// The beginning of the kernel's `tcp_info`, which every kernel has. Newer kernels have a longer one, and `nix` rejects
/// a kernel that returns less than requested.
#[repr(C)]
pub struct Info {
    _first: [u8; 2],
    pub(super) retransmits: u8,
    probes: u8,
    _second: [u8; 20],
    unacked: u32,
    _third: [u8; 16],
    last_data_sent: u32,
    _fourth: [u8; 8],
    last_ack_recv: u32,
}

const _: () = {
    use libc::tcp_info as whole;
    assert!(offset_of!(Info, retransmits) == offset_of!(whole, tcpi_retransmits));
    assert!(offset_of!(Info, probes) == offset_of!(whole, tcpi_probes));
    assert!(offset_of!(Info, unacked) == offset_of!(whole, tcpi_unacked));
    assert!(offset_of!(Info, last_data_sent) == offset_of!(whole, tcpi_last_data_sent));
    assert!(offset_of!(Info, last_ack_recv) == offset_of!(whole, tcpi_last_ack_recv));
};

sockopt_impl!(TcpInfo, GetOnly, libc::IPPROTO_TCP, libc::TCP_INFO, Info);

/// Time since which a host has not answered.
#[derive(Default)]
pub(super) struct Silence(Option<Instant>);

impl Silence {
    /// Returns whether the host has vanished. To be called every [`LOOK`].
    pub fn is_final(&mut self, stream: &TcpStream) -> bool {
        getsockopt(stream, TcpInfo).is_ok_and(|info| self.is_final_at(Instant::now(), &info))
    }

    /// The kernel may wait two minutes between probes of a full receive window. A host therefore counts as silent only
    /// from a time at which data were sent *after* its last answer.
    fn is_final_at(&mut self, now: Instant, info: &Info) -> bool {
        let asked = info.unacked > 0 && info.last_data_sent <= info.last_ack_recv;
        if !asked && info.probes == 0 {
            self.0 = None;
            return false;
        }
        let answered = now.checked_sub(Duration::from_millis(info.last_ack_recv.into()));
        let since = self.0.filter(|since| answered.is_none_or(|answered| answered <= *since)).unwrap_or(now);
        self.0 = Some(since);
        now - since >= SILENT && (info.unacked == 0 || info.retransmits >= ATTEMPTS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs one check per two seconds; returns the index of the check at which the host counts as vanished. Each check
    /// has: unacknowledged packets, retransmissions, unanswered probes, milliseconds since the last send and since the
    /// last answer.
    fn vanished(looks: impl IntoIterator<Item = (u32, u8, u8, u32, u32)>) -> Option<usize> {
        let (mut silence, began) = (Silence::default(), Instant::now());
        looks.into_iter().enumerate().position(
            |(look, (unacked, retransmits, probes, last_data_sent, last_ack_recv))| {
                let (_first, _second, _third, _fourth) = Default::default();
                let info = Info {
                    _first,
                    retransmits,
                    probes,
                    _second,
                    unacked,
                    _third,
                    last_data_sent,
                    _fourth,
                    last_ack_recv,
                };
                silence.is_final_at(began + LOOK * look as u32, &info)
            },
        )
    }

    #[test]
    fn host_vanishes_only_without_any_answer() {
        let idle = (0, 0, 0, 60_000, 60_000);
        assert_eq!(vanished([idle; 30]), None);
        let busy = (5, 0, 0, 1, 3);
        assert_eq!(vanished([busy; 30]), None, "data are always in flight and answered");
        // Probes at growing intervals, each answered.
        let full = (0..30).map(|look| (0, 0, 0, 1_000 * look, 1_000 * (look % 12)));
        assert_eq!(vanished(full), None);
        let slow = (0..30).map(|look| (0, 0, 1, 2_000 * look, 2_000 * (look % 3)));
        assert_eq!(vanished(slow), None, "each probe is answered after a while");
        // Retransmissions as a function of the checks since the host fell silent.
        let silent = |unacked, again: fn(u32) -> u8, probes| {
            let silent =
                (3..30).map(move |look| (unacked, again(look - 3), probes, 2_000 * (look - 3) + 100, 2_000 * look));
            vanished([idle; 3].into_iter().chain(silent))
        };
        assert_eq!(silent(0, |_| 0, 1), Some(7), "8 s after the first check");
        assert_eq!(silent(1, |look| 2 * look as u8, 0), Some(7), "8 s after the first check");
        assert_eq!(silent(1, |look| look as u8, 0), Some(8), "five retransmissions");
        assert_eq!(silent(1, |_| 4, 0), None, "this host makes no progress");
    }
}
