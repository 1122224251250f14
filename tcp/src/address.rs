//! The record by which peers learn the addresses of a rank.

use crate::greet::Secret;
use std::net::SocketAddr;

/// Most addresses that a rank publishes.
pub const MOST: usize = 16;

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
}
