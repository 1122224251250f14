//! A rank's handle of the exchange through the hub.

use super::connection::{Connection, Group};
use super::contact::{Contact, REACH_WITHIN};
use super::frames::{
    BYE, FAIL, FORM, HOST, JOB, LEAVE, LONGEST, MemberState, PART, PART_OF_HOST, TOO_LONG, body_of_members,
    parse_any_parts, parse_parts,
};
use super::hub::Hub;
use super::wire::{Answer, Hello};
use crate::lock::lock;
use crate::process::ProcessId;
use crate::random;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};
use transom_locks::{Awaited, Rank};
use transom_shm_loopback::messages::ProgressHook;
use transom_shm_loopback::{Loopback, Meet, Relay};
use transom_windows::{FabricError, OobExchange};

/// Longest time after which a rank may join when rank 0, which runs the hub, has joined. All ranks know the contact
/// before the first joins.
const JOIN_WITHIN: Duration = REACH_WITHIN.saturating_mul(2);
/// Longest wait for the hub to acknowledge that this rank leaves.
const HEARD_WITHIN: Duration = Duration::from_secs(5);

/// Location of the hub.
pub(crate) enum HubAt {
    Launcher,
    /// Rank 0 runs the hub; `Some` at rank 0.
    Rank0(Option<Hub>),
}

/// A rank's handle of the exchange of its job, or of a team of it.
///
/// The rank leaves the job or team when the last clone is dropped; during a panic, it dies instead.
#[derive(Clone)]
pub struct Tcp(Arc<Member>);

struct Member {
    group: Arc<Group>,
    line: Arc<Line>,
    /// Serialises collective calls of several threads.
    turn: Mutex<()>,
    left: AtomicBool,
    /// The way of complete rounds to the ranks of this host, once they share memory; and the group's number of the rank
    /// that gets rounds from the hub.
    relay: OnceLock<(Relay, Rank)>,
    /// Teams split from this group.
    teams: Mutex<Vec<Weak<Member>>>,
}

/// The connection to the hub; it ends when the handles of all groups have dropped it.
struct Line {
    connection: Arc<Connection>,
    /// The hub, at rank 0 if that runs it.
    hub: Mutex<Option<Hub>>,
}

/// An error of joining a job through its hub.
#[derive(Debug)]
pub(crate) enum JoinError {
    /// This process joined as the rank before.
    Taken(ProcessId),
    /// The rank's process ended before it joined.
    Ended,
    Fabric(FabricError),
}

impl From<FabricError> for JoinError {
    fn from(error: FabricError) -> Self {
        JoinError::Fabric(error)
    }
}

impl Tcp {
    /// Connects to the hub at one of its addresses, and joins the job as `rank`, whose process is `process`.
    pub(crate) fn join(
        rank: Rank,
        size: usize,
        process: ProcessId,
        contact: &Contact,
        hub: HubAt,
    ) -> Result<Self, JoinError> {
        let (stream, to_hub, from_hub) = match contact.reach(Hello { rank, size, process }) {
            Ok(Answer::Welcome(stream, to_hub, from_hub)) => (stream, to_hub, from_hub),
            Ok(Answer::Refused(process)) if process == ProcessId::default() => return Err(JoinError::Ended),
            Ok(Answer::Refused(process)) => return Err(JoinError::Taken(process)),
            Err(source) => {
                let shown = contact.addresses.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(", ");
                let via =
                    contact.via.map(|via| format!("through the agent of its host at {via}, nor ")).unwrap_or_default();
                let what = format!(
                    "rank {rank} cannot reach the hub of its job {via}at {shown}; does a firewall block the connection, or has the job \
                     ended?"
                );
                return Err(FabricError::System { what, source }.into());
            }
        };
        tracing::debug!(rank, hub = ?stream.peer_addr(), "joined the hub");
        let connection = Connection::start(rank, size, matches!(hub, HubAt::Rank0(_)), stream, to_hub, from_hub)
            .map_err(|source| FabricError::System { what: "preparing the connection to the hub".into(), source })?;
        let hub = if let HubAt::Rank0(hub) = hub { hub } else { None };
        hub.iter().for_each(|hub| hub.all_by(Instant::now() + JOIN_WITHIN));
        let (group, hub) = (connection.job(), Mutex::new(hub));
        Ok(Self::of(group, Arc::new(Line { connection, hub })))
    }

    fn of(group: Arc<Group>, line: Arc<Line>) -> Self {
        Tcp(Arc::new(Member {
            group,
            line,
            turn: Mutex::default(),
            left: AtomicBool::new(false),
            relay: OnceLock::new(),
            teams: Mutex::default(),
        }))
    }

    /// Makes a team of these ranks, in this order, which include the calling rank. All members call it; other ranks
    /// need not. `meet` is called once, and returns what each member passes to all members.
    pub fn team(&self, members: &[Rank], meet: &mut Meet<'_>) -> Result<Self, FabricError> {
        let id = random::<8>();
        let said = meet(id.as_ref().map_or(&[], |id| id))?;
        id.map_err(no_numbers)?;
        let first = said.first().and_then(|said| Some(u64::from_le_bytes(said[..].try_into().ok()?)));
        Ok(self.form(first.ok_or(FabricError::GivenUp { rank: members[0] })?.max(1), members))
    }

    fn form(&self, id: u64, members: &[Rank]) -> Self {
        let me = members.iter().position(|&rank| rank == self.rank()).expect("a team includes this rank");
        let members: Vec<Rank> = members.iter().map(|&rank| self.0.group.members[rank]).collect();
        let body = body_of_members(&members);
        let (team, connection) = (Arc::new(Group::new(id, me, members)), &self.0.line.connection);
        connection.add(team.clone());
        connection.send(FORM, id, &body);
        let team = Self::of(team, self.0.line.clone());
        let mut known = lock(&self.0.teams);
        known.retain(|team| team.strong_count() > 0);
        known.push(Arc::downgrade(&team.0));
        team
    }

    /// Tells the hub the identity of this rank's host. Called before the first exchange.
    pub(crate) fn tell_host(&self, identity: &str) {
        self.0.line.connection.send(HOST, JOB, identity.as_bytes());
    }

    /// [`all_gather`](OobExchange::all_gather) among the ranks of this host, in the order of the group. All ranks of
    /// the group call it.
    pub(crate) fn all_gather_on_host(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, FabricError> {
        let _turn = lock(&self.0.turn);
        parse_any_parts(&self.0.round(PART_OF_HOST, mine)?)
    }

    /// Lets the first rank of each host pass the result of each exchange on to the others, in memory that these share.
    /// The hub does not send it to them, once all ranks have told their hosts. All ranks of the group call it between
    /// two exchanges. `first` is the number of `memory`'s rank 0 in the group.
    ///
    /// # Errors
    /// Errors of [`Relay::open`].
    pub fn pass_on_through(&self, memory: &Loopback, first: Rank) -> Result<(), FabricError> {
        if memory.size() > 1 {
            let _ = self.0.relay.set((Relay::open(memory)?, first));
        }
        Ok(())
    }

    /// Leaves the job and its teams now, even while clones exist; during a panic, the rank dies instead.
    pub fn leave(&self) {
        self.0.leave_with_teams();
    }

    /// Makes the waits of this rank's exchanges call `hook`, which progresses its messages.
    pub fn progress_in_waits(&self, hook: Arc<dyn ProgressHook>) {
        let _ = self.0.line.connection.progress.set(hook);
    }

    /// Returns whether a rank has left.
    pub fn has_left(&self, rank: Rank) -> bool {
        self.0.group.has_left(rank)
    }

    /// Asks whether the process of a rank runs. [`seen_running`](Self::seen_running) returns the answer.
    pub fn ask_whether_running(&self, rank: Rank) {
        self.0.line.connection.ask_whether_running(self.0.group.members[rank]);
    }

    /// The time at which a rank last answered that its process runs.
    pub fn seen_running(&self, rank: Rank) -> Option<Instant> {
        self.0.line.connection.seen_running(self.0.group.members[rank])
    }

    #[cfg(test)]
    pub(crate) fn first_death(&self) -> Option<Rank> {
        self.0.group.first_death()
    }

    /// Ends the connection without announcing it, as the end of the process does.
    #[cfg(test)]
    pub(crate) fn cut(&self) {
        self.0.line.connection.shut_down();
    }

    /// Makes the hub at this rank give up ranks that have not joined by then.
    #[cfg(test)]
    pub fn all_by(&self, until: Instant) {
        self.0.line.hub.lock().unwrap().as_ref().unwrap().all_by(until);
    }
}

fn no_numbers(source: io::Error) -> FabricError {
    FabricError::System { what: "drawing the number of a team".into(), source }
}

impl Member {
    /// Takes part in a round, and returns what the hub sends.
    fn round(&self, kind: u8, mine: &[u8]) -> Result<Vec<u8>, FabricError> {
        let (group, connection) = (&self.group, &self.line.connection);
        if let Some(error) = group.lost() {
            return Err(error);
        }
        match mine.len() as u64 {
            0..=LONGEST => connection.send(kind, group.id, mine),
            len => connection.send(TOO_LONG, group.id, &len.to_le_bytes()),
        }
        group.wait_for_round(connection.progress.get().map(|hook| &**hook))
    }

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
        let teams = std::mem::take(&mut *lock(&self.teams));
        teams.iter().filter_map(Weak::upgrade).for_each(|team| team.leave_with_teams());
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.leave();
        self.line.connection.remove(&self.group);
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        let died = std::thread::panicking() || self.connection.job().dead().is_some();
        self.connection.end(BYE, HEARD_WITHIN);
        let hub = lock(&self.hub).take();
        match hub {
            // The other ranks still need the hub, unless a death was reported to all of them.
            Some(hub) if !died => hub.linger(),
            _ => {}
        }
    }
}

impl OobExchange for Tcp {
    fn rank(&self) -> Rank {
        self.0.group.me
    }

    fn size(&self) -> usize {
        self.0.group.members.len()
    }

    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, FabricError> {
        let group = &self.0.group;
        let _turn = lock(&self.0.turn);
        let round = self.0.round(PART, mine)?;
        // A rank that leaves has all it needs of this round; the others may not have it yet.
        let check = || group.dead().map_or(Ok(()), Err);
        let round = match self.0.relay.get() {
            None => round,
            Some((relay, _)) if relay.is_sender() => relay.send(&round, group.me, check).map(|()| round)?,
            Some((relay, first)) => relay.receive(group.me, *first, check)?,
        };
        parse_parts(&round, group.members.len())
    }

    fn check_peers(&self, awaited: Awaited) -> Result<(), FabricError> {
        let group = &self.0.group;
        // Any death ends a wait. The death of the awaited rank is reported first.
        if let Awaited::Rank(rank) | Awaited::Behind(rank) = awaited
            && group.state(rank) == Some(MemberState::Died)
        {
            return Err(FabricError::PeerDied { rank });
        }
        if let Some(error) = group.dead() {
            return Err(error);
        }
        let gone = awaited.gone(group.me, self.size(), |rank| group.has_left(rank));
        gone.map_or(Ok(()), |rank| Err(FabricError::PeerLeft { rank }))
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
