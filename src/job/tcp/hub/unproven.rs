//! A connection before its other side has proved that it knows the job's secret.

use crate::job::tcp::wire::{CHALLENGE, HELLO, Handshake, Hello, PROOF, Secret, random};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Instant;

pub(super) struct Unproven {
    pub stream: TcpStream,
    /// When it is closed unless it has proved itself.
    pub until: Instant,
    received: Vec<u8>,
    /// What it said of itself, and the handshake with it.
    claim: Option<(Hello, Handshake)>,
}

/// A connection that has proved itself.
pub(super) struct Proven {
    pub stream: TcpStream,
    pub hello: Hello,
    pub handshake: Handshake,
}

impl Unproven {
    pub fn new(stream: TcpStream, until: Instant) -> Self {
        Unproven { stream, until, received: Vec::new(), claim: None }
    }

    /// Reads what has come, without waiting; whether it has proved itself now.
    pub fn step(&mut self, secret: &Secret, size: usize) -> Result<bool, &'static str> {
        let wanted = if self.claim.is_none() { HELLO } else { PROOF };
        let mut chunk = [0; HELLO];
        match self.stream.read(&mut chunk[..wanted - self.received.len()]) {
            Ok(0) => return Err("it ended before it proved that it knows the secret"),
            Ok(read) => self.received.extend_from_slice(&chunk[..read]),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(_) => return Err("it broke"),
        }
        if self.received.len() < wanted {
            return Ok(false);
        }
        let said = std::mem::take(&mut self.received);
        if let Some((_, handshake)) = &self.claim {
            return if handshake.is_rank(&said) { Ok(true) } else { Err("it does not know the secret") };
        }
        let hello = Hello::from_bytes(&said).ok_or("it does not begin as this version of transom does")?;
        if hello.size != size || hello.rank >= size {
            return Err("it is of a job of another size");
        }
        let nonce = random().map_err(|_| "the system has no random numbers")?;
        let handshake = Handshake::new(secret, &said, &nonce);
        let challenge: [u8; CHALLENGE] =
            [nonce, handshake.hub_proof()].concat().try_into().expect("a nonce and a proof");
        // The first bytes to this connection always fit into its send buffer.
        match self.stream.write(&challenge) {
            Ok(CHALLENGE) => {}
            _ => return Err("it takes no bytes"),
        }
        self.claim = Some((hello, handshake));
        Ok(false)
    }

    /// To be called once it has proved itself.
    pub fn into_proven(self) -> Option<Proven> {
        let (hello, handshake) = self.claim?;
        Some(Proven { stream: self.stream, hello, handshake })
    }
}
