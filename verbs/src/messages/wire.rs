//! The verbs wire of one rank.

use super::cache::Cache;
use super::cuts::Passage;
use super::handles::{Arrived, Opened, Ring};
use super::memory::Table;
use super::moves::Moves;
use super::peer_failure::{CLOSED, Gone};
use super::posting::{BUFFER, write};
use crate::connect::{Core, Link, Service};
use crate::datagram::Mailbox;
use crate::memory::Buffer;
use crate::progress;
use crate::rail::Writes;
use crate::receive::{Came, LONGEST};
use crate::sys::Access;
use crate::values::NotifyBy;
use crate::wait::{NAPS, is_oversubscribed};
use crate::wr::Verb;
use std::collections::{BTreeMap, VecDeque};
use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};
use transom_channel::wire::{Busy, Event, Key, Lane, Left, RAILS, Rail, RailKind, Rank, Request, Why, Window, Wire};
use transom_channel::{Counters, Paths};
use transom_network::Bootstrap;
use transom_shm_loopback::Loopback;
use transom_shm_loopback::messages::{Bytes, Naps, Owner, Waiter};
use transom_windows::{FabricError, OobExchange};

/// Sleep times of threads that wait for messages: adapters do not notify an event count.
const SLEEP: Naps = Naps { first: NAPS[0], longest: NAPS[1], longest_idle: Duration::from_millis(5) };

/// The verbs wire of one rank: the lanes that it uses, and the memory registered for messages.
pub struct VerbsWire {
    pub(super) service: Arc<Service>,
    pub(super) exchange: Arc<dyn Bootstrap>,
    /// The ranks of this host.
    pub(super) here: Loopback,
    pub(super) rails: Vec<Rail>,
    /// Datagram queue pairs of the first adapters' rails, if messages use datagrams. Their lanes are the last rails.
    pub(super) mailboxes: Vec<Mailbox>,
    /// True for mailboxes whose port or device was down at the last check.
    pub(super) down: [bool; RAILS],
    pub(super) waiter: Waiter,
    pub(super) register_from: usize,
    /// Peers that this rank has communicated with.
    pub(super) peers: BTreeMap<Rank, Peer>,
    /// Lanes that the engine has requested and that are not up yet.
    pub(super) wanted: Vec<Lane>,
    /// Lanes with zero-copy transfers in flight.
    pub(super) moving: Vec<Lane>,
    /// Registrations in use, by rail. An entry counts its messages, because a program may send the same memory twice at
    /// once. A registration may cover more than the message.
    pub(super) registered: [Table; RAILS],
    /// Counters of registrations made and found.
    pub(super) counted: Counters,
    /// Registrations that are kept between messages.
    pub(super) cache: Cache,
    /// Open segment groups of datagrams, by rail and queue pair number.
    pub(super) open: BTreeMap<(usize, u32), Window>,
    /// Rings of this rank, by key, with the peer that writes to each.
    pub(super) rings: BTreeMap<Key, (Rank, Arc<Buffer>)>,
    pub(super) events: VecDeque<Event<Bytes>>,
    /// Failed peers that are not reported to the engine yet.
    pub(super) gone: Vec<Gone>,
    pub(super) closing: bool,
    /// Checks of the peers since then.
    pub(super) closing_checks: u32,
    /// Time of the next check for silent queues of datagrams, in nanoseconds of [`now`](Wire::now).
    pub(super) next_check: u64,
    /// Number of retired queue pairs at the last check, by rail.
    pub(super) retired: [u32; RAILS],
    pub(super) scratch: Vec<u8>,
    pub(super) began: Instant,
}

#[derive(Default)]
pub(super) struct Peer {
    /// Zero-copy transfers in flight, by rail.
    pub(super) moves: [Moves; RAILS],
    /// The engine knows of the peer's loss, or has aborted the peer.
    pub(super) over: bool,
    /// The peer is, or was, in `gone`.
    pub(super) noticed: bool,
    /// The peer receives no more messages.
    pub(super) closed: bool,
    /// This rank has announced to the peer that it receives no more messages.
    pub(super) told: bool,
    /// Number of such announcements by datagrams.
    pub(super) announcements: usize,
    /// Number of checks that found its lane ended although the peer lives.
    pub(super) ended: u32,
    /// State of each lane as reported to the engine, by rail.
    pub(super) passages: [Passage; RAILS],
    /// True for a rail that is being connected in place of another one.
    pub(super) tried: [bool; RAILS],
    /// Time of the first refusal since the adapter last accepted a request, and the number of accepted ones, by rail.
    pub(super) refusals: [Option<(Instant, u64)>; RAILS],
    /// Keys of its pipe memory. While there are any, requests on the first rail stay on it.
    pub(super) pipes: Vec<Key>,
    /// Time since which no rail passes, if one did before.
    pub(super) dark: Option<Instant>,
}

/// Most arrivals that are taken from each rail per poll.
const AT_ONCE: usize = 64;
impl VerbsWire {
    pub(crate) fn open(
        service: &Arc<Service>,
        exchange: &Arc<dyn Bootstrap>,
        here: &Loopback,
    ) -> Result<VerbsWire, FabricError> {
        let (rail, paths) = (&service.core.rail, service.core.paths);
        let mailboxes: Vec<Mailbox> = service.cores().filter_map(Core::take_mailbox).collect();
        let is_connected = paths != Paths::Datagrams;
        if let (true, Some(core)) = (is_connected, service.cores().find(|core| !core.receives.works())) {
            let what = format!("messages by RDMA device {}", core.rail.name());
            let why = "it has no shared receive queues";
            return Err(FabricError::System {
                what,
                source: std::io::Error::new(std::io::ErrorKind::Unsupported, why),
            });
        }
        let promise = |core: &Core| {
            let Writes { notify_by, in_order } = core.rail.writes;
            let whole_word = notify_by == NotifyBy::Write;
            Rail {
                kind: RailKind::Connection,
                longest: LONGEST,
                mark_last: in_order,
                whole_word,
                immediate: !whole_word,
                write: true,
                read: true,
                bandwidth: core.rail.bandwidth,
            }
        };
        let mut rails: Vec<Rail> = service.cores().map(promise).collect();
        // Without connections to all peers, other requests use connections that are established on demand.
        let datagrams = rails.clone().into_iter().zip(&mailboxes).map(|(rail, mailbox)| Rail {
            kind: RailKind::Datagram,
            longest: mailbox.longest(),
            read: !is_connected,
            ..rail
        });
        if !is_connected {
            rails.clear();
        }
        rails.extend(datagrams);
        if rails.len() > RAILS {
            let why = format!("paths=both reserves one of {RAILS} rails: name at most {} RDMA devices", RAILS - 1);
            return Err(FabricError::System { what: "TRANSOM_MESSAGES".into(), source: std::io::Error::other(why) });
        }
        Ok(VerbsWire {
            register_from: rail.register_from,
            rails,
            mailboxes,
            down: [false; RAILS],
            waiter: Waiter::without_a_bell(service.core.me, is_oversubscribed(here.size()), SLEEP),
            service: service.clone(),
            exchange: exchange.clone(),
            here: here.clone(),
            peers: BTreeMap::new(),
            wanted: Vec::new(),
            moving: Vec::new(),
            registered: Default::default(),
            counted: Counters::default(),
            cache: Cache::new(rail.keep),
            open: BTreeMap::new(),
            rings: BTreeMap::new(),
            events: VecDeque::new(),
            gone: Vec::new(),
            closing: false,
            closing_checks: 0,
            next_check: 0,
            retired: Default::default(),
            scratch: Vec::new(),
            began: Instant::now(),
        })
    }

    /// True if the sends of a rail are datagrams.
    pub(super) fn is_of_datagrams(&self, rail: usize) -> bool {
        self.rails[rail].kind == RailKind::Datagram
    }

    pub(super) fn core(&self) -> &Core {
        &self.service.core
    }

    /// Shortest message, in bytes, that is sent without a copy.
    pub fn zero_copy_from(&self) -> usize {
        self.register_from
    }

    /// Number of the rail of the adapters that a rail of messages uses.
    pub(super) fn port_of(&self, rail: usize) -> usize {
        rail.checked_sub(self.rails.len() - self.mailboxes.len()).unwrap_or(rail)
    }

    /// The mailbox of a rail; `None` for a rail of connections.
    pub(super) fn mailbox(&mut self, rail: usize) -> Option<&mut Mailbox> {
        let first = self.rails.len() - self.mailboxes.len();
        self.mailboxes.get_mut(rail.checked_sub(first)?)
    }

    /// Number of datagrams that may arrive between two polls by whichever rail, and the length of a datagram in bytes;
    /// `None` if all packets use connections.
    pub fn datagrams(&self) -> Option<(u32, usize)> {
        let buffers = self.mailboxes.iter().map(Mailbox::buffers).min()?;
        Some((buffers, self.mailboxes.iter().map(Mailbox::longest).min()?))
    }

    /// Handles arrivals, completions and lost peers.
    #[cold]
    #[inline(never)]
    fn collect(&mut self) {
        let service = self.service.clone();
        let (mut found, mut taken) = (false, 0);
        for (rail, core) in service.cores().enumerate() {
            progress::poll(&core.rail, &core.endpoints);
            for _ in 0..AT_ONCE {
                let Some(came) = core.receives.take() else { break };
                taken += 1;
                self.came(rail, came);
            }
        }
        found |= self.look_for_cuts();
        found |= self.look_for_ports();
        found |= self.look_for_pieces();
        for rail in self.rails.len() - self.mailboxes.len()..self.rails.len() {
            for (peer, letter) in self.mailbox(rail).map_or(Vec::new(), Mailbox::receive) {
                taken += 1;
                self.message(Lane { peer, rail }, letter.bytes, Opened(letter));
            }
        }
        for lane in std::mem::take(&mut self.wanted) {
            self.connected(lane);
        }
        for lane in std::mem::take(&mut self.moving) {
            self.moved(lane);
        }
        self.gone.iter_mut().for_each(|gone| gone.looked(found, taken));
        for Gone { peer, why, .. } in self.gone.extract_if(.., |gone| gone.is_over()) {
            self.events.push_back(Event::Failed(Lane { peer, rail: 0 }, why));
        }
        if taken > 0 {
            // Lets a waiting caller check its message before it polls again.
            self.events.push_back(Event::Worked);
        }
    }

    fn came(&mut self, rail: usize, came: Came) {
        match came {
            Came::Value(peer, value) => {
                if !self.peers.entry(peer).or_default().over {
                    self.events.push_back(Event::Immediate(Lane { peer, rail }, value));
                }
            }
            Came::Message(peer, filled) => {
                let length = filled.bytes;
                self.message(Lane { peer, rail }, length, Arrived(filled));
            }
        }
    }

    /// Handles an arrived packet. A discarded packet returns its buffer.
    fn message(&mut self, lane: Lane, length: usize, bytes: impl Owner) {
        // A peer that sends a datagram can be reached by datagrams.
        if self.is_of_datagrams(lane.rail) && !self.peers.contains_key(&lane.peer) {
            self.events.push_back(Event::Up(lane));
        }
        let known = self.peers.entry(lane.peer).or_default();
        if length == CLOSED.len() {
            known.closed = true;
        } else if !known.over {
            self.events.push_back(Event::Arrived { lane, slot: Bytes::owned(bytes), at: 0, length });
        }
    }

    fn connected(&mut self, lane: Lane) {
        let Lane { peer, rail } = lane;
        if self.is_of_datagrams(rail) {
            self.events.push_back(Event::Up(lane));
            self.events.extend(self.down[self.port_of(rail)].then_some(Event::Cut(lane)));
            return;
        }
        let core = self.service.core_of(rail);
        let failover = || core.endpoints.lane(peer as usize).is_some_and(|lane| lane.is_failover());
        match core.wanted(peer as usize) {
            // A failover queue pair serves only windows; messages use the lanes of the other rails.
            Link::Ready if failover() => {
                self.wanted.push(lane);
                self.try_other_rails(lane);
            }
            Link::Ready => {
                // Both the engine and another rail may have requested it.
                if !self.end_trial(lane) && self.raise(lane) {
                    self.events.push_back(Event::Up(lane));
                }
                if self.closing {
                    self.say_closed(peer);
                }
            }
            Link::Wanted | Link::Absent => self.wanted.push(lane),
            refused @ (Link::Refused { .. } | Link::Unreached) => {
                tracing::warn!(peer, rail, ?refused, "no connection for messages");
                self.end_trial(lane);
                if self.mailboxes.is_empty() && !self.try_other_rails(lane) {
                    self.not_connected(lane, refused);
                }
            }
        }
    }

    /// Connects the other rails, which messages use in place of this one. Returns false if all were refused.
    fn try_other_rails(&mut self, Lane { peer: rank, rail: but }: Lane) -> bool {
        let passages = self.peers.get(&rank).map_or([Passage::Closed; RAILS], |peer| peer.passages);
        let mut may_pass = (0..self.rails.len()).any(|rail| rail != but && passages[rail] != Passage::Closed);
        if may_pass {
            return true;
        }
        for rail in (0..self.rails.len()).filter(|rail| *rail != but && self.mailboxes.is_empty()) {
            let link = || self.service.core_of(rail).wanted(rank as usize);
            let peer = self.peers.entry(rank).or_default();
            let is_known = peer.tried[rail];
            if is_known || !matches!(link(), Link::Refused { .. } | Link::Unreached) {
                may_pass = true;
                if !is_known {
                    peer.tried[rail] = true;
                    self.wanted.push(Lane { peer: rank, rail });
                }
            }
        }
        may_pass
    }

    /// Returns true if one of several rails is up already.
    fn end_trial(&mut self, by: Lane) -> bool {
        let fails_over = self.may_fail_over();
        let peer = self.peers.entry(by.peer).or_default();
        peer.tried[by.rail] = false;
        fails_over && peer.passages[by.rail] == Passage::Up
    }

    /// Gives up a peer to which there is no connection. The error of messages has no room for the reason.
    pub(super) fn not_connected(&mut self, Lane { peer, rail }: Lane, refused: Link) {
        let (core, rank) = (self.service.core_of(rail), peer as usize);
        let why = match refused {
            Link::Refused { by_peer, errno } => {
                let (what, source) = core.refusal([core.me, rank], by_peer, errno);
                format!("{what}: {source}")
            }
            _ => core.unreached(rank),
        };
        if self.peers.get(&peer).is_none_or(|peer| !peer.noticed) {
            // A failed print is ignored: stderr may be closed.
            let _ = writeln!(std::io::stderr(), "transom: rank {} cannot send to rank {peer}: {why}", core.me);
        }
        self.notice(peer, Why::Unreachable);
    }
}

impl Wire for VerbsWire {
    type Memory = Bytes;

    fn rails(&self, near: bool) -> &[Rail] {
        if near { &[] } else { &self.rails }
    }

    fn connect(&mut self, lane: Lane) {
        self.peers.entry(lane.peer).or_default();
        if !self.is_of_datagrams(lane.rail) {
            // A connection that was refused earlier is requested again.
            self.service.core_of(lane.rail).want(lane.peer as usize);
        }
        self.connected(lane);
    }

    fn disconnect(&mut self, lane: Lane) {
        self.wanted.retain(|wanted| *wanted != lane);
        self.events.retain(|event| !matches!(event, Event::Up(of) if *of == lane));
        if let Some(peer) = self.peers.get_mut(&lane.peer) {
            peer.passages[lane.rail] = Passage::Closed;
        }
        self.service.core_of(lane.rail).part(lane.peer as usize);
    }

    fn connected_besides(&self, but: Rank) -> usize {
        let core = self.core();
        let is_asked = |rank: usize| {
            let peer = rank as Rank;
            let told = self
                .peers
                .get(&peer)
                .is_some_and(|peer| peer.passages.iter().any(|passage| *passage != Passage::Closed));
            told || self.wanted.iter().any(|lane| lane.peer == peer && !self.is_of_datagrams(lane.rail))
        };
        let others = core.endpoints.all().filter(|(rank, _)| *rank != core.me && *rank != but as usize);
        others.filter(|(rank, lane)| lane.has_queue() && !is_asked(*rank)).count()
    }

    fn abort_peer(&mut self, rank: Rank) {
        let peer = self.peers.entry(rank).or_default();
        peer.over = true;
        for (core, moves) in self.service.cores().zip(&mut peer.moves) {
            if !std::mem::take(moves).is_empty() {
                // Ending the queue pair also ends all requests that the adapter could still execute.
                core.give_up(rank as usize);
            }
            if let Some(lane) = core.endpoints.lane(rank as usize) {
                lane.return_to_messages(false);
                drop(lane.take_returned());
            }
        }
        self.mailboxes.iter_mut().for_each(|mailbox| mailbox.windows.cut(rank));
        self.wanted.retain(|wanted| wanted.peer != rank);
        self.moving.retain(|moving| moving.peer != rank);
        self.gone.retain(|gone| gone.peer != rank);
        self.events.retain(|event| event.lane().is_none_or(|lane| lane.peer != rank));
    }

    fn fails_over(&self) -> bool {
        self.may_fail_over()
    }

    fn reaches(&mut self, lane: Lane, key: Key, _: usize) -> bool {
        self.peers.entry(lane.peer).or_default().pipes.push(key);
        self.keep_or_not(lane);
        true
    }

    fn leave(&mut self, lane: Lane, key: Key) {
        self.peers.entry(lane.peer).or_default().pipes.retain(|known| *known != key);
        self.keep_or_not(lane);
    }

    fn drain_failed(&mut self, lane: Lane) -> Vec<Left<Bytes>> {
        match self.mailbox(lane.rail) {
            // Datagrams are copied, and lost at any time.
            Some(mailbox) => {
                mailbox.windows.cut(lane.peer);
                Vec::new()
            }
            None => self.taken_back(lane),
        }
    }

    fn take(&mut self, length: usize) -> Option<Bytes> {
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(length).ok()?;
        bytes.resize(length, 0_u8);
        Some(Bytes::owned(bytes.into_boxed_slice()))
    }

    fn give(&mut self, memory: Bytes) {
        drop(memory);
    }

    fn ring(&mut self, peer: Rank, length: usize) -> Option<(Bytes, Key)> {
        let buffer = Buffer::new(&self.core().rail.domain, length, Access::Bytes);
        let refused = |error| tracing::debug!(peer, %error, "cannot allocate memory for a ring");
        let buffer = Arc::new(buffer.map_err(refused).ok()?);
        let key = Key { address: buffer.address(), key: buffer.remote_key().into() };
        self.rings.insert(key, (peer, buffer.clone()));
        Some((Bytes::owned(Ring(buffer)), key))
    }

    fn opens(&mut self, lane: Lane) -> bool {
        let opens = self.mailboxes.is_empty() || self.connect_for(lane).is_ok();
        if opens {
            self.keep_or_not(lane);
        }
        opens
    }

    fn reads(&mut self, _: Lane) -> bool {
        true
    }

    fn count(&self, counters: &mut Counters) {
        self.count_registered(counters);
    }

    fn register(&mut self, memory: &Bytes, lane: Lane) -> Option<Key> {
        self.make_known(memory, lane.rail)
    }

    fn release(&mut self, lane: Lane, released: Key) {
        self.forget(lane.rail, released);
    }

    fn key_of(&self, memory: &Bytes, rail: usize) -> Option<Key> {
        self.known_key(memory, rail)
    }

    fn memory_of(&self, rail: usize, key: Key, length: usize, written: bool) -> Option<Bytes> {
        self.known_memory(rail, key, length, written)
    }

    fn open_window(&mut self, lane: Lane, window: Window) -> Option<Key> {
        self.opened(lane.rail, window)
    }

    fn close_window(&mut self, rail: usize, window: Key) -> u64 {
        self.closed(rail, window)
    }

    fn post(&mut self, lane: Lane, request: Request<'_, Bytes>) -> Result<(), Busy> {
        let rank = lane.peer;
        if let (Request::Send { head, body }, Some(mailbox)) = (&request, self.mailbox(lane.rail)) {
            let bytes = head.len() + body.length();
            return mailbox.send(rank, bytes, |into| write(into, head, *body, &[])).then_some(()).ok_or(Busy);
        }
        if let Request::Piece { from, to, index, token } = request {
            return self.piece(lane, from, to, index, token);
        }
        self.post_moves(lane)?;
        match request {
            Request::Send { head, body } => self.copied(lane, Verb::Send, BUFFER, head, body, None),
            Request::Put { to, at, head, body, mark, immediate } => {
                let verb = immediate.map_or(Verb::Write, Verb::WriteAndTell);
                let to = self.place(rank, to, at)?;
                self.copied(lane, verb, to, head, body, mark)
            }
            Request::Write { from, to, at, token } => self.begin(lane, Verb::Write, from, to, at, token),
            Request::Read { from, at, into, token } => self.begin(lane, Verb::Read, into, from, at, token),
            Request::Piece { .. } => unreachable!("pieces are sent by datagrams only"),
        }
    }

    fn poll(&mut self) -> Option<Event<Bytes>> {
        if self.events.is_empty() {
            self.collect();
        }
        self.events.pop_front()
    }

    fn now(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }
}

impl Drop for VerbsWire {
    fn drop(&mut self) {
        for (rail, core) in self.service.cores().enumerate() {
            for (rank, _) in self.peers.iter().filter(|(_, peer)| !peer.moves[rail].is_empty()) {
                core.give_up(*rank as usize);
            }
            for rank in self.peers.keys() {
                if let Some(lane) = core.endpoints.lane(*rank as usize) {
                    // Requests in flight continue on the next queue pair.
                    lane.return_to_messages(false);
                    drop(lane.take_returned());
                }
            }
        }
        let rings = std::mem::take(&mut self.rings).into_values();
        rings.for_each(|(_, ring)| self.service.core.receives.keep(ring));
        self.service.cores().for_each(|core| core.receives.discard(true));
    }
}
