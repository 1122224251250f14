//! Detection of peers that have closed, left or died.

use super::packet::closed;
use super::wire::{Peer, TcpWire};
use std::sync::Arc;
use std::time::{Duration, Instant};
use transom_channel::wire::{Event, Lane, Rank, Why};
use transom_locks::Awaited;
use transom_network::NetworkWire;
use transom_shm_loopback::messages::{ProgressHook, Waiter};
use transom_windows::FabricError;

/// Consecutive polls that received nothing before a lost peer is reported to the engine.
const LAST_LOOKS: u32 = 3;
/// Time without a byte after which a peer that has left is reported, although its streams have not ended: its host has
/// vanished meanwhile. Longer than a network takes to repeat a packet that was lost several times.
const VANISHED: Duration = Duration::from_secs(30);
/// Checks of a peer whose connection has ended, ten per second, before it counts as lost although the job says nothing.
const ALIVE: u32 = 10;

/// A lost peer whose last messages may still have to be received.
pub(super) struct Gone {
    peer: Rank,
    why: Why,
    looks: u32,
    /// Time of the notice, or of the last byte since.
    last: Instant,
}

impl Gone {
    fn new(peer: Rank, why: Why) -> Gone {
        Gone { peer, why, looks: 0, last: Instant::now() }
    }

    /// Returns whether no packet of the peer can follow. `has_ended`: all its streams have ended. A peer that left has sent
    /// what it owed, and the ends of its streams follow that. Nothing is owed by a peer that died, nor to a rank that is
    /// closing.
    fn is_over(&self, has_ended: bool, closing: bool, now: Instant) -> bool {
        let waits = self.why == Why::Left && !closing && !has_ended && now - self.last < VANISHED;
        self.looks > LAST_LOOKS && !waits
    }
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
    /// Announces to a peer that this rank receives no more messages, unless the connection accepts no packet now; a later
    /// check then does.
    pub(super) fn say_closed(&mut self, rank: Rank) {
        let Some(peer) = self.peers.get_mut(&rank).filter(|peer| !peer.told && !peer.over) else { return };
        let Some(number) = peer.out else { return };
        let Some(link) = self.links.get_mut(&number) else { return };
        let was_sending = link.is_sending();
        // A broken connection ends by itself.
        peer.told = link.send(&[&closed()]).unwrap_or(true);
        if !was_sending && link.is_sending() {
            self.sending.push(number);
        }
    }

    /// Counts checks of a peer whose connection has ended although the job does not report it as lost. A peer that receives
    /// no more messages may stay in the job for long. If both ranks are closing, the peer counts as having left.
    fn look_after(&mut self, rank: Rank) {
        let Some(peer) = self.peers.get_mut(&rank).filter(|peer| !peer.over && !peer.noticed) else { return };
        peer.ended += u32::from(peer.has_ended);
        if peer.ended > ALIVE {
            let why = if peer.closed { Why::Left } else { Why::Unreachable };
            self.notice(rank, why);
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
            self.gone.push(Gone::new(rank, why));
        }
    }

    /// Reports lost peers whose packets have all been received, after a poll that received some of `from`.
    pub(super) fn report_gone(&mut self, from: &[Rank]) {
        let now = Instant::now();
        for gone in &mut self.gone {
            if from.contains(&gone.peer) {
                (gone.looks, gone.last) = (0, now);
            } else {
                gone.looks += 1;
            }
        }
        let TcpWire { gone, peers, endpoint, events, closing, .. } = self;
        let has_ended = |peer: Rank| peers.get(&peer).is_none_or(Peer::has_no_stream) && !endpoint.mail.may_bring(peer);
        for Gone { peer, why, .. } in gone.extract_if(.., |gone| gone.is_over(has_ended(gone.peer), *closing, now)) {
            events.push_back(Event::Failed(Lane { peer, rail: 0 }, why));
        }
    }

    pub(super) fn forget_gone(&mut self, rank: Rank) {
        self.gone.retain(|gone| gone.peer != rank);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn departure_waits_for_the_end_or_a_long_silence() {
        let over = |why, looks, has_ended, closing, silence: u64| {
            let gone = Gone { looks, ..Gone::new(1, why) };
            gone.is_over(has_ended, closing, gone.last + Duration::from_secs(silence))
        };
        assert!(!over(Why::Left, 1000, false, false, 29), "its stream has not ended");
        assert!(over(Why::Left, 1000, false, false, 31), "its host has vanished");
        assert!(over(Why::Left, 4, true, false, 0));
        assert!(!over(Why::Left, 3, true, false, 0), "another poll may bring a packet");
        assert!(over(Why::Left, 4, false, true, 0), "this rank is closing too");
        assert!(over(Why::Died, 4, false, false, 0) && over(Why::Unreachable, 4, false, false, 0));
    }
}
