//! What ranks tell each other to connect: one record in a datagram, little-endian.
//!
//! | bytes | |
//! |---|---|
//! | 8 | `transom` and the version of the record |
//! | 4, 4 | the sender's rank, the receiver's |
//! | 4 | kind: request 1, reply 2, reject 3, probe 4, alive 5 |
//! | 4 | generation; 1 in a probe and its answer |
//! | 4, 4 | the sender's queue pair and its first PSN; zero in the others |
//! | 4, 4 | the last earlier generation in which the sender received something, and the PSN that it expected next; or zero |
//! | 4 | of a reject: the error number; else zero |
//! | 32 | HMAC-SHA256 of all before it, with the receiver's secret |
//!
//! Each rank told all others its secret through the job's exchange when it joined, so a datagram with the right code is of
//! this job, for this rank, and as its sender wrote it. It may still be late or a repetition: that is the machine's part.

use crate::verbs::wr::Received;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use transom_locks::Rank;

const MAGIC: [u8; 8] = *b"transom\x03";
const CODE: usize = 32;
/// Bytes of a record.
pub(in crate::verbs) const MESSAGE: usize = MAGIC.len() + 9 * 4 + CODE;

/// What datagrams to a rank are authenticated with.
pub(in crate::verbs) type Secret = [u8; 16];

/// One end of a connection: a queue pair, the first PSN that it sends, and what its rank has received by those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::verbs) struct End {
    pub queue_pair: u32,
    pub psn: u32,
    pub received: Received,
}

const NONE: End = End { queue_pair: 0, psn: 0, received: Received { generation: 0, next: 0 } };

/// A generation numbers the connections that two ranks have had; both have one end, and only one ever, in each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::verbs) enum Message {
    /// The sender's end, to be connected to. Wants a reply.
    Request { generation: u32, mine: End },
    /// The sender's end, which is connected.
    Reply { generation: u32, mine: End },
    /// The sender has no end of this generation and will have none, since the system said `errno`.
    Reject { generation: u32, errno: u16 },
    /// The sender wants to know whether it is heard, by this rail.
    Probe,
    /// It is.
    Alive,
}

impl Message {
    /// The record for a rank whose secret is that.
    pub fn seal(self, from: Rank, to: Rank, secret: &Secret) -> [u8; MESSAGE] {
        let (kind, generation, mine, errno) = match self {
            Message::Request { generation, mine } => (1, generation, mine, 0),
            Message::Reply { generation, mine } => (2, generation, mine, 0),
            Message::Reject { generation, errno } => (3, generation, NONE, errno.into()),
            Message::Probe => (4, 1, NONE, 0),
            Message::Alive => (5, 1, NONE, 0),
        };
        let End { queue_pair, psn, received } = mine;
        let received = [received.generation, received.next];
        let numbers = [from as u32, to as u32, kind, generation, queue_pair, psn, received[0], received[1], errno];
        let mut bytes = [0; MESSAGE];
        let (said, code) = bytes.split_at_mut(MESSAGE - CODE);
        said[..MAGIC.len()].copy_from_slice(&MAGIC);
        for (place, number) in said[MAGIC.len()..].as_chunks_mut().0.iter_mut().zip(numbers) {
            *place = number.to_le_bytes();
        }
        code.copy_from_slice(&authenticated(said, secret).finalize().into_bytes());
        bytes
    }

    /// The sender and what it says, if the record is one for the rank `me`, whose secret is that.
    pub fn open(bytes: &[u8; MESSAGE], me: Rank, secret: &Secret) -> Option<(Rank, Self)> {
        let (said, code) = bytes.split_at(MESSAGE - CODE);
        let (magic, numbers) = said.split_at(MAGIC.len());
        if magic != MAGIC || authenticated(said, secret).verify_slice(code).is_err() {
            return None;
        }
        let numbers: [[u8; 4]; 9] = numbers.as_chunks().0.try_into().ok()?;
        let [from, to, kind, generation, queue_pair, psn, before, next, errno] = numbers.map(u32::from_le_bytes);
        let mine = End { queue_pair, psn, received: Received { generation: before, next } };
        let message = match (kind, errno) {
            (1, 0) if mine.can_be(generation) => Message::Request { generation, mine },
            (2, 0) if mine.can_be(generation) => Message::Reply { generation, mine },
            (3, 1..4096) if mine == NONE => Message::Reject { generation, errno: errno as u16 },
            (4, 0) if mine == NONE && generation == 1 => Message::Probe,
            (5, 0) if mine == NONE && generation == 1 => Message::Alive,
            _ => return None,
        };
        (generation > 0 && to as Rank == me).then_some((from as Rank, message))
    }
}

impl End {
    /// Queue pairs 0 and 1 are the fabric's own; they and PSNs have 24 bits.
    fn can_be(self, generation: u32) -> bool {
        let Received { generation: before, next } = self.received;
        (2..1 << 24).contains(&self.queue_pair)
            && self.psn < 1 << 24
            && before < generation
            && next < if before == 0 { 1 } else { 1 << 24 }
    }
}

fn authenticated(said: &[u8], secret: &Secret) -> Hmac<Sha256> {
    let keyed: Hmac<Sha256> = Hmac::new_from_slice(secret).expect("a key may have any length");
    keyed.chain_update(said)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: Secret = [7; 16];
    const MINE: End = End { queue_pair: 0x11, psn: 0xff_ffff, received: Received { generation: 1, next: 0xab_cdef } };

    fn all() -> [Message; 5] {
        [
            Message::Request { generation: u32::MAX, mine: MINE },
            Message::Reply {
                generation: 2,
                mine: End { queue_pair: 0xff_ffff, psn: 0, received: Received::default() },
            },
            Message::Reject { generation: 3, errno: 12 },
            Message::Probe,
            Message::Alive,
        ]
    }

    #[test]
    fn what_is_sealed_is_opened() {
        for message in all() {
            assert_eq!(Message::open(&message.seal(4, 5, &SECRET), 5, &SECRET), Some((4, message)));
        }
        // As it is on the wire, less the code.
        let bytes = Message::Reply { generation: 2, mine: MINE }.seal(4, 5, &SECRET);
        let said = b"transom\x03\x04\0\0\0\x05\0\0\0\x02\0\0\0\x02\0\0\0\x11\0\0\0\xff\xff\xff\0\
            \x01\0\0\0\xef\xcd\xab\0\0\0\0\0";
        assert_eq!(&bytes[..MESSAGE - CODE], said);
    }

    #[test]
    fn what_somebody_changed_is_not_opened() {
        for message in all() {
            let sealed = message.seal(4, 5, &SECRET);
            for bit in 0..8 * MESSAGE {
                let mut forged = sealed;
                forged[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(Message::open(&forged, 5, &SECRET), None, "{message:?}, bit {bit}");
            }
            assert_eq!(Message::open(&sealed, 5, &[8; 16]), None, "of another job");
            assert_eq!(Message::open(&sealed, 4, &SECRET), None, "for another rank");
        }
    }

    /// Sealed with the right secret, by a rank that errs.
    #[test]
    fn what_cannot_be_is_not_opened() {
        let right = Message::Request { generation: 2, mine: MINE };
        let word = |at: usize| MAGIC.len() + 4 * at..MAGIC.len() + 4 * at + 4;
        for (at, value) in [
            // Kind; generation; queue pair; PSN; what was received by which earlier one; an error of a request.
            (2, 0),
            (2, 3),
            (2, 4),
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
        ] {
            let mut bytes = right.seal(4, 5, &SECRET);
            bytes[word(at)].copy_from_slice(&u32::to_le_bytes(value));
            let code = authenticated(&bytes[..MESSAGE - CODE], &SECRET).finalize().into_bytes();
            bytes[MESSAGE - CODE..].copy_from_slice(&code);
            assert_eq!(Message::open(&bytes, 5, &SECRET), None, "number {at} is {value}");
        }
    }
}
