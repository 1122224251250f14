//! A lock of which the first thread that takes it has a fast path, with no locked instruction, until another takes it too (biased
//! locking). A locked instruction waits for all stores before it, also for those to lines that another processor has.
//!
//! # Invariants
//! `owner` is nobody, then the first thread, then everybody, and never goes back; it changes under the mutex alone.
//!
//! 1. Only the owner, or who was it, stores `inside`. It is inside from when it has stored that, and found itself the owner still,
//!    until it takes that back.
//! 2. Everybody else has the mutex, has made the lock everybody's, and has found `inside` taken back after that. A barrier is between
//!    the two accesses of each side, so one sees the other ([`order`]).
//! 3. Where the lock is everybody's, its first owner takes the mutex as others do.

use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};
use threads::{AtomicBool, AtomicUsize, Mutex, MutexGuard, Ordering::*, order, this_thread, yield_now};

/// What the lock is made of; under test by loom its models of that.
#[cfg(not(all(test, feature = "loom")))]
mod threads {
    pub(super) use crate::order;
    pub use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    pub use std::sync::{Mutex, MutexGuard};
    pub use std::thread::yield_now;

    /// A number of this thread, unlike that of any other that lives: where it has its own variables. A thread that has those of one that
    /// has ended goes on in its place.
    #[inline(always)]
    pub fn this_thread() -> usize {
        thread_local!(static HERE: u64 = const { 0 });
        HERE.with(|here| std::ptr::from_ref(here).addr())
    }
}

/// A value for one thread at a time.
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
    /// What who has the mutex holds it by. Written and read by that one alone.
    guard: UnsafeCell<MaybeUninit<MutexGuard<'static, ()>>>,
    value: UnsafeCell<T>,
}

/// As owner: nobody yet, and everybody. No thread's number.
const NOBODY: usize = 0;
const EVERYBODY: usize = 1;

// SAFETY: the value and the guard are reached by who has the lock alone, so by one thread after the other; the guard by the thread
// that has left it there.
unsafe impl<T: Send> Sync for Biased<T> {}
// SAFETY: what is moved nobody has, and a guard that was leaked is not touched any more.
unsafe impl<T: Send> Send for Biased<T> {}

/// The value, as long as this is kept. Two words: it goes in registers.
pub struct Held<'l, T> {
    lock: &'l Biased<T>,
    /// Without the mutex.
    by_fast_path: bool,
    /// Stays in its thread.
    _value: PhantomData<*mut T>,
}

impl<T> Biased<T> {
    /// A lock of this value.
    pub fn new(value: T) -> Self {
        order::register();
        Biased {
            owner: AtomicUsize::new(NOBODY),
            inside: AtomicBool::new(false),
            others: Mutex::new(()),
            guard: UnsafeCell::new(MaybeUninit::uninit()),
            value: UnsafeCell::new(value),
        }
    }

    /// The value; none if a thread, also this one, has it.
    #[inline(always)]
    pub fn try_lock(&self) -> Option<Held<'_, T>> {
        self.enter().or_else(|| self.try_lock_with_others())
    }

    /// The value, once no other thread has it. Who has it already panics, or waits for ever if other threads have taken it too.
    #[inline(always)]
    pub fn lock(&self) -> Held<'_, T> {
        self.enter().unwrap_or_else(|| self.lock_with_others())
    }

    /// The fast path.
    #[inline(always)]
    fn enter(&self) -> Option<Held<'_, T>> {
        let me = this_thread();
        // Acquire: a thread in the place of one that has ended sees what that did.
        if self.owner.load(Relaxed) != me || self.inside.load(Acquire) {
            return None;
        }
        self.inside.store(true, Relaxed);
        order::light();
        if self.owner.load(Relaxed) != me {
            self.leave();
            return None;
        }
        Some(self.held(true))
    }

    /// Release: who finds it taken back sees what was done inside.
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
        assert!(!self.is_mine(), "this thread has the lock already");
        let mut others = self.others.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        loop {
            match self.take(others) {
                Ok(held) => return held,
                Err(still) => others = still,
            }
            yield_now();
        }
    }

    /// Whether this thread is inside by the fast path.
    fn is_mine(&self) -> bool {
        self.owner.load(Relaxed) == this_thread() && self.inside.load(Relaxed)
    }

    /// The value for who has the mutex, unless the owner is inside.
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
                if !order::heavy() {
                    // The owner may be inside without our seeing it, now and later.
                    eprintln!("transom: membarrier(2) worked before, and does not now; this process cannot go on");
                    std::process::abort();
                }
            }
        }
        if self.inside.load(Acquire) {
            return Err(others);
        }
        // SAFETY: this thread has the lock; and the lock stays where it is, or leaks the guard.
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
        // SAFETY: by the invariants no other thread has the value, and this one has it once.
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
        // SAFETY: it was left there by this one.
        drop(unsafe { (*self.lock.guard.get()).assume_init_read() });
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    #[test]
    fn one_thread_at_a_time_has_the_value() {
        let (lock, threads, each) = (Biased::new(0_u64), 4, if cfg!(miri) { 20 } else { 100_000 });
        // The first for itself, and then with the others.
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

    /// Another thread takes a lock while its owner goes in and out.
    #[test]
    fn the_owner_of_a_lock_is_not_overtaken() {
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
    fn who_has_it_does_not_get_it_again() {
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
    #[should_panic(expected = "this thread has the lock already")]
    fn a_lock_within_a_lock_is_told() {
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

    /// A fence at each side stands for what `membarrier` promises.
    pub mod order {
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

/// Under loom's memory model, as it ships. `tests/mutants` has the lines that this must notice.
#[cfg(all(test, feature = "loom"))]
mod model {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;

    /// A value of which loom says if two threads have it at once, or one does not see what the last did.
    struct Watched(UnsafeCell<u32>);

    // SAFETY: loom looks whether it is.
    unsafe impl Send for Watched {}

    fn count(lock: &Biased<Watched>) {
        // SAFETY: loom looks that nobody else uses it.
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
    fn the_owner_and_another_are_inside_one_after_the_other() {
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
    fn nobody_is_the_first_twice() {
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
