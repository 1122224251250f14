//! The thread that connects: it alone drives the machines, and makes, connects and destroys queue pairs, while it holds no
//! lock. So no peer waits for another's, and the rank's operations wait for none.

use super::address::Address;
use super::core::{Command, Core};
use super::machine::{Backoff, Effects, Machine, Reason, State};
use super::message::{End, MESSAGE, Message};
use crate::verbs::VerbsError;
use crate::verbs::datagram::Datagrams;
use crate::verbs::engine::Link;
use crate::verbs::queue::{QueuePair, RemoteEnd};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Instant;
use transom_locks::Rank;

/// The order of fields is that in which they are to go.
pub(super) struct Service {
    /// With peers that somebody needed; of each a record of fixed size.
    connections: HashMap<Rank, Connection>,
    /// When peers are to be asked again.
    due: BTreeSet<(Instant, Rank)>,
    datagrams: Datagrams<MESSAGE>,
    addresses: Box<[Address]>,
    core: Arc<Core>,
}

#[derive(Default)]
struct Connection {
    machine: Machine,
    /// Until it is connected: from then on the engine has it.
    made: Option<Made>,
    backoff: Backoff,
    due: Option<Instant>,
}

struct Made {
    queue: QueuePair,
    psn: u32,
    generation: u32,
}

impl Service {
    pub fn new(core: Arc<Core>, datagrams: Datagrams<MESSAGE>, addresses: Box<[Address]>) -> Self {
        Service { connections: HashMap::new(), due: BTreeSet::new(), datagrams, addresses, core }
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
            let came = self.datagrams.receive();
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

    /// Until there are commands or datagrams, or it is time to ask somebody again.
    fn wait(&self) -> Result<(), Errno> {
        let channel = self.datagrams.readable();
        let mut waiting = [PollFd::new(&channel, PollFlags::IN), PollFd::new(&self.core.wake, PollFlags::IN)];
        let due = self.due.first().map(|(due, _)| due.saturating_duration_since(Instant::now()));
        let due = due.map(|due| Timespec::try_from(due).unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 }));
        match poll(&mut waiting, due.as_ref()) {
            Ok(_) if waiting[0].revents().contains(PollFlags::IN) => self.datagrams.quiet(),
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
        Ok(())
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
        let Service { connections, due, datagrams, addresses, core } = self;
        let Connection { machine, made, backoff, due: mine } = connections.entry(peer).or_default();
        let (before, wanted) = (machine.state(), wanted || machine.is_waiting());
        let mut doing = Doing { peer, made, datagrams, addresses, core };
        if matches!(before, State::Answered { .. } | State::Ready { .. })
            && !core.engine().has(peer, machine.generation())
        {
            // A request failed there: the queue pair has gone with it.
            machine.lost(machine.generation(), &mut doing);
        }
        event(machine, &mut doing);
        let (rank, state) = (core.me, machine.state());
        if state != before {
            tracing::debug!(rank, peer, generation = machine.generation(), ?state, "connection");
        }
        let refused = |by_peer, errno: Errno| Link::Refused { by_peer, errno: errno.raw_os_error() };
        let outcome = match state {
            State::Ready { .. } => Some(Link::Ready),
            State::Failed(Reason::Here(errno)) if wanted => Some(refused(false, errno)),
            State::Failed(Reason::There(errno)) if wanted => Some(refused(true, errno)),
            State::Failed(Reason::Died) => Some(Link::Absent),
            _ => None,
        };
        core.note(|engine| {
            let link = &mut engine.peers[peer].link;
            // Else whoever wants it has told this thread, or will.
            *link = outcome.unwrap_or(if *link == Link::Wanted { Link::Wanted } else { Link::Absent });
        });
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
        let Service { datagrams, addresses, core, .. } = self;
        let mut made = None;
        let mut doing = Doing { peer: core.me, made: &mut made, datagrams, addresses, core };
        let connected = doing.make(1).and_then(|end| doing.connect(end));
        let errno = |errno: Errno| Link::Refused { by_peer: false, errno: errno.raw_os_error() };
        core.note(|engine| engine.peers[core.me].link = connected.map_or_else(errno, |()| Link::Ready));
    }
}

/// What the machine of one peer makes happen.
struct Doing<'a> {
    peer: Rank,
    made: &'a mut Option<Made>,
    datagrams: &'a mut Datagrams<MESSAGE>,
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
        let queue = self.core.maker.make().map_err(|error| self.refused(&error))?;
        let psn = u32::from_le_bytes(random().map_err(|error| self.refused(&error))?) & 0xff_ffff;
        let queue_pair = queue.number();
        tracing::debug!(peer = self.peer, queue_pair, queue.depth, queue.inline, "queue pair made");
        *self.made = Some(Made { queue, psn, generation });
        Ok(End { queue_pair, psn })
    }

    fn connect(&mut self, theirs: End) -> Result<(), Errno> {
        let Some(Made { queue, psn, generation }) = self.made.take() else { return Err(Errno::NOTCONN) };
        let address = &self.addresses[self.peer];
        let end = RemoteEnd {
            gid: address.datagrams.gid,
            lid: address.datagrams.lid,
            mtu: address.mtu.into(),
            queue_pair: theirs.queue_pair,
            psn: theirs.psn,
            responder_resources: address.responder_resources,
            initiator_depth: address.initiator_depth,
        };
        queue.connect(&end, psn, &self.core.settings).map_err(|error| self.refused(&error))?;
        self.core.engine().install(self.peer, generation, queue);
        Ok(())
    }

    fn retire(&mut self) {
        let installed = self.core.engine().retire(self.peer);
        // Destroyed here, where no lock is held.
        drop((self.made.take(), installed));
    }

    fn send(&mut self, message: Message) {
        let (rank, peer, address) = (self.core.me, self.peer, &self.addresses[self.peer]);
        let sealed = message.seal(rank, peer, &address.secret);
        if let Err(error) = self.datagrams.send(peer, &address.datagrams, &sealed) {
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
