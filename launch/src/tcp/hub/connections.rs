//! The connections of the hub until they have proved themselves, and those of agents.

use super::agent::{Agent, Change, Client};
use super::line::{Channel, Line, Outbox};
use super::unproven::{Proven, Unproven};
use crate::lock::lock;
use crate::tcp::frames::{JOB, WELCOME};
use crate::tcp::silence;
use crate::tcp::wire::{AGENT, Body, Secret};
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::fd::{AsFd, OwnedFd};
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use transom_locks::Rank;

/// Time for a connection to prove that it knows the secret.
const PROVE_WITHIN: Duration = Duration::from_secs(5);
/// Most unproven connections, without those that agents carry. A further one replaces the oldest.
const MOST_UNPROVEN: usize = 256;
/// Length of the listen queue: all ranks may connect at once.
const BACKLOG: i32 = 4096;
/// Pause in accepting connections after an error, such as the lack of descriptors.
const REST: Duration = Duration::from_millis(100);
/// Most events per turn.
const EVENTS: usize = 256;

/// Event numbers: these two, a rank, or a connection that is unproven or an agent's from [`CONNECTION`] up.
const ORDERS: u64 = u64::MAX;
const LISTENER: u64 = u64::MAX - 1;
const CONNECTION: u64 = 1 << 32;

pub(super) struct Connections {
    secret: Secret,
    /// Number of ranks of the job.
    size: usize,
    listener: TcpListener,
    /// Polls for connections that are readable or writable.
    epoll: OwnedFd,
    /// Unproven connections by number, which increases with time.
    unproven: BTreeMap<u64, Unproven>,
    /// Connections of agents by number.
    agents: HashMap<u64, Agent>,
    accepted: u64,
    /// Time until which no connection is accepted, after accepting failed.
    rest: Option<Instant>,
    /// Frames for agents that were added in this turn.
    outbox: Outbox,
    traffic: Arc<Traffic>,
    chunk: Vec<u8>,
}

/// The traffic of a hub.
#[derive(Default)]
pub(super) struct Traffic {
    /// Bytes sent and received on the connections of agents, and on those of ranks without handshakes.
    pub bytes: AtomicU64,
    /// TCP connections that have proved themselves.
    pub connections: AtomicU64,
}

impl Traffic {
    pub fn add(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Relaxed);
    }
}

pub(super) enum Event {
    /// There are orders.
    Orders,
    /// A connection has proved itself.
    Proven(Proven),
    /// The connection of a rank is readable or writable, or has ended.
    Ready(Rank),
}

impl Connections {
    /// Descriptors beyond those of ranks.
    pub const DESCRIPTORS: usize = MOST_UNPROVEN + 4;

    pub fn new(
        size: usize,
        secret: Secret,
        listener: TcpListener,
        woken: &UnixStream,
        traffic: Arc<Traffic>,
    ) -> io::Result<Self> {
        rustix::net::listen(&listener, BACKLOG)?;
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, woken, EventData::new_u64(ORDERS), EventFlags::IN)?;
        epoll::add(&epoll, &listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
        Ok(Connections {
            secret,
            size,
            listener,
            epoll,
            unproven: BTreeMap::new(),
            agents: HashMap::new(),
            accepted: CONNECTION,
            rest: None,
            outbox: Outbox::default(),
            traffic,
            chunk: vec![0; 64 << 10],
        })
    }

    /// Sleeps until something happens, or until the earliest of these times.
    pub fn sleep(&mut self, times: impl IntoIterator<Item = Option<Instant>>) -> io::Result<Vec<Event>> {
        // The oldest connection expires first.
        let unproven = self.unproven.values().next().map(|connection| connection.until);
        let next = times.into_iter().chain([unproven, self.rest]).flatten().min();
        let left = next.and_then(|next| Timespec::try_from(next.saturating_duration_since(Instant::now())).ok());
        let mut numbers = Vec::with_capacity(EVENTS);
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut numbers), left.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let mut events = Vec::new();
        for number in numbers.into_iter().map(|event| event.data.u64()) {
            match number {
                ORDERS => events.push(Event::Orders),
                LISTENER => self.accept()?,
                agent if self.agents.contains_key(&agent) => self.serve_agent(agent, &mut events),
                number @ CONNECTION.. => self.step(number, &mut events),
                rank => events.push(Event::Ready(rank as Rank)),
            }
        }
        Ok(events)
    }

    pub fn keep_time(&mut self, now: Instant) -> io::Result<()> {
        if self.rest.is_some_and(|rest| rest <= now) {
            self.rest = None;
            self.poll_for(&self.listener, LISTENER, EventFlags::IN)?;
        }
        self.unproven.retain(|_, connection| connection.until > now);
        Ok(())
    }

    /// Ends the connections of agents whose host has vanished.
    pub fn look(&mut self) -> Vec<Event> {
        let gone = self.agents.iter_mut().filter_map(|(&number, agent)| {
            let Agent { silence, stream, .. } = agent;
            silence.is_final(stream).then_some(number)
        });
        let (gone, mut events): (Vec<u64>, _) = (gone.collect(), Vec::new());
        for agent in gone {
            tracing::error!(agent = self.shown(agent), "the host of an agent does not answer");
            self.lose_agent(agent, &mut events);
        }
        events
    }

    /// Polls the connection of a rank, if it is its own, from now on; for writability if it `awaits_room`.
    pub fn poll_rank(&self, line: &Line, rank: Rank, awaits_room: bool) -> io::Result<()> {
        line.own().map_or(Ok(()), |stream| self.poll_for(stream, rank as u64, flags(awaits_room)))
    }

    fn poll_for(&self, fd: impl AsFd, number: u64, flags: EventFlags) -> io::Result<()> {
        Ok(epoll::modify(&self.epoll, fd, EventData::new_u64(number), flags)?)
    }

    fn accept(&mut self) -> io::Result<()> {
        // The limit lets ranks that connected earlier prove themselves in between.
        for _ in 0..MOST_UNPROVEN / 4 {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    tracing::warn!(%error, "the hub cannot accept a connection now; it retries");
                    self.rest = Some(Instant::now() + REST);
                    return self.poll_for(&self.listener, LISTENER, EventFlags::empty());
                }
            };
            if silence::prepare(&stream).and_then(|()| stream.set_nonblocking(true)).is_err() {
                continue;
            }
            let strangers = self.unproven.iter().filter(|(_, connection)| connection.line.own().is_some());
            let (count, oldest) = (strangers.clone().count(), strangers.map(|(&number, _)| number).next());
            if let Some(oldest) = oldest.filter(|_| count >= MOST_UNPROVEN) {
                self.unproven.remove(&oldest);
            }
            self.accepted += 1;
            epoll::add(&self.epoll, &stream, EventData::new_u64(self.accepted), EventFlags::IN)?;
            self.add(Line::Own(stream));
        }
        Ok(())
    }

    /// Adds an unproven connection under the number `accepted`.
    fn add(&mut self, line: Line) {
        self.unproven.insert(self.accepted, Unproven::new(line, Instant::now() + PROVE_WITHIN));
    }

    /// Reads from an unproven connection, which stays unproven, becomes a rank's or an agent's, or is closed.
    fn step(&mut self, number: u64, events: &mut Vec<Event>) {
        // An earlier event of this turn may have closed it.
        while let Some(connection) = self.unproven.get_mut(&number) {
            match connection.step(&self.secret, self.size) {
                // A channel is not polled for the rest.
                Ok(false) if connection.line.is_readable() => {}
                Ok(false) => return,
                Ok(true) => {
                    let proven = self.unproven.remove(&number).and_then(Unproven::into_proven);
                    proven.into_iter().for_each(|proven| self.prove(number, proven, events));
                }
                Err(why) => {
                    tracing::warn!(from = %connection.line, why, "a connection to the hub was closed");
                    self.unproven.remove(&number);
                }
            }
        }
    }

    fn prove(&mut self, number: u64, mut proven: Proven, events: &mut Vec<Event>) {
        let rank = proven.hello.rank;
        match &proven.line {
            Line::Carried(channel) => {
                let (agent, channel) = channel.place();
                self.agents.get_mut(&agent).into_iter().for_each(|agent| agent.prove(channel, rank));
            }
            Line::Own(_) => _ = self.traffic.connections.fetch_add(1, Relaxed),
        }
        if rank != AGENT {
            events.push(Event::Proven(proven));
            // A channel is not polled for the rest.
            events.push(Event::Ready(rank));
        } else if let Line::Own(stream) = proven.line {
            tracing::debug!(agent = number, "the agent of a host has joined the hub");
            let welcome = proven.to.frame(WELCOME, JOB, &Body::default());
            self.agents.insert(number, Agent::new(stream, &welcome.head));
            lock(&self.outbox).entry(number).or_default();
        }
    }

    fn serve_agent(&mut self, number: u64, events: &mut Vec<Event>) {
        let Some(agent) = self.agents.get_mut(&number) else { return };
        // The connection may be writable: an entry makes `send` write what is unsent.
        lock(&self.outbox).entry(number).or_default();
        let received = agent.receive(&mut self.chunk);
        self.traffic.add(received.unwrap_or_default());
        if let Err(why) = self.take_frames(number, events) {
            tracing::error!(agent = self.shown(number), why, "an agent's connection to the hub failed");
            self.lose_agent(number, events);
        } else if received.is_none() {
            tracing::debug!(agent = self.shown(number), "an agent's connection to the hub has ended");
            self.lose_agent(number, events);
        }
    }

    fn shown(&self, agent: u64) -> String {
        self.agents.get(&agent).map(ToString::to_string).unwrap_or_default()
    }

    fn take_frames(&mut self, number: u64, events: &mut Vec<Event>) -> Result<(), &'static str> {
        let most_channels = 2 * self.size + MOST_UNPROVEN;
        while let Some(agent) = self.agents.get_mut(&number)
            && let Some(change) = agent.next(most_channels)?
        {
            match change {
                Change::Opened(channel) => {
                    self.accepted += 1;
                    let (line, state) = Channel::new(number, channel, self.outbox.clone());
                    agent.set(channel, Client::Unproven(self.accepted), state);
                    self.add(Line::Carried(line));
                }
                Change::Ready(client) => self.notify(client, events),
            }
        }
        Ok(())
    }

    fn notify(&mut self, client: Client, events: &mut Vec<Event>) {
        match client {
            Client::Unproven(number) => self.step(number, events),
            Client::Rank(rank) => events.push(Event::Ready(rank)),
        }
    }

    /// Handles the end of an agent's connection: those of its ranks have ended.
    fn lose_agent(&mut self, number: u64, events: &mut Vec<Event>) {
        let clients = self.agents.remove(&number).map(Agent::end).unwrap_or_default();
        clients.into_iter().for_each(|client| self.notify(client, events));
    }

    /// Sends as much as possible to agents without blocking.
    pub fn send(&mut self) -> io::Result<()> {
        let frames = std::mem::take(&mut *lock(&self.outbox));
        for (number, frames) in frames {
            // A failed connection is detected when it is read.
            let Some(agent) = self.agents.get_mut(&number) else { continue };
            agent.unsent.append(frames);
            self.traffic.add(agent.unsent.write_to(&mut agent.stream).unwrap_or_default());
            let awaits_room = !agent.unsent.is_empty();
            if std::mem::replace(&mut agent.awaits_room, awaits_room) != awaits_room {
                let agent = &self.agents[&number];
                self.poll_for(&agent.stream, number, flags(awaits_room))?;
            }
        }
        Ok(())
    }
}

/// The events for which a connection is polled.
fn flags(awaits_room: bool) -> EventFlags {
    if awaits_room { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN }
}
