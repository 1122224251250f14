//! The header of each datagram, and its validation.

use super::Acknowledgement;
use crate::sequence::reached;

/// Length of the header in bytes.
pub const HEADER: usize = 32;

/// Flag: the header has a checksum.
const CHECKED: u8 = 1;

/// Type of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A packet.
    Packet {
        /// Sequence number of the packet for its peer.
        number: u64,
        /// Number of the transmission.
        sending: u64,
        /// True if the packet is a message between the two [`Delivery`](super::Delivery) ends.
        is_note: bool,
    },
    /// An acknowledgement alone.
    Alone,
}

/// The header of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Type of the datagram.
    pub kind: Kind,
    /// Acknowledgement of packets received from the peer.
    pub told: Acknowledgement,
}

/// Reason why a datagram is rejected: malformed or corrupted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Spoiled {
    /// Fewer bytes than a header.
    #[error("a datagram of {0} bytes, expected at least 32")]
    Short(usize),
    /// A field has an invalid value.
    #[error("invalid value of the field {0}")]
    Field(&'static str),
    /// The checksum does not match: bits were changed on the way or in memory.
    #[error("its checksum does not match its bytes")]
    Checksum,
}

impl Header {
    /// Encodes the header, with the low halves of its numbers. `body` is the checksum of the bytes that
    /// follow; if given, the header carries a checksum over itself and those bytes.
    pub fn encode(&self, body: Option<u32>) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        let (kind, number, sending) = match self.kind {
            Kind::Packet { number, sending, is_note } => (if is_note { 3 } else { 1 }, number, sending),
            Kind::Alone => (2, 0, 0),
        };
        let Acknowledgement { before, mask, newest, permitted } = self.told;
        bytes[0] = kind;
        bytes[1] = if body.is_some() { CHECKED } else { 0 };
        bytes[2..4].copy_from_slice(&permitted.to_le_bytes());
        for (place, number) in bytes[4..20].as_chunks_mut::<4>().0.iter_mut().zip([number, sending, before, newest]) {
            *place = (number as u32).to_le_bytes();
        }
        bytes[24..].copy_from_slice(&mask.to_le_bytes());
        if let Some(body) = body {
            let sum = checksum(&bytes, body);
            bytes[20..24].copy_from_slice(&sum.to_le_bytes());
        }
        bytes
    }

    /// Parses a header. `near` are numbers close to those of the datagram: the peer's next packet and newest
    /// transmission, and the same two of this rank. `body` computes the checksum of the bytes that follow; it
    /// is called only if the header has one.
    pub fn decode(bytes: &[u8], near: [u64; 4], body: impl FnOnce() -> u32) -> Result<Header, Spoiled> {
        let bytes: &[u8; HEADER] = bytes.first_chunk().ok_or(Spoiled::Short(bytes.len()))?;
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        match bytes[1] {
            0 if word(20) != 0 => return Err(Spoiled::Field("checksum")),
            0 => {}
            CHECKED => {
                let mut unsummed = *bytes;
                unsummed[20..24].fill(0);
                if checksum(&unsummed, body()) != word(20) {
                    return Err(Spoiled::Checksum);
                }
            }
            _ => return Err(Spoiled::Field("flags")),
        }
        let whole = |at: usize, which: usize| whole(near[which], word(at));
        let kind = match bytes[0] {
            1 | 3 => Kind::Packet {
                is_note: bytes[0] == 3,
                number: whole(4, 0).ok_or(Spoiled::Field("number"))?,
                sending: whole(8, 1).filter(|sending| *sending > 0).ok_or(Spoiled::Field("sending"))?,
            },
            2 if word(4) == 0 && word(8) == 0 => Kind::Alone,
            _ => return Err(Spoiled::Field("kind")),
        };
        let told = Acknowledgement {
            before: whole(12, 2).ok_or(Spoiled::Field("before"))?,
            newest: whole(16, 3).ok_or(Spoiled::Field("newest"))?,
            mask: u64::from_le_bytes(bytes[24..].try_into().expect("eight bytes")),
            permitted: u16::from_le_bytes([bytes[2], bytes[3]]),
        };
        Ok(Header { kind, told })
    }
}

fn checksum(header: &[u8; HEADER], body: u32) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(body);
    hasher.update(header);
    hasher.finalize()
}

/// The number with this low half that is nearest to `near`; `None` if that would be negative.
fn whole(near: u64, low: u32) -> Option<u64> {
    let away = low.wrapping_sub(near as u32);
    if reached(low, near as u32) { near.checked_add(away.into()) } else { near.checked_sub(away.wrapping_neg().into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn truncated_number_decodes_to_the_nearest() {
        assert_eq!(whole(0, 5), Some(5));
        assert_eq!(whole(5, 0), Some(0));
        assert_eq!(whole(0, u32::MAX), None);
        assert_eq!(whole(4 * GIB - 1, 3), Some(4 * GIB + 3));
        assert_eq!(whole(4 * GIB + 3, u32::MAX), Some(4 * GIB - 1));
        assert_eq!(whole(9 * GIB, GIB as u32 + 7), Some(9 * GIB + 7));
        assert_eq!(whole(u64::MAX, 0), None);
    }

    #[test]
    fn encoded_header_decodes_to_itself() {
        let told = Acknowledgement { before: 8 * GIB + 1, mask: 1 << 63 | 5, newest: 12 * GIB, permitted: 64 };
        let packet =
            Header { kind: Kind::Packet { number: 4 * GIB + 2, sending: 4 * GIB + 900, is_note: false }, told };
        let alone = Header { kind: Kind::Alone, told };
        // Nearby numbers, also across a multiple of 4 Gi.
        let near = [4 * GIB - 1, 4 * GIB, 8 * GIB - 4, 12 * GIB + 5];
        for header in [packet, alone] {
            assert_eq!(Header::decode(&header.encode(None), near, || unreachable!()), Ok(header));
            assert_eq!(Header::decode(&header.encode(Some(77)), near, || 77), Ok(header));
            assert_eq!(Header::decode(&header.encode(Some(77)), near, || 78), Err(Spoiled::Checksum));
        }
        // The exact bytes, which other versions depend on.
        let mut said = [1, 0, 64, 0, 2, 0, 0, 0, 132, 3, 0, 0, 1, 0, 0, 0].to_vec();
        said.extend([0; 8]);
        said.extend([5, 0, 0, 0, 0, 0, 0, 128]);
        assert_eq!(packet.encode(None)[..], said);
    }

    #[test]
    fn flipped_bit_in_header_is_detected() {
        let told = Acknowledgement { before: 3, mask: 6, newest: 9, permitted: 2 };
        let header = Header { kind: Kind::Packet { number: 7, sending: 8, is_note: true }, told };
        let bytes = header.encode(Some(1234));
        for bit in 0..8 * HEADER {
            let mut bytes = bytes;
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Header::decode(&bytes, [0; 4], || 1234).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn invalid_header_is_refused() {
        let header = Header { kind: Kind::Alone, told: Acknowledgement::default() };
        let bytes = header.encode(None);
        for length in 0..HEADER {
            assert_eq!(Header::decode(&bytes[..length], [0; 4], || 0), Err(Spoiled::Short(length)));
        }
        for (at, value, field) in [
            (0, 0, "kind"),
            (0, 4, "kind"),
            (1, 2, "flags"),
            (4, 1, "kind"),
            (15, 255, "before"),
            (19, 255, "newest"),
            (20, 1, "checksum"),
        ] {
            let mut bytes = bytes;
            bytes[at] = value;
            assert_eq!(Header::decode(&bytes, [0; 4], || 0), Err(Spoiled::Field(field)), "byte {at}");
        }
        let packet = Header { kind: Kind::Packet { number: 0, sending: 0, is_note: false }, ..header };
        assert_eq!(Header::decode(&packet.encode(None), [0; 4], || 0), Err(Spoiled::Field("sending")));
    }
}
