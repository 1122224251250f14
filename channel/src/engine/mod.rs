//! One rank's channel: all machines together, over a wire.

mod arrive;
mod cuts;
mod depart;
mod direct;
mod fail;
mod failover;
mod links;
mod peer;
mod peers;
mod pipes;
mod receive;
mod request;
mod route;
mod short;
mod waits;

pub use links::Channels;
pub use pipes::Kept;
pub use request::{Cancelled, Completion, Room};
pub use short::{Short, Space, Taken};
pub use waits::Waits;

use crate::config::{Config, Misconfigured};
use crate::credit::Budget;
use crate::error::{Error, Lost, Status};
use crate::matching::{Matching, Select};
use crate::meter::Meter;
use crate::packet::Envelope;
use crate::polling::PollingSet;
use crate::rendezvous::Sending;
use crate::rules::Path;
use crate::slab::{Id, Slab};
use crate::teams::Teams;
use crate::wire::{Lane, RAILS, RailKind, Rank, Wire};
use peer::Peer;
use peers::Peers;
use pipes::Pipes;
use request::{Receive, Request, Send, Unexpected};
use route::{Each, Routes};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::ops::RangeInclusive;

/// The channel of one rank. Nothing here waits: calls start requests, [`progress`](Self::progress) turns the wheels,
/// [`next_ended`](Self::next_ended) tells what has ended, and [`take`](Self::take) gives it back, with its memory.
pub struct Engine<W: Wire> {
    wire: W,
    rank: Rank,
    ranks: Rank,
    config: Config,
    routes: Each<Routes>,
    peers: Peers<W::Memory>,
    lost: HashMap<Rank, Lost>,
    /// Ranks that died, and in which contexts a receive from any source was told of it.
    dead: Vec<(Rank, BTreeSet<u32>)>,
    teams: Teams,
    requests: Slab<Request<W::Memory>>,
    matching: Matching<Id, Unexpected<W::Memory>>,
    /// Those that have rings.
    polling: Each<PollingSet>,
    /// The peers that have connections, where there are datagrams too.
    connected: PollingSet,
    budget: Budget,
    /// Peers for whom something is to be posted.
    listed: VecDeque<Rank>,
    /// Peers that credits are owed to.
    owing: VecDeque<Rank>,
    /// Peers that something waits for, and whose values this rank reads beside their rings.
    heard: Vec<Rank>,
    /// Requests that have ended, as they did; and how many of them are kept until somebody takes them.
    ended: VecDeque<Id>,
    over: usize,
    pipes: Pipes<W::Memory>,
    /// Peers that are to be told what came by lanes that were cut.
    answers: Vec<Rank>,
    kept: u64,
    /// This processor has moved something itself.
    has_moved: bool,
    /// Something has come outside a turn, or by a pipe.
    has_news: bool,
    /// Short receives since the last turn; those that the polling set was told of; and whose the others are.
    in_a_row: u32,
    counted: u32,
    row_of: Rank,
    /// For the ranks that are polled in a turn.
    turn: Vec<Rank>,
    meter: Meter,
}

impl<W: Wire> Engine<W> {
    /// The channel of `rank` among `ranks`.
    pub fn new(wire: W, rank: Rank, ranks: Rank, config: Config) -> Result<Engine<W>, Misconfigured> {
        let near = config.clone();
        Engine::with_near(wire, rank, ranks, config, near)
    }

    /// The channel of `rank` among `ranks`, where peers that are [near](Wire::is_near) have rules, rings and windows of their own: the
    /// fields of `near` that say what these are like, how many there are, and when they are made. All else is as `config` says.
    pub fn with_near(
        wire: W,
        rank: Rank,
        ranks: Rank,
        config: Config,
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
        // What the rails to neighbours keep and those to the others do not, or the other way, is chosen where it can be.
        let with_rings = [false, true].into_iter().filter(|near| !rails[*near].is_empty() && of(*near).rings > 0);
        let is_kept = |near| Routes::marker(of(near), rails[near], wire.fails_over()) == of(near).marker;
        let (kept, not): (Vec<_>, Vec<_>) =
            with_rings.filter(|near| of(*near).marker.is_some()).partition(|near| is_kept(*near));
        if let ([], Some(marker)) = (&kept[..], not.first().and_then(|near| of(*near).marker)) {
            return Err(Misconfigured::marker(marker));
        }
        let routes = Each::of(|near| Routes::new(of(near), rank, rails[near], wire.fails_over()));
        let polling = Each::of(|near| {
            let rings = if routes[near].marker.is_some() { of(near).rings } else { 0 };
            PollingSet::new(rings, of(near).ring_after, of(near).order)
        });
        Ok(Engine {
            wire,
            rank,
            ranks,
            routes,
            peers: Peers::default(),
            lost: HashMap::new(),
            dead: Vec::new(),
            teams: Teams::default(),
            requests: Slab::default(),
            matching: Matching::default(),
            polling,
            connected: PollingSet::new(config.connections, config.connect_after, config.order),
            budget: Budget::new(config.floor, config.budget, config.overdraft),
            listed: VecDeque::new(),
            owing: VecDeque::new(),
            heard: Vec::new(),
            ended: VecDeque::new(),
            over: 0,
            pipes: Pipes::default(),
            answers: Vec::new(),
            kept: 0,
            has_moved: false,
            has_news: false,
            in_a_row: 0,
            counted: 0,
            row_of: Rank::MAX,
            turn: Vec::new(),
            meter: Meter::default(),
            config,
        })
    }

    /// Says that a peer will speak, so that it gets a ring with its first packet; see [`PollingSet::hint`].
    pub fn expect(&mut self, rank: Rank) {
        if rank < self.ranks && !self.lost.contains_key(&rank) {
            self.polling[self.wire.is_near(rank)].hint(rank);
        }
    }

    /// Says that only these ranks send in these contexts: receives from any source there are no concern of the others.
    pub fn team(&mut self, contexts: RangeInclusive<u32>, members: impl IntoIterator<Item = Rank>) {
        self.teams.open(contexts, members);
    }

    /// Closes these contexts: no receive is posted there, nor will be. Unreceived messages there are discarded, and so are those that
    /// come later: their credit goes back, and a sender that waits for its message to be received has [`Error::Discarded`].
    pub fn disband(&mut self, contexts: RangeInclusive<u32>) {
        self.teams.close(contexts.clone());
        for message in self.matching.discard(|label, _| contexts.contains(&label.context)) {
            self.release(message.from, message.cost());
            self.discard(message);
        }
    }

    /// How many teams are known.
    pub fn teams(&self) -> usize {
        self.teams.len()
    }

    /// Starts to send the first `length` bytes of `memory`, which is given back when the request completes. A synchronous
    /// send completes after its message was matched.
    pub fn send(&mut self, to: Rank, context: u32, tag: u32, memory: W::Memory, length: usize, sync: bool) -> Id {
        let envelope = Envelope { context, tag, length: length as u64 };
        let reached = self.reach(to);
        let send = Send { to, envelope, sync, memory, state: Sending::Queued, keys: None, receiver: None, timed: None };
        let id = self.requests.insert(Request::Send(send));
        match reached {
            Ok(()) if self.announce(id, to) => {}
            Ok(()) => {
                self.peers.get_mut(&to).expect("was reached").sends.push_back(id);
                self.list(to);
                self.flush(to);
            }
            Err(error) => self.complete(id, Err(error)),
        }
        id
    }

    /// Starts to receive a message.
    pub fn receive(&mut self, select: Select, room: Room<W::Memory>) -> Id {
        let id = self.requests.insert(Request::Receive(Receive::new(room)));
        self.post_receive(id, select);
        id
    }

    /// The first message that has come and that `select` takes, taken out of the matching: it is received by its number
    /// alone, with [`receive_message`](Self::receive_message). An error if there is none and its source is lost. From any source
    /// a death of which no receive was told is an error behind the messages of that rank, whatever others have sent.
    pub fn try_probe(&mut self, select: Select) -> Result<Option<(Id, Status)>, Error> {
        let Some((label, message)) = self.matching.take(self.narrowed(select)) else { return self.nothing(select) };
        let status = Status { peer: label.source, tag: label.tag, length: message.envelope.length };
        Ok(Some((self.requests.insert(Request::Message(message)), status)))
    }

    /// The first message that has come and that `select` takes. Fails as [`try_probe`](Self::try_probe).
    pub fn peek(&mut self, select: Select) -> Result<Option<Status>, Error> {
        let Some((label, message)) = self.matching.peek(self.narrowed(select)) else { return self.nothing(select) };
        Ok(Some(Status { peer: label.source, tag: label.tag, length: message.envelope.length }))
    }

    /// Nothing has come that this takes. A caller that asks again and again does not fail because all others have left.
    fn nothing<T>(&mut self, select: Select) -> Result<Option<T>, Error> {
        match self.never(select) {
            Some(Error::Lost { lost: Lost::Left, .. }) if select.source.is_none() => Ok(None),
            Some(error) => Err(error),
            None => Ok(None),
        }
    }

    /// Receives a message that a probe has taken ([`try_probe`](Self::try_probe), or a receive into [`Room::Probe`]); its
    /// number stays.
    pub fn receive_message(&mut self, id: Id, room: Room<W::Memory>) -> Result<(), (Error, Room<W::Memory>)> {
        let Some(Request::Message(_)) = self.requests.get(id) else { return Err((Error::NoMessage, room)) };
        let place = self.requests.get_mut(id).expect("was looked at");
        let Request::Message(message) = std::mem::replace(place, Request::Receive(Receive::new(room))) else {
            unreachable!("was looked at")
        };
        self.matched(id, message, false);
        Ok(())
    }

    /// The ranks that are gone, as far as this one has noticed.
    pub fn lost(&self) -> impl Iterator<Item = (Rank, &Lost)> {
        self.lost.iter().map(|(&rank, lost)| (rank, lost))
    }

    /// Withdraws a receive, unless it was matched. Exactly one of the two happens: it is withdrawn, and does not complete;
    /// or it completes, and has its message.
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

    /// Takes what has come, posts what can go; a bounded amount. Says how much there was.
    pub fn progress(&mut self) -> usize {
        self.count_the_row();
        (self.in_a_row, self.counted) = (0, 0);
        let mut work =
            self.take_events() + self.poll_rings() + self.hear_all() + self.post_listed() + self.turn_pipes();
        // That is there already: whoever waits for it need not wait for another turn.
        if std::mem::take(&mut self.has_moved) {
            work += self.take_events() + self.post_listed();
        }
        self.tell_credits();
        work
    }

    /// Whether something has come, since this was asked last, of which neither a turn's count nor a request's end tells: other calls have
    /// let it in, or it came by a pipe.
    #[inline]
    pub fn take_news(&mut self) -> bool {
        std::mem::take(&mut self.has_news)
    }

    /// Whether there is a [next one](Self::next_ended).
    #[inline(always)]
    pub fn has_ended(&self) -> bool {
        !self.ended.is_empty()
    }

    /// A request that has ended, or a receive into [`Room::Probe`] that has its message, told once. It is there until it is
    /// [taken](Self::take), or received.
    #[inline]
    pub fn next_ended(&mut self) -> Option<Id> {
        self.ended.pop_front()
    }

    /// How a request has ended; none while it is under way, and once it was taken.
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
        let Some(Request::Over(result, memory)) = self.requests.get_mut(id) else { return None };
        let (result, memory) = (std::mem::replace(result, Err(Error::NoMessage)), memory.take());
        self.requests.free(id);
        self.over -= 1;
        Some(Completion { id, result, memory })
    }

    /// As [`take`](Self::take), of one that has ended well.
    #[inline]
    pub fn take_well(&mut self, id: Id) -> Option<(Status, Option<W::Memory>)> {
        let Some(Request::Over(Ok(status), memory)) = self.requests.get_mut(id) else { return None };
        let well = (*status, memory.take());
        self.requests.free(id);
        self.over -= 1;
        Some(well)
    }

    /// The message of a probe, until it is received.
    pub fn probed(&self, id: Id) -> Option<Status> {
        match self.requests.get(id)? {
            Request::Message(message) => Some(message.status()),
            _ => None,
        }
    }

    /// Whether a request has not ended.
    pub fn is_under_way(&self, id: Id) -> bool {
        !matches!(self.requests.get(id), None | Some(Request::Over(..)))
    }

    /// Whether a request is a send or a receive that has not ended.
    #[inline]
    pub fn is_moving(&self, id: Id) -> bool {
        matches!(self.requests.get(id), Some(Request::Send(_) | Request::Receive(_)))
    }

    /// Returns true for a receive that has met its message, while the data is coming.
    pub fn is_arriving(&self, id: Id) -> bool {
        matches!(self.requests.get(id), Some(Request::Receive(Receive { moving: Some(_), .. })))
    }

    /// Whether a request is a send that has not ended.
    pub fn is_sending(&self, id: Id) -> bool {
        matches!(self.requests.get(id), Some(Request::Send(_)))
    }

    /// The next request that has ended and was not taken, taken; or a receive into [`Room::Probe`] that has its message.
    pub fn completed(&mut self) -> Option<Completion<W::Memory>> {
        loop {
            let id = self.next_ended()?;
            let probed = |status| Completion { id, result: Ok(status), memory: None };
            if let Some(completion) = self.take(id).or_else(|| self.probed(id).map(probed)) {
                return Some(completion);
            }
        }
    }

    /// When progress is due though no event comes: something could not be posted, or a credit is to be told.
    pub fn due(&self) -> Option<u64> {
        if !self.listed.is_empty() || self.pipes.are_refused() || !self.answers.is_empty() {
            return Some(self.wire.now());
        }
        [self.credit_due(), self.wire.due()].into_iter().flatten().min()
    }

    /// When progress is due to tell a credit, though no event comes.
    pub fn credit_due(&self) -> Option<u64> {
        // Nothing reaches a peer whose rails are all cut.
        let reached = |rank| self.peers.get(rank).filter(|peer| peer.is_up());
        let since = self.owing.iter().filter_map(|rank| reached(rank)?.owed_since).min()?;
        Some(since.saturating_add(self.config.credit_delay).max(self.wire.now()))
    }

    /// Whether something is under way to or from another rank that this one has still to work for: a send that has not ended, a
    /// receive whose message is coming, an answer, or what may have to be sent again.
    pub fn is_needed(&self) -> bool {
        let moving = |request: &Request<W::Memory>| match request {
            Request::Send(send) => send.to != self.rank,
            Request::Receive(receive) => receive.moving.is_some(),
            Request::Message(_) | Request::Piped(_) | Request::Over(..) => false,
        };
        !self.listed.is_empty()
            || self.wire.due().is_some()
            || self.pipes.are_needed(self.rank)
            // Also what the window is closed for, which is not listed.
            || self.peers.iter().any(|(_, peer)| {
                peer.has_work() || peer.failover.as_ref().is_some_and(|failover| failover.is_needed())
            })
            || self.requests.iter().any(|(_, request)| moving(request))
    }

    /// The wire below.
    pub fn wire(&mut self) -> &mut W {
        &mut self.wire
    }

    /// What was chosen.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// What was counted.
    pub fn meter(&self) -> Meter {
        let mut meter = self.meter;
        (meter.requests_peak, meter.granted_peak) = (self.requests.most() as u64, self.budget.peak().into());
        self.wire.count(&mut meter);
        meter
    }

    /// Requests that have not ended, and messages of probes.
    pub fn under_way(&self) -> usize {
        self.requests.len() - self.over
    }

    /// Bytes of messages that nobody has received, with 64 for the header of each.
    pub fn kept(&self) -> u64 {
        self.kept
    }

    /// Bytes that the peers together may make this rank keep beyond their floors; see [`Config`].
    pub fn granted(&self) -> u32 {
        self.budget.outstanding()
    }

    /// Credit of this rank at a peer that it has talked with, in bytes; negative while it is overdrawn.
    pub fn credit(&self, peer: Rank) -> Option<i64> {
        let purse = &self.peers.get(&peer)?.purse;
        Some(i64::from(purse.room()) - i64::from(purse.overdrawn()))
    }

    /// Bytes of rings that this rank has for its peers.
    pub fn ring_bytes(&self) -> usize {
        let rings = self.polling.both().iter().zip(self.routes.both());
        rings.map(|(polling, routes)| polling.len() * routes.ring.size()).sum()
    }

    /// Whether all that was sent to and from a peer is acknowledged, no credit is owed and nothing waits: what must hold
    /// between two ranks that both have been idle.
    pub fn at_rest(&mut self) -> Result<(), String> {
        let peers: Vec<Rank> = self.peers.iter().map(|(rank, _)| rank).collect();
        for rank in peers {
            self.hear(rank);
        }
        for (rank, peer) in self.peers.iter() {
            let flying = (peer.outgoing.flying(), peer.ring_out.as_ref().map_or(0, |ring| ring.flying()));
            let between = !(peer.connection.is_none() || peer.connection.is_held()) || peer.gathering.is_some();
            let cut = peer.failover.as_ref().is_some_and(|failover| failover.is_needed());
            let unsettled = flying != (0, 0) || between || cut;
            if unsettled || peer.owes() || peer.has_work() || peer.incoming.held() > 0 {
                let waits = (peer.moves.len(), peer.replies.len(), peer.sends.len(), peer.copies.len());
                return Err(format!(
                    "rank {} with {rank}: flying {flying:?}, owes {}, waits {waits:?}, held {}, up {:?}, {:?}, {:?}",
                    self.rank,
                    peer.owes(),
                    peer.incoming.held(),
                    peer.up,
                    peer.connection,
                    peer.failover.as_ref().map(|failover| failover.describe())
                ));
            }
        }
        Ok(())
    }

    /// Makes the record of a peer, and asks for lanes.
    fn reach(&mut self, rank: Rank) -> Result<(), Error> {
        if rank >= self.ranks {
            return Err(Error::NoSuchRank { rank, ranks: self.ranks });
        }
        if let Some(lost) = self.lost.get(&rank) {
            return Err(Error::Lost { rank, lost: lost.clone() });
        }
        if !self.peers.contains_key(&rank) {
            let near = self.wire.is_near(rank);
            let routes = &mut self.routes[near];
            routes.peers += 1;
            self.peers.insert(rank, Peer::new(rank, near, &self.config, routes));
            for rail in routes.first() {
                self.connect(Lane { peer: rank, rail });
            }
        }
        Ok(())
    }

    /// Something goes to this peer in place, or comes from it: if it is long, from now on by all rails, as they come up.
    fn widen(&mut self, rank: Rank, length: u64, path: Path) {
        let peer = &self.peers[&rank];
        let routes = &self.routes[peer.near];
        let kind = match path {
            Path::Move => routes.connections(),
            Path::DatagramMove => RailKind::Datagram,
            Path::Ring | Path::Queue | Path::Datagram | Path::Copy => return,
        };
        if length < self.config.stripe_from.saturating_mul(2) {
            return;
        }
        if routes.is_mixed && kind == RailKind::Connection && !peer.connection.is_held() {
            return;
        }
        let rails: Vec<usize> = routes.of(kind).collect();
        rails.into_iter().for_each(|rail| self.connect(Lane { peer: rank, rail }));
    }

    /// How many rails there are to a peer.
    fn rails_to(&self, rank: Rank) -> usize {
        self.routes[self.wire.is_near(rank)].rails.len()
    }

    /// Whether what one rail to a peer had goes by the others if it is cut.
    fn fails_over(&self, rank: Rank) -> bool {
        self.routes[self.wire.is_near(rank)].fails_over
    }

    fn connect(&mut self, lane: Lane) {
        if let Some(peer) = self.peers.get_mut(&lane.peer)
            && !std::mem::replace(&mut peer.asked[lane.rail], true)
        {
            self.wire.connect(lane);
        }
    }

    fn complete(&mut self, id: Id, result: Result<Status, Error>) {
        let place = self.requests.get_mut(id).expect("what completes is kept");
        // What is moved of a receive is not more than must be: most messages are short beside it.
        let (memory, keys) = match place {
            Request::Receive(receive) => {
                let keys = receive.keys.take().and_then(|keys| Some((receive.moving.as_ref()?.from, keys)));
                (std::mem::replace(&mut receive.room, Room::Probe).into_memory(), keys)
            }
            _ => match std::mem::replace(place, Request::Receive(Receive::new(Room::Probe))) {
                Request::Send(send) => (Some(send.memory), send.keys.map(|keys| (send.to, keys))),
                _ => unreachable!("only sends and receives complete, once"),
            },
        };
        *place = Request::Over(result, memory);
        if let Some((peer, keys)) = keys {
            for (rail, key) in keys.into_iter().enumerate() {
                key.into_iter().for_each(|key| self.wire.release(Lane { peer, rail }, key));
            }
        }
        self.over(id);
    }

    /// A request has ended.
    fn over(&mut self, id: Id) {
        self.over += 1;
        self.ended.push_back(id);
    }
}
