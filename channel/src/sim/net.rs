//! The network of a simulated job: lanes in virtual time.

use super::adapter::Adapters;
use super::memory::{self, Run, SimMemory};
use super::{Arrivals, Conditions, Faults, Traffic};
use crate::wire::{Event, Key, Lane, Left, RAILS, RailKind, Rank, Why, Window};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};

pub(super) struct Net {
    pub now: u64,
    pub rng: fastrand::Rng,
    pub conditions: Conditions,
    pub ranks: Vec<SimRank>,
    heap: BinaryHeap<Reverse<(u64, u64, Happening)>>,
    happened: u64,
    pub lanes: BTreeMap<(Rank, Rank, usize), Flights>,
    /// Ordered pairs of ranks whose windows have a connection.
    pub windows: BTreeSet<(Rank, Rank)>,
    /// Rails that are cut.
    dark: [bool; RAILS],
    /// Rails that lose all datagrams without notification.
    pub mute: [bool; RAILS],
    /// Pairs to be connected on a rail once it passes requests and both ends have drained their old lanes.
    waiting: BTreeSet<(Rank, Rank, usize)>,
    /// Datagrams in flight: sender, receiver, rail and content.
    datagrams: BTreeMap<u64, (Rank, Rank, usize, Thrown)>,
    pub keys: u64,
    pub adapters: Adapters,
}

/// State of one rank in the network.
#[derive(Default)]
pub(super) struct SimRank {
    /// Events to poll, each with its lane.
    pub inbox: VecDeque<(Lane, Event<SimMemory>)>,
    pub dead: bool,
    pub turn_at: Option<u64>,
    /// Number of slots that have arrived and were not given back.
    pub slots: usize,
    pub keys: BTreeMap<u64, Keyed>,
    pub windows: BTreeMap<u64, Opened>,
    /// Indexed by rail.
    pub traffic: [Traffic; RAILS],
    pub arrivals: Arrivals,
    /// Time until which the rank is busy making connections.
    connecting: u64,
    /// Time until which the rank's processor is busy.
    pub busy: u64,
    /// Time until which each datagram queue is busy; the first is the next to use.
    pub queues: VecDeque<u64>,
}

/// Registered memory.
pub(super) struct Keyed {
    pub memory: SimMemory,
    pub rail: usize,
    /// Peer whose ring it is. Other peers that guess the key are refused, as where rings are mapped; an
    /// adapter would accept them.
    pub ring_of: Option<Rank>,
    /// Words published beside the ring.
    pub published: [u64; 2],
}

/// A window, and the pieces that its receives have taken, in order.
pub(super) struct Opened {
    pub lane: Lane,
    pub memory: SimMemory,
    pub window: Window,
    pub came: Vec<u8>,
}

/// Content of a datagram.
#[derive(Clone)]
pub(super) enum Thrown {
    Send(Vec<Run>),
    /// A piece for the window of key `to`. Its bytes are read on arrival.
    Piece {
        from: SimMemory,
        at: usize,
        length: usize,
        to: Key,
        index: u8,
    },
}

#[derive(Default)]
pub(super) struct Flights {
    pub queue: VecDeque<Flight>,
    /// Number of requests, from the first of the queue on, that the adapters have begun to pass.
    pub entered: usize,
    /// Time at which the lane has passed these requests, and at which the adapters have too.
    pub free_at: u64,
    pub passed_at: u64,
    /// Time at which the last of them takes effect.
    pub due: u64,
    /// Distinguishes successive lanes of a pair.
    pub generation: u64,
    /// Time since which the lane passes nothing.
    pub dark: Option<u64>,
    /// Requests that took effect, and the time until which this end does not know it.
    landed: VecDeque<(u64, Left<SimMemory>)>,
}

pub(super) struct Flight {
    /// Time at which its queue hands the request to the adapter.
    pub posted: u64,
    pub bytes: u64,
    pub latency: u64,
    /// Time at which it takes effect, once the adapters have begun to pass it.
    pub due: u64,
    /// The request as posted.
    pub whole: Option<Left<SimMemory>>,
    pub what: Flying,
}

pub(super) enum Flying {
    /// A datagram, never queued on a lane, and the token to complete once it is sent.
    Datagram(Thrown, Option<u64>),
    Send(Vec<Run>),
    /// Pieces that become visible one after the other.
    Put {
        to: Key,
        pieces: VecDeque<(usize, Vec<Run>)>,
        immediate: Option<u32>,
    },
    Write {
        from: SimMemory,
        from_at: usize,
        length: usize,
        to: Key,
        at: usize,
        token: u64,
    },
    Read {
        from: Key,
        at: usize,
        into: SimMemory,
        into_at: usize,
        length: usize,
        token: u64,
    },
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Happening {
    /// The next request of a lane takes effect: sender, receiver, rail and generation of the lane.
    Head(Rank, Rank, usize, u64),
    /// The adapters begin to pass the next request of a lane.
    Enter(Rank, Rank, usize, u64),
    Datagram(u64),
    Turn(Rank),
    /// Notification of a rank about a peer, on a rail.
    Told(Rank, Rank, usize, Told),
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Told {
    Died,
    Unreachable,
    /// Generation of the lane, also last in the two variants below.
    Up(u64),
    Done(u64, u64),
    Cut(u64),
}

impl Net {
    #[inline]
    pub fn new(seed: u64, ranks: Rank, conditions: Conditions) -> Net {
        Net {
            now: 0,
            rng: fastrand::Rng::with_seed(seed),
            conditions,
            ranks: (0..ranks).map(|_| SimRank::default()).collect(),
            heap: BinaryHeap::new(),
            happened: 0,
            lanes: BTreeMap::new(),
            windows: BTreeSet::new(),
            dark: [false; RAILS],
            mute: [false; RAILS],
            waiting: BTreeSet::new(),
            datagrams: BTreeMap::new(),
            keys: 0,
            adapters: Adapters::default(),
        }
    }

    /// Runs the network until a rank's turn; `None` if nothing is in flight any more.
    #[inline]
    pub fn next_turn(&mut self) -> Option<Rank> {
        loop {
            let Reverse((at, _, happening)) = self.heap.pop()?;
            self.now = at;
            match happening {
                Happening::Head(from, to, rail, generation) => self.land(from, to, rail, generation),
                Happening::Enter(from, to, rail, generation) if self.passes((from, to, rail), generation) => {
                    self.enter((from, to, rail), at);
                    self.enter_next((from, to, rail));
                }
                Happening::Enter(..) => {}
                Happening::Datagram(number) => self.drop_in(number),
                Happening::Turn(rank) => {
                    let place = &mut self.ranks[rank as usize];
                    // Only the earliest requested turn counts.
                    let counts = place.turn_at.take_if(|turn| *turn == at).is_some() && !place.dead;
                    match place.busy {
                        busy if counts && busy > at => self.turn(rank, busy),
                        _ if counts => return Some(rank),
                        _ => {}
                    }
                }
                Happening::Told(rank, peer, rail, told) => {
                    let lane = Lane { peer, rail };
                    let event = match told {
                        Told::Died => Event::Failed(lane, Why::Died),
                        Told::Unreachable => Event::Failed(lane, Why::Unreachable),
                        // A lane that has ended reports no further completions.
                        Told::Up(generation) if self.passes((rank, peer, rail), generation) => Event::Up(lane),
                        Told::Done(token, generation) if self.passes((rank, peer, rail), generation) => {
                            if let Some(flights) = self.lanes.get_mut(&(rank, peer, rail)) {
                                let of = |left: &Left<SimMemory>| matches!(left, Left::Moved(of) if *of == token);
                                let known = flights.landed.iter().position(|(_, left)| of(left));
                                known.map(|known| flights.landed.remove(known));
                            }
                            Event::Done(token, at)
                        }
                        Told::Cut(generation) if self.is_dark((rank, peer, rail), generation) => Event::Cut(lane),
                        Told::Up(_) | Told::Done(..) | Told::Cut(_) => continue,
                    };
                    self.tell(rank, lane, event);
                }
            }
        }
    }

    /// Schedules a turn of a rank.
    #[inline]
    pub fn turn(&mut self, rank: Rank, at: u64) {
        let place = &mut self.ranks[rank as usize];
        if place.turn_at.is_none_or(|turn| at < turn) {
            place.turn_at = Some(at);
            self.happens(at, Happening::Turn(rank));
        }
    }

    #[inline]
    pub fn kill(&mut self, rank: Rank) {
        self.ranks[rank as usize].dead = true;
        self.cut(rank, None, &Told::Died);
    }

    /// Ends the lanes between a rank and one peer, or all peers, and notifies the peers.
    #[inline]
    pub fn cut(&mut self, rank: Rank, with: Option<Rank>, told: &Told) {
        let cut = |a: Rank, b: Rank| (a == rank && with.is_none_or(|with| with == b)).then_some(b);
        self.waiting.retain(|(a, b, _)| cut(*a, *b).or(cut(*b, *a)).is_none());
        let ended: Vec<_> =
            self.lanes.keys().copied().filter(|(a, b, _)| cut(*a, *b).or(cut(*b, *a)).is_some()).collect();
        for lane @ (from, to, rail) in ended {
            self.lanes.remove(&lane);
            if to == rank && from != rank {
                let at = self.now + self.latency(rail);
                let told = if *told == Told::Died { Told::Died } else { Told::Unreachable };
                self.happens(at, Happening::Told(from, rank, rail, told));
            }
        }
    }

    #[inline]
    fn passes(&self, lane: (Rank, Rank, usize), generation: u64) -> bool {
        self.lanes.get(&lane).is_some_and(|flights| flights.generation == generation && flights.dark.is_none())
    }

    #[inline]
    fn is_dark(&self, lane: (Rank, Rank, usize), generation: u64) -> bool {
        self.lanes.get(&lane).is_some_and(|flights| flights.generation == generation && flights.dark.is_some())
    }

    /// Cuts a rail, or restores it; ranks are notified later.
    #[inline]
    pub fn darken(&mut self, rail: usize, dark: bool) {
        self.dark[rail] = dark;
        if dark {
            let lanes: Vec<_> = self.lanes.keys().copied().filter(|lane| lane.2 == rail && lane.0 != lane.1).collect();
            lanes.into_iter().for_each(|lane| self.end(lane));
        } else {
            let waiting: Vec<_> = self.waiting.iter().copied().filter(|(.., on)| *on == rail).collect();
            waiting.into_iter().for_each(|(a, b, rail)| self.join(a, b, rail));
        }
    }

    /// Ends a lane and notifies its end.
    #[inline]
    fn end(&mut self, lane: (Rank, Rank, usize)) {
        let (now, at) = (self.now, self.now + self.rng.u64(1..100_000));
        let Some(flights) = self.lanes.get_mut(&lane).filter(|flights| flights.dark.is_none()) else { return };
        flights.dark = Some(now);
        let generation = flights.generation;
        self.happens(at, Happening::Told(lane.0, lane.1, lane.2, Told::Cut(generation)));
    }

    /// Makes the lanes of a pair; on a cut rail they are cut at once.
    #[inline]
    pub fn connect(&mut self, a: Rank, b: Rank, rail: usize) {
        let none = [(a, b, rail), (b, a, rail)].iter().all(|lane| !self.lanes.contains_key(lane));
        if !(a != b && self.dark[rail] && none) {
            return self.join(a, b, rail);
        }
        self.dark[rail] = false;
        self.join(a, b, rail);
        self.dark[rail] = true;
        [(a, b, rail), (b, a, rail)].into_iter().for_each(|lane| self.end(lane));
    }

    /// Makes the lanes of a pair as soon as the rail passes requests and no ended lane of the pair is left.
    #[inline]
    pub fn join(&mut self, a: Rank, b: Rank, rail: usize) {
        let ended = |lane| self.lanes.get(&lane).is_some_and(|flights| flights.dark.is_some());
        if a != b && self.dark[rail] || ended((a, b, rail)) || ended((b, a, rail)) {
            self.waiting.insert((a.min(b), a.max(b), rail));
            return;
        }
        self.waiting.remove(&(a.min(b), a.max(b), rail));
        let is_new = [(a, b, rail), (b, a, rail)].iter().any(|lane| !self.lanes.contains_key(lane));
        let made = if is_new && a != b { self.made(a, b, rail) } else { self.now };
        for (from, to) in [(a, b), (b, a)] {
            if !self.lanes.contains_key(&(from, to, rail)) && !self.ranks[to as usize].dead {
                let at = made + self.latency(rail);
                let generation = self.happened;
                self.lanes.insert((from, to, rail), Flights { generation, ..Flights::default() });
                self.happens(at, Happening::Told(from, to, rail, Told::Up(generation)));
            }
        }
    }

    /// Time at which both ends have made a lane.
    #[inline]
    fn made(&mut self, a: Rank, b: Rank, rail: usize) -> u64 {
        let takes = match self.conditions.rails[rail].kind {
            RailKind::Connection => self.conditions.connecting,
            _ => 0,
        };
        let both = [a, b].map(|rank| {
            let until = &mut self.ranks[rank as usize].connecting;
            *until = self.now.max(*until) + takes;
            *until
        });
        if takes > 0 { both[0].max(both[1]) } else { self.now }
    }

    /// Removes a lane. Returns the requests that `me` had posted on it and does not know to have taken
    /// effect.
    #[inline]
    pub fn drain_failed(&mut self, me: Rank, peer: Rank, rail: usize) -> Vec<Left<SimMemory>> {
        let (mut all, lane) = (Vec::new(), Lane { peer, rail });
        self.ranks[me as usize].inbox.retain(|(of, event)| match event {
            Event::Up(_) | Event::Cut(_) => *of != lane,
            _ => true,
        });
        if let Some(Flights { queue, landed, dark, .. }) = self.lanes.remove(&(me, peer, rail)) {
            let known = dark.unwrap_or(self.now);
            all.extend(landed.into_iter().filter(|(until, _)| *until >= known).map(|(_, left)| left));
            all.extend(queue.into_iter().filter_map(|flight| flight.whole));
        }
        self.end((peer, me, rail));
        self.join(me, peer, rail);
        all
    }

    #[inline]
    pub fn happens(&mut self, at: u64, happening: Happening) {
        self.happened += 1;
        self.heap.push(Reverse((at, self.happened, happening)));
    }

    #[inline]
    fn tell(&mut self, rank: Rank, lane: Lane, event: Event<SimMemory>) {
        if !self.ranks[rank as usize].dead {
            self.ranks[rank as usize].inbox.push_back((lane, event));
            self.wake(rank);
        }
    }

    #[inline]
    pub fn wake(&mut self, rank: Rank) {
        let at = self.now + self.rng.u64(self.conditions.pause.clone());
        self.turn(rank, at);
    }

    /// Sends a datagram at time `at`, and applies the faults.
    #[inline]
    pub fn throw(&mut self, (from, to, rail): (Rank, Rank, usize), what: &Thrown, at: u64) {
        let none = Faults { lost: 0, doubled: 0, late: 0, delay: 0..1, flipped: 0 };
        let Faults { lost, doubled, late, delay, .. } = self.conditions.faults.clone().unwrap_or(none);
        let copies = 1 + u8::from(self.happens_of(doubled));
        for _ in 0..copies {
            if self.mute[rail] || self.happens_of(lost) {
                continue;
            }
            let later = if self.happens_of(late) { self.rng.u64(delay.clone()) } else { 0 };
            let at = at + self.latency(rail) + later;
            self.datagrams.insert(self.happened, (from, to, rail, what.clone()));
            self.happens(at, Happening::Datagram(self.happened));
        }
    }

    #[inline]
    fn happens_of(&mut self, of_a_thousand: u32) -> bool {
        self.rng.u32(..1000) < of_a_thousand
    }

    #[inline]
    fn drop_in(&mut self, number: u64) {
        let Some((from, to, rail, what)) = self.datagrams.remove(&number) else { return };
        let place = &mut self.ranks[to as usize];
        if place.dead || self.lanes.get(&(from, to, rail)).is_none_or(|flights| flights.dark.is_some()) {
            return;
        }
        let bytes = match what {
            Thrown::Send(bytes) => bytes,
            Thrown::Piece { from: memory, at, length, to: key, index } => {
                if let Some(opened) = place.windows.get_mut(&key.key) {
                    opened.take(Lane { peer: from, rail }, &memory.slice(at, length), index);
                }
                return;
            }
        };
        if place.slots >= self.conditions.slots {
            place.arrivals.lost += 1;
            return;
        }
        let event = arrived(place, Lane { peer: from, rail }, &bytes);
        let flipped = self.conditions.faults.as_ref().map_or(0, |faults| faults.flipped);
        if let Event::Arrived { slot, length, .. } = &event
            && self.happens_of(flipped)
        {
            slot.flip(self.rng.usize(..8 * length));
        }
        self.tell(to, Lane { peer: from, rail }, event);
    }

    /// Delivers the first request of a lane at its peer.
    #[inline]
    fn land(&mut self, from: Rank, to: Rank, rail: usize, generation: u64) {
        if !self.passes((from, to, rail), generation) {
            return;
        }
        let known = self.now + self.latency(rail);
        let now = self.now;
        let Some(lane) = self.lanes.get_mut(&(from, to, rail)) else { return };
        let Some(flight) = lane.queue.front_mut() else { return };
        let place = &mut self.ranks[to as usize];
        let (mut done, mut done_at) = (None, known);
        let target = |place: &SimRank, key: Key, at: usize, length: usize| {
            let Keyed { memory, rail: on, ring_of, .. } = place.keys.get(&key.key)?;
            (*on == rail && ring_of.is_none_or(|peer| peer == from) && at.checked_add(length)? <= memory.len())
                .then(|| memory.clone())
        };
        let landed = match &mut flight.what {
            Flying::Datagram(..) => unreachable!("it stands in no queue"),
            Flying::Send(_) if place.slots >= self.conditions.slots => {
                // No slot is posted: the adapter retries, and later requests wait.
                place.arrivals.waits += 1;
                let at = self.now + 2_000;
                return self.happens(at, Happening::Head(from, to, rail, generation));
            }
            Flying::Send(bytes) => Some(Some(arrived(place, Lane { peer: from, rail }, bytes))),
            Flying::Put { to: key, pieces, immediate } => {
                let (at, bytes) = pieces.pop_front().expect("a put has a piece");
                target(place, *key, at, memory::length(&bytes)).map(|memory| {
                    memory.write(at, &bytes);
                    immediate
                        .take_if(|_| pieces.is_empty())
                        .map(|value| Event::Immediate(Lane { peer: from, rail }, value))
                })
            }
            Flying::Write { from: source, from_at, length, to: key, at, token } => {
                target(place, *key, *at, *length).map(|memory| {
                    // Reads the bytes only now, which exposes a sender that changes them before the completion.
                    memory.write(*at, &source.slice(*from_at, *length));
                    done = Some(*token);
                    None
                })
            }
            Flying::Read { from: key, at, into, into_at, length, token } => {
                target(place, *key, *at, *length).map(|memory| {
                    into.write(*into_at, &memory.slice(*at, *length));
                    done = Some(*token);
                    None
                })
            }
        };
        let Some(event) = landed else {
            // The key is unknown or was released.
            self.cut(from, Some(to), &Told::Unreachable);
            let now = self.now;
            return self.happens(now, Happening::Told(from, to, rail, Told::Unreachable));
        };
        if matches!(&flight.what, Flying::Put { pieces, .. } if !pieces.is_empty()) {
            let at = self.now + self.rng.u64(1..300);
            self.happens(at, Happening::Head(from, to, rail, generation));
        } else {
            let landed = lane.queue.pop_front();
            lane.entered -= 1;
            // Completions follow the order of the lane: if one is known, all before it are.
            let known = lane.landed.back().map_or(known, |(before, _)| known.max(*before));
            done_at = known;
            if self.conditions.rails.len() > 1 {
                lane.landed.retain(|(until, _)| *until >= now);
                lane.landed.extend(landed.and_then(|flight| Some((known, flight.whole?))));
            }
            if let Some(next) = lane.queue.front().filter(|_| lane.entered > 0) {
                let at = next.due.max(self.now);
                self.happens(at, Happening::Head(from, to, rail, generation));
            }
        }
        if let Some(token) = done {
            self.happens(done_at, Happening::Told(from, to, rail, Told::Done(token, generation)));
        }
        match event {
            Some(event) => self.tell(to, Lane { peer: from, rail }, event),
            None => self.wake(to),
        }
    }
}

impl Opened {
    /// Places a datagram in the next receive, if one is left.
    #[inline]
    fn take(&mut self, lane: Lane, bytes: &[Run], index: u8) {
        let mut places = (0..64).filter(|piece| self.window.wanted >> piece & 1 == 1);
        if let Some(place) = places.nth(self.came.len())
            && self.lane == lane
        {
            assert_eq!(memory::length(bytes), self.window.piece, "a segment group takes only whole pieces");
            self.memory.write(self.window.at + place * self.window.piece, bytes);
            self.came.push(index);
        }
    }
}

/// Places a send in a slot of the rank.
#[inline]
fn arrived(place: &mut SimRank, lane: Lane, bytes: &[Run]) -> Event<SimMemory> {
    place.slots += 1;
    place.arrivals.most = place.arrivals.most.max(place.slots);
    let mut slot = SimMemory::zero(memory::length(bytes));
    slot.is_slot = true;
    slot.write(0, bytes);
    let length = slot.len();
    Event::Arrived { lane, slot, at: 0, length }
}
