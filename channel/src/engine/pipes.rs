//! Pipes beside the messages: their events arrive on the same wire, and active pipes advance in each progress
//! call.

use super::request::{Cancelled, Request};
use super::{Engine, Status};
use crate::error::{Error, PeerFailure};
use crate::pipe::{self, Config, Count, Fault, NO_OFFER, Offer, Pipe};
use crate::slab::Id;
use crate::wire::{Lane, Rank, Wire};

/// The next bytes are in a buffer that the peer has offered or announced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AtPeer;

impl<W: Wire> Engine<W> {
    /// Opens one end of a pipe. The program sends the returned offer to the peer, and passes the peer's to
    /// [`pipe_join`](Self::pipe_join).
    pub fn pipe_open(&mut self, peer: Rank, config: Config) -> Result<(Id, Offer), Error> {
        self.reach(peer)?;
        let fault = |fault| Error::Pipe { rank: peer, fault };
        let taken: Vec<u8> = self.pipes.to(peer).map(|(_, pipe)| pipe.offer().number).collect();
        let number = (0..=u8::MAX).find(|number| !taken.contains(number)).ok_or(fault(Fault::TooMany))?;
        let pipe = Pipe::open(&mut self.wire, peer, config, number).map_err(fault)?;
        let offer = *pipe.offer();
        Ok((self.pipes.insert(pipe), offer))
    }

    /// Takes the offer of the peer's end.
    pub fn pipe_join(&mut self, id: Id, theirs: &[u8]) -> Result<(), Error> {
        let pipe = self.pipes.get_mut(id).ok_or(NOT_OPEN)?;
        let rank = pipe.peer();
        self.failures.check(rank)?;
        match Offer::decode(theirs) {
            _ if theirs == NO_OFFER => Err(Error::Pipe { rank, fault: Fault::Refused }),
            Some(offer) => {
                pipe.join(&mut self.wire, &offer).map_err(|fault| Error::Pipe { rank, fault })?;
                self.turn_pipe(id);
                Ok(())
            }
            None => Err(self.break_off(rank, PeerFailure::Broken("its offer of a pipe is malformed"))),
        }
    }

    /// Returns true if the wire would accept bytes put now, or never will.
    pub fn pipe_opens(&mut self, id: Id) -> bool {
        let Some(pipe) = self.pipes.get(id) else { return true };
        pipe.is_gone() || self.wire.opens(Lane { peer: pipe.peer(), rail: 0 })
    }

    /// Puts as many bytes as can be posted now. Returns their number: 0 if the ring is full, or a buffer is
    /// in flight. `data` can be reused at once.
    pub fn pipe_put(&mut self, id: Id, data: &[u8]) -> Result<usize, Error> {
        let pipe = self.pipes.get_mut(id).ok_or(NOT_OPEN)?;
        let rank = pipe.peer();
        let put = pipe.put(&mut self.wire, data);
        self.settle_pipe(id);
        match put {
            Ok(Ok(moved)) => self.failures.check(rank).map(|()| moved),
            Ok(Err(fault)) => Err(self.why(rank, fault)),
            Err(lost) => Err(self.break_off(rank, lost)),
        }
    }

    /// Gets as many bytes as have arrived and fit. Returns their number: 0 if none have arrived, or they are
    /// in flight; `None` at the end of the stream.
    pub fn pipe_get(&mut self, id: Id, into: &mut [u8]) -> Result<Option<usize>, Error> {
        self.get(id, into, true)
    }

    /// Like [`pipe_get`](Self::pipe_get), for a caller that can [start](Self::pipe_start_get) a get. The
    /// inner `Err` reports that the next bytes are in a buffer of the peer, so that this call would copy them
    /// once more.
    pub fn pipe_get_here(&mut self, id: Id, into: &mut [u8]) -> Result<Result<Option<usize>, AtPeer>, Error> {
        let got = self.get(id, into, false)?;
        let kept = got == Some(0) && self.pipes.get(id).is_some_and(Pipe::is_remote);
        Ok(if kept { Err(AtPeer) } else { Ok(got) })
    }

    fn get(&mut self, id: Id, into: &mut [u8], bounce: bool) -> Result<Option<usize>, Error> {
        let pipe = self.pipes.get_mut(id).ok_or(NOT_OPEN)?;
        let (rank, room) = (pipe.peer(), into.len());
        let got = pipe.get(&mut self.wire, into, bounce);
        self.settle_pipe(id);
        match got {
            // Bytes that had arrived from a lost peer can be got.
            Ok(Some(0)) if room > 0 => self.failures.check(rank).map(|()| Some(0)),
            Ok(got) => Ok(got),
            Err(lost) => Err(self.break_off(rank, lost)),
        }
    }

    /// Starts to put a whole buffer, which is returned when the request completes.
    pub fn pipe_start_put(&mut self, pipe: Id, memory: W::Memory, length: usize) -> Result<Id, Error> {
        self.pipe_start(pipe, |pipe, id| pipe.start_put(id, memory, length))
    }

    /// Starts to get bytes into a buffer. The request completes with at least one byte, or with none at the end of the
    /// stream.
    pub fn pipe_start_get(&mut self, pipe: Id, memory: W::Memory, room: usize) -> Result<Id, Error> {
        self.pipe_start(pipe, |pipe, id| pipe.start_get(id, memory, room))
    }

    fn pipe_start(&mut self, pipe: Id, start: impl FnOnce(&mut Pipe<W::Memory>, Id)) -> Result<Id, Error> {
        let known = self.pipes.get_mut(pipe).ok_or(NOT_OPEN)?;
        let id = self.requests.insert(Request::Piped(pipe));
        start(known, id);
        if known.is_gone() {
            self.lose_pipe(pipe);
        } else {
            self.turn_pipe(pipe);
        }
        Ok(id)
    }

    /// Ends the stream of this end: no more bytes are put.
    pub fn pipe_end(&mut self, id: Id) {
        if let Some(pipe) = self.pipes.get_mut(id) {
            pipe.end();
            self.turn_pipe(id);
        }
    }

    /// Gives up a pipe whose ends failed to [join](Self::pipe_join). Both ranks know it, and neither writes.
    pub fn pipe_refuse(&mut self, id: Id) {
        if let Some(pipe) = self.pipes.get_mut(id) {
            pipe.refuse();
            self.settle_pipe(id);
        }
    }

    /// Closes this end: no more puts or gets. Puts that were started are delivered.
    pub fn pipe_close(&mut self, id: Id) {
        if let Some(pipe) = self.pipes.get_mut(id) {
            pipe.close();
            self.turn_pipe(id);
        }
    }

    /// Counters of this end.
    pub fn pipe_count(&self, id: Id) -> Option<Count> {
        self.pipes.get(id).map(Pipe::count)
    }

    /// Number of pipes that have memory.
    pub fn pipes(&self) -> usize {
        self.pipes.len()
    }

    /// Advances active pipes. Returns the number of steps done.
    pub(super) fn turn_pipes(&mut self) -> usize {
        if self.pipes.is_any_active() {
            return self.pipes.take_active().into_iter().map(|id| self.turn_pipe(id)).sum();
        }
        0
    }

    /// Polls all pipes for arrivals, including those that are not active.
    pub fn hear_pipes(&mut self) {
        self.pipes.ids().into_iter().for_each(|id| _ = self.turn_pipe(id));
    }

    fn turn_pipe(&mut self, id: Id) -> usize {
        let Some(pipe) = self.pipes.get_mut(id) else { return 0 };
        let (rank, before) = (pipe.peer(), pipe.count());
        let turned = pipe.progress(&mut self.wire);
        let work = usize::from(before != pipe.count()) + self.pipe_outcomes(id);
        match turned {
            Ok(()) => self.settle_pipe(id),
            Err(lost) => _ = self.break_off(rank, lost),
        }
        work
    }

    /// Completes puts and gets that have ended. Returns their number.
    fn pipe_outcomes(&mut self, id: Id) -> usize {
        let mut ended = 0;
        while let Some(pipe) = self.pipes.get_mut(id)
            && let Some(outcome) = pipe.outcome()
        {
            let peer = pipe.peer();
            let result = outcome.result.map_err(|fault| self.why(peer, fault));
            let result = result.map(|length| Status { peer, tag: 0, length: length as u64 });
            self.requests.complete_piped(outcome.id, result, outcome.memory);
            ended += 1;
        }
        ended
    }

    fn settle_pipe(&mut self, id: Id) {
        self.has_news |= self.pipes.get_mut(id).is_some_and(Pipe::take_heard);
        if let Some(pipe) = self.pipes.settle(id) {
            pipe.give_back(&mut self.wire);
        }
    }

    pub(super) fn withdraw_piped(&mut self, pipe: Id, id: Id) -> Cancelled<W::Memory> {
        match self.pipes.get_mut(pipe).and_then(|pipe| pipe.withdraw(id)) {
            Some(memory) => {
                self.requests.remove(id);
                Cancelled::Withdrawn(Some(memory))
            }
            None => Cancelled::TooLate,
        }
    }

    /// Records the end of a write or read of a pipe.
    pub(super) fn pipe_moved(&mut self, token: u64) {
        let Some(id) = pipe::id_of(token) else { return };
        if let Some(pipe) = self.pipes.get_mut(id) {
            pipe.moved(&mut self.wire, token);
            self.turn_pipe(id);
        }
    }

    /// Handles an immediate value for a pipe.
    pub(super) fn pipe_told(&mut self, peer: Rank, value: u32) {
        let number = pipe::number_of(value);
        let id = self.pipes.to(peer).find(|(_, pipe)| Some(pipe.offer().number) == number).map(|(id, _)| id);
        let told = id.and_then(|id| self.pipes.get_mut(id)).map(|pipe| pipe.told(value));
        let none = Err(PeerFailure::Broken("it announced a write to an unknown pipe"));
        if let Err(lost) = told.unwrap_or(none) {
            self.fail(peer, lost);
        }
    }

    /// Handles the loss of the peer, which the wire has aborted.
    pub(super) fn lose_pipes(&mut self, peer: Rank) {
        let ids: Vec<Id> = self.pipes.to(peer).map(|(id, _)| id).collect();
        ids.into_iter().for_each(|id| self.lose_pipe(id));
    }

    fn lose_pipe(&mut self, id: Id) {
        let Some(pipe) = self.pipes.get_mut(id) else { return };
        let rank = pipe.peer();
        let left = pipe.lose(&mut self.wire);
        self.pipe_outcomes(id);
        let lost = self.failures.check(rank).expect_err("its pipes are lost with the peer");
        for (id, memory) in left {
            self.requests.complete_piped(id, Err(lost.clone()), memory);
        }
        self.settle_pipe(id);
    }

    /// Cuts off a peer that broke the protocol.
    fn break_off(&mut self, rank: Rank, lost: PeerFailure) -> Error {
        self.fail(rank, lost.clone());
        self.failures.check(rank).err().unwrap_or(Error::PeerFailure { rank, lost })
    }

    /// The reason why a pipe cannot be used: the loss of the peer if it is lost, because that is more specific.
    fn why(&self, rank: Rank, fault: Fault) -> Error {
        self.failures.check(rank).err().unwrap_or(Error::Pipe { rank, fault })
    }
}

const NOT_OPEN: Error = Error::NoPipe;
