//! What a rank has of its adapter and its peers: shared by its teams, and with the thread that connects.

use super::address::Address;
use super::elsewhere::{LaneQueue, Twins};
use super::message::Message;
use super::service;
use crate::VerbsError;
use crate::datagram::Mailbox;
use crate::endpoint::Endpoints;
use crate::memory::{Lent, Memory};
use crate::rail::Rail;
use crate::receive::Receives;
use crate::wr::{Failure, Place, Verb, Why, WorkQueue};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::{AcqRel, Acquire};
use std::sync::atomic::{AtomicU32, AtomicUsize};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};
use transom_channel::Paths;
use transom_launch::lock;
use transom_locks::Rank;
use transom_shm_loopback::messages::Turn;

/// The order of fields is that in which they are to go.
pub(crate) struct Core {
    pub me: Rank,
    pub endpoints: Endpoints<LaneQueue, Lent>,
    pub memory: Memory,
    /// What comes by messages.
    pub receives: Arc<Receives>,
    /// What takes and sends messages as datagrams, until the wire of messages has it.
    mailbox: Mutex<Option<Mailbox>>,
    /// By what messages go.
    pub paths: Paths,
    /// Whether this rank has taken part in making a window; see [`part`](Self::part).
    has_window: Mutex<bool>,
    /// The messages of this rank, which its waits turn.
    turn: OnceLock<Arc<dyn Turn>>,
    /// Of the other rails, in their order; and the number of this one.
    others: OnceLock<(usize, Box<[Weak<Core>]>)>,
    /// Where peers can be asked by this rail.
    pub(super) addresses: Arc<[Address]>,
    /// How peers' memory is named by other rails than the first.
    pub twins: Arc<Twins>,
    /// Queue pairs of this device that have said that they take nothing more.
    pub(super) ended: Mutex<HashSet<u32>>,
    /// When a peer last answered by this rail that it can be heard, where there are others.
    heard: Mutex<HashMap<Rank, Instant>>,
    /// How often the queue of a lane was retired.
    retired: AtomicU32,
    /// Whether each rank's adapter is this rank's.
    same_adapter: Box<[bool]>,
    /// Of connections that somebody here wants, or that were refused. One that there is, is a lane that is not broken.
    links: Mutex<HashMap<Rank, Link>>,
    /// Told when a connection came about, or cannot.
    changed: Condvar,
    /// None once the thread that takes them has ended.
    commands: Mutex<Option<Vec<Command>>>,
    /// Readable when there are commands.
    pub(super) wake: OwnedFd,
    /// Queue pairs to others made so far.
    pub made: AtomicUsize,
    pub rail: Rail,
}

/// Whether requests to a peer can be posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    /// Nobody here has asked for a connection.
    Absent,
    /// Somebody waits for one.
    Wanted,
    /// Both ends are connected.
    Ready,
    /// There is none, since an adapter refused: this rank's, or the peer's.
    Refused { by_peer: bool, errno: i32 },
}

/// What becomes of a connection that is wanted once the thread that connects has ended.
const NOBODY_CONNECTS: Link = Link::Refused { by_peer: false, errno: Errno::SHUTDOWN.raw_os_error() };

/// What the rank tells the thread.
#[derive(Clone, Debug)]
pub(super) enum Command {
    Connect(Rank),
    Died(Rank),
    /// The queue pair to a peer is to end, unless what messages had of it is returned already; drops this then.
    End(Rank, SyncSender<()>),
    /// A peer is to say that it can be heard.
    Probe(Rank),
    /// Of the connection to a peer by the rail of that number, to be said by this rail, too; and what was heard of this one's by another.
    Say(Rank, usize, Message),
    Heard(Rank, Message),
    /// A peer is to do an atomic, by its own adapter: the request of that number.
    Ask(Rank, u64, Verb, Place),
    Stop,
}

impl Core {
    /// Bytes of the room for a lane.
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
            (Endpoints::new(me, same_adapter.len()), Memory::new(&rail.domain, rail.register_from));
        let (links, changed, made, turn, others) = Default::default();
        let (commands, heard, retired) = (Mutex::new(Some(Vec::new())), Default::default(), Default::default());
        let (twins, ended) = Default::default();
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
            turn,
            others,
            addresses,
            twins,
            ended,
            heard,
            retired,
            same_adapter,
            links,
            changed,
            commands,
            wake,
            made,
            rail,
        })
    }

    /// Whether a rank's adapter is this rank's, so that the atomics of both are atomic towards each other.
    pub fn shares_adapter(&self, peer: Rank) -> bool {
        self.same_adapter[peer]
    }

    /// Sees to it that a connection comes about, or anew where it broke or was refused; how far it is.
    pub fn want(&self, peer: Rank) -> Link {
        let mut links = self.links();
        let link = self.link(&links, peer);
        if matches!(link, Link::Absent | Link::Refused { .. }) {
            links.insert(peer, Link::Wanted);
            drop(links);
            self.command(Command::Connect(peer));
            return self.link(&self.links(), peer);
        }
        link
    }

    /// Waits a while for a connection that is wanted; how far it is.
    pub fn await_connection(&self, peer: Rank, time: Duration) -> Link {
        let waiting = |links: &mut HashMap<Rank, Link>| self.link(links, peer) == Link::Wanted;
        let waited = self.changed.wait_timeout_while(self.links(), time, waiting);
        self.link(&waited.unwrap_or_else(PoisonError::into_inner).0, peer)
    }

    /// A lane that has ended is ready: that it did is told by operations on it.
    fn link(&self, links: &HashMap<Rank, Link>, peer: Rank) -> Link {
        match self.endpoints.lane(peer) {
            Some(lane) if !lane.is_broken() => Link::Ready,
            _ => links.get(&peer).copied().unwrap_or(Link::Absent),
        }
    }

    /// Ends the lane to a peer, if there is one: nothing that it names is touched any more. What had come by it is kept. Whether
    /// it had not ended before.
    pub fn give_up(&self, peer: Rank) -> bool {
        let Some(lane) = self.endpoints.lane(peer) else { return false };
        self.receives.settle();
        lane.give_up_queue(Failure::known(Why::Gone), |queue| {
            // By one of another rail no message comes, and its number may be that of another peer's here.
            if !queue.is_elsewhere() {
                self.receives.forget(queue.number(), true);
            }
        })
    }

    /// The job says that a peer died: its connection is gone, and there will be no other.
    pub fn died(&self, peer: Rank) {
        let is_new = self.give_up(peer);
        // Whatever failed before, it is not to be asked any more.
        if is_new || self.link(&self.links(), peer) == Link::Wanted {
            self.command(Command::Died(peer));
        }
    }

    /// Has the queue pair to a peer end: what was posted by it takes no effect any more, at neither end once the peer's has, too. What
    /// had come by it is remembered.
    pub fn end(&self, peer: Rank) {
        if service::ends_here(self, peer) {
            return;
        }
        let (tell, told) = sync_channel(1);
        self.command(Command::End(peer, tell));
        let _ = told.recv();
    }

    /// From now on others may reach windows of this rank: connections stay.
    pub fn has_window(&self) {
        *lock(&self.has_window) = true;
    }

    /// Messages use the connection to a peer no more, at both ends: ends it, if nobody else may use it. Of an atomic of a window's that
    /// was executed, and not answered, the result would be lost, and this end does not see whether there is one; all ranks of a window make
    /// it together, before any reaches it.
    pub fn part(&self, peer: Rank) {
        let has_window = lock(&self.has_window);
        let Some(lane) = self.endpoints.lane(peer).filter(|_| !*has_window) else { return };
        // The peer has taken all that came by it.
        lane.return_to_messages(true);
        self.end(peer);
        lane.return_to_messages(false);
        drop(lane.take_returned());
    }

    /// How often the queue of any lane was retired.
    pub fn retired(&self) -> u32 {
        self.retired.load(Acquire)
    }

    pub(super) fn was_retired(&self) {
        self.retired.fetch_add(1, AcqRel);
    }

    /// There are other rails, and this is the one of that number.
    pub(super) fn beside(&self, number: usize, others: Box<[Weak<Core>]>) {
        let _ = self.others.set((number, others));
    }

    pub(super) fn others(&self) -> impl Iterator<Item = Arc<Core>> {
        self.others.get().into_iter().flat_map(|(_, others)| others).filter_map(Weak::upgrade)
    }

    /// Whether this rank has several rails.
    pub(super) fn has_others(&self) -> bool {
        self.others.get().is_some_and(|(_, others)| !others.is_empty())
    }

    /// The number of this rail.
    pub(super) fn number(&self) -> Option<usize> {
        self.others.get().map(|(number, _)| *number)
    }

    /// Whether this is the first of several, whose lanes can be by the others.
    pub(super) fn can_be_elsewhere(&self) -> bool {
        self.number() == Some(0) && self.has_others()
    }

    /// The rail by which a lane of this one may be instead.
    pub(super) fn instead(&self, by: u32) -> Option<Arc<Core>> {
        self.other(by as usize).filter(|_| self.number() == Some(0))
    }

    /// The rail of a number, if it is another than this.
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

    /// Whether a peer was heard by this rail within that time.
    pub(super) fn has_heard(&self, peer: Rank, within: Duration) -> bool {
        let heard = lock(&self.heard);
        heard.get(&peer).is_some_and(|heard| heard.elapsed() <= within)
    }

    /// What takes and sends messages as datagrams, once.
    pub fn take_mailbox(&self) -> Option<Mailbox> {
        lock(&self.mailbox).take()
    }

    /// From now on whoever waits turns these.
    pub fn turn_in_waits(&self, turn: Arc<dyn Turn>) {
        let _ = self.turn.set(turn);
    }

    /// Takes what messages have come, and posts what can go. Whether there is more to do soon.
    pub fn turn(&self) -> bool {
        self.turn.get().is_some_and(|turn| turn.turn())
    }

    /// As [`turn`](Self::turn), unless another thread does it.
    pub fn turn_unless_another_does(&self) {
        if let Some(turn) = self.turn.get() {
            turn.turn_unless_another_does();
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

    pub(super) fn ask(&self, peer: Rank, number: u64, verb: Verb, to: Place) {
        self.command(Command::Ask(peer, number, verb, to));
    }

    pub(super) fn stop(&self) {
        self.command(Command::Stop);
    }

    fn command(&self, command: Command) {
        let mut commands = lock(&self.commands);
        match (commands.as_mut(), command) {
            (Some(commands), command) => commands.push(command),
            (None, Command::Connect(peer)) => self.note(peer, NOBODY_CONNECTS),
            (None, _) => {}
        }
        drop(commands);
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    pub(super) fn commands(&self) -> Vec<Command> {
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        let mut commands = lock(&self.commands);
        commands.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Nobody takes commands any more: whoever waits for what one brings about waits no more.
    pub(super) fn takes_no_more(&self) {
        lock(&self.commands).take();
        self.links().values_mut().filter(|link| **link == Link::Wanted).for_each(|link| *link = NOBODY_CONNECTS);
        self.changed.notify_all();
    }

    /// Wakes whoever waits for a connection that has become a lane, or was refused.
    pub(super) fn note(&self, peer: Rank, outcome: Link) {
        let mut links = self.links();
        match outcome {
            Link::Refused { .. } => _ = links.insert(peer, outcome),
            _ => _ = links.remove(&peer),
        }
        drop(links);
        self.changed.notify_all();
    }

    fn links(&self) -> MutexGuard<'_, HashMap<Rank, Link>> {
        lock(&self.links)
    }
}
