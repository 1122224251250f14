//! Requests that are not known to be complete: the data to post them again, and the decision which of them the far end
//! has executed.

use crate::wr::{Kind, Piece, Received, RemoteAddress, Verb};
use std::ops::RangeInclusive;

/// The start of the connection on which requests are posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Start {
    pub generation: u32,
    /// Number of the first packet.
    pub psn: u32,
    /// Bytes per packet, a power of two.
    pub mtu: u32,
}

/// Requests of a lane that are not known to be complete, in order.
#[derive(Clone, Debug)]
pub(crate) struct Unfinished {
    /// Number of the request before the first, and of the last.
    before: u64,
    last: u64,
    /// Start of their connection.
    start: Start,
    /// Number of the first packet of the first request, and of the first packet after the last request.
    psn: u32,
    next: u32,
    /// Ring indexed by request number; its length is the queue's depth rounded up to a power of two.
    requests: Box<[RequestRecord]>,
    /// Ring of inline payloads, `inline` bytes each; allocated at the first inline request.
    bytes: Box<[u8]>,
    inline: usize,
    answered: Answered,
}

/// Numbers of the last read and the last atomic. Their answers arrive after they take effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
struct Answered {
    read: u64,
    atomic: u64,
}

impl Answered {
    #[inline]
    fn note(&mut self, number: u64, kind: Kind) {
        match kind {
            Kind::Read => self.read = number,
            Kind::Atomic => self.atomic = number,
            Kind::Write => {}
        }
    }

    #[inline]
    fn fences(self, kind: Kind, completed: u64) -> bool {
        self.read > completed && kind != Kind::Read || self.atomic > completed && kind != Kind::Atomic
    }
}

/// Record of a request. Kept small, because it is written for every request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RequestRecord {
    pub verb: Verb,
    pub to: RemoteAddress,
    pub piece: Piece,
    pub inline: bool,
    /// The request belongs to a message, which may be sent on another lane instead.
    pub movable: bool,
    /// The request is an atomic whose result the caller can recover if it is lost.
    pub spared: bool,
    /// Number of the first packet after the request, once recorded.
    pub end: u32,
}

const _: () = assert!(size_of::<RequestRecord>() <= 64, "the crate's documentation states 64 bytes");

/// The error that the far end claims to have received packets that were not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotSent;

/// PSNs have 24 bits.
const PSNS: u32 = 1 << 24;
/// Most unfinished bytes, in whole packets. The next queue may have the shortest packets, of 256 bytes; then this is
/// half of the PSNs. More would make the far end's position ambiguous.
const BYTES: u32 = 1 << 31;

impl RequestRecord {
    /// An empty write: it has no effect and completes in order.
    pub const MARKER: RequestRecord =
        RequestRecord::new(Verb::Write, RemoteAddress { address: 0, key: 0 }, Piece::NOTHING, false);

    pub const fn new(verb: Verb, to: RemoteAddress, piece: Piece, inline: bool) -> Self {
        RequestRecord { verb, to, piece, inline, movable: false, spared: false, end: 0 }
    }

    /// Number of PSNs that the request uses: packets of its payload, or of its answer.
    fn packets(&self, mtu: u32) -> u32 {
        match self.verb.kind() {
            Kind::Write | Kind::Read => (self.piece.bytes.saturating_sub(1) >> mtu.trailing_zeros()) + 1,
            Kind::Atomic => 1,
        }
    }
}

impl Unfinished {
    /// An account for at most `depth` requests with at most `inline` inline bytes.
    pub fn new(start: Start, depth: usize, inline: usize) -> Self {
        let requests = vec![RequestRecord::MARKER; depth.next_power_of_two()].into();
        let (before, last, answered, bytes) = Default::default();
        Unfinished { before, last, start, psn: start.psn, next: start.psn, requests, bytes, inline, answered }
    }

    /// Generation of the requests' connection.
    pub fn generation(&self) -> u32 {
        self.start.generation
    }

    /// The ring index of a request number.
    #[inline]
    fn place(&self, number: u64) -> usize {
        number as usize & (self.requests.len() - 1)
    }

    /// Returns whether a request must wait for the answers to earlier ones, so that a fetch does not see a later
    /// request's data, and vice versa. `completed` is the last completed request. `by_queue` says whether the queue
    /// itself can [fence](crate::wr::WorkQueue::fences).
    #[inline]
    pub fn fences(&self, kind: Kind, completed: u64, by_queue: bool) -> bool {
        let is_write = |(number, kept): (u64, RequestRecord)| number > completed && kept.verb.kind() == Kind::Write;
        self.answered.fences(kind, completed) || !by_queue && kind == Kind::Atomic && self.kept().any(is_write)
    }

    /// Returns whether enough packet numbers are free for one more request.
    #[inline]
    pub fn has_numbers_for(&self, kept: &RequestRecord) -> bool {
        let mtu = self.start.mtu;
        let packets = (self.next + PSNS - self.psn) % PSNS + kept.packets(mtu);
        packets <= BYTES / mtu
    }

    /// Records the next request, whose number follows the last one. `bytes` is its inline payload.
    #[inline]
    pub fn push(&mut self, number: u64, kept: RequestRecord, bytes: &[u8]) {
        let at = self.place(number);
        debug_assert!(number - self.before <= self.requests.len() as u64, "as many as the queue takes");
        if kept.inline {
            if self.bytes.is_empty() {
                self.bytes = vec![0; self.requests.len() * self.inline].into();
            }
            self.bytes[at * self.inline..][..bytes.len()].copy_from_slice(bytes);
        }
        self.put(number, kept);
        self.last = number;
    }

    /// Records a request at its number, after the last one.
    #[inline]
    fn put(&mut self, number: u64, kept: RequestRecord) {
        self.next = (self.next + kept.packets(self.start.mtu)) % PSNS;
        self.requests[self.place(number)] = RequestRecord { end: self.next, ..kept };
        self.answered.note(number, kept.verb.kind());
    }

    /// Records that requests up to `number` are complete.
    #[inline]
    pub fn complete(&mut self, number: u64) {
        if number > self.before {
            self.psn = self.requests[self.place(number)].end;
            self.before = number;
        }
    }

    pub fn is_empty(&self) -> bool {
        self.before >= self.last
    }

    /// The recorded requests, with their numbers.
    fn kept(&self) -> impl Iterator<Item = (u64, RequestRecord)> {
        (self.before + 1..=self.last).map(|number| (number, self.requests[self.place(number)]))
    }

    /// Drops all requests.
    pub fn clear(&mut self) {
        self.before = self.last;
    }

    /// Returns whether any request must still be executed.
    pub fn is_anything(&self) -> bool {
        self.kept().any(|(_, kept)| kept.verb != Verb::Write || kept.piece.bytes > 0)
    }

    /// Replaces requests with these numbers, whose memory `meant` selects, by empty writes, so that they are not posted
    /// again.
    pub fn cancel(&mut self, numbers: RangeInclusive<u64>, meant: impl Fn(Piece) -> bool) {
        for number in *numbers.start().max(&(self.before + 1))..=*numbers.end().min(&self.last) {
            let kept = &mut self.requests[number as usize & (self.requests.len() - 1)];
            if meant(kept.piece) {
                // The replacement keeps the packet numbers that the request had on the wire.
                *kept = RequestRecord { end: kept.end, ..RequestRecord::MARKER };
            }
        }
    }

    /// Local memory of a recorded request.
    pub fn piece(&self, number: u64) -> Option<Piece> {
        self.kept().find(|(of, _)| *of == number).map(|(_, kept)| kept.piece)
    }

    /// Passes the requests that may use another lane to `each`, in order, with their inline payloads; empty writes
    /// replace them here.
    pub fn hand_over(&mut self, mut each: impl FnMut(u64, RequestRecord, &[u8])) {
        for number in self.before + 1..=self.last {
            let at = self.place(number);
            let kept = self.requests[at];
            if kept.movable {
                let bytes =
                    if kept.inline { &self.bytes[at * self.inline..][..kept.piece.bytes as usize] } else { &[] };
                each(number, kept, bytes);
                self.requests[at] = RequestRecord { end: kept.end, ..RequestRecord::MARKER };
            }
        }
    }

    /// Number of the last atomic; zero if there is none.
    pub fn last_atomic(&self) -> u64 {
        self.answered.atomic
    }

    /// Returns whether a request before `below` is an atomic whose result a caller may miss.
    pub fn has_atomic(&self, below: u64, missed: impl Fn(u64) -> bool) -> bool {
        let atomic = |kept: RequestRecord| kept.verb.kind() == Kind::Atomic && !kept.spared;
        self.kept().any(|(number, kept)| number < below && atomic(kept) && missed(number))
    }

    /// Marks an atomic whose result no caller will miss.
    pub fn spare(&mut self, number: u64) {
        if number > self.before && number <= self.last {
            self.requests[number as usize & (self.requests.len() - 1)].spared = true;
        }
    }

    /// Prepares the requests for posting to the next connection, under their own numbers.
    ///
    /// An empty write replaces each request that the far end has executed, except reads, which have no effect there.
    /// `executed` receives the numbers of executed atomics, whose results are lost.
    ///
    /// # Errors
    /// [`NotSent`] if the received position is impossible; then nothing has changed.
    pub fn begin(&mut self, start: Start, received: Received, mut executed: impl FnMut(u64)) -> Result<(), NotSent> {
        let next = match received.generation {
            of if of == self.start.generation => received.next,
            // Nothing arrived; or so much that the expected packet number is the first one again.
            of if of < self.start.generation => self.start.psn,
            _ => return Err(NotSent),
        };
        // Distance from the first unfinished packet. Distances of packets in flight are distinct.
        let from_first = |psn: u32| (psn + PSNS - self.psn) % PSNS;
        let packets = from_first(next);
        if packets > from_first(self.next) {
            return Err(NotSent);
        }
        let again: Vec<_> = self.kept().map(|(number, kept)| (number, kept, from_first(kept.end) <= packets)).collect();
        (self.start, self.psn, self.next, self.answered) = (start, start.psn, start.psn, Answered::default());
        for (number, kept, is_executed) in again {
            match kept.verb.kind() {
                Kind::Read => self.put(number, kept),
                _ if !is_executed => self.put(number, kept),
                kind => {
                    self.put(number, RequestRecord::MARKER);
                    if kind == Kind::Atomic {
                        executed(number);
                    }
                }
            }
        }
        Ok(())
    }

    /// Passes each request from number `from` on to `post`, with its number and whether it must wait for earlier ones,
    /// until one cannot be posted.
    pub fn each<E>(
        &self,
        from: u64,
        by_queue: bool,
        mut post: impl FnMut(u64, RequestRecord, bool) -> Result<(), E>,
    ) -> Result<(), E> {
        let (mut before, mut writes) = (Answered::default(), false);
        for (number, mut kept) in self.kept() {
            let kind = kept.verb.kind();
            let waits = before.fences(kind, self.before) || !by_queue && kind == Kind::Atomic && writes;
            before.note(number, kind);
            writes |= kind == Kind::Write;
            if number < from {
                continue;
            }
            if kept.inline {
                let bytes = &self.bytes[self.place(number) * self.inline..][..kept.piece.bytes as usize];
                kept.piece = Piece::inline(bytes);
            }
            post(number, kept, waits)?;
        }
        Ok(())
    }
}

/// Equality of states in the model check ignores ring entries of completed requests.
#[cfg(test)]
mod state {
    use super::*;
    use std::hash::{Hash, Hasher};

    impl PartialEq for Unfinished {
        fn eq(&self, other: &Self) -> bool {
            (self.before, self.start, self.psn, self.answered) == (other.before, other.start, other.psn, other.answered)
                && self.kept().eq(other.kept())
        }
    }

    impl Eq for Unfinished {}

    impl Hash for Unfinished {
        fn hash<H: Hasher>(&self, state: &mut H) {
            (self.before, self.start, self.psn, self.answered).hash(state);
            self.kept().for_each(|kept| kept.hash(state));
        }
    }
}
