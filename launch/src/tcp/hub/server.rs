//! The event loop of the hub's thread. The cost of one turn depends on the number of events, not of ranks. Everything
//! sent to a rank in one turn takes one system call.

use super::connections::{Connections, Event, Traffic};
use super::group::Group;
use super::member::Member;
use super::order::{FirstDeath, Order};
use super::unproven::Proven;
use crate::process::ProcessId;
use crate::tcp::frames::{
    ASK, BYE, FAIL, FORM, GATHERED, GONE, HOST, JOB, LEAVE, LONGEST, LONGEST_HOST, MemberState, PART, PART_OF_HOST,
    Part, REFUSED, RUNS, TOO_LONG, WELCOME, body_of_gone, body_of_members, body_of_parts, parse_members,
};
use crate::tcp::silence;
use crate::tcp::wire::{Body, Frame, Secret};
use std::collections::{BTreeSet, HashMap};
use std::io::{self, Read};
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};
use transom_locks::Rank;

/// Longest delay before the others are notified that a rank has left, so that one notice covers many ranks when all
/// leave at once. Deaths are reported without delay.
const TELL_WITHIN: Duration = Duration::from_millis(10);

pub(super) struct Server {
    connections: Connections,
    woken: UnixStream,
    orders: Receiver<Order>,
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
    /// Time after which ranks that have not joined count as dead.
    all_by: Option<Instant>,
    /// Time of the next check for hosts that vanished.
    look: Instant,
    stop_after_all: bool,
    first_death: FirstDeath,
    traffic: Arc<Traffic>,
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
    pub fn new(
        size: usize,
        secret: Secret,
        listener: TcpListener,
        woken: UnixStream,
        orders: Receiver<Order>,
        first_death: FirstDeath,
    ) -> io::Result<Self> {
        let traffic = Arc::new(Traffic::default());
        Ok(Server {
            connections: Connections::new(size, secret, listener, &woken, traffic.clone())?,
            woken,
            orders,
            ranks: (0..size).map(|_| RankSlot::default()).collect(),
            awaited: size,
            groups: HashMap::from([(JOB, Group::new((0..size).collect()))]),
            with_news: Vec::new(),
            tell_at: None,
            to_send: Vec::new(),
            all_by: None,
            look: Instant::now() + silence::LOOK,
            stop_after_all: false,
            first_death,
            traffic,
            chunk: vec![0; 64 << 10],
        })
    }

    pub fn traffic(&self) -> Arc<Traffic> {
        self.traffic.clone()
    }

    pub fn run(&mut self) -> io::Result<()> {
        while !self.stop_after_all || self.awaited > 0 {
            let times = [self.all_by, self.tell_at, Some(self.look)];
            let events = self.connections.sleep(times)?;
            self.handle(events)?;
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

    fn handle(&mut self, events: Vec<Event>) -> io::Result<()> {
        for event in events {
            match event {
                Event::Orders => while let Ok(1..) = self.woken.read(&mut [0; 64]) {},
                Event::Proven(proven) => self.admit(proven)?,
                Event::Ready(rank) => self.serve(rank)?,
            }
        }
        Ok(())
    }

    fn keep_time(&mut self) -> io::Result<()> {
        let now = Instant::now();
        if self.all_by.is_some_and(|until| until <= now) {
            self.all_by = None;
            (0..self.ranks.len()).for_each(|rank| self.ended(rank, false));
        }
        self.connections.keep_time(now)?;
        if self.look <= now {
            self.look = now + silence::LOOK;
            for rank in 0..self.ranks.len() {
                let member = self.ranks[rank].member.as_mut();
                if member.is_some_and(Member::has_vanished) {
                    tracing::error!(rank, "the host of a rank does not answer");
                    self.lose(rank);
                }
            }
            let events = self.connections.look();
            self.handle(events)?;
        }
        Ok(())
    }

    fn admit(&mut self, Proven { line, hello, to, from }: Proven) -> io::Result<()> {
        let (rank, process) = (hello.rank, Body::new(hello.process.0.to_vec())?);
        let mut member = Member::new(line, to, from, self.traffic.clone());
        if let Some(other) = self.ranks[rank].taken {
            tracing::warn!(rank, "a rank joins a second time, or after its process ended; refused");
            member.tell(REFUSED, JOB, &Body::new(other.0.to_vec())?);
            let _ = member.send();
            return Ok(());
        }
        tracing::debug!(rank, "a rank has joined the hub");
        self.connections.poll_rank(&member.line, rank, false)?;
        self.ranks[rank] =
            RankSlot { member: Some(member), taken: Some(hello.process), host: None, asked_by: BTreeSet::new() };
        self.tell(rank, WELCOME, JOB, &process);
        self.send_gone(rank, JOB)?;
        // Frames received with the last of the handshake are already buffered; no event reports them.
        self.take_frames(rank)
    }

    /// Reads and writes as much as possible without blocking.
    fn serve(&mut self, rank: Rank) -> io::Result<()> {
        while let Some(member) = &mut self.ranks[rank].member {
            if member.awaits_room {
                self.to_send.push(rank);
            }
            let goes_on = member.receive(&mut self.chunk);
            self.take_frames(rank)?;
            if !goes_on {
                self.lose(rank);
            }
            // A channel is not polled for the rest.
            if !self.ranks[rank].member.as_ref().is_some_and(|member| member.line.is_readable()) {
                break;
            }
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
                self.connections.poll_rank(&member.line, rank, awaits_room)?;
            }
        }
        self.connections.send()
    }
}
