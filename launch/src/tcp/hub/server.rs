//! The event loop of the hub's thread. The cost of one turn depends on the number of events, not of ranks. Everything
//! sent to a rank in one turn takes one system call.

use super::group::Group;
use super::member::Member;
use super::order::{FirstDeath, Order};
use super::unproven::{Proven, Unproven};
use crate::process::ProcessId;
use crate::tcp::frames::{
    ASK, BYE, FAIL, FORM, GATHERED, GONE, HOST, JOB, LEAVE, LONGEST, LONGEST_HOST, MemberState, PART, PART_OF_HOST,
    Part, REFUSED, RUNS, TOO_LONG, WELCOME, body_of_gone, body_of_members, body_of_parts, parse_members,
};
use crate::tcp::silence;
use crate::tcp::wire::{Body, Frame, Secret};
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::fd::{AsFd, OwnedFd};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::{self, Read};
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};
use transom_locks::Rank;

/// Time for a connection to prove that it knows the secret.
const PROVE_WITHIN: Duration = Duration::from_secs(5);
/// Most unproven connections. A further one replaces the oldest.
const MOST_UNPROVEN: usize = 256;
/// Length of the listen queue: all ranks may connect at once.
const BACKLOG: i32 = 4096;
/// Pause in accepting connections after an error, such as the lack of descriptors.
const REST: Duration = Duration::from_millis(100);
/// Longest delay before the others are notified that a rank has left, so that one notice covers many ranks when all
/// leave at once. Deaths are reported without delay.
const TELL_WITHIN: Duration = Duration::from_millis(10);
/// Most events per turn.
const EVENTS: usize = 256;

/// Event numbers: these two, a rank, or an unproven connection from [`UNPROVEN`] up.
const ORDERS: u64 = u64::MAX;
const LISTENER: u64 = u64::MAX - 1;
const UNPROVEN: u64 = 1 << 32;

pub(super) struct Server {
    secret: Secret,
    listener: TcpListener,
    woken: UnixStream,
    orders: Receiver<Order>,
    /// Polls for connections that are readable or writable.
    epoll: OwnedFd,
    /// Unproven connections by number, which increases with time.
    unproven: BTreeMap<u64, Unproven>,
    accepted: u64,
    ranks: Vec<RankSlot>,
    /// Number of ranks that are connected or may still join.
    awaited: usize,
    /// The job and its teams, by number.
    groups: HashMap<u64, Group>,
    /// Groups with unreported departures.
    with_news: Vec<u64>,
    /// Time at which the departures are reported.
    tell_at: Option<Instant>,
    /// Ranks with bytes to send in this turn.
    to_send: Vec<Rank>,
    /// Time until which no connection is accepted, after accepting failed.
    rest: Option<Instant>,
    /// Time after which ranks that have not joined count as dead.
    all_by: Option<Instant>,
    /// Time of the next check for hosts that vanished.
    look: Instant,
    stop_after_all: bool,
    first_death: FirstDeath,
    /// Bytes sent to ranks and received from them, without handshakes.
    traffic: Arc<AtomicU64>,
    chunk: Vec<u8>,
}

/// The hub's record of a rank.
#[derive(Default)]
struct RankSlot {
    member: Option<Member>,
    /// The process that joined as this rank; zero if the rank's process ended before it joined.
    taken: Option<ProcessId>,
    /// Identity of its host; `None` until the rank has told it.
    host: Option<Box<[u8]>>,
    /// Ranks that have asked it whether its process runs, and have no answer yet.
    asked_by: BTreeSet<Rank>,
}

impl Server {
    /// Descriptors beyond those of ranks.
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
            ranks: (0..size).map(|_| RankSlot::default()).collect(),
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
            traffic: Arc::default(),
            chunk: vec![0; 64 << 10],
        })
    }

    /// Counts the bytes sent to ranks and received from them, without handshakes.
    pub fn traffic(&self) -> Arc<AtomicU64> {
        self.traffic.clone()
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
            self.report_departures()?;
            self.send()?;
        }
        Ok(())
    }

    fn sleep(&self) -> io::Result<Vec<u64>> {
        // The oldest connection expires first.
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

    /// Changes the events for which a descriptor is polled.
    fn watch(&self, fd: impl AsFd, number: u64, flags: EventFlags) -> io::Result<()> {
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

    /// Reads from an unproven connection, which stays unproven, becomes a rank's, or is closed.
    fn step_unproven(&mut self, number: u64) -> io::Result<()> {
        // An earlier event of this turn may have closed it.
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
        let mut member = Member::new(stream, to, from, self.traffic.clone());
        if let Some(other) = self.ranks[rank].taken {
            tracing::warn!(rank, "a rank joins a second time, or after its process ended; refused");
            member.tell(REFUSED, JOB, &Body::new(other.0.to_vec())?);
            let _ = member.send();
            return Ok(());
        }
        tracing::debug!(rank, "a rank has joined the hub");
        self.watch(&member.stream, rank as u64, EventFlags::IN)?;
        self.ranks[rank] =
            RankSlot { member: Some(member), taken: Some(hello.process), host: None, asked_by: BTreeSet::new() };
        self.tell(rank, WELCOME, JOB, &process);
        self.send_gone(rank, JOB)?;
        // Frames sent right after the handshake are already buffered; no event reports them.
        self.take_frames(rank)
    }

    /// Reads and writes as much as possible without blocking.
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

    /// Executes a frame of a rank. The inner error is the fault of the frame.
    fn take(&mut self, rank: Rank, frame: Frame) -> io::Result<Result<(), &'static str>> {
        let Frame { kind, group: id, body } = frame;
        let unexpected = Ok(Err("it sent an unexpected frame"));
        if kind == FORM {
            return self.form(rank, id, &body);
        }
        if kind == ASK || kind == RUNS {
            return self.pass_on(rank, kind, &body);
        }
        if kind == HOST {
            let fits = !body.is_empty() && body.len() <= LONGEST_HOST;
            self.ranks[rank].host = fits.then(|| body.into());
            return Ok(if fits { Ok(()) } else { Err("it sent a malformed identity of its host") });
        }
        let Some(member) = &mut self.ranks[rank].member else { return unexpected };
        if kind == BYE {
            member.leaving = true;
            self.to_send.push(rank);
            self.gone_from_all(rank, MemberState::Left);
            return Ok(Ok(()));
        }
        let Some(group) = self.groups.get_mut(&id) else { return unexpected };
        let Some(number) = group.number(rank) else { return unexpected };
        let part = match kind {
            PART | PART_OF_HOST => Part { len: body.len() as u64, bytes: body },
            TOO_LONG => {
                let len = body[..].try_into().map_or(u64::MAX, u64::from_le_bytes);
                Part { len: len.max(LONGEST + 1), bytes: Vec::new() }
            }
            LEAVE | FAIL => {
                self.gone(rank, id, if kind == LEAVE { MemberState::Left } else { MemberState::Died });
                return Ok(Ok(()));
            }
            _ => return unexpected,
        };
        if member.has_not_got(id) || !group.add(number, part, kind == PART_OF_HOST) {
            return unexpected;
        }
        let Some((parts, of_hosts)) = group.take_round() else { return Ok(Ok(())) };
        let members = group.members.clone();
        self.send_round(id, &members, &parts, of_hosts).map(Ok)
    }

    /// Sends a complete round to the members of a group.
    fn send_round(&mut self, id: u64, members: &[Rank], parts: &[Part], of_hosts: bool) -> io::Result<()> {
        // A rank that has told no host is the only one on its host.
        let mut hosts: Vec<Vec<usize>> = Vec::new();
        let mut numbers = HashMap::new();
        for (number, &rank) in members.iter().enumerate() {
            let host = self.ranks[rank].host.as_ref().map(|host| *numbers.entry(host).or_insert(hosts.len()));
            match host.and_then(|host| hosts.get_mut(host)) {
                Some(others) => others.push(number),
                None => hosts.push(vec![number]),
            }
        }
        let whole = if of_hosts { Body::default() } else { Body::new(body_of_parts(parts.iter()))? };
        for numbers in hosts {
            if of_hosts {
                let round = Body::new(body_of_parts(numbers.iter().map(|&number| &parts[number])))?;
                numbers.iter().for_each(|&number| self.tell(members[number], GATHERED, id, &round));
                continue;
            }
            self.tell(members[numbers[0]], GATHERED, id, &whole);
            numbers[1..].iter().for_each(|&number| self.tell(members[number], GATHERED, id, &Body::default()));
        }
        Ok(())
    }

    /// Forms a team. Each member sends the list of members; all lists must be equal.
    fn form(&mut self, rank: Rank, id: u64, body: &[u8]) -> io::Result<Result<(), &'static str>> {
        let members = parse_members(body, self.ranks.len()).filter(|members| members.contains(&rank));
        let Some(members) = members else {
            return Ok(Err("its team is not a set of distinct ranks that includes itself"));
        };
        match self.groups.get(&id) {
            Some(group) if group.members != members => {
                return Ok(Err("its team has other members than the same team of another rank"));
            }
            Some(_) => {}
            None => {
                let ended = |rank: &Rank| self.ranks[*rank].taken.is_some() && self.ranks[*rank].member.is_none();
                let gone: Vec<Rank> = members.iter().copied().filter(ended).collect();
                self.groups.insert(id, Group::new(members));
                gone.into_iter().for_each(|rank| self.gone(rank, id, MemberState::Died));
            }
        }
        self.send_gone(rank, id).map(Ok)
    }

    /// Passes a question or answer of a rank on to the rank that the body names. A question is passed on only once until
    /// its answer: a stopped process reads none, and the hub would keep them all.
    fn pass_on(&mut self, rank: Rank, kind: u8, body: &[u8]) -> io::Result<Result<(), &'static str>> {
        let Some(&[to]) = parse_members(body, self.ranks.len()).as_deref() else {
            return Ok(Err("it asked for a rank outside its job"));
        };
        let is_there = |place: &RankSlot| place.member.as_ref().is_some_and(|member| !member.leaving);
        let passes = match kind {
            ASK => is_there(&self.ranks[to]) && self.ranks[to].asked_by.insert(rank),
            _ => self.ranks[rank].asked_by.remove(&to),
        };
        if passes {
            self.tell(to, kind, JOB, &Body::new(body_of_members(&[rank]))?);
        }
        Ok(Ok(()))
    }

    fn ended(&mut self, rank: Rank, well: bool) {
        // For a rank that has joined, the end of its connection counts, which follows its last frames.
        if let Some(place) = self.ranks.get_mut(rank).filter(|place| place.taken.is_none()) {
            place.taken = Some(ProcessId::default());
            self.awaited -= 1;
            self.gone_from_all(rank, if well { MemberState::Left } else { MemberState::Died });
        }
    }

    /// Handles the end of a rank's connection. A rank that has not said that it leaves has died.
    fn lose(&mut self, rank: Rank) {
        if self.ranks[rank].member.take().is_some() {
            self.awaited -= 1;
            self.gone_from_all(rank, MemberState::Died);
        }
    }

    fn gone_from_all(&mut self, rank: Rank, how: MemberState) {
        let groups: Vec<u64> = self.groups.keys().copied().collect();
        groups.into_iter().for_each(|id| self.gone(rank, id, how));
    }

    fn gone(&mut self, rank: Rank, id: u64, how: MemberState) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        let Some(number) = group.number(rank).filter(|&number| group.states[number] == MemberState::There) else {
            return;
        };
        group.states[number] = how;
        if group.news.is_empty() {
            self.with_news.push(id);
        }
        group.news.push(number);
        let now = Instant::now();
        self.tell_at = Some(match how {
            MemberState::Died => now,
            _ => self.tell_at.unwrap_or(now + TELL_WITHIN),
        });
        if id == JOB && how == MemberState::Died {
            self.first_death.set(rank);
        }
        tracing::debug!(rank, team = id, died = how == MemberState::Died, "a rank has left or died");
    }

    /// Notifies the members of each group of those that are gone, if it is time.
    fn report_departures(&mut self) -> io::Result<()> {
        if self.tell_at.is_none_or(|tell_at| tell_at > Instant::now()) {
            return Ok(());
        }
        self.tell_at = None;
        for id in std::mem::take(&mut self.with_news) {
            let Some(group) = self.groups.get_mut(&id) else { continue };
            let news = std::mem::take(&mut group.news);
            let body = Body::new(body_of_gone(news.into_iter().map(|number| (number, group.states[number]))))?;
            let members = group.members.clone();
            if id != JOB && !group.states.contains(&MemberState::There) {
                self.groups.remove(&id);
            }
            members.into_iter().for_each(|rank| self.tell(rank, GONE, id, &body));
        }
        Ok(())
    }

    /// Notifies a rank that joins a group of the members that left or died before.
    fn send_gone(&mut self, rank: Rank, id: u64) -> io::Result<()> {
        let Some(group) = self.groups.get(&id) else { return Ok(()) };
        let gone = group.states.iter().copied().enumerate().filter(|(_, state)| *state != MemberState::There);
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

    /// Sends as much as possible without blocking.
    fn send(&mut self) -> io::Result<()> {
        for rank in std::mem::take(&mut self.to_send) {
            let Some(member) = &mut self.ranks[rank].member else { continue };
            // A failed connection is detected when it is read.
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
