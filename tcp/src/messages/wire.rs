//! The wire of one rank: its connections, and the events of its engine.

use super::gone::Gone;
use super::link::{AT_ONCE, Link};
use super::packet::{PACKET, Packet, closed, head};
use super::registered::{Registered, Source};
use super::ring::Rings;
use crate::carrier::{Carrier, Socket, malformed};
use crate::endpoint::{Endpoint, is_oversubscribed};
use crate::frame::Malformed;
use crate::greet::Use;
use crate::lane::Halt;
use rustix::event::{Timespec, epoll};
use rustix::net::{Shutdown, shutdown};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use transom_channel::Wire;
use transom_channel::wire::{Busy, Data, Event, Key, Lane, Part, Rail, RailKind, Rank, Request, Why, WireMemory};
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
/// Polls of which one looks at all connections, and serves peers. The others look only at the connection that received
/// last.
const ALL: u32 = 4;
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
    epoll: Arc<OwnedFd>,
    /// Peers that this rank has communicated with.
    pub(super) peers: BTreeMap<Rank, Peer>,
    /// Connections, by number.
    pub(super) links: BTreeMap<u64, Link>,
    last: u64,
    /// Connections with packets that have arrived and were not taken yet.
    ready: Vec<u64>,
    /// Connection that received last.
    recent: Option<u64>,
    /// Polls since the last one that looked at all connections.
    polls: u32,
    /// Connections with bytes that wait to be sent.
    pub(super) sending: Vec<u64>,
    /// Connections that threads have made; the sender is cloned for each thread.
    connected: (mpsc::Sender<Connected>, mpsc::Receiver<Connected>),
    rings: Rings,
    registered: Registered,
    pub(super) events: VecDeque<Event<Bytes>>,
    /// Lost peers that are not reported to the engine yet.
    pub(super) gone: Vec<Gone>,
    pub(super) closing: bool,
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
            write: true,
            read: false,
            bandwidth: 0,
        };
        let (peers, links, events, gone) = Default::default();
        let epoll = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        let waiter = Waiter::without_a_bell(job.rank(), is_oversubscribed(node.ranks()), SLEEP);
        Ok(TcpWire {
            endpoint: endpoint.clone(),
            job: job.clone(),
            here: node.memory().clone(),
            waiter: waiter.woken_by(Arc::new(endpoint.watch(epoll.clone())))?,
            rail: [rail],
            epoll,
            peers,
            links,
            last: 0,
            ready: Vec::new(),
            recent: None,
            polls: 0,
            sending: Vec::new(),
            connected: mpsc::channel(),
            rings: Rings::default(),
            registered: Registered::default(),
            events,
            gone,
            closing: false,
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
        self.links.insert(number, Link::new(rank, socket));
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
        let _ = shutdown(link.descriptor(), Shutdown::Both);
    }

    /// Removes a connection whose stream has ended.
    fn end(&mut self, number: u64, error: &io::Error) {
        let Some(link) = self.links.remove(&number) else { return };
        // A child that the program forked may hold the connection open.
        let _ = epoll::delete(&self.epoll, link.descriptor());
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
        for link in BTreeMap::into_values(gone) {
            let _ = epoll::delete(&self.epoll, link.descriptor());
            self.endpoint.mail.keep(link.descriptor().clone());
        }
    }

    /// Receives from a connection; returns whether bytes have arrived.
    fn receive(&mut self, number: u64) -> bool {
        let TcpWire { links, peers, rings, registered, events, .. } = self;
        let Some(link) = links.get_mut(&number) else { return false };
        let lane = Lane { peer: link.peer, rail: 0 };
        let known = peers.entry(lane.peer).or_default();
        let mut handle = |packet: Packet<'_>| {
            match packet {
                Packet::Send(packet) if !known.over => {
                    let (slot, length) = (Bytes::owned(Box::<[u8]>::from(packet)), packet.len());
                    events.push_back(Event::Arrived { lane, slot, at: 0, length });
                }
                Packet::Put { to, at, bytes } if !rings.write(lane.peer, to, at, bytes) => {
                    return Err(malformed(Malformed));
                }
                Packet::Closed => known.closed = true,
                Packet::Send(_) | Packet::Put { .. } | Packet::Write { .. } => {}
            }
            Ok(())
        };
        let (some, more) = link.receive(registered, &mut handle);
        match more {
            Ok(true) => self.ready.push(number),
            Ok(false) => {}
            Err(error) => self.end(number, &error),
        }
        if some {
            self.recent = Some(number);
        }
        some
    }

    /// Handles arrivals and queues; in one of [`ALL`] polls also new connections and lost peers.
    fn collect(&mut self) {
        self.polls += 1;
        let recent = self.recent.filter(|_| self.polls < ALL && self.ready.is_empty() && self.gone.is_empty());
        match recent {
            Some(recent) => {
                if self.receive(recent) {
                    // Lets a waiting caller check its message before it polls again.
                    self.events.push_back(Event::Worked);
                }
            }
            None => self.collect_all(),
        }
        for number in std::mem::take(&mut self.sending) {
            self.push(number);
        }
    }

    #[cold]
    #[inline(never)]
    fn collect_all(&mut self) {
        self.polls = 0;
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
            let mut memory = [const { MaybeUninit::uninit() }; AT_ONCE];
            // An interrupted call is repeated by the next poll.
            if let Ok((events, _)) = epoll::wait(&self.epoll, &mut memory, Some(&Timespec::default())) {
                for number in events.iter().map(|event| event.data.u64()) {
                    if !ready.contains(&number) {
                        ready.push(number);
                    }
                }
            }
        }
        for number in ready {
            let peer = self.links.get(&number).map(|link| link.peer);
            if self.receive(number) {
                from.extend(peer);
            }
        }
        if !self.gone.is_empty() {
            self.report_gone(&from);
        }
        if !from.is_empty() {
            self.events.push_back(Event::Worked);
        } else if self.events.is_empty() {
            self.endpoint.help();
        }
    }

    /// Goes on with what a connection has to send.
    fn push(&mut self, number: u64) {
        let Some(link) = self.links.get_mut(&number) else { return };
        match link.push() {
            Ok(written) => {
                link.watch(number, &self.epoll);
                if link.is_sending() {
                    self.sending.push(number);
                }
                if let Some(token) = written {
                    self.events.push_back(Event::Done(token, self.now()));
                }
            }
            Err(error) => self.cut(number, &error),
        }
    }

    /// Calls `act` with the connection on which this rank sends to a peer. `act` returns whether it has sent or queued
    /// something.
    fn on_link(&mut self, rank: Rank, act: impl FnOnce(&mut Link) -> io::Result<bool>) -> Result<(), Busy> {
        let number = self.peers.get(&rank).and_then(|peer| peer.out).ok_or(Busy)?;
        let link = self.links.get_mut(&number).ok_or(Busy)?;
        let was_sending = link.is_sending();
        match act(link) {
            Ok(accepted) => {
                if !was_sending && link.is_sending() {
                    self.sending.push(number);
                }
                accepted.then_some(()).ok_or(Busy)
            }
            Err(error) => {
                self.cut(number, &error);
                Err(Busy)
            }
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
        let mut copy = Vec::new();
        let body = match body {
            Data::None => &[],
            Data::Bytes(bytes) => bytes,
            Data::Of(part) => match Source::of(part) {
                // SAFETY: the engine keeps the buffer during this call.
                Some(source) => unsafe { source.bytes() },
                None => {
                    copy.resize(part.length, 0);
                    part.memory.read(part.at, &mut copy);
                    &copy
                }
            },
        };
        if self.is_me(rank) {
            return self.send_to_self(rank, to, &[first, body, mark]);
        }
        let (head, used) = head(to, first.len() + body.len() + mark.len());
        self.on_link(rank, |link| link.send(&[&head[..used], first, body, mark]))
    }

    fn write(&mut self, rank: Rank, from: Part<'_, Bytes>, to: Key, at: u64, token: u64) -> Result<(), Busy> {
        // Registered memory is a buffer.
        let source = Source::of(from).ok_or(Busy)?;
        if self.is_me(rank) {
            // SAFETY: the engine keeps the buffer during this call.
            let bytes = unsafe { source.bytes() };
            let is_admitted = self.registered.admits(rank, to, at, bytes.len() as u64);
            assert!(is_admitted, "a rank's own memory");
            self.registered.with(to, at, bytes.len() as u64, |into| into.copy_from_slice(bytes));
            self.events.push_back(Event::Done(token, self.now()));
            return Ok(());
        }
        // SAFETY: the engine keeps the buffer until the write is done, or it has aborted the peer.
        self.on_link(rank, |link| unsafe { link.write(source, to, at, token) })
    }

    fn send_to_self(&mut self, peer: Rank, to: Option<(Key, u64)>, parts: &[&[u8]]) -> Result<(), Busy> {
        match to {
            Some((key, at)) => assert!(self.rings.write(peer, key, at, &parts.concat()), "a rank's own ring"),
            None if self.events.len() >= OWN => return Err(Busy),
            None => {
                let packet = parts.concat().into_boxed_slice();
                let (length, slot) = (packet.len(), Bytes::owned(packet));
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

    fn register(&mut self, memory: &Bytes, lane: Lane) -> Option<Key> {
        self.registered.add(memory, lane.peer)
    }

    fn release(&mut self, _: Lane, key: Key) {
        self.registered.remove(key);
        self.rings.remove(key);
    }

    fn post(&mut self, lane: Lane, request: Request<'_, Bytes>) -> Result<(), Busy> {
        match request {
            Request::Send { head, body } => self.send(lane.peer, None, head, body, None),
            Request::Put { to, at, head, body, mark, .. } => {
                self.send(lane.peer, Some((to, at as u64)), head, body, mark)
            }
            Request::Write { from, to, at, token } => self.write(lane.peer, from, to, at as u64, token),
            // The rail has neither, so the engine posts none.
            Request::Read { .. } | Request::Piece { .. } => Err(Busy),
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

    /// The bytes of these connections are not with the kernel yet.
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
