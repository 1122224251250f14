//! The queue pairs to a peer, one after the other: what the machine of that peer makes happen.

use super::address::Destination;
use super::core::Core;
use super::elsewhere::LaneQueue;
use super::machine::Effects;
use super::message::{End, MESSAGE, Message};
use crate::VerbsError;
use crate::datagram::{Post, Recipient};
use crate::lane::Start;
use crate::progress;
use crate::rail::{LastWord, Polled};
use crate::sys::{Event, FarEnd};
use crate::wr::{Failure, Received, Why, WorkQueue};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use transom_channel::wire::RAILS;
use transom_launch::lock;
use transom_launch::random;
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
    /// The rail of the last, counted from the lane's.
    pub by: u32,
    /// Where they complete, by the rail.
    polled: [Option<Arc<Polled>>; RAILS],
    /// The last generation of a connection to itself.
    own: u32,
}

pub(super) struct Made {
    pub queue: LaneQueue,
    pub start: Start,
}

/// What the machine of one peer makes happen.
pub(super) struct Doing<'a> {
    pub peer: Rank,
    pub pair: &'a mut Pair,
    pub post: &'a mut Post<MESSAGE>,
    pub core: &'a Arc<Core>,
}

/// A rail by which a peer is not heard for so long, though it is asked, does not reach it, if another does, by which it was heard so
/// lately: an adapter says so only when it has sent again for seconds.
pub(super) const UNHEARD: Duration = Duration::from_millis(500);
pub(super) const LATELY: Duration = Duration::from_secs(1);

/// The rail by which a lane of this one is made to a peer: this one, unless another is known to reach it, and this is not, and nothing
/// keeps the lane to it.
pub(super) fn choose(core: &Core, peer: Rank) -> u32 {
    let stays = core.endpoints.lane(peer).is_some_and(|lane| lane.stays());
    if !core.can_be_elsewhere() || stays || core.has_heard(peer, UNHEARD) {
        return 0;
    }
    let reaches = |by: &u32| core.instead(*by).is_some_and(|other| other.has_heard(peer, LATELY));
    (1..RAILS as u32).find(reaches).unwrap_or(0)
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

    /// What has the queue pair: the rail of the lane, or another.
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
            none => none.insert(self.core.rail.queues.elsewhere(of.rail.context(), &of.rail.health)?),
        };
        let (received, shared) = of.receives.ends()?;
        let queue = of.rail.queue_pair(polled, received, shared)?;
        // What one of the same number may have said.
        lock(&of.ended).remove(&queue.number());
        let queue = match by {
            0 => {
                self.core.receives.expect(queue.number(), self.peer as u32);
                LaneQueue::own(queue)
            }
            // No message comes by it.
            by => LaneQueue::elsewhere(queue, self.peer, by, of.clone(), self.core),
        };
        Ok((
            queue,
            u32::from_le_bytes(random().map_err(|source| VerbsError::system("random numbers", source))?) & 0xff_ffff,
        ))
    }
}

/// Ends a queue pair of a rail; the number of the packet that it expected next, if it was connected.
fn end(queue: LaneQueue, was_connected: bool, polled: &Polled, core: &Core, of: &Core) -> Result<u32, Errno> {
    let settle = || progress::settle(polled, &core.endpoints);
    let next = if was_connected && of.rail.last_word() != LastWord::None {
        received(&queue, core, of).map_err(|error| {
            tracing::error!(rank = core.me, %error, "what a connection has received is not known");
            error.errno().unwrap_or(Errno::IO)
        })
    } else {
        Err(Errno::OPNOTSUPP)
    };
    // What had completed has, though the queue pair goes; and nothing of it is told when it has gone.
    settle();
    core.receives.settle();
    let (number, elsewhere) = (queue.number(), queue.is_elsewhere());
    drop(queue);
    settle();
    core.receives.settle();
    if !elsewhere {
        core.receives.forget(number, was_connected);
    }
    next
}

/// First it is to take nothing more: what comes late must not be executed once the peer was told what was.
fn received(queue: &LaneQueue, core: &Core, of: &Core) -> Result<u32, VerbsError> {
    queue.pair.fail()?;
    if of.rail.last_word() == LastWord::Reset {
        queue.pair.reset()?;
        return queue.pair.next_psn();
    }
    let began = Instant::now();
    // The adapter, or its driver, may be in the midst of a packet.
    while !lock(&of.ended).remove(&queue.number()) {
        if began.elapsed() > END {
            let source = std::io::ErrorKind::TimedOut.into();
            return Err(VerbsError::system("a queue pair that does not end", source));
        }
        if !std::ptr::eq(core, of) {
            // Its own thread takes what that device says.
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

/// Takes what the device says unasked.
pub(super) fn heed(core: &Core) {
    let Core { me: rank, rail, endpoints, .. } = core;
    let event = match rail.context().event() {
        Ok(event) => event,
        Err(error) => return tracing::warn!(rank, %error, "an event of the RDMA device is lost"),
    };
    tracing::debug!(rank, ?event, "the RDMA device says");
    if let Event::LastBuffer { number } = event {
        lock(&core.ended).insert(number);
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
            // For good: of what was posted by it all were told.
            return Err(Errno::CONNABORTED);
        }
        let by = by.unwrap_or_else(|| choose(self.core, self.peer));
        let of = self.of(by)?;
        let (queue, psn) = self.make_queue(by, &of).map_err(|error| self.refused(&error))?;
        if by > 0 && self.core.endpoints.lane(self.peer).is_some_and(|lane| !lane.fits(&queue)) {
            tracing::error!(peer = self.peer, by, "another rail's queue pairs take less than the first's");
            return Err(Errno::NOSPC);
        }
        if self.peer != self.core.me {
            self.core.made.fetch_add(1, Relaxed);
        }
        let (peer, queue_pair, depth, inline) = (self.peer, queue.number(), queue.depth(), queue.inline());
        let received = self.pair.received;
        tracing::debug!(peer, generation, by, queue_pair, depth, inline, ?received, "queue pair made");
        self.pair.by = by;
        self.pair.made = Some(Made { queue, start: Start { generation, psn, mtu: 128 << self.mtu(&of) } });
        Ok(End { by, queue_pair, psn, received })
    }

    fn connect(&mut self, theirs: End) -> Result<(), Errno> {
        let Some(Made { queue, start }) = &self.pair.made else { return Err(Errno::NOTCONN) };
        let of = self.of(self.pair.by).ok().filter(|_| theirs.by == self.pair.by).ok_or(Errno::INVAL)?;
        let (rail, address) = (&of.rail, &of.addresses[self.peer]);
        let [initiated, served] = rail.initiated_and_served();
        let far = FarEnd {
            path: rail.path(address.datagrams.gid, address.datagrams.lid),
            mtu: self.mtu(&of),
            queue_pair: theirs.queue_pair,
            psn: theirs.psn,
            served: served.min(address.initiator_depth),
            initiated: initiated.min(address.responder_resources),
        };
        queue.pair.connect(&rail.near_end(start.psn), &far).map_err(|error| self.refused(&error))?;
        self.pair.connected = Some((start.generation, theirs.psn));
        Ok(())
    }

    fn retire(&mut self) {
        let Ok(of) = self.of(self.pair.by) else { return };
        let Doing { peer, pair, core, .. } = self;
        let Some(polled) = pair.polled[pair.by as usize].clone() else { return };
        let connected = pair.connected.take();
        let end = |queue| end(queue, connected.is_some(), &polled, core, &of);
        let ended = match pair.made.take() {
            Some(made) => Some(end(made.queue)),
            None => core.endpoints.lane(*peer).and_then(|lane| lane.retire(end)),
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
        say(self.post, self.core, self.peer, message, None);
        // This rail may be cut.
        let by_others = match message {
            Message::Request { mine, .. } | Message::Reply { mine, .. } => mine.by > 0,
            Message::Reject { .. } | Message::Atomic { .. } | Message::Answer { .. } => true,
            Message::Retire { .. } | Message::Retired { .. } => true,
            Message::Probe | Message::Alive => false,
        };
        if by_others && let Some(of) = self.core.number() {
            self.core.others().for_each(|other| other.say(self.peer, of, message));
        }
    }
}

/// Says something by a rail; `of`: the rail whose connection it is of, if this is another.
pub(super) fn say(post: &mut Post<MESSAGE>, core: &Core, peer: Rank, message: Message, of: Option<usize>) {
    let (rank, address) = (core.me, &core.addresses[peer]);
    let sealed = message.seal(rank, peer, of, &address.secret);
    let Destination { gid, lid, queue_pair, key } = address.datagrams;
    let to = Recipient { path: core.rail.path(gid, lid), queue_pair, key };
    if let Err(error) = post.send(peer, &to, &sealed) {
        // As if it were lost; that the peer is silent is told in its time.
        tracing::debug!(rank, peer, %error, ?message, "not sent");
    }
}
