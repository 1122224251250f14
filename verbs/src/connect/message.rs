//! Connection messages: one record per datagram, little-endian.
//!
//! | bytes | |
//! |---|---|
//! | 8 | `transom` and the version of the record |
//! | 4, 4 | the sender's rank, the receiver's |
//! | 4 | kind: request 1, reply 2, reject 3, probe 4, alive 5, add 6, swap 7, answer 8, refusal 9, retire 10, retired 11, moved 12, spare 13, drained 14; plus `256 (r + 1)` if the message is about rail `r`'s connection and is relayed by another rail |
//! | 4 | generation; 1 in a probe and its answer |
//! | 4, 4 | the sender's queue pair and its first PSN; zero in other kinds |
//! | 4, 4 | the last earlier generation in which the sender received a packet, and the PSN that it expected next; or zero |
//! | 4 | of a reject: the error number; else zero |
//! | 4 | the rail of the queue pair, counted from that of the connection |
//! | 8 | zero |
//! | 32 | HMAC-SHA256 of all preceding bytes, keyed with the receiver's secret |
//!
//! Messages about an atomic have other fields of 8 bytes each from the generation on. They are the request's number,
//! then the result, or the word's address with a key of 4 bytes, and the addend, or the expected word and the new word.
//! A message about a move has the halves of the GID, the more significant one first, the LID and the number of the move.
//!
//! Each rank sends all others its secret through the job's exchange when it joins. A datagram with a valid code is
//! therefore from this job, for this rank, and unmodified. It may still be late or a duplicate, which the machine
//! handles.

use crate::wr::{Received, RemoteAddress, Verb};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use transom_channel::wire::RAILS;
use transom_locks::Rank;

const MAGIC: [u8; 8] = *b"transom\x07";
const CODE: usize = 32;
/// Bytes of a record.
pub(crate) const MESSAGE: usize = MAGIC.len() + NUMBERS * 4 + CODE;
const NUMBERS: usize = 12;
/// Unit in the kind of a relayed message: the multiple is the number of the connection's rail, counted from 1.
const ELSEWHERE: u32 = 256;

/// Key that authenticates datagrams to a rank.
pub(crate) type Secret = [u8; 16];

/// One end of a connection: a queue pair, its first PSN, and the position that its rank has received on earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct End {
    /// Rail of the queue pair; zero is the connection's own.
    pub by: u32,
    pub queue_pair: u32,
    pub psn: u32,
    pub received: Received,
}

const NONE: End = End { by: 0, queue_pair: 0, psn: 0, received: Received { generation: 0, next: 0 } };

/// A connection message. Generations number the successive connections of two ranks; each rank has at most one end per
/// generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Message {
    /// Offers the sender's end and requests a reply.
    Request { generation: u32, mine: End },
    /// The sender's end, which is connected.
    Reply { generation: u32, mine: End },
    /// The sender has no end of this generation and will have none, because of `errno`.
    Reject { generation: u32, errno: u16 },
    /// Asks whether the receiver receives by this rail.
    Probe,
    /// Answers a probe, or a message that the sender cannot answer yet.
    Alive,
    /// Asks the receiver to perform an atomic on its own memory, by its own adapter, once. `number` identifies the
    /// request of the sender's lane.
    Atomic { number: u64, verb: Verb, to: RemoteAddress },
    /// The word's previous value; `None` if the atomic is refused.
    Answer { number: u64, found: Option<u64> },
    /// The sender has retired generations up to this one, and the receiver must do so too.
    Retire { generation: u32 },
    /// Confirms that the sender has no queue pair of these generations and will have none.
    Retired { generation: u32 },
    /// The sender's port has this address since its move of that number.
    Moved(Moved),
    /// The sender has too many connections, and does not use this one. The receiver may drain it.
    Spare { generation: u32 },
    /// The sender posts nothing more in this generation, and its requests are complete.
    Drained { generation: u32 },
}

/// The address of a port, with the number of its moves. Later moves have higher numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Moved {
    pub number: u64,
    pub gid: [u8; 16],
    pub lid: u16,
}

impl Message {
    /// Seals the record for a receiver with that secret. `of`: the rail of the connection, if the message is relayed by
    /// another.
    pub fn seal(self, from: Rank, to: Rank, of: Option<usize>, secret: &Secret) -> [u8; MESSAGE] {
        let end = |generation, End { by, queue_pair, psn, received }, errno| {
            [generation, queue_pair, psn, received.generation, received.next, errno, by, 0, 0]
        };
        let (kind, numbers) = match self {
            Message::Request { generation, mine } => (1, end(generation, mine, 0)),
            Message::Reply { generation, mine } => (2, end(generation, mine, 0)),
            Message::Reject { generation, errno } => (3, end(generation, NONE, errno.into())),
            Message::Probe => (4, end(1, NONE, 0)),
            Message::Alive => (5, end(1, NONE, 0)),
            Message::Atomic { number, verb, to } => {
                let (kind, first, second) = match verb {
                    Verb::CompareAndSwap { expected, new } => (7, expected, new),
                    Verb::Add(delta) => (6, delta, 0),
                    _ => unreachable!("no atomic"),
                };
                (kind, wide([number, to.address, first, second], to.key))
            }
            Message::Answer { number, found } => {
                (if found.is_some() { 8 } else { 9 }, wide([number, found.unwrap_or(0), 0, 0], 0))
            }
            Message::Retire { generation } => (10, end(generation, NONE, 0)),
            Message::Retired { generation } => (11, end(generation, NONE, 0)),
            Message::Spare { generation } => (13, end(generation, NONE, 0)),
            Message::Drained { generation } => (14, end(generation, NONE, 0)),
            Message::Moved(Moved { number, gid, lid }) => {
                let gid = u128::from_be_bytes(gid);
                (12, wide([(gid >> 64) as u64, gid as u64, lid.into(), number], 0))
            }
        };
        let kind = kind + of.map_or(0, |of| ELSEWHERE * (of as u32 + 1));
        let mut bytes = [0; MESSAGE];
        let (said, code) = bytes.split_at_mut(MESSAGE - CODE);
        said[..MAGIC.len()].copy_from_slice(&MAGIC);
        let numbers = [from as u32, to as u32, kind].into_iter().chain(numbers);
        for (place, number) in said[MAGIC.len()..].as_chunks_mut().0.iter_mut().zip(numbers) {
            *place = number.to_le_bytes();
        }
        code.copy_from_slice(&authenticated(said, secret).finalize().into_bytes());
        bytes
    }

    /// Opens a record for rank `me`; returns the sender, the connection's rail if the message was relayed, and the
    /// message. `None` if the record is not authentic, not for this rank, or malformed.
    pub fn open(bytes: &[u8; MESSAGE], me: Rank, secret: &Secret) -> Option<(Rank, Option<usize>, Self)> {
        let (said, code) = bytes.split_at(MESSAGE - CODE);
        let (magic, numbers) = said.split_at(MAGIC.len());
        if magic != MAGIC || authenticated(said, secret).verify_slice(code).is_err() {
            return None;
        }
        let numbers: [[u8; 4]; NUMBERS] = numbers.as_chunks().0.try_into().ok()?;
        let [from, to, kind, numbers @ ..] = numbers.map(u32::from_le_bytes);
        let message = match kind % ELSEWHERE {
            kind @ (1..=5 | 10 | 11 | 13 | 14) => Self::of_connection(kind, numbers)?,
            kind @ 6..=9 => Self::of_atomic(kind, numbers)?,
            12 => Self::of_move(numbers)?,
            _ => return None,
        };
        let of = ((kind / ELSEWHERE) as usize).checked_sub(1);
        (to as Rank == me && of.is_none_or(|of| of < RAILS)).then_some((from as Rank, of, message))
    }

    fn of_connection(kind: u32, numbers: [u32; NUMBERS - 3]) -> Option<Self> {
        let [generation, queue_pair, psn, before, next, errno, by, 0, 0] = numbers else { return None };
        let mine = End { by, queue_pair, psn, received: Received { generation: before, next } };
        let message = match (kind, errno) {
            (1, 0) if mine.can_be(generation) => Message::Request { generation, mine },
            (2, 0) if mine.can_be(generation) => Message::Reply { generation, mine },
            (3, 1..4096) if mine == NONE => Message::Reject { generation, errno: errno as u16 },
            (4, 0) if mine == NONE && generation == 1 => Message::Probe,
            (5, 0) if mine == NONE && generation == 1 => Message::Alive,
            (10, 0) if mine == NONE => Message::Retire { generation },
            (11, 0) if mine == NONE => Message::Retired { generation },
            (13, 0) if mine == NONE => Message::Spare { generation },
            (14, 0) if mine == NONE => Message::Drained { generation },
            _ => return None,
        };
        (generation > 0).then_some(message)
    }

    fn of_move(numbers: [u32; NUMBERS - 3]) -> Option<Self> {
        let ([high, low, lid, number], 0) = narrow(numbers) else { return None };
        let gid = (u128::from(high) << 64 | u128::from(low)).to_be_bytes();
        let lid = u16::try_from(lid).ok()?;
        (number > 0).then_some(Message::Moved(Moved { number, gid, lid }))
    }

    fn of_atomic(kind: u32, numbers: [u32; NUMBERS - 3]) -> Option<Self> {
        let ([number, address, first, second], key) = narrow(numbers);
        let to = RemoteAddress { address, key };
        Some(match (kind, first, second) {
            (6, delta, 0) => Message::Atomic { number, verb: Verb::Add(delta), to },
            (7, expected, new) => Message::Atomic { number, verb: Verb::CompareAndSwap { expected, new }, to },
            (8, 0, 0) if key == 0 => Message::Answer { number, found: Some(address) },
            (9, 0, 0) if key == 0 && address == 0 => Message::Answer { number, found: None },
            _ => return None,
        })
    }
}

fn wide(words: [u64; 4], key: u32) -> [u32; NUMBERS - 3] {
    let [a, b, c, d] = words.map(|word| [word as u32, (word >> 32) as u32]);
    [a[0], a[1], b[0], b[1], c[0], c[1], d[0], d[1], key]
}

fn narrow(numbers: [u32; NUMBERS - 3]) -> ([u64; 4], u32) {
    let [words @ .., key] = numbers;
    ([0, 2, 4, 6].map(|at| u64::from(words[at]) | u64::from(words[at + 1]) << 32), key)
}

impl End {
    /// Queue pairs 0 and 1 are reserved; queue pair numbers and PSNs have 24 bits.
    fn can_be(self, generation: u32) -> bool {
        let Received { generation: before, next } = self.received;
        self.by < RAILS as u32
            && (2..1 << 24).contains(&self.queue_pair)
            && self.psn < 1 << 24
            && before < generation
            && next < if before == 0 { 1 } else { 1 << 24 }
    }
}

fn authenticated(said: &[u8], secret: &Secret) -> Hmac<Sha256> {
    let keyed: Hmac<Sha256> = Hmac::new_from_slice(secret).expect("HMAC accepts keys of any length");
    keyed.chain_update(said)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: Secret = [7; 16];
    const MINE: End =
        End { by: 3, queue_pair: 0x11, psn: 0xff_ffff, received: Received { generation: 1, next: 0xab_cdef } };
    const WORD: RemoteAddress = RemoteAddress { address: 0x7f00_0000_1008, key: u32::MAX };

    fn all() -> [Message; 14] {
        [
            Message::Request { generation: u32::MAX, mine: MINE },
            Message::Reply {
                generation: 2,
                mine: End { by: 0, queue_pair: 0xff_ffff, psn: 0, received: Received::default() },
            },
            Message::Reject { generation: 3, errno: 12 },
            Message::Probe,
            Message::Alive,
            Message::Atomic { number: 1 << 40, verb: Verb::Add(u64::MAX), to: WORD },
            Message::Atomic { number: 7, verb: Verb::CompareAndSwap { expected: 5, new: 1 << 63 }, to: WORD },
            Message::Answer { number: u64::MAX, found: Some(1 << 33) },
            Message::Answer { number: 8, found: None },
            Message::Retire { generation: 1 },
            Message::Retired { generation: u32::MAX },
            Message::Moved(Moved {
                number: 1 << 40,
                gid: [0xfe, 0x80, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16],
                lid: 9,
            }),
            Message::Spare { generation: 1 },
            Message::Drained { generation: u32::MAX },
        ]
    }

    #[test]
    fn sealed_message_opens_unchanged() {
        for message in all() {
            for of in [None, Some(0), Some(RAILS - 1)] {
                let sealed = message.seal(4, 5, of, &SECRET);
                assert_eq!(Message::open(&sealed, 5, &SECRET), Some((4, of, message)));
            }
            assert_eq!(Message::open(&message.seal(4, 5, Some(RAILS), &SECRET), 5, &SECRET), None, "no such rail");
        }
        // The bytes on the wire, without the code.
        let bytes = Message::Reply { generation: 2, mine: MINE }.seal(4, 5, Some(2), &SECRET);
        let said = b"transom\x07\x04\0\0\0\x05\0\0\0\x02\x03\0\0\x02\0\0\0\x11\0\0\0\xff\xff\xff\0\
            \x01\0\0\0\xef\xcd\xab\0\0\0\0\0\x03\0\0\0\0\0\0\0\0\0\0\0";
        assert_eq!(&bytes[..MESSAGE - CODE], said);
    }

    #[test]
    fn modified_message_does_not_open() {
        for message in all() {
            let sealed = message.seal(4, 5, None, &SECRET);
            for bit in 0..8 * MESSAGE {
                let mut forged = sealed;
                forged[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(Message::open(&forged, 5, &SECRET), None, "{message:?}, bit {bit}");
            }
            assert_eq!(Message::open(&sealed, 5, &[8; 16]), None, "of another job");
            assert_eq!(Message::open(&sealed, 4, &SECRET), None, "for another rank");
        }
    }

    /// Sealed with the right secret by a faulty rank.
    #[test]
    fn inconsistent_message_does_not_open() {
        let right = Message::Request { generation: 2, mine: MINE };
        let word = |at: usize| MAGIC.len() + 4 * at..MAGIC.len() + 4 * at + 4;
        for (at, value) in [
            // In order: kind, generation, queue pair, PSN, received position, error number of a request, rail, padding.
            (2, 0),
            (2, 3),
            (2, 4),
            (2, 10),
            (2, 12),
            (2, 13),
            (2, 15),
            (3, 0),
            (3, 1),
            (4, 0),
            (4, 1),
            (4, 0x100_0000),
            (5, 0x100_0000),
            (6, 0),
            (6, 2),
            (7, 0x100_0000),
            (8, 1),
            (9, RAILS as u32),
            (10, 1),
            (11, 1),
            // A word or a key where the kind has none.
            (2, 6),
            (2, 8),
            (2, 9),
        ] {
            let mut bytes = right.seal(4, 5, None, &SECRET);
            bytes[word(at)].copy_from_slice(&u32::to_le_bytes(value));
            let code = authenticated(&bytes[..MESSAGE - CODE], &SECRET).finalize().into_bytes();
            bytes[MESSAGE - CODE..].copy_from_slice(&code);
            assert_eq!(Message::open(&bytes, 5, &SECRET), None, "number {at} is {value}");
        }
    }
}
