//! A FIFO line of threads that wait for a resource which one thread at a time may have.

use crate::primitive::{AtomicUsize, Mutex, MutexGuard, Thread, current, fence, park};
use std::collections::VecDeque;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::compiler_fence;
use std::time::{Duration, Instant};

/// Threads that wait, in the order in which they came.
///
/// A missed wake-up delays a thread for a bounded time. A thread counts itself in `len`, executes a fence, and then
/// tries to take the resource. The releasing thread reads `len` after its release. Either the waiter finds the resource
/// free, or the releaser finds the waiter in line. Both can miss each other only while the releaser's store is not yet
/// visible: a fence there would cost each unlock a locked instruction. A thread that has just joined the line therefore
/// sleeps only briefly at first, and tries again.
#[repr(C)]
pub(crate) struct Line {
    /// The number of waiting threads. Changes only while `threads` is locked.
    len: AtomicUsize,
    threads: Mutex<VecDeque<Waiting>>,
}

struct Waiting {
    thread: Thread,
    /// Unique among the threads in line.
    number: usize,
}

/// Attempts of the first in line before it sleeps: a resource held for a moment is free again sooner than a sleeper
/// wakes.
const LOOKS: usize = if cfg!(feature = "loom") { 1 } else { 100 };
/// Longest first sleep of a thread that has joined the line: stores become visible to other processors within
/// microseconds.
const FIRST_ROUND: Duration = Duration::from_millis(1);
/// Longest sleep after the first.
const ROUND: Duration = Duration::from_millis(100);

impl Line {
    pub fn new() -> Self {
        Line { len: AtomicUsize::new(0), threads: Mutex::new(VecDeque::new()) }
    }

    /// Returns whether no thread waits.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.len.load(Relaxed) == 0
    }

    #[cfg(all(test, not(feature = "loom")))]
    pub fn len(&self) -> usize {
        self.len.load(Relaxed)
    }

    /// Waits until this thread is the first in line and `attempt` succeeds, or until the deadline. Makes at least one
    /// attempt if no thread is before this one.
    pub fn wait<R>(&self, deadline: Option<Instant>, attempt: impl Fn() -> Option<R>) -> Option<R> {
        let mut place = PlaceInLine::last(self);
        let mut round = FIRST_ROUND;
        loop {
            if place.is_first() {
                for _ in 0..LOOKS {
                    let found = attempt();
                    if found.is_some() {
                        // The release by this thread wakes the next one.
                        place.has_turn = true;
                        return found;
                    }
                    std::hint::spin_loop();
                }
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return None;
            }
            park(left.map_or(round, |left| left.min(round)));
            round = ROUND;
        }
    }

    /// Wakes the first in line. The caller has just released the resource.
    #[inline(always)]
    pub fn pass_on(&self) {
        after_unlock();
        if !self.is_empty() {
            self.wake_first();
        }
    }

    #[cold]
    #[inline(never)]
    fn wake_first(&self) {
        if let Some(first) = self.threads().front() {
            first.thread.unpark();
        }
    }

    fn threads(&self) -> MutexGuard<'_, VecDeque<Waiting>> {
        self.threads.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// The fence after a release, under loom only: without a clock no thread tries again by itself.
#[inline(always)]
fn after_unlock() {
    match cfg!(not(feature = "loom")) {
        true => compiler_fence(SeqCst),
        false => fence(SeqCst),
    }
}

/// A thread's place in line; dropping it leaves the line.
struct PlaceInLine<'l> {
    line: &'l Line,
    number: usize,
    has_turn: bool,
}

impl<'l> PlaceInLine<'l> {
    fn last(line: &'l Line) -> Self {
        let mut threads = line.threads();
        let number = threads.back().map_or(0, |last| last.number.wrapping_add(1));
        threads.push_back(Waiting { thread: current(), number });
        line.len.store(threads.len(), Relaxed);
        drop(threads);
        fence(SeqCst);
        PlaceInLine { line, number, has_turn: false }
    }

    fn is_first(&self) -> bool {
        self.line.threads().front().is_some_and(|first| first.number == self.number)
    }
}

impl Drop for PlaceInLine<'_> {
    fn drop(&mut self) {
        let mut threads = self.line.threads();
        let place = threads.iter().position(|waiting| waiting.number == self.number);
        threads.remove(place.expect("a thread in line stays there until it leaves"));
        self.line.len.store(threads.len(), Relaxed);
        // A thread that gives up its place may have consumed the wake-up meant for the first in line: pass it on.
        if let Some(first) = threads.front().filter(|_| place == Some(0) && !self.has_turn) {
            first.thread.unpark();
        }
    }
}
