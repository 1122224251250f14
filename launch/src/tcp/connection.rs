//! A rank's connection to the hub, shared by all its groups, and the state that its reading thread has received.

use super::frames::{ASK, GATHERED, GONE, JOB, LONGEST, MemberState, RUNS, body_of_members, parse_gone, parse_members};
use super::silence::{self, Silence};
use super::wire::{Body, Frame, Opener, Sealer};
use crate::lock::lock;
use std::collections::{BTreeSet, HashMap};
use std::io::{self, Read};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};
use transom_locks::{Awaited, Rank};
use transom_shm_loopback::messages::ProgressHook;
use transom_windows::{FabricError, Wait};

/// Longest sleep without news, after which the wait checks whether to warn that it is slow.
const SLEEP: Duration = Duration::from_millis(100);
/// Longest sleep of a rank whose waits progress messages, which wake no thread.
const SLEEP_BRIEFLY: Duration = Duration::from_millis(1);

pub(super) struct Connection {
    pub rank: Rank,
    /// Rank 0 runs the hub, so the end of the connection means that rank 0 died.
    hub_at_rank_0: bool,
    to_hub: Mutex<(TcpStream, Sealer)>,
    /// Second handle of the same connection, to close it without taking `to_hub`.
    closing: TcpStream,
    groups: Mutex<HashMap<u64, Arc<Group>>>,
    closed: AtomicBool,
    /// This rank has announced that it leaves, so the connection may end.
    leaving: AtomicBool,
    /// Ranks that have answered that their process runs, and when.
    running: Mutex<HashMap<Rank, Instant>>,
    asking: Mutex<Asking>,
    /// The rank's messages, once its waits progress them: another rank may need them before it takes part in a round.
    pub progress: OnceLock<Arc<dyn ProgressHook>>,
}

/// Ranks that have asked whether this process runs, and have no answer yet.
#[derive(Default)]
struct Asking {
    ranks: BTreeSet<Rank>,
    /// A thread sends the answers. The reading thread sends none: it would read nothing while the hub accepts nothing.
    has_thread: bool,
}

/// The job, or a team of it.
pub(super) struct Group {
    pub id: u64,
    /// This rank's index in the group.
    pub me: Rank,
    /// Job rank of each member.
    pub members: Vec<Rank>,
    /// One more than the index of the first member that died; 0 if none has.
    died: AtomicU64,
    /// A [`MemberState`] per member.
    states: Box<[AtomicU8]>,
    /// The connection has ended.
    closed: AtomicBool,
    /// Body of a completed round, until a caller takes it.
    gathered: Mutex<Option<Vec<u8>>>,
    changed: Condvar,
}

impl Connection {
    /// Starts the connection of a rank that has joined, and the thread that reads it.
    pub fn start(
        rank: Rank,
        size: usize,
        hub_at_rank_0: bool,
        stream: TcpStream,
        to_hub: Sealer,
        from_hub: Opener,
    ) -> io::Result<Arc<Self>> {
        let reading = stream.try_clone()?;
        reading.set_read_timeout(Some(silence::LOOK))?;
        let job = Arc::new(Group::new(JOB, rank, (0..size).collect()));
        let connection = Arc::new(Connection {
            rank,
            hub_at_rank_0,
            closing: stream.try_clone()?,
            to_hub: Mutex::new((stream, to_hub)),
            groups: Mutex::new(HashMap::from([(JOB, job)])),
            closed: AtomicBool::new(false),
            leaving: AtomicBool::new(false),
            running: Mutex::default(),
            asking: Mutex::default(),
            progress: OnceLock::new(),
        });
        let listener = connection.clone();
        let listen = move || listener.listen(size, reading, from_hub);
        std::thread::Builder::new().name("transom exchange".into()).spawn(listen)?;
        Ok(connection)
    }

    fn groups(&self) -> MutexGuard<'_, HashMap<u64, Arc<Group>>> {
        lock(&self.groups)
    }

    /// The group of all ranks.
    pub fn job(&self) -> Arc<Group> {
        self.groups().get(&JOB).cloned().expect("the job's group lives as long as its connection")
    }

    pub fn add(&self, group: Arc<Group>) {
        self.groups().insert(group.id, group.clone());
        if self.closed.load(SeqCst) {
            group.close();
        }
    }

    pub fn remove(&self, group: &Group) {
        if group.id != JOB {
            self.groups().remove(&group.id);
        }
    }

    /// Asks a rank of the job whether its process runs.
    pub fn ask_whether_running(&self, rank: Rank) {
        self.send(ASK, JOB, &body_of_members(&[rank]));
    }

    /// The time at which a rank last answered that its process runs.
    pub fn seen_running(&self, rank: Rank) -> Option<Instant> {
        lock(&self.running).get(&rank).copied()
    }

    /// Answers that this process runs, soon.
    fn answer(self: &Arc<Self>, to: Rank) {
        let mut asking = lock(&self.asking);
        asking.ranks.insert(to);
        if std::mem::replace(&mut asking.has_thread, true) {
            return;
        }
        drop(asking);
        let connection = self.clone();
        let started =
            std::thread::Builder::new().name("transom answers".into()).spawn(move || connection.send_answers());
        if let Err(error) = started {
            tracing::warn!(%error, "no thread to answer a rank; answering in the reading thread");
            self.send_answers();
        }
    }

    fn send_answers(&self) {
        loop {
            let mut asking = lock(&self.asking);
            let Some(rank) = asking.ranks.pop_first() else {
                asking.has_thread = false;
                return;
            };
            drop(asking);
            self.send(RUNS, JOB, &body_of_members(&[rank]));
        }
    }

    pub fn send(&self, kind: u8, group: u64, body: &[u8]) {
        let body = Body::new(body.to_vec());
        let mut to_hub = lock(&self.to_hub);
        let (stream, sealer) = &mut *to_hub;
        // The reading thread detects the error and reports it.
        if body.and_then(|body| sealer.frame(kind, group, &body).write_to(stream)).is_err() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Sends the last frame, waits until the hub closes the connection, which acknowledges the frame, and closes it.
    /// Waits for `patience` at most.
    pub fn end(&self, kind: u8, patience: Duration) {
        self.leaving.store(true, SeqCst);
        self.send(kind, JOB, &[]);
        let (job, until) = (self.job(), Instant::now() + patience);
        let mut guard = job.gathered();
        while !job.closed.load(SeqCst) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            guard = job.changed.wait_timeout(guard, left).unwrap_or_else(|poisoned| poisoned.into_inner()).0;
        }
        drop(guard);
        self.shut_down();
    }

    /// Closes the connection, even while another thread is blocked in a send.
    pub fn shut_down(&self) {
        let _ = self.closing.shutdown(Shutdown::Both);
    }

    fn listen(self: &Arc<Self>, size: usize, mut stream: TcpStream, mut from_hub: Opener) {
        // Longest possible body: a round, with each rank's message and length.
        let longest = (size as u64).saturating_mul(LONGEST + 8);
        let (mut chunk, mut silence) = (vec![0; 64 << 10], Silence::default());
        let why = loop {
            match from_hub.next(longest) {
                Ok(Some(frame)) => match self.hear(frame) {
                    Ok(()) => continue,
                    Err(why) => break why.to_owned(),
                },
                Ok(None) => {}
                Err(why) => break why.to_owned(),
            }
            match stream.read(&mut chunk) {
                Ok(0) => break "the hub closed it, or the agent of this host".to_owned(),
                Ok(read) => from_hub.take_in(&chunk[..read]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if silence.is_final(&stream) {
                        break "the hub's host does not answer".to_owned();
                    }
                }
                Err(error) => break error.to_string(),
            }
        };
        let _ = stream.shutdown(Shutdown::Both);
        let lost = !self.leaving.load(SeqCst);
        if lost {
            tracing::warn!(rank = self.rank, why, "the connection to the hub of the job is lost");
        }
        self.closed.store(true, SeqCst);
        for group in self.groups().values() {
            if let Some(number) = group.members.iter().position(|&rank| rank == 0 && lost && self.hub_at_rank_0) {
                group.has_died(number);
            }
            group.close();
        }
    }

    fn hear(self: &Arc<Self>, Frame { kind, group, body }: Frame) -> Result<(), &'static str> {
        if kind == ASK || kind == RUNS {
            let from = parse_members(&body, self.job().members.len());
            let Some(&[from]) = from.as_deref() else { return Err("a frame names a rank outside the job") };
            match kind {
                ASK => self.answer(from),
                _ => _ = lock(&self.running).insert(from, Instant::now()),
            }
            return Ok(());
        }
        // An unknown group is one that this rank has left.
        let Some(group) = self.groups().get(&group).cloned() else { return Ok(()) };
        match kind {
            GATHERED => *group.gathered() = Some(body),
            GONE => {
                let gone = parse_gone(&body, group.members.len());
                let gone = gone.ok_or("a GONE frame names a rank outside its group")?;
                gone.into_iter()
                    .filter(|(member, _)| *member != group.me)
                    .for_each(|(member, how)| group.is(member, how));
            }
            _ => return Err("the hub sent a frame of an unknown kind"),
        }
        group.change(|| ());
        Ok(())
    }
}

impl Group {
    pub fn new(id: u64, me: Rank, members: Vec<Rank>) -> Self {
        let states = members.iter().map(|_| AtomicU8::new(MemberState::There as u8)).collect();
        let (died, closed) = (AtomicU64::new(0), AtomicBool::new(false));
        Group { id, me, members, died, states, closed, gathered: Mutex::default(), changed: Condvar::new() }
    }

    fn gathered(&self) -> MutexGuard<'_, Option<Vec<u8>>> {
        lock(&self.gathered)
    }

    /// Waits until the current round is complete, and takes its body. Progresses `messages` meanwhile.
    pub fn wait_for_round(&self, messages: Option<&dyn ProgressHook>) -> Result<Vec<u8>, FabricError> {
        let progress = || messages.inspect(|messages| messages.try_progress());
        let longest = if messages.is_some() { SLEEP_BRIEFLY } else { SLEEP };
        let found = |gathered: &mut Option<Vec<u8>>| match gathered.take() {
            Some(round) => Ok(Some(round)),
            None => self.lost().map_or(Ok(None), Err),
        };
        // Only the hub knows which rank is late.
        let call = &"a collective call (creating a window, value or team)";
        let wait = Wait { rank: self.me, call, awaited: Awaited::Anyone, deadline: None };
        // The hub is on another host: an answer never comes soon enough to spin for it.
        let crowded = true;
        wait.until(
            crowded,
            || {
                progress();
                found(&mut self.gathered())
            },
            || Ok(()),
            |_| {
                progress();
                let mut gathered = self.gathered();
                if let Some(round) = found(&mut gathered)? {
                    return Ok(Some(round));
                }
                let woken = self.changed.wait_timeout(gathered, longest);
                found(&mut woken.unwrap_or_else(|poisoned| poisoned.into_inner()).0)
            },
        )
    }

    /// Makes a change and wakes waiting threads. The lock is held during the change, so that no waiter misses it.
    pub fn change(&self, what: impl FnOnce()) {
        let guard = self.gathered();
        what();
        drop(guard);
        self.changed.notify_all();
    }

    fn close(&self) {
        self.change(|| self.closed.store(true, SeqCst));
    }

    pub fn has_died(&self, member: Rank) {
        self.is(member, MemberState::Died);
    }

    fn is(&self, member: Rank, state: MemberState) {
        self.states[member].store(state as u8, SeqCst);
        if state == MemberState::Died {
            let _ = self.died.compare_exchange(0, member as u64 + 1, SeqCst, SeqCst);
        }
    }

    pub fn state(&self, member: Rank) -> Option<MemberState> {
        MemberState::from_byte(self.states.get(member)?.load(SeqCst))
    }

    pub fn first_death(&self) -> Option<Rank> {
        (self.died.load(SeqCst) as Rank).checked_sub(1)
    }

    pub fn has_left(&self, member: Rank) -> bool {
        self.state(member) == Some(MemberState::Left)
    }

    /// The error with which every blocking call fails from now on, if any.
    pub fn dead(&self) -> Option<FabricError> {
        if let Some(rank) = self.first_death() {
            return Some(FabricError::PeerDied { rank });
        }
        self.closed.load(SeqCst).then(|| FabricError::System {
            what: "the connection to the launcher's hub is lost".into(),
            source: io::ErrorKind::ConnectionAborted.into(),
        })
    }

    /// The error with which every collective call fails from now on, if any.
    pub fn lost(&self) -> Option<FabricError> {
        let left = || (0..self.members.len()).find(|&rank| self.has_left(rank));
        self.dead().or_else(|| left().map(|rank| FabricError::PeerLeft { rank }))
    }
}
