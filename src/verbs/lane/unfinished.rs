//! Requests that are not known complete: what it takes to post them again, and which of them the far end has executed.

use crate::verbs::wr::{Kind, Piece, Place, Received, Verb};
use std::collections::VecDeque;

/// The connection that requests are posted to, as this end began it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::verbs) struct Start {
    pub generation: u32,
    /// The number of the first packet.
    pub psn: u32,
    /// Bytes of a packet, a power of two.
    pub mtu: u32,
}

/// Requests of a lane that are not known complete, in their order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in crate::verbs) struct Unfinished {
    /// The number of the request before the first.
    before: u64,
    /// Their connection.
    start: Start,
    /// The number of the first packet of the first.
    psn: u32,
    requests: VecDeque<Kept>,
    /// What inline requests take along, each in the place of its number; made when the first does.
    bytes: Box<[u8]>,
    /// So many places, of so many bytes each.
    places: [usize; 2],
    /// The numbers of the last read and the last atomic: their answers come later than they take effect.
    last: [u64; 2],
}

/// What is kept of a request: as small as can be, since it is written for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::verbs) struct Kept {
    pub verb: Verb,
    pub to: Place,
    pub piece: Piece,
    pub inline: bool,
}

const _: () = assert!(size_of::<Kept>() <= 64, "as the documentation says");

/// The far end says that it has received what was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::verbs) struct NotSent;

/// PSNs have 24 bits.
const PSNS: u32 = 1 << 24;

impl Kept {
    /// A write of nothing: it takes effect nowhere, and completes in its turn.
    pub const MARKER: Kept =
        Kept { verb: Verb::Write, to: Place { address: 0, key: 0 }, piece: Piece::NOTHING, inline: false };

    /// As many numbers as it takes: of packets that bring bytes, or are answered with bytes.
    fn packets(&self, mtu: u32) -> u32 {
        match self.verb.kind() {
            Kind::Write | Kind::Read => (self.piece.bytes.saturating_sub(1) >> mtu.trailing_zeros()) + 1,
            Kind::Atomic => 1,
        }
    }
}

impl Unfinished {
    /// Of at most `depth` requests, that take at most `inline` bytes along.
    pub fn new(start: Start, depth: usize, inline: usize) -> Self {
        let (requests, bytes) = Default::default();
        Unfinished { before: 0, start, psn: start.psn, requests, bytes, places: [depth, inline], last: [0; 2] }
    }

    /// Where the bytes of a request are.
    fn place(places: [usize; 2], number: u64) -> usize {
        let [depth, inline] = places;
        number as usize % depth * inline
    }

    /// Whether a request of that kind has to wait until those before it were answered: what is fetched must not be what a
    /// later request puts there, and the other way about. `completed`: requests up to that are.
    pub fn fences(&self, kind: Kind, completed: u64) -> bool {
        let [reads, atomics] = self.last;
        reads > completed && kind != Kind::Read || atomics > completed && kind != Kind::Atomic
    }

    /// Remembers a request, the next in order. `bytes` are those that it takes along.
    pub fn push(&mut self, kept: Kept, bytes: &[u8]) {
        self.requests.push_back(kept);
        let number = self.before + self.requests.len() as u64;
        if kept.inline {
            if self.bytes.is_empty() {
                self.bytes = vec![0; self.places[0] * self.places[1]].into();
            }
            let at = Self::place(self.places, number);
            self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        }
        self.sent(kept, number);
    }

    fn sent(&mut self, kept: Kept, number: u64) {
        match kept.verb.kind() {
            Kind::Read => self.last[0] = number,
            Kind::Atomic => self.last[1] = number,
            Kind::Write => {}
        }
    }

    /// Requests with numbers up to this are complete.
    pub fn complete(&mut self, number: u64) {
        while self.before < number {
            let Some(kept) = self.requests.pop_front() else {
                self.before = number;
                return;
            };
            self.before += 1;
            self.psn = (self.psn + kept.packets(self.start.mtu)) % PSNS;
        }
    }

    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    pub fn clear(&mut self) {
        (self.requests, self.bytes) = Default::default();
    }

    /// Before the requests are posted to the next connection, all under their own numbers: what the far end has executed is
    /// not to be done again, so a write of nothing takes its place, unless it is a read, which changes nothing there.
    /// `executed` is told the numbers of atomics of this kind: what they found is lost.
    ///
    /// # Errors
    /// If there is no such state of the far end; then nothing has changed.
    pub fn begin(&mut self, start: Start, received: Received, mut executed: impl FnMut(u64)) -> Result<(), NotSent> {
        let next = match received.generation {
            of if of == self.start.generation => received.next,
            // Nothing came; or so much that the number expected next is the first again.
            of if of < self.start.generation => self.start.psn,
            _ => return Err(NotSent),
        };
        // From the first unfinished one on. Far fewer than there are numbers can be under way.
        let mut packets = (next + PSNS - self.psn) % PSNS;
        let mtu = self.start.mtu;
        if u64::from(packets) > self.requests.iter().map(|kept| u64::from(kept.packets(mtu))).sum() {
            return Err(NotSent);
        }
        for (kept, number) in self.requests.iter_mut().zip(self.before + 1..) {
            let Some(rest) = packets.checked_sub(kept.packets(mtu)) else { break };
            packets = rest;
            let kind = kept.verb.kind();
            if kind != Kind::Read {
                *kept = Kept::MARKER;
            }
            if kind == Kind::Atomic {
                executed(number);
            }
        }
        (self.start, self.psn, self.last) = (start, start.psn, [0; 2]);
        Ok(())
    }

    /// Hands over each with its number and whether it waits for those before it, until one cannot be posted.
    pub fn each<E>(&mut self, mut post: impl FnMut(u64, Kept, bool) -> Result<(), E>) -> Result<(), E> {
        let mut number = self.before;
        for next in 0..self.requests.len() {
            number += 1;
            let mut kept = self.requests[next];
            if kept.inline {
                let at = Self::place(self.places, number);
                kept.piece = Piece::inline(&self.bytes[at..at + kept.piece.bytes as usize]);
            }
            post(number, kept, self.fences(kept.verb.kind(), self.before))?;
            self.sent(kept, number);
        }
        Ok(())
    }
}
