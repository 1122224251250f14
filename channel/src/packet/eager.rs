//! Header of a short message: four words with all fields at fixed places. The message length follows from the
//! packet's.

use super::{EAGER, Envelope, Malformed, Values};
use crate::wire::Rank;

/// Header of an eager message whose sender wants no acknowledgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Eager {
    /// Rank of the sender.
    pub source: Rank,
    /// Sequence number among the packets from that rank.
    pub sequence: u32,
    /// Acknowledgement and credit, carried by every packet.
    pub values: Values,
    /// Envelope of the message.
    pub envelope: Envelope,
}

impl Eager {
    pub(super) const KIND: u8 = 1;

    /// Encodes the header.
    #[inline(always)]
    pub fn encode(&self) -> [u8; EAGER] {
        let Eager { source, sequence, values, envelope } = self;
        let two = |high: u32, low: u32| u64::from(high) << 32 | u64::from(low);
        let words = [
            two(*source, u32::from(values.ring) << 16 | u32::from(Self::KIND)),
            two(values.ack, *sequence),
            two(values.freed, values.granted),
            two(envelope.tag, envelope.context),
        ];
        let mut head = [0; EAGER];
        for (place, word) in head.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *place = word.to_le_bytes();
        }
        head
    }

    /// Parses the header of a packet of `total` bytes; `Err` if the packet is of another kind or malformed.
    #[inline(always)]
    pub fn decode(head: &[u8; EAGER], total: usize) -> Result<Eager, Malformed> {
        let (words, _) = head.as_chunks::<8>();
        let word = |at: usize| u64::from_le_bytes(words[at]);
        let (first, second, third, fourth) = (word(0), word(1), word(2), word(3));
        if first as u8 != Self::KIND {
            return Err(Malformed::Kind(first as u8));
        }
        if first as u16 >> 8 != 0 {
            return Err(Malformed::Reserved("flags"));
        }
        let length = total.checked_sub(EAGER).ok_or(Malformed::Short { came: total, needed: EAGER })? as u64;
        let two = |word: u64| ((word >> 32) as u32, word as u32);
        let ((ack, sequence), (freed, granted), (tag, context)) = (two(second), two(third), two(fourth));
        let values = Values { ack, granted, freed, ring: (first >> 16) as u16 };
        Ok(Eager { source: (first >> 32) as u32, sequence, values, envelope: Envelope { context, tag, length } })
    }
}
