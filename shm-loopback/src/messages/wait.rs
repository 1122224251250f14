//! Waiting for messages.

use super::inbox::Inbox;
use crate::bell::{nap, ring};
use crate::control::Control;
use crate::words::LOOKS;
use std::cell::Cell;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};
use transom_locks::Rank;
use transom_windows::Wait;

/// How often who attends to messages looks who is gone.
const CHECK: Duration = Duration::from_millis(100);

/// How threads of a rank wait for its messages. It does not keep the rank in its job.
#[derive(Clone)]
pub struct Waiter {
    pub(super) rank: Rank,
    pub(super) control: Arc<Control>,
    pub(super) inbox: Inbox,
}

/// What came of a look at the messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look<R> {
    /// It is there.
    Found(R),
    /// Not yet, and there is more to do soon.
    Busy,
    /// Not before something comes.
    Idle,
}

impl Waiter {
    /// Waits until `look`, which takes what comes, has found what it looks for. `check` is called ten times a second.
    #[inline(always)]
    pub fn wait<R>(&self, wait: Wait<'_>, mut look: impl FnMut() -> Look<R>, check: impl FnMut()) -> R {
        for _ in 0..LOOKS[usize::from(self.control.is_crowded())] {
            if let Look::Found(found) = look() {
                return found;
            }
            std::hint::spin_loop();
        }
        self.wait_long(wait, look, check)
    }

    #[cold]
    #[inline(never)]
    fn wait_long<R>(&self, wait: Wait<'_>, mut look: impl FnMut() -> Look<R>, mut check: impl FnMut()) -> R {
        let _attending = self.inbox.attend();
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
        let crowded = self.control.is_crowded();
        let waited = wait.until(crowded, found, check, |look| {
            // Also awake if there is more to do.
            let awake = || look().map(|found| if found.is_none() && !busy.get() { None } else { Some(found) });
            let found = nap(&self.inbox.view.header().bell, awake)?.flatten();
            if found.is_none() && busy.get() {
                std::thread::yield_now();
            }
            Ok(found)
        });
        waited.unwrap_or_else(|error| unreachable!("neither look nor check fails: {error}"))
    }

    /// As [`wait`](Self::wait), for a thread that computes nothing and waits for nothing in particular: it sleeps as soon as there
    /// is nothing to do, until something comes.
    pub fn attend<R>(&self, mut look: impl FnMut() -> Look<R>, mut check: impl FnMut()) -> R {
        let mut checked = Instant::now();
        loop {
            let awake = || match look() {
                Look::Found(found) => Ok::<_, Infallible>(Some(Some(found))),
                Look::Busy => Ok(Some(None)),
                Look::Idle => Ok(None),
            };
            let Ok(looked) = nap(&self.inbox.view.header().bell, awake);
            match looked {
                Some(Some(found)) => return found,
                Some(None) => std::thread::yield_now(),
                None => {}
            }
            if checked.elapsed() >= CHECK {
                check();
                checked = Instant::now();
            }
        }
    }

    /// Wakes the threads of this rank that sleep here: something of theirs may be done.
    #[inline(always)]
    pub fn ring(&self) {
        ring(&self.inbox.view.header().bell);
    }

    /// Whether ranks of the job share cores.
    pub fn is_crowded(&self) -> bool {
        self.control.is_crowded()
    }

    /// This rank.
    pub fn rank(&self) -> Rank {
        self.rank
    }
}
