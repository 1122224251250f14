//! Messages of the fake network: the shared-memory wire, presented as a wire between hosts.

use crate::network::Counts;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use transom_channel::Wire;
use transom_channel::wire::{Busy, Event, Key, Lane, Rail, RailKind, Rank, Request, WireMemory};
use transom_network::NetworkWire;
use transom_shm_loopback::Loopback;
use transom_shm_loopback::messages::{Bytes, Naps, ProgressHook, ShmWire, Waiter};
use transom_windows::{FabricError, OobExchange};

/// Number of posts of a rank, by peer.
pub type Posts = Mutex<BTreeMap<Rank, u64>>;

pub struct PretendWire {
    wire: ShmWire,
    rail: [Rail; 1],
    waiter: Waiter,
    counts: Arc<Counts>,
}

impl PretendWire {
    pub fn open(job: &Loopback, counts: Arc<Counts>) -> Result<PretendWire, FabricError> {
        // SAFETY: an engine drives it.
        let wire = unsafe { ShmWire::open(job) }?;
        let [rail] = *wire.rails(true) else { unreachable!("shared memory has one rail") };
        let nap = Duration::from_micros(50);
        let naps = Naps { first: nap, longest: nap, longest_idle: nap };
        let waiter = Waiter::without_a_bell(job.rank(), true, naps);
        Ok(PretendWire { wire, rail: [Rail { kind: RailKind::Connection, ..rail }], waiter, counts })
    }
}

impl NetworkWire for PretendWire {
    fn waiter(&self) -> Waiter {
        self.waiter.clone()
    }

    fn progress_in_waits(&self, hook: Arc<dyn ProgressHook>) {
        self.wire.progress_in_waits(hook);
    }

    fn close(&mut self) {
        self.wire.close();
    }

    fn look_for_the_gone(&mut self) {
        self.wire.look_for_the_gone();
    }
}

impl Wire for PretendWire {
    type Memory = Bytes;

    fn rails(&self, near: bool) -> &[Rail] {
        if near { &[] } else { &self.rail }
    }

    fn connect(&mut self, lane: Lane) {
        self.wire.connect(lane);
    }

    fn abort_peer(&mut self, peer: Rank) {
        self.wire.abort_peer(peer);
    }

    fn take(&mut self, length: usize) -> Option<Bytes> {
        self.wire.take(length)
    }

    fn give(&mut self, memory: Bytes) {
        self.wire.give(memory);
    }

    fn ring(&mut self, peer: Rank, length: usize) -> Option<(Bytes, Key)> {
        self.wire.ring(peer, length)
    }

    fn reads(&mut self, lane: Lane) -> bool {
        self.wire.reads(lane)
    }

    fn register(&mut self, memory: &Bytes, lane: Lane) -> Option<Key> {
        self.wire.register(memory, lane)
    }

    fn release(&mut self, lane: Lane, key: Key) {
        self.wire.release(lane, key);
    }

    fn post(&mut self, lane: Lane, request: Request<'_, Bytes>) -> Result<(), Busy> {
        *self.counts.posts.lock().unwrap().entry(lane.peer).or_default() += 1;
        self.wire.post(lane, request)
    }

    fn poll(&mut self) -> Option<Event<Bytes>> {
        Some(match self.wire.poll()? {
            Event::Arrived { lane, slot, at, length } => {
                let mut bytes = vec![0; length].into_boxed_slice();
                slot.read(at, &mut bytes);
                self.wire.give(slot);
                Event::Arrived { lane, slot: Bytes::owned(bytes), at: 0, length }
            }
            event => event,
        })
    }

    fn now(&self) -> u64 {
        self.wire.now()
    }
}
