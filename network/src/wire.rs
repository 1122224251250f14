//! Messages of a rank that shares memory with other ranks of its host: through memory to those, through the network to
//! all others. Each peer is always reached by the same transport.

use crate::NetworkWire;
use std::sync::Arc;
use transom_channel::wire::{Busy, Event, Key, Lane, Left, Part, Rail, Rank, Request, Why};
use transom_channel::{Counters, Wire};
use transom_shm_loopback::messages::{Bytes, ProgressHook, ShmWire, Waiter};

/// The wire of a rank of a [`Hybrid`](crate::Hybrid): memory to the ranks of its host, the network to all others.
pub struct HybridWire {
    near: ShmWire,
    far: Box<dyn NetworkWire>,
    /// Number on this host of each rank of the job; `None` if it is on another host.
    here: Box<[Option<Rank>]>,
    /// Rank in the job of each rank of this host.
    ranks: Box<[Rank]>,
    /// Consecutive events from this host since the network was last polled.
    in_a_row: u32,
}

/// Consecutive events from this host after which the network is polled.
const IN_A_ROW: u32 = 16;

impl HybridWire {
    /// `here` has the number in `near` of each rank of the job, or `None` for ranks on other hosts.
    pub fn new(near: ShmWire, far: Box<dyn NetworkWire>, here: &[Option<usize>]) -> HybridWire {
        let mut ranks: Vec<(Rank, Rank)> = Vec::new();
        ranks.extend((0..).zip(here).filter_map(|(rank, here)| Some(((*here)? as Rank, rank))));
        ranks.sort();
        let here = here.iter().map(|here| here.map(|here| here as Rank)).collect();
        HybridWire { near, far, here, ranks: ranks.into_iter().map(|(_, rank)| rank).collect(), in_a_row: 0 }
    }

    /// Number of a peer on this host.
    #[inline(always)]
    fn here(&self, peer: Rank) -> Option<Rank> {
        self.here.get(peer as usize).copied().flatten()
    }

    fn poll_near(&mut self) -> Option<Event<Bytes>> {
        let event = self.near.poll()?;
        Some(match event {
            // The two wires measure time from different origins; `now` is the network's.
            Event::Done(token, _) => Event::Done(token, self.now()),
            event => event.on(|lane| Lane { peer: self.ranks[lane.peer as usize], ..lane }),
        })
    }

    fn poll_far(&mut self) -> Option<Event<Bytes>> {
        let event = self.far.poll()?;
        let Some(here) = event.lane().and_then(|lane| self.here(lane.peer)) else { return Some(event) };
        // Peers on this host do not send through the network, but the network may report their loss. The shared memory
        // then delivers their last messages before the loss is reported to the engine.
        if let Event::Failed(_, why) = event {
            self.near.notice(here as usize, why);
        }
        Some(Event::Worked)
    }
}

impl NetworkWire for HybridWire {
    /// Ranks of this host notify the event count; a network may not, and rings it then at arrivals. A rank without others
    /// on its host sleeps until the network has something.
    fn waiter(&self) -> Waiter {
        let far = self.far.waiter();
        if self.ranks.len() == 1 && far.is_woken_by_arrivals() { far } else { self.near.waiter().beside(far) }
    }

    fn progress_in_waits(&self, hook: Arc<dyn ProgressHook>) {
        // Called first: only the first setting counts, and the network's has no event count.
        self.near.progress_often_in_waits(hook.clone());
        self.far.progress_in_waits(hook);
    }

    fn close(&mut self) {
        self.near.close();
        self.far.close();
    }

    fn look_for_the_gone(&mut self) {
        self.near.look_for_the_gone();
        self.far.look_for_the_gone();
        // Peers on this host that consider this rank dead no longer receive from it, and do not report that.
        if self.far.is_given_up() {
            (0..self.ranks.len()).for_each(|here| self.near.notice(here, Why::Unreachable));
        }
    }

    fn is_given_up(&self) -> bool {
        self.far.is_given_up()
    }
}

/// Dispatches a call about a peer: to memory, with the peer's number on this host, or to the network.
macro_rules! by {
    ($self:ident, $peer:expr, $here:ident => $near:expr, $far:expr) => {
        match $self.here($peer) {
            Some($here) => $near,
            None => $far,
        }
    };
}

impl Wire for HybridWire {
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

    fn abort_peer(&mut self, peer: Rank) {
        by!(self, peer, here => self.near.abort_peer(here), self.far.abort_peer(peer));
    }

    fn fails_over(&self) -> bool {
        self.far.fails_over()
    }

    fn drain_failed(&mut self, lane: Lane) -> Vec<Left<Bytes>> {
        by!(self, lane.peer, peer => self.near.drain_failed(Lane { peer, ..lane }), self.far.drain_failed(lane))
    }

    #[inline(always)]
    fn take(&mut self, length: usize) -> Option<Bytes> {
        self.near.take(length)
    }

    /// The shared memory frees its cells; other memory is freed by its owner.
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

    fn count(&self, counters: &mut Counters) {
        self.near.count(counters);
        self.far.count(counters);
    }

    #[inline(always)]
    fn prefetch_to_write(&self, peer: Rank, at: usize) {
        if let Some(here) = self.here(peer) {
            self.near.prefetch_to_write(here, at);
        }
    }
}
