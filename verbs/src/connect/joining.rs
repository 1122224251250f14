//! Connecting queue pairs by other threads: an adapter may take seconds, if the address of a peer has to be resolved and
//! the peer does not answer. Connections to other peers do not wait for that.

use super::core::Core;
use super::pair::Made;
use crate::VerbsError;
use crate::sys::{FarEnd, NearEnd};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use transom_launch::lock;
use transom_locks::Rank;

/// Most threads of a rail. Each ends when nothing is left to connect.
const THREADS: usize = 16;

/// Queue pairs that are being connected.
#[derive(Default)]
pub(super) struct Joining(Mutex<State>);

#[derive(Default)]
struct State {
    waiting: VecDeque<Join>,
    /// Number of threads that look for further queue pairs, and the handles of all that may still run.
    threads: usize,
    handles: Vec<JoinHandle<()>>,
    joined: Vec<Joined>,
}

/// A queue pair to be connected.
pub(super) struct Join {
    pub peer: Rank,
    pub made: Made,
    pub near: NearEnd,
    pub far: FarEnd,
}

/// A queue pair with the outcome.
pub(super) struct Joined {
    pub peer: Rank,
    pub made: Made,
    pub outcome: Result<(), VerbsError>,
}

impl Joining {
    /// The outcomes since the last call.
    pub fn take(&self) -> Vec<Joined> {
        std::mem::take(&mut lock(&self.0).joined)
    }

    /// Takes back the queue pair to a peer if no thread has begun to connect it.
    pub fn abandon(&self, peer: Rank) -> Option<Made> {
        let mut state = lock(&self.0);
        let at = state.waiting.iter().position(|waiting| waiting.peer == peer)?;
        state.waiting.remove(at).map(|join| join.made)
    }

    /// Ends the threads, once nothing more is begun. Each finishes the queue pair that it is connecting.
    pub fn end(&self) {
        let mut state = lock(&self.0);
        let (waiting, handles) = (std::mem::take(&mut state.waiting), std::mem::take(&mut state.handles));
        drop(state);
        drop(waiting);
        handles.into_iter().for_each(|handle| _ = handle.join());
    }

    fn next(&self) -> Option<Join> {
        let mut state = lock(&self.0);
        let next = state.waiting.pop_front();
        state.threads -= usize::from(next.is_none());
        next
    }
}

/// Connects a queue pair by another thread, which wakes the connecting thread when it is done.
pub(super) fn begin(core: &Arc<Core>, join: Join) {
    let mut state = lock(&core.joining.0);
    state.waiting.push_back(join);
    if state.threads == THREADS {
        return;
    }
    let shared = core.clone();
    let thread = std::thread::Builder::new().name("transom connect".into()).spawn(move || connect_all(&shared));
    match thread {
        Ok(handle) => {
            state.threads += 1;
            state.handles.retain(|handle| !handle.is_finished());
            state.handles.push(handle);
        }
        Err(error) => {
            tracing::debug!(%error, "no further thread to connect queue pairs");
            // Another thread that still looks for queue pairs will find this one.
            if state.threads == 0 {
                state.threads = 1;
                drop(state);
                connect_all(core);
            }
        }
    }
}

fn connect_all(core: &Core) {
    while let Some(Join { peer, made, near, far }) = core.joining.next() {
        let connect = || made.queue.pair.connect(&near, &far);
        let outcome = catch_unwind(AssertUnwindSafe(connect)).unwrap_or_else(|_| {
            let source = std::io::Error::other("the thread panicked");
            Err(VerbsError::system("connecting a queue pair", source))
        });
        lock(&core.joining.0).joined.push(Joined { peer, made, outcome });
        core.wake();
    }
}
