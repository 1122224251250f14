//! Messages between the two ends of a [`Delivery`](super::Delivery) about writes by datagrams. Each is one
//! packet.

use crate::wire::Key;

/// Header bytes before the piece in a copy.
pub(super) const COPY: usize = 16;

/// A message about a write by datagrams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Note {
    /// Announces a write of `length` bytes. Its sender numbers writes, and later messages refer to that
    /// number.
    Want { transfer: u32, rail: u8, into: Key, at: u64, length: u64 },
    /// Requests pieces of one window (64 pieces): as datagrams to `to`, or as copies.
    Grant { transfer: u32, window: u32, wanted: u64, piece: u32, to: Option<Key> },
    /// All datagrams granted for a window were sent; or some were not, because the rail is cut.
    Sent { transfer: u32, window: u32, is_cut: bool },
    /// A piece in a packet; its bytes follow.
    Copy { transfer: u32, window: u32, index: u8 },
    /// The write is complete.
    Over { transfer: u32 },
}

impl Note {
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(48);
        let mut put = |field: &[u8]| bytes.extend_from_slice(field);
        match self {
            Note::Want { transfer, rail, into, at, length } => {
                put(&[1, *rail, 0, 0]);
                put(&transfer.to_le_bytes());
                [into.address, into.key, *at, *length].iter().for_each(|word| put(&word.to_le_bytes()));
            }
            Note::Grant { transfer, window, wanted, piece, to } => {
                put(&[2, u8::from(to.is_some()), 0, 0]);
                [*transfer, *window, *piece].iter().for_each(|half| put(&half.to_le_bytes()));
                let to = to.unwrap_or(Key { address: 0, key: 0 });
                [*wanted, to.address, to.key].iter().for_each(|word| put(&word.to_le_bytes()));
            }
            Note::Sent { transfer, window, is_cut } => {
                put(&[3, u8::from(*is_cut), 0, 0]);
                [transfer, window].iter().for_each(|half| put(&half.to_le_bytes()));
            }
            Note::Copy { transfer, window, index } => {
                put(&[4, *index, 0, 0]);
                [*transfer, *window, 0].iter().for_each(|half| put(&half.to_le_bytes()));
            }
            Note::Over { transfer } => {
                put(&[5, 0, 0, 0]);
                put(&transfer.to_le_bytes());
            }
        }
        bytes
    }

    /// Parses a message from the first bytes of a packet of `length` bytes; `None` if it is malformed.
    pub fn decode(bytes: &[u8], length: usize) -> Option<Note> {
        let half = |at: usize| Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
        let word = |at: usize| Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
        let key = |at: usize| Some(Key { address: word(at)?, key: word(at + 8)? });
        let [kind, small, 0, 0] = *bytes.first_chunk()? else { return None };
        let transfer = half(4)?;
        let (note, needed) = match (kind, small) {
            (1, rail) => (Note::Want { transfer, rail, into: key(8)?, at: word(24)?, length: word(32)? }, 40),
            (2, 0 | 1) => {
                let to = (small == 1).then_some(key(24)?);
                (Note::Grant { transfer, window: half(8)?, piece: half(12)?, wanted: word(16)?, to }, 40)
            }
            (3, 0 | 1) => (Note::Sent { transfer, window: half(8)?, is_cut: small == 1 }, 12),
            (4, index @ 0..64) => (Note::Copy { transfer, window: half(8)?, index }, length.max(COPY + 1)),
            (5, 0) => (Note::Over { transfer }, 8),
            _ => return None,
        };
        (needed == length).then_some(note)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: Key = Key { address: 0x0102_0304_0506_0708, key: 9 };

    #[test]
    fn note_decodes_to_itself_invalid_note_is_refused() {
        let grant = Note::Grant { transfer: 7, window: 3, wanted: 1 << 63 | 1, piece: 4032, to: None };
        let all = [
            Note::Want { transfer: 7, rail: 2, into: KEY, at: 100, length: 1 << 40 },
            grant,
            Note::Grant { transfer: 7, window: 3, wanted: 5, piece: 4032, to: Some(KEY) },
            Note::Sent { transfer: u32::MAX, window: 1, is_cut: false },
            Note::Sent { transfer: 1, window: 0, is_cut: true },
            Note::Over { transfer: 0 },
        ];
        for note in all {
            let bytes = note.encode();
            assert_eq!(Note::decode(&bytes, bytes.len()), Some(note));
            assert!((0..bytes.len()).all(|short| Note::decode(&bytes[..short], short).is_none()), "{note:?}");
            assert_eq!(Note::decode(&[bytes.clone(), vec![0]].concat(), bytes.len() + 1), None, "{note:?}");
            for (at, value) in [(0, 0), (0, 6), (2, 1), (3, 1)] {
                let mut wrong = bytes.clone();
                wrong[at] = value;
                assert_eq!(Note::decode(&wrong, wrong.len()), None, "{note:?}");
            }
        }
        // The exact bytes, which other versions depend on.
        let said = [2, 0, 0, 0, 7, 0, 0, 0, 3, 0, 0, 0, 0xc0, 15, 0, 0, 1, 0, 0, 0, 0, 0, 0, 128];
        assert_eq!((&grant.encode()[..24], grant.encode().len()), (&said[..], 40));
        // A copy has bytes after its header.
        let copy = Note::Copy { transfer: 1, window: 2, index: 63 };
        let bytes = copy.encode();
        assert_eq!(bytes.len(), COPY);
        assert_eq!((Note::decode(&bytes, COPY + 1), Note::decode(&bytes, COPY)), (Some(copy), None));
        let mut wrong = bytes;
        wrong[1] = 64;
        assert_eq!(Note::decode(&wrong, COPY + 1), None);
    }
}
