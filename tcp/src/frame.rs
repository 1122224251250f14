//! The frames of a connection: requests of an origin, and the replies of the target. No I/O.
//!
//! A frame is its length (4 bytes, little-endian, without these four) and as many bytes. A request begins with its kind,
//! a wake flag, 6 zero bytes, the number of a region and an offset in it (8 bytes each). A reply begins with its kind
//! and 7 zero bytes.
//!
//! | request | kind | rest | reply |
//! |---|---|---|---|
//! | put | 1 | the data | none; `PutRefused` if it had no effect |
//! | get | 2 | number of bytes (8) | `Data` |
//! | compare-and-swap | 3 | expected and new word | `Word` |
//! | add | 4 | addend | `Word` |
//! | notify | 5 | the word | none; `PutRefused` if it had no effect |
//! | flush | 6 | none | `Flushed` |
//! | attach | 7 | none | `Word` |
//! | detach | 8 | none | none |
//!
//! Every request that has a reply may be `Refused` instead. A target executes the requests of a connection in order, and
//! replies in order. Received bytes are untrusted: a frame parses completely, or is [`Malformed`].

use transom_locks::Wake;

/// Most bytes of data in a frame. Longer transfers are divided.
pub const LONGEST: usize = 64 << 10;
/// Bytes of a frame's length.
pub const PREFIX: usize = 4;
/// Bytes of a request before its rest.
const REQUEST: usize = 24;
/// Bytes of a reply before its rest.
pub const REPLY: usize = 8;
/// Most bytes of a frame after its length.
pub const MOST: usize = REQUEST + LONGEST;

/// A frame that no rank of this version sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed;

/// A place in the memory of the target: a region's number, and an offset in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct At {
    pub region: u64,
    pub offset: u64,
}

/// A request of an origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request<'f> {
    Put {
        at: At,
        data: &'f [u8],
    },
    Get {
        at: At,
        len: usize,
    },
    Cas {
        at: At,
        expected: u64,
        new: u64,
        wake: Wake,
    },
    Add {
        at: At,
        delta: u64,
        wake: Wake,
    },
    Notify {
        at: At,
        value: u64,
        wake: Wake,
    },
    Flush,
    /// The origin uses a region that was not made together with it, which must stay until it detaches.
    Attach {
        region: u64,
    },
    /// Ends an `Attach`.
    Detach {
        region: u64,
    },
}

/// The reason why a target did not execute a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Refusal {
    /// The target has no region of this number, or no longer.
    NoRegion = 1,
    /// Bytes outside the region.
    OutOfBounds = 2,
    /// An atomic on bytes that are not an aligned word.
    Misaligned = 3,
    /// The memory does not support the operation.
    Unsupported = 4,
}

/// A reply of a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply<'f> {
    /// The previous value of a word.
    Word(u64),
    /// The bytes of a get.
    Data(&'f [u8]),
    /// All earlier requests have been executed.
    Flushed,
    /// The oldest request without a reply was not executed.
    Refused(Refusal),
    /// A put or notify, which has no other reply, was not executed.
    PutRefused(Refusal),
}

/// The encoded beginning of a frame, with its length; data follow.
pub struct Head {
    bytes: [u8; PREFIX + REQUEST + 16],
    used: usize,
}

impl Head {
    fn new(kind: u8, data: usize, words: impl IntoIterator<Item = u64>) -> Head {
        let mut head = Head { bytes: [0; PREFIX + REQUEST + 16], used: PREFIX + REPLY };
        head.bytes[PREFIX] = kind;
        for word in words {
            head.bytes[head.used..head.used + 8].copy_from_slice(&word.to_le_bytes());
            head.used += 8;
        }
        let length = (head.used - PREFIX + data) as u32;
        head.bytes[..PREFIX].copy_from_slice(&length.to_le_bytes());
        head
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.used]
    }
}

/// The length of a frame, if it is valid.
pub fn length(prefix: [u8; PREFIX]) -> Result<usize, Malformed> {
    let length = u32::from_le_bytes(prefix) as usize;
    if (REPLY..=MOST).contains(&length) { Ok(length) } else { Err(Malformed) }
}

/// The number of data bytes in the frame that begins with `bytes`, if it is a [`Reply::Data`] and its head is there.
pub fn data_length(bytes: &[u8]) -> Result<Option<usize>, Malformed> {
    let Some((prefix, rest)) = bytes.split_first_chunk() else { return Ok(None) };
    match rest.first_chunk::<REPLY>() {
        Some([2, 0, 0, 0, 0, 0, 0, 0]) => {
            let data = length(*prefix)? - REPLY;
            if data <= LONGEST { Ok(Some(data)) } else { Err(Malformed) }
        }
        _ => Ok(None),
    }
}

impl<'f> Request<'f> {
    /// The frame: its head, and the data that follow.
    pub fn encode(&self) -> (Head, &'f [u8]) {
        let request = |kind, wake, at: At, rest: &[u64], data: usize| {
            let mut head = Head::new(kind, data, [at.region, at.offset].into_iter().chain(rest.iter().copied()));
            head.bytes[PREFIX + 1] = u8::from(wake == Wake::Home);
            head
        };
        let (nobody, nowhere) = (Wake::Nobody, At { region: 0, offset: 0 });
        match *self {
            Request::Put { at, data } => (request(1, nobody, at, &[], data.len()), data),
            Request::Get { at, len } => (request(2, nobody, at, &[len as u64], 0), &[]),
            Request::Cas { at, expected, new, wake } => (request(3, wake, at, &[expected, new], 0), &[]),
            Request::Add { at, delta, wake } => (request(4, wake, at, &[delta], 0), &[]),
            Request::Notify { at, value, wake } => (request(5, wake, at, &[value], 0), &[]),
            Request::Flush => (request(6, nobody, nowhere, &[], 0), &[]),
            Request::Attach { region } => (request(7, nobody, At { region, offset: 0 }, &[], 0), &[]),
            Request::Detach { region } => (request(8, nobody, At { region, offset: 0 }, &[], 0), &[]),
        }
    }

    /// Decodes a frame without its length.
    pub fn parse(frame: &'f [u8]) -> Result<Self, Malformed> {
        let (head, rest) = frame.split_first_chunk::<REQUEST>().ok_or(Malformed)?;
        let wake = match head[..8] {
            [_, 0, 0, 0, 0, 0, 0, 0] => Wake::Nobody,
            [_, 1, 0, 0, 0, 0, 0, 0] => Wake::Home,
            _ => return Err(Malformed),
        };
        let ([_, region, offset], []) = words::<3>(head).ok_or(Malformed)? else { return Err(Malformed) };
        let at = At { region, offset };
        let one = || words::<1>(rest).filter(|(_, more)| more.is_empty()).map(|([word], _)| word).ok_or(Malformed);
        match head[0] {
            1 if rest.len() <= LONGEST && wake == Wake::Nobody => Ok(Request::Put { at, data: rest }),
            2 if wake == Wake::Nobody => {
                let len = usize::try_from(one()?).ok().filter(|&len| len <= LONGEST).ok_or(Malformed)?;
                Ok(Request::Get { at, len })
            }
            3 => match words::<2>(rest) {
                Some(([expected, new], [])) => Ok(Request::Cas { at, expected, new, wake }),
                _ => Err(Malformed),
            },
            4 => Ok(Request::Add { at, delta: one()?, wake }),
            5 => Ok(Request::Notify { at, value: one()?, wake }),
            6 if rest.is_empty() && head[1..].iter().all(|&byte| byte == 0) => Ok(Request::Flush),
            7 if rest.is_empty() && wake == Wake::Nobody && offset == 0 => Ok(Request::Attach { region }),
            8 if rest.is_empty() && wake == Wake::Nobody && offset == 0 => Ok(Request::Detach { region }),
            _ => Err(Malformed),
        }
    }
}

impl<'f> Reply<'f> {
    /// The head of a [`Reply::Data`] with `len` bytes.
    pub fn data_head(len: usize) -> Head {
        Head::new(2, len, [])
    }

    /// The frame: its head, and the data that follow.
    pub fn encode(&self) -> (Head, &'f [u8]) {
        match *self {
            Reply::Word(word) => (Head::new(1, 0, [word]), &[]),
            Reply::Data(data) => (Reply::data_head(data.len()), data),
            Reply::Flushed => (Head::new(3, 0, []), &[]),
            Reply::Refused(why) => (Head::new(4, 0, [why as u64]), &[]),
            Reply::PutRefused(why) => (Head::new(5, 0, [why as u64]), &[]),
        }
    }

    /// Decodes a frame without its length.
    pub fn parse(frame: &'f [u8]) -> Result<Self, Malformed> {
        let (head, rest) = frame.split_first_chunk::<REPLY>().ok_or(Malformed)?;
        if head[1..] != [0; 7] {
            return Err(Malformed);
        }
        let one = || words::<1>(rest).filter(|(_, more)| more.is_empty()).map(|([word], _)| word).ok_or(Malformed);
        match head[0] {
            1 => Ok(Reply::Word(one()?)),
            2 if rest.len() <= LONGEST => Ok(Reply::Data(rest)),
            3 if rest.is_empty() => Ok(Reply::Flushed),
            4 => Ok(Reply::Refused(Refusal::of(one()?)?)),
            5 => Ok(Reply::PutRefused(Refusal::of(one()?)?)),
            _ => Err(Malformed),
        }
    }
}

impl Refusal {
    fn of(code: u64) -> Result<Self, Malformed> {
        let all = [Refusal::NoRegion, Refusal::OutOfBounds, Refusal::Misaligned, Refusal::Unsupported];
        all.into_iter().find(|refusal| *refusal as u64 == code).ok_or(Malformed)
    }
}

/// The first `N` words of `bytes`, and the bytes behind them.
fn words<const N: usize>(bytes: &[u8]) -> Option<([u64; N], &[u8])> {
    let (chunks, _) = bytes.as_chunks::<8>();
    let chunks: &[[u8; 8]; N] = chunks.get(..N)?.try_into().ok()?;
    Some((chunks.map(u64::from_le_bytes), &bytes[8 * N..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame((head, data): (Head, &[u8])) -> Vec<u8> {
        let frame = [head.bytes(), data].concat();
        let (prefix, rest) = frame.split_first_chunk().unwrap();
        assert_eq!(length(*prefix), Ok(rest.len()));
        rest.to_vec()
    }

    fn requests(data: &[u8]) -> [Request<'_>; 8] {
        let at = At { region: 3, offset: 1 << 40 };
        [
            Request::Put { at, data },
            Request::Get { at, len: LONGEST },
            Request::Cas { at, expected: 1, new: u64::MAX, wake: Wake::Home },
            Request::Add { at, delta: 7, wake: Wake::Nobody },
            Request::Notify { at, value: 9, wake: Wake::Home },
            Request::Flush,
            Request::Attach { region: 5 },
            Request::Detach { region: u64::MAX },
        ]
    }

    fn replies(data: &[u8]) -> [Reply<'_>; 5] {
        use Reply::*;
        [Word(5), Data(data), Flushed, Refused(Refusal::NoRegion), PutRefused(Refusal::OutOfBounds)]
    }

    #[test]
    fn frames_parse_to_what_was_encoded() {
        for data in [&[][..], &[1, 2, 3], &[7; LONGEST]] {
            for request in requests(data) {
                assert_eq!(Request::parse(&frame(request.encode())), Ok(request));
            }
            for reply in replies(data) {
                assert_eq!(Reply::parse(&frame(reply.encode())), Ok(reply));
            }
        }
    }

    #[test]
    fn only_the_head_of_data_begins_them() {
        let head = |len| Reply::data_head(len).bytes().to_vec();
        assert_eq!(data_length(&head(LONGEST)), Ok(Some(LONGEST)));
        assert_eq!(data_length(&[&head(3)[..], &[1, 2]].concat()), Ok(Some(3)));
        assert_eq!(data_length(&head(3)[..11]), Ok(None), "a part of it");
        assert_eq!(data_length(Reply::Word(2).encode().0.bytes()), Ok(None));
        assert_eq!(data_length(&head(LONGEST + 1)), Err(Malformed));
        assert_eq!(data_length(&[7, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]), Err(Malformed), "shorter than a head");
    }

    #[test]
    fn length_outside_its_range_is_malformed() {
        for length in [0, 7, MOST as u32 + 1, u32::MAX] {
            assert_eq!(super::length(length.to_le_bytes()), Err(Malformed), "{length}");
        }
    }

    #[test]
    fn cut_and_extended_frames_are_malformed() {
        for whole in requests(&[]).map(|request| frame(request.encode())) {
            (0..whole.len()).for_each(|len| assert_eq!(Request::parse(&whole[..len]), Err(Malformed)));
            let longer = [&whole[..], &[0]].concat();
            assert_eq!(Request::parse(&longer).is_ok(), whole[0] == 1, "{longer:?}");
        }
        for whole in replies(&[]).map(|reply| frame(reply.encode())) {
            (0..whole.len()).for_each(|len| assert_eq!(Reply::parse(&whole[..len]), Err(Malformed)));
        }
        let long =
            [frame(Request::Put { at: At { region: 0, offset: 0 }, data: &[0; LONGEST] }.encode()), vec![0]].concat();
        assert_eq!(Request::parse(&long), Err(Malformed));
        let mut get = frame(Request::Get { at: At { region: 0, offset: 0 }, len: 0 }.encode());
        get[24..].copy_from_slice(&(LONGEST as u64 + 1).to_le_bytes());
        assert_eq!(Request::parse(&get), Err(Malformed));
    }

    /// A frame that parses is one that encodes to the same bytes: no two meanings, and no byte is ignored.
    #[test]
    fn random_bytes_parse_canonically_or_not() {
        let mut random = fastrand::Rng::with_seed(1);
        let mut parsed = 0;
        for _ in 0..200_000 {
            let mut bytes = frame(random.choice(requests(&[1, 2])).unwrap().encode());
            for _ in 0..random.usize(..3) {
                let at = random.usize(..bytes.len());
                bytes[at] = random.u8(..8);
            }
            bytes.truncate(random.usize(bytes.len() - 2..=bytes.len()));
            if let Ok(request) = Request::parse(&bytes) {
                parsed += 1;
                assert_eq!(frame(request.encode()), bytes);
            }
            bytes.drain(..bytes.len().min(16));
            if let Ok(reply) = Reply::parse(&bytes) {
                assert_eq!(frame(reply.encode()), bytes);
            }
        }
        assert!(parsed > 10_000, "{parsed}");
    }
}
