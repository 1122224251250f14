//! Waits of a rank's threads for messages.

use super::inbox::Inbox;
use crate::event_count::{Brief, notify, park};
use crate::words::looks_again;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::cell::Cell;
use std::convert::Infallible;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::{Duration, Instant};
use transom_locks::Rank;
use transom_windows::Wait;

/// Interval at which a progress thread checks for lost peers.
const CHECK: Duration = Duration::from_millis(100);

/// Waiting strategy of a rank's threads. A waiter does not keep the rank in its job.
#[derive(Clone)]
pub struct Waiter {
    rank: Rank,
    oversubscribed: bool,
    /// Inbox with the event count that senders notify, if messages arrive in shared memory. This field, `naps`, or both
    /// are set.
    inbox: Option<Inbox>,
    naps: Option<Naps>,
    /// Arrivals by another transport. They end sleeps at its descriptor or, with an inbox, ring the event count.
    arrivals: Option<Arc<Sleepers>>,
}

/// Tells when something has arrived by a transport that does not notify an event count.
pub trait Arrivals: Send + Sync {
    /// The descriptor that is readable while something has arrived that was not taken.
    fn descriptor(&self) -> BorrowedFd<'_>;
    /// Has `notify` called from now on, once for each [`arm`](Self::arm).
    fn notify_by(&self, notify: Box<dyn Fn() + Send + Sync>);
    /// Has `notify` called when something arrives, or soon if something has arrived.
    fn arm(&self);
}

/// Threads that sleep until something arrives by another transport.
struct Sleepers {
    arrivals: Arc<dyn Arrivals>,
    /// Readable once another thread of this rank has woken the sleepers.
    wake: OwnedFd,
    sleepers: AtomicU32,
}

impl Sleepers {
    /// Sleeps until something has arrived or another thread [wakes](Self::wake) this one, for `most` at most, unless
    /// `awake` returns a result.
    fn sleep<R, E>(&self, most: Duration, mut awake: impl FnMut() -> Result<Option<R>, E>) -> Result<Option<R>, E> {
        // Counted first: a thread that changes something after `awake` has looked wakes this one.
        self.sleepers.fetch_add(1, SeqCst);
        let found = awake();
        if matches!(found, Ok(None)) {
            let most = Timespec { tv_sec: most.as_secs() as _, tv_nsec: most.subsec_nanos().into() };
            let mut ready =
                [self.arrivals.descriptor(), self.wake.as_fd()].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
            // An error ends the sleep. Of several sleepers one may take the wake-up of another, which sleeps on.
            if poll(&mut ready, Some(&most)).is_ok_and(|_| !ready[1].revents().is_empty()) {
                let _ = rustix::io::read(&self.wake, &mut [0; 8]);
            }
        }
        self.sleepers.fetch_sub(1, SeqCst);
        found
    }

    fn wake(&self) {
        if self.sleepers.load(SeqCst) > 0 {
            let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
        }
    }
}

/// Sleep times of a rank that also receives by transports that do not notify the event count.
#[derive(Debug, Clone, Copy)]
pub struct Naps {
    /// First sleep; each further sleep is twice as long.
    pub first: Duration,
    /// Longest sleep in a wait for a particular operation.
    pub longest: Duration,
    /// Longest sleep in other waits.
    pub longest_idle: Duration,
}

/// Outcome of a look for messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look<R> {
    /// The awaited result.
    Found(R),
    /// No result yet, but there is work to do soon.
    Busy,
    /// No result before an event arrives.
    Idle,
}

impl Waiter {
    pub(super) fn new(rank: Rank, oversubscribed: bool, inbox: &Inbox) -> Waiter {
        Waiter { rank, oversubscribed, inbox: Some(inbox.clone()), naps: None, arrivals: None }
    }

    /// A waiter of a rank whose messages arrive only by transports that do not notify an event count.
    pub fn without_a_bell(rank: Rank, oversubscribed: bool, naps: Naps) -> Waiter {
        Waiter { rank, oversubscribed, inbox: None, naps: Some(naps), arrivals: None }
    }

    /// Ends the sleeps of a waiter without an event count also when something arrives.
    ///
    /// # Errors
    /// The process has no descriptor left.
    pub fn woken_by(self, arrivals: Arc<dyn Arrivals>) -> io::Result<Waiter> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Waiter { arrivals: Some(Arc::new(Sleepers { arrivals, wake, sleepers: AtomicU32::new(0) })), ..self })
    }

    /// Returns whether arrivals end the sleeps.
    pub fn is_woken_by_arrivals(&self) -> bool {
        self.arrivals.is_some()
    }

    /// Extends this waiter for a rank that also receives by other transports. `others` supplies the rank's number in
    /// the job, the sleep times, and the arrivals that end a sleep.
    pub fn beside(self, others: Waiter) -> Waiter {
        if let (Some(inbox), Some(others)) = (self.inbox.clone(), &others.arrivals) {
            others.arrivals.notify_by(Box::new(move || notify(&inbox.view.header().event)));
        }
        Waiter { rank: others.rank, naps: others.naps, arrivals: others.arrivals, ..self }
    }

    /// Parks until an event, for `most` at most, unless `awake` returns a result. If some transports do not notify, the
    /// sleep is limited by `naps` and doubles each time.
    fn sleep<R, E>(
        &self,
        naps: &mut Option<Naps>,
        most: Duration,
        mut awake: impl FnMut() -> Result<Option<R>, E>,
    ) -> Result<Option<R>, E> {
        let brief = naps.as_mut().map(|Naps { first, longest, .. }| {
            let next = (*first * 2).min(*longest);
            std::mem::replace(first, next)
        });
        let event = self.inbox.as_ref().map(|inbox| &inbox.view.header().event);
        // The first look follows the count of this thread as parked, which would miss an earlier notification. The second
        // one follows the sleep.
        let mut first = true;
        let awake_or_armed = || {
            let found = awake()?;
            if std::mem::take(&mut first)
                && let (None, Some(others)) = (&found, &self.arrivals)
            {
                others.arrivals.arm();
            }
            Ok(found)
        };
        match (event, brief) {
            (Some(event), None) => park(event, most, awake),
            (Some(event), Some(brief)) => park(&Brief(event, brief), most, awake_or_armed),
            (None, brief) => {
                let brief = brief.unwrap_or_default().min(most);
                if let Some(arrivals) = &self.arrivals {
                    return arrivals.sleep(brief, awake);
                }
                let found = awake()?;
                if found.is_none() {
                    std::thread::sleep(brief);
                }
                Ok(found)
            }
        }
    }

    /// Parks until an event, for `limit` at most, unless `is_busy` finds work. Returns whether it has found work.
    pub fn park(&self, limit: Duration, mut is_busy: impl FnMut() -> bool) -> bool {
        let _attending = self.attending();
        let limit = self.naps.map_or(limit, |naps| limit.min(naps.first));
        let mut naps = Some(Naps { first: limit, longest: limit, longest_idle: limit });
        let Ok(found) = self.sleep(&mut naps, limit, || Ok::<_, Infallible>(is_busy().then_some(())));
        found.is_some()
    }

    /// Announces, until the guard is dropped, that a thread is about to wait: peers may request its help with long
    /// reads.
    pub fn attending(&self) -> Option<impl Drop + '_> {
        self.inbox.as_ref().map(Inbox::attend)
    }

    /// Waits until `look`, which progresses messages, finds its result. `check` is called ten times per second.
    #[inline(always)]
    pub fn wait<R>(&self, wait: Wait<'_>, mut look: impl FnMut() -> Look<R>, check: impl FnMut()) -> R {
        let mut looks = 0;
        loop {
            if let Look::Found(found) = look() {
                return found;
            }
            looks += 1;
            if !looks_again(looks, self.oversubscribed) {
                break;
            }
            std::hint::spin_loop();
        }
        self.wait_long(wait, look, check)
    }

    #[cold]
    #[inline(never)]
    fn wait_long<R>(&self, wait: Wait<'_>, mut look: impl FnMut() -> Look<R>, mut check: impl FnMut()) -> R {
        let _attending = self.attending();
        let busy = Cell::new(false);
        let found = || {
            let looked = look();
            busy.set(matches!(looked, Look::Busy));
            Ok(if let Look::Found(found) = looked { Some(found) } else { None })
        };
        let check = || {
            check();
            Ok(())
        };
        let mut naps = self.naps;
        let waited = wait.until(self.oversubscribed, found, check, |look| {
            // The thread also wakes if there is more work to do.
            let awake = || look().map(|found| if found.is_none() && !busy.get() { None } else { Some(found) });
            let found = self.sleep(&mut naps, wait.left(), awake)?.flatten();
            if found.is_none() && busy.get() {
                naps = self.naps;
                std::thread::yield_now();
            }
            Ok(found)
        });
        waited.unwrap_or_else(|error| unreachable!("neither look nor check fails: {error}"))
    }

    /// Same as [`wait`](Self::wait), for a progress thread that waits for no particular operation: it parks without
    /// spinning as soon as there is no work, until an event arrives.
    pub fn attend<R>(&self, mut look: impl FnMut() -> Look<R>, mut check: impl FnMut()) -> R {
        let idle = self.naps.map(|naps| Naps { longest: naps.longest_idle, ..naps });
        let (mut naps, mut checked) = (idle, Instant::now());
        loop {
            let awake = || match look() {
                Look::Found(found) => Ok::<_, Infallible>(Some(Some(found))),
                Look::Busy => Ok(Some(None)),
                Look::Idle => Ok(None),
            };
            let Ok(looked) = self.sleep(&mut naps, Duration::MAX, awake);
            match looked {
                Some(Some(found)) => return found,
                Some(None) => {
                    naps = idle;
                    std::thread::yield_now();
                }
                None => {}
            }
            if checked.elapsed() >= CHECK {
                check();
                checked = Instant::now();
            }
        }
    }

    /// Wakes the parked threads of this rank, because an operation may be complete. Waiters without an inbox sleep only
    /// briefly.
    #[inline(always)]
    pub fn ring(&self) {
        if let Some(inbox) = &self.inbox {
            notify(&inbox.view.header().event);
        } else if let Some(arrivals) = &self.arrivals {
            arrivals.wake();
        }
    }

    /// True if the inbox has work, or if messages may have arrived by transports that do not notify.
    #[inline(always)]
    pub fn may_have_come(&self) -> bool {
        self.naps.is_some() || self.inbox.as_ref().is_none_or(Inbox::has_work)
    }

    /// True if the ranks are oversubscribed (share cores).
    pub fn is_oversubscribed(&self) -> bool {
        self.oversubscribed
    }

    /// The rank in whose name this waiter waits.
    pub fn rank(&self) -> Rank {
        self.rank
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Loopback;
    use crate::event_count::{EventCount as _, Sleeping};
    use crate::messages::ShmWire;
    use std::os::unix::net::UnixStream;
    use std::sync::{Mutex, mpsc};

    const LONG: Duration = Duration::from_secs(300);

    const NAPS: Naps = Naps { first: LONG, longest: LONG, longest_idle: LONG };

    /// Arrivals at a descriptor; and what to call, each time that it is armed.
    struct Test {
        descriptor: OwnedFd,
        notify: Mutex<Option<Box<dyn Fn() + Send + Sync>>>,
        armed: AtomicU32,
    }

    impl Arrivals for Test {
        fn descriptor(&self) -> BorrowedFd<'_> {
            self.descriptor.as_fd()
        }

        fn notify_by(&self, notify: Box<dyn Fn() + Send + Sync>) {
            *self.notify.lock().unwrap() = Some(notify);
        }

        fn arm(&self) {
            self.armed.fetch_add(1, SeqCst);
        }
    }

    fn arrivals(descriptor: OwnedFd) -> Arc<Test> {
        Arc::new(Test { descriptor, notify: Mutex::new(None), armed: AtomicU32::new(0) })
    }

    fn waiter(descriptor: OwnedFd) -> Waiter {
        Waiter::without_a_bell(0, true, NAPS).woken_by(arrivals(descriptor)).unwrap()
    }

    /// Without its wake-up the thread would sleep for minutes.
    fn ends_a_sleep(waiter: Waiter, act: impl FnOnce()) {
        let (told, ends) = mpsc::channel();
        let sleeper = std::thread::spawn(move || {
            let begun = Instant::now();
            waiter.park(LONG, || told.send(()).is_err());
            begun.elapsed()
        });
        ends.recv().unwrap();
        act();
        assert!(sleeper.join().unwrap() < LONG / 2);
    }

    #[test]
    fn arrival_ends_a_sleep() {
        let (mine, mut peer) = UnixStream::pair().unwrap();
        ends_a_sleep(waiter(mine.into()), || io::Write::write_all(&mut peer, &[1]).unwrap());
    }

    /// `awake` has looked: a ring from then on must not be lost, even if the thread does not sleep yet.
    #[test]
    fn ring_of_another_thread_ends_a_sleep() {
        let (mine, _peer) = UnixStream::pair().unwrap();
        let waiter = waiter(mine.into());
        ends_a_sleep(waiter.clone(), || waiter.ring());
        ends_a_sleep(waiter.clone(), || waiter.ring());
    }

    /// A sleep at the event count ends after 0.1 s at most, so that the notification is looked for itself.
    #[test]
    fn arrivals_notify_a_rank_with_neighbours() {
        let arrivals = arrivals(UnixStream::pair().unwrap().0.into());
        let others = Waiter::without_a_bell(7, true, NAPS).woken_by(arrivals.clone()).unwrap();
        // SAFETY: the job's only wire.
        let near = unsafe { ShmWire::open(&Loopback::alone().unwrap()) }.unwrap();
        let waiter = near.waiter().beside(others);
        assert_eq!(waiter.rank(), 7);
        assert!(!waiter.park(Duration::ZERO, || false));
        assert_eq!(arrivals.armed.load(SeqCst), 1, "once for each sleep");
        assert!(waiter.park(LONG, || true));
        assert_eq!(arrivals.armed.load(SeqCst), 1, "there is something to do");
        let event = &waiter.inbox.as_ref().unwrap().view.header().event;
        let _sleeping = Sleeping::new(event);
        let seen = event.epoch();
        arrivals.notify.lock().unwrap().as_ref().unwrap()();
        assert_ne!(event.epoch(), seen, "sleepers are woken");
    }
}
