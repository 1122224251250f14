//! State of the engine for callers: states of requests, when progress is due, counters, and reports of long waits.

use super::Engine;
use super::request::{Receive, Request};
use crate::config::Config;
use crate::counters::Counters;
use crate::error::{PeerFailure, Status};
use crate::matching::Select;
use crate::slab::Id;
use crate::wire::{Rank, Wire};

/// The event that a request waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waits {
    /// The request is a send.
    pub sends: bool,
    /// The receiver, or the source; `None` for a receive from any source.
    pub peer: Option<Rank>,
    /// The tag; `None` for a receive with any tag.
    pub tag: Option<u32>,
    /// The first message of the same source and context that has arrived and matches no posted receive.
    pub other: Option<Status>,
}

/// Numbers of peers by channel in use. A peer may be counted in several.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Channels {
    /// Peers with shared memory.
    pub near: usize,
    /// Peers that were sent a datagram.
    pub datagrams: usize,
    /// Peers with connections.
    pub connections: usize,
    /// Peers that write to a ring of this rank.
    pub rings: usize,
    /// Peers with shared memory that write to a ring of this rank.
    pub near_rings: usize,
}

impl<W: Wire> Engine<W> {
    /// The event that a send or receive waits for; `None` once it has ended.
    pub fn waits(&self, id: Id) -> Option<Waits> {
        let moving = |sends, peer, tag| Some(Waits { sends, peer: Some(peer), tag: Some(tag), other: None });
        match self.requests.get(id)? {
            Request::Send(send) => moving(true, send.to, send.envelope.tag),
            Request::Receive(Receive { moving: Some(of), .. }) => moving(false, of.from, of.envelope.tag),
            Request::Receive(Receive { posted: Some(number), .. }) => {
                let select = self.matching.posted_select(*number)?;
                let other = self.matching.peek(Select { tag: None, ..select }).map(|(_, message)| message.status());
                Some(Waits { sends: false, peer: select.source, tag: select.tag, other })
            }
            _ => None,
        }
    }

    /// The message of a probe, until it is received.
    pub fn probed(&self, id: Id) -> Option<Status> {
        match self.requests.get(id)? {
            Request::Message(message) => Some(message.status()),
            _ => None,
        }
    }

    /// Returns true if a request has not ended.
    pub fn is_under_way(&self, id: Id) -> bool {
        !matches!(self.requests.get(id), None | Some(Request::Over(..)))
    }

    /// Returns true for a send or a receive that has not ended.
    #[inline]
    pub fn is_moving(&self, id: Id) -> bool {
        matches!(self.requests.get(id), Some(Request::Send(_) | Request::Receive(_)))
    }

    /// Returns true for a matched receive whose data is still arriving.
    pub fn is_arriving(&self, id: Id) -> bool {
        matches!(self.requests.get(id), Some(Request::Receive(Receive { moving: Some(_), .. })))
    }

    /// Time at which progress is due without an event, in ns: a request was refused, or credit must be
    /// reported.
    pub fn due(&self) -> Option<u64> {
        if !self.transmit.is_empty() || self.pipes.are_refused() || !self.answers.is_empty() {
            return Some(self.wire.now());
        }
        [self.credit_due(), self.wire.due()].into_iter().flatten().min()
    }

    /// Time at which progress is due to report credit without an event, in ns.
    pub fn credit_due(&self) -> Option<u64> {
        // No packet reaches a peer whose rails are all cut.
        let reached = |rank| self.peers.get(rank).filter(|peer| peer.lanes.is_any_up());
        let since = self.credits.due().iter().filter_map(|rank| reached(rank)?.credits.due_since()).min()?;
        Some(since.saturating_add(self.config.credit_delay).max(self.wire.now()))
    }

    /// Returns true if another rank still needs this one: for a send that has not ended, a receive whose
    /// message is arriving, an answer, or a packet that may have to be resent.
    pub fn is_needed(&self) -> bool {
        let moving = |request: &Request<W::Memory>| match request {
            Request::Send(send) => send.to != self.rank,
            request => request.peer().is_some(),
        };
        !self.transmit.is_empty()
            || self.wire.due().is_some()
            || self.pipes.are_needed(self.rank)
            // A peer whose window is closed is not listed.
            || self.peers.iter().any(|(_, peer)| {
                peer.has_work() || peer.failover.as_ref().is_some_and(|failover| failover.is_needed())
            })
            || self.requests.iter().any(|(_, request)| moving(request))
    }

    /// The wire below.
    pub fn wire(&mut self) -> &mut W {
        &mut self.wire
    }

    /// The active configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Counters since the start.
    pub fn counters(&self) -> Counters {
        let mut counters = self.counters;
        (counters.requests_peak, counters.granted_peak) =
            (self.requests.most() as u64, self.credits.budget.peak().into());
        self.wire.count(&mut counters);
        counters
    }

    /// Failed ranks, as far as this rank has been notified.
    pub fn lost(&self) -> impl Iterator<Item = (Rank, &PeerFailure)> {
        self.failures.iter()
    }

    /// Number of this rank's teams.
    pub fn teams(&self) -> usize {
        self.failures.teams.len()
    }

    /// Number of requests that have not ended, including probed messages.
    pub fn under_way(&self) -> usize {
        self.requests.under_way()
    }

    /// Bytes of unreceived messages, with 64 for the header of each.
    pub fn kept(&self) -> u64 {
        self.credits.kept()
    }

    /// Credit granted to all peers beyond their floors, in bytes; see [`Config`].
    pub fn granted(&self) -> u32 {
        self.credits.budget.outstanding()
    }

    /// Credit of this rank at a peer that it has communicated with, in bytes; negative while it is overdrawn.
    pub fn credit(&self, peer: Rank) -> Option<i64> {
        let credits = &self.peers.get(&peer)?.credits.send;
        Some(i64::from(credits.room()) - i64::from(credits.overdrawn()))
    }

    /// Bytes of the rings that this rank has given its peers.
    pub fn ring_bytes(&self) -> usize {
        self.polling.rings().iter().zip(self.routes.both()).map(|(rings, routes)| rings * routes.ring.size()).sum()
    }

    /// Numbers of peers by channel.
    pub fn channels(&self) -> Channels {
        let [rings, near_rings] = self.polling.rings();
        let mut channels = Channels { rings, near_rings, ..Channels::default() };
        for (rank, peer) in self.peers.iter() {
            let (routes, near) = (&self.routes[peer.near], peer.near);
            let is_up = routes.of(routes.connections()).any(|rail| peer.lanes.is_up(rail));
            let is_connected = if routes.is_mixed { !peer.lanes.connection.is_none() } else { is_up };
            channels.near += usize::from(near && is_up && rank != self.rank);
            channels.datagrams += usize::from(peer.lanes.has_datagrams());
            channels.connections += usize::from(!near && is_connected);
        }
        channels
    }

    /// Fails unless all packets to and from each peer are acknowledged, no credit is due and nothing waits.
    /// This holds between two ranks that have both been idle.
    pub fn at_rest(&mut self) -> Result<(), String> {
        let peers: Vec<Rank> = self.peers.iter().map(|(rank, _)| rank).collect();
        for rank in peers {
            self.poll_credits_of(rank);
        }
        for (rank, peer) in self.peers.iter() {
            let flying = (peer.tx.window.flying(), peer.rings.out.as_ref().map_or(0, |ring| ring.flying()));
            let connection = peer.lanes.connection;
            let between = !(connection.is_none() || connection.is_held()) || peer.rx.is_gathering();
            let cut = peer.failover.as_ref().is_some_and(|failover| failover.is_needed());
            let unsettled = flying != (0, 0) || between || cut;
            if unsettled || peer.credits.has_unreported() || peer.has_work() || peer.rx.order.held() > 0 {
                return Err(format!(
                    "rank {} with {rank}: flying {flying:?}, owes {}, moves {}, waits {:?}, held {}, up {:?}, {:?}, {:?}",
                    self.rank,
                    peer.credits.has_unreported(),
                    peer.transfers.queued(),
                    peer.tx.lengths(),
                    peer.rx.order.held(),
                    peer.lanes.up(),
                    connection,
                    peer.failover.as_ref().map(|failover| failover.describe())
                ));
            }
        }
        Ok(())
    }
}
