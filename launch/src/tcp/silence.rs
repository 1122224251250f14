//! Whether the host at the other end of a connection has vanished. A process that computes, or is stopped, is not a
//! host that vanished, whatever it leaves unread: its kernel still answers.

use nix::sys::socket::getsockopt;
use nix::{getsockopt_impl, libc, sockopt_impl};
use rustix::net::sockopt;
use std::io;
use std::mem::offset_of;
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// How often a connection is to be looked at.
pub(super) const LOOK: Duration = Duration::from_secs(2);
/// How long a host may leave data or a probe without an answer. It is noticed when the connection is looked at, so within
/// ten seconds.
const SILENT: Duration = Duration::from_secs(8);
/// How often data must have been sent again in vain. Fewer may be lost on the way one after the other; and none is sent while
/// this host itself stands still.
const ATTEMPTS: u8 = 5;

/// Has small messages sent at once, and a connection over which nothing is sent ended ten seconds after the last sign of
/// life of the other host. What is lost is sent again six times without waiting longer each time, so that it is
/// [often enough](ATTEMPTS) in time also where an answer takes a second.
///
/// While there is something to be sent, the kernel does not probe so. Its limit for that, TCP_USER_TIMEOUT, is of no use:
/// it ends a connection whose other side answers that it has no room, as the kernel of a stopped process does.
/// [`Silence`] looks at it instead.
pub(super) fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, Duration::from_secs(4))?;
    sockopt::set_tcp_keepintvl(stream, Duration::from_secs(1))?;
    sockopt::set_tcp_keepcnt(stream, 6)?;
    sockopt::set_tcp_thin_linear_timeouts(stream, true)?;
    // Linear timeouts have no effect under a congestion control without slow start (BBR). Every kernel has Reno; where that
    // is forbidden, the connection serves as it is.
    let _ = sockopt::set_tcp_congestion(stream, "reno");
    Ok(())
}

/// What the kernel knows of a connection: the beginning of its `tcp_info`, which every kernel has. The whole of it is longer
/// in newer kernels, and `nix` does not bear a kernel that has less than is asked for.
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

/// Since when a host has not answered.
#[derive(Default)]
pub(super) struct Silence(Option<Instant>);

impl Silence {
    /// Whether the host has vanished. To be asked every [`LOOK`].
    pub fn is_final(&mut self, stream: &TcpStream) -> bool {
        getsockopt(stream, TcpInfo).is_ok_and(|info| self.is_final_at(Instant::now(), &info))
    }

    /// Between two probes of a host that has no room for more there may be two minutes. So a host counts as silent only
    /// from where something was sent to it *after* its last answer.
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

    /// Looks every two seconds: what is on its way, how often it was sent again, probes without an answer, milliseconds since
    /// something was sent and since the last answer. At which look the host has vanished.
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
    fn only_a_host_that_answers_nothing_has_vanished() {
        let idle = (0, 0, 0, 60_000, 60_000);
        assert_eq!(vanished([idle; 30]), None);
        let busy = (5, 0, 0, 1, 3);
        assert_eq!(vanished([busy; 30]), None, "something is always on its way, and answered");
        // Ever longer between two probes, each of which is answered.
        let full = (0..30).map(|look| (0, 0, 0, 1_000 * look, 1_000 * (look % 12)));
        assert_eq!(vanished(full), None);
        let slow = (0..30).map(|look| (0, 0, 1, 2_000 * look, 2_000 * (look % 3)));
        assert_eq!(vanished(slow), None, "each probe is answered after a while");
        // By the number of looks since it fell silent: how often data was sent again.
        let silent = |unacked, again: fn(u32) -> u8, probes| {
            let silent =
                (3..30).map(move |look| (unacked, again(look - 3), probes, 2_000 * (look - 3) + 100, 2_000 * look));
            vanished([idle; 3].into_iter().chain(silent))
        };
        assert_eq!(silent(0, |_| 0, 1), Some(7), "8 s after it was first seen");
        assert_eq!(silent(1, |look| 2 * look as u8, 0), Some(7), "8 s after it was first seen");
        assert_eq!(silent(1, |look| look as u8, 0), Some(8), "sent again five times");
        assert_eq!(silent(1, |_| 4, 0), None, "this host does nothing");
    }
}
