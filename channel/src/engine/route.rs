//! By what a message and a packet go: the one place where a path is chosen.

use super::peer::Peer;
use crate::config::Config;
use crate::meter::Meter;
use crate::packet::{Body, EAGER, LONGEST};
use crate::ring::{Marker, Shape};
use crate::rules::{Facts, Path, Rules};
use crate::wire::{Busy, Data, Key, Lane, RAILS, Rail, RailKind, Rank, Request, Wire};
use std::ops::{Index, IndexMut, Range};

/// Longer messages take so long that nothing else of their time counts.
const READ_AT_ONCE_UP_TO: u64 = 256 << 10;

/// Something for the peers that are near, and something for the others: see [`Wire::is_near`].
pub(super) struct Each<T>([T; 2]);

impl<T> Each<T> {
    pub fn of(mut each: impl FnMut(bool) -> T) -> Each<T> {
        Each([each(false), each(true)])
    }

    pub fn both(&self) -> &[T; 2] {
        &self.0
    }
}

impl<T> Index<bool> for Each<T> {
    type Output = T;

    #[inline(always)]
    fn index(&self, near: bool) -> &T {
        &self.0[usize::from(near)]
    }
}

impl<T> IndexMut<bool> for Each<T> {
    #[inline(always)]
    fn index_mut(&mut self, near: bool) -> &mut T {
        &mut self.0[usize::from(near)]
    }
}

/// The table of some peers, near ones or the others, and the rails that its paths go by.
pub(super) struct Routes {
    /// What is chosen for these peers.
    pub ring: Shape,
    pub window: u32,
    rules: Rules,
    pub rails: Vec<Rail>,
    /// No longer message goes whole, but by the ring of a peer whose slots are longer than those of this rank's.
    pub longest_whole: usize,
    /// The longest packet of a ring, whatever its slots take. One that fails over may have to go by a queue.
    longest_put: usize,
    pub marker: Option<Marker>,
    /// Messages shorter than this the short path may send by a ring without asking the table; 0 where there is more to a ring than a
    /// put. See [`Rules`].
    pub short_below: usize,
    /// Messages as long as these are read where they are, without asking the table; none where there is more to that. See
    /// [`direct`](super::direct).
    pub read_at_once: Range<u64>,
    /// The rails of packets of each kind, which go round in it.
    rows: [Vec<u8>; KINDS.len()],
    /// Those of them that this rank has talked with.
    pub peers: u64,
    /// There are datagrams, so that connections are for those who are spoken with most.
    pub is_mixed: bool,
    /// There are several connections which the wire can take back, so that what one of them had goes by the others if it is cut.
    pub fails_over: bool,
}

const KINDS: [RailKind; 3] = [RailKind::Connection, RailKind::Datagram, RailKind::Memory];
/// By what packets go for which no rule has a path: those that are no message, and pieces of announced ones.
const ANY: [Path; 3] = [Path::Ring, Path::Queue, Path::Datagram];

impl Path {
    /// A message goes at once, not announced.
    pub(super) fn is_at_once(self) -> bool {
        ANY.contains(&self)
    }

    /// A message may be written in its place by a rail.
    pub(super) fn writes_by(self, rail: &Rail) -> bool {
        match self {
            Path::Move => rail.write && rail.kind != RailKind::Datagram,
            Path::DatagramMove => rail.write && rail.kind == RailKind::Datagram,
            Path::Ring | Path::Queue | Path::Datagram | Path::Copy => false,
        }
    }

    /// A message may be read by a rail.
    pub(super) fn reads_by(self, rail: &Rail) -> bool {
        self == Path::Move && rail.read && rail.kind != RailKind::Datagram
    }

    fn is_by(self, kind: RailKind) -> bool {
        match self {
            Path::Queue => kind != RailKind::Datagram,
            Path::Datagram => kind == RailKind::Datagram,
            Path::Ring | Path::Move | Path::DatagramMove | Path::Copy => false,
        }
    }
}

impl Routes {
    /// The marker of a ring by the first of these rails: the one that is chosen, if that keeps it.
    pub fn marker(config: &Config, rails: &[Rail], fails_over: bool) -> Option<Marker> {
        let rail = rails.first()?;
        // A mark that goes by itself could be missing where the rail is cut, and nobody would know.
        let is_safe = |marker: &Marker| *marker != Marker::Second || !has_others(rails, fails_over);
        let chosen = config.marker.filter(|marker| marker.is_kept_by(rail)).filter(is_safe);
        chosen.or_else(|| Marker::of(rail).filter(is_safe))
    }

    pub fn new(config: &Config, rank: Rank, rails: &[Rail], fails_over: bool) -> Routes {
        let row = |kind| {
            let of_kind: Vec<usize> = (0..rails.len()).filter(|rail| rails[*rail].kind == kind).collect();
            let promises: Vec<Rail> = of_kind.iter().map(|rail| rails[*rail]).collect();
            config.spread.row(rank, &promises).into_iter().map(|at| of_kind[usize::from(at)] as u8).collect()
        };
        let rules = config.rules.clone().unwrap_or_else(|| Rules::usual(config.eager, config.zero_copy_from));
        let has = |kind| rails.iter().any(|rail| rail.kind == kind);
        let marker = Routes::marker(config, rails, fails_over);
        let fails_over = has_others(rails, fails_over);
        let mut rails = rails.to_vec();
        let mut longest_put = usize::MAX;
        if fails_over {
            // What one rail had goes by any other.
            longest_put = rails.iter().map(|rail| rail.longest).min().unwrap_or(0);
            rails.iter_mut().for_each(|rail| rail.longest = longest_put);
        }
        let longest = rails.iter().map(|rail| rail.longest).chain([config.ring.longest()]).max();
        let short_below = rules.short_below().min(longest_put.saturating_sub(EAGER).saturating_add(1));
        let by_ring = marker == Some(Marker::Last);
        // Its one rail reads what this rank can read itself, and writes nothing.
        let direct = |rail: &Rail| rail.kind == RailKind::Memory && rail.read && !rail.write;
        let is_direct = by_ring && config.offer && rails.len() == 1 && rails.iter().all(direct);
        let from = rules.in_place_from().filter(|_| is_direct).unwrap_or(u64::MAX);
        Routes {
            ring: config.ring,
            window: config.window,
            marker,
            fails_over,
            short_below: if by_ring { short_below } else { 0 },
            read_at_once: from.max(1)..READ_AT_ONCE_UP_TO,
            rules,
            rows: KINDS.map(row),
            longest_whole: longest.unwrap_or(0).saturating_sub(EAGER),
            rails,
            longest_put,
            peers: 0,
            is_mixed: has(RailKind::Datagram) && has(RailKind::Connection),
        }
    }

    /// The rails that are connected when a peer is first talked with.
    pub fn first(&self) -> Vec<usize> {
        let has = |kind: &RailKind| self.rails.iter().any(|rail| rail.kind == *kind);
        let kind = if has(&RailKind::Datagram) { RailKind::Datagram } else { self.connections() };
        let row = &self.rows[kind as usize];
        let of_kind = self.of(kind);
        // Rings are the first rail's.
        of_kind.filter(|rail| *rail == 0 || row.contains(&(*rail as u8))).collect()
    }

    /// The kind of those that lose nothing.
    pub fn connections(&self) -> RailKind {
        let is_memory = self.rails.iter().any(|rail| rail.kind == RailKind::Memory);
        if is_memory { RailKind::Memory } else { RailKind::Connection }
    }

    /// The rails of a kind that packets go by.
    pub fn row_of(&self, kind: RailKind) -> &[u8] {
        &self.rows[kind as usize]
    }

    /// The rails of a kind.
    pub fn of(&self, kind: RailKind) -> impl Iterator<Item = usize> {
        (0..self.rails.len()).filter(move |rail| self.rails[*rail].kind == kind)
    }

    /// The path of a message whose header takes `head` bytes: that of the first rule that holds and whose path exists now.
    pub fn choose<M>(&self, size: u64, head: usize, peer: &Peer<M>) -> Path {
        let exists = |path: &Path| match path {
            Path::Ring => {
                let bytes = head.saturating_add(size as usize);
                bytes <= self.longest_put && peer.has_slot(bytes)
            }
            Path::Queue | Path::Datagram => self.longest(*path, peer) > 0,
            Path::Move | Path::DatagramMove => {
                let moves = |rail| path.reads_by(rail) || path.writes_by(rail);
                (0..self.rails.len()).any(|rail| peer.up[rail] && moves(&self.rails[rail]))
            }
            Path::Copy => true,
        };
        self.rules.paths(self.facts(size, peer)).find(exists).expect("the last rule always has a path")
    }

    fn facts<M>(&self, size: u64, peer: &Peer<M>) -> Facts {
        // One that is sent at once has not been put there.
        Facts { size, peers: self.peers, queued: peer.sends.len().max(1) as u64 }
    }

    /// The longest packet of a path; 0 if it does not exist.
    pub fn longest<M>(&self, path: Path, peer: &Peer<M>) -> usize {
        if path == Path::Ring {
            let ring = peer.ring_out.as_ref().filter(|_| peer.up[0]);
            return ring.map_or(0, |ring| ring.shape.longest().min(self.longest_put));
        }
        let up = (0..self.rails.len()).filter(|rail| peer.up[*rail] && path.is_by(self.rails[*rail].kind));
        up.map(|rail| self.rails[rail].longest).max().unwrap_or(0)
    }

    /// The longest packet that goes by no ring.
    pub fn widest<M>(&self, peer: &Peer<M>) -> usize {
        self.longest(Path::Queue, peer).max(self.longest(Path::Datagram, peer))
    }
}

/// Whether what one of these rails had can go by another if it is cut, where the wire tells of that.
fn has_others(rails: &[Rail], fails_over: bool) -> bool {
    fails_over && rails.len() > 1 && rails.iter().all(|rail| rail.kind == RailKind::Connection)
}

/// What a packet is posted with.
pub(super) struct Post<'a, W: Wire> {
    pub wire: &'a mut W,
    pub meter: &'a mut Meter,
    pub routes: &'a Routes,
    pub source: Rank,
}

impl<W: Wire> Post<'_, W> {
    /// Posts one packet: by the first rule that holds for as many bytes as it brings, and whose path takes it now; by whatever takes
    /// it, if there is none. `only` names the rail that it must go by.
    pub fn packet(
        &mut self,
        peer: &mut Peer<W::Memory>,
        body: &Body,
        data: Data<'_, W::Memory>,
        only: Option<usize>,
    ) -> bool {
        let control = matches!(body, Body::Control);
        let sequence = if control { 0 } else { peer.outgoing.sequence() };
        let mut head = [0; LONGEST];
        let header = body.encode(self.source, sequence, peer.values, &mut head);
        let head = &head[..header];
        let posted = match only {
            Some(rail) => self.send(peer, rail, head, data),
            None => {
                let routes = self.routes;
                // What lets the peer go on does not wait behind data that is written to it.
                let first = (data.length() == 0 && peer.is_written_to()).then_some(Path::Datagram);
                // That the first rule holds need not be found out.
                let is_short = !control && first.is_none() && data.length() < peer.short_below;
                let by_ring = is_short && self.put(peer, head, data);
                let facts = routes.facts(data.length() as u64, peer);
                let mut refused = [control || is_short, false, false];
                let mut takes = |path| {
                    let Some(at) = ANY.iter().position(|any| *any == path) else { return false };
                    let taken = !refused[at] && self.by(path, peer, head, data);
                    refused[at] = !taken;
                    taken
                };
                by_ring
                    || first.is_some_and(&mut takes)
                    || routes.rules.paths(facts).any(&mut takes)
                    || ANY.into_iter().any(&mut takes)
            }
        };
        if posted {
            if !control {
                peer.outgoing.sent();
            }
            peer.tell();
        }
        posted
    }

    fn by(&mut self, path: Path, peer: &mut Peer<W::Memory>, head: &[u8], data: Data<'_, W::Memory>) -> bool {
        if path == Path::Ring {
            return self.put(peer, head, data);
        }
        let routes = self.routes;
        let mut refused = [false; RAILS];
        for kind in KINDS.into_iter().filter(|kind| path.is_by(*kind)) {
            let row = &routes.rows[kind as usize];
            let turn = peer.turn;
            let in_row = (0..row.len()).map(|i| (turn + i) % row.len()).map(|at| (at, usize::from(row[at])));
            // By the next of the row, or else by any other that takes it: a rail may never come up.
            for (at, rail) in in_row.chain(routes.of(kind).map(|rail| (turn, rail))) {
                if !refused[rail] && self.send(peer, rail, head, data) {
                    peer.turn = at + 1;
                    return true;
                }
                refused[rail] = true;
            }
        }
        false
    }

    /// By a queue.
    fn send(&mut self, peer: &mut Peer<W::Memory>, rail: usize, head: &[u8], data: Data<'_, W::Memory>) -> bool {
        // A piece for another path may be longer than what this one takes.
        let fits = peer.up[rail] && head.len() + data.length() <= self.routes.rails[rail].longest;
        let posted = fits && self.wire.post(Lane { peer: peer.rank, rail }, Request::Send { head, body: data }).is_ok();
        if posted {
            peer.went[rail] = peer.went[rail].wrapping_add(1);
            let bytes = (head.len() + data.length()) as u64;
            self.meter.queue_packets += 1;
            self.meter.queue_bytes += bytes;
            if self.routes.rails[rail].kind == RailKind::Datagram {
                self.meter.datagram_packets += 1;
                self.meter.datagram_bytes += bytes;
                peer.datagrams += 1;
            }
        }
        posted
    }

    /// By the ring, if it is open and has room.
    fn put(&mut self, peer: &mut Peer<W::Memory>, head: &[u8], data: Data<'_, W::Memory>) -> bool {
        let (Some(ring), Some(marker), true) = (&mut peer.ring_out, self.routes.marker, peer.up[0]) else {
            return false;
        };
        let total = head.len() + data.length();
        if total > self.routes.longest_put {
            return false;
        }
        let Some(spot) = ring.claim(total) else {
            self.meter.fallbacks += u64::from(total <= ring.shape.longest());
            return false;
        };
        let together = marker != Marker::Second;
        let request = Request::Put {
            to: ring.key,
            at: spot.at,
            head,
            body: data,
            mark: together.then_some(spot.mark),
            immediate: (marker == Marker::Immediate).then_some(total as u32),
        };
        if self.wire.post(Lane { peer: peer.rank, rail: 0 }, request).is_err() {
            return false;
        }
        ring.sent(spot);
        self.meter.ring_packets += 1;
        if !together && put_mark(self.wire, peer.rank, ring.key, spot.mark_at, spot.mark).is_err() {
            peer.mark = Some((ring.key, spot.mark_at, spot.mark));
        }
        true
    }
}

/// The mark of a message that is in the ring already.
pub(super) fn put_mark<W: Wire>(wire: &mut W, peer: Rank, to: Key, at: usize, mark: u64) -> Result<(), Busy> {
    let request = Request::Put { to, at, head: &[], body: Data::None, mark: Some(mark), immediate: None };
    wire.post(Lane { peer, rail: 0 }, request)
}
