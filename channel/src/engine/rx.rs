//! Receive: polls events of the wire, and handles packets of queues and rings in order.

use super::parts::receive::{Gathering, Held};
use super::request::{Request, Unexpected, UnexpectedBody, cost};
use super::{Engine, RecvTarget};
use crate::error::{Error, PeerFailure};
use crate::matching::Label;
use crate::packet::{Body, Envelope, LONGEST, Packet};
use crate::pipe;
use crate::ring::RingConfig;
use crate::sequence::Arrival;
use crate::slab::Id;
use crate::wire::{Event, Lane, Part, RailKind, Rank, Wire, WireMemory};

/// A packet for a request that does not exist, or belongs to another rank.
pub(super) const STRAY: PeerFailure = PeerFailure::Broken("it named a request that is not its own");
/// A packet that the peer may send only after an answer. Without this, answers to a peer that takes none would be kept
/// without bound.
pub(super) const HASTY: PeerFailure = PeerFailure::Broken("it sent the next request before an answer");

impl<W: Wire> Engine<W> {
    pub(super) fn take_events(&mut self) -> usize {
        let mut taken = 0;
        // Cuts are answered once the wire is empty, not as soon as it has worked. It becomes empty within this loop:
        // each peer sends at most its window, and nothing is acknowledged here.
        while taken < self.config.batch || !self.answers.is_empty() {
            let Some(event) = self.wire.poll() else {
                self.answer_cuts();
                break;
            };
            taken += 1;
            match event {
                Event::Up(lane) => self.wired(lane),
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
                        let told = record.rings.incoming.as_mut().map(|ring| ring.half.told());
                        if told != Some(Ok(())) {
                            self.fail(peer, PeerFailure::Broken("it announced a message to a full or missing ring"));
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

    /// The wire has connected a rail.
    fn wired(&mut self, lane: Lane) {
        if self.reach(lane.peer).is_err() {
            return;
        }
        let peer = self.peers.get_mut(&lane.peer).expect("the peer is known");
        let routes = &self.routes[peer.near];
        let by_choice = routes.is_mixed && routes.rails[lane.rail].kind == RailKind::Connection;
        peer.lanes.set_wired(lane.rail);
        if by_choice {
            let is_held = peer.lanes.connection.is_held();
            peer.lanes.set_up(lane.rail, is_held);
            self.list(lane.peer);
        } else {
            self.is_up(lane);
        }
    }

    /// Handles a packet. `Ok(false)`: it is early in a ring, and must stay there.
    pub(super) fn packet(&mut self, from: Rank, part: Part<'_, W::Memory>, by_ring: bool) -> Result<bool, PeerFailure> {
        let mut head = [0; LONGEST];
        let head = &mut head[..part.length.min(LONGEST)];
        part.memory.read(part.at, head);
        let (packet, header) = Packet::decode(head, part.length)?;
        if packet.source != from {
            return Err(PeerFailure::Broken("it sent in the name of another rank"));
        }
        let peer = self.peers.get_mut(&from).expect("the peer is known");
        // Values of early and old packets count too: otherwise two peers could wait for values in packets
        // that each holds.
        peer.credited(packet.values)?;
        if peer.has_work() {
            self.list(from);
        }
        match packet.body {
            Body::Control => return Ok(true),
            // Peers send this through queues only. It may end the peer, or its ring, which is being read.
            Body::Cut { .. } if by_ring => return Err(PeerFailure::Broken("it reported a cut rail through a ring")),
            Body::Cut { rail, epoch, heard, came } => {
                return self.peer_cut(Lane { peer: from, rail: rail.into() }, epoch, heard, came).map(|()| true);
            }
            _ => {}
        }
        let peer = self.peers.get_mut(&from).expect("the peer is known");
        // Packets about rings and connections are not counted: otherwise peers that send nothing else would
        // replace each other for ever.
        let counts =
            !matches!(packet.body, Body::Join { .. } | Body::Leave { .. } | Body::Left { .. } | Body::Link { .. });
        let data = Part { at: part.at + header, length: part.length - header, ..part };
        match peer.rx.order.place(packet.sequence) {
            Arrival::Now => {
                self.handle(from, &packet.body, data)?;
                self.after(from)?;
            }
            Arrival::Early if by_ring => return Ok(false),
            Arrival::Early => {
                // Copied out of its slot: held packets must not take the slot that the missing one needs to arrive.
                let copy = self.wire.take(data.length).ok_or(PeerFailure::NoMemory)?;
                data.copy(&copy, 0);
                let held = peer.rx.hold(Held { length: data.length, packet, data: copy });
                self.counters.held += 1;
                self.counters.held_peak = self.counters.held_peak.max(held);
            }
            Arrival::Old => self.counters.old += 1,
            Arrival::TooFar => return Err(PeerFailure::Broken("it sent more than the window")),
        }
        if counts {
            self.count_packet(from);
        }
        Ok(true)
    }

    /// Handles the held packets that follow the expected one.
    fn after(&mut self, from: Rank) -> Result<(), PeerFailure> {
        loop {
            let peer = self.peers.get_mut(&from).expect("the peer is known");
            let next = peer.rx.order.advance();
            peer.credits.received(peer.rx.order.expected());
            self.credits.list(from, &mut peer.credits);
            let Some(Held { packet, data, length }) = next else { return Ok(()) };
            let handled = self.handle(from, &packet.body, Part { memory: &data, at: 0, length });
            self.wire.give(data);
            handled?;
        }
    }

    fn handle(&mut self, from: Rank, body: &Body, data: Part<'_, W::Memory>) -> Result<(), PeerFailure> {
        match *body {
            Body::Eager { envelope, sync } => {
                let label = self.admit(from, envelope, cost(envelope.length))?;
                if let Some((number, &id)) = self.matching.first(label)
                    && let Some(Request::Receive(receive)) = self.requests.get(id)
                    && let RecvTarget::Into(..) = receive.room
                {
                    self.matching.cancel(number);
                    self.deliver(id, from, envelope, data);
                    self.release(from, cost(envelope.length));
                    self.acknowledge(from, sync);
                    return Ok(());
                }
                // Without memory the peer fails. Its receive must stay posted until then, so that it ends
                // with the others.
                let copy = self.memory_for(envelope)?;
                data.copy(&copy, 0);
                self.sort(label, Unexpected { from, envelope, what: UnexpectedBody::Eager { data: copy, sync } });
            }
            Body::Piece { envelope, sync, at, length } => {
                self.gather(from, envelope, sync, (at, length.into()), data)?
            }
            Body::Rts { envelope, sender, keys } => {
                let label = self.admit(from, envelope, cost(0))?;
                let keys = keys.iter().any(Option::is_some).then(|| Box::new(keys));
                self.sort(label, Unexpected { from, envelope, what: UnexpectedBody::Rts { sender, keys } });
            }
            Body::Cts { sender, receiver, mover, length, keys } => {
                self.answered(from, sender, receiver, mover, length, keys)?;
            }
            Body::Ack { sender } => {
                self.sending(from, sender)?.state.acked()?;
                self.ended(sender);
            }
            Body::Discarded { sender } => {
                self.sending(from, sender)?.state.acked()?;
                self.complete(sender, Err(Error::Discarded { rank: from }));
            }
            Body::Nak { receiver } => self.refused(from, receiver)?,
            Body::Data { receiver, offset, .. } => self.data(from, receiver, offset, data)?,
            Body::Fin { receiver, lanes } => {
                self.moving(from, receiver)?.state.fin(lanes)?;
                self.arrived_whole(receiver);
            }
            Body::Join { ring, slots, bytes, key } => {
                self.ring_offered(from, ring, RingConfig { slots, bytes }, key)?
            }
            Body::Leave { ring } => self.ring_taken_back(from, ring)?,
            Body::Left { ring } => self.ring_left(from, ring)?,
            Body::Link { say } => self.link_message(from, say)?,
            Body::Control | Body::Cut { .. } => unreachable!("unsequenced packets are handled above"),
        }
        Ok(())
    }

    /// Handles a piece of an eager message, from byte `at` on. After its last piece the message is handled as
    /// if it had arrived whole: no later message of its sender precedes it.
    fn gather(
        &mut self,
        from: Rank,
        envelope: Envelope,
        sync: Option<Id>,
        (at, length): (u64, u64),
        data: Part<'_, W::Memory>,
    ) -> Result<(), PeerFailure> {
        if self.peers[&from].rx.is_first(envelope, sync, at)? {
            self.admit(from, envelope, cost(envelope.length))?;
            let memory = self.memory_for(envelope)?;
            self.peers.get_mut(&from).expect("the sender is known").rx.begin(envelope, sync, memory);
        }
        let rx = &mut self.peers.get_mut(&from).expect("the sender is known").rx;
        data.copy(rx.memory().expect("the message has begun"), at as usize);
        if let Some(Gathering { memory, .. }) = rx.gathered(length) {
            let what = UnexpectedBody::Eager { data: memory, sync };
            self.sort(label(from, envelope), Unexpected { from, envelope, what });
        }
        Ok(())
    }

    /// Counts a message, or fails if its sender had no credit for it.
    fn admit(&mut self, from: Rank, envelope: Envelope, cost: u64) -> Result<Label, PeerFailure> {
        let peer = self.peers.get_mut(&from).expect("the peer is known");
        self.credits.admit(&mut peer.credits, cost)?;
        Ok(label(from, envelope))
    }

    /// Memory for an admitted message. Without memory the message is lost.
    fn memory_for(&mut self, envelope: Envelope) -> Result<W::Memory, PeerFailure> {
        let memory = usize::try_from(envelope.length).ok().and_then(|length| self.wire.take(length));
        if memory.is_none() {
            self.credits.forget(cost(envelope.length));
        }
        memory.ok_or(PeerFailure::NoMemory)
    }

    /// Passes a message to its posted receive, or stores it as unexpected.
    fn sort(&mut self, label: Label, message: Unexpected<W::Memory>) {
        if let Some(id) = self.matching.arrived(label) {
            self.matched(id, message, true);
            return;
        }
        if self.failures.teams.is_closed(label.context) {
            self.release(message.from, message.cost());
            self.discard(message);
            return;
        }
        self.matching.keep(label, message);
        self.counters.unexpected += 1;
        self.counters.unexpected_peak = self.counters.unexpected_peak.max(self.credits.kept());
    }

    /// Drops a message that no receive will match, and whose credit was returned. A sender that waits for it
    /// is notified.
    pub(super) fn discard(&mut self, message: Unexpected<W::Memory>) {
        self.counters.discarded += 1;
        let sender = match message.what {
            UnexpectedBody::Eager { data, sync } => {
                self.wire.give(data);
                sync
            }
            UnexpectedBody::Rts { sender, .. } => Some(sender),
        };
        if let Some(sender) = sender {
            self.reply(message.from, Body::Discarded { sender });
        }
    }
}

fn label(source: Rank, Envelope { context, tag, .. }: Envelope) -> Label {
    Label { context, source, tag }
}
