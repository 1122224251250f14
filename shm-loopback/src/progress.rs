//! Message progress in the waits of a rank: waits run the message engine, and sleep on its event count too.

use crate::event_count::{self, Both, Brief, Futex};
use crate::memory::View;
use std::cell::Cell;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use transom_windows::FabricError;

/// The message engine of a rank, which every wait of the rank runs.
///
/// # Examples
/// ```
/// struct Idle;
/// impl transom_shm_loopback::messages::ProgressHook for Idle {
///     fn progress(&self) -> bool { false }
/// }
/// ```
pub trait ProgressHook: Send + Sync {
    /// Receives messages that have arrived, and posts those that can go; a bounded amount. Returns whether it must be
    /// called again soon regardless of events; a wait does not sleep then.
    fn progress(&self) -> bool;

    /// [`progress`](Self::progress), without waiting for another thread that is running it.
    fn try_progress(&self) {
        self.progress();
    }
}

/// Longest sleep of a wait where some messages arrive without a notification.
const OFTEN: Duration = Duration::from_millis(1);

/// A rank's message engine, once it has one.
#[derive(Default)]
pub(crate) struct Progress(OnceLock<Hook>);

pub(crate) struct Hook {
    hook: Arc<dyn ProgressHook>,
    /// The inbox whose event count is rung for messages.
    inbox: Option<View>,
    /// True if some messages arrive without a notification.
    others: bool,
}

impl Progress {
    #[inline(always)]
    pub fn get(&self) -> Option<&Hook> {
        self.0.get()
    }

    /// Sets the engine that every wait runs from now on; returns whether it is the first.
    pub fn set(&self, hook: Arc<dyn ProgressHook>, inbox: Option<View>, others: bool) -> bool {
        self.0.set(Hook { hook, inbox, others }).is_ok()
    }
}

impl Hook {
    #[cold]
    pub fn progress(&self) -> bool {
        self.hook.progress()
    }

    /// Like [`progress`](Self::progress), but does nothing if another thread is progressing messages.
    #[cold]
    pub fn try_progress(&self) {
        self.hook.try_progress();
    }

    /// [`event_count::park`] for at most `most`, woken by messages too. `look` runs the engine, and sets `busy` if
    /// there is more to do: the thread then stays awake.
    pub fn park<R>(
        &self,
        event: &Futex,
        busy: &Cell<bool>,
        most: Duration,
        mut look: impl FnMut() -> Result<Option<R>, FabricError>,
    ) -> Result<Option<R>, FabricError> {
        let awake = || match look()? {
            Some(found) => Ok(Some(Some(found))),
            None => Ok(busy.get().then_some(None)),
        };
        let slept = match &self.inbox {
            Some(inbox) if self.others => {
                event_count::park(&Brief(Both(event, &inbox.header().event), OFTEN), most, awake)
            }
            Some(inbox) => event_count::park(&Both(event, &inbox.header().event), most, awake),
            None => event_count::park(&Brief(event, OFTEN), most, awake),
        };
        match slept? {
            Some(Some(found)) => Ok(Some(found)),
            Some(None) => {
                std::thread::yield_now();
                Ok(None)
            }
            None => Ok(None),
        }
    }
}
