//! The wire of one rank.

use super::handles::{Arrived, Ring};
use super::moves::{Move, Moves};
use super::waiter::Waiter;
use crate::verbs::bootstrap::Bootstrap;
use crate::verbs::connect::{Core, Link, Service};
use crate::verbs::lane::{Signal, Stop};
use crate::verbs::memory::{Buffer, Lent};
use crate::verbs::progress;
use crate::verbs::receive::{Came, LONGEST};
use crate::verbs::settings::NotifyBy;
use crate::verbs::sys::{Access, Registered};
use crate::verbs::wr::{Place, Verb};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Acquire};
use std::time::Instant;
use transom_channel::wire::{Busy, Event, Key, Lane, Part, Rail, Rank, Request, Why, Wire};
use transom_locks::Awaited;
use transom_shm_loopback::Loopback;
use transom_shm_loopback::messages::{Bytes, Turn};
use transom_windows::{Exchange, FabricError};

/// The wire of one rank: the lanes that it uses, and what it has registered for messages.
pub struct VerbsWire {
    service: Arc<Service>,
    exchange: Arc<dyn Bootstrap>,
    /// The ranks of this host.
    here: Loopback,
    rails: [Rail; 1],
    waiter: Waiter,
    register_from: usize,
    /// By rank, those that this one has anything to do with.
    peers: HashMap<Rank, Peer>,
    /// Peers whose lanes are asked for.
    wanted: Vec<Rank>,
    /// Peers to or from which memory moves.
    moving: Vec<Rank>,
    /// Memory of messages, by address and key.
    registered: BTreeMap<(u64, u64), Registered>,
    /// Rings, by the same, and whose they are.
    rings: BTreeMap<(u64, u64), (Rank, Arc<Buffer>)>,
    events: VecDeque<Event<Bytes>>,
    /// Peers that are gone, and how often nothing more was found since.
    gone: Vec<(Rank, Why, u32)>,
    closing: bool,
    scratch: Vec<u8>,
    began: Instant,
}

#[derive(Default)]
struct Peer {
    moves: Moves,
    /// The engine was told that it is gone, or has cut it off.
    over: bool,
    /// It is in the list of those that are gone.
    noticed: bool,
    /// It receives nothing any more.
    closed: bool,
    /// How often its lane was found to have ended though it lives.
    ended: u32,
}

/// Looks that find nothing more of a peer that is gone, before the engine is told.
const LAST_LOOKS: u32 = 3;
/// Looks at a lane that has ended, ten a second, before its peer counts as one that lives.
const ALIVE: u32 = 5;
/// Arrivals that are taken at a time.
const AT_ONCE: usize = 64;
/// What a rank that receives nothing any more sends: no packet is as short.
const CLOSED: [u8; 1] = [0];

impl VerbsWire {
    pub(in crate::verbs) fn open(
        service: &Arc<Service>,
        exchange: &Arc<dyn Bootstrap>,
        here: &Loopback,
    ) -> Result<VerbsWire, FabricError> {
        let rail = &service.core.rail;
        if !service.core.receives.works() {
            let what = format!("messages by RDMA device {}", rail.name());
            let why = "it has no shared receive queues";
            return Err(FabricError::System {
                what,
                source: std::io::Error::new(std::io::ErrorKind::Unsupported, why),
            });
        }
        let whole_word = rail.notify_by == NotifyBy::Write;
        let promise = Rail {
            longest: LONGEST,
            mark_last: whole_word && rail.writes_in_order(),
            whole_word,
            immediate: !whole_word,
            write: true,
            read: true,
        };
        Ok(VerbsWire {
            register_from: rail.register_from,
            rails: [promise],
            waiter: Waiter::new(service.core.me, here.size()),
            service: service.clone(),
            exchange: exchange.clone(),
            here: here.clone(),
            peers: HashMap::new(),
            wanted: Vec::new(),
            moving: Vec::new(),
            registered: BTreeMap::new(),
            rings: BTreeMap::new(),
            events: VecDeque::new(),
            gone: Vec::new(),
            closing: false,
            scratch: Vec::new(),
            began: Instant::now(),
        })
    }

    fn core(&self) -> &Core {
        &self.service.core
    }

    /// How threads of this rank wait for what comes.
    pub fn waiter(&self) -> Waiter {
        self.waiter
    }

    /// From how many bytes on messages are not copied.
    pub fn zero_copy_from(&self) -> usize {
        self.register_from
    }

    /// From now on all waits of this rank call `turn`.
    pub fn turn_in_waits(&self, turn: Arc<dyn Turn>) {
        self.here.turn_in_waits(turn.clone());
        self.core().turn_in_waits(turn);
    }

    /// Tells the peers that this rank receives nothing any more.
    pub fn close(&mut self) {
        self.closing = true;
        for peer in self.peers.keys().copied().collect::<Vec<_>>() {
            self.say_closed(peer);
        }
    }

    fn say_closed(&mut self, peer: Rank) {
        if peer as usize != self.core().me {
            // Where there is no room now, the job tells it that this rank has left.
            let _ = self.copied(peer, Verb::Send, Place { address: 0, key: 0 }, &CLOSED, None, None);
        }
    }

    /// Finds out who is gone; [`poll`](Wire::poll) tells of them, once all is taken that came of them.
    pub fn look_for_the_gone(&mut self) {
        let me = self.core().me;
        for rank in (0..self.exchange.size()).filter(|rank| *rank != me) {
            match self.exchange.check_peers(Awaited::Rank(rank)) {
                Err(FabricError::PeerDied { rank: died }) if died == rank => self.notice(rank as Rank, Why::Died),
                Err(FabricError::PeerLeft { rank: left }) if left == rank => self.notice(rank as Rank, Why::Left),
                Err(_) if self.exchange.has_left(rank) => self.notice(rank as Rank, Why::Left),
                _ => {}
            }
        }
        for rank in self.peers.keys().copied().collect::<Vec<_>>() {
            self.look_after(rank);
        }
    }

    /// Has a lane made anew that broke, and takes note of one that ended though its peer lives; of a peer that closes as
    /// this rank does neither receives.
    fn look_after(&mut self, rank: Rank) {
        let core = &self.service.core;
        let Some(peer) = self.peers.get_mut(&rank).filter(|peer| !peer.over && !peer.noticed) else { return };
        let Some(lane) = core.endpoints.lane(rank as usize) else {
            if peer.closed && self.closing {
                self.notice(rank, Why::Left);
            }
            return;
        };
        if lane.failure().is_some() {
            peer.ended += 1;
            if peer.ended > ALIVE {
                self.notice(rank, Why::Unreachable);
            }
        } else if lane.is_broken() && !lane.is_idle() {
            core.want(rank as usize);
        }
        if self.closing && self.peers.get(&rank).is_some_and(|peer| peer.closed) {
            self.notice(rank, Why::Left);
        }
    }

    fn notice(&mut self, rank: Rank, why: Why) {
        let peer = self.peers.entry(rank).or_default();
        if rank as usize != self.service.core.me && !peer.noticed && !peer.over {
            peer.noticed = true;
            if why == Why::Died {
                self.service.core.died(rank as usize);
            }
            self.gone.push((rank, why, 0));
        }
    }

    /// What has come, what is done, and who is gone.
    #[cold]
    #[inline(never)]
    fn collect(&mut self) {
        let service = self.service.clone();
        let core = &*service.core;
        progress::poll(&core.rail, &core.endpoints);
        let mut found = false;
        for _ in 0..AT_ONCE {
            let Some(came) = core.receives.take() else { break };
            found = true;
            self.came(came);
        }
        for rank in std::mem::take(&mut self.wanted) {
            self.connected(rank);
        }
        for rank in std::mem::take(&mut self.moving) {
            self.moved(rank);
        }
        if !found {
            self.gone.iter_mut().for_each(|(.., looks)| *looks += 1);
            for (peer, why, _) in self.gone.extract_if(.., |(.., looks)| *looks > LAST_LOOKS) {
                self.events.push_back(Event::Failed(Lane { peer, rail: 0 }, why));
            }
        }
    }

    fn came(&mut self, came: Came) {
        let (peer, event) = match came {
            Came::Value(peer, value) => (peer, Event::Immediate(Lane { peer, rail: 0 }, value)),
            Came::Message(peer, filled) if filled.bytes == CLOSED.len() => {
                self.peers.entry(peer).or_default().closed = true;
                return;
            }
            Came::Message(peer, filled) => {
                let (lane, length) = (Lane { peer, rail: 0 }, filled.bytes);
                (peer, Event::Arrived { lane, slot: Bytes::owned(Arrived(filled)), length })
            }
        };
        // What is thrown away gives its buffer back.
        if !self.peers.entry(peer).or_default().over {
            self.events.push_back(event);
        }
    }

    fn connected(&mut self, peer: Rank) {
        let lane = Lane { peer, rail: 0 };
        match self.core().want(peer as usize) {
            Link::Ready => {
                self.events.push_back(Event::Up(lane));
                if self.closing {
                    self.say_closed(peer);
                }
            }
            Link::Wanted | Link::Absent => self.wanted.push(peer),
            Link::Refused { by_peer, errno } => {
                let error = std::io::Error::from_raw_os_error(errno);
                tracing::warn!(peer, by_peer, %error, "no connection for messages");
                self.notice(peer, Why::Unreachable);
            }
        }
    }

    /// Posts what is left of a peer's moves, and tells of those that are done.
    fn moved(&mut self, rank: Rank) {
        let _ = self.post_moves(rank);
        let (Some(peer), Some(lane)) = (self.peers.get_mut(&rank), self.service.core.endpoints.lane(rank as usize))
        else {
            return;
        };
        while let Some(token) = peer.moves.done(lane.completed()) {
            self.events.push_back(Event::Done(token, self.began.elapsed().as_nanos() as u64));
        }
        if !peer.moves.is_empty() {
            self.moving.push(rank);
        }
    }

    /// Returns when all that was begun to a peer is posted.
    fn post_moves(&mut self, rank: Rank) -> Result<(), Busy> {
        let Some(peer) = self.peers.get_mut(&rank).filter(|peer| !peer.moves.is_empty()) else { return Ok(()) };
        let lane = self.service.core.endpoints.lane(rank as usize).ok_or(Busy)?;
        // SAFETY: the engine ends a registration once what it is for was told done, or the lane was severed, and then has ended.
        let posted = unsafe { peer.moves.post(lane) };
        posted.map_err(|stop| self.stopped(rank, &stop))
    }

    fn stopped(&self, rank: Rank, stop: &Stop) -> Busy {
        match stop {
            Stop::Broken => _ = self.core().want(rank as usize),
            Stop::System(error) => tracing::warn!(rank, %error, "a message could not be posted now"),
            // What makes room is under way; who ended is told.
            Stop::Full | Stop::Failed(_) => {}
        }
        Busy
    }

    /// Posts what is copied, in the request or in a slot.
    fn copied(
        &mut self,
        rank: Rank,
        verb: Verb,
        to: Place,
        head: &[u8],
        body: Option<Part<'_, Bytes>>,
        mark: Option<u64>,
    ) -> Result<(), Busy> {
        let mark = mark.map(u64::to_le_bytes);
        let mark = mark.as_ref().map_or(&[][..], |mark| mark);
        let bytes = head.len() + body.map_or(0, |body| body.length) + mark.len();
        let write = |into: &mut [u8]| {
            let (first, rest) = into.split_at_mut(head.len());
            first.copy_from_slice(head);
            let (middle, last) = rest.split_at_mut(rest.len() - mark.len());
            if let Some(body) = body {
                body.memory.read(body.at, middle);
            }
            last.copy_from_slice(mark);
        };
        let core = &*self.service.core;
        let lane = core.endpoints.lane(rank as usize).ok_or(Busy)?;
        let posted = if bytes <= lane.inline() {
            self.scratch.resize(bytes, 0);
            write(&mut self.scratch);
            lane.post_inline(verb, to, &self.scratch).map(drop)
        } else {
            match lane.may_lend() {
                Ok(true) => {
                    let slot = core.memory.messages.take().map_err(|error| {
                        tracing::warn!(%error, "no memory for messages");
                        Busy
                    })?;
                    slot.fill(bytes, write);
                    let piece = slot.piece(bytes);
                    // SAFETY: of the slot, which the lane has until the request is complete.
                    let posted = unsafe { lane.post(verb, to, piece, Signal::NowAndThen, Some(Lent::Slot(slot))) };
                    posted.map(drop).map_err(|(stop, _)| stop)
                }
                Ok(false) => Err(Stop::Full),
                Err(stop) => Err(stop),
            }
        };
        posted.map_err(|stop| self.stopped(rank, &stop))
    }

    /// A write from, or a read to, the memory of a message.
    fn begin(
        &mut self,
        rank: Rank,
        verb: Verb,
        memory: Part<'_, Bytes>,
        key: Key,
        at: usize,
        token: u64,
    ) -> Result<(), Busy> {
        let start = memory.memory.start().expect("what moves is a buffer").as_ptr().expose_provenance() as u64;
        let known = self.registered.range((start, 0)..=(start, u64::MAX)).next();
        let (_, registered) = known.expect("what moves is registered");
        let piece = registered.piece(memory.at, 0);
        assert!(memory.length <= registered.bytes() - memory.at, "a piece of what is registered");
        let next = Move {
            token,
            verb,
            at: place(key, at).ok_or(Busy)?,
            address: piece.address,
            key: piece.key,
            left: memory.length,
            last: 0,
        };
        self.core().endpoints.lane(rank as usize).ok_or(Busy)?;
        self.peers.entry(rank).or_default().moves.push(next);
        if !self.moving.contains(&rank) {
            self.moving.push(rank);
        }
        let _ = self.post_moves(rank);
        Ok(())
    }
}

/// What a peer's key leads to; its adapter checks that it may be reached.
fn place(key: Key, at: usize) -> Option<Place> {
    Some(Place { address: key.address.checked_add(at as u64)?, key: u32::try_from(key.key).ok()? })
}

impl Wire for VerbsWire {
    type Memory = Bytes;

    fn rails(&self) -> &[Rail] {
        &self.rails
    }

    fn connect(&mut self, lane: Lane) {
        self.peers.entry(lane.peer).or_default();
        self.connected(lane.peer);
    }

    fn sever(&mut self, rank: Rank) {
        let core = &*self.service.core;
        let peer = self.peers.entry(rank).or_default();
        peer.over = true;
        if !std::mem::take(&mut peer.moves).is_empty() {
            // With its queue pair goes what the adapter might still do.
            core.give_up(rank as usize);
        }
        self.wanted.retain(|wanted| *wanted != rank);
        self.moving.retain(|moving| *moving != rank);
        self.gone.retain(|gone| gone.0 != rank);
        self.events.retain(|event| match event {
            Event::Arrived { lane, .. } | Event::Up(lane) | Event::Failed(lane, _) | Event::Immediate(lane, _) => {
                lane.peer != rank
            }
            Event::Done(..) => true,
        });
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
        let refused = |error| tracing::debug!(peer, %error, "no memory for a ring");
        let buffer = Arc::new(buffer.map_err(refused).ok()?);
        let key = Key { address: buffer.address(), key: buffer.remote_key().into() };
        self.rings.insert((key.address, key.key), (peer, buffer.clone()));
        Some((Bytes::owned(Ring(buffer)), key))
    }

    fn reads(&mut self, _: Lane) -> bool {
        true
    }

    fn register(&mut self, memory: &Bytes, _: usize) -> Option<Key> {
        let (start, bytes) = (memory.start()?, memory.len());
        if bytes < self.register_from {
            return None;
        }
        let access = if memory.is_writable() { Access::Bytes } else { Access::Read };
        // SAFETY: a buffer stays where it is, and is the engine's, until the registration was released; before it is given back
        // the engine releases that.
        let registered = unsafe { Registered::new(&self.core().rail.domain, start, bytes, access) };
        let refused = |error| tracing::debug!(%error, "memory of a message cannot be registered");
        let registered = registered.map_err(refused).ok()?;
        let key = Key { address: registered.address, key: registered.remote_key().into() };
        self.registered.insert((key.address, key.key), registered);
        Some(key)
    }

    fn release(&mut self, _: usize, key: Key) {
        self.registered.remove(&(key.address, key.key));
        if let Some((peer, ring)) = self.rings.remove(&(key.address, key.key))
            && self.peers.get(&peer).is_some_and(|peer| peer.over)
        {
            // A peer that has not heard of it may still write there, which would end the connection.
            self.core().receives.keep(ring);
        }
    }

    fn post(&mut self, lane: Lane, request: Request<'_, Bytes>) -> Result<(), Busy> {
        let rank = lane.peer;
        self.post_moves(rank)?;
        match request {
            Request::Send { head, body } => {
                self.copied(rank, Verb::Send, Place { address: 0, key: 0 }, head, body, None)
            }
            Request::Put { to, at, head, body, mark, immediate } => {
                let verb = immediate.map_or(Verb::Write, Verb::WriteAndTell);
                self.copied(rank, verb, place(to, at).ok_or(Busy)?, head, body, mark)
            }
            Request::Write { from, to, at, token } => self.begin(rank, Verb::Write, from, to, at, token),
            Request::Read { from, at, into, token } => self.begin(rank, Verb::Read, into, from, at, token),
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

    fn read(&self, memory: &Bytes, at: usize, into: &mut [u8]) {
        memory.read(at, into);
    }

    fn word(&self, ring: &Bytes, at: usize) -> u64 {
        assert!(at.is_multiple_of(8) && at + 8 <= ring.len(), "a word of the ring");
        let start = ring.start().expect("a ring is memory of this rank's");
        // SAFETY: inside and aligned, as the ring begins at a page; alive as long as the handle; words of it are read by atomics
        // only.
        unsafe { AtomicU64::from_ptr(start.add(at).as_ptr().cast()) }.load(Acquire)
    }

    fn copy(&mut self, from: Part<'_, Bytes>, to: &Bytes, at: usize) {
        from.memory.copy(from.at, from.length, to, at);
    }
}

impl Drop for VerbsWire {
    fn drop(&mut self) {
        let core = &*self.service.core;
        for (rank, _) in self.peers.iter().filter(|(_, peer)| !peer.moves.is_empty()) {
            core.give_up(*rank as usize);
        }
        std::mem::take(&mut self.rings).into_values().for_each(|(_, ring)| core.receives.keep(ring));
        core.receives.discard(true);
    }
}
