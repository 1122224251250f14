//! The simulated wire, with a test's changes to what a rank posts and polls.

use transom_channel::sim::{SimMemory, SimWire};
use transom_channel::wire::{Busy, Event, Key, Lane, Rail, Request, Window};
use transom_channel::{Rank, Wire};

/// The calls of a wire that a test changes. All others go to the simulated wire.
pub trait Change {
    fn post(&mut self, wire: &mut SimWire, lane: Lane, request: Request<'_, SimMemory>) -> Result<(), Busy> {
        wire.post(lane, request)
    }

    fn poll(&mut self, wire: &mut SimWire) -> Option<Event<SimMemory>> {
        wire.poll()
    }
}

/// A wire with a change.
pub struct Changed<C> {
    pub wire: SimWire,
    pub change: C,
}

impl<C: Change> Wire for Changed<C> {
    type Memory = SimMemory;

    fn post(&mut self, lane: Lane, request: Request<'_, SimMemory>) -> Result<(), Busy> {
        self.change.post(&mut self.wire, lane, request)
    }

    fn poll(&mut self) -> Option<Event<SimMemory>> {
        self.change.poll(&mut self.wire)
    }

    fn rails(&self, near: bool) -> &[Rail] {
        self.wire.rails(near)
    }

    fn connect(&mut self, lane: Lane) {
        self.wire.connect(lane);
    }

    fn abort_peer(&mut self, peer: Rank) {
        self.wire.abort_peer(peer);
    }

    fn take(&mut self, length: usize) -> Option<SimMemory> {
        self.wire.take(length)
    }

    fn give(&mut self, memory: SimMemory) {
        self.wire.give(memory);
    }

    fn ring(&mut self, peer: Rank, length: usize) -> Option<(SimMemory, Key)> {
        self.wire.ring(peer, length)
    }

    fn reads(&mut self, lane: Lane) -> bool {
        self.wire.reads(lane)
    }

    fn register(&mut self, memory: &SimMemory, lane: Lane) -> Option<Key> {
        self.wire.register(memory, lane)
    }

    fn release(&mut self, lane: Lane, key: Key) {
        self.wire.release(lane, key);
    }

    fn key_of(&self, memory: &SimMemory, rail: usize) -> Option<Key> {
        self.wire.key_of(memory, rail)
    }

    fn memory_of(&self, rail: usize, key: Key, length: usize, written: bool) -> Option<SimMemory> {
        self.wire.memory_of(rail, key, length, written)
    }

    fn open_window(&mut self, lane: Lane, window: Window) -> Option<Key> {
        self.wire.open_window(lane, window)
    }

    fn close_window(&mut self, rail: usize, window: Key) -> u64 {
        self.wire.close_window(rail, window)
    }

    fn now(&self) -> u64 {
        self.wire.now()
    }
}
