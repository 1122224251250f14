//! The hub of a job: one thread that admits the ranks, sends each round of messages to all once it is complete, and says
//! which ranks have left or died. A connection that has not proved to know the secret gets the challenge only. There is a
//! limit to their number and their time, so they keep no rank out.

mod group;
mod unproven;

use super::frames::{
    BYE, DIED, FAIL, FORM, GATHERED, JOB, LEAVE, LEFT, LONGEST, PART, Part, REFUSED, TOO_LONG, WELCOME, body_of_member,
    body_of_parts, parse_members,
};
use super::wire::{self, Seal, Secret};
use crate::job::process::ProcessId;
use group::{Group, Status};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use transom_locks::Rank;
use unproven::{Proven, Unproven};

/// How long a connection may take to prove itself.
const PROVE_WITHIN: Duration = Duration::from_secs(5);
/// How many connections may be unproven. When another comes, the oldest is closed.
const MOST_UNPROVEN: usize = 256;
/// How long no connection is accepted after the system had no descriptor for one.
const REST: Duration = Duration::from_millis(100);

/// The hub of a job of so many ranks, run by a thread. It ends when this is dropped.
pub(crate) struct Hub {
    port: u16,
    orders: Sender<Order>,
    wake: UnixStream,
    thread: Option<JoinHandle<()>>,
    first_death: FirstDeath,
}

enum Order {
    /// The rank's process has ended; well or not.
    Ended(Rank, bool),
    /// A rank that has not joined by then has died.
    AllBy(Instant),
    /// The hub ends when no rank needs it any more.
    StopAfterAll,
    /// The hub ends now.
    Stop,
}

/// The first rank of the job that died, for other threads than the hub's: one more than its number; 0 for none.
#[derive(Clone, Default)]
struct FirstDeath(Arc<AtomicUsize>);

impl FirstDeath {
    fn set(&self, rank: Rank) {
        let _ = self.0.compare_exchange(0, rank + 1, SeqCst, SeqCst);
    }

    fn get(&self) -> Option<Rank> {
        self.0.load(SeqCst).checked_sub(1)
    }
}

impl Hub {
    pub fn start(size: usize, secret: Secret) -> io::Result<Self> {
        // An IPv6 socket takes IPv4 connections too, unless the system has no IPv6.
        let listener = TcpListener::bind("[::]:0").or_else(|_| TcpListener::bind("0.0.0.0:0"))?;
        listener.set_nonblocking(true)?;
        let port = listener.local_addr()?.port();
        let (wake, woken) = UnixStream::pair()?;
        woken.set_nonblocking(true)?;
        wake.set_nonblocking(true)?;
        let (orders, received) = channel();
        let ranks = (0..size).map(|_| Place::default()).collect();
        let groups = HashMap::from([(JOB, Group::new((0..size).collect()))]);
        let first_death = FirstDeath::default();
        let mut server = Server {
            secret,
            listener,
            woken,
            orders: received,
            unproven: Vec::new(),
            ranks,
            groups,
            rest: None,
            all_by: None,
            stop_after_all: false,
            first_death: first_death.clone(),
        };
        let run = move || {
            if let Err(error) = server.run() {
                tracing::error!(%error, "the hub of the job cannot go on");
            }
        };
        let thread = Some(std::thread::Builder::new().name("transom hub".into()).spawn(run)?);
        Ok(Hub { port, orders, wake, thread, first_death })
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// To be called when a rank's process has ended. The rank has died, unless it said that it left, or its process
    /// ended well before it joined.
    pub fn ended(&self, rank: Rank, well: bool) {
        self.order(Order::Ended(rank, well));
    }

    /// Ranks that have not joined by then have died: for a hub that is not told when processes end.
    pub fn all_by(&self, until: Instant) {
        self.order(Order::AllBy(until));
    }

    /// The first rank that died, as far as the hub has noticed.
    pub fn first_death(&self) -> Option<Rank> {
        self.first_death.get()
    }

    /// Waits until all ranks have left or died.
    pub fn linger(mut self) {
        self.order(Order::StopAfterAll);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }

    fn order(&self, order: Order) {
        let _ = self.orders.send(order);
        // If the pipe is full, the thread has not read it and will.
        let _ = (&self.wake).write(&[0]);
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.order(Order::Stop);
            let _ = thread.join();
        }
    }
}

struct Server {
    secret: Secret,
    listener: TcpListener,
    woken: UnixStream,
    orders: Receiver<Order>,
    unproven: Vec<Unproven>,
    ranks: Vec<Place>,
    /// The job and its teams, by number.
    groups: HashMap<u64, Group>,
    /// No connection is accepted until then.
    rest: Option<Instant>,
    /// A rank that has not joined by then has died.
    all_by: Option<Instant>,
    stop_after_all: bool,
    first_death: FirstDeath,
}

/// What the hub knows of a rank's process.
#[derive(Default)]
struct Place {
    member: Option<Member>,
    /// The process that joined as this rank; zeros for one whose process ended before it joined.
    taken: Option<ProcessId>,
}

impl Place {
    /// Whether the rank is connected, or may yet join.
    fn is_awaited(&self) -> bool {
        self.taken.is_none() || self.member.is_some()
    }
}

/// A rank that has joined and not left.
struct Member {
    stream: TcpStream,
    from: Seal,
    to: Seal,
    received: Vec<u8>,
    unsent: Vec<u8>,
    /// Its connection is closed when all is sent.
    leaving: bool,
}

enum Event {
    Order,
    Connection,
    Unproven(usize),
    Rank(Rank),
}

impl Server {
    fn run(&mut self) -> io::Result<()> {
        while !self.stop_after_all || self.ranks.iter().any(Place::is_awaited) {
            let events = self.sleep()?;
            // Their numbers change as some are removed and others accepted: so from the last, and before accepting.
            let ready = events.iter().rev().filter_map(|event| match event {
                Event::Unproven(number) => Some(*number),
                _ => None,
            });
            ready.for_each(|number| self.step_unproven(number));
            for event in events {
                match event {
                    Event::Order => while let Ok(1..) = self.woken.read(&mut [0; 64]) {},
                    Event::Connection => self.accept(),
                    Event::Unproven(_) => {}
                    Event::Rank(rank) => self.serve(rank),
                }
            }
            while let Ok(order) = self.orders.try_recv() {
                match order {
                    Order::Stop => return Ok(()),
                    Order::StopAfterAll => self.stop_after_all = true,
                    Order::AllBy(until) => self.all_by = Some(until),
                    Order::Ended(rank, well) => self.ended(rank, well),
                }
            }
            let now = Instant::now();
            if self.all_by.is_some_and(|until| until <= now) {
                self.all_by = None;
                (0..self.ranks.len()).for_each(|rank| self.ended(rank, false));
            }
            self.unproven.retain(|connection| connection.until > now);
        }
        Ok(())
    }

    fn sleep(&mut self) -> io::Result<Vec<Event>> {
        let now = Instant::now();
        self.rest = self.rest.filter(|rest| *rest > now);
        let mut watched = vec![(Event::Order, PollFd::new(&self.woken, PollFlags::IN))];
        if self.rest.is_none() {
            watched.push((Event::Connection, PollFd::new(&self.listener, PollFlags::IN)));
        }
        for (number, connection) in self.unproven.iter().enumerate() {
            watched.push((Event::Unproven(number), PollFd::new(&connection.stream, PollFlags::IN)));
        }
        for (rank, place) in self.ranks.iter().enumerate() {
            if let Some(member) = &place.member {
                let out = if member.unsent.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
                watched.push((Event::Rank(rank), PollFd::new(&member.stream, PollFlags::IN | out)));
            }
        }
        let next = self.unproven.iter().map(|connection| connection.until).chain(self.rest).chain(self.all_by).min();
        let left = next.and_then(|next| Timespec::try_from(next.saturating_duration_since(now)).ok());
        let (events, mut fds): (Vec<_>, Vec<_>) = watched.into_iter().unzip();
        match poll(&mut fds, left.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(events.into_iter().zip(&fds).filter(|(_, fd)| !fd.revents().is_empty()).map(|(event, _)| event).collect())
    }

    fn accept(&mut self) {
        match self.listener.accept() {
            Ok((stream, _)) => {
                if wire::prepare(&stream).and_then(|()| stream.set_nonblocking(true)).is_err() {
                    return;
                }
                if self.unproven.len() >= MOST_UNPROVEN {
                    self.unproven.remove(0);
                }
                let until = Instant::now() + PROVE_WITHIN;
                self.unproven.push(Unproven::new(stream, until));
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(error) => {
                tracing::warn!(%error, "no connection can be accepted for now");
                self.rest = Some(Instant::now() + REST);
            }
        }
    }

    /// Reads what an unproven connection says. It stays unproven, becomes a rank's, or is closed.
    fn step_unproven(&mut self, number: usize) {
        let connection = &mut self.unproven[number];
        match connection.step(&self.secret, self.ranks.len()) {
            Ok(false) => {}
            Ok(true) => {
                let connection = self.unproven.swap_remove(number);
                self.admit(connection);
            }
            Err(why) => {
                let from = connection.stream.peer_addr().map_or("?".into(), |from| from.to_string());
                tracing::warn!(from, why, "a connection to the hub was closed");
                self.unproven.swap_remove(number);
            }
        }
    }

    fn admit(&mut self, connection: Unproven) {
        let Some(Proven { stream, hello, handshake }) = connection.into_proven() else { return };
        let ([from, mut to], rank) = (handshake.seals(), hello.rank);
        let place = &mut self.ranks[rank];
        if let Some(process) = place.taken {
            tracing::warn!(rank, "a rank joins a second time, or after its process ended; refused");
            let _ = (&stream).write(&to.seal(REFUSED, &process.0));
            return;
        }
        tracing::debug!(rank, "a rank has joined the hub");
        place.member = Some(Member { stream, from, to, received: Vec::new(), unsent: Vec::new(), leaving: false });
        place.taken = Some(hello.process);
        self.tell(rank, WELCOME, &hello.process.0);
        self.tell_who_is_gone(rank, JOB);
    }

    /// Reads and writes what goes without waiting.
    fn serve(&mut self, rank: Rank) {
        let Some(member) = &mut self.ranks[rank].member else { return };
        let mut ended = member.send().is_err();
        let mut chunk = [0; 64 << 10];
        match member.stream.read(&mut chunk) {
            Ok(0) => ended = true,
            Ok(read) => member.received.extend_from_slice(&chunk[..read]),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(_) => ended = true,
        }
        self.take_frames(rank);
        if ended {
            self.ranks[rank].member = None;
            self.gone_from_all(rank, Status::Died);
        }
    }

    fn take_frames(&mut self, rank: Rank) {
        loop {
            let Some(member) = self.ranks[rank].member.as_mut().filter(|member| !member.leaving) else { return };
            let said = match member.from.open(&mut member.received, LONGEST + 8) {
                Ok(None) => return,
                Ok(Some((kind, body))) => self.take(rank, kind, &body),
                Err(why) => Err(why),
            };
            if let Err(why) = said {
                tracing::error!(rank, why, "a rank's connection to the hub failed");
                self.ranks[rank].member = None;
                self.gone_from_all(rank, Status::Died);
            }
        }
    }

    /// Executes a frame of a rank.
    fn take(&mut self, rank: Rank, kind: u8, body: &[u8]) -> Result<(), &'static str> {
        let unexpected = "it sent a frame that is not expected now";
        let (id, body) = body.split_first_chunk().ok_or(unexpected)?;
        let id = u64::from_le_bytes(*id);
        if kind == FORM {
            return self.form(rank, id, body);
        }
        if kind == BYE {
            self.gone_from_all(rank, Status::Left);
            let member = self.ranks[rank].member.as_mut().ok_or(unexpected)?;
            member.leaving = true;
            let _ = member.send();
            return Ok(());
        }
        let group = self.groups.get_mut(&id).ok_or(unexpected)?;
        let number = group.number(rank).ok_or(unexpected)?;
        let part = match kind {
            PART => Part { len: body.len() as u64, bytes: body.to_vec() },
            TOO_LONG => {
                let len = body.try_into().map_or(u64::MAX, u64::from_le_bytes);
                Part { len: len.max(LONGEST + 1), bytes: Vec::new() }
            }
            LEAVE | FAIL => {
                self.gone(rank, id, if kind == LEAVE { Status::Left } else { Status::Died });
                return Ok(());
            }
            _ => return Err(unexpected),
        };
        if !group.add(number, part) {
            return Err(unexpected);
        }
        let complete = group.take_round().map(|parts| body_of_parts(id, parts));
        if let Some(body) = complete {
            group.members.clone().into_iter().for_each(|rank| self.tell(rank, GATHERED, &body));
        }
        Ok(())
    }

    /// Makes a team. Each of its members says who they are; all must say the same.
    fn form(&mut self, rank: Rank, id: u64, body: &[u8]) -> Result<(), &'static str> {
        let members = parse_members(body, self.ranks.len()).filter(|members| members.contains(&rank));
        let members = members.ok_or("it forms a team that is not some of the ranks, and it one of them")?;
        match self.groups.get(&id) {
            Some(group) if group.members != members => return Err("it forms a team of other members than others do"),
            Some(_) => {}
            None => {
                let ended = |rank: &Rank| self.ranks[*rank].taken.is_some() && self.ranks[*rank].member.is_none();
                let gone: Vec<Rank> = members.iter().copied().filter(ended).collect();
                self.groups.insert(id, Group::new(members));
                gone.into_iter().for_each(|rank| self.gone(rank, id, Status::Died));
            }
        }
        self.tell_who_is_gone(rank, id);
        Ok(())
    }

    fn ended(&mut self, rank: Rank, well: bool) {
        // The end of a rank that has joined is the end of its connection, which comes after its last frames.
        if let Some(place) = self.ranks.get_mut(rank).filter(|place| place.taken.is_none()) {
            place.taken = Some(ProcessId::default());
            self.gone_from_all(rank, if well { Status::Left } else { Status::Died });
        }
    }

    fn gone_from_all(&mut self, rank: Rank, how: Status) {
        let groups: Vec<u64> = self.groups.keys().copied().collect();
        groups.into_iter().for_each(|id| self.gone(rank, id, how));
    }

    fn gone(&mut self, rank: Rank, id: u64, how: Status) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        let Some(number) = group.number(rank) else { return };
        if group.statuses[number] != Status::There {
            return;
        }
        group.statuses[number] = how;
        if id == JOB && how == Status::Died {
            self.first_death.set(rank);
        }
        tracing::debug!(rank, team = id, died = how == Status::Died, "a rank is gone");
        let members = group.members.clone();
        if id != JOB && !group.statuses.contains(&Status::There) {
            self.groups.remove(&id);
        }
        let body = body_of_member(id, number);
        let kind = if how == Status::Died { DIED } else { LEFT };
        members.into_iter().filter(|other| *other != rank).for_each(|other| self.tell(other, kind, &body));
    }

    /// Tells a rank that joins a group which of its members have left or died before.
    fn tell_who_is_gone(&mut self, rank: Rank, id: u64) {
        let Some(group) = self.groups.get(&id) else { return };
        for (number, status) in group.statuses.clone().into_iter().enumerate() {
            let body = body_of_member(id, number);
            match status {
                Status::There => {}
                Status::Left => self.tell(rank, LEFT, &body),
                Status::Died => self.tell(rank, DIED, &body),
            }
        }
    }

    /// Sends as much as goes without waiting, and keeps the rest.
    fn tell(&mut self, rank: Rank, kind: u8, body: &[u8]) {
        if let Some(member) = self.ranks[rank].member.as_mut().filter(|member| !member.leaving) {
            let frame = member.to.seal(kind, body);
            member.unsent.extend_from_slice(&frame);
            // An error is noticed when the connection is read.
            let _ = member.send();
        }
    }
}

impl Member {
    fn send(&mut self) -> io::Result<()> {
        while !self.unsent.is_empty() {
            match self.stream.write(&self.unsent) {
                Ok(written) => drop(self.unsent.drain(..written)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if self.leaving {
            self.stream.shutdown(std::net::Shutdown::Write)?;
        }
        Ok(())
    }
}
