//! Execution of a plan: posts the messages of each round and combines the received elements.

use super::group::{Backoff, Member};
use super::history::CallId;
use super::memory::CallBuffers;
use super::reduction::Fold;
use crate::messages::Error;
use crate::messages::comm::COLLECTIVES;
use crate::messages::locked::{Core, Ended, Fault, Key, Work};
use crate::messages::progress_engine::in_operation;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use transom_channel::wire::Data;
use transom_channel::{Error as Failure, RecvTarget, Select, Status as Came};
use transom_collective::{Local, Plan, Rank};

/// A collective in flight at this rank.
pub(super) struct Running<F> {
    group: Arc<Member>,
    made: CallId,
    pub tag: u32,
    plan: Plan,
    memory: CallBuffers,
    fold: F,
    /// Index of the current round, posted or not.
    round: usize,
    posted: bool,
    /// Incomplete messages of the round: key, peer, and for receives the expected length in bytes.
    pending: Vec<(Key, Rank, Option<usize>)>,
    failed: Option<Error>,
    panic: Option<Box<dyn Any + Send>>,
    patience: Backoff,
    /// Progress turns in which the collective waited.
    waits: u32,
}

/// Progress turns between two checks of the waiting time; a sleeping rank takes ten turns per second.
const TURNS: u32 = 8;

/// Outcome of a progress turn.
pub(super) enum Progressed {
    /// Waiting for other ranks.
    Waiting,
    /// All messages of the round have completed; call [`Running::fold_round`] without holding a lock.
    Arrived,
    /// The collective is complete.
    Done,
    /// The collective failed, and the engine no longer uses its memory.
    Failed(Error),
}

impl<F: Fold> Running<F> {
    pub fn new(group: Arc<Member>, made: CallId, plan: Plan, memory: CallBuffers, fold: F) -> Running<F> {
        Running {
            tag: made.tag(),
            group,
            made,
            plan,
            memory,
            fold,
            round: 0,
            posted: false,
            pending: Vec::new(),
            failed: None,
            panic: None,
            patience: Backoff::default(),
            waits: 0,
        }
    }

    /// Posts the messages of the round if they can be posted, and handles completions.
    pub fn progress(&mut self, core: &mut Core) -> Progressed {
        if self.failed.is_none() {
            if let Some(error) = self.group.broken() {
                self.give_up(core, error);
            } else if self.round == self.plan.rounds.len() {
                return Progressed::Done;
            } else if !self.posted {
                self.post(core);
            }
        }
        self.take(core);
        match &self.failed {
            _ if !self.pending.is_empty() => {
                self.waits = self.waits.wrapping_add(1);
                if self.waits % TURNS == 1 {
                    self.ask(core);
                }
                Progressed::Waiting
            }
            Some(error) => Progressed::Failed(error.clone()),
            None => Progressed::Arrived,
        }
    }

    fn post(&mut self, core: &mut Core) {
        self.posted = true;
        let comm = &self.group.comm;
        let context = comm.context + COLLECTIVES;
        let round = &self.plan.rounds[self.round];
        for &(from, span) in &round.receives {
            let source = comm.to_job(from).expect("plans name ranks of the team");
            // SAFETY: the memory is released only when no message is pending; no other message or operation uses the
            // span in this round.
            let bytes = unsafe { self.memory.lend_mut(span) };
            let len = bytes.len();
            let id = core
                .engine
                .receive(Select { context, source: Some(source), tag: Some(self.tag) }, RecvTarget::Into(bytes, len));
            self.pending.push((Key::Message(id), from, Some(len)));
        }
        for &(rank, span) in &round.sends {
            let to = comm.to_job(rank).expect("plans name ranks of the team");
            if core.engine.try_send(to, context, self.tag, Data::Bytes(self.memory.read(span))) {
                continue;
            }
            // SAFETY: as above; a span that is sent is not written in this round.
            let bytes = unsafe { self.memory.lend(span) };
            let len = bytes.len();
            let id = core.engine.send(to, context, self.tag, bytes, len, false);
            self.pending.push((Key::Message(id), rank, None));
        }
    }

    /// Collects completed messages.
    fn take(&mut self, core: &mut Core) {
        let mut wrong = None;
        let (group, made, element) = (&self.group, self.made, self.memory.element);
        let odd = |from, length, expected| Some(group.odd(made, from, length, expected, element));
        self.pending.retain(|(key, rank, receive)| {
            let Some((result, _)) = core.ended(*key) else { return true };
            let error = match (result, receive) {
                (Ok(came), Some(len)) if came.length != *len as u64 => odd(*rank, came.length, *len),
                (Ok(_), _) => None,
                (Err(Fault::Message(Failure::Truncated { status, .. })), Some(len)) => odd(*rank, status.length, *len),
                (Err(fault), _) => Some(group.comm.fault(fault, 1)),
            };
            wrong = wrong.take().or(error);
            false
        });
        if let (Some(error), None) = (wrong, &self.failed) {
            self.give_up(core, error);
        }
    }

    /// Fails the group, which reports to all ranks, and cancels receives that have no message yet.
    fn give_up(&mut self, core: &mut Core, error: Error) {
        self.group.fail(core, error.clone());
        self.failed = Some(error);
        self.pending.retain(|(key, _, receive)| receive.is_none() || core.withdraw(*key).is_none());
    }

    /// Asks every awaited rank, after a long wait, whether it makes the same call. If not, neither call would ever
    /// complete.
    fn ask(&mut self, core: &mut Core) {
        if self.failed.is_some() || !self.patience.ends(1) {
            return;
        }
        let (group, number) = (&self.group, self.made.number);
        // Messages of a rank arrive in order: all it sent before it reported the end of its call have been matched.
        let never = self.pending.iter().position(|(key, rank, receive)| {
            receive.is_some() && group.is_over(*rank, number) && core.withdraw(*key).is_some()
        });
        if let Some(never) = never {
            let (_, rank, _) = self.pending.swap_remove(never);
            return self.give_up(core, self.group.different(rank, self.made));
        }
        // Ranks that have not received this rank's message are asked too: if all ranks only send, no receiver asks.
        let mut ranks: Vec<Rank> = self.pending.iter().map(|(_, rank, _)| *rank).collect();
        ranks.sort_unstable();
        ranks.dedup();
        ranks.into_iter().for_each(|rank| self.group.ask(core, rank, self.made));
    }

    /// Copies and combines the elements that a round has received, and moves on to the next round.
    pub fn fold_round(&mut self) {
        let (memory, fold, locals) = (&mut self.memory, &self.fold, &self.plan.rounds[self.round].then);
        let folded = catch_unwind(AssertUnwindSafe(|| {
            for local in locals {
                match *local {
                    Local::Copy { from, to } => memory.copy(from, to),
                    Local::Fold { into, with, order } => {
                        memory.pair(into, with, |into, with| fold.fold(into, with, order));
                    }
                    Local::Pack { block, from, to } => {
                        memory.pair(to, from, |packed, given| fold.pack(block, given, packed));
                    }
                    Local::Unpack { block, from, to } => {
                        memory.pair(to, from, |into, packed| fold.unpack(block, packed, into));
                    }
                }
            }
        }));
        if let Err(panic) = folded {
            self.panic = Some(panic);
        }
        self.round += 1;
        self.posted = false;
    }

    /// Takes the panic of the program's operation, if it panicked, and fails the collective.
    pub fn panicked(&mut self, core: &mut Core) -> Option<Box<dyn Any + Send>> {
        let panic = self.panic.take()?;
        self.give_up(core, Error::OperatorPanicked { rank: self.group.comm.rank() });
        Some(panic)
    }

    pub fn into_memory(self) -> CallBuffers {
        self.memory
    }
}

/// A started collective, progressed by whichever call waits.
pub(super) struct Started<F> {
    running: Option<Running<F>>,
    /// One more than the last round whose messages were reported by `awaits`; 0 if none.
    told: usize,
}

impl<F> Started<F> {
    pub fn new(running: Running<F>) -> Started<F> {
        Started { running: Some(running), told: 0 }
    }
}

impl<F: Fold + 'static> Work for Started<F> {
    fn give_up(&mut self, core: &mut Core) {
        if let Some(running) = &mut self.running {
            // The same error that other ranks will see, because this rank is about to end.
            running.give_up(core, Error::PeerDied { rank: running.group.comm.rank() });
        }
    }

    fn awaits(&mut self, awaited: &mut Vec<Key>) -> bool {
        let Some(running) = &mut self.running else { return true };
        // Reported again only when the round changes; resetting `waits` makes the next turn check the waiting time.
        running.waits = 0;
        if self.told <= running.round {
            self.told = running.round + 1;
            awaited.extend(running.pending.iter().map(|(key, ..)| *key));
        }
        true
    }

    fn progress(&mut self, core: &mut Core) -> Option<Ended> {
        let running = self.running.as_mut()?;
        let result = loop {
            match running.progress(core) {
                Progressed::Waiting => return None,
                Progressed::Arrived => {
                    // The engine stays locked here: an operation that calls the library gets an error.
                    in_operation(|| running.fold_round());
                }
                Progressed::Done => break Ok(()),
                Progressed::Failed(error) => break Err(Fault::Work(error)),
            }
            let panic = running.panicked(core);
            core.let_go(panic);
        };
        running.group.has_ended(running.made);
        let peer = running.group.comm.to_job(running.group.comm.rank()).unwrap_or(0);
        let Running { memory, fold, .. } = self.running.take()?;
        core.let_go(Some(fold));
        let data = memory.into_data();
        let came = Came { peer, tag: 0, length: data.len() as u64 };
        Some((result.map(|()| came), Some(data)))
    }
}
