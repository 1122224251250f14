//! The wire of one rank: its connections, and the events of its engine.

use super::gone::Gone;
use super::packet::{PACKET, Packet, closed, head};
use super::ring::Rings;
use crate::carrier::{Carrier, Socket, malformed};
use crate::endpoint::{Endpoint, is_oversubscribed};
use crate::greet::Use;
use crate::lane::Halt;
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::net::{Shutdown, shutdown};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use transom_channel::Wire;
use transom_channel::wire::{Busy, Data, Event, Key, Lane, Rail, RailKind, Rank, Request, Why, WireMemory};
use transom_locks::Awaited;
use transom_network::{Bootstrap, Node};
use transom_shm_loopback::Loopback;
use transom_shm_loopback::messages::{Bytes, Naps, Waiter};
use transom_windows::FabricError;

/// Sleep times of threads that wait for messages.
const SLEEP: Naps = Naps {
    first: Duration::from_micros(20),
    longest: Duration::from_micros(500),
    longest_idle: Duration::from_millis(5),
};
/// Length of a queue, in bytes, from which a lane accepts no more requests.
const FULL: usize = 256 << 10;
/// Most packets that are taken from a connection per poll.
const AT_ONCE: usize = 64;
/// Most packets that a rank sends to itself before it receives them.
const OWN: usize = 1024;
/// Most connections with a peer: one that each rank made.
const LINKS: usize = 2;

/// Result of connecting to a peer.
type Connected = (Rank, Result<OwnedFd, Halt>);

/// The wire of one rank.
pub struct TcpWire {
    pub(super) endpoint: Arc<Endpoint>,
    pub(super) job: Arc<dyn Bootstrap>,
    /// The ranks of this host.
    pub(super) here: Loopback,
    pub(super) waiter: Waiter,
    rail: [Rail; 1],
    epoll: OwnedFd,
    /// Peers that this rank has communicated with.
    pub(super) peers: BTreeMap<Rank, Peer>,
    /// Connections, by number.
    pub(super) links: BTreeMap<u64, Link>,
    last: u64,
    /// Connections with packets that have arrived and were not taken yet.
    ready: Vec<u64>,
    /// Connections with queued packets.
    pub(super) sending: Vec<u64>,
    /// Connections that threads have made; the sender is cloned for each thread.
    connected: (mpsc::Sender<Connected>, mpsc::Receiver<Connected>),
    rings: Rings,
    pub(super) events: VecDeque<Event<Bytes>>,
    /// Lost peers that are not reported to the engine yet.
    pub(super) gone: Vec<Gone>,
    pub(super) closing: bool,
    scratch: Vec<u8>,
    began: Instant,
}

/// A peer, and what the engine knows of it.
#[derive(Default)]
pub(super) struct Peer {
    /// The connection on which this rank sends.
    pub out: Option<u64>,
    /// A thread is connecting.
    connecting: bool,
    /// Number of connections.
    links: usize,
    /// A connection with it has ended.
    pub has_ended: bool,
    /// Number of checks that found it alive since.
    pub ended: u32,
    /// The engine knows of the peer's loss, or has aborted the peer.
    pub over: bool,
    /// The peer is, or was, in `gone`.
    pub noticed: bool,
    /// The peer receives no more messages.
    pub closed: bool,
    /// This rank has announced to the peer that it receives no more messages.
    pub told: bool,
}

/// A connection.
pub(super) struct Link {
    peer: Rank,
    pub socket: Socket,
}

impl Peer {
    /// Returns whether the wire has no connection with the peer, and makes none.
    pub fn has_no_stream(&self) -> bool {
        self.links == 0 && !self.connecting
    }
}

impl TcpWire {
    pub fn open(endpoint: &Arc<Endpoint>, job: &Arc<dyn Bootstrap>, node: &Node) -> io::Result<TcpWire> {
        let rail = Rail {
            kind: RailKind::Connection,
            longest: PACKET,
            mark_last: true,
            whole_word: true,
            immediate: false,
            write: false,
            read: false,
            bandwidth: 0,
        };
        let (peers, links, events, gone) = Default::default();
        Ok(TcpWire {
            endpoint: endpoint.clone(),
            job: job.clone(),
            here: node.memory().clone(),
            waiter: Waiter::without_a_bell(job.rank(), is_oversubscribed(node.ranks()), SLEEP),
            rail: [rail],
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            peers,
            links,
            last: 0,
            ready: Vec::new(),
            sending: Vec::new(),
            connected: mpsc::channel(),
            rings: Rings::default(),
            events,
            gone,
            closing: false,
            scratch: Vec::new(),
            began: Instant::now(),
        })
    }

    fn is_me(&self, rank: Rank) -> bool {
        rank as usize == self.job.rank()
    }

    /// Connects to a peer, in a thread of its own: the engine goes on meanwhile.
    fn start_connecting(&mut self, rank: Rank) {
        let (endpoint, job, connected) = (self.endpoint.clone(), self.job.clone(), self.connected.0.clone());
        let check = move || match job.check_peers(Awaited::Rank(rank as usize)) {
            Err(FabricError::PeerDied { rank: died }) if died == rank as usize => {
                Err(FabricError::PeerDied { rank: died })
            }
            _ if job.has_left(rank as usize) => Err(FabricError::PeerLeft { rank: rank as usize }),
            _ => Ok(()),
        };
        let connect = move || {
            // The wire may have been dropped.
            let _ = connected.send((rank, endpoint.connect(rank, Use::Messages, check)));
        };
        let started = std::thread::Builder::new().name("transom connect".into()).spawn(connect);
        match started {
            Ok(_) => self.peers.entry(rank).or_default().connecting = true,
            Err(error) => {
                tracing::warn!(rank, %error, "no thread to connect messages");
                self.notice(rank, Why::Unreachable);
            }
        }
    }

    /// Adds a connection with a peer. The first one makes the lane to it usable.
    fn add(&mut self, rank: Rank, stream: OwnedFd) {
        let number = self.last + 1;
        let peer = self.peers.entry(rank).or_default();
        let is_wanted = !peer.over && peer.links < LINKS;
        let socket = Socket::new(stream);
        let (data, flags) = (epoll::EventData::new_u64(number), epoll::EventFlags::IN);
        if !is_wanted || epoll::add(&self.epoll, socket.descriptor(), data, flags).is_err() {
            self.endpoint.mail.keep(socket.descriptor().clone());
            return tracing::debug!(rank, "a connection for messages was not used");
        }
        self.last = number;
        peer.links += 1;
        self.links.insert(number, Link { peer: rank, socket });
        if peer.out.is_none() {
            peer.out = Some(number);
            self.events.push_back(Event::Up(Lane { peer: rank, rail: 0 }));
            if self.closing {
                self.say_closed(rank);
            }
        }
    }

    /// Ends a connection that this rank cannot send on. What the peer sent before is received first.
    fn cut(&self, number: u64, error: &io::Error) {
        let Some(link) = self.links.get(&number) else { return };
        tracing::debug!(peer = link.peer, %error, "cannot send on a connection for messages");
        let _ = shutdown(link.socket.descriptor(), Shutdown::Both);
    }

    /// Removes a connection whose stream has ended.
    fn end(&mut self, number: u64, error: &io::Error) {
        let Some(link) = self.links.remove(&number) else { return };
        tracing::debug!(peer = link.peer, %error, "a connection for messages has ended");
        let peer = self.peers.entry(link.peer).or_default();
        peer.links -= 1;
        peer.has_ended = true;
        if error.kind() == io::ErrorKind::InvalidData {
            tracing::warn!(peer = link.peer, "a peer sent malformed packets of messages");
            self.notice(link.peer, Why::Unreachable);
        }
    }

    /// Stops using connections.
    fn let_go(&mut self, of: impl Fn(&Link) -> bool) {
        let (gone, links) = std::mem::take(&mut self.links).into_iter().partition(|(_, link)| of(link));
        self.links = links;
        for Link { socket, .. } in BTreeMap::into_values(gone) {
            let _ = epoll::delete(&self.epoll, socket.descriptor());
            self.endpoint.mail.keep(socket.descriptor().clone());
        }
    }

    /// Takes packets from a connection; returns whether there were any.
    fn receive(&mut self, number: u64) -> bool {
        let TcpWire { links, peers, rings, events, .. } = self;
        let Some(Link { peer, socket }) = links.get_mut(&number) else { return false };
        let known = peers.entry(*peer).or_default();
        let lane = Lane { peer: *peer, rail: 0 };
        let mut handle = |frame: &[u8]| {
            match Packet::parse(frame).map_err(malformed)? {
                Packet::Send(packet) if !known.over => {
                    let (slot, length) = (Bytes::owned(Box::<[u8]>::from(packet)), packet.len());
                    events.push_back(Event::Arrived { lane, slot, at: 0, length });
                }
                Packet::Put { to, at, bytes } if !rings.write(lane.peer, to, at, bytes) => {
                    return Err(malformed(crate::frame::Malformed));
                }
                Packet::Closed => known.closed = true,
                Packet::Send(_) | Packet::Put { .. } => {}
            }
            Ok(())
        };
        let mut taken = 0;
        let mut receive = || {
            while taken < AT_ONCE {
                if socket.take(&mut |frame, _| handle(frame))? {
                    taken += 1;
                } else if !socket.receive()? {
                    return Ok(false);
                }
            }
            Ok(true)
        };
        match receive() {
            Ok(more) => {
                if more {
                    self.ready.push(number);
                }
            }
            Err(error) => self.end(number, &error),
        }
        taken > 0
    }

    /// Handles new connections, arrivals, queues and lost peers.
    #[cold]
    #[inline(never)]
    fn collect(&mut self) {
        self.endpoint.mail.take().into_iter().for_each(|(rank, stream)| self.add(rank, stream));
        while let Ok((rank, connected)) = self.connected.1.try_recv() {
            self.peers.entry(rank).or_default().connecting = false;
            match connected {
                Ok(stream) => self.add(rank, stream),
                Err(Halt::Broken(error)) => {
                    tracing::warn!(rank, %error, "no connection for messages");
                    self.notice(rank, Why::Unreachable);
                }
                // The job reports the loss.
                Err(_) => {}
            }
        }
        let mut from = Vec::new();
        let mut ready = std::mem::take(&mut self.ready);
        if !self.links.is_empty() {
            let mut events = Vec::with_capacity(AT_ONCE);
            let now = Timespec { tv_sec: 0, tv_nsec: 0 };
            // An interrupted call is repeated by the next poll.
            let _ = epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&now));
            ready.extend(
                events
                    .iter()
                    .map(|event| event.data.u64())
                    .filter(|number| !ready.contains(number))
                    .collect::<Vec<_>>(),
            );
        }
        for number in ready {
            let peer = self.links.get(&number).map(|link| link.peer);
            if self.receive(number) {
                from.extend(peer);
            }
        }
        for number in std::mem::take(&mut self.sending) {
            self.push(number);
        }
        if !self.gone.is_empty() {
            self.report_gone(&from);
        }
        if !from.is_empty() {
            // Lets a waiting caller check its message before it polls again.
            self.events.push_back(Event::Worked);
        }
    }

    /// Sends queued packets.
    fn push(&mut self, number: u64) {
        let Some(Link { socket, .. }) = self.links.get_mut(&number) else { return };
        match socket.push() {
            Ok(()) if socket.outgoing().is_empty() => {}
            Ok(()) => self.sending.push(number),
            Err(error) => self.cut(number, &error),
        }
    }

    /// Sends a packet, or bytes for a ring, in one frame.
    fn send(
        &mut self,
        rank: Rank,
        to: Option<(Key, u64)>,
        first: &[u8],
        body: Data<'_, Bytes>,
        mark: Option<u64>,
    ) -> Result<(), Busy> {
        let mark = mark.map(u64::to_ne_bytes);
        let mark = mark.as_ref().map_or(&[][..], |mark| mark);
        let TcpWire { scratch, peers, links, .. } = self;
        scratch.clear();
        scratch.extend_from_slice(first);
        match body {
            Data::None => {}
            Data::Bytes(bytes) => scratch.extend_from_slice(bytes),
            Data::Of(part) => {
                let at = scratch.len();
                scratch.resize(at + part.length, 0);
                part.memory.read(part.at, &mut scratch[at..]);
            }
        }
        scratch.extend_from_slice(mark);
        if rank as usize == self.job.rank() {
            return self.send_to_self(rank, to);
        }
        let number = peers.get(&rank).and_then(|peer| peer.out).ok_or(Busy)?;
        let Link { socket, .. } = links.get_mut(&number).ok_or(Busy)?;
        let was_empty = socket.outgoing().is_empty();
        if socket.outgoing().len() >= FULL {
            return Err(Busy);
        }
        let (head, used) = head(to, scratch.len());
        match socket.send(&head[..used], scratch) {
            Ok(()) => {
                if was_empty && !socket.outgoing().is_empty() {
                    self.sending.push(number);
                }
                Ok(())
            }
            Err(error) => {
                self.cut(number, &error);
                Err(Busy)
            }
        }
    }

    fn send_to_self(&mut self, peer: Rank, to: Option<(Key, u64)>) -> Result<(), Busy> {
        match to {
            Some((key, at)) => assert!(self.rings.write(peer, key, at, &self.scratch), "a rank's own ring"),
            None if self.events.len() >= OWN => return Err(Busy),
            None => {
                let (slot, length) = (Bytes::owned(Box::<[u8]>::from(&*self.scratch)), self.scratch.len());
                self.events.push_back(Event::Arrived { lane: Lane { peer, rail: 0 }, slot, at: 0, length });
            }
        }
        Ok(())
    }
}

impl Wire for TcpWire {
    type Memory = Bytes;

    fn rails(&self, near: bool) -> &[Rail] {
        if near { &[] } else { &self.rail }
    }

    fn connect(&mut self, lane: Lane) {
        let is_me = self.is_me(lane.peer);
        let peer = self.peers.entry(lane.peer).or_default();
        if is_me || peer.out.is_some() {
            self.events.push_back(Event::Up(lane));
        } else if !peer.connecting {
            self.start_connecting(lane.peer);
        }
    }

    fn abort_peer(&mut self, rank: Rank) {
        let peer = self.peers.entry(rank).or_default();
        peer.over = true;
        peer.out = None;
        peer.links = 0;
        self.let_go(|link| link.peer == rank);
        self.forget_gone(rank);
        self.events.retain(|event| event.lane().is_none_or(|lane| lane.peer != rank));
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
        Some(self.rings.add(peer, length))
    }

    fn reads(&mut self, _: Lane) -> bool {
        false
    }

    fn register(&mut self, _: &Bytes, _: Lane) -> Option<Key> {
        None
    }

    fn release(&mut self, _: Lane, key: Key) {
        self.rings.remove(key);
    }

    fn post(&mut self, lane: Lane, request: Request<'_, Bytes>) -> Result<(), Busy> {
        match request {
            Request::Send { head, body } => self.send(lane.peer, None, head, body, None),
            Request::Put { to, at, head, body, mark, .. } => {
                self.send(lane.peer, Some((to, at as u64)), head, body, mark)
            }
            // The rail has neither, so the engine posts none.
            Request::Write { .. } | Request::Read { .. } | Request::Piece { .. } => Err(Busy),
        }
    }

    fn poll(&mut self) -> Option<Event<Bytes>> {
        if self.events.is_empty() {
            self.collect();
            if self.events.is_empty() {
                self.endpoint.help();
            }
        }
        self.events.pop_front()
    }

    fn now(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    /// Queued packets are not with the kernel yet.
    fn due(&self) -> Option<u64> {
        (!self.sending.is_empty()).then(|| self.now())
    }
}

impl Drop for TcpWire {
    fn drop(&mut self) {
        self.let_go(|_| true);
        self.endpoint.mail.close(&closed());
    }
}
