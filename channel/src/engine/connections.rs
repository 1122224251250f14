//! Connections to the peers with most traffic, where all peers have datagrams. Both sides keep their caps.

use super::Engine;
use super::parts::transmit::Reply;
use super::peer::Peer;
use super::request::Request;
use super::rx::HASTY;
use crate::connection::{Act, Here, Say};
use crate::error::PeerFailure;
use crate::packet::Body;
use crate::polling::{Change, HALVE};
use crate::wire::{Lane, RailKind, Rank, Wire};

impl<W: Wire> Engine<W> {
    /// Counts a message of `size` bytes to this peer, one of `queued`, if the rules would send it by a connection.
    pub(super) fn speaks_to(&mut self, rank: Rank, size: u64, queued: u64) {
        let counts = |peer: &Peer<_>| self.routes[peer.near].is_for_connection(size, queued);
        if !(self.has_choice(rank) && self.peers.get(&rank).is_some_and(counts)) {
            return;
        }
        let sent = self.peers.get_mut(&rank).map_or(0, |peer| peer.rings.take_sent());
        match self.connections.spoke(rank, sent.clamp(1, HALVE), |peer| self.wire.connected_besides(peer)) {
            Some(Change::Join(peer)) => {
                let ask = self.peers.get_mut(&peer).and_then(|peer| peer.lanes.connection.ask());
                debug_assert!(ask.is_some(), "a peer without connections is asked");
                self.say(peer, ask);
            }
            Some(Change::Leave(peer)) if self.has_spoken(peer) => self.connections.set.stay(peer),
            Some(Change::Leave(peer)) => {
                let is_quiet = self.is_quiet(peer);
                let record = self.peers.get_mut(&peer).filter(|_| is_quiet);
                let leave = record.and_then(|peer| peer.lanes.connection.leave());
                match leave {
                    Some(_) => self.use_links(peer, false),
                    None => self.connections.set.stay(peer),
                }
                self.say(peer, leave);
            }
            None => {}
        }
    }

    /// Counts the messages to a peer with a connection that the short path has put into its ring. Returns true if there are
    /// any.
    fn has_spoken(&mut self, rank: Rank) -> bool {
        let sent = self.peers.get_mut(&rank).map_or(0, |peer| peer.rings.take_sent());
        let change = self.connections.set.packets(rank, sent.min(HALVE));
        debug_assert_eq!(change, None, "a peer with a connection gets none");
        sent > 0
    }

    /// Returns true if connections to a peer are optional.
    fn has_choice(&self, rank: Rank) -> bool {
        self.peers.get(&rank).is_some_and(|peer| self.routes[peer.near].is_mixed) && rank != self.rank
    }

    /// Handles a message of the connection protocol.
    pub(super) fn link_message(&mut self, from: Rank, say: Say) -> Result<(), PeerFailure> {
        if !self.has_choice(from) {
            return Err(PeerFailure::Broken("it sent a connection message where connections are fixed"));
        }
        // The peer has not received messages that still wait here. Meanwhile it may send the same, an ask or
        // a leave, and nothing else.
        let crosses = |mine: Say| mine == say && matches!(say, Say::Ask | Say::Leave);
        let may_follow = |reply: &Reply| if let Body::Link { say } = reply.body { crosses(say) } else { true };
        if !self.peers[&from].tx.replies().all(may_follow) {
            return Err(HASTY);
        }
        let here = Here {
            has_room: say == Say::Ask && self.connections.has_room(|| self.wire.connected_besides(from)),
            is_quiet: say == Say::Leave && self.is_quiet(from),
            yields: self.rank < from,
        };
        let then = self.peers.get_mut(&from).expect("the sender is known").lanes.connection.told(say, here)?;
        if then.say == Some(Say::Accept) {
            self.connections.set.admit(from);
        }
        self.counters.refusals += u64::from(say == Say::Refuse);
        if let Some(act) = then.act {
            self.act(from, act);
        }
        self.say(from, then.say);
        Ok(())
    }

    fn say(&mut self, to: Rank, say: Option<Say>) {
        if let Some(say) = say {
            self.reply(to, Body::Link { say });
        }
    }

    fn act(&mut self, rank: Rank, act: Act) {
        let routes = &self.routes[false];
        let rails: Vec<usize> = routes.of(RailKind::Connection).collect();
        match act {
            Act::Connect => {
                self.counters.connects += 1;
                let row = routes.row_of(RailKind::Connection);
                let first: Vec<usize> = rails.into_iter().filter(|rail| row.contains(&(*rail as u8))).collect();
                self.use_links(rank, true);
                first.into_iter().for_each(|rail| self.connect(Lane { peer: rank, rail }));
            }
            Act::Stop => self.use_links(rank, false),
            Act::Resume => {
                self.use_links(rank, true);
                self.connections.set.stay(rank);
            }
            Act::Forget => self.connections.set.left(rank),
            Act::Disconnect => {
                self.counters.disconnects += 1;
                self.connections.set.left(rank);
                let lanes = &mut self.peers.get_mut(&rank).expect("the peer is known").lanes;
                // A pipe that was opened meanwhile keeps the connections of the wire.
                let keep = self.pipes.has(rank);
                for rail in rails.into_iter().filter(|rail| lanes.disconnect(*rail) && !keep) {
                    self.wire.disconnect(Lane { peer: rank, rail });
                }
            }
        }
    }

    /// Opens or closes the connections of a peer to packets and data, as far as they are connected.
    fn use_links(&mut self, rank: Rank, may: bool) {
        let peer = self.peers.get_mut(&rank).expect("the peer is known");
        peer.lanes.use_rails(self.routes[peer.near].of(RailKind::Connection), may);
        // Closes the short path until progress has handled the change.
        self.list(rank);
    }

    /// Returns true if only packets are in flight to or from a peer, in rings or elsewhere, no memory is
    /// written or read, and there is no pipe. Packets have their place in the sequence, and rings stay: the
    /// next connection writes to them again.
    fn is_quiet(&self, rank: Rank) -> bool {
        let Some(peer) = self.peers.get(&rank) else { return false };
        let moves = peer.rings.mark().is_some()
            || peer.transfers.has_queued()
            || peer.tx.replies().any(|reply| reply.rail.is_some());
        let connected = self.routes[peer.near].of(RailKind::Connection).any(|rail| peer.lanes.is_up(rail));
        let lends = |request: &Request<W::Memory>| {
            let keys = match request {
                Request::Send(send) => &send.keys,
                Request::Receive(receive) => &receive.keys,
                Request::Message(_) | Request::Piped(_) | Request::Over(..) => return false,
            };
            keys.is_some() && request.peer() == Some(rank)
        };
        connected && !(moves || self.pipes.has(rank)) && !self.requests.iter().any(|(_, request)| lends(request))
    }
}
