//! State of a rank for one rail: adapter, memory and peers. The rank's teams and its connecting thread share it.

use super::address::{Address, Destination};
use super::failover_qp::{LaneQueue, PeerKeyTable};
use super::joining::Joining;
use super::message::{Message, Moved};
use super::moves::Moves;
use super::reach;
use super::service::{self, ARRIVE_WITHIN, ASK_AFTER};
use crate::VerbsError;
use crate::datagram::Mailbox;
use crate::endpoint::Endpoints;
use crate::memory::{Lent, RegisteredMemory};
use crate::rail::Rail;
use crate::receive::Receives;
use crate::wr::{Failure, RemoteAddress, Verb, Why, WorkQueue};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};
use std::net::Ipv6Addr;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::{AcqRel, Acquire};
use std::sync::atomic::{AtomicU32, AtomicUsize};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};
use transom_channel::Paths;
use transom_launch::lock;
use transom_locks::Rank;
use transom_shm_loopback::messages::ProgressHook;

/// Fields are declared in the order in which they must be dropped.
pub(crate) struct Core {
    pub me: Rank,
    pub endpoints: Endpoints<LaneQueue, Lent>,
    /// Queue pairs that other threads are connecting.
    pub(super) joining: Joining,
    pub memory: RegisteredMemory,
    /// Receive buffers for messages on connections.
    pub receives: Arc<Receives>,
    /// The datagram mailbox for messages, until the message wire takes it.
    mailbox: Mutex<Option<Mailbox>>,
    /// Configured paths of messages.
    pub paths: Paths,
    /// This rank has taken part in creating a window; see [`part`](Self::part).
    has_window: Mutex<bool>,
    /// The progress engine of messages, which this rank's waits drive.
    hook: OnceLock<Arc<dyn ProgressHook>>,
    /// The number of this rail, and the cores of the other rails, in order.
    others: OnceLock<(usize, Box<[Weak<Core>]>)>,
    /// Connection address of each peer on this rail.
    pub(super) addresses: Arc<[Address]>,
    /// Ports that have another address than at the start: those of peers, and this rank's own.
    pub(super) moves: Moves,
    /// Keys of peers' memory on the rails after the first.
    pub twins: Arc<PeerKeyTable>,
    /// Queue pairs for which the device has reported the last WQE.
    pub(super) ended: Mutex<HashSet<u32>>,
    /// Time of each peer's last answer to a probe on this rail, if there are several rails.
    heard: Mutex<HashMap<Rank, Instant>>,
    /// Number of times that the queue of a lane was retired.
    retired: AtomicU32,
    /// True for ranks that use the same adapter as this rank.
    same_adapter: Box<[bool]>,
    /// State of connections that are wanted or were refused. An established connection is an unbroken lane instead.
    links: Mutex<HashMap<Rank, Link>>,
    /// Notified when a connection is established or refused.
    changed: Condvar,
    /// Commands for the connecting thread; `None` once that thread has ended.
    commands: Mutex<Option<Vec<Command>>>,
    /// Becomes readable when a command is queued, or a queue pair is connected.
    pub(super) wake: OwnedFd,
    /// Number of queue pairs to other ranks created so far.
    pub made: AtomicUsize,
    pub rail: Rail,
}

/// The state of a connection, as seen by an operation that needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    /// No operation of this rank has requested a connection.
    Absent,
    /// A connection is being established.
    Wanted,
    /// Both ends are connected.
    Ready,
    /// An adapter refused the connection: this rank's or the peer's.
    Refused { by_peer: bool, errno: i32 },
    /// The peer's process runs, and no datagram of the peer arrives.
    Unreached,
}

/// The error of a queue pair that does not promise the order of writes which the device promised at the start.
pub(crate) const UNORDERED: Errno = Errno::PROTO;

/// The state of a wanted connection once the connecting thread has ended.
const THREAD_ENDED: Link = Link::Refused { by_peer: false, errno: Errno::SHUTDOWN.raw_os_error() };

/// Returns whether an adapter may have refused a queue pair because it has no more.
pub(super) fn is_exhausted(errno: Errno) -> bool {
    matches!(errno, Errno::NOMEM | Errno::AGAIN | Errno::NOSPC)
}

/// A command for the connecting thread.
#[derive(Clone, Debug)]
pub(super) enum Command {
    Connect(Rank),
    Died(Rank),
    /// Retires the queue pair to a peer, unless messages have already got back what they lent to it. The sender is
    /// dropped afterwards.
    End(Rank, SyncSender<()>),
    /// Probes a peer: it answers if it receives by this rail.
    Probe(Rank),
    /// Relays a message about the connection of the rail with that number over this rail; `Heard` passes on a message
    /// about this rail's connection that arrived on another.
    Say(Rank, usize, Message),
    Heard(Rank, Message),
    /// Asks a peer to perform the atomic with that request number on its own adapter.
    Ask(Rank, u64, Verb, RemoteAddress),
    /// Tells the peers the new address of this rank's port.
    Announce,
    Stop,
}

impl Core {
    /// Bytes of a lane's seat.
    pub(super) const SEAT: usize = Endpoints::<LaneQueue, Lent>::SEAT;

    pub(super) fn new(
        me: Rank,
        rail: Rail,
        same_adapter: Box<[bool]>,
        addresses: Arc<[Address]>,
        (paths, mailbox): (Paths, Option<Mailbox>),
    ) -> Result<Self, VerbsError> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| VerbsError::system("eventfd", errno.into()))?;
        let (endpoints, memory) =
            (Endpoints::new(me, same_adapter.len()), RegisteredMemory::new(&rail.domain, rail.register_from));
        let (links, changed, made, hook, others) = Default::default();
        let (commands, heard, retired) = (Mutex::new(Some(Vec::new())), Default::default(), Default::default());
        let (twins, ended, moves, joining) = Default::default();
        let receives = Receives::new(&rail.domain);
        let (mailbox, has_window) = (Mutex::new(mailbox), Mutex::new(false));
        Ok(Core {
            me,
            endpoints,
            memory,
            receives,
            mailbox,
            paths,
            has_window,
            hook,
            others,
            addresses,
            moves,
            twins,
            ended,
            heard,
            retired,
            same_adapter,
            links,
            changed,
            commands,
            wake,
            joining,
            made,
            rail,
        })
    }

    /// Returns whether a rank uses the same adapter, so that the atomics of both ranks are atomic with respect to each
    /// other.
    pub fn shares_adapter(&self, peer: Rank) -> bool {
        self.same_adapter[peer]
    }

    /// The datagram address of a rank, with the last address of its port that is known.
    pub(super) fn destination(&self, rank: Rank) -> Destination {
        let at_start = self.addresses[rank].datagrams;
        match self.moves.last(rank) {
            Some(Moved { gid, lid, .. }) => Destination { gid, lid, ..at_start },
            None => at_start,
        }
    }

    /// Reads the address of this rank's port after a change, and has it announced if it is another one.
    pub(super) fn read_own_address(&self) {
        let Core { me: rank, rail, .. } = self;
        let before = self.destination(*rank);
        let (gid, lid) = rail.present_address((before.gid, before.lid));
        if (before.gid, before.lid) == (gid, lid) {
            return;
        }
        let number = self.moves.last(*rank).map_or(0, |moved| moved.number) + 1;
        let [old, new] = [before.gid, gid].map(Ipv6Addr::from);
        tracing::warn!(
            rank,
            device = rail.name(),
            "the port moved from LID {}, GID {old} to LID {lid}, GID {new}",
            before.lid
        );
        self.moves.record(*rank, Moved { number, gid, lid });
        self.command(Command::Announce);
    }

    /// Requests a connection, or a new one if it broke or was refused; returns its state.
    pub fn want(&self, peer: Rank) -> Link {
        let mut links = self.links();
        let link = self.link(&links, peer);
        if matches!(link, Link::Absent | Link::Refused { .. } | Link::Unreached) {
            links.insert(peer, Link::Wanted);
            drop(links);
            self.command(Command::Connect(peer));
            return self.link(&self.links(), peer);
        }
        link
    }

    /// The state of a connection, which is requested only if it is absent. Unlike [`want`](Self::want) it reports why an
    /// earlier request was refused.
    pub fn wanted(&self, peer: Rank) -> Link {
        let link = self.link(&self.links(), peer);
        if link == Link::Absent { self.want(peer) } else { link }
    }

    /// Waits up to `time` for a wanted connection; returns its state.
    pub fn await_connection(&self, peer: Rank, time: Duration) -> Link {
        let waiting = |links: &mut HashMap<Rank, Link>| self.link(links, peer) == Link::Wanted;
        let waited = self.changed.wait_timeout_while(self.links(), time, waiting);
        self.link(&waited.unwrap_or_else(PoisonError::into_inner).0, peer)
    }

    /// A lane that has failed counts as ready: operations on it report the failure.
    fn link(&self, links: &HashMap<Rank, Link>, peer: Rank) -> Link {
        match self.endpoints.lane(peer) {
            Some(lane) if !lane.is_broken() => Link::Ready,
            _ => links.get(&peer).copied().unwrap_or(Link::Absent),
        }
    }

    /// Ends the lane to a peer, if there is one: afterwards the adapter touches no memory that its requests name.
    /// Messages already received are kept. Returns whether the lane had not ended before.
    pub fn give_up(&self, peer: Rank) -> bool {
        let Some(lane) = self.endpoints.lane(peer) else { return false };
        self.receives.settle();
        lane.give_up_queue(Failure::known(Why::Gone), |queue| {
            // A failover queue pair carries no messages, and its number may equal that of another peer's queue pair on
            // this rail.
            if !queue.is_failover() {
                self.receives.forget(queue.number(), true);
            }
        })
    }

    /// Handles a peer's death as reported by the job: its connection ends, and no other is made.
    pub fn died(&self, peer: Rank) {
        let is_new = self.give_up(peer);
        // A peer that failed earlier must not be asked again.
        if is_new || self.link(&self.links(), peer) == Link::Wanted {
            self.command(Command::Died(peer));
        }
    }

    /// Retires the queue pair to a peer: requests posted to it take no further effect, at either end once the peer has
    /// retired its own. The received position is recorded.
    pub fn end(&self, peer: Rank) {
        if service::ends_here(self, peer) {
            return;
        }
        let (tell, told) = sync_channel(1);
        self.command(Command::End(peer, tell));
        let _ = told.recv();
    }

    /// Records that peers may reach windows of this rank, so that connections stay.
    pub fn has_window(&self) {
        *lock(&self.has_window) = true;
    }

    /// Ends the connection to a peer that messages no longer use at either end, unless a window may use it. An executed
    /// but unanswered atomic of a window would lose its result, which this end cannot detect. All ranks of a window
    /// create it together, before any of them uses it.
    pub fn part(&self, peer: Rank) {
        let has_window = lock(&self.has_window);
        let Some(lane) = self.endpoints.lane(peer).filter(|_| !*has_window) else { return };
        // The peer has received every message sent on the connection.
        lane.return_to_messages(true);
        self.end(peer);
        lane.return_to_messages(false);
        drop(lane.take_returned());
    }

    /// Number of times that the queue of any lane was retired.
    pub fn retired(&self) -> u32 {
        self.retired.load(Acquire)
    }

    pub(super) fn was_retired(&self) {
        self.retired.fetch_add(1, AcqRel);
    }

    /// Sets the number of this rail and the cores of the others.
    pub(super) fn beside(&self, number: usize, others: Box<[Weak<Core>]>) {
        let _ = self.others.set((number, others));
    }

    pub(super) fn others(&self) -> impl Iterator<Item = Arc<Core>> {
        self.others.get().into_iter().flat_map(|(_, others)| others).filter_map(Weak::upgrade)
    }

    /// Returns whether this rank has several rails.
    pub(super) fn has_others(&self) -> bool {
        self.others.get().is_some_and(|(_, others)| !others.is_empty())
    }

    /// The number of this rail.
    pub(super) fn number(&self) -> Option<usize> {
        self.others.get().map(|(number, _)| *number)
    }

    /// Returns whether this is the first of several rails, whose lanes can fail over to the others.
    pub(super) fn can_fail_over(&self) -> bool {
        self.number() == Some(0) && self.has_others()
    }

    /// The rail to which a lane of this rail can fail over.
    pub(super) fn instead(&self, by: u32) -> Option<Arc<Core>> {
        self.other(by as usize).filter(|_| self.number() == Some(0))
    }

    /// The rail with that number, unless it is this one.
    pub(super) fn other(&self, number: usize) -> Option<Arc<Core>> {
        let (mine, others) = self.others.get()?;
        let behind = match number.cmp(mine) {
            Ordering::Less => 0,
            Ordering::Equal => return None,
            Ordering::Greater => 1,
        };
        others.get(number - behind)?.upgrade()
    }

    pub(super) fn hears(&self, peer: Rank) {
        lock(&self.heard).insert(peer, Instant::now());
    }

    /// Returns whether a peer answered a probe on this rail within that time.
    pub(super) fn has_heard(&self, peer: Rank, within: Duration) -> bool {
        let heard = lock(&self.heard);
        heard.get(&peer).is_some_and(|heard| heard.elapsed() <= within)
    }

    /// Takes the datagram mailbox for messages; `None` after the first call.
    pub fn take_mailbox(&self) -> Option<Mailbox> {
        lock(&self.mailbox).take()
    }

    /// Registers the progress engine that waits drive from now on.
    pub fn progress_in_waits(&self, hook: Arc<dyn ProgressHook>) {
        let _ = self.hook.set(hook);
    }

    /// Progresses messages; returns whether more work is due soon.
    pub fn progress(&self) -> bool {
        self.hook.get().is_some_and(|hook| hook.progress())
    }

    /// Like [`progress`](Self::progress), but does nothing if another thread is progressing messages.
    pub fn try_progress(&self) {
        if let Some(hook) = self.hook.get() {
            hook.try_progress();
        }
    }

    pub(super) fn probe(&self, peer: Rank) {
        self.command(Command::Probe(peer));
    }

    pub(super) fn say(&self, peer: Rank, of: usize, message: Message) {
        self.command(Command::Say(peer, of, message));
    }

    pub(super) fn heard(&self, peer: Rank, message: Message) {
        self.command(Command::Heard(peer, message));
    }

    pub(super) fn ask(&self, peer: Rank, number: u64, verb: Verb, to: RemoteAddress) {
        self.command(Command::Ask(peer, number, verb, to));
    }

    pub(super) fn stop(&self) {
        self.command(Command::Stop);
    }

    fn command(&self, command: Command) {
        let mut commands = lock(&self.commands);
        match (commands.as_mut(), command) {
            (Some(commands), command) => commands.push(command),
            (None, Command::Connect(peer)) => self.note(peer, THREAD_ENDED),
            (None, _) => {}
        }
        drop(commands);
        self.wake();
    }

    /// Wakes the connecting thread.
    pub(super) fn wake(&self) {
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    pub(super) fn commands(&self) -> Vec<Command> {
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        let mut commands = lock(&self.commands);
        commands.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Stops accepting commands, and wakes every wait for a connection.
    pub(super) fn close_commands(&self) {
        lock(&self.commands).take();
        self.links().values_mut().filter(|link| **link == Link::Wanted).for_each(|link| *link = THREAD_ENDED);
        self.changed.notify_all();
    }

    /// Describes the ports between which no datagram arrives, and what to check.
    pub fn unreached(&self, peer: Rank) -> String {
        let ports = [self.me, peer].map(|rank| self.destination(rank));
        reach::silence(peer, ASK_AFTER + ARRIVE_WITHIN, self.rail.link(), self.rail.pkey(), ports)
    }

    /// Describes a refused connection between two ranks, this one first.
    pub fn refusal(&self, [me, rank]: [Rank; 2], by_peer: bool, errno: i32) -> (String, std::io::Error) {
        let system = std::io::Error::from_raw_os_error(errno);
        let exhausted = is_exhausted(Errno::from_raw_os_error(errno));
        let whose = if by_peer { rank } else { me };
        let device = if by_peer { "the RDMA device" } else { self.rail.name() };
        let what = format!("rank {me} cannot connect to rank {rank}: {device} of rank {whose} refused");
        if !exhausted {
            return (what, system);
        }
        let count = self.endpoints.all().filter(|(_, lane)| lane.has_queue()).count();
        let (most, limit) = (self.rail.most_queue_pairs(), self.rail.most_connections);
        let why = format!(
            "{system}. It may have no more queue pairs. Rank {me} has {count} on {}, which reports at most {most} for all \
             processes. Start fewer ranks on a host, lower TRANSOM_VERBS_CONNECTIONS (here {limit}) so that idle connections \
             are given up earlier, or set TRANSOM_MESSAGES=paths=ud, so that messages need no connections",
            self.rail.name()
        );
        (what, std::io::Error::new(system.kind(), why))
    }

    /// Records an outcome and wakes the waits for the connection.
    pub(super) fn note(&self, peer: Rank, outcome: Link) {
        let mut links = self.links();
        match outcome {
            Link::Refused { .. } | Link::Unreached => _ = links.insert(peer, outcome),
            _ => _ = links.remove(&peer),
        }
        drop(links);
        self.changed.notify_all();
    }

    fn links(&self) -> MutexGuard<'_, HashMap<Rank, Link>> {
        lock(&self.links)
    }
}
