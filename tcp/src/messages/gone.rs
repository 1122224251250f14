//! Detection of peers that have closed, left or died.

use super::packet::closed;
use super::wire::TcpWire;
use crate::carrier::Carrier;
use std::sync::Arc;
use transom_channel::wire::{Event, Lane, Rank, Why};
use transom_locks::Awaited;
use transom_network::NetworkWire;
use transom_shm_loopback::messages::{ProgressHook, Waiter};
use transom_windows::FabricError;

/// Consecutive polls without a packet before a lost peer is reported to the engine.
const LAST_LOOKS: u32 = 3;
/// Checks of a peer whose connection has ended, ten per second, before it counts as unreachable although it lives.
const ALIVE: u32 = 10;

/// A lost peer whose last messages may still have to be received.
pub(super) struct Gone {
    peer: Rank,
    why: Why,
    looks: u32,
}

impl NetworkWire for TcpWire {
    fn waiter(&self) -> Waiter {
        self.waiter.clone()
    }

    fn progress_in_waits(&self, hook: Arc<dyn ProgressHook>) {
        self.here.progress_in_waits(hook.clone());
        self.job.progress_in_waits(hook);
    }

    fn close(&mut self) {
        self.closing = true;
        for peer in self.peers.keys().copied().collect::<Vec<_>>() {
            self.say_closed(peer);
        }
    }

    fn look_for_the_gone(&mut self) {
        let me = self.job.rank();
        for rank in (0..self.job.size()).filter(|rank| *rank != me) {
            match self.job.check_peers(Awaited::Rank(rank)) {
                Err(FabricError::PeerDied { rank: died }) if died == rank => self.notice(rank as Rank, Why::Died),
                Err(FabricError::PeerLeft { rank: left }) if left == rank => self.notice(rank as Rank, Why::Left),
                Err(_) if self.job.has_left(rank) => self.notice(rank as Rank, Why::Left),
                _ => {}
            }
        }
        for rank in self.peers.keys().copied().collect::<Vec<_>>() {
            self.look_after(rank);
        }
    }

    fn is_given_up(&self) -> bool {
        let me = self.job.rank();
        matches!(self.job.check_peers(Awaited::Rank(me)), Err(FabricError::PeerDied { rank }) if rank == me)
    }
}

impl TcpWire {
    /// Announces to a peer that this rank receives no more messages.
    pub(super) fn say_closed(&mut self, rank: Rank) {
        let Some(peer) = self.peers.get_mut(&rank).filter(|peer| !peer.told && !peer.over) else { return };
        let Some(number) = peer.out else { return };
        peer.told = true;
        if let Some(link) = self.links.get_mut(&number)
            && link.socket.send(&closed(), &[]).is_ok()
            && !link.socket.outgoing().is_empty()
        {
            self.sending.push(number);
        }
    }

    /// Counts checks of a peer whose connection has ended although it lives. If both ranks are closing, the peer counts
    /// as having left.
    fn look_after(&mut self, rank: Rank) {
        let Some(peer) = self.peers.get_mut(&rank).filter(|peer| !peer.over && !peer.noticed) else { return };
        peer.ended += u32::from(peer.has_ended);
        if peer.ended > ALIVE {
            self.notice(rank, Why::Unreachable);
        } else if self.closing {
            let closed = peer.closed;
            self.say_closed(rank);
            if closed {
                self.notice(rank, Why::Left);
            }
        }
    }

    pub(super) fn notice(&mut self, rank: Rank, why: Why) {
        let me = self.job.rank();
        let peer = self.peers.entry(rank).or_default();
        if rank as usize != me && !peer.noticed && !peer.over {
            peer.noticed = true;
            self.gone.push(Gone { peer: rank, why, looks: 0 });
        }
    }

    /// Reports lost peers whose packets have all been received, after a poll that received some of `from`.
    pub(super) fn report_gone(&mut self, from: &[Rank]) {
        for gone in &mut self.gone {
            gone.looks = if from.contains(&gone.peer) { 0 } else { gone.looks + 1 };
        }
        for Gone { peer, why, .. } in self.gone.extract_if(.., |gone| gone.looks > LAST_LOOKS) {
            self.events.push_back(Event::Failed(Lane { peer, rail: 0 }, why));
        }
    }

    pub(super) fn forget_gone(&mut self, rank: Rank) {
        self.gone.retain(|gone| gone.peer != rank);
    }
}
