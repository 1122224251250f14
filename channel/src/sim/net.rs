//! The network of a simulated job: lanes, in virtual time.

use super::Conditions;
use super::memory::{self, Memory, Run};
use crate::wire::{Busy, Event, Key, Lane, Part, Rail, Rank, Request, Why, Wire};
use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::rc::Rc;

pub(super) struct Net {
    pub now: u64,
    pub rng: fastrand::Rng,
    pub conditions: Conditions,
    pub ranks: Vec<Place>,
    heap: BinaryHeap<Reverse<(u64, u64, Happening)>>,
    happened: u64,
    lanes: BTreeMap<(Rank, Rank, usize), Flights>,
    keys: u64,
}

/// What the network keeps of a rank.
#[derive(Default)]
pub(super) struct Place {
    /// Events, each with the peer that it is of.
    pub inbox: VecDeque<(Rank, Event<Memory>)>,
    pub dead: bool,
    pub turn_at: Option<u64>,
    /// Slots that have arrived and are not given back.
    slots: usize,
    keys: BTreeMap<u64, (Memory, usize)>,
}

#[derive(Default)]
struct Flights {
    queue: VecDeque<Flight>,
    free_at: u64,
    due: u64,
}

struct Flight {
    due: u64,
    what: Flying,
}

enum Flying {
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
enum Happening {
    Head(Rank, Rank, usize),
    Turn(Rank),
    /// To a rank, of a peer, on a rail: which of the events below.
    Told(Rank, Rank, usize, Told),
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Told {
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
    fn cut(&mut self, rank: Rank, with: Option<Rank>, told: &Told) {
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

    fn happens(&mut self, at: u64, happening: Happening) {
        self.happened += 1;
        self.heap.push(Reverse((at, self.happened, happening)));
    }

    fn latency(&mut self) -> u64 {
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

    /// The first request of a lane is at its peer.
    fn land(&mut self, from: Rank, to: Rank, rail: usize) {
        let Some(lane) = self.lanes.get_mut(&(from, to, rail)) else { return };
        let Some(flight) = lane.queue.front_mut() else { return };
        let place = &mut self.ranks[to as usize];
        let mut done = None;
        let target = |place: &Place, key: Key, at: usize, length: usize| {
            let (memory, on) = place.keys.get(&key.key)?;
            (*on == rail && at.checked_add(length)? <= memory.len()).then(|| memory.clone())
        };
        let landed = match &mut flight.what {
            Flying::Send(_) if place.slots >= self.conditions.slots => {
                // No slot is posted: the adapter tries again, and what is behind waits.
                let at = self.now + 2_000;
                return self.happens(at, Happening::Head(from, to, rail));
            }
            Flying::Send(bytes) => {
                place.slots += 1;
                let mut slot = Memory::zero(memory::length(bytes));
                slot.is_slot = true;
                slot.write(0, bytes);
                let length = slot.len();
                Some(Some(Event::Arrived { lane: Lane { peer: from, rail }, slot, length }))
            }
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

/// The wire of one rank of a simulated job.
pub struct SimWire {
    pub(super) net: Rc<RefCell<Net>>,
    pub(super) rails: Vec<Rail>,
    pub(super) rank: Rank,
}

impl Wire for SimWire {
    type Memory = Memory;

    fn rails(&self) -> &[Rail] {
        &self.rails
    }

    fn connect(&mut self, lane: Lane) {
        let net = &mut *self.net.borrow_mut();
        let at = net.now + net.latency();
        if net.ranks[lane.peer as usize].dead {
            return net.happens(at, Happening::Told(self.rank, lane.peer, lane.rail, Told::Died));
        }
        for (from, to) in [(self.rank, lane.peer), (lane.peer, self.rank)] {
            if let std::collections::btree_map::Entry::Vacant(new) = net.lanes.entry((from, to, lane.rail)) {
                new.insert(Flights::default());
                net.happens(at, Happening::Told(from, to, lane.rail, Told::Up));
            }
        }
    }

    fn sever(&mut self, peer: Rank) {
        let net = &mut *self.net.borrow_mut();
        net.cut(self.rank, Some(peer), &Told::Unreachable);
        let place = &mut net.ranks[self.rank as usize];
        let slots = &mut place.slots;
        place.inbox.retain(|(of, event)| {
            *slots -= usize::from(*of == peer && matches!(event, Event::Arrived { .. }));
            *of != peer
        });
    }

    fn take(&mut self, length: usize) -> Option<Memory> {
        (length <= 1 << 40).then(|| Memory::zero(length))
    }

    fn give(&mut self, memory: Memory) {
        if memory.is_slot {
            self.net.borrow_mut().ranks[self.rank as usize].slots -= 1;
        }
    }

    fn register(&mut self, memory: &Memory, rail: usize) -> Option<Key> {
        let net = &mut *self.net.borrow_mut();
        if net.rng.u32(..) % 1000 < net.conditions.unregistered {
            return None;
        }
        net.keys += 1;
        net.ranks[self.rank as usize].keys.insert(net.keys, (memory.clone(), rail));
        Some(Key { address: 0, key: net.keys })
    }

    fn release(&mut self, _: usize, key: Key) {
        let known = self.net.borrow_mut().ranks[self.rank as usize].keys.remove(&key.key);
        assert!(known.is_some(), "a registration ends once");
    }

    fn post(&mut self, lane: Lane, request: Request<'_, Memory>) -> Result<(), Busy> {
        let net = &mut *self.net.borrow_mut();
        let Some(flights) = net.lanes.get(&(self.rank, lane.peer, lane.rail)) else { return Err(Busy) };
        if flights.queue.len() >= net.conditions.depth || net.rng.u32(..) % 1000 < net.conditions.busy {
            return Err(Busy);
        }
        let rail = self.rails[lane.rail];
        let part =
            |part: Option<Part<'_, Memory>>| part.map_or(Vec::new(), |part| part.memory.slice(part.at, part.length));
        let registered = |memory: &Memory| {
            let mut keys = net.ranks[self.rank as usize].keys.values();
            assert!(
                keys.any(|(known, on)| known.is(memory) && *on == lane.rail),
                "this memory is not registered there"
            );
        };
        let (length, what) = match request {
            Request::Send { head, body } => {
                let bytes = memory::chain(memory::said(head, 0), part(body));
                assert!(memory::length(&bytes) <= rail.longest, "longer than the longest send");
                (memory::length(&bytes), Flying::Send(bytes))
            }
            Request::Put { to, at, head, body, mark, immediate } => {
                let bytes = memory::chain(memory::said(head, 0), part(body));
                let length = memory::length(&bytes);
                let mut pieces = Vec::new();
                if net.conditions.torn && length > 1 {
                    let here = net.rng.usize(1..length);
                    let (first, second) = memory::cut(&bytes, here);
                    pieces.extend([(at, first), (at + here, second)]);
                } else if length > 0 {
                    pieces.push((at, bytes));
                }
                let mark = mark.map(|mark| (at + length, mark.to_le_bytes()));
                let mark = mark.inspect(|(at, _)| assert!(at % 8 == 0, "a mark that is not aligned"));
                match mark {
                    Some((at, mark)) if rail.mark_last => pieces.push((at, memory::said(&mark, 0))),
                    Some((at, mark)) if rail.whole_word && length == 0 => pieces.push((at, memory::said(&mark, 0))),
                    // Nothing is promised: any piece may be seen first, and the mark in halves.
                    Some((at, mark)) => {
                        pieces.extend([(at, memory::said(&mark[..4], 0)), (at + 4, memory::said(&mark[4..], 0))]);
                        net.rng.shuffle(&mut pieces);
                    }
                    None => {}
                }
                (length + 8, Flying::Put { to, pieces: pieces.into(), immediate })
            }
            Request::Write { from, to, at, token } => {
                registered(from.memory);
                let (memory, from_at, length) = (from.memory.clone(), from.at, from.length);
                (length, Flying::Write { from: memory, from_at, length, to, at, token })
            }
            Request::Read { from, at, into, token } => {
                registered(into.memory);
                let (memory, into_at, length) = (into.memory.clone(), into.at, into.length);
                (length, Flying::Read { from, at, into: memory, into_at, length, token })
            }
        };
        let latency = net.latency();
        let lane = (self.rank, lane.peer, lane.rail);
        let flights = net.lanes.get_mut(&lane).expect("was looked at");
        flights.free_at = flights.free_at.max(net.now) + length as u64 * net.conditions.picoseconds / 1000;
        flights.due = flights.due.max(flights.free_at + latency);
        let due = flights.due;
        flights.queue.push_back(Flight { due, what });
        if flights.queue.len() == 1 {
            net.happens(due, Happening::Head(lane.0, lane.1, lane.2));
        }
        Ok(())
    }

    fn poll(&mut self) -> Option<Event<Memory>> {
        self.net.borrow_mut().ranks[self.rank as usize].inbox.pop_front().map(|(_, event)| event)
    }

    fn now(&self) -> u64 {
        self.net.borrow().now
    }

    fn read(&self, memory: &Memory, at: usize, into: &mut [u8]) {
        memory.read(at, into);
    }

    fn word(&self, ring: &Memory, at: usize) -> u64 {
        let mut word = [0; 8];
        ring.read(at, &mut word);
        u64::from_le_bytes(word)
    }

    fn copy(&mut self, from: Part<'_, Memory>, to: &Memory, at: usize) {
        to.write(at, &from.memory.slice(from.at, from.length));
    }
}
