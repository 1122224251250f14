//! The short path: a whole message through an open ring, received directly by source and tag or by a posted
//! receive. No request is created and nothing is queued. Any obstacle moves the message to the long path.

use super::parts::credits::CreditPool;
use super::parts::rings::RingIn;
use super::peer::Peer;
use super::request::{self, Receive, cost, outcome};
use super::{Engine, RecvTarget};

use crate::matching::{Label, Select};
use crate::packet::{EAGER, Eager, Envelope, Values};
use crate::ring::Look;
use crate::wire::{Data, Lane, Part, Rank, Request, Wire, WireMemory};

/// Most short receives in a row. A progress call is due then, so that other peers are served.
const IN_A_ROW: u32 = 256;

/// Longest message, in bytes, after which the cache line of an expected mark is prefetched: the transfer of
/// that line is most of the latency of a short message. Longer ones gained nothing when measured. In a
/// stream, the line of the mark after the next is prefetched: the next is on its way, and two lines in
/// parallel arrive sooner than one after the other.
const PREFETCH_UP_TO: usize = 64;

/// The next packet in the ring of a peer.
enum Next {
    Message(InRing),
    Nothing,
    /// A packet that the short path does not handle.
    Other,
}

/// A message that is whole in the ring of a peer, from offset `at` on.
struct InRing {
    at: usize,
    values: Values,
    envelope: Envelope,
}

/// Outcome of an attempt to receive on the short path.
#[derive(Debug, PartialEq, Eq)]
pub enum Short {
    /// The message was received, as far as it fits.
    Done(RecvInfo),
    /// No message has arrived.
    Nothing,
    /// The message must be received by a request.
    Long,
}

/// A buffer that a short message is received into.
///
/// ```
/// use transom_channel::RecvBuf;
/// let mut into = [0; 8];
/// assert_eq!(into[..].room(3).map(|room| room.len()), Some(3));
/// assert_eq!(into[..].room(20).map(|room| room.len()), Some(8)); // the rest is lost
/// ```
pub trait RecvBuf {
    /// Memory for the first bytes of a message of `length` bytes, at most that many; `None` if the message
    /// must be received by a request.
    fn room(&mut self, length: usize) -> Option<&mut [u8]>;
}

impl RecvBuf for [u8] {
    #[inline(always)]
    fn room(&mut self, length: usize) -> Option<&mut [u8]> {
        let length = self.len().min(length);
        Some(&mut self[..length])
    }
}

/// Tag and length in bytes of a received message, in one word, so that a short receive returns them in registers. In
/// memory they would be read back by wider loads than they were written by, which processors wait for.
///
/// ```
/// let taken = transom_channel::RecvInfo::new(7, 8);
/// assert_eq!((taken.tag(), taken.length()), (7, 8));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecvInfo(u64);

impl RecvInfo {
    /// A message with this tag, of `length` bytes.
    #[inline(always)]
    pub fn new(tag: u32, length: u32) -> RecvInfo {
        RecvInfo(u64::from(tag) << 32 | u64::from(length))
    }

    /// Tag of the message.
    #[inline(always)]
    pub fn tag(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// Length of the message in bytes.
    #[inline(always)]
    pub fn length(self) -> u32 {
        self.0 as u32
    }
}

impl<W: Wire> Engine<W> {
    /// Sends a whole message now, or does nothing if there is an obstacle, which [`send`](Self::send) then
    /// handles. The data can be reused at once.
    #[inline(always)]
    pub fn try_send(&mut self, to: Rank, context: u32, tag: u32, data: Data<'_, W::Memory>) -> bool {
        self.send_by_ring(to, context, tag, data) || self.send_whole(to, context, tag, data)
    }

    #[inline(always)]
    fn send_by_ring(&mut self, to: Rank, context: u32, tag: u32, data: Data<'_, W::Memory>) -> bool {
        let Some(peer) = self.peers.get_mut(&to) else { return false };
        debug_assert!(!(peer.tx.is_clear() && peer.has_work()));
        let Some(ring) = peer.rings.out.as_mut() else { return false };
        let length = data.length();
        let cost = cost(length as u64);
        let is_free = peer.tx.is_clear() && length < peer.short_below;
        if !is_free || peer.tx.window.room() == 0 || !peer.credits.send.affords(cost) {
            return false;
        }
        let Some(spot) = ring.claim(EAGER + length) else { return false };
        let envelope = Envelope { context, tag, length: length as u64 };
        let (sequence, values) = (peer.tx.window.sequence(), peer.credits.values());
        let head = Eager { source: self.rank, sequence, values, envelope };
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
        // No message has arrived since the last one was sent: another send may follow.
        if length <= PREFETCH_UP_TO && peer.credits.is_ack_reported() {
            self.wire.prefetch_to_write(to, ring.mark_after_next());
        }
        peer.credits.spend(cost as u32);
        peer.tx.window.sent();
        peer.credits.set_reported();
        self.counters.ring_packets += 1;
        self.counters.eager += 1;
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
        if peer.rings.out.is_some() {
            // The missing credit may have arrived.
            if !self.poll_credits_of(to) {
                self.has_news |= self.take_events() > 0;
            }
            if self.send_by_ring(to, context, tag, data) {
                return true;
            }
        }
        // The peer may have died meanwhile.
        let Some(peer) = self.peers.get_mut(&to) else { return false };
        let envelope = Envelope { context, tag, length: data.length() as u64 };
        !peer.has_work() && peer.lanes.is_any_up() && self.send_eager(to, envelope, data)
    }

    /// Receives a message from the ring of a source, if it is there or arrives within `looks` polls, unless a
    /// posted receive matches it. Earlier messages in the ring that match posted receives are delivered to
    /// these.
    #[inline(always)]
    pub fn try_receive<S: RecvBuf + ?Sized>(
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

    /// Like [`try_receive`](Self::try_receive), from any source, each in turn. Also returns the source.
    pub fn try_receive_any<S: RecvBuf + ?Sized>(
        &mut self,
        context: u32,
        tag: Option<u32>,
        into: &mut S,
    ) -> (Rank, Short) {
        if !self.matching.is_empty() && self.matching.peek(Select { context, source: None, tag }).is_some() {
            return (0, Short::Long);
        }
        if self.failures.is_unreported(context) || self.polling.is_empty() {
            return (0, Short::Long);
        }
        let mut order = self.polling.take_order_behind_last();
        let found = order.drain(..).find_map(|rank| match self.look(context, rank, tag, into, 1) {
            Some(Short::Nothing) => None,
            short => Some((rank, short.unwrap_or(Short::Long))),
        });
        self.polling.give_back(order);
        found.unwrap_or((0, Short::Nothing))
    }

    #[cold]
    #[inline(never)]
    fn try_behind<S: RecvBuf + ?Sized>(&mut self, context: u32, source: Rank, tag: Option<u32>, into: &mut S) -> Short {
        while self.matching.posted() > 0 && self.receive_posted(source, 1) == Some(true) {
            if let Some(short) = self.look(context, source, tag, into, 1) {
                return short;
            }
        }
        Short::Long
    }

    #[inline(always)]
    fn look<S: RecvBuf + ?Sized>(
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
        if !fits || wanted || self.polling.in_a_row() == IN_A_ROW {
            return None;
        }
        let into = into.room(envelope.length as usize)?;
        debug_assert!(into.len() as u64 <= envelope.length);
        let ring = admitted(peer, next.values, envelope.length, &mut self.credits)?;
        ring.memory.read(next.at, into);
        let freed = free_slot(peer, envelope.length)?;
        self.has_taken(rank, freed);
        Some(Short::Done(RecvInfo::new(envelope.tag, envelope.length as u32)))
    }

    /// Receives a message from the ring of a peer, if it is there or arrives within `looks` polls, and a
    /// receive into memory waits for it. Returns whether it did; `None` if the ring is empty.
    #[inline]
    pub fn receive_posted(&mut self, rank: Rank, looks: u32) -> Option<bool> {
        let Some(peer) = self.peers.get_mut(&rank) else { return Some(false) };
        let next = match next_in_ring(&self.wire, peer, looks) {
            Next::Message(next) => next,
            Next::Nothing => return None,
            Next::Other => return Some(self.take_announced(rank)),
        };
        if self.polling.in_a_row() == IN_A_ROW {
            return Some(false);
        }
        let envelope = next.envelope;
        let label = Label { context: envelope.context, source: rank, tag: envelope.tag };
        let Some((number, &id)) = self.matching.first(label) else { return Some(false) };
        let Some(request::Request::Receive(Receive {
            room: room @ (RecvTarget::Into(..) | RecvTarget::Make(_)), ..
        })) = self.requests.get_mut(id)
        else {
            return Some(false);
        };
        let Some(ring) = admitted(peer, next.values, envelope.length, &mut self.credits) else {
            return Some(false);
        };
        room.make(envelope.length);
        if let RecvTarget::Allocate = room
            && let Some(memory) = self.wire.take(envelope.length as usize)
        {
            *room = RecvTarget::Into(memory, envelope.length as usize);
        }
        let room = match room {
            RecvTarget::Into(memory, room) => {
                let part = Part { memory: &ring.memory, at: next.at, length: (*room).min(envelope.length as usize) };
                part.copy(memory, 0);
                Some(*room as u64)
            }
            _ => None,
        };
        self.matching.cancel(number);
        self.complete(id, outcome(rank, envelope, room));
        self.taken(rank, envelope.length);
        Some(true)
    }

    /// Frees the slot of the short message that was next in the ring of a peer.
    #[inline(always)]
    pub(super) fn taken(&mut self, rank: Rank, length: u64) {
        if let Some(freed) = self.peers.get_mut(&rank).and_then(|peer| free_slot(peer, length)) {
            self.has_taken(rank, freed);
        }
    }

    /// Counts a short message whose slot was freed.
    #[inline(always)]
    fn has_taken(&mut self, rank: Rank, freed: Freed) {
        if freed.is_first || rank != self.polling.row_of() {
            self.first_of_a_row(rank);
        }
        self.polling.passed();
        if freed.must_report {
            self.after_short(rank);
        }
    }

    /// Notes that values are unreported to this peer, and that its packets are counted from now on.
    #[cold]
    #[inline(never)]
    fn first_of_a_row(&mut self, rank: Rank) {
        self.credits_due(rank);
        if rank != self.polling.row_of() {
            self.count_the_row();
            self.polling.begin_row(rank);
        }
    }

    #[cold]
    #[inline(never)]
    fn after_short(&mut self, rank: Rank) {
        let reported = self.peers[&rank].credits.is_half_unreported() && self.publish(rank);
        if !(reported && self.peers[&rank].tx.is_clear()) {
            self.flush(rank);
            self.report_credits();
        }
    }
}

/// The message in the ring of a peer, if it is there or arrives within `looks` polls, and is the peer's next.
#[inline(always)]
fn next_in_ring<W: Wire>(wire: &W, peer: &mut Peer<W::Memory>, mut looks: u32) -> Next {
    let Some(ring) = &mut peer.rings.incoming else { return Next::Other };
    let (at, length) = loop {
        let Some(place) = ring.half.place() else { return Next::Other };
        match ring.half.look(ring.memory.word(place)) {
            Look::Message { at, length } if length >= EAGER => break (at, length),
            Look::Empty if looks <= 1 => return Next::Nothing,
            Look::Empty => looks -= 1,
            _ => return Next::Other,
        }
        std::hint::spin_loop();
    };
    // First message since one was sent: an answer may be next, and the waiting receiver holds the cache line
    // of its mark.
    if length <= EAGER + PREFETCH_UP_TO
        && peer.credits.is_ack_reported()
        && let Some(out) = &peer.rings.out
    {
        wire.prefetch_to_write(peer.rank, out.next_mark());
    }
    let mut head = [0; EAGER];
    ring.memory.read(at, &mut head);
    let Ok(Eager { source, sequence, values, envelope }) = Eager::decode(&head, length) else { return Next::Other };
    if !(peer.is_next(source, sequence) && peer.credits.is_joined()) {
        return Next::Other;
    }
    Next::Message(InRing { at: at + EAGER, values, envelope })
}

/// Consequences of a freed slot.
struct Freed {
    /// True if the peer is not among those to which values are to be reported.
    is_first: bool,
    /// True if the peer waits for values, or messages to it.
    must_report: bool,
}

/// Frees the slot of the short message that was next in the ring of a peer.
#[inline(always)]
fn free_slot<M: WireMemory>(peer: &mut Peer<M>, length: u64) -> Option<Freed> {
    let ring = peer.rings.incoming.as_mut()?;
    peer.credits.freed(ring.half.free());
    // No message was sent since the last one arrived.
    if length <= PREFETCH_UP_TO as u64 && !peer.credits.is_ack_reported() {
        ring.memory.prefetch(ring.half.mark_after_next());
    }
    peer.rx.order.pass();
    peer.credits.received(peer.rx.order.expected());
    let must_report = peer.credits.is_half_unreported() || !peer.tx.is_clear();
    Some(Freed { is_first: !peer.credits.is_listed(), must_report })
}

/// Counts a message of `bytes` bytes in a ring against its sender's credit, and returns the ring. `None` if
/// that violates the protocol: the long path then ends the peer.
#[inline(always)]
pub(super) fn admitted<'p, M>(
    peer: &'p mut Peer<M>,
    values: Values,
    bytes: u64,
    credits: &mut CreditPool,
) -> Option<&'p RingIn<M>> {
    peer.credited(values).ok()?;
    credits.pass(&mut peer.credits, cost(bytes)).ok()?;
    peer.rings.incoming.as_ref()
}
