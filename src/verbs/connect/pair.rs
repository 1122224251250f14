//! The queue pairs to a peer, one after the other: what the machine of that peer makes happen.

use super::address::{Address, Destination};
use super::core::Core;
use super::machine::Effects;
use super::message::{End, MESSAGE, Message};
use crate::random::random;
use crate::verbs::VerbsError;
use crate::verbs::datagram::{Post, Recipient};
use crate::verbs::lane::Start;
use crate::verbs::progress;
use crate::verbs::rail::{LastWord, Polled};
use crate::verbs::sys::{Event, FarEnd, QueuePair};
use crate::verbs::wr::{Failure, Received, Why, WorkQueue};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use transom_locks::Rank;

/// How long a queue pair that failed may take to say that it has: it has only to do what came before.
const END: Duration = Duration::from_secs(2);

/// The queue pair to a peer, and what is known of those before it.
#[derive(Default)]
pub(super) struct Pair {
    /// Until both ends are connected: then it is the lane's.
    pub made: Option<Made>,
    /// Of the one that is connected, the lane's too: its generation, and the first PSN that it expects.
    connected: Option<(u32, u32)>,
    /// By those that were retired.
    pub received: Received,
    /// Why that is not known: then there is no other.
    unknown: Option<Errno>,
    /// Where they complete.
    polled: Option<Arc<Polled>>,
    /// The last generation of a connection to itself.
    own: u32,
}

pub(super) struct Made {
    pub queue: QueuePair,
    pub start: Start,
}

/// What the machine of one peer makes happen.
pub(super) struct Doing<'a> {
    pub peer: Rank,
    pub pair: &'a mut Pair,
    pub post: &'a mut Post<MESSAGE>,
    pub addresses: &'a [Address],
    pub core: &'a Core,
    /// Queue pairs that have said that they take nothing more.
    pub ended: &'a mut HashSet<u32>,
}

impl Pair {
    /// Of the next, where there is no machine that knows better: the two ends are one.
    pub fn next_generation(&mut self) -> u32 {
        self.own += 1;
        self.own
    }
}

impl Doing<'_> {
    fn refused(&self, error: &VerbsError) -> Errno {
        tracing::error!(rank = self.core.me, peer = self.peer, %error, "no connection");
        error.errno().unwrap_or(Errno::IO)
    }

    fn mtu(&self) -> u32 {
        u32::from(self.addresses[self.peer].mtu).min(self.core.rail.mtu())
    }

    fn make_queue(&mut self) -> Result<(QueuePair, u32), VerbsError> {
        let rail = &self.core.rail;
        let polled = match &self.pair.polled {
            Some(polled) => polled,
            None => self.pair.polled.insert(rail.queues.take()?),
        };
        let (received, shared) = self.core.receives.ends()?;
        let queue = rail.queue_pair(polled, received, shared)?;
        self.core.receives.expect(queue.number(), self.peer as u32);
        // What one of the same number may have said.
        self.ended.remove(&queue.number());
        Ok((
            queue,
            u32::from_le_bytes(random().map_err(|source| VerbsError::system("random numbers", source))?) & 0xff_ffff,
        ))
    }
}

/// Ends a queue pair; the number of the packet that it expected next, if it was connected.
fn end(
    queue: QueuePair,
    was_connected: bool,
    polled: &Polled,
    core: &Core,
    ended: &mut HashSet<u32>,
) -> Result<u32, Errno> {
    let settle = || progress::settle(polled, &core.endpoints, &core.rail.health);
    let next = if was_connected && core.rail.last_word() != LastWord::None {
        received(&queue, core, ended).map_err(|error| {
            tracing::error!(rank = core.me, %error, "what a connection has received is not known");
            error.errno().unwrap_or(Errno::IO)
        })
    } else {
        Err(Errno::OPNOTSUPP)
    };
    // What had completed has, though the queue pair goes; and nothing of it is told when it has gone.
    settle();
    core.receives.settle();
    let number = queue.number();
    drop(queue);
    settle();
    core.receives.settle();
    core.receives.forget(number, was_connected);
    next
}

/// First it is to take nothing more: what comes late must not be executed once the peer was told what was.
fn received(queue: &QueuePair, core: &Core, ended: &mut HashSet<u32>) -> Result<u32, VerbsError> {
    queue.fail()?;
    if core.rail.last_word() == LastWord::Reset {
        queue.reset()?;
        return queue.next_psn();
    }
    let began = Instant::now();
    // The adapter, or its driver, may be in the midst of a packet.
    while !ended.remove(&queue.number()) {
        if began.elapsed() > END {
            let source = std::io::ErrorKind::TimedOut.into();
            return Err(VerbsError::system("a queue pair that does not end", source));
        }
        let context = core.rail.context();
        let said =
            poll(&mut [PollFd::new(&**context, PollFlags::IN)], Some(&Timespec { tv_sec: 0, tv_nsec: 1_000_000 }));
        if said.is_ok_and(|said| said > 0) {
            heed(core, ended);
        }
    }
    queue.next_psn()
}

/// Takes what the device says unasked.
pub(super) fn heed(core: &Core, ended: &mut HashSet<u32>) {
    let Core { me: rank, rail, endpoints, .. } = core;
    let event = match rail.context().event() {
        Ok(event) => event,
        Err(error) => return tracing::warn!(rank, %error, "an event of the RDMA device is lost"),
    };
    tracing::debug!(rank, ?event, "the RDMA device says");
    if let Event::LastBuffer { number } = event {
        ended.insert(number);
    }
    if let Some(failed) = rail.health.note(event, rail.port())
        && let Some((_, lane)) = endpoints.all().find(|(_, lane)| lane.queue_pair() == failed)
    {
        lane.break_off(Failure::known(Why::Ended));
    }
}

impl Effects for Doing<'_> {
    fn make(&mut self, generation: u32) -> Result<End, Errno> {
        if let Some(errno) = self.pair.unknown {
            return Err(errno);
        }
        if self.core.endpoints.lane(self.peer).is_some_and(|lane| lane.failure().is_some()) {
            // For good: of what was posted by it all were told.
            return Err(Errno::CONNABORTED);
        }
        let (queue, psn) = self.make_queue().map_err(|error| self.refused(&error))?;
        if self.peer != self.core.me {
            self.core.made.fetch_add(1, Relaxed);
        }
        let (peer, queue_pair, depth, inline) = (self.peer, queue.number(), queue.depth(), queue.inline());
        let received = self.pair.received;
        tracing::debug!(peer, generation, queue_pair, depth, inline, ?received, "queue pair made");
        self.pair.made = Some(Made { queue, start: Start { generation, psn, mtu: 128 << self.mtu() } });
        Ok(End { queue_pair, psn, received })
    }

    fn connect(&mut self, theirs: End) -> Result<(), Errno> {
        let Some(Made { queue, start }) = &self.pair.made else { return Err(Errno::NOTCONN) };
        let (rail, address) = (&self.core.rail, &self.addresses[self.peer]);
        let [initiated, served] = rail.initiated_and_served();
        let far = FarEnd {
            path: rail.path(address.datagrams.gid, address.datagrams.lid),
            mtu: self.mtu(),
            queue_pair: theirs.queue_pair,
            psn: theirs.psn,
            served: served.min(address.initiator_depth),
            initiated: initiated.min(address.responder_resources),
        };
        queue.connect(&rail.near_end(start.psn), &far).map_err(|error| self.refused(&error))?;
        self.pair.connected = Some((start.generation, theirs.psn));
        Ok(())
    }

    fn retire(&mut self) {
        let Doing { peer, pair, core, ended, .. } = self;
        let Some(polled) = pair.polled.clone() else { return };
        let connected = pair.connected.take();
        let mut end = |queue| end(queue, connected.is_some(), &polled, core, ended);
        let ended = match pair.made.take() {
            Some(made) => Some(end(made.queue)),
            None => core.endpoints.lane(*peer).and_then(|lane| lane.retire(&mut end)),
        };
        core.was_retired();
        // A lane that has ended took its queue pair along.
        if let (Some((generation, first)), Some(ended)) = (connected, ended) {
            match ended {
                Ok(next) => pair.received = pair.received.after(generation, first, next),
                Err(errno) => pair.unknown = Some(errno),
            }
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
