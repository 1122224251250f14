//! Rails that are cut: what was posted on them goes by others, once, and in the end they are used again.
//!
//! Each end takes back what it had posted and asks the other, by another rail, how many packets had come by the lane. A lane is in
//! order: so what was posted before the last of those has taken effect, and the rest is posted again. Packets have their places
//! in the sequence, so that one that came after all is dropped. A write is done again only while its FIN has not come: until then the
//! memory is the receiver's, and the same bytes do no harm; its FIN follows it on its new lane. Reads are done again in any case.
//!
//! An end answers once it has ended its own lane and has polled all that came by it. A lane is used again once its end has its answer
//! and has given its own. A ring is left with its rail; what had come to it is received.

use super::Engine;
use super::cuts::{Cut, Item, split_off};
use super::depart::{Step, stripe_token};
use super::peer::{Move, Peer, Reply};
use super::request::{Receive, Request};
use crate::error::Lost;
use crate::packet::{Body, LONGEST, Packet};
use crate::pipe;
use crate::slab::Id;
use crate::striping::Rails;
use crate::wire::{self, Data, Lane, Left, Part, Rank, Why, Wire};

/// Whether a peer takes back a ring that was left with its rail.
pub(super) fn was_left_for_a_cut<M>(peer: &mut Peer<M>, ring: u16) -> bool {
    peer.failover.as_mut().is_some_and(|failover| failover.closed.take_if(|closed| *closed == ring).is_some())
}

impl<W: Wire> Engine<W> {
    /// A lane passes nothing any more.
    pub(super) fn cut(&mut self, lane: Lane) {
        let Lane { peer: rank, rail } = lane;
        let pipes = rail == 0 && self.pipes.to(rank).next().is_some();
        if !self.fails_over(rank) || pipes {
            // There is no other, or what goes by it cannot go by another.
            return self.fail(rank, Why::Unreachable.into());
        }
        if self.reach(rank).is_err() {
            return;
        }
        let peer = self.peers.get_mut(&rank).expect("was reached");
        let left = self.wire.take_back(lane);
        peer.up[rail] = false;
        peer.pulled[rail] = 0;
        let failover = peer.failover.get_or_insert_default();
        let mut items = Vec::new();
        // From the last: of stripes with one token the earlier may be done, and not be told yet.
        for left in left.into_iter().rev() {
            match left {
                Left::Send(memory, length) if is_notice(&self.wire, &memory, length) => {
                    self.wire.give(memory);
                    // It may be lost; and says no more than what is so now.
                    failover.lanes.iter_mut().for_each(|cut| cut.tell |= cut.epoch > 0);
                }
                Left::Send(memory, length) => items.push(Item::Packet { memory, length, went: true }),
                Left::Put(memory, length) => items.push(Item::Packet { memory, length, went: false }),
                Left::Moved(token) if pipe::is_token(token) => {}
                Left::Moved(token) => {
                    let at = peer.posted.iter().rposition(|(posted, _)| *posted == token);
                    items.extend(at.map(|at| Item::Move(peer.posted.remove(at).1)));
                }
            }
        }
        items.reverse();
        let replies = split_off(&mut peer.replies, |reply| reply.rail == Some(rail));
        items.extend(replies.into_iter().map(|reply| Item::Reply(reply.body)));
        items.extend(split_off(&mut peer.moves, |next| next.rail == rail).into_iter().map(Item::Unposted));
        for (_, item) in split_off(&mut failover.again, |(on, _)| *on == rail) {
            items.push(match item {
                Item::Packet { memory, length, .. } => Item::Packet { memory, length, went: false },
                other => other,
            });
        }
        let cut = &mut failover.lanes[rail];
        cut.up = false;
        // Where it was cut before it was asked what had come, only a ring has been written to since.
        cut.items.extend(items);
        if !cut.asks {
            cut.epoch += 1;
            (cut.asks, cut.tell) = (true, true);
        }
        if rail == 0 {
            peer.mark = None;
            if let Some(ring) = peer.ring_out.take() {
                failover.closed = Some(ring.ring);
            }
            if peer.ring_in.is_some() || peer.ring_polled.is_some() {
                self.leave_ring(rank);
            }
        }
        (0..self.rails_to(rank)).for_each(|rail| self.connect(Lane { peer: rank, rail }));
        self.list(rank);
    }

    /// The peer is asked to write to its ring no more, once.
    pub(super) fn leave_ring(&mut self, rank: Rank) {
        let Some(peer) = self.peers.get_mut(&rank) else { return };
        let ring = peer.values.ring;
        if peer.leaves.replace(ring) != Some(ring) {
            self.reply(rank, Body::Leave { ring });
        }
    }

    /// The peer says that a lane is cut, and perhaps what had come to it.
    pub(super) fn peer_cut(&mut self, lane: Lane, epoch: u32, heard: u32, came: u32) -> Result<(), Lost> {
        let Lane { peer: rank, rail } = lane;
        if !self.fails_over(rank) || rail >= self.rails_to(rank) {
            return Err(Lost::Broken("it speaks of a rail that there is not"));
        }
        let cut = |engine: &mut Self| {
            let peer = engine.peers.get_mut(&rank)?;
            let cut = &mut peer.failover.get_or_insert_default().lanes[rail];
            let news = epoch > cut.heard;
            if news {
                (cut.heard, cut.owes) = (epoch, true);
            }
            Some(news && !cut.asks)
        };
        let Some(ends) = cut(self) else { return Ok(()) };
        if ends {
            self.cut(lane);
        }
        let Some(peer) = self.peers.get_mut(&rank) else { return Ok(()) };
        let cut = &mut peer.failover.get_or_insert_default().lanes[rail];
        if cut.owes && !self.answers.contains(&rank) {
            self.answers.push(rank);
        }
        if cut.asks && heard == cut.epoch { self.settle(lane, came) } else { Ok(()) }
    }

    /// A packet came by a queue. Where there are several rails they are counted, but those that speak of cuts.
    pub(super) fn count_arrival(&mut self, lane: Lane, packet: Part<'_, W::Memory>) {
        let Some(peer) = self.peers.get_mut(&lane.peer).filter(|peer| self.routes[peer.near].fails_over) else {
            return;
        };
        let mut kind = [0];
        self.wire.read(packet.memory, packet.at, &mut kind[..packet.length.min(1)]);
        if kind != [Body::CUT] {
            peer.came[lane.rail] = peer.came[lane.rail].wrapping_add(1);
        }
    }

    /// All that came is taken: the peers are told how much it was.
    pub(super) fn answer_cuts(&mut self) {
        for rank in std::mem::take(&mut self.answers) {
            let Some(peer) = self.peers.get_mut(&rank) else { continue };
            let Some(failover) = peer.failover.as_mut() else { continue };
            for (rail, cut) in failover.lanes.iter_mut().enumerate().filter(|(_, cut)| cut.owes) {
                cut.owes = false;
                let came = std::mem::take(&mut peer.came[rail]);
                (cut.answer, cut.tell) = ((cut.heard, came), true);
            }
            (0..self.rails_to(rank)).for_each(|rail| self.raise(Lane { peer: rank, rail }));
            self.list(rank);
        }
    }

    /// A lane passes, for the first time or again.
    pub(super) fn is_up(&mut self, lane: Lane) {
        let Some(peer) = self.peers.get_mut(&lane.peer) else { return };
        match &mut peer.failover {
            Some(failover) => {
                failover.lanes[lane.rail].up = true;
                self.raise(lane);
            }
            None => peer.up[lane.rail] = true,
        }
        self.list(lane.peer);
    }

    fn raise(&mut self, lane: Lane) {
        let Some(peer) = self.peers.get_mut(&lane.peer) else { return };
        let Some(failover) = peer.failover.as_mut() else { return };
        let cut = &mut failover.lanes[lane.rail];
        if cut.up && !cut.asks && !cut.owes && !peer.up[lane.rail] {
            peer.up[lane.rail] = true;
            let stuck = std::mem::take(&mut failover.stuck);
            self.send_on(lane.peer, stuck);
        }
    }

    /// So many packets had come by a lane that was cut: those that did not, and what is behind, go by others.
    fn settle(&mut self, lane: Lane, came: u32) -> Result<(), Lost> {
        let Lane { peer: rank, rail } = lane;
        let Some(peer) = self.peers.get_mut(&rank) else { return Ok(()) };
        let cut = &mut peer.failover.get_or_insert_default().lanes[rail];
        cut.asks = false;
        let items = std::mem::take(&mut cut.items);
        let sent = items.iter().filter(|item| matches!(item, Item::Packet { went: true, .. })).count() as u32;
        let went = std::mem::take(&mut peer.went[rail]);
        let received = came.wrapping_sub(went.wrapping_sub(sent));
        if received > sent {
            return Err(Lost::Broken("it received what was not sent"));
        }
        let mut packets = (0..).zip(&items).filter(|(_, item)| matches!(item, Item::Packet { went: true, .. }));
        let effective =
            received.checked_sub(1).map_or(0, |last| packets.nth(last as usize).map_or(0, |(at, _)| at + 1));
        let mut rest = Vec::new();
        let now = self.wire.now();
        for (at, item) in items.into_iter().enumerate() {
            match item {
                Item::Packet { memory, .. } if at < effective => self.wire.give(memory),
                Item::Move(done) if at < effective && done.writes => self.moved(stripe_token(done.id, done.rail), now),
                other => rest.push(other),
            }
        }
        self.send_on(rank, rest);
        self.raise(lane);
        self.list(rank);
        Ok(())
    }

    /// Has these go by other rails, those of one message by one and in their order: so no FIN comes before a write that it tells of.
    fn send_on(&mut self, rank: Rank, items: Vec<Item<W::Memory>>) {
        let mut again: Vec<(Option<usize>, Item<W::Memory>)> = Vec::new();
        for item in items {
            match item {
                Item::Move(mut next) => {
                    next.any = Rails::default();
                    let before = again.iter().find_map(|(rail, item)| match item {
                        Item::Move(of) if of.id == next.id => Some(*rail),
                        _ => None,
                    });
                    let rail = before.unwrap_or_else(|| self.other_rail(rank, &next));
                    next.rail = rail.unwrap_or(next.rail);
                    again.push((rail, Item::Move(next)));
                }
                Item::Unposted(mut next) => match (self.other_rail(rank, &next), self.peers.get_mut(&rank)) {
                    (Some(rail), Some(peer)) => {
                        (next.rail, next.any) = (rail, Rails::default());
                        peer.moves.push_back(next);
                    }
                    _ => again.push((None, Item::Unposted(next))),
                },
                Item::Reply(body) => {
                    // FINs go in the order of their writes: one that waits is of the last write that has none.
                    let write = again.iter_mut().rev().find_map(|(_, item)| match item {
                        Item::Move(of)
                            if of.fin.is_none() && self.receiver_of(of).is_some_and(|id| is_fin(&body, id)) =>
                        {
                            Some(of)
                        }
                        _ => None,
                    });
                    match (write, self.peers.get_mut(&rank)) {
                        (Some(write), _) => write.fin = Some(body),
                        (None, Some(peer)) => peer.replies.push_back(Reply { body, rail: None }),
                        (None, None) => {}
                    }
                }
                Item::Packet { memory, length, went } => {
                    let mut head = [0; LONGEST];
                    let head = &mut head[..length.min(LONGEST)];
                    self.wire.read(&memory, 0, head);
                    let body = Packet::decode(head, length).map(|(packet, _)| packet.body);
                    let mut before = again.iter().filter_map(|(rail, item)| match item {
                        Item::Move(of) => {
                            let fin = |id| body.as_ref().is_ok_and(|body| is_fin(body, id));
                            self.receiver_of(of).filter(|id| fin(*id)).map(|_| *rail)
                        }
                        _ => None,
                    });
                    let any = || self.peers.get(&rank)?.up.iter().position(|up| *up);
                    let rail = before.next().unwrap_or_else(any);
                    again.push((rail, Item::Packet { memory, length, went }));
                }
            }
        }
        let Some(failover) = self.peers.get_mut(&rank).and_then(|peer| peer.failover.as_mut()) else { return };
        for (rail, item) in again {
            match rail {
                Some(rail) => failover.again.push_back((rail, item)),
                None => failover.stuck.push(item),
            }
        }
    }

    /// The receiver's request of a write.
    fn receiver_of(&self, of: &Move) -> Option<Id> {
        match self.requests.get(of.id)? {
            Request::Send(send) if of.writes => send.receiver,
            _ => None,
        }
    }

    /// A rail that a write or read can go by now.
    fn other_rail(&mut self, rank: Rank, next: &Move) -> Option<usize> {
        let peer = self.peers.get(&rank)?;
        let (memory, keys, timed) = match self.requests.get_mut(next.id)? {
            Request::Send(send) => (&send.memory, &mut send.keys, &mut send.timed),
            Request::Receive(Receive { room: super::Room::Into(memory, _), keys, moving: Some(moving), .. }) => {
                (&*memory, keys, &mut moving.timed)
            }
            _ => return None,
        };
        // What went another way than it was cut for teaches nothing.
        *timed = None;
        let keys = keys.get_or_insert_default();
        let rails = &self.routes[peer.near].rails;
        (0..rails.len()).find(|rail| {
            let can = if next.writes { rails[*rail].write } else { rails[*rail].read };
            let there = peer.up[*rail] && can && next.keys[*rail].is_some();
            if there && keys[*rail].is_none() {
                keys[*rail] = self.wire.register(memory, Lane { peer: rank, rail: *rail });
            }
            there && keys[*rail].is_some()
        })
    }

    /// Posts a notice, or something again.
    pub(super) fn post_again(&mut self, rank: Rank) -> Step {
        let Some(peer) = self.peers.get_mut(&rank) else { return Step::Waits };
        if peer.failover.is_none() {
            return Step::Waits;
        }
        let (values, up) = (peer.values, peer.up);
        let Some(failover) = peer.failover.as_mut() else { return Step::Waits };
        if let Some(told) = failover.lanes.iter().position(|cut| cut.tell) {
            let Cut { epoch, answer: (heard, came), .. } = failover.lanes[told];
            let body = Body::Cut { rail: told as u8, epoch, heard, came };
            // By a lane that passes again, too, though nothing else may go by it yet.
            let mut rails =
                (0..self.routes[peer.near].rails.len()).filter(|rail| up[*rail] || failover.lanes[*rail].up);
            let packet = Packet { source: self.rank, sequence: 0, values, body };
            let mut head = [0; LONGEST];
            let header = packet.encode(&mut head);
            let head = &head[..header];
            let mut post = |rail| {
                let request = wire::Request::Send { head, body: Data::None };
                self.wire.post(Lane { peer: rank, rail }, request).is_ok()
            };
            if rails.any(&mut post) {
                failover.lanes[told].tell = false;
                return Step::Posted;
            }
            return Step::Busy;
        }
        let Some((rail, item)) = failover.again.pop_front() else { return Step::Waits };
        let lane = Lane { peer: rank, rail };
        let item = match item {
            Item::Packet { memory, length, went } => {
                let body = Data::Of(Part { memory: &memory, at: 0, length });
                if self.wire.post(lane, wire::Request::Send { head: &[], body }).is_ok() {
                    peer.went[rail] = peer.went[rail].wrapping_add(1);
                    self.wire.give(memory);
                    self.meter.rerouted += 1;
                    return Step::Posted;
                }
                Item::Packet { memory, length, went }
            }
            Item::Move(next) => match self.hand_over(rank, next) {
                None => {
                    self.meter.rerouted += 1;
                    return Step::Posted;
                }
                Some(next) => Item::Move(next),
            },
            other => other,
        };
        if let Some(failover) = self.peers.get_mut(&rank).and_then(|peer| peer.failover.as_mut()) {
            failover.again.push_front((rail, item));
        }
        Step::Busy
    }

    /// A write or read has ended.
    pub(super) fn forget_posted(&mut self, id: Id, token: u64) -> Option<Move> {
        let rank = match self.requests.get(id)? {
            Request::Send(send) => send.to,
            Request::Receive(Receive { moving: Some(moving), .. }) => moving.from,
            _ => return None,
        };
        let posted = &mut self.peers.get_mut(&rank)?.posted;
        let at = posted.iter().position(|(posted, _)| *posted == token)?;
        Some(posted.remove(at).1)
    }
}

fn is_fin(body: &Body, id: Id) -> bool {
    matches!(body, Body::Fin { receiver, .. } if *receiver == id)
}

/// Whether a packet that was posted says that a lane is cut: it is counted by neither end.
fn is_notice<W: Wire>(wire: &W, memory: &W::Memory, length: usize) -> bool {
    let mut kind = [0];
    wire.read(memory, 0, &mut kind[..length.min(1)]);
    kind == [Body::CUT]
}
