//! The handshake of a connection: both ends prove that they are of this job, and the one that connects names itself.
//!
//! 1. The origin sends a [`Hello`]: version, use, both ranks, 16 random bytes, and a code over them. The target answers no
//!    stranger, and holds nothing for one. An observer of the network could repeat a hello, but not step 3.
//! 2. The target replies with 16 random bytes and a code over all so far. The origin thereby knows that it has reached
//!    that rank, not another machine at the same address.
//! 3. The origin replies with a code over the same bytes.
//!
//! Each rank sends its secret to all others through the job's exchange, which is encrypted. A code is HMAC-SHA256 keyed
//! with the secrets of both ranks. The frames that follow are neither encrypted nor authenticated.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};
use transom_launch::random;

const MAGIC: [u8; 8] = *b"transom\x82";
/// Bytes of a [`Hello`] without its code.
const CLAIM: usize = MAGIC.len() + 12 + NONCE;
/// Bytes of a [`Hello`], of the target's answer, and of a code.
pub const HELLO: usize = CLAIM + CODE;
pub const ANSWER: usize = NONCE + CODE;
pub const CODE: usize = 32;
const NONCE: usize = 16;

/// Bytes that a rank sends to all others through the exchange.
pub type Secret = [u8; 32];

/// The use of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Use {
    /// Requests on memory of the target, and their replies.
    Memory = 1,
    /// Messages, in both directions.
    Messages = 2,
}

/// The first bytes of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hello {
    pub to_use: Use,
    /// The rank that connects, in the job.
    pub from: u32,
    /// The rank that it connects to.
    pub to: u32,
    nonce: [u8; NONCE],
}

impl Hello {
    pub fn new(to_use: Use, from: u32, to: u32) -> io::Result<Hello> {
        Ok(Hello { to_use, from, to, nonce: random()? })
    }

    fn claim(self) -> [u8; CLAIM] {
        let mut bytes = [0; CLAIM];
        bytes[..8].copy_from_slice(&MAGIC);
        for (at, number) in [self.to_use as u32, self.from, self.to].into_iter().enumerate() {
            bytes[8 + 4 * at..][..4].copy_from_slice(&number.to_le_bytes());
        }
        bytes[20..].copy_from_slice(&self.nonce);
        bytes
    }

    fn to_bytes(self, secrets: [&Secret; 2]) -> [u8; HELLO] {
        let mut bytes = [0; HELLO];
        bytes[..CLAIM].copy_from_slice(&self.claim());
        bytes[CLAIM..].copy_from_slice(&self.code(IN_HELLO, &[], secrets).finalize().into_bytes());
        bytes
    }

    fn parse(bytes: &[u8; CLAIM]) -> Option<Hello> {
        let (magic, rest) = bytes.split_first_chunk::<8>()?;
        let ([to_use, from, to], nonce) = (rest[..12].as_chunks::<4>().0, &rest[12..]) else { return None };
        let number = |bytes: &[u8; 4]| u32::from_le_bytes(*bytes);
        let to_use = [Use::Memory, Use::Messages].into_iter().find(|known| *known as u32 == number(to_use))?;
        let hello = Hello { to_use, from: number(from), to: number(to), nonce: nonce.try_into().ok()? };
        (*magic == MAGIC).then_some(hello)
    }

    /// A code; `by` tells the three of a handshake apart.
    fn code(&self, by: &[u8], nonce: &[u8], secrets: [&Secret; 2]) -> Hmac<Sha256> {
        let keyed: Hmac<Sha256> =
            Hmac::new_from_slice(&secrets.map(|secret| *secret).concat()).expect("HMAC accepts keys of any length");
        keyed.chain_update(by).chain_update(self.claim()).chain_update(nonce)
    }
}

const IN_HELLO: &[u8] = b"hello";
const BY_ORIGIN: &[u8] = b"origin";
const BY_TARGET: &[u8] = b"target";

/// The origin's end, on a connected stream. `secrets` are those of the origin and of the target.
///
/// # Errors
/// The other end does not know the secret, or does not answer in time.
pub fn greet(stream: &mut TcpStream, hello: Hello, secrets: [&Secret; 2], until: Instant) -> io::Result<()> {
    let left = until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
    stream.set_read_timeout(Some(left))?;
    stream.set_write_timeout(Some(left))?;
    stream.write_all(&hello.to_bytes(secrets))?;
    let other = || {
        let why = "another program, or a rank of another job, answers at this address";
        io::Error::new(io::ErrorKind::PermissionDenied, why)
    };
    let mut answer = [0; ANSWER];
    // A rank of another job closes the connection.
    let read = stream.read_exact(&mut answer);
    read.map_err(|error| if error.kind() == io::ErrorKind::UnexpectedEof { other() } else { error })?;
    let (nonce, code) = answer.split_at(NONCE);
    hello.code(BY_TARGET, nonce, secrets).verify_slice(code).map_err(|_| other())?;
    stream.write_all(&hello.code(BY_ORIGIN, nonce, secrets).finalize().into_bytes())
}

/// The target's end, driven by the bytes that arrive.
#[derive(Default)]
pub struct Greeting {
    received: Vec<u8>,
    /// The origin's hello, and this end's random bytes, once the hello has arrived.
    asked: Option<(Hello, [u8; NONCE])>,
}

/// State of the target's end.
pub enum Step {
    /// More bytes of the origin are needed.
    More,
    /// The origin says that it is this rank. These bytes go to it; then more bytes of it are needed.
    Answer(Hello, Vec<u8>),
    /// The origin is the rank that it names.
    Done(Hello),
}

impl Greeting {
    /// Bytes that the next [`step`](Self::step) may take.
    pub fn wants(&self) -> usize {
        (if self.asked.is_none() { HELLO } else { CODE }) - self.received.len()
    }

    /// Takes received bytes, at most as many as it [wants](Self::wants). `secrets_of` has the secrets of the origin and
    /// of this rank for a hello that may be answered.
    ///
    /// # Errors
    /// The origin is not of this job.
    pub fn step<'s>(
        &mut self,
        bytes: &[u8],
        secrets_of: impl Fn(&Hello) -> Option<[&'s Secret; 2]>,
    ) -> io::Result<Step> {
        self.received.extend_from_slice(bytes);
        if self.wants() > 0 {
            return Ok(Step::More);
        }
        let refused = |why| io::Error::new(io::ErrorKind::PermissionDenied, why);
        let received = std::mem::take(&mut self.received);
        match &self.asked {
            None => {
                let hello =
                    received.first_chunk().and_then(Hello::parse).ok_or_else(|| refused("not a rank's hello"))?;
                let secrets = secrets_of(&hello).ok_or_else(|| refused("it names ranks that do not exist"))?;
                let code = hello.code(IN_HELLO, &[], secrets);
                code.verify_slice(&received[CLAIM..]).map_err(|_| refused("it does not know the job's secret"))?;
                let nonce = random::<NONCE>()?;
                let code = hello.code(BY_TARGET, &nonce, secrets).finalize().into_bytes();
                self.asked = Some((hello, nonce));
                Ok(Step::Answer(hello, [&nonce[..], &code].concat()))
            }
            Some((hello, nonce)) => {
                let secrets = secrets_of(hello).ok_or_else(|| refused("it names ranks that do not exist"))?;
                let code = hello.code(BY_ORIGIN, nonce, secrets);
                code.verify_slice(&received).map_err(|_| refused("it does not know the job's secret"))?;
                Ok(Step::Done(*hello))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    const SECRETS: [&Secret; 2] = [&[1; 32], &[2; 32]];

    /// Runs both ends, with the origin's secrets and the target's, in pieces of `piece` bytes.
    fn run(origin: [&'static Secret; 2], target: [&'static Secret; 2], piece: usize) -> [io::Result<()>; 2] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let until = Instant::now() + Duration::from_secs(20);
        let origin =
            std::thread::spawn(move || greet(&mut stream, Hello::new(Use::Memory, 3, 4).unwrap(), origin, until));
        let (mut stream, _) = listener.accept().unwrap();
        let mut greeting = Greeting::default();
        let mut bytes = vec![0; piece];
        let target = loop {
            let most = greeting.wants().min(piece);
            if stream.read_exact(&mut bytes[..most]).is_err() {
                break Err(io::Error::other("the origin hung up"));
            }
            match greeting.step(&bytes[..most], |hello| (hello.from == 3 && hello.to == 4).then_some(target)) {
                Ok(Step::More) => {}
                Ok(Step::Answer(_, answer)) => stream.write_all(&answer).unwrap(),
                Ok(Step::Done(hello)) => {
                    assert_eq!((hello.from, hello.to_use), (3, Use::Memory));
                    break Ok(());
                }
                Err(error) => break Err(error),
            }
        };
        drop(stream);
        [origin.join().unwrap(), target]
    }

    #[test]
    fn ends_with_the_same_secrets_agree() {
        for piece in [1, 7, 100] {
            assert!(run(SECRETS, SECRETS, piece).into_iter().all(|end| end.is_ok()));
        }
    }

    #[test]
    fn either_wrong_secret_is_refused_by_both() {
        for wrong in [[&[9; 32], &[2; 32]], [&[1; 32], &[9; 32]], [&[2; 32], &[1; 32]]] {
            let [origin, target] = run(SECRETS, wrong, 100);
            assert_eq!(origin.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
            assert!(target.is_err());
        }
    }

    #[test]
    fn target_without_the_secret_is_refused() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let impostor = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.read_exact(&mut [0; HELLO]).unwrap();
            stream.write_all(&[7; ANSWER]).unwrap();
            stream.read(&mut [0]).unwrap()
        });
        let until = Instant::now() + Duration::from_secs(20);
        let error = greet(&mut stream, Hello::new(Use::Memory, 3, 4).unwrap(), SECRETS, until).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        drop(stream);
        assert_eq!(impostor.join().unwrap(), 0, "the origin's code goes to an impostor");
    }

    #[test]
    fn origin_without_the_secret_is_refused() {
        let hello = Hello::new(Use::Messages, 3, 4).unwrap();
        let secrets_of = |_: &Hello| Some(SECRETS);
        let mut greeting = Greeting::default();
        // A repeated hello of a rank.
        let Step::Answer(_, answer) = greeting.step(&hello.to_bytes(SECRETS), secrets_of).unwrap() else {
            panic!("no answer")
        };
        // The target's own code, sent back.
        assert!(greeting.step(&answer[NONCE..], secrets_of).is_err());
        let forged = hello.to_bytes([&[9; 32], &[2; 32]]);
        assert!(Greeting::default().step(&forged, secrets_of).is_err(), "a hello without the secret is answered");
    }

    #[test]
    fn random_hellos_are_refused() {
        let mut random = fastrand::Rng::with_seed(2);
        for _ in 0..10_000 {
            let mut bytes = Hello::new(Use::Memory, 3, 4).unwrap().to_bytes(SECRETS);
            bytes[random.usize(..HELLO)] ^= 1 << random.u8(..8);
            assert!(Greeting::default().step(&bytes, |_| Some(SECRETS)).is_err());
        }
    }
}
