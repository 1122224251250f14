//! The short path: a message that goes whole by a ring that is open, and one that lies there and is received by name, or by a
//! receive that was posted. No request is made for that, and nothing is posted; what is in the way takes the long path.

use super::arrive::credited;
use super::request::{self, cost, outcome};
use super::{Engine, Room};

use crate::matching::{Label, Select};
use crate::packet::{EAGER, Eager, Envelope, Values};
use crate::ring::{Look, Marker};
use crate::wire::{Data, Lane, Part, Rank, Request, Wire};

/// Short receives in a row, at most: then a turn of progress is due, so that other peers are heard.
const IN_A_ROW: u32 = 256;

/// The longest message, in bytes, after which the cache line of the next slot's mark is prefetched: of short ones the transfer of that
/// line is most of the time. With longer ones it was measured to gain nothing.
const PREFETCH_UP_TO: usize = 64;

/// What lies next in the ring of a peer.
enum Next {
    Message(InRing),
    Nothing,
    /// What is not for the short path.
    Other,
}

/// A message that lies whole in the ring of a peer, from `at` on.
struct InRing {
    at: usize,
    values: Values,
    envelope: Envelope,
}

/// What came of trying to receive on the short path.
#[derive(Debug, PartialEq, Eq)]
pub enum Short {
    /// It is received, as far as there was room.
    Done {
        /// Its tag.
        tag: u32,
        /// Its length in bytes.
        length: u32,
    },
    /// Nothing has come.
    Nothing,
    /// It has to be received by a request.
    Long,
}

impl<W: Wire> Engine<W> {
    /// Sends a whole message now, or does nothing: something is in the way, and [`send`](Self::send) will find out what. The
    /// data can be used again at once.
    #[inline]
    pub fn try_send(&mut self, to: Rank, context: u32, tag: u32, data: Data<'_, W::Memory>) -> bool {
        let envelope = Envelope { context, tag, length: data.length() as u64 };
        self.send_by_ring(to, envelope, data) || self.send_whole(to, envelope, data)
    }

    // Inlined, what calls it would keep too much in memory.
    #[inline(never)]
    fn send_by_ring(&mut self, to: Rank, envelope: Envelope, data: Data<'_, W::Memory>) -> bool {
        let Some(peer) = self.peers.get_mut(&to) else { return false };
        let Some(ring) = peer.ring_out.as_mut() else { return false };
        let length = data.length();
        if !peer.clear || length >= self.routes.short_below || peer.outgoing.room() == 0 {
            return false;
        }
        let cost = cost(envelope.length) as u32;
        let Some(spot) = ring.claim(EAGER + length) else { return false };
        if peer.purse.room() < cost || self.routes.marker != Some(Marker::Last) {
            return false;
        }
        let key = ring.key;
        debug_assert!(!peer.has_work());
        let head =
            Eager { source: self.rank, sequence: peer.outgoing.sequence(), values: peer.values(), envelope }.encode();
        let request =
            Request::Put { to: key, at: spot.at, head: &head, body: data, mark: Some(spot.mark), immediate: None };
        if self.wire.post(Lane { peer: to, rail: 0 }, request).is_err() {
            return false;
        }
        if let Some(ring) = peer.ring_out.as_mut() {
            ring.sent();
            if length <= PREFETCH_UP_TO {
                self.wire.prefetch_to_write(to, ring.next_mark());
            }
        }
        peer.purse.spend(cost);
        peer.outgoing.sent();
        peer.told();
        self.meter.ring_packets += 1;
        self.meter.eager += 1;
        true
    }

    #[cold]
    #[inline(never)]
    fn send_whole(&mut self, to: Rank, envelope: Envelope, data: Data<'_, W::Memory>) -> bool {
        if self.reach(to).is_err() {
            return false;
        }
        if self.peers[&to].ring_out.is_some() {
            // The credit that is missing may have come.
            if !self.hear(to) {
                self.take_events();
            }
            if self.send_by_ring(to, envelope, data) {
                return true;
            }
        }
        // It may have died meanwhile.
        let Some(peer) = self.peers.get_mut(&to) else { return false };
        !peer.has_work() && peer.is_up() && self.send_eager(to, envelope, data)
    }

    /// Receives a message that lies in the ring of a source, if nothing else is to have it; what lies before it for receives that
    /// were posted goes to them.
    #[inline(never)]
    pub fn try_receive(&mut self, context: u32, source: Rank, tag: Option<u32>, into: &mut [u8]) -> Short {
        loop {
            let room = into.len();
            let read =
                |wire: &mut W, from: Part<'_, W::Memory>| wire.read(from.memory, from.at, &mut into[..from.length]);
            match self.look(context, source, tag, room, read) {
                Some(short) => return short,
                None if self.matching.posted() > 0 && self.receive_posted(source) == Some(true) => {}
                None => return Short::Long,
            }
        }
    }

    #[inline(always)]
    fn look(
        &mut self,
        context: u32,
        rank: Rank,
        tag: Option<u32>,
        room: usize,
        copy: impl FnOnce(&mut W, Part<'_, W::Memory>),
    ) -> Option<Short> {
        let waiting = !self.matching.is_empty();
        if waiting && self.matching.peek(Select { context, source: Some(rank), tag }).is_some() {
            return None;
        }
        let next = match self.next_in_ring(rank) {
            Next::Message(next) => next,
            Next::Nothing => return Some(Short::Nothing),
            Next::Other => return None,
        };
        let envelope = next.envelope;
        let fits = envelope.context == context && tag.is_none_or(|tag| tag == envelope.tag);
        if !fits || waiting && self.matching.is_wanted(Label { context, source: rank, tag: envelope.tag }) {
            return None;
        }
        self.take_next(rank, next, room, copy)?;
        Some(Short::Done { tag: envelope.tag, length: envelope.length as u32 })
    }

    /// Receives what lies in the ring of a peer, if a receive into memory waits for it. Whether it did; none if nothing lies
    /// there.
    #[inline]
    pub(super) fn receive_posted(&mut self, rank: Rank) -> Option<bool> {
        let next = match self.next_in_ring(rank) {
            Next::Message(next) => next,
            Next::Nothing => return None,
            Next::Other => return Some(false),
        };
        let Envelope { context, tag, .. } = next.envelope;
        let Some((number, &id)) = self.matching.first(Label { context, source: rank, tag }) else { return Some(false) };
        let Some(request::Request::Receive(receive)) = self.requests.get_mut(id) else { return Some(false) };
        let Room::Into(_, room) = receive.room else { return Some(false) };
        let Room::Into(memory, _) = std::mem::replace(&mut receive.room, Room::Allocate) else { return Some(false) };
        let envelope = next.envelope;
        let taken = self.take_next(rank, next, room, |wire, from| wire.copy(from, &memory, 0)).is_some();
        let Some(place) = self.requests.get_mut(id) else { return Some(false) };
        if taken {
            self.matching.cancel(number);
            *place = request::Request::Over(outcome(rank, envelope, Some(room as u64)), Some(memory));
            self.over(id);
            self.feed(rank);
        } else if let request::Request::Receive(receive) = place {
            receive.room = Room::Into(memory, room);
        }
        Some(taken)
    }

    /// The message that lies in the ring of a peer, if it is next of what that peer has sent, and was granted.
    #[inline(always)]
    fn next_in_ring(&mut self, rank: Rank) -> Next {
        let Some(peer) = self.peers.get_mut(&rank) else { return Next::Other };
        let Some(ring) = peer.ring_in.as_mut() else { return Next::Other };
        let Some(place) = ring.half.place() else { return Next::Other };
        let (at, length) = match ring.half.look(self.wire.word(&ring.memory, place)) {
            Look::Message { at, length } if length >= EAGER => (at, length),
            Look::Empty => return Next::Nothing,
            _ => return Next::Other,
        };
        let mut head = [0; EAGER];
        self.wire.read(&ring.memory, at, &mut head);
        let Ok(Eager { source, sequence, values, envelope }) = Eager::decode(&head, length) else { return Next::Other };
        let next = source == rank && sequence == peer.incoming.expected() && !peer.incoming.is_holding();
        let granted = u64::from(peer.grant.room()) >= cost(envelope.length);
        if !(next && granted && peer.joined) || self.in_a_row == IN_A_ROW {
            return Next::Other;
        }
        Next::Message(InRing { at: at + EAGER, values, envelope })
    }

    /// Has as much of it copied as there is room for, and its slot free again; nothing, if its sender breaks the rules: the
    /// long path cuts that off.
    #[inline(always)]
    fn take_next(
        &mut self,
        rank: Rank,
        InRing { at, values, envelope }: InRing,
        room: usize,
        copy: impl FnOnce(&mut W, Part<'_, W::Memory>),
    ) -> Option<()> {
        let peer = self.peers.get_mut(&rank)?;
        credited(peer, values).ok()?;
        let ring = peer.ring_in.as_mut()?;
        copy(&mut self.wire, Part { memory: &ring.memory, at, length: room.min(envelope.length as usize) });
        self.budget.pass(&mut peer.grant, cost(envelope.length) as u32).ok()?;
        peer.granted.set(peer.grant.value());
        peer.incoming.pass();
        peer.ack.set(peer.incoming.expected());
        peer.freed.set(ring.half.free());
        if envelope.length <= PREFETCH_UP_TO as u64 {
            self.wire.prefetch(&ring.memory, ring.half.next_mark());
        }
        let tell = peer.is_half_untold(&self.config) || !peer.clear;
        self.in_a_row += 1;
        if !peer.owing || rank != self.row_of {
            self.first_of_a_row(rank);
        }
        if tell {
            self.after_short(rank);
        }
        Some(())
    }

    /// Credits are owed to this peer, and its packets are counted from now on.
    #[cold]
    #[inline(never)]
    fn first_of_a_row(&mut self, rank: Rank) {
        self.owe(rank);
        if rank != self.row_of {
            // This one is of the new row.
            self.in_a_row -= 1;
            self.count_the_row();
            self.row_of = rank;
            self.in_a_row += 1;
        }
    }

    /// Tells the polling set of the short receives that it has not seen.
    pub(super) fn count_the_row(&mut self) {
        let counted = std::mem::replace(&mut self.counted, self.in_a_row);
        // A ring that was left meanwhile is polled no longer.
        if self.peers.get(&self.row_of).is_some_and(|peer| peer.ring_in.is_some()) {
            let change = self.polling.packets(self.row_of, self.in_a_row - counted);
            debug_assert_eq!(change, None, "who has a ring gets none");
        }
    }

    #[cold]
    #[inline(never)]
    fn after_short(&mut self, rank: Rank) {
        let told = self.peers[&rank].is_half_untold(&self.config) && self.publish(rank);
        if !(told && self.peers[&rank].clear) {
            self.flush(rank);
            self.tell_credits();
        }
    }
}
