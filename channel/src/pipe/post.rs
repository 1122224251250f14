//! What one end writes to the other's memory: messages of rings with their marks, bytes, and pointers.

use super::{Count, Offer};
use crate::ring::{Marker, Sender};
use crate::wire::{Busy, Data, Key, Lane, Request, Wire};

/// What an immediate value tells of; it is the pipe's, since its first bit is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Told {
    Ring,
    Control,
    Head,
    Tail,
}

/// The bits of a pointer that an immediate value has.
const BITS: u32 = 21;

impl Told {
    const ALL: [Told; 4] = [Told::Ring, Told::Control, Told::Head, Told::Tail];

    fn with(self, number: u8, value: u64) -> u32 {
        1 << 31 | (self as u32) << 29 | u32::from(number) << BITS | value as u32 & ((1 << BITS) - 1)
    }

    /// What a value tells of, and the low bits of a pointer.
    pub fn of(value: u32) -> (Told, u32) {
        (Told::ALL[(value >> 29 & 3) as usize], value & ((1 << BITS) - 1))
    }
}

/// Which pipe of a peer an immediate value is for; none if it is for none.
pub(crate) fn number_of(immediate: u32) -> Option<u8> {
    (immediate >> 31 == 1).then_some((immediate >> BITS) as u8)
}

/// What a pointer is, by the low bits that were told; `known`, if that is newer.
pub(super) fn extend(known: u64, bits: u64) -> u64 {
    let more = bits.wrapping_sub(known) & ((1 << BITS) - 1);
    if more <= 1 << (BITS - 1) { known + more } else { known }
}

pub(super) struct Post {
    pub lane: Lane,
    /// The peer's memory, and its number of this pipe, once it has told them.
    to: Option<(Key, u8)>,
    marker: Marker,
    /// Pointers are words in memory; else they ride in immediate values.
    pub words: bool,
    /// The mark of the last message, which the wire has refused. Nothing goes before it.
    mark: Option<(usize, u64)>,
    refused: bool,
    pub count: Count,
}

impl Post {
    pub fn new(lane: Lane, marker: Marker, words: bool) -> Post {
        Post { lane, to: None, marker, words, mark: None, refused: false, count: Count::default() }
    }

    pub fn join(&mut self, offer: &Offer) {
        self.to = Some((offer.key, offer.number));
    }

    /// Nothing is posted any more.
    pub fn leave<W: Wire>(&mut self, wire: &mut W) {
        if let Some((key, _)) = self.to.take() {
            wire.leave(self.lane, key);
        }
    }

    pub fn is_joined(&self) -> bool {
        self.to.is_some()
    }

    /// Whether something may be posted: a mark that was refused goes first.
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

    /// The wire has refused a read or write.
    pub fn refuse(&mut self) {
        self.refused = true;
    }

    /// Posts a message of a ring that begins at `base`. False if it has no slot, or the wire refuses.
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
        let together = self.marker != Marker::Second;
        let immediate = (self.marker == Marker::Immediate).then_some((what, 0));
        if self.put(wire, base + spot.at, head, body, together.then_some(spot.mark), immediate).is_err() {
            return false;
        }
        ring.sent(spot);
        if !together && self.put(wire, base + spot.mark_at, &[], Data::None, Some(spot.mark), None).is_err() {
            self.mark = Some((base + spot.mark_at, spot.mark));
        }
        true
    }

    /// Writes bytes, of which a pointer tells later.
    pub fn bytes<W: Wire>(&mut self, wire: &mut W, at: usize, body: Data<'_, W::Memory>) -> bool {
        self.mark.is_none() && self.put(wire, at, &[], body, None, None).is_ok()
    }

    /// Tells a pointer.
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
