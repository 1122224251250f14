//! Routes: the one place where the path of a message is chosen.

use crate::config::Config;
use crate::packet::EAGER;
use crate::ring::{CompletionFlag, RingConfig, Sender};
use crate::rules::{Facts, Path, Rules};
use crate::wire::{Key, RAILS, Rail, RailKind, Rank};
use std::ops::Range;

/// Longest message read at once, in bytes: for longer ones the other costs are negligible.
const READ_AT_ONCE_UP_TO: u64 = 256 << 10;

/// Paths to one peer that are open now.
pub(super) struct Open<'a> {
    /// Rails that packets and data may take.
    pub up: &'a [bool; RAILS],
    /// The peer's ring, if its rail is up.
    pub ring: Option<&'a Sender>,
    /// Number of messages that wait their turn.
    pub queued: u64,
}

/// Rules, and the rails of their paths, for the peers of the same host or for the others.
pub(super) struct Routes {
    /// Size of the rings that peers are given.
    pub ring: RingConfig,
    /// Number of packets that may be in flight to a peer.
    pub window: u32,
    rules: Rules,
    pub rails: Vec<Rail>,
    /// Longest message sent whole, in bytes. Only a ring whose slots are longer than those of this rank takes
    /// longer ones.
    pub longest_whole: usize,
    /// Longest packet in a ring, whatever its slots hold: a packet that fails over may have to take a queue.
    pub longest_put: usize,
    pub marker: Option<CompletionFlag>,
    /// Length in bytes below which the short path may use a ring without evaluating the rules; 0 if a ring
    /// needs more than one put. See [`Rules`].
    pub short_below: usize,
    /// Lengths of messages that are read in place without evaluating the rules; empty if more is needed. See
    /// [`direct`](super::direct).
    pub read_at_once: Range<u64>,
    /// Rails of packets, by kind. Packets take them in turn.
    rows: [Vec<u8>; KINDS.len()],
    /// Largest number of rings that peers are given.
    pub rings: usize,
    /// An unused ring of that size, if there are any: the ring that a peer may get.
    ring_to_be: Option<Sender>,
    /// Number of peers that this rank has communicated with.
    peers: u64,
    /// True if all peers have datagrams and the peers with most traffic have connections.
    pub is_mixed: bool,
    /// True if there are several connections, and the wire returns the requests of a cut one, which move to
    /// the others.
    pub fails_over: bool,
}

pub(super) const KINDS: [RailKind; 3] = [RailKind::Connection, RailKind::Datagram, RailKind::Memory];
/// Paths of packets without a rule's path: packets that are no message, and pieces of rendezvous messages.
pub(super) const ANY: [Path; 3] = [Path::Ring, Path::Queue, Path::Datagram];

impl Path {
    /// Returns true if a message on this path is sent eagerly.
    pub(super) fn is_at_once(self) -> bool {
        ANY.contains(&self)
    }

    /// Returns true if a message may be written in place on a rail.
    pub(super) fn writes_by(self, rail: &Rail) -> bool {
        match self {
            Path::Move => rail.write && rail.kind != RailKind::Datagram,
            Path::DatagramMove => rail.write && rail.kind == RailKind::Datagram,
            Path::Ring | Path::Queue | Path::Datagram | Path::Copy => false,
        }
    }

    /// Returns true if a message may be read on a rail.
    pub(super) fn reads_by(self, rail: &Rail) -> bool {
        self == Path::Move && rail.read && rail.kind != RailKind::Datagram
    }

    /// Returns true if packets of this path use rails of this kind.
    pub(super) fn is_by(self, kind: RailKind) -> bool {
        match self {
            Path::Queue => kind != RailKind::Datagram,
            Path::Datagram => kind == RailKind::Datagram,
            Path::Ring | Path::Move | Path::DatagramMove | Path::Copy => false,
        }
    }
}

impl Routes {
    /// The marker of a ring on the first of these rails: the configured one if the rail supports it.
    pub fn marker(config: &Config, rails: &[Rail], fails_over: bool) -> Option<CompletionFlag> {
        let rail = rails.first()?;
        // A mark in a put of its own may be lost with its rail, undetected by both ends.
        let is_safe = |marker: &CompletionFlag| *marker != CompletionFlag::Second || !has_others(rails, fails_over);
        let chosen = config.marker.filter(|marker| marker.is_kept_by(rail)).filter(is_safe);
        chosen.or_else(|| CompletionFlag::of(rail).filter(is_safe))
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
        let rings = if marker.is_some() { config.rings } else { 0 };
        let fails_over = has_others(rails, fails_over);
        let mut rails = rails.to_vec();
        let mut longest_put = usize::MAX;
        if fails_over {
            // Any rail may take the packets of a cut one.
            longest_put = rails.iter().map(|rail| rail.longest).min().unwrap_or(0);
            rails.iter_mut().for_each(|rail| rail.longest = longest_put);
        }
        let longest = rails.iter().map(|rail| rail.longest).chain([config.ring.longest()]).max();
        let short_below = rules.short_below().min(longest_put.saturating_sub(EAGER).saturating_add(1));
        let by_ring = marker == Some(CompletionFlag::Last);
        // A single rail that reads memory this rank can access itself, and does not write.
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
            rings,
            ring_to_be: (rings > 0).then(|| Sender::new(0, config.ring, Key { address: 0, key: 0 })),
            peers: 0,
            is_mixed: has(RailKind::Datagram) && has(RailKind::Connection),
        }
    }

    /// Counts a peer that this rank communicates with.
    pub fn add_peer(&mut self) {
        self.peers += 1;
    }

    /// Removes a lost peer from that count.
    pub fn remove_peer(&mut self) {
        self.peers -= 1;
    }

    /// Rails to connect at the first communication with a peer. Datagrams need no connection, so all of their rails can be
    /// used at once, also those that only resent packets take.
    pub fn first(&self) -> Vec<usize> {
        let has = |kind: &RailKind| self.rails.iter().any(|rail| rail.kind == *kind);
        let kind = if has(&RailKind::Datagram) { RailKind::Datagram } else { self.connections() };
        let row = &self.rows[kind as usize];
        let of_kind = self.of(kind);
        // Rings need the first rail.
        of_kind.filter(|rail| kind == RailKind::Datagram || *rail == 0 || row.contains(&(*rail as u8))).collect()
    }

    /// Kind of the rails that are reliable.
    pub fn connections(&self) -> RailKind {
        let is_memory = self.rails.iter().any(|rail| rail.kind == RailKind::Memory);
        if is_memory { RailKind::Memory } else { RailKind::Connection }
    }

    /// Rails of a kind that packets take, in turn.
    pub fn row_of(&self, kind: RailKind) -> &[u8] {
        &self.rows[kind as usize]
    }

    /// Rails of a kind.
    pub fn of(&self, kind: RailKind) -> impl Iterator<Item = usize> {
        (0..self.rails.len()).filter(move |rail| self.rails[*rail].kind == kind)
    }

    /// Kind of the further rails that a long message on this path is divided among; `None` if it is not
    /// divided.
    pub fn stripes_by(&self, path: Path) -> Option<RailKind> {
        match path {
            Path::Move => Some(self.connections()),
            Path::DatagramMove => Some(RailKind::Datagram),
            Path::Ring | Path::Queue | Path::Datagram | Path::Copy => None,
        }
    }

    /// Path of a message of `size` bytes behind a header of `head` bytes: that of the first rule that holds and whose
    /// path is open.
    #[inline]
    pub fn choose(&self, size: u64, head: usize, open: &Open<'_>) -> Path {
        let is_open = |path: &Path| match path {
            Path::Ring => {
                let bytes = head.saturating_add(size as usize);
                bytes <= self.longest_put && open.ring.is_some_and(|ring| ring.claim(bytes).is_some())
            }
            Path::Queue | Path::Datagram => self.longest(*path, open) > 0,
            Path::Move | Path::DatagramMove => {
                let moves = |rail| path.reads_by(rail) || path.writes_by(rail);
                (0..self.rails.len()).any(|rail| open.up[rail] && moves(&self.rails[rail]))
            }
            Path::Copy => true,
        };
        self.paths(size, open.queued).find(is_open).expect("the last rule always has a path")
    }

    /// Returns true if a message of `size` bytes would use a connection to its peer if there were one, and a ring on it. A
    /// copied message would: its packets take any path, datagrams last.
    pub fn is_for_connection(&self, size: u64, queued: u64) -> bool {
        let all = Open { up: &[true; RAILS], ring: self.ring_to_be.as_ref(), queued };
        !matches!(self.choose(size, EAGER, &all), Path::Datagram | Path::DatagramMove)
    }

    /// Paths of the rules that hold for a message of `size` bytes, while `queued` messages wait.
    #[inline]
    pub fn paths(&self, size: u64, queued: u64) -> impl Iterator<Item = Path> {
        // A message that is sent at once was not queued.
        self.rules.paths(Facts { size, peers: self.peers, queued: queued.max(1) })
    }

    /// Longest packet of a path; 0 if it is not open.
    #[inline]
    pub fn longest(&self, path: Path, open: &Open<'_>) -> usize {
        if path == Path::Ring {
            return open.ring.map_or(0, |ring| ring.shape.longest().min(self.longest_put));
        }
        let up = (0..self.rails.len()).filter(|rail| open.up[*rail] && path.is_by(self.rails[*rail].kind));
        up.map(|rail| self.rails[rail].longest).max().unwrap_or(0)
    }

    /// Longest packet on a path other than a ring.
    #[inline]
    pub fn widest(&self, open: &Open<'_>) -> usize {
        self.longest(Path::Queue, open).max(self.longest(Path::Datagram, open))
    }
}

/// Returns true if any of these rails takes over the requests of a cut one, and the wire reports cuts.
fn has_others(rails: &[Rail], fails_over: bool) -> bool {
    fails_over && rails.len() > 1 && rails.iter().all(|rail| rail.kind == RailKind::Connection)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::Conditions;

    const UP: [bool; RAILS] = [true, false, false, false];

    fn routes() -> Routes {
        Routes::new(&Config::default(), 0, &Conditions::default().rails, false)
    }

    #[test]
    fn short_message_takes_queue_while_ring_is_full() {
        fn choose(ring: Option<&Sender>) -> Path {
            routes().choose(8, EAGER, &Open { up: &UP, ring, queued: 0 })
        }
        let mut ring = Sender::new(1, RingConfig { slots: 4, bytes: 1024 }, Key { address: 0, key: 0 });
        assert_eq!((choose(Some(&ring)), choose(None)), (Path::Ring, Path::Queue));
        while let Some(spot) = ring.claim(EAGER + 8) {
            ring.sent(spot);
        }
        assert_eq!(choose(Some(&ring)), Path::Queue);
    }

    #[test]
    fn long_message_is_copied_while_no_rail_is_up() {
        let routes = routes();
        let choose = |up| routes.choose(1 << 20, EAGER, &Open { up, ring: None, queued: 0 });
        assert_eq!((choose(&UP), choose(&[false; RAILS])), (Path::Move, Path::Copy));
    }
}
