//! How the threads of one rank share the lock of one target: they queue on a mutex before they ask for it.

use crate::TargetLock;
use crate::all_locks::LockState;
use crate::primitive::{Mutex, MutexGuard, this_thread};
use std::ops::{Deref, DerefMut};
use std::sync::TryLockError;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// How long who waits with a deadline for another thread of its rank sleeps between two looks: at first, and at most.
const PAUSES: [Duration; 2] = [Duration::from_micros(10), Duration::from_millis(1)];

/// The lock of one target, and the threads of this rank that want it: who has the mutex asks for the lock, and keeps the mutex
/// until it has released that.
pub(crate) struct ThreadQueue<const C: u32> {
    lock: Mutex<TargetLock<C>>,
    /// The thread that has the mutex; 0 if none does. Changes only by who has it. Without it a thread may ask whether it finds
    /// itself here, since no other writes its number: hence no ordering, nor loom's own atomic.
    holder: AtomicUsize,
}

impl<const C: u32> ThreadQueue<C> {
    pub fn new(lock: TargetLock<C>) -> Self {
        ThreadQueue { lock: Mutex::new(lock), holder: AtomicUsize::new(0) }
    }

    /// This thread's turn to ask for the lock, when no other thread holds it; nothing if that would never be: this
    /// thread holds the lock itself or is asking for it.
    #[inline]
    pub fn turn(&self) -> Option<Turn<'_, C>> {
        if self.is_mine() {
            return None;
        }
        Some(self.begin(self.lock.lock().unwrap_or_else(|poisoned| poisoned.into_inner())))
    }

    /// Whether this thread has the lock, or asks for it.
    #[inline]
    pub fn is_mine(&self) -> bool {
        self.holder.load(Relaxed) == this_thread()
    }

    /// This thread's turn to ask for the lock, if no other thread has it or asks for it.
    pub fn turn_at_once(&self) -> Option<Turn<'_, C>> {
        match self.lock.try_lock() {
            Ok(lock) => Some(self.begin(lock)),
            Err(TryLockError::Poisoned(poisoned)) => Some(self.begin(poisoned.into_inner())),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// As [`turn_at_once`](Self::turn_at_once), or by the deadline; at least one attempt. Looks again and again, at memory of this
    /// rank: the standard library's mutex waits for ever.
    pub fn turn_by(&self, deadline: Instant) -> Option<Turn<'_, C>> {
        let mut pause = PAUSES[0];
        loop {
            let turn = self.turn_at_once();
            let left = deadline.saturating_duration_since(Instant::now());
            if turn.is_some() || left.is_zero() {
                return turn;
            }
            std::thread::sleep(pause.min(left));
            pause = (pause * 2).min(PAUSES[1]);
        }
    }

    #[inline]
    fn begin<'q>(&'q self, lock: MutexGuard<'q, TargetLock<C>>) -> Turn<'q, C> {
        self.holder.store(this_thread(), Relaxed);
        Turn { holder: &self.holder, lock }
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
    lock: MutexGuard<'q, TargetLock<C>>,
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
