//! What carries the messages of a rank. A build without the feature `verbs` has one wire, and uses it as it is; with it each
//! call looks which it is.

use super::error::Error;
use crate::job::variables;
use crate::provider::Provider;
use transom_channel::ring::Shape;
use transom_channel::{Changes, Config, Misconfigured};
use transom_shm_loopback::messages::{LONGEST, ShmWire};

#[cfg(feature = "verbs")]
pub(super) use several::{Carrier, Waiter};

#[cfg(not(feature = "verbs"))]
pub(super) use transom_shm_loopback::messages::{ShmWire as Carrier, Waiter};

/// The wire of this rank, and what suits it and TRANSOM_MESSAGES. Once for each rank of a job.
pub(super) fn open(provider: &Provider) -> Result<(Carrier, Config), Error> {
    let asked = variables::get::<Changes>("TRANSOM_MESSAGES");
    let asked = asked.map_err(|error| Error::Unavailable { why: error.to_string() })?.unwrap_or_default();
    #[cfg(feature = "verbs")]
    if let Provider::Verbs(verbs) = provider {
        let wire = verbs.wire()?;
        let zero_copy_from = wire.zero_copy_from() as u64;
        // A slot for whatever goes at once.
        let ring = Shape { slots: 32, bytes: 8256 };
        let config = asked.of(Config { ring, zero_copy_from, ..Config::default() });
        return Ok((Carrier::Verbs(Box::new(wire)), config));
    }
    let job = crate::provider::shared_memory(provider).expect("the other providers share memory");
    // A slot for whatever goes at once, and for pieces of what does not; and for as many packets as may be under way: cells of
    // the inbox are slower than waiting for a slot.
    let ring = Shape { slots: 32, bytes: 16_704 };
    let config = asked.of(Config { ring, window: 32, eager: 16 << 10, ..Config::default() });
    // Before the wire is opened, which is done once: the next call is to say the same.
    config.check(LONGEST).map_err(misconfigured)?;
    let wire = ShmWire::open(job)?;
    #[cfg(feature = "verbs")]
    let wire = Carrier::Shared(Box::new(wire));
    Ok((wire, config))
}

/// No engine can be so.
pub(super) fn misconfigured(error: Misconfigured) -> Error {
    Error::Unavailable { why: format!("TRANSOM_MESSAGES: {error}") }
}

#[cfg(feature = "verbs")]
mod several {
    use crate::verbs::{self, VerbsWire};
    use std::sync::Arc;
    use transom_channel::Wire;
    use transom_channel::wire::{Busy, Event, Key, Lane, Part, Rail, Rank, Request};
    use transom_shm_loopback::messages::{self, Bytes, Look, ShmWire, Turn};
    use transom_windows::Wait;

    /// By shared memory, or by adapters.
    pub enum Carrier {
        Shared(Box<ShmWire>),
        Verbs(Box<VerbsWire>),
    }

    /// How threads wait for what comes by it.
    pub enum Waiter {
        Shared(messages::Waiter),
        Verbs(verbs::Waiter),
    }

    macro_rules! each {
        ($self:expr, $wire:ident => $call:expr) => {
            match $self {
                Carrier::Shared($wire) => $call,
                Carrier::Verbs($wire) => $call,
            }
        };
    }

    impl Carrier {
        pub fn waiter(&self) -> Waiter {
            match self {
                Carrier::Shared(wire) => Waiter::Shared(wire.waiter()),
                Carrier::Verbs(wire) => Waiter::Verbs(wire.waiter()),
            }
        }

        pub fn turn_in_waits(&self, turn: Arc<dyn Turn>) {
            each!(self, wire => wire.turn_in_waits(turn));
        }

        pub fn close(&mut self) {
            each!(self, wire => wire.close());
        }

        pub fn look_for_the_gone(&mut self) {
            each!(self, wire => wire.look_for_the_gone());
        }
    }

    impl Wire for Carrier {
        type Memory = Bytes;

        #[inline(always)]
        fn rails(&self) -> &[Rail] {
            each!(self, wire => wire.rails())
        }

        fn connect(&mut self, lane: Lane) {
            each!(self, wire => wire.connect(lane));
        }

        fn sever(&mut self, peer: Rank) {
            each!(self, wire => wire.sever(peer));
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

        fn reads(&mut self, lane: Lane) -> bool {
            each!(self, wire => wire.reads(lane))
        }

        fn register(&mut self, memory: &Bytes, rail: usize) -> Option<Key> {
            each!(self, wire => wire.register(memory, rail))
        }

        fn release(&mut self, rail: usize, key: Key) {
            each!(self, wire => wire.release(rail, key));
        }

        #[inline(always)]
        fn post(&mut self, lane: Lane, request: Request<'_, Bytes>) -> Result<(), Busy> {
            each!(self, wire => wire.post(lane, request))
        }

        #[inline(always)]
        fn poll(&mut self) -> Option<Event<Bytes>> {
            each!(self, wire => wire.poll())
        }

        #[inline(always)]
        fn now(&self) -> u64 {
            each!(self, wire => wire.now())
        }

        #[inline(always)]
        fn read(&self, memory: &Bytes, at: usize, into: &mut [u8]) {
            each!(self, wire => wire.read(memory, at, into));
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

    impl Waiter {
        #[inline(always)]
        pub fn wait<R>(&self, wait: Wait<'_>, look: impl FnMut() -> Look<R>, check: impl FnMut()) -> R {
            match self {
                Waiter::Shared(waiter) => waiter.wait(wait, look, check),
                Waiter::Verbs(waiter) => waiter.wait(wait, look, check),
            }
        }

        pub fn attend<R>(&self, look: impl FnMut() -> Look<R>, check: impl FnMut()) -> R {
            match self {
                Waiter::Shared(waiter) => waiter.attend(look, check),
                Waiter::Verbs(waiter) => waiter.attend(look, check),
            }
        }

        /// Wakes the threads of this rank that sleep in it. Where messages come by adapters they sleep shortly.
        #[inline(always)]
        pub fn ring(&self) {
            if let Waiter::Shared(waiter) = self {
                waiter.ring();
            }
        }

        pub fn is_crowded(&self) -> bool {
            match self {
                Waiter::Shared(waiter) => waiter.is_crowded(),
                Waiter::Verbs(waiter) => waiter.is_crowded(),
            }
        }

        pub fn rank(&self) -> transom_locks::Rank {
            match self {
                Waiter::Shared(waiter) => waiter.rank(),
                Waiter::Verbs(waiter) => waiter.rank(),
            }
        }
    }
}
