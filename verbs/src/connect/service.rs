//! The connecting thread. It alone drives the machines, and creates and destroys queue pairs, without holding a lock.
//! [Other threads](super::joining) connect them where that may take long. Connections to different peers therefore do not
//! wait for each other, and the rank's operations wait for none.

use super::atomics::{Asking, Served, Serving};
use super::core::{Command, Core, Link, is_exhausted};
use super::idle::Usage;
use super::joining::Joined;
use super::listen::listen;
use super::machine::{Backoff, ConnectionState, Effects, Machine, Reason};
use super::message::{MESSAGE, Message};
use super::pair::{Doing, Made, Pair, UNHEARD, heed, say};
use super::timeout_backoff::TimeoutBackoff;
use crate::datagram::Post;
use crate::progress;
use crate::sys::CompletionQueue;
use crate::wr::{Failure, Why};
use rustix::event::Timespec;
use rustix::io::Errno;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::fd::AsFd;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use transom_channel::Paths;
use transom_locks::Rank;
use transom_network::Bootstrap;

/// Fields are declared in the order in which they must be dropped.
pub(super) struct Connector {
    /// Connections to peers that were needed at least once; a record of fixed size each.
    pub(super) connections: HashMap<Rank, Connection>,
    /// Times at which requests to peers are repeated.
    due: BTreeSet<(Instant, Rank)>,
    post: Post<MESSAGE>,
    received: Arc<CompletionQueue>,
    pub(super) core: Arc<Core>,
    /// Atomics that peers are asked to perform, at most one each, and those that peers have requested.
    pub(super) asking: BTreeMap<Rank, Asking>,
    pub(super) serving: Vec<Serving>,
    /// The job, which knows whether the process of a silent peer runs.
    job: Weak<dyn Bootstrap>,
    /// Peers whose lanes may hold back requests: on a failover queue, or since the queue was replaced.
    holding: BTreeSet<Rank>,
    /// Time of the next check of the lanes.
    look: Instant,
    /// Checks per second.
    pub(super) looks: u32,
    /// Number of further announcements of this rank's new address.
    announcements: u32,
    /// A lane has got a queue, by which messages may wait to be sent.
    connected: bool,
    /// The adapter has refused a queue pair since the last check, because it may have no more.
    exhausted: bool,
    /// True for the datagram channel, the command channel or the device if it is mute; see [`listen`].
    mute: [bool; 3],
}

thread_local! {
    /// The connector of the current thread, if it is a connecting thread.
    static CONNECTOR: RefCell<Option<Connector>> = const { RefCell::new(None) };
}

/// Ends the queue pair to a peer if the caller is the connecting thread; returns whether it is.
pub(super) fn ends_here(core: &Core, peer: Rank) -> bool {
    CONNECTOR.with_borrow_mut(|connector| match connector {
        Some(connector) if std::ptr::eq(&*connector.core, core) => {
            connector.end(peer);
            true
        }
        _ => false,
    })
}

#[derive(Default)]
pub(super) struct Connection {
    pub(super) machine: Machine,
    pub(super) pair: Pair,
    backoff: Backoff,
    due: Option<Instant>,
    /// Completed requests of the lane at the last check, and the number of checks without progress while requests are
    /// in flight.
    silence: (u64, u32),
    /// Number of checks in which the rail in use did not reach the peer; and, for a failover queue, in which the first
    /// rail did.
    pub(super) unheard: u32,
    pub(super) back: u32,
    /// Multiplier of the timeouts before a connection is broken off or returns to the first rail.
    pub(super) timeout_backoff: TimeoutBackoff,
    /// The time since which the peer has not answered the requests for a connection.
    unanswered: Option<Unanswered>,
    /// Time of the first refusal of a connection that had been given up, if it is requested again.
    refused: Option<Instant>,
    /// The last atomic that the peer requested.
    pub(super) served: Served,
    pub(super) usage: Usage,
}

/// A peer of which no datagram arrives.
struct Unanswered {
    since: Instant,
    /// The job was asked whether the peer's process runs.
    asked: Option<Instant>,
}

/// Seconds until a broken connection that is not restored fails; the second value applies while the port is down.
const LATE: u32 = 20;
const LATE_PORT_DOWN: u32 = 5;
/// Time for which a connection that had been given up is requested again, while an adapter has no more queue pairs.
const EXHAUSTED: Duration = Duration::from_secs(5);
/// Checks per second with several rails, or if the rank may have too many connections.
const LOOKS: u32 = 10;
/// Number of times that a new address is announced, at successive checks.
const ANNOUNCEMENTS: u32 = 20;
/// Interval between attempts to post requests held back.
const HELD: Duration = Duration::from_millis(1);
/// Time without a completion after which a connection counts as broken.
///
/// Soft-RoCE of Linux 6.1 was seen to stop completing requests after a lost packet although both ends were ready to
/// send, mainly while fences were left to it. Fences are no longer left to it; the cause is unknown.
const SILENT: Duration = Duration::from_secs(5);

/// Time after which the job is asked whether a silent peer's process runs, and time after the answer within which a
/// datagram must arrive. Peers are asked for a connection once a second. A process that was stopped until its answer
/// therefore has time to answer by datagram.
pub(super) const ASK_AFTER: Duration = Duration::from_secs(15);
pub(super) const ARRIVE_WITHIN: Duration = Duration::from_secs(5);

impl Connector {
    /// `frequent`: the lanes are checked more often than once a second.
    pub fn new(core: Arc<Core>, post: Post<MESSAGE>, frequent: bool, job: Weak<dyn Bootstrap>) -> Self {
        let (connections, due, received) = (HashMap::new(), BTreeSet::new(), post.received());
        let (asking, serving, holding) = Default::default();
        let (look, looks) = (Instant::now(), if frequent { LOOKS } else { 1 });
        let (announcements, connected, exhausted, mute) = (0, false, false, [false; 3]);
        Connector {
            connections,
            due,
            post,
            received,
            core,
            asking,
            serving,
            job,
            holding,
            look,
            looks,
            announcements,
            connected,
            exhausted,
            mute,
        }
    }

    /// Runs the thread until a `Stop` command.
    pub fn run(self) {
        let core = self.core.clone();
        CONNECTOR.set(Some(self));
        let step = || CONNECTOR.with_borrow_mut(|connector| connector.as_mut().and_then(Connector::step));
        let mut turned = Instant::now();
        while let Some(connected) = step() {
            // A rank that makes no calls would run out of receive buffers, which blocks its senders. Its own messages
            // must be sent before their connection is idle again.
            if connected || turned.elapsed() >= Duration::from_secs(1) / if core.has_others() { LOOKS } else { 1 } {
                core.try_progress();
                turned = Instant::now();
            }
        }
        core.close_commands();
        if let Some(mut connector) = CONNECTOR.take() {
            connector.stop_serving();
        }
    }

    /// Does the pending work, or waits; returns whether a lane has got a queue. `None` ends the thread.
    fn step(&mut self) -> Option<bool> {
        let rank = self.core.me;
        for command in self.core.commands() {
            match command {
                Command::Connect(peer) if peer == rank => self.connect_to_itself(),
                Command::Connect(peer) => self.drive(peer, true, |machine, effects| machine.want(effects)),
                Command::Died(peer) => self.drive(peer, false, |machine, effects| machine.died(effects)),
                Command::End(peer, _told) => self.end(peer),
                Command::Probe(peer) => self.say(peer, Message::Probe),
                Command::Say(peer, of, message) => say(&mut self.post, &self.core, peer, message, Some(of)),
                Command::Heard(peer, message) => self.heard(peer, message),
                Command::Ask(peer, number, verb, to) => self.begin_to_ask(peer, Message::Atomic { number, verb, to }),
                Command::Announce => self.announcements = ANNOUNCEMENTS,
                Command::Stop => return None,
            }
        }
        for joined in self.core.joining.take() {
            self.joined(joined);
        }
        let came = self.post.receive();
        for datagram in &came {
            match Message::open(datagram, rank, &self.core.addresses[rank].secret) {
                Some((peer, of, message)) if peer < self.core.addresses.len() && peer != rank => {
                    tracing::trace!(rank, peer, ?message, ?of, "received a connection message");
                    // Only an answer on this rail proves that the peer receives on it.
                    if self.core.has_others() && message == Message::Alive {
                        self.core.hears(peer);
                    }
                    match of {
                        Some(of) => self.core.other(of).into_iter().for_each(|other| other.heard(peer, message)),
                        None => self.heard(peer, message),
                    }
                }
                _ => tracing::debug!(rank, "ignored a datagram that is forged or not for this rank"),
            }
        }
        self.ask_again();
        self.go_on_with_atomics();
        self.look_after_lanes();
        let connected = std::mem::take(&mut self.connected);
        if came.is_empty()
            && !connected
            && let Err(errno) = self.wait()
        {
            tracing::error!(rank, %errno, "the connecting thread failed; peers get no answers any more");
            return None;
        }
        Some(connected)
    }

    /// Continues with a queue pair that another thread has connected, or discards it if it is not wanted any more.
    fn joined(&mut self, Joined { peer, made, outcome }: Joined) {
        let generation = made.start.generation;
        self.drive(peer, false, |machine, effects| match machine.state() {
            ConnectionState::Joining { theirs, .. } if machine.generation() == generation => {
                effects.pair.made = Some(made);
                let outcome = effects.is_connected(theirs, outcome);
                machine.joined(generation, outcome, effects);
            }
            _ => effects.discard(made.queue),
        });
    }

    /// Handles a message about the peer's connection on this rail.
    fn heard(&mut self, peer: Rank, message: Message) {
        if let Some(connection) = self.connections.get_mut(&peer) {
            connection.unanswered = None;
        }
        match message {
            Message::Probe => self.say(peer, Message::Alive),
            Message::Atomic { number, verb, to } => self.serve(peer, number, verb, to),
            Message::Answer { number, found } => self.answered(peer, number, found),
            Message::Moved(to) => {
                if self.core.moves.record(peer, to) {
                    tracing::warn!(rank = self.core.me, peer, ?to, "the RDMA port of a rank has another address");
                    self.post.resolve_again(peer);
                }
            }
            Message::Retired { generation } => {
                if let Some(lane) = self.core.endpoints.lane(peer) {
                    lane.far_end_has_gone(generation);
                }
                self.drive(peer, false, |machine, effects| machine.heard(message, effects));
            }
            Message::Spare { generation } => self.drain_if_idle(peer, generation),
            _ => self.drive(peer, false, |machine, effects| machine.heard(message, effects)),
        }
    }

    /// Lets lanes post requests held back; returns whether any are still held back.
    fn go_on_with_held(&mut self) -> bool {
        let Connector { holding, core, .. } = self;
        let lane = |peer: &Rank| core.endpoints.lane(*peer);
        holding.retain(|peer| lane(peer).is_some_and(|lane| lane.holds() || lane.is_failover()));
        if !holding.iter().filter_map(lane).any(|lane| lane.holds()) {
            return false;
        }
        progress::poll(&core.rail, &core.endpoints);
        holding.iter().filter_map(lane).filter(|lane| lane.holds()).fold(false, |any, lane| {
            lane.go_on();
            any | lane.holds()
        })
    }

    /// Waits for a command, a datagram, a device event, or the next due time.
    fn wait(&mut self) -> Result<(), Errno> {
        let soon = match (self.atomics_due(), self.go_on_with_held()) {
            (due, true) => due.into_iter().chain([Instant::now() + HELD]).min(),
            (due, false) => due,
        };
        let Connector { core, connections, received, due, look, mute, .. } = self;
        let channel = received.channel().expect("the queue for datagrams has a channel");
        // Without a connection or datagrams the lanes need no checks.
        let look = (core.paths != Paths::Connections || !connections.is_empty()).then_some(*look);
        let due = due.first().map(|(due, _)| *due).into_iter().chain(look).chain(soon).min();
        let due = due.map(|due| due.saturating_duration_since(Instant::now()));
        let due = due.map(|due| Timespec::try_from(due).unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 }));
        let before = *mute;
        let to = [channel.as_fd(), core.wake.as_fd(), core.rail.context().as_fd()];
        let [datagrams, _, device] = listen(to, mute, due.as_ref())?;
        if datagrams {
            channel.quiet();
        }
        if device {
            heed(core);
        }
        if *mute != before {
            tracing::warn!(rank = core.me, "the RDMA device reports no events any more; it may have been removed");
        }
        Ok(())
    }

    /// Checks all lanes. Restores lanes that broke while no thread of this rank looked at them. Breaks off lanes whose
    /// requests do not complete, because another rank may wait for these requests.
    fn look_after_lanes(&mut self) {
        if Instant::now() < self.look {
            return;
        }
        self.look = Instant::now() + Duration::from_secs(1) / self.looks;
        let core = self.core.clone();
        let Core { rail, endpoints, .. } = &*core;
        progress::poll(rail, endpoints);
        core.receives.discard(false);
        for (peer, lane) in endpoints.all() {
            let Connection { silence, usage, .. } = self.connections.entry(peer).or_default();
            usage.note(lane.posted(), Instant::now());
            // Posted requests of a dormant lane complete too.
            let works = !lane.is_broken() || lane.is_dormant();
            *silence = match *silence {
                (before, looks) if before == lane.completed() && !lane.is_idle() && works => (before, looks + 1),
                _ => (lane.completed(), 0),
            };
            if lane.asked().is_some() {
                // The peer performs the atomic, so a lack of completions says nothing.
                silence.1 = 0;
            }
            let silent = silence.1;
            let unheard = self.is_unheard(peer, silent);
            let Connection { silence, timeout_backoff, .. } = self.connections.entry(peer).or_default();
            // An unreachable peer is detected first, whatever the timeout multiplier.
            let most = SILENT.max(2 * UNHEARD * timeout_backoff.times(Instant::now()));
            if Duration::from_secs(1) * silent / self.looks > most || unheard && !lane.has_atomic() {
                silence.1 = 0;
                timeout_backoff.breaks_off(Instant::now());
                lane.break_off(Failure::known(Why::Ended));
            } else if silent > 0 {
                // Most messages are posted unsignalled; requests a completion.
                let _ = lane.ask();
            }
            if let Some(generation) = lane.far_end_to_go() {
                self.say(peer, Message::Retire { generation });
            }
            let asked = self.connections.get(&peer).is_some_and(|connection| connection.machine.is_waiting());
            let ended = lane.failure().is_some() && asked;
            // A dormant lane is connected when an operation needs it, however long its peer is stopped.
            let broken = lane.is_broken() && !lane.is_dormant();
            if !ended && !(broken && (asked || !lane.is_idle())) {
                continue;
            }
            let most = self.looks * if rail.health.port_down() { LATE_PORT_DOWN } else { LATE };
            // With failover, the first rail is requested until it is back.
            if ended || lane.waits() > most && (!core.has_others() || lane.is_needed()) {
                lane.give_up(lane.why_broken());
                self.drive(peer, false, |machine, effects| machine.given_up(Errno::TIMEDOUT, effects));
            } else if peer == core.me {
                self.connect_to_itself();
            } else if !asked {
                self.drive(peer, true, |machine, effects| machine.want(effects));
            }
        }
        if core.can_fail_over() {
            self.look_for_other_rails();
        }
        self.look_for_unreached();
        self.announce();
        let is_refused = |connection: &Connection| {
            connection.refused.is_some() && matches!(connection.machine.state(), ConnectionState::Failed(_))
        };
        let refused = self.connections.iter().filter(|(_, connection)| is_refused(connection));
        let refused: Vec<Rank> = refused.map(|(peer, _)| *peer).collect();
        let makes_room = std::mem::take(&mut self.exhausted) || !refused.is_empty();
        self.give_up_idle(makes_room);
        for peer in refused {
            self.drive(peer, true, |machine, effects| machine.want(effects));
        }
    }

    /// Notifies the peers of this rank's new address, several times, because datagrams may be lost: the peers that it has
    /// communicated with on any rail.
    fn announce(&mut self) {
        let me = self.core.me;
        let Some(moved) = self.core.moves.last(me).filter(|_| self.announcements > 0) else { return };
        self.announcements -= 1;
        let mut peers: BTreeSet<Rank> = self.connections.keys().copied().collect();
        for other in self.core.others() {
            peers.extend(other.endpoints.all().map(|(peer, _)| peer));
        }
        peers.remove(&me);
        peers.into_iter().for_each(|peer| self.say(peer, Message::Moved(moved)));
    }

    /// Reports peers that have no connection and are wanted, whose processes run, and of which no datagram arrives.
    fn look_for_unreached(&mut self) {
        let Connector { connections, core, job, .. } = self;
        let Some(job) = job.upgrade() else { return };
        for (&peer, connection) in connections {
            let is_new = core.endpoints.lane(peer).is_none_or(|lane| lane.is_dormant());
            if !(is_new && connection.machine.is_waiting()) || core.rail.health.port_down() {
                connection.unanswered = None;
                continue;
            }
            let unanswered =
                connection.unanswered.get_or_insert_with(|| Unanswered { since: Instant::now(), asked: None });
            let Some(asked) = unanswered.asked else {
                if unanswered.since.elapsed() > ASK_AFTER {
                    unanswered.asked = Some(Instant::now());
                    job.ask_whether_running(peer);
                }
                continue;
            };
            let runs = job.seen_running(peer).filter(|answered| *answered >= asked);
            if runs.is_some_and(|answered| answered.elapsed() > ARRIVE_WITHIN) {
                tracing::error!(rank = core.me, peer, "{}", core.unreached(peer));
                core.note(peer, Link::Unreached);
                // A later attempt counts its own time.
                connection.unanswered = None;
            }
        }
    }

    pub(super) fn say(&mut self, peer: Rank, message: Message) {
        self.drive(peer, false, |_, effects| effects.send(message));
    }

    /// Retires the queue pair to a peer.
    fn end(&mut self, peer: Rank) {
        let core = self.core.clone();
        self.drive(peer, false, |machine, effects| {
            if !core.endpoints.lane(peer).is_some_and(|lane| lane.is_cut()) {
                machine.lost(machine.generation(), effects);
            }
        });
    }

    fn ask_again(&mut self) {
        let now = Instant::now();
        while let Some(&(due, peer)) = self.due.first().filter(|(due, _)| *due <= now) {
            self.due.remove(&(due, peer));
            let connection = self.connections.entry(peer).or_default();
            connection.due = None;
            if connection.backoff.is_to_be_told() {
                let rank = self.core.me;
                tracing::warn!(
                    rank,
                    peer,
                    "a rank has not answered for long and has not died; still asking, because it may be stopped"
                );
            }
            if connection.backoff.is_to_be_resolved() {
                self.post.resolve_again(peer);
            }
            self.drive(peer, false, |machine, effects| machine.again(effects));
        }
    }

    /// Drives the machine of a peer by `event`, and reports the outcome to the rank. `wanted`: an operation waits,
    /// which the machine may not know yet.
    pub(super) fn drive(&mut self, peer: Rank, wanted: bool, event: impl FnOnce(&mut Machine, &mut Doing)) {
        let Connector { connections, due, post, core, holding, connected, exhausted, .. } = self;
        let Connection { machine, pair, backoff, due: mine, usage, refused, .. } = connections.entry(peer).or_default();
        let (before, wanted) = (machine.state(), wanted || machine.is_waiting());
        let mut doing = Doing { peer, pair, post, core };
        let failed = core.endpoints.lane(peer).is_some_and(|lane| {
            let broken = lane.is_broken() && !lane.is_dormant();
            broken || lane.failure().is_some()
        });
        if matches!(before, ConnectionState::Ready { .. } | ConnectionState::Draining { .. }) && failed {
            machine.lost(machine.generation(), &mut doing);
        }
        event(machine, &mut doing);
        let (rank, state) = (core.me, machine.state());
        if state != before {
            tracing::debug!(rank, peer, generation = machine.generation(), ?state, "connection");
        }
        if let (ConnectionState::Failed(Reason::Here(errno) | Reason::There(errno)), Some(lane)) =
            (state, core.endpoints.lane(peer))
            && lane.is_broken()
        {
            match errno {
                // The peer has ended the connection for good.
                Errno::CONNABORTED => _ = lane.give_up(Failure::known(Why::Ended)),
                // An adapter cannot report its received position.
                Errno::OPNOTSUPP => _ = lane.give_up(lane.why_broken()),
                // A temporary failure: the next check retries.
                _ => {}
            }
        }
        match state {
            ConnectionState::Ready { theirs, .. } => {
                if let Some(Made { queue, start }) = pair.made.take() {
                    core.endpoints.add(peer, queue, start, theirs.received);
                    holding.insert(peer);
                    // The operation that needed the connection has not posted its request yet.
                    (*usage, *connected) = (Usage::default(), true);
                    let by = pair.by;
                    if by > 0 {
                        tracing::warn!(
                            rank,
                            peer,
                            by,
                            "the first rail does not reach a rank; RMA fails over to another"
                        );
                    }
                }
                core.note(peer, Link::Ready);
            }
            ConnectionState::Failed(Reason::Here(errno) | Reason::There(errno)) if wanted => {
                let was_given_up = core.endpoints.lane(peer).is_some_and(|lane| lane.is_dormant());
                let waits = was_given_up && is_exhausted(errno);
                if !waits || refused.get_or_insert_with(Instant::now).elapsed() > EXHAUSTED {
                    *refused = None;
                    let by_peer = matches!(state, ConnectionState::Failed(Reason::There(_)));
                    core.note(peer, Link::Refused { by_peer, errno: errno.raw_os_error() });
                }
            }
            ConnectionState::Failed(Reason::Died) => core.note(peer, Link::Absent),
            // A rank that wants the connection has sent a command, or will.
            _ => {}
        }
        match state {
            ConnectionState::Failed(Reason::Here(errno)) if state != before => *exhausted |= is_exhausted(errno),
            ConnectionState::Ready { .. } | ConnectionState::Failed(Reason::Died) => *refused = None,
            _ => {}
        }
        if !machine.is_repeating() {
            *backoff = Backoff::default();
            mine.take().map(|at| due.remove(&(at, peer)));
        } else if mine.is_none() {
            let at = Instant::now() + backoff.next();
            *mine = Some(at);
            due.insert((at, peer));
        }
    }

    /// Connects this rank to itself, by one queue pair whose ends are both local. Atomics on the rank's own words use
    /// it.
    pub(super) fn connect_to_itself(&mut self) {
        let Connector { connections, post, core, holding, .. } = self;
        if core.endpoints.lane(core.me).is_some_and(|lane| !lane.is_broken()) {
            return core.note(core.me, Link::Ready);
        }
        let Connection { pair, .. } = connections.entry(core.me).or_default();
        let generation = pair.next_generation();
        let mut doing = Doing { peer: core.me, pair, post, core };
        doing.retire();
        let connected = doing.make(generation, Some(0)).and_then(|end| doing.connect_now(end).map(|()| end));
        let outcome = match (connected, pair.made.take()) {
            (Ok(end), Some(Made { queue, start })) => {
                core.endpoints.add(core.me, queue, start, end.received);
                holding.insert(core.me);
                Link::Ready
            }
            (connected, _) => {
                let errno = connected.err().unwrap_or(Errno::NOTCONN);
                Link::Refused { by_peer: false, errno: errno.raw_os_error() }
            }
        };
        core.note(core.me, outcome);
    }
}
