//! Waiting for messages.

use super::inbox::Inbox;
use crate::event_count::{Brief, notify, park};
use crate::words::looks_again;
use std::cell::Cell;
use std::convert::Infallible;
use std::time::{Duration, Instant};
use transom_locks::Rank;
use transom_windows::Wait;

/// How often who attends to messages looks who is gone.
const CHECK: Duration = Duration::from_millis(100);

/// How threads of a rank wait for its messages. It does not keep the rank in its job.
#[derive(Clone)]
pub struct Waiter {
    rank: Rank,
    crowded: bool,
    /// Has the bell, where messages come by memory. One of these two there is.
    inbox: Option<Inbox>,
    naps: Option<Naps>,
}

/// How long threads of a rank sleep to which messages come by ways that ring no bell.
#[derive(Debug, Clone, Copy)]
pub struct Naps {
    /// At first; then twice as long each time.
    pub first: Duration,
    /// At most, while they wait for something in particular.
    pub longest: Duration,
    /// At most else.
    pub longest_idle: Duration,
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
    pub(super) fn new(rank: Rank, crowded: bool, inbox: &Inbox) -> Waiter {
        Waiter { rank, crowded, inbox: Some(inbox.clone()), naps: None }
    }

    /// Of a rank to which messages come only by ways that ring no bell.
    pub fn without_a_bell(rank: Rank, crowded: bool, naps: Naps) -> Waiter {
        Waiter { rank, crowded, inbox: None, naps: Some(naps) }
    }

    /// Of a rank to which messages come by other ways, too: their waiter has its number in the job, and how long it may sleep.
    pub fn beside(self, others: Waiter) -> Waiter {
        Waiter { rank: others.rank, naps: others.naps, ..self }
    }

    /// Sleeps until something comes, for so long at most, unless `awake` finds something; if not all ring, only so long, and then longer the next time.
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
        match (event, brief) {
            (Some(event), None) => park(event, most, awake),
            (Some(event), Some(brief)) => park(&Brief(event, brief), most, awake),
            (None, brief) => {
                let found = awake()?;
                if found.is_none() {
                    std::thread::sleep(brief.unwrap_or_default().min(most));
                }
                Ok(found)
            }
        }
    }

    /// Sleeps until something comes, for `limit` at most, unless `is_busy` finds something to do. Whether it has found something.
    pub fn nap(&self, limit: Duration, mut is_busy: impl FnMut() -> bool) -> bool {
        let _attending = self.attending();
        let limit = self.naps.map_or(limit, |naps| limit.min(naps.first));
        let mut naps = Some(Naps { first: limit, longest: limit, longest_idle: limit });
        let Ok(found) = self.sleep(&mut naps, limit, || Ok::<_, Infallible>(is_busy().then_some(())));
        found.is_some()
    }

    /// Says, until it is dropped, that a thread is about to wait: a peer may ask it for what else it would read.
    pub fn attending(&self) -> Option<impl Drop + '_> {
        self.inbox.as_ref().map(Inbox::attend)
    }

    /// Waits until `look`, which takes what comes, has found what it looks for. `check` is called ten times a second.
    #[inline(always)]
    pub fn wait<R>(&self, wait: Wait<'_>, mut look: impl FnMut() -> Look<R>, check: impl FnMut()) -> R {
        let mut looks = 0;
        loop {
            if let Look::Found(found) = look() {
                return found;
            }
            looks += 1;
            if !looks_again(looks, self.crowded) {
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
        let waited = wait.until(self.crowded, found, check, |look| {
            // Also awake if there is more to do.
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

    /// As [`wait`](Self::wait), for a thread that computes nothing and waits for nothing in particular: it sleeps as soon as there
    /// is nothing to do, until something comes.
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

    /// Wakes the threads of this rank that sleep here: something of theirs may be done. Without a bell they sleep shortly.
    #[inline(always)]
    pub fn ring(&self) {
        if let Some(inbox) = &self.inbox {
            notify(&inbox.view.header().event);
        }
    }

    /// Whether something lies in the inbox; or may have come by ways that ring no bell.
    #[inline(always)]
    pub fn may_have_come(&self) -> bool {
        self.naps.is_some() || self.inbox.as_ref().is_none_or(Inbox::has_work)
    }

    /// Whether ranks share cores.
    pub fn is_crowded(&self) -> bool {
        self.crowded
    }

    /// This rank.
    pub fn rank(&self) -> Rank {
        self.rank
    }
}
