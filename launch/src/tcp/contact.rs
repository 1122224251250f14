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
/// Longest time to reach the hub.
pub(super) const REACH_WITHIN: Duration = Duration::from_secs(60);

/// Addresses of the hub, and the secret that authenticates both sides of a connection.
#[derive(Clone)]
pub(crate) struct Contact {
    pub addresses: Vec<SocketAddr>,
    pub secret: Secret,
}

impl Contact {
    /// The contact of a hub on this machine. Another host may reach a different machine at an address. Such a machine fails
    /// the handshake, because it does not know the secret.
    pub fn of(hub: &Hub, secret: Secret) -> Self {
        Contact { addresses: hub.addresses().to_vec(), secret }
    }

    /// The environment variable with the hub's addresses. No variable holds the secret, because a rank's children
    /// inherit them.
    pub fn environment(&self) -> (&'static str, String) {
        let addresses = self.addresses.iter().map(ToString::to_string).collect::<Vec<_>>();
        (HUB.name, addresses.join(","))
    }

    /// The addresses in that variable, after that of the host's agent if there is one; `None` if it is not set.
    pub fn addresses_from_env() -> Result<Option<Vec<SocketAddr>>, VariableError> {
        let Some(Addresses(of_hub)) = HUB.get()? else { return Ok(None) };
        let via: Option<Addresses> = HUB_VIA.get()?;
        Ok(Some(via.into_iter().flat_map(|Addresses(via)| via).chain(of_hub).collect()))
    }

    /// Connects to the hub at one of its addresses. Tries them in turn for [`REACH_WITHIN`].
    pub(super) fn reach(&self, hello: Hello) -> io::Result<Answer> {
        let until = Instant::now() + REACH_WITHIN;
        let mut last = io::ErrorKind::AddrNotAvailable.into();
        for address in self.addresses.iter().cycle().take_while(|_| Instant::now() < until) {
            match wire::greet(address, hello, &self.secret) {
                Ok(answer) => return Ok(answer),
                Err(error) => {
                    tracing::debug!(rank = hello.rank, %address, %error, "the hub is not reached");
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
        Some(Contact { addresses, secret: Secret::from_bytes(secret)? })
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
