//! The queue in which threads of one rank share the lock of one target: one thread at a time requests it, in FIFO
//! order.

use crate::TargetLock;
use crate::at_once::{FREE, OPEN};
use crate::line::Line;
use crate::lock_status::{Status, StatusWord};
use crate::primitive::{AtomicU64, AtomicUsize, model_has_failed, this_thread};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::Instant;

/// The lock of one target, and the threads of this rank that want it. A thread that has its turn requests the lock, and
/// keeps its turn until it has released the lock. A thread that finds another's turn, or others in line, joins the
/// line; only the first in line tries to take the turn.
#[repr(C)]
pub(crate) struct ThreadQueue<const C: u32> {
    /// The number of the thread that has its turn; 0 if none. Only that thread resets it to 0.
    holder: AtomicUsize,
    /// The state of this rank's request, together with `status`. Only the thread that has its turn accesses the two;
    /// `holder` orders these accesses.
    seen: AtomicU64,
    status: AtomicU64,
    line: Line,
}

impl<const C: u32> ThreadQueue<C> {
    pub fn new() -> Self {
        let TargetLock { seen, status } = TargetLock::<C>::new();
        ThreadQueue {
            holder: AtomicUsize::new(0),
            seen: AtomicU64::new(seen),
            status: AtomicU64::new(status.0),
            line: Line::new(),
        }
    }

    /// Waits for this thread's turn, after all threads that came before. Returns `None` if the turn could never come:
    /// this thread holds the lock or is requesting it.
    #[inline(always)]
    pub fn turn(&self) -> Option<Turn<'_, C>> {
        match self.turn_at_once() {
            None => self.turn_unless_mine(),
            turn => turn,
        }
    }

    #[cold]
    #[inline(never)]
    fn turn_unless_mine(&self) -> Option<Turn<'_, C>> {
        if self.is_mine() { None } else { self.turn_in_line(None) }
    }

    /// Returns whether this thread holds the lock or is requesting it.
    #[inline]
    pub fn is_mine(&self) -> bool {
        // No other thread writes this thread's number, so no ordering is needed.
        self.holder.load(Relaxed) == this_thread()
    }

    /// This thread's turn, if no other thread holds the lock, requests it, or waits in line.
    #[inline(always)]
    pub fn turn_at_once(&self) -> Option<Turn<'_, C>> {
        if self.line.is_empty() { self.try_turn() } else { None }
    }

    /// [`turn`](Self::turn) with a deadline, after which it returns `None`.
    pub fn turn_by(&self, deadline: Instant) -> Option<Turn<'_, C>> {
        self.turn_at_once().or_else(|| self.turn_in_line(Some(deadline)))
    }

    #[cold]
    #[inline(never)]
    fn turn_in_line(&self, deadline: Option<Instant>) -> Option<Turn<'_, C>> {
        // A load first: unlike a compare-and-swap it leaves the holder its cache line.
        let attempt = || if self.holder.load(Relaxed) == 0 { self.try_turn() } else { None };
        self.line.wait(deadline, attempt)
    }

    #[inline(always)]
    fn try_turn(&self) -> Option<Turn<'_, C>> {
        let taken = self.holder.compare_exchange(0, this_thread(), Acquire, Relaxed);
        // Constructed only on success: dropping a `Turn` ends the turn.
        if taken.is_ok() { Some(Turn { queue: self }) } else { None }
    }

    /// Ends this thread's turn, and wakes the first in line.
    #[inline(always)]
    pub fn end_turn(&self) {
        self.holder.store(0, Release);
        self.line.pass_on();
    }

    /// Ends the turn of any thread whose guard was leaked.
    #[inline(always)]
    pub fn end_leaked_turn(&mut self) {
        if self.holder.load(Relaxed) != 0 {
            self.holder.store(0, Relaxed);
        }
    }

    /// Returns whether this rank has no request at the lock, and nothing is left of an earlier one.
    #[inline(always)]
    pub fn is_free(&self) -> bool {
        self.status.load(Relaxed) == FREE.0
    }

    /// Returns whether a reader of the open group holds the lock, without a thread's turn.
    #[inline(always)]
    pub fn is_open(&self) -> bool {
        self.status.load(Relaxed) == OPEN.0 && self.holder.load(Relaxed) == 0
    }

    /// The state of this rank's request at the lock.
    #[inline(always)]
    pub fn get(&self) -> TargetLock<C> {
        TargetLock { seen: self.seen.load(Relaxed), status: StatusWord(self.status.load(Relaxed)) }
    }

    /// Takes the state for a step of the thread that has its turn. The queue holds a broken lock until
    /// [`put`](Self::put), and keeps it if the network panics.
    #[inline(always)]
    pub fn take(&self) -> TargetLock<C> {
        let status = StatusWord(self.status.load(Relaxed));
        self.status.store(StatusWord::of(Status::Broken).0, Relaxed);
        TargetLock { seen: self.seen.load(Relaxed), status }
    }

    /// Stores the state after a step that began with [`take`](Self::take).
    #[inline(always)]
    pub fn put(&self, lock: TargetLock<C>) {
        self.seen.store(lock.seen, Relaxed);
        self.status.store(lock.status.0, Relaxed);
    }
}

/// A thread's turn; dropping it ends the turn.
pub(crate) struct Turn<'q, const C: u32> {
    pub queue: &'q ThreadQueue<C>,
}

impl<const C: u32> Turn<'_, C> {
    /// Keeps the turn until [`end_turn`](ThreadQueue::end_turn).
    #[inline(always)]
    pub fn keep(self) {
        std::mem::forget(self);
    }
}

impl<const C: u32> Drop for Turn<'_, C> {
    #[inline(always)]
    fn drop(&mut self) {
        if !model_has_failed() {
            self.queue.end_turn();
        }
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use std::time::Duration;

    type Queue = ThreadQueue<16>;

    /// Returns once `many` threads are in line.
    fn until_in_line(queue: &Queue, many: usize) {
        while queue.line.len() != many {
            std::thread::yield_now();
        }
    }

    #[test]
    fn threads_get_turns_in_arrival_order() {
        let (queue, order) = (Queue::new(), Mutex::new(Vec::new()));
        let far = Instant::now() + Duration::from_secs(3600);
        std::thread::scope(|scope| {
            let held = queue.turn().unwrap();
            for number in 0..6 {
                let (queue, order) = (&queue, &order);
                scope.spawn(move || {
                    let turn = if number % 2 == 0 { queue.turn() } else { queue.turn_by(far) };
                    order.lock().unwrap().push(number);
                    drop(turn.unwrap());
                });
                until_in_line(queue, number + 1);
            }
            drop(held);
            // This thread comes last, although it is awake.
            drop(queue.turn().unwrap());
            order.lock().unwrap().push(6);
        });
        assert_eq!(order.into_inner().unwrap(), [0, 1, 2, 3, 4, 5, 6]);
    }

    #[test]
    fn thread_that_asks_again_queues_behind_others() {
        let queue = Queue::new();
        std::thread::scope(|scope| {
            let mut held = queue.turn();
            let other = scope.spawn(|| {
                for _ in 0..1000 {
                    drop(queue.turn().unwrap());
                }
            });
            // Per turn of the other thread this one has at most one, plus one turn while the other comes or goes.
            let mut mine = 0;
            while !other.is_finished() {
                until_in_line_or(&queue, || other.is_finished());
                drop(held.take());
                held = queue.turn();
                mine += 1;
            }
            assert!(mine <= 1001, "{mine} turns beside 1000");
        });
    }

    fn until_in_line_or(queue: &Queue, over: impl Fn() -> bool) {
        while queue.line.is_empty() && !over() {
            std::thread::yield_now();
        }
    }

    #[test]
    fn place_given_up_at_deadline_delays_none() {
        let queue = Queue::new();
        let far = Instant::now() + Duration::from_secs(3600);
        std::thread::scope(|scope| {
            let held = queue.turn().unwrap();
            let soon = scope.spawn(|| queue.turn_by(Instant::now() + Duration::from_millis(50)).is_some());
            until_in_line(&queue, 1);
            let late = scope.spawn(|| queue.turn_by(far).is_some());
            assert!(!soon.join().unwrap());
            until_in_line(&queue, 1);
            assert!(queue.turn_at_once().is_none());
            drop(held);
            assert!(late.join().unwrap());
        });
        assert!(queue.line.is_empty() && queue.turn_at_once().is_some());
    }
}

/// Runs the shipped code under loom's memory model. `tests/mutants` lists lines whose removal these tests must notice.
#[cfg(all(test, feature = "loom"))]
mod model {
    use super::*;
    use loom::sync::Arc;

    type Queue = ThreadQueue<16>;

    fn model(body: fn()) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(body);
    }

    fn count_one(turn: &Turn<'_, 16>) {
        let mut lock = turn.queue.take();
        lock.seen += 1;
        turn.queue.put(lock);
    }

    fn count(queue: &Queue) {
        count_one(&queue.turn().unwrap());
    }

    /// A thread that misses its wake-up would sleep for ever, which loom reports.
    #[test]
    fn thread_in_line_always_gets_its_turn() {
        model(|| {
            let queue = Arc::new(Queue::new());
            let others = [0, 1].map(|_| {
                let queue = queue.clone();
                loom::thread::spawn(move || count(&queue))
            });
            count(&queue);
            others.into_iter().for_each(|other| other.join().unwrap());
            assert_eq!(queue.turn().unwrap().queue.take().seen, 3);
            assert!(queue.line.is_empty());
        });
    }

    /// One of two waiting threads gives up, before or after the release wakes it.
    #[test]
    fn thread_giving_up_passes_the_turn_on() {
        model(|| {
            let queue = Arc::new(Queue::new());
            let (giver, other) = (queue.clone(), queue.clone());
            let held = queue.turn().unwrap();
            let giver = loom::thread::spawn(move || match giver.turn_by(Instant::now()) {
                Some(turn) => {
                    count_one(&turn);
                    1
                }
                None => 0,
            });
            let other = loom::thread::spawn(move || count(&other));
            drop(held);
            let counted = giver.join().unwrap() + 1;
            other.join().unwrap();
            assert_eq!(queue.turn().unwrap().queue.take().seen, counted);
        });
    }
}
