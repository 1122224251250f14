//! A plan under way: its messages posted, and what they bring folded, round by round.

use super::group::{Member, Patience};
use super::history::Made;
use super::memory::Memory;
use super::reduction::Fold;
use crate::messages::Error;
use crate::messages::comm::COLLECTIVES;
use crate::messages::hub::in_operation;
use crate::messages::locked::{Core, Ended, Fault, Key, Work};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use transom_channel::wire::Data;
use transom_channel::{Error as Failure, Room, Select, Status as Came};
use transom_collective::{Local, Plan, Rank};

/// A collective of this rank, between its call and its end.
pub(super) struct Running<F> {
    group: Arc<Member>,
    made: Made,
    pub tag: u32,
    plan: Plan,
    memory: Memory,
    fold: F,
    /// The round that is under way, or begins.
    round: usize,
    posted: bool,
    /// Messages of the round that have not ended, and to or from whom; of those that are received how many bytes.
    pending: Vec<(Key, Rank, Option<usize>)>,
    failed: Option<Error>,
    panic: Option<Box<dyn Any + Send>>,
    patience: Patience,
    /// Turns in which it waited.
    waits: u32,
}

/// Turns of a wait before its time is looked at: a rank that sleeps takes ten a second.
const TURNS: u32 = 8;

/// What came of a turn.
pub(super) enum Turned {
    /// Others have to do something.
    Waiting,
    /// The messages of a round are done: [`Running::fold_round`], with no lock held.
    Arrived,
    /// It is done.
    Done,
    /// It is given up, and nobody uses its memory any more.
    Failed(Error),
}

impl<F: Fold> Running<F> {
    pub fn new(group: Arc<Member>, made: Made, plan: Plan, memory: Memory, fold: F) -> Running<F> {
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
            patience: Patience::default(),
            waits: 0,
        }
    }

    /// Posts what can be, and takes what has come.
    pub fn turn(&mut self, core: &mut Core) -> Turned {
        if self.failed.is_none() {
            if let Some(error) = self.group.broken() {
                self.give_up(core, error);
            } else if self.round == self.plan.rounds.len() {
                return Turned::Done;
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
                Turned::Waiting
            }
            Some(error) => Turned::Failed(error.clone()),
            None => Turned::Arrived,
        }
    }

    fn post(&mut self, core: &mut Core) {
        self.posted = true;
        let comm = &self.group.comm;
        let context = comm.context + COLLECTIVES;
        let round = &self.plan.rounds[self.round];
        for &(from, span) in &round.receives {
            let source = comm.to_job(from).expect("plans name ranks of the team");
            // SAFETY: the memory is given up only when nothing is pending; the span is used by nothing else in this round.
            let bytes = unsafe { self.memory.lend_mut(span) };
            let len = bytes.len();
            let id = core
                .engine
                .receive(Select { context, source: Some(source), tag: Some(self.tag) }, Room::Into(bytes, len));
            self.pending.push((Key::Message(id), from, Some(len)));
        }
        for &(rank, span) in &round.sends {
            let to = comm.to_job(rank).expect("plans name ranks of the team");
            if core.engine.try_send(to, context, self.tag, Data::Bytes(self.memory.read(span))) {
                continue;
            }
            // SAFETY: as above; what is sent is not written in this round.
            let bytes = unsafe { self.memory.lend(span) };
            let len = bytes.len();
            let id = core.engine.send(to, context, self.tag, bytes, len, false);
            self.pending.push((Key::Message(id), rank, None));
        }
    }

    /// Looks which messages have ended.
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

    /// It cannot be any more: all are told, and what has no message yet is withdrawn.
    fn give_up(&mut self, core: &mut Core, error: Error) {
        self.group.fail(core, error.clone());
        self.failed = Some(error);
        self.pending.retain(|(key, _, receive)| receive.is_none() || core.withdraw(*key).is_none());
    }

    /// Whoever is waited for long is asked whether it makes the same call: if not, none of the two would ever end.
    fn ask(&mut self, core: &mut Core) {
        if self.failed.is_some() || !self.patience.ends(1) {
            return;
        }
        let (group, number) = (&self.group, self.made.number);
        // Messages of a rank come in order: one that was sent before it said that its call is over has been matched.
        let never = self.pending.iter().position(|(key, rank, receive)| {
            receive.is_some() && group.is_over(*rank, number) && core.withdraw(*key).is_some()
        });
        if let Some(never) = never {
            let (_, rank, _) = self.pending.swap_remove(never);
            return self.give_up(core, self.group.different(rank, self.made));
        }
        // Also who has not taken what is sent to it: if all only send, nobody else asks.
        let mut ranks: Vec<Rank> = self.pending.iter().map(|(_, rank, _)| *rank).collect();
        ranks.sort_unstable();
        ranks.dedup();
        ranks.into_iter().for_each(|rank| self.group.ask(core, rank, self.made));
    }

    /// Copies and folds what a round has brought, and goes on to the next.
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

    /// The panic of the program's operation, if there was one: then the collective is to be given up.
    pub fn panicked(&mut self, core: &mut Core) -> Option<Box<dyn Any + Send>> {
        let panic = self.panic.take()?;
        self.give_up(core, Error::OperatorPanicked { rank: self.group.comm.rank() });
        Some(panic)
    }

    pub fn into_memory(self) -> Memory {
        self.memory
    }
}

/// A collective that the program waits for later, turned by whichever call waits.
pub(super) struct Started<F> {
    running: Option<Running<F>>,
    /// The round whose messages are told of, and one more.
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
            // As others will see it: this rank is about to end.
            running.give_up(core, Error::PeerDied { rank: running.group.comm.rank() });
        }
    }

    fn awaits(&mut self, awaited: &mut Vec<Key>) -> bool {
        let Some(running) = &mut self.running else { return true };
        // As often as it is turned for nothing, its time is looked at.
        running.waits = 0;
        if self.told <= running.round {
            self.told = running.round + 1;
            awaited.extend(running.pending.iter().map(|(key, ..)| *key));
        }
        true
    }

    fn turn(&mut self, core: &mut Core) -> Option<Ended> {
        let running = self.running.as_mut()?;
        let result = loop {
            match running.turn(core) {
                Turned::Waiting => return None,
                Turned::Arrived => {
                    // The engine is locked here: an operation that calls the library is told so.
                    in_operation(|| running.fold_round());
                }
                Turned::Done => break Ok(()),
                Turned::Failed(error) => break Err(Fault::Work(error)),
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
