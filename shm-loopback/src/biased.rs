//! A biased lock: the first thread that takes it has a fast path without a locked instruction, until another thread
//! takes it too. A locked instruction waits for all earlier stores, including those to lines that another processor
//! holds.
//!
//! # Invariants
//! `owner` is first `NOBODY`, then the first thread, then `EVERYBODY`, and never goes back. It changes only under the
//! mutex.
//!
//! 1. Only the owner, or the former owner, stores `inside`. It is inside from when it has set `inside` and then found
//!    that it is still the owner, until it clears `inside`.
//! 2. Every other thread holds the mutex, has set `owner` to `EVERYBODY`, and has found `inside` cleared after that.
//!    Each side has a fence between its two accesses, so one sees the other ([`asymmetric_fence`]).
//! 3. Once `owner` is `EVERYBODY`, the first owner takes the mutex like any other thread.

use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};
use threads::{AtomicBool, AtomicUsize, Mutex, MutexGuard, Ordering::*, asymmetric_fence, this_thread, yield_now};

/// The primitives of the lock; in tests under loom, its models of them.
#[cfg(not(all(test, feature = "loom")))]
mod threads {
    pub(super) use crate::asymmetric_fence;
    pub use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    pub use std::sync::{Mutex, MutexGuard};
    pub use std::thread::yield_now;

    /// A number of the calling thread, unlike that of any other live thread: the address of a thread-local variable. A
    /// thread that gets the address of an ended thread takes over its role.
    #[inline(always)]
    pub fn this_thread() -> usize {
        thread_local!(static HERE: u64 = const { 0 });
        HERE.with(|here| std::ptr::from_ref(here).addr())
    }
}

/// A lock around a value, for one thread at a time.
///
/// # Examples
/// ```
/// let lock = transom_shm_loopback::Biased::new(7);
/// *lock.lock() += 1;
/// let held = lock.lock();
/// assert!(lock.try_lock().is_none());
/// assert_eq!(*held, 8);
/// ```
pub struct Biased<T> {
    owner: AtomicUsize,
    inside: AtomicBool,
    others: Mutex<()>,
    /// The guard of the thread that holds the mutex. Only that thread writes and reads it.
    guard: UnsafeCell<MaybeUninit<MutexGuard<'static, ()>>>,
    value: UnsafeCell<T>,
}

/// Values of `owner` that are no thread's number.
const NOBODY: usize = 0;
const EVERYBODY: usize = 1;

// SAFETY: only the thread that has the lock accesses the value and the guard, so one thread after another; the guard is
// only accessed by the thread that stored it.
unsafe impl<T: Send> Sync for Biased<T> {}
// SAFETY: no thread holds a lock that is moved, and a leaked guard is not accessed any more.
unsafe impl<T: Send> Send for Biased<T> {}

/// Access to the value. Two words, so that it is passed in registers.
pub struct Held<'l, T> {
    lock: &'l Biased<T>,
    /// True if the mutex is not held.
    by_fast_path: bool,
    /// Keeps the value in its thread.
    _value: PhantomData<*mut T>,
}

impl<T> Biased<T> {
    /// Creates a lock around `value`.
    pub fn new(value: T) -> Self {
        asymmetric_fence::register();
        Biased {
            owner: AtomicUsize::new(NOBODY),
            inside: AtomicBool::new(false),
            others: Mutex::new(()),
            guard: UnsafeCell::new(MaybeUninit::uninit()),
            value: UnsafeCell::new(value),
        }
    }

    /// Takes the lock; `None` if any thread, this one included, holds it.
    #[inline(always)]
    pub fn try_lock(&self) -> Option<Held<'_, T>> {
        self.enter().or_else(|| self.try_lock_with_others())
    }

    /// Takes the lock, once no other thread holds it. If this thread already holds it by the fast path the call panics;
    /// if it holds it otherwise, the call waits for ever.
    #[inline(always)]
    pub fn lock(&self) -> Held<'_, T> {
        self.enter().unwrap_or_else(|| self.lock_with_others())
    }

    /// The fast path.
    #[inline(always)]
    fn enter(&self) -> Option<Held<'_, T>> {
        let me = this_thread();
        // Acquire: a thread that takes over an ended thread's role sees its writes.
        if self.owner.load(Relaxed) != me || self.inside.load(Acquire) {
            return None;
        }
        self.inside.store(true, Relaxed);
        asymmetric_fence::light();
        if self.owner.load(Relaxed) != me {
            self.leave();
            return None;
        }
        Some(self.held(true))
    }

    /// Release: a thread that finds `inside` cleared sees the writes made inside.
    #[inline(always)]
    fn leave(&self) {
        self.inside.store(false, Release);
    }

    #[inline(always)]
    fn held(&self, by_fast_path: bool) -> Held<'_, T> {
        Held { lock: self, by_fast_path, _value: PhantomData }
    }

    #[cold]
    #[inline(never)]
    fn try_lock_with_others(&self) -> Option<Held<'_, T>> {
        use std::sync::TryLockError::{Poisoned, WouldBlock};
        let others = match self.others.try_lock() {
            Ok(others) => others,
            Err(Poisoned(poisoned)) => poisoned.into_inner(),
            Err(WouldBlock) => return None,
        };
        self.take(others).ok()
    }

    #[cold]
    #[inline(never)]
    fn lock_with_others(&self) -> Held<'_, T> {
        assert!(!self.is_mine(), "this thread already holds the lock");
        let mut others = self.others.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        loop {
            match self.take(others) {
                Ok(held) => return held,
                Err(still) => others = still,
            }
            yield_now();
        }
    }

    /// Returns whether this thread is inside by the fast path.
    fn is_mine(&self) -> bool {
        self.owner.load(Relaxed) == this_thread() && self.inside.load(Relaxed)
    }

    /// Takes the lock for a thread that holds the mutex, unless the owner is inside.
    fn take<'l>(&'l self, others: MutexGuard<'l, ()>) -> Result<Held<'l, T>, MutexGuard<'l, ()>> {
        match self.owner.load(Relaxed) {
            NOBODY => {
                self.inside.store(true, Relaxed);
                self.owner.store(this_thread(), Relaxed);
                return Ok(self.held(true));
            }
            EVERYBODY => {}
            _ if self.is_mine() => return Err(others),
            _ => {
                self.owner.store(EVERYBODY, Relaxed);
                if !asymmetric_fence::heavy() {
                    // The owner may be inside without this thread seeing it, now and later.
                    eprintln!(
                        "transom: membarrier(2) worked before but failed now: a lock would no longer exclude threads; aborting"
                    );
                    std::process::abort();
                }
            }
        }
        if self.inside.load(Acquire) {
            return Err(others);
        }
        // SAFETY: this thread has the lock; the lock is not moved while it is held, or the guard is leaked.
        unsafe {
            (*self.guard.get()).write(std::mem::transmute::<MutexGuard<'l, ()>, MutexGuard<'static, ()>>(others))
        };
        Ok(self.held(false))
    }
}

impl<T> Deref for Held<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: by the invariants no other thread accesses the value, and this one has one `Held`.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Held<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Held<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.by_fast_path {
            return self.lock.leave();
        }
        // SAFETY: this `Held` stored the guard.
        drop(unsafe { (*self.lock.guard.get()).assume_init_read() });
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    #[test]
    fn biased_lock_excludes_other_threads() {
        let (lock, threads, each) = (Biased::new(0_u64), 4, if cfg!(miri) { 20 } else { 100_000 });
        // First the owner alone, then together with the others.
        (0..each).for_each(|_| *lock.lock() += 1);
        std::thread::scope(|scope| {
            for thread in 0..threads {
                let lock = &lock;
                scope.spawn(move || {
                    for turn in 0..each {
                        match (turn + thread) % 2 {
                            0 => *lock.lock() += 1,
                            _ => loop {
                                if let Some(mut held) = lock.try_lock() {
                                    *held += 1;
                                    break;
                                }
                                std::thread::yield_now();
                            },
                        }
                    }
                });
            }
            (0..each).for_each(|_| *lock.lock() += 1);
        });
        assert_eq!(*lock.lock(), (threads + 2) * each);
    }

    /// Another thread takes a lock while its owner enters and leaves repeatedly.
    #[test]
    fn owner_of_a_biased_lock_is_not_overtaken() {
        const EACH: u64 = 20;
        let count = |lock: &Biased<u64>| {
            let mut held = lock.lock();
            let before = *held;
            std::hint::spin_loop();
            *held = before + 1;
        };
        let locks: Vec<_> = (0..if cfg!(miri) { 3 } else { 3_000 }).map(|_| Biased::new(0)).collect();
        let ([begun, done], mut overtaken) = ([0, 1].map(|_| AtomicUsize::new(0)), 0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for (which, lock) in locks.iter().enumerate() {
                    while begun.load(Acquire) <= which {
                        std::thread::yield_now();
                    }
                    (0..EACH).for_each(|_| count(lock));
                    done.store(which + 1, Release);
                }
            });
            for (which, lock) in locks.iter().enumerate() {
                count(lock);
                begun.store(which + 1, Release);
                let mut counted = 1 + EACH;
                while done.load(Acquire) <= which {
                    count(lock);
                    counted += 1;
                }
                overtaken += usize::from(*lock.lock() != counted);
            }
        });
        assert_eq!(overtaken, 0, "of {} locks", locks.len());
    }

    #[test]
    fn holder_cannot_try_lock_again() {
        let lock = Biased::new(());
        for everybodys in [false, true] {
            let held = lock.lock();
            assert_eq!(held.by_fast_path, !everybodys);
            assert!(lock.try_lock().is_none());
            std::thread::scope(|scope| assert!(scope.spawn(|| lock.try_lock().is_none()).join().unwrap()));
            drop(held);
            assert!(lock.try_lock().is_some());
        }
    }

    #[test]
    #[should_panic(expected = "this thread already holds the lock")]
    fn nested_lock_panics() {
        let lock = Biased::new(());
        let _held = lock.lock();
        drop(lock.lock());
    }
}

#[cfg(all(test, feature = "loom"))]
mod threads {
    pub use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    pub use loom::sync::{Mutex, MutexGuard};
    pub use loom::thread::yield_now;

    /// A fence on each side stands for the guarantee of `membarrier`.
    pub mod asymmetric_fence {
        pub fn register() {}

        pub fn light() {
            loom::sync::atomic::fence(loom::sync::atomic::Ordering::SeqCst);
        }

        pub fn heavy() -> bool {
            light();
            true
        }
    }

    pub fn this_thread() -> usize {
        use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
        static NEXT: AtomicUsize = AtomicUsize::new(super::EVERYBODY + 1);
        loom::thread_local!(static HERE: usize = NEXT.fetch_add(1, Relaxed));
        HERE.with(|here| *here)
    }
}

/// Runs the shipped code under loom's memory model. `tests/mutants` lists lines whose removal these tests must notice.
#[cfg(all(test, feature = "loom"))]
mod model {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;

    /// A value for which loom reports concurrent access, and access that misses the last holder's writes.
    struct Watched(UnsafeCell<u32>);

    // SAFETY: loom checks the accesses.
    unsafe impl Send for Watched {}

    fn count(lock: &Biased<Watched>) {
        // SAFETY: loom checks that no other thread accesses the value.
        lock.lock().0.with_mut(|value| unsafe { *value += 1 });
    }

    fn try_to_count(lock: &Biased<Watched>) -> u32 {
        let Some(held) = lock.try_lock() else { return 0 };
        // SAFETY: as above.
        held.0.with_mut(|value| unsafe { *value += 1 });
        1
    }

    fn model(body: fn()) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(body);
    }

    #[test]
    fn owner_and_other_thread_exclude_each_other() {
        model(|| {
            let lock = Arc::new(Biased::new(Watched(UnsafeCell::new(0))));
            count(&lock);
            let other = lock.clone();
            let other = loom::thread::spawn(move || (count(&other), try_to_count(&other)).1);
            count(&lock);
            let tried = try_to_count(&lock) + other.join().unwrap();
            // SAFETY: as above.
            lock.lock().0.with(|value| assert_eq!(unsafe { *value }, 3 + tried));
        });
    }

    #[test]
    fn only_one_thread_becomes_owner() {
        model(|| {
            let lock = Arc::new(Biased::new(Watched(UnsafeCell::new(0))));
            let others = [0, 1].map(|_| {
                let lock = lock.clone();
                loom::thread::spawn(move || count(&lock))
            });
            others.into_iter().for_each(|other| other.join().unwrap());
            // SAFETY: as above.
            lock.lock().0.with(|value| assert_eq!(unsafe { *value }, 2));
        });
    }
}
