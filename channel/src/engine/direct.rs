//! Long messages on the short path, between ranks that share memory. The RTS goes into the peer's ring at
//! once, the receiver reads the data as soon as it sees the RTS, and acknowledges in the peer's ring. Any
//! obstacle moves the message to the long path, which uses the same packets.

use super::post::post;
use super::request::{Moving, Receive, Request, Send, outcome};
use super::short::admitted;
use super::tx::stripe_token;
use super::{Engine, RecvTarget};
use crate::credit::HEADER;
use crate::error::Error;
use crate::matching::Label;
use crate::packet::{Body, LONGEST, Packet};
use crate::rendezvous::{Mover, Receiving, Sending};
use crate::ring::Look;
use crate::slab::Id;
use crate::wire::{Data, Key, Lane, Part, Rank, Wire, WireMemory};

/// Most messages in a row. A progress call is due then, so that other peers are served.
const IN_A_ROW: u32 = 16;

impl<W: Wire> Engine<W> {
    /// Like [`send`](Self::send), unless the message would have to wait here until the peer or the wire
    /// accepts more. Then nothing is sent, and the memory is returned.
    pub fn send_unless_it_waits(
        &mut self,
        to: Rank,
        context: u32,
        tag: u32,
        memory: W::Memory,
        length: usize,
        sync: bool,
    ) -> Result<Id, W::Memory> {
        let id = self.send(to, context, tag, memory, length, sync);
        let waits =
            |engine: &Self| matches!(engine.requests.get(id), Some(Request::Send(Send { state: Sending::Queued, .. })));
        // Progress may unblock it.
        if !waits(self) || self.progress() > 0 && !waits(self) {
            return Ok(id);
        }
        let last = self.peers.get_mut(&to).and_then(|peer| peer.tx.withdraw());
        debug_assert_eq!(last, Some(id), "the last send in the queue");
        self.complete(id, Err(Error::NoMessage));
        let memory = self.take(id).and_then(|taken| taken.memory);
        Err(memory.expect("a send has memory"))
    }

    /// Sends the RTS at once. Returns false if the message has to wait its turn.
    pub(super) fn announce(&mut self, id: Id, to: Rank) -> bool {
        let (Some(peer), Some(Request::Send(send))) = (self.peers.get_mut(&to), self.requests.get_mut(id)) else {
            return false;
        };
        let overdraft = peer.overdraft(self.config.overdraft);
        let is_free = peer.tx.is_clear()
            && peer.lanes.is_up(0)
            && peer.credits.can_announce(overdraft)
            && peer.tx.window.room() > 0;
        if !is_free || !self.routes[peer.near].read_at_once.contains(&send.envelope.length) {
            return false;
        }
        let Some(key) = self.wire.register(&send.memory, Lane { peer: to, rail: 0 }) else { return false };
        let keys = send.keys.insert(Box::default());
        keys[0] = Some(key);
        let body = Body::Rts { envelope: send.envelope, sender: id, keys: **keys };
        if !post!(self, peer, &body, Data::None, None) {
            return false;
        }
        peer.credits.spend(HEADER);
        self.counters.rendezvous += 1;
        let announced = send.state.announce();
        debug_assert_eq!(announced, Ok(()));
        true
    }

    /// Handles an RTS that is next in the ring of a peer, if a receive into memory waits for its message.
    /// Returns true if it did.
    #[inline(never)]
    pub(super) fn take_announced(&mut self, rank: Rank) -> bool {
        let Some(peer) = self.peers.get_mut(&rank) else { return false };
        let read_at_once = &self.routes[peer.near].read_at_once;
        if !(peer.credits.is_joined() && peer.tx.is_clear()) || read_at_once.is_empty() {
            return false;
        }
        let Some(ring) = peer.rings.incoming.as_mut() else { return false };
        let Some(place) = ring.half.place() else { return false };
        let Look::Message { at, length } = ring.half.look(ring.memory.word(place)) else { return false };
        let mut head = [0; LONGEST];
        let head = &mut head[..length.min(LONGEST)];
        ring.memory.read(at, head);
        let Ok((Packet { source, sequence, values, body }, _)) = Packet::decode(head, length) else { return false };
        let Body::Rts { envelope, sender, keys } = body else { return false };
        let is_full = self.polling.in_a_row() >= IN_A_ROW;
        if !peer.is_next(source, sequence) || !read_at_once.contains(&envelope.length) || is_full {
            return false;
        }
        let label = Label { context: envelope.context, source: rank, tag: envelope.tag };
        let Some((number, &id)) = self.matching.first(label) else { return false };
        let Some(Request::Receive(receive)) = self.requests.get_mut(id) else { return false };
        if !matches!(receive.room, RecvTarget::Into(..) | RecvTarget::Make(_))
            || admitted(peer, values, 0, &mut self.credits).is_none()
        {
            return false;
        }
        receive.room.make(envelope.length);
        receive.posted = None;
        self.matching.cancel(number);
        // Free the slot first, so that the acknowledgement also reports it. No peer is lost here, because no
        // packet waits for this one.
        self.taken(rank, envelope.length);
        debug_assert!(self.peers.contains_key(&rank));
        self.begin(id, rank, envelope, sender, keys, true);
        // If another protocol is used, an answer for the sender waits.
        if self.peers.get(&rank).is_some_and(|peer| !peer.tx.is_clear()) {
            self.flush(rank);
        }
        true
    }

    /// Returns true if a message of this length is read at once, and this rank can read it.
    pub(super) fn is_read_at_once(&mut self, from: Rank, length: u64) -> bool {
        let peer = &self.peers[&from];
        let suits = peer.tx.is_clear() && peer.lanes.is_up(0) && self.routes[peer.near].read_at_once.contains(&length);
        suits && self.wire.reads(Lane { peer: from, rail: 0 })
    }

    /// Reads a message that was matched. Returns it if the wire refuses.
    pub(super) fn read_at_once(&mut self, id: Id, mut moving: Moving, offered: Key) -> Result<(), Moving> {
        let Some(Request::Receive(Receive { room: RecvTarget::Into(memory, _), moving: way, .. })) =
            self.requests.get_mut(id)
        else {
            return Err(moving);
        };
        let (from, length) = (moving.from, moving.length());
        let into = Part { memory, at: 0, length: length as usize };
        let Ok(done) = self.wire.read_now(Lane { peer: from, rail: 0 }, offered, into, stripe_token(id, 0)) else {
            return Err(moving);
        };
        self.counters.read_bytes += length;
        if !done {
            // The sender is copying a part of it.
            self.transmit.set_moved();
            moving.state = Receiving::new(Mover::Read, length, 1);
            *way = Some(Box::new(moving));
            return Ok(());
        }
        let body = Body::Ack { sender: moving.sender };
        let peer = self.peers.get_mut(&from).expect("the sender is known");
        if peer.tx.window.room() == 0 || !post!(self, peer, &body, Data::None, None) {
            self.reply(from, body);
        }
        self.is_there(id, from, moving.way, outcome(from, moving.envelope, moving.room));
        Ok(())
    }
}
