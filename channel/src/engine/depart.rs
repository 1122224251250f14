//! What goes: moves, answers, messages and their data, and credits.

use super::Engine;
use super::peer::{Move, Peer, Reply};
use super::request::{Receive, Request, cost};
use super::route::{Post, put_mark};
use crate::credit::HEADER;
use crate::error::{Error, Status};
use crate::packet::{Body, DATA, EAGER, Envelope, PIECE, SYNC, Values};
use crate::rendezvous::Sending;
use crate::rules::Path;
use crate::slab::Id;
use crate::striping::{TOTAL, Timed, UNDER_WAY};
use crate::wire::{self, Data, Lane, Part, RAILS, RailKind, Rank, Wire};

/// [`Post::packet`] by the parts of an engine, of which some others are lent to its other arguments.
macro_rules! post {
    ($engine:ident, $peer:ident, $($rest:expr),*) => {
        Post {
            wire: &mut $engine.wire,
            meter: &mut $engine.meter,
            routes: &$engine.routes[$peer.near],
            source: $engine.rank,
        }
        .packet($peer, $($rest),*)
    };
}

pub(super) use post;

/// What came of trying to post.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    Posted,
    /// Nothing to post, or what the peer tells will open it.
    Waits,
    /// The wire does not take it now.
    Busy,
}

impl<W: Wire> Engine<W> {
    /// Something is to be posted for this peer, at the next turn.
    pub(super) fn list(&mut self, rank: Rank) {
        let Some(peer) = self.peers.get_mut(&rank) else { return };
        peer.clear = false;
        if !peer.listed {
            peer.listed = true;
            self.listed.push_back(rank);
        }
    }

    pub(super) fn post_listed(&mut self) -> usize {
        let mut posted = 0;
        for _ in 0..self.listed.len() {
            let Some(rank) = self.listed.pop_front() else { break };
            if let Some(peer) = self.peers.get_mut(&rank) {
                peer.listed = false;
                posted += self.flush(rank);
            }
        }
        posted
    }

    /// Posts what can go to a peer, a bounded amount. Says how much it was.
    pub(super) fn flush(&mut self, rank: Rank) -> usize {
        let mut posted = 0;
        for _ in 0..self.config.batch {
            let Some(peer) = self.peers.get_mut(&rank) else { return posted };
            if !peer.has_work() {
                let ring_waits = peer.ring_out.is_some() && !peer.up[0];
                peer.clear = !ring_waits;
                return posted;
            }
            match self.step(rank) {
                Step::Posted => posted += 1,
                Step::Waits => {
                    // A mark may have been all that there was.
                    let waits = self.peers.get(&rank).is_some_and(Peer::has_work);
                    if waits && !self.hear(rank) {
                        self.listen(rank);
                        return posted;
                    }
                }
                Step::Busy => {
                    self.meter.busy += 1;
                    break;
                }
            }
        }
        self.list(rank);
        posted
    }

    fn step(&mut self, rank: Rank) -> Step {
        let Some(peer) = self.peers.get_mut(&rank) else { return Step::Waits };
        if !peer.is_up() {
            return self.post_again(rank);
        }
        if let Some((to, at, mark)) = peer.mark {
            if put_mark(&mut self.wire, rank, to, at, mark).is_err() {
                return Step::Busy;
            }
            peer.mark = None;
        }
        // What the wire does not take now keeps nothing else from going.
        match self.post_again(rank) {
            Step::Posted => return Step::Posted,
            Step::Waits => {}
            Step::Busy => {
                return match self.post_rest(rank) {
                    Step::Waits => Step::Busy,
                    step => step,
                };
            }
        }
        self.post_rest(rank)
    }

    fn post_rest(&mut self, rank: Rank) -> Step {
        match self.post_move(rank) {
            Step::Posted => Step::Posted,
            Step::Waits => self.post_packet(rank),
            Step::Busy => match self.post_packet(rank) {
                Step::Waits => Step::Busy,
                step => step,
            },
        }
    }

    /// Posts an answer, a message or a piece of one.
    fn post_packet(&mut self, rank: Rank) -> Step {
        let peer = self.peers.get_mut(&rank).expect("was looked at");
        if peer.outgoing.room() == 0 {
            return Step::Waits;
        }
        // Answers first: they let others go on, and there are a few for each request at most.
        if let Some(Reply { body, rail }) = peer.replies.pop_front() {
            if post!(self, peer, &body, Data::None, rail) {
                return Step::Posted;
            }
            peer.replies.push_front(Reply { body, rail });
            return Step::Busy;
        }
        let (copies, sends) = (peer.copies.front().copied(), peer.sends.front().copied());
        // By turns, so that neither keeps the other out.
        let first_copy = peer.outgoing.sequence().is_multiple_of(2);
        match (copies, sends) {
            (Some(copy), _) if first_copy => self.post_data(rank, copy),
            (_, Some(send)) => match (self.post_message(rank, send), copies) {
                (Step::Waits, Some(copy)) => self.post_data(rank, copy),
                (step, _) => step,
            },
            (Some(copy), None) => self.post_data(rank, copy),
            (None, None) => Step::Waits,
        }
    }

    fn post_move(&mut self, rank: Rank) -> Step {
        let peer = self.peers.get_mut(&rank).expect("was looked at");
        let Some((at, rail)) = next_move(peer) else { return Step::Waits };
        let Some(mut next) = peer.moves.remove(at) else { return Step::Waits };
        let planned = std::mem::replace(&mut next.rail, rail);
        let (id, length) = (next.id, next.length);
        match self.hand_over(rank, next) {
            None => {
                if planned != rail
                    && let Some(timed) = self.timed(id)
                {
                    timed.taken(planned, rail, length);
                }
                Step::Posted
            }
            Some(mut next) => {
                next.rail = planned;
                self.peers.get_mut(&rank).expect("was looked at").moves.insert(at, next);
                Step::Busy
            }
        }
    }

    fn timed(&mut self, id: Id) -> Option<&mut Timed> {
        match self.requests.get_mut(id)? {
            Request::Send(send) => send.timed.as_deref_mut(),
            Request::Receive(Receive { moving: Some(moving), .. }) => moving.timed.as_deref_mut(),
            _ => None,
        }
    }

    /// A piece may have ended, and a rail take another.
    pub(super) fn pulled(&mut self, id: Id, rail: usize) {
        let rank = match self.requests.get(id) {
            Some(Request::Send(send)) => send.to,
            Some(Request::Receive(Receive { moving: Some(moving), .. })) => moving.from,
            _ => return,
        };
        if let Some(peer) = self.peers.get_mut(&rank).filter(|peer| peer.weights.pulls()) {
            peer.pulled[rail] = peer.pulled[rail].saturating_sub(1);
            self.list(rank);
        }
    }

    /// Posts a write or read, behind which its FIN goes; it comes back if the wire does not take it now.
    pub(super) fn hand_over(&mut self, rank: Rank, mut next: Move) -> Option<Move> {
        let peer = self.peers.get_mut(&rank).expect("was looked at");
        let lane = Lane { peer: rank, rail: next.rail };
        let Some(key) = next.keys[next.rail].filter(|_| peer.up[next.rail]) else { return Some(next) };
        let (at, length, token) = (next.offset as usize, next.length as usize, stripe_token(next.id, next.rail));
        let (memory, timed) = match self.requests.get_mut(next.id) {
            Some(Request::Send(send)) => (&send.memory, send.timed.as_mut()),
            Some(Request::Receive(receive)) => match &receive.room {
                super::Room::Into(memory, _) => {
                    (memory, receive.moving.as_mut().and_then(|moving| moving.timed.as_mut()))
                }
                _ => unreachable!("what is read has memory"),
            },
            _ => unreachable!("a request is kept until what it posts has ended"),
        };
        let part = Part { memory, at, length };
        let request = match next.writes {
            true => wire::Request::Write { from: part, to: key, at, token },
            false => wire::Request::Read { from: key, at, into: part, token },
        };
        if self.wire.post(lane, request).is_err() {
            return Some(next);
        }
        if let Some(timed) = timed {
            timed.posted(next.rail, self.wire.now());
        }
        if !next.any.is_empty() {
            peer.pulled[next.rail] = peer.pulled[next.rail].saturating_add(1);
        }
        self.meter.other_rails_bytes += if next.rail > 0 { next.length } else { 0 };
        match next.writes {
            true => self.meter.written_bytes += next.length,
            false => self.meter.read_bytes += next.length,
        }
        // A datagram may come before what was written by others: its FIN goes when that is done.
        let routes = &self.routes[peer.near];
        let kind = routes.rails[next.rail].kind;
        let in_order = kind != RailKind::Datagram;
        self.has_moved |= kind == RailKind::Memory;
        if let Some(body) = next.fin.take_if(|_| in_order) {
            peer.replies.push_back(Reply { body, rail: Some(next.rail) });
        }
        if routes.fails_over || routes.is_mixed || next.fin.is_some() {
            peer.posted.push((token, next));
        }
        None
    }

    /// Sends a whole message, if it is granted, the window is open and the wire takes it.
    pub(super) fn send_eager(&mut self, to: Rank, envelope: Envelope, data: Data<'_, W::Memory>) -> bool {
        let peer = self.peers.get_mut(&to).expect("was reached");
        let cost = cost(envelope.length);
        if !peer.can_send(envelope.length, self.config.overdraft) || peer.outgoing.room() == 0 {
            return false;
        }
        let routes = &self.routes[peer.near];
        let path = routes.choose(envelope.length, EAGER, peer);
        if !path.is_at_once() || envelope.length > routes.longest(path, peer).saturating_sub(EAGER) as u64 {
            return false;
        }
        let body = Body::Eager { envelope, sync: None };
        if !post!(self, peer, &body, data, None) {
            return false;
        }
        peer.purse.spend(cost as u32);
        self.meter.overdrawn += u64::from(peer.purse.overdrawn() > 0);
        self.meter.eager += 1;
        if peer.mark.is_some() {
            self.list(to);
        }
        self.speaks_to(to);
        true
    }

    fn post_message(&mut self, rank: Rank, id: Id) -> Step {
        let peer = self.peers.get_mut(&rank).expect("was looked at");
        let Some(Request::Send(send)) = self.requests.get_mut(id) else { unreachable!("a queued send is kept") };
        let envelope = send.envelope;
        let status = Status { peer: rank, tag: envelope.tag, length: envelope.length };
        // Where it is in the message, if that goes in pieces and some have gone: they were granted together.
        let begun = if let Sending::Pushing(at) = send.state { Some(at) } else { None };
        if begun.is_none() && !peer.can_announce(self.config.overdraft) {
            if !peer.outgoing.is_heard() {
                return Step::Waits;
            }
            peer.sends.pop_front();
            self.complete(id, Err(Error::Overdrawn { rank, overdraft: self.config.overdraft }));
            return Step::Posted;
        }
        let head = if send.sync { SYNC } else { EAGER };
        let affordable = begun.is_some() || peer.can_send(envelope.length, self.config.overdraft);
        let routes = &self.routes[peer.near];
        let path = routes.choose(envelope.length, head, peer);
        if path.is_at_once() && affordable || begun.is_some() {
            // What has begun goes on by whatever there is now.
            let longest = match routes.longest(path, peer) {
                0 => routes.widest(peer),
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
                peer.purse.spend(cost(envelope.length) as u32);
                self.meter.overdrawn += u64::from(peer.purse.overdrawn() > 0);
                self.meter.eager += 1;
            }
            if length < left {
                send.state = Sending::Pushing(at + length);
            } else {
                peer.sends.pop_front();
                let announced = send.state.announce();
                debug_assert_eq!(announced, Ok(()));
                if !send.sync {
                    self.complete(id, Ok(status));
                }
            }
            if begun.is_none() {
                self.speaks_to(rank);
            }
            return Step::Posted;
        }
        self.widen(rank, envelope.length, path);
        if path == Path::Move && self.config.offer {
            self.offer(id, rank);
        }
        let peer = self.peers.get_mut(&rank).expect("was looked at");
        let Some(Request::Send(send)) = self.requests.get_mut(id) else { unreachable!("a queued send is kept") };
        let body = Body::Rts { envelope, sender: id, keys: send.keys.as_deref().copied().unwrap_or_default() };
        if !post!(self, peer, &body, Data::None, None) {
            return Step::Busy;
        }
        peer.purse.spend(HEADER);
        self.meter.overdrawn += u64::from(peer.purse.overdrawn() > 0);
        peer.sends.pop_front();
        self.meter.rendezvous += 1;
        let announced = send.state.announce();
        debug_assert_eq!(announced, Ok(()));
        self.speaks_to(rank);
        Step::Posted
    }

    fn post_data(&mut self, rank: Rank, id: Id) -> Step {
        let peer = self.peers.get_mut(&rank).expect("was looked at");
        let Some(Request::Send(send)) = self.requests.get_mut(id) else { unreachable!("what is copied is kept") };
        let (Sending::Copying(at, length), Some(receiver)) = (send.state, send.receiver) else {
            unreachable!("what is copied was answered")
        };
        let routes = &self.routes[peer.near];
        let slot = if peer.has_slot(DATA + 1) { routes.longest(Path::Ring, peer) } else { 0 };
        let queue = routes.widest(peer);
        // By the path that takes the most at once; if that takes nothing now, by the other.
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
        self.meter.copied_bytes += piece;
        // To the end of the row, so that the messages to this peer share the way.
        peer.copies.pop_front();
        let posted = send.state.posted(piece);
        debug_assert_eq!(posted, Ok(()));
        if send.state != Sending::Done {
            peer.copies.push_back(id);
        }
        self.ended(id);
        Step::Posted
    }

    /// Something waits for what this peer tells.
    fn listen(&mut self, rank: Rank) {
        if let Some(peer) = self.peers.get_mut(&rank).filter(|peer| !peer.heard && peer.ring_out.is_some()) {
            peer.heard = true;
            self.heard.push(rank);
        }
    }

    /// Takes what a peer has left beside its ring, which may end it. Whether that was news.
    pub(super) fn hear(&mut self, rank: Rank) -> bool {
        let Some(peer) = self.peers.get_mut(&rank) else { return false };
        let Some(ring) = &peer.ring_out else { return false };
        let Some([first, freed]) = self.wire.published(rank, ring.key) else { return false };
        let values = Values { ack: first as u32, granted: (first >> 32) as u32, freed: freed as u32, ring: ring.ring };
        let known = |peer: &Peer<W::Memory>| {
            (peer.outgoing.room(), peer.purse.room(), peer.ring_out.as_ref().map(|ring| ring.flying()))
        };
        let before = known(peer);
        match peer.credited(values) {
            Ok(()) => before != known(peer),
            Err(beyond) => {
                self.fail(rank, beyond.into());
                true
            }
        }
    }

    /// Looks whether those that something waits for have left news.
    pub(super) fn hear_all(&mut self) -> usize {
        let mut news = 0;
        for at in (0..self.heard.len()).rev() {
            let rank = self.heard[at];
            if self.hear(rank) {
                self.list(rank);
                news += 1;
            }
            let waits = |peer: &&mut Peer<W::Memory>| peer.has_work() && peer.ring_out.is_some();
            if self.peers.get_mut(&rank).filter(waits).is_none() {
                self.heard.swap_remove(at);
                self.peers.get_mut(&rank).into_iter().for_each(|peer| peer.heard = false);
            }
        }
        news
    }

    /// Leaves all values beside the ring that this rank has given the peer. Whether that tells the peer: it has shown that it reaches
    /// the ring, and was not asked to leave it.
    pub(super) fn publish(&mut self, rank: Rank) -> bool {
        let Some(peer) = self.peers.get_mut(&rank) else { return false };
        let Some(ring) = &peer.ring_in else { return false };
        let Values { ack, granted, freed, .. } = peer.values;
        let words = [u64::from(granted) << 32 | u64::from(ack), freed.into()];
        if !self.wire.publish(rank, &ring.memory, words) {
            return false;
        }
        peer.published = Some(ack);
        let reads = ring.half.is_used() && peer.leaves != Some(ring.half.ring);
        if reads {
            peer.tell();
            self.meter.published += 1;
        }
        reads
    }

    /// Something is owed to this peer.
    pub(super) fn owe(&mut self, rank: Rank) {
        if let Some(peer) = self.peers.get_mut(&rank).filter(|peer| peer.owes() && !peer.owing) {
            peer.owing = true;
            self.owing.push_back(rank);
        }
    }

    /// Tells credits that nothing else has told.
    pub(super) fn tell_credits(&mut self) {
        if self.owing.is_empty() {
            return;
        }
        // Mostly something has told them meanwhile, and nobody asks the clock.
        let mut now = None;
        for _ in 0..self.owing.len() {
            let Some(rank) = self.owing.pop_front() else { return };
            let Some(peer) = self.peers.get_mut(&rank) else { continue };
            peer.owing = peer.owes();
            let now = if peer.owing { *now.get_or_insert_with(|| self.wire.now()) } else { 0 };
            if peer.owing {
                peer.owed_since.get_or_insert(now);
            }
            if peer.is_up() && peer.is_due(now, &self.config) {
                let published = self.publish(rank);
                let peer = self.peers.get_mut(&rank).expect("was there");
                if published || post!(self, peer, &Body::Control, Data::None, None) {
                    peer.owing = false;
                    self.meter.controls += u64::from(!published);
                }
            }
            if self.peers[&rank].owing {
                self.owing.push_back(rank);
            }
        }
    }

    /// A message is kept no longer: its sender may send as much again.
    pub(super) fn release(&mut self, from: Rank, cost: u64) {
        self.kept -= cost;
        if let Some(peer) = self.peers.get_mut(&from) {
            self.budget.release(&mut peer.grant, cost as u32);
            peer.regrant();
            self.owe(from);
        }
    }
}

/// Which write or read is next, and by which rail: of one that is pulled a piece by a rail that has few under way, its own if there is one,
/// else the last of another's.
fn next_move<M>(peer: &Peer<M>) -> Option<(usize, usize)> {
    let front = peer.moves.front()?;
    if front.any.is_empty() {
        return Some((0, front.rail));
    }
    let pieces = || peer.moves.iter().take_while(|next| next.id == front.id);
    let of = |rail: usize| pieces().filter(|next| next.rail == rail).count();
    let may = |rail: &usize| front.any.has(*rail) && peer.up[*rail] && peer.pulled[*rail] < UNDER_WAY;
    let mut free: Vec<usize> = (0..RAILS).filter(may).collect();
    free.sort_by_key(|rail| peer.pulled[*rail]);
    let own = |rail: &usize| Some((pieces().position(|next| next.rail == *rail)?, *rail));
    free.iter().find_map(own).or_else(|| {
        let (rail, from) = (*free.first()?, (0..RAILS).max_by_key(|rail| of(*rail))?);
        // By what is known of both, this one ends it sooner than its own would.
        let ends = |rail: usize, pieces: usize| pieces as u64 * u64::from(TOTAL) / u64::from(peer.weights.now()[rail]);
        let takes =
            ends(rail, usize::from(peer.pulled[rail]) + 1) < ends(from, usize::from(peer.pulled[from]) + of(from));
        let last = pieces().enumerate().filter(|(_, next)| next.rail == from).last()?;
        takes.then_some((last.0, rail))
    })
}

/// The bits of a token that say which rail: no rank has so many requests at once.
const RAIL: u32 = 28;

/// Names the stripe of a request that goes by a rail. A [`pipe`](crate::pipe) has the bits above.
pub(super) fn stripe_token(id: Id, rail: usize) -> u64 {
    id.to_wire() | (rail as u64) << RAIL
}

/// Of which request, and by which rail.
pub(super) fn stripe_of(token: u64) -> Option<(Id, usize)> {
    let rails = (RAILS as u64 - 1) << RAIL;
    Some((Id::from_wire(token & !rails)?, ((token & rails) >> RAIL) as usize))
}
