//! The frames of a connection for messages. Received bytes are untrusted.
//!
//! | frame | kind (1 byte, then 7 zero bytes) | rest |
//! |---|---|---|
//! | send | 1 | the packet |
//! | put | 2 | key of a ring (16 bytes), offset (8), then the bytes |
//! | closed | 3 | none: the sender receives no more messages |
//! | write | 4 | key of registered memory (16 bytes), offset (8), number of bytes (8), which follow the frame |

use crate::frame::{LONGEST, Malformed, PREFIX};
use transom_channel::wire::Key;

/// Most bytes before the packet, with the frame's length.
const HEAD: usize = PREFIX + 8 + PUT;
const PUT: usize = 24;
const WRITE: usize = 32;
/// Longest packet, in bytes.
pub const PACKET: usize = LONGEST - PUT;

/// A received frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Packet<'f> {
    Send(&'f [u8]),
    Put { to: Key, at: u64, bytes: &'f [u8] },
    Closed,
    Write { to: Key, at: u64, length: u64 },
}

/// The head of a frame whose packet has `bytes` bytes, and its length.
pub fn head(to: Option<(Key, u64)>, bytes: usize) -> ([u8; HEAD], usize) {
    let mut head = [0; HEAD];
    let used = match to {
        None => PREFIX + 8,
        Some((Key { address, key }, at)) => {
            for (index, number) in [address, key, at].into_iter().enumerate() {
                head[PREFIX + 8 + 8 * index..][..8].copy_from_slice(&number.to_le_bytes());
            }
            HEAD
        }
    };
    head[..PREFIX].copy_from_slice(&((used - PREFIX + bytes) as u32).to_le_bytes());
    head[PREFIX] = if to.is_some() { 2 } else { 1 };
    (head, used)
}

/// The whole frame of a rank that receives no more messages.
pub fn closed() -> [u8; PREFIX + 8] {
    let mut frame = [0; PREFIX + 8];
    frame[0] = 8;
    frame[PREFIX] = 3;
    frame
}

/// The whole frame before the bytes of a write.
pub fn write(to: Key, at: u64, length: u64) -> [u8; PREFIX + 8 + WRITE] {
    let mut frame = [0; PREFIX + 8 + WRITE];
    frame[0] = 8 + WRITE as u8;
    frame[PREFIX] = 4;
    for (index, number) in [to.address, to.key, at, length].into_iter().enumerate() {
        frame[PREFIX + 8 + 8 * index..][..8].copy_from_slice(&number.to_le_bytes());
    }
    frame
}

impl<'f> Packet<'f> {
    /// Decodes a frame without its length.
    pub fn parse(frame: &'f [u8]) -> Result<Self, Malformed> {
        let (head, rest) = frame.split_first_chunk::<8>().ok_or(Malformed)?;
        match *head {
            [1, 0, 0, 0, 0, 0, 0, 0] if rest.len() <= PACKET => Ok(Packet::Send(rest)),
            [2, 0, 0, 0, 0, 0, 0, 0] => {
                let (put, bytes) = rest.split_first_chunk::<PUT>().ok_or(Malformed)?;
                let ([address, key, at], []) = put.as_chunks::<8>() else { return Err(Malformed) };
                let [address, key, at] = [address, key, at].map(|number| u64::from_le_bytes(*number));
                Ok(Packet::Put { to: Key { address, key }, at, bytes })
            }
            [3, 0, 0, 0, 0, 0, 0, 0] if rest.is_empty() => Ok(Packet::Closed),
            [4, 0, 0, 0, 0, 0, 0, 0] if rest.len() == WRITE => {
                let ([address, key, at, length], []) = rest.as_chunks::<8>() else { return Err(Malformed) };
                let [address, key, at, length] = [address, key, at, length].map(|number| u64::from_le_bytes(*number));
                Ok(Packet::Write { to: Key { address, key }, at, length })
            }
            _ => Err(Malformed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::length;

    fn frame(to: Option<(Key, u64)>, bytes: &[u8]) -> Vec<u8> {
        let (head, used) = head(to, bytes.len());
        let frame = [&head[..used], bytes].concat();
        assert_eq!(length(*frame.first_chunk().unwrap()), Ok(frame.len() - PREFIX));
        frame[PREFIX..].to_vec()
    }

    #[test]
    fn packets_parse_to_what_was_encoded() {
        let to = Key { address: 1 << 50, key: 7 };
        for bytes in [&[][..], &[1, 2, 3], &[7; PACKET]] {
            assert_eq!(Packet::parse(&frame(None, bytes)), Ok(Packet::Send(bytes)));
            assert_eq!(Packet::parse(&frame(Some((to, 9)), bytes)), Ok(Packet::Put { to, at: 9, bytes }));
        }
        assert_eq!(Packet::parse(&closed()[PREFIX..]), Ok(Packet::Closed));
        assert_eq!(length(*closed().first_chunk().unwrap()), Ok(8));
        let written = write(to, 9, 1 << 40);
        assert_eq!(Packet::parse(&written[PREFIX..]), Ok(Packet::Write { to, at: 9, length: 1 << 40 }));
        assert_eq!(length(*written.first_chunk().unwrap()), Ok(40));
    }

    #[test]
    fn random_packets_parse_canonically_or_not() {
        let mut random = fastrand::Rng::with_seed(3);
        for _ in 0..100_000 {
            let bytes: Vec<u8> =
                (0..random.usize(..42)).map(|at| if at == 0 { random.u8(..5) } else { random.u8(..2) }).collect();
            let bytes = if random.bool() {
                bytes
            } else {
                bytes.iter().enumerate().map(|(at, byte)| byte * u8::from(at % 8 == 0)).collect()
            };
            match Packet::parse(&bytes) {
                Ok(Packet::Send(sent)) => assert_eq!(frame(None, sent), bytes),
                Ok(Packet::Put { to, at, bytes: put }) => assert_eq!(frame(Some((to, at)), put), bytes),
                Ok(Packet::Closed) => assert_eq!(closed()[PREFIX..], bytes),
                Ok(Packet::Write { to, at, length }) => assert_eq!(write(to, at, length)[PREFIX..], bytes),
                Err(Malformed) => {}
            }
        }
    }
}
