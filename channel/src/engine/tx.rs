//! Transmit: posts writes and reads, answers, messages and their data to the peers that are listed.

use super::Engine;
use super::parts::transfers::Transfer;
use super::parts::transmit::Next;
use super::peer::Peer;
use super::post::{post, put_mark};
use super::request::{Request, cost};
use crate::credit::HEADER;
use crate::error::Error;
use crate::packet::{Body, DATA, EAGER, Envelope, PIECE, SYNC};
use crate::rendezvous::Sending;
use crate::rules::Path;
use crate::slab::Id;
use crate::wire::{self, Data, Lane, Part, RAILS, RailKind, Rank, Wire};

/// Outcome of an attempt to post.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    Posted,
    /// Nothing to post, or the peer has to open its window first.
    Waits,
    /// The wire has refused.
    Busy,
}

impl Step {
    /// If this queue is busy, tries the next one: a busy rail must not block the other queues.
    fn or(self, next: impl FnOnce() -> Step) -> Step {
        match self {
            Step::Posted => Step::Posted,
            Step::Waits => next(),
            Step::Busy => match next() {
                Step::Waits => Step::Busy,
                step => step,
            },
        }
    }
}

impl<W: Wire> Engine<W> {
    /// Lists a peer: the next progress call posts a request to it.
    pub(super) fn list(&mut self, rank: Rank) {
        if let Some(peer) = self.peers.get_mut(&rank) {
            self.transmit.list(rank, &mut peer.tx);
        }
    }

    pub(super) fn reply(&mut self, to: Rank, body: Body) {
        if let Some(peer) = self.peers.get_mut(&to) {
            peer.tx.reply(body, None);
            self.transmit.list(to, &mut peer.tx);
        }
    }

    pub(super) fn post_listed(&mut self) -> usize {
        let mut posted = 0;
        for _ in 0..self.transmit.len() {
            let Some(rank) = self.transmit.next() else { break };
            if let Some(peer) = self.peers.get_mut(&rank) {
                self.transmit.unlist(&mut peer.tx);
                posted += self.flush(rank);
            }
        }
        posted
    }

    /// Posts what can be sent to a peer, a bounded amount. Returns the number of requests.
    pub(super) fn flush(&mut self, rank: Rank) -> usize {
        let mut posted = 0;
        for _ in 0..self.config.batch {
            let Some(peer) = self.peers.get_mut(&rank) else { return posted };
            if !peer.has_work() {
                let ring_waits = peer.rings.out.is_some() && !peer.lanes.is_up(0);
                peer.tx.set_clear(!ring_waits);
                return posted;
            }
            match self.step(rank) {
                Step::Posted => posted += 1,
                Step::Waits => {
                    // The mark may have been all that waited.
                    let waits = self.peers.get(&rank).is_some_and(Peer::has_work);
                    if waits && !self.poll_credits_of(rank) {
                        self.start_polling(rank);
                        return posted;
                    }
                }
                Step::Busy => {
                    self.counters.busy += 1;
                    break;
                }
            }
        }
        self.list(rank);
        posted
    }

    fn step(&mut self, rank: Rank) -> Step {
        let Some(peer) = self.peers.get_mut(&rank) else { return Step::Waits };
        if !peer.lanes.is_any_up() {
            return self.post_again(rank);
        }
        if let Some(mark) = peer.rings.mark() {
            if put_mark(&mut self.wire, rank, mark).is_err() {
                return Step::Busy;
            }
            peer.rings.set_mark(None);
        }
        self.post_again(rank).or(|| self.post_transfer(rank).or(|| self.post_packet(rank)))
    }

    /// Posts an answer, a message or a piece of one.
    fn post_packet(&mut self, rank: Rank) -> Step {
        let peer = self.peers.get_mut(&rank).expect("looked up above");
        match peer.tx.next() {
            Next::Nothing => Step::Waits,
            Next::Reply(reply) => {
                if post!(self, peer, &reply.body, Data::None, reply.rail) {
                    return Step::Posted;
                }
                peer.tx.put_back(reply);
                Step::Busy
            }
            Next::Data(copy) => self.post_data(rank, copy),
            Next::Message(message, copy) => match (self.post_message(rank, message), copy) {
                (Step::Waits, Some(copy)) => self.post_data(rank, copy),
                (step, _) => step,
            },
        }
    }

    fn post_transfer(&mut self, rank: Rank) -> Step {
        let Peer { transfers, lanes, .. } = self.peers.get_mut(&rank).expect("looked up above");
        let Some((transfer, next)) = transfers.next(lanes.up()) else { return Step::Waits };
        let (id, length, rail) = (transfer.id, transfer.length, transfer.rail);
        if let Some(transfer) = self.hand_over(rank, transfer) {
            self.peers.get_mut(&rank).expect("looked up above").transfers.put_back(next, transfer);
            return Step::Busy;
        }
        if next.planned != rail
            && let Some(timed) = self.requests.get_mut(id).and_then(Request::timed)
        {
            timed.taken(next.planned, rail, length);
        }
        Step::Posted
    }

    /// Records that a transfer has ended: its rail may take another.
    pub(super) fn freed(&mut self, id: Id, rail: usize) {
        let Some(rank) = self.requests.get(id).and_then(Request::peer) else { return };
        if let Some(peer) = self.peers.get_mut(&rank)
            && peer.transfers.freed(rail)
        {
            self.list(rank);
        }
    }

    /// Posts a write or read, and queues the FIN of a write behind it. Returns the transfer if the wire
    /// refuses it.
    pub(super) fn hand_over(&mut self, rank: Rank, mut next: Transfer) -> Option<Transfer> {
        let peer = self.peers.get_mut(&rank).expect("looked up above");
        let lane = Lane { peer: rank, rail: next.rail };
        let kind = self.routes[peer.near].rails[next.rail].kind;
        let is_up = peer.lanes.is_up(next.rail) || kind == RailKind::Datagram;
        let Some(key) = next.keys[next.rail].filter(|_| is_up) else { return Some(next) };
        let (at, length, token) = (next.offset as usize, next.length as usize, stripe_token(next.id, next.rail));
        let request = self.requests.get_mut(next.id).expect("a request is kept until its transfers have ended");
        let (memory, _) = request.memory().expect("a transfer has memory");
        let part = Part { memory, at, length };
        let posted = match next.writes {
            true => wire::Request::Write { from: part, to: key, at, token },
            false => wire::Request::Read { from: key, at, into: part, token },
        };
        if self.wire.post(lane, posted).is_err() {
            return Some(next);
        }
        if let Some(timed) = request.timed() {
            timed.posted(next.rail, self.wire.now());
        }
        self.counters.other_rails_bytes += if next.rail > 0 { next.length } else { 0 };
        match next.writes {
            true => self.counters.written_bytes += next.length,
            false => self.counters.read_bytes += next.length,
        }
        let routes = &self.routes[peer.near];
        // A datagram may overtake the write's other datagrams: its FIN is sent when the write is done.
        let in_order = kind != RailKind::Datagram;
        if kind == RailKind::Memory {
            self.transmit.set_moved();
        }
        if let Some(body) = next.fin.take_if(|_| in_order) {
            peer.tx.reply(body, Some(next.rail));
        }
        let keep = routes.fails_over || routes.is_mixed || next.fin.is_some();
        peer.transfers.posted(token, next, keep);
        None
    }

    /// Sends a whole message, if credit covers it, the window is open and the wire takes it.
    pub(super) fn send_eager(&mut self, to: Rank, envelope: Envelope, data: Data<'_, W::Memory>) -> bool {
        let peer = self.peers.get_mut(&to).expect("the peer is known");
        let overdraft = peer.overdraft(self.config.overdraft);
        if !peer.credits.can_send(envelope.length, overdraft) || peer.tx.window.room() == 0 {
            return false;
        }
        let (routes, open) = (&self.routes[peer.near], peer.open());
        let queued = open.queued;
        let path = routes.choose(envelope.length, EAGER, &open);
        if !path.is_at_once() || envelope.length > routes.longest(path, &open).saturating_sub(EAGER) as u64 {
            return false;
        }
        let body = Body::Eager { envelope, sync: None };
        if !post!(self, peer, &body, data, None) {
            return false;
        }
        self.counters.overdrawn += u64::from(peer.credits.spend(cost(envelope.length) as u32));
        self.counters.eager += 1;
        if peer.rings.mark().is_some() {
            self.list(to);
        }
        self.speaks_to(to, envelope.length, queued);
        true
    }

    fn post_message(&mut self, rank: Rank, id: Id) -> Step {
        let peer = self.peers.get_mut(&rank).expect("looked up above");
        let Some(Request::Send(send)) = self.requests.get_mut(id) else { unreachable!("a queued send is kept") };
        let envelope = send.envelope;
        let overdraft = peer.overdraft(self.config.overdraft);
        // Bytes sent of a message in pieces. Credit was spent for all of its pieces together.
        let begun = if let Sending::Pushing(at) = send.state { Some(at) } else { None };
        if begun.is_none() && !peer.credits.can_announce(overdraft) {
            if overdraft.is_none() {
                return Step::Waits;
            }
            peer.tx.message_done();
            self.complete(id, Err(Error::Overdrawn { rank, overdraft: self.config.overdraft }));
            return Step::Posted;
        }
        let head = if send.sync { SYNC } else { EAGER };
        let affordable = begun.is_some() || peer.credits.can_send(envelope.length, overdraft);
        let (routes, open) = (&self.routes[peer.near], peer.open());
        // This message included.
        let queued = open.queued;
        let path = routes.choose(envelope.length, head, &open);
        if path.is_at_once() && affordable || begun.is_some() {
            // A message in pieces may continue on any open path.
            let longest = match routes.longest(path, &open) {
                0 => routes.widest(&open),
                longest => longest,
            };
            let (at, sync) = (begun.unwrap_or(0), send.sync.then_some(id));
            let left = envelope.length - at;
            let whole = begun.is_none() && envelope.length <= longest.saturating_sub(head) as u64;
            let (body, length) = if whole {
                (Body::Eager { envelope, sync }, left)
            } else {
                let length = left.min(longest.saturating_sub(PIECE) as u64);
                (Body::Piece { envelope, sync, at, length: length as u32 }, length)
            };
            let data = Data::Of(Part { memory: &send.memory, at: at as usize, length: length as usize });
            if !post!(self, peer, &body, data, None) {
                return Step::Busy;
            }
            if begun.is_none() {
                self.counters.overdrawn += u64::from(peer.credits.spend(cost(envelope.length) as u32));
                self.counters.eager += 1;
            }
            if length < left {
                send.state = Sending::Pushing(at + length);
            } else {
                peer.tx.message_done();
                let announced = send.state.announce();
                debug_assert_eq!(announced, Ok(()));
                if !send.sync {
                    let status = send.status();
                    self.complete(id, Ok(status));
                }
            }
            if begun.is_none() {
                self.speaks_to(rank, envelope.length, queued);
            }
            return Step::Posted;
        }
        self.add_rails(rank, envelope.length, path);
        if path == Path::Move && self.config.offer {
            self.offer(id, rank);
        }
        let peer = self.peers.get_mut(&rank).expect("looked up above");
        let Some(Request::Send(send)) = self.requests.get_mut(id) else { unreachable!("a queued send is kept") };
        let body = Body::Rts { envelope, sender: id, keys: send.keys.as_deref().copied().unwrap_or_default() };
        if !post!(self, peer, &body, Data::None, None) {
            return Step::Busy;
        }
        self.counters.overdrawn += u64::from(peer.credits.spend(HEADER));
        peer.tx.message_done();
        self.counters.rendezvous += 1;
        let announced = send.state.announce();
        debug_assert_eq!(announced, Ok(()));
        self.speaks_to(rank, envelope.length, queued);
        Step::Posted
    }

    fn post_data(&mut self, rank: Rank, id: Id) -> Step {
        let peer = self.peers.get_mut(&rank).expect("looked up above");
        let Some(Request::Send(send)) = self.requests.get_mut(id) else {
            unreachable!("a send is kept while it is copied")
        };
        let (Sending::Copying(at, length), Some(receiver)) = (send.state, send.receiver) else {
            unreachable!("a copied send has been answered")
        };
        let (routes, open) = (&self.routes[peer.near], peer.open());
        let has_slot = open.ring.is_some_and(|ring| ring.claim(DATA + 1).is_some());
        let slot = if has_slot { routes.longest(Path::Ring, &open) } else { 0 };
        let queue = routes.widest(&open);
        // The path with the longest packets first. If it accepts nothing now, the other one.
        let left = length - at;
        let most = if slot > DATA && left <= (slot - DATA) as u64 { slot } else { queue.max(slot) };
        let mut posted = None;
        for most in [most, if most == slot { queue } else { slot }].into_iter().filter(|most| *most > DATA) {
            let piece = left.min((most - DATA) as u64);
            let body = Body::Data { receiver, offset: at, length: piece as u32 };
            let data = Data::Of(Part { memory: &send.memory, at: at as usize, length: piece as usize });
            if post!(self, peer, &body, data, None) {
                posted = Some(piece);
                break;
            }
        }
        let Some(piece) = posted else { return Step::Busy };
        self.counters.copied_bytes += piece;
        let posted = send.state.posted(piece);
        debug_assert_eq!(posted, Ok(()));
        peer.tx.copied(send.state == Sending::Done);
        self.ended(id);
        Step::Posted
    }
}

/// Lowest bit of the rail in a token. No rank has as many requests at once as the bits below can number.
const RAIL: u32 = 28;

/// Token of a request's stripe on a rail. A [`pipe`](crate::pipe) has the bits above.
pub(super) fn stripe_token(id: Id, rail: usize) -> u64 {
    id.to_wire() | (rail as u64) << RAIL
}

/// Request and rail of a token.
pub(super) fn stripe_of(token: u64) -> Option<(Id, usize)> {
    let rails = (RAILS as u64 - 1) << RAIL;
    Some((Id::from_wire(token & !rails)?, ((token & rails) >> RAIL) as usize))
}
