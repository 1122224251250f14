//! Loss of a peer: all requests that depend on it end.

use super::Engine;
use super::parts::receive::Gathering;
use super::request::{Request, UnexpectedBody, cost};
use crate::error::{Error, PeerFailure};
use crate::wire::{Lane, Rank, Wire};

impl<W: Wire> Engine<W> {
    /// Ends every request that needs this peer. If the peer died, posted receives from any source end too:
    /// they may have waited for its message. In a context where none is posted, the next one ends. If the
    /// peer has left, they continue while another rank is left there. Messages that had arrived whole can be
    /// received.
    pub(super) fn fail(&mut self, rank: Rank, lost: PeerFailure) {
        if !self.failures.insert(rank, &lost) {
            return;
        }
        // From here on the wire does not access the memory of requests.
        self.wire.abort_peer(rank);
        self.lose_pipes(rank);
        if let Some(peer) = self.peers.remove(&rank) {
            let peer = *peer;
            self.routes[peer.near].remove_peer();
            self.credits.leave(&peer.credits);
            self.polling.sets[peer.near].left(rank);
            self.connections.set.left(rank);
            if let Some(ring) = peer.rings.end() {
                self.wire.release(Lane { peer: rank, rail: 0 }, ring.key);
                self.wire.give(ring.memory);
            }
            let (held, gathering) = peer.rx.end();
            held.into_iter().for_each(|memory| self.wire.give(memory));
            if let Some(Gathering { envelope, memory, .. }) = gathering {
                self.credits.forget(cost(envelope.length));
                self.wire.give(memory);
            }
            let posted = peer.failover.into_iter().flat_map(|failover| failover.end());
            posted.for_each(|memory| self.wire.give(memory));
        }
        let announced = |message: &super::Unexpected<W::Memory>| matches!(message.what, UnexpectedBody::Rts { .. });
        for message in self.matching.discard(|label, message| label.source == rank && announced(message)) {
            self.credits.forget(message.cost());
        }
        let any = self.matching.selects().filter(|select| select.source.is_none()).map(|select| select.context);
        let ends = self.failures.ended(rank, any);
        let any = self.matching.withdraw(|select| select.source.is_none() && ends.contains(&select.context));
        let mut ended = self.matching.withdraw(|select| select.source == Some(rank));
        ended.extend(any);
        let bound = |request: &Request<W::Memory>| request.peer() == Some(rank);
        ended.extend(self.requests.iter().filter(|(_, request)| bound(request)).map(|(id, _)| id));
        for id in ended {
            self.complete(id, Err(Error::PeerFailure { rank, lost: lost.clone() }));
        }
    }

    /// Ends all requests in flight to or from peers: neither peers nor the wire access their memory any more.
    pub fn shut(&mut self) {
        let peers: Vec<Rank> = self.peers.iter().map(|(rank, _)| rank).collect();
        peers.into_iter().for_each(|rank| self.fail(rank, PeerFailure::Left));
    }
}
