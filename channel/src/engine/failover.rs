//! Failover: requests of a cut rail are posted on other rails, once, and the rail is used again when both
//! ends have settled.
//!
//! Each end drains the requests it had posted, and asks the other by another rail how many packets had
//! arrived on the cut one. A rail is in order: requests before the last packet that arrived have taken
//! effect, and the rest is posted again. Packets have their place in the sequence, so a duplicate is dropped.
//! A write is repeated only while its FIN has not arrived: until then the memory is the receiver's, and the
//! same bytes do no harm. Its FIN follows it on its new rail. Reads are always repeated.
//!
//! An end answers once it has ended its own end of the rail and has polled all arrivals on it. It uses the
//! rail again once it has the peer's answer and has sent its own. A ring is given up with its rail; packets
//! that had arrived in it are received.

use super::Engine;
use super::parts::failover::Item;
use super::parts::transfers::Transfer;
use super::peer::Peer;
use super::request::{Receive, Request};
use super::tx::{Step, stripe_token};
use crate::error::PeerFailure;
use crate::packet::{Body, LONGEST, Packet};
use crate::pipe;
use crate::striping::Rails;
use crate::wire::{self, Data, Lane, Left, Part, RailKind, Rank, Why, Wire, WireMemory};

impl<W: Wire> Engine<W> {
    /// Handles a cut rail.
    pub(super) fn cut(&mut self, lane: Lane) {
        let Lane { peer: rank, rail } = lane;
        if self.routes[self.wire.is_near(rank)].rails[rail].kind == RailKind::Datagram {
            return self.cut_datagrams(lane);
        }
        if !self.fails_over(rank) || rail == 0 && self.pipes.has(rank) {
            // There is no other rail, or a pipe is bound to this one.
            return self.fail(rank, Why::Unreachable.into());
        }
        if self.reach(rank).is_err() {
            return;
        }
        let peer = self.peers.get_mut(&rank).expect("the peer is known");
        let left = self.wire.drain_failed(lane);
        peer.lanes.set_up(rail, false);
        let failover = peer.failover.get_or_insert_default();
        let mut items = Vec::new();
        // Newest first: of stripes with one token the earlier ones may be done, and not be reported yet.
        for left in left.into_iter().rev() {
            match left {
                Left::Send(memory, length) if is_notice(&memory, length) => {
                    self.wire.give(memory);
                    failover.notify_again();
                }
                Left::Send(memory, length) => items.push(Item::Packet { memory, length, went: true }),
                Left::Put(memory, length) => items.push(Item::Packet { memory, length, went: false }),
                Left::Moved(token) if pipe::is_token(token) => {}
                Left::Moved(token) => items.extend(peer.transfers.recall(token).map(Item::Posted)),
            }
        }
        items.reverse();
        items.extend(peer.tx.take_bound(rail).into_iter().map(|reply| Item::Reply(reply.body)));
        items.extend(peer.transfers.cut(rail).into_iter().map(Item::Unposted));
        failover.cut(rail, items);
        if rail == 0 {
            if let Some(ring) = peer.rings.cut() {
                failover.close_ring(ring);
            }
            if peer.rings.has_given() {
                self.leave_ring(rank);
            }
        }
        (0..self.rails_to(rank)).for_each(|rail| self.connect(Lane { peer: rank, rail }));
        self.list(rank);
    }

    /// Handles a cut rail of datagrams: the wire resends what was posted there. Writes that were not posted move to another
    /// rail that the memory is registered with, if there is one. The wire takes the others nevertheless.
    fn cut_datagrams(&mut self, Lane { peer: rank, rail }: Lane) {
        let Some(peer) = self.peers.get_mut(&rank) else { return };
        peer.lanes.set_up(rail, false);
        for mut next in peer.transfers.cut(rail) {
            next.rail = self.other_rail(rank, &next).unwrap_or(rail);
            next.any = Rails::default();
            self.peers.get_mut(&rank).expect("looked up above").transfers.push(next);
        }
        self.list(rank);
    }

    /// Number of rails to a peer.
    fn rails_to(&self, rank: Rank) -> usize {
        self.routes[self.wire.is_near(rank)].rails.len()
    }

    /// Returns true if requests of a cut rail to a peer move to the other rails.
    fn fails_over(&self, rank: Rank) -> bool {
        self.routes[self.wire.is_near(rank)].fails_over
    }

    /// Handles a peer's notice that a rail is cut, with the number of packets it received there, if known.
    pub(super) fn peer_cut(&mut self, lane: Lane, epoch: u32, heard: u32, came: u32) -> Result<(), PeerFailure> {
        let Lane { peer: rank, rail } = lane;
        if !self.fails_over(rank) || rail >= self.rails_to(rank) {
            return Err(PeerFailure::Broken("it named a rail that does not exist"));
        }
        let Some(peer) = self.peers.get_mut(&rank) else { return Ok(()) };
        if peer.failover.get_or_insert_default().peer_cut(rail, epoch) {
            self.cut(lane);
        }
        let Some(peer) = self.peers.get_mut(&rank) else { return Ok(()) };
        let failover = peer.failover.get_or_insert_default();
        if failover.owes(rail) && !self.answers.contains(&rank) {
            self.answers.push(rank);
        }
        if failover.is_answer(rail, heard) { self.settle(lane, came) } else { Ok(()) }
    }

    /// Counts a packet received through a queue, where rails fail over. Notices are not counted.
    pub(super) fn count_arrival(&mut self, lane: Lane, packet: Part<'_, W::Memory>) {
        let Some(peer) = self.peers.get_mut(&lane.peer).filter(|peer| self.routes[peer.near].fails_over) else {
            return;
        };
        let mut kind = [0];
        packet.memory.read(packet.at, &mut kind[..packet.length.min(1)]);
        if kind != [Body::CUT] {
            peer.lanes.arrived(lane.rail);
        }
    }

    /// Reports the number of packets received on cut rails, once all arrivals were handled.
    pub(super) fn answer_cuts(&mut self) {
        for rank in std::mem::take(&mut self.answers) {
            let Some(Peer { failover: Some(failover), lanes, .. }) = self.peers.get_mut(&rank) else { continue };
            failover.answer(|rail| lanes.take_came(rail));
            (0..self.rails_to(rank)).for_each(|rail| self.raise(Lane { peer: rank, rail }));
            self.list(rank);
        }
    }

    /// Handles a rail that passes requests, for the first time or again.
    pub(super) fn is_up(&mut self, lane: Lane) {
        let Some(peer) = self.peers.get_mut(&lane.peer) else { return };
        match &mut peer.failover {
            Some(failover) => {
                failover.passes(lane.rail);
                self.raise(lane);
            }
            None => peer.lanes.set_up(lane.rail, true),
        }
        self.list(lane.peer);
    }

    /// Uses a rail again once both ends have settled its cut.
    fn raise(&mut self, lane: Lane) {
        let Some(Peer { failover: Some(failover), lanes, .. }) = self.peers.get_mut(&lane.peer) else { return };
        if failover.is_settled(lane.rail) && !lanes.is_up(lane.rail) {
            lanes.set_up(lane.rail, true);
            let stuck = failover.take_stuck();
            self.send_on(lane.peer, stuck);
        }
    }

    /// Applies the peer's answer for a cut rail: requests that did not take effect, and all behind them, move
    /// to other rails.
    fn settle(&mut self, lane: Lane, came: u32) -> Result<(), PeerFailure> {
        let Lane { peer: rank, rail } = lane;
        let Some(Peer { failover: Some(failover), lanes, .. }) = self.peers.get_mut(&rank) else { return Ok(()) };
        let [done, again] = failover.settle(rail, lanes.take_went(rail), came)?;
        let now = self.wire.now();
        for item in done {
            match item {
                Item::Packet { memory, .. } => self.wire.give(memory),
                Item::Posted(done) => self.moved(stripe_token(done.id, done.rail), now),
                Item::Unposted(_) | Item::Reply(_) => {}
            }
        }
        self.send_on(rank, again);
        self.raise(lane);
        self.list(rank);
        Ok(())
    }

    /// Queues requests for other rails. Those of one message use one rail and keep their order, so that no
    /// FIN precedes its write.
    fn send_on(&mut self, rank: Rank, items: Vec<Item<W::Memory>>) {
        let mut again: Vec<(Option<usize>, Item<W::Memory>)> = Vec::new();
        for item in items {
            match item {
                Item::Posted(mut next) => {
                    next.any = Rails::default();
                    let before = again.iter().find_map(|(rail, item)| match item {
                        Item::Posted(of) if of.id == next.id => Some(*rail),
                        _ => None,
                    });
                    let rail = before.unwrap_or_else(|| self.other_rail(rank, &next));
                    next.rail = rail.unwrap_or(next.rail);
                    again.push((rail, Item::Posted(next)));
                }
                Item::Unposted(mut next) => match (self.other_rail(rank, &next), self.peers.get_mut(&rank)) {
                    (Some(rail), Some(peer)) => {
                        (next.rail, next.any) = (rail, Rails::default());
                        peer.transfers.push(next);
                    }
                    _ => again.push((None, Item::Unposted(next))),
                },
                Item::Reply(body) => {
                    // FINs follow their writes in order: a waiting FIN belongs to the last write without one.
                    let write = again.iter_mut().rev().find_map(|(_, item)| match item {
                        Item::Posted(of) if of.fin.is_none() && self.is_fin_of(&body, of) => Some(of),
                        _ => None,
                    });
                    match (write, self.peers.get_mut(&rank)) {
                        (Some(write), _) => write.fin = Some(body),
                        (None, Some(peer)) => peer.tx.reply(body, None),
                        (None, None) => {}
                    }
                }
                Item::Packet { memory, length, went } => {
                    let mut head = [0; LONGEST];
                    let head = &mut head[..length.min(LONGEST)];
                    memory.read(0, head);
                    let body = Packet::decode(head, length).map(|(packet, _)| packet.body);
                    let mut before = again.iter().filter_map(|(rail, item)| match item {
                        Item::Posted(of) => body.as_ref().is_ok_and(|body| self.is_fin_of(body, of)).then_some(*rail),
                        _ => None,
                    });
                    let any = || self.peers.get(&rank)?.lanes.up().iter().position(|up| *up);
                    let rail = before.next().unwrap_or_else(any);
                    again.push((rail, Item::Packet { memory, length, went }));
                }
            }
        }
        if let Some(Peer { failover: Some(failover), .. }) = self.peers.get_mut(&rank) {
            failover.queue(again);
        }
    }

    /// Returns true if a packet is a FIN for the message of a write.
    fn is_fin_of(&self, body: &Body, of: &Transfer) -> bool {
        let answered = match self.requests.get(of.id) {
            Some(Request::Send(send)) if of.writes => send.receiver,
            _ => None,
        };
        matches!(body, Body::Fin { receiver, .. } if answered == Some(*receiver))
    }

    /// A rail that can take a write or read now.
    fn other_rail(&mut self, rank: Rank, next: &Transfer) -> Option<usize> {
        let peer = self.peers.get(&rank)?;
        let request = self.requests.get_mut(next.id)?;
        if matches!(request, Request::Receive(Receive { moving: None, .. })) {
            return None;
        }
        request.forget_times();
        let (memory, keys) = request.memory()?;
        let keys = keys.get_or_insert_default();
        let rails = &self.routes[peer.near].rails;
        (0..rails.len()).find(|rail| {
            let can = if next.writes { rails[*rail].write } else { rails[*rail].read };
            let there = peer.lanes.is_up(*rail) && can && next.keys[*rail].is_some();
            if there && keys[*rail].is_none() {
                keys[*rail] = self.wire.register(memory, Lane { peer: rank, rail: *rail });
            }
            there && keys[*rail].is_some()
        })
    }

    /// Posts a notice, or a request again.
    pub(super) fn post_again(&mut self, rank: Rank) -> Step {
        let Some(peer) = self.peers.get_mut(&rank) else { return Step::Waits };
        let Some(failover) = peer.failover.as_mut() else { return Step::Waits };
        if let Some((cut, body)) = failover.notice() {
            // A notice may also take a rail that passes again, before other requests may.
            let rails = 0..self.routes[peer.near].rails.len();
            let mut rails = rails.filter(|rail| peer.lanes.is_up(*rail) || failover.is_passing(*rail));
            let packet = Packet { source: self.rank, sequence: 0, values: peer.credits.values(), body };
            let mut head = [0; LONGEST];
            let header = packet.encode(&mut head);
            let head = &head[..header];
            let post = |rail| {
                let request = wire::Request::Send { head, body: Data::None };
                self.wire.post(Lane { peer: rank, rail }, request).is_ok()
            };
            if rails.any(post) {
                failover.notified(cut);
                return Step::Posted;
            }
            return Step::Busy;
        }
        let Some((rail, item)) = failover.next() else { return Step::Waits };
        let lane = Lane { peer: rank, rail };
        let item = match item {
            Item::Packet { memory, length, went } => {
                let body = Data::Of(Part { memory: &memory, at: 0, length });
                if self.wire.post(lane, wire::Request::Send { head: &[], body }).is_ok() {
                    peer.lanes.sent(rail, false);
                    self.wire.give(memory);
                    self.counters.rerouted += 1;
                    return Step::Posted;
                }
                Item::Packet { memory, length, went }
            }
            Item::Posted(next) => match self.hand_over(rank, next) {
                None => {
                    self.counters.rerouted += 1;
                    return Step::Posted;
                }
                Some(next) => Item::Posted(next),
            },
            other => other,
        };
        if let Some(Peer { failover: Some(failover), .. }) = self.peers.get_mut(&rank) {
            failover.put_back(rail, item);
        }
        Step::Busy
    }
}

/// Returns true if a packet that was posted is a notice of a cut, which neither end counts.
fn is_notice(memory: &impl WireMemory, length: usize) -> bool {
    let mut kind = [0];
    memory.read(0, &mut kind[..length.min(1)]);
    kind == [Body::CUT]
}
