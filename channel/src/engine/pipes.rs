//! The pipes of a rank. They share its wire: events of theirs are handed on, and those for which something is under way have
//! a turn in each turn of the engine.

use super::request::{Cancelled, Request};
use super::{Engine, Status};
use crate::error::{Error, Lost};
use crate::pipe::{self, Config, Count, Fault, NO_OFFER, Offer, Pipe};
use crate::slab::{Id, Slab};
use crate::wire::{Lane, Rank, Wire};

/// The next bytes are in a buffer that the peer has kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kept;

pub(super) struct Pipes<M> {
    all: Slab<Pipe<M>>,
    /// Those that need turns.
    active: Vec<Id>,
}

impl<M> Default for Pipes<M> {
    fn default() -> Self {
        Pipes { all: Slab::default(), active: Vec::new() }
    }
}

impl<M> Pipes<M> {
    /// Whether the wire has refused something of theirs.
    pub fn are_refused(&self) -> bool {
        self.active().any(Pipe::is_refused)
    }

    /// Whether peers wait for something of theirs, other than this rank.
    pub fn are_needed(&self, me: Rank) -> bool {
        self.active().any(|pipe| pipe.peer() != me && pipe.is_needed())
    }

    /// Whether there is one to this peer.
    pub fn has(&self, peer: Rank) -> bool {
        self.to(peer).next().is_some()
    }

    fn active(&self) -> impl Iterator<Item = &Pipe<M>> {
        self.active.iter().filter_map(|id| self.all.get(*id))
    }

    pub(super) fn to(&self, peer: Rank) -> impl Iterator<Item = (Id, &Pipe<M>)> {
        self.all.iter().filter(move |(_, pipe)| pipe.peer() == peer)
    }
}

impl<W: Wire> Engine<W> {
    /// Opens one end of a pipe. The peer is to be told what this gives, and [`pipe_join`](Self::pipe_join) what the peer says.
    pub fn pipe_open(&mut self, peer: Rank, config: Config) -> Result<(Id, Offer), Error> {
        self.reach(peer)?;
        let fault = |fault| Error::Pipe { rank: peer, fault };
        let taken: Vec<u8> = self.pipes.to(peer).map(|(_, pipe)| pipe.offer().number).collect();
        let number = (0..=u8::MAX).find(|number| !taken.contains(number)).ok_or(fault(Fault::TooMany))?;
        let pipe = Pipe::open(&mut self.wire, peer, config, number).map_err(fault)?;
        let offer = *pipe.offer();
        let id = self.pipes.all.insert(pipe);
        self.pipes.all.get_mut(id).expect("was kept").number(id);
        Ok((id, offer))
    }

    /// The peer has told its end.
    pub fn pipe_join(&mut self, id: Id, theirs: &[u8]) -> Result<(), Error> {
        let pipe = self.pipes.all.get_mut(id).ok_or(NOT_OPEN)?;
        let rank = pipe.peer();
        if let Some(lost) = self.lost.get(&rank) {
            return Err(Error::Lost { rank, lost: lost.clone() });
        }
        match Offer::decode(theirs) {
            _ if theirs == NO_OFFER => Err(Error::Pipe { rank, fault: Fault::Refused }),
            Some(offer) => {
                pipe.join(&mut self.wire, &offer).map_err(|fault| Error::Pipe { rank, fault })?;
                self.turn_pipe(id);
                Ok(())
            }
            None => Err(self.break_off(rank, Lost::Broken("what it has offered as its end of a pipe is none"))),
        }
    }

    /// Whether bytes that are put now can go, as far as the wire is concerned; or never will.
    pub fn pipe_opens(&mut self, id: Id) -> bool {
        let Some(pipe) = self.pipes.all.get(id) else { return true };
        pipe.is_gone() || self.wire.opens(Lane { peer: pipe.peer(), rail: 0 })
    }

    /// Puts bytes, as many as go now, and says how many: 0 if the ring is full, or a buffer is under way. They can be used
    /// again at once.
    pub fn pipe_put(&mut self, id: Id, data: &[u8]) -> Result<usize, Error> {
        let pipe = self.pipes.all.get_mut(id).ok_or(NOT_OPEN)?;
        let rank = pipe.peer();
        let put = pipe.put(&mut self.wire, data);
        self.list_pipe(id);
        match put {
            Ok(Ok(moved)) => self.unless_lost(rank, moved),
            Ok(Err(fault)) => Err(self.why(rank, fault)),
            Err(lost) => Err(self.break_off(rank, lost)),
        }
    }

    /// Gets bytes, as many as have come and there is room for, and says how many: 0 if none have, or are under way; `None` at
    /// the end of the stream.
    pub fn pipe_get(&mut self, id: Id, into: &mut [u8]) -> Result<Option<usize>, Error> {
        self.get(id, into, true)
    }

    /// As [`pipe_get`](Self::pipe_get), for who can [start](Self::pipe_start_get) to get: `Err` tells that the next bytes
    /// are in a buffer that the peer has kept, and this would copy them once more.
    pub fn pipe_get_here(&mut self, id: Id, into: &mut [u8]) -> Result<Result<Option<usize>, Kept>, Error> {
        let got = self.get(id, into, false)?;
        let kept = got == Some(0) && self.pipes.all.get(id).is_some_and(Pipe::is_remote);
        Ok(if kept { Err(Kept) } else { Ok(got) })
    }

    fn get(&mut self, id: Id, into: &mut [u8], bounce: bool) -> Result<Option<usize>, Error> {
        let pipe = self.pipes.all.get_mut(id).ok_or(NOT_OPEN)?;
        let (rank, room) = (pipe.peer(), into.len());
        let got = pipe.get(&mut self.wire, into, bounce);
        self.list_pipe(id);
        match got {
            // What had come of a peer that is lost can be got.
            Ok(Some(0)) if room > 0 => self.unless_lost(rank, Some(0)),
            Ok(got) => Ok(got),
            Err(lost) => Err(self.break_off(rank, lost)),
        }
    }

    /// Starts to put all of a buffer, which is given back when the request completes.
    pub fn pipe_start_put(&mut self, pipe: Id, memory: W::Memory, length: usize) -> Result<Id, Error> {
        self.pipe_start(pipe, |pipe, id| pipe.start_put(id, memory, length))
    }

    /// Starts to get bytes into a buffer. The request completes with one at least, or with none at the end of the stream.
    pub fn pipe_start_get(&mut self, pipe: Id, memory: W::Memory, room: usize) -> Result<Id, Error> {
        self.pipe_start(pipe, |pipe, id| pipe.start_get(id, memory, room))
    }

    fn pipe_start(&mut self, pipe: Id, start: impl FnOnce(&mut Pipe<W::Memory>, Id)) -> Result<Id, Error> {
        let known = self.pipes.all.get_mut(pipe).ok_or(NOT_OPEN)?;
        let id = self.requests.insert(Request::Piped(pipe));
        start(known, id);
        if known.is_gone() {
            self.lose_pipe(pipe);
        } else {
            self.turn_pipe(pipe);
        }
        Ok(id)
    }

    /// Nothing more is put: the peer comes to the end of the stream.
    pub fn pipe_end(&mut self, id: Id) {
        if let Some(pipe) = self.pipes.all.get_mut(id) {
            pipe.end();
            self.turn_pipe(id);
        }
    }

    /// The ends have not come together: the other did not [join](Self::pipe_join), or this one could not. Both know, and neither
    /// writes.
    pub fn pipe_refuse(&mut self, id: Id) {
        if let Some(pipe) = self.pipes.all.get_mut(id) {
            pipe.refuse();
            self.list_pipe(id);
        }
    }

    /// Neither put nor get is called any more. What was put and started is delivered.
    pub fn pipe_close(&mut self, id: Id) {
        if let Some(pipe) = self.pipes.all.get_mut(id) {
            pipe.close();
            self.turn_pipe(id);
        }
    }

    /// What was counted at this end.
    pub fn pipe_count(&self, id: Id) -> Option<Count> {
        self.pipes.all.get(id).map(Pipe::count)
    }

    /// How many pipes have memory.
    pub fn pipes(&self) -> usize {
        self.pipes.all.len()
    }

    /// Gives those a turn that need one; says how much was done.
    pub(super) fn turn_pipes(&mut self) -> usize {
        if self.pipes.active.is_empty() {
            return 0;
        }
        std::mem::take(&mut self.pipes.active).into_iter().map(|id| self.turn_pipe(id)).sum()
    }

    /// Looks what has come by pipes, also those by which nothing is under way here, to which a turn does not look.
    pub fn hear_pipes(&mut self) {
        let open: Vec<Id> = self.pipes.all.iter().map(|(id, _)| id).collect();
        open.into_iter().for_each(|id| _ = self.turn_pipe(id));
    }

    fn turn_pipe(&mut self, id: Id) -> usize {
        let Some(pipe) = self.pipes.all.get_mut(id) else { return 0 };
        let (rank, before) = (pipe.peer(), pipe.count());
        let turned = pipe.turn(&mut self.wire);
        let after = pipe.count();
        let mut work = usize::from(before != after);
        work += self.pipe_outcomes(id);
        match turned {
            Ok(()) => self.list_pipe(id),
            Err(lost) => _ = self.break_off(rank, lost),
        }
        work
    }

    /// Completes what has ended.
    fn pipe_outcomes(&mut self, id: Id) -> usize {
        let mut ended = 0;
        while let Some(pipe) = self.pipes.all.get_mut(id)
            && let Some(outcome) = pipe.outcome()
        {
            let peer = pipe.peer();
            let result = outcome.result.map_err(|fault| self.why(peer, fault));
            let result = result.map(|length| Status { peer, tag: 0, length: length as u64 });
            self.complete_piped(outcome.id, result, outcome.memory);
            ended += 1;
        }
        ended
    }

    fn complete_piped(&mut self, id: Id, result: Result<Status, Error>, memory: W::Memory) {
        let place = self.requests.get_mut(id).expect("what completes is kept");
        debug_assert!(matches!(place, Request::Piped(_)), "a put or get ends once");
        *place = Request::Over(result, Some(memory));
        self.over(id);
    }

    /// A pipe that needs turns gets them; one that is done with is given back.
    fn list_pipe(&mut self, id: Id) {
        let Some(pipe) = self.pipes.all.get_mut(id) else { return };
        self.has_news |= pipe.take_heard();
        if pipe.is_finished() {
            self.pipes.active.retain(|active| *active != id);
            if let Some(pipe) = self.pipes.all.remove(id) {
                pipe.give_back(&mut self.wire);
            }
        } else if pipe.is_active() && !self.pipes.active.contains(&id) {
            self.pipes.active.push(id);
        }
    }

    pub(super) fn withdraw_piped(&mut self, pipe: Id, id: Id) -> Cancelled<W::Memory> {
        match self.pipes.all.get_mut(pipe).and_then(|pipe| pipe.withdraw(id)) {
            Some(memory) => {
                self.requests.remove(id);
                Cancelled::Withdrawn(Some(memory))
            }
            None => Cancelled::TooLate,
        }
    }

    pub(super) fn pipe_moved(&mut self, token: u64) {
        let Some(id) = pipe::id_of(token) else { return };
        if let Some(pipe) = self.pipes.all.get_mut(id) {
            pipe.moved(&mut self.wire, token);
            self.turn_pipe(id);
        }
    }

    pub(super) fn pipe_told(&mut self, peer: Rank, value: u32) {
        let number = pipe::number_of(value);
        let id = self.pipes.to(peer).find(|(_, pipe)| Some(pipe.offer().number) == number).map(|(id, _)| id);
        let told = id.and_then(|id| self.pipes.all.get_mut(id)).map(|pipe| pipe.told(value));
        let none = Err(Lost::Broken("it told of a write to a pipe that there is not"));
        if let Err(lost) = told.unwrap_or(none) {
            self.fail(peer, lost);
        }
    }

    /// The peer is lost, and the wire has cut it off.
    pub(super) fn lose_pipes(&mut self, peer: Rank) {
        let ids: Vec<Id> = self.pipes.to(peer).map(|(id, _)| id).collect();
        ids.into_iter().for_each(|id| self.lose_pipe(id));
    }

    fn lose_pipe(&mut self, id: Id) {
        let Some(pipe) = self.pipes.all.get_mut(id) else { return };
        let rank = pipe.peer();
        let left = pipe.lose(&mut self.wire);
        self.pipe_outcomes(id);
        for (id, memory) in left {
            let lost = self.lost[&rank].clone();
            self.complete_piped(id, Err(Error::Lost { rank, lost }), memory);
        }
        self.list_pipe(id);
    }

    /// The peer has broken a rule.
    fn break_off(&mut self, rank: Rank, lost: Lost) -> Error {
        self.fail(rank, lost);
        Error::Lost { rank, lost: self.lost[&rank].clone() }
    }

    fn unless_lost<T>(&self, rank: Rank, value: T) -> Result<T, Error> {
        match self.lost.get(&rank) {
            Some(lost) => Err(Error::Lost { rank, lost: lost.clone() }),
            None => Ok(value),
        }
    }

    /// Why a pipe cannot be used: that the peer is lost says more.
    fn why(&self, rank: Rank, fault: Fault) -> Error {
        self.unless_lost(rank, ()).err().unwrap_or(Error::Pipe { rank, fault })
    }
}

const NOT_OPEN: Error = Error::NoPipe;
