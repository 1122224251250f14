//! A peer is lost: all that waits for it ends.

use super::Engine;
use super::request::{Receive, Request, What, cost};
use crate::error::{Error, Lost};
use crate::matching::Select;
use crate::wire::{Lane, Rank, Wire};
use std::collections::BTreeSet;

impl<W: Wire> Engine<W> {
    /// Every request that needs this peer fails. If it died, so do receives from any source: what they wait for may have been
    /// its message; in a context where none of these is posted, the next one is told. If it has left, they go on as long as
    /// somebody else is there. Messages that had come whole can be received.
    pub(super) fn fail(&mut self, rank: Rank, lost: Lost) {
        if self.lost.contains_key(&rank) {
            return;
        }
        // From here on nobody touches the memory that requests gave to the wire.
        self.wire.sever(rank);
        self.lost.insert(rank, lost.clone());
        self.lose_pipes(rank);
        if let Some(mut peer) = self.peers.remove(&rank) {
            self.routes[peer.near].peers -= 1;
            self.budget.leave(&peer.grant, peer.joined);
            self.polling[peer.near].left(rank);
            self.connected.left(rank);
            if let Some(ring) = peer.ring_in.take() {
                self.wire.release(Lane { peer: rank, rail: 0 }, ring.key);
                self.wire.give(ring.memory);
            }
            peer.incoming.drain().for_each(|held| self.wire.give(held.data));
            if let Some(gathering) = peer.gathering.take() {
                self.kept -= cost(gathering.envelope.length);
                self.wire.give(gathering.memory);
            }
            peer.failover
                .take()
                .into_iter()
                .flat_map(|failover| failover.drain())
                .for_each(|memory| self.wire.give(memory));
        }
        let announced = |message: &super::Unexpected<W::Memory>| matches!(message.what, What::Rts { .. });
        for message in self.matching.discard(|label, message| label.source == rank && announced(message)) {
            self.kept -= message.cost();
        }
        let died = lost != Lost::Left;
        let any = self.matching.selects().filter(|select| select.source.is_none()).map(|select| select.context);
        let ends = |context: &u32| {
            if died { self.concerns(*context, rank) } else { self.deserted(*context).is_some() }
        };
        let told: BTreeSet<u32> = any.filter(ends).collect();
        let any = self.matching.withdraw(|select| select.source.is_none() && told.contains(&select.context));
        if died {
            self.dead.push((rank, told));
        }
        let mut ended = self.matching.withdraw(|select| select.source == Some(rank));
        ended.extend(any);
        let bound = self.requests.iter().filter(|(_, request)| match request {
            Request::Send(send) => send.to == rank,
            Request::Receive(Receive { moving: Some(moving), .. }) => moving.from == rank,
            _ => false,
        });
        ended.extend(bound.map(|(id, _)| id));
        for id in ended {
            self.complete(id, Err(Error::Lost { rank, lost: lost.clone() }));
        }
    }

    /// Ends all requests that are under way to or from peers: neither these nor the wire touch their memory any more.
    pub fn shut(&mut self) {
        let peers: Vec<Rank> = self.peers.iter().map(|(rank, _)| rank).collect();
        peers.into_iter().for_each(|rank| self.fail(rank, Lost::Left));
    }

    /// A lost rank of whom a receive from any source is to be told.
    pub(super) fn tell(&mut self, context: u32) -> Option<Rank> {
        let Some(at) = self.untold(context) else { return self.deserted(context) };
        self.dead[at].1.insert(context);
        Some(self.dead[at].0)
    }

    /// Index of the first death of which no receive from any source was told in this context.
    pub(super) fn untold(&self, context: u32) -> Option<usize> {
        let untold = |(rank, told): &(Rank, BTreeSet<u32>)| self.concerns(context, *rank) && !told.contains(&context);
        self.dead.iter().position(untold)
    }

    /// Narrows a receive from any source to the dead rank while a death is untold. The death is told behind the messages of that
    /// rank, though other ranks may send without end.
    pub(super) fn narrowed(&self, select: Select) -> Select {
        match self.untold(select.context) {
            Some(at) if select.source.is_none() => Select { source: Some(self.dead[at].0), ..select },
            _ => select,
        }
    }

    fn concerns(&self, context: u32, rank: Rank) -> bool {
        self.teams.members(context).is_none_or(|members| members.contains(&rank))
    }

    /// One of those who sent in a context, if all others are lost: of those that have left, if one has. (Deaths are told before.)
    fn deserted(&self, context: u32) -> Option<Rank> {
        let one_of =
            |others: &mut dyn Iterator<Item = Rank>| others.min_by_key(|rank| (self.lost[rank] != Lost::Left, *rank));
        match self.teams.members(context) {
            Some(members) => {
                let mut others = members.iter().copied().filter(|rank| *rank != self.rank);
                let all = others.clone().all(|rank| self.lost.contains_key(&rank));
                all.then(|| one_of(&mut others)).flatten()
            }
            None if self.lost.len() as u32 == self.ranks - 1 => one_of(&mut self.lost.keys().copied()),
            None => None,
        }
    }
}
