//! A peer is lost: all that waits for it ends.

use super::Engine;
use super::request::{Receive, Request, What};
use crate::error::{Error, Lost};
use crate::wire::{Rank, Wire};

impl<W: Wire> Engine<W> {
    /// Every request that needs this peer fails, and so do receives from any source: what they wait for may have been its
    /// message. If none of these is posted, the next one is told. Messages that had come whole can be received.
    pub(super) fn fail(&mut self, rank: Rank, lost: Lost) {
        if self.lost.contains_key(&rank) {
            return;
        }
        // From here on nobody touches the memory that requests gave to the wire.
        self.wire.sever(rank);
        self.lost.insert(rank, lost.clone());
        if let Some(mut peer) = self.peers.remove(&rank) {
            self.budget.leave(&peer.grant, peer.joined);
            self.polling.left(rank);
            self.starved.remove(&rank);
            if let Some(ring) = peer.ring_in.take() {
                self.wire.release(0, ring.key);
                self.wire.give(ring.memory);
            }
            peer.incoming.drain().for_each(|held| self.wire.give(held.data));
        }
        let announced = |message: &super::Unexpected<W::Memory>| matches!(message.what, What::Rts { .. });
        for message in self.matching.discard(|label, message| label.source == rank && announced(message)) {
            self.kept -= message.cost();
        }
        let any = self.matching.withdraw(|select| select.source.is_none());
        if any.is_empty() {
            self.untold.push_back(rank);
        }
        let mut ended = self.matching.withdraw(|select| select.source == Some(rank));
        ended.extend(any);
        let bound = self.requests.iter().filter(|(_, request)| match request {
            Request::Send(send) => send.to == rank,
            Request::Receive(Receive { moving: Some(moving), .. }) => moving.from == rank,
            _ => false,
        });
        ended.extend(bound.map(|(id, _)| id));
        for id in ended {
            self.complete(id, Err(Error::Lost { rank, lost: lost.clone() }));
        }
    }
}
