//! The hub's side of the connection of a rank that has joined: frames received and frames to be sent.

use super::connections::Traffic;
use super::line::Line;
use crate::tcp::frames::{GATHERED, LONGEST};
use crate::tcp::silence::Silence;
use crate::tcp::wire::{Body, Frame, Opener, Sealer};
use std::collections::VecDeque;
use std::io::{self, IoSlice, Read, Write};
use std::sync::Arc;

/// Most pieces written in one system call.
const AT_ONCE: usize = 16;

/// A rank that has joined and not left.
pub(super) struct Member {
    pub line: Line,
    to: Sealer,
    from: Opener,
    unsent: VecDeque<Piece>,
    /// Bytes already sent of the first piece in `unsent`.
    sent: usize,
    /// The connection is closed once everything is sent.
    pub leaving: bool,
    /// `unsent` is not empty. The server polls the connection for writability, or the rank's agent grants credit.
    pub awaits_room: bool,
    silence: Silence,
    traffic: Arc<Traffic>,
}

/// Bytes to be sent. All members share the buffer of a round.
struct Piece {
    bytes: Arc<Vec<u8>>,
    /// The group whose round this piece belongs to, if any.
    round: Option<u64>,
}

impl Member {
    pub fn new(line: Line, to: Sealer, from: Opener, traffic: Arc<Traffic>) -> Self {
        let (unsent, silence) = (VecDeque::new(), Silence::default());
        Member { line, to, from, unsent, sent: 0, leaving: false, awaits_room: false, silence, traffic }
    }

    /// Queues a frame.
    pub fn tell(&mut self, kind: u8, group: u64, body: &Body) {
        let round = (kind == GATHERED).then_some(group);
        let frame = self.to.frame(kind, group, body);
        self.unsent
            .extend([Some(Arc::new(frame.head)), frame.tail].into_iter().flatten().map(|bytes| Piece { bytes, round }));
    }

    /// Returns whether part of the group's last round is still unsent to this rank. A rank that takes part in the next
    /// round must have received the last one. The hub therefore keeps at most one round per group for a rank that does
    /// not read.
    pub fn has_not_got(&self, group: u64) -> bool {
        self.unsent.iter().any(|piece| piece.round == Some(group))
    }

    /// Sends as much as possible without blocking; returns whether everything is sent.
    pub fn send(&mut self) -> io::Result<bool> {
        while !self.unsent.is_empty() {
            let mut slices = [IoSlice::new(&[]); AT_ONCE];
            for (slice, piece) in slices.iter_mut().zip(&self.unsent) {
                *slice = IoSlice::new(&piece.bytes);
            }
            slices[0].advance(self.sent);
            match self.line.write_vectored(&slices[..self.unsent.len().min(AT_ONCE)]) {
                Ok(written) => {
                    self.sent += written;
                    self.count(written);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            while let Some(piece) = self.unsent.front().filter(|piece| piece.bytes.len() <= self.sent) {
                self.sent -= piece.bytes.len();
                self.unsent.pop_front();
            }
        }
        if self.leaving {
            self.line.end()?;
        }
        Ok(true)
    }

    /// Reads once without blocking; returns false once the connection has ended.
    pub fn receive(&mut self, chunk: &mut [u8]) -> bool {
        match self.line.read(chunk) {
            Ok(0) => return false,
            Ok(read) => {
                self.count(read);
                self.from.take_in(&chunk[..read]);
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(_) => return false,
        }
        true
    }

    /// Counts bytes of a connection of its own. Those of an agent are counted there.
    fn count(&self, bytes: usize) {
        if self.line.own().is_some() {
            self.traffic.add(bytes);
        }
    }

    /// Returns whether the rank's host has vanished, if the connection is its own.
    pub fn has_vanished(&mut self) -> bool {
        self.line.own().is_some_and(|stream| self.silence.is_final(stream))
    }

    /// The next complete frame received.
    pub fn next(&mut self) -> Result<Option<Frame>, &'static str> {
        self.from.next(LONGEST)
    }
}
