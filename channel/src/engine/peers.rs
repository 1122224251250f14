//! The peers that a rank has communicated with, found by rank without hashing.

use super::peer::Peer;
use crate::wire::Rank;
use std::ops::Index;

/// One entry for each rank up to the highest one used; `None` for ranks without a record.
pub(super) struct Peers<M>(Vec<Option<Box<Peer<M>>>>);

impl<M> Default for Peers<M> {
    fn default() -> Self {
        Peers(Vec::new())
    }
}

impl<M> Peers<M> {
    #[inline]
    pub fn get(&self, rank: &Rank) -> Option<&Peer<M>> {
        self.0.get(*rank as usize)?.as_deref()
    }

    #[inline]
    pub fn get_mut(&mut self, rank: &Rank) -> Option<&mut Peer<M>> {
        self.0.get_mut(*rank as usize)?.as_deref_mut()
    }

    pub fn contains_key(&self, rank: &Rank) -> bool {
        self.get(rank).is_some()
    }

    pub fn insert(&mut self, rank: Rank, peer: Peer<M>) {
        if self.0.len() <= rank as usize {
            self.0.resize_with(rank as usize + 1, || None);
        }
        self.0[rank as usize] = Some(Box::new(peer));
    }

    pub fn remove(&mut self, rank: &Rank) -> Option<Box<Peer<M>>> {
        self.0.get_mut(*rank as usize)?.take()
    }

    pub fn iter(&self) -> impl Iterator<Item = (Rank, &Peer<M>)> {
        (0..).zip(&self.0).filter_map(|(rank, peer)| Some((rank, peer.as_deref()?)))
    }
}

impl<M> Index<&Rank> for Peers<M> {
    type Output = Peer<M>;

    fn index(&self, rank: &Rank) -> &Peer<M> {
        self.get(rank).expect("the peer is known")
    }
}
