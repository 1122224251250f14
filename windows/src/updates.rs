//! Admission of accumulates, so that long ones can use vector instructions and short ones need no lock.
//!
//! A *single* is an accumulate of few elements: one atomic per word. A *run* is a long one. It reads, changes and
//! writes back where no other update is admitted at its target, and consists of singles otherwise. [`UpdateGate`]
//! admits both.
//!
//! A thread that makes singles at a target stays admitted there, so that a single costs one comparison besides its
//! atomic. The thread leaves after another rank's run has asked for that ([`Words::leave`]): at its own next run, or at
//! the end of an epoch. The first [`PASSES`] singles of a rank at a target are admitted one by one, so that a rank that
//! makes few does not obstruct runs. So is each single of a second thread of the same rank.

use crate::core::Core;
use crate::segment::Segment;
use crate::target::Target;
use crate::words::Words;
use crate::{Error, Fabric, FabricError};
use bytemuck::Pod;
use std::cell::Cell;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};
use transom_locks::{At, Network, Rank, Run, UpdateGate, Wake};

/// Singles of a rank, at a target in shared memory, that are admitted one by one before a thread stays admitted. Over a
/// network the first thread stays immediately, since leaving costs a round trip.
const PASSES: u32 = 16;
/// Bytes from which an accumulate is a run: in memory that is mapped here, and over a network.
const RUN: [usize; 2] = [512, 32];

/// This rank's state of one target's updates.
pub(crate) struct Gate {
    /// The thread of this rank that stays admitted for singles, or [`NONE`].
    thread: AtomicU64,
    /// Bytes of the target's elements.
    pub bytes: usize,
    /// Singles that were admitted one by one.
    passes: AtomicU32,
    /// Runs that found singles admitted.
    disturbed: AtomicU32,
    /// True if the elements take atomics. Otherwise every update is a run that is alone.
    pub atomics: bool,
    /// True if this processor reaches the target's memory.
    mapped: bool,
}

/// Value of [`Gate::thread`]: no thread.
const NONE: u64 = u64::MAX;

thread_local! {
    /// Number of this thread, unique in the process; 0 before its first single.
    static THREAD: Cell<u64> = const { Cell::new(0) };
}

impl Gate {
    #[inline(always)]
    fn admits_this_thread(&self) -> bool {
        self.thread.load(Relaxed) == THREAD.get()
    }

    /// Makes this thread stay admitted, unless another of this rank does.
    fn stay(&self, gates: &Gates) -> bool {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        if THREAD.get() == 0 {
            THREAD.set(NEXT.fetch_add(1, Relaxed));
        }
        let stays = self.thread.compare_exchange(NONE, THREAD.get(), Relaxed, Relaxed).is_ok();
        gates.at_epoch_end.fetch_add(u32::from(stays), Relaxed);
        stays
    }
}

/// The gates of all targets of a window.
pub(crate) struct Gates {
    gates: Box<[Gate]>,
    /// Gates at which a thread of this rank stays admitted, in the low bits, and [`ORDERS`]. Zero if the end of an epoch
    /// has no work to do, which is then found by one test.
    at_epoch_end: AtomicU32,
}

/// Flag in [`Gates::at_epoch_end`]: the provider has puts to order at the end of an epoch.
const ORDERS: u32 = 1 << 31;

impl Gates {
    pub fn new<F: Fabric>(data: &Segment<F>) -> Self {
        let gate = |rank: Rank| {
            let (fabric, bytes) = (&data.fabric, data.sizes[rank].bytes);
            let mapped = data.part(rank).is_some_and(|(remote, _)| fabric.is_shared(remote));
            let whole_words =
                |(remote, base)| bytes.is_multiple_of(8) && fabric.words(remote, base, bytes / 8).is_some();
            Gate {
                thread: AtomicU64::new(NONE),
                bytes,
                passes: AtomicU32::new(0),
                disturbed: AtomicU32::new(0),
                atomics: !data.is_user_memory() || data.part(rank).is_some_and(whole_words),
                mapped,
            }
        };
        let orders = if data.fabric.orders() { ORDERS } else { 0 };
        Gates { gates: (0..data.remotes.len()).map(gate).collect(), at_epoch_end: AtomicU32::new(orders) }
    }

    #[inline(always)]
    pub fn get(&self, rank: Rank) -> Option<&Gate> {
        self.gates.get(rank)
    }

    /// Called at the end of an epoch: threads of this rank that stay admitted leave, if another rank has asked for
    /// that. No operation of this rank on the window is in flight. Returns whether the provider has puts to order.
    #[inline(always)]
    pub fn epoch_ends<F: Fabric>(&self, data: &Segment<F>) -> bool {
        self.at_epoch_end.load(Relaxed) != 0 && self.end_epoch(data)
    }

    #[cold]
    #[inline(never)]
    fn end_epoch<F: Fabric>(&self, data: &Segment<F>) -> bool {
        if self.any_stays() {
            self.leave_if_asked(data, |_| true);
        }
        self.at_epoch_end.load(Relaxed) & ORDERS != 0
    }

    fn any_stays(&self) -> bool {
        self.at_epoch_end.load(Relaxed) & !ORDERS != 0
    }

    /// Called when a window is dropped.
    pub fn drop_all<F: Fabric>(&self, data: &Segment<F>) {
        if self.any_stays() {
            self.leave(data, |_| true);
        }
    }

    #[cold]
    fn leave_if_asked<F: Fabric>(&self, data: &Segment<F>, whose: impl Fn(u64) -> bool) {
        let word = Words::new(data.remotes.len()).leave();
        if data.fabric.word(&data.region, 8 * word).is_ok_and(|asked| asked != 0) {
            // Cleared first, so that a later request is not missed.
            let _ = data.notify(At { rank: data.rank(), word }, 0, Wake::Nobody);
            self.leave(data, whose);
        }
    }

    /// Makes threads that stay admitted leave. They have no single in flight.
    fn leave<F: Fabric>(&self, data: &Segment<F>, whose: impl Fn(u64) -> bool) {
        for (rank, gate) in self.gates.iter().enumerate() {
            let thread = gate.thread.load(Relaxed);
            if thread != NONE && whose(thread) {
                gate.thread.store(NONE, Relaxed);
                gate.passes.store(0, Relaxed);
                self.at_epoch_end.fetch_sub(1, Relaxed);
                // A target that cannot be notified has failed; runs there go on word by word.
                let _ = shared(data, rank).leave_single(data);
            }
        }
    }
}

/// The gate of a target, which all ranks share.
fn shared<F: Fabric>(data: &Segment<F>, rank: Rank) -> UpdateGate {
    UpdateGate::new(At { rank, word: Words::new(data.remotes.len()).gate() })
}

impl<F: Fabric> Core<F> {
    /// Asks all threads that stay admitted at a target to leave: after the first disturbed runs, then less and less
    /// often.
    fn ask_to_leave(&self, gate: &Gate) {
        let disturbed = gate.disturbed.fetch_add(1, Relaxed).wrapping_add(1);
        if disturbed.is_power_of_two() || disturbed.is_multiple_of(1 << 10) {
            let word = Words::new(self.data.remotes.len()).leave();
            for rank in 0..self.data.remotes.len() {
                // A rank that cannot be notified stays admitted; a call that needs it returns the error.
                let _ = self.data.notify(At { rank, word }, 1, Wake::Nobody);
            }
        }
    }
}

impl<T: Pod, F: Fabric> Target<'_, T, F> {
    /// True if this thread is admitted for singles.
    #[inline(always)]
    pub(crate) fn admits_this_thread(&self) -> bool {
        self.gate.admits_this_thread()
    }

    /// Classifies an accumulate of `bytes` bytes: true for a run.
    pub(crate) fn is_run(&self, bytes: usize) -> bool {
        !self.gate.atomics || bytes >= RUN[usize::from(!self.gate.mapped)]
    }

    /// A single, by a thread that is admitted or not.
    #[inline(always)]
    pub(crate) fn single<R>(
        &self,
        offset: usize,
        len: usize,
        single: impl FnOnce() -> Result<R, FabricError>,
    ) -> Result<R, Error> {
        if self.admits_this_thread() {
            return match single() {
                Ok(done) => Ok(done),
                Err(error) => Err(self.error(error, offset, len)),
            };
        }
        self.admit(offset, len, single)
    }

    /// A single by a thread that is not admitted yet.
    #[cold]
    #[inline(never)]
    pub(crate) fn admit<R>(
        &self,
        offset: usize,
        len: usize,
        single: impl FnOnce() -> Result<R, FabricError>,
    ) -> Result<R, Error> {
        let (gate, data, gates) = (self.gate, &*self.core.data, &self.core.gates);
        let done = || single().map_err(|error| self.error(error, offset, len));
        // An epoch that locks its target exclusively excludes every other update.
        if self.exclusive.get() {
            return done();
        }
        let failed = |source| self.core.lock_error_at(self.rank, source);
        shared(data, self.rank).enter_single(data).map_err(failed)?;
        if gate.mapped && gate.passes.load(Relaxed) < PASSES || !gate.stay(gates) {
            gate.passes.fetch_add(1, Relaxed);
            let done = done();
            let left = shared(data, self.rank).leave_single(data).map_err(failed);
            return done.and_then(|done| left.map(|()| done));
        }
        done()
    }

    /// Admits a run, calls `body` with the kind of admission, and ends the run.
    pub(crate) fn run<R>(
        &self,
        offset: usize,
        len: usize,
        body: impl FnOnce(Run) -> Result<R, FabricError>,
    ) -> Result<R, Error> {
        let (gate, data, core) = (self.gate, &*self.core.data, self.core);
        let failed = |source| core.lock_error_at(self.rank, source);
        let run = match gate.atomics {
            true => {
                if core.gates.any_stays() {
                    // This thread has no single in flight; others of this rank may.
                    core.gates.leave_if_asked(data, |thread| thread == THREAD.get());
                }
                shared(data, self.rank).enter_run(data, gate.admits_this_thread())
            }
            false => shared(data, self.rank).enter_alone(data),
        };
        let run = run.map_err(failed)?;
        if run == Run::Among {
            core.ask_to_leave(gate);
        }
        let done = body(run).map_err(|error| self.error(error, offset, len));
        // A failed run leaves, too.
        let left = shared(data, self.rank).leave_run(data, run).map_err(failed);
        done.and_then(|done| left.map(|()| done))
    }
}
