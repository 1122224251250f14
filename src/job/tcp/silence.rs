//! Whether the host at the other end of a connection has vanished. A process that computes, or is stopped, is not a
//! host that vanished, whatever it leaves unread: its kernel still answers.

use nix::sys::socket::getsockopt;
use nix::{getsockopt_impl, libc, sockopt_impl};
use rustix::net::sockopt;
use std::io;
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// How often a connection is to be looked at.
pub(super) const LOOK: Duration = Duration::from_secs(2);
/// How long a host may leave data or a probe without an answer. It is noticed when the connection is looked at, so within
/// ten seconds.
const SILENT: Duration = Duration::from_secs(8);

/// Has small messages sent at once, and a connection over which nothing is sent ended ten seconds after the last sign of
/// life of the other host.
///
/// While there is something to be sent, the kernel does not probe so. Its limit for that, TCP_USER_TIMEOUT, is of no use:
/// it ends a connection whose other side answers that it has no room, as the kernel of a stopped process does.
/// [`Silence`] looks at it instead.
pub(super) fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, Duration::from_secs(4))?;
    sockopt::set_tcp_keepintvl(stream, Duration::from_secs(2))?;
    sockopt::set_tcp_keepcnt(stream, 3)?;
    Ok(())
}

sockopt_impl!(
    /// What the kernel knows of a connection.
    TcpInfo,
    GetOnly,
    libc::IPPROTO_TCP,
    libc::TCP_INFO,
    libc::tcp_info
);

/// Since when a host has not answered.
#[derive(Default)]
pub(super) struct Silence(Option<Instant>);

impl Silence {
    /// Whether the host has vanished. To be asked every [`LOOK`].
    ///
    /// Between two probes of a host that has no room for more there may be two minutes. So a host counts as silent only
    /// from where something was sent to it *after* its last answer.
    pub fn is_final(&mut self, stream: &TcpStream) -> bool {
        let Ok(info) = getsockopt(stream, TcpInfo) else { return false };
        let asked = info.tcpi_unacked > 0 && info.tcpi_last_data_sent <= info.tcpi_last_ack_recv;
        if !asked && info.tcpi_probes == 0 {
            self.0 = None;
            return false;
        }
        let now = Instant::now();
        let answered = now.checked_sub(Duration::from_millis(info.tcpi_last_ack_recv.into()));
        let since = self.0.filter(|since| answered.is_none_or(|answered| answered <= *since)).unwrap_or(now);
        self.0 = Some(since);
        now - since >= SILENT
    }
}
