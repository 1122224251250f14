//! Rings: polls those of this rank, and gives them to the peers with most traffic.

use super::Engine;
use super::parts::rings::RingIn;
use super::rx::HASTY;
use crate::error::PeerFailure;
use crate::packet::Body;
use crate::polling::Change;
use crate::ring::{Look, Receiver, RingConfig};
use crate::wire::{Key, Lane, Part, Rank, Wire, WireMemory};

impl<W: Wire> Engine<W> {
    pub(super) fn poll_rings(&mut self) -> usize {
        let (mut taken, order) = (0, self.polling.take_order());
        for rank in &order {
            taken += self.poll_ring(*rank);
        }
        self.polling.give_back(order);
        taken
    }

    /// Handles all packets in the ring of a lost peer, so that messages it had sent whole are received.
    /// Handles at most one ring of packets, since the peer might continue to send.
    pub(super) fn empty_ring(&mut self, rank: Rank) {
        let mut left = self.peers.get(&rank).map_or(0, |peer| peer.ring.slots as usize);
        while left > 0 {
            match self.poll_ring(rank) {
                0 => break,
                taken => left = left.saturating_sub(taken),
            }
        }
    }

    /// Handles packets in the ring of a peer, a batch at most.
    fn poll_ring(&mut self, rank: Rank) -> usize {
        let (mut left, mut taken) = (self.config.batch, 0);
        if self.matching.posted() > 0 {
            let mut lies = Some(true);
            while left > 0 && lies == Some(true) {
                lies = self.receive_posted(rank, 1);
                let received = usize::from(lies == Some(true));
                (left, taken) = (left - received, taken + received);
            }
            if lies.is_none() {
                return taken;
            }
        }
        let Some(mut ring) = self.peers.get_mut(&rank).and_then(|peer| peer.rings.begin_poll()) else { return taken };
        let mut outcome = Ok(());
        for _ in 0..left {
            let Some(place) = ring.half.place() else { break };
            let packet = match ring.half.look(ring.memory.word(place)) {
                Look::Empty => break,
                Look::Broken => Err(PeerFailure::Broken("a mark in its ring is invalid")),
                Look::Message { at, length } => self.packet(rank, Part { memory: &ring.memory, at, length }, true),
            };
            match packet {
                // The packet is early: it stays in the ring, and so do those behind it.
                Ok(false) => break,
                Ok(true) => {
                    let freed = ring.half.free();
                    self.peers.get_mut(&rank).expect("the sender is known").credits.freed(freed);
                    self.credits_due(rank);
                    taken += 1;
                }
                Err(lost) => {
                    outcome = Err(lost);
                    break;
                }
            }
        }
        if let Some(left) = self.peers.get_mut(&rank).expect("it has a ring").rings.end_poll(ring) {
            self.drop_ring(rank, left);
        }
        if let Err(lost) = outcome {
            self.fail(rank, lost);
        }
        taken
    }

    /// Counts a packet of a peer, which may earn it a ring.
    pub(super) fn count_packet(&mut self, from: Rank) {
        let peer = &self.peers[&from];
        if peer.rings.is_refused() || !peer.lanes.is_up(0) {
            return;
        }
        match self.polling.sets[peer.near].packet(from) {
            Some(Change::Join(peer)) => self.join(peer),
            Some(Change::Leave(peer)) => self.leave_ring(peer),
            None => {}
        }
    }

    /// Gives a peer a ring.
    fn join(&mut self, rank: Rank) {
        let peer = self.peers.get_mut(&rank).expect("the peer is known");
        let shape = peer.ring;
        let ring = self.wire.ring(rank, shape.size());
        let (Some((memory, key)), Some(marker)) = (ring, self.routes[peer.near].marker) else {
            peer.rings.refuse();
            self.polling.sets[peer.near].left(rank);
            return;
        };
        let ring = peer.credits.open_ring();
        let half = Receiver::new(ring, shape, marker).turning(shape.lap(0));
        peer.rings.give(RingIn { half, memory, key });
        self.publish(rank);
        self.counters.joins += 1;
        self.reply(rank, Body::Join { ring, slots: shape.slots, bytes: shape.bytes, key });
    }

    /// Asks a peer, once, to stop writing to its ring.
    pub(super) fn leave_ring(&mut self, rank: Rank) {
        let Some(peer) = self.peers.get_mut(&rank) else { return };
        let ring = peer.credits.values().ring;
        if peer.rings.ask_to_leave(ring) {
            self.reply(rank, Body::Leave { ring });
        }
    }

    /// Frees the memory of a ring that the peer has left.
    fn drop_ring(&mut self, rank: Rank, ring: RingIn<W::Memory>) {
        let peer = self.peers.get_mut(&rank).expect("it has a ring");
        peer.credits.close_ring();
        self.wire.release(Lane { peer: rank, rail: 0 }, ring.key);
        self.wire.give(ring.memory);
        self.polling.sets[peer.near].left(rank);
        self.counters.leaves += 1;
    }

    /// Handles a ring that the peer offers.
    pub(super) fn ring_offered(
        &mut self,
        from: Rank,
        ring: u16,
        shape: RingConfig,
        key: Key,
    ) -> Result<(), PeerFailure> {
        let peer = self.peers.get_mut(&from).expect("the peer is known");
        peer.rings.joined(ring, shape, key, peer.window)?;
        if peer.tx.replies().any(|reply| matches!(reply.body, Body::Left { .. })) {
            return Err(HASTY);
        }
        // A connection that is being given up may delay the use of the ring.
        self.list(from);
        Ok(())
    }

    /// Handles the peer's request to leave its ring.
    pub(super) fn ring_taken_back(&mut self, from: Rank, ring: u16) -> Result<(), PeerFailure> {
        let peer = self.peers.get_mut(&from).expect("the peer is known");
        let mut was_closed = || peer.failover.as_mut().is_some_and(|failover| failover.take_closed(ring));
        if !peer.rings.leave(ring) && !was_closed() {
            return Err(PeerFailure::Broken("it withdrew a ring that it had not given"));
        }
        self.reply(from, Body::Left { ring });
        Ok(())
    }

    /// Handles the peer's notice that it has left the ring of this rank.
    pub(super) fn ring_left(&mut self, from: Rank, ring: u16) -> Result<(), PeerFailure> {
        if let Some(ring) = self.peers.get_mut(&from).expect("the peer is known").rings.left(ring)? {
            self.drop_ring(from, ring);
        }
        Ok(())
    }

    /// Adds short receives that the polling set has not counted.
    pub(super) fn count_the_row(&mut self) {
        // A ring that the peer has left is not polled.
        let peer = self.peers.get(&self.polling.row_of()).filter(|peer| peer.rings.incoming.is_some());
        self.polling.count_row(peer.map(|peer| peer.near));
    }
}
