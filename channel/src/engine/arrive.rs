//! What comes: events of the wire, packets of queues and rings.

use super::failover::was_left_for_a_cut;
use super::peer::{Gathering, Held, Reply, RingIn};
use super::request::{Request, Unexpected, What, cost};
use super::{Engine, Room};
use crate::error::{Error, Lost};
use crate::matching::Label;
use crate::packet::{Body, Envelope, LONGEST, Packet};
use crate::pipe;
use crate::polling::Change;
use crate::ring::{Look, Receiver, Sender, Shape};
use crate::sequence::Place;
use crate::slab::Id;
use crate::wire::{Event, Lane, Part, RailKind, Rank, Wire};

/// A packet that comes for a request which is not there, or another rank's.
pub(super) const STRAY: Lost = Lost::Broken("a packet for no request of it");
/// Else answers to a peer that takes none would be kept without bound.
pub(super) const HASTY: Lost = Lost::Broken("it said the next before it had an answer");

impl<W: Wire> Engine<W> {
    pub(super) fn take_events(&mut self) -> usize {
        let mut taken = 0;
        // A cut is answered when the wire is empty, and not as soon as it has worked. Empty it becomes within this loop: each peer sends a
        // window at most, and nothing is acknowledged here.
        while taken < self.config.batch || !self.answers.is_empty() {
            let Some(event) = self.wire.poll() else {
                self.answer_cuts();
                break;
            };
            taken += 1;
            match event {
                Event::Up(lane) => {
                    if self.reach(lane.peer).is_ok() {
                        let peer = self.peers.get_mut(&lane.peer).expect("was reached");
                        let routes = &self.routes[peer.near];
                        let by_choice = routes.is_mixed && routes.rails[lane.rail].kind == RailKind::Connection;
                        peer.wired[lane.rail] = true;
                        if by_choice {
                            peer.up[lane.rail] = peer.connection.is_held();
                            self.list(lane.peer);
                        } else {
                            self.is_up(lane);
                        }
                    }
                }
                Event::Done(token, _) if pipe::is_token(token) => self.pipe_moved(token),
                Event::Done(token, at) => self.moved(token, at),
                Event::Arrived { lane, slot, at, length } => {
                    let part = Part { memory: &slot, at, length };
                    let taken = if self.reach(lane.peer).is_ok() {
                        self.count_arrival(lane, part);
                        self.packet(lane.peer, part, false)
                    } else {
                        Ok(true)
                    };
                    self.wire.give(slot);
                    if let Err(lost) = taken {
                        self.fail(lane.peer, lost);
                    }
                }
                Event::Immediate(Lane { peer, .. }, value) if pipe::number_of(value).is_some() => {
                    self.pipe_told(peer, value);
                }
                Event::Immediate(Lane { peer, .. }, _) => {
                    if let Some(record) = self.peers.get_mut(&peer) {
                        let told = record.ring_in.as_mut().map(|ring| ring.half.told());
                        if told != Some(Ok(())) {
                            self.fail(peer, Lost::Broken("it told of a message in a ring that has no room for it"));
                        }
                    }
                }
                Event::Failed(lane, why) => {
                    self.empty_ring(lane.peer);
                    self.fail(lane.peer, why.into());
                }
                Event::Cut(lane) => self.cut(lane),
                Event::Worked if self.answers.is_empty() => break,
                Event::Worked => {}
            }
        }
        taken
    }

    pub(super) fn poll_rings(&mut self) -> usize {
        let mut taken = 0;
        let mut polled = std::mem::take(&mut self.turn);
        let sets = self.polling.both().iter().filter(|polling| !polling.is_empty());
        sets.for_each(|polling| polling.turn_into(&mut polled));
        for rank in polled.drain(..) {
            taken += self.poll_ring(rank);
        }
        self.turn = polled;
        taken
    }

    /// Takes all that lies in the ring of a peer: what it had sent whole is received though it is lost. No more than there is room for:
    /// it might go on to send.
    fn empty_ring(&mut self, rank: Rank) {
        let mut left = self.peers.get(&rank).map_or(0, |peer| peer.ring.slots as usize);
        while left > 0 {
            match self.poll_ring(rank) {
                0 => break,
                taken => left = left.saturating_sub(taken),
            }
        }
    }

    /// Takes what lies in the ring of a peer, a batch at most.
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
        let Some(peer) = self.peers.get_mut(&rank) else { return taken };
        let Some(mut ring) = peer.ring_in.take() else { return taken };
        peer.ring_polled = Some(ring.half.ring);
        let mut outcome = Ok(());
        for _ in 0..left {
            let Some(place) = ring.half.place() else { break };
            let packet = match ring.half.look(self.wire.word(&ring.memory, place)) {
                Look::Empty => break,
                Look::Broken => Err(Lost::Broken("a mark in its ring that it cannot have written")),
                Look::Message { at, length } => self.packet(rank, Part { memory: &ring.memory, at, length }, true),
            };
            match packet {
                // It is not its turn: it stays where it is, and so do those behind it.
                Ok(false) => break,
                Ok(true) => {
                    let freed = ring.half.free();
                    self.peers.get_mut(&rank).expect("it sent this").values.freed = freed;
                    self.owe(rank);
                    taken += 1;
                }
                Err(lost) => {
                    outcome = Err(lost);
                    break;
                }
            }
        }
        let peer = self.peers.get_mut(&rank).expect("it has a ring");
        if peer.ring_polled.take().is_some() {
            peer.ring_in = Some(ring);
        } else {
            self.drop_ring(rank, ring);
        }
        if let Err(lost) = outcome {
            self.fail(rank, lost);
        }
        taken
    }

    /// A packet is there. `Ok(false)`: it came by a ring, before its turn, and must stay there.
    fn packet(&mut self, from: Rank, part: Part<'_, W::Memory>, by_ring: bool) -> Result<bool, Lost> {
        let mut head = [0; LONGEST];
        let head = &mut head[..part.length.min(LONGEST)];
        self.wire.read(part.memory, part.at, head);
        let (packet, header) = Packet::decode(head, part.length)?;
        if packet.source != from {
            return Err(Lost::Broken("it sent in the name of another rank"));
        }
        let peer = self.peers.get_mut(&from).expect("was reached");
        // Also from what is early or old: else two peers could wait for what each of them holds.
        peer.credited(packet.values)?;
        if peer.has_work() {
            self.list(from);
        }
        match packet.body {
            Body::Control => return Ok(true),
            // Peers say this by queues. It may end the peer, or its ring, which is being read.
            Body::Cut { .. } if by_ring => return Err(Lost::Broken("it said by a ring that a rail is cut")),
            Body::Cut { rail, epoch, heard, came } => {
                return self.peer_cut(Lane { peer: from, rail: rail.into() }, epoch, heard, came).map(|()| true);
            }
            _ => {}
        }
        let peer = self.peers.get_mut(&from).expect("was reached");
        // Those about rings themselves do not: else peers that say nothing else would take turns for ever.
        let speaks =
            !matches!(packet.body, Body::Join { .. } | Body::Leave { .. } | Body::Left { .. } | Body::Link { .. });
        let data = Part { at: part.at + header, length: part.length - header, ..part };
        match peer.incoming.place(packet.sequence) {
            Place::Now => {
                self.handle(from, &packet.body, data)?;
                self.after(from)?;
            }
            Place::Early if by_ring => return Ok(false),
            Place::Early => {
                // Out of its slot: held packets must not take what the missing one needs to arrive.
                let copy = self.wire.take(data.length).ok_or(Lost::NoMemory)?;
                self.wire.copy(data, &copy, 0);
                peer.incoming.hold(packet.sequence, Held { length: data.length, packet, data: copy });
                self.meter.held += 1;
                self.meter.held_peak = self.meter.held_peak.max(peer.incoming.held() as u64);
            }
            Place::Old => self.meter.old += 1,
            Place::TooFar => return Err(Lost::Broken("it sent more than the window")),
        }
        let peer = &self.peers[&from];
        if speaks && !peer.ring_refused && peer.up[0] {
            match self.polling[peer.near].packet(from) {
                Some(Change::Join(peer)) => self.join(peer),
                Some(Change::Leave(peer)) => {
                    self.leave_ring(peer);
                }
                None => {}
            }
        }
        Ok(true)
    }

    /// The expected packet was handled: those held behind it follow.
    fn after(&mut self, from: Rank) -> Result<(), Lost> {
        loop {
            let peer = self.peers.get_mut(&from).expect("was reached");
            let next = peer.incoming.advance();
            peer.values.ack = peer.incoming.expected();
            self.owe(from);
            let Some(Held { packet, data, length }) = next else { return Ok(()) };
            let handled = self.handle(from, &packet.body, Part { memory: &data, at: 0, length });
            self.wire.give(data);
            handled?;
        }
    }

    fn handle(&mut self, from: Rank, body: &Body, data: Part<'_, W::Memory>) -> Result<(), Lost> {
        match *body {
            Body::Eager { envelope, sync } => {
                let label = self.admit(from, envelope, cost(envelope.length))?;
                if let Some((number, &id)) = self.matching.first(label)
                    && let Some(Request::Receive(receive)) = self.requests.get(id)
                    && let Room::Into(..) = receive.room
                {
                    self.matching.cancel(number);
                    self.deliver(id, from, envelope, data);
                    self.release(from, cost(envelope.length));
                    self.acknowledge(from, sync);
                    return Ok(());
                }
                // Before its receive is looked for: that is posted still, and ends with the others, where there is none.
                let copy = self.memory_for(envelope)?;
                self.wire.copy(data, &copy, 0);
                let posted = self.matching.arrived(label);
                self.sort(posted, label, Unexpected { from, envelope, what: What::Eager { data: copy, sync } });
            }
            Body::Piece { envelope, sync, at, length } => {
                self.gather(from, Gathering { envelope, sync, memory: (), at }, length.into(), data)?;
            }
            Body::Rts { envelope, sender, keys } => {
                let label = self.admit(from, envelope, cost(0))?;
                let posted = self.matching.arrived(label);
                let keys = keys.iter().any(Option::is_some).then(|| Box::new(keys));
                self.sort(posted, label, Unexpected { from, envelope, what: What::Rts { sender, keys } });
            }
            Body::Cts { sender, receiver, mover, length, keys } => {
                self.answered(from, sender, receiver, mover, length, keys)?;
            }
            Body::Ack { sender } => {
                let send = self.sending(from, sender)?;
                send.state.acked()?;
                self.ended(sender);
            }
            Body::Discarded { sender } => {
                let send = self.sending(from, sender)?;
                send.state.acked()?;
                self.complete(sender, Err(Error::Discarded { rank: from }));
            }
            Body::Nak { receiver } => self.refused(from, receiver)?,
            Body::Data { receiver, offset, .. } => self.data(from, receiver, offset, data)?,
            Body::Fin { receiver, lanes } => {
                self.moving(from, receiver)?.state.fin(lanes)?;
                self.arrived_whole(receiver);
            }
            Body::Join { ring, slots, bytes, key } => {
                let shape = Shape { slots, bytes };
                let peer = self.peers.get_mut(&from).expect("was reached");
                if !shape.is_sound() || peer.ring_out.is_some() {
                    return Err(Lost::Broken("it offered a ring that cannot be"));
                }
                if peer.replies.iter().any(|reply| matches!(reply.body, Body::Left { .. })) {
                    return Err(HASTY);
                }
                peer.ring_out = Some(Sender::new(ring, shape, key).turning(shape.lap(peer.window)));
                // Whether something is in its way, such as a connection that is being given up, is looked at anew.
                self.list(from);
            }
            Body::Leave { ring } => {
                let peer = self.peers.get_mut(&from).expect("was reached");
                if peer.ring_out.take_if(|out| out.ring == ring).is_none() && !was_left_for_a_cut(peer, ring) {
                    return Err(Lost::Broken("it took back a ring that it has not given"));
                }
                self.reply(from, Body::Left { ring });
            }
            Body::Left { ring } => {
                let peer = self.peers.get_mut(&from).expect("was reached");
                if let Some(ring) = peer.ring_in.take_if(|incoming| incoming.half.ring == ring) {
                    self.drop_ring(from, ring);
                } else if peer.ring_polled.take_if(|polled| *polled == ring).is_none() {
                    return Err(Lost::Broken("it left a ring that it does not have"));
                }
            }
            Body::Link { say } => self.told_of_link(from, say)?,
            Body::Control | Body::Cut { .. } => unreachable!("has no place in the sequence"),
        }
        Ok(())
    }

    /// A piece of a message that goes unasked. Once the last is there it is as if it had come whole: nothing that its sender sent
    /// later comes before.
    fn gather(&mut self, from: Rank, piece: Gathering<()>, length: u64, data: Part<'_, W::Memory>) -> Result<(), Lost> {
        let Gathering { envelope, sync, at, .. } = piece;
        let peer = self.peers.get_mut(&from).expect("it sent this");
        let mut gathering = match peer.gathering.take() {
            None if at == 0 => {
                self.admit(from, envelope, cost(envelope.length))?;
                Gathering { envelope, sync, memory: self.memory_for(envelope)?, at: 0 }
            }
            Some(begun) if begun.at == at && (begun.envelope, begun.sync) == (envelope, sync) => begun,
            begun => {
                peer.gathering = begun;
                return Err(Lost::Broken("a piece that is not the next of its message"));
            }
        };
        self.wire.copy(data, &gathering.memory, at as usize);
        gathering.at = at + length;
        if gathering.at < envelope.length {
            self.peers.get_mut(&from).expect("it sent this").gathering = Some(gathering);
            return Ok(());
        }
        let label = label(from, envelope);
        let posted = self.matching.arrived(label);
        let what = What::Eager { data: gathering.memory, sync };
        self.sort(posted, label, Unexpected { from, envelope, what });
        Ok(())
    }

    /// A message came that was granted, or its sender is cut off.
    fn admit(&mut self, from: Rank, envelope: Envelope, cost: u64) -> Result<Label, Lost> {
        let peer = self.peers.get_mut(&from).expect("was reached");
        if !peer.joined {
            peer.joined = true;
            self.budget.join(&mut peer.grant);
            peer.regrant();
        }
        self.budget.arrived(&mut peer.grant, cost)?;
        self.kept += cost;
        Ok(label(from, envelope))
    }

    /// Memory for a message that was admitted. Where there is none it is not kept.
    fn memory_for(&mut self, envelope: Envelope) -> Result<W::Memory, Lost> {
        let memory = usize::try_from(envelope.length).ok().and_then(|length| self.wire.take(length));
        if memory.is_none() {
            self.kept -= cost(envelope.length);
        }
        memory.ok_or(Lost::NoMemory)
    }

    /// A message goes to the receive that was posted for it, or is kept.
    fn sort(&mut self, posted: Option<Id>, label: Label, message: Unexpected<W::Memory>) {
        if let Some(id) = posted {
            self.matched(id, message, true);
            return;
        }
        if self.teams.is_closed(label.context) {
            self.release(message.from, message.cost());
            self.discard(message);
            return;
        }
        self.matching.keep(label, message);
        self.meter.unexpected += 1;
        self.meter.unexpected_peak = self.meter.unexpected_peak.max(self.kept);
    }

    /// A message that no receive will take, and whose credit has gone back: a sender that waits for it is told.
    pub(super) fn discard(&mut self, message: Unexpected<W::Memory>) {
        self.meter.discarded += 1;
        let sender = match message.what {
            What::Eager { data, sync } => {
                self.wire.give(data);
                sync
            }
            What::Rts { sender, .. } => Some(sender),
        };
        if let Some(sender) = sender {
            self.reply(message.from, Body::Discarded { sender });
        }
    }

    fn join(&mut self, rank: Rank) {
        let peer = self.peers.get_mut(&rank).expect("was reached");
        let shape = peer.ring;
        let ring = self.wire.ring(rank, shape.size());
        let (Some((memory, key)), Some(marker)) = (ring, self.routes[peer.near].marker) else {
            peer.ring_refused = true;
            self.polling[peer.near].left(rank);
            return;
        };
        peer.values.ring = peer.values.ring.wrapping_add(1);
        let ring = peer.values.ring;
        (peer.values.freed, peer.told.freed) = (0, 0);
        peer.ring_in = Some(RingIn { half: Receiver::new(ring, shape, marker).turning(shape.lap(0)), memory, key });
        peer.published = None;
        self.publish(rank);
        self.meter.joins += 1;
        self.reply(rank, Body::Join { ring, slots: shape.slots, bytes: shape.bytes, key });
    }

    /// The peer has left its ring, and will write there no more.
    fn drop_ring(&mut self, rank: Rank, ring: RingIn<W::Memory>) {
        let peer = self.peers.get_mut(&rank).expect("it has a ring");
        (peer.values.freed, peer.told.freed) = (0, 0);
        peer.published = None;
        self.wire.release(Lane { peer: rank, rail: 0 }, ring.key);
        self.wire.give(ring.memory);
        self.polling[peer.near].left(rank);
        self.meter.leaves += 1;
    }

    pub(super) fn reply(&mut self, to: Rank, body: Body) {
        if let Some(peer) = self.peers.get_mut(&to) {
            peer.replies.push_back(Reply { body, rail: None });
            self.list(to);
        }
    }
}

fn label(source: Rank, Envelope { context, tag, .. }: Envelope) -> Label {
    Label { context, source, tag }
}
