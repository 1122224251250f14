//! A connection whose other side has not yet proved that it knows the job's secret.

use super::line::Line;
use crate::tcp::frames::HERE;
use crate::tcp::wire::{AGENT, HELLO, Hello, Opener, Sealer, Secret};
use std::io::{self, Read, Write};
use std::time::Instant;

pub(super) struct Unproven {
    pub line: Line,
    /// Time at which the connection is closed unless it has proved itself.
    pub until: Instant,
    received: Vec<u8>,
    /// Identity claimed in the first message, and the frames of the connection.
    claim: Option<(Hello, Sealer, Opener)>,
}

/// A connection that has proved itself.
pub(super) struct Proven {
    pub line: Line,
    pub hello: Hello,
    pub to: Sealer,
    pub from: Opener,
}

impl Unproven {
    pub fn new(line: Line, until: Instant) -> Self {
        Unproven { line, until, received: Vec::new(), claim: None }
    }

    /// Reads without blocking; returns whether the connection has proved itself now.
    pub fn step(&mut self, secret: &Secret, size: usize) -> Result<bool, &'static str> {
        let mut chunk = [0; HELLO];
        let most = HELLO - self.received.len();
        let read = match self.line.read(&mut chunk[..most]) {
            Ok(0) => return Err("it ended before it proved knowledge of the secret"),
            Ok(read) => &chunk[..read],
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => &[],
            Err(_) => return Err("the connection failed"),
        };
        if let Some((_, _, from)) = &mut self.claim {
            from.take_in(read);
            return match from.next(0)? {
                Some(frame) if frame.kind == HERE => Ok(true),
                Some(_) => Err("its first frame is not HERE"),
                None => Ok(false),
            };
        }
        self.received.extend_from_slice(read);
        let Ok(hello) = self.received[..].try_into() else { return Ok(false) };
        let (hello, answer, (to, from)) = Hello::hear(hello, secret)?;
        let is_agent = hello.rank == AGENT && self.line.own().is_some();
        if hello.size != size || (hello.rank >= size && !is_agent) {
            return Err("it belongs to a job of another size");
        }
        // The send buffer is empty, so the answer always fits.
        if self.line.write(&answer).ok() != Some(answer.len()) {
            return Err("it accepts no bytes");
        }
        self.received.clear();
        self.claim = Some((hello, to, from));
        Ok(false)
    }

    /// Converts a connection for which `step` returned true.
    pub fn into_proven(self) -> Option<Proven> {
        let (hello, to, from) = self.claim?;
        Some(Proven { line: self.line, hello, to, from })
    }
}
