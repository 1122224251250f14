//! The contact by which ranks reach the hub of their job. It is passed in the environment by transom's launcher, or as
//! a value in another launcher's key-value store.

use super::hub::Hub;
use super::wire::{self, Answer, Hello, LONG, Secret};
use crate::variables::{HUB, HUB_VIA, VariableError};
use std::io;
use std::net::{AddrParseError, SocketAddr};
use std::str::FromStr;
use std::time::{Duration, Instant};

/// Most addresses passed through another launcher, which limits the length of values.
const MOST_ADDRESSES: usize = 8;
/// Longest time to reach the hub at its own addresses.
pub(super) const REACH_WITHIN: Duration = Duration::from_secs(60);
/// Longest time until the agent of this host answers, which may be reaching the hub. An agent that does not reach it closes
/// its port.
const VIA_WITHIN: Duration = Duration::from_secs(30);

/// Addresses of the hub, and the secret that authenticates both sides of a connection.
#[derive(Clone)]
pub(crate) struct Contact {
    /// The port of this host's agent, which is tried once, before the hub's addresses.
    pub via: Option<SocketAddr>,
    pub addresses: Vec<SocketAddr>,
    pub secret: Secret,
}

impl Contact {
    /// The contact of a hub on this machine. Another host may reach a different machine at an address. Such a machine fails
    /// the handshake, because it does not know the secret.
    pub fn of(hub: &Hub, secret: Secret) -> Self {
        Contact { via: None, addresses: hub.addresses().to_vec(), secret }
    }

    /// The environment variable with the hub's addresses. No variable holds the secret, because a rank's children
    /// inherit them.
    pub fn environment(&self) -> (&'static str, String) {
        let addresses = self.addresses.iter().map(ToString::to_string).collect::<Vec<_>>();
        (HUB.name, addresses.join(","))
    }

    /// The addresses in that variable; `None` if it is not set.
    pub fn addresses_from_env() -> Result<Option<Vec<SocketAddr>>, VariableError> {
        Ok(HUB.get::<Addresses>()?.map(|Addresses(addresses)| addresses))
    }

    /// The port of this host's agent, from the environment.
    pub fn via_from_env() -> Result<Option<SocketAddr>, VariableError> {
        HUB_VIA.get()
    }

    /// Connects to the hub through the agent of this host, or at one of the hub's addresses. Tries these in turn for
    /// [`REACH_WITHIN`].
    pub(super) fn reach(&self, hello: Hello) -> io::Result<Answer> {
        if let Some(via) = self.via {
            match wire::greet_within(&via, hello, &self.secret, VIA_WITHIN) {
                Ok(answer) => return Ok(answer),
                Err(error) => {
                    tracing::debug!(rank = hello.rank, %via, %error, "this host's agent does not reach the hub")
                }
            }
        }
        let until = Instant::now() + REACH_WITHIN;
        let mut last = io::ErrorKind::AddrNotAvailable.into();
        for address in self.addresses.iter().cycle().take_while(|_| Instant::now() < until) {
            match wire::greet(address, hello, &self.secret) {
                Ok(answer) => return Ok(answer),
                Err(error) => {
                    tracing::debug!(%address, %error, "the hub is not reached");
                    last = error;
                    // Avoids spinning when all addresses refuse at once.
                    std::thread::sleep(Duration::from_millis(100));
                }
            }
        }
        Err(last)
    }

    /// Encodes the secret, then each address as text preceded by its length (one byte).
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = self.secret.as_bytes().to_vec();
        for address in self.addresses.iter().take(MOST_ADDRESSES) {
            let text = address.to_string();
            bytes.push(text.len() as u8);
            bytes.extend_from_slice(text.as_bytes());
        }
        bytes
    }

    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (secret, mut rest) = bytes.split_at_checked(LONG)?;
        let mut addresses = Vec::new();
        while let Some((&len, more)) = rest.split_first() {
            let (text, more) = more.split_at_checked(len.into())?;
            addresses.push(std::str::from_utf8(text).ok()?.parse().ok()?);
            rest = more;
        }
        Some(Contact { via: None, addresses, secret: Secret::from_bytes(secret)? })
    }
}

pub(crate) struct Addresses(pub Vec<SocketAddr>);

impl FromStr for Addresses {
    type Err = AddrParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.split(',').map(str::parse).collect::<Result<_, _>>().map(Addresses)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn malformed_contacts_are_refused() {
        for wrong in [&[][..], &[0; 31], &[&[0; 32][..], &[200, 1]].concat(), &[&[0; 32][..], b"\x03abc"].concat()] {
            assert!(Contact::from_bytes(wrong).is_none(), "{wrong:?}");
        }
        let bytes = [&[7; 32][..], b"\x091.2.3.4:5", b"\x07[::1]:6"].concat();
        let contact = Contact::from_bytes(&bytes).unwrap();
        assert_eq!(contact.addresses, ["1.2.3.4:5".parse().unwrap(), "[::1]:6".parse().unwrap()]);
        assert_eq!((contact.secret.as_bytes(), contact.to_bytes()), (&[7; 32][..], bytes));
        assert_eq!(contact.environment(), ("TRANSOM_HUB", "1.2.3.4:5,[::1]:6".to_owned()));
    }
}
