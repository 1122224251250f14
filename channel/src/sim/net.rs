//! The network of a simulated job: lanes, in virtual time.

use super::memory::{self, Memory, Run};
use super::{Arrivals, Conditions, Faults, Traffic};
use crate::wire::{Event, Key, Lane, Left, RAILS, RailKind, Rank, Why, Window};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};

pub(super) struct Net {
    pub now: u64,
    pub rng: fastrand::Rng,
    pub conditions: Conditions,
    pub ranks: Vec<Place>,
    heap: BinaryHeap<Reverse<(u64, u64, Happening)>>,
    happened: u64,
    pub lanes: BTreeMap<(Rank, Rank, usize), Flights>,
    /// A rank, and one that its windows, or the other's, have a connection with.
    pub windows: BTreeSet<(Rank, Rank)>,
    /// Rails that pass nothing.
    dark: [bool; RAILS],
    /// Rails that lose all datagrams, of which nobody is told.
    pub mute: [bool; RAILS],
    /// Pairs that are to be connected by a rail, once it passes and both have taken back what they had.
    waiting: BTreeSet<(Rank, Rank, usize)>,
    /// Datagrams under way: from, to, and rail.
    datagrams: BTreeMap<u64, (Rank, Rank, usize, Thrown)>,
    pub keys: u64,
}

/// What the network keeps of a rank.
#[derive(Default)]
pub(super) struct Place {
    /// Events, each with the lane that it is of.
    pub inbox: VecDeque<(Lane, Event<Memory>)>,
    pub dead: bool,
    pub turn_at: Option<u64>,
    /// Slots that have arrived and are not given back.
    pub slots: usize,
    pub keys: BTreeMap<u64, Keyed>,
    pub windows: BTreeMap<u64, Opened>,
    /// By rails.
    pub traffic: [Traffic; RAILS],
    pub arrivals: Arrivals,
    /// Until when it makes connections.
    connecting: u64,
    /// Until when each of its queues for datagrams works; the first is the one whose turn it is.
    pub queues: VecDeque<u64>,
}

/// Registered memory.
pub(super) struct Keyed {
    pub memory: Memory,
    pub rail: usize,
    /// Whose ring it is. Another peer that guesses the key is refused, as where rings are mapped; an adapter would let it write.
    pub ring_of: Option<Rank>,
    /// What was left beside it.
    pub published: [u64; 2],
}

/// A window, and which piece each of its receives has taken.
pub(super) struct Opened {
    pub lane: Lane,
    pub memory: Memory,
    pub window: Window,
    pub came: Vec<u8>,
}

/// What a datagram brings.
#[derive(Clone)]
pub(super) enum Thrown {
    Send(Vec<Run>),
    /// What stands there when it comes, by the key of a window.
    Piece {
        from: Memory,
        at: usize,
        length: usize,
        to: Key,
        index: u8,
    },
}

#[derive(Default)]
pub(super) struct Flights {
    pub queue: VecDeque<Flight>,
    pub free_at: u64,
    pub due: u64,
    /// Tells lanes of a pair apart that were there one after the other.
    pub generation: u64,
    /// Since when it passes nothing.
    pub dark: Option<u64>,
    /// What has taken effect, and until when this end does not know that.
    landed: VecDeque<(u64, Left<Memory>)>,
}

pub(super) struct Flight {
    pub due: u64,
    /// As it was posted.
    pub whole: Option<Left<Memory>>,
    pub what: Flying,
}

pub(super) enum Flying {
    /// Is thrown, and stands in no queue; and what is told once it has gone.
    Datagram(Thrown, Option<u64>),
    Send(Vec<Run>),
    /// Pieces that become visible one after the other.
    Put {
        to: Key,
        pieces: VecDeque<(usize, Vec<Run>)>,
        immediate: Option<u32>,
    },
    Write {
        from: Memory,
        from_at: usize,
        length: usize,
        to: Key,
        at: usize,
        token: u64,
    },
    Read {
        from: Key,
        at: usize,
        into: Memory,
        into_at: usize,
        length: usize,
        token: u64,
    },
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Happening {
    /// From, to, the rail, and the generation of the lane.
    Head(Rank, Rank, usize, u64),
    Datagram(u64),
    Turn(Rank),
    /// To a rank, of a peer, on a rail: which of the events below.
    Told(Rank, Rank, usize, Told),
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Told {
    Died,
    Unreachable,
    /// By the lane of that generation, as below.
    Up(u64),
    Done(u64, u64),
    Cut(u64),
}

impl Net {
    pub fn new(seed: u64, ranks: Rank, conditions: Conditions) -> Net {
        Net {
            now: 0,
            rng: fastrand::Rng::with_seed(seed),
            conditions,
            ranks: (0..ranks).map(|_| Place::default()).collect(),
            heap: BinaryHeap::new(),
            happened: 0,
            lanes: BTreeMap::new(),
            windows: BTreeSet::new(),
            dark: [false; RAILS],
            mute: [false; RAILS],
            waiting: BTreeSet::new(),
            datagrams: BTreeMap::new(),
            keys: 0,
        }
    }

    /// Goes on until a rank has its turn; `None` if nothing is under way any more.
    pub fn next_turn(&mut self) -> Option<Rank> {
        loop {
            let Reverse((at, _, happening)) = self.heap.pop()?;
            self.now = at;
            match happening {
                Happening::Head(from, to, rail, generation) => self.land(from, to, rail, generation),
                Happening::Datagram(number) => self.drop_in(number),
                Happening::Turn(rank) => {
                    let place = &mut self.ranks[rank as usize];
                    // Of several turns that were asked for only the earliest counts.
                    if place.turn_at.take_if(|turn| *turn == at).is_some() && !place.dead {
                        return Some(rank);
                    }
                }
                Happening::Told(rank, peer, rail, told) => {
                    let lane = Lane { peer, rail };
                    let event = match told {
                        Told::Died => Event::Failed(lane, Why::Died),
                        Told::Unreachable => Event::Failed(lane, Why::Unreachable),
                        // Lanes that have ended tell no more of what was posted on them.
                        Told::Up(generation) if self.passes((rank, peer, rail), generation) => Event::Up(lane),
                        Told::Done(token, generation) if self.passes((rank, peer, rail), generation) => {
                            if let Some(flights) = self.lanes.get_mut(&(rank, peer, rail)) {
                                let of = |left: &Left<Memory>| matches!(left, Left::Moved(of) if *of == token);
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

    /// Gives a rank a turn.
    pub fn turn(&mut self, rank: Rank, at: u64) {
        let place = &mut self.ranks[rank as usize];
        if place.turn_at.is_none_or(|turn| at < turn) {
            place.turn_at = Some(at);
            self.happens(at, Happening::Turn(rank));
        }
    }

    pub fn kill(&mut self, rank: Rank) {
        self.ranks[rank as usize].dead = true;
        self.cut(rank, None, &Told::Died);
    }

    /// Ends the lanes between a rank and one peer, or all; the peers are told.
    pub fn cut(&mut self, rank: Rank, with: Option<Rank>, told: &Told) {
        let cut = |a: Rank, b: Rank| (a == rank && with.is_none_or(|with| with == b)).then_some(b);
        self.waiting.retain(|(a, b, _)| cut(*a, *b).or(cut(*b, *a)).is_none());
        let ended: Vec<_> =
            self.lanes.keys().copied().filter(|(a, b, _)| cut(*a, *b).or(cut(*b, *a)).is_some()).collect();
        for lane @ (from, to, rail) in ended {
            self.lanes.remove(&lane);
            if to == rank && from != rank {
                let at = self.now + self.latency();
                let told = if *told == Told::Died { Told::Died } else { Told::Unreachable };
                self.happens(at, Happening::Told(from, rank, rail, told));
            }
        }
    }

    fn passes(&self, lane: (Rank, Rank, usize), generation: u64) -> bool {
        self.lanes.get(&lane).is_some_and(|flights| flights.generation == generation && flights.dark.is_none())
    }

    fn is_dark(&self, lane: (Rank, Rank, usize), generation: u64) -> bool {
        self.lanes.get(&lane).is_some_and(|flights| flights.generation == generation && flights.dark.is_some())
    }

    /// From now on a rail passes nothing, or does again; ranks find out by and by.
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

    /// A lane passes nothing any more, of which its end is told.
    fn end(&mut self, lane: (Rank, Rank, usize)) {
        let (now, at) = (self.now, self.now + self.rng.u64(1..100_000));
        let Some(flights) = self.lanes.get_mut(&lane).filter(|flights| flights.dark.is_none()) else { return };
        flights.dark = Some(now);
        let generation = flights.generation;
        self.happens(at, Happening::Told(lane.0, lane.1, lane.2, Told::Cut(generation)));
    }

    /// Makes the lanes of a pair, or by a rail that passes nothing such as are cut.
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

    /// Makes the lanes of a pair, as soon as the rail passes and none is there that has ended.
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
                let at = made + self.latency();
                let generation = self.happened;
                self.lanes.insert((from, to, rail), Flights { generation, ..Flights::default() });
                self.happens(at, Happening::Told(from, to, rail, Told::Up(generation)));
            }
        }
    }

    /// When both ends have made a lane.
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

    /// When a datagram that is posted now is through its queue.
    pub fn queued(&mut self, rank: Rank) -> u64 {
        let (queues, takes) = self.conditions.queues;
        let place = &mut self.ranks[rank as usize].queues;
        place.resize(queues.max(1), 0);
        let until = place.pop_front().unwrap_or(0).max(self.now) + takes;
        place.push_back(until);
        until
    }

    /// What an end had posted on a lane and does not know to have taken effect; the lane is over.
    pub fn take_back(&mut self, me: Rank, peer: Rank, rail: usize) -> Vec<Left<Memory>> {
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

    pub fn happens(&mut self, at: u64, happening: Happening) {
        self.happened += 1;
        self.heap.push(Reverse((at, self.happened, happening)));
    }

    pub fn latency(&mut self) -> u64 {
        self.rng.u64(self.conditions.latency.clone())
    }

    fn tell(&mut self, rank: Rank, lane: Lane, event: Event<Memory>) {
        if !self.ranks[rank as usize].dead {
            self.ranks[rank as usize].inbox.push_back((lane, event));
            self.wake(rank);
        }
    }

    pub fn wake(&mut self, rank: Rank) {
        let at = self.now + self.rng.u64(self.conditions.pause.clone());
        self.turn(rank, at);
    }

    /// Sends a datagram that is on its way at a time, and what becomes of it.
    pub fn throw(&mut self, (from, to, rail): (Rank, Rank, usize), what: &Thrown, at: u64) {
        let none = Faults { lost: 0, doubled: 0, late: 0, delay: 0..1, flipped: 0 };
        let Faults { lost, doubled, late, delay, .. } = self.conditions.faults.clone().unwrap_or(none);
        let copies = 1 + u8::from(self.happens_of(doubled));
        for _ in 0..copies {
            if self.mute[rail] || self.happens_of(lost) {
                continue;
            }
            let later = if self.happens_of(late) { self.rng.u64(delay.clone()) } else { 0 };
            let at = at + self.latency() + later;
            self.datagrams.insert(self.happened, (from, to, rail, what.clone()));
            self.happens(at, Happening::Datagram(self.happened));
        }
    }

    fn happens_of(&mut self, of_a_thousand: u32) -> bool {
        self.rng.u32(..1000) < of_a_thousand
    }

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

    /// The first request of a lane is at its peer.
    fn land(&mut self, from: Rank, to: Rank, rail: usize, generation: u64) {
        if !self.passes((from, to, rail), generation) {
            return;
        }
        let known = self.now + self.latency();
        let now = self.now;
        let Some(lane) = self.lanes.get_mut(&(from, to, rail)) else { return };
        let Some(flight) = lane.queue.front_mut() else { return };
        let place = &mut self.ranks[to as usize];
        let (mut done, mut done_at) = (None, known);
        let target = |place: &Place, key: Key, at: usize, length: usize| {
            let Keyed { memory, rail: on, ring_of, .. } = place.keys.get(&key.key)?;
            (*on == rail && ring_of.is_none_or(|peer| peer == from) && at.checked_add(length)? <= memory.len())
                .then(|| memory.clone())
        };
        let landed = match &mut flight.what {
            Flying::Datagram(..) => unreachable!("it stands in no queue"),
            Flying::Send(_) if place.slots >= self.conditions.slots => {
                // No slot is posted: the adapter tries again, and what is behind waits.
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
                    // What stands there now: who changes it before the end is found out.
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
            // A key that is not, or is no more.
            self.cut(from, Some(to), &Told::Unreachable);
            let now = self.now;
            return self.happens(now, Happening::Told(from, to, rail, Told::Unreachable));
        };
        if matches!(&flight.what, Flying::Put { pieces, .. } if !pieces.is_empty()) {
            let at = self.now + self.rng.u64(1..300);
            self.happens(at, Happening::Head(from, to, rail, generation));
        } else {
            let landed = lane.queue.pop_front();
            // In the order of the lane, so that what is known is known of all before it.
            let known = lane.landed.back().map_or(known, |(before, _)| known.max(*before));
            done_at = known;
            if self.conditions.rails.len() > 1 {
                lane.landed.retain(|(until, _)| *until >= now);
                lane.landed.extend(landed.and_then(|flight| Some((known, flight.whole?))));
            }
            if let Some(next) = lane.queue.front() {
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
    /// A datagram takes the next receive, if there is one.
    fn take(&mut self, lane: Lane, bytes: &[Run], index: u8) {
        let mut places = (0..64).filter(|piece| self.window.wanted >> piece & 1 == 1);
        if let Some(place) = places.nth(self.came.len())
            && self.lane == lane
        {
            assert_eq!(memory::length(bytes), self.window.piece, "only whole pieces come to windows");
            self.memory.write(self.window.at + place * self.window.piece, bytes);
            self.came.push(index);
        }
    }
}

/// A send is in a slot of the rank's.
fn arrived(place: &mut Place, lane: Lane, bytes: &[Run]) -> Event<Memory> {
    place.slots += 1;
    place.arrivals.most = place.arrivals.most.max(place.slots);
    let mut slot = Memory::zero(memory::length(bytes));
    slot.is_slot = true;
    slot.write(0, bytes);
    let length = slot.len();
    Event::Arrived { lane, slot, at: 0, length }
}
