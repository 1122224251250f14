//! The middle of the star: one thread that lets the ranks in, hands what each says to all, and tells who is gone.
//! Whoever does not prove to know the secret gets a challenge and no more, takes one place of many for a few seconds,
//! and keeps nobody waiting.

use super::wire::{self, CHALLENGE, HELLO, Handshake, PROOF, Seal, Secret};
use super::{
    ALL, BYE, DIED, FAIL, FORM, GATHERED, LEAVE, LEFT, LONGEST, PART, REFUSED, TOO_LONG, WELCOME, parse_members,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use transom_locks::Rank;

/// How long a connection may take to prove itself.
const PROVE_WITHIN: Duration = Duration::from_secs(5);
/// How many may be about to; of more, the oldest goes.
const MOST_UNPROVEN: usize = 256;
/// How long no connection is accepted when the system has no descriptor for it.
const REST: Duration = Duration::from_millis(100);

/// The hub of a job of so many ranks, run by a thread. It ends when this is dropped.
pub(crate) struct Hub {
    port: u16,
    orders: Sender<Order>,
    wake: UnixStream,
    thread: Option<JoinHandle<()>>,
}

enum Order {
    /// The rank's process has ended; well or not.
    Ended(Rank, bool),
    /// Who has not joined by then does not come any more.
    AllBy(Instant),
    /// All who have not left may be left alone.
    Stop,
}

impl Hub {
    pub fn start(size: usize, secret: Secret) -> io::Result<Self> {
        // Both families where the system has both.
        let listener = TcpListener::bind("[::]:0").or_else(|_| TcpListener::bind("0.0.0.0:0"))?;
        listener.set_nonblocking(true)?;
        let port = listener.local_addr()?.port();
        let (wake, woken) = UnixStream::pair()?;
        woken.set_nonblocking(true)?;
        wake.set_nonblocking(true)?;
        let (orders, received) = channel();
        let ranks = (0..size).map(|_| Place::default()).collect();
        let groups = HashMap::from([(ALL, Group::new((0..size).collect()))]);
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
        };
        let run = move || {
            if let Err(error) = server.run() {
                tracing::error!(%error, "the hub of the job cannot go on");
            }
        };
        let thread = Some(std::thread::Builder::new().name("transom hub".into()).spawn(run)?);
        Ok(Hub { port, orders, wake, thread })
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// To be called when a rank's process has ended: it has died unless it said that it left, or ended well without
    /// ever joining.
    pub fn ended(&self, rank: Rank, well: bool) {
        self.order(Order::Ended(rank, well));
    }

    /// Ranks that have not joined by then have died; for a hub that nobody tells of a process's end.
    pub fn all_by(&self, until: Instant) {
        self.order(Order::AllBy(until));
    }

    /// Waits until all ranks are gone.
    pub fn linger(mut self) {
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }

    fn order(&self, order: Order) {
        let _ = self.orders.send(order);
        // A full pipe wakes as well.
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
    /// No more is accepted until then.
    rest: Option<Instant>,
    /// Who has not joined by then has died.
    all_by: Option<Instant>,
}

/// A connection that has not proved itself.
struct Unproven {
    stream: TcpStream,
    until: Instant,
    received: Vec<u8>,
    /// What it said of itself, and what would prove it.
    claim: Option<(Rank, Handshake)>,
}

#[derive(Default)]
struct Place {
    member: Option<Member>,
    /// It has joined, or its process has ended before.
    taken: bool,
}

impl Place {
    /// Whether the hub is of use to this rank, or it may yet come.
    fn is_awaited(&self) -> bool {
        !self.taken || self.member.is_some()
    }
}

/// Ranks that say something together.
struct Group {
    members: Vec<Rank>,
    numbers: HashMap<Rank, usize>,
    statuses: Vec<Status>,
    /// What each gave to the round under way.
    parts: Vec<Option<Part>>,
}

#[derive(Clone, Copy, PartialEq)]
enum Status {
    There,
    Left,
    Died,
}

impl Group {
    fn new(members: Vec<Rank>) -> Self {
        let numbers = members.iter().enumerate().map(|(number, &rank)| (rank, number)).collect();
        let (statuses, parts) = (vec![Status::There; members.len()], members.iter().map(|_| None).collect());
        Group { members, numbers, statuses, parts }
    }
}

struct Part {
    len: u64,
    bytes: Vec<u8>,
}

struct Member {
    stream: TcpStream,
    from: Seal,
    to: Seal,
    received: Vec<u8>,
    unsent: Vec<u8>,
    /// To be closed when all is sent.
    leaving: bool,
}

enum Event {
    Woken,
    Caller,
    Unproven(usize),
    Rank(Rank),
}

impl Server {
    fn run(&mut self) -> io::Result<()> {
        while self.ranks.iter().any(Place::is_awaited) {
            let events = self.sleep()?;
            // From the last, as some go; and before others come.
            let ready = events.iter().rev().filter_map(|event| match event {
                Event::Unproven(number) => Some(*number),
                _ => None,
            });
            ready.for_each(|number| self.hear(number));
            for event in events {
                match event {
                    Event::Woken => while let Ok(1..) = self.woken.read(&mut [0; 64]) {},
                    Event::Caller => self.accept(),
                    Event::Unproven(_) => {}
                    Event::Rank(rank) => self.serve(rank),
                }
            }
            while let Ok(order) = self.orders.try_recv() {
                match order {
                    Order::Stop => return Ok(()),
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
        let mut watched = vec![(Event::Woken, PollFd::new(&self.woken, PollFlags::IN))];
        if self.rest.is_none() {
            watched.push((Event::Caller, PollFd::new(&self.listener, PollFlags::IN)));
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
                self.unproven.push(Unproven { stream, until, received: Vec::new(), claim: None });
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(error) => {
                tracing::warn!(%error, "no connection can be accepted for now");
                self.rest = Some(Instant::now() + REST);
            }
        }
    }

    /// Reads what a connection says; it stays, becomes a rank, or goes.
    fn hear(&mut self, number: usize) {
        let connection = &mut self.unproven[number];
        match connection.step(&self.secret, self.ranks.len()) {
            Ok(None) => {}
            Ok(Some(rank)) => {
                let connection = self.unproven.swap_remove(number);
                self.admit(rank, connection);
            }
            Err(why) => {
                let from = connection.stream.peer_addr().map_or("?".into(), |from| from.to_string());
                tracing::warn!(from, why, "a connection was sent away");
                self.unproven.swap_remove(number);
            }
        }
    }

    fn admit(&mut self, rank: Rank, connection: Unproven) {
        let Unproven { stream, received, claim: Some((_, handshake)), .. } = connection else { return };
        let [from, mut to] = handshake.seals();
        let place = &mut self.ranks[rank];
        if place.taken {
            tracing::warn!(rank, "a rank joins a second time, or after it ended; refused");
            let _ = (&stream).write(&to.seal(REFUSED, &[]));
            return;
        }
        tracing::debug!(rank, "a rank has joined the hub");
        place.member = Some(Member { stream, from, to, received, unsent: Vec::new(), leaving: false });
        place.taken = true;
        self.tell(rank, WELCOME, &[]);
        self.tell_who_is_gone(rank, ALL);
        self.take_frames(rank);
    }

    /// Reads and writes what can be.
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
                tracing::error!(rank, why, "a rank's connection is of no use any more");
                self.ranks[rank].member = None;
                self.gone_from_all(rank, Status::Died);
            }
        }
    }

    /// What a rank says, to one of its groups.
    fn take(&mut self, rank: Rank, kind: u8, body: &[u8]) -> Result<(), &'static str> {
        let nonsense = "it says what makes no sense now";
        let (id, body) = body.split_first_chunk().ok_or(nonsense)?;
        let id = u64::from_le_bytes(*id);
        if kind == FORM {
            return self.form(rank, id, body);
        }
        if kind == BYE {
            self.gone_from_all(rank, Status::Left);
            let member = self.ranks[rank].member.as_mut().ok_or(nonsense)?;
            member.leaving = true;
            let _ = member.send();
            return Ok(());
        }
        let group = self.groups.get_mut(&id).ok_or(nonsense)?;
        let number = *group.numbers.get(&rank).ok_or(nonsense)?;
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
            _ => return Err(nonsense),
        };
        if group.parts[number].replace(part).is_some() {
            return Err(nonsense);
        }
        self.hand_round(id);
        Ok(())
    }

    /// A team: each of its members says who they are, and all the same.
    fn form(&mut self, rank: Rank, id: u64, body: &[u8]) -> Result<(), &'static str> {
        let members = parse_members(body, self.ranks.len()).filter(|members| members.contains(&rank));
        let members = members.ok_or("it forms a team that cannot be")?;
        match self.groups.get(&id) {
            Some(group) if group.members != members => return Err("it forms a team otherwise than others"),
            Some(_) => {}
            None => {
                let ended = |rank: &Rank| self.ranks[*rank].taken && self.ranks[*rank].member.is_none();
                let gone: Vec<Rank> = members.iter().copied().filter(ended).collect();
                self.groups.insert(id, Group::new(members));
                gone.into_iter().for_each(|rank| self.gone(rank, id, Status::Died));
            }
        }
        self.tell_who_is_gone(rank, id);
        Ok(())
    }

    /// If all have said something, tells all of it.
    fn hand_round(&mut self, id: u64) {
        let Some(group) = self.groups.get_mut(&id).filter(|group| group.parts.iter().all(Option::is_some)) else {
            return;
        };
        let mut all = Vec::from(id.to_le_bytes());
        for part in group.parts.iter_mut().filter_map(Option::take) {
            all.extend_from_slice(&part.len.to_le_bytes());
            all.extend_from_slice(&part.bytes);
        }
        group.members.clone().into_iter().for_each(|rank| self.tell(rank, GATHERED, &all));
    }

    fn ended(&mut self, rank: Rank, well: bool) {
        // Of one that has joined its connection tells, and what it said last is read first.
        if let Some(place) = self.ranks.get_mut(rank).filter(|place| !place.taken) {
            place.taken = true;
            self.gone_from_all(rank, if well { Status::Left } else { Status::Died });
        }
    }

    fn gone_from_all(&mut self, rank: Rank, how: Status) {
        let groups: Vec<u64> = self.groups.keys().copied().collect();
        groups.into_iter().for_each(|id| self.gone(rank, id, how));
    }

    fn gone(&mut self, rank: Rank, id: u64, how: Status) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        let Some(&number) = group.numbers.get(&rank) else { return };
        if group.statuses[number] != Status::There {
            return;
        }
        group.statuses[number] = how;
        tracing::debug!(rank, team = id, died = how == Status::Died, "a rank is gone");
        let members = group.members.clone();
        if id != ALL && !group.statuses.contains(&Status::There) {
            self.groups.remove(&id);
        }
        let body = [id.to_le_bytes(), (number as u64).to_le_bytes()].concat();
        let kind = if how == Status::Died { DIED } else { LEFT };
        members.into_iter().filter(|other| *other != rank).for_each(|other| self.tell(other, kind, &body));
    }

    /// Tells one that comes later.
    fn tell_who_is_gone(&mut self, rank: Rank, id: u64) {
        let Some(group) = self.groups.get(&id) else { return };
        for (number, status) in group.statuses.clone().into_iter().enumerate() {
            let body = [id.to_le_bytes(), (number as u64).to_le_bytes()].concat();
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
            // If it cannot be reached any more, its end is seen when it is read.
            let _ = member.send();
        }
    }
}

impl Unproven {
    /// Which rank it is, once it has proved it.
    fn step(&mut self, secret: &Secret, size: usize) -> Result<Option<Rank>, &'static str> {
        let wanted = if self.claim.is_none() { HELLO } else { PROOF };
        let mut chunk = [0; HELLO];
        match self.stream.read(&mut chunk[..wanted - self.received.len()]) {
            Ok(0) => return Err("it went without proving that it knows the secret"),
            Ok(read) => self.received.extend_from_slice(&chunk[..read]),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(_) => return Err("its connection broke"),
        }
        if self.received.len() < wanted {
            return Ok(None);
        }
        let said = std::mem::take(&mut self.received);
        if let Some((rank, handshake)) = &self.claim {
            return if handshake.is_rank(&said) { Ok(Some(*rank)) } else { Err("it does not know the secret") };
        }
        let (rank, of) = wire::parse_hello(&said).ok_or("it does not speak this version's language")?;
        let rank = rank as Rank;
        if of as usize != size || rank >= size {
            return Err("it is of a job of another size");
        }
        let nonce = wire::random().map_err(|_| "the system has no random numbers")?;
        let handshake = Handshake::new(secret, &said, &nonce);
        let challenge: [u8; CHALLENGE] =
            [nonce, handshake.hub_proof()].concat().try_into().expect("a nonce and a proof");
        // Few bytes, on a connection that has carried none.
        match self.stream.write(&challenge) {
            Ok(CHALLENGE) => {}
            _ => return Err("its connection takes nothing"),
        }
        self.claim = Some((rank, handshake));
        Ok(None)
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
