//! The exchange of ranks on several hosts: a star of TCP connections around a hub, which the launcher runs, or rank 0
//! where something else starts the ranks. It carries what ranks tell each other when they make something together and
//! that one is gone; data goes through a provider.
//!
//! A connection proves that it knows the job's secret before anything else is said or believed ([`wire`]). One that
//! ends without a word of leaving was a rank that died; a host that vanishes is noticed by the system's keepalive,
//! ten seconds after its last sign, also while a rank computes or is stopped by a debugger.

mod hub;
mod wire;

pub(crate) use hub::Hub;
pub(crate) use wire::Secret;

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};
use transom_locks::{Awaited, Rank};
use transom_windows::{Exchange, FabricError};
use wire::Seal;

/// The longest message of an exchange.
const LONGEST: u64 = 1 << 24;
/// How long reaching the hub may take.
const REACH_WITHIN: Duration = Duration::from_secs(60);
/// How long after rank 0, where it holds the hub, the last may join. All know the way before the first takes it.
const JOIN_WITHIN: Duration = REACH_WITHIN.saturating_mul(2);
/// How long leaving waits for the hub to have heard of it.
const HEARD_WITHIN: Duration = Duration::from_secs(5);

// Kinds of frames to the hub.
const PART: u8 = 1;
const TOO_LONG: u8 = 2;
const LEAVE: u8 = 3;
const FAIL: u8 = 4;
const FORM: u8 = 5;
const BYE: u8 = 6;
// And from it.
const WELCOME: u8 = 17;
const GATHERED: u8 = 18;
const DIED: u8 = 19;
const LEFT: u8 = 20;
const REFUSED: u8 = 21;

/// All that is said is said in a group, whose number comes first: the job's, or a team's, which nobody can guess.
const ALL: u64 = 0;

/// Whose the hub is, and so what its end means.
pub(crate) enum HubOf {
    Launcher,
    /// Rank 0, which holds it.
    Rank0(Option<Hub>),
}

/// A rank's handle on the exchange of its job, or of a team of it. When the last clone is gone, the rank has left the
/// job or team; in a panic, it died.
#[derive(Clone)]
pub(crate) struct Tcp(Arc<Member>);

struct Member {
    group: Arc<Group>,
    line: Arc<Line>,
    /// Collectives are made by one thread at a time.
    turn: Mutex<()>,
    left: AtomicBool,
    /// Teams split from this.
    teams: Mutex<Vec<Weak<Member>>>,
}

/// The connection to the hub, which all groups share. When they are all gone, it ends.
struct Line {
    connection: Arc<Connection>,
    /// Of rank 0, where it holds one.
    hub: Mutex<Option<Hub>>,
}

struct Connection {
    rank: Rank,
    hub_of_rank_0: bool,
    to_hub: Mutex<(TcpStream, Seal)>,
    groups: Mutex<HashMap<u64, Arc<Group>>>,
    closed: AtomicBool,
    /// Its end is no news.
    leaving: AtomicBool,
}

/// What the thread that listens to the hub has heard for the job, or a team.
struct Group {
    id: u64,
    /// This rank's number in it.
    me: Rank,
    /// Their ranks in the job.
    members: Vec<Rank>,
    /// One more than the first that died.
    died: AtomicU64,
    left: Box<[AtomicBool]>,
    /// The connection has ended.
    closed: AtomicBool,
    gathered: Mutex<Option<Vec<u8>>>,
    changed: Condvar,
}

impl Tcp {
    /// Reaches the hub at one of its addresses, and joins the job.
    pub fn join(
        rank: Rank,
        size: usize,
        addresses: &[SocketAddr],
        secret: &Secret,
        hub: HubOf,
    ) -> Result<Self, FabricError> {
        let until = Instant::now() + REACH_WITHIN;
        let mut attempts = addresses.iter().cycle();
        let mut last = None;
        let (stream, [to_hub, from_hub]) = loop {
            let Some(address) = attempts.next().filter(|_| Instant::now() < until) else {
                let shown = addresses.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(", ");
                let source = last.unwrap_or_else(|| io::Error::from(io::ErrorKind::AddrNotAvailable));
                let what =
                    format!("rank {rank} cannot reach the middle of its job at {shown} (is a firewall between?)");
                return Err(FabricError::System { what, source });
            };
            match wire::greet(address, rank, size, secret) {
                Ok(greeted) => break greeted,
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    let why = format!("rank {rank} has joined this job before; each rank joins once");
                    return Err(FabricError::Misuse { why });
                }
                Err(error) => {
                    tracing::debug!(rank, %address, %error, "the hub is not reached");
                    last = Some(error);
                    // Not at full speed, when all addresses refuse.
                    std::thread::sleep(Duration::from_millis(100));
                }
            }
        };
        tracing::debug!(rank, hub = ?stream.peer_addr(), "joined the hub");
        let failed = |source| FabricError::System { what: "preparing the connection to the hub".into(), source };
        let reading = stream.try_clone().map_err(failed)?;
        let group = Arc::new(Group::new(ALL, rank, (0..size).collect()));
        let connection = Arc::new(Connection {
            rank,
            hub_of_rank_0: matches!(hub, HubOf::Rank0(_)),
            to_hub: Mutex::new((stream, to_hub)),
            groups: Mutex::new(HashMap::from([(ALL, group.clone())])),
            closed: AtomicBool::new(false),
            leaving: AtomicBool::new(false),
        });
        let listener = connection.clone();
        let listen = move || listener.listen(size, reading, from_hub);
        std::thread::Builder::new().name("transom exchange".into()).spawn(listen).map_err(failed)?;
        let hub = if let HubOf::Rank0(hub) = hub { hub } else { None };
        hub.iter().for_each(|hub| hub.all_by(Instant::now() + JOIN_WITHIN));
        let hub = Mutex::new(hub);
        Ok(Self::of(group, Arc::new(Line { connection, hub })))
    }

    fn of(group: Arc<Group>, line: Arc<Line>) -> Self {
        Tcp(Arc::new(Member {
            group,
            line,
            turn: Mutex::default(),
            left: AtomicBool::new(false),
            teams: Mutex::default(),
        }))
    }

    /// Collective: a team of those that name the same colour, numbered by `key`, then by rank; none for those that
    /// name no colour. Its collectives, numbers and errors are its own.
    #[cfg_attr(not(feature = "verbs"), allow(dead_code, reason = "for the provider between hosts"))]
    pub fn split(&self, colour: Option<u64>, key: u64) -> Result<Option<Self>, FabricError> {
        let group = &self.0.group;
        let id = wire::random().map_err(|source| FabricError::System { what: "random numbers".into(), source });
        // Everyone says something, so that nobody waits for one that cannot; the first member's is the team's number.
        let mine = id.as_ref().map_or(0, |id| u64::from_le_bytes(*id.first_chunk().expect("long enough")).max(1));
        let wish = [u64::from(colour.is_some()), colour.unwrap_or(0), key, mine];
        let wishes = self.all_gather(wish.map(u64::to_le_bytes).as_flattened())?;
        id?;
        let wish = |rank: Rank| -> [u64; 4] {
            let (numbers, _) = wishes[rank].as_chunks::<8>();
            std::array::from_fn(|at| numbers.get(at).map_or(0, |number| u64::from_le_bytes(*number)))
        };
        let Some(colour) = colour else { return Ok(None) };
        let mut members: Vec<Rank> = (0..self.size()).filter(|&rank| wish(rank)[..2] == [1, colour]).collect();
        members.sort_by_key(|&rank| (wish(rank)[2], rank));
        let id = wish(members[0])[3];
        if id == ALL {
            return Err(FabricError::GivenUp { rank: members[0] });
        }
        let me = members.iter().position(|&rank| rank == self.rank()).expect("a rank is of its own colour");
        let members: Vec<Rank> = members.into_iter().map(|rank| group.members[rank]).collect();
        let body: Vec<u8> = members.iter().flat_map(|&rank| (rank as u32).to_le_bytes()).collect();
        let (team, connection) = (Arc::new(Group::new(id, me, members)), &self.0.line.connection);
        connection.groups().insert(id, team.clone());
        connection.send(FORM, id, &body);
        if connection.closed.load(SeqCst) {
            team.close();
        }
        let team = Self::of(team, self.0.line.clone());
        self.0.teams.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(Arc::downgrade(&team.0));
        Ok(Some(team))
    }

    /// The first rank that died, as far as is known here.
    #[allow(dead_code, reason = "for the tests")]
    pub fn first_death(&self) -> Option<Rank> {
        self.0.group.first_death()
    }

    /// Leaves the job and its teams now, whoever still holds clones; in a panic, the rank has died.
    #[cfg_attr(not(feature = "verbs"), allow(dead_code, reason = "for the provider between hosts"))]
    pub fn leave(&self) {
        self.0.leave_with_teams();
    }
}

impl Connection {
    fn groups(&self) -> MutexGuard<'_, HashMap<u64, Arc<Group>>> {
        self.groups.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn listen(&self, size: usize, mut stream: TcpStream, mut from_hub: Seal) {
        // What all ranks say at once, each with its length.
        let longest = (size as u64).saturating_mul(LONGEST + 8).saturating_add(8);
        let (mut received, mut chunk) = (Vec::new(), vec![0; 64 << 10]);
        let why = loop {
            match from_hub.open(&mut received, longest) {
                Ok(Some((kind, body))) => match self.hear(kind, body) {
                    Ok(()) => continue,
                    Err(why) => break why.to_owned(),
                },
                Ok(None) => {}
                Err(why) => break why.to_owned(),
            }
            match stream.read(&mut chunk) {
                Ok(0) => break "it has ended".to_owned(),
                Ok(read) => received.extend_from_slice(&chunk[..read]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => break error.to_string(),
            }
        };
        let _ = stream.shutdown(Shutdown::Both);
        let lost = !self.leaving.load(SeqCst);
        if lost {
            tracing::warn!(rank = self.rank, why, "the connection to the middle of the job is lost");
        }
        self.closed.store(true, SeqCst);
        for group in self.groups().values() {
            if let Some(number) = group.members.iter().position(|&rank| rank == 0 && lost && self.hub_of_rank_0) {
                group.has_died(number);
            }
            group.close();
        }
    }

    fn hear(&self, kind: u8, mut body: Vec<u8>) -> Result<(), &'static str> {
        let (id, rest) = body.split_first_chunk().ok_or("it says too little")?;
        // One that this rank has left already, perhaps.
        let Some(group) = self.groups().get(&u64::from_le_bytes(*id)).cloned() else { return Ok(()) };
        let number = || {
            let number = rest.try_into().map_or(usize::MAX, |number| u64::from_le_bytes(number) as usize);
            if number < group.members.len() { Ok(number) } else { Err("it names a rank that is not there") }
        };
        match kind {
            GATHERED => {
                body.drain(..8);
                *group.gathered() = Some(body);
            }
            DIED => group.has_died(number()?),
            LEFT => group.left[number()?].store(true, SeqCst),
            _ => return Err("it says what makes no sense"),
        }
        group.change(|| ());
        Ok(())
    }

    fn send(&self, kind: u8, group: u64, body: &[u8]) {
        let mut to_hub = self.to_hub.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let (stream, seal) = &mut *to_hub;
        let frame = seal.seal(kind, &[&group.to_le_bytes()[..], body].concat());
        // An error is seen where the connection is read.
        if stream.write_all(&frame).is_err() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Group {
    fn new(id: u64, me: Rank, members: Vec<Rank>) -> Self {
        let left = members.iter().map(|_| AtomicBool::new(false)).collect();
        let (died, closed) = (AtomicU64::new(0), AtomicBool::new(false));
        Group { id, me, members, died, left, closed, gathered: Mutex::default(), changed: Condvar::new() }
    }

    fn gathered(&self) -> MutexGuard<'_, Option<Vec<u8>>> {
        self.gathered.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Wakes who waits; under the lock, so that nobody misses it.
    fn change(&self, what: impl FnOnce()) {
        let guard = self.gathered();
        what();
        drop(guard);
        self.changed.notify_all();
    }

    fn close(&self) {
        self.change(|| self.closed.store(true, SeqCst));
    }

    fn has_died(&self, rank: Rank) {
        let _ = self.died.compare_exchange(0, rank as u64 + 1, SeqCst, SeqCst);
    }

    fn first_death(&self) -> Option<Rank> {
        (self.died.load(SeqCst) as Rank).checked_sub(1)
    }

    /// Why no collective and no wait can be any more.
    fn dead(&self) -> Option<FabricError> {
        if let Some(rank) = self.first_death() {
            return Some(FabricError::PeerDied { rank });
        }
        self.closed.load(SeqCst).then(|| FabricError::System {
            what: "the launcher of the job cannot be reached any more".into(),
            source: io::ErrorKind::ConnectionAborted.into(),
        })
    }

    fn lost(&self) -> Option<FabricError> {
        let left = || self.left.iter().position(|left| left.load(SeqCst)).map(|rank| FabricError::PeerLeft { rank });
        self.dead().or_else(left)
    }
}

impl Member {
    fn leave(&self) {
        if self.left.swap(true, SeqCst) {
            return;
        }
        let connection = &self.line.connection;
        if std::thread::panicking() {
            self.group.has_died(self.group.me);
            connection.send(FAIL, self.group.id, &[]);
        } else {
            connection.send(LEAVE, self.group.id, &[]);
        }
        tracing::debug!(rank = self.group.me, "left the job");
    }

    fn leave_with_teams(&self) {
        self.leave();
        let teams = std::mem::take(&mut *self.teams.lock().unwrap_or_else(|poisoned| poisoned.into_inner()));
        teams.iter().filter_map(Weak::upgrade).for_each(|team| team.leave_with_teams());
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.leave();
        if self.group.id != ALL {
            self.line.connection.groups().remove(&self.group.id);
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        let connection = &self.connection;
        let all = connection.groups().get(&ALL).cloned().expect("the job is always there");
        let died = std::thread::panicking() || all.dead().is_some();
        connection.leaving.store(true, SeqCst);
        connection.send(BYE, ALL, &[]);
        // The hub answers by ending the connection: only then is it known to have heard.
        let until = Instant::now() + HEARD_WITHIN;
        let mut guard = all.gathered();
        while !all.closed.load(SeqCst) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            guard = all.changed.wait_timeout(guard, left).unwrap_or_else(|poisoned| poisoned.into_inner()).0;
        }
        drop(guard);
        let to_hub = connection.to_hub.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let _ = to_hub.0.shutdown(Shutdown::Both);
        drop(to_hub);
        let hub = self.hub.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
        match hub {
            // Others still want to hear of each other; of a death they have heard.
            Some(hub) if !died => hub.linger(),
            _ => {}
        }
    }
}

impl Exchange for Tcp {
    fn rank(&self) -> Rank {
        self.0.group.me
    }

    fn size(&self) -> usize {
        self.0.group.members.len()
    }

    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, FabricError> {
        let (group, connection) = (&self.0.group, &self.0.line.connection);
        let _turn = self.0.turn.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(error) = group.lost() {
            return Err(error);
        }
        match mine.len() as u64 {
            0..=LONGEST => connection.send(PART, group.id, mine),
            len => connection.send(TOO_LONG, group.id, &len.to_le_bytes()),
        }
        let mut guard = group.gathered();
        let all = loop {
            if let Some(all) = guard.take() {
                break all;
            }
            if let Some(error) = group.lost() {
                return Err(error);
            }
            guard = group.changed.wait(guard).unwrap_or_else(|poisoned| poisoned.into_inner());
        };
        drop(guard);
        parts(&all, group.members.len())
    }

    fn check_peers(&self, awaited: Awaited) -> Result<(), FabricError> {
        let group = &self.0.group;
        match (group.dead(), awaited) {
            (Some(error), _) => Err(error),
            (None, Awaited::Rank(rank)) if group.left.get(rank).is_some_and(|left| left.load(SeqCst)) => {
                Err(FabricError::PeerLeft { rank })
            }
            _ => Ok(()),
        }
    }

    fn lost(&self) -> Option<FabricError> {
        self.0.group.lost()
    }

    fn fail(&self) {
        let group = &self.0.group;
        group.has_died(group.me);
        self.0.line.connection.send(FAIL, group.id, &[]);
        group.change(|| ());
    }
}

/// The ranks of a team, each once, out of what one of them says.
fn parse_members(body: &[u8], size: usize) -> Option<Vec<Rank>> {
    let (numbers, rest) = body.as_chunks::<4>();
    let members: Vec<Rank> = numbers.iter().map(|number| u32::from_le_bytes(*number) as Rank).collect();
    let mut once = members.clone();
    once.sort_unstable();
    once.dedup();
    (rest.is_empty() && once.len() == members.len() && once.last().is_some_and(|&last| last < size)).then_some(members)
}

/// What each rank said, out of what the hub hands round.
fn parts(mut all: &[u8], size: usize) -> Result<Vec<Vec<u8>>, FabricError> {
    let corrupt = || FabricError::Corrupt { why: "the hub hands round what is not what ranks say".into() };
    let (mut parts, mut too_long) = (Vec::with_capacity(size), None);
    for rank in 0..size {
        let (len, rest) = all.split_first_chunk().ok_or_else(corrupt)?;
        let len = u64::from_le_bytes(*len);
        all = rest;
        if len > LONGEST {
            too_long = too_long.or(Some((rank, len)));
        } else {
            let (part, rest) = all.split_at_checked(len as usize).ok_or_else(corrupt)?;
            parts.push(part.to_vec());
            all = rest;
        }
    }
    match too_long {
        Some((rank, len)) => {
            let why = format!("rank {rank} announces {len} bytes to all; {LONGEST} can be exchanged at most");
            Err(FabricError::Misuse { why })
        }
        None if all.is_empty() => Ok(parts),
        None => Err(corrupt()),
    }
}

#[cfg(test)]
mod tests;
