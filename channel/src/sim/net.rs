//! The network of a simulated job: lanes, in virtual time.

use super::memory::{self, Memory, Run};
use super::{Conditions, Faults};
use crate::wire::{Event, Key, Lane, RAILS, Rank, Why};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

pub(super) struct Net {
    pub now: u64,
    pub rng: fastrand::Rng,
    pub conditions: Conditions,
    pub ranks: Vec<Place>,
    heap: BinaryHeap<Reverse<(u64, u64, Happening)>>,
    happened: u64,
    pub lanes: BTreeMap<(Rank, Rank, usize), Flights>,
    /// Datagrams under way: from, to, rail and bytes.
    datagrams: BTreeMap<u64, (Rank, Rank, usize, Vec<Run>)>,
    pub keys: u64,
}

/// What the network keeps of a rank.
#[derive(Default)]
pub(super) struct Place {
    /// Events, each with the peer that it is of.
    pub inbox: VecDeque<(Rank, Event<Memory>)>,
    pub dead: bool,
    pub turn_at: Option<u64>,
    /// Slots that have arrived and are not given back.
    pub slots: usize,
    pub keys: BTreeMap<u64, Keyed>,
    /// By rails.
    pub posts: [u64; RAILS],
}

/// Registered memory.
pub(super) struct Keyed {
    pub memory: Memory,
    pub rail: usize,
    /// Whose ring it is. Another peer that guesses the key is refused, as where rings are mapped; an adapter would let it write.
    pub ring_of: Option<Rank>,
}

#[derive(Default)]
pub(super) struct Flights {
    pub queue: VecDeque<Flight>,
    pub free_at: u64,
    pub due: u64,
}

pub(super) struct Flight {
    pub due: u64,
    pub what: Flying,
}

pub(super) enum Flying {
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
    Head(Rank, Rank, usize),
    Datagram(u64),
    Turn(Rank),
    /// To a rank, of a peer, on a rail: which of the events below.
    Told(Rank, Rank, usize, Told),
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Told {
    Up,
    Died,
    Unreachable,
    Done(u64),
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
                Happening::Head(from, to, rail) => self.land(from, to, rail),
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
                        Told::Up => Event::Up(lane),
                        Told::Died => Event::Failed(lane, Why::Died),
                        Told::Unreachable => Event::Failed(lane, Why::Unreachable),
                        // Lanes that have ended tell no more of what was posted on them.
                        Told::Done(token) if self.lanes.contains_key(&(rank, peer, rail)) => Event::Done(token, at),
                        Told::Done(_) => continue,
                    };
                    self.tell(rank, peer, event);
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

    pub fn happens(&mut self, at: u64, happening: Happening) {
        self.happened += 1;
        self.heap.push(Reverse((at, self.happened, happening)));
    }

    pub fn latency(&mut self) -> u64 {
        self.rng.u64(self.conditions.latency.clone())
    }

    fn tell(&mut self, rank: Rank, peer: Rank, event: Event<Memory>) {
        if !self.ranks[rank as usize].dead {
            self.ranks[rank as usize].inbox.push_back((peer, event));
            self.wake(rank);
        }
    }

    fn wake(&mut self, rank: Rank) {
        let at = self.now + self.rng.u64(self.conditions.pause.clone());
        self.turn(rank, at);
    }

    /// Sends a datagram that is on its way at a time, and what becomes of it.
    pub fn throw(&mut self, from: Rank, to: Rank, rail: usize, bytes: &[Run], at: u64) {
        let Some(Faults { lost, doubled, late, delay, .. }) = self.conditions.faults.clone() else { return };
        let copies = 1 + u8::from(self.happens_of(doubled));
        for _ in 0..copies {
            if self.happens_of(lost) {
                continue;
            }
            let later = if self.happens_of(late) { self.rng.u64(delay.clone()) } else { 0 };
            let at = at + self.latency() + later;
            self.datagrams.insert(self.happened, (from, to, rail, bytes.to_vec()));
            self.happens(at, Happening::Datagram(self.happened));
        }
    }

    fn happens_of(&mut self, of_a_thousand: u32) -> bool {
        self.rng.u32(..1000) < of_a_thousand
    }

    fn drop_in(&mut self, number: u64) {
        let Some((from, to, rail, bytes)) = self.datagrams.remove(&number) else { return };
        let place = &mut self.ranks[to as usize];
        if place.dead || place.slots >= self.conditions.slots || !self.lanes.contains_key(&(from, to, rail)) {
            return;
        }
        let event = arrived(place, Lane { peer: from, rail }, &bytes);
        let flipped = self.conditions.faults.as_ref().map_or(0, |faults| faults.flipped);
        if let Event::Arrived { slot, length, .. } = &event
            && self.happens_of(flipped)
        {
            slot.flip(self.rng.usize(..8 * length));
        }
        self.tell(to, from, event);
    }

    /// The first request of a lane is at its peer.
    fn land(&mut self, from: Rank, to: Rank, rail: usize) {
        let Some(lane) = self.lanes.get_mut(&(from, to, rail)) else { return };
        let Some(flight) = lane.queue.front_mut() else { return };
        let place = &mut self.ranks[to as usize];
        let mut done = None;
        let target = |place: &Place, key: Key, at: usize, length: usize| {
            let Keyed { memory, rail: on, ring_of } = place.keys.get(&key.key)?;
            (*on == rail && ring_of.is_none_or(|peer| peer == from) && at.checked_add(length)? <= memory.len())
                .then(|| memory.clone())
        };
        let landed = match &mut flight.what {
            Flying::Send(_) if place.slots >= self.conditions.slots => {
                // No slot is posted: the adapter tries again, and what is behind waits.
                let at = self.now + 2_000;
                return self.happens(at, Happening::Head(from, to, rail));
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
            self.happens(at, Happening::Head(from, to, rail));
        } else {
            lane.queue.pop_front();
            if let Some(next) = lane.queue.front() {
                let at = next.due.max(self.now);
                self.happens(at, Happening::Head(from, to, rail));
            }
        }
        if let Some(token) = done {
            let at = self.now + self.latency();
            self.happens(at, Happening::Told(from, to, rail, Told::Done(token)));
        }
        match event {
            Some(event) => self.tell(to, from, event),
            None => self.wake(to),
        }
    }
}

/// A send is in a slot of the rank's.
fn arrived(place: &mut Place, lane: Lane, bytes: &[Run]) -> Event<Memory> {
    place.slots += 1;
    let mut slot = Memory::zero(memory::length(bytes));
    slot.is_slot = true;
    slot.write(0, bytes);
    let length = slot.len();
    Event::Arrived { lane, slot, at: 0, length }
}
