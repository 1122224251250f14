//! The bytes of a connection to the hub. First each side proves that it knows the job's secret, then both send frames
//! with message authentication codes. Numbers are lengths in bytes:
//!
//! ```text
//!     rank -> hub   hello: version 8, rank 4, size 4, process 16, nonce 32
//!     hub -> rank   nonce 32, HMAC(secret, "hub", hello, nonce)
//!     rank -> hub   HMAC(secret, "rank", hello, nonce)
//!     both          frames: length of the body 8, kind 1, body, HMAC(key of this direction, count, all before)
//! ```
//! Every proof and key depends on both nonces, so bytes of one connection are not valid on another. Messages are
//! authenticated, not encrypted; the secret itself is never sent.

use super::frames::{REFUSED, WELCOME};
use crate::job::process::ProcessId;
use hmac::{Hmac, KeyInit, Mac};
use rustix::net::sockopt;
use sha2::Sha256;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};
use transom_locks::Rank;

/// Bytes of a nonce, a secret, and an HMAC.
pub(super) const LONG: usize = 32;
pub(super) const HELLO: usize = 16 + ProcessId::BYTES + LONG;
pub(super) const CHALLENGE: usize = 2 * LONG;
pub(super) const PROOF: usize = LONG;
const VERSION: [u8; 8] = *b"transom\x02";
/// Bytes of a frame before its body.
const HEADER: usize = 9;

/// How long connecting to one address may take.
const CONNECT_WITHIN: Duration = Duration::from_secs(2);
/// How long after that the first frame may come.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// How long after the last sign of life of a host its connections end.
const VANISHED: Duration = Duration::from_secs(10);

/// Known to the ranks of a job and its launcher only.
#[derive(Clone)]
pub(crate) struct Secret([u8; LONG]);

impl Secret {
    /// A random one.
    pub fn fresh() -> io::Result<Self> {
        Ok(Secret(random()?))
    }

    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        Some(Secret(bytes.try_into().ok()?))
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Who connects to the hub: a rank of a job, and the process that it is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Hello {
    pub rank: Rank,
    pub size: usize,
    pub process: ProcessId,
}

/// What the hub answers to a rank that knows the secret.
pub(super) enum Answer {
    /// The connection, and the authentication of frames to the hub and from it.
    Welcome(TcpStream, Box<[Seal; 2]>),
    /// This process is the rank; zeros if the rank has ended before it joined.
    Refused(ProcessId),
}

/// Connects to a hub, proves that it knows the secret, and demands the same of the hub.
pub(super) fn greet(address: &SocketAddr, hello: Hello, secret: &Secret) -> io::Result<Answer> {
    let bad = |why: &str| io::Error::new(io::ErrorKind::InvalidData, why);
    let mut stream = TcpStream::connect_timeout(address, CONNECT_WITHIN)?;
    prepare(&stream)?;
    let until = Instant::now() + ANSWER_WITHIN;
    let hello = hello.to_bytes(&random()?);
    stream.write_all(&hello)?;
    let mut challenge = [0; CHALLENGE];
    read_by(&mut stream, &mut challenge, until)?;
    let (nonce, proof) = challenge.split_at(LONG);
    let handshake = Handshake::new(secret, &hello, nonce);
    if !handshake.is_hub(proof) {
        return Err(bad("what answers there does not know the secret of this job"));
    }
    stream.write_all(&handshake.rank_proof())?;
    let [to_hub, mut from_hub] = handshake.seals();
    let mut received = vec![0; HEADER + ProcessId::BYTES + LONG];
    read_by(&mut stream, &mut received, until)?;
    let answer = from_hub.open(&mut received, ProcessId::BYTES as u64).map_err(bad)?;
    let process = |body: Vec<u8>| body.try_into().map(ProcessId).map_err(|_| bad("the hub names no process"));
    match answer {
        Some((WELCOME, _)) => {
            stream.set_read_timeout(None)?;
            Ok(Answer::Welcome(stream, Box::new([to_hub, from_hub])))
        }
        Some((REFUSED, body)) => Ok(Answer::Refused(process(body)?)),
        _ => Err(bad("the hub answers with a frame of an unexpected kind")),
    }
}

/// Fills `into`, in as many reads as it takes, or fails when the time is up.
fn read_by(stream: &mut TcpStream, mut into: &mut [u8], until: Instant) -> io::Result<()> {
    while !into.is_empty() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(into) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => into = &mut into[read..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Has small messages sent at once, and connections to hosts that vanished ended.
pub(super) fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, Duration::from_secs(4))?;
    sockopt::set_tcp_keepintvl(stream, Duration::from_secs(2))?;
    sockopt::set_tcp_keepcnt(stream, 3)?;
    sockopt::set_tcp_user_timeout(stream, VANISHED.as_millis() as u32)?;
    Ok(())
}

pub(super) fn random() -> io::Result<[u8; LONG]> {
    let mut bytes = [0; LONG];
    let mut filled = 0;
    while filled < LONG {
        filled += rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty())?;
    }
    Ok(bytes)
}

impl Hello {
    pub fn to_bytes(self, nonce: &[u8; LONG]) -> Vec<u8> {
        let (rank, size) = (self.rank as u32, self.size as u32);
        [&VERSION[..], &rank.to_le_bytes(), &size.to_le_bytes(), &self.process.0, nonce].concat()
    }

    /// `None` if it is not of this version.
    pub fn from_bytes(hello: &[u8]) -> Option<Self> {
        let rest = hello.strip_prefix(&VERSION)?;
        let (rank, rest) = rest.split_first_chunk()?;
        let (size, rest) = rest.split_first_chunk()?;
        let (process, _) = rest.split_first_chunk()?;
        let (rank, size) = (u32::from_le_bytes(*rank) as Rank, u32::from_le_bytes(*size) as usize);
        Some(Hello { rank, size, process: ProcessId(*process) })
    }
}

/// The code over the hello and both nonces, under the secret: what proofs and keys are made of.
pub(super) struct Handshake(Hmac<Sha256>);

impl Handshake {
    pub fn new(secret: &Secret, hello: &[u8], nonce: &[u8]) -> Self {
        let mut mac = keyed(&secret.0);
        mac.update(hello);
        mac.update(nonce);
        Handshake(mac)
    }

    fn with(&self, word: &[u8]) -> Hmac<Sha256> {
        self.0.clone().chain_update(word)
    }

    pub fn hub_proof(&self) -> [u8; LONG] {
        self.with(b"hub").finalize().into_bytes().into()
    }

    pub fn rank_proof(&self) -> [u8; LONG] {
        self.with(b"rank").finalize().into_bytes().into()
    }

    /// Whether the proof is that of a hub, in constant time.
    pub fn is_hub(&self, proof: &[u8]) -> bool {
        self.with(b"hub").verify_slice(proof).is_ok()
    }

    /// Whether the proof is that of a rank, in constant time.
    pub fn is_rank(&self, proof: &[u8]) -> bool {
        self.with(b"rank").verify_slice(proof).is_ok()
    }

    /// The authentication of frames to the hub and of those from it.
    pub fn seals(&self) -> [Seal; 2] {
        [&b"to hub"[..], b"from hub"]
            .map(|word| Seal { mac: keyed(&self.with(word).finalize().into_bytes()), count: 0 })
    }
}

fn keyed(key: &[u8]) -> Hmac<Sha256> {
    Hmac::new_from_slice(key).expect("a key may have any length")
}

/// The authentication of one direction of a connection: its key, and how many frames there were.
pub(super) struct Seal {
    mac: Hmac<Sha256>,
    count: u64,
}

impl Seal {
    fn next(&mut self, bytes: &[u8]) -> Hmac<Sha256> {
        self.count += 1;
        self.mac.clone().chain_update(self.count.to_le_bytes()).chain_update(bytes)
    }

    /// The next frame to send.
    pub fn seal(&mut self, kind: u8, body: &[u8]) -> Vec<u8> {
        let mut frame = Vec::with_capacity(HEADER + body.len() + LONG);
        frame.extend_from_slice(&(body.len() as u64).to_le_bytes());
        frame.push(kind);
        frame.extend_from_slice(body);
        let mac = self.next(&frame).finalize().into_bytes();
        frame.extend_from_slice(&mac);
        frame
    }

    /// Takes the next frame out of what was received, once it is whole: its kind and body. An error if it is not the
    /// other side's next frame, or its body is longer than `longest`.
    pub fn open(&mut self, received: &mut Vec<u8>, longest: u64) -> Result<Option<(u8, Vec<u8>)>, &'static str> {
        let Some((len, _)) = received.split_first_chunk() else { return Ok(None) };
        let len = u64::from_le_bytes(*len);
        if len > longest {
            return Err("it announces a frame that is too long");
        }
        let whole = HEADER + len as usize + LONG;
        if received.len() < whole {
            return Ok(None);
        }
        let (frame, mac) = received[..whole].split_at(whole - LONG);
        if self.next(frame).verify_slice(mac).is_err() {
            return Err("a frame fails authentication");
        }
        let opened = (frame[HEADER - 1], frame[HEADER..].to_vec());
        received.drain(..whole);
        Ok(Some(opened))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_open_once_in_order_and_unchanged() {
        let secret = Secret::fresh().unwrap();
        let seals = || Handshake::new(&secret, b"hello", b"nonce").seals();
        let ([mut to_hub, _], [mut at_hub, mut wrong]) = (seals(), seals());
        let first = to_hub.seal(7, b"first");
        let second = to_hub.seal(8, b"");
        for at in 0..first.len() {
            let mut changed = first.clone();
            changed[at] ^= 1;
            let [mut opener, _] = seals();
            assert!(!matches!(opener.open(&mut changed, 100), Ok(Some(_))), "byte {at} changed");
        }
        assert!(wrong.open(&mut first.clone(), 100).is_err(), "the other direction");
        assert!(seals()[0].open(&mut second.clone(), 100).is_err(), "the second first");
        let mut received = Vec::new();
        for byte in [&first[..], &second, &first].concat() {
            received.push(byte);
            match at_hub.open(&mut received, 100) {
                Ok(None) => {}
                Ok(Some((7, body))) => assert_eq!(body, b"first"),
                Ok(Some((8, body))) => assert_eq!(body, b""),
                Ok(Some(other)) => panic!("{other:?}"),
                Err(why) => {
                    assert_eq!((why, received.len()), ("a frame fails authentication", first.len()), "the first again");
                    return;
                }
            }
        }
        panic!("a frame was taken twice");
    }

    #[test]
    fn a_length_beyond_the_limit_is_refused_at_once() {
        let mut opener = Handshake::new(&Secret::fresh().unwrap(), b"", b"").seals();
        assert!(opener[0].open(&mut u64::MAX.to_le_bytes().to_vec(), 100).is_err());
        assert!(opener[0].open(&mut 101_u64.to_le_bytes().to_vec(), 100).is_err());
        assert!(matches!(opener[0].open(&mut 100_u64.to_le_bytes().to_vec(), 100), Ok(None)));
    }
}
