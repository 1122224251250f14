//! Requests that are not known complete: what it takes to post them again, and which of them the far end has executed.

use crate::wr::{Kind, Piece, Place, Received, Verb};
use std::ops::RangeInclusive;

/// The connection that requests are posted to, as this end began it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Start {
    pub generation: u32,
    /// The number of the first packet.
    pub psn: u32,
    /// Bytes of a packet, a power of two.
    pub mtu: u32,
}

/// Requests of a lane that are not known complete, in their order.
#[derive(Clone, Debug)]
pub(crate) struct Unfinished {
    /// The number of the request before the first, and that of the last.
    before: u64,
    last: u64,
    /// Their connection.
    start: Start,
    /// The numbers of the first packet of the first, and of the first after the last.
    psn: u32,
    next: u32,
    /// Each in the place of its number: as many as there can be, rounded up to a power of two.
    requests: Box<[Kept]>,
    /// What inline requests take along, likewise, so many bytes for each; made when the first does.
    bytes: Box<[u8]>,
    inline: usize,
    answered: Answered,
}

/// The numbers of the last read and the last atomic: their answers come later than they take effect.
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

/// What is kept of a request: as small as can be, since it is written for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Kept {
    pub verb: Verb,
    pub to: Place,
    pub piece: Piece,
    pub inline: bool,
    /// It is of a message, which may go by another lane instead.
    pub movable: bool,
    /// It is an atomic whose result can be found out if it is lost.
    pub spared: bool,
    /// The number of the first packet after it, once it is kept.
    pub end: u32,
}

const _: () = assert!(size_of::<Kept>() <= 64, "as the documentation says");

/// The far end says that it has received what was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotSent;

/// PSNs have 24 bits.
const PSNS: u32 = 1 << 24;
/// As many bytes may be unfinished, in whole packets: by a queue of the shortest packets, of 256 bytes, which may be the next, that is
/// half of the PSNs. With one more round of them it would not be known what the far end has executed.
const BYTES: u32 = 1 << 31;

impl Kept {
    /// A write of nothing: it takes effect nowhere, and completes in its turn.
    pub const MARKER: Kept = Kept::new(Verb::Write, Place { address: 0, key: 0 }, Piece::NOTHING, false);

    pub const fn new(verb: Verb, to: Place, piece: Piece, inline: bool) -> Self {
        Kept { verb, to, piece, inline, movable: false, spared: false, end: 0 }
    }

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
        let requests = vec![Kept::MARKER; depth.next_power_of_two()].into();
        let (before, last, answered, bytes) = Default::default();
        Unfinished { before, last, start, psn: start.psn, next: start.psn, requests, bytes, inline, answered }
    }

    /// Of the connection that they were posted to.
    pub fn generation(&self) -> u32 {
        self.start.generation
    }

    /// The place of a number.
    #[inline]
    fn place(&self, number: u64) -> usize {
        number as usize & (self.requests.len() - 1)
    }

    /// Whether a request of that kind has to wait until those before it were answered: what is fetched must not be what a
    /// later request puts there, and the other way about. `completed`: requests up to that are. `by_queue`: its queue has it
    /// [wait](crate::wr::WorkQueue::fences).
    #[inline]
    pub fn fences(&self, kind: Kind, completed: u64, by_queue: bool) -> bool {
        let is_write = |(number, kept): (u64, Kept)| number > completed && kept.verb.kind() == Kind::Write;
        self.answered.fences(kind, completed) || !by_queue && kind == Kind::Atomic && self.kept().any(is_write)
    }

    /// Whether there are numbers for the packets of one more.
    #[inline]
    pub fn has_numbers_for(&self, kept: &Kept) -> bool {
        let mtu = self.start.mtu;
        let packets = (self.next + PSNS - self.psn) % PSNS + kept.packets(mtu);
        packets <= BYTES / mtu
    }

    /// Remembers a request, the next in order, whose number is one more than the last's. `bytes` are those that it takes
    /// along.
    #[inline]
    pub fn push(&mut self, number: u64, kept: Kept, bytes: &[u8]) {
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

    /// Puts a request in the place of its number, behind the last.
    #[inline]
    fn put(&mut self, number: u64, kept: Kept) {
        self.next = (self.next + kept.packets(self.start.mtu)) % PSNS;
        self.requests[self.place(number)] = Kept { end: self.next, ..kept };
        self.answered.note(number, kept.verb.kind());
    }

    /// Requests with numbers up to this are complete.
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

    /// Those that are kept, with their numbers.
    fn kept(&self) -> impl Iterator<Item = (u64, Kept)> {
        (self.before + 1..=self.last).map(|number| (number, self.requests[self.place(number)]))
    }

    /// Nothing of them will be needed any more.
    pub fn clear(&mut self) {
        self.before = self.last;
    }

    /// Whether anything of them is still to be done.
    pub fn is_anything(&self) -> bool {
        self.kept().any(|(_, kept)| kept.verb != Verb::Write || kept.piece.bytes > 0)
    }

    /// Those of these numbers whose memory is meant are not to be done again: writes of nothing take their places.
    pub fn cancel(&mut self, numbers: RangeInclusive<u64>, meant: impl Fn(Piece) -> bool) {
        for number in *numbers.start().max(&(self.before + 1))..=*numbers.end().min(&self.last) {
            let kept = &mut self.requests[number as usize & (self.requests.len() - 1)];
            if meant(kept.piece) {
                // They had as many packets as they had.
                *kept = Kept { end: kept.end, ..Kept::MARKER };
            }
        }
    }

    /// This rank's memory of one that is kept.
    pub fn piece(&self, number: u64) -> Option<Piece> {
        self.kept().find(|(of, _)| *of == number).map(|(_, kept)| kept.piece)
    }

    /// Hands those over that may go by another lane, in their order, with the bytes that they take along: they are not done again here.
    pub fn hand_over(&mut self, mut each: impl FnMut(u64, Kept, &[u8])) {
        for number in self.before + 1..=self.last {
            let at = self.place(number);
            let kept = self.requests[at];
            if kept.movable {
                let bytes =
                    if kept.inline { &self.bytes[at * self.inline..][..kept.piece.bytes as usize] } else { &[] };
                each(number, kept, bytes);
                self.requests[at] = Kept { end: kept.end, ..Kept::MARKER };
            }
        }
    }

    /// The number of the last atomic; zero if there is none.
    pub fn last_atomic(&self) -> u64 {
        self.answered.atomic
    }

    /// Whether one of these requests is an atomic whose result somebody may miss.
    pub fn has_atomic(&self, below: u64, missed: impl Fn(u64) -> bool) -> bool {
        let atomic = |kept: Kept| kept.verb.kind() == Kind::Atomic && !kept.spared;
        self.kept().any(|(number, kept)| number < below && atomic(kept) && missed(number))
    }

    /// Nobody misses the result of that atomic.
    pub fn spare(&mut self, number: u64) {
        if number > self.before && number <= self.last {
            self.requests[number as usize & (self.requests.len() - 1)].spared = true;
        }
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
        // From the first unfinished one on: of those that are under way each has a number of its own.
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
                    self.put(number, Kept::MARKER);
                    if kind == Kind::Atomic {
                        executed(number);
                    }
                }
            }
        }
        Ok(())
    }

    /// Hands over each from that number on, with its number and whether it waits for those before it, until one cannot be posted.
    pub fn each<E>(
        &self,
        from: u64,
        by_queue: bool,
        mut post: impl FnMut(u64, Kept, bool) -> Result<(), E>,
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

/// What explored states are told apart by: not what is left in places of requests that are complete.
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
