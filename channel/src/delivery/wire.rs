//! A reliable wire over one whose datagrams may be lost, duplicated, late or corrupted.

use super::note::{COPY, Note};
use super::outgoing::TRIED;
use super::packet::Packet;
use super::windows::{self, Windows, Writes};
use super::{Come, Expired, FLYING, HEADER, Header, Incoming, Kind, Outgoing, Settings};
use crate::Counters;
use crate::packet::LONGEST;
use crate::sequence::FARTHEST;
use crate::wire::{
    Busy, Data, Event, Key, Lane, Left, Part, RAILS, Rail, RailKind, Rank, Request, Why, Wire, WireMemory,
};
use foldhash::fast::RandomState;
use std::collections::{HashMap, HashSet, VecDeque};

/// A reliable [`Wire`] over one whose datagrams may be lost, duplicated, late or corrupted. Only `Send`s on
/// rails of [`RailKind::Datagram`] and `Write`s there are changed; all else is passed to the wire below. With checksums,
/// `Send`s on connections are changed too, and connections neither read nor write in place.
///
/// All rails to a peer that carry such `Send`s share one sequence, so a packet of a cut connection goes on as a
/// datagram. The first transmission of a packet uses its lane if that is up, and each further one the next rail, so if
/// one rail is cut the others continue. A rail that silently loses all datagrams is only probed now and then. A `Send`
/// may overtake or follow any other request on its lane.
///
/// A `Write` goes in pieces to windows of the peer, where the wire below has windows: its datagram rails then
/// have [`Rail::write`]. `Write` is not supported with checksums, since pieces have no room for them.
pub struct Delivery<W: Wire> {
    pub(super) wire: W,
    pub(super) rails: Vec<Rail>,
    settings: Settings,
    pub(super) links: HashMap<Rank, Link<W::Memory>, RandomState>,
    pub(super) windows: Windows,
    /// Peers with a timer or request pending.
    active: Vec<Rank>,
    /// Time in ns before which nothing is due for them.
    idle_until: u64,
    /// Peers that were aborted.
    over: HashSet<Rank, RandomState>,
    pub(super) events: VecDeque<Event<W::Memory>>,
    polls: u32,
    pub(super) counted: Counters,
    pub(super) scratch: Vec<u8>,
}

/// State of one peer.
pub(super) struct Link<M> {
    pub outgoing: Outgoing<Packet<M>>,
    incoming: Incoming,
    pub writes: Writes<M>,
    pub up: [bool; RAILS],
    /// True if a lane was cut, after which all other lanes were requested.
    fails_over: bool,
    /// Time since which all lanes are cut, in ns.
    down: Option<u64>,
    /// Rail by which the peer's last datagram came. Acknowledgements without a packet take it, unless it is mute.
    came_by: usize,
    /// Rail by which an acknowledgement was lost, and the time in ns until which acknowledgements avoid it.
    mute: (usize, u64),
    is_active: bool,
}

/// Most datagrams handled by one poll.
const AT_ONCE: u32 = 64;
/// Bytes of the longest message, without the data after it.
const NOTE: usize = 40;
/// Most packets kept for a peer: those of the longest window, and as many that carry only credits.
pub(super) const KEPT: usize = 2 * FARTHEST as usize;

impl<W: Wire> Delivery<W> {
    /// Wraps a wire whose datagrams are unreliable, provided that some arrive.
    pub fn new(wire: W, settings: Settings) -> Delivery<W> {
        let covered = |rail: &Rail| covers(rail.kind, settings.checksum);
        // Any covered rail may take the packets of another.
        let least = wire.rails(false).iter().filter(|rail| covered(rail)).map(|rail| rail.longest).min().unwrap_or(0);
        let rails = wire.rails(false).iter().map(|rail| match covered(rail) {
            true => {
                let read = rail.read && !settings.checksum;
                Rail { longest: least - HEADER, read, write: rail.write && !settings.checksum, ..*rail }
            }
            false => *rail,
        });
        Delivery {
            rails: rails.collect(),
            wire,
            settings,
            links: HashMap::default(),
            windows: Windows::default(),
            active: Vec::new(),
            idle_until: 0,
            over: HashSet::default(),
            events: VecDeque::new(),
            polls: 0,
            counted: Counters::default(),
            scratch: Vec::new(),
        }
    }

    /// The wire below.
    pub fn wire(&self) -> &W {
        &self.wire
    }

    /// Like [`wire`](Self::wire), mutably.
    pub fn wire_mut(&mut self) -> &mut W {
        &mut self.wire
    }

    pub(super) fn link(&mut self, peer: Rank) -> &mut Link<W::Memory> {
        self.links.entry(peer).or_insert_with(|| Link {
            outgoing: Outgoing::new(&self.settings),
            incoming: Incoming::default(),
            writes: Writes::default(),
            up: [false; RAILS],
            fails_over: false,
            down: None,
            came_by: 0,
            mute: (0, 0),
            is_active: false,
        })
    }

    pub(super) fn is_datagrams(&self, lane: Lane) -> bool {
        !self.wire.is_near(lane.peer) && self.rails[lane.rail].kind == RailKind::Datagram
    }

    /// Returns true if sends on a lane are acknowledged here.
    fn covers(&self, lane: Lane) -> bool {
        !self.wire.is_near(lane.peer) && covers(self.rails[lane.rail].kind, self.settings.checksum)
    }

    /// Packets that each peer may have in flight: an equal share of this rank's room.
    fn permitted(&self) -> u16 {
        (self.settings.room / self.links.len().max(1) as u64).clamp(1, FLYING) as u16
    }

    /// Handles a received datagram. A packet is returned once; other datagrams are handled here.
    fn arrived(&mut self, lane: Lane, slot: W::Memory, at: usize, length: usize) -> Option<Event<W::Memory>> {
        let peer = lane.peer;
        if self.over.contains(&peer) {
            self.wire.give(slot);
            return None;
        }
        let (now, mut freed) = (self.wire.now(), Vec::new());
        let mut head = [0; HEADER];
        let head = &mut head[..length.min(HEADER)];
        slot.read(at, head);
        let near = {
            let link = self.link(peer);
            let ([next, newest], [unsent, sendings]) = (link.incoming.near(), link.outgoing.near());
            [next, newest, unsent, sendings]
        };
        let scratch = &mut self.scratch;
        let body = || {
            scratch.resize(length - HEADER, 0);
            slot.read(at + HEADER, scratch);
            crc32fast::hash(scratch)
        };
        let header = Header::decode(head, near, body);
        let link = self.links.get_mut(&peer).expect("just made");
        let told = header.map(|header| (header.kind, link.outgoing.acknowledged(header.told, now, &mut freed)));
        let come = match told {
            Ok((Kind::Packet { number, sending, is_note }, Ok(()))) => {
                Some((link.incoming.came(number, sending, now), is_note))
            }
            Ok((Kind::Alone, Ok(()))) => None,
            Ok((_, Err(_))) | Err(_) => {
                self.counted.spoiled += 1;
                self.wire.give(slot);
                return None;
            }
        };
        if matches!(come, Some((Come::Again, _))) && link.came_by != lane.rail {
            link.mute = (link.came_by, now + TRIED * self.settings.floor);
        }
        link.came_by = lane.rail;
        let may_use_silent = link.writes.silent.iter().flatten().any(|until| now >= *until);
        let is_full = link.incoming.is_full(&self.settings);
        freed.into_iter().for_each(|packet| packet.give(&mut self.wire));
        self.flush(peer, is_full);
        self.attend(peer);
        if may_use_silent {
            self.use_silent_rails(peer, now);
        }
        match come {
            Some((Come::New, true)) => {
                let mut said = [0; NOTE];
                let length = length - HEADER;
                let said = &mut said[..length.min(NOTE)];
                slot.read(at + HEADER, said);
                let note = Note::decode(said, length);
                let behind = Part { memory: &slot, at: at + HEADER + COPY, length: length.saturating_sub(COPY) };
                if note.and_then(|note| self.hear(peer, note, behind)).is_none() {
                    self.counted.spoiled += 1;
                }
            }
            Some((Come::New, false)) => {
                return Some(Event::Arrived { lane, slot, at: at + HEADER, length: length - HEADER });
            }
            Some((Come::Again, _)) => self.counted.old += 1,
            Some((Come::TooFar, _)) => self.counted.spoiled += 1,
            None => {}
        }
        self.wire.give(slot);
        None
    }

    /// Sends the packets to a peer that can go now. If `acknowledge` and no packet was sent, sends an
    /// acknowledgement alone.
    pub(super) fn flush(&mut self, peer: Rank, acknowledge: bool) {
        let permitted = self.permitted();
        let Delivery { wire, links, counted, .. } = self;
        let Some(link) = links.get_mut(&peer) else { return };
        let now = wire.now();
        let mut went = false;
        while let Some((number, sending, packet)) = link.outgoing.next() {
            let header = Header {
                kind: Kind::Packet { number, sending, is_note: packet.is_note },
                told: link.incoming.acknowledgement(permitted),
            };
            let mut head = [0; HEADER + LONGEST];
            let whole = HEADER + packet.head.len();
            head[..HEADER].copy_from_slice(&header.encode(packet.checksum));
            head[HEADER..whole].copy_from_slice(&packet.head);
            let first = link.outgoing.last_rail(number).map_or(packet.rail, |lost| lost + 1);
            let Some(rail) = send(wire, peer, link.rails(first, now), &head[..whole], packet.body()) else {
                link.outgoing.refused(now);
                break;
            };
            link.outgoing.sent(number, now, rail);
            went = true;
        }
        if acknowledge && !went {
            let header = Header { kind: Kind::Alone, told: link.incoming.acknowledgement(permitted) };
            let checksum = self.settings.checksum.then_some(0);
            let is_mute = link.mute.0 == link.came_by && now < link.mute.1;
            let rails = link.rails(link.came_by + usize::from(is_mute), now);
            if send(wire, peer, rails, &header.encode(checksum), Data::None).is_some() {
                counted.acknowledgements += 1;
                went = true;
            }
        }
        if went {
            link.incoming.told();
        }
    }

    /// Handles a cut lane. Packets sent on it are kept until they are acknowledged; they are resent on
    /// another lane, or on this one once it is up again.
    fn cut(&mut self, lane: Lane) {
        for left in self.wire.drain_failed(lane) {
            match left {
                Left::Send(memory, _) | Left::Put(memory, _) => self.wire.give(memory),
                // Ended below, with all pieces of this lane.
                Left::Moved(_) => {}
            }
        }
        if self.over.contains(&lane.peer) {
            return;
        }
        let now = self.wire.now();
        let link = self.link(lane.peer);
        link.up[lane.rail] = false;
        if !link.up.contains(&true) {
            link.down = link.down.or(Some(now));
        }
        let fails_over_first = !std::mem::replace(&mut link.fails_over, true);
        self.lost_lane(lane);
        if (0..RAILS).all(|rail| !self.links[&lane.peer].works(rail)) {
            // The engine must not wait for a rail that may be down for long.
            self.use_silent_rails(lane.peer, u64::MAX);
        }
        if fails_over_first {
            // Datagrams are requested at first contact, and connections to some peers by the engine.
            let is_alike = |rail: &usize| *rail != lane.rail && self.rails[*rail].kind == self.rails[lane.rail].kind;
            let others: Vec<_> = (0..self.rails.len()).filter(is_alike).collect();
            others.into_iter().for_each(|rail| self.wire.connect(Lane { rail, ..lane }));
        }
    }

    /// Adds a peer to those with work pending.
    pub(super) fn attend(&mut self, peer: Rank) {
        self.idle_until = 0;
        if let Some(link) = self.links.get_mut(&peer)
            && !std::mem::replace(&mut link.is_active, true)
        {
            self.active.push(peer);
        }
    }

    /// Does the work that is due.
    fn turn(&mut self) {
        if self.active.is_empty() {
            return;
        }
        let now = self.wire.now();
        if now < self.idle_until {
            return;
        }
        self.idle_until = u64::MAX;
        for peer in std::mem::take(&mut self.active) {
            let Some(link) = self.links.get_mut(&peer) else { continue };
            let is_down = link.down.is_some_and(|since| now >= since + self.settings.give_up);
            let refused = |rail: usize| self.windows.refusals[rail].lasts() >= self.settings.give_up;
            let is_refused = link.writes.waits_for().any(refused);
            if is_down || is_refused || link.outgoing.expire(now) == Expired::Unreachable {
                let packets: Vec<_> = link.outgoing.drain().collect();
                packets.into_iter().for_each(|packet| packet.give(&mut self.wire));
                self.events.push_back(Event::Failed(Lane { peer, rail: 0 }, Why::Unreachable));
                continue;
            }
            let tell = link.incoming.due(&self.settings).is_some_and(|due| due <= now);
            self.flush(peer, tell);
            self.go_on(peer);
            let link = self.links.get_mut(&peer).expect("looked up above");
            let due = link.due(&self.settings);
            link.is_active = due.is_some();
            if let Some(due) = due {
                // 0 if the work for this peer made more for another.
                self.idle_until = self.idle_until.min(due);
                self.active.push(peer);
            }
        }
    }
}

/// Returns true if sends on rails of this kind are acknowledged: datagrams, and with checksums connections too. What a
/// connection has delivered may be damaged on its way through the host.
fn covers(kind: RailKind, checksum: bool) -> bool {
    match kind {
        RailKind::Datagram => true,
        RailKind::Connection => checksum,
        RailKind::Memory => false,
    }
}

/// Sends on the first rail that accepts the datagram, and returns that rail.
fn send<W: Wire>(
    wire: &mut W,
    peer: Rank,
    mut rails: impl Iterator<Item = usize>,
    head: &[u8],
    body: Data<'_, W::Memory>,
) -> Option<usize> {
    rails.find(|rail| wire.post(Lane { peer, rail: *rail }, Request::Send { head, body }).is_ok())
}

impl<M> Link<M> {
    /// Returns true if a rail is up, and up for the engine.
    pub fn works(&self, rail: usize) -> bool {
        self.up[rail] && self.writes.silent[rail].is_none()
    }

    /// Rails that are up, from `first` on in turn; rails that lose everything come last.
    fn rails(&self, first: usize, now: u64) -> impl Iterator<Item = usize> + use<M> {
        let up = self.up;
        let trusted: [bool; RAILS] = std::array::from_fn(|rail| self.outgoing.trusts(rail, now));
        let in_turn = move || (0..RAILS).map(move |rail| (first + rail) % RAILS).filter(move |rail| up[*rail]);
        in_turn().filter(move |rail| trusted[*rail]).chain(in_turn().filter(move |rail| !trusted[*rail]))
    }

    /// Time of the next action, in ns; 0 if at once.
    fn due(&self, settings: &Settings) -> Option<u64> {
        if let Some(since) = self.down {
            return [Some(since + settings.give_up), self.outgoing.gives_up_at()].into_iter().flatten().min();
        }
        let posts = self.writes.has_work(self.outgoing.kept()).then_some(0);
        [self.outgoing.due(), self.incoming.due(settings), posts].into_iter().flatten().min()
    }
}

impl<W: Wire> Wire for Delivery<W> {
    type Memory = W::Memory;

    fn rails(&self, near: bool) -> &[Rail] {
        if near { self.wire.rails(true) } else { &self.rails }
    }

    fn connect(&mut self, lane: Lane) {
        self.wire.connect(lane);
    }

    fn disconnect(&mut self, lane: Lane) {
        if let Some(link) = self.links.get_mut(&lane.peer) {
            link.up[lane.rail] = false;
        }
        self.wire.disconnect(lane);
    }

    fn connected_besides(&self, but: Rank) -> usize {
        self.wire.connected_besides(but)
    }

    fn is_near(&self, peer: Rank) -> bool {
        self.wire.is_near(peer)
    }

    fn abort_peer(&mut self, peer: Rank) {
        self.over.insert(peer);
        if let Some(mut link) = self.links.remove(&peer) {
            self.counted.resends += link.outgoing.resends();
            link.outgoing.drain().for_each(|packet| packet.give(&mut self.wire));
            self.end_writes(peer, link.writes);
        }
        self.active.retain(|active| *active != peer);
        self.events.retain(|event| event.lane().is_none_or(|lane| lane.peer != peer));
        self.wire.abort_peer(peer);
    }

    fn take(&mut self, length: usize) -> Option<W::Memory> {
        self.wire.take(length)
    }

    fn give(&mut self, memory: W::Memory) {
        self.wire.give(memory);
    }

    fn ring(&mut self, peer: Rank, length: usize) -> Option<(W::Memory, Key)> {
        self.wire.ring(peer, length)
    }

    fn publish(&mut self, peer: Rank, ring: &W::Memory, words: [u64; 2]) -> bool {
        self.wire.publish(peer, ring, words)
    }

    fn published(&mut self, peer: Rank, ring: Key) -> Option<[u64; 2]> {
        self.wire.published(peer, ring)
    }

    fn reaches(&mut self, lane: Lane, key: Key, length: usize) -> bool {
        self.wire.reaches(lane, key, length)
    }

    fn opens(&mut self, lane: Lane) -> bool {
        self.wire.opens(lane)
    }

    fn leave(&mut self, lane: Lane, key: Key) {
        self.wire.leave(lane, key);
    }

    fn reads(&mut self, lane: Lane) -> bool {
        self.wire.reads(lane)
    }

    fn may_send_faster(&mut self, lane: Lane, offered: Key) -> bool {
        self.wire.may_send_faster(lane, offered)
    }

    fn register(&mut self, memory: &W::Memory, lane: Lane) -> Option<Key> {
        self.wire.register(memory, lane)
    }

    fn release(&mut self, lane: Lane, key: Key) {
        if self.is_datagrams(lane) {
            self.end_writes_to(lane.rail, key);
        }
        self.wire.release(lane, key);
    }

    fn post(&mut self, lane: Lane, request: Request<'_, W::Memory>) -> Result<(), Busy> {
        let (head, body) = match request {
            Request::Send { head, body } if self.covers(lane) => (head, body),
            Request::Write { from, to, at, token } if self.is_datagrams(lane) => {
                return self.write(lane, from, (to, at), token);
            }
            request => return self.wire.post(lane, request),
        };
        let link = self.links.get(&lane.peer).filter(|link| link.up.contains(&true)).ok_or(Busy)?;
        if link.outgoing.kept() >= KEPT {
            return Err(Busy);
        }
        let checksum = self.settings.checksum;
        let packet = Packet::new(&mut self.wire, lane.rail, head, body, &mut self.scratch, checksum).ok_or(Busy)?;
        self.link(lane.peer).outgoing.push(packet);
        self.flush(lane.peer, false);
        self.attend(lane.peer);
        Ok(())
    }

    fn poll(&mut self) -> Option<Event<W::Memory>> {
        for _ in 0..AT_ONCE {
            if let Some(event) = self.events.pop_front() {
                return Some(event);
            }
            self.polls = self.polls.wrapping_add(1);
            // Run timers even if datagrams never stop arriving.
            if self.polls.is_multiple_of(AT_ONCE) {
                self.turn();
            }
            match self.wire.poll() {
                none @ (None | Some(Event::Worked)) => {
                    self.turn();
                    return self.events.pop_front().or(none);
                }
                Some(Event::Arrived { lane, slot, at, length }) if self.covers(lane) => {
                    let event = self.arrived(lane, slot, at, length);
                    if event.is_some() {
                        return event;
                    }
                }
                Some(Event::Up(lane)) if self.covers(lane) => {
                    if !self.over.contains(&lane.peer) {
                        let link = self.link(lane.peer);
                        (link.up[lane.rail], link.down) = (true, None);
                        link.writes.begin_again(lane.rail);
                        self.attend(lane.peer);
                        return Some(Event::Up(lane));
                    }
                }
                Some(Event::Done(token, _)) if windows::is_token(token) => self.gone(token),
                Some(Event::Cut(lane)) if self.covers(lane) => {
                    self.cut(lane);
                    if self.is_datagrams(lane) && !self.over.contains(&lane.peer) {
                        return Some(Event::Cut(lane));
                    }
                }
                event => return event,
            }
        }
        Some(Event::Worked)
    }

    fn now(&self) -> u64 {
        self.wire.now()
    }

    fn due(&self) -> Option<u64> {
        let links = self.active.iter().filter_map(|peer| self.links.get(peer)?.due(&self.settings));
        let due = links.chain(self.wire.due()).min()?;
        Some(due.max(self.wire.now()))
    }

    fn count(&self, counters: &mut Counters) {
        let Counters { old, resends, acknowledgements, spoiled, .. } = self.counted;
        let Counters { datagram_windows, datagram_windows_peak, datagram_repairs, .. } = self.counted;
        counters.old += old;
        counters.resends += resends + self.links.values().map(|link| link.outgoing.resends()).sum::<u64>();
        counters.acknowledgements += acknowledgements;
        counters.spoiled += spoiled;
        counters.datagram_windows += datagram_windows;
        counters.datagram_windows_peak = datagram_windows_peak;
        counters.datagram_repairs += datagram_repairs;
        self.wire.count(counters);
    }
}
