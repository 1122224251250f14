//! Listening for connections of either family.

use rustix::net::sockopt::{set_ipv6_v6only, set_socket_reuseaddr};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen as listen_on, socket_with};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 128;

/// Listens at an address. At the unspecified address of IPv6 it accepts IPv4 too, whatever the system's default is.
///
/// # Errors
/// The address is in use, or this machine does not have it.
///
/// # Examples
/// ```
/// let listener = transom_launch::listen("127.0.0.1:0".parse().unwrap())?;
/// std::net::TcpStream::connect(listener.local_addr()?)?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let family = if address.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
    let socket: OwnedFd = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    if address.is_ipv6() {
        set_ipv6_v6only(&socket, false)?;
    }
    // A port of which only closed connections remain can be used again.
    set_socket_reuseaddr(&socket, true)?;
    bind(&socket, &address)?;
    listen_on(&socket, BACKLOG)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv6Addr;
    use std::process::Command;

    /// Set in a process with a network of its own, whose sockets are of one family by default.
    const ONE_FAMILY: &str = "TEST_ONE_FAMILY";

    #[test]
    fn listener_accepts_both_families_by_any_default() {
        if std::env::var_os(ONE_FAMILY).is_some() {
            let any = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 0);
            assert!(!rustix::net::sockopt::ipv6_v6only(listen(any).unwrap()).unwrap());
            return;
        }
        let this = std::env::current_exe().unwrap();
        let name = "listen::tests::listener_accepts_both_families_by_any_default";
        let run = "echo 1 > /proc/sys/net/ipv6/bindv6only || exit 77; exec \"$0\" --exact \"$1\"";
        let ended =
            Command::new("unshare").args(["-Urn", "sh", "-c", run]).arg(this).arg(name).env(ONE_FAMILY, "1").output();
        match ended {
            Ok(ended) if ended.status.success() => {}
            Ok(ended) if ended.status.code() == Some(101) => panic!("{}", String::from_utf8_lossy(&ended.stdout)),
            other => eprintln!("not run: no network of its own: {other:?}"),
        }
    }
}
