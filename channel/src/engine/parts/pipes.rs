//! Pipes of this rank, and the active ones among them.

use crate::pipe::Pipe;
use crate::slab::{Id, Slab};
use crate::wire::Rank;
use crate::wire::WireMemory;

/// Pipes of this rank by their numbers.
pub struct Pipes<M> {
    all: Slab<Pipe<M>>,
    /// Active pipes: those that need progress calls.
    active: Vec<Id>,
}

impl<M> Default for Pipes<M> {
    fn default() -> Self {
        Pipes { all: Slab::default(), active: Vec::new() }
    }
}

impl<M: WireMemory> Pipes<M> {
    pub fn insert(&mut self, pipe: Pipe<M>) -> Id {
        let id = self.all.insert(pipe);
        self.all.get_mut(id).expect("the pipe was inserted").number(id);
        id
    }

    pub fn get(&self, id: Id) -> Option<&Pipe<M>> {
        self.all.get(id)
    }

    pub fn get_mut(&mut self, id: Id) -> Option<&mut Pipe<M>> {
        self.all.get_mut(id)
    }

    pub fn ids(&self) -> Vec<Id> {
        self.all.iter().map(|(id, _)| id).collect()
    }

    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Pipes to this peer.
    pub fn to(&self, peer: Rank) -> impl Iterator<Item = (Id, &Pipe<M>)> {
        self.all.iter().filter(move |(_, pipe)| pipe.peer() == peer)
    }

    /// Returns true if there is a pipe to this peer.
    pub fn has(&self, peer: Rank) -> bool {
        self.to(peer).next().is_some()
    }

    /// Returns true if the wire has refused a request of a pipe.
    pub fn are_refused(&self) -> bool {
        self.active().any(Pipe::is_refused)
    }

    /// Returns true if a peer other than this rank waits for a pipe.
    pub fn are_needed(&self, me: Rank) -> bool {
        self.active().any(|pipe| pipe.peer() != me && pipe.is_needed())
    }

    fn active(&self) -> impl Iterator<Item = &Pipe<M>> {
        self.active.iter().filter_map(|id| self.all.get(*id))
    }

    pub fn is_any_active(&self) -> bool {
        !self.active.is_empty()
    }

    /// Takes the active pipes. The caller must [settle](Self::settle) each after its progress.
    pub fn take_active(&mut self) -> Vec<Id> {
        std::mem::take(&mut self.active)
    }

    /// Lists the pipe as active if it needs progress. Returns it if it is finished.
    pub fn settle(&mut self, id: Id) -> Option<Pipe<M>> {
        let pipe = self.all.get(id)?;
        if pipe.is_finished() {
            self.active.retain(|active| *active != id);
            return self.all.remove(id);
        }
        if pipe.is_active() && !self.active.contains(&id) {
            self.active.push(id);
        }
        None
    }
}
