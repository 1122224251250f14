//! The interface and the ports at which ranks, or the hub of a job, accept connections.

use crate::interfaces::{Interface, interfaces};
use crate::listen::listen;
use crate::variables::{Variable, VariableError};
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::str::FromStr;

/// The variables that select where to listen.
///
/// # Examples
/// ```
/// use transom_launch::ListenAt;
/// use transom_launch::variables::{HUB_INTERFACE, HUB_PORTS};
/// let (listener, addresses) = ListenAt { interface: &HUB_INTERFACE, ports: &HUB_PORTS }.listen()?;
/// assert_eq!(listener.local_addr().unwrap().port(), addresses[0].port());
/// # Ok::<(), transom_launch::ListenError>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct ListenAt {
    /// Has the value of a [`Selector`]. Not set: all interfaces.
    pub interface: &'static Variable,
    /// Has the value of [`Ports`]. Not set: any port.
    pub ports: &'static Variable,
}

/// Why nothing listens.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListenError {
    /// A variable has an invalid value.
    #[error(transparent)]
    Variable(#[from] VariableError),
    /// This machine has no address that is selected.
    #[error("{why}")]
    NoAddress {
        /// The selection, and the addresses of this machine.
        why: String,
    },
    /// The system refused.
    #[error("{what}: {source}")]
    System {
        /// The operation, with addresses and ports.
        what: String,
        /// The system's error.
        source: io::Error,
    },
}

impl ListenAt {
    /// The interfaces that are selected.
    ///
    /// # Errors
    /// [`ListenError::Variable`]; [`ListenError::NoAddress`].
    pub fn usable(&self) -> Result<Vec<Interface>, ListenError> {
        let all = interfaces();
        let Some(selector) = self.interface.get::<Selector>()? else {
            return some(all, || "this machine has no address".into());
        };
        let named: Vec<_> = all.iter().map(|found| format!("{} {}", found.name, found.address)).collect();
        let selected = all.into_iter().filter(|found| selector.selects(&found.name, found.address)).collect();
        some(selected, || {
            let named = named.join(", ");
            format!("{}={selector} selects no address of this machine, which has {named}", self.interface.name)
        })
    }

    /// Listens for connections; returns the addresses at which others reach the listener.
    ///
    /// # Errors
    /// The errors of [`usable`](Self::usable); [`ListenError::System`] if no port of the range is free.
    pub fn listen(&self) -> Result<(TcpListener, Vec<SocketAddr>), ListenError> {
        let usable = self.usable()?;
        // IPv6 accepts IPv4 connections too; IPv4 is for systems without IPv6.
        let all = [IpAddr::from(Ipv6Addr::UNSPECIFIED), IpAddr::from(Ipv4Addr::UNSPECIFIED)];
        // A listener has one address, or all.
        let (at, published) = match self.interface.get::<Selector>()? {
            Some(_) => (&[usable[0].address][..], &usable[..1]),
            None => (&all[..], &usable[..]),
        };
        let ports = self.ports.get::<Ports>()?;
        let listened = first_ok(at.iter().map(|&address| bind(address, ports)));
        let listened = listened.and_then(|listener| Ok((listener.local_addr()?.port(), listener)));
        let (port, listener) = listened.map_err(|source| {
            let on = ports.map_or("a port".into(), |Ports { first, last }| {
                format!("a port of {}={first}-{last}, of which each listener on a host needs one,", self.ports.name)
            });
            ListenError::System { what: format!("listening on {on} at {}", at[0]), source }
        })?;
        Ok((listener, published.iter().map(|found| SocketAddr::new(found.address, port)).collect()))
    }
}

fn some(found: Vec<Interface>, why: impl FnOnce() -> String) -> Result<Vec<Interface>, ListenError> {
    if found.is_empty() { Err(ListenError::NoAddress { why: why() }) } else { Ok(found) }
}

fn bind(address: IpAddr, ports: Option<Ports>) -> io::Result<TcpListener> {
    let Ports { first, last } = ports.unwrap_or(Ports { first: 0, last: 0 });
    first_ok((first..=last).map(|port| listen(SocketAddr::new(address, port))))
}

/// The first success of several attempts, or the last error.
fn first_ok<R>(attempts: impl Iterator<Item = io::Result<R>>) -> io::Result<R> {
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for attempt in attempts {
        match attempt {
            Ok(result) => return Ok(result),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Selection of interfaces: a name, or a subnet.
///
/// # Examples
/// ```
/// let selector: transom_launch::Selector = "10.0.0.0/8".parse().unwrap();
/// assert!(selector.selects("eth0", "10.1.2.3".parse().unwrap()));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Selector {
    /// The name of an interface.
    Name(String),
    /// An address, and the number of its first bits that count.
    Subnet(IpAddr, u32),
}

impl Selector {
    /// Returns whether an address of the interface `name` is selected.
    pub fn selects(&self, name: &str, address: IpAddr) -> bool {
        match (self, address) {
            (Selector::Name(wanted), _) => wanted == name,
            (Selector::Subnet(IpAddr::V4(net), bits), IpAddr::V4(address)) => {
                (net.to_bits() ^ address.to_bits()).leading_zeros() >= *bits
            }
            (Selector::Subnet(IpAddr::V6(net), bits), IpAddr::V6(address)) => {
                (net.to_bits() ^ address.to_bits()).leading_zeros() >= *bits
            }
            (Selector::Subnet(..), _) => false,
        }
    }
}

impl FromStr for Selector {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let Some((address, bits)) = text.split_once('/') else {
            return match text {
                "" => Err("no name".into()),
                _ if text.parse::<IpAddr>().is_ok() => {
                    Err(format!("an address without a prefix length; `{text}/32` selects that address alone"))
                }
                _ => Ok(Selector::Name(text.into())),
            };
        };
        let address: IpAddr = address.parse().map_err(|_| format!("`{address}` is not an address"))?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        match bits.parse() {
            Ok(bits) if bits <= most => Ok(Selector::Subnet(address, bits)),
            _ => Err(format!("`{bits}` is not a prefix length from 0 to {most}")),
        }
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Selector::Name(name) => f.write_str(name),
            Selector::Subnet(address, bits) => write!(f, "{address}/{bits}"),
        }
    }
}

/// A range of ports.
///
/// # Examples
/// ```
/// let ports: transom_launch::Ports = "47000-47099".parse().unwrap();
/// assert_eq!((ports.first, ports.last), (47000, 47099));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ports {
    /// The first port that may be used.
    pub first: u16,
    /// The last port that may be used.
    pub last: u16,
}

impl FromStr for Ports {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        let (first, last) = text.trim().split_once('-').ok_or("not two numbers with `-` between them")?;
        let port = |text: &str| text.trim().parse().ok().filter(|&port| port > 0).ok_or("not a port number");
        let ports = Ports { first: port(first)?, last: port(last)? };
        if ports.first <= ports.last { Ok(ports) } else { Err("the first port is above the last") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_select_names_and_subnets() {
        let selects =
            |text: &str, name, address: &str| text.parse::<Selector>().unwrap().selects(name, address.parse().unwrap());
        assert!(selects("eth0", "eth0", "1.2.3.4") && !selects("eth0", "eth1", "1.2.3.4"));
        assert!(selects("10.0.0.0/8", "x", "10.9.9.9") && !selects("10.0.0.0/8", "x", "11.0.0.0"));
        assert!(selects("0.0.0.0/0", "x", "255.0.0.0") && !selects("0.0.0.0/0", "x", "::1"));
        assert!(selects("fd00::/8", "x", "fdff::1") && !selects("::1/128", "x", "::2"));
        for wrong in ["", "10.0.0.1", "10.0.0.0/33", "a/8", "::/129"] {
            assert!(wrong.parse::<Selector>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn ports_are_two_ordered_numbers() {
        assert_eq!("5-7".parse(), Ok(Ports { first: 5, last: 7 }));
        assert_eq!(" 65535 - 65535 ".parse(), Ok(Ports { first: 65535, last: 65535 }));
        for wrong in ["5", "7-5", "0-3", "1-65536", "a-b", "5-"] {
            assert!(wrong.parse::<Ports>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn listener_takes_the_first_free_port() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        let address = Ipv4Addr::LOCALHOST.into();
        assert!(bind(address, Some(Ports { first: port, last: port })).is_err());
        let next = bind(address, Some(Ports { first: port, last: port.saturating_add(50) }));
        assert!(next.unwrap().local_addr().unwrap().port() > port);
    }
}
