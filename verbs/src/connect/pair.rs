//! The successive queue pairs to one peer: the effects of that peer's machine.

use super::address::Destination;
use super::core::{Core, UNORDERED};
use super::failover_qp::LaneQueue;
use super::joining::{self, Join};
use super::machine::Effects;
use super::message::{End, MESSAGE, Message};
use crate::VerbsError;
use crate::datagram::{Post, Recipient};
use crate::lane::Start;
use crate::progress;
use crate::rail::{LastWord, Polled};
use crate::sys::{Event, FarEnd, NearEnd};
use crate::wr::{Failure, Received, Why, WorkQueue};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use transom_channel::wire::RAILS;
use transom_launch::lock;
use transom_launch::random;
use transom_locks::Rank;

/// Number of waits of a millisecond for a failed queue pair to report its last WQE; it only has to finish earlier work.
/// A time would pass while the process is stopped.
const ENDS_WITHIN: u32 = 2000;

/// The queue pair to a peer, and the received position of earlier ones.
#[derive(Default)]
pub(super) struct Pair {
    /// The queue pair until both ends are connected; then the lane owns it.
    pub made: Option<Made>,
    /// Generation of the connected queue pair, and the first PSN that it expects.
    connected: Option<(u32, u32)>,
    /// Received position of the retired queue pairs.
    pub received: Received,
    /// The error because of which that position is unknown; no further queue pair is made then.
    unknown: Option<Errno>,
    /// Rail of the last queue pair, counted from the lane's.
    pub by: u32,
    /// Completion queues by rail.
    polled: [Option<Arc<Polled>>; RAILS],
    /// Last generation of this rank's connection to itself.
    own: u32,
}

pub(super) struct Made {
    pub queue: LaneQueue,
    pub start: Start,
}

/// The effects of one peer's machine.
pub(super) struct Doing<'a> {
    pub peer: Rank,
    pub pair: &'a mut Pair,
    pub post: &'a mut Post<MESSAGE>,
    pub core: &'a Arc<Core>,
}

/// A rail does not reach a peer if the peer has not answered a probe on it for [`UNHEARD`], while it answered on
/// another rail within [`LATELY`]. The adapter itself reports an unreachable peer only after seconds of retransmission.
pub(super) const UNHEARD: Duration = Duration::from_millis(500);
pub(super) const LATELY: Duration = Duration::from_secs(1);

/// The rail for a lane to a peer: this one, unless another is known to reach the peer and this one is not, and the lane
/// may fail over.
pub(super) fn choose(core: &Core, peer: Rank) -> u32 {
    let stays = core.endpoints.lane(peer).is_some_and(|lane| lane.stays());
    if !core.can_fail_over() || stays || core.has_heard(peer, UNHEARD) {
        return 0;
    }
    let reaches = |by: &u32| core.instead(*by).is_some_and(|other| other.has_heard(peer, LATELY));
    (1..RAILS as u32).find(reaches).unwrap_or(0)
}

impl Pair {
    /// The next generation of this rank's connection to itself, which has no machine because both ends are local.
    pub fn next_generation(&mut self) -> u32 {
        self.own += 1;
        self.own
    }
}

impl Doing<'_> {
    fn refused(&self, error: &VerbsError) -> Errno {
        tracing::error!(rank = self.core.me, peer = self.peer, %error, "cannot connect to a peer");
        error.errno().unwrap_or(Errno::IO)
    }

    /// The core of a rail: the lane's own, or another.
    fn of(&self, by: u32) -> Result<Arc<Core>, Errno> {
        if by == 0 { Ok(self.core.clone()) } else { self.core.instead(by).ok_or(Errno::INVAL) }
    }

    fn mtu(&self, of: &Core) -> u32 {
        u32::from(of.addresses[self.peer].mtu).min(of.rail.mtu())
    }

    fn make_queue(&mut self, by: u32, of: &Arc<Core>) -> Result<(LaneQueue, u32), VerbsError> {
        let polled = match &mut self.pair.polled[by as usize] {
            Some(polled) => polled,
            none if by == 0 => none.insert(of.rail.queues.take()?),
            none => none.insert(self.core.rail.queues.failover(of.rail.context(), &of.rail.health)?),
        };
        let (received, shared) = of.receives.ends()?;
        let queue = of.rail.queue_pair(polled, received, shared)?;
        // Discards the event of an earlier queue pair with the same number.
        lock(&of.ended).remove(&queue.number());
        let queue = match by {
            0 => {
                self.core.receives.expect(queue.number(), self.peer as u32);
                LaneQueue::own(queue)
            }
            // A failover queue pair carries no messages.
            by => LaneQueue::failover(queue, self.peer, by, of.clone(), self.core),
        };
        Ok((
            queue,
            u32::from_le_bytes(random().map_err(|source| VerbsError::system("drawing random numbers", source))?)
                & 0xff_ffff,
        ))
    }
}

impl Doing<'_> {
    /// The parameters of both ends of the connection.
    fn ends(&self, theirs: End) -> Result<(NearEnd, FarEnd), Errno> {
        let Some(Made { start, .. }) = &self.pair.made else { return Err(Errno::NOTCONN) };
        let of = self.of(self.pair.by).ok().filter(|_| theirs.by == self.pair.by).ok_or(Errno::INVAL)?;
        let (rail, address, to) = (&of.rail, &of.addresses[self.peer], of.destination(self.peer));
        let [initiated, served] = rail.initiated_and_served();
        let far = FarEnd {
            path: rail.path(to.gid, to.lid),
            mtu: self.mtu(&of),
            queue_pair: theirs.queue_pair,
            psn: theirs.psn,
            served: served.min(address.initiator_depth),
            initiated: initiated.min(address.responder_resources),
        };
        Ok((rail.near_end(start.psn), far))
    }

    /// Connects the queue pair to the peer's, by this thread.
    pub fn connect_now(&mut self, theirs: End) -> Result<(), Errno> {
        let (near, far) = self.ends(theirs)?;
        let Some(Made { queue, .. }) = &self.pair.made else { return Err(Errno::NOTCONN) };
        let connected = queue.pair.connect(&near, &far);
        self.is_connected(theirs, connected)
    }

    /// Records the outcome of connecting the queue pair to the peer's.
    pub fn is_connected(&mut self, theirs: End, outcome: Result<(), VerbsError>) -> Result<(), Errno> {
        outcome.map_err(|error| self.refused(&error))?;
        let Some(Made { queue, start }) = &self.pair.made else { return Err(Errno::NOTCONN) };
        if self.of(self.pair.by)?.rail.writes.in_order && !queue.pair.writes_in_order() {
            tracing::error!(
                rank = self.core.me,
                peer = self.peer,
                "the RDMA device promised ordered writes at the start, but not on this connection; set \
                 TRANSOM_VERBS_WORD_WRITE=atomic at all ranks"
            );
            return Err(UNORDERED);
        }
        self.pair.connected = Some((start.generation, theirs.psn));
        Ok(())
    }

    /// Destroys a queue pair that was never used.
    pub fn discard(&mut self, queue: LaneQueue) {
        let (number, failover) = (queue.number(), queue.is_failover());
        drop(queue);
        if !failover {
            self.core.receives.forget(number, false);
        }
    }
}

/// Ends a queue pair of a rail; returns the PSN that it expected next, if it was connected.
fn end(queue: LaneQueue, was_connected: bool, polled: &Polled, core: &Core, of: &Core) -> Result<u32, Errno> {
    let settle = || progress::settle(polled, &core.endpoints);
    let next = if was_connected && of.rail.last_word() != LastWord::None {
        received(&queue, core, of).map_err(|error| {
            tracing::error!(rank = core.me, %error, "the received position of a connection is unknown");
            error.errno().unwrap_or(Errno::IO)
        })
    } else {
        Err(Errno::OPNOTSUPP)
    };
    // Takes the completions that are available before the queue pair is destroyed; afterwards none of them are
    // reported.
    settle();
    core.receives.settle();
    drop(queue);
    settle();
    core.receives.settle();
    next
}

/// Stops reception before reading the received position: a late packet must not be executed after that position is
/// reported to the peer.
fn received(queue: &LaneQueue, core: &Core, of: &Core) -> Result<u32, VerbsError> {
    queue.pair.fail()?;
    if of.rail.last_word() == LastWord::Reset {
        queue.pair.reset()?;
        return queue.pair.next_psn();
    }
    // The adapter or its driver may be processing a packet.
    let mut waits = 0;
    while !lock(&of.ended).remove(&queue.number()) {
        waits += 1;
        if waits > ENDS_WITHIN {
            let source = std::io::ErrorKind::TimedOut.into();
            return Err(VerbsError::system("waiting for the last WQE of a queue pair", source));
        }
        if !std::ptr::eq(core, of) {
            // Another rail's thread reads the events of that device.
            std::thread::sleep(Duration::from_millis(1));
            continue;
        }
        let context = core.rail.context();
        let said =
            poll(&mut [PollFd::new(&**context, PollFlags::IN)], Some(&Timespec { tv_sec: 0, tv_nsec: 1_000_000 }));
        if said.is_ok_and(|said| said > 0) {
            heed(core);
        }
    }
    queue.pair.next_psn()
}

/// Handles one asynchronous event of the device.
pub(super) fn heed(core: &Core) {
    let Core { me: rank, rail, endpoints, .. } = core;
    let event = match rail.context().event() {
        Ok(event) => event,
        Err(error) => return tracing::warn!(rank, %error, "cannot read an event of the RDMA device"),
    };
    tracing::debug!(rank, ?event, "event of the RDMA device");
    match event {
        Event::LastBuffer { number } => _ = lock(&core.ended).insert(number),
        Event::Address { port, .. } if port == rail.port() => core.read_own_address(),
        _ => {}
    }
    if let Some(failed) = rail.health.note(event, rail.port())
        && let Some((_, lane)) = endpoints.all().find(|(_, lane)| lane.has_own(failed))
    {
        lane.break_off(Failure::known(Why::Ended));
    }
}

impl Effects for Doing<'_> {
    fn make(&mut self, generation: u32, by: Option<u32>) -> Result<End, Errno> {
        if let Some(errno) = self.pair.unknown {
            return Err(errno);
        }
        if self.core.endpoints.lane(self.peer).is_some_and(|lane| lane.failure().is_some()) {
            // The lane has failed for good: its requests were reported as failed.
            return Err(Errno::CONNABORTED);
        }
        let by = by.unwrap_or_else(|| choose(self.core, self.peer));
        let of = self.of(by)?;
        let (queue, psn) = self.make_queue(by, &of).map_err(|error| self.refused(&error))?;
        if by > 0 && self.core.endpoints.lane(self.peer).is_some_and(|lane| !lane.fits(&queue)) {
            tracing::error!(
                peer = self.peer,
                by,
                "cannot fail over: the other rail's queue pairs have a lower capacity"
            );
            return Err(Errno::NOSPC);
        }
        if self.peer != self.core.me {
            self.core.made.fetch_add(1, Relaxed);
        }
        let (peer, queue_pair, depth, inline) = (self.peer, queue.number(), queue.depth(), queue.inline());
        let received = self.pair.received;
        tracing::debug!(peer, generation, by, queue_pair, depth, inline, ?received, "queue pair created");
        self.pair.by = by;
        self.pair.made = Some(Made { queue, start: Start { generation, psn, mtu: 128 << self.mtu(&of) } });
        Ok(End { by, queue_pair, psn, received })
    }

    fn connect(&mut self, theirs: End) -> Result<bool, Errno> {
        let (near, far) = self.ends(theirs)?;
        // Without a GRH there is no address to resolve.
        if far.path.global.is_some()
            && let Some(made) = self.pair.made.take()
        {
            joining::begin(self.core, Join { peer: self.peer, made, near, far });
            return Ok(false);
        }
        self.connect_now(theirs).map(|()| true)
    }

    fn retire(&mut self) {
        let Ok(of) = self.of(self.pair.by) else { return };
        let Doing { peer, pair, core, .. } = self;
        let Some(polled) = pair.polled[pair.by as usize].clone() else { return };
        let connected = pair.connected.take();
        // The peer sent no incomplete message on a connection that was given up.
        let may_have_consumed =
            connected.is_some() && !core.endpoints.lane(*peer).is_some_and(|lane| lane.is_dormant());
        let end = |queue: LaneQueue| {
            let (number, failover) = (queue.number(), queue.is_failover());
            let ended = end(queue, connected.is_some(), &polled, core, &of);
            if !failover {
                core.receives.forget(number, may_have_consumed);
            }
            ended
        };
        let ended = match pair.made.take().or_else(|| core.joining.abandon(*peer)) {
            Some(made) => Some(end(made.queue)),
            None => core.endpoints.lane(*peer).and_then(|lane| lane.retire(end)),
        };
        core.was_retired();
        // A lane that has ended destroyed its queue pair.
        if let (Some((generation, first)), Some(ended)) = (connected, ended) {
            match ended {
                Ok(next) => pair.received = pair.received.after(generation, first, next),
                Err(errno) => pair.unknown = Some(errno),
            }
        }
    }

    fn drained(&mut self) -> bool {
        progress::poll(&self.core.rail, &self.core.endpoints);
        // A queue pair that the lane does not have yet carries no requests.
        self.pair.made.is_some() || self.core.endpoints.lane(self.peer).is_none_or(|lane| lane.drain())
    }

    fn send(&mut self, message: Message) {
        // A peer that missed the announcements could not answer.
        if let Message::Request { .. } | Message::Reply { .. } = message
            && let Some(moved) = self.core.moves.last(self.core.me)
        {
            self.send(Message::Moved(moved));
        }
        say(self.post, self.core, self.peer, message, None);
        // Relays the message over the other rails too, because this rail may be down.
        let by_others = match message {
            Message::Request { mine, .. } | Message::Reply { mine, .. } => mine.by > 0,
            Message::Reject { .. } | Message::Atomic { .. } | Message::Answer { .. } => true,
            Message::Retire { .. } | Message::Retired { .. } | Message::Moved(_) => true,
            Message::Probe | Message::Alive | Message::Spare { .. } | Message::Drained { .. } => false,
        };
        if by_others && let Some(of) = self.core.number() {
            self.core.others().for_each(|other| other.say(self.peer, of, message));
        }
    }
}

/// Sends a message on a rail; `of`: the rail of the connection, if it is another.
pub(super) fn say(post: &mut Post<MESSAGE>, core: &Core, peer: Rank, message: Message, of: Option<usize>) {
    let rank = core.me;
    let sealed = message.seal(rank, peer, of, &core.addresses[peer].secret);
    let Destination { gid, lid, queue_pair, key } = core.destination(peer);
    let to = Recipient { path: core.rail.path(gid, lid), queue_pair, key };
    if let Err(error) = post.send(peer, &to, &sealed) {
        // Same as a lost datagram: the silence of the peer is logged later.
        tracing::debug!(rank, peer, %error, ?message, "a connection message was not sent");
    }
}
