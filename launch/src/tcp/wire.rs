//! The byte format of a connection to the hub: a handshake, then encrypted messages of the Noise protocol, with the
//! job's secret as the pre-shared key. Numbers are lengths in bytes:
//!
//! ```text
//!     rank -> hub   version 8, Noise message 72 (psk, e): rank 4, size 4, process 16
//!     hub -> rank   Noise message 48 (e, ee)
//!     both          frames: length 2, Noise message: kind 1, group 8, 0, body
//!                                                 or kind 1, group 8, 1, length of the body 8, key 32; then the body,
//!                                                                           encrypted under that key, and its tag 16
//!     rank -> hub   the first frame: HERE; then the hub answers WELCOME or REFUSED
//! ```
//! An agent of a host begins in the same way. After WELCOME its connection carries [`channels`](super::channels).
//!
//! Each side's first message proves that it knows the secret. A third party can replay a rank's first message but not
//! its first frame, because the keys of frames depend on the ephemeral keys (`e`) of both sides. Noise counts the
//! frames of a direction, so that omitted, repeated or reordered frames are detected.
//!
//! A long body has a key of its own, so that the hub encrypts it once for all receivers. That key encrypts nothing else
//! and goes to each receiver through its own connection.

use super::frames::{HERE, REFUSED, WELCOME};
use super::silence;
use crate::process::ProcessId;
use crate::random;
use data_encoding::HEXLOWER;
use snow::params::CipherChoice;
use snow::resolvers::{CryptoResolver, DefaultResolver};
use snow::types::Cipher;
use snow::{HandshakeState, StatelessTransportState};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};
use transom_locks::Rank;

/// Length of a secret, a key and an ephemeral public key, in bytes.
pub(super) const LONG: usize = 32;
const OUTPUT_PREFIX: usize = 16;
const CLAIM: usize = 8 + ProcessId::BYTES;
const VERSION: [u8; 8] = *b"transom\x04";
pub(super) const HELLO: usize = VERSION.len() + LONG + CLAIM + OUTPUT_PREFIX;
pub(super) const ANSWER: usize = LONG + OUTPUT_PREFIX;
const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
/// Bytes of a frame's plaintext before the body.
const HEAD: usize = 10;
/// Longest body that is encrypted under the connection's key, in bytes. A longer body has its own key.
const SHORT: usize = 1024;

/// Longest time to connect to one address.
const CONNECT_WITHIN: Duration = Duration::from_secs(2);
/// Longest time from then to the handshake's answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// Longest time from then to the first frame. The hub may have admitted the rank by then and admits no rank twice. A
/// rank that retried earlier, while the hub's machine is slow, would be refused.
const WELCOME_WITHIN: Duration = Duration::from_secs(60);

/// The secret that the ranks of a job share with its launcher.
#[derive(Clone)]
pub(crate) struct Secret([u8; LONG]);

impl Secret {
    /// Draws a random secret.
    pub fn fresh() -> io::Result<Self> {
        Ok(Secret(random()?))
    }

    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        Some(Secret(bytes.try_into().ok()?))
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Encodes the secret as hexadecimal digits.
    pub fn to_text(&self) -> String {
        HEXLOWER.encode(&self.0)
    }

    pub fn from_text(text: &str) -> Option<Self> {
        Self::from_bytes(&HEXLOWER.decode(text.as_bytes()).ok()?)
    }
}

/// Stands for the rank in the [`Hello`] of an agent, whose connection carries those of ranks
/// ([`channels`](super::channels)).
pub(super) const AGENT: Rank = u32::MAX as Rank;

/// Identity of a client of the hub: a rank of a job or [`AGENT`], and its process.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Hello {
    pub rank: Rank,
    pub size: usize,
    pub process: ProcessId,
}

/// The two directions of a connection: for writing and for reading.
type Frames = (Sealer, Opener);

/// The hub's answer to a rank that knows the secret.
pub(super) enum Answer {
    /// The rank has joined: the connection, with the frames to and from the hub.
    Welcome(TcpStream, Sealer, Opener),
    /// Another process is the rank; zero if the rank's process ended before it joined.
    Refused(ProcessId),
}

/// Connects to a hub, proves that it knows the secret, and requires the same of the hub.
pub(super) fn greet(address: &SocketAddr, hello: Hello, secret: &Secret) -> io::Result<Answer> {
    greet_within(address, hello, secret, ANSWER_WITHIN)
}

/// The same with another time for the answer to the first message.
pub(super) fn greet_within(
    address: &SocketAddr,
    hello: Hello,
    secret: &Secret,
    answer_within: Duration,
) -> io::Result<Answer> {
    let bad = |why: &str| io::Error::new(io::ErrorKind::InvalidData, why);
    let stranger =
        || bad("the server at this address does not know the secret of this job, or runs another version of transom");
    let mut stream = TcpStream::connect_timeout(address, CONNECT_WITHIN)?;
    silence::prepare(&stream)?;
    let until = Instant::now() + answer_within;
    let (hello, handshake) = hello.say(secret).map_err(io::Error::other)?;
    stream.write_all(&hello)?;
    let mut answer = [0; ANSWER];
    let mut read = 0;
    while read < ANSWER {
        match read_by(&mut stream, &mut answer[read..], until)? {
            0 => return Err(stranger()),
            more => read += more,
        }
    }
    let (mut to_hub, mut from_hub) = hear_answer(handshake, &answer).ok_or_else(stranger)?;
    to_hub.frame(HERE, 0, &Body::default()).write_to(&mut stream)?;
    let until = Instant::now() + WELCOME_WITHIN;
    let mut chunk = [0; 256];
    let frame = loop {
        if let Some(frame) = from_hub.next(ProcessId::BYTES as u64).map_err(bad)? {
            break frame;
        }
        match read_by(&mut stream, &mut chunk, until)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => from_hub.take_in(&chunk[..read]),
        }
    };
    match frame.kind {
        WELCOME => Ok(Answer::Welcome(stream, to_hub, from_hub)),
        REFUSED => {
            let process = frame.body.try_into().map_err(|_| bad("the hub's refusal names no process"))?;
            Ok(Answer::Refused(ProcessId(process)))
        }
        _ => Err(bad("the hub answered with a frame of an unexpected kind")),
    }
}

/// Reads once; fails at `until`.
fn read_by(stream: &mut TcpStream, into: &mut [u8], until: Instant) -> io::Result<usize> {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(into) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            read => return read,
        }
    }
}

/// The handshake's parameters for either side. Its first message fails authentication if the versions differ.
fn builder(secret: &Secret) -> Result<snow::Builder<'_>, snow::Error> {
    snow::Builder::new(PATTERN.parse()?).psk(0, &secret.0)?.prologue(&VERSION)
}

impl Hello {
    /// Builds a rank's first message, and the handshake that continues it.
    pub fn say(self, secret: &Secret) -> Result<([u8; HELLO], HandshakeState), snow::Error> {
        let (rank, size) = (self.rank as u32, self.size as u32);
        let claim = [&rank.to_le_bytes()[..], &size.to_le_bytes(), &self.process.0].concat();
        let mut handshake = builder(secret)?.build_initiator()?;
        let mut hello = [0; HELLO];
        let (version, message) = hello.split_at_mut(VERSION.len());
        version.copy_from_slice(&VERSION);
        handshake.write_message(&claim, message)?;
        Ok((hello, handshake))
    }

    /// Reads a rank's first message; returns its identity, the hub's answer, and the frames.
    pub fn hear(hello: &[u8; HELLO], secret: &Secret) -> Result<(Self, [u8; ANSWER], Frames), &'static str> {
        let broken = |_| "the handshake failed";
        let (hello, mut handshake) = Self::read(hello, secret)?;
        let mut answer = [0; ANSWER];
        handshake.write_message(&[], &mut answer).map_err(broken)?;
        Ok((hello, answer, frames(handshake).map_err(broken)?))
    }

    /// Reads a rank's first message; returns its identity, and the handshake that continues it.
    pub fn read(hello: &[u8; HELLO], secret: &Secret) -> Result<(Self, HandshakeState), &'static str> {
        let message = hello.strip_prefix(&VERSION).ok_or("it is not a client of this version of transom")?;
        let handshake = builder(secret).and_then(snow::Builder::build_responder);
        let mut handshake = handshake.map_err(|_| "the handshake failed")?;
        let mut claim = [0; CLAIM];
        let known = handshake.read_message(message, &mut claim).is_ok_and(|len| len == CLAIM);
        let (numbers, process) = known.then(|| claim.split_at(8)).ok_or("it does not know the secret")?;
        let (numbers, _) = numbers.as_chunks::<4>();
        let (rank, size) = (u32::from_le_bytes(numbers[0]) as Rank, u32::from_le_bytes(numbers[1]) as usize);
        let process = ProcessId(process.try_into().map_err(|_| "its hello names no process")?);
        Ok((Hello { rank, size, process }, handshake))
    }
}

/// Completes a rank's handshake with the hub's answer; `None` if the other side does not know the secret.
pub(super) fn hear_answer(mut handshake: HandshakeState, answer: &[u8; ANSWER]) -> Option<Frames> {
    handshake.read_message(answer, &mut []).ok()?;
    frames(handshake).ok()
}

fn frames(handshake: HandshakeState) -> Result<Frames, snow::Error> {
    let keys = Arc::new(handshake.into_stateless_transport_mode()?);
    let opener = Opener { keys: keys.clone(), count: 0, received: Vec::new(), opened: 0, long: None };
    Ok((Sealer { keys, count: 0 }, opener))
}

/// The body of a frame. Clones share the bytes.
#[derive(Clone)]
pub(super) enum Body {
    Short(Arc<[u8]>),
    Long { key: [u8; LONG], encrypted: Arc<Vec<u8>> },
}

impl Default for Body {
    fn default() -> Self {
        Body::Short(Arc::default())
    }
}

impl Body {
    pub fn new(bytes: Vec<u8>) -> io::Result<Self> {
        if bytes.len() <= SHORT {
            return Ok(Body::Short(bytes.into()));
        }
        let key = random()?;
        let mut encrypted = vec![0; bytes.len() + OUTPUT_PREFIX];
        cipher(&key).encrypt(NONCE, &[], &bytes, &mut encrypted);
        Ok(Body::Long { key, encrypted: Arc::new(encrypted) })
    }
}

/// Nonce of a long body, which is the only message under its key.
const NONCE: u64 = 0;

/// The cipher of Noise, for a long body.
fn cipher(key: &[u8; LONG]) -> Box<dyn Cipher> {
    let mut cipher =
        DefaultResolver.resolve_cipher(&CipherChoice::ChaChaPoly).expect("the handshake uses the same cipher");
    cipher.set(key);
    cipher
}

/// The bytes of a frame, encrypted and ready to send.
pub(super) struct Sealed {
    pub head: Vec<u8>,
    pub tail: Option<Arc<Vec<u8>>>,
}

impl Sealed {
    pub fn write_to(&self, stream: &mut impl Write) -> io::Result<()> {
        stream.write_all(&self.head)?;
        self.tail.as_ref().map_or(Ok(()), |tail| stream.write_all(tail))
    }
}

/// The sending half of one direction of a connection.
pub(super) struct Sealer {
    keys: Arc<StatelessTransportState>,
    count: u64,
}

impl Sealer {
    /// Encrypts the next frame.
    pub fn frame(&mut self, kind: u8, group: u64, body: &Body) -> Sealed {
        let mut plain = Vec::with_capacity(HEAD + SHORT);
        plain.push(kind);
        plain.extend_from_slice(&group.to_le_bytes());
        let tail = match body {
            Body::Short(body) => {
                plain.push(0);
                plain.extend_from_slice(body);
                None
            }
            Body::Long { key, encrypted } => {
                plain.push(1);
                plain.extend_from_slice(&((encrypted.len() - OUTPUT_PREFIX) as u64).to_le_bytes());
                plain.extend_from_slice(key);
                Some(encrypted.clone())
            }
        };
        let len = plain.len() + OUTPUT_PREFIX;
        let mut head = vec![0; 2 + len];
        head[..2].copy_from_slice(&(len as u16).to_le_bytes());
        let written = self.keys.write_message(self.count, &plain, &mut head[2..]);
        written.expect("a frame is shorter than the limit of Noise messages, and there are fewer than 2^64");
        self.count += 1;
        Sealed { head, tail }
    }
}

/// A received frame, decrypted.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub kind: u8,
    pub group: u64,
    pub body: Vec<u8>,
}

/// The receiving half of one direction of a connection.
pub(super) struct Opener {
    keys: Arc<StatelessTransportState>,
    count: u64,
    received: Vec<u8>,
    /// Number of bytes at the start of `received` that are already decrypted.
    opened: usize,
    /// A frame whose long body has not arrived yet, with the length and key of that body.
    long: Option<(Frame, usize, [u8; LONG])>,
}

impl Opener {
    /// Appends received bytes.
    pub fn take_in(&mut self, bytes: &[u8]) {
        // Drops decrypted bytes even if a partial frame remains, so that they do not accumulate.
        self.received.drain(..std::mem::take(&mut self.opened));
        self.received.extend_from_slice(bytes);
    }

    /// Returns the next complete frame. Fails if it is not the other side's next frame, or its body is longer than
    /// `longest`; the connection is then unusable.
    pub fn next(&mut self, longest: u64) -> Result<Option<Frame>, &'static str> {
        if self.long.is_none() {
            let Some((frame, long)) = self.head()? else { return Ok(None) };
            let Some((len, key)) = long else { return Ok(Some(frame)) };
            if len > longest {
                return Err("the length of a frame's body exceeds the limit");
            }
            self.long = Some((frame, len as usize, key));
        }
        let Some((_, len, _)) = &self.long else { return Ok(None) };
        let whole = self.opened + len + OUTPUT_PREFIX;
        if self.received.len() < whole {
            return Ok(None);
        }
        let Some((mut frame, len, key)) = self.long.take() else { return Ok(None) };
        let mut body = vec![0; len];
        let opened = cipher(&key).decrypt(NONCE, &[], &self.received[self.opened..whole], &mut body);
        opened.map_err(|_| "the body of a frame fails authentication")?;
        self.opened = whole;
        frame.body = body;
        Ok(Some(frame))
    }

    /// Decrypts the next frame except for a long body, whose length and key it returns.
    #[allow(clippy::type_complexity, reason = "used once")]
    fn head(&mut self) -> Result<Option<(Frame, Option<(u64, [u8; LONG])>)>, &'static str> {
        let Some((len, rest)) = self.received[self.opened..].split_first_chunk() else { return Ok(None) };
        let len = usize::from(u16::from_le_bytes(*len));
        let Some(message) = rest.get(..len) else { return Ok(None) };
        let mut plain = vec![0; len];
        let read = self.keys.read_message(self.count, message, &mut plain);
        let read = read.map_err(|_| "a frame fails authentication")?;
        self.count += 1;
        self.opened += 2 + len;
        let wrong = "a frame is malformed";
        let (head, body) = plain[..read].split_first_chunk::<HEAD>().ok_or(wrong)?;
        let group = u64::from_le_bytes(head[1..9].try_into().map_err(|_| wrong)?);
        let mut frame = Frame { kind: head[0], group, body: Vec::new() };
        match head[9] {
            0 => {
                frame.body = body.to_vec();
                Ok(Some((frame, None)))
            }
            1 => {
                let (len, key) = body.split_first_chunk().ok_or(wrong)?;
                let key = key.try_into().map_err(|_| wrong)?;
                Ok(Some((frame, Some((u64::from_le_bytes(*len), key)))))
            }
            _ => Err(wrong),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The frames of a rank and of the hub, after a handshake.
    fn connected() -> [(Sealer, Opener); 2] {
        let secret = Secret::fresh().unwrap();
        let hello = Hello { rank: 3, size: 7, process: ProcessId([9; 16]) };
        let (said, handshake) = hello.say(&secret).unwrap();
        let (heard, answer, hub) = Hello::hear(&said, &secret).unwrap();
        assert!(heard == hello);
        [hear_answer(handshake, &answer).unwrap(), hub]
    }

    fn bytes(sealed: Sealed) -> Vec<u8> {
        let mut bytes = Vec::new();
        sealed.write_to(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn frames_open_once_in_order_and_unchanged() {
        for long in [5, SHORT, SHORT + 1, 200_000] {
            let say = || Body::new((0..long).map(|at| at as u8).collect()).unwrap();
            let [(mut to_hub, _), (_, mut at_hub)] = connected();
            let first = bytes(to_hub.frame(7, 1 << 40, &say()));
            let second = bytes(to_hub.frame(8, 0, &Body::default()));
            if long <= SHORT + 1 {
                for at in 0..first.len() {
                    let [(mut to_hub, _), (_, mut opener)] = connected();
                    let mut changed = bytes(to_hub.frame(7, 1 << 40, &say()));
                    changed[at] ^= 1;
                    opener.take_in(&changed);
                    assert!(!matches!(opener.next(1 << 20), Ok(Some(_))), "byte {at} changed");
                }
            }
            let [(mut to_hub, _), (_, mut opener)] = connected();
            let _left_out = to_hub.frame(7, 0, &Body::default());
            opener.take_in(&bytes(to_hub.frame(8, 0, &Body::default())));
            assert!(opener.next(100).is_err(), "the second first");
            let [(mut to_hub, mut from_hub), _] = connected();
            from_hub.take_in(&bytes(to_hub.frame(7, 0, &Body::default())));
            assert!(from_hub.next(100).is_err(), "the other direction");
            let mut opened = Vec::new();
            for part in [&first[..], &second].concat().chunks(7) {
                at_hub.take_in(part);
                opened.extend(at_hub.next(1 << 20).unwrap());
            }
            opened.extend(at_hub.next(1 << 20).unwrap());
            let body = (0..long).map(|at| at as u8).collect();
            let expected = [Frame { kind: 7, group: 1 << 40, body }, Frame { kind: 8, group: 0, body: Vec::new() }];
            assert!(opened == expected, "{long}");
            at_hub.take_in(&first);
            assert!(at_hub.next(1 << 20).is_err(), "the first again");
        }
    }

    #[test]
    fn plaintext_never_appears_on_the_wire() {
        for long in [64, SHORT + 64] {
            let [(mut to_hub, _), _] = connected();
            let sent = bytes(to_hub.frame(7, 0, &Body::new(vec![b'x'; long]).unwrap()));
            assert!(sent.len() > long && !sent.windows(4).any(|window| window == b"xxxx"));
        }
    }

    #[test]
    fn too_long_body_is_refused_before_it_arrives() {
        for (longest, refused) in [(1999, true), (2000, false)] {
            let [(mut to_hub, _), (_, mut opener)] = connected();
            opener.take_in(&to_hub.frame(7, 0, &Body::new(vec![0; 2000]).unwrap()).head);
            assert_eq!(opener.next(longest).is_err(), refused);
        }
    }
}
