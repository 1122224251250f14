//! Detection of peers that have closed, left or died.

use super::packet::closed;
use super::wire::TcpWire;
use crate::carrier::Carrier;
use std::sync::Arc;
use std::time::{Duration, Instant};
use transom_channel::wire::{Event, Lane, Rank, Why};
use transom_locks::Awaited;
use transom_network::NetworkWire;
use transom_shm_loopback::messages::{ProgressHook, Waiter};
use transom_windows::FabricError;

/// Consecutive polls without a packet before a lost peer is reported to the engine.
const LAST_LOOKS: u32 = 3;
/// Time without a packet after which a rank that has left is reported, although its connections have not ended.
const LATE: Duration = Duration::from_secs(3);
/// Checks of a peer whose connection has ended, ten per second, before it counts as unreachable although it lives.
const ALIVE: u32 = 10;

/// A lost peer whose last messages may still have to be received.
pub(super) struct Gone {
    peer: Rank,
    why: Why,
    looks: u32,
    /// Time of the notice, or of the last packet since.
    last: Instant,
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
        peer.ended += u32::from(peer.has_ended && !peer.closed);
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
            self.gone.push(Gone { peer: rank, why, looks: 0, last: Instant::now() });
        }
    }

    /// Reports lost peers whose packets have all been received, after a poll that received some of `from`. What a rank
    /// sent before it left may still be on its way: the ends of its connections follow it. If this rank is closing too,
    /// nothing that it receives is needed.
    pub(super) fn report_gone(&mut self, from: &[Rank]) {
        let TcpWire { gone, peers, events, closing, .. } = self;
        for gone in gone.iter_mut() {
            if from.contains(&gone.peer) {
                (gone.looks, gone.last) = (0, Instant::now());
            } else {
                gone.looks += 1;
            }
        }
        let has_ended = |peer: Rank| peers.get(&peer).is_none_or(|peer| peer.links == 0);
        let is_over = |gone: &mut Gone| {
            let all_received = gone.why != Why::Left || *closing || has_ended(gone.peer) || gone.last.elapsed() > LATE;
            gone.looks > LAST_LOOKS && all_received
        };
        for Gone { peer, why, .. } in gone.extract_if(.., is_over) {
            events.push_back(Event::Failed(Lane { peer, rail: 0 }, why));
        }
    }

    pub(super) fn forget_gone(&mut self, rank: Rank) {
        self.gone.retain(|gone| gone.peer != rank);
    }
}
