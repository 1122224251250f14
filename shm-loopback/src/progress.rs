//! What the waits of a rank do for its messages: turn them, and listen to their bell too.

use crate::bell::{self, Both, Brief, Futex};
use crate::memory::View;
use std::cell::Cell;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use transom_windows::FabricError;

/// A rank's messages, which every wait of the rank turns.
///
/// # Examples
/// ```
/// struct Idle;
/// impl transom_shm_loopback::messages::Turn for Idle {
///     fn turn(&self) -> bool { false }
/// }
/// ```
pub trait Turn: Send + Sync {
    /// Takes what has come, and posts what can go; a bounded amount. Whether it is to be called again soon, whatever comes:
    /// a wait does not sleep then.
    fn turn(&self) -> bool;

    /// As [`turn`](Self::turn), but does not wait for another thread that is at it.
    fn turn_unless_another_does(&self) {
        self.turn();
    }
}

/// How long a wait sleeps at most where messages come without a bell.
const OFTEN: Duration = Duration::from_millis(1);

/// A rank's messages, once there is something to turn them.
#[derive(Default)]
pub(crate) struct Progress(OnceLock<Turning>);

pub(crate) struct Turning {
    turn: Arc<dyn Turn>,
    /// Whose bell is rung for messages.
    inbox: Option<View>,
    /// Messages come without a bell, too.
    others: bool,
}

impl Progress {
    #[inline(always)]
    pub fn get(&self) -> Option<&Turning> {
        self.0.get()
    }

    /// From now on every wait turns these. Says whether they are the first.
    pub fn set(&self, turn: Arc<dyn Turn>, inbox: Option<View>, others: bool) -> bool {
        self.0.set(Turning { turn, inbox, others }).is_ok()
    }
}

impl Turning {
    #[cold]
    pub fn turn(&self) -> bool {
        self.turn.turn()
    }

    #[cold]
    pub fn turn_unless_another_does(&self) {
        self.turn.turn_unless_another_does();
    }

    /// [`bell::nap`], woken by messages too, for so long at most. `look` turns them, and sets `busy` if there is more to do: then it stays awake.
    pub fn nap<R>(
        &self,
        bell: &Futex,
        busy: &Cell<bool>,
        most: Duration,
        mut look: impl FnMut() -> Result<Option<R>, FabricError>,
    ) -> Result<Option<R>, FabricError> {
        let awake = || match look()? {
            Some(found) => Ok(Some(Some(found))),
            None => Ok(busy.get().then_some(None)),
        };
        let slept = match &self.inbox {
            Some(inbox) if self.others => bell::nap(&Brief(Both(bell, &inbox.header().bell), OFTEN), most, awake),
            Some(inbox) => bell::nap(&Both(bell, &inbox.header().bell), most, awake),
            None => bell::nap(&Brief(bell, OFTEN), most, awake),
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
