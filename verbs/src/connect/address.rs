//! Where a rank can be asked for a connection, as it tells all through the job's exchange when it joins.

use super::message::Secret;
use crate::rail::Writes;

const MAGIC: [u8; 8] = *b"transom\x06";

/// Where a rank takes datagrams, and what they must bring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Destination {
    pub gid: [u8; 16],
    pub lid: u16,
    pub queue_pair: u32,
    pub key: u32,
}

/// What a rank tells of itself: where it is, and what the others look at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Card {
    pub address: Address,
    /// InfiniBand, or which RoCE.
    pub link: u8,
    /// Names its adapter.
    pub adapter: u64,
    /// By what messages go, as its settings number it.
    pub paths: u8,
    /// How its adapter does writes.
    pub writes: Writes,
    /// The queue pair that takes messages as datagrams, with the address's key; 0 if there is none by this rail.
    pub messages: u32,
}

impl Card {
    pub fn to_bytes(self) -> Vec<u8> {
        let (adapter, messages) = (self.adapter.to_le_bytes(), self.messages.to_le_bytes());
        [&[self.link, self.paths, self.writes.to_byte()][..], &adapter, &messages, &self.address.to_bytes()].concat()
    }

    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (&[link, paths, writes], bytes) = bytes.split_first_chunk()?;
        let (adapter, bytes) = bytes.split_first_chunk()?;
        let (messages, bytes) = bytes.split_first_chunk()?;
        let (adapter, messages) = (u64::from_le_bytes(*adapter), u32::from_le_bytes(*messages));
        let (address, writes) = (Address::from_bytes(bytes)?, Writes::from_byte(writes)?);
        (messages < 1 << 24).then_some(Card { address, link, adapter, paths, writes, messages })
    }
}

/// Kept of each rank of the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    pub datagrams: Destination,
    /// What datagrams to it are authenticated with.
    pub secret: Secret,
    pub mtu: u8,
    pub responder_resources: u8,
    pub initiator_depth: u8,
}

impl Address {
    pub fn to_bytes(self) -> Vec<u8> {
        let Destination { gid, lid, queue_pair, key } = self.datagrams;
        let numbers = [self.mtu, self.responder_resources, self.initiator_depth];
        let (lid, pair, key) = (lid.to_le_bytes(), queue_pair.to_le_bytes(), key.to_le_bytes());
        [&MAGIC[..], &gid, &lid, &numbers, &pair, &key, &self.secret].concat()
    }

    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (magic, bytes) = bytes.split_first_chunk::<8>()?;
        let (gid, bytes) = bytes.split_first_chunk()?;
        let (lid, bytes) = bytes.split_first_chunk()?;
        let ([mtu, responder_resources, initiator_depth], bytes) = bytes.split_first_chunk()?;
        let (pair, bytes) = bytes.split_first_chunk()?;
        let (key, bytes) = bytes.split_first_chunk()?;
        let (lid, queue_pair, key) = (u16::from_le_bytes(*lid), u32::from_le_bytes(*pair), u32::from_le_bytes(*key));
        let address = Address {
            datagrams: Destination { gid: *gid, lid, queue_pair, key },
            secret: bytes.try_into().ok()?,
            mtu: *mtu,
            responder_resources: *responder_resources,
            initiator_depth: *initiator_depth,
        };
        (*magic == MAGIC && (1..=5).contains(mtu) && queue_pair < 1 << 24).then_some(address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::NotifyBy;

    #[test]
    fn an_address_is_checked() {
        let address = Address {
            datagrams: Destination { gid: [9; 16], lid: 513, queue_pair: 0xff_ffff, key: 7 },
            secret: [5; 16],
            mtu: 5,
            responder_resources: 16,
            initiator_depth: 1,
        };
        let writes = Writes { notify_by: NotifyBy::Write, in_order: false };
        let card = Card { address, link: 3, adapter: 0x0123_4567_89ab_cdef, paths: 2, writes, messages: 0xff_fffe };
        assert_eq!(Card::from_bytes(&card.to_bytes()), Some(card));
        for len in [2, 10, 14] {
            assert_eq!(Card::from_bytes(&card.to_bytes()[..len]), None);
        }
        assert_eq!(Card::from_bytes(&Card { messages: 1 << 24, ..card }.to_bytes()), None);
        let bytes = address.to_bytes();
        assert_eq!(Address::from_bytes(&bytes), Some(address));
        for len in 0..bytes.len() {
            assert_eq!(Address::from_bytes(&bytes[..len]), None, "{len} bytes");
        }
        // Another program, another version, an MTU and a queue pair that cannot be.
        for (at, value) in [(0, b'T'), (7, 1), (26, 0), (26, 6), (32, 1)] {
            let mut bytes = bytes.clone();
            bytes[at] = value;
            assert_eq!(Address::from_bytes(&bytes), None, "byte {at} is {value}");
        }
    }
}
