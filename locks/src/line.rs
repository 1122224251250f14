//! Threads that wait in line for something that one at a time may have.

use crate::primitive::{AtomicUsize, Mutex, MutexGuard, Thread, current, fence, park};
use std::collections::VecDeque;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::compiler_fence;
use std::time::{Duration, Instant};

/// Threads that wait, in the order in which they came.
///
/// No wake-up is lost for long. A thread counts itself in `len`, has a barrier, and then tries what it waits for. A thread that gives that
/// back reads `len` after it. Either the first finds it free, or the second finds the first in line, or the two did so at one moment, in
/// which the store of the second was not visible yet: a barrier there would cost each unlock a locked instruction. So a thread that has
/// just come into line sleeps for a short time first, and looks again.
pub(crate) struct Line {
    /// How many wait. Changes with `threads` locked.
    len: AtomicUsize,
    threads: Mutex<VecDeque<Waiting>>,
}

struct Waiting {
    thread: Thread,
    /// Unlike that of any other thread in line.
    number: usize,
}

/// Looks of the first in line before it sleeps: what threads share for a moment only is free again sooner than a sleeper wakes.
const LOOKS: usize = if cfg!(feature = "loom") { 1 } else { 100 };
/// How long a thread sleeps at most when it has come into line: stores are visible to other processors within microseconds.
const FIRST_ROUND: Duration = Duration::from_millis(1);
/// How long a thread sleeps at most later.
const ROUND: Duration = Duration::from_millis(100);

impl Line {
    pub fn new() -> Self {
        Line { len: AtomicUsize::new(0), threads: Mutex::new(VecDeque::new()) }
    }

    /// Whether no thread waits.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.len.load(Relaxed) == 0
    }

    #[cfg(all(test, not(feature = "loom")))]
    pub fn len(&self) -> usize {
        self.len.load(Relaxed)
    }

    /// Waits until this thread is the first in line and `attempt` succeeds, or until the deadline. At least one attempt, if no thread is
    /// before this one.
    pub fn wait<R>(&self, deadline: Option<Instant>, attempt: impl Fn() -> Option<R>) -> Option<R> {
        let mut place = Place::last(self);
        let mut round = FIRST_ROUND;
        loop {
            if place.is_first() {
                for _ in 0..LOOKS {
                    let found = attempt();
                    if found.is_some() {
                        // The next is told when that is given back.
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

    /// To be called after what is waited for was given back: wakes the first in line.
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

/// The barrier after what was given back, under loom: that knows no time, so no thread there looks again.
#[inline(always)]
fn after_unlock() {
    match cfg!(not(feature = "loom")) {
        true => compiler_fence(SeqCst),
        false => fence(SeqCst),
    }
}

/// A thread's place in line, which it leaves when this is dropped.
struct Place<'l> {
    line: &'l Line,
    number: usize,
    has_turn: bool,
}

impl<'l> Place<'l> {
    fn last(line: &'l Line) -> Self {
        let mut threads = line.threads();
        let number = threads.back().map_or(0, |last| last.number.wrapping_add(1));
        threads.push_back(Waiting { thread: current(), number });
        line.len.store(threads.len(), Relaxed);
        drop(threads);
        fence(SeqCst);
        Place { line, number, has_turn: false }
    }

    fn is_first(&self) -> bool {
        self.line.threads().front().is_some_and(|first| first.number == self.number)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut threads = self.line.threads();
        let place = threads.iter().position(|waiting| waiting.number == self.number);
        threads.remove(place.expect("a thread in line stays there until it leaves"));
        self.line.len.store(threads.len(), Relaxed);
        // Who gives up its turn may have been told that it has come.
        if let Some(first) = threads.front().filter(|_| place == Some(0) && !self.has_turn) {
            first.thread.unpark();
        }
    }
}
