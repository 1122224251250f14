//! Transports of a rank's messages.

use crate::HybridWire;
use std::sync::Arc;
use transom_channel::delivery::Delivery;
use transom_channel::wire::{Busy, Event, Key, Lane, Left, Part, Rail, Rank, Request};
use transom_channel::{Counters, Wire};
use transom_shm_loopback::messages::{Bytes, ProgressHook, ShmWire, Waiter};

/// The messages of a rank over a network, as opened by [`Network::wire`](crate::Network::wire).
///
/// Slots of messages that [arrived](Event::Arrived), and rings, must be handles on memory of this process
/// ([`Bytes::owned`]) that is freed when the last handle is dropped. A hybrid lets its shared memory [take and
/// give](Wire::give) handles.
pub trait NetworkWire: Wire<Memory = Bytes> + Send {
    /// The waiter of this rank's threads, with the rank's number in the job.
    fn waiter(&self) -> Waiter;

    /// Makes all waits of this rank call `progress`, which receives arrived messages and posts waiting ones.
    fn progress_in_waits(&self, hook: Arc<dyn ProgressHook>);

    /// Announces to the peers that this rank receives no more messages.
    fn close(&mut self);

    /// Detects peers that died, left or are unreachable. [`poll`](Wire::poll) reports each one once all its messages
    /// have been taken. Called ten times per second while a thread waits.
    fn look_for_the_gone(&mut self);

    /// Returns whether this rank reported itself as dead to the job, because its network failed.
    fn is_given_up(&self) -> bool {
        false
    }
}

/// A lossy network with the layer that makes delivery reliable.
impl<W: NetworkWire> NetworkWire for Delivery<W> {
    fn waiter(&self) -> Waiter {
        self.wire().waiter()
    }

    fn progress_in_waits(&self, hook: Arc<dyn ProgressHook>) {
        self.wire().progress_in_waits(hook);
    }

    fn close(&mut self) {
        self.wire_mut().close();
    }

    fn look_for_the_gone(&mut self) {
        self.wire_mut().look_for_the_gone();
    }

    fn is_given_up(&self) -> bool {
        self.wire().is_given_up()
    }
}

/// The transport of a rank's messages, selected at each call. Shared memory, the fast one, is called directly, and the
/// others out of line; all networks share one variant with dynamic calls.
#[expect(missing_docs, reason = "the variants are named by their types")]
#[expect(
    clippy::large_enum_variant,
    reason = "a rank has one transport, and a box would cost shared memory a load per call"
)]
// The choice is then one comparison; without `repr`, it is a computation on a field of a variant.
#[repr(u8)]
pub enum Transport {
    Memory(ShmWire),
    Network(Box<dyn NetworkWire>),
    Hybrid(Box<HybridWire>),
}

/// Keeps the calls of networks out of the path of shared memory.
macro_rules! each {
    ($self:expr, $wire:ident => $call:expr) => {
        match $self {
            Transport::Memory($wire) => $call,
            Transport::Network($wire) => out_of_line(move || $call),
            Transport::Hybrid($wire) => out_of_line(move || $call),
        }
    };
}

#[cold]
#[inline(never)]
fn out_of_line<R>(call: impl FnOnce() -> R) -> R {
    call()
}

impl Transport {
    /// [`NetworkWire::waiter`].
    pub fn waiter(&self) -> Waiter {
        each!(self, wire => wire.waiter())
    }

    /// [`NetworkWire::progress_in_waits`].
    pub fn progress_in_waits(&self, hook: Arc<dyn ProgressHook>) {
        each!(self, wire => wire.progress_in_waits(hook));
    }

    /// [`NetworkWire::close`].
    pub fn close(&mut self) {
        each!(self, wire => wire.close());
    }

    /// [`NetworkWire::look_for_the_gone`].
    pub fn look_for_the_gone(&mut self) {
        each!(self, wire => wire.look_for_the_gone());
    }
}

impl Wire for Transport {
    type Memory = Bytes;

    #[inline(always)]
    fn rails(&self, near: bool) -> &[Rail] {
        each!(self, wire => wire.rails(near))
    }

    #[inline]
    fn connect(&mut self, lane: Lane) {
        each!(self, wire => wire.connect(lane));
    }

    #[inline]
    fn disconnect(&mut self, lane: Lane) {
        each!(self, wire => wire.disconnect(lane));
    }

    #[inline]
    fn connected_besides(&self, but: Rank) -> usize {
        each!(self, wire => wire.connected_besides(but))
    }

    #[inline]
    fn abort_peer(&mut self, peer: Rank) {
        each!(self, wire => wire.abort_peer(peer));
    }

    #[inline]
    fn fails_over(&self) -> bool {
        each!(self, wire => wire.fails_over())
    }

    #[inline]
    fn publish(&mut self, peer: Rank, ring: &Bytes, words: [u64; 2]) -> bool {
        each!(self, wire => wire.publish(peer, ring, words))
    }

    #[inline]
    fn published(&mut self, peer: Rank, ring: Key) -> Option<[u64; 2]> {
        each!(self, wire => wire.published(peer, ring))
    }

    #[inline]
    fn reaches(&mut self, lane: Lane, key: Key, length: usize) -> bool {
        each!(self, wire => wire.reaches(lane, key, length))
    }

    #[inline]
    fn leave(&mut self, lane: Lane, key: Key) {
        each!(self, wire => wire.leave(lane, key));
    }

    #[inline]
    fn drain_failed(&mut self, lane: Lane) -> Vec<Left<Bytes>> {
        each!(self, wire => wire.drain_failed(lane))
    }

    #[inline(always)]
    fn take(&mut self, length: usize) -> Option<Bytes> {
        each!(self, wire => wire.take(length))
    }

    #[inline(always)]
    fn give(&mut self, memory: Bytes) {
        each!(self, wire => wire.give(memory));
    }

    #[inline]
    fn ring(&mut self, peer: Rank, length: usize) -> Option<(Bytes, Key)> {
        each!(self, wire => wire.ring(peer, length))
    }

    #[inline(always)]
    fn is_near(&self, peer: Rank) -> bool {
        each!(self, wire => wire.is_near(peer))
    }

    #[inline]
    fn opens(&mut self, lane: Lane) -> bool {
        each!(self, wire => wire.opens(lane))
    }

    #[inline]
    fn reads(&mut self, lane: Lane) -> bool {
        each!(self, wire => wire.reads(lane))
    }

    #[inline]
    fn may_send_faster(&mut self, lane: Lane, offered: Key) -> bool {
        each!(self, wire => wire.may_send_faster(lane, offered))
    }

    #[inline]
    fn register(&mut self, memory: &Bytes, lane: Lane) -> Option<Key> {
        each!(self, wire => wire.register(memory, lane))
    }

    #[inline]
    fn release(&mut self, lane: Lane, key: Key) {
        each!(self, wire => wire.release(lane, key));
    }

    #[inline(always)]
    fn post(&mut self, lane: Lane, request: Request<'_, Bytes>) -> Result<(), Busy> {
        each!(self, wire => wire.post(lane, request))
    }

    #[inline]
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

    #[inline]
    fn due(&self) -> Option<u64> {
        each!(self, wire => wire.due())
    }

    #[inline]
    fn count(&self, counters: &mut Counters) {
        each!(self, wire => wire.count(counters));
    }

    #[inline(always)]
    fn prefetch_to_write(&self, peer: Rank, at: usize) {
        each!(self, wire => wire.prefetch_to_write(peer, at));
    }
}
