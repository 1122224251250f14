//! The wire of a simulated rank.

use super::Volume;
use super::memory::{self, SimMemory};
use super::net::{Flight, Flying, Happening, Keyed, Net, Opened, Thrown, Told};
use crate::delivery::{PieceLoc, arrange};
use crate::wire::{Busy, Data, Event, Key, Lane, Left, Part, Rail, RailKind, Rank, Request, Window, Wire};
use std::cell::RefCell;
use std::rc::Rc;

/// The wire of one rank of a simulated job.
pub struct SimWire {
    net: Rc<RefCell<Net>>,
    /// `rails`: the rails to peers on other hosts, and to peers on this host. `numbers`: their indices in the
    /// network, which has one list of all rails.
    rails: [Vec<Rail>; 2],
    numbers: [Vec<usize>; 2],
    rank: Rank,
    host: Rank,
}

impl SimWire {
    #[inline]
    pub(super) fn new(net: Rc<RefCell<Net>>, rank: Rank) -> SimWire {
        let (all, host) = (net.borrow().conditions.rails.clone(), net.borrow().conditions.host);
        let is_memory = |number: &usize| all[*number].kind == RailKind::Memory;
        let numbers = [false, true].map(|near| (0..all.len()).filter(|number| is_memory(number) == near).collect());
        let rails = numbers.each_ref().map(|numbers: &Vec<usize>| numbers.iter().map(|number| all[*number]).collect());
        SimWire { net, rails, numbers, rank, host }
    }

    /// The network's lane for a lane of this rank.
    #[inline]
    fn number(&self, lane: Lane) -> Lane {
        Lane { rail: self.numbers[usize::from(self.is_near(lane.peer))][lane.rail], ..lane }
    }

    /// The lane of this rank for a lane of the network.
    #[inline]
    fn lane(&self, numbered: Lane) -> Lane {
        let row = &self.numbers[usize::from(self.is_near(numbered.peer))];
        Lane { rail: row.iter().position(|number| *number == numbered.rail).unwrap_or(0), ..numbered }
    }
}

impl Wire for SimWire {
    type Memory = SimMemory;

    #[inline]
    fn rails(&self, near: bool) -> &[Rail] {
        &self.rails[usize::from(near)]
    }

    #[inline]
    fn connect(&mut self, lane: Lane) {
        let Lane { rail, .. } = self.number(lane);
        let net = &mut *self.net.borrow_mut();
        let at = net.now + net.latency(rail);
        if net.ranks[lane.peer as usize].dead {
            return net.happens(at, Happening::Told(self.rank, lane.peer, rail, Told::Died));
        }
        net.connect(self.rank, lane.peer, rail);
    }

    #[inline]
    fn fails_over(&self) -> bool {
        true
    }

    #[inline]
    fn drain_failed(&mut self, lane: Lane) -> Vec<Left<SimMemory>> {
        let Lane { peer, rail } = self.number(lane);
        self.net.borrow_mut().drain_failed(self.rank, peer, rail)
    }

    #[inline]
    fn disconnect(&mut self, lane: Lane) {
        let Lane { peer, rail } = self.number(lane);
        self.net.borrow_mut().lanes.remove(&(self.rank, peer, rail));
    }

    #[inline]
    fn connected_besides(&self, but: Rank) -> usize {
        let net = self.net.borrow();
        let has = |peer: Rank| {
            let of_kind =
                self.rails[0].iter().zip(&self.numbers[0]).filter(|(rail, _)| rail.kind == RailKind::Connection);
            of_kind.into_iter().any(|(_, rail)| net.lanes.contains_key(&(self.rank, peer, *rail)))
        };
        let of_windows = net.windows.iter().filter(|(rank, peer)| *rank == self.rank && *peer != but && !has(*peer));
        of_windows.count()
    }

    #[inline]
    fn is_near(&self, peer: Rank) -> bool {
        self.host > 0 && self.rank / self.host == peer / self.host
    }

    #[inline]
    fn opens(&mut self, lane: Lane) -> bool {
        self.connect(lane);
        true
    }

    #[inline]
    fn abort_peer(&mut self, peer: Rank) {
        let net = &mut *self.net.borrow_mut();
        net.cut(self.rank, Some(peer), &Told::Unreachable);
        let place = &mut net.ranks[self.rank as usize];
        let slots = &mut place.slots;
        place.inbox.retain(|(of, event)| {
            *slots -= usize::from(of.peer == peer && matches!(event, Event::Arrived { .. }));
            of.peer != peer
        });
    }

    #[inline]
    fn take(&mut self, length: usize) -> Option<SimMemory> {
        (length <= self.net.borrow().conditions.memory).then(|| SimMemory::zero(length))
    }

    #[inline]
    fn ring(&mut self, peer: Rank, length: usize) -> Option<(SimMemory, Key)> {
        let memory = self.take(length)?;
        let key = self.register(&memory, Lane { peer, rail: 0 })?;
        let keys = &mut self.net.borrow_mut().ranks[self.rank as usize].keys;
        keys.entry(key.key).and_modify(|keyed| keyed.ring_of = Some(peer));
        Some((memory, key))
    }

    #[inline]
    fn publish(&mut self, peer: Rank, ring: &SimMemory, words: [u64; 2]) -> bool {
        if !self.is_near(peer) {
            return false;
        }
        let net = &mut *self.net.borrow_mut();
        let mut keys = net.ranks[self.rank as usize].keys.values_mut();
        let ring = keys.find(|known| known.memory.is(ring)).expect("a ring is registered");
        ring.published = words;
        net.wake(peer);
        true
    }

    #[inline]
    fn published(&mut self, peer: Rank, ring: Key) -> Option<[u64; 2]> {
        let net = self.net.borrow();
        let known = net.ranks[peer as usize].keys.get(&ring.key)?;
        (known.ring_of == Some(self.rank) && self.is_near(peer)).then_some(known.published)
    }

    #[inline]
    fn reads(&mut self, _: Lane) -> bool {
        true
    }

    #[inline]
    fn may_send_faster(&mut self, _: Lane, _: Key) -> bool {
        let mut net = self.net.borrow_mut();
        net.rng.u32(..) % 1000 < net.conditions.sent_faster
    }

    #[inline]
    fn give(&mut self, memory: SimMemory) {
        if memory.is_slot {
            self.net.borrow_mut().ranks[self.rank as usize].slots -= 1;
        }
    }

    #[inline]
    fn register(&mut self, memory: &SimMemory, lane: Lane) -> Option<Key> {
        let Lane { rail, .. } = self.number(lane);
        let net = &mut *self.net.borrow_mut();
        if net.rng.u32(..) % 1000 < net.conditions.unregistered {
            return None;
        }
        net.keys += 1;
        net.ranks[self.rank as usize]
            .keys
            .insert(net.keys, Keyed { memory: memory.clone(), rail, ring_of: None, published: [0; 2] });
        Some(Key { address: 0, key: net.keys })
    }

    #[inline]
    fn release(&mut self, lane: Lane, key: Key) {
        let Lane { rail, .. } = self.number(lane);
        let place = &mut self.net.borrow_mut().ranks[self.rank as usize];
        let ended = place.keys.remove(&key.key).expect("a registration ends once");
        assert_eq!(ended.rail, rail, "a registration ends with its rail");
        assert!(place.windows.values().all(|opened| opened.window.into != key), "a window is open there");
    }

    #[inline]
    fn key_of(&self, memory: &SimMemory, rail: usize) -> Option<Key> {
        let net = self.net.borrow();
        let mut keys = net.ranks[self.rank as usize].keys.iter();
        let (key, _) = keys.find(|(_, known)| known.memory.is(memory) && known.rail == self.numbers[0][rail])?;
        Some(Key { address: 0, key: *key })
    }

    #[inline]
    fn memory_of(&self, rail: usize, key: Key, length: usize, _: bool) -> Option<SimMemory> {
        let net = self.net.borrow();
        let known = net.ranks[self.rank as usize].keys.get(&key.key)?;
        (self.numbers[0].get(rail) == Some(&known.rail) && length <= known.memory.len()).then(|| known.memory.clone())
    }

    #[inline]
    fn open_window(&mut self, lane: Lane, window: Window) -> Option<Key> {
        let memory = self.memory_of(lane.rail, window.into, window.at, true)?;
        let net = &mut *self.net.borrow_mut();
        net.keys += 1;
        let (key, windows) = (net.keys, &mut net.ranks[self.rank as usize].windows);
        if windows.len() >= net.conditions.windows {
            return None;
        }
        windows.insert(key, Opened { lane: self.number(lane), memory, window, came: Vec::new() });
        Some(Key { address: 0, key })
    }

    #[inline]
    fn close_window(&mut self, _: usize, window: Key) -> u64 {
        let closed = self.net.borrow_mut().ranks[self.rank as usize].windows.remove(&window.key);
        let Opened { memory, window, came, .. } = closed.expect("a window ends once");
        let spare = SimMemory::zero(window.piece);
        let at = |place| match place {
            PieceLoc::Piece(piece) => (&memory, window.at + usize::from(piece) * window.piece),
            PieceLoc::Spare => (&spare, 0),
        };
        let (copies, there) = arrange(window.wanted, &came);
        for ((from, from_at), (to, to_at)) in copies.into_iter().map(|(from, to)| (at(from), at(to))) {
            to.write(to_at, &from.slice(from_at, window.piece));
        }
        there
    }

    #[inline]
    fn post(&mut self, lane: Lane, request: Request<'_, SimMemory>) -> Result<(), Busy> {
        let rail = self.rails(self.is_near(lane.peer))[lane.rail];
        let lane = self.number(lane);
        let net = &mut *self.net.borrow_mut();
        let Some(flights) = net.lanes.get(&(self.rank, lane.peer, lane.rail)) else { return Err(Busy) };
        if flights.queue.len() >= net.conditions.depth || net.rng.u32(..) % 1000 < net.conditions.busy {
            return Err(Busy);
        }
        let part = |data: Data<'_, SimMemory>| match data {
            Data::None => Vec::new(),
            Data::Of(part) => part.memory.slice(part.at, part.length),
            Data::Bytes(bytes) => memory::said(bytes, 0),
        };
        let registered = |memory: &SimMemory| {
            let mut keys = net.ranks[self.rank as usize].keys.values();
            assert!(
                rail.kind == RailKind::Memory || keys.any(|known| known.memory.is(memory) && known.rail == lane.rail),
                "this memory is not registered there"
            );
        };
        let several = self.rails[0].len() > 1;
        let said = |bytes: &[memory::Run]| {
            let memory = SimMemory::zero(memory::length(bytes));
            memory.write(0, bytes);
            (memory, memory::length(bytes))
        };
        let (length, what, whole) = match request {
            Request::Send { head, body } => {
                let bytes = memory::chain(memory::said(head, 0), part(body));
                assert!(memory::length(&bytes) <= rail.longest, "longer than the longest send");
                let whole = several.then(|| said(&bytes)).map(|(memory, length)| Left::Send(memory, length));
                (memory::length(&bytes), Flying::Send(bytes), whole)
            }
            Request::Put { to, at, head, body, mark, immediate } => {
                let bytes = memory::chain(memory::said(head, 0), part(body));
                let length = memory::length(&bytes);
                let whole = several.then(|| said(&bytes)).map(|(memory, length)| Left::Put(memory, length));
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
                    Some((at, mark)) if rail.mark_last && net.conditions.torn => {
                        pieces.push((at, memory::said(&mark, 0)));
                    }
                    // The whole put becomes visible at once.
                    Some((_, mark)) if rail.mark_last => {
                        let (at, bytes) = pieces.pop().unwrap_or((at, Vec::new()));
                        pieces.push((at, memory::chain(bytes, memory::said(&mark, 0))));
                    }
                    Some((at, mark)) if rail.whole_word && length == 0 => pieces.push((at, memory::said(&mark, 0))),
                    // The rail guarantees no order: any piece may become visible first, and the mark in
                    // halves.
                    Some((at, mark)) => {
                        pieces.extend([(at, memory::said(&mark[..4], 0)), (at + 4, memory::said(&mark[4..], 0))]);
                        net.rng.shuffle(&mut pieces);
                    }
                    None => {}
                }
                (length + 8, Flying::Put { to, pieces: pieces.into(), immediate }, whole)
            }
            Request::Write { from, to, at, token } => {
                registered(from.memory);
                let (memory, from_at, length) = (from.memory.clone(), from.at, from.length);
                (length, Flying::Write { from: memory, from_at, length, to, at, token }, Some(Left::Moved(token)))
            }
            Request::Piece { from, to, index, token } => {
                registered(from.memory);
                assert!(from.length <= rail.longest, "longer than a datagram");
                let (memory, at, length) = (from.memory.clone(), from.at, from.length);
                let thrown = Thrown::Piece { from: memory, at, length, to, index };
                (length, Flying::Datagram(thrown, token), None)
            }
            Request::Read { from, at, into, token } => {
                registered(into.memory);
                let (memory, into_at, length) = (into.memory.clone(), into.at, into.length);
                (length, Flying::Read { from, at, into: memory, into_at, length, token }, Some(Left::Moved(token)))
            }
        };
        let traffic = &mut net.ranks[self.rank as usize].traffic[lane.rail];
        let of = match &what {
            Flying::Send(_) => &mut traffic.sends,
            Flying::Put { .. } => &mut traffic.puts,
            Flying::Datagram(..) | Flying::Write { .. } | Flying::Read { .. } => &mut traffic.moves,
        };
        *of += Volume { requests: 1, bytes: length as u64 };
        let latency = net.latency(lane.rail);
        let lane = (self.rank, lane.peer, lane.rail);
        let mut posted = net.now;
        if rail.kind != RailKind::Memory {
            posted = net.works(self.rank, |costs| costs.post);
        }
        if rail.kind == RailKind::Datagram {
            posted = net.queued(self.rank, posted);
        }
        let bytes = length as u64;
        let what = match (what, &net.conditions.faults, rail.kind) {
            (Flying::Send(bytes), Some(_), RailKind::Datagram) => Flying::Datagram(Thrown::Send(bytes), None),
            (what, ..) => what,
        };
        if let Flying::Datagram(thrown, token) = &what {
            let at = net.datagram(lane, posted, bytes, *token);
            net.throw(lane, thrown, at);
            return Ok(());
        }
        net.queue(lane, Flight { posted, bytes, latency, due: 0, whole, what });
        Ok(())
    }

    #[inline]
    fn read_now(&mut self, lane: Lane, from: Key, into: Part<'_, SimMemory>, token: u64) -> Result<bool, Busy> {
        let (near, number) = (self.is_near(lane.peer), self.number(lane).rail);
        let mut net = self.net.borrow_mut();
        let is_up = net.lanes.contains_key(&(self.rank, lane.peer, number));
        // Completes at once at random, as where processors share memory; otherwise the owner has to take
        // part.
        if near && is_up && net.rng.bool() {
            let source = net.ranks[lane.peer as usize].keys.get(&from.key);
            if let Some(source) = source.filter(|source| source.ring_of.is_none() && into.length <= source.memory.len())
            {
                into.memory.write(into.at, &source.memory.slice(0, into.length));
                net.ranks[self.rank as usize].traffic[number].moves +=
                    Volume { requests: 1, bytes: into.length as u64 };
                return Ok(true);
            }
        }
        drop(net);
        self.post(lane, Request::Read { from, at: 0, into, token }).map(|()| false)
    }

    #[inline]
    fn poll(&mut self) -> Option<Event<SimMemory>> {
        let net = &mut *self.net.borrow_mut();
        let inbox = &mut net.ranks[self.rank as usize].inbox;
        // Lanes are polled in random order; events of one lane stay in order.
        let at = match inbox.len() {
            2.. if self.rails[0].len() > 1 => {
                let of = inbox[net.rng.usize(..inbox.len())].0;
                inbox.iter().position(|(lane, _)| *lane == of)?
            }
            _ => 0,
        };
        let (lane, event) = inbox.remove(at)?;
        let is_completion = matches!(event, Event::Arrived { .. } | Event::Done(..) | Event::Immediate(..));
        if is_completion && net.conditions.rails[lane.rail].kind != RailKind::Memory {
            net.works(self.rank, |costs| costs.completion);
        }
        Some(event.on(|lane| self.lane(lane)))
    }

    #[inline]
    fn now(&self) -> u64 {
        self.net.borrow().now
    }
}
