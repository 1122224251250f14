//! The header of a short message, all of whose fields have a fixed place: what [`Packet::encode`](super::Packet::encode)
//! writes for [`Body::Eager`](super::Body::Eager) without a request, and nothing else.

use super::{EAGER, Envelope, Values};
use crate::wire::Rank;

/// A message that is sent whole, and whose sender wants no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Eager {
    /// Who sent it.
    pub source: Rank,
    /// Its place among the packets from that rank.
    pub sequence: u32,
    /// What rides on every packet.
    pub values: Values,
    /// What it is.
    pub envelope: Envelope,
}

impl Eager {
    /// The header.
    #[inline]
    pub fn encode(&self) -> [u8; EAGER] {
        let Eager { source, sequence, values, envelope } = self;
        let first = u64::from(*source) << 32 | u64::from(values.ring) << 16 | 1;
        let words = [
            first,
            u64::from(values.ack) << 32 | u64::from(*sequence),
            u64::from(values.freed) << 32 | u64::from(values.granted),
            0,
            u64::from(envelope.tag) << 32 | u64::from(envelope.context),
            envelope.length,
            0,
        ];
        let mut head = [0; EAGER];
        for (place, word) in head.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *place = word.to_le_bytes();
        }
        head
    }

    /// What a header says, if it is one of these.
    #[inline]
    pub fn decode(head: &[u8; EAGER]) -> Option<Eager> {
        let (words, _) = head.as_chunks::<8>();
        let word = |at: usize| u64::from_le_bytes(words[at]);
        let (first, length) = (word(0), word(5));
        let is_one = first as u16 == 1 && word(3) == 0 && word(6) == 0 && length <= super::fields::MOST;
        is_one.then(|| Eager {
            source: (first >> 32) as u32,
            sequence: word(1) as u32,
            values: Values {
                ack: (word(1) >> 32) as u32,
                granted: word(2) as u32,
                freed: (word(2) >> 32) as u32,
                ring: (first >> 16) as u16,
            },
            envelope: Envelope { context: word(4) as u32, tag: (word(4) >> 32) as u32, length },
        })
    }
}
