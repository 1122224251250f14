//! The thread that connects: it alone drives the machines, and makes, connects and destroys queue pairs, while it holds no
//! lock. So no peer waits for another's, and the rank's operations wait for none.

use super::address::{Address, Destination};
use super::core::{Command, Core, Link};
use super::machine::{Backoff, Effects, Machine, Reason, State};
use super::message::{End, MESSAGE, Message};
use crate::verbs::VerbsError;
use crate::verbs::datagram::{Post, Recipient};
use crate::verbs::sys::{CompletionQueue, FarEnd, QueuePair};
use crate::verbs::wr::{Failure, Why, WorkQueue};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;
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
    /// The device says nothing more unasked.
    mute: bool,
}

#[derive(Default)]
struct Connection {
    machine: Machine,
    /// Until both ends are connected: then it is the lane.
    made: Option<Made>,
    backoff: Backoff,
    due: Option<Instant>,
}

struct Made {
    queue: QueuePair,
    psn: u32,
}

impl Connector {
    pub fn new(core: Arc<Core>, post: Post<MESSAGE>, addresses: Box<[Address]>) -> Self {
        let (connections, due, received) = (HashMap::new(), BTreeSet::new(), post.received());
        Connector { connections, due, post, received, addresses, core, mute: false }
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
            if came.is_empty()
                && let Err(errno) = self.wait()
            {
                return tracing::error!(rank, %errno, "peers cannot be answered any more");
            }
        }
    }

    /// Until there are commands or datagrams, the device says something, or it is time to ask somebody again.
    fn wait(&mut self) -> Result<(), Errno> {
        let Connector { core, received, due, .. } = self;
        let channel = received.channel().expect("datagrams are told");
        let context = core.rail.context();
        let mut waiting = [
            PollFd::new(channel, PollFlags::IN),
            PollFd::new(&core.wake, PollFlags::IN),
            PollFd::new(&**context, PollFlags::IN),
        ];
        let due = due.first().map(|(due, _)| due.saturating_duration_since(Instant::now()));
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
            self.heed();
        } else if !said.is_empty() {
            self.mute = true;
            tracing::warn!(rank = self.core.me, "the RDMA device does not tell any more what becomes of it");
        }
        Ok(())
    }

    /// Takes what the device says unasked.
    fn heed(&self) {
        let Core { me: rank, rail, endpoints, .. } = &*self.core;
        let event = match rail.context().event() {
            Ok(event) => event,
            Err(error) => return tracing::warn!(rank, %error, "an event of the RDMA device is lost"),
        };
        tracing::debug!(rank, ?event, "the RDMA device says");
        if let Some(failed) = rail.health.note(event, rail.port())
            && let Some((_, lane)) = endpoints.all().find(|(_, lane)| lane.queue_pair() == failed)
        {
            lane.give_up(Failure::known(Why::Ended));
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
        let Connector { connections, due, post, addresses, core, .. } = self;
        let Connection { machine, made, backoff, due: mine } = connections.entry(peer).or_default();
        let (before, wanted) = (machine.state(), wanted || machine.is_waiting());
        let mut doing = Doing { peer, made, post, addresses, core };
        let failed = core.endpoints.lane(peer).is_some_and(|lane| lane.failure().is_some());
        if matches!(before, State::Ready { .. }) && failed {
            machine.lost(machine.generation(), &mut doing);
        }
        event(machine, &mut doing);
        let (rank, state) = (core.me, machine.state());
        if state != before {
            tracing::debug!(rank, peer, generation = machine.generation(), ?state, "connection");
        }
        let refused = |by_peer, errno: Errno| Link::Refused { by_peer, errno: errno.raw_os_error() };
        match state {
            State::Ready { .. } => {
                if let Some(made) = made.take() {
                    core.endpoints.add(peer, made.queue);
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

    /// A rank's words are reached through a queue pair that leads back to it.
    fn connect_to_itself(&mut self) {
        let Connector { post, addresses, core, .. } = self;
        let mut made = None;
        let mut doing = Doing { peer: core.me, made: &mut made, post, addresses, core };
        let connected = doing.make(1).and_then(|end| doing.connect(end));
        let outcome = match (connected, made) {
            (Ok(()), Some(made)) => {
                core.endpoints.add(core.me, made.queue);
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

/// What the machine of one peer makes happen.
struct Doing<'a> {
    peer: Rank,
    made: &'a mut Option<Made>,
    post: &'a mut Post<MESSAGE>,
    addresses: &'a [Address],
    core: &'a Core,
}

impl Doing<'_> {
    fn refused(&self, error: &VerbsError) -> Errno {
        tracing::error!(rank = self.core.me, peer = self.peer, %error, "no connection");
        error.errno().unwrap_or(Errno::IO)
    }
}

impl Effects for Doing<'_> {
    fn make(&mut self, generation: u32) -> Result<End, Errno> {
        let queue = self.core.rail.queue_pair().map_err(|error| self.refused(&error))?;
        let psn = u32::from_le_bytes(random().map_err(|error| self.refused(&error))?) & 0xff_ffff;
        self.core.made.fetch_add(1, Relaxed);
        let (peer, queue_pair, depth, inline) = (self.peer, queue.number(), queue.depth(), queue.inline());
        tracing::debug!(peer, generation, queue_pair, depth, inline, "queue pair made");
        *self.made = Some(Made { queue, psn });
        Ok(End { queue_pair, psn })
    }

    fn connect(&mut self, theirs: End) -> Result<(), Errno> {
        let Some(Made { queue, psn }) = &self.made else { return Err(Errno::NOTCONN) };
        let (rail, address) = (&self.core.rail, &self.addresses[self.peer]);
        let [initiated, served] = rail.initiated_and_served();
        let far = FarEnd {
            path: rail.path(address.datagrams.gid, address.datagrams.lid),
            mtu: u32::from(address.mtu).min(rail.mtu()),
            queue_pair: theirs.queue_pair,
            psn: theirs.psn,
            served: served.min(address.initiator_depth),
            initiated: initiated.min(address.responder_resources),
        };
        queue.connect(&rail.near_end(*psn), &far).map_err(|error| self.refused(&error))
    }

    fn retire(&mut self) {
        *self.made = None;
        // What is under way there has failed: the peer's end does not answer any more.
        if let Some(lane) = self.core.endpoints.lane(self.peer) {
            lane.give_up(Failure::known(Why::Ended));
        }
    }

    fn send(&mut self, message: Message) {
        let (rank, peer, address) = (self.core.me, self.peer, &self.addresses[self.peer]);
        let sealed = message.seal(rank, peer, &address.secret);
        let Destination { gid, lid, queue_pair, key } = address.datagrams;
        let to = Recipient { path: self.core.rail.path(gid, lid), queue_pair, key };
        if let Err(error) = self.post.send(peer, &to, &sealed) {
            // As if it were lost; that the peer is silent is told in its time.
            tracing::debug!(rank, peer, %error, ?message, "not sent");
        }
    }
}

/// Random bytes that nobody can foresee.
pub(super) fn random<const N: usize>() -> Result<[u8; N], VerbsError> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        let flags = rustix::rand::GetRandomFlags::empty();
        match rustix::rand::getrandom(&mut bytes[filled..], flags) {
            Ok(more) => filled += more,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(VerbsError::system("random numbers", errno.into())),
        }
    }
    Ok(bytes)
}
