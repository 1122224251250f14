//! Credits: reports credits to peers, and polls those of this rank.

use super::Engine;
use super::peer::Peer;
use super::post::post;
use crate::packet::{Body, Values};
use crate::wire::{Data, Rank, Wire};

impl<W: Wire> Engine<W> {
    /// Polls a peer's credits beside its ring from now on: a send to it is blocked.
    pub(super) fn start_polling(&mut self, rank: Rank) {
        if let Some(peer) = self.peers.get_mut(&rank).filter(|peer| peer.rings.out.is_some()) {
            self.credits.poll(rank, &mut peer.credits);
        }
    }

    /// Applies the values that a peer has published beside its ring; invalid ones end the peer. Returns true
    /// if they were new.
    pub(super) fn poll_credits_of(&mut self, rank: Rank) -> bool {
        let Some(peer) = self.peers.get_mut(&rank) else { return false };
        let Some(ring) = &peer.rings.out else { return false };
        let Some([first, freed]) = self.wire.published(rank, ring.key) else { return false };
        let values = Values { ack: first as u32, granted: (first >> 32) as u32, freed: freed as u32, ring: ring.ring };
        let known = |peer: &Peer<W::Memory>| {
            (peer.tx.window.room(), peer.credits.send.room(), peer.rings.out.as_ref().map(|ring| ring.flying()))
        };
        let before = known(peer);
        match peer.credited(values) {
            Ok(()) => before != known(peer),
            Err(beyond) => {
                self.fail(rank, beyond.into());
                true
            }
        }
    }

    /// Polls the credits of peers with blocked sends. Returns how many were new.
    pub(super) fn poll_credits(&mut self) -> usize {
        let mut news = 0;
        for at in (0..self.credits.polled().len()).rev() {
            let rank = self.credits.polled()[at];
            if self.poll_credits_of(rank) {
                self.list(rank);
                news += 1;
            }
            let peer = self.peers.get_mut(&rank);
            if !peer.as_ref().is_some_and(|peer| peer.has_work() && peer.rings.out.is_some()) {
                self.credits.stop_polling(at, peer.map(|peer| &mut peer.credits));
            }
        }
        news
    }

    /// Publishes all values beside the ring that this rank has given the peer. Returns true if that reports
    /// them: the peer has shown that it reaches the ring, and was not asked to leave it.
    pub(super) fn publish(&mut self, rank: Rank) -> bool {
        let Some(peer) = self.peers.get_mut(&rank) else { return false };
        let Some(ring) = &peer.rings.incoming else { return false };
        if !self.wire.publish(rank, &ring.memory, peer.credits.words()) {
            return false;
        }
        let reads = ring.half.is_used() && !peer.rings.is_leaving();
        peer.credits.published(reads);
        self.counters.published += u64::from(reads);
        reads
    }

    /// Lists a peer with unreported values.
    pub(super) fn credits_due(&mut self, rank: Rank) {
        if let Some(peer) = self.peers.get_mut(&rank) {
            self.credits.list(rank, &mut peer.credits);
        }
    }

    /// Reports values that are due: beside the ring, or else in a control packet.
    pub(super) fn report_credits(&mut self) {
        if self.credits.due().is_empty() {
            return;
        }
        // Usually a packet has carried them already, and the clock is not read.
        let mut now = None;
        for _ in 0..self.credits.due().len() {
            let Some(rank) = self.credits.next_due() else { return };
            let Some(peer) = self.peers.get_mut(&rank) else { continue };
            let now = || *now.get_or_insert_with(|| self.wire.now());
            if peer.credits.is_due(now, self.config.credit_delay) && peer.lanes.is_any_up() && !self.publish(rank) {
                let peer = self.peers.get_mut(&rank).expect("looked up above");
                self.counters.controls += u64::from(post!(self, peer, &Body::Control, Data::None, None));
            }
            let peer = self.peers.get_mut(&rank).expect("looked up above");
            self.credits.relist(rank, &mut peer.credits);
        }
    }

    /// Returns the credit of a received message to its sender.
    pub(super) fn release(&mut self, from: Rank, cost: u64) {
        let peer = self.peers.get_mut(&from);
        self.credits.release(peer.map(|peer| (from, &mut peer.credits)), cost);
    }
}
