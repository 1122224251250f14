//! The wire of a rank that shares memory with the other ranks of its host: memory to those, adapters to all others. A peer is reached by
//! one of the two, always.

use super::carrier::Adapters;
use std::sync::Arc;
use transom_channel::wire::{Busy, Event, Key, Lane, Left, Part, Rail, Rank, Request, Why};
use transom_channel::{Meter, Wire};
use transom_shm_loopback::messages::{Bytes, ShmWire, Turn, Waiter};

/// By memory to neighbours, and by adapters to the others.
pub struct Neighbours {
    near: ShmWire,
    far: Box<dyn Adapters>,
    /// By ranks of the job, their numbers on this host; and the other way round.
    here: Box<[Option<Rank>]>,
    ranks: Box<[Rank]>,
    /// Events of neighbours since the adapters were asked.
    in_a_row: u32,
}

/// So many at most.
const IN_A_ROW: u32 = 16;

impl Neighbours {
    /// `here` are the numbers of the job's ranks on this host, as `near` has them.
    pub fn new(near: ShmWire, far: Box<dyn Adapters>, here: Vec<Option<usize>>) -> Neighbours {
        let mut ranks: Vec<(Rank, Rank)> = Vec::new();
        ranks.extend((0..).zip(&here).filter_map(|(rank, here)| Some((here.as_ref().copied()? as Rank, rank))));
        ranks.sort();
        let here = here.into_iter().map(|here| here.map(|here| here as Rank)).collect();
        Neighbours { near, far, here, ranks: ranks.into_iter().map(|(_, rank)| rank).collect(), in_a_row: 0 }
    }

    /// The number of a neighbour.
    #[inline(always)]
    fn here(&self, peer: Rank) -> Option<Rank> {
        self.here.get(peer as usize).copied().flatten()
    }

    /// How threads of this rank wait for what comes: neighbours ring its bell, adapters do not.
    pub fn waiter(&self) -> Waiter {
        self.near.waiter().beside(self.far.verbs().waiter())
    }

    /// From now on all waits of this rank call `turn`.
    pub fn turn_in_waits(&self, turn: Arc<dyn Turn>) {
        // First: what is set later changes nothing, and the adapters' knows of no bell.
        self.near.turn_often_in_waits(turn.clone());
        self.far.verbs().turn_in_waits(turn);
    }

    /// Tells the peers that this rank receives nothing any more.
    pub fn close(&mut self) {
        self.near.close();
        self.far.verbs_mut().close();
    }

    /// Finds out who is gone.
    pub fn look_for_the_gone(&mut self) {
        self.near.look_for_the_gone();
        self.far.verbs_mut().look_for_the_gone();
        // Neighbours that were told that this rank died hear it no more, and say nothing.
        if self.far.verbs().is_given_up() {
            (0..self.ranks.len()).for_each(|here| self.near.notice(here, Why::Unreachable));
        }
    }

    fn poll_near(&mut self) -> Option<Event<Bytes>> {
        let event = self.near.poll()?;
        Some(match event {
            // It has a beginning of its own to count from.
            Event::Done(token, _) => Event::Done(token, self.now()),
            event => event.on(|lane| Lane { peer: self.ranks[lane.peer as usize], ..lane }),
        })
    }

    fn poll_far(&mut self) -> Option<Event<Bytes>> {
        let event = self.far.poll()?;
        let Some(here) = event.lane().and_then(|lane| self.here(lane.peer)) else { return Some(event) };
        // By adapters a neighbour says nothing. If the job knows that it is gone, what it has sent is taken before the engine is told.
        if let Event::Failed(_, why) = event {
            self.near.notice(here as usize, why);
        }
        Some(Event::Worked)
    }
}

/// A call about a peer: by memory, under its number there, or by adapters.
macro_rules! by {
    ($self:ident, $peer:expr, $here:ident => $near:expr, $far:expr) => {
        match $self.here($peer) {
            Some($here) => $near,
            None => $far,
        }
    };
}

impl Wire for Neighbours {
    type Memory = Bytes;

    #[inline(always)]
    fn rails(&self, near: bool) -> &[Rail] {
        if near { self.near.rails(true) } else { self.far.rails(false) }
    }

    fn connect(&mut self, lane: Lane) {
        by!(self, lane.peer, peer => self.near.connect(Lane { peer, ..lane }), self.far.connect(lane));
    }

    fn disconnect(&mut self, lane: Lane) {
        by!(self, lane.peer, peer => self.near.disconnect(Lane { peer, ..lane }), self.far.disconnect(lane));
    }

    fn connected_besides(&self, but: Rank) -> usize {
        self.far.connected_besides(but)
    }

    #[inline(always)]
    fn is_near(&self, peer: Rank) -> bool {
        self.here(peer).is_some()
    }

    fn sever(&mut self, peer: Rank) {
        by!(self, peer, here => self.near.sever(here), self.far.sever(peer));
    }

    fn fails_over(&self) -> bool {
        self.far.fails_over()
    }

    fn take_back(&mut self, lane: Lane) -> Vec<Left<Bytes>> {
        by!(self, lane.peer, peer => self.near.take_back(Lane { peer, ..lane }), self.far.take_back(lane))
    }

    #[inline(always)]
    fn take(&mut self, length: usize) -> Option<Bytes> {
        self.near.take(length)
    }

    /// A cell of the inbox, or what its owner frees.
    #[inline(always)]
    fn give(&mut self, memory: Bytes) {
        self.near.give(memory);
    }

    fn ring(&mut self, peer: Rank, length: usize) -> Option<(Bytes, Key)> {
        by!(self, peer, here => self.near.ring(here, length), self.far.ring(peer, length))
    }

    fn publish(&mut self, peer: Rank, ring: &Bytes, words: [u64; 2]) -> bool {
        by!(self, peer, here => self.near.publish(here, ring, words), self.far.publish(peer, ring, words))
    }

    fn published(&mut self, peer: Rank, ring: Key) -> Option<[u64; 2]> {
        by!(self, peer, here => self.near.published(here, ring), self.far.published(peer, ring))
    }

    fn reaches(&mut self, lane: Lane, key: Key, length: usize) -> bool {
        by!(self, lane.peer, peer => self.near.reaches(Lane { peer, ..lane }, key, length), self.far.reaches(lane, key, length))
    }

    fn opens(&mut self, lane: Lane) -> bool {
        by!(self, lane.peer, peer => self.near.opens(Lane { peer, ..lane }), self.far.opens(lane))
    }

    fn leave(&mut self, lane: Lane, key: Key) {
        by!(self, lane.peer, peer => self.near.leave(Lane { peer, ..lane }, key), self.far.leave(lane, key));
    }

    fn reads(&mut self, lane: Lane) -> bool {
        by!(self, lane.peer, peer => self.near.reads(Lane { peer, ..lane }), self.far.reads(lane))
    }

    fn may_send_faster(&mut self, lane: Lane, offered: Key) -> bool {
        by!(
            self,
            lane.peer,
            peer => self.near.may_send_faster(Lane { peer, ..lane }, offered),
            self.far.may_send_faster(lane, offered)
        )
    }

    fn register(&mut self, memory: &Bytes, lane: Lane) -> Option<Key> {
        by!(self, lane.peer, peer => self.near.register(memory, Lane { peer, ..lane }), self.far.register(memory, lane))
    }

    fn release(&mut self, lane: Lane, key: Key) {
        by!(self, lane.peer, peer => self.near.release(Lane { peer, ..lane }, key), self.far.release(lane, key));
    }

    #[inline(always)]
    fn post(&mut self, lane: Lane, request: Request<'_, Bytes>) -> Result<(), Busy> {
        by!(self, lane.peer, peer => self.near.post(Lane { peer, ..lane }, request), self.far.post(lane, request))
    }

    fn read_now(&mut self, lane: Lane, from: Key, into: Part<'_, Bytes>, token: u64) -> Result<bool, Busy> {
        by!(self, lane.peer, peer => self.near.read_now(Lane { peer, ..lane }, from, into, token),
            self.far.read_now(lane, from, into, token))
    }

    fn poll(&mut self) -> Option<Event<Bytes>> {
        if self.in_a_row < IN_A_ROW
            && let Some(event) = self.poll_near()
        {
            self.in_a_row += 1;
            return Some(event);
        }
        self.in_a_row = 0;
        self.poll_far().or_else(|| self.poll_near())
    }

    fn now(&self) -> u64 {
        self.far.now()
    }

    fn due(&self) -> Option<u64> {
        self.far.due()
    }

    fn count(&self, meter: &mut Meter) {
        self.near.count(meter);
        self.far.count(meter);
    }

    #[inline(always)]
    fn read(&self, memory: &Bytes, at: usize, into: &mut [u8]) {
        memory.read(at, into);
    }

    #[inline(always)]
    fn prefetch(&self, ring: &Bytes, at: usize) {
        self.near.prefetch(ring, at);
    }

    #[inline(always)]
    fn prefetch_to_write(&self, peer: Rank, at: usize) {
        if let Some(here) = self.here(peer) {
            self.near.prefetch_to_write(here, at);
        }
    }

    #[inline(always)]
    fn word(&self, ring: &Bytes, at: usize) -> u64 {
        // An adapter's is memory of this process.
        if ring.start().is_some() { self.far.word(ring, at) } else { self.near.word(ring, at) }
    }

    #[inline(always)]
    fn copy(&mut self, from: Part<'_, Bytes>, to: &Bytes, at: usize) {
        from.memory.copy(from.at, from.length, to, at);
    }
}
