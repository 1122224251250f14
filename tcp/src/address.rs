//! The addresses at which a rank accepts connections, and the record by which its peers learn them.

use crate::error::TcpError;
use crate::greet::Secret;
use crate::variables::{INTERFACE, PORTS, Ports, Selector};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use transom_launch::{Interface, interfaces};

/// Most addresses that a rank publishes.
const MOST: usize = 16;

/// The interfaces that this rank uses.
pub fn usable() -> Result<Vec<Interface>, TcpError> {
    let all = interfaces();
    let Some(selector) = INTERFACE.get::<Selector>()? else {
        return some(all, || "this machine has no address".into());
    };
    let named: Vec<_> = all.iter().map(|found| format!("{} {}", found.name, found.address)).collect();
    let selected = all.into_iter().filter(|found| selector.selects(&found.name, found.address)).collect();
    some(selected, || {
        let named = named.join(", ");
        format!("TRANSOM_TCP_INTERFACE={selector} selects no address of this machine, which has {named}")
    })
}

fn some(found: Vec<Interface>, why: impl FnOnce() -> String) -> Result<Vec<Interface>, TcpError> {
    if found.is_empty() { Err(TcpError::NoAddress { why: why() }) } else { Ok(found) }
}

/// Listens for connections; returns the addresses at which peers reach the listener.
pub fn listen() -> Result<(TcpListener, Vec<SocketAddr>), TcpError> {
    let usable = usable()?;
    let all = [IpAddr::from(Ipv6Addr::UNSPECIFIED), IpAddr::from(Ipv4Addr::UNSPECIFIED)];
    // A listener has one address, or all.
    let (at, published) = match INTERFACE.get::<Selector>()? {
        Some(_) => (&[usable[0].address][..], &usable[..1]),
        None => (&all[..], &usable[..]),
    };
    let ports = PORTS.get::<Ports>()?;
    let listened = first_ok(at.iter().map(|&address| bind(address, ports)));
    let listened = listened.and_then(|listener| Ok((listener.local_addr()?.port(), listener)));
    let (port, listener) = listened.map_err(|source| {
        let on = ports.map_or("a port".into(), |Ports { first, last }| {
            format!("a port of TRANSOM_TCP_PORTS={first}-{last}, of which each rank of a host needs one,")
        });
        TcpError::System { what: format!("listening on {on} at {}", at[0]), source }
    })?;
    let addresses = published.iter().take(MOST).map(|found| SocketAddr::new(found.address, port)).collect();
    Ok((listener, addresses))
}

fn bind(address: IpAddr, ports: Option<Ports>) -> io::Result<TcpListener> {
    let Ports { first, last } = ports.unwrap_or(Ports { first: 0, last: 0 });
    first_ok((first..=last).map(|port| transom_launch::listen(SocketAddr::new(address, port))))
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

/// The secret and the addresses that a rank sends to its peers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contact {
    pub secret: Secret,
    pub addresses: Vec<SocketAddr>,
}

impl Contact {
    /// Encodes the secret, then each address as text preceded by its length (one byte).
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = self.secret.to_vec();
        for address in &self.addresses {
            let text = address.to_string();
            bytes.push(text.len() as u8);
            bytes.extend_from_slice(text.as_bytes());
        }
        bytes
    }

    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (secret, mut rest) = bytes.split_first_chunk()?;
        let mut addresses = Vec::new();
        while let Some((&len, more)) = rest.split_first() {
            let (text, more) = more.split_at_checked(len.into())?;
            addresses.push(std::str::from_utf8(text).ok()?.parse().ok()?);
            rest = more;
        }
        (1..=MOST).contains(&addresses.len()).then_some(Contact { secret: *secret, addresses })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn malformed_contacts_are_refused() {
        let contact =
            Contact { secret: [7; 32], addresses: vec!["1.2.3.4:5".parse().unwrap(), "[::1]:65535".parse().unwrap()] };
        let bytes = contact.to_bytes();
        assert_eq!(Contact::from_bytes(&bytes), Some(contact));
        let whole = [32 + 10, bytes.len()];
        for len in (0..bytes.len()).filter(|len| !whole.contains(len)) {
            assert_eq!(Contact::from_bytes(&bytes[..len]), None, "the first {len} bytes");
        }
        assert_eq!(Contact::from_bytes(&[&[0; 32][..], b"\x03abc"].concat()), None);
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
