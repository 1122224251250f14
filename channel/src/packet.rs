//! The one header of all paths, and its check. A peer's bytes are no index and no length before they went through here.

mod eager;
mod fields;

pub use eager::Eager;

use crate::connection::Say;
use crate::rendezvous::Mover;
use crate::slab::Id;
use crate::wire::{Key, RAILS, Rank};
use fields::{MOST, Reader, Writer};

/// The longest header, in bytes.
pub const LONGEST: usize = COMMON + 24 + 1 + 16 * RAILS;
/// Header bytes before a message's data, if it is sent at once and its sender wants no answer: with 24 bytes of data and the mark of
/// a ring it is one cache line.
pub const EAGER: usize = 32;
/// Header bytes before a message's data, if it is sent at once.
pub const SYNC: usize = COMMON + 24;
/// Header bytes before a piece of a message's data.
pub const DATA: usize = COMMON + 20;
/// Header bytes before a piece of a message that goes unasked.
pub const PIECE: usize = COMMON + 24 + 12;
const COMMON: usize = 32;

/// What a rank writes before data, or alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packet {
    /// Who sent it.
    pub source: Rank,
    /// Its place among the packets from that rank; without meaning in a [`Body::Control`] and a [`Body::Cut`].
    pub sequence: u32,
    /// What rides on every packet.
    pub values: Values,
    /// What it says.
    pub body: Body,
}

/// Acknowledgement and credits, as values: repeated or late they do no harm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Values {
    /// All packets before this one have been received.
    pub ack: u32,
    /// So many bytes of messages that nobody waits for may have been sent, since the beginning.
    pub granted: u32,
    /// So many slots of the ring have been freed, since it was made.
    pub freed: u32,
    /// Which ring that is.
    pub ring: u16,
}

/// What a message is matched by, and its length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Envelope {
    /// The team, and within it what the program sends apart from what the library sends.
    pub context: u32,
    /// The program's tag.
    pub tag: u32,
    /// The message's length in bytes.
    pub length: u64,
}

/// A key for each rail that has one.
pub type Keys = [Option<Key>; RAILS];

/// What a packet says. Data follows in [`Body::Eager`], [`Body::Piece`] and [`Body::Data`] only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Body {
    /// A whole message.
    Eager {
        /// What it is.
        envelope: Envelope,
        /// Who wants an [`Body::Ack`] when it is matched.
        sync: Option<Id>,
    },
    /// A piece of a message that goes unasked, the next of that message.
    Piece {
        /// What the message is.
        envelope: Envelope,
        /// Who wants an [`Body::Ack`] when it is matched.
        sync: Option<Id>,
        /// Where in the message it begins.
        at: u64,
        /// Its length in bytes.
        length: u32,
    },
    /// What is said of connections; see [`connection`](crate::connection).
    Link {
        /// What.
        say: Say,
    },
    /// A message that waits at its sender.
    Rts {
        /// What it is.
        envelope: Envelope,
        /// The sender's request.
        sender: Id,
        /// Where the receiver may read it.
        keys: Keys,
    },
    /// The receiver's answer to an RTS.
    Cts {
        /// The sender's request.
        sender: Id,
        /// The receiver's request.
        receiver: Id,
        /// How the data is to come; never by `Read`, which needs no answer.
        mover: Mover,
        /// How many bytes.
        length: u64,
        /// Where to write them.
        keys: Keys,
    },
    /// The sender cannot use the mover of the CTS, and asks for another.
    Nak {
        /// The receiver's request.
        receiver: Id,
    },
    /// A piece of a message.
    Data {
        /// The receiver's request.
        receiver: Id,
        /// Where in the message it begins.
        offset: u64,
        /// Its length in bytes.
        length: u32,
    },
    /// What was written on this lane is there.
    Fin {
        /// The receiver's request.
        receiver: Id,
        /// How many stripes the message came in: one FIN follows each.
        lanes: u8,
    },
    /// The message was matched, or read.
    Ack {
        /// The sender's request.
        sender: Id,
    },
    /// The receiver has dropped the message's team, and discarded the message.
    Discarded {
        /// The sender's request.
        sender: Id,
    },
    /// The receiver offers a ring.
    Join {
        /// Which one.
        ring: u16,
        /// How many slots.
        slots: u32,
        /// The bytes of each.
        bytes: u32,
        /// Where they lie, on rail 0.
        key: Key,
    },
    /// The receiver wants to poll the ring no longer.
    Leave {
        /// Which one.
        ring: u16,
    },
    /// The sender writes to the ring no more; this packet is the first that went past it.
    Left {
        /// Which one.
        ring: u16,
    },
    /// Nothing but values.
    Control,
    /// A lane is cut, and its sender has taken back what it had posted there. It stands outside the sequence.
    Cut {
        /// Of which rail.
        rail: u8,
        /// How often it was, at the sender.
        epoch: u32,
        /// How often it was at the receiver, as the sender has seen to.
        heard: u32,
        /// How many packets had come to the sender by the last of these lanes.
        came: u32,
    },
}

/// Why bytes are no packet.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Malformed {
    /// Too few bytes.
    #[error("{came} bytes came where a header needs {needed}")]
    Short {
        /// How many bytes came.
        came: usize,
        /// How many the header has.
        needed: usize,
    },
    /// A kind that there is not.
    #[error("kind {0} of packet is unknown")]
    Kind(u8),
    /// A field that must be 0.
    #[error("the reserved field {0} is not 0")]
    Reserved(&'static str),
    /// A field with a value that it cannot have.
    #[error("{value} is no value of the field {field}")]
    Field {
        /// Which.
        field: &'static str,
        /// What stands there.
        value: u64,
    },
    /// Fewer or more bytes than the header says.
    #[error("{came} bytes of data came, and the header says {said}")]
    Data {
        /// How many bytes came.
        came: usize,
        /// How many the header says.
        said: u64,
    },
}

impl Body {
    /// The first byte of a packet with a [`Body::Cut`].
    pub(crate) const CUT: u8 = 15;

    /// How many bytes of data follow.
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

    /// Writes the header of the packet that says this, and says how long it is.
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
        out.u64(0); // Checksum and window, for lanes that lose.
        match self {
            Body::Eager { sync: None, .. } => unreachable!("has a header of its own"),
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
                // The two highest bits of the length say how: no message is that long.
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
            Body::Link { say } => out.put([Say::ALL.iter().position(|one| one == say).expect("all are there") as u8]),
            Body::Cut { rail, epoch, heard, came } => {
                out.put([*rail]);
                [epoch, heard, came].into_iter().for_each(|number| out.u32(*number));
            }
        }
        out.at
    }
}

impl Packet {
    /// Writes the header, and says how long it is.
    pub fn encode(&self, into: &mut [u8; LONGEST]) -> usize {
        self.body.encode(self.source, self.sequence, self.values, into)
    }

    /// Reads a header from the first bytes of a packet, at most [`LONGEST`] of them, which is `total` bytes long with its
    /// data; also says how long the header is. What this returns, [`encode`](Self::encode) writes to the same bytes.
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
                // All pieces bring something, and none more than the message has.
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
