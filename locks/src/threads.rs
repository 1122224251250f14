//! How the threads of one rank share the lock of one target: they queue on a mutex before they ask for it.

use crate::TargetLock;
use crate::all_locks::LockState;
use crate::primitive::{Condvar, Mutex, MutexGuard, this_thread};
use std::ops::{Deref, DerefMut};
use std::sync::TryLockError;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// How long who waits with a deadline for another thread of its rank sleeps between two looks: at first, and at most.
const PAUSES: [Duration; 2] = [Duration::from_micros(10), Duration::from_millis(1)];

/// The lock of one target, and the threads of this rank that want it.
///
/// A thread keeps the mutex locked while the protocol waits for other ranks: no other thread of this rank could have
/// the lock sooner. Between two calls the mutex is free, and who wants a lock that another thread holds waits for
/// `released`.
pub(crate) struct ThreadQueue<const C: u32> {
    state: Mutex<State<C>>,
    /// Told when the lock is no longer held, if threads wait for that.
    released: Condvar,
    /// The thread that holds the lock, or asks for it; 0 if none does, or the lock was taken by `&mut` access. Changes
    /// only by who has the mutex. Without it a thread may ask whether it finds itself here, since no other writes its
    /// number: hence no ordering, nor loom's own atomic.
    holder: AtomicUsize,
}

struct State<const C: u32> {
    lock: TargetLock<C>,
    /// How many threads wait for `released`.
    waiting: usize,
}

impl<const C: u32> ThreadQueue<C> {
    pub fn new(lock: TargetLock<C>) -> Self {
        ThreadQueue {
            state: Mutex::new(State { lock, waiting: 0 }),
            released: Condvar::new(),
            holder: AtomicUsize::new(0),
        }
    }

    /// This thread's turn to ask for the lock, when no other thread holds it; nothing if that would never be: this
    /// thread holds the lock itself or is asking for it, or it was taken by `&mut` access.
    #[inline]
    pub fn turn_to_acquire(&self) -> Option<Turn<'_, C>> {
        let me = this_thread();
        if self.holder.load(Relaxed) == me {
            return None;
        }
        let mut state = self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        while state.lock.is_held() {
            if self.holder.load(Relaxed) == 0 {
                return None;
            }
            state.waiting += 1;
            state = self.released.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner());
            state.waiting -= 1;
        }
        self.holder.store(me, Relaxed);
        Some(Turn { state, queue: self })
    }

    /// Whether this thread has the lock, or asks for it.
    pub fn is_mine(&self) -> bool {
        self.holder.load(Relaxed) == this_thread()
    }

    /// This thread's turn to ask for the lock, if no other thread has it or asks for it. (One that was taken by `&mut`
    /// access is held by this rank, and the protocol says so.)
    pub fn turn_at_once(&self) -> Option<Turn<'_, C>> {
        let state = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        if state.lock.is_held() && self.holder.load(Relaxed) != 0 {
            return None;
        }
        self.holder.store(this_thread(), Relaxed);
        Some(Turn { state, queue: self })
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

    /// This thread's turn to release the lock; nothing if another thread holds it or asks for it.
    #[inline]
    pub fn turn_to_release(&self) -> Option<Turn<'_, C>> {
        let me = this_thread();
        let mine = || [0, me].contains(&self.holder.load(Relaxed));
        // Without the mutex first: another thread may keep it for long.
        if !mine() {
            return None;
        }
        let state = self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        mine().then(|| Turn { state, queue: self })
    }
}

impl<const C: u32> LockState<C> for ThreadQueue<C> {
    #[inline(always)]
    fn lock(&mut self) -> &mut TargetLock<C> {
        &mut self.state.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner()).lock
    }

    /// Whichever thread acquired it.
    #[inline(always)]
    fn to_release(&mut self) -> &mut TargetLock<C> {
        self.holder.store(0, Relaxed);
        self.lock()
    }
}

/// A thread has the mutex. When that ends, also by a panic of the network, and the lock is not held, the next thread
/// that waits is told.
pub(crate) struct Turn<'q, const C: u32> {
    state: MutexGuard<'q, State<C>>,
    queue: &'q ThreadQueue<C>,
}

impl<const C: u32> Deref for Turn<'_, C> {
    type Target = TargetLock<C>;

    #[inline]
    fn deref(&self) -> &TargetLock<C> {
        &self.state.lock
    }
}

impl<const C: u32> DerefMut for Turn<'_, C> {
    #[inline]
    fn deref_mut(&mut self) -> &mut TargetLock<C> {
        &mut self.state.lock
    }
}

impl<const C: u32> Drop for Turn<'_, C> {
    #[inline]
    fn drop(&mut self) {
        if !self.state.lock.is_held() {
            self.queue.holder.store(0, Relaxed);
            // Telling nobody would be a system call too.
            if self.state.waiting > 0 {
                self.queue.released.notify_one();
            }
        }
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;
    use crate::model::{Sim, sim};
    use crate::{Error, LockLayout};

    /// It costs a system call to tell, whether anybody waits or not.
    #[test]
    fn one_thread_tells_nobody() {
        let layout = LockLayout::new(0, 1);
        let body = move |_, network: &sim::Replay| {
            let queue = ThreadQueue::<16>::new(TargetLock::new());
            let mut turn = queue.turn_to_release().expect("nobody else is there");
            assert_eq!(turn.release(network, layout, 0), Err(Error::NotLocked { target: 0 }));
            drop(turn);
            for _ in 0..3 {
                queue.turn_to_acquire().expect("it is free").exclusive(network, layout, 0)?;
                assert!(queue.turn_to_acquire().is_none());
                queue.turn_to_release().expect("it is this thread's").release(network, layout, 0)?;
                queue.turn_to_acquire().expect("it is free").shared(network, layout, 0)?;
                queue.turn_to_release().expect("it is this thread's").release(network, layout, 0)?;
            }
            assert_eq!(queue.released.told.load(Relaxed), 0);
            Ok::<(), Error<sim::Suspended>>(())
        };
        Sim::new(1, LockLayout::words(1), sim::once(body)).run_random(1).unwrap();
    }
}
