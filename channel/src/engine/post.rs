//! Posts one packet on the first open path.

use super::parts::rings::Mark;
use super::peer::Peer;
use super::route::{ANY, KINDS, Routes};
use crate::counters::Counters;
use crate::packet::{Body, LONGEST};
use crate::ring::CompletionFlag;
use crate::rules::Path;
use crate::wire::{Busy, Data, Lane, RAILS, RailKind, Rank, Request, Wire};

/// Calls [`Post::packet`] with single fields of an engine, so that other fields can be borrowed by the
/// arguments.
macro_rules! post {
    ($engine:ident, $peer:ident, $($rest:expr),*) => {
        $crate::engine::post::Post {
            wire: &mut $engine.wire,
            counters: &mut $engine.counters,
            routes: &$engine.routes[$peer.near],
            source: $engine.rank,
        }
        .packet($peer, $($rest),*)
    };
}

pub(super) use post;

/// Fields of an engine that posting a packet needs.
pub(super) struct Post<'a, W: Wire> {
    pub wire: &'a mut W,
    pub counters: &'a mut Counters,
    pub routes: &'a Routes,
    pub source: Rank,
}

impl<W: Wire> Post<'_, W> {
    /// Posts one packet on the path of the first rule that holds for its data and whose path accepts it now,
    /// or else on any path that accepts it. `only` names the rail that it must take.
    pub fn packet(
        &mut self,
        peer: &mut Peer<W::Memory>,
        body: &Body,
        data: Data<'_, W::Memory>,
        only: Option<usize>,
    ) -> bool {
        let control = matches!(body, Body::Control);
        let sequence = if control { 0 } else { peer.tx.window.sequence() };
        let mut head = [0; LONGEST];
        let header = body.encode(self.source, sequence, peer.credits.values(), &mut head);
        let head = &head[..header];
        let posted = match only {
            Some(rail) => self.send(peer, rail, head, data),
            None => {
                // A packet that unblocks the peer must not wait behind data that is written to it.
                let first = (data.length() == 0 && peer.transfers.is_writing()).then_some(Path::Datagram);
                // For these the first rule is known to hold.
                let is_short = !control && first.is_none() && data.length() < peer.short_below;
                is_short && self.put(peer, head, data) || self.by_rules(peer, head, data, first, control || is_short)
            }
        };
        if posted {
            if !control {
                peer.tx.window.sent();
            }
            peer.credits.set_reported();
        }
        posted
    }

    /// Tries path `first`, then the rules, then any path. Rings are left out if `no_ring` is set.
    fn by_rules(
        &mut self,
        peer: &mut Peer<W::Memory>,
        head: &[u8],
        data: Data<'_, W::Memory>,
        first: Option<Path>,
        no_ring: bool,
    ) -> bool {
        let routes = self.routes;
        let rules = routes.paths(data.length() as u64, peer.tx.messages() as u64);
        let mut refused = [no_ring, false, false];
        first.into_iter().chain(rules).chain(ANY).any(|path| {
            let Some(at) = ANY.iter().position(|any| *any == path) else { return false };
            let taken = !refused[at] && self.by(path, peer, head, data);
            refused[at] = !taken;
            taken
        })
    }

    fn by(&mut self, path: Path, peer: &mut Peer<W::Memory>, head: &[u8], data: Data<'_, W::Memory>) -> bool {
        if path == Path::Ring {
            return self.put(peer, head, data);
        }
        let routes = self.routes;
        let mut refused = [false; RAILS];
        for kind in KINDS.into_iter().filter(|kind| path.is_by(*kind)) {
            let row = routes.row_of(kind);
            let turn = peer.lanes.turn();
            let in_row = (0..row.len()).map(|i| (turn + i) % row.len()).map(|at| (at, usize::from(row[at])));
            // The next rail of the row first, then any other: a rail may never come up.
            for (at, rail) in in_row.chain(routes.of(kind).map(|rail| (turn, rail))) {
                if !refused[rail] && self.send(peer, rail, head, data) {
                    peer.lanes.set_turn(at + 1);
                    return true;
                }
                refused[rail] = true;
            }
        }
        false
    }

    /// Sends through a queue.
    fn send(&mut self, peer: &mut Peer<W::Memory>, rail: usize, head: &[u8], data: Data<'_, W::Memory>) -> bool {
        let route = &self.routes.rails[rail];
        // A piece for another path may exceed the longest packet of this rail.
        let fits = peer.lanes.is_up(rail) && head.len() + data.length() <= route.longest;
        let posted = fits && self.wire.post(Lane { peer: peer.rank, rail }, Request::Send { head, body: data }).is_ok();
        if posted {
            let is_datagram = route.kind == RailKind::Datagram;
            peer.lanes.sent(rail, is_datagram);
            let bytes = (head.len() + data.length()) as u64;
            self.counters.queue_packets += 1;
            self.counters.queue_bytes += bytes;
            if is_datagram {
                self.counters.datagram_packets += 1;
                self.counters.datagram_bytes += bytes;
            }
        }
        posted
    }

    /// Puts into the ring, if it is open and has room.
    fn put(&mut self, peer: &mut Peer<W::Memory>, head: &[u8], data: Data<'_, W::Memory>) -> bool {
        let is_up = peer.lanes.is_up(0);
        let (Some(ring), Some(marker), true) = (peer.rings.out.as_mut(), self.routes.marker, is_up) else {
            return false;
        };
        let total = head.len() + data.length();
        if total > self.routes.longest_put {
            return false;
        }
        let Some(spot) = ring.claim(total) else {
            self.counters.fallbacks += u64::from(total <= ring.shape.longest());
            return false;
        };
        let together = marker != CompletionFlag::Second;
        let request = Request::Put {
            to: ring.key,
            at: spot.at,
            head,
            body: data,
            mark: together.then_some(spot.mark),
            immediate: (marker == CompletionFlag::Immediate).then_some(total as u32),
        };
        if self.wire.post(Lane { peer: peer.rank, rail: 0 }, request).is_err() {
            return false;
        }
        ring.sent(spot);
        self.counters.ring_packets += 1;
        let mark = Mark { to: ring.key, at: spot.mark_at, value: spot.mark };
        if !together && put_mark(self.wire, peer.rank, mark).is_err() {
            peer.rings.set_mark(Some(mark));
        }
        true
    }
}

/// Puts the mark of a message whose data is in the ring already.
pub(super) fn put_mark<W: Wire>(wire: &mut W, peer: Rank, mark: Mark) -> Result<(), Busy> {
    let Mark { to, at, value } = mark;
    let request = Request::Put { to, at, head: &[], body: Data::None, mark: Some(value), immediate: None };
    wire.post(Lane { peer, rail: 0 }, request)
}
