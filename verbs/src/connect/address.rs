//! The connection address that each rank publishes through the job's exchange when it joins.

use super::message::Secret;
use crate::rail::Writes;

const MAGIC: [u8; 8] = *b"transom\x07";

/// Datagram address of a rank, and the Q_Key that datagrams to it must carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Destination {
    pub gid: [u8; 16],
    pub lid: u16,
    pub queue_pair: u32,
    pub key: u32,
}

/// A rank's published record: its address, and the properties that its peers compare at start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Card {
    pub address: Address,
    /// Link type: InfiniBand, RoCE v1 or RoCE v2.
    pub link: u8,
    /// Identifies the adapter.
    pub adapter: u64,
    /// Configured paths of messages, as a number.
    pub paths: u8,
    /// Properties of the adapter's writes.
    pub writes: Writes,
    /// Partition key of the port; 0 if it has none.
    pub pkey: u16,
    /// Packets carry a GRH.
    pub global: bool,
    /// Queue pair for messages as datagrams, with the address's Q_Key; 0 if messages use connections alone.
    pub messages: u32,
}

impl Card {
    pub fn to_bytes(self) -> Vec<u8> {
        let (adapter, messages) = (self.adapter.to_le_bytes(), self.messages.to_le_bytes());
        let bytes = [self.link, self.paths, self.writes.to_byte(), self.global.into()];
        [&bytes[..], &self.pkey.to_le_bytes(), &adapter, &messages, &self.address.to_bytes()].concat()
    }

    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (&[link, paths, writes, global], bytes) = bytes.split_first_chunk()?;
        let (pkey, bytes) = bytes.split_first_chunk()?;
        let (adapter, bytes) = bytes.split_first_chunk()?;
        let (messages, bytes) = bytes.split_first_chunk()?;
        let (adapter, messages) = (u64::from_le_bytes(*adapter), u32::from_le_bytes(*messages));
        let (address, writes) = (Address::from_bytes(bytes)?, Writes::from_byte(writes)?);
        let (pkey, is_global) = (u16::from_le_bytes(*pkey), global == 1);
        let card = Card { address, link, adapter, paths, writes, pkey, global: is_global, messages };
        (messages < 1 << 24 && global < 2).then_some(card)
    }
}

/// The part of a record that is kept for every rank of the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    pub datagrams: Destination,
    /// Key that authenticates connection datagrams to the rank.
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
    fn malformed_addresses_are_refused() {
        let address = Address {
            datagrams: Destination { gid: [9; 16], lid: 513, queue_pair: 0xff_ffff, key: 7 },
            secret: [5; 16],
            mtu: 5,
            responder_resources: 16,
            initiator_depth: 1,
        };
        let writes = Writes { notify_by: NotifyBy::Write, in_order: false };
        let (adapter, messages) = (0x0123_4567_89ab_cdef, 0xff_fffe);
        let card = Card { address, link: 3, adapter, paths: 2, writes, pkey: 0x8001, global: true, messages };
        assert_eq!(Card::from_bytes(&card.to_bytes()), Some(card));
        for len in [2, 5, 13, 17] {
            assert_eq!(Card::from_bytes(&card.to_bytes()[..len]), None);
        }
        assert_eq!(Card::from_bytes(&Card { messages: 1 << 24, ..card }.to_bytes()), None);
        let bytes = address.to_bytes();
        assert_eq!(Address::from_bytes(&bytes), Some(address));
        for len in 0..bytes.len() {
            assert_eq!(Address::from_bytes(&bytes[..len]), None, "{len} bytes");
        }
        // Another program, another version, an invalid MTU, an invalid queue pair.
        for (at, value) in [(0, b'T'), (7, 1), (26, 0), (26, 6), (32, 1)] {
            let mut bytes = bytes.clone();
            bytes[at] = value;
            assert_eq!(Address::from_bytes(&bytes), None, "byte {at} is {value}");
        }
    }
}
