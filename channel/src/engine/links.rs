//! Connections for the peers that are spoken with most, where there are datagrams for all: who is asked, who is accepted, what is given
//! up. Both sides keep their caps.

use super::Engine;
use super::arrive::HASTY;
use super::request::Request;
use crate::connection::{Act, Here, Say};
use crate::error::Lost;
use crate::packet::Body;
use crate::polling::{Change, PollingSet};
use crate::wire::{Lane, RailKind, Rank, Wire};

/// How many peers a rank has by each way that they are spoken with. One may be among several of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Channels {
    /// By memory that is shared.
    pub near: usize,
    /// By datagrams: something has gone to them so.
    pub datagrams: usize,
    /// By connections.
    pub connections: usize,
    /// By rings that this rank has for them.
    pub rings: usize,
    /// By rings, too, of those that share memory.
    pub near_rings: usize,
}

impl<W: Wire> Engine<W> {
    /// How many peers there are by each way.
    pub fn channels(&self) -> Channels {
        let [rings, near_rings] = self.polling.both().each_ref().map(PollingSet::len);
        let mut channels = Channels { rings, near_rings, ..Channels::default() };
        for (rank, peer) in self.peers.iter() {
            let (routes, near) = (&self.routes[peer.near], peer.near);
            let is_up = routes.of(routes.connections()).any(|rail| peer.up[rail]);
            let is_connected = if routes.is_mixed { !peer.connection.is_none() } else { is_up };
            channels.near += usize::from(near && is_up && rank != self.rank);
            channels.datagrams += usize::from(peer.datagrams > 0);
            channels.connections += usize::from(!near && is_connected);
        }
        channels
    }

    /// A message has gone to this peer, or waits there to be received.
    pub(super) fn speaks_to(&mut self, rank: Rank) {
        if !self.has_choice(rank) {
            return;
        }
        match self.connected.packet(rank) {
            Some(Change::Join(peer)) => {
                if self.is_one_too_many(peer, self.connected.len()) {
                    return self.connected.left(peer);
                }
                let ask = self.peers.get_mut(&peer).and_then(|peer| peer.connection.ask());
                debug_assert!(ask.is_some(), "who has none asks");
                self.say(peer, ask);
            }
            Some(Change::Leave(peer)) => {
                // Where windows have connections, one that is given up may stay, and make no room.
                if self.config.count_windows && self.wire.connected_besides(peer) > 0 {
                    self.connected.left(rank);
                    return self.connected.stay(peer);
                }
                if !self.is_quiet(peer) {
                    return self.connected.stay(peer);
                }
                let leave = self.peers.get_mut(&peer).and_then(|peer| peer.connection.leave());
                match leave {
                    Some(_) => self.use_links(peer, false),
                    None => self.connected.stay(peer),
                }
                self.say(peer, leave);
            }
            None => {}
        }
    }

    /// Whether a peer may have connections, or none.
    fn has_choice(&self, rank: Rank) -> bool {
        self.peers.get(&rank).is_some_and(|peer| self.routes[peer.near].is_mixed) && rank != self.rank
    }

    /// Whether so many peers that have connections, this one among them, are too many with those that windows have connected.
    fn is_one_too_many(&self, peer: Rank, members: usize) -> bool {
        self.config.count_windows && members + self.wire.connected_besides(peer) > self.config.connections
    }

    /// The peer has said something of connections.
    pub(super) fn told_of_link(&mut self, from: Rank, say: Say) -> Result<(), Lost> {
        if !self.has_choice(from) {
            return Err(Lost::Broken("it speaks of connections where there is nothing to choose"));
        }
        // What this rank has still to say it cannot have heard: it may say the same meanwhile, asking or leaving, and nothing else.
        let crosses = |mine: Say| mine == say && matches!(say, Say::Ask | Say::Leave);
        let mut unsaid = self.peers[&from].replies.iter().filter_map(|reply| match reply.body {
            Body::Link { say } => Some(say),
            _ => None,
        });
        if !unsaid.all(crosses) {
            return Err(HASTY);
        }
        let here = Here {
            has_room: say == Say::Ask
                && self.connected.has_room()
                && !self.is_one_too_many(from, self.connected.len() + 1),
            is_quiet: say == Say::Leave && self.is_quiet(from),
            yields: self.rank < from,
        };
        let then = self.peers.get_mut(&from).expect("it sent this").connection.told(say, here)?;
        if then.say == Some(Say::Accept) {
            self.connected.admit(from);
        }
        self.meter.refusals += u64::from(say == Say::Refuse);
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
        let lanes: Vec<Lane> = routes.of(RailKind::Connection).map(|rail| Lane { peer: rank, rail }).collect();
        match act {
            Act::Connect => {
                self.meter.connects += 1;
                self.use_links(rank, true);
                let row = self.routes[false].row_of(RailKind::Connection);
                let first: Vec<Lane> = lanes.into_iter().filter(|lane| row.contains(&(lane.rail as u8))).collect();
                first.into_iter().for_each(|lane| self.connect(lane));
            }
            Act::Stop => self.use_links(rank, false),
            Act::Resume => {
                self.use_links(rank, true);
                self.connected.stay(rank);
            }
            Act::Forget => self.connected.left(rank),
            Act::Disconnect => {
                self.meter.disconnects += 1;
                self.connected.left(rank);
                let peer = self.peers.get_mut(&rank).expect("it is spoken with");
                for lane in lanes.into_iter().filter(|lane| std::mem::take(&mut peer.asked[lane.rail])) {
                    (peer.wired[lane.rail], peer.up[lane.rail]) = (false, false);
                    // One that was opened meanwhile goes there.
                    if !self.pipes.has(rank) {
                        self.wire.disconnect(lane);
                    }
                }
            }
        }
    }

    /// Whether packets and data may go by its connections from now on, as far as they are up.
    fn use_links(&mut self, rank: Rank, may: bool) {
        let peer = self.peers.get_mut(&rank).expect("it is spoken with");
        for rail in self.routes[peer.near].of(RailKind::Connection) {
            peer.up[rail] = may && peer.wired[rail];
        }
        // The short path looks at what has changed.
        self.list(rank);
    }

    /// Whether nothing is under way to or from a peer but packets, which have a place in the sequence, those in rings too: no
    /// memory that is written or read, no pipe. Rings stay, and are written again by the next connection.
    fn is_quiet(&self, rank: Rank) -> bool {
        let Some(peer) = self.peers.get(&rank) else { return false };
        let moves =
            peer.mark.is_some() || !peer.moves.is_empty() || peer.replies.iter().any(|reply| reply.rail.is_some());
        let connected = self.routes[peer.near].of(RailKind::Connection).any(|rail| peer.up[rail]);
        let lends = |request: &Request<W::Memory>| match request {
            Request::Send(send) => send.to == rank && send.keys.is_some(),
            Request::Receive(receive) => {
                receive.keys.is_some() && receive.moving.as_ref().is_some_and(|moving| moving.from == rank)
            }
            Request::Message(_) | Request::Piped(_) | Request::Over(..) => false,
        };
        connected && !(moves || self.pipes.has(rank)) && !self.requests.iter().any(|(_, request)| lends(request))
    }
}
