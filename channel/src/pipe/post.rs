//! Writes from one end to the other's memory: ring messages with their marks, bytes, and pointers.

use super::{Count, Offer};
use crate::ring::{CompletionFlag, Sender};
use crate::wire::{Busy, Data, Key, Lane, Request, Wire};

/// Subject of an immediate value. Values whose first bit is set belong to pipes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Told {
    Ring,
    Control,
    Head,
    Tail,
}

/// Number of pointer bits in an immediate value.
const BITS: u32 = 21;

impl Told {
    const ALL: [Told; 4] = [Told::Ring, Told::Control, Told::Head, Told::Tail];

    fn with(self, number: u8, value: u64) -> u32 {
        1 << 31 | (self as u32) << 29 | u32::from(number) << BITS | value as u32 & ((1 << BITS) - 1)
    }

    /// Subject of a value, and the low bits of the pointer in it.
    pub fn of(value: u32) -> (Told, u32) {
        (Told::ALL[(value >> 29 & 3) as usize], value & ((1 << BITS) - 1))
    }
}

/// Number of the peer's pipe that an immediate value is for; `None` if it is not for a pipe.
pub(crate) fn number_of(immediate: u32) -> Option<u8> {
    (immediate >> 31 == 1).then_some((immediate >> BITS) as u8)
}

/// The full pointer for the low bits received, or `known` if that is newer.
pub(super) fn extend(known: u64, bits: u64) -> u64 {
    let more = bits.wrapping_sub(known) & ((1 << BITS) - 1);
    if more <= 1 << (BITS - 1) { known + more } else { known }
}

pub(super) struct Post {
    pub lane: Lane,
    /// Key of the peer's memory and the peer's number of this pipe, once its offer has arrived.
    to: Option<(Key, u8)>,
    marker: CompletionFlag,
    /// True if pointers are words in memory; otherwise immediate values carry them.
    pub words: bool,
    /// Offset and mark of the last message, if the wire has refused the mark. It must be posted before
    /// anything else.
    mark: Option<(usize, u64)>,
    refused: bool,
    pub count: Count,
}

impl Post {
    pub fn new(lane: Lane, marker: CompletionFlag, words: bool) -> Post {
        Post { lane, to: None, marker, words, mark: None, refused: false, count: Count::default() }
    }

    pub fn join(&mut self, offer: &Offer) {
        self.to = Some((offer.key, offer.number));
    }

    /// Notes that nothing more is posted.
    pub fn leave<W: Wire>(&mut self, wire: &mut W) {
        if let Some((key, _)) = self.to.take() {
            wire.leave(self.lane, key);
        }
    }

    pub fn is_joined(&self) -> bool {
        self.to.is_some()
    }

    /// Returns true if a request may be posted. Posts a refused mark first.
    pub fn is_free<W: Wire>(&mut self, wire: &mut W) -> bool {
        self.refused = false;
        if self.to.is_none() {
            return false;
        }
        if let Some((at, mark)) = self.mark {
            if self.put(wire, at, &[], Data::None, Some(mark), None).is_err() {
                return false;
            }
            self.mark = None;
        }
        true
    }

    pub fn is_refused(&self) -> bool {
        self.refused || self.mark.is_some()
    }

    /// Records that the wire has refused a read or write.
    pub fn refuse(&mut self) {
        self.refused = true;
    }

    /// Posts a message in the ring at offset `base`. `false` if no slot is free or the wire refuses.
    pub fn message<W: Wire>(
        &mut self,
        wire: &mut W,
        ring: &mut Sender,
        base: usize,
        what: Told,
        head: &[u8],
        body: Data<'_, W::Memory>,
    ) -> bool {
        if self.mark.is_some() {
            return false;
        }
        let length = head.len() + body.length();
        let Some(spot) = ring.claim(length) else { return false };
        let together = self.marker != CompletionFlag::Second;
        let immediate = (self.marker == CompletionFlag::Immediate).then_some((what, 0));
        if self.put(wire, base + spot.at, head, body, together.then_some(spot.mark), immediate).is_err() {
            return false;
        }
        ring.sent(spot);
        if !together && self.put(wire, base + spot.mark_at, &[], Data::None, Some(spot.mark), None).is_err() {
            self.mark = Some((base + spot.mark_at, spot.mark));
        }
        true
    }

    /// Writes bytes that a pointer will report later.
    pub fn bytes<W: Wire>(&mut self, wire: &mut W, at: usize, body: Data<'_, W::Memory>) -> bool {
        self.mark.is_none() && self.put(wire, at, &[], body, None, None).is_ok()
    }

    /// Reports a pointer.
    pub fn value<W: Wire>(&mut self, wire: &mut W, what: Told, at: usize, value: u64) -> bool {
        let immediate = (!self.words).then_some((what, value));
        let told = self.mark.is_none() && self.put(wire, at, &[], Data::None, Some(value), immediate).is_ok();
        self.count.alone += u64::from(told);
        told
    }

    fn put<W: Wire>(
        &mut self,
        wire: &mut W,
        at: usize,
        head: &[u8],
        body: Data<'_, W::Memory>,
        mark: Option<u64>,
        immediate: Option<(Told, u64)>,
    ) -> Result<(), Busy> {
        let (to, number) = self.to.ok_or(Busy)?;
        let immediate = immediate.map(|(what, value)| what.with(number, value));
        let posted = wire.post(self.lane, Request::Put { to, at, head, body, mark, immediate });
        match posted {
            Ok(()) => self.count.writes += 1,
            Err(Busy) => self.refused = true,
        }
        posted
    }
}
