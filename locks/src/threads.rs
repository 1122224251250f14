//! How the threads of one rank share the lock of one target: one at a time asks for it, in the order in which they came.

use crate::TargetLock;
use crate::all_locks::LockState;
use crate::line::Line;
use crate::primitive::{TryGuard, TryMutex, this_thread};
use std::ops::{Deref, DerefMut};
use std::sync::TryLockError;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

/// The lock of one target, and the threads of this rank that want it. A thread that has the mutex asks for the lock, and keeps the
/// mutex until it has released the lock. A thread that finds the mutex taken, or others in line, takes a place in the line; only the
/// first in line tries the mutex.
pub(crate) struct ThreadQueue<const C: u32> {
    lock: TryMutex<TargetLock<C>>,
    /// The thread that has the mutex; 0 if none does. Only the thread that has the mutex changes it. Other threads only ask whether it
    /// holds their own number, which no other thread writes: hence no ordering, nor loom's own atomic.
    holder: AtomicUsize,
    line: Line,
}

impl<const C: u32> ThreadQueue<C> {
    pub fn new(lock: TargetLock<C>) -> Self {
        ThreadQueue { lock: TryMutex::new(lock), holder: AtomicUsize::new(0), line: Line::new() }
    }

    /// This thread's turn to ask for the lock, after those of all threads that came before; nothing if that would never be: this
    /// thread holds the lock itself or is asking for it.
    #[inline]
    pub fn turn(&self) -> Option<Turn<'_, C>> {
        if self.is_mine() {
            return None;
        }
        self.turn_at_once().or_else(|| self.turn_in_line(None))
    }

    /// Whether this thread has the lock, or asks for it.
    #[inline]
    pub fn is_mine(&self) -> bool {
        self.holder.load(Relaxed) == this_thread()
    }

    /// This thread's turn to ask for the lock, if no other thread has it, asks for it, or waits for its turn.
    #[inline]
    pub fn turn_at_once(&self) -> Option<Turn<'_, C>> {
        if self.line.is_empty() { self.try_turn() } else { None }
    }

    /// As [`turn`](Self::turn), or nothing if the turn has not come by the deadline.
    pub fn turn_by(&self, deadline: Instant) -> Option<Turn<'_, C>> {
        self.turn_at_once().or_else(|| self.turn_in_line(Some(deadline)))
    }

    #[cold]
    #[inline(never)]
    fn turn_in_line(&self, deadline: Option<Instant>) -> Option<Turn<'_, C>> {
        // A look at who has the mutex does not take its cache line from that thread.
        let attempt = || if self.holder.load(Relaxed) == 0 { self.try_turn() } else { None };
        self.line.wait(deadline, attempt)
    }

    #[inline]
    fn try_turn(&self) -> Option<Turn<'_, C>> {
        let lock = match self.lock.try_lock() {
            Ok(lock) => lock,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        self.holder.store(this_thread(), Relaxed);
        Some(Turn { holder: &self.holder, lock, _passed_on: PassedOn(&self.line) })
    }
}

impl<const C: u32> LockState<C> for ThreadQueue<C> {
    #[inline(always)]
    fn lock(&mut self) -> &mut TargetLock<C> {
        self.lock.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Whichever thread acquired it. A turn that was leaked has the mutex still: it gets a new one.
    #[inline(always)]
    fn to_release(&mut self) -> &mut TargetLock<C> {
        if *self.holder.get_mut() != 0 {
            *self = Self::new(*self.lock());
        }
        self.lock()
    }
}

/// A thread has the mutex.
pub(crate) struct Turn<'q, const C: u32> {
    holder: &'q AtomicUsize,
    // Dropped in this order: the mutex is free before the first in line is told.
    lock: TryGuard<'q, TargetLock<C>>,
    _passed_on: PassedOn<'q>,
}

impl<const C: u32> Deref for Turn<'_, C> {
    type Target = TargetLock<C>;

    #[inline]
    fn deref(&self) -> &TargetLock<C> {
        &self.lock
    }
}

impl<const C: u32> DerefMut for Turn<'_, C> {
    #[inline]
    fn deref_mut(&mut self) -> &mut TargetLock<C> {
        &mut self.lock
    }
}

impl<const C: u32> Drop for Turn<'_, C> {
    #[inline]
    fn drop(&mut self) {
        self.holder.store(0, Relaxed);
    }
}

/// Tells the first in line, when it is dropped, that the mutex is free.
struct PassedOn<'q>(&'q Line);

impl Drop for PassedOn<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.pass_on();
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use std::time::Duration;

    type Queue = ThreadQueue<16>;

    /// Returns once so many threads are in line.
    fn until_in_line(queue: &Queue, many: usize) {
        while queue.line.len() != many {
            std::thread::yield_now();
        }
    }

    #[test]
    fn threads_have_turns_in_the_order_they_came() {
        let (queue, order) = (Queue::new(TargetLock::new()), Mutex::new(Vec::new()));
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
            // This thread comes last, though it is awake.
            drop(queue.turn().unwrap());
            order.lock().unwrap().push(6);
        });
        assert_eq!(order.into_inner().unwrap(), [0, 1, 2, 3, 4, 5, 6]);
    }

    #[test]
    fn a_thread_that_asks_again_waits_behind_others() {
        let queue = Queue::new(TargetLock::new());
        std::thread::scope(|scope| {
            let mut held = queue.turn();
            let other = scope.spawn(|| {
                for _ in 0..1000 {
                    drop(queue.turn().unwrap());
                }
            });
            // While the other waits this thread has one turn at most, and the other may come and go while this thread waits.
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
    fn a_place_given_up_at_the_deadline_delays_none() {
        let queue = Queue::new(TargetLock::new());
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

/// Under loom's memory model, as it ships. `tests/mutants` has the lines that this must notice.
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

    fn count(queue: &Queue) {
        queue.turn().unwrap().seen += 1;
    }

    /// A thread that is never told would sleep for ever, which loom reports.
    #[test]
    fn every_thread_has_its_turn() {
        model(|| {
            let queue = Arc::new(Queue::new(TargetLock::new()));
            let others = [0, 1].map(|_| {
                let queue = queue.clone();
                loom::thread::spawn(move || count(&queue))
            });
            count(&queue);
            others.into_iter().for_each(|other| other.join().unwrap());
            assert_eq!(queue.turn().unwrap().seen, 3);
            assert!(queue.line.is_empty());
        });
    }

    /// One of two waiting threads gives up, before or after the release wakes it.
    #[test]
    fn a_thread_that_gives_up_passes_the_turn_on() {
        model(|| {
            let queue = Arc::new(Queue::new(TargetLock::new()));
            let (giver, other) = (queue.clone(), queue.clone());
            let held = queue.turn().unwrap();
            let giver = loom::thread::spawn(move || match giver.turn_by(Instant::now()) {
                Some(mut turn) => {
                    turn.seen += 1;
                    1
                }
                None => 0,
            });
            let other = loom::thread::spawn(move || count(&other));
            drop(held);
            let counted = giver.join().unwrap() + 1;
            other.join().unwrap();
            assert_eq!(queue.turn().unwrap().seen, counted);
        });
    }
}
