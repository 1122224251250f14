//! The packet header shared by all paths, and its validation. No byte received from a peer is used as an
//! index or a length before this module has checked it.

mod eager;
mod fields;

pub use eager::Eager;

use crate::connection::Say;
use crate::rendezvous::Mover;
use crate::slab::Id;
use crate::wire::{Key, RAILS, Rank};
use fields::{MOST, Reader, Writer};

/// Longest header, in bytes.
pub const LONGEST: usize = COMMON + 24 + 1 + 16 * RAILS;
/// Header bytes of an eager message whose sender wants no acknowledgement. With 24 bytes of data and the mark
/// of a ring, the packet fills one cache line.
pub const EAGER: usize = 32;
/// Header bytes of an eager message whose sender wants an acknowledgement.
pub const SYNC: usize = COMMON + 24;
/// Header bytes of a piece of a rendezvous message.
pub const DATA: usize = COMMON + 20;
/// Header bytes of a piece of an eager message.
pub const PIECE: usize = COMMON + 24 + 12;
const COMMON: usize = 32;

/// A packet without its data: source, sequence number, values and body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packet {
    /// Rank of the sender.
    pub source: Rank,
    /// Sequence number among the packets from that rank; ignored in a [`Body::Control`] and a [`Body::Cut`].
    pub sequence: u32,
    /// Acknowledgement and credit, carried by every packet.
    pub values: Values,
    /// Type and fields of the packet.
    pub body: Body,
}

/// Acknowledgement and credits, as running values: a repeated or late value has no effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Values {
    /// Every packet before this sequence number has been received.
    pub ack: u32,
    /// Total credit granted since the start, in bytes of unreceived messages with their envelopes.
    pub granted: u32,
    /// Total slots of the ring that were freed since it was made.
    pub freed: u32,
    /// Number of the ring that `freed` refers to.
    pub ring: u16,
}

/// Matching fields and length of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Envelope {
    /// Context: the team, and within it program messages or library messages.
    pub context: u32,
    /// Tag of the program.
    pub tag: u32,
    /// Length of the message in bytes.
    pub length: u64,
}

/// Key of the memory on each rail; `None` where the memory is not registered.
pub type Keys = [Option<Key>; RAILS];

/// Type and fields of a packet. Only [`Body::Eager`], [`Body::Piece`] and [`Body::Data`] carry data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Body {
    /// A whole eager message.
    Eager {
        /// Envelope of the message.
        envelope: Envelope,
        /// Sender's request that wants an [`Body::Ack`] when the message is matched.
        sync: Option<Id>,
    },
    /// The next piece of an eager message.
    Piece {
        /// Envelope of the message.
        envelope: Envelope,
        /// Sender's request that wants an [`Body::Ack`] when the message is matched.
        sync: Option<Id>,
        /// Offset of the piece in the message, in bytes.
        at: u64,
        /// Length of the piece in bytes.
        length: u32,
    },
    /// A message of the [`connection`](crate::connection) protocol.
    Link {
        /// Message of that protocol.
        say: Say,
    },
    /// RTS: announces a message that waits at its sender.
    Rts {
        /// Envelope of the message.
        envelope: Envelope,
        /// Request of the sender.
        sender: Id,
        /// Keys by which the receiver may read the message.
        keys: Keys,
    },
    /// CTS: the receiver's answer to an RTS.
    Cts {
        /// Request of the sender.
        sender: Id,
        /// Request of the receiver.
        receiver: Id,
        /// Mover of the data; never `Read`, which needs no CTS.
        mover: Mover,
        /// Number of bytes to send.
        length: u64,
        /// Keys by which the sender may write.
        keys: Keys,
    },
    /// The sender cannot use the mover of the CTS, and asks for another.
    Nak {
        /// Request of the receiver.
        receiver: Id,
    },
    /// A piece of a rendezvous message.
    Data {
        /// Request of the receiver.
        receiver: Id,
        /// Offset of the piece in the message, in bytes.
        offset: u64,
        /// Length of the piece in bytes.
        length: u32,
    },
    /// FIN: all data written on this lane before it has arrived.
    Fin {
        /// Request of the receiver.
        receiver: Id,
        /// Number of stripes of the message: one FIN follows each.
        lanes: u8,
    },
    /// The receiver has matched, or read, the message.
    Ack {
        /// Request of the sender.
        sender: Id,
    },
    /// The receiver has dropped the message's team, and discarded the message.
    Discarded {
        /// Request of the sender.
        sender: Id,
    },
    /// The receiver offers a ring.
    Join {
        /// Number of the ring.
        ring: u16,
        /// Number of slots.
        slots: u32,
        /// Bytes of each slot.
        bytes: u32,
        /// Key of the ring's memory, on rail 0.
        key: Key,
    },
    /// The receiver asks the sender to stop using the ring.
    Leave {
        /// Number of the ring.
        ring: u16,
    },
    /// The sender has stopped writing to the ring; this is the first packet that bypasses it.
    Left {
        /// Number of the ring.
        ring: u16,
    },
    /// Acknowledgement and credit values only.
    Control,
    /// A lane is cut, and its sender has drained the requests it had posted there. Not part of the sequence.
    Cut {
        /// Rail of the lane.
        rail: u8,
        /// Number of cuts at the sender of this packet.
        epoch: u32,
        /// Number of cuts at the receiver of this packet that its sender has handled.
        heard: u32,
        /// Number of packets that the sender of this packet received on the last of these lanes.
        came: u32,
    },
}

/// Reason why bytes are not a valid packet.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Malformed {
    /// The bytes end before the header does.
    #[error("{came} bytes, expected a header of {needed}")]
    Short {
        /// Number of bytes received.
        came: usize,
        /// Number of bytes in the header.
        needed: usize,
    },
    /// The packet kind is unknown.
    #[error("unknown packet kind {0}")]
    Kind(u8),
    /// A reserved field is not 0.
    #[error("the reserved field {0} is not 0")]
    Reserved(&'static str),
    /// A field has an invalid value.
    #[error("invalid value {value} of the field {field}")]
    Field {
        /// Name of the field.
        field: &'static str,
        /// Value of the field.
        value: u64,
    },
    /// The data is shorter or longer than the header states.
    #[error("{came} bytes of data, expected {said} as in the header")]
    Data {
        /// Number of data bytes received.
        came: usize,
        /// Number of data bytes in the header.
        said: u64,
    },
}

impl Body {
    /// First byte of a [`Body::Cut`] packet.
    pub(crate) const CUT: u8 = 15;

    /// Number of data bytes that follow the header.
    pub fn data(&self) -> u64 {
        match self {
            Body::Eager { envelope, .. } => envelope.length,
            Body::Data { length, .. } | Body::Piece { length, .. } => u64::from(*length),
            _ => 0,
        }
    }

    fn kind(&self) -> u8 {
        match self {
            Body::Eager { sync: None, .. } => Eager::KIND,
            Body::Eager { .. } => 12,
            Body::Rts { .. } => 2,
            Body::Cts { .. } => 3,
            Body::Nak { .. } => 4,
            Body::Data { .. } => 5,
            Body::Fin { .. } => 6,
            Body::Ack { .. } => 7,
            Body::Join { .. } => 8,
            Body::Leave { .. } => 9,
            Body::Left { .. } => 10,
            Body::Control => 11,
            Body::Piece { .. } => 13,
            Body::Link { .. } => 14,
            Body::Cut { .. } => Body::CUT,
            Body::Discarded { .. } => 16,
        }
    }

    /// Writes the header of a packet with this body, and returns its length in bytes.
    pub(crate) fn encode(&self, source: Rank, sequence: u32, values: Values, into: &mut [u8; LONGEST]) -> usize {
        if let Body::Eager { envelope, sync: None } = *self {
            let eager = Eager { source, sequence, values, envelope };
            into[..EAGER].copy_from_slice(&eager.encode());
            return EAGER;
        }
        let mut out = Writer { into, at: 0 };
        out.put([self.kind(), 0]);
        out.put(values.ring.to_le_bytes());
        out.u32(source);
        out.u32(sequence);
        out.u32(values.ack);
        out.u32(values.granted);
        out.u32(values.freed);
        out.u64(0); // Checksum and window, for lossy lanes.
        match self {
            Body::Eager { sync: None, .. } => unreachable!("eager packets have another header"),
            Body::Eager { envelope, sync: Some(id) } => {
                out.envelope(envelope);
                out.u64(id.to_wire());
            }
            Body::Rts { envelope, sender, keys } => {
                out.envelope(envelope);
                out.u64(sender.to_wire());
                out.keys(keys);
            }
            Body::Cts { sender, receiver, mover, length, keys } => {
                out.u64(sender.to_wire());
                out.u64(receiver.to_wire());
                // The two highest bits of the length hold the mover: no message is that long.
                let mover = match mover {
                    Mover::Copy => 0,
                    Mover::Write => 1,
                    Mover::Read => 2,
                };
                out.u64(mover << 62 | length);
                out.keys(keys);
            }
            Body::Nak { receiver } => out.u64(receiver.to_wire()),
            Body::Data { receiver, offset, length } => {
                out.u64(receiver.to_wire());
                out.u64(*offset);
                out.u32(*length);
            }
            Body::Fin { receiver, lanes } => {
                out.u64(receiver.to_wire());
                out.put([*lanes]);
            }
            Body::Ack { sender } | Body::Discarded { sender } => out.u64(sender.to_wire()),
            Body::Join { ring, slots, bytes, key } => {
                out.put(ring.to_le_bytes());
                out.u32(*slots);
                out.u32(*bytes);
                out.u64(key.address);
                out.u64(key.key);
            }
            Body::Leave { ring } | Body::Left { ring } => out.put(ring.to_le_bytes()),
            Body::Control => {}
            Body::Piece { envelope, sync, at, length } => {
                out.envelope(envelope);
                out.u64(sync.map_or(0, Id::to_wire));
                out.u64(*at);
                out.u32(*length);
            }
            Body::Link { say } => out.put([Say::ALL.iter().position(|one| one == say).expect("all are listed") as u8]),
            Body::Cut { rail, epoch, heard, came } => {
                out.put([*rail]);
                [epoch, heard, came].into_iter().for_each(|number| out.u32(*number));
            }
        }
        out.at
    }
}

impl Packet {
    /// Writes the header, and returns its length in bytes.
    pub fn encode(&self, into: &mut [u8; LONGEST]) -> usize {
        self.body.encode(self.source, self.sequence, self.values, into)
    }

    /// Parses a header from `head`, the first bytes (at most [`LONGEST`]) of a packet of `total` bytes with
    /// its data. Also returns the header's length. [`encode`](Self::encode) of the result gives the same
    /// bytes.
    pub fn decode(head: &[u8], total: usize) -> Result<(Packet, usize), Malformed> {
        let mut from = Reader { from: head, at: 0 };
        let [kind, flags] = from.get()?;
        if kind == Eager::KIND {
            let short = Malformed::Short { came: total, needed: EAGER };
            let eager = Eager::decode(head.first_chunk().ok_or(short)?, total)?;
            let body = Body::Eager { envelope: eager.envelope, sync: None };
            let Eager { source, sequence, values, .. } = eager;
            return Ok((Packet { source, sequence, values, body }, EAGER));
        }
        if flags != 0 {
            return Err(Malformed::Reserved("flags"));
        }
        let ring = u16::from_le_bytes(from.get()?);
        let (source, sequence) = (from.u32()?, from.u32()?);
        let values = Values { ack: from.u32()?, granted: from.u32()?, freed: from.u32()?, ring };
        if from.u64()? != 0 {
            return Err(Malformed::Reserved("checksum"));
        }
        let body = match kind {
            2 => Body::Rts { envelope: from.envelope()?, sender: from.id()?, keys: from.keys()? },
            3 => {
                let (sender, receiver, length) = (from.id()?, from.id()?, from.u64()?);
                let mover = match length >> 62 {
                    0 => Mover::Copy,
                    1 => Mover::Write,
                    value => return Err(Malformed::Field { field: "mover", value }),
                };
                Body::Cts { sender, receiver, mover, length: length & MOST, keys: from.keys()? }
            }
            4 => Body::Nak { receiver: from.id()? },
            5 => Body::Data { receiver: from.id()?, offset: from.length()?, length: from.u32()? },
            6 => {
                let (receiver, [lanes]) = (from.id()?, from.get()?);
                if lanes == 0 {
                    return Err(Malformed::Field { field: "lanes", value: lanes.into() });
                }
                Body::Fin { receiver, lanes }
            }
            7 => Body::Ack { sender: from.id()? },
            8 => Body::Join {
                ring: u16::from_le_bytes(from.get()?),
                slots: from.u32()?,
                bytes: from.u32()?,
                key: Key { address: from.u64()?, key: from.u64()? },
            },
            9 => Body::Leave { ring: u16::from_le_bytes(from.get()?) },
            10 => Body::Left { ring: u16::from_le_bytes(from.get()?) },
            11 => Body::Control,
            Body::CUT => {
                let [rail] = from.get()?;
                if usize::from(rail) >= RAILS {
                    return Err(Malformed::Field { field: "rail", value: rail.into() });
                }
                Body::Cut { rail, epoch: from.u32()?, heard: from.u32()?, came: from.u32()? }
            }
            12 => Body::Eager { envelope: from.envelope()?, sync: Some(from.id()?) },
            13 => {
                let (envelope, sync, at, length) = (from.envelope()?, from.u64()?, from.length()?, from.u32()?);
                // A piece is never empty, and never ends beyond the message.
                if length == 0 || at.checked_add(length.into()).is_none_or(|end| end > envelope.length) {
                    return Err(Malformed::Field { field: "length", value: length.into() });
                }
                let sync = match sync {
                    0 => None,
                    value => Some(Id::from_wire(value).ok_or(Malformed::Field { field: "request", value })?),
                };
                Body::Piece { envelope, sync, at, length }
            }
            14 => {
                let [say] = from.get()?;
                let said = Say::ALL.get(usize::from(say));
                Body::Link { say: *said.ok_or(Malformed::Field { field: "say", value: say.into() })? }
            }
            16 => Body::Discarded { sender: from.id()? },
            kind => return Err(Malformed::Kind(kind)),
        };
        let came = total.checked_sub(from.at).ok_or(Malformed::Short { came: total, needed: from.at })?;
        if came as u64 != body.data() {
            return Err(Malformed::Data { came, said: body.data() });
        }
        Ok((Packet { source, sequence, values, body }, from.at))
    }
}
