//! An event count: a rank sleeps until a word of its memory may have changed, and a rank that changes a word wakes it.
//!
//! No wake-up is lost. A sleeper counts itself in `sleepers` before its last poll of the words; a waker reads
//! `sleepers` after it has changed a word. Each side has a fence between its two accesses, so one of them sees the
//! other. Either the sleeper finds the changed word, or the waker finds the sleeper, increments `epoch` and wakes it.
//! The sleeper sleeps only while `epoch` has its value from before that last poll.
//!
//! Wakers are on the fast path and sleepers are not, so the sleeper's fence is the expensive one
//! ([`asymmetric_fence`]).

use crate::asymmetric_fence;
#[cfg(not(miri))]
use rustix::{io::Errno, thread::futex};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst, fence};
use std::time::Duration;

/// Longest sleep before a sleeper polls again, and checks that the ranks it waits for are alive.
const ROUND: Duration = Duration::from_millis(100);

/// The state that sleepers and wakers of one block share. A trait, so that a model checker runs [`park`] and [`notify`]
/// as they ship.
pub(crate) trait EventCount {
    /// A sleeper's snapshot of `epoch`.
    type Seen;
    /// Changes the number of sleepers by 1 or -1.
    fn count(&self, change: i32);
    fn sleepers(&self) -> u32;
    /// The fences of a waker and of a sleeper.
    #[inline(always)]
    fn light(&self) {
        asymmetric_fence::light();
    }
    fn heavy(&self) {
        // If it fails a wake-up may be missed, and the sleep lasts for its full time.
        let _ = asymmetric_fence::heavy();
    }
    fn epoch(&self) -> Self::Seen;
    fn advance(&self);
    /// Sleeps until woken, but at most for `most`, and only while `epoch` equals `seen`. May end early. Returns whether
    /// the time was over, provided that every rank that changes a word also notifies.
    fn sleep(&self, seen: Self::Seen, most: Duration) -> bool;
    /// Counts a sleep that timed out although data had arrived: possible only if the waker stalled between its store
    /// and its wake.
    fn missed(&self) {
        MISSED.fetch_add(1, Relaxed);
    }
    /// Wakes all sleepers.
    fn wake(&self);
}

/// Wakes the sleepers. Called after a word was changed by any store.
#[inline(always)]
pub(crate) fn notify(event: &impl EventCount) {
    event.light();
    if event.sleepers() != 0 {
        notify_sleepers(event);
    }
}

#[cold]
#[inline(never)]
fn notify_sleepers(event: &impl EventCount) {
    event.advance();
    event.wake();
}

/// Sleeps for at most `most`, unless `look` finds its result; then polls again.
pub(crate) fn park<R, E>(
    event: &impl EventCount,
    most: Duration,
    mut look: impl FnMut() -> Result<Option<R>, E>,
) -> Result<Option<R>, E> {
    let sleeping = Sleeping::new(event);
    event.heavy();
    let seen = event.epoch();
    if let Some(found) = look()? {
        return Ok(Some(found));
    }
    let over = event.sleep(seen, most.min(ROUND));
    drop(sleeping);
    let found = look()?;
    // A shorter sleep ends at a deadline, which `look` may report as its result.
    if over && most >= ROUND && found.is_some() {
        event.missed();
    }
    Ok(found)
}

/// Count for all sleepers of this process.
static MISSED: AtomicU64 = AtomicU64::new(0);

/// The number of sleeps that timed out although data had arrived.
pub(crate) fn missed() -> u64 {
    MISSED.load(Relaxed)
}

/// Counts a sleeper, even if its `look` panics.
pub(crate) struct Sleeping<'b, B: EventCount>(&'b B);

impl<'b, B: EventCount> Sleeping<'b, B> {
    pub(crate) fn new(event: &'b B) -> Self {
        event.count(1);
        Sleeping(event)
    }
}

impl<B: EventCount> Drop for Sleeping<'_, B> {
    fn drop(&mut self) {
        self.0.count(-1);
    }
}

/// The event count of a block: two words of its header.
#[repr(C)]
pub(crate) struct Futex {
    /// Threads of the block's rank that sleep, or are about to.
    sleepers: AtomicU32,
    /// Number of notifications, and the word of the sleepers' futex.
    epoch: AtomicU32,
}

impl Futex {
    pub const fn new() -> Self {
        Futex { sleepers: AtomicU32::new(0), epoch: AtomicU32::new(0) }
    }
}

impl EventCount for Futex {
    type Seen = u32;

    fn count(&self, change: i32) {
        self.sleepers.fetch_add(change as u32, SeqCst);
    }

    #[inline(always)]
    fn sleepers(&self) -> u32 {
        self.sleepers.load(SeqCst)
    }

    fn epoch(&self) -> u32 {
        self.epoch.load(SeqCst)
    }

    fn advance(&self) {
        self.epoch.fetch_add(1, SeqCst);
    }

    fn sleep(&self, seen: u32, most: Duration) -> bool {
        #[cfg(not(miri))]
        {
            let most = most.try_into().expect("a tenth of a second is a timespec");
            // The caller polls again after any result: woken, changed before, interrupted, timed out.
            futex::wait(&self.epoch, futex::Flags::empty(), seen, Some(&most)) == Err(Errno::TIMEDOUT)
        }
        // Miri has no futex between processes; sleepers only yield there.
        #[cfg(miri)]
        {
            let _ = (seen, most, std::thread::yield_now());
            false
        }
    }

    fn wake(&self) {
        #[cfg(not(miri))]
        let _ = futex::wake(&self.epoch, futex::Flags::empty(), i32::MAX as u32);
    }
}

impl<B: EventCount> EventCount for &B {
    type Seen = B::Seen;

    fn count(&self, change: i32) {
        (**self).count(change);
    }

    fn sleepers(&self) -> u32 {
        (**self).sleepers()
    }

    fn light(&self) {
        (**self).light();
    }

    fn heavy(&self) {
        (**self).heavy();
    }

    fn epoch(&self) -> B::Seen {
        (**self).epoch()
    }

    fn advance(&self) {
        (**self).advance();
    }

    fn sleep(&self, seen: B::Seen, most: Duration) -> bool {
        (**self).sleep(seen, most)
    }

    fn wake(&self) {
        (**self).wake();
    }
}

/// An event count that some sources of data do not notify: the sleeper polls again after this time.
pub(crate) struct Brief<B>(pub B, pub Duration);

impl<B: EventCount> EventCount for Brief<B> {
    type Seen = B::Seen;

    fn count(&self, change: i32) {
        self.0.count(change);
    }

    fn sleepers(&self) -> u32 {
        self.0.sleepers()
    }

    /// A frequent sleeper issues no process-wide fence, thousands of times a second on every core that runs a rank: it
    /// may miss a notification.
    fn heavy(&self) {
        if self.1 > Duration::from_millis(1) { self.0.heavy() } else { fence(SeqCst) }
    }

    fn epoch(&self) -> B::Seen {
        self.0.epoch()
    }

    fn advance(&self) {
        self.0.advance();
    }

    fn sleep(&self, seen: B::Seen, most: Duration) -> bool {
        self.0.sleep(seen, most.min(self.1));
        false
    }

    fn wake(&self) {
        self.0.wake();
    }
}

/// Two event counts on which one thread sleeps: that of the block whose words it waits for, and that of its rank's
/// messages.
pub(crate) struct Both<'b>(pub &'b Futex, pub &'b Futex);

impl EventCount for Both<'_> {
    type Seen = [u32; 2];

    fn count(&self, change: i32) {
        self.0.count(change);
        self.1.count(change);
    }

    fn sleepers(&self) -> u32 {
        self.0.sleepers() | self.1.sleepers()
    }

    fn epoch(&self) -> [u32; 2] {
        [self.0.epoch(), self.1.epoch()]
    }

    fn advance(&self) {
        self.0.advance();
        self.1.advance();
    }

    fn sleep(&self, seen: [u32; 2], most: Duration) -> bool {
        #[cfg(not(miri))]
        {
            use futex::{WaitFlags, WaitPtr, WaitvFlags};
            let one = |futex: &Futex, seen: u32| {
                let mut wait = futex::Wait::new();
                wait.val = seen.into();
                wait.uaddr = WaitPtr::new(futex.epoch.as_ptr().cast());
                wait.flags = WaitFlags::SIZE_U32;
                wait
            };
            let clock = rustix::thread::ClockId::Monotonic;
            let now = rustix::time::clock_gettime(clock);
            let until = now + most.try_into().expect("a tenth of a second is a timespec");
            let waits = [one(self.0, seen[0]), one(self.1, seen[1])];
            let waited = futex::waitv(&waits, WaitvFlags::empty(), Some(&until), clock);
            // Linux before 5.16 cannot wait on two futexes, and system-call filters may forbid it: rounds of a
            // millisecond then.
            if !matches!(waited, Ok(_) | Err(Errno::AGAIN | Errno::INTR | Errno::TIMEDOUT)) {
                self.0.sleep(seen[0], most.min(Duration::from_millis(1)));
            }
            waited == Err(Errno::TIMEDOUT)
        }
        #[cfg(miri)]
        {
            let _ = (seen, most, std::thread::yield_now());
            false
        }
    }

    fn wake(&self) {
        self.0.wake();
        self.1.wake();
    }
}

#[cfg(all(test, not(miri), not(feature = "loom")))]
mod tests {
    use super::*;
    use std::sync::atomic::{Ordering::Acquire, Ordering::Release};
    use std::time::Instant;

    /// Under a system-call filter that does not know `futex_waitv`, a waiter sleeps all the same.
    #[test]
    fn wait_for_two_counts_works_without_futex_waitv() {
        use nix::libc;
        let op = |code: u32, k, jf| libc::sock_filter { code: code as u16, jt: 0, jf, k };
        let filter = move || {
            let mut filter = [
                op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0), // the system call's number
                op(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, libc::SYS_futex_waitv as u32, 1),
                op(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32, 0),
                op(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0),
            ];
            let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
            // SAFETY: system calls that read `program`, and affect this thread alone.
            unsafe {
                libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                    && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
            }
        };
        let slept = std::thread::spawn(move || {
            if !filter() {
                return eprintln!("NOT RUN: this kernel cannot filter system calls");
            }
            let (one, other) = (Futex::new(), Futex::new());
            let (both, begun) = (Both(&one, &other), Instant::now());
            (0..3).for_each(|_| _ = both.sleep(both.epoch(), ROUND));
            assert!(begun.elapsed() > Duration::from_millis(2), "{:?}", begun.elapsed());
        });
        slept.join().unwrap();
    }

    /// Two threads hand a count over, each sleeping immediately; a lost wake-up costs a round. The model proves that
    /// none is lost; this test checks that the futex behaves as modelled.
    #[test]
    fn concurrent_notify_loses_no_wake_up() {
        const HAND_OVERS: u64 = 20_000;
        asymmetric_fence::register();
        let sides: [(Futex, AtomicU64); 2] = std::array::from_fn(|_| (Futex::new(), AtomicU64::new(0)));
        let begun = Instant::now();
        let late = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for me in 0..2 {
                let (sides, late) = (&sides, &late);
                scope.spawn(move || {
                    let ((event, mine), (other, theirs)) = (&sides[me], &sides[1 - me]);
                    for turn in (me as u64..HAND_OVERS).step_by(2) {
                        let look = || Ok::<_, ()>((mine.load(Acquire) >= turn).then_some(()));
                        loop {
                            let before = Instant::now();
                            let found = park(event, ROUND, look).expect("nothing fails");
                            late.fetch_add(u32::from(before.elapsed() >= ROUND), SeqCst);
                            if found.is_some() {
                                break;
                            }
                        }
                        theirs.store(turn + 1, Release);
                        notify(other);
                    }
                });
            }
        });
        let late = late.into_inner();
        // A thread that is not scheduled for a whole round looks like one that missed a wake-up.
        assert!(late <= 2, "{late} of {HAND_OVERS} parks took a whole round; all took {:?}", begun.elapsed());
    }
}

/// The protocol under loom's memory model. A fence on each side stands for `membarrier`, which guarantees the same. A
/// lost wake-up leaves all threads asleep, which loom reports. `tests/mutants bell` breaks the code that this test
/// guards.
#[cfg(all(test, feature = "loom"))]
pub(crate) mod model {
    use super::*;
    use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
    use loom::sync::{Arc, Condvar, Mutex};

    pub(crate) struct Modelled {
        sleepers: AtomicU32,
        epoch: AtomicU32,
        /// The lock that the kernel holds while it compares and enqueues, or wakes.
        bucket: Mutex<()>,
        queue: Condvar,
    }

    impl Modelled {
        pub(crate) fn new() -> Self {
            let (sleepers, epoch) = (AtomicU32::new(0), AtomicU32::new(0));
            Modelled { sleepers, epoch, bucket: Mutex::new(()), queue: Condvar::new() }
        }
    }

    impl EventCount for Modelled {
        type Seen = u32;

        fn count(&self, change: i32) {
            self.sleepers.fetch_add(change as u32, Ordering::SeqCst);
        }

        fn sleepers(&self) -> u32 {
            self.sleepers.load(Ordering::SeqCst)
        }

        fn light(&self) {
            fence(Ordering::SeqCst);
        }

        fn heavy(&self) {
            fence(Ordering::SeqCst);
        }

        fn epoch(&self) -> u32 {
            self.epoch.load(Ordering::SeqCst)
        }

        fn advance(&self) {
            self.epoch.fetch_add(1, Ordering::SeqCst);
        }

        fn sleep(&self, seen: u32, _: Duration) -> bool {
            let bucket = self.bucket.lock().unwrap();
            if self.epoch.load(Ordering::SeqCst) == seen {
                drop(self.queue.wait(bucket).unwrap());
            }
            false
        }

        fn wake(&self) {
            drop(self.bucket.lock().unwrap());
            self.queue.notify_all();
        }
    }

    /// A rank waits for the words of two others, which they change by different operations.
    #[test]
    fn concurrent_notify_loses_no_wake_up() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let block = Arc::new((Modelled::new(), [AtomicU64::new(0), AtomicU64::new(0)]));
            let wakers = [0, 1].map(|which| {
                let block = block.clone();
                loom::thread::spawn(move || {
                    match which {
                        0 => block.1[which].store(1, Ordering::Release),
                        _ => drop(block.1[which].fetch_add(1, Ordering::Release)),
                    }
                    notify(&block.0);
                })
            });
            let look = || Ok::<_, ()>(block.1.iter().all(|word| word.load(Ordering::Acquire) == 1).then_some(()));
            while park(&block.0, ROUND, look).unwrap().is_none() {}
            wakers.into_iter().for_each(|waker| waker.join().unwrap());
            assert_eq!(block.0.sleepers.load(Ordering::SeqCst), 0, "a thread that is awake is not counted");
        });
    }
}
