//! The short path: a message that goes whole by a ring that is open, and one that lies there and is received by name. No
//! request is made, and nothing is posted; what is in the way of that takes the long path.

use super::Engine;
use super::arrive::credited;
use super::request::{cost, outcome};
use crate::error::{Error, Status};
use crate::matching::{Label, Select};
use crate::packet::{EAGER, Eager, Envelope};
use crate::ring::{Look, Marker};
use crate::wire::{Lane, Part, Rank, Request, Wire};

/// Short receives in a row, at most: then a turn of progress is due, so that other peers are heard.
const IN_A_ROW: u32 = 256;

/// What came of trying to receive on the short path.
#[derive(Debug, PartialEq, Eq)]
pub enum Short {
    /// It is received.
    Done(Result<Status, Error>),
    /// Nothing has come.
    Nothing,
    /// It has to be received by a request.
    Long,
}

impl<W: Wire> Engine<W> {
    /// Sends a whole message now, or says that something is in the way and does nothing. The memory can be used again at once.
    #[inline]
    pub fn try_send(&mut self, to: Rank, context: u32, tag: u32, data: Part<'_, W::Memory>) -> Result<bool, Error> {
        let envelope = Envelope { context, tag, length: data.length as u64 };
        if self.send_by_ring(to, envelope, data) {
            return Ok(true);
        }
        self.send_whole(to, envelope, data)
    }

    #[inline]
    fn send_by_ring(&mut self, to: Rank, envelope: Envelope, data: Part<'_, W::Memory>) -> bool {
        if self.marker != Some(Marker::Last) {
            return false;
        }
        let Some(peer) = self.peers.get_mut(&to) else { return false };
        if peer.has_work() || data.length > self.config.eager || peer.outgoing.room() == 0 {
            return false;
        }
        let cost = cost(envelope.length) as u32;
        let values = peer.values();
        let Some(ring) = peer.ring_out.as_mut() else { return false };
        let Some(spot) = ring.claim(EAGER + data.length) else { return false };
        if peer.purse.room() < cost {
            return false;
        }
        let head = Eager { source: self.rank, sequence: peer.outgoing.sequence(), values, envelope }.encode();
        let request = Request::Put {
            to: ring.key,
            at: spot.at,
            head: &head,
            body: Some(data),
            mark: Some(spot.mark),
            immediate: None,
        };
        if self.wire.post(Lane { peer: to, rail: 0 }, request).is_err() {
            return false;
        }
        ring.sent();
        peer.purse.spend(cost);
        peer.outgoing.sent();
        peer.told();
        self.meter.ring_packets += 1;
        self.meter.eager += 1;
        true
    }

    #[cold]
    #[inline(never)]
    fn send_whole(&mut self, to: Rank, envelope: Envelope, data: Part<'_, W::Memory>) -> Result<bool, Error> {
        self.reach(to)?;
        if self.peers[&to].ring_out.is_some() {
            // The credit that is missing may have come.
            self.take_events();
            if self.send_by_ring(to, envelope, data) {
                return Ok(true);
            }
            self.reach(to)?;
        }
        let peer = self.peers.get_mut(&to).expect("was reached");
        if peer.has_work() || !peer.is_up() || data.length > self.config.eager {
            return Ok(false);
        }
        Ok(self.send_eager(to, envelope, None, data))
    }

    /// Receives a message that lies in the ring of the source that is named, if it is the next of that peer and nothing else
    /// is to have it. `into` has `room` bytes, and is not kept.
    #[inline]
    pub fn try_receive(&mut self, select: Select, into: &W::Memory, room: usize) -> Short {
        match self.look(select, into, room) {
            Some(short) => short,
            None => Short::Long,
        }
    }

    #[inline]
    fn look(&mut self, select: Select, into: &W::Memory, room: usize) -> Option<Short> {
        let Select { context, source: Some(rank), tag } = select else { return None };
        let peer = self.peers.get_mut(&rank)?;
        let ring = peer.ring_in.as_mut()?;
        if !self.matching.is_empty() && self.matching.peek(select).is_some() {
            return None;
        }
        let mark = self.wire.word(&ring.memory, ring.half.place()?);
        let (at, length) = match ring.half.look(mark) {
            Look::Message { at, length } => (at, length),
            Look::Empty => return Some(Short::Nothing),
            Look::Broken => return None,
        };
        let mut head = [0; EAGER];
        let bytes = length.checked_sub(EAGER)?;
        self.wire.read(&ring.memory, at, &mut head);
        let Eager { source, sequence, values, envelope } = Eager::decode(&head)?;
        let cost = cost(envelope.length);
        let next = source == rank && sequence == peer.incoming.expected() && !peer.incoming.is_holding();
        let fits = envelope.context == context && tag.is_none_or(|tag| tag == envelope.tag);
        let whole = envelope.length == bytes as u64 && u64::from(peer.grant.room()) >= cost;
        if !(next && fits && whole && peer.joined) || self.in_a_row == IN_A_ROW {
            return None;
        }
        if !self.matching.is_empty() && self.matching.is_wanted(Label { context, source, tag: envelope.tag }) {
            return None;
        }
        // Who breaks the rules is cut off by the long path.
        credited(peer, values).ok()?;
        let ring = peer.ring_in.as_mut()?;
        let taken = Part { memory: &ring.memory, at: at + EAGER, length: bytes.min(room) };
        self.wire.copy(taken, into, 0);
        peer.grant.arrived(cost).ok()?;
        self.budget.release(&mut peer.grant, cost as u32);
        peer.granted.set(peer.grant.value());
        let held = peer.incoming.advance();
        debug_assert!(held.is_none(), "nothing is held");
        peer.ack.set(peer.incoming.expected());
        peer.freed.set(ring.half.free());
        let (untold, waiting) = (peer.is_half_untold(&self.config), peer.has_work());
        if !peer.owing {
            peer.owing = true;
            self.owing.push_back(rank);
        }
        self.in_a_row += 1;
        let change = self.polling.packet(rank);
        debug_assert_eq!(change, None, "who has a ring gets none");
        if untold || waiting {
            self.after_short(rank);
        }
        Some(Short::Done(outcome(rank, envelope, Some(room as u64))))
    }

    #[cold]
    #[inline(never)]
    fn after_short(&mut self, rank: Rank) {
        self.flush(rank);
        self.tell_credits();
    }
}
