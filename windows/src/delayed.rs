//! A provider for tests, over another provider, that takes every liberty which [`Fabric`] leaves. A program, or this
//! library, that forgets to order or to flush fails with it on one machine.

use crate::{BufferMemory, Fabric, FabricError, OobExchange, UserMemory, Wait, Wake};
use bytemuck::allocation::BoxBytes;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::AtomicU8;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use transom_locks::{Awaited, Rank};

/// Delay of a put, unless an earlier operation needs it there.
const PUT: Duration = Duration::from_millis(20);
/// Longest delay of an atomic or a notification.
const WORD: Duration = Duration::from_micros(300);

/// A provider over `F` that delays and reorders operations at other ranks, and puts to its own rank, as far as
/// [`Fabric`] allows:
///
/// - A put is delayed by 20 ms, or until an operation at the same rank, a flush or an order requires it there. Puts
///   that are delayed together take effect in any order.
/// - Notifications, and atomics and reads whose result is not awaited, are in flight for up to 0.3 ms. Those at
///   different ranks overtake each other.
/// - No memory of another rank is shared.
///
/// Operations that are still delayed when the process ends are lost, as on a network.
///
/// # Examples
/// ```
/// use transom_windows::{Delayed, Window};
/// let fabric = Delayed::new(transom_shm_loopback::Loopback::alone()?)?;
/// let mut window = Window::<u64, _>::allocate(&fabric, 0, 8)?;
/// let epoch = window.lock_all()?;
/// let target = epoch.target(0)?;
/// target.put(0, &[1])?;
/// assert_eq!(epoch.local().get(0)?, 0); // no call has required it there yet
/// target.flush()?;
/// assert_eq!(epoch.local().get(0)?, 1);
/// # epoch.unlock()?;
/// # Ok::<(), transom_windows::Error>(())
/// ```
pub struct Delayed<F: Fabric> {
    line: Arc<Line<F>>,
    /// The delivery thread; ends with the last handle.
    delivery: Arc<Delivery<F>>,
}

impl<F: Fabric> Delayed<F> {
    /// Creates a provider that delays the operations of `fabric`.
    ///
    /// # Errors
    /// [`FabricError::System`] if the system provides no thread to deliver them.
    pub fn new(fabric: F) -> Result<Self, FabricError> {
        let queues = (0..fabric.size()).map(|_| Queue::default()).collect();
        let random = RandomState::new().hash_one(fabric.rank()) | 1;
        let held = Mutex::new(DelayedOps { queues, random, over: false });
        let line = Arc::new(Line { fabric, held, changed: Condvar::new() });
        let delivering = line.clone();
        let thread = std::thread::Builder::new().name("delayed delivery".into()).spawn(move || delivering.deliver());
        let failed =
            |source| FabricError::System { what: "start a thread that delivers delayed operations".into(), source };
        let delivery = Arc::new(Delivery { line: line.clone(), thread: Some(thread.map_err(failed)?) });
        Ok(Delayed { line, delivery })
    }

    /// The provider underneath.
    pub fn inner(&self) -> &F {
        &self.line.fabric
    }

    /// Delays an operation at a rank. Operations at this rank itself, except puts, take effect immediately.
    fn hold(&self, at: &Remote<F>, offset: usize, what: Action) -> Result<(), FabricError> {
        let mut held = self.line.held();
        let operation = Operation { due: Instant::now(), remote: at.remote.clone(), offset, what };
        let wait = if operation.is_put() { PUT } else { WORD.mul_f64(held.random()) };
        let own = at.rank == self.rank() && !operation.is_put();
        let operations = &mut held.queues[at.rank].operations;
        operations.push_back(Operation { due: operation.due + wait, ..operation });
        if own {
            return self.line.deliver_to(&mut held, at.rank, None);
        }
        self.line.changed.notify_one();
        Ok(())
    }

    /// Delivers all delayed operations at a rank.
    fn deliver(&self, rank: Rank) -> Result<(), FabricError> {
        self.line.deliver_to(&mut self.line.held(), rank, None)
    }

    fn start<R>(
        &self,
        at: &Remote<F>,
        offset: usize,
        what: impl FnOnce(Slot<R>) -> Action,
    ) -> Result<Ticket<R>, FabricError> {
        let result = Slot::<R>::default();
        self.hold(at, offset, what(result.clone()))?;
        Ok(Ticket { rank: at.rank, result })
    }

    fn start_on_word(
        &self,
        at: &Remote<F>,
        offset: usize,
        what: impl FnOnce(Slot<u64>) -> Action,
    ) -> Result<Ticket<u64>, FabricError> {
        if !at.user {
            at.check_word(offset)?;
        }
        let ticket = self.start(at, offset, what)?;
        if at.user {
            // An operation that the provider refuses must fail immediately.
            self.deliver(at.rank)?;
        }
        Ok(ticket)
    }

    fn finish_ticket<R>(&self, ticket: Ticket<R>) -> Result<R, FabricError> {
        self.deliver(ticket.rank)?;
        let result = ticket.result.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
        // The slot is empty if the operation failed: an earlier call returned its error.
        result.ok_or_else(|| FabricError::Misuse { why: "cannot finish an operation that has failed before".into() })
    }
}

impl<F: Fabric> Clone for Delayed<F> {
    fn clone(&self) -> Self {
        Delayed { line: self.line.clone(), delivery: self.delivery.clone() }
    }
}

/// Accessible memory, and its rank.
pub struct Remote<F: Fabric> {
    rank: Rank,
    bytes: usize,
    /// True for user memory, where the provider may not support words.
    user: bool,
    remote: Arc<F::Remote>,
}

/// The place for the result of an operation once it has taken effect.
type Slot<R> = Arc<Mutex<Option<R>>>;

/// An operation in flight.
pub struct Ticket<R> {
    rank: Rank,
    result: Slot<R>,
}

impl<R> Ticket<R> {
    fn has_result(&self) -> bool {
        self.result.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).is_some()
    }
}

/// A delayed read, or the buffer of a write that is delayed without it.
pub enum Transfer {
    /// The buffer.
    Put(BoxBytes),
    /// The read, whose result has the buffer.
    Get(Ticket<BoxBytes>),
}

/// The operations that this rank has in flight.
struct Line<F: Fabric> {
    fabric: F,
    held: Mutex<DelayedOps<F>>,
    /// An operation was added, or the provider is shutting down.
    changed: Condvar,
}

struct DelayedOps<F: Fabric> {
    /// One queue per target.
    queues: Box<[Queue<F>]>,
    random: u64,
    over: bool,
}

/// Operations at one rank, in call order.
struct Queue<F: Fabric> {
    operations: VecDeque<Operation<F>>,
    /// The error of an operation that failed on delivery: the next call that concerns the rank returns it.
    failed: Option<FabricError>,
}

impl<F: Fabric> Default for Queue<F> {
    fn default() -> Self {
        Queue { operations: VecDeque::new(), failed: None }
    }
}

struct Operation<F: Fabric> {
    due: Instant,
    remote: Arc<F::Remote>,
    offset: usize,
    what: Action,
}

enum Action {
    Put(Vec<u8>),
    Notify { value: u64, wake: Wake },
    Cas { expected: u64, new: u64, wake: Wake, result: Slot<u64> },
    Add { delta: u64, wake: Wake, result: Slot<u64> },
    Get { into: BoxBytes, result: Slot<BoxBytes> },
}

impl<F: Fabric> Operation<F> {
    fn is_put(&self) -> bool {
        matches!(self.what, Action::Put(_))
    }
}

impl<F: Fabric> DelayedOps<F> {
    /// A random number from 0 to 1.
    fn random(&mut self) -> f64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) as f64 / (1u64 << 53) as f64
    }
}

impl<F: Fabric> Line<F> {
    fn held(&self) -> MutexGuard<'_, DelayedOps<F>> {
        self.held.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The delivery thread's loop, until shutdown.
    fn deliver(&self) {
        let mut held = self.held();
        while !held.over {
            let now = Instant::now();
            for rank in 0..held.queues.len() {
                let late = self.deliver_to(&mut held, rank, Some(now));
                held.queues[rank].failed = held.queues[rank].failed.take().or(late.err());
            }
            let due = held.queues.iter().flat_map(|queue| &queue.operations).map(|operation| operation.due).min();
            held = match due {
                None => self.changed.wait(held).unwrap_or_else(|poisoned| poisoned.into_inner()),
                Some(due) => {
                    let wait = due.saturating_duration_since(Instant::now());
                    self.changed.wait_timeout(held, wait).unwrap_or_else(|poisoned| poisoned.into_inner()).0
                }
            };
        }
    }

    /// Delivers operations at a rank: all, or up to the last that is due. Consecutive puts are delivered in any order.
    fn deliver_to(&self, held: &mut DelayedOps<F>, rank: Rank, by: Option<Instant>) -> Result<(), FabricError> {
        let Queue { operations, failed } = &mut held.queues[rank];
        let due = |operation: &Operation<F>| by.is_none_or(|by| operation.due <= by);
        let count = operations.iter().rposition(due).map_or(0, |last| last + 1);
        let mut outcome = failed.take().map_or(Ok(()), Err);
        let mut delivered: Vec<_> = operations.drain(..count).collect();
        for run in delivered.chunk_by_mut(|one, next| one.is_put() && next.is_put()) {
            for last in (1..run.len()).rev() {
                run.swap(last, (held.random() * (last + 1) as f64) as usize);
            }
        }
        for operation in delivered {
            outcome = outcome.and(self.apply(operation));
        }
        outcome
    }

    fn apply(&self, operation: Operation<F>) -> Result<(), FabricError> {
        let (Operation { remote, offset, what, .. }, fabric) = (operation, &self.fabric);
        match what {
            Action::Put(bytes) => fabric.put(&remote, offset, &bytes),
            Action::Notify { value, wake } => fabric.notify(&remote, offset, value, wake),
            Action::Cas { expected, new, wake, result } => {
                fabric.cas(&remote, offset, expected, new, wake).map(|found| fill(&result, found))
            }
            Action::Add { delta, wake, result } => {
                let added = fabric.start_add(&remote, offset, delta, wake).and_then(|pending| fabric.finish(pending));
                added.map(|found| fill(&result, found))
            }
            Action::Get { mut into, result } => fabric.get(&remote, offset, &mut into).map(|()| fill(&result, into)),
        }
    }
}

fn fill<R>(slot: &Slot<R>, result: R) {
    *slot.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(result);
}

/// The thread that delivers due operations. Dropping it delivers all delayed operations first.
struct Delivery<F: Fabric> {
    line: Arc<Line<F>>,
    thread: Option<JoinHandle<()>>,
}

impl<F: Fabric> Drop for Delivery<F> {
    fn drop(&mut self) {
        let mut held = self.line.held();
        for rank in 0..held.queues.len() {
            // No call is left to return the error.
            let _ = self.line.deliver_to(&mut held, rank, None);
        }
        held.over = true;
        drop(held);
        self.line.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl<F: Fabric> OobExchange for Delayed<F> {
    fn rank(&self) -> Rank {
        self.line.fabric.rank()
    }

    fn size(&self) -> usize {
        self.line.fabric.size()
    }

    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, FabricError> {
        self.line.fabric.all_gather(mine)
    }

    fn barrier(&self) -> Result<(), FabricError> {
        self.line.fabric.barrier()
    }

    fn check_peers(&self, awaited: Awaited) -> Result<(), FabricError> {
        self.line.fabric.check_peers(awaited)
    }

    fn lost(&self) -> Option<FabricError> {
        self.line.fabric.lost()
    }

    fn fail(&self) {
        self.line.fabric.fail();
    }
}

impl<F: Fabric> Remote<F> {
    fn new(rank: Rank, bytes: usize, user: bool, remote: F::Remote) -> Self {
        Remote { rank, bytes, user, remote: Arc::new(remote) }
    }

    /// Checks an operation before it is delayed: it must be possible.
    fn check(&self, offset: usize, len: usize) -> Result<(), FabricError> {
        let size = self.bytes;
        let inside = offset <= size && len <= size - offset;
        if inside { Ok(()) } else { Err(FabricError::OutOfBounds { offset, len, size }) }
    }

    fn check_word(&self, offset: usize) -> Result<(), FabricError> {
        self.check(offset, 8)?;
        if offset.is_multiple_of(8) { Ok(()) } else { Err(FabricError::Misaligned { offset }) }
    }
}

impl<F: Fabric> Fabric for Delayed<F> {
    type Region = F::Region;
    type Remote = Remote<F>;
    type Word = Infallible;
    type Pending = Ticket<u64>;
    type Transfer = Transfer;

    fn allocate(&self, bytes: usize) -> Result<(F::Region, Vec<u8>), FabricError> {
        self.line.fabric.allocate(bytes)
    }

    unsafe fn register(&self, memory: &UserMemory) -> Result<(F::Region, Vec<u8>), FabricError> {
        // SAFETY: caller's contract.
        unsafe { self.line.fabric.register(memory) }
    }

    unsafe fn attach_user_memory(&self, rank: Rank, key: &[u8], bytes: usize) -> Result<Remote<F>, FabricError> {
        // SAFETY: caller's contract; delayed operations take effect before the fence of `free` lets any rank go on.
        let remote = unsafe { self.line.fabric.attach_user_memory(rank, key, bytes) }?;
        Ok(Remote::new(rank, bytes, true, remote))
    }

    fn attach(&self, rank: Rank, key: &[u8], bytes: usize) -> Result<Remote<F>, FabricError> {
        Ok(Remote::new(rank, bytes, false, self.line.fabric.attach(rank, key, bytes)?))
    }

    fn attach_part(&self, rank: Rank, key: &[u8], bytes: usize, words: usize) -> Result<Remote<F>, FabricError> {
        Ok(Remote::new(rank, bytes, false, self.line.fabric.attach_part(rank, key, bytes, words)?))
    }

    fn close(&self, region: &mut F::Region) {
        self.line.fabric.close(region);
    }

    fn withdraw(&self, region: &mut F::Region) {
        self.line.fabric.withdraw(region);
    }

    fn is_shared(&self, at: &Remote<F>) -> bool {
        at.rank == self.rank() && self.line.fabric.is_shared(&at.remote)
    }

    fn put(&self, to: &Remote<F>, offset: usize, source: &[u8]) -> Result<(), FabricError> {
        to.check(offset, source.len())?;
        self.hold(to, offset, Action::Put(source.to_vec()))
    }

    fn get(&self, from: &Remote<F>, offset: usize, into: &mut [u8]) -> Result<(), FabricError> {
        self.deliver(from.rank)?;
        self.line.fabric.get(&from.remote, offset, into)
    }

    fn start_put(&self, to: &Remote<F>, offset: usize, source: BoxBytes) -> Result<Transfer, FabricError> {
        self.put(to, offset, &source)?;
        Ok(Transfer::Put(source))
    }

    fn start_get(&self, from: &Remote<F>, offset: usize, into: BoxBytes) -> Result<Transfer, FabricError> {
        from.check(offset, into.len())?;
        self.start(from, offset, |result| Action::Get { into, result }).map(Transfer::Get)
    }

    fn test(&self, moving: &mut Transfer) -> Result<bool, FabricError> {
        match moving {
            Transfer::Get(reading) if !reading.has_result() => {
                // A failed read fills no slot. The error is left for the call that finishes the read: it may be another
                // operation's.
                Ok(self.line.held().queues[reading.rank].failed.is_some())
            }
            _ => Ok(true),
        }
    }

    fn finish_moving(&self, moving: Transfer) -> Result<BoxBytes, FabricError> {
        match moving {
            Transfer::Put(source) => Ok(source),
            Transfer::Get(reading) => self.finish_ticket(reading),
        }
    }

    fn buffer(&self, bytes: usize) -> Result<BufferMemory, FabricError> {
        self.line.fabric.buffer(bytes)
    }

    fn start_cas(
        &self,
        at: &Remote<F>,
        offset: usize,
        expected: u64,
        new: u64,
        wake: Wake,
    ) -> Result<Ticket<u64>, FabricError> {
        self.start_on_word(at, offset, |result| Action::Cas { expected, new, wake, result })
    }

    fn start_add(&self, at: &Remote<F>, offset: usize, delta: u64, wake: Wake) -> Result<Ticket<u64>, FabricError> {
        self.start_on_word(at, offset, |result| Action::Add { delta, wake, result })
    }

    fn finish(&self, pending: Ticket<u64>) -> Result<u64, FabricError> {
        self.finish_ticket(pending)
    }

    fn notify(&self, at: &Remote<F>, offset: usize, value: u64, wake: Wake) -> Result<(), FabricError> {
        at.check_word(offset)?;
        self.hold(at, offset, Action::Notify { value, wake })
    }

    fn after_empty_poll(&self) {
        self.line.fabric.after_empty_poll();
    }

    fn word(&self, on: &F::Region, offset: usize) -> Result<u64, FabricError> {
        self.line.fabric.word(on, offset)
    }

    fn wait<R>(
        &self,
        on: &F::Region,
        wait: Wait<'_>,
        look: impl FnMut() -> Result<Option<R>, FabricError>,
    ) -> Result<R, FabricError> {
        self.line.fabric.wait(on, wait, look)
    }

    fn load(&self, from: &F::Region, offset: usize, into: &mut [u8]) -> Result<(), FabricError> {
        self.line.fabric.load(from, offset, into)
    }

    fn store(&self, to: &F::Region, offset: usize, source: &[u8]) -> Result<(), FabricError> {
        self.line.fabric.store(to, offset, source)
    }

    fn own_bytes<'r>(&self, on: &'r F::Region, offset: usize, len: usize) -> Option<&'r [AtomicU8]> {
        self.line.fabric.own_bytes(on, offset, len)
    }

    fn bytes<'r>(&self, at: &'r Remote<F>, offset: usize, len: usize) -> Option<&'r [AtomicU8]> {
        if self.is_shared(at) { self.line.fabric.bytes(&at.remote, offset, len) } else { None }
    }

    fn flush(&self, at: &Remote<F>) -> Result<(), FabricError> {
        self.deliver(at.rank)?;
        self.line.fabric.flush(&at.remote)
    }

    fn order(&self, at: &Remote<F>) -> Result<(), FabricError> {
        self.deliver(at.rank)?;
        self.line.fabric.order(&at.remote)
    }
}
