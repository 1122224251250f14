//! Connecting queue pairs by other threads: an adapter may take seconds, if the address of a peer has to be resolved and
//! the peer does not answer. Connections to other peers do not wait for that.

use super::core::Core;
use super::pair::Made;
use crate::VerbsError;
use crate::sys::{FarEnd, NearEnd};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
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
    threads: usize,
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
    state.threads += 1;
    drop(state);
    let its = core.clone();
    let thread = std::thread::Builder::new().name("transom connect".into()).spawn(move || connect_all(&its));
    if let Err(error) = thread {
        tracing::debug!(%error, "no further thread to connect queue pairs");
        connect_all(core);
    }
}

fn connect_all(core: &Core) {
    while let Some(Join { peer, made, near, far }) = core.joining.next() {
        let outcome = made.queue.pair.connect(&near, &far);
        lock(&core.joining.0).joined.push(Joined { peer, made, outcome });
        core.wake();
    }
}
