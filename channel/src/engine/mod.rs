//! One rank's channel: its parts, driven over a wire.
//!
//! The state is in `parts` and in the record of each peer (`peer`). The other files drive it: `rx` handles
//! arrivals, `tx` posts requests, `short` and `direct` are fast paths for short and long messages that bypass
//! both.

mod connections;
mod credits;
mod direct;
mod fail;
mod failover;
mod inspect;
mod parts;
mod peer;
mod peers;
mod pipes;
mod post;
mod rendezvous;
mod request;
mod rings;
mod route;
mod rx;
mod short;
mod tx;

pub use inspect::{Channels, Waits};
pub use pipes::AtPeer;
pub use request::{Cancelled, Completion, RecvTarget};
pub use short::{RecvBuf, RecvInfo, Short};

use crate::config::{Config, Misconfigured};
use crate::counters::Counters;
use crate::credit::Budget;
use crate::error::{Error, PeerFailure, Status};
use crate::matching::{Matching, Select};
use crate::packet::Envelope;
use crate::polling::PollingSet;
use crate::rendezvous::Sending;
use crate::slab::Id;
use crate::wire::{Lane, RAILS, Rank, Wire};
use parts::Each;
use parts::connections::Connections;
use parts::credits::CreditPool;
use parts::failures::Failures;
use parts::pipes::Pipes;
use parts::requests::Requests;
use parts::rings::Polling;
use parts::transmit::TransmitList;
use peer::Peer;
use peers::Peers;
use request::{Receive, Request, Send, Unexpected};
use route::Routes;
use std::ops::RangeInclusive;

/// The channel of one rank. No call blocks: calls start requests, [`progress`](Self::progress) advances them,
/// [`next_ended`](Self::next_ended) returns those that have ended, and [`take`](Self::take) returns an ended
/// request with its memory.
pub struct Engine<W: Wire> {
    wire: W,
    rank: Rank,
    config: Config,
    routes: Each<Routes>,
    peers: Peers<W::Memory>,
    requests: Requests<W::Memory>,
    matching: Matching<Id, Unexpected<W::Memory>>,
    credits: CreditPool,
    polling: Polling,
    connections: Connections,
    transmit: TransmitList,
    failures: Failures,
    /// Peers that wait for the number of packets received on cut rails.
    answers: Vec<Rank>,
    pipes: Pipes<W::Memory>,
    /// True if a message has arrived outside a progress call, or data by a pipe.
    has_news: bool,
    counters: Counters,
}

impl<W: Wire> Engine<W> {
    /// The channel of `rank` among `ranks`.
    pub fn new(wire: W, rank: Rank, ranks: Rank, config: Config) -> Result<Engine<W>, Misconfigured> {
        let near = config.clone();
        Engine::with_near(wire, rank, ranks, config, near)
    }

    /// The channel of `rank` among `ranks`, where [near](Wire::is_near) peers have rules, rings and windows
    /// of their own. For those peers the engine takes from `near` the fields for rules and windows, and for
    /// the size, number and creation of rings. All other fields come from `config`.
    pub fn with_near(
        wire: W,
        rank: Rank,
        ranks: Rank,
        mut config: Config,
        near: Config,
    ) -> Result<Engine<W>, Misconfigured> {
        let rails = Each::of(|near| wire.rails(near));
        let count = rails.both().map(|rails| rails.len()).into_iter().max().unwrap_or(0);
        if !(1..=RAILS).contains(&count) {
            return Err(Misconfigured::Value { field: "rails", value: count.to_string(), must: "1 to 4" });
        }
        config.check()?;
        near.check()?;
        let of = |is_near| if is_near { &near } else { &config };
        // A marker may be supported by the rails of near peers alone, or of the others alone: it is used
        // where it is.
        let with_rings = [false, true].into_iter().filter(|near| !rails[*near].is_empty() && of(*near).rings > 0);
        let is_kept = |near| Routes::marker(of(near), rails[near], wire.fails_over()) == of(near).marker;
        let (kept, not): (Vec<_>, Vec<_>) =
            with_rings.filter(|near| of(*near).marker.is_some()).partition(|near| is_kept(*near));
        if let ([], Some(marker)) = (&kept[..], not.first().and_then(|near| of(*near).marker)) {
            return Err(Misconfigured::marker(marker));
        }
        if config.checksum {
            // Packets in rings have no checksum.
            config.rings = 0;
        }
        let of = |is_near| if is_near { &near } else { &config };
        let routes = Each::of(|near| Routes::new(of(near), rank, rails[near], wire.fails_over()));
        let polling = Each::of(|near| PollingSet::new(routes[near].rings, of(near).ring_after, of(near).order));
        Ok(Engine {
            wire,
            rank,
            routes,
            peers: Peers::default(),
            requests: Requests::default(),
            matching: Matching::default(),
            credits: CreditPool::new(Budget::new(config.floor, config.budget, config.overdraft)),
            polling: Polling::new(polling),
            connections: Connections::new(config.connections, config.connect_after, config.order, config.count_windows),
            transmit: TransmitList::default(),
            failures: Failures::new(rank, ranks),
            answers: Vec::new(),
            pipes: Pipes::default(),
            has_news: false,
            counters: Counters::default(),
            config,
        })
    }

    /// Announces that a peer will send, so that it gets a ring with its first packet; see
    /// [`PollingSet::hint`].
    pub fn expect(&mut self, rank: Rank) {
        if self.failures.check_rank(rank).is_ok() {
            self.polling.sets[self.wire.is_near(rank)].hint(rank);
        }
    }

    /// Restricts these contexts to messages from `members`: the loss of another rank does not end receives
    /// from any source there.
    pub fn team(&mut self, contexts: RangeInclusive<u32>, members: impl IntoIterator<Item = Rank>) {
        self.failures.teams.open(contexts, members);
    }

    /// Closes these contexts: no receive is posted there, now or later. Unreceived messages there are
    /// discarded, and so are later arrivals. Their credit is returned, and a sender that waits for its
    /// message to be received gets [`Error::Discarded`].
    pub fn disband(&mut self, contexts: RangeInclusive<u32>) {
        self.failures.teams.close(contexts.clone());
        for message in self.matching.discard(|label, _| contexts.contains(&label.context)) {
            self.release(message.from, message.cost());
            self.discard(message);
        }
    }

    /// Starts to send the first `length` bytes of `memory`, which is returned when the request completes. A
    /// synchronous send completes after its message was matched.
    pub fn send(&mut self, to: Rank, context: u32, tag: u32, memory: W::Memory, length: usize, sync: bool) -> Id {
        let envelope = Envelope { context, tag, length: length as u64 };
        let reached = self.reach(to);
        let send = Send { to, envelope, sync, memory, state: Sending::Queued, keys: None, receiver: None, timed: None };
        let id = self.requests.insert(Request::Send(send));
        match reached {
            Ok(()) if self.announce(id, to) => {}
            Ok(()) => {
                self.peers.get_mut(&to).expect("the peer is known").tx.message(id);
                self.list(to);
                self.flush(to);
            }
            Err(error) => self.complete(id, Err(error)),
        }
        id
    }

    /// Starts to receive a message.
    pub fn receive(&mut self, select: Select, room: RecvTarget<W::Memory>) -> Id {
        let id = self.requests.insert(Request::Receive(Receive::new(room)));
        self.post_receive(id, select);
        id
    }

    /// Removes the first arrived message that matches `select` from the matching; it can then be received
    /// only by its number, with [`receive_message`](Self::receive_message). Fails if there is none and its
    /// source is lost. For any source, an unreported death is an error once all messages of that rank are
    /// received, whatever others have sent.
    pub fn try_probe(&mut self, select: Select) -> Result<Option<(Id, Status)>, Error> {
        let narrowed = self.failures.narrowed(select);
        let Some((label, message)) = self.matching.take(narrowed) else { return self.nothing(select) };
        let status = Status { peer: label.source, tag: label.tag, length: message.envelope.length };
        Ok(Some((self.requests.insert(Request::Message(message)), status)))
    }

    /// The first arrived message that matches `select`. Fails like [`try_probe`](Self::try_probe).
    pub fn peek(&mut self, select: Select) -> Result<Option<Status>, Error> {
        let narrowed = self.failures.narrowed(select);
        let Some((label, message)) = self.matching.peek(narrowed) else { return self.nothing(select) };
        Ok(Some(Status { peer: label.source, tag: label.tag, length: message.envelope.length }))
    }

    /// Result if no arrived message matches `select`. The departure of all other ranks is no error for a
    /// caller that polls.
    fn nothing<T>(&mut self, select: Select) -> Result<Option<T>, Error> {
        match self.never(select) {
            Some(Error::PeerFailure { lost: PeerFailure::Left, .. }) if select.source.is_none() => Ok(None),
            Some(error) => Err(error),
            None => Ok(None),
        }
    }

    /// The reason why no message that matches `select` can arrive; `None` if one can. For any source, each
    /// death is reported once.
    pub fn never(&mut self, select: Select) -> Option<Error> {
        self.failures.never(select)
    }

    /// Receives a message that a probe has removed from the matching ([`try_probe`](Self::try_probe), or a
    /// receive into [`RecvTarget::Probe`]). The request keeps its number.
    pub fn receive_message(
        &mut self,
        id: Id,
        room: RecvTarget<W::Memory>,
    ) -> Result<(), (Error, RecvTarget<W::Memory>)> {
        let message = self.requests.receive_message(id, room).map_err(|room| (Error::NoMessage, room))?;
        self.matched(id, message, false);
        Ok(())
    }

    /// Withdraws a receive, unless it was matched. Exactly one of the two happens: the receive is withdrawn, and does
    /// not complete; or it completes, and has its message.
    pub fn cancel(&mut self, id: Id) -> Cancelled<W::Memory> {
        let number = match self.requests.get(id) {
            Some(Request::Receive(Receive { posted: Some(number), .. })) => number,
            Some(Request::Piped(pipe)) => return self.withdraw_piped(*pipe, id),
            _ => return Cancelled::TooLate,
        };
        let withdrawn = self.matching.cancel(*number);
        debug_assert_eq!(withdrawn, Some(id));
        match self.requests.remove(id) {
            Some(Request::Receive(receive)) => Cancelled::Withdrawn(receive.room.into_memory()),
            _ => Cancelled::TooLate,
        }
    }

    /// Handles arrivals and posts what can be sent, a bounded amount. Returns the number of steps done.
    pub fn progress(&mut self) -> usize {
        self.count_the_row();
        self.polling.begin_turn();
        let mut work =
            self.take_events() + self.poll_rings() + self.poll_credits() + self.post_listed() + self.turn_pipes();
        // Completions of these requests are queued already, and need not wait for another progress call.
        if self.transmit.take_moved() {
            work += self.take_events() + self.post_listed();
        }
        self.report_credits();
        work
    }

    /// Returns true if something has arrived since the last call that neither the count of
    /// [`progress`](Self::progress) nor an ended request shows: another call has handled it, or it came by a
    /// pipe.
    #[inline]
    pub fn take_news(&mut self) -> bool {
        std::mem::take(&mut self.has_news)
    }

    /// Returns true if there is a [next ended request](Self::next_ended).
    #[inline(always)]
    pub fn has_ended(&self) -> bool {
        self.requests.has_ended()
    }

    /// A request that has ended, or a receive into [`RecvTarget::Probe`] that has its message, returned once. It is
    /// kept until it is [taken](Self::take), or received.
    #[inline]
    pub fn next_ended(&mut self) -> Option<Id> {
        self.requests.next_ended()
    }

    /// Result of a request that has ended; `None` while it is in flight and once it was taken.
    #[inline]
    pub fn outcome(&self, id: Id) -> Option<&Result<Status, Error>> {
        match self.requests.get(id)? {
            Request::Over(result, _) => Some(result),
            _ => None,
        }
    }

    /// Takes a request that has ended, with its memory.
    #[inline]
    pub fn take(&mut self, id: Id) -> Option<Completion<W::Memory>> {
        self.requests.take(id)
    }

    /// Same as [`take`](Self::take), for a request that has ended without an error.
    #[inline]
    pub fn take_well(&mut self, id: Id) -> Option<(Status, Option<W::Memory>)> {
        self.requests.take_well(id)
    }

    /// The next request that has ended and was not taken, taken; or a receive into [`RecvTarget::Probe`] that has its
    /// message.
    pub fn completed(&mut self) -> Option<Completion<W::Memory>> {
        loop {
            let id = self.next_ended()?;
            let probed = |status| Completion { id, result: Ok(status), memory: None };
            if let Some(completion) = self.take(id).or_else(|| self.probed(id).map(probed)) {
                return Some(completion);
            }
        }
    }

    /// Creates the record of a peer, and requests its first rails.
    fn reach(&mut self, rank: Rank) -> Result<(), Error> {
        self.failures.check_rank(rank)?;
        if !self.peers.contains_key(&rank) {
            let near = self.wire.is_near(rank);
            let routes = &mut self.routes[near];
            routes.add_peer();
            self.peers.insert(rank, Peer::new(self.rank, rank, near, &self.config, routes));
            for rail in routes.first() {
                self.connect(Lane { peer: rank, rail });
            }
        }
        Ok(())
    }

    fn connect(&mut self, lane: Lane) {
        if self.peers.get_mut(&lane.peer).is_some_and(|peer| peer.lanes.ask(lane.rail)) {
            self.wire.connect(lane);
        }
    }

    /// Ends a send or a receive, and releases its registrations.
    fn complete(&mut self, id: Id, result: Result<Status, Error>) {
        if let Some((peer, keys)) = self.requests.complete(id, result) {
            for (rail, key) in keys.into_iter().enumerate() {
                key.into_iter().for_each(|key| self.wire.release(Lane { peer, rail }, key));
            }
        }
    }
}
