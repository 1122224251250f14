//! What carries the messages of a rank. A build without the feature `verbs` has one wire, and uses it as it is; with it each
//! call looks which it is.

use super::error::Error;
use crate::job::variables;
use crate::provider::Provider;
use transom_channel::ring::Shape;
use transom_channel::{Changes, Config, Misconfigured};
use transom_shm_loopback::messages::ShmWire;

#[cfg(feature = "verbs")]
use super::neighbours::Neighbours;
#[cfg(feature = "verbs")]
pub(super) use several::{Adapters, Carrier};

#[cfg(not(feature = "verbs"))]
pub(super) use transom_shm_loopback::messages::ShmWire as Carrier;

/// The wire of this rank, with what suits it and TRANSOM_MESSAGES: for peers that are near, and for the others.
pub(super) struct Opened {
    pub wire: Carrier,
    pub config: Config,
    pub near: Config,
}

/// What all ranks of a machine may send to one of them before it has heard of any, in bytes: in shares, each of so much at most.
const UNHEARD: (usize, usize) = (4 << 20, 64 << 10);

/// Once for each rank of a job.
pub(super) fn open(provider: &Provider) -> Result<Opened, Error> {
    let asked = variables::get::<Changes>("TRANSOM_MESSAGES");
    let asked = asked.map_err(|error| Error::Unavailable { why: error.to_string() })?.unwrap_or_default();
    // A slot for whatever goes at once, and for pieces of what does not, and more of them than packets may be under way: cells of the
    // inbox are slower than waiting for a slot. Eight times as many, since a slot that the caches of both processors still have is slow
    // to write: each of its lines is first to be taken from the other. From 4 MiB it has gone to the cache that they share.
    let ring = Shape { slots: 256, bytes: 16_704 };
    // Messages longer than `eager` are read in place: one copy takes less time than an answer and packets.
    let near = asked.of(Config { ring, window: 32, eager: 16 << 10, zero_copy_from: 16 << 10, ..Config::default() });
    #[cfg(feature = "verbs")]
    if let Provider::Verbs(verbs) = provider {
        let neighbours = verbs.memory_of_host().filter(|memory| transom_windows::Exchange::size(*memory) > 1);
        // SAFETY: the engine drives it.
        let shared = neighbours.map(|memory| unsafe { ShmWire::open(memory) }).transpose()?;
        let (adapters, config) = several::adapters(verbs, &asked)?;
        let wire = match shared {
            Some(shared) => Carrier::Both(Box::new(Neighbours::new(shared, adapters, verbs.ranks_of_host()))),
            None => Carrier::Adapters(adapters),
        };
        return Ok(Opened { wire, config, near });
    }
    let job = crate::provider::shared_memory(provider).expect("the other providers share memory");
    // SAFETY: the engine drives it.
    let wire = unsafe { ShmWire::open(job) }?;
    #[cfg(feature = "verbs")]
    let wire = Carrier::Shared(Box::new(wire));
    // So that the first message to a rank goes at once as later ones do. Between hosts each would keep a buffer of the adapter.
    let (all, most) = UNHEARD;
    let floor = (all / transom_windows::Exchange::size(job)).clamp(near.floor as usize, most) as u32;
    let config = Config { floor, ..near };
    Ok(Opened { wire, near: config.clone(), config })
}

/// No engine can be so.
pub(super) fn misconfigured(error: Misconfigured) -> Error {
    Error::Unavailable { why: format!("TRANSOM_MESSAGES: {error}") }
}

#[cfg(feature = "verbs")]
mod several {
    use super::super::neighbours::Neighbours;
    use super::{Changes, Config, Error, Shape};
    use crate::verbs::{Verbs, VerbsWire};
    use std::sync::Arc;
    use transom_channel::delivery::{Delivery, HEADER, Settings};
    use transom_channel::packet::SYNC;
    use transom_channel::wire::{Busy, Event, Key, Lane, Left, Part, Rail, Rank, Request, SHORTEST};
    use transom_channel::{Meter, Paths, Wire};
    use transom_shm_loopback::messages::{Bytes, ShmWire, Turn, Waiter};

    /// By shared memory, by adapters, or by memory to neighbours and by adapters to the others.
    pub enum Carrier {
        Shared(Box<ShmWire>),
        Adapters(Box<dyn Adapters>),
        Both(Box<Neighbours>),
    }

    /// A wire by adapters: by connections, or also by datagrams.
    pub trait Adapters: Wire<Memory = Bytes> + Send {
        fn verbs(&self) -> &VerbsWire;
        fn verbs_mut(&mut self) -> &mut VerbsWire;
    }

    impl Adapters for VerbsWire {
        fn verbs(&self) -> &VerbsWire {
            self
        }

        fn verbs_mut(&mut self) -> &mut VerbsWire {
            self
        }
    }

    impl Adapters for Delivery<VerbsWire> {
        fn verbs(&self) -> &VerbsWire {
            self.wire()
        }

        fn verbs_mut(&mut self) -> &mut VerbsWire {
            self.wire_mut()
        }
    }

    /// The wire by adapters, and what suits it.
    pub fn adapters(verbs: &Verbs, asked: &Changes) -> Result<(Box<dyn Adapters>, Config), Error> {
        let wire = verbs.wire()?;
        let zero_copy_from = wire.zero_copy_from() as u64;
        // A slot for whatever goes at once.
        let ring = Shape { slots: 32, bytes: 8256 };
        let mut config = Config { ring, zero_copy_from, ..Config::default() };
        let Some((room, longest)) = wire.datagrams() else { return Ok((Box::new(wire), asked.of(config))) };
        let Config { checksum, paths, .. } = asked.of(config.clone());
        // Whoever waits may sleep for half a millisecond before it looks.
        let settings = Settings { floor: 2_000_000, room: room.into(), checksum, ..Settings::default() };
        if longest < SHORTEST + HEADER {
            let why = "TRANSOM_MESSAGES: datagrams (paths=ud, paths=both) need an MTU of 1024 bytes at least; see TRANSOM_VERBS_MTU";
            return Err(Error::Unavailable { why: why.into() });
        }
        if paths == Paths::Datagrams {
            // As long as nobody says that rings are to be made beside them.
            config = Config { eager: longest - HEADER - SYNC, rings: 0, ..config };
        }
        Ok((Box::new(Delivery::new(wire, settings)), asked.of(config)))
    }

    macro_rules! each {
        ($self:expr, $wire:ident => $call:expr) => {
            match $self {
                Carrier::Shared($wire) => $call,
                Carrier::Adapters($wire) => $call,
                Carrier::Both($wire) => $call,
            }
        };
    }

    impl Carrier {
        pub fn waiter(&self) -> Waiter {
            match self {
                Carrier::Shared(wire) => wire.waiter(),
                Carrier::Adapters(wire) => wire.verbs().waiter(),
                Carrier::Both(wire) => wire.waiter(),
            }
        }

        pub fn turn_in_waits(&self, turn: Arc<dyn Turn>) {
            match self {
                Carrier::Shared(wire) => wire.turn_in_waits(turn),
                Carrier::Adapters(wire) => wire.verbs().turn_in_waits(turn),
                Carrier::Both(wire) => wire.turn_in_waits(turn),
            }
        }

        pub fn close(&mut self) {
            match self {
                Carrier::Shared(wire) => wire.close(),
                Carrier::Adapters(wire) => wire.verbs_mut().close(),
                Carrier::Both(wire) => wire.close(),
            }
        }

        pub fn look_for_the_gone(&mut self) {
            match self {
                Carrier::Shared(wire) => wire.look_for_the_gone(),
                Carrier::Adapters(wire) => wire.verbs_mut().look_for_the_gone(),
                Carrier::Both(wire) => wire.look_for_the_gone(),
            }
        }
    }

    impl Wire for Carrier {
        type Memory = Bytes;

        #[inline(always)]
        fn rails(&self, near: bool) -> &[Rail] {
            each!(self, wire => wire.rails(near))
        }

        fn connect(&mut self, lane: Lane) {
            each!(self, wire => wire.connect(lane));
        }

        fn disconnect(&mut self, lane: Lane) {
            each!(self, wire => wire.disconnect(lane));
        }

        fn connected_besides(&self, but: Rank) -> usize {
            each!(self, wire => wire.connected_besides(but))
        }

        fn sever(&mut self, peer: Rank) {
            each!(self, wire => wire.sever(peer));
        }

        fn fails_over(&self) -> bool {
            each!(self, wire => wire.fails_over())
        }

        fn publish(&mut self, peer: Rank, ring: &Bytes, words: [u64; 2]) -> bool {
            each!(self, wire => wire.publish(peer, ring, words))
        }

        fn published(&mut self, peer: Rank, ring: Key) -> Option<[u64; 2]> {
            each!(self, wire => wire.published(peer, ring))
        }

        fn reaches(&mut self, lane: Lane, key: Key, length: usize) -> bool {
            each!(self, wire => wire.reaches(lane, key, length))
        }

        fn leave(&mut self, lane: Lane, key: Key) {
            each!(self, wire => wire.leave(lane, key));
        }

        fn take_back(&mut self, lane: Lane) -> Vec<Left<Bytes>> {
            each!(self, wire => wire.take_back(lane))
        }

        #[inline(always)]
        fn take(&mut self, length: usize) -> Option<Bytes> {
            each!(self, wire => wire.take(length))
        }

        #[inline(always)]
        fn give(&mut self, memory: Bytes) {
            each!(self, wire => wire.give(memory));
        }

        fn ring(&mut self, peer: Rank, length: usize) -> Option<(Bytes, Key)> {
            each!(self, wire => wire.ring(peer, length))
        }

        #[inline(always)]
        fn is_near(&self, peer: Rank) -> bool {
            each!(self, wire => wire.is_near(peer))
        }

        fn opens(&mut self, lane: Lane) -> bool {
            each!(self, wire => wire.opens(lane))
        }

        fn reads(&mut self, lane: Lane) -> bool {
            each!(self, wire => wire.reads(lane))
        }

        fn may_send_faster(&mut self, lane: Lane, offered: Key) -> bool {
            each!(self, wire => wire.may_send_faster(lane, offered))
        }

        fn register(&mut self, memory: &Bytes, lane: Lane) -> Option<Key> {
            each!(self, wire => wire.register(memory, lane))
        }

        fn release(&mut self, lane: Lane, key: Key) {
            each!(self, wire => wire.release(lane, key));
        }

        #[inline(always)]
        fn post(&mut self, lane: Lane, request: Request<'_, Bytes>) -> Result<(), Busy> {
            each!(self, wire => wire.post(lane, request))
        }

        fn read_now(&mut self, lane: Lane, from: Key, into: Part<'_, Bytes>, token: u64) -> Result<bool, Busy> {
            each!(self, wire => wire.read_now(lane, from, into, token))
        }

        #[inline(always)]
        fn poll(&mut self) -> Option<Event<Bytes>> {
            each!(self, wire => wire.poll())
        }

        #[inline(always)]
        fn now(&self) -> u64 {
            each!(self, wire => wire.now())
        }

        fn due(&self) -> Option<u64> {
            each!(self, wire => wire.due())
        }

        fn count(&self, meter: &mut Meter) {
            each!(self, wire => wire.count(meter));
        }

        #[inline(always)]
        fn read(&self, memory: &Bytes, at: usize, into: &mut [u8]) {
            each!(self, wire => wire.read(memory, at, into));
        }

        #[inline(always)]
        fn prefetch(&self, ring: &Bytes, at: usize) {
            each!(self, wire => wire.prefetch(ring, at));
        }

        #[inline(always)]
        fn prefetch_to_write(&self, peer: Rank, at: usize) {
            each!(self, wire => wire.prefetch_to_write(peer, at));
        }

        #[inline(always)]
        fn word(&self, ring: &Bytes, at: usize) -> u64 {
            each!(self, wire => wire.word(ring, at))
        }

        #[inline(always)]
        fn copy(&mut self, from: Part<'_, Bytes>, to: &Bytes, at: usize) {
            each!(self, wire => wire.copy(from, to, at));
        }
    }
}
