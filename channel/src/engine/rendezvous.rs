//! Rendezvous: messages that were matched, and the transfer of their data.

use super::request::{Moving, Receive, Request, Send, Unexpected, UnexpectedBody, outcome};
use super::rx::STRAY;
use super::tx::stripe_of;
use super::{Engine, RecvTarget};
use crate::error::{Error, PeerFailure, Status};
use crate::matching::Select;
use crate::packet::{Body, Envelope, Keys};
use crate::rendezvous::{Facts, Mover, Receiving, Sending, movers};
use crate::rules::Path;
use crate::slab::Id;
use crate::striping::Rails;
use crate::tuner::Protocol;
use crate::wire::{Key, Lane, Part, RAILS, RailKind, Rank, Wire};

impl<W: Wire> Engine<W> {
    pub(super) fn post_receive(&mut self, id: Id, select: Select) {
        if let Some((_, message)) = self.matching.take(self.failures.narrowed(select)) {
            self.matched(id, message, false);
            return;
        }
        if let Some(error) = self.never(select) {
            self.complete(id, Err(error));
            return;
        }
        let number = self.matching.post(select, id);
        if let Some(Request::Receive(receive)) = self.requests.get_mut(id) {
            receive.posted = Some(number);
        }
    }

    /// Handles a message that was matched.
    pub(super) fn matched(&mut self, id: Id, message: Unexpected<W::Memory>, receiver_first: bool) {
        let Some(Request::Receive(receive)) = self.requests.get_mut(id) else {
            unreachable!("only receives are matched")
        };
        receive.posted = None;
        let status = message.status();
        if let RecvTarget::Probe = receive.room {
            return self.requests.probed(id, message);
        }
        receive.room.make(message.envelope.length);
        self.release(message.from, message.cost());
        let Unexpected { from, envelope, what } = message;
        match what {
            UnexpectedBody::Eager { data, sync } => {
                if let Some(Request::Receive(receive)) = self.requests.get_mut(id)
                    && let RecvTarget::Allocate = receive.room
                {
                    receive.room = RecvTarget::Into(data, envelope.length as usize);
                    self.complete(id, Ok(status));
                } else {
                    self.deliver(id, from, envelope, Part { memory: &data, at: 0, length: envelope.length as usize });
                    self.wire.give(data);
                }
                self.acknowledge(from, sync);
            }
            UnexpectedBody::Rts { sender, keys } => match self.failures.check(from) {
                Err(lost) => self.complete(id, Err(lost)),
                Ok(()) => {
                    let keys = keys.map_or_else(Keys::default, |keys| *keys);
                    self.begin(id, from, envelope, sender, keys, receiver_first);
                }
            },
        }
    }

    /// Copies a message into the memory of its receive.
    pub(super) fn deliver(&mut self, id: Id, from: Rank, envelope: Envelope, data: Part<'_, W::Memory>) {
        let Some(Request::Receive(Receive { room: RecvTarget::Into(memory, room), .. })) = self.requests.get(id) else {
            unreachable!("looked up above")
        };
        let room = *room;
        Part { length: data.length.min(room), ..data }.copy(memory, 0);
        self.complete(id, outcome(from, envelope, Some(room as u64)));
    }

    pub(super) fn acknowledge(&mut self, to: Rank, sync: Option<Id>) {
        if let Some(sender) = sync {
            self.reply(to, Body::Ack { sender });
        }
    }

    /// Chooses the mover for a rendezvous message, and starts it.
    pub(super) fn begin(
        &mut self,
        id: Id,
        from: Rank,
        envelope: Envelope,
        sender: Id,
        offered: Keys,
        receiver_first: bool,
    ) {
        let Some(Request::Receive(receive)) = self.requests.get_mut(id) else { unreachable!("looked up above") };
        if let RecvTarget::Allocate = receive.room
            && let Some(memory) = usize::try_from(envelope.length).ok().and_then(|length| self.wire.take(length))
        {
            receive.room = RecvTarget::Into(memory, envelope.length as usize);
        }
        let room = receive.room.length();
        let mut moving = Moving { from, envelope, sender, room, state: Receiving::Done, timed: None, way: None };
        let length = moving.length();
        if let Some(offered) = offered[0].filter(|_| receiver_first && self.is_read_at_once(from, length)) {
            moving.way = self.way(from, length, 0, offered);
            if moving.way != Some(Protocol::Sent) {
                match self.read_at_once(id, moving, offered) {
                    Ok(()) => return,
                    Err(back) => moving = back,
                }
            }
        }
        // The receiver's rules decide. A message that they would send eagerly, had there been credit, is
        // copied.
        let peer = &self.peers[&from];
        let path = self.routes[peer.near].choose(length, 0, &peer.open());
        self.add_rails(from, length, path);
        let peer = &self.peers[&from];
        let rails = &self.routes[peer.near].rails;
        let up = || (0..rails.len()).filter(|rail| peer.lanes.is_up(*rail));
        let readable = up().filter(|rail| path.reads_by(&rails[*rail]) && offered[*rail].is_some());
        let readable: Rails = readable.filter(|rail| self.wire.reads(Lane { peer: from, rail: *rail })).collect();
        let writable: Rails = up().filter(|rail| path.writes_by(&rails[*rail])).collect();
        let in_place = matches!(path, Path::Move | Path::DatagramMove);
        if in_place
            && moving.way.is_none()
            && let Some(rail) = readable.iter().next()
            && let Some(offered) = offered[rail]
        {
            moving.way = self.way(from, length, rail, offered);
        }
        let in_place = in_place && moving.way != Some(Protocol::Sent);
        let facts = Facts { in_place, receiver_first, readable: !readable.is_empty(), writable: !writable.is_empty() };
        let mut chosen = None;
        for mover in movers(facts) {
            let rails = match mover {
                Mover::Copy => Rails::default(),
                Mover::Write => self.register(id, from, length, writable, By::Peer),
                Mover::Read => self.register(id, from, length, readable, By::ThisRank),
            };
            if mover == Mover::Copy || !rails.is_empty() {
                chosen = Some((mover, rails));
                break;
            }
            self.counters.downgrades += 1;
        }
        let (mover, rails) = chosen.expect("the last row of the table is copying");
        let Some(Request::Receive(receive)) = self.requests.get_mut(id) else { unreachable!("looked up above") };
        let keys = receive.keys.as_deref().copied().unwrap_or_default();
        if mover == Mover::Read {
            let transfers = &mut self.peers.get_mut(&from).expect("the sender is known").transfers;
            let plan = transfers.plan(length, rails, self.config.stripe_from);
            moving.timed = plan.timed();
            moving.state = Receiving::new(mover, length, plan.lanes);
            transfers.queue(plan, id, offered, None);
            receive.moving = Some(Box::new(moving));
            self.list(from);
        } else {
            moving.state = Receiving::new(mover, length, 0);
            receive.moving = Some(Box::new(moving));
            self.reply(from, Body::Cts { sender, receiver: id, mover, length, keys });
            self.arrived_whole(id);
        }
    }

    /// Protocol of a message that can be read, if its sender may send it faster.
    fn way(&mut self, from: Rank, length: u64, rail: usize, offered: Key) -> Option<Protocol> {
        let may = !self.config.read_waiting && length > 0;
        if !(may && self.wire.may_send_faster(Lane { peer: from, rail }, offered)) {
            return None;
        }
        let peer = self.peers.get_mut(&from).expect("the sender is known");
        Some(peer.transfers.tuner.get_or_insert_default().begin(length, || self.wire.now()))
    }

    /// Connects the rails of a long message on this path, if it is divided among them.
    pub(super) fn add_rails(&mut self, rank: Rank, length: u64, path: Path) {
        let peer = &self.peers[&rank];
        let routes = &self.routes[peer.near];
        let Some(kind) = routes.stripes_by(path) else { return };
        if length < self.config.stripe_from.saturating_mul(2) {
            return;
        }
        if routes.is_mixed && kind == RailKind::Connection && !peer.lanes.connection.is_held() {
            return;
        }
        let rails: Vec<usize> = routes.of(kind).collect();
        rails.into_iter().for_each(|rail| self.connect(Lane { peer: rank, rail }));
    }

    /// Registers a request's memory on as many of these rails as `length` bytes are divided among, the
    /// heaviest first. Returns the rails where that succeeded. If rails fail over, the others are tried too:
    /// each may be the last one left. Processors that share memory need no registration for memory that they
    /// access themselves.
    fn register(&mut self, id: Id, peer: Rank, length: u64, rails: Rails, mover: By) -> Rails {
        let record = &self.peers[&peer];
        let routes = &self.routes[record.near];
        let most = (length / self.config.stripe_from.max(1)).clamp(1, RAILS as u64) as usize;
        let Some((memory, keys)) = self.requests.get_mut(id).and_then(Request::memory) else { return Rails::default() };
        let mut registered = |rail: usize| {
            if mover == By::ThisRank && routes.rails[rail].kind == RailKind::Memory {
                return true;
            }
            let key = &mut keys.get_or_insert_default()[rail];
            *key = key.or_else(|| self.wire.register(memory, Lane { peer, rail }));
            key.is_some()
        };
        let (mut chosen, mut left) = (Rails::default(), rails);
        while chosen.len() < most
            && let Some(rail) = record.transfers.weights.heaviest(left)
        {
            left = left.but(rail);
            chosen = if registered(rail) { chosen.and(rail) } else { chosen };
        }
        if routes.fails_over && !chosen.is_empty() {
            for rail in (0..routes.rails.len()).filter(|rail| !chosen.has(*rail)) {
                registered(rail);
            }
        }
        chosen
    }

    /// Offers the memory of a message, if the peer may read it.
    pub(super) fn offer(&mut self, id: Id, to: Rank) {
        let peer = &self.peers[&to];
        let routes = &self.routes[peer.near];
        let readable = |rail: &usize| peer.lanes.is_up(*rail) && routes.rails[*rail].read;
        let rails: Rails = (0..routes.rails.len()).filter(readable).collect();
        let Some(Request::Send(send)) = self.requests.get(id) else { return };
        let length = send.envelope.length;
        self.register(id, to, length, rails, By::Peer);
    }

    /// Handles the receiver's answer to an RTS.
    pub(super) fn answered(
        &mut self,
        from: Rank,
        id: Id,
        receiver: Id,
        mover: Mover,
        length: u64,
        keys: Keys,
    ) -> Result<(), PeerFailure> {
        let send = self.sending(from, id)?;
        if length > send.envelope.length {
            return Err(PeerFailure::Broken("it requested more bytes than the message has"));
        }
        let again = send.receiver.replace(receiver).is_some();
        if mover == Mover::Copy {
            send.state.copy(length)?;
            if send.state != Sending::Done {
                self.peers.get_mut(&from).expect("the sender is known").tx.copy(id);
                self.list(from);
            }
            self.ended(id);
            return Ok(());
        }
        // A receiver that received a NAK asks for packets.
        if send.state != Sending::Announced || again {
            return Err(crate::rendezvous::Unfit.into());
        }
        let peer = &self.peers[&from];
        let rails = &self.routes[peer.near].rails;
        let writable = |rail: &usize| peer.lanes.is_up(*rail) && rails[*rail].write && keys[*rail].is_some();
        let rails: Rails = (0..rails.len()).filter(writable).collect();
        let rails = self.register(id, from, length, rails, By::ThisRank);
        if rails.is_empty() {
            self.reply(from, Body::Nak { receiver });
            return Ok(());
        }
        let transfers = &mut self.peers.get_mut(&from).expect("the sender is known").transfers;
        let plan = transfers.plan(length, rails, self.config.stripe_from);
        let Some(Request::Send(send)) = self.requests.get_mut(id) else { return Err(STRAY) };
        send.state.write(plan.lanes)?;
        send.timed = plan.timed();
        let fin = Body::Fin { receiver, lanes: plan.lanes };
        transfers.queue(plan, id, keys, Some(fin));
        self.list(from);
        Ok(())
    }

    /// Handles a NAK: the sender cannot write, and a CTS asks it to copy.
    pub(super) fn refused(&mut self, from: Rank, id: Id) -> Result<(), PeerFailure> {
        let moving = self.moving(from, id)?;
        let (length, sender) = (moving.length(), moving.sender);
        moving.state.refused(length)?;
        self.counters.downgrades += 1;
        self.reply(from, Body::Cts { sender, receiver: id, mover: Mover::Copy, length, keys: Keys::default() });
        self.arrived_whole(id);
        Ok(())
    }

    /// Handles a piece of a copied message.
    pub(super) fn data(
        &mut self,
        from: Rank,
        id: Id,
        offset: u64,
        data: Part<'_, W::Memory>,
    ) -> Result<(), PeerFailure> {
        self.moving(from, id)?.state.data(offset, data.length as u64)?;
        if let Some(Request::Receive(Receive { room: RecvTarget::Into(memory, _), .. })) = self.requests.get(id) {
            data.copy(memory, offset as usize);
        }
        self.arrived_whole(id);
        Ok(())
    }

    /// Handles the completion of a write or a read.
    pub(super) fn moved(&mut self, token: u64, at: u64) {
        let Some((id, rail)) = stripe_of(token) else { return };
        let rank = self.requests.get(id).and_then(Request::peer);
        let mut peer = rank.and_then(|rank| self.peers.get_mut(&rank));
        let moved = peer.as_mut().and_then(|peer| peer.transfers.ended(token));
        self.freed(id, rail);
        match self.requests.get_mut(id) {
            Some(Request::Send(send)) => {
                let ended = send.state.written();
                debug_assert_eq!(ended, Ok(()), "each stripe ends once");
                let to = send.to;
                self.measured(id, to, rail, at);
                if let Some(fin) = moved.and_then(|moved| moved.fin) {
                    self.reply(to, fin);
                }
                self.ended(id);
            }
            Some(Request::Receive(Receive { moving: Some(moving), .. })) => {
                let ended = moving.state.read();
                debug_assert_eq!(ended, Ok(()), "each stripe ends once");
                let (from, sender, done) = (moving.from, moving.sender, moving.state == Receiving::Done);
                self.measured(id, from, rail, at);
                if done {
                    self.reply(from, Body::Ack { sender });
                    self.arrived_whole(id);
                }
            }
            // A request is kept until its posted transfers have ended, unless its peer is lost.
            _ => debug_assert!(!self.failures.is_empty(), "only a transfer of a lost peer may end late"),
        }
    }

    /// Records that a stripe has ended. Once all of several have, their times adapt the weights of the rails.
    fn measured(&mut self, id: Id, rank: Rank, rail: usize, at: u64) {
        if let Some(timed) = self.requests.get_mut(id).and_then(Request::timed)
            && timed.done(rail, at)
            && let Some(peer) = self.peers.get_mut(&rank)
        {
            peer.transfers.weights.learn(timed);
        }
    }

    /// Completes a send whose memory belongs to the program again.
    pub(super) fn ended(&mut self, id: Id) {
        if let Some(Request::Send(send @ Send { state: Sending::Done, .. })) = self.requests.get(id) {
            let status = send.status();
            self.complete(id, Ok(status));
        }
    }

    /// Completes a receive whose message is complete.
    pub(super) fn arrived_whole(&mut self, id: Id) {
        if let Some(Request::Receive(Receive { moving: Some(moving), .. })) = self.requests.get(id)
            && moving.state == Receiving::Done
        {
            let result = outcome(moving.from, moving.envelope, moving.room);
            let (from, way) = (moving.from, moving.way);
            self.is_there(id, from, way, result);
        }
    }

    /// Completes a receive, and measures its protocol.
    pub(super) fn is_there(&mut self, id: Id, from: Rank, way: Option<Protocol>, result: Result<Status, Error>) {
        if way.is_some()
            && let Some(tuner) = self.peers.get_mut(&from).and_then(|peer| peer.transfers.tuner.as_mut())
        {
            tuner.end(|| self.wire.now());
        }
        self.complete(id, result);
    }

    pub(super) fn sending(&mut self, from: Rank, id: Id) -> Result<&mut Send<W::Memory>, PeerFailure> {
        match self.requests.get_mut(id) {
            Some(Request::Send(send)) if send.to == from => Ok(send),
            _ => Err(STRAY),
        }
    }

    pub(super) fn moving(&mut self, from: Rank, id: Id) -> Result<&mut Moving, PeerFailure> {
        match self.requests.get_mut(id) {
            Some(Request::Receive(Receive { moving: Some(moving), .. })) if moving.from == from => Ok(moving),
            _ => Err(STRAY),
        }
    }
}

/// The rank that moves the bytes of registered memory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    ThisRank,
    Peer,
}
