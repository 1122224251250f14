//! The short path: a message that goes whole by a ring that is open, and one that lies there and is received by name, or by a
//! receive that was posted. No request is made for that, and nothing is posted; what is in the way takes the long path.

use super::peer::{Peer, RingIn};
use super::request::{self, Receive, cost, outcome};
use super::{Engine, Room};

use crate::credit::Budget;
use crate::matching::{Label, Select};
use crate::packet::{EAGER, Eager, Envelope, Values};
use crate::ring::Look;
use crate::wire::{Data, Lane, Part, Rank, Request, Wire};

/// Short receives in a row, at most: then a turn of progress is due, so that other peers are heard.
const IN_A_ROW: u32 = 256;

/// The longest message, in bytes, after which the cache line of a mark to come is prefetched: of short ones the transfer of that line is
/// most of the time. With longer ones it was measured to gain nothing. In a row it is that of the mark after the next: the next is on its
/// way, and two lines at once come sooner than one after the other.
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
    Done(Taken),
    /// Nothing has come.
    Nothing,
    /// It has to be received by a request.
    Long,
}

/// Where a short message is received.
///
/// ```
/// use transom_channel::Space;
/// let mut into = [0; 8];
/// assert_eq!(into[..].room(3).map(|room| room.len()), Some(3));
/// assert_eq!(into[..].room(20).map(|room| room.len()), Some(8)); // the rest is lost
/// ```
pub trait Space {
    /// Memory for the first bytes of a message of so many, at most as many; none if that is to be received by a request.
    fn room(&mut self, length: usize) -> Option<&mut [u8]>;
}

impl Space for [u8] {
    #[inline(always)]
    fn room(&mut self, length: usize) -> Option<&mut [u8]> {
        let length = self.len().min(length);
        Some(&mut self[..length])
    }
}

/// The tag of a message and its length in bytes, in one word: what tells of a short receive is returned in registers. In memory it
/// would be read back by wider loads than it was written by, which processors wait for.
///
/// ```
/// let taken = transom_channel::Taken::new(7, 8);
/// assert_eq!((taken.tag(), taken.length()), (7, 8));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Taken(u64);

impl Taken {
    /// Of a message with this tag, of so many bytes.
    #[inline(always)]
    pub fn new(tag: u32, length: u32) -> Taken {
        Taken(u64::from(tag) << 32 | u64::from(length))
    }

    /// Its tag.
    #[inline(always)]
    pub fn tag(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// Its length in bytes.
    #[inline(always)]
    pub fn length(self) -> u32 {
        self.0 as u32
    }
}

impl<W: Wire> Engine<W> {
    /// Sends a whole message now, or does nothing: something is in the way, and [`send`](Self::send) will find out what. The
    /// data can be used again at once.
    #[inline(always)]
    pub fn try_send(&mut self, to: Rank, context: u32, tag: u32, data: Data<'_, W::Memory>) -> bool {
        self.send_by_ring(to, context, tag, data) || self.send_whole(to, context, tag, data)
    }

    #[inline(always)]
    fn send_by_ring(&mut self, to: Rank, context: u32, tag: u32, data: Data<'_, W::Memory>) -> bool {
        let Some(peer) = self.peers.get_mut(&to) else { return false };
        debug_assert!(!(peer.clear && peer.has_work()));
        let Some(ring) = peer.ring_out.as_mut() else { return false };
        let length = data.length();
        let cost = cost(length as u64);
        if !peer.clear || length >= peer.short_below || peer.outgoing.room() == 0 || !peer.purse.affords(cost) {
            return false;
        }
        let Some(spot) = ring.claim(EAGER + length) else { return false };
        let envelope = Envelope { context, tag, length: length as u64 };
        let head = Eager { source: self.rank, sequence: peer.outgoing.sequence(), values: peer.values, envelope };
        let request = Request::Put {
            to: ring.key,
            at: spot.at,
            head: &head.encode(),
            body: data,
            mark: Some(spot.mark),
            immediate: None,
        };
        if self.wire.post(Lane { peer: to, rail: 0 }, request).is_err() {
            return false;
        }
        ring.sent(spot);
        // Nothing has come since the last was sent: another may follow.
        if length <= PREFETCH_UP_TO && peer.values.ack == peer.told.ack {
            self.wire.prefetch_to_write(to, ring.mark_after_next());
        }
        peer.purse.spend(cost as u32);
        peer.outgoing.sent();
        peer.tell();
        self.meter.ring_packets += 1;
        self.meter.eager += 1;
        true
    }

    #[cold]
    #[inline(never)]
    fn send_whole(&mut self, to: Rank, context: u32, tag: u32, data: Data<'_, W::Memory>) -> bool {
        if self.reach(to).is_err() {
            return false;
        }
        let peer = &self.peers[&to];
        if data.length() > self.routes[peer.near].longest_whole {
            return false;
        }
        if peer.ring_out.is_some() {
            // The credit that is missing may have come.
            if !self.hear(to) {
                self.has_news |= self.take_events() > 0;
            }
            if self.send_by_ring(to, context, tag, data) {
                return true;
            }
        }
        // It may have died meanwhile.
        let Some(peer) = self.peers.get_mut(&to) else { return false };
        let envelope = Envelope { context, tag, length: data.length() as u64 };
        !peer.has_work() && peer.is_up() && self.send_eager(to, envelope, data)
    }

    /// Receives a message that lies in the ring of a source, or comes there within so many looks, if nothing else is to have it; what
    /// lies before it for receives that were posted goes to them.
    #[inline(always)]
    pub fn try_receive<S: Space + ?Sized>(
        &mut self,
        context: u32,
        source: Rank,
        tag: Option<u32>,
        into: &mut S,
        looks: u32,
    ) -> Short {
        match self.look(context, source, tag, into, looks) {
            Some(short) => short,
            None => self.try_behind(context, source, tag, into),
        }
    }

    /// The same from any source: from whom, each in turn.
    pub fn try_receive_any<S: Space + ?Sized>(
        &mut self,
        context: u32,
        tag: Option<u32>,
        into: &mut S,
    ) -> (Rank, Short) {
        if !self.matching.is_empty() && self.matching.peek(Select { context, source: None, tag }).is_some() {
            return (0, Short::Long);
        }
        if self.untold(context).is_some() {
            return (0, Short::Long);
        }
        if self.polling.both().iter().all(|polling| polling.is_empty()) {
            return (0, Short::Long);
        }
        let mut polled = std::mem::take(&mut self.turn);
        self.polling.both().iter().for_each(|polling| polling.turn_into(&mut polled));
        let last = polled.iter().position(|rank| *rank == self.row_of).map_or(0, |last| last + 1);
        polled.rotate_left(last);
        let found = polled.drain(..).find_map(|rank| match self.look(context, rank, tag, into, 1) {
            Some(Short::Nothing) => None,
            short => Some((rank, short.unwrap_or(Short::Long))),
        });
        self.turn = polled;
        found.unwrap_or((0, Short::Nothing))
    }

    #[cold]
    #[inline(never)]
    fn try_behind<S: Space + ?Sized>(&mut self, context: u32, source: Rank, tag: Option<u32>, into: &mut S) -> Short {
        while self.matching.posted() > 0 && self.receive_posted(source, 1) == Some(true) {
            if let Some(short) = self.look(context, source, tag, into, 1) {
                return short;
            }
        }
        Short::Long
    }

    #[inline(always)]
    fn look<S: Space + ?Sized>(
        &mut self,
        context: u32,
        rank: Rank,
        tag: Option<u32>,
        into: &mut S,
        looks: u32,
    ) -> Option<Short> {
        let waiting = !self.matching.is_empty();
        if waiting && self.matching.peek(Select { context, source: Some(rank), tag }).is_some() {
            return None;
        }
        let peer = self.peers.get_mut(&rank)?;
        let next = match next_in_ring(&self.wire, peer, looks) {
            Next::Message(next) => next,
            Next::Nothing => return Some(Short::Nothing),
            Next::Other => return None,
        };
        let envelope = next.envelope;
        let fits = envelope.context == context && tag.is_none_or(|tag| tag == envelope.tag);
        let wanted = waiting && self.matching.is_wanted(Label { context, source: rank, tag: envelope.tag });
        if !fits || wanted || self.in_a_row == IN_A_ROW {
            return None;
        }
        let into = into.room(envelope.length as usize)?;
        debug_assert!(into.len() as u64 <= envelope.length);
        let ring = admitted(peer, next.values, envelope.length, &mut self.budget)?;
        self.wire.read(&ring.memory, next.at, into);
        self.taken(rank, envelope.length);
        Some(Short::Done(Taken::new(envelope.tag, envelope.length as u32)))
    }

    /// Receives what lies in the ring of a peer, or comes there within so many looks, if a receive into memory waits for it. Whether it
    /// did; none if nothing lies there.
    #[inline]
    pub fn receive_posted(&mut self, rank: Rank, looks: u32) -> Option<bool> {
        let Some(peer) = self.peers.get_mut(&rank) else { return Some(false) };
        let next = match next_in_ring(&self.wire, peer, looks) {
            Next::Message(next) => next,
            Next::Nothing => return None,
            Next::Other => return Some(self.take_announced(rank)),
        };
        if self.in_a_row == IN_A_ROW {
            return Some(false);
        }
        let envelope = next.envelope;
        let label = Label { context: envelope.context, source: rank, tag: envelope.tag };
        let Some((number, &id)) = self.matching.first(label) else { return Some(false) };
        let Some(request::Request::Receive(Receive { room: room @ (Room::Into(..) | Room::Make(_)), .. })) =
            self.requests.get_mut(id)
        else {
            return Some(false);
        };
        let Some(ring) = admitted(peer, next.values, envelope.length, &mut self.budget) else {
            return Some(false);
        };
        *room = std::mem::replace(room, Room::Allocate).of(envelope.length);
        if let Room::Allocate = room
            && let Some(memory) = self.wire.take(envelope.length as usize)
        {
            *room = Room::Into(memory, envelope.length as usize);
        }
        let room = match room {
            Room::Into(memory, room) => {
                let part = Part { memory: &ring.memory, at: next.at, length: (*room).min(envelope.length as usize) };
                self.wire.copy(part, memory, 0);
                Some(*room as u64)
            }
            _ => None,
        };
        self.matching.cancel(number);
        self.complete(id, outcome(rank, envelope, room));
        self.taken(rank, envelope.length);
        Some(true)
    }

    /// The short message that lay next in the ring of a peer was taken, and its slot is free again.
    #[inline(always)]
    pub(super) fn taken(&mut self, rank: Rank, length: u64) {
        let Some(peer) = self.peers.get_mut(&rank) else { return };
        let Some(ring) = &mut peer.ring_in else { return };
        peer.values.freed = ring.half.free();
        // Nothing was sent since the last came.
        if length <= PREFETCH_UP_TO as u64 && peer.values.ack != peer.told.ack {
            self.wire.prefetch(&ring.memory, ring.half.mark_after_next());
        }
        peer.incoming.pass();
        peer.values.ack = peer.incoming.expected();
        peer.regrant();
        let tell = peer.is_half_untold() || !peer.clear;
        let first = !peer.owing || rank != self.row_of;
        if first {
            self.first_of_a_row(rank);
        }
        self.in_a_row += 1;
        if tell {
            self.after_short(rank);
        }
    }

    /// Credits are owed to this peer, and its packets are counted from now on.
    #[cold]
    #[inline(never)]
    fn first_of_a_row(&mut self, rank: Rank) {
        self.owe(rank);
        if rank != self.row_of {
            self.count_the_row();
            self.row_of = rank;
        }
    }

    /// Tells the polling set of the short receives that it has not seen.
    pub(super) fn count_the_row(&mut self) {
        let counted = std::mem::replace(&mut self.counted, self.in_a_row);
        // A ring that was left meanwhile is polled no longer.
        if let Some(peer) = self.peers.get(&self.row_of).filter(|peer| peer.ring_in.is_some()) {
            let change = self.polling[peer.near].packets(self.row_of, self.in_a_row - counted);
            debug_assert_eq!(change, None, "who has a ring gets none");
        }
    }

    #[cold]
    #[inline(never)]
    fn after_short(&mut self, rank: Rank) {
        let told = self.peers[&rank].is_half_untold() && self.publish(rank);
        if !(told && self.peers[&rank].clear) {
            self.flush(rank);
            self.tell_credits();
        }
    }
}

/// The message that lies in the ring of a peer, or comes there within so many looks, if it is next of what that peer has sent.
#[inline(always)]
fn next_in_ring<W: Wire>(wire: &W, peer: &mut Peer<W::Memory>, mut looks: u32) -> Next {
    let Some(ring) = &mut peer.ring_in else { return Next::Other };
    let (at, length) = loop {
        let Some(place) = ring.half.place() else { return Next::Other };
        match ring.half.look(wire.word(&ring.memory, place)) {
            Look::Message { at, length } if length >= EAGER => break (at, length),
            Look::Empty if looks <= 1 => return Next::Nothing,
            Look::Empty => looks -= 1,
            _ => return Next::Other,
        }
        std::hint::spin_loop();
    };
    // The first since something was sent: an answer may be next, and whoever waits for that has its line.
    if length <= EAGER + PREFETCH_UP_TO
        && peer.values.ack == peer.told.ack
        && let Some(out) = &peer.ring_out
    {
        wire.prefetch_to_write(peer.rank, out.next_mark());
    }
    let mut head = [0; EAGER];
    wire.read(&ring.memory, at, &mut head);
    let Ok(Eager { source, sequence, values, envelope }) = Eager::decode(&head, length) else { return Next::Other };
    if !(peer.is_next(source, sequence) && peer.joined) {
        return Next::Other;
    }
    Next::Message(InRing { at: at + EAGER, values, envelope })
}

/// A message with so many bytes behind its header, in a ring, is taken from what its sender was granted; nothing, if that breaks the
/// rules: the long path cuts it off.
#[inline(always)]
pub(super) fn admitted<'p, M>(
    peer: &'p mut Peer<M>,
    values: Values,
    bytes: u64,
    budget: &mut Budget,
) -> Option<&'p RingIn<M>> {
    peer.credited(values).ok()?;
    budget.pass(&mut peer.grant, cost(bytes)).ok()?;
    peer.ring_in.as_ref()
}
