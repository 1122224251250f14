//! The thread that connects: it alone drives the machines, and makes, connects and destroys queue pairs, while it holds no
//! lock. So no peer waits for another's, and the rank's operations wait for none.

use super::address::Address;
use super::core::{Command, Core, Link};
use super::machine::{Backoff, Effects, Machine, Reason, State};
use super::message::{MESSAGE, Message};
use super::pair::{Doing, Made, Pair, heed};
use crate::verbs::datagram::Post;
use crate::verbs::progress;
use crate::verbs::sys::CompletionQueue;
use crate::verbs::wr::{Failure, Why};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use transom_locks::Rank;

/// The order of fields is that in which they are to go.
pub(super) struct Connector {
    /// With peers that somebody needed; of each a record of fixed size.
    connections: HashMap<Rank, Connection>,
    /// When peers are to be asked again.
    due: BTreeSet<(Instant, Rank)>,
    post: Post<MESSAGE>,
    received: Arc<CompletionQueue>,
    addresses: Box<[Address]>,
    core: Arc<Core>,
    /// Queue pairs that have said that they take nothing more.
    ended: HashSet<u32>,
    /// When the lanes are to be looked after.
    look: Instant,
    /// The device says nothing more unasked.
    mute: bool,
}

#[derive(Default)]
struct Connection {
    machine: Machine,
    pair: Pair,
    backoff: Backoff,
    due: Option<Instant>,
    /// What was complete of its lane at the last look, and for how many looks nothing more is, though something is under way.
    silence: (u64, u32),
}

/// How often the lanes are looked after.
const LOOK: Duration = Duration::from_secs(1);
/// So many looks later a connection that broke has not come about in time; or where the port is down.
const LOOKS: u32 = 20;
const LOOKS_PORT_DOWN: u32 = 5;
/// So many looks that find nothing complete, and a connection counts as broken. With Soft-RoCE of Linux 6.1 it was seen that after a
/// packet was lost nothing completed any more, though both ends were ready to send; why is not known.
const SILENT: u32 = 5;

impl Connector {
    pub fn new(core: Arc<Core>, post: Post<MESSAGE>, addresses: Box<[Address]>) -> Self {
        let (connections, due, received) = (HashMap::new(), BTreeSet::new(), post.received());
        let (ended, look) = (HashSet::new(), Instant::now());
        Connector { connections, due, post, received, addresses, core, ended, look, mute: false }
    }

    /// The thread's work, until it is told to stop.
    pub fn run(mut self) {
        let rank = self.core.me;
        loop {
            for command in self.core.commands() {
                match command {
                    Command::Connect(peer) if peer == rank => self.connect_to_itself(),
                    Command::Connect(peer) => self.drive(peer, true, |machine, effects| machine.want(effects)),
                    Command::Died(peer) => self.drive(peer, false, |machine, effects| machine.died(effects)),
                    Command::Stop => return,
                }
            }
            let came = self.post.receive();
            for datagram in &came {
                match Message::open(datagram, rank, &self.addresses[rank].secret) {
                    Some((peer, message)) if peer < self.addresses.len() && peer != rank => {
                        tracing::trace!(rank, peer, ?message, "heard");
                        self.drive(peer, false, |machine, effects| machine.heard(message, effects));
                    }
                    _ => tracing::debug!(rank, "a datagram that is not for us, or forged"),
                }
            }
            self.ask_again();
            self.look_after_lanes();
            if came.is_empty()
                && let Err(errno) = self.wait()
            {
                return tracing::error!(rank, %errno, "peers cannot be answered any more");
            }
        }
    }

    /// Until there are commands or datagrams, the device says something, or it is time to ask somebody again.
    fn wait(&mut self) -> Result<(), Errno> {
        let Connector { core, connections, received, due, look, .. } = self;
        let channel = received.channel().expect("datagrams are told");
        let context = core.rail.context();
        let mut waiting = [
            PollFd::new(channel, PollFlags::IN),
            PollFd::new(&core.wake, PollFlags::IN),
            PollFd::new(&**context, PollFlags::IN),
        ];
        // There is nothing to look after before there is a connection, or a datagram.
        let look = (core.by_datagrams || !connections.is_empty()).then_some(*look);
        let due = due.first().map(|(due, _)| *due).into_iter().chain(look).min();
        let due = due.map(|due| due.saturating_duration_since(Instant::now()));
        let due = due.map(|due| Timespec::try_from(due).unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 }));
        let waiting = if self.mute { &mut waiting[..2] } else { &mut waiting[..] };
        match poll(waiting, due.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
        if waiting[0].revents().contains(PollFlags::IN) {
            channel.quiet();
        }
        let said = waiting.get(2).map_or(PollFlags::empty(), |device| device.revents());
        if said.contains(PollFlags::IN) {
            heed(&self.core, &mut self.ended);
        } else if !said.is_empty() {
            self.mute = true;
            tracing::warn!(rank = self.core.me, "the RDMA device does not tell any more what becomes of it");
        }
        Ok(())
    }

    /// Makes lanes anew that broke while nobody of this rank looked, or whose peer did not answer in time an end: who waits
    /// for what was posted there may be another rank.
    fn look_after_lanes(&mut self) {
        if Instant::now() < self.look {
            return;
        }
        self.look = Instant::now() + LOOK;
        let core = self.core.clone();
        let Core { rail, endpoints, .. } = &*core;
        progress::poll(rail, endpoints);
        core.receives.discard(false);
        // A rank that calls nothing for long would run out of buffers, and what comes behind waits for them.
        core.turn();
        for (peer, lane) in endpoints.all() {
            let Connection { silence, .. } = self.connections.entry(peer).or_default();
            *silence = match *silence {
                (before, looks) if before == lane.completed() && !lane.is_idle() && !lane.is_broken() => {
                    (before, looks + 1)
                }
                _ => (lane.completed(), 0),
            };
            if silence.1 > SILENT {
                // The next has as long.
                silence.1 = 0;
                lane.break_off(Failure::known(Why::Ended));
            } else if silence.1 > 1 {
                let _ = lane.ask();
            }
            let asked = self.connections.get(&peer).is_some_and(|connection| connection.machine.is_waiting());
            let ended = lane.failure().is_some() && asked;
            if !ended && !(lane.is_broken() && (asked || !lane.is_idle())) {
                continue;
            }
            let most = if rail.health.port_down() { LOOKS_PORT_DOWN } else { LOOKS };
            // Others take over for a further rail, which is asked for until it is back.
            if ended || lane.waits() > most && (!core.further || lane.is_needed()) {
                lane.give_up(lane.why_broken());
                self.drive(peer, false, |machine, effects| machine.given_up(Errno::TIMEDOUT, effects));
            } else if peer == core.me {
                self.connect_to_itself();
            } else if !asked {
                self.drive(peer, true, |machine, effects| machine.want(effects));
            }
        }
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
                    "a rank has not answered for long, nor died; it is asked on, as it may be stopped"
                );
            }
            self.drive(peer, false, |machine, effects| machine.again(effects));
        }
    }

    /// Lets something happen to the machine of a peer, and tells the rank what comes of it. `wanted`: somebody waits, though
    /// the machine may not know it yet.
    fn drive(&mut self, peer: Rank, wanted: bool, event: impl FnOnce(&mut Machine, &mut Doing)) {
        let Connector { connections, due, post, addresses, core, ended, .. } = self;
        let Connection { machine, pair, backoff, due: mine, .. } = connections.entry(peer).or_default();
        let (before, wanted) = (machine.state(), wanted || machine.is_waiting());
        let mut doing = Doing { peer, pair, post, addresses, core, ended };
        let failed = core.endpoints.lane(peer).is_some_and(|lane| lane.is_broken() || lane.failure().is_some());
        if matches!(before, State::Ready { .. }) && failed {
            machine.lost(machine.generation(), &mut doing);
        }
        event(machine, &mut doing);
        let (rank, state) = (core.me, machine.state());
        if state != before {
            tracing::debug!(rank, peer, generation = machine.generation(), ?state, "connection");
        }
        let refused = |by_peer, errno: Errno| Link::Refused { by_peer, errno: errno.raw_os_error() };
        if let (State::Failed(Reason::Here(errno) | Reason::There(errno)), Some(lane)) =
            (state, core.endpoints.lane(peer))
            && lane.is_broken()
        {
            match errno {
                // The peer has ended the connection for good.
                Errno::CONNABORTED => _ = lane.give_up(Failure::known(Why::Ended)),
                // An adapter does not tell what it has received.
                Errno::OPNOTSUPP => _ = lane.give_up(lane.why_broken()),
                // For now: it is looked after.
                _ => {}
            }
        }
        match state {
            State::Ready { theirs, .. } => {
                if let Some(Made { queue, start }) = pair.made.take() {
                    core.endpoints.add(peer, queue, start, theirs.received);
                }
                core.note(peer, Link::Ready);
            }
            State::Failed(Reason::Here(errno)) if wanted => core.note(peer, refused(false, errno)),
            State::Failed(Reason::There(errno)) if wanted => core.note(peer, refused(true, errno)),
            State::Failed(Reason::Died) => core.note(peer, Link::Absent),
            // Whoever wants it has told this thread, or will.
            _ => {}
        }
        if !machine.is_waiting() {
            *backoff = Backoff::default();
            mine.take().map(|at| due.remove(&(at, peer)));
        } else if mine.is_none() {
            let at = Instant::now() + backoff.next();
            *mine = Some(at);
            due.insert((at, peer));
        }
    }

    /// A rank's words are reached through a queue pair that leads back to it. Its ends are one.
    fn connect_to_itself(&mut self) {
        let Connector { connections, post, addresses, core, ended, .. } = self;
        if core.endpoints.lane(core.me).is_some_and(|lane| !lane.is_broken()) {
            return core.note(core.me, Link::Ready);
        }
        let Connection { pair, .. } = connections.entry(core.me).or_default();
        let generation = pair.next_generation();
        let mut doing = Doing { peer: core.me, pair, post, addresses, core, ended };
        doing.retire();
        let connected = doing.make(generation).and_then(|end| doing.connect(end).map(|()| end));
        let outcome = match (connected, pair.made.take()) {
            (Ok(end), Some(Made { queue, start })) => {
                core.endpoints.add(core.me, queue, start, end.received);
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
