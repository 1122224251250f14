//! What the thread of the hub does. One turn of it costs what happened, not how many ranks there are; what is to be sent
//! to a rank in one turn is sent in one call.

use super::group::Group;
use super::member::Member;
use super::order::{FirstDeath, Order};
use super::unproven::{Proven, Unproven};
use crate::process::ProcessId;
use crate::tcp::frames::{
    BYE, FAIL, FORM, GATHERED, GONE, JOB, LEAVE, LONGEST, PART, Part, REFUSED, State, TOO_LONG, WELCOME, body_of_gone,
    body_of_parts, parse_members,
};
use crate::tcp::silence;
use crate::tcp::wire::{Body, Frame, Secret};
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::fd::{AsFd, OwnedFd};
use std::collections::{BTreeMap, HashMap};
use std::io::{self, Read};
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};
use transom_locks::Rank;

/// How long a connection may take to prove itself.
const PROVE_WITHIN: Duration = Duration::from_secs(5);
/// How many connections may be unproven. When another comes, the oldest is closed.
const MOST_UNPROVEN: usize = 256;
/// How many connections the system may hold for the hub: ranks may all come at once.
const BACKLOG: i32 = 4096;
/// How long no connection is accepted after the system had no descriptor for one.
const REST: Duration = Duration::from_millis(100);
/// How long it may take until the others are told that a rank has left. When all ranks of a job leave, each is told of
/// many at once. Deaths are told at once.
const TELL_WITHIN: Duration = Duration::from_millis(10);
/// How many events one turn takes.
const EVENTS: usize = 256;

/// What an event is of: these, a rank by its number, or an unproven connection by one from [`UNPROVEN`] up.
const ORDERS: u64 = u64::MAX;
const LISTENER: u64 = u64::MAX - 1;
const UNPROVEN: u64 = 1 << 32;

pub(super) struct Server {
    secret: Secret,
    listener: TcpListener,
    woken: UnixStream,
    orders: Receiver<Order>,
    /// Tells which connections have something to read, or room to write.
    epoll: OwnedFd,
    /// By age.
    unproven: BTreeMap<u64, Unproven>,
    accepted: u64,
    ranks: Vec<Place>,
    /// How many ranks are connected, or may yet join.
    awaited: usize,
    /// The job and its teams, by number.
    groups: HashMap<u64, Group>,
    /// Groups with news.
    with_news: Vec<u64>,
    /// When the news are told.
    tell_at: Option<Instant>,
    /// Ranks to which something is to be sent in this turn.
    to_send: Vec<Rank>,
    /// No connection is accepted until then.
    rest: Option<Instant>,
    /// A rank that has not joined by then has died.
    all_by: Option<Instant>,
    /// When connections are looked at for hosts that vanished.
    look: Instant,
    stop_after_all: bool,
    first_death: FirstDeath,
    chunk: Vec<u8>,
}

/// What the hub knows of a rank's process.
#[derive(Default)]
struct Place {
    member: Option<Member>,
    /// The process that joined as this rank; zeros for one whose process ended before it joined.
    taken: Option<ProcessId>,
}

impl Server {
    /// Beside those of ranks.
    pub const DESCRIPTORS: usize = MOST_UNPROVEN + 4;

    pub fn new(
        size: usize,
        secret: Secret,
        listener: TcpListener,
        woken: UnixStream,
        orders: Receiver<Order>,
        first_death: FirstDeath,
    ) -> io::Result<Self> {
        rustix::net::listen(&listener, BACKLOG)?;
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &woken, EventData::new_u64(ORDERS), EventFlags::IN)?;
        epoll::add(&epoll, &listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
        Ok(Server {
            secret,
            listener,
            woken,
            orders,
            epoll,
            unproven: BTreeMap::new(),
            accepted: UNPROVEN,
            ranks: (0..size).map(|_| Place::default()).collect(),
            awaited: size,
            groups: HashMap::from([(JOB, Group::new((0..size).collect()))]),
            with_news: Vec::new(),
            tell_at: None,
            to_send: Vec::new(),
            rest: None,
            all_by: None,
            look: Instant::now() + silence::LOOK,
            stop_after_all: false,
            first_death,
            chunk: vec![0; 64 << 10],
        })
    }

    pub fn run(&mut self) -> io::Result<()> {
        while !self.stop_after_all || self.awaited > 0 {
            for event in self.sleep()? {
                match event {
                    ORDERS => while let Ok(1..) = self.woken.read(&mut [0; 64]) {},
                    LISTENER => self.accept()?,
                    number @ UNPROVEN.. => self.step_unproven(number)?,
                    rank => self.serve(rank as Rank)?,
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
            self.keep_time()?;
            self.tell_news()?;
            self.send()?;
        }
        Ok(())
    }

    fn sleep(&self) -> io::Result<Vec<u64>> {
        // The oldest is the first to be closed.
        let unproven = self.unproven.values().next().map(|connection| connection.until);
        let next = [unproven, self.rest, self.all_by, self.tell_at, Some(self.look)].into_iter().flatten().min();
        let left = next.and_then(|next| Timespec::try_from(next.saturating_duration_since(Instant::now())).ok());
        let mut events = Vec::with_capacity(EVENTS);
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), left.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(events.into_iter().map(|event| event.data.u64()).collect())
    }

    fn keep_time(&mut self) -> io::Result<()> {
        let now = Instant::now();
        if self.all_by.is_some_and(|until| until <= now) {
            self.all_by = None;
            (0..self.ranks.len()).for_each(|rank| self.ended(rank, false));
        }
        if self.rest.is_some_and(|rest| rest <= now) {
            self.rest = None;
            self.watch(&self.listener, LISTENER, EventFlags::IN)?;
        }
        self.unproven.retain(|_, connection| connection.until > now);
        if self.look <= now {
            self.look = now + silence::LOOK;
            for rank in 0..self.ranks.len() {
                let member = self.ranks[rank].member.as_mut();
                if member.is_some_and(|member| member.silence.is_final(&member.stream)) {
                    tracing::error!(rank, "the host of a rank does not answer");
                    self.lose(rank);
                }
            }
        }
        Ok(())
    }

    /// Changes which events of a connection are told.
    fn watch(&self, fd: impl AsFd, number: u64, flags: EventFlags) -> io::Result<()> {
        Ok(epoll::modify(&self.epoll, fd, EventData::new_u64(number), flags)?)
    }

    fn accept(&mut self) -> io::Result<()> {
        // Ranks that have come first prove themselves between these.
        for _ in 0..MOST_UNPROVEN / 4 {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    tracing::warn!(%error, "no connection can be accepted for now");
                    self.rest = Some(Instant::now() + REST);
                    return self.watch(&self.listener, LISTENER, EventFlags::empty());
                }
            };
            if silence::prepare(&stream).and_then(|()| stream.set_nonblocking(true)).is_err() {
                continue;
            }
            if self.unproven.len() >= MOST_UNPROVEN {
                self.unproven.pop_first();
            }
            self.accepted += 1;
            epoll::add(&self.epoll, &stream, EventData::new_u64(self.accepted), EventFlags::IN)?;
            self.unproven.insert(self.accepted, Unproven::new(stream, Instant::now() + PROVE_WITHIN));
        }
        Ok(())
    }

    /// Reads what an unproven connection says. It stays unproven, becomes a rank's, or is closed.
    fn step_unproven(&mut self, number: u64) -> io::Result<()> {
        // It may have been closed in this turn.
        let Some(connection) = self.unproven.get_mut(&number) else { return Ok(()) };
        match connection.step(&self.secret, self.ranks.len()) {
            Ok(false) => return Ok(()),
            Ok(true) => {}
            Err(why) => {
                let from = connection.stream.peer_addr().map_or("?".into(), |from| from.to_string());
                tracing::warn!(from, why, "a connection to the hub was closed");
                self.unproven.remove(&number);
                return Ok(());
            }
        }
        let proven = self.unproven.remove(&number).and_then(Unproven::into_proven);
        proven.map_or(Ok(()), |proven| self.admit(proven))
    }

    fn admit(&mut self, Proven { stream, hello, to, from }: Proven) -> io::Result<()> {
        let (rank, process) = (hello.rank, Body::new(hello.process.0.to_vec())?);
        let mut member = Member::new(stream, to, from);
        if let Some(other) = self.ranks[rank].taken {
            tracing::warn!(rank, "a rank joins a second time, or after its process ended; refused");
            member.tell(REFUSED, JOB, &Body::new(other.0.to_vec())?);
            let _ = member.send();
            return Ok(());
        }
        tracing::debug!(rank, "a rank has joined the hub");
        self.watch(&member.stream, rank as u64, EventFlags::IN)?;
        self.ranks[rank] = Place { member: Some(member), taken: Some(hello.process) };
        self.tell(rank, WELCOME, JOB, &process);
        self.tell_who_is_gone(rank, JOB)?;
        // What it said right behind that is here already, and no event will tell of it.
        self.take_frames(rank)
    }

    /// Reads and writes what goes without waiting.
    fn serve(&mut self, rank: Rank) -> io::Result<()> {
        let Some(member) = &mut self.ranks[rank].member else { return Ok(()) };
        if member.awaits_room {
            self.to_send.push(rank);
        }
        let goes_on = member.receive(&mut self.chunk);
        self.take_frames(rank)?;
        if !goes_on {
            self.lose(rank);
        }
        Ok(())
    }

    fn take_frames(&mut self, rank: Rank) -> io::Result<()> {
        loop {
            let Some(member) = self.ranks[rank].member.as_mut().filter(|member| !member.leaving) else { return Ok(()) };
            let said = match member.next() {
                Ok(None) => return Ok(()),
                Ok(Some(frame)) => self.take(rank, frame)?,
                Err(why) => Err(why),
            };
            if let Err(why) = said {
                tracing::error!(rank, why, "a rank's connection to the hub failed");
                self.lose(rank);
            }
        }
    }

    /// Executes a frame of a rank. What is wrong with the frame is the inner error.
    fn take(&mut self, rank: Rank, frame: Frame) -> io::Result<Result<(), &'static str>> {
        let Frame { kind, group: id, body } = frame;
        let unexpected = Ok(Err("it sent a frame that is not expected now"));
        if kind == FORM {
            return self.form(rank, id, &body);
        }
        let Some(member) = &mut self.ranks[rank].member else { return unexpected };
        if kind == BYE {
            member.leaving = true;
            self.to_send.push(rank);
            self.gone_from_all(rank, State::Left);
            return Ok(Ok(()));
        }
        let Some(group) = self.groups.get_mut(&id) else { return unexpected };
        let Some(number) = group.number(rank) else { return unexpected };
        let part = match kind {
            PART => Part { len: body.len() as u64, bytes: body },
            TOO_LONG => {
                let len = body[..].try_into().map_or(u64::MAX, u64::from_le_bytes);
                Part { len: len.max(LONGEST + 1), bytes: Vec::new() }
            }
            LEAVE | FAIL => {
                self.gone(rank, id, if kind == LEAVE { State::Left } else { State::Died });
                return Ok(Ok(()));
            }
            _ => return unexpected,
        };
        if member.has_not_got(id) || !group.add(number, part) {
            return unexpected;
        }
        let Some(round) = group.take_round().map(body_of_parts) else { return Ok(Ok(())) };
        let (members, round) = (group.members.clone(), Body::new(round)?);
        members.into_iter().for_each(|rank| self.tell(rank, GATHERED, id, &round));
        Ok(Ok(()))
    }

    /// Makes a team. Each of its members says who they are; all must say the same.
    fn form(&mut self, rank: Rank, id: u64, body: &[u8]) -> io::Result<Result<(), &'static str>> {
        let members = parse_members(body, self.ranks.len()).filter(|members| members.contains(&rank));
        let Some(members) = members else {
            return Ok(Err("it forms a team that is not some of the ranks, and it one of them"));
        };
        match self.groups.get(&id) {
            Some(group) if group.members != members => {
                return Ok(Err("it forms a team of other members than others do"));
            }
            Some(_) => {}
            None => {
                let ended = |rank: &Rank| self.ranks[*rank].taken.is_some() && self.ranks[*rank].member.is_none();
                let gone: Vec<Rank> = members.iter().copied().filter(ended).collect();
                self.groups.insert(id, Group::new(members));
                gone.into_iter().for_each(|rank| self.gone(rank, id, State::Died));
            }
        }
        self.tell_who_is_gone(rank, id).map(Ok)
    }

    fn ended(&mut self, rank: Rank, well: bool) {
        // The end of a rank that has joined is the end of its connection, which comes after its last frames.
        if let Some(place) = self.ranks.get_mut(rank).filter(|place| place.taken.is_none()) {
            place.taken = Some(ProcessId::default());
            self.awaited -= 1;
            self.gone_from_all(rank, if well { State::Left } else { State::Died });
        }
    }

    /// The connection of a rank has ended. If it has not said that it leaves, it has died.
    fn lose(&mut self, rank: Rank) {
        if self.ranks[rank].member.take().is_some() {
            self.awaited -= 1;
            self.gone_from_all(rank, State::Died);
        }
    }

    fn gone_from_all(&mut self, rank: Rank, how: State) {
        let groups: Vec<u64> = self.groups.keys().copied().collect();
        groups.into_iter().for_each(|id| self.gone(rank, id, how));
    }

    fn gone(&mut self, rank: Rank, id: u64, how: State) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        let Some(number) = group.number(rank).filter(|&number| group.states[number] == State::There) else { return };
        group.states[number] = how;
        if group.news.is_empty() {
            self.with_news.push(id);
        }
        group.news.push(number);
        let now = Instant::now();
        self.tell_at = Some(match how {
            State::Died => now,
            _ => self.tell_at.unwrap_or(now + TELL_WITHIN),
        });
        if id == JOB && how == State::Died {
            self.first_death.set(rank);
        }
        tracing::debug!(rank, team = id, died = how == State::Died, "a rank is gone");
    }

    /// Tells the members of each group which of them are gone, if it is time.
    fn tell_news(&mut self) -> io::Result<()> {
        if self.tell_at.is_none_or(|tell_at| tell_at > Instant::now()) {
            return Ok(());
        }
        self.tell_at = None;
        for id in std::mem::take(&mut self.with_news) {
            let Some(group) = self.groups.get_mut(&id) else { continue };
            let news = std::mem::take(&mut group.news);
            let body = Body::new(body_of_gone(news.into_iter().map(|number| (number, group.states[number]))))?;
            let members = group.members.clone();
            if id != JOB && !group.states.contains(&State::There) {
                self.groups.remove(&id);
            }
            members.into_iter().for_each(|rank| self.tell(rank, GONE, id, &body));
        }
        Ok(())
    }

    /// Tells a rank that joins a group which of its members have left or died before.
    fn tell_who_is_gone(&mut self, rank: Rank, id: u64) -> io::Result<()> {
        let Some(group) = self.groups.get(&id) else { return Ok(()) };
        let gone = group.states.iter().copied().enumerate().filter(|(_, state)| *state != State::There);
        let body = body_of_gone(gone);
        if !body.is_empty() {
            self.tell(rank, GONE, id, &Body::new(body)?);
        }
        Ok(())
    }

    fn tell(&mut self, rank: Rank, kind: u8, group: u64, body: &Body) {
        if let Some(member) = self.ranks[rank].member.as_mut().filter(|member| !member.leaving) {
            member.tell(kind, group, body);
            self.to_send.push(rank);
        }
    }

    /// Sends what goes without waiting.
    fn send(&mut self) -> io::Result<()> {
        for rank in std::mem::take(&mut self.to_send) {
            let Some(member) = &mut self.ranks[rank].member else { continue };
            // An error is noticed when the connection is read.
            let awaits_room = !member.send().unwrap_or(true);
            if member.awaits_room != awaits_room {
                member.awaits_room = awaits_room;
                let out = if awaits_room { EventFlags::OUT } else { EventFlags::empty() };
                let member = self.ranks[rank].member.as_ref();
                member.map_or(Ok(()), |member| self.watch(&member.stream, rank as u64, EventFlags::IN | out))?;
            }
        }
        Ok(())
    }
}
